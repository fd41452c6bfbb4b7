"""What did a run cost?  Tables of what happened, and energy, emissions, cost and loss computed from them.

All power and all signals are constant within an interval, so every integral here is exact.

    energy [kWh] = power [kW] x time [s] / 3600;   emissions [kg] = energy [kWh] x intensity [g/kWh] / 1000
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from curtailsim.energy.microgrid import SiteMicrogrid
from curtailsim.recorder import Recorder, Segment

ENERGY_KEYS = (
    "energy_kwh",
    "emissions_kg",
    "emissions_surplus_first_kg",
    "emissions_average_kg",
    "surplus_available_kwh",
    "surplus_used_kwh",
    "surplus_stored_kwh",
    "surplus_wasted_kwh",
    "storage_discharged_kwh",
    "curtailed_share",
    "grid_import_kwh",
    "cost",
    "network_energy_kwh",
    "network_emissions_kg",
)
LISTS_OF_SITES = ("round_started", "round_ended", "aggregated")
"""Events whose detail names sites."""

STATES = ("off", "provisioning", "ready", "training", "draining")


@dataclass(frozen=True)
class RunTables:
    """Everything one run leaves behind.

    Attributes:
        events: time_s, event, site, round, detail.
        intervals: One row per site and interval of constant power; half-open, tiling the horizon.
        loss: One row per real optimiser step.
        rounds: One row per round, and per report from within a single-site round.
        segments: Whole virtual steps of one site, back to back: step k ends at start_s + k x step_s.
        summary: The numbers of `summary.json` for this run.
        weights_sha256: Digest of the final model; None without a real learner.
        extra: Further tables of this kind of run, by name.
        documents: Further files, by name.
    """

    events: pd.DataFrame
    intervals: pd.DataFrame
    loss: pd.DataFrame
    rounds: pd.DataFrame
    segments: pd.DataFrame
    summary: dict[str, Any]
    weights_sha256: str | None
    extra: dict[str, pd.DataFrame] = field(default_factory=dict)
    documents: dict[str, str] = field(default_factory=dict)


def make_tables(
    recorder: Recorder,
    microgrids: list[SiteMicrogrid],
    *,
    names: dict[str, str],
    tokens_per_step: int,
    bytes_moved: dict[str, float],
    eval_loss_initial: float | None,
    weights_sha256: str | None,
    accounting: Any,
    real_steps: int,
    total_steps: int | None,
) -> RunTables:
    """Turn what was recorded into tables.

    Args:
        recorder: What happened.
        microgrids: The ledgers to account with.
        names: For each simulated site, the site it stands for in this run.
        tokens_per_step: Tokens in a virtual step.
        bytes_moved: Model bytes each simulated site has received and sent.
        eval_loss_initial: Held-out loss of the untrained model. [nats/byte]
        weights_sha256: Digest of the final model.
        accounting: The scenario's accounting rules.
        real_steps: Optimiser steps the learner has taken.
        total_steps: Virtual steps in the token budget; None: none was set.
    """
    intervals = pd.concat([interval_table(m) for m in microgrids], ignore_index=True)
    account = account_table(intervals, accounting)
    if accounting.curtailed_share == "surplus":
        # A site without generation data has no share of zero: nothing is known of it.
        unknown = [m.name for m in microgrids if "generation" not in m.signals.steps]
        account.loc[intervals.site.isin(unknown), "curtailed_kwh"] = math.nan
    curves = _Curves(intervals, account, recorder.segments, tokens_per_step)
    events = event_table(recorder, names)
    loss = curves.extend(loss_table(recorder, names))[
        ["time_s", "site", "round", "step", "tokens", "loss", "energy_kwh", "emissions_kg", "surplus_wasted_kwh"]
    ]
    rounds = curves.extend(round_table(recorder, names))
    summary = _summarise_sites(intervals, account, accounting)
    summary.update(_summarise_training(recorder, loss, rounds, tokens_per_step, eval_loss_initial, real_steps))
    summary["tokens_asked"] = None if total_steps is None else total_steps * tokens_per_step
    summary["bytes_moved"] = sum(bytes_moved.values())
    for site, values in summary["sites"].items():
        own = [s for s in recorder.segments if names[s.site] == site]
        values["steps"] = sum(s.steps for s in own)
        values["hours"] = state_hours(intervals[intervals.site == site])
    segments = segment_table(recorder, names)
    return RunTables(events, intervals, loss, rounds, segments, summary, weights_sha256)


def ratio(value: float | None, base: float | None) -> float | None:
    """Value / base; None where there is nothing to divide by."""
    return None if value is None or not base else value / base


def interval_table(microgrid: SiteMicrogrid) -> pd.DataFrame:
    """One row per interval of a ledger."""
    columns = microgrid.columns
    start_s, end_s = columns.pop("start_ms") / 1000, columns.pop("end_ms") / 1000
    words = {name: pd.Categorical(columns.pop(name)) for name in ("state", "phase")}
    site = pd.Categorical.from_codes(np.zeros(len(start_s), dtype=np.int8), [microgrid.name])
    return pd.DataFrame({"site": site, "start_s": start_s, "end_s": end_s, **words, **columns})


def account_table(intervals: pd.DataFrame, accounting: Any) -> pd.DataFrame:
    """Energy, emissions and cost of each interval."""
    hours = (intervals.end_s - intervals.start_s) / 3600
    kwh = {
        "energy_kwh": intervals.facility_kw,
        "surplus_available_kwh": intervals.surplus_kw,
        "surplus_used_kwh": intervals.surplus_used_kw,
        "surplus_stored_kwh": intervals.surplus_stored_kw,
        "surplus_wasted_kwh": intervals.surplus_wasted_kw,
        "storage_discharged_kwh": -intervals.storage_kw.clip(upper=0),
        "grid_import_kwh": intervals.grid_import_kw,
        "network_energy_kwh": intervals.network_kw,
    }
    table = pd.DataFrame({name: power * hours for name, power in kwh.items()})
    table["emissions_kg"] = table.energy_kwh * intervals.mci_g_per_kwh / 1000
    table["emissions_surplus_first_kg"] = table.grid_import_kwh * intervals.mci_g_per_kwh / 1000
    table["emissions_average_kg"] = table.energy_kwh * intervals.average_ci_g_per_kwh / 1000
    table["network_emissions_kg"] = table.network_energy_kwh * intervals.mci_g_per_kwh / 1000
    surplus_cost = table.surplus_used_kwh * accounting.surplus_price_per_mwh
    table["cost"] = (table.grid_import_kwh * intervals.price_per_mwh + surplus_cost) / 1000
    if accounting.curtailed_share == "surplus":
        table["curtailed_kwh"] = table.surplus_used_kwh + table.storage_discharged_kwh
    else:
        below = intervals.mci_g_per_kwh < accounting.curtailed_below_g_per_kwh
        table["curtailed_kwh"] = table.energy_kwh.where(below, 0.0)
    return table


def _summarise_sites(intervals: pd.DataFrame, account: pd.DataFrame, accounting: Any) -> dict[str, Any]:
    sites = {}
    for name in intervals.site.unique():
        sites[str(name)] = totals_of(account[intervals.site == name])
    whole = totals_of(account)
    return {**whole, "sites": sites}


def totals_of(account: pd.DataFrame) -> dict[str, Any]:
    """Sums over intervals under the names of `ENERGY_KEYS`; None where a signal is missing."""
    totals: dict[str, Any] = {}
    for key in ENERGY_KEYS:
        if key == "curtailed_share":
            known = account.curtailed_kwh.notna()
            share = ratio(math.fsum(account.curtailed_kwh[known]), math.fsum(account.energy_kwh))
            totals[key] = share if known.any() else None
        else:
            total = math.fsum(account[key])
            totals[key] = None if math.isnan(total) else total + 0.0
    return totals


def _summarise_training(
    recorder: Recorder,
    loss: pd.DataFrame,
    rounds: pd.DataFrame,
    tokens_per_step: int,
    eval_loss_initial: float | None,
    real_steps: int,
) -> dict[str, Any]:
    steps = sum(segment.steps for segment in recorder.segments)
    ends = [segment.end_ms(segment.steps) for segment in recorder.segments if segment.steps]
    evaluated = rounds.eval_loss.dropna()
    return {
        "runtime_h": max(ends, default=0) / 3_600_000,
        "tokens": steps * tokens_per_step,
        "steps": steps,
        "real_steps": real_steps,
        "rounds": int(rounds["round"].nunique()),
        "loss_initial": _first(loss.loss),
        "loss_final": _first(loss.loss[::-1]),
        "eval_loss_initial": eval_loss_initial if eval_loss_initial is not None else _first(evaluated),
        "eval_loss_final": _first(evaluated[::-1]) if len(evaluated) else eval_loss_initial,
    }


def _first(values: pd.Series) -> float | None:
    """The first value; None if there is none, or if it is not a number because training diverged."""
    return float(values.iloc[0]) if len(values) and math.isfinite(values.iloc[0]) else None


def state_hours(intervals: pd.DataFrame) -> dict[str, float]:
    """Time in each state. [h]"""
    hours = (intervals.end_s - intervals.start_s) / 3600
    return {state: math.fsum(hours[intervals.state == state]) for state in STATES}


def event_table(recorder: Recorder, names: dict[str, str]) -> pd.DataFrame:
    """Events, times in seconds, sites as this run calls them."""
    rows = [
        (
            ms / 1000,
            event,
            _rename(site, names),
            number or None,
            _rename(detail, names) if event in LISTS_OF_SITES else detail,
        )
        for ms, event, site, number, detail in recorder.events
    ]
    table = pd.DataFrame(rows, columns=["time_s", "event", "site", "round", "detail"])
    return table.astype({"round": "Int64"})


def loss_table(recorder: Recorder, names: dict[str, str]) -> pd.DataFrame:
    """Real steps in the order of time, times in seconds."""
    rows = [
        (ms / 1000, _rename(site, names), number, step, value)
        for ms, site, number, step, value in sorted(recorder.losses)
    ]
    return pd.DataFrame(rows, columns=["time_s", "site", "round", "step", "loss"])


def segment_table(recorder: Recorder, names: dict[str, str]) -> pd.DataFrame:
    """Training segments, times in seconds."""
    rows = [(_rename(s.site, names), s.round, s.start_ms / 1000, s.step_ms / 1000, s.steps) for s in recorder.segments]
    return pd.DataFrame(rows, columns=["site", "round", "start_s", "step_s", "steps"])


def round_table(recorder: Recorder, names: dict[str, str]) -> pd.DataFrame:
    """Rounds and reports, times in seconds."""
    columns = ["round", "kind", "start_s", "time_s", "sites", "steps", "real_steps", "train_loss", "eval_loss"]
    rows = [
        {
            **row,
            "start_s": row["start_ms"] / 1000,
            "time_s": row["time_ms"] / 1000,
            "sites": _rename(row["sites"], names),
        }
        for row in recorder.rounds
    ]
    table = pd.DataFrame(rows, columns=columns)
    return table.astype({"train_loss": float, "eval_loss": float})


def _rename(text: str, names: dict[str, str]) -> str:
    """Site names in a cell, as this run calls them."""
    return " ".join(names.get(word, word) for word in text.split(" "))


class _Curves:
    """Cumulative tokens, energy, emissions and waste of a whole run at any time."""

    NAMES = ("energy_kwh", "emissions_kg", "surplus_wasted_kwh")

    def __init__(
        self, intervals: pd.DataFrame, account: pd.DataFrame, segments: list[Segment], tokens_per_step: int
    ) -> None:
        self.segments, self.tokens_per_step = segments, tokens_per_step
        self.parts = []
        for name in intervals.site.unique():
            rows = intervals.site == name
            ends = np.concatenate([[0.0], intervals.end_s[rows]])
            sums = {key: np.concatenate([[0.0], account[key][rows].cumsum()]) for key in self.NAMES}
            self.parts.append((ends, sums))

    def extend(self, table: pd.DataFrame) -> pd.DataFrame:
        """Add the curves' values at each row's time."""
        times = table.time_s.to_numpy(dtype=float)
        values = {
            name: sum((np.interp(times, ends, sums[name]) for ends, sums in self.parts), np.zeros(len(times)))
            for name in self.NAMES
        }
        return table.assign(tokens=self._tokens(times), **values)

    def _tokens(self, times: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Segments that are over count in full, the few that a time falls into up to their last whole step."""
        times_ms = np.round(times * 1000).astype(np.int64)
        order = np.argsort(times_ms, kind="stable")
        sorted_ms = times_ms[order]
        firsts = np.searchsorted(sorted_ms, [segment.start_ms for segment in self.segments])
        lasts = np.searchsorted(sorted_ms, [segment.end_ms(segment.steps) for segment in self.segments])
        over = np.zeros(len(times) + 1, dtype=np.int64)
        np.add.at(over, lasts, [segment.steps for segment in self.segments])
        steps = np.cumsum(over[:-1])
        for segment, first, last in zip(self.segments, firsts, lasts, strict=True):
            if first < last:
                # The half millisecond undoes the rounding of a step's end to the clock.
                done = np.floor((sorted_ms[first:last] - segment.start_ms + 0.5) / segment.step_ms)
                steps[first:last] += np.clip(done.astype(np.int64), 0, segment.steps)
        tokens = np.empty(len(times), dtype=np.int64)
        tokens[order] = steps * self.tokens_per_step
        return tokens
