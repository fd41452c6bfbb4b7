"""What may a scenario with `policy: {type: dispatch_plan}` say?  A pool, its training tasks, prices and a supply.

It shares everything else with the other scenarios: `scenario.load` reads it, overrides it and lists its mistakes, and
`results.run` runs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AwareDatetime,
    Discriminator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Tag,
    field_validator,
    model_validator,
)

from curtailsim.dispatch.problem import Mode
from curtailsim.energy.signals import PER_UNIT, SignalError, SiteSignals, generation_peak_kw, site_signals
from curtailsim.parallelism import (
    ACCELERATORS,
    SHAPES,
    Accelerator,
    Catalogue,
    Measurement,
    ModelShape,
    ParallelMode,
    enumerate_modes,
    pareto_front,
    with_measurements,
)
from curtailsim.scenario import NAME, Simple, TokensOnly
from curtailsim.spec import Problem, Spec, near_match
from curtailsim.training.specs import GptLearner

Baseline = Literal["fixed", "fixed_best", "pause_only", "mode_only", "mean_value"]
Comparator = Literal["heuristic", "hull", "anytime", "delay", "linear"]


class Replan(Spec):
    """When a plan is made anew because the day is not as forecast.

    After every slot its mean renewable power and price are compared with what the plan in force was made for.

    Attributes:
        above_mw: A difference in renewable power above this triggers a new plan. [MW]
        above_per_mwh: A difference in price above this does too. [currency/MWh]
        known_h: A new plan knows so much of the future as it will be; beyond that the forecast stands. [h]
    """

    above_mw: PositiveFloat | None = None
    above_per_mwh: PositiveFloat | None = None
    known_h: NonNegativeFloat = 1.0

    @model_validator(mode="after")
    def _has_a_trigger(self) -> Self:
        if self.above_mw is None and self.above_per_mwh is None:
            raise ValueError("needs above_mw or above_per_mwh: without either nothing triggers a new plan")
        return self


class DispatchPlan(Spec):
    """Run training tasks by a plan of `solver.solve`.

    Attributes:
        plan: A plan to execute instead, a JSON file such as the `plan.json` of a results folder.
        replan: When to plan anew because of forecast errors; never when absent.  After a failure it is always done.
    """

    type: Literal["dispatch_plan"]
    plan: str | None = None
    replan: Replan | None = None


class Forecast(Spec):
    """What a plan is made for where that is not what happens; a signal that is absent is foreseen as it is.

    Attributes:
        price: Price. [currency/MWh]
        generation: Renewable generation, in the same kind of unit as the site's.
    """

    price: Simple | None = None
    generation: Simple | None = None


class Failure(Spec):
    """The whole site is without power for a while; segments under way are lost back to their last checkpoint.

    Attributes:
        at_h: Since the start. [h]
        duration_h: Until it is back. [h]
    """

    at_h: float = Field(ge=0)
    duration_h: PositiveFloat


class DispatchSite(Spec):
    """The data centre: what it pays, what it generates, and what goes wrong.

    Attributes:
        name: Lower-case identifier.
        price: Price of grid energy. [currency/MWh]
        generation: Its own renewable supply: a power, or a profile per unit of `dispatch.renewable_ratio`.
        mci: Marginal carbon intensity of the grid, if emissions are to be reported. [g/kWh]
        average_ci: Average carbon intensity, likewise. [g/kWh]
        forecast: What the plan is made for, if it is not what happens.
        failures: When the site has no power.
    """

    name: str = Field(pattern=NAME)
    price: Simple
    generation: Simple | None = None
    mci: Simple | None = None
    average_ci: Simple | None = None
    forecast: Forecast = Forecast()
    failures: tuple[Failure, ...] = ()


class DispatchTask(Spec):
    """A pre-training task and its tranche.

    Attributes:
        name: Lower-case identifier.
        model: Name in the table of shapes, or a shape.
        tokens: Tokens to train in every tranche.
        segments: Equal parts of a tranche, each ending at a checkpoint.
        restart_h: From (re)start to the first new token: provision, restore, warm up. [h]
        checkpoint_h: Stall per checkpoint written. [h]
        restart_cost: Charge per (re)start. [currency]
        modes: Choose from the Pareto front, or from all usable modes (slow).
        measurements: Measured speed and power of modes, in place of those of the model.
    """

    type: Literal["pretraining"] = "pretraining"
    name: str = Field(pattern=NAME)
    model: str | ModelShape
    tokens: PositiveFloat
    segments: PositiveInt = 12
    restart_h: NonNegativeFloat = 5 / 60
    checkpoint_h: NonNegativeFloat = 0.5 / 60
    restart_cost: NonNegativeFloat = 1.0
    modes: Literal["pareto", "all"] = "pareto"
    measurements: tuple[Measurement, ...] = ()

    @field_validator("model")
    @classmethod
    def _known(cls, model: str | ModelShape) -> str | ModelShape:
        if isinstance(model, str) and model not in SHAPES:
            raise ValueError(f"{model!r} is unknown{near_match(model, SHAPES)}")
        return model

    @property
    def shape(self) -> ModelShape:
        """The model's shape."""
        return SHAPES[self.model] if isinstance(self.model, str) else self.model


