"""Who supplies a site's cluster, and what is curtailed?  One Vessim microgrid, advanced at change points.

Of the renewable generation the grid takes what it can absorb; the rest is the *surplus*.  The cluster draws on the
surplus first, then on storage, then on the grid; storage is charged from surplus only; what nobody takes is
curtailed.  Vessim's watts and signs stay in this module.

A change point is a signal's next value, a change of facility power, or a battery reaching a limit, so power is
constant in between and every integral is exact.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import vessim
from vessim.dispatchable import Dispatchable

from curtailsim.energy.signals import SiteSignals, Steps

NUMBERS = (
    "start_ms",
    "end_ms",
    "facility_kw",
    "network_kw",
    "generation_kw",
    "absorption_kw",
    "surplus_kw",
    "surplus_used_kw",
    "surplus_stored_kw",
    "surplus_wasted_kw",
    "storage_kw",
    "grid_import_kw",
    "mci_g_per_kwh",
    "average_ci_g_per_kwh",
    "price_per_mwh",
    "stored_kwh",
)
"""What an interval is written down as, beside the site's state and phase."""


class Absorption(vessim.GridConnection):
    """The grid's side of the surplus: it exports exactly what the grid takes, whatever the site does. [W]."""

    def __init__(self) -> None:
        super().__init__("absorption", max_import=0.0)
        self.taken_w = 0.0

    def feasible_range(self, duration: float) -> tuple[float, float]:
        """One point: what the grid takes now."""
        return self.taken_w, self.taken_w

    def step(self, duration: float) -> None:
        """Nothing to remember: there are no ramps."""


class Import(vessim.GridConnection):
    """The cluster's own connection, which only imports. [W]."""

    def __init__(self, max_import_w: float | None) -> None:
        super().__init__("grid", max_export=0.0, max_import=max_import_w)

    def feasible_range(self, duration: float) -> tuple[float, float]:
        """Up to its limit."""
        return -math.inf if self.max_import is None else -self.max_import, 0.0

    def step(self, duration: float) -> None:
        """Nothing to remember: there are no ramps."""


class Curtailment(Dispatchable):
    """The sink for what nobody takes; its power is the curtailed power. [W]."""

    def __init__(self) -> None:
        super().__init__("curtailment")

    def feasible_range(self, duration: float) -> tuple[float, float]:
        """Anything that is left over."""
        return 0.0, math.inf

    def step(self, duration: float) -> None:
        """Nothing to remember."""

    def config(self) -> dict[str, Any]:
        """No parameters."""
        return {}

    def state(self) -> dict[str, Any]:
        """Curtailed power."""
        return {"current_power": self.current_power}


class InOrder(vessim.DispatchPolicy):
    """Each resource in turn takes what it can of the imbalance that is left.

    The same as Vessim's default policy where, as here, only the first resource has power it must take.  It asks each
    resource for its range once; the microgrid checks ranges and balance afterwards.
    """

    def apply(
        self, p_delta: float, duration: float, dispatchables: list[Dispatchable], grid_signals: Any = None
    ) -> None:
        """Set every resource's power. [W]."""
        for resource in dispatchables:
            low, high = resource.feasible_range(duration)
            resource.current_power = max(low, min(high, p_delta))
            p_delta -= resource.current_power


