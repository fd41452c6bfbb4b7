"""Who should train now?  Small, pure decisions over what each site sees.

A policy is its own configuration.  Every policy shares the hysteresis below, which the controller applies, so a
user's own class only needs `select`.
"""

from __future__ import annotations

import difflib
import importlib
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import ConfigDict, Discriminator, Field, PrivateAttr, Tag, model_validator

from curtailsim.spec import Spec, near_match


@dataclass(frozen=True)
class SiteView:
    """What a policy may look at: a site's name, state and the present value of each of its signals.

    Attributes:
        name: Site name.
        state: off, provisioning, ready, training or draining.
        values: mci [g/kWh], average_ci [g/kWh], price [currency/MWh], generation, absorption and surplus [kW];
            only those the site has.
        train_kw: Facility power of the site while it trains. [kW]
    """

    name: str
    state: str
    values: Mapping[str, float]
    train_kw: float


class Selects(Protocol):
    """What a user's own policy class has to offer."""

    def select(self, now_s: float, sites: Sequence[SiteView]) -> Collection[str]:
        """Names of the sites that should be on at `now_s`, seconds since the scenario's start."""


class Hysteresis(Spec):
    """How quickly a decision is followed.

    Attributes:
        acquire_delay_s: A site is provisioned only when it has been wanted this long without a break. [s]
        release_delay_s: A site is given back only when it has been unwanted this long without a break. [s]
        minimum_stay_s: A site is not given back before it has been ready this long. [s]
    """

    acquire_delay_s: float = Field(default=0.0, ge=0)
    release_delay_s: float = Field(default=0.0, ge=0)
    minimum_stay_s: float = Field(default=0.0, ge=0)

    @property
    def watches(self) -> frozenset[str] | None:
        """Signals whose changes can change the decision; None: all of them."""
        return None


class Always(Hysteresis):
    """Every site is on all the time."""

    type: Literal["always"] = "always"

    @property
    def watches(self) -> frozenset[str]:
        """Nothing can change this decision."""
        return frozenset()

    def select(self, now_s: float, sites: Sequence[SiteView]) -> Collection[str]:
        """All sites."""
        return {site.name for site in sites}


THRESHOLD_KEYS = {"mci": "threshold_g_per_kwh", "price": "threshold_per_mwh", "surplus": "threshold_kw"}


class Threshold(Hysteresis):
    """Train where a signal is better than a threshold: mci or price below it, surplus above it.

    A value exactly at the threshold is not better: the window is closed.

    Attributes:
        signal: mci (marginal carbon intensity), price or surplus (physical surplus power).
        threshold_g_per_kwh: For mci. [g/kWh]
        threshold_per_mwh: For price. [currency/MWh]
        threshold_kw: For surplus; the site's own training power when absent. [kW]
    """

    type: Literal["threshold"]
    signal: Literal["mci", "price", "surplus"] = "mci"
    threshold_g_per_kwh: float | None = None
    threshold_per_mwh: float | None = None
    threshold_kw: float | None = None

    @model_validator(mode="after")
    def _one_threshold(self) -> Self:
        own = THRESHOLD_KEYS[self.signal]
        wrong = [key for key in THRESHOLD_KEYS.values() if key != own and getattr(self, key) is not None]
        if wrong:
            raise ValueError(f"{wrong[0]} does not go with signal {self.signal!r}; use {own}")
        if self.signal != "surplus" and getattr(self, own) is None:
            raise ValueError(f"signal {self.signal!r} needs {own}")
        return self

    @property
    def watches(self) -> frozenset[str]:
        """Only its own signal."""
        return frozenset({self.signal})

    def select(self, now_s: float, sites: Sequence[SiteView]) -> Collection[str]:
        """Sites whose signal is strictly better than the threshold."""
        if self.signal == "surplus":
            limit = self.threshold_kw
            return {s.name for s in sites if s.values["surplus"] > (s.train_kw if limit is None else limit)}
        limit = getattr(self, THRESHOLD_KEYS[self.signal])
        return {s.name for s in sites if s.values[self.signal] < limit}


class Custom(Hysteresis):
    """A user's own policy, `my_module:MyPolicy`; every further key is one of its arguments."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(pattern=r"^[\w.]+:\w+$")
    _policy: Any = PrivateAttr()

    @model_validator(mode="after")
    def _build(self) -> Self:
        self._policy = build_object(self.type, self.model_extra or {}, Hysteresis.model_fields)
        if not callable(getattr(self._policy, "select", None)):
            raise ValueError(f"{self.type} has no method select(now_s, sites)")
        return self

    def select(self, now_s: float, sites: Sequence[SiteView]) -> Collection[str]:
        """Whatever the user's class says."""
        return self._policy.select(now_s, sites)


def load_object(reference: str) -> Any:
    """Import `module:name`.

    Raises:
        ValueError: The module or the name does not exist, or the module cannot be run.
    """
    path, _, name = reference.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in path.split(".")):
        raise ValueError(f"{reference!r} cannot be imported; name a module and an object in it, such as my_module:app")
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if f"{path}.".startswith(f"{error.name}."):
            raise ValueError(f"{reference!r} cannot be imported ({error}); is its folder on PYTHONPATH?") from error
        raise ValueError(f"{reference!r} cannot be imported: its module raises {told(error)}") from error
    except (Exception, SystemExit) as error:
        raise ValueError(f"{reference!r} cannot be imported: its module raises {told(error)}") from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise ValueError(f"{reference!r} cannot be imported: {path} has no {name!r}{_offer(name, module)}") from None


def build_object(reference: str, arguments: Mapping[str, Any], ours: Collection[str] = ()) -> Any:
    """Import a user's class and make one of it.

    Args:
        reference: `module:name`.
        arguments: Its keyword arguments.
        ours: Keys that are no arguments of the class, for a hint where an argument looks like one of them.

    Raises:
        ValueError: It cannot be imported, or its constructor raises anything.
    """
    cls = load_object(reference)
    if not callable(cls):
        raise ValueError(f"{reference} is no class (it is {cls!r:.60})")
    try:
        return cls(**arguments)
    except (Exception, SystemExit) as error:
        refused = [
            key for key in arguments if isinstance(error, TypeError) and f"keyword argument '{key}'" in str(error)
        ]
        close = [match for key in refused for match in difflib.get_close_matches(key, sorted(ours), n=1)]
        hint = f"; did you mean {close[0]!r}?" if close else ""
        if isinstance(error, TypeError) and error.__traceback__ is not None and error.__traceback__.tb_next is None:
            raise ValueError(f"{reference} refuses its arguments: {error}{hint}") from error
        raise ValueError(f"{reference} cannot be built: it raises {told(error)}{hint}") from error


def told(error: BaseException) -> str:
    """An exception of a user's code on one line, with the place it comes from."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    if isinstance(error, SyntaxError) or not frames:
        return text
    return f"{text} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


def _offer(name: str, module: ModuleType) -> str:
    """The tail of a message about a name that is not in a module: what is."""
    public = {key: value for key, value in vars(module).items() if not key.startswith("_")}
    own = [key for key, value in public.items() if getattr(value, "__module__", None) == module.__name__]
    names = own or [key for key, value in public.items() if not isinstance(value, ModuleType)]
    return near_match(name, names) if names else "; it is empty"


def _tag(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "custom" if isinstance(kind, str) and ":" in kind else kind


Policy = Annotated[
    Annotated[Always, Tag("always")] | Annotated[Threshold, Tag("threshold")] | Annotated[Custom, Tag("custom")],
    Discriminator(_tag),
]