class WorkMode(Spec):
    """One way to run a divisible task, as measured or assumed by its owner.

    Attributes:
        name: Lower-case identifier, unique within the task.
        gpus: GPUs it holds.
        units_per_h: Throughput. [units/h]
        gpu_w: Power of a GPU with its host share while it works, and while it starts. [W]
    """

    name: str = Field(pattern=NAME)
    gpus: PositiveInt
    units_per_h: PositiveFloat
    gpu_w: PositiveFloat


class DivisibleTask(Spec):
    """Work in small units that do not depend on each other's order: batch inference, or many short fine-tunings.

    It may stop after any unit and writes no checkpoints; each start has its overhead.  No learner trains it: its units
    are counted.

    Attributes:
        name: Lower-case identifier.
        units: Units to finish in every tranche; the solver's time grows with them.
        modes: Ways to run it.
        restart_h: From (re)start to the first unit's beginning: provision, load weights. [h]
        restart_cost: Charge per (re)start. [currency]
    """

    type: Literal["divisible"]
    name: str = Field(pattern=NAME)
    units: PositiveInt
    modes: tuple[WorkMode, ...] = Field(min_length=1)
    restart_h: NonNegativeFloat = 1 / 60
    restart_cost: NonNegativeFloat = 0.0

    @model_validator(mode="after")
    def _modes_differ(self) -> Self:
        names = [mode.name for mode in self.modes]
        if len(set(names)) < len(names):
            raise ValueError(f"modes must have different names (got {', '.join(names)})")
        return self


def _task_type(value: Any) -> Any:
    """The type of a task, which is a pre-training one unless it says otherwise."""
    return value.get("type", "pretraining") if isinstance(value, dict) else getattr(value, "type", None)


AnyTask = Annotated[
    Annotated[DispatchTask, Tag("pretraining")] | Annotated[DivisibleTask, Tag("divisible")], Discriminator(_task_type)
]


class DispatchSample(Spec):
    """How prices and generation may turn out; what is absent is as the site foresees it.

    Attributes:
        name: Lower-case identifier.
        weight: Its probability is its share of the weights of all samples.
        price: Price. [currency/MWh]
        generation: Renewable generation, in the same kind of unit as the site's.
        shift_h: Read the signals so much later; -24 is the day before. [h]
        price_scale: Factor on the price. [-]
        generation_scale: Factor on the generation. [-]
    """

    name: str = Field(pattern=NAME)
    weight: PositiveFloat = 1.0
    price: Simple | None = None
    generation: Simple | None = None
    shift_h: float = 0.0
    price_scale: NonNegativeFloat = 1.0
    generation_scale: NonNegativeFloat = 1.0


class DrawnSamples(Spec):
    """Samples drawn around what the site foresees, from the scenario's seed.

    Errors are normal and of first order: after `correlation_h` they are correlated by 1/e.  Those of the price are
    added; those of the generation are relative, and what falls below zero is zero.

    Attributes:
        count: Samples, equally probable.
        price_sd: Standard deviation of the price's error. [currency/MWh]
        generation_sd: Standard deviation of the generation's relative error. [-]
        correlation_h: Time in which the correlation of errors falls to 1/e. [h]
        cross_correlation: Correlation between the errors of generation and of price at the same time. [-]
    """

    count: int = Field(ge=1, le=1000)
    price_sd: NonNegativeFloat
    generation_sd: NonNegativeFloat
    correlation_h: PositiveFloat
    cross_correlation: float = Field(default=0.0, ge=-1, le=1)


