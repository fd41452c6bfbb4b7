"""What did a dispatched run cost?  Its tables; cost and curtailment as planned, as realised, and why they differ."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from curtailsim.dispatch.clock import Pool, TaskOnClock
from curtailsim.dispatch.horizon import gpu_value_steps
from curtailsim.dispatch.plan import Plan
from curtailsim.dispatch.planner import Money, OtherCosts, expected_money, money, priced
from curtailsim.dispatch.problem import Floats
from curtailsim.dispatch.scenario import Dispatch
from curtailsim.dispatch.stochastic import StochasticValue
from curtailsim.metrics import (
    RunTables,
    account_table,
    event_table,
    interval_table,
    loss_table,
    ratio,
    round_table,
    segment_table,
    state_hours,
    totals_of,
)
from curtailsim.recorder import Recorder, Segment
from curtailsim.scenario import Accounting

TASK_COLUMNS = ["task", "start_s", "end_s", "phase", "mode", "gpus", "increment_kw"]
AGREEMENT = 1e-3
"""Relative difference allowed between the energy of an undisturbed run and that of its plan. [-]"""


def tables(pool: Pool) -> RunTables:
    """Everything a run leaves behind."""
    recorder, rules = pool.recorder, pool.scenario.dispatch
    intervals = interval_table(pool.microgrid)
    accounting = Accounting(surplus_price_per_mwh=rules.renewable_per_mwh)
    account = account_table(intervals, accounting)
    curves = Curves(recorder, rules, intervals, account)
    events = event_table(recorder, {})
    loss = curves.extend(loss_table(recorder, {}))
    rounds = curves.extend(round_table(recorder, {}), "sites")
    segments = segment_table(recorder, {})
    totals = {**totals_of(account), "sites": {pool.site_name: totals_of(account)}}
    totals["sites"][pool.site_name]["hours"] = state_hours(intervals)
    totals["sites"][pool.site_name]["steps"] = sum(segment.steps for segment in recorder.segments)
    training = training_summary(pool.tasks, recorder.segments, rules, loss, rounds)
    summary = {**totals, **training, **_dispatch_summary(pool, intervals)}
    return RunTables(
        events,
        intervals,
        loss,
        rounds,
        segments,
        summary,
        weights_digest(pool.tasks),
        extra={"tasks": pd.DataFrame(sorted(pool.task_rows), columns=TASK_COLUMNS), **_samples(pool)},
        documents={"plan.json": _executed(pool).to_json(), "solver.json": _solver_log(pool)},
    )


def _samples(pool: Pool) -> dict[str, pd.DataFrame]:
    """The samples that plans were made for, slot by slot; nothing without them."""
    problem, slots = pool.planner.foreseen, np.arange(pool.scenario.slots)
    tables = [
        pd.DataFrame(
            {
                "sample": outcome.name,
                "probability": outcome.probability,
                "start_s": slots * problem.slot_h * 3600,
                "price_per_mwh": outcome.problem.price_usd_per_mwh,
                "renewable_mw": outcome.problem.renewable_mw,
            }
        )
        for outcome in problem.outcomes()
        if outcome.name
    ]
    return {"samples": pd.concat(tables, ignore_index=True)} if tables else {}


class Curves:
    """All sites' cumulative energy, cost and waste, and a task's tokens, at any time."""

    def __init__(self, recorder: Recorder, rules: Dispatch, intervals: pd.DataFrame, account: pd.DataFrame) -> None:
        self.recorder = recorder
        self.tokens_per_step = _tokens_per_step(rules)
        penalty = rules.curtailment_per_mwh / 1000
        series = pd.DataFrame(
            {
                "energy_kwh": account.energy_kwh,
                "emissions_kg": account.emissions_kg,
                "surplus_wasted_kwh": account.surplus_wasted_kwh,
                "cost": account.cost + penalty * account.surplus_wasted_kwh,
            }
        )
        self.names = list(series)
        self.sums = []
        for site in intervals.site.unique():
            here = intervals.site == site
            ends = np.concatenate([[0.0], intervals.end_s[here]])
            sums = {name: np.concatenate([[0.0], series[name][here].cumsum()]) for name in self.names}
            self.sums.append((ends, sums))

    def extend(self, table: pd.DataFrame, task: str = "site") -> pd.DataFrame:
        """Add the curves' values at each row's time; tokens are those of the row's task."""
        times = table.time_s.to_numpy(dtype=float)
        values = {name: sum(np.interp(times, ends, sums[name]) for ends, sums in self.sums) for name in self.names}
        tokens = [self._tokens(name, time) for name, time in zip(table[task], times, strict=True)]
        return table.assign(tokens=np.array(tokens, dtype=np.int64), **values)

    def _tokens(self, task: str, time_s: float) -> int:
        steps = 0
        for segment in self.recorder.segments:
            if segment.site == task and segment.start_ms < time_s * 1000:
                steps += min(segment.steps, int((time_s * 1000 - segment.start_ms + 0.5) / segment.step_ms))
        return steps * self.tokens_per_step[task]