class SiteMicrogrid:
    """A site's power supply and its ledger of intervals.

    Args:
        name: Site name.
        signals: Its signals.
        storage: Battery, or None (anything with capacity_kwh, initial_soc, min_soc, c_rate).
        import_limit_kw: Most it may draw from the grid; None: no limit. [kW]
        horizon_ms: End of the simulation. [ms]
    """

    def __init__(
        self, name: str, signals: SiteSignals, storage: Any, import_limit_kw: float | None, horizon_ms: int
    ) -> None:
        self.name, self.signals, self.horizon_ms = name, signals, horizon_ms
        self.import_limit_kw = import_limit_kw
        self._absorption, self._curtailment = Absorption(), Curtailment()
        self._import = Import(None if import_limit_kw is None else import_limit_kw * 1000)
        self.on_short: Callable[[], None] = lambda: None
        self._battery = storage and vessim.SimpleBattery(
            "storage", storage.capacity_kwh * 1000, storage.initial_soc, storage.min_soc, storage.c_rate
        )
        steps = signals.steps
        self._context = [steps.get(key) for key in ("mci", "average_ci", "price")]
        self._generation, self._takes = steps.get("generation", Steps([0], [0.0])), steps.get("absorption")
        self.grid = vessim.Microgrid(
            1,
            [vessim.Producer("generation", _Watts(self._generation))],
            [d for d in (self._absorption, self._battery, self._curtailment, self._import) if d is not None],
            InOrder(),
            name=name,
        )
        self.change_ms = sorted({t for s in steps.values() for t in s.times_ms if 0 < t < horizon_ms})
        self._next = 0
        self._numbers, self._words = array("d"), list[tuple[str, str]]()
        self._since, self._storage_kw, self._row = 0, 0.0, ()
        self._state, self._phase, self.facility_kw, self._network_kw = "off", "off", 0.0, 0.0
        self._sample(0)
        self.wake_ms = self._dispatch(0)

    def set_load(self, now_ms: int, state: str, phase: str, facility_kw: float, network_kw: float = 0.0) -> None:
        """Change the cluster's state and power from `now_ms` on."""
        if self._catch_up(now_ms):
            self._state, self._phase, self.facility_kw, self._network_kw = state, phase, facility_kw, network_kw
            self.wake_ms = self._dispatch(now_ms)

    def advance(self, now_ms: int) -> None:
        """Take note of a change point."""
        if self._catch_up(now_ms):
            self.wake_ms = self._dispatch(now_ms)

    def supply_kw(self, now_ms: int) -> float:
        """Most the site can draw at `now_ms`, for a second at least, from surplus, storage and grid. [kW]"""
        if self.import_limit_kw is None:
            return math.inf
        self.advance(now_ms)
        surplus = self.signals.steps.get("surplus")
        battery_kw = 0.0
        if self._battery is not None:
            battery_kw = -self._battery.feasible_range(1.0)[0] / 1000
        return (surplus.at_ms(now_ms) if surplus else 0.0) + battery_kw + self.import_limit_kw

    @property
    def columns(self) -> dict[str, Any]:
        """The ledger so far: state, phase and NUMBERS of every interval."""
        rows: npt.NDArray[np.float64] = np.array(self._numbers).reshape(-1, len(NUMBERS))
        states, phases = zip(*self._words, strict=True) if self._words else ((), ())
        return {"state": states, "phase": phases, **dict(zip(NUMBERS, rows.T, strict=True))}

    def close(self) -> None:
        """Write the last interval, up to the horizon."""
        while self._since < self.horizon_ms:
            self.advance(self.wake_ms)

    def _catch_up(self, now_ms: int) -> bool:
        """Settle everything before `now_ms`; whether there is anything after it."""
        while self.wake_ms < now_ms:
            self._settle(self.wake_ms)
            self._sample(self.wake_ms)
            self.wake_ms = self._dispatch(self.wake_ms)
        self._settle(now_ms)
        self._sample(now_ms)
        return now_ms < self.horizon_ms

    def _settle(self, now_ms: int) -> None:
        """Close the interval that ends at `now_ms` and write it down."""
        now_ms = min(now_ms, self.horizon_ms)
        if now_ms <= self._since:
            return
        before = self._battery.charge_level if self._battery else 0.0
        self.grid.finish(now_ms / 1000)
        after = self._battery.charge_level if self._battery else 0.0
        moved = self._storage_kw * (now_ms - self._since) / 3.6e6
        assert abs((after - before) / 1000 - moved) <= 1e-9 * max(1.0, abs(after) / 1000), (before, after, moved)
        self._numbers.extend((self._since, now_ms, *self._row, after / 1000))
        self._words.append((self._state, self._phase))
        self._since = now_ms

    def _sample(self, now_ms: int) -> None:
        """Let Vessim read the generation where a signal changes."""
        due = now_ms == 0
        while self._next < len(self.change_ms) and self.change_ms[self._next] <= now_ms:
            self._next += 1
            due = True
        if due:
            self.grid.sample(now_ms // 1000)

    def _dispatch(self, now_ms: int) -> int:
        """Set every resource's power from `now_ms` on; the next change point this gives. [ms]"""
        generation_kw = self._generation.at_ms(now_ms)
        takes_kw = self._takes.at_ms(now_ms) if self._takes else 0.0
        generation_w = generation_kw * 1000
        self._absorption.taken_w = min(generation_w, takes_kw * 1000)
        until = self.change_ms[self._next] if self._next < len(self.change_ms) else self.horizon_ms
        load_w = self.facility_kw * 1000
        balance_w = generation_w - self._absorption.taken_w - load_w
        until = min(until, now_ms + self._battery_limit_ms(balance_w, until - now_ms))
        if self._is_short(balance_w, 1e-12 * max(load_w, generation_w), until - now_ms):
            until = now_ms + 1
        self.grid.advance(now_ms / 1000, external_power=-load_w, duration=(until - now_ms) / 1000)
        self._row = self._flows(generation_kw, takes_kw, now_ms)
        return until

    def _is_short(self, balance_w: float, rounding_w: float, duration_ms: int) -> bool:
        """Whether the load exceeds all there is; its owner is told, and has to end that at the same instant.

        Until it does, the grid may be overdrawn, for a millisecond at most, so that every interval balances.  What
        only rounding makes too much is no shortage.
        """
        if self.import_limit_kw is None:
            return False
        battery_w = -self._battery.feasible_range(duration_ms / 1000)[0] if self._battery else 0.0
        limit_w = self.import_limit_kw * 1000 + rounding_w
        short = -balance_w > battery_w + limit_w
        self._import.max_import = None if short else limit_w
        if short:
            self.on_short()
        return short

    def _battery_limit_ms(self, balance_w: float, longest_ms: int) -> int:
        """Time until the battery is full or empty, if that is sooner; whole milliseconds.

        Less than a millisecond's worth of energy is spread over the whole interval by Vessim itself: signals are
        constant in it, so no integral changes.
        """
        battery = self._battery
        if battery is None or balance_w == 0:
            return longest_ms
        limit_w = math.inf if battery.c_rate is None else battery.c_rate * battery.capacity
        power_w = min(abs(balance_w), limit_w)
        floor = battery.min_soc * battery.capacity
        room_wh = battery.capacity - battery.charge_level if balance_w > 0 else battery.charge_level - floor
        whole_ms = int(room_wh / power_w * 3.6e6)
        return whole_ms if 1 <= whole_ms < longest_ms else longest_ms

    def _flows(self, generation_kw: float, takes_kw: float, now_ms: int) -> tuple[Any, ...]:
        """The interval's row, its balance checked."""
        storage_kw = self._battery.current_power / 1000 if self._battery else 0.0
        import_kw, wasted_kw = -self._import.current_power / 1000, self._curtailment.current_power / 1000
        discharge_kw, charge_kw = max(-storage_kw, 0.0), max(storage_kw, 0.0)
        surplus_kw = generation_kw - self._absorption.taken_w / 1000
        used_kw = max(self.facility_kw - discharge_kw - import_kw, 0.0)
        tolerance = 1e-9 * max(1.0, generation_kw, self.facility_kw)
        assert abs(surplus_kw - used_kw - charge_kw - wasted_kw) <= tolerance, (
            surplus_kw,
            used_kw,
            charge_kw,
            wasted_kw,
        )
        assert abs(self.facility_kw - used_kw - discharge_kw - import_kw) <= tolerance, (self.facility_kw, used_kw)
        self._storage_kw = storage_kw
        context = [math.nan if signal is None else signal.at_ms(now_ms) for signal in self._context]
        load, surplus = (self.facility_kw, self._network_kw), (surplus_kw, used_kw, charge_kw, wasted_kw)
        return (*load, generation_kw, takes_kw, *surplus, storage_kw, import_kw + 0.0, *context)


class _Watts(vessim.Signal):
    """A signal in kW, as Vessim wants it."""

    def __init__(self, kilowatts: Steps) -> None:
        self._kilowatts = kilowatts

    def at(self, elapsed: Any = None) -> float:
        """Power at a time in seconds. [W]"""
        return self._kilowatts.at(elapsed) * 1000
