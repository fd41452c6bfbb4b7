"""What may a scenario say?  Load it, override it, and explain every mistake at once."""

from __future__ import annotations

import os
import re
import types
import typing
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AwareDatetime, BaseModel, Field, ValidationError, field_validator, model_validator

from curtailsim.cluster import Cluster, Workload
from curtailsim.energy.traces import TraceSpec
from curtailsim.policy import Always, Policy, Threshold
from curtailsim.protocol import Control, RoundRules
from curtailsim.spec import Problem, ScenarioError, Spec, near_match
from curtailsim.training.specs import FedAvg, GptLearner, Strategy

NAME = r"^[a-z][a-z0-9_]*$"


class ConstantSignal(Spec):
    """A signal that never changes."""

    type: Literal["constant"]
    value: float
    unit: str


class TraceSignal(TraceSpec):
    """A signal read from one column of a file."""

    type: Literal["trace"]


Simple = Annotated[ConstantSignal | TraceSignal, Field(discriminator="type")]


class Balance(Spec):
    """What the grid takes, from its parts: max(load - must-run, 0) + export limit.

    Attributes:
        load: Demand of the zone behind the bottleneck.
        must_run: Generation there that cannot be turned down.
        export_limit: What may leave the zone, for example the limit of its grid connection.
    """

    type: Literal["balance"]
    load: Simple
    must_run: Simple
    export_limit: Simple


Absorption = Annotated[ConstantSignal | TraceSignal | Balance, Field(discriminator="type")]


class Storage(Spec):
    """A battery that is charged from surplus only and serves the cluster before the grid does.

    Attributes:
        capacity_kwh: Energy between empty and full. [kWh]
        initial_soc: State of charge at the start, 0 to 1.
        min_soc: It is never discharged below this.
        c_rate: Power limit as a multiple of capacity per hour; none when absent. [1/h]
    """

    capacity_kwh: float = Field(ge=1e-6)
    initial_soc: float = Field(default=0.0, ge=0, le=1)
    min_soc: float = Field(default=0.0, ge=0, le=1)
    c_rate: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _starts_above_minimum(self) -> Self:
        if self.initial_soc < self.min_soc:
            raise ValueError(f"initial_soc {self.initial_soc} is below min_soc {self.min_soc}; raise it")
        return self


class Site(Spec):
    """One place: a microgrid, a cluster and a Flower node.

    Attributes:
        name: Lower-case identifier.
        cluster: Its accelerators.
        mci: Marginal carbon intensity of the grid there. [g/kWh]
        average_ci: Average carbon intensity, if it is to be reported too. [g/kWh]
        price: Price of grid energy. [currency/MWh]
        generation: Renewable generation available. [kW]
        absorption: What the grid takes of it; nothing when absent. [kW]
        storage: Battery.
        grid_import_limit_kw: Most the site may draw from the grid; a site that would exceed it goes off. [kW]
        trains: Whether the curtailment-aware and federated runs may use it, or centralized baselines only.
    """

    name: str = Field(pattern=NAME)
    cluster: Cluster
    mci: Simple | None = None
    average_ci: Simple | None = None
    price: Simple | None = None
    generation: Simple | None = None
    absorption: Absorption | None = None
    storage: Storage | None = None
    grid_import_limit_kw: float | None = Field(default=None, ge=0)
    trains: bool = True

    @model_validator(mode="after")
    def _absorption_needs_generation(self) -> Self:
        if self.generation is None and (self.absorption is not None or self.storage is not None):
            what = "absorption" if self.absorption is not None else "storage"
            raise ValueError(f"{what} needs generation: without it there is no surplus")
        return self


class TokensOnly(Spec):
    """Counts the work and trains nothing: for energy studies, without torch and without a loss."""

    type: Literal["tokens_only"]


class FlowerApp(Spec):
    """A user's own, unmodified Flower apps, run on the simulated clock.

    Attributes:
        server_app: `module:object` of the ServerApp (with @app.main()).
        client_app: `module:object` of the ClientApp.
        examples_per_step: `num-examples` of a reply that make one optimiser step of the virtual workload.
        evaluate_share: Time of one evaluated example over that of a trained one (forward pass only: 1/3,
            Kaplan et al. 2020, arXiv:2001.08361, table 1).
        run_config: What `context.run_config` holds.
    """

    type: Literal["flower_app"]
    server_app: str = Field(pattern=r"^[\w.]+:\w+$")
    client_app: str = Field(pattern=r"^[\w.]+:\w+$")
    examples_per_step: int = Field(gt=0)
    evaluate_share: float = Field(default=1 / 3, ge=0)
    run_config: dict[str, str | int | float | bool] = Field(default_factory=dict)