def _tokens_per_step(rules: Dispatch) -> dict[str, int]:
    """Tokens of a step, by task; a unit of a divisible task trains none."""
    trained = {task.name: task.shape.tokens_per_step for task in rules.pretraining}
    return {task.name: trained.get(task.name, 0) for task in rules.tasks}


def training_summary(
    tasks: Mapping[str, TaskOnClock], segments: list[Segment], rules: Dispatch, loss: pd.DataFrame, rounds: pd.DataFrame
) -> dict[str, Any]:
    """Steps, tokens and losses of all tasks together, and of each."""
    tokens_per_step = _tokens_per_step(rules)
    by_task = {}
    for name, task in tasks.items():
        own, held_out = loss[loss.site == name], rounds[rounds.sites == name].eval_loss.dropna()
        steps = sum(segment.steps for segment in segments if segment.site == name)
        by_task[name] = {
            "steps": steps,
            "tokens": steps * tokens_per_step[name],
            "real_steps": task.real_steps,
            "loss_initial": _edge(own.loss, 0),
            "loss_final": _edge(own.loss, -1),
            "eval_loss_initial": None if task.learner is None else task.learner.eval_loss_initial,
            "eval_loss_final": _edge(held_out, -1),
        }
    keys = ("loss_initial", "loss_final", "eval_loss_initial", "eval_loss_final")
    return {
        "runtime_h": max((segment.end_ms(segment.steps) for segment in segments), default=0) / 3_600_000,
        **{key: sum(values[key] for values in by_task.values()) for key in ("tokens", "steps", "real_steps")},
        "rounds": len(rounds),
        **{key: _mean([values[key] for values in by_task.values()]) for key in keys},
        "bytes_moved": 0.0,
        "tasks": by_task,
    }


def _edge(values: pd.Series, place: int) -> float | None:
    return float(values.iloc[place]) if len(values) else None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _executed(pool: Pool) -> Plan:
    """The runs as they were, in whole segments."""
    under_way = {id(task.run): task.done_in_run for task in pool.tasks.values() if task.run is not None}
    runs = [
        run.model_copy(update={"segments": under_way.get(id(run), run.segments)})
        for run in pool.committed
        if under_way.get(id(run), 1)
    ]
    runs.sort(key=lambda run: (run.start_slot, run.task))
    return Plan(slot_h=pool.scenario.dispatch.slot_h, runs=tuple(runs))


def _solver_log(pool: Pool) -> str:
    """How each plan was found; the only place where wall time is kept."""
    rows = [
        {
            "slot": slot,
            "event": event,
            "status": planned.status,
            "bound": planned.bound,
            "gap": planned.gap,
            "time_s": round(planned.time_s, 3),
        }
        for slot, event, planned in pool.plans
    ]
    return json.dumps(rows, indent=2) + "\n"