class Dispatch(Spec):
    """The pool, the tasks, and the rules of the optimisation.

    Attributes:
        pool_gpus: GPUs in the pool.
        accelerator: Name in the table of accelerators, or an accelerator.
        pue: Power usage effectiveness. [-]
        unallocated_w: Power of a GPU that no task holds, host included; 0 parks such nodes.  From the table when
            absent. [W]
        tasks: What is run: pre-training tasks, and those with `type: divisible`.
        tranche_h: Every task has to train its tokens once in every such period; the horizon when absent. [h]
        look_ahead_tranches: A plan is made at every tranche's start for so many of them, and carried out for one.
        samples: How the horizon may turn out; the plan is then the one of least expected cost over them.
        drawn_samples: The same, with samples drawn at random.
        slot_h: Slot of the plan. [h]
        start_every_slots: Runs start at every so-manieth slot; more than one makes fine slots affordable.
        renewable_ratio: Peak of the renewable supply over the pool's rated power.  It scales a profile per unit as it
            stands, and a power by its own peak within the horizon.  Absent: the generation is that power.
        renewable_ratio_gpus: GPUs whose rated power the ratio refers to; the pool's when absent.
        curtailment_per_mwh: Charge for renewable energy left unused. [currency/MWh]
        renewable_per_mwh: Charge for renewable energy used. [currency/MWh]
        import_limit_mw: Most the grid connection carries, as a mean over a slot. [MW]
        idle_gpu_value_per_h: What other users of the pool would pay for a GPU that no task holds: a number, or one for
            each hour since the start, repeated to the horizon. [currency/GPU-h]
        gap: The solver stops when its plan is proved to be within this share of the optimum. [-]
        time_limit_s: It also stops after this wall time, which then makes results depend on the machine. [s]
        baselines: Simpler plans to execute too; `fixed` is the reference of every saving.
        comparators: What other views of training promise; they are computed, not executed.
    """

    pool_gpus: PositiveInt
    accelerator: str | Accelerator = "A100-80G"
    pue: float = Field(default=1.2, ge=1)
    unallocated_w: NonNegativeFloat | None = None
    tasks: tuple[AnyTask, ...] = Field(min_length=1)
    tranche_h: PositiveFloat | None = None
    look_ahead_tranches: PositiveInt = 1
    samples: tuple[DispatchSample, ...] = ()
    drawn_samples: DrawnSamples | None = None
    slot_h: PositiveFloat = 0.5
    start_every_slots: PositiveInt = 1
    renewable_ratio: NonNegativeFloat | None = None
    renewable_ratio_gpus: PositiveInt | None = None
    curtailment_per_mwh: float = 25.0
    renewable_per_mwh: float = 0.0
    import_limit_mw: NonNegativeFloat | None = None
    idle_gpu_value_per_h: tuple[NonNegativeFloat, ...] = Field(default=(0.0,), min_length=1)
    gap: float = Field(default=0.005, gt=0, lt=1)
    time_limit_s: PositiveFloat = 120.0
    baselines: tuple[Baseline, ...] = ("fixed",)
    comparators: tuple[Comparator, ...] = ()

    @field_validator("accelerator")
    @classmethod
    def _known(cls, accelerator: str | Accelerator) -> str | Accelerator:
        if isinstance(accelerator, str) and accelerator not in ACCELERATORS:
            raise ValueError(f"{accelerator!r} is unknown{near_match(accelerator, ACCELERATORS)}")
        return accelerator

    @field_validator("idle_gpu_value_per_h", mode="before")
    @classmethod
    def _one_for_all_hours(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int | float | str) else value

    @property
    def gpu(self) -> Accelerator:
        """The accelerator, with the asked power of unallocated nodes."""
        found = ACCELERATORS[self.accelerator] if isinstance(self.accelerator, str) else self.accelerator
        return found if self.unallocated_w is None else found.parked(self.unallocated_w)

    @property
    def idle_mw(self) -> float:
        """Facility power of the pool when nothing runs. [MW]"""
        return self.gpu.idle_mw(self.pool_gpus, self.pue)

    @property
    def plant_kw(self) -> float | None:
        """Peak of the renewable supply, if it is set by a ratio. [kW]"""
        if self.renewable_ratio is None:
            return None
        return 1000 * self.renewable_ratio * self.gpu.rated_mw(self.renewable_ratio_gpus or self.pool_gpus, self.pue)

    def catalogue(self, task: DispatchTask) -> Catalogue:
        """The usable modes of a task on the pool, and the rejected layouts."""
        return enumerate_modes(task.shape, self.gpu, self.pool_gpus, pue=self.pue)

    @property
    def pretraining(self) -> tuple[DispatchTask, ...]:
        """The tasks that a learner trains."""
        return tuple(task for task in self.tasks if isinstance(task, DispatchTask))

    def work_modes(self, task: DivisibleTask) -> tuple[Mode, ...]:
        """The modes of a divisible task that fit the pool; a token of theirs is a unit."""
        return tuple(self._work_mode(mode) for mode in task.modes if mode.gpus <= self.pool_gpus)

    def _work_mode(self, mode: WorkMode) -> Mode:
        added_mw = self.pue * mode.gpus * (mode.gpu_w - self.gpu.unallocated_w) / 1e6
        return Mode(
            label=mode.name,
            gpus=mode.gpus,
            tokens_per_s=mode.units_per_h / 3600,
            training_increment_mw=added_mw,
            restoring_increment_mw=added_mw,
        )

    def modes(self, task: DispatchTask) -> tuple[ParallelMode, ...]:
        """The modes of a pre-training task that a plan may choose from."""
        usable = with_measurements(self.catalogue(task).modes, task.measurements)
        return pareto_front(usable) if task.modes == "pareto" else usable