class Training(Spec):
    """The learner, and how the sites' work becomes one model.

    Attributes:
        learner: gpt (real, built in), flower_app (real, yours) or tokens_only.
        strategy: Flower strategy that averages the sites of a federated round.
        round_s: Training time of a federated round, from the first site's first step. [s]
        report_every_s: While a single site trains on, its loss is reported and evaluated this often;
            round_s when absent. [s]
        stride: Virtual steps for each real one.
        lr_clock: What a local step adds to the global step inside a round: as many steps as sites take part
            (all_sites), or only itself, so that the clock jumps when the round ends (own_steps).
        schedule_steps: Virtual global steps of the learning-rate schedule; those of the token budget when absent.
    """

    learner: Annotated[GptLearner | FlowerApp | TokensOnly, Field(discriminator="type")]
    strategy: Strategy = FedAvg()
    round_s: float = Field(default=600.0, ge=0.001)
    report_every_s: float | None = Field(default=None, ge=0.001)
    stride: int = Field(default=1, gt=0)
    lr_clock: Literal["all_sites", "own_steps"] = "all_sites"
    schedule_steps: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _apps_bring_their_own(self) -> Self:
        if isinstance(self.learner, FlowerApp):
            given = {
                "strategy",
                "stride",
                "round_s",
                "lr_clock",
                "report_every_s",
                "schedule_steps",
            } & self.model_fields_set
            if given:
                raise ValueError(f"{', '.join(sorted(given))}: a flower_app brings its own; remove it")
        return self


class BaselineSpec(Spec):
    """What baselines share: the sites, and where they differ from the scenario's own run.

    Attributes:
        sites: Names; all that may take part when absent.
        total_tokens: Token budget of this run; the workload's when absent.
        provisioned: The clusters are there already: no provisioning delay.
        protocol: How a round goes in this run; the scenario's when absent.
    """

    sites: tuple[str, ...] | None = None
    total_tokens: float | None = Field(default=None, gt=0)
    provisioned: bool = False
    protocol: RoundRules | None = None


class Centralized(BaselineSpec):
    """Always on, each named site for itself, grid-powered."""

    type: Literal["centralized"]


class ContinuousFederated(BaselineSpec):
    """Always on, the named sites together, in timed federated rounds."""

    type: Literal["continuous_federated"]


Baseline = Annotated[Centralized | ContinuousFederated, Field(discriminator="type")]


class Sampled(Spec):
    """Accounting on a grid of instants, as a notebook over log files does it; reported beside the exact one.

    Power is that of training between the first and the last logged step of a segment, idle from provisioned to
    deprovisioned otherwise.  Logs may be on clocks of their own.

    Attributes:
        step_s: Distance of the instants. [s]
        interpolated: The signal is read linearly between its rows instead of held.
        signal_shift_s: What its clock is behind the event clock. [s]
        training_shift_s: What the clock of the training logs is behind the event clock. [s]
        gap_s: A longer pause between two logged steps begins a new segment. [s]
    """

    step_s: float = Field(default=60.0, gt=0)
    interpolated: bool = True
    signal_shift_s: float = 0.0
    training_shift_s: float = 0.0
    gap_s: float = Field(default=60.0, gt=0)


class Accounting(Spec):
    """The rules by which energy becomes emissions, cost and a curtailed share.

    Attributes:
        method: Which emissions the headline ratio uses: marginal (facility energy x marginal intensity) or
            surplus_first (surplus counts 0, grid import x marginal intensity).  Both are always reported.
        curtailed_share: surplus: energy drawn from physical surplus, directly or through storage; mci_below:
            energy drawn while the marginal intensity is below curtailed_below_g_per_kwh, a proxy for sites
            without generation data.
        curtailed_below_g_per_kwh: For mci_below. [g/kWh]
        surplus_price_per_mwh: What is paid for surplus energy. [currency/MWh]
        notebook: Report this sampled accounting too.
    """

    method: Literal["marginal", "surplus_first"] = "marginal"
    curtailed_share: Literal["surplus", "mci_below"] = "surplus"
    curtailed_below_g_per_kwh: float | None = None
    surplus_price_per_mwh: float = 0.0
    notebook: Sampled | None = None

    @model_validator(mode="after")
    def _proxy_needs_threshold(self) -> Self:
        if (self.curtailed_share == "mci_below") != (self.curtailed_below_g_per_kwh is not None):
            raise ValueError("curtailed_below_g_per_kwh goes with curtailed_share: mci_below, and only with it")
        return self


