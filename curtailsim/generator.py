"""Where does curtailment come from? A physical generator of renewable sites, five minutes a step.

Per site: solar and wind generation, the power the grid can take (load − must-run + export limit), and
from these a marginal carbon intensity and a price. Curtailment is what generation exceeds absorption by;
it is computed, not assumed. The parameters of `generator_params.json` were fitted to the share of time and to the
hour and month profiles of three real regions in 2021 to 2024; what fits less well stands in `data/README.md`.

Each site draws its physical series from one random stream of `(seed, site)` in a fixed order, and intensity and
price from streams of their own, so that a new series or a new site never changes the others.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.resources
import io
import json
import os
import platform
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field, ValidationError

from curtailsim.spec import Spec

STEP_S = 300
STEPS_PER_DAY = 86_400 // STEP_S
CURTAILED_MW = 5.0  # below this a site does not count as curtailed, as in the fit of the parameters

DECIMALS = {"generation_mw": 3, "absorption_mw": 3, "mci_g_per_kwh": 1, "price_usd_per_mwh": 2}
"""Columns of a generated file and their decimals: coarse enough to hide the round-off between library versions."""

MANIFEST = "manifest.json"

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Pair = tuple[float, float]
Triple = tuple[float, float, float]


class GeneratorError(ValueError):
    """A generator request that cannot be met, with its repair."""


class Solar(Spec):
    """Photovoltaic plant on horizontal single-axis trackers under a clear sky."""

    capacity_mw: NonNegative
    aod700: Positive
    precipitable_water_cm: Positive
    mean_temperature_c: float
    dc_ac_ratio: Positive
    tracker_max_angle_deg: Positive
    ground_coverage_ratio: Positive


class Cloud(Spec):
    """Daily Markov chain of clear, partly and overcast days, and the noise inside a day."""

    transition: tuple[Triple, Triple, Triple]
    monthly_factor: Annotated[tuple[float, ...], Field(min_length=12, max_length=12)]
    factor_mean: Triple
    factor_sd: Triple
    tau_h: Pair
    weights: Pair


class Wind(Spec):
    """Wind farm: Weibull speeds with memory on three time scales, and a logistic farm curve."""

    capacity_mw: NonNegative
    weibull_k: Positive
    weibull_c_m_per_s: Positive
    variance_synoptic: Share
    variance_turbulent: Share
    tau_h: Triple
    annual_amplitude: Share
    annual_peak_day: float
    diurnal_amplitude: Share
    diurnal_peak_h: float
    half_power_m_per_s: Positive
    curve_width_m_per_s: Positive
    cut_in_m_per_s: NonNegative
    cut_out_m_per_s: Pair
    availability: Share


class Load(Spec):
    """Demand of the zone: annual and daily shape, weekend and noise, as shares of the mean."""

    mean_mw: Positive
    annual_amplitude: Share
    annual_peak_day: float
    semiannual_amplitude: Share
    morning: float
    evening: float
    night: float
    midday_dip: float
    weekend: Share
    noise_sd: NonNegative
    noise_tau_h: Positive


class MustRun(Spec):
    """Generation that cannot give way, with one annual swing."""

    mean_mw: NonNegative
    annual_amplitude: Share
    annual_peak_day: float


class Export(Spec):
    """Export limit of the zone with outages (exponential up and down times, uniform derate) and noise."""

    limit_mw: NonNegative
    noise_sd: NonNegative
    noise_tau_h: Positive
    up_days: Positive
    down_days: Positive
    derate: Pair


class Intensity(Spec):
    """Marginal carbon intensity: low while curtailed, else inside the band of the region's marginal plants."""

    curtailed_max_g_per_kwh: NonNegative
    low_g_per_kwh: NonNegative
    high_g_per_kwh: NonNegative
    noise_tau_h: Positive


class Price(Spec):
    """Price as a function of headroom, the power the grid could still take (negative while curtailed)."""

    fuel_usd_per_mwh: Positive
    fuel_headroom_mw: Positive
    scarcity_usd_per_mwh_per_mw: NonNegative
    floor_usd_per_mwh: Annotated[float, Field(lt=0)]
    floor_surplus_mw: Positive
    noise_sd: NonNegative
    noise_tau_h: Positive