def _dispatch_summary(pool: Pool, intervals: pd.DataFrame) -> dict[str, Any]:
    """Cost, curtailment and modes: as planned, as realised, and why they differ."""
    stages = _stages(pool, intervals)
    planned, realised = stages["planned"], stages["realised"]
    energy_difference = ratio(realised.load_mwh - planned.load_mwh, planned.load_mwh)
    if not pool.disturbed and not any(task.run for task in pool.tasks.values()):
        assert energy_difference is None or abs(energy_difference) <= AGREEMENT, (planned.load_mwh, realised.load_mwh)
    executed = _executed(pool)
    labels = {name: sorted({run.mode for run in executed.of(name)}) for name in pool.tasks}
    worst = max((p.gap for _, _, p in pool.plans if p.gap is not None), default=None)
    statuses = sorted({p.status for _, _, p in pool.plans})
    return {
        "cost": realised.cost,
        "energy_cost": realised.energy_cost,
        "opportunity_cost": realised.opportunity_cost,
        "held_gpu_h": float(_held_gpu_h(pool, [0, pool.scenario.horizon_ms / 1000]).sum()),
        "restart_cost": realised.cost
        - realised.energy_cost
        - realised.opportunity_cost
        - pool.scenario.dispatch.curtailment_per_mwh * realised.curtailed_mwh,
        "curtailed_mwh": realised.curtailed_mwh,
        "load_mwh": realised.load_mwh,
        "green_share": realised.green_share,
        "peak_load_mw": realised.peak_load_mw,
        "peak_import_mw": realised.peak_import_mw,
        "import_above_limit": _above_limit(pool, intervals),
        "modes_used": {name: len(found) for name, found in labels.items()},
        "modes": labels,
        "segments": {name: task.done for name, task in pool.tasks.items()},
        "segments_asked": {name: task.task.segments for name, task in pool.tasks.items()},
        "restarts": {name: task.restarts for name, task in pool.tasks.items()},
        "finished": all(task.done == task.task.segments for task in pool.tasks.values()),
        "planned": {**asdict(planned), "green_share": planned.green_share},
        "stochastic": _stochastic(pool.plans[0][2].stochastic),
        "energy_difference": energy_difference,
        "differences": _differences(stages),
        "solver": {
            "status": statuses[0] if len(statuses) == 1 else ", ".join(statuses),
            "bound": pool.plans[0][2].bound if len(pool.plans) == 1 else None,
            "gap": worst,
            "plans": len(pool.plans),
        },
    }


def _above_limit(pool: Pool, intervals: pd.DataFrame) -> dict[str, Any]:
    """In how many slots the mean import is above the limit of the grid connection, and by how much at most."""
    limit, slots = pool.planner.actual.import_limit_mw, pool.scenario.slots
    edges_s = np.arange(slots + 1) * pool.planner.actual.slot_h * 3600
    kwh = intervals.grid_import_kw * (intervals.end_s - intervals.start_s) / 3600
    used_mwh = np.interp(edges_s, [0.0, *intervals.end_s], [0.0, *(kwh.cumsum() / 1000)])
    above = np.diff(used_mwh) / pool.planner.actual.slot_h - (math.inf if limit is None else limit)
    return {"slots": int((above > 1e-6).sum()), "most_mw": max(0.0, float(above.max()))}