class Scenario(Spec):
    """One question to the simulator, complete.

    Attributes:
        name: Names the results folder; the file's name when absent.
        start: First instant, with its time zone.
        duration_h: Horizon. [h]
        seed: Every random stream derives from it, each under its own name.
        threads: PyTorch threads; results are the same bytes only for the same count.
        workload: The virtual model.
        sites: Where it may be trained.
        policy: Who should train now.
        control: How the controller looks at it.
        protocol: How a round goes.
        training: The learner.
        baselines: Always-on runs to compare with.
        accounting: Emission rules.
        reference: Published figures to print beside ours: arxiv_2602_22760.
    """

    name: str = Field(pattern=r"^\w[\w.-]*$", max_length=100)
    start: AwareDatetime
    duration_h: float = Field(ge=0.001, le=1e6)
    seed: int = Field(default=0, ge=0)
    threads: int = Field(default=1, gt=0, le=1024)
    workload: Workload
    sites: tuple[Site, ...] = Field(min_length=1)
    policy: Policy = Always()
    control: Control = Control()
    protocol: RoundRules = RoundRules()
    training: Training
    baselines: tuple[Baseline, ...] = ()
    accounting: Accounting = Accounting()
    reference: Literal["arxiv_2602_22760"] | None = None

    @field_validator("start")
    @classmethod
    def _in_utc(cls, start: datetime) -> datetime:
        try:
            return start.astimezone(UTC)
        except OverflowError:
            raise ValueError("is too close to the end of the calendar; choose another year") from None

    @property
    def total_steps(self) -> int | None:
        """Virtual optimiser steps in the token budget, if there is one."""
        return self.workload.total_steps

    @property
    def horizon_ms(self) -> int:
        """The horizon on the clock. [ms]"""
        return round(self.duration_h * 3_600_000)

    @property
    def end(self) -> datetime:
        """First instant after the horizon."""
        return self.start + timedelta(hours=self.duration_h)