class SiteParameters(Spec):
    """Everything the generator knows about one site; `stream` selects its random numbers."""

    stream: Annotated[int, Field(ge=0)]
    latitude_deg: Annotated[float, Field(ge=-90, le=90)]
    longitude_deg: Annotated[float, Field(ge=-180, le=180)]
    altitude_m: float
    tz: str
    solar: Solar
    cloud: Cloud
    wind: Wind
    load: Load
    must_run: MustRun
    export: Export
    mci: Intensity
    price: Price


@dataclass(frozen=True)
class FileCheck:
    """Outcome of comparing one committed file with its regeneration.

    Attributes:
        name: File name.
        equal: Same bytes as the regeneration, and the SHA-256 of the manifest.
        max_difference: Largest difference of a value; None where the files cannot be compared value by value.
        detail: How it differs, in words.
    """

    name: str
    equal: bool
    max_difference: float | None
    detail: str


def default_parameters() -> dict[str, SiteParameters]:
    """Fitted parameters of the three sites, by site name."""
    text = (importlib.resources.files("curtailsim") / "generator_params.json").read_text(encoding="utf-8")
    return {name: SiteParameters.model_validate(site) for name, site in json.loads(text).items()}


def site_year(site: SiteParameters, *, year: int = 2021, seed: int = 0) -> pd.DataFrame:
    """One site over one calendar year (UTC), every five minutes.

    Args:
        site: Parameters of the site.
        year: Calendar year.
        seed: Seed of the random streams.

    Returns:
        Frame indexed by interval start with `pv_mw`, `wind_mw`, `load_mw`, `must_run_mw`, `generation_mw`,
        `absorption_mw`, `curtailed_mw`, `mci_g_per_kwh` and `price_usd_per_mwh`.
    """
    times = pd.date_range(f"{year}-01-01", f"{year + 1}-01-01", freq=f"{STEP_S}s", tz="UTC", inclusive="left")
    local = times.tz_convert(site.tz)
    rng = np.random.default_rng([seed, site.stream])

    # The order of the draws is part of the data: changing it changes every committed file.
    cloud_factor = _cloud_factor(site.cloud, local, rng)
    wind_scales = [_ornstein_uhlenbeck(rng, len(times), tau_h) for tau_h in site.wind.tau_h]
    load_noise = _ornstein_uhlenbeck(rng, len(times), site.load.noise_tau_h)
    export_noise = _ornstein_uhlenbeck(rng, len(times), site.export.noise_tau_h)
    derate = _outages(site.export, len(times), rng)

    load_mw = _load_mw(site.load, local, load_noise)
    must_run_mw = site.must_run.mean_mw * (
        1 + site.must_run.annual_amplitude * _annual(local, site.must_run.annual_peak_day)
    )
    export_mw = site.export.limit_mw * derate * (1 + site.export.noise_sd * export_noise)
    frame = pd.DataFrame(
        {
            "pv_mw": site.solar.capacity_mw * _pv_per_unit(site, times, cloud_factor),
            "wind_mw": site.wind.capacity_mw * _wind_per_unit(site.wind, local, wind_scales),
            "load_mw": load_mw,
            "must_run_mw": must_run_mw,
            "absorption_mw": np.maximum(load_mw - must_run_mw, 0) + export_mw,
        },
        index=times,
    )
    frame["generation_mw"] = frame["pv_mw"] + frame["wind_mw"]
    frame["curtailed_mw"] = (frame["generation_mw"] - frame["absorption_mw"]).clip(lower=0)
    # What follows reads the rounded megawatts, so that a reader of the file finds the same intervals curtailed.
    headroom_mw = _written(frame["absorption_mw"]) - _written(frame["generation_mw"])
    frame["mci_g_per_kwh"] = _mci_g_per_kwh(site, headroom_mw, _stream(seed, site, "mci"))
    frame["price_usd_per_mwh"] = _price_usd_per_mwh(site.price, headroom_mw, _stream(seed, site, "price"))
    return frame


