"""How much do the numbers depend on the way they are added up?  Accounting methods by name, from a run's own tables.

- exact: power held, signal held; the integral the ledger makes.
- training_only: the same without idle and provisioning power.
- notebook: a grid of instants over log files, as `Sampled` in the scenario describes it.
- notebook_training_only: the same without idle power.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from curtailsim.energy.signals import mci_rows
from curtailsim.metrics import ratio
from curtailsim.scenario import Sampled, Scenario, Site

Floats = npt.NDArray[np.float64]
Figures = dict[str, float | None]


def methods(
    scenario: Scenario, sites: list[Site], intervals: pd.DataFrame, events: pd.DataFrame, segments: pd.DataFrame
) -> dict[str, Figures]:
    """Energy [kWh], emissions [kg] and curtailed share of a run by every method.

    Args:
        scenario: What was asked.
        sites: The sites of the run.
        intervals: Its intervals.
        events: Its events.
        segments: Its training segments.
    """
    found = {
        "exact": _exact(scenario, intervals),
        "training_only": _exact(scenario, intervals[intervals.phase == "training"]),
    }
    rules = scenario.accounting.notebook
    if rules is not None and all(site.mci is not None for site in sites):
        for name, idle in (("notebook", True), ("notebook_training_only", False)):
            parts = [_sampled(scenario, site, rules, events, segments, idle) for site in sites]
            found[name] = _figures(*(sum(part[index] for part in parts) for index in range(3)))
    return found


def _figures(energy_kwh: float, emissions_kg: float, curtailed_kwh: float) -> Figures:
    return {
        "energy_kwh": energy_kwh,
        "emissions_kg": None if np.isnan(emissions_kg) else emissions_kg,
        "curtailed_share": None if np.isnan(curtailed_kwh) else ratio(curtailed_kwh, energy_kwh),
    }


def _exact(scenario: Scenario, intervals: pd.DataFrame) -> Figures:
    kwh = intervals.facility_kw * (intervals.end_s - intervals.start_s) / 3600
    if scenario.accounting.curtailed_share == "mci_below":
        curtailed = kwh[intervals.mci_g_per_kwh < scenario.accounting.curtailed_below_g_per_kwh]
    elif any(site.generation is not None for site in scenario.sites):
        from_storage = (-intervals.storage_kw).clip(lower=0)
        curtailed = (intervals.surplus_used_kw + from_storage) * (intervals.end_s - intervals.start_s) / 3600
    else:
        curtailed = pd.Series([np.nan])
    emissions_kg = (kwh * intervals.mci_g_per_kwh).sum(skipna=False) / 1000
    return _figures(float(kwh.sum()), float(emissions_kg), float(curtailed.sum(skipna=False)))


def _sampled(
    scenario: Scenario, site: Site, rules: Sampled, events: pd.DataFrame, segments: pd.DataFrame, idle: bool
) -> tuple[float, float, float]:
    """Energy [kWh], emissions [kg] and curtailed energy [kWh] of one site."""
    own, steps = events[events.site == site.name], segments[segments.site == site.name]
    last_s = float(events[events.event == "training_finished"].time_s.max()) if len(steps) else 0.0
    if np.isnan(last_s):
        last_s = scenario.duration_h * 3600
    times = np.arange(0.0, last_s + rules.step_s, rules.step_s)
    training = _inside(times, _logged(steps, rules))
    on = _inside(times, _provisioned(own, last_s)) if idle else np.zeros(len(times), dtype=bool)
    cluster = site.cluster
    idle_kw, train_kw = cluster.facility_kw("waiting"), cluster.facility_kw("training")
    kwh = np.where(training, train_kw, np.where(on, idle_kw, 0.0)) * rules.step_s / 3600
    intensity = _signal(scenario, site, rules, times)
    below = scenario.accounting.curtailed_below_g_per_kwh
    curtailed = float(kwh[intensity < below].sum()) if below is not None else float("nan")
    return float(kwh.sum()), float((kwh * intensity).sum() / 1000), curtailed


def _logged(steps: pd.DataFrame, rules: Sampled) -> list[tuple[float, float]]:
    """From the first to the last logged step of every stretch without a gap. [s]"""
    rows = [(s.start_s + s.step_s, s.start_s + s.steps * s.step_s) for s in steps.itertuples() if s.steps]
    merged: list[tuple[float, float]] = []
    for first, last in rows:
        if merged and first - merged[-1][1] <= rules.gap_s:
            merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return [(first + rules.training_shift_s, last + rules.training_shift_s) for first, last in merged]


def _provisioned(events: pd.DataFrame, last_s: float) -> list[tuple[float, float]]:
    starts = events[events.event == "provisioned"].time_s.tolist()
    ends = events[events.event.isin(["deprovisioned", "released"])].time_s.tolist()
    return list(zip(starts, [*ends, last_s], strict=False))


def _inside(times: Floats, spans: list[tuple[float, float]]) -> npt.NDArray[np.bool_]:
    inside = np.zeros(len(times), dtype=bool)
    for start, end in spans:
        inside |= (times >= start) & (times <= end)
    return inside


def _signal(scenario: Scenario, site: Site, rules: Sampled, times: Floats) -> Floats:
    """Marginal intensity at each instant, read on a clock that may be off. [g/kWh]"""
    stamps_ms, values = mci_rows(site)
    start_ms = (scenario.start + timedelta(seconds=rules.signal_shift_s)).timestamp() * 1000
    asked = start_ms + times * 1000
    if rules.interpolated:
        return np.interp(asked, stamps_ms, values)
    return values[np.clip(np.searchsorted(stamps_ms, asked, side="right") - 1, 0, None)]


def spread(found: dict[str, Any], key: str) -> float | None:
    """Largest over smallest value of a figure among the methods, less one."""
    values = [figures[key] for figures in found.values() if figures.get(key)]
    return max(values) / min(values) - 1 if values else None
