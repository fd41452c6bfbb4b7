"""In which units does a trace count, and how do messages write them?

Time is in whole milliseconds since 1970-01-01 UTC, values are in the unit of their quantity.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

Quantity = Literal["power", "carbon_intensity", "price", "fraction", "irradiance", "wind_speed"]

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TraceError(ValueError):
    """A trace file that cannot be used as its spec says, with the repair."""


# --- units of the values ---------------------------------------------------------------------------------------------

_POWER = {"W": 1e-3, "kW": 1.0, "MW": 1e3, "GW": 1e6}
_ENERGY = {f"{power}h": factor for power, factor in _POWER.items()}
_FACTORS: dict[str, tuple[str, dict[str, float]]] = {
    "power": ("kW", _POWER),
    # 1 lb = 0.45359237 kg exactly (international yard and pound agreement, 1959).
    "carbon_intensity": (
        "g/kWh",
        {"g/kWh": 1.0, "kg/kWh": 1e3, "kg/MWh": 1.0, "t/MWh": 1e3, "lb/MWh": 0.45359237},
    ),
    "fraction": ("1", {"fraction": 1.0, "1": 1.0, "%": 0.01}),
    "irradiance": ("W/m2", {"W/m2": 1.0, "kW/m2": 1e3}),
    "wind_speed": ("m/s", {"m/s": 1.0}),
}
_CURRENCIES = {"€": "EUR", "£": "GBP"}


@dataclass(frozen=True)
class Conversion:
    """Factor to the unit of the quantity; energies per step are divided by their own step too."""

    factor: float
    unit: str
    per_step: bool = False


def conversion_of(unit: str, quantity: Quantity, file: str) -> Conversion:
    """How values in `unit` come to the unit of the quantity; `file` is for messages."""
    if quantity not in get_args(Quantity):
        raise ValueError(f"quantity must be one of {', '.join(get_args(Quantity))} (got {quantity!r})")
    plain = _plain_unit(unit)
    if quantity == "price":
        return _price_conversion(plain, unit, file)
    canonical, factors = _FACTORS[quantity]
    if plain in factors:
        return Conversion(factors[plain], canonical)
    energy = re.sub(r" ?(/|per) ?step$", "", plain)
    if quantity == "power" and energy in _ENERGY:
        return Conversion(_ENERGY[energy], canonical, per_step=True)
    accepted = [*factors, *(f"{energy} per step" for energy in _ENERGY if quantity == "power")]
    raise TraceError(f"{file}: unit {unit!r} is not one of {quantity}{near(unit, accepted)}; use {', '.join(accepted)}")


def _price_conversion(plain: str, unit: str, file: str) -> Conversion:
    for sign, code in _CURRENCIES.items():
        plain = plain.replace(sign, code)
    match = re.fullmatch(r"([A-Z]{3})/([kM]Wh)", plain)
    if match is None:
        raise TraceError(
            f"{file}: unit {unit!r} is not one of price; use a currency code per MWh or kWh: USD/MWh, EUR/MWh, "
            "AUD/MWh, GBP/MWh, USD/kWh, ..."
        )
    return Conversion(1e3 if match[2] == "kWh" else 1.0, f"{match[1]}/MWh")


def _plain_unit(unit: str) -> str:
    """Drops the CO2 or CO2eq of a carbon unit and writes W/m² and lbs in one way."""
    plain = " ".join(unit.replace("₂", "2").replace("²", "2").replace("^2", "2").split())
    plain = re.sub(r" ?CO2(-?eq?)?(?=/)", "", plain)
    return re.sub(r"^lbs/", "lb/", plain)


# --- words for messages ----------------------------------------------------------------------------------------------


def near(name: str, known: Sequence[str]) -> str:
    """A hint at the nearest known name, without regard to case."""
    folded = {one.casefold(): one for one in known}
    match = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[match[0]]!r}?" if match else ""


def epoch_ms(moment: datetime) -> int:
    """Milliseconds since 1970-01-01 UTC."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def iso(ms: int | np.integer[Any]) -> str:
    """The instant in ISO 8601, as 2021-01-01T00:00:00Z."""
    moment = _EPOCH + timedelta(milliseconds=int(ms))
    return moment.isoformat(timespec="milliseconds" if ms % 1000 else "seconds").replace("+00:00", "Z")


def span(start_ms: int | np.integer[Any], end_ms: int | np.integer[Any]) -> str:
    """Two instants, the first to the second."""
    return f"{iso(start_ms)} to {iso(end_ms)}"


def duration(ms: float | np.integer[Any]) -> str:
    """In the largest unit that needs at most two decimals, as 1.5 h."""
    for unit, size in (("d", DAY_MS), ("h", HOUR_MS), ("min", 60_000)):
        if ms >= size and (ms * 100) % size == 0:
            return f"{ms / size:g} {unit}"
    return f"{ms / 1000:g} s"