def generate(
    out_dir: Path | str,
    *,
    start: str | datetime = "2021-03-12",
    days: int = 30,
    seed: int = 0,
    sites: dict[str, SiteParameters] | None = None,
) -> Path:
    """Write one CSV per site and the manifest that says how to get them again.

    Each file is written aside and moved into place, the manifest last.

    Args:
        out_dir: Folder of the files; made if absent.
        start: First interval start; without an offset it is UTC.
        days: Length of the span; it must stay inside one calendar year (UTC).
        seed: Seed of the random streams.
        sites: Parameters by site name; the file of a site is named after it. Default: the three fitted sites.

    Returns:
        Path of the manifest.

    Raises:
        GeneratorError: The span is empty, off the five-minute grid or crosses a year.
    """
    out = Path(out_dir)
    sites = default_parameters() if sites is None else sites
    first = _utc(start)
    files = _render(first, days, seed, sites)
    out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        _replace(out / name, content)
    manifest = _manifest(first, days, seed, sites, files)
    _replace(out / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    return out / MANIFEST


def verify(folder: Path | str) -> list[FileCheck]:
    """Regenerate the files of a folder in memory and compare them with what lies there.

    Args:
        folder: Folder written by `generate`.

    Returns:
        One entry per file. With library versions other than those of the manifest a last decimal may differ.

    Raises:
        GeneratorError: The manifest is missing or unreadable.
    """
    manifest = _read_manifest(Path(folder))
    files = _render(_utc(manifest.start), manifest.days, manifest.seed, manifest.sites)
    return [_check(Path(folder) / name, content, manifest.files.get(name, "")) for name, content in files.items()]


# --- solar ---------------------------------------------------------------------------------------------------------


def _pv_per_unit(site: SiteParameters, times: pd.DatetimeIndex, cloud_factor: np.ndarray) -> np.ndarray:
    """AC output per unit of capacity: simplified Solis sky, isotropic transposition, module temperature, clipping.

    References:
        Ineichen, Solar Energy 82, 2008 (simplified Solis); Anderson and Mikofski, NREL/TP-5K00-76626, 2020 (tracking).
    """
    pvlib = _optional("pvlib")
    solar = site.solar
    place = pvlib.location.Location(site.latitude_deg, site.longitude_deg, "UTC", site.altitude_m)
    position = place.get_solarposition(times)
    zenith, azimuth = position["apparent_zenith"], position["azimuth"]
    sky = pd.DataFrame(
        pvlib.clearsky.simplified_solis(
            position["apparent_elevation"].clip(lower=0.1),
            aod700=solar.aod700,
            precipitable_water=solar.precipitable_water_cm,
            pressure=pvlib.atmosphere.alt2pres(site.altitude_m),
        ),
        index=times,
    ).where(position["apparent_elevation"] > 0, 0.0)
    tracker = pvlib.tracking.singleaxis(
        zenith,
        azimuth,
        axis_tilt=0,
        axis_azimuth=180 if site.latitude_deg > 0 else 0,
        max_angle=solar.tracker_max_angle_deg,
        backtrack=True,
        gcr=solar.ground_coverage_ratio,
    )
    ghi = sky["ghi"] * cloud_factor
    dni = sky["dni"] * np.clip((cloud_factor - 0.2) / 0.8, 0, 1) ** 1.5  # clouds take the beam before the diffuse
    dhi = (ghi - dni * np.cos(np.radians(zenith)).clip(lower=0)).clip(lower=0)
    plane = pvlib.irradiance.get_total_irradiance(
        tracker["surface_tilt"].fillna(0),
        tracker["surface_azimuth"].fillna(0),
        zenith,
        azimuth,
        dni,
        ghi,
        dhi,
        model="isotropic",
    )
    irradiance = plane["poa_global"].fillna(0).to_numpy()  # [W/m2]
    cell_above_25_c = 0.03 * np.maximum(irradiance, 0) - 5 + solar.mean_temperature_c - 20
    thermal = 1 - 0.0035 * cell_above_25_c
    return np.clip(solar.dc_ac_ratio * irradiance / 1000 * thermal * 0.93, 0, 1)


def _cloud_factor(cloud: Cloud, local: pd.DatetimeIndex, rng: np.random.Generator) -> np.ndarray:
    """Share of the clear-sky irradiance that arrives: mean of the day's state, smoothed over 3 h, plus noise."""
    midnights = local.normalize().tz_localize(None)
    day = np.asarray((midnights - midnights[0]).days)
    month_of_day = pd.Series(local.month, index=day).groupby(level=0).first().to_numpy()
    state = _cloud_states(cloud, month_of_day, rng)[day]
    smooth = pd.Series(np.array(cloud.factor_mean)[state]).rolling(36, center=True, min_periods=1).mean().to_numpy()
    slow = cloud.weights[0] * _ornstein_uhlenbeck(rng, len(local), cloud.tau_h[0])
    fast = cloud.weights[1] * _ornstein_uhlenbeck(rng, len(local), cloud.tau_h[1])
    return np.clip(smooth + np.array(cloud.factor_sd)[state] * (slow + fast), 0.05, 1.02)


def _cloud_states(cloud: Cloud, month_of_day: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """State of each day (0 clear, 1 partly, 2 overcast); cloudy months make the cloudy transitions likelier."""
    states = np.zeros(len(month_of_day), dtype=int)
    state = 0
    for day, month in enumerate(month_of_day):
        chance = np.array(cloud.transition[state])
        chance[1:] *= cloud.monthly_factor[month - 1]
        chance[0] = max(0.02, 1 - chance[1:].sum())
        state = int(rng.choice(3, p=chance / chance.sum()))
        states[day] = state
    return states


# --- wind ----------------------------------------------------------------------------------------------------------


def _wind_per_unit(wind: Wind, local: pd.DatetimeIndex, scales: list[np.ndarray]) -> np.ndarray:
    """Farm output per unit of capacity: Gaussian mixture of three time scales, Weibull speed, farm curve."""
    cdf = _optional("scipy.stats").norm.cdf
    synoptic, turbulent = wind.variance_synoptic, wind.variance_turbulent
    weights = np.sqrt([synoptic, 1 - synoptic - turbulent, turbulent])
    z = weights[0] * scales[0] + weights[1] * scales[1] + weights[2] * scales[2]
    scale = wind.weibull_c_m_per_s * (
        1
        + wind.annual_amplitude * _annual(local, wind.annual_peak_day)
        + wind.diurnal_amplitude * np.cos(2 * np.pi * (_hour(local) - wind.diurnal_peak_h) / 24)
    )
    rank = np.clip(cdf(z), 1e-6, 1 - 1e-6)
    speed = scale * (-np.log(1 - rank)) ** (1 / wind.weibull_k)  # [m/s]
    logistic = 1 / (1 + np.exp(-(speed - wind.half_power_m_per_s) / wind.curve_width_m_per_s))
    low, high = wind.cut_out_m_per_s
    running = np.where(speed < wind.cut_in_m_per_s, 0, logistic)
    return running * (np.clip((high - speed) / (high - low), 0, 1) * wind.availability)


# --- what the grid takes -------------------------------------------------------------------------------------------


def _load_mw(load: Load, local: pd.DatetimeIndex, noise: np.ndarray) -> np.ndarray:
    """Demand [MW]: annual and semi-annual swing × morning, evening, night and midday shape × weekend × noise."""
    hour = _hour(local)
    weekend = (local.day_of_week >= 5).astype(float)
    season = (
        1
        + load.annual_amplitude * _annual(local, load.annual_peak_day)
        + load.semiannual_amplitude * _annual(local, load.annual_peak_day, cycles=2)
    )
    shape = (
        1
        + load.morning * _bump(hour, 8, 2.0)
        + load.evening * _bump(hour, 19, 2.8)
        - load.night * _bump(hour, 3.5, 2.5)
        - load.midday_dip * _bump(hour, 13, 2.5)
    )
    return load.mean_mw * season * shape * (1 - load.weekend * weekend) * (1 + load.noise_sd * noise)


def _outages(export: Export, steps: int, rng: np.random.Generator) -> np.ndarray:
    """Factor on the export limit: 1 while the lines are up, a uniform derate during an outage."""
    factor, step = np.ones(steps), 0
    while step < steps:
        up = int(rng.exponential(export.up_days * STEPS_PER_DAY)) + 1
        down = int(rng.exponential(export.down_days * STEPS_PER_DAY)) + 1
        factor[step + up : step + up + down] = rng.uniform(*export.derate)
        step += up + down
    return factor


# --- carbon and price ----------------------------------------------------------------------------------------------


def _mci_g_per_kwh(site: SiteParameters, headroom_mw: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Marginal carbon intensity [gCO2/kWh].

    A rank that wanders slowly between 0 and 1 (normal CDF of an Ornstein-Uhlenbeck process) chooses the place in
    [0, curtailed_max] while the site is curtailed, since renewables are then at the margin, and in [low, high], the
    band of the region's marginal plants, otherwise.
    """
    mci = site.mci
    rank = _optional("scipy.stats").norm.cdf(_ornstein_uhlenbeck(rng, len(headroom_mw), mci.noise_tau_h))
    curtailed = headroom_mw <= -CURTAILED_MW
    fossil = mci.low_g_per_kwh + (mci.high_g_per_kwh - mci.low_g_per_kwh) * rank
    return np.where(curtailed, mci.curtailed_max_g_per_kwh * rank, fossil)


def _price_usd_per_mwh(price: Price, headroom_mw: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Price [USD/MWh] as a function of headroom h, zero at h = 0, times log-normal noise of mean 1.

    h ≥ 0: fuel × (1 − exp(−h / fuel_headroom)) + scarcity × h, rising with the residual load to be met;
    h < 0: floor × (1 − exp(h / floor_surplus)), falling towards the floor as curtailment grows.
    Noise never changes the sign: the price is negative exactly while power is curtailed.
    """
    need, surplus = np.maximum(headroom_mw, 0), np.maximum(-headroom_mw, 0)
    thermal = -price.fuel_usd_per_mwh * np.expm1(-need / price.fuel_headroom_mw)
    negative = -price.floor_usd_per_mwh * np.expm1(-surplus / price.floor_surplus_mw)
    noise = _ornstein_uhlenbeck(rng, len(headroom_mw), price.noise_tau_h)
    factor = np.exp(price.noise_sd * noise - price.noise_sd**2 / 2)
    return (thermal + price.scarcity_usd_per_mwh_per_mw * need + negative) * factor


# --- building blocks -----------------------------------------------------------------------------------------------


def _ornstein_uhlenbeck(rng: np.random.Generator, steps: int, tau_h: float) -> np.ndarray:
    """Unit-variance Ornstein-Uhlenbeck process sampled every step, begun in its stationary state."""
    decay = np.exp(-STEP_S / 3600 / tau_h)
    begin = rng.standard_normal()
    shocks = rng.standard_normal(steps) * np.sqrt(1 - decay * decay)
    path, _ = _optional("scipy.signal").lfilter([1], [1, -decay], shocks, zi=[decay * begin])
    return np.asarray(path)


def _annual(local: pd.DatetimeIndex, peak_day: float, cycles: int = 1) -> np.ndarray:
    return np.cos(2 * np.pi * cycles * (local.day_of_year.to_numpy() - peak_day) / 365.25)


def _hour(local: pd.DatetimeIndex) -> np.ndarray:
    return np.asarray(local.hour + local.minute / 60)


def _bump(hour: np.ndarray, centre_h: float, width_h: float) -> np.ndarray:
    return np.exp(-(((hour - centre_h) / width_h) ** 2))


def _stream(seed: int, site: SiteParameters, series: str) -> np.random.Generator:
    """Random stream of one named series, independent of the physical one."""
    return np.random.default_rng([seed, site.stream, zlib.crc32(series.encode())])


def _written(column: pd.Series) -> np.ndarray:
    return np.round(column.to_numpy(), DECIMALS[str(column.name)])


def _optional(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        raise GeneratorError(
            f'generating data needs {module.split(".")[0]}, which is not installed: pip install "curtailsim[data]"'
        ) from missing


# --- files ---------------------------------------------------------------------------------------------------------


class _Manifest(Spec):
    about: str
    start: str
    days: int
    step_s: int
    seed: int
    curtailed_mw: float
    versions: dict[str, str]
    files: dict[str, str]
    sites: dict[str, SiteParameters]


def _utc(moment: str | datetime) -> datetime:
    try:
        parsed = moment if isinstance(moment, datetime) else datetime.fromisoformat(moment)
    except ValueError as bad:
        raise GeneratorError(f"start must be an ISO date or time such as 2021-03-12 (got {moment!r})") from bad
    return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)


def _render(first: datetime, days: int, seed: int, sites: dict[str, SiteParameters]) -> dict[str, bytes]:
    """Content of every file, by file name."""
    if days < 1:
        raise GeneratorError(f"days must be at least 1 (got {days})")
    begin = datetime(first.year, 1, 1, tzinfo=UTC)
    offset, rest = divmod(first - begin, timedelta(seconds=STEP_S))
    if rest:
        raise GeneratorError(f"start must lie on the {STEP_S} s grid (got {first.isoformat()})")
    last = first + timedelta(days=days)
    if last > datetime(first.year + 1, 1, 1, tzinfo=UTC):
        raise GeneratorError(
            f"the span must stay inside one calendar year: {first.isoformat()} + {days} days ends {last.isoformat()}"
        )
    span = slice(offset, offset + days * STEPS_PER_DAY)
    return {f"{name}.csv": _csv(site_year(site, year=first.year, seed=seed).iloc[span]) for name, site in sites.items()}


def _csv(frame: pd.DataFrame) -> bytes:
    text = pd.DataFrame({"time": pd.DatetimeIndex(frame.index).strftime("%Y-%m-%dT%H:%M:%SZ")})
    for column, decimals in DECIMALS.items():
        # Adding 0.0 turns a rounded -0.0 into 0.0.
        values = np.round(frame[column].to_numpy(), decimals) + 0.0
        text[column] = [f"{value:.{decimals}f}" for value in values]
    return text.to_csv(index=False, lineterminator="\n").encode()


def _manifest(
    first: datetime, days: int, seed: int, sites: dict[str, SiteParameters], files: dict[str, bytes]
) -> dict[str, Any]:
    versions = {name: _optional(name).__version__ for name in ("numpy", "pandas", "pvlib", "scipy")}
    return _Manifest(
        about="Synthetic sites written by `python -m curtailsim data generate`; see README.md beside this file.",
        start=first.strftime("%Y-%m-%dT%H:%M:%SZ"),
        days=days,
        step_s=STEP_S,
        seed=seed,
        curtailed_mw=CURTAILED_MW,
        versions={"python": platform.python_version(), **versions},
        files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        sites=sites,
    ).model_dump(mode="json")


def _read_manifest(folder: Path) -> _Manifest:
    path = folder / MANIFEST
    try:
        return _Manifest.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as missing:
        raise GeneratorError(f"{path}: no such file; write the data first: generate({str(folder)!r})") from missing
    except ValidationError as bad:
        raise GeneratorError(f"{path}: not a manifest of this generator: {bad}") from bad


def _replace(path: Path, content: bytes) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_bytes(content)
    aside.replace(path)


def _check(path: Path, expected: bytes, digest: str) -> FileCheck:
    if not path.is_file():
        return FileCheck(path.name, False, None, "missing")
    found = path.read_bytes()
    intact = hashlib.sha256(found).hexdigest() == digest
    if found == expected and intact:
        return FileCheck(path.name, True, 0.0, "equal")
    difference, detail = _difference(found, expected)
    return FileCheck(path.name, False, difference, detail if intact else f"SHA-256 differs from {MANIFEST}; {detail}")


def _difference(found: bytes, expected: bytes) -> tuple[float | None, str]:
    """Largest difference of a value and its column in words, or why the files cannot be compared."""
    try:
        left, right = (pd.read_csv(io.BytesIO(content), index_col="time") for content in (found, expected))
        if not (left.index.equals(right.index) and left.columns.equals(right.columns)):
            return None, f"{len(left)} rows of {list(left.columns)}, regenerated {len(right)} of {list(right.columns)}"
        gap = (left - right).abs().max()
    except (ValueError, TypeError) as bad:
        return None, f"not comparable with its regeneration ({bad})"
    worst = str(gap.idxmax())
    return float(gap[worst]), f"max difference {gap[worst]:.3g} in {worst}"