class DispatchTraining(Spec):
    """The learner of every task.

    Attributes:
        learner: gpt (real, built in) or tokens_only.
        stride: Virtual optimiser steps for each real one.
    """

    learner: Annotated[GptLearner | TokensOnly, Field(discriminator="type")]
    stride: PositiveInt = 100


class DispatchScenario(Spec):
    """One question about a dispatched pool, complete.

    Attributes:
        name: Names the results folder; the file's name when absent.
        start: First instant, with its time zone.
        duration_h: Horizon. [h]
        seed: Every random stream of the learners derives from it.
        threads: PyTorch threads.
        sites: The data centre.
        policy: Where the plan comes from and when it is made anew.
        dispatch: The pool, the tasks, and the rules of the optimisation.
        training: The learner.
    """

    name: str = Field(pattern=r"^[\w.-]+$", max_length=100)
    start: AwareDatetime
    duration_h: float = Field(ge=0.001)
    seed: int = Field(default=0, ge=0)
    threads: int = Field(default=1, gt=0, le=1024)
    sites: tuple[DispatchSite, ...] = Field(min_length=1, max_length=1)
    policy: DispatchPlan
    dispatch: Dispatch
    training: DispatchTraining

    @field_validator("start")
    @classmethod
    def _in_utc(cls, start: datetime) -> datetime:
        return start.astimezone(UTC)

    @property
    def horizon_ms(self) -> int:
        """The horizon on the clock. [ms]"""
        return round(self.duration_h * 3_600_000)

    @property
    def end(self) -> datetime:
        """First instant after the horizon."""
        return self.start + timedelta(hours=self.duration_h)

    @property
    def total_steps(self) -> int | None:
        """Progress goes by the clock here, not by steps."""
        return None

    @property
    def plant_kw(self) -> float | None:
        """Peak of the renewable supply, if it is set by a ratio. [kW]"""
        return self.dispatch.plant_kw

    @property
    def slots(self) -> int:
        """Slots in the horizon."""
        return round(self.duration_h / self.dispatch.slot_h)

    @property
    def tranches(self) -> int:
        """Tranches in the horizon."""
        return round(self.duration_h / (self.dispatch.tranche_h or self.duration_h))

    @property
    def foreseen_site(self) -> DispatchSite:
        """The site as the plan is made for it."""
        site = self.sites[0]
        given = {key: value for key, value in dict(site.forecast).items() if value is not None}
        return site.model_copy(update=given)

    @property
    def is_stochastic(self) -> bool:
        """Whether plans are made for samples."""
        return bool(self.dispatch.samples) or self.dispatch.drawn_samples is not None


def actual_signals(scenario: DispatchScenario) -> SiteSignals:
    """What happens."""
    return site_signals(scenario.sites[0], scenario.start, scenario.horizon_ms, scenario.plant_kw)