class _Loader(yaml.SafeLoader):
    """YAML in which a key given twice is a mistake, and 561e6 is a number."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            rule = f"a key must be text (got {key!r:.40})"
            raise yaml.constructor.ConstructorError(None, None, rule, key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)  # after the check: what << brings in may be overridden
    return dict(loader.construct_pairs(node, deep=True))


def _scalar(loader: _Loader, node: yaml.ScalarNode) -> Any:
    """A number or a time as YAML reads it; one that cannot exist is a mistake in its line."""
    try:
        return yaml.SafeLoader.yaml_constructors[node.tag](loader, node)
    except (ValueError, OverflowError) as error:
        kind = node.tag.rpartition(":")[2]
        rule = f"{node.value!r:.60} is no {kind} ({error})"
        raise yaml.constructor.ConstructorError(None, None, rule, node.start_mark) from None


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
for _tag in ("int", "float", "timestamp"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _scalar)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]*\.[0-9]+[eE][0-9]+$"), list("-+.0123456789")
)


def load(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Any:
    """Read a scenario, apply overrides, and check all of it.

    Args:
        source: A YAML file, or the same as a mapping (relative paths then start at the working directory).
        overrides: `path=value` each, for example `sites[1].cluster.pue=1.2`, `sites.texas.cluster.pue=1.2`
            or `sites.*.cluster.pue=1.2`.

    Returns:
        A `Scenario`, or a `DispatchScenario` where the policy's type is dispatch_plan.

    Raises:
        ScenarioError: Listing every mistake.
    """
    if isinstance(source, Mapping):
        label, base, raw = "the scenario", Path.cwd(), yaml.safe_load(yaml.safe_dump(dict(source)))
    else:
        path = Path(source)
        label, base, raw = str(path), path.parent, read_mapping(path)
        raw.setdefault("name", path.stem)
    raw = _unshared(raw)
    for override in overrides:
        _override(raw, override, label)
    problems = list(_locate_files(raw, base))
    model, check = _kind(raw)
    try:
        scenario = model.model_validate(raw)
    except ValidationError as error:
        known = {problem.path for problem in problems}
        problems += [problem for problem in explain(error, raw, model) if problem.path not in known]
        raise ScenarioError(label, _unique(problems)) from None
    unset = {problem.path for problem in problems}
    problems += [problem for problem in check(scenario) if f"{problem.path}.path" not in unset]
    if problems:
        raise ScenarioError(label, problems)
    return scenario


def _kind(raw: Mapping[str, Any]) -> tuple[type[Spec], Callable[[Any], Iterable[Problem]]]:
    """The model a scenario is checked with, and the check of what no single key shows."""
    policy = raw.get("policy")
    if "dispatch" in raw or (isinstance(policy, Mapping) and policy.get("type") == "dispatch_plan"):
        from curtailsim.dispatch import centres_scenario
        from curtailsim.dispatch import scenario as dispatch_scenario

        if centres_scenario.wanted(raw):
            return centres_scenario.CentresScenario, centres_scenario.cross_check
        return dispatch_scenario.DispatchScenario, dispatch_scenario.cross_check
    return Scenario, _cross_check


def dump(scenario: Spec) -> str:
    """The resolved scenario as YAML: every default spelled out; loading it gives the same scenario."""
    return yaml.safe_dump(scenario.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)


def read_mapping(path: Path) -> dict[str, Any]:
    """A YAML file that is a mapping.

    Raises:
        ScenarioError: It cannot be read, or is no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ScenarioError(str(path), [Problem("file", f"cannot be read: {reason}; check the path")]) from None
    try:
        raw = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "file"
        what = " ".join((getattr(error, "problem", None) or str(error)).split())
        raise ScenarioError(str(path), [Problem(where, f"is not valid YAML: {what}; correct it there")]) from None
    except ValueError as error:
        raise ScenarioError(str(path), [Problem("file", f"is not valid YAML: {error}")]) from None
    except RecursionError:
        rule = "is nested too deeply: brackets within brackets; check that they are closed"
        raise ScenarioError(str(path), [Problem("file", rule)]) from None
    if not isinstance(raw, dict):
        raise ScenarioError(str(path), [Problem("file", f"must be a mapping of keys to values (got {raw!r:.40})")])
    return raw


def _unshared(value: Any) -> Any:
    """A copy without YAML's aliases, so that an override of one site leaves the others alone."""
    if isinstance(value, dict):
        return {key: _unshared(item) for key, item in value.items()}
    return [_unshared(item) for item in value] if isinstance(value, list) else value


def _override(raw: dict[str, Any], override: str, label: str) -> None:
    path, equals, text = override.partition("=")
    parts = re.findall(r"[^.\[\]]+", path)
    if not equals or not parts:
        raise ScenarioError("--set", [Problem(override, "must be path=value, such as policy.release_delay_s=300")])
    try:
        value = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what = f": {error.problem}" if isinstance(error, yaml.constructor.ConstructorError) else ""
        what = ": it is nested too deeply" if isinstance(error, RecursionError) else what
        rule = f"value is not valid YAML{what} (got {text!r:.60})"
        raise ScenarioError("--set", [Problem(path, rule)]) from None
    targets: list[Any] = [raw]
    for part in parts[:-1]:
        targets = [child for target in targets for child in _children(target, part, path, label)]
    for target in targets:
        if isinstance(target, list):
            if parts[-1] == "*":
                raise ScenarioError(
                    "--set", [Problem(path, f"must go on to a key of every item, such as {path}.KEY=1")]
                )
            index = _index(target, parts[-1], path, label)
            target[index] = value
        elif isinstance(target, dict):
            target[parts[-1]] = value
        else:
            raise ScenarioError("--set", [Problem(path, f"leads through {target!r}, which has no keys")])


def _children(target: Any, part: str, path: str, label: str) -> list[Any]:
    if isinstance(target, list):
        return list(target) if part == "*" else [target[_index(target, part, path, label)]]
    if isinstance(target, dict):
        if target.get(part) is None:
            target[part] = {}
        return [target[part]]
    raise ScenarioError("--set", [Problem(path, f"leads through {target!r}, which has no keys")])


def _index(items: list[Any], part: str, path: str, label: str) -> int:
    names = [item.get("name") if isinstance(item, dict) else None for item in items]
    if part in names:
        return names.index(part)
    if part.isdecimal() and int(part) < len(items):
        return int(part)
    known = ", ".join(str(name) for name in names if name) or f"0 to {len(items) - 1}"
    raise ScenarioError("--set", [Problem(path, f"{label} has no {part!r} there ({known})")])