def _stochastic(value: StochasticValue | None) -> dict[str, Any] | None:
    """What it is worth that the first plan was made for samples."""
    if value is None:
        return None
    return {
        "expected_cost": value.expected_cost_usd,
        "mean_value_cost": value.mean_value_cost_usd,
        "wait_and_see_cost": value.wait_and_see_cost_usd,
        "value_of_stochastic_solution": value.of_the_stochastic_solution_usd,
        "value_of_stochastic_solution_at_most": _finite(value.of_the_stochastic_solution_at_most_usd),
        "value_of_perfect_information": value.of_perfect_information_usd,
        "value_of_perfect_information_at_most": _finite(value.of_perfect_information_at_most_usd),
        "mean_value_breaks": list(value.mean_value_breaks),
        "samples": {
            sample.name: {
                "probability": sample.probability,
                "cost": sample.cost_usd,
                "mean_value_cost": sample.mean_value_cost_usd,
                "wait_and_see_cost": sample.wait_and_see_cost_usd,
            }
            for sample in value.samples
        },
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _stages(pool: Pool, intervals: pd.DataFrame) -> dict[str, Money]:
    """The way from the plan's cost to the ledger's, one cause at a time."""
    foreseen, actual, slots = pool.planner.foreseen, pool.planner.actual, pool.scenario.slots
    slot_hours = np.full(slots, foreseen.slot_h)
    restarts = sum(pool.tasks[run.task].task.restart_usd for run in pool.promised_restarts)
    own_restarts = sum(task.restarts * task.task.restart_usd for task in pool.tasks.values())
    hours = ((intervals.end_s - intervals.start_s) / 3600).to_numpy()
    load, generation = intervals.facility_kw.to_numpy() / 1000, intervals.generation_kw.to_numpy() / 1000
    price = intervals.price_per_mwh.to_numpy()

    value = foreseen.gpu_value_usd_per_h()
    promised = OtherCosts(restarts, float(value @ pool.promised_gpu_h))

    edges_h = np.arange(slots + 1) * foreseen.slot_h
    used_mwh = np.concatenate([[0.0], np.cumsum(load * hours)])
    ends_h = np.concatenate([[0.0], intervals.end_s / 3600])
    executed_mw = np.diff(np.interp(edges_h, ends_h, used_mwh)) / foreseen.slot_h
    on_slots = OtherCosts(own_restarts, float(np.dot(value, _held_gpu_h(pool, (edges_h * 3600).tolist()))))
    own = OtherCosts(own_restarts, _opportunity_cost(pool))
    supplied = intervals.surplus_used_kw.to_numpy() / 1000, intervals.grid_import_kw.to_numpy() / 1000
    return {
        "planned": expected_money(foreseen, pool.promised_mw, slot_hours, promised),
        "forecast_error": expected_money(actual, pool.promised_mw, slot_hours, promised),
        "deviations": expected_money(actual, executed_mw, slot_hours, on_slots),
        "slot_averaging": money(actual, price, generation, load, hours, own),
        "realised": priced(actual, price, generation, *supplied, hours, own),
    }


def _held_gpu_h(pool: Pool, edges_s: Sequence[float]) -> Floats:
    """GPU-hours that tasks held between neighbouring times."""
    edges, held = np.asarray(edges_s, float), np.zeros(len(edges_s) - 1)
    for _, start_s, end_s, _, _, gpus, _ in pool.task_rows:
        held += gpus * np.diff(np.clip(edges, start_s, end_s)) / 3600
    return held


def _opportunity_cost(pool: Pool) -> float:
    """What others would have paid for the GPUs held, at the value of every instant. [currency]"""
    value = gpu_value_steps(pool.scenario)
    edges_s = [time_ms / 1000 for time_ms in (*value.times_ms, pool.scenario.horizon_ms)]
    return float(np.dot(value.values, _held_gpu_h(pool, edges_s)))


def _differences(stages: dict[str, Money]) -> dict[str, dict[str, float]]:
    """What each cause adds to the plan's cost and curtailment.

    forecast_error: prices and supply are not as foreseen, or not the mean of the samples.  deviations: failures and
    what was planned anew.  slot_averaging: within a slot neither load nor signals are constant.  supply_order: the site
    uses its own renewable power first, also where importing and curtailing would pay.
    """
    names, values = list(stages), list(stages.values())
    found = {}
    for cause, before, after in zip(names[1:], values, values[1:], strict=False):
        name = "supply_order" if cause == "realised" else cause
        found[name] = {"cost": after.cost - before.cost, "curtailed_mwh": after.curtailed_mwh - before.curtailed_mwh}
    return found


def weights_digest(tasks: Mapping[str, TaskOnClock]) -> str | None:
    """SHA-256 of the final weights of all learners; None without one."""
    learners = {name: task.learner for name, task in tasks.items() if task.learner is not None}
    if not learners:
        return None
    total = hashlib.sha256()
    for name in sorted(learners):
        weights = learners[name].weights()
        for key in sorted(weights):
            total.update(f"{name}.{key}".encode() + weights[key].tobytes())
    return total.hexdigest()
