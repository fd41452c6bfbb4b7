"""What may a dispatch scenario with several data centres say?  More of the same, and what moving a task takes.

`dispatch` says what all sites have in common; what a site says of its own pool, accelerator, power, supply and
connection comes first.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator

from curtailsim.dispatch import scenario as dispatch_scenario
from curtailsim.dispatch.scenario import Baseline, Dispatch, DispatchScenario, DispatchSite, DispatchTask, Forecast
from curtailsim.parallelism import ACCELERATORS, Accelerator
from curtailsim.spec import Problem, Spec, near_match

OWN_KEYS = ("pool_gpus", "accelerator", "pue", "unallocated_w", "renewable_ratio", "import_limit_mw")
"""What a site may say of itself, in place of `dispatch`."""


class CentreSite(DispatchSite):
    """One of several data centres; a key that is absent is that of `dispatch`.

    Attributes:
        pool_gpus: GPUs in its pool.
        accelerator: Name in the table of accelerators, or an accelerator.
        pue: Power usage effectiveness. [-]
        unallocated_w: Power of a GPU that no task holds, host included. [W]
        renewable_ratio: Peak of its renewable supply over its pool's rated power.
        import_limit_mw: Most its grid connection carries, as a mean over a slot. [MW]
    """

    pool_gpus: PositiveInt | None = None
    accelerator: str | Accelerator | None = None
    pue: float | None = Field(default=None, ge=1)
    unallocated_w: NonNegativeFloat | None = None
    renewable_ratio: NonNegativeFloat | None = None
    import_limit_mw: NonNegativeFloat | None = None

    @field_validator("accelerator")
    @classmethod
    def _known(cls, accelerator: str | Accelerator | None) -> str | Accelerator | None:
        if isinstance(accelerator, str) and accelerator not in ACCELERATORS:
            raise ValueError(f"{accelerator!r} is unknown{near_match(accelerator, ACCELERATORS)}")
        return accelerator


class CentreTask(DispatchTask):
    """A task that any of the sites may train.

    Attributes:
        home: Site where its checkpoint lies at the start; absent: it starts wherever the plan places it.
    """

    home: str | None = None


class Wan(Spec):
    """The network between the sites.

    Attributes:
        rate_mbit_per_s: Rate of a transfer, the same between any two sites. [Mbit/s]
        energy_kwh_per_gb: Energy of the network per gigabyte, drawn and paid at the site that sends.  Default: Aslan et
            al., Electricity intensity of internet data transmission, 2018, for 2015; dedicated lines may need less.
            doi:10.1111/jiec.12630 [kWh/GB]
        checkpoint_bytes_per_parameter: Bytes of a checkpoint per parameter.  Default: weights in bf16 (2), and weights
            and both moments of Adam in fp32 (12), as in the memory of `parallelism`. [B]
    """

    rate_mbit_per_s: PositiveFloat = 10_000
    energy_kwh_per_gb: NonNegativeFloat = 0.06
    checkpoint_bytes_per_parameter: PositiveFloat = 14

    def checkpoint_bytes(self, parameters: float) -> float:
        """Size of a checkpoint. [B]"""
        return parameters * self.checkpoint_bytes_per_parameter

    def hours(self, parameters: float) -> float:
        """Time of a transfer. [h]"""
        return 8 * self.checkpoint_bytes(parameters) / (self.rate_mbit_per_s * 1e6) / 3600

    def energy_mwh(self, parameters: float) -> float:
        """Energy of a transfer. [MWh]"""
        return self.energy_kwh_per_gb * self.checkpoint_bytes(parameters) / 1e9 / 1000


class CentresDispatch(Dispatch):
    """What the sites have in common, their tasks, and the network between them.

    Attributes:
        tasks: What is trained.
        wan: The network.
        baselines: None to choose: `fixed_placement`, the best plan without moves, is always executed too.
    """

    tasks: tuple[CentreTask, ...] = Field(min_length=1)
    wan: Wan = Wan()
    baselines: tuple[Baseline, ...] = ()


class CentresScenario(DispatchScenario):
    """One question about several dispatched pools, complete.

    Attributes:
        sites: The data centres.
        dispatch: What they have in common, their tasks, and the network between them.
    """

    sites: tuple[CentreSite, ...] = Field(min_length=1)
    dispatch: CentresDispatch

    @property
    def plants_kw(self) -> dict[str, float | None]:
        """Peak of each site's renewable supply, where it is set by a ratio. [kW]"""
        return {site.name: self.alone(site).plant_kw for site in self.sites}

    def alone(self, site: CentreSite) -> CentresScenario:
        """The same scenario if there were only this site."""
        own = {key: getattr(site, key) for key in OWN_KEYS if getattr(site, key) is not None}
        return self.model_copy(update={"sites": (site,), "dispatch": self.dispatch.model_copy(update=own)})

    def hosted(self, site: CentreSite) -> CentresScenario:
        """The same scenario if there were only this site and the tasks that have a mode there."""
        alone = self.alone(site)
        tasks = tuple(task for task in alone.dispatch.tasks if alone.dispatch.modes(task))
        return alone.model_copy(update={"dispatch": alone.dispatch.model_copy(update={"tasks": tasks})})