FILE_KEYS = {"trace": "path", "dispatch_plan": "plan"}
"""Under which key a part of a scenario names a file, by its type."""


def _locate_files(raw: Any, base: Path, where: str = "") -> Iterator[Problem]:
    """Make the file of every trace and plan absolute, in place, after expanding ${VARIABLES}."""
    if isinstance(raw, list):
        for index, item in enumerate(raw):
            yield from _locate_files(item, base, f"{where}[{index}]")
    elif isinstance(raw, dict):
        for key, value in raw.items():
            here = f"{where}.{key}".lstrip(".")
            if FILE_KEYS.get(str(raw.get("type"))) == key and isinstance(value, str):
                if not value or "\0" in value:
                    yield Problem(here, f"must name a file (got {value!r:.60})")
                    continue
                missing = [v for v in re.findall(r"\$\{(\w+)\}", value) if v not in os.environ]
                if missing:
                    yield Problem(
                        here, f"environment variable {missing[0]} is not set; set it, or use --set {here}=FILE"
                    )
                else:
                    expanded = Path(os.path.expandvars(os.path.expanduser(value)))
                    raw[key] = os.path.normpath(base.absolute() / expanded)
            elif key == "sources" and raw.get("type") == "files" and isinstance(value, dict):
                for name, patterns in value.items():
                    if isinstance(patterns, list):
                        value[name] = [os.path.normpath(base.absolute() / str(pattern)) for pattern in patterns]
            else:
                yield from _locate_files(value, base, here)


RULES = {
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "too_short": "must list at least {min_length}; add one",
    "literal_error": "must be one of {expected}",
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    "scalar": "must be text, a finite number, true or false",
    "finite_number": "must be a finite number",
    "string_too_long": "must be at most {max_length} characters long",
    "string_type": "must be text",
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "must be a mapping of keys to values"),
}
"""What the kinds of pydantic's errors mean; whatever is not listed keeps pydantic's own words."""

PATTERNS = {
    NAME: "must be lower case: a letter, then letters, digits and _",
    r"^[\w.-]+$": "must consist of letters, digits, '_', '.' and '-'",
    r"^[\w.]+:\w+$": "must be module:name, such as my_module:app",
}

UNITS = {
    **dict.fromkeys(("mci", "average_ci"), "g/kWh, kg/kWh or lb/MWh"),
    "price": "USD/MWh or EUR/MWh",
    **dict.fromkeys(("generation", "absorption", "load", "must_run", "export_limit"), "kW or MW"),
}
"""Units to suggest where one is missing."""


def _is_echo(detail: Any) -> bool:
    """Whether an error only says that other errors left a list too short."""
    return detail["type"] == "too_short" and len(detail["input"]) >= detail["ctx"]["min_length"]


SCALARS = {"str", "int", "float", "bool"}


def explain(error: ValidationError, raw: Any, model: type[BaseModel]) -> list[Problem]:
    """What pydantic finds wrong with the content of a file, in the words of the file."""
    details: list[Any] = [detail for detail in error.errors() if not _is_echo(detail)]
    wings = Counter(detail["loc"][:-1] for detail in details if detail["loc"] and detail["loc"][-1] in SCALARS)
    for detail in details:  # what may be any scalar is reported once for each kind
        if detail["loc"] and detail["loc"][-1] in SCALARS and wings[detail["loc"][:-1]] > 1:
            detail.update(type="scalar", loc=detail["loc"][:-1])
    return _unique([_explain(detail, raw, model) for detail in details])


