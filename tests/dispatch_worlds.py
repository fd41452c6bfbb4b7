"""What tests of dispatch share: the reference day, a finer meter, tiny problems and their plans, reports as text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
from hypothesis import strategies as st
from rich.console import Console
from shared import REPOSITORY

from curtailsim.dispatch.plan import Evaluation, Plan, Run, account, evaluate, plan_of, run_arcs
from curtailsim.dispatch.problem import SLOT_SERIES, UNCERTAIN, DispatchProblem, Mode, Sample, Task
from curtailsim.report import show
from curtailsim.results import Results


@dataclass(frozen=True)
class Day:
    """Hourly prices [USD/MWh] and renewable power over the day's peak [-]."""

    price: tuple[float, ...]
    renewable: tuple[float, ...]

    def in_slots(self, slot_h: float) -> Day:
        """Each hour's values held over its slots, so that neither energy nor money depends on the slot."""
        return Day(
            *(tuple(v for v in hourly for _ in range(round(1 / slot_h))) for hourly in (self.price, self.renewable))
        )


_table = pd.read_csv(REPOSITORY / "data" / "caiso_like_day.csv", comment="#")
REFERENCE_DAY = Day(tuple(_table.price_usd_per_mwh), tuple(_table.renewable_per_unit))


@dataclass(frozen=True)
class Replay:
    """A plan as it was priced, and as a meter with a finer step sees it."""

    planned: Evaluation
    realised: Evaluation

    @property
    def relative_cost_error(self) -> float:
        """Realised over planned cost, minus one [-]."""
        return self.realised.cost_usd / self.planned.cost_usd - 1


def replay(problem: DispatchProblem, plan: Plan, step_min: float = 1.0) -> Replay:
    """Run a plan again on a fine grid, where the last, partial slot of a run is no longer averaged."""
    steps = round(problem.slot_h * 60 / step_min)
    assert math.isclose(steps * step_min, problem.slot_h * 60), "the step divides the slot"

    def repeated(of: DispatchProblem | Sample, name: str) -> tuple[float, ...] | None:
        values = getattr(of, name)
        share = 1 / steps if name == "committed_gpu_h" else 1  # the one series that adds up over time
        return None if values is None else tuple(share * value for value in values for _ in range(steps))

    series = {name: repeated(problem, name) for name in SLOT_SERIES}
    samples = tuple(s.model_copy(update={name: repeated(s, name) for name in UNCERTAIN}) for s in problem.samples)
    fine = problem.model_copy(update={"slot_h": problem.slot_h / steps, **series, "samples": samples})
    moved = [run.model_copy(update={"start_slot": run.start_slot * steps}) for run in plan.runs]
    return Replay(evaluate(problem, plan), account(fine, plan_of(fine, moved)))


def number(draw: st.DrawFn, low: float, high: float) -> float:
    """A number of few digits."""
    return round(draw(st.floats(low, high)), 3)


def tiny_tasks(draw: st.DrawFn, names: str, gpus: Sequence[int], most_tokens: float) -> tuple[Task, ...]:
    """Tasks of two modes and at most two segments, some with overheads."""

    def mode(label: str) -> Mode:
        held = draw(st.sampled_from(gpus))
        power = held * number(draw, 0.08, 0.12)
        return Mode(
            label=label,
            gpus=held,
            tokens_per_s=held * number(draw, 0.7, 1.1),
            training_increment_mw=power,
            restoring_increment_mw=0.4 * power,
        )

    return tuple(
        Task(
            name=name,
            modes=(mode("x"), mode("y")),
            tokens=3600 * number(draw, 4, most_tokens),
            segments=draw(st.integers(1, 2)),
            restart_h=draw(st.sampled_from((0.0, 0.2))),
            checkpoint_h=draw(st.sampled_from((0.0, 0.05))),
            restart_usd=draw(st.sampled_from((0.0, 0.7))),
        )
        for name in names
    )


def every_plan(problem: DispatchProblem) -> Iterator[Plan]:
    """Every plan of a tiny problem that trains all segments within the horizon, whether it fits the pool or not."""

    def paths(task: Task, slot: int, left: int) -> Iterator[tuple[Run, ...]]:
        if left == 0:
            yield ()
        for start in range(slot, problem.slots if left else 0):
            for arc in run_arcs(problem, task):
                if arc.segments <= left and start + arc.slots <= problem.slots:
                    first = Run(task=task.name, mode=arc.mode.label, segments=arc.segments, start_slot=start)
                    for rest in paths(task, start + arc.slots, left - arc.segments):
                        yield (first, *rest)

    for runs in itertools.product(*(paths(task, 0, task.segments) for task in problem.tasks)):
        yield Plan(slot_h=problem.slot_h, runs=tuple(itertools.chain(*runs)))


def shown(results: Results) -> str:
    """The report as text."""
    console = Console(width=200)
    with console.capture() as capture:
        show(results, console)
    return capture.get()