def foreseen_signals(scenario: DispatchScenario) -> SiteSignals:
    """What plans are made for."""
    return _signals_of_same_plant(scenario, scenario.foreseen_site, scenario.start)


def sample_signals(scenario: DispatchScenario, sample: DispatchSample) -> SiteSignals:
    """What may happen, before the sample's scales."""
    given = {key: value for key in ("price", "generation") if (value := getattr(sample, key)) is not None}
    site = scenario.foreseen_site.model_copy(update=given)
    return _signals_of_same_plant(scenario, site, scenario.start + timedelta(hours=sample.shift_h))


def _signals_of_same_plant(scenario: DispatchScenario, site: DispatchSite, start: datetime) -> SiteSignals:
    """A plant is as large as its true generation says: a cloudy forecast is not scaled up to a clear day."""
    plant_kw = scenario.plant_kw
    peak_kw = plant_kw and generation_peak_kw(scenario.sites[0], scenario.start, scenario.horizon_ms)
    return site_signals(site, start, scenario.horizon_ms, plant_kw, peak_kw)


def cross_check(scenario: DispatchScenario) -> Iterator[Problem]:
    """Mistakes that no single key shows."""
    yield from _check_grid(scenario)
    yield from _check_lists(scenario)
    yield from _check_modes(scenario)
    yield from _check_units(scenario)
    yield from _check_samples(scenario)
    yield from _check_plan(scenario)
    yield from _check_signals(scenario)


def _check_grid(scenario: DispatchScenario) -> Iterator[Problem]:
    rules, hours = scenario.dispatch, scenario.duration_h
    slot_s = rules.slot_h * 3600
    if not math.isclose(slot_s, round(slot_s)):
        yield Problem("dispatch.slot_h", f"must be whole seconds (got {slot_s:g} s)")
    if not _divides(rules.slot_h, hours):
        yield Problem("dispatch.slot_h", f"must divide duration_h, {hours:g} h (got {rules.slot_h:g} h)")
    if rules.tranche_h is not None:
        if not _divides(rules.tranche_h, hours):
            yield Problem("dispatch.tranche_h", f"must divide duration_h, {hours:g} h (got {rules.tranche_h:g} h)")
        if not _divides(rules.slot_h, rules.tranche_h):
            yield Problem("dispatch.slot_h", f"must divide tranche_h, {rules.tranche_h:g} h (got {rules.slot_h:g} h)")
    last_h = 0.0
    for index, failure in enumerate(scenario.sites[0].failures):
        where = f"sites[0].failures[{index}].at_h"
        if failure.at_h < last_h:
            yield Problem(where, f"must be at least {last_h:g}, the end of the one before (got {failure.at_h:g})")
        if failure.at_h >= hours:
            yield Problem(where, f"must be below duration_h, {hours:g} (got {failure.at_h:g})")
        last_h = failure.at_h + failure.duration_h


def _divides(part: float, whole: float) -> bool:
    return whole >= part and math.isclose(whole / part, round(whole / part))


def _check_lists(scenario: DispatchScenario) -> Iterator[Problem]:
    rules = scenario.dispatch
    lists: dict[str, list[str]] = {
        "tasks": [task.name for task in rules.tasks],
        "baselines": list(rules.baselines),
        "comparators": list(rules.comparators),
        "samples": [sample.name for sample in rules.samples],
    }
    for key, names in lists.items():
        for index, name in enumerate(names):
            if name in names[:index]:
                yield Problem(f"dispatch.{key}[{index}]", f"{name!r} is there twice; remove or rename one")