def _explain(detail: Any, raw: Any, model: type[BaseModel]) -> Problem:
    """Turn one pydantic error into path, rule, value and repair."""
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "invalid_key" or detail["loc"][-1:] == ("[key]",):
        above = detail["loc"][: -2 if detail["loc"][-1] == "[key]" else -1]
        key = value if detail["loc"][-1] == "[key]" else detail["loc"][-1]
        return Problem(_path(above, raw), f"the key {key!r:.40} is not text; correct it, or quote it")
    path, location = _path(detail["loc"], raw), detail["loc"]
    got = _got(value)
    if kind == "extra_forbidden":
        fields = _fields_at(model, location[:-1])
        return Problem(path, f"unknown key{near_match(str(location[-1]), fields)}")
    if kind == "missing":
        units = next((UNITS[part] for part in reversed(location) if part in UNITS), None)
        hint = f": {units}" if location[-1] == "unit" and units else ""
        return Problem(path, f"is required; add it{hint}")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        expected = re.findall(r"'([^']+)'", context.get("expected_tags", "")) or sorted(_tags_at(model, location))
        if location == ("policy",):
            expected = sorted({*expected, "my_module:MyPolicy"} - {"custom"})
        tag = context.get("tag")
        if tag is None:
            return Problem(f"{path}.type", f"is required; choose one of {', '.join(sorted(expected))}")
        return Problem(f"{path}.type", f"{tag!r} is unknown{near_match(tag, expected)}")
    if kind == "timezone_aware" or kind.startswith("datetime"):
        return Problem(path, f"must be a time with its time zone, such as 2021-03-20T00:00:00Z{got}")
    if kind == "value_error":
        message = str(context.get("error", detail["msg"]))
        return Problem(path, message if repr(value) in message else message + got)
    if kind == "string_pattern_mismatch" and context["pattern"] in PATTERNS:
        return Problem(path, PATTERNS[context["pattern"]] + got)
    rule = RULES[kind].format(**context) if kind in RULES else detail["msg"].replace("Input should be", "must be")
    return Problem(path, rule + got)


def _got(value: Any) -> str:
    """The offending value, if it is short enough to be shown."""
    if isinstance(value, list | tuple) and not value:
        return " (got an empty list)"
    if value == {}:
        return " (got an empty mapping)"
    if isinstance(value, dict | list | tuple | BaseModel):
        return ""
    return f" (got {value.isoformat() if isinstance(value, date) else repr(value):.60})"


UNION_TAGS = ("custom", "parts", "columns", "pretraining")
"""Tags pydantic puts into a location that stand for no key of the file."""


def _path(location: Sequence[str | int], raw: Any) -> str:
    """A pydantic location as a path into the YAML file: tags of unions are not part of it."""
    text, here = "", raw
    for index, part in enumerate(location):
        last = index == len(location) - 1
        if isinstance(part, int):
            text += f"[{part}]"
            here = here[part] if isinstance(here, list) and part < len(here) else None
        elif isinstance(here, dict) and part not in here and (here.get("type") == part or part in UNION_TAGS):
            continue
        elif isinstance(here, dict) or last or here is None:
            text += f".{part}"
            here = here.get(part) if isinstance(here, dict) else None
    return text.lstrip(".") or "file"


