"""What is it worth to plan for everything that may happen, rather than for its mean?

A plan made for samples has the least expected cost of all plans that are the same in every sample (sample-average
approximation).  Two others say what that is worth: the plan made for the means of the samples, and the plans of
somebody who knows the sample beforehand.

    wait and see <= plan for the samples <= plan for their mean

References:
    Birge and Louveaux, Introduction to Stochastic Programming, 2nd ed., 2011, chapter 4: VSS and EVPI.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from curtailsim.dispatch.plan import Plan, account, audit, evaluate
from curtailsim.dispatch.problem import DispatchProblem
from curtailsim.dispatch.solver import Solution, solve
from curtailsim.linear_program import Progress


class SampleCosts(NamedTuple):
    """What happens in one sample.

    Args:
        name: The sample.
        probability: Its probability. [-]
        cost_usd: Of the plan made for all samples. [USD]
        mean_value_cost_usd: Of the plan made for their mean; an import above the limit is paid like any other. [USD]
        wait_and_see_cost_usd: Of the plan made for this sample alone. [USD]
        wait_and_see_bound_usd: No plan is cheaper in this sample; minus infinity if nothing is proved. [USD]
    """

    name: str
    probability: float
    cost_usd: float
    mean_value_cost_usd: float
    wait_and_see_cost_usd: float
    wait_and_see_bound_usd: float


@dataclass(frozen=True)
class StochasticValue:
    """What planning for samples is worth, as far as the solver's gaps let it be known.

    Args:
        samples: The costs, sample by sample.
        bound_usd: No plan has a lower expected cost; minus infinity if nothing is proved. [USD]
        mean_value_breaks: Why the plan made for the mean cannot be carried out in all samples; empty if it can.
    """

    samples: tuple[SampleCosts, ...]
    bound_usd: float
    mean_value_breaks: tuple[str, ...] = ()

    @property
    def expected_cost_usd(self) -> float:
        """Of the plan made for the samples [USD]."""
        return math.fsum(sample.probability * sample.cost_usd for sample in self.samples)

    @property
    def mean_value_cost_usd(self) -> float | None:
        """Expected, of the plan made for the mean; None if it cannot be carried out in all samples [USD]."""
        if self.mean_value_breaks:
            return None
        return math.fsum(sample.probability * sample.mean_value_cost_usd for sample in self.samples)

    @property
    def wait_and_see_cost_usd(self) -> float:
        """Expected, of plans made in full knowledge [USD]."""
        return math.fsum(sample.probability * sample.wait_and_see_cost_usd for sample in self.samples)

    @property
    def of_the_stochastic_solution_usd(self) -> float | None:
        """VSS: what the plan made for the mean is expected to cost more; None if it cannot be carried out [USD]."""
        return self._above_mean_value(self.expected_cost_usd)

    @property
    def of_the_stochastic_solution_at_most_usd(self) -> float | None:
        """What VSS would be if the best plan were as cheap as its bound [USD]."""
        return self._above_mean_value(self.bound_usd)

    def _above_mean_value(self, cost_usd: float) -> float | None:
        mean_value = self.mean_value_cost_usd
        return None if mean_value is None else mean_value - cost_usd

    @property
    def of_perfect_information_usd(self) -> float:
        """EVPI: what knowing the sample beforehand is expected to save [USD]."""
        return self.expected_cost_usd - self.wait_and_see_cost_usd

    @property
    def of_perfect_information_at_most_usd(self) -> float:
        """What EVPI would be if the best plans in full knowledge were as cheap as their bounds [USD]."""
        bounds = [sample.probability * sample.wait_and_see_bound_usd for sample in self.samples]
        return self.expected_cost_usd - math.fsum(bounds)


def solve_for_mean(
    problem: DispatchProblem,
    *,
    relative_gap: float = 2e-3,
    time_limit_s: float = 120.0,
    progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """The plan of somebody who knows only the means of the samples, judged by these means."""
    return solve(problem.mean_value(), relative_gap=relative_gap, time_limit_s=time_limit_s, progress=progress)


def solve_for_samples(
    problem: DispatchProblem,
    mean_plan: Plan,
    *,
    relative_gap: float = 2e-3,
    time_limit_s: float = 120.0,
    progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """The plan of least expected cost; never dearer than that for the mean, if that can be carried out.

    Raises:
        ScenarioError: No plan fits all samples, or none was found.
    """
    start = None if audit(problem, mean_plan) else mean_plan
    return solve(problem, relative_gap=relative_gap, time_limit_s=time_limit_s, start=start, progress=progress)


def stochastic_value(
    problem: DispatchProblem,
    solution: Solution,
    mean_plan: Plan,
    *,
    relative_gap: float = 2e-3,
    time_limit_s: float = 120.0,
    progress: Callable[[Progress], None] | None = None,
) -> StochasticValue:
    """Compare a plan made for samples with one for their mean, and with plans made in full knowledge.

    Args:
        problem: The problem with its samples.
        solution: The plan made for them.
        mean_plan: The plan made for their mean.
        relative_gap: Gap of the plans made in full knowledge. [-]
        time_limit_s: Time limit of each of them. [s]
        progress: Called with the state of the search.
    """
    rows, plan = [], solution.plan
    for name, probability, outcome in problem.outcomes():
        known = solve(outcome, relative_gap=relative_gap, time_limit_s=time_limit_s, start=plan, progress=progress)
        own, for_mean = evaluate(outcome, plan).cost_usd, account(outcome, mean_plan).cost_usd
        rows.append(SampleCosts(name, probability, own, for_mean, known.evaluation.cost_usd, known.bound_usd))
    breaks = tuple(found.rule for found in audit(problem, mean_plan))
    return StochasticValue(tuple(rows), solution.bound_usd, breaks)