def _check_modes(scenario: DispatchScenario) -> Iterator[Problem]:
    for index, task in enumerate(scenario.dispatch.tasks):
        if isinstance(task, DivisibleTask):
            if not scenario.dispatch.work_modes(task):
                smallest = min(mode.gpus for mode in task.modes)
                rule = f"every mode needs more than the pool's {scenario.dispatch.pool_gpus:,} GPUs"
                yield Problem(f"dispatch.tasks[{index}].modes", f"{rule} (smallest {smallest:,}); add GPUs")
            continue
        catalogue = scenario.dispatch.catalogue(task)
        if not catalogue.modes:
            counts = {rejection.rule: catalogue.rejected(rejection.rule) for rejection in catalogue.rejections}
            listed = ", ".join(f"{count} by {rule}" for rule, count in counts.items())
            rule = f"has no usable mode on {scenario.dispatch.pool_gpus:,} GPUs (rejected: {listed}); add GPUs"
            yield Problem(f"dispatch.tasks[{index}].model", rule)
        labels = {mode.label for mode in catalogue.modes}
        for number, measured in enumerate(task.measurements if labels else ()):
            if measured.mode not in labels:
                rule = (
                    f"{measured.mode!r} is no usable mode; `python -m curtailsim modes` lists them with their reasons"
                )
                yield Problem(f"dispatch.tasks[{index}].measurements[{number}].mode", rule)
                continue
            gpus = next(mode.gpus for mode in catalogue.modes if mode.label == measured.mode)
            gpu, pue = scenario.dispatch.gpu, scenario.dispatch.pue
            least, most = gpu.idle_mw(gpus, pue), 2 * gpu.rated_mw(gpus, pue)
            if not least <= measured.facility_mw <= most:
                rule = f"must be the facility power of its {gpus:,} GPUs, from {least:.3g} (idle) to {most:.3g} MW"
                where = f"dispatch.tasks[{index}].measurements[{number}].facility_mw"
                yield Problem(where, f"{rule} (twice rated) (got {measured.facility_mw:g})")


def _check_units(scenario: DispatchScenario) -> Iterator[Problem]:
    site, ratio = scenario.sites[0], scenario.dispatch.renewable_ratio
    given = [("sites[0].generation", site.generation), ("sites[0].forecast.generation", site.forecast.generation)]
    given += [(f"dispatch.samples[{i}].generation", one.generation) for i, one in enumerate(scenario.dispatch.samples)]
    for where, spec in given:
        if spec is not None and ratio is None and spec.unit in PER_UNIT:
            rule = f"unit {spec.unit!r} is per unit of a plant; add dispatch.renewable_ratio, or use a power"
            yield Problem(f"{where}.unit", rule)
    if site.generation is None and ratio:
        yield Problem("sites[0].generation", "is required by dispatch.renewable_ratio; add a profile")
    if site.forecast.generation is not None and site.generation is None:
        yield Problem("sites[0].generation", "is required where it is forecast; add it")


def _check_samples(scenario: DispatchScenario) -> Iterator[Problem]:
    rules = scenario.dispatch
    if rules.samples and rules.drawn_samples is not None:
        yield Problem("dispatch.drawn_samples", "is a second source of samples; leave it or dispatch.samples out")
    if "mean_value" in rules.baselines and not scenario.is_stochastic:
        index = rules.baselines.index("mean_value")
        yield Problem(f"dispatch.baselines[{index}]", "'mean_value' needs samples to take the mean of; add them")
    if scenario.sites[0].generation is None:
        uses = {
            f"dispatch.samples[{index}].{key}": getattr(sample, key) not in (None, 1.0)
            for index, sample in enumerate(rules.samples)
            for key in ("generation", "generation_scale")
        }
        drawn = rules.drawn_samples
        uses["dispatch.drawn_samples.generation_sd"] = drawn is not None and drawn.generation_sd > 0
        for path, used in uses.items():
            if used:
                yield Problem(path, "is about a generation that the site does not have; add it, or leave this out")


def _check_plan(scenario: DispatchScenario) -> Iterator[Problem]:
    path = scenario.policy.plan
    if path is not None and not Path(path).is_file():
        yield Problem("policy.plan", f"{path} is no file; check the path")


def _check_signals(scenario: DispatchScenario) -> Iterator[Problem]:
    readers: dict[str, Callable[[], SiteSignals]] = {"sites[0]": partial(actual_signals, scenario)}
    if scenario.sites[0].forecast != Forecast():
        readers["sites[0].forecast"] = partial(foreseen_signals, scenario)
    for index, sample in enumerate(scenario.dispatch.samples):
        readers[f"dispatch.samples[{index}]"] = partial(sample_signals, scenario, sample)
    currency, told = None, set()
    for where, read in readers.items():
        try:
            found = read().currency
        except SignalError as error:
            for problem in error.problems:
                if problem not in told:  # what the others take over from the site is said once
                    told.add(problem)
                    yield Problem(f"{where}.{problem[0]}", problem[1])
            continue
        if currency not in (None, found):
            yield Problem(f"{where}.price.unit", f"must be in {currency}, as the site's price (got {found})")
        currency = currency or found
