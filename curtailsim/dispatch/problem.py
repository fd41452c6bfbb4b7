"""When, and in which mode, should each training task run so that the day's energy costs least?  The question.

A pool of GPUs with its own renewable supply has to finish a tranche of tokens for each of several training tasks.  A
task may wait, resume or change its mode only at checkpoints, and a mode fixes GPUs, speed and power together.

Power is in MW, energy in MWh, money in USD, time in hours and slots.  A mode's power is what it adds to the idle pool.
The formulation is a reconstruction from a published summary; its parameters are ours.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from curtailsim.spec import Spec

Floats = NDArray[np.float64]


class Mode(Spec):
    """One way to run a task; any object with these attributes is accepted where a mode is asked for.

    Args:
        label: Name, unique within the task.
        gpus: GPUs it holds.
        tokens_per_s: Throughput. [tokens/s]
        training_increment_mw: Facility power above the idle pool's while training. [MW]
        restoring_increment_mw: Facility power above the idle pool's while a checkpoint is restored. [MW]
    """

    model_config = ConfigDict(from_attributes=True)

    label: str
    gpus: PositiveInt
    tokens_per_s: PositiveFloat
    training_increment_mw: float
    restoring_increment_mw: float


class Task(Spec):
    """A training task with its tranche for the horizon.

    Args:
        name: Name, unique within the problem.
        modes: The modes to choose from.
        tokens: Tokens to train within the horizon.
        segments: Equal checkpoint segments the tranche is cut into.
        restart_h: From (re)start to first new token: provision, restore, warm up. [h]
        checkpoint_h: Stall per checkpoint written. [h]
        restart_usd: Charge per (re)start. [USD]
        first_slot: Slot from which the task may run.
    """

    name: str
    modes: tuple[Mode, ...] = Field(min_length=1)
    tokens: PositiveFloat
    segments: PositiveInt = 12
    restart_h: NonNegativeFloat = 5 / 60
    checkpoint_h: NonNegativeFloat = 0.5 / 60
    restart_usd: NonNegativeFloat = 1.0
    first_slot: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _unique_modes(self) -> Self:
        _require_unique("mode", (mode.label for mode in self.modes))
        return self

    def mode(self, label: str) -> Mode:
        """The mode of that name."""
        return next(mode for mode in self.modes if mode.label == label)

    def segment_h(self, mode: Mode) -> float:
        """Time of one segment with its checkpoint [h]."""
        return self.tokens / (self.segments * 3600 * mode.tokens_per_s) + self.checkpoint_h

    def run_h(self, mode: Mode, segments: int) -> float:
        """Time of a run of so many segments, restart included [h]."""
        return self.restart_h + segments * self.segment_h(mode)

    def segment_gpu_hours(self) -> float:
        """GPU-hours of one segment in the mode that needs fewest [GPU-h]."""
        return min(mode.gpus * self.segment_h(mode) for mode in self.modes)


SLOT_SERIES = (
    "price_usd_per_mwh",
    "renewable_mw",
    "committed_mw",
    "committed_gpus",
    "committed_gpu_h",
    "idle_gpu_usd_per_h",
)
"""What a problem has one value per slot of."""


UNCERTAIN = ("price_usd_per_mwh", "renewable_mw")
"""Which of them may differ from sample to sample."""


class Sample(Spec):
    """Prices and renewable power as they may turn out.

    Args:
        name: Name, unique within the problem.
        weight: Its probability is its share of all weights.
        price_usd_per_mwh: Grid price of every slot. [USD/MWh]
        renewable_mw: Renewable power available in every slot. [MW]
    """

    name: str
    weight: PositiveFloat = 1.0
    price_usd_per_mwh: tuple[float, ...]
    renewable_mw: tuple[NonNegativeFloat, ...]


class DispatchProblem(Spec):
    """A pool, its tasks, and the prices and renewable power of every slot.

    With samples, prices and renewable power are uncertain: the runs of a plan are decided beforehand and are the same
    in all samples, each sample is supplied in its own cheapest way, and a plan's cost is the mean over the samples.

    Args:
        tasks: The training tasks.
        slot_h: Length of a slot. [h]
        price_usd_per_mwh: Grid price of every slot. [USD/MWh]
        renewable_mw: Renewable power available in every slot. [MW]
        gpus: GPUs in the pool.
        idle_mw: Facility power of the pool when nothing runs, PUE included; it is paid in every slot. [MW]
        curtailment_usd_per_mwh: Charge for renewable energy left unused. [USD/MWh]
        renewable_usd_per_mwh: Charge for renewable energy used. [USD/MWh]
        import_limit_mw: Most power the grid connection can draw; none if absent. [MW]
        start_every_slots: Runs may start at every so-manieth slot; more than one makes fine slots affordable.
        committed_mw: Power above idle already promised per slot, for example to a run that is under way. [MW]
        committed_gpus: GPUs already promised per slot.
        committed_gpu_h: GPU-hours that they are held for, per slot. [GPU-h]
        idle_gpu_usd_per_h: What others would pay for a GPU that no task holds, per slot; nothing if absent. [USD/GPU-h]
        samples: What price and renewable power may turn out to be; the series above are then their means (`sampled`).
    """

    tasks: tuple[Task, ...]
    slot_h: PositiveFloat = 0.5
    price_usd_per_mwh: tuple[float, ...] = Field(min_length=1)
    renewable_mw: tuple[NonNegativeFloat, ...]
    gpus: PositiveInt
    idle_mw: NonNegativeFloat
    curtailment_usd_per_mwh: float = 25.0
    renewable_usd_per_mwh: float = 0.0
    import_limit_mw: NonNegativeFloat | None = None
    start_every_slots: PositiveInt = 1
    committed_mw: tuple[float, ...] | None = None
    committed_gpus: tuple[int, ...] | None = None
    committed_gpu_h: tuple[float, ...] | None = None
    idle_gpu_usd_per_h: tuple[float, ...] | None = None
    samples: tuple[Sample, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _require_unique("task", (task.name for task in self.tasks))
        _require_unique("sample", (sample.name for sample in self.samples))
        for name in SLOT_SERIES:
            values = getattr(self, name)
            if values is not None and len(values) != self.slots:
                raise ValueError(f"{name} has {len(values)} slots, price_usd_per_mwh has {self.slots}")
        for sample in self.samples:
            for name in UNCERTAIN:
                found = len(getattr(sample, name))
                if found != self.slots:
                    raise ValueError(f"{name} of sample {sample.name!r} has {found} slots, not {self.slots}")
        return self

    @property
    def slots(self) -> int:
        """Slots in the horizon."""
        return len(self.price_usd_per_mwh)

    def task(self, name: str) -> Task:
        """The task of that name."""
        return next(task for task in self.tasks if task.name == name)

    def base_mw(self) -> Floats:
        """Power of every slot before any run of the plan [MW]."""
        return self.idle_mw + np.asarray(self.committed_mw or [0.0] * self.slots)

    def free_gpus(self) -> Floats:
        """GPUs of every slot that are not committed."""
        return self.gpus - np.asarray(self.committed_gpus or [0.0] * self.slots)

    def gpu_value_usd_per_h(self) -> Floats:
        """What a held GPU costs in lost use by others, in every slot [USD/GPU-h]."""
        return np.asarray(self.idle_gpu_usd_per_h or [0.0] * self.slots)

    def in_slots(self, slots: slice) -> dict[str, Any]:
        """Every series of the problem and of its samples in some of its slots, by its name."""
        series = {name: getattr(self, name) for name in SLOT_SERIES}
        cut: dict[str, Any] = {name: None if values is None else values[slots] for name, values in series.items()}
        cut["samples"] = tuple(
            sample.model_copy(update={name: getattr(sample, name)[slots] for name in UNCERTAIN})
            for sample in self.samples
        )
        return cut

    def sampled(self, samples: Sequence[Sample]) -> DispatchProblem:
        """The same problem with these samples, and with their means as its own prices and renewable power."""
        shares = _shares(samples)
        means = {name: np.dot(shares, [getattr(sample, name) for sample in samples]).tolist() for name in UNCERTAIN}
        return DispatchProblem.model_validate({**dict(self), **means, "samples": tuple(samples)})

    def mean_value(self) -> DispatchProblem:
        """The problem of somebody who plans for the means of the samples."""
        return self.model_copy(update={"samples": ()})

    def outcomes(self) -> list[Outcome]:
        """Every sample as a problem without uncertainty; the problem itself where there is none."""
        if not self.samples:
            return [Outcome("", 1.0, self)]
        return [
            Outcome(
                sample.name,
                share,
                self.model_copy(update={**{name: getattr(sample, name) for name in UNCERTAIN}, "samples": ()}),
            )
            for share, sample in zip(_shares(self.samples), self.samples, strict=True)
        ]

    def with_modes(self, labels: Sequence[str]) -> DispatchProblem:
        """The same problem where each task has only the mode named for it, in the order of the tasks."""
        tasks = tuple(
            task.model_copy(update={"modes": (task.mode(label),)})
            for task, label in zip(self.tasks, labels, strict=True)
        )
        return self.model_copy(update={"tasks": tasks})


def _require_unique(what: str, names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{what} names must differ: {', '.join(twice)}")


class Outcome(NamedTuple):
    """One way a problem may turn out: the name of the sample, its probability, and what is left to decide."""

    name: str
    probability: float
    problem: DispatchProblem


def _shares(samples: Sequence[Sample]) -> list[float]:
    """Probabilities of samples."""
    total = math.fsum(sample.weight for sample in samples)
    return [sample.weight / total for sample in samples]
