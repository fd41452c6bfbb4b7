"""What does a dispatch scenario ask?  Its site, samples and tasks as a `DispatchProblem` of the whole horizon."""

from __future__ import annotations

import math

import numpy as np

from curtailsim.dispatch.problem import DispatchProblem, Floats, Mode, Sample, Task
from curtailsim.dispatch.scenario import (
    DispatchScenario,
    DispatchTask,
    DivisibleTask,
    DrawnSamples,
    actual_signals,
    foreseen_signals,
    sample_signals,
)
from curtailsim.energy.signals import SiteSignals, Steps
from curtailsim.streams import stream


def actual_problem(scenario: DispatchScenario) -> DispatchProblem:
    """The whole horizon as it will be."""
    return whole_problem(scenario, actual_signals(scenario))


def foreseen_problem(scenario: DispatchScenario) -> DispatchProblem:
    """The whole horizon as it is forecast, with its samples."""
    foreseen = whole_problem(scenario, foreseen_signals(scenario))
    return foreseen.sampled(_samples(scenario, foreseen)) if scenario.is_stochastic else foreseen


def _slot_edges_ms(scenario: DispatchScenario) -> Floats:
    """Borders of the slots on the clock. [ms]"""
    return np.linspace(0.0, scenario.slots * scenario.dispatch.slot_h * 3_600_000, scenario.slots + 1)


def gpu_value_steps(scenario: DispatchScenario) -> Steps:
    """What other users would pay for an idle GPU on the clock. [currency/GPU-h]"""
    values, hours = scenario.dispatch.idle_gpu_value_per_h, range(math.ceil(scenario.duration_h))
    return Steps([hour * 3_600_000 for hour in hours], [values[hour % len(values)] for hour in hours])


def _slot_means(scenario: DispatchScenario, signals: SiteSignals) -> tuple[Floats, Floats]:
    """Price and renewable power as means over the slots. [currency/MWh, MW]"""
    edges = _slot_edges_ms(scenario)
    generation = signals.steps.get("generation", Steps([0], [0.0]))
    return signals.steps["price"].means(edges), generation.means(edges) / 1000


def whole_problem(scenario: DispatchScenario, signals: SiteSignals) -> DispatchProblem:
    """The dispatch problem of the whole horizon: all tranches together, signals as means over the slots."""
    rules, edges = scenario.dispatch, _slot_edges_ms(scenario)
    price, renewable_mw = _slot_means(scenario, signals)
    return DispatchProblem(
        tasks=tuple(_task(scenario, task) for task in rules.tasks),
        slot_h=rules.slot_h,
        price_usd_per_mwh=tuple(price.tolist()),
        renewable_mw=tuple(renewable_mw.tolist()),
        gpus=rules.pool_gpus,
        idle_mw=rules.idle_mw,
        curtailment_usd_per_mwh=rules.curtailment_per_mwh,
        renewable_usd_per_mwh=rules.renewable_per_mwh,
        import_limit_mw=rules.import_limit_mw,
        start_every_slots=rules.start_every_slots,
        idle_gpu_usd_per_h=tuple(gpu_value_steps(scenario).means(edges).tolist()),
    )


def _samples(scenario: DispatchScenario, foreseen: DispatchProblem) -> tuple[Sample, ...]:
    """What the horizon may turn out to be, listed or drawn; nothing where a plan is made for one forecast."""
    drawn = scenario.dispatch.drawn_samples
    if drawn is not None:
        return _drawn(scenario, drawn, foreseen)
    found = []
    for spec in scenario.dispatch.samples:
        price, renewable_mw = _slot_means(scenario, sample_signals(scenario, spec))
        found.append(_sample(spec.name, spec.weight, spec.price_scale * price, spec.generation_scale * renewable_mw))
    return tuple(found)


def _sample(name: str, weight: float, price: Floats, renewable_mw: Floats) -> Sample:
    return Sample(
        name=name,
        weight=weight,
        price_usd_per_mwh=tuple(price.tolist()),
        renewable_mw=tuple(renewable_mw.tolist()),
    )


def _drawn(scenario: DispatchScenario, rules: DrawnSamples, foreseen: DispatchProblem) -> tuple[Sample, ...]:
    price, renewable_mw = np.array(foreseen.price_usd_per_mwh), np.array(foreseen.renewable_mw)
    rho = rules.cross_correlation
    found = []
    for number in range(rules.count):
        name = f"drawn_{number + 1}"
        of_power, alone = (_errors(scenario, rules, name, series) for series in ("generation", "price"))
        of_price = rho * of_power + math.sqrt(1 - rho**2) * alone
        shined_mw = renewable_mw * np.maximum(1 + rules.generation_sd * of_power, 0.0)
        found.append(_sample(name, 1.0, price + rules.price_sd * of_price, shined_mw))
    return tuple(found)


def _errors(scenario: DispatchScenario, rules: DrawnSamples, sample: str, series: str) -> Floats:
    """A stationary autoregressive series of unit variance, a value per slot."""
    white = stream(scenario.seed, "samples", sample, series).standard_normal(scenario.slots)
    kept = math.exp(-scenario.dispatch.slot_h / rules.correlation_h)
    values = [white[0]]
    for fresh in white[1:]:
        values.append(kept * values[-1] + math.sqrt(1 - kept**2) * fresh)
    return np.array(values)


def _task(scenario: DispatchScenario, task: DispatchTask | DivisibleTask) -> Task:
    if isinstance(task, DivisibleTask):
        return Task(
            name=task.name,
            modes=scenario.dispatch.work_modes(task),
            tokens=task.units * scenario.tranches,
            segments=task.units * scenario.tranches,
            restart_h=task.restart_h,
            checkpoint_h=0.0,
            restart_usd=task.restart_cost,
        )
    return Task(
        name=task.name,
        modes=tuple(Mode.model_validate(mode) for mode in scenario.dispatch.modes(task)),
        tokens=task.tokens * scenario.tranches,
        segments=task.segments * scenario.tranches,
        restart_h=task.restart_h,
        checkpoint_h=task.checkpoint_h,
        restart_usd=task.restart_cost,
    )