def wanted(raw: object) -> bool:
    """Whether a dispatch scenario, as it stands in its file, is about several centres."""
    if not isinstance(raw, dict):
        return False
    sites, rules = raw.get("sites"), raw.get("dispatch")
    return (isinstance(sites, list) and len(sites) > 1) or (isinstance(rules, dict) and "wan" in rules)


def cross_check(scenario: CentresScenario) -> Iterator[Problem]:
    """Mistakes that no single key shows."""
    yield from _check_not_possible(scenario)
    yield from _check_names(scenario)
    yield from _check_homes(scenario)
    yield from _check_modes(scenario)
    shared = set()
    for index, site in enumerate(scenario.sites):
        for problem in dispatch_scenario.cross_check(scenario.alone(site)):
            path = problem.path.replace("sites[0]", f"sites[{index}]")
            if not path.endswith("].model") and (path, problem.rule) not in shared:
                shared.add((path, problem.rule))
                yield Problem(path, problem.rule)


def _check_not_possible(scenario: CentresScenario) -> Iterator[Problem]:
    """What a single pool can do and several cannot."""
    rules = scenario.dispatch
    given = {
        "dispatch.tranche_h": rules.tranche_h is not None,
        "dispatch.look_ahead_tranches": rules.look_ahead_tranches != 1,
        "dispatch.samples": bool(rules.samples),
        "dispatch.drawn_samples": rules.drawn_samples is not None,
        "dispatch.renewable_ratio_gpus": rules.renewable_ratio_gpus is not None,
        "dispatch.baselines": bool(rules.baselines),
        "dispatch.comparators": bool(rules.comparators),
        "policy.replan": scenario.policy.replan is not None,
        "dispatch.idle_gpu_value_per_h": any(rules.idle_gpu_value_per_h),
    }
    for index, site in enumerate(scenario.sites):
        given[f"sites[{index}].forecast"] = site.forecast != Forecast()
        given[f"sites[{index}].failures"] = bool(site.failures)
    for path, is_given in given.items():
        if is_given:
            yield Problem(path, "is not possible with several centres yet; leave it out")


def _check_names(scenario: CentresScenario) -> Iterator[Problem]:
    names = [site.name for site in scenario.sites]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield Problem(f"sites[{index}].name", f"{name!r} is there twice; rename one")


def _check_homes(scenario: CentresScenario) -> Iterator[Problem]:
    names = [site.name for site in scenario.sites]
    for index, task in enumerate(scenario.dispatch.tasks):
        if task.home is not None and task.home not in names:
            rule = f"{task.home!r} is no site{near_match(task.home, names)}"
            yield Problem(f"dispatch.tasks[{index}].home", rule)


def _check_modes(scenario: CentresScenario) -> Iterator[Problem]:
    pools = [scenario.alone(site).dispatch for site in scenario.sites]
    for index, task in enumerate(scenario.dispatch.tasks):
        if not any(pool.catalogue(task).modes for pool in pools):
            listed = ", ".join(
                f"{site.name} {pool.pool_gpus:,} GPUs" for site, pool in zip(scenario.sites, pools, strict=True)
            )
            yield Problem(f"dispatch.tasks[{index}].model", f"has no usable mode at any site ({listed}); add GPUs")
