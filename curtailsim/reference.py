"""How close is a run to published figures?  Ours, printed and recomputed side by side, and the shape of the loss."""

from __future__ import annotations

import importlib.resources
import json
from typing import Any

import numpy as np
import pandas as pd
from rich.markup import escape
from rich.table import Table

from curtailsim.accounting import spread
from curtailsim.metrics import ratio
from curtailsim.report import percent
from curtailsim.results import Results
from curtailsim.spec import Problem, ScenarioError

SMOOTHING = 0.99
"""Weight of the past in the exponential moving average of training losses, as the published curves use it."""


def published(name: str) -> dict[str, Any]:
    """The figures of a publication."""
    text = (importlib.resources.files("curtailsim") / f"{name}.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def figures(results: Results, name: str) -> pd.DataFrame:
    """Every published figure with ours.

    Returns:
        Columns run, quantity, unit, printed, recomputed, ours and difference: ours less recomputed, relative to it,
        in percent; in percentage points where the unit is percent.
    """
    rows = []
    for row in published(name)["rows"]:
        ours = _ours(results, row["run"], row["path"])
        if ours is not None and row["unit"] == "%":
            ours *= 100
        gap = None if ours is None else ours - row["recomputed"]
        if gap is not None and row["unit"] != "%":
            gap = 100 * gap / row["recomputed"]
        rows.append({**row, "ours": ours, "difference": gap})
    return pd.DataFrame(rows).drop(columns="path")


def tables(results: Results, name: str) -> list[Table]:
    """The comparison for people."""
    return [
        _figures_table(results, name),
        _events_table(results, name),
        _spread_table(results),
        *_loss_tables(results, name),
    ]


def markdown(results: Results) -> str:
    """The comparison as a Markdown table.

    Raises:
        ScenarioError: The scenario names no publication.
    """
    name = results.manifest["scenario"].get("reference")
    if name is None:
        raise ScenarioError(str(results.path), [Problem("reference", "the scenario names no published figures")])
    lines = ["| run | quantity | printed | recomputed | ours | difference |", "|---|---|---:|---:|---:|---:|"]
    lines += [
        "| " + " | ".join([run, f"{what} [{unit}]" if unit else what, *rest]) + " |"
        for run, what, unit, *rest in _cells(results, name)
    ]
    return "\n".join(lines)


def sawtooth(results: Results, first: int, last: int, run: str = "curtailment_aware") -> tuple[float, float, int]:
    """What averaging does to the training loss in federated rounds `first` to `last`.

    At each boundary: mean loss of the first two real steps of a site after it, less that of its last four before.

    Returns:
        Mean [nats/byte], its standard error, number of boundaries (site by site).
    """
    loss, rounds = results.loss(run), results.rounds(run)
    federated = set(rounds[rounds.kind == "federated"]["round"])
    falls = []
    for number in range(first, last + 1):
        if not {number, number - 1} <= federated:
            continue
        for site in loss.site.unique():
            before = loss[(loss["round"] == number - 1) & (loss.site == site)].loss
            after = loss[(loss["round"] == number) & (loss.site == site)].loss
            if len(before) >= 4 and len(after) >= 2:
                falls.append(after.iloc[:2].mean() - before.iloc[-4:].mean())
    if not falls:
        return float("nan"), float("nan"), 0
    error = float(np.std(falls, ddof=1) / np.sqrt(len(falls))) if len(falls) > 1 else float("nan")
    return float(np.mean(falls)), error, len(falls)


def smoothed(losses: pd.Series) -> pd.Series:
    """Exponential moving average over rows, unbiased at the start."""
    return losses.ewm(alpha=1 - SMOOTHING, adjust=True).mean()


def _ours(results: Results, run: str, path: str) -> float | None:
    summary = results.summary["runs"].get(run)
    if summary is None:
        return None
    if path == "ratio":
        own = results.summary["runs"]["curtailment_aware"]["methods"].get("notebook", {})
        base = summary["methods"].get("notebook_training_only", {})
        return ratio(own.get("emissions_kg"), base.get("emissions_kg"))
    hours = [site["hours"] for site in summary["sites"].values()]
    training = sum(h["training"] for h in hours)
    # A leaver's last steps and waiting are one state, draining; the segments say how long it trained.
    segments = results.segments(run)
    trained = float((segments.steps * segments.step_s).sum() / 3600)
    derived = {
        "training_h": trained,
        "gpu_h": trained * _accelerators(results),
        "provisioned_h": sum(sum(h.values()) - h["off"] - h["provisioning"] for h in hours),
    }
    assert training <= trained + 1e-9 or not len(segments), (training, trained)
    if path in derived:
        return derived[path]
    if path.endswith(".training_h"):
        own_segments = segments[segments.site == path.split(".")[1]]
        return float((own_segments.steps * own_segments.step_s).sum() / 3600)
    value: Any = summary
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _accelerators(results: Results) -> int:
    return int(results.manifest["scenario"]["sites"][0]["cluster"]["count"])


def _cell(value: float | None, unit: str) -> str:
    if value is None or value != value:
        return ""
    if unit == "":
        return f"{value:,.0f}"
    return f"{value:,.2f}" if unit == "%" else f"{value:,.3f}"


def _cells(results: Results, name: str) -> list[list[str]]:
    """Run, quantity, unit, printed, recomputed, ours, difference."""
    rows = []
    for row in figures(results, name).replace({np.nan: None}).itertuples():
        unit = str(row.unit)
        gap = "n/a" if row.difference is None else f"{row.difference:+.2f} {'points' if unit == '%' else '%'}"
        values = [_cell(value, unit) for value in (row.printed, row.recomputed, row.ours)]
        rows.append([str(row.run), str(row.quantity), unit, *values, gap])
    return rows


def _figures_table(results: Results, name: str) -> Table:
    table = Table(title=f"Ours beside {published(name)['source']}", title_justify="left")
    for title in ("run", "quantity", "unit", "printed", "recomputed", "ours", "difference"):
        table.add_column(escape(title), justify="left" if title in ("run", "quantity", "unit") else "right")
    for cells in _cells(results, name):
        table.add_row(*cells)
    return table


def _events_table(results: Results, name: str) -> Table:
    table = Table(title="Events of the published log", title_justify="left")
    for title in ("event", "published", "ours"):
        table.add_column(escape(title), justify="left" if title == "event" else "right")
    counts = results.events().event.value_counts()
    for event, count in published(name)["events"].items():
        table.add_row(event, str(count), str(int(counts.get(event, 0))))
    return table


def _spread_table(results: Results) -> Table:
    table = Table(title="The same run by every accounting method", title_justify="left")
    titles = ("run", "method", "energy [kWh]", "emissions [kg]", "curtailed share [%]")
    for title in titles:
        table.add_column(escape(title), justify="left" if title in titles[:2] else "right")
    for run, summary in results.summary["runs"].items():
        for method, values in summary["methods"].items():
            share = values["curtailed_share"]
            cells = (
                _cell(values["energy_kwh"], "kWh"),
                _cell(values["emissions_kg"], "kg"),
                _cell(share and 100 * share, "%"),
            )
            table.add_row(run, method, *cells)
        apart = [spread(summary["methods"], key) for key in ("energy_kwh", "emissions_kg")]
        table.add_row(run, "largest over smallest", *(percent(value) for value in apart), "", end_section=True)
    return table


def _loss_tables(results: Results, name: str) -> list[Table]:
    if not len(results.loss()):
        return []
    known = published(name)
    table = Table(
        title="Perplexity, exp(loss); values of different models and texts, for their shape", title_justify="left"
    )
    titles = (
        "run",
        "published best",
        "published final",
        "ours best, smoothed",
        "ours final, smoothed",
        "ours final, held-out",
    )
    for title in titles:
        table.add_column(escape(title), justify="left" if title == "run" else "right")
    for run, values in known["perplexity"].items():
        if run in results.runs:
            curve = np.exp(smoothed(results.loss(run).loss))
            held_out = results.summary["runs"][run]["eval_loss_final"]
            ours = (float(curve.min()), float(curve.iloc[-1]), float(np.exp(held_out)))
            table.add_row(run, f"{values['best']:.2f}", f"{values['final']:.2f}", *(f"{value:.3f}" for value in ours))
    saw = Table(title=escape("Saw-tooth: change of the training loss at an averaging [nats]"), title_justify="left")
    for title in ("rounds", "published", "ours", "standard error", "boundaries"):
        saw.add_column(escape(title), justify="right")
    for group in known["sawtooth"]:
        fall, error, count = sawtooth(results, *group["rounds"])
        first, last = group["rounds"]
        saw.add_row(f"{first}-{last}", f"{group['fall']:+.3f}", f"{fall:+.3f}", f"{error:.3f}", str(count))
    return [table, saw]