def _models(annotation: Any) -> list[type[BaseModel]]:
    """All models an annotation admits."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is Annotated:
        arguments = arguments[:1]
    if isinstance(annotation, types.UnionType) or arguments:
        return [model for argument in arguments for model in _models(argument)]
    return []


def _walk(model: type[BaseModel], location: Sequence[str | int]) -> list[type[BaseModel]]:
    here = [model]
    for part in location:
        if isinstance(part, int):
            continue
        deeper = [m for one in here if part in one.model_fields for m in _models(one.model_fields[part].annotation)]
        tagged = [m for m in here if part in _tags(m)]
        here = deeper or tagged or here
    return here


def _tags(model: type[BaseModel]) -> set[str]:
    field = model.model_fields.get("type")
    return {str(tag) for tag in typing.get_args(field.annotation)} if field else set()


def _fields_at(model: type[BaseModel], location: Sequence[str | int]) -> set[str]:
    return {name for found in _walk(model, location) for name in found.model_fields}


def _tags_at(model: type[BaseModel], location: Sequence[str | int]) -> set[str]:
    return {tag for found in _walk(model, location) for tag in _tags(found)}


def _unique(problems: list[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))


def _cross_check(scenario: Scenario) -> list[Problem]:
    """Mistakes that no single key shows: names, batches, signals a policy needs, traces that are too short."""
    return [
        *_check_names(scenario),
        *_check_batches(scenario),
        *_check_policy(scenario),
        *_check_shares(scenario),
        *_check_accounting(scenario),
        *_check_signals(scenario),
    ]


def _check_names(scenario: Scenario) -> Iterator[Problem]:
    names = [site.name for site in scenario.sites]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield Problem(
                f"sites[{index}].name", f"{name!r} is already the name of sites[{names.index(name)}]; rename one"
            )
    if not any(site.trains for site in scenario.sites):
        yield Problem("sites", "none of them trains; set trains: true for at least one")
    kinds = [baseline.type for baseline in scenario.baselines]
    for index, baseline in enumerate(scenario.baselines):
        if baseline.type in kinds[:index]:
            yield Problem(
                f"baselines[{index}].type", f"{baseline.type!r} is listed twice; name all its sites in one entry"
            )
        for place, name in enumerate(baseline.sites or ()):
            if name not in names:
                yield Problem(f"baselines[{index}].sites[{place}]", f"{name!r} is no site{near_match(name, names)}")
            elif name in (baseline.sites or ())[:place]:
                yield Problem(f"baselines[{index}].sites[{place}]", f"{name!r} is listed twice; remove one")
        if baseline.sites == ():
            yield Problem(f"baselines[{index}].sites", "must name at least one site, or be absent for all of them")


def _check_batches(scenario: Scenario) -> Iterator[Problem]:
    load = scenario.workload
    if load.device_batch_sequences is not None and load.sequence_tokens is None:
        yield Problem("workload.sequence_tokens", "is required with device_batch_sequences; add it")
        return
    if load.total_steps == 0:
        yield Problem("workload.total_tokens", f"is less than one step of {load.tokens_per_step} tokens; raise it")
    if load.total_tokens is not None and isinstance(scenario.training.learner, FlowerApp):
        yield Problem("workload.total_tokens", "a flower_app ends when its ServerApp returns; remove it")
    for index, baseline in enumerate(scenario.baselines):
        if baseline.total_tokens is not None and baseline.total_tokens < load.tokens_per_step:
            rule = f"is less than one step of {load.tokens_per_step} tokens; raise it"
            yield Problem(f"baselines[{index}].total_tokens", rule)
    if load.sequence_tokens is None:
        return
    for index, site in enumerate(scenario.sites):
        micro = site.cluster.count * (load.device_batch_sequences or 1) * load.sequence_tokens
        if load.tokens_per_step % micro:
            yield Problem(
                "workload.tokens_per_step",
                f"{load.tokens_per_step} does not divide into micro-steps of sites[{index}]: {site.cluster.count}"
                f" accelerators x {load.device_batch_sequences or 1} sequences x {load.sequence_tokens} tokens ="
                f" {micro}; change one of them",
            )


def _check_policy(scenario: Scenario) -> Iterator[Problem]:
    if not isinstance(scenario.policy, Threshold):
        return
    needs = {"mci": "mci", "price": "price", "surplus": "generation"}[scenario.policy.signal]
    for index, site in enumerate(scenario.sites):
        if getattr(site, needs) is None:
            yield Problem(
                f"sites[{index}].{needs}", f"is required by the policy's signal {scenario.policy.signal!r}; add it"
            )


def _check_shares(scenario: Scenario) -> Iterator[Problem]:
    training = {site.name for site in scenario.sites if site.trains}
    parts = [("protocol", scenario.protocol, training)]
    for index, baseline in enumerate(scenario.baselines):
        if baseline.protocol is not None and isinstance(baseline, ContinuousFederated):
            parts.append((f"baselines[{index}].protocol", baseline.protocol, set(baseline.sites or training)))
    for place, rules, names in parts:
        shares = rules.uneven_shares
        if shares is not None and set(shares) != names:
            listed = ", ".join(sorted(names))
            yield Problem(f"{place}.uneven_shares", f"must name every site that trains, and only those ({listed})")


def _check_accounting(scenario: Scenario) -> Iterator[Problem]:
    if scenario.accounting.curtailed_share == "mci_below":
        for index, site in enumerate(scenario.sites):
            if site.mci is None:
                yield Problem(f"sites[{index}].mci", "is required by accounting.curtailed_share: mci_below; add it")


def _check_signals(scenario: Scenario) -> Iterator[Problem]:
    from curtailsim.energy.signals import SignalError, site_signals

    currencies = {}
    for index, site in enumerate(scenario.sites):
        try:
            signals = site_signals(site, scenario.start, scenario.horizon_ms)
        except SignalError as error:
            for key, message in error.problems:
                yield Problem(f"sites[{index}].{key}", message)
            continue
        if signals.currency:
            currencies[index] = signals.currency
    if len(set(currencies.values())) > 1:
        listed = ", ".join(f"sites[{index}] {currency}" for index, currency in currencies.items())
        yield Problem("sites", f"prices are in different currencies ({listed}); convert with scale and unit")
