"""The reference day of the dispatch tests, and a finer meter for plans on slots."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd
from shared import REPOSITORY

from curtailsim.dispatch.plan import Evaluation, Plan, account, evaluate, plan_of
from curtailsim.dispatch.problem import SLOT_SERIES, UNCERTAIN, DispatchProblem, Sample


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
