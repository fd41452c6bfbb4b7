"""Real training of one task between checkpoints: it can stop at any of them and go on as if it had not.

The mode a task runs in sets its speed and power, never its mathematics: the global batch is the same in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from curtailsim.training.corpus import Corpus, assemble, split
from curtailsim.training.learner import GptTrainer, initial_arrays
from curtailsim.training.specs import Corpus as CorpusSpec
from curtailsim.training.specs import GptLearner

CORPUS: TypeAdapter[CorpusSpec] = TypeAdapter(CorpusSpec)


@lru_cache(maxsize=4)
def _assemble_once(spec: str) -> Corpus:
    return assemble(CORPUS.validate_json(spec))


class TaskLearner:
    """A model that trains in segments, each ending at a checkpoint.

    Args:
        spec: Model, optimiser, schedule and text.
        task: Name of the task, which names its shard and its random streams.
        tasks: Names of all tasks, which share the corpus.
        seed: Seed of the scenario.
        total_steps: Virtual steps of the whole task, which set the learning-rate schedule.
        stride: Virtual steps for each real one: the first of every so many is taken.

    Attributes:
        checkpoint: Everything the next segment starts from.
    """

    def __init__(
        self, spec: GptLearner, task: str, tasks: Sequence[str], seed: int, total_steps: int, stride: int
    ) -> None:
        self.spec, self.task, self.seed = spec, task, seed
        self.total_steps, self.stride = total_steps, stride
        corpus = _assemble_once(spec.corpus.model_dump_json())
        self._text = split(corpus, list(tasks), spec.corpus, seed)[task]
        self.arrays = initial_arrays(spec, seed)
        self._trainer = self._new_trainer()
        self.checkpoint: dict[str, Any] = self._trainer.snapshot()
        self.eval_loss_initial = self.evaluate()

    def restore(self) -> None:
        """Start from the last checkpoint on new processes, as after a pause, a change of mode or a failure."""
        self._trainer = self._new_trainer()
        self._trainer.restore(self.checkpoint)

    def train_segment(self, first_step: int, last_step: int) -> list[tuple[int, float]]:
        """Train virtual steps first_step + 1 to last_step and write a checkpoint.

        Returns:
            Number of every real step among the virtual ones, and its loss. [nats/byte]
        """
        steps = real_steps(first_step, last_step, self.stride)
        losses: list[float] = []
        if steps:
            self.arrays, losses = self._trainer.train(
                self.arrays,
                steps=len(steps),
                global_step=steps[0] - 1,
                global_step_increment=self.stride,
                schedule_steps=self.total_steps,
            )
        self.checkpoint = self._trainer.snapshot()
        return list(zip(steps, losses, strict=True))

    def evaluate(self) -> float:
        """Held-out loss of the last checkpoint. [nats/byte]"""
        judge = GptTrainer(self.spec, self._text.validation, "validation", self.seed)
        return judge.evaluate(self.arrays, self._text.validation)

    def weights(self) -> dict[str, np.ndarray]:
        """The model as it stands in the last checkpoint."""
        return dict(self.arrays)

    def _new_trainer(self) -> GptTrainer:
        return GptTrainer(self.spec, self._text.training, self.task, self.seed)


def real_steps(first_step: int, last_step: int, stride: int) -> list[int]:
    """Numbers, from 1, of the virtual steps first_step + 1 to last_step that are taken for real: 1, 1 + stride, ..."""
    return [step for step in range(first_step + 1, last_step + 1) if (step - 1) % stride == 0]


def check_learners(spec: GptLearner, tasks: Sequence[str], seed: int) -> dict[str, str]:
    """Find what is wrong with the text before anything is run, and what a manifest should say of it.

    Raises:
        ScenarioError: Text is missing or too short.
    """
    corpus = _assemble_once(spec.corpus.model_dump_json())
    split(corpus, list(tasks), spec.corpus, seed)
    return {"corpus_sha256": corpus.sha256}
