"""Execute a dispatch plan on the clock: one virtual cluster, its tasks, and a microgrid as the ledger of its power.

    wait -> restore -> train a segment, write its checkpoint -> ... -> wait

A segment that has begun is never interrupted, except by a failure of the site, which loses it.  The ledger has no
slots: it sees every change of power and of a signal at its own time.  So a run's energy is that of the plan, and what
the plan's averages over slots have hidden of its cost and curtailment shows.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import simpy

from curtailsim import dispatch_baselines
from curtailsim.clock import AT_THE_END, Clock, Process, settle
from curtailsim.dispatch import (
    DispatchProblem,
    Floats,
    Mode,
    Plan,
    Progress,
    Run,
    Task,
    evaluate,
    heuristic,
)
from curtailsim.dispatch_planner import OPTIMUM, Money, Planned, Planner, Situation, actual_signals, money, priced
from curtailsim.dispatch_scenario import DispatchScenario, Failure, Replan
from curtailsim.energy.microgrid import SiteMicrogrid
from curtailsim.metrics import (
    RunTables,
    account_table,
    interval_table,
    ratio,
    round_table,
    state_hours,
    totals_of,
)
from curtailsim.recorder import Recorder, Segment
from curtailsim.scenario import Accounting, TokensOnly
from curtailsim.spec import ScenarioError

Watcher = Callable[[str, int, Recorder, int], None]
STATES = {"waiting": "ready", "restoring": "ready", "training": "training", "checkpointing": "training"}
TASK_COLUMNS = ["task", "start_s", "end_s", "phase", "mode", "gpus", "increment_kw"]
AGREEMENT = 1e-3
"""Relative difference allowed between the energy of an undisturbed run and that of its plan. [-]"""


def to_ms(hours: float) -> int:
    """Hours as whole milliseconds of the clock."""
    return round(hours * 3_600_000)


class TaskOnClock:
    """One task's life on the clock.

    Args:
        pool: The cluster it runs on.
        task: What the plan knows of it.
        total_steps: Virtual optimiser steps of all its segments.
        learner: Trains for real; None: only tokens are counted.

    Attributes:
        done: Segments behind its last checkpoint.
        run: The run under way, if any.
        phase: waiting, restoring, training or checkpointing.
    """

    def __init__(self, pool: Pool, task: Task, total_steps: int, learner: Any) -> None:
        self.pool, self.task, self.total_steps, self.learner = pool, task, total_steps, learner
        self.done, self.done_in_run, self.restarts = 0, 0, 0
        self.run: Run | None = None
        self.mode: Mode | None = None
        self.phase, self.increment_kw = "waiting", 0.0
        self.process: simpy.Process | None = None
        self.real_steps = 0
        self._since = 0
        self._last_mode: str | None = None

    def start(self, run: Run) -> None:
        """Begin a run now."""
        assert self.run is None, f"{self.task.name} is still busy with {self.run}"
        self.process = self.pool.env.process(self._live(run))

    def stop(self) -> None:
        """The site has failed, or time is up: the segment under way is lost."""
        if self.run is not None and self.process is not None and self.process.is_alive:
            self.process.interrupt()

    def steps_until(self, segments: int) -> int:
        """Virtual steps behind so many segments."""
        return round(self.total_steps * segments / self.task.segments)

    def become(self, phase: str, increment_kw: float) -> None:
        """Enter a phase with its power above the idle pool's. [kW]"""
        self._write_phase()
        self.phase, self.increment_kw = phase, increment_kw
        self.pool.power_changed()

    def close(self) -> None:
        """Write the last phase down."""
        self._write_phase()

    def _write_phase(self) -> None:
        now = self.pool.env.now
        if now > self._since:
            held = 0 if self.mode is None or self.phase == "waiting" else self.mode.gpus
            label = "" if not held or self.mode is None else self.mode.label
            row = (self.task.name, self._since / 1000, now / 1000, self.phase, label, held, self.increment_kw)
            self.pool.task_rows.append(row)
        self._since = now

    def _live(self, run: Run) -> Process:
        mode = self.task.mode(run.mode)
        self.run, self.mode, self.done_in_run = run, mode, 0
        self.restarts += 1
        began = self.pool.env.now
        try:
            yield from self._restore(mode, began)
            for number in range(1, run.segments + 1):
                yield from self._segment(mode, began, number)
        except simpy.Interrupt:
            self.pool.event("task_interrupted", self.task.name, self.done, "back to its last checkpoint")
            self.pool.interrupted(run, self.done_in_run)
        else:
            finished = self.done == self.task.segments
            self.pool.event("task_finished" if finished else "task_paused", self.task.name, self.done)
        self.run = None
        self.become("waiting", 0.0)

    def _restore(self, mode: Mode, began: int) -> Process:
        pool = self.pool
        pool.event("task_started", self.task.name, self.done, mode.label)
        self.become("restoring", 1000 * mode.restoring_increment_mw)
        yield from pool.until(began + to_ms(self.task.restart_h))
        if self.learner is not None:
            self.learner.restore()
        pool.event("restored", self.task.name, self.done, mode.label)
        if self._last_mode not in (None, mode.label):
            pool.event("mode_changed", self.task.name, self.done, f"{self._last_mode} to {mode.label}")
        self._last_mode = mode.label

    def _segment(self, mode: Mode, began: int, number: int) -> Process:
        """Train a segment of the run and write its checkpoint."""
        pool, started = self.pool, self.pool.env.now
        end_h = self.task.run_h(mode, number)
        self.become("training", 1000 * mode.training_increment_mw)
        yield from pool.until(began + to_ms(end_h - self.task.checkpoint_h))
        trained = pool.env.now
        if self.task.checkpoint_h:
            self.become("checkpointing", 1000 * mode.training_increment_mw)
            yield from pool.until(began + to_ms(end_h))
        self.done += 1
        self.done_in_run += 1
        self._learn(started, trained)
        pool.event("checkpoint_written", self.task.name, self.done, mode.label)

    def _learn(self, started: int, trained: int) -> None:
        """Take the segment's real steps, now that it is known to be complete."""
        first, last = self.steps_until(self.done - 1), self.steps_until(self.done)
        step_ms = (trained - started) / max(last - first, 1)
        recorder = self.pool.recorder
        recorder.segments.append(Segment(self.task.name, self.done, started, step_ms, last - first))
        losses = [] if self.learner is None else self.learner.train_segment(first, last)
        for step, loss in losses:
            recorder.loss(started + round((step - first) * step_ms), self.task.name, self.done, step, loss)
        self.real_steps += len(losses)
        recorder.round(
            round=self.done,
            kind="checkpoint",
            start_ms=started,
            sites=self.task.name,
            steps=last - first,
            real_steps=len(losses),
            train_loss=sum(loss for _, loss in losses) / len(losses) if losses else None,
            eval_loss=None if self.learner is None else self.learner.evaluate(),
        )


class Pool:
    """A pool of GPUs that follows a plan, slot by slot.

    Args:
        scenario: What is asked.
        name: Name of the run.
        planner: Makes the plans.
        watcher: For progress.
    """

    def __init__(self, scenario: DispatchScenario, name: str, planner: Planner, watcher: Watcher | None = None) -> None:
        self.scenario, self.name, self.planner, self.watcher = scenario, name, planner, watcher
        self.env = Clock()
        self.recorder = Recorder(self.env, self._observe if watcher else None)
        site = scenario.sites[0]
        self.microgrid = SiteMicrogrid(site.name, actual_signals(scenario), None, None, scenario.horizon_ms)
        self.site_name = site.name
        self.task_rows: list[tuple[Any, ...]] = []
        problem = planner.foreseen
        learners = _learners(scenario)
        self.tasks = {
            task.name: TaskOnClock(self, task, _total_steps(scenario, task), learners.get(task.name))
            for task in problem.tasks
        }
        self.pending: list[Run] = []
        self.committed: list[Run] = []
        self.lost: dict[str, int] = {}
        self.promised_mw: Floats = np.full(problem.slots, problem.idle_mw)
        self.promised_restarts: list[Run] = []
        self.plans: list[tuple[int, str, Planned]] = []
        self.believed = problem
        self.tranche = 0
        self.is_down, self.interrupted_runs = False, list[Run]()
        self.disturbed = False

    @property
    def own_plan(self) -> bool:
        """Whether this run plans anew; baselines go on as they are."""
        return self.name == OPTIMUM

    def run(self) -> None:
        """To the horizon."""
        self.recorder.event("run_started")
        self.power_changed()
        first = self._first_plan()
        self.env.process(self._follow(first))
        self.env.process(_operate(self.env, self.microgrid))
        for failure in self.scenario.sites[0].failures:
            self.env.process(self._fail(failure))
        self.env.run(until=settle(self.env, AT_THE_END, self.scenario.horizon_ms))
        for task in self.tasks.values():
            task.close()
        self.microgrid.close()
        self.recorder.event("run_ended")

    def event(self, event: str, site: str, number: int = 0, detail: str = "") -> None:
        """Something happened to a task."""
        self.recorder.event(event, site, number, detail)

    def until(self, time_ms: int) -> Process:
        """Wait until a time of the clock."""
        yield self.env.timeout(max(time_ms - self.env.now, 0))

    def power_changed(self) -> None:
        """Tell the ledger the facility power of the moment."""
        phases = {task.phase for task in self.tasks.values()}
        order = ("training", "checkpointing", "restoring", "waiting")
        phase = next((phase for phase in order if phase in phases), "waiting")
        facility_kw = 1000 * self.scenario.dispatch.idle_mw + sum(task.increment_kw for task in self.tasks.values())
        state = "off" if self.is_down else STATES[phase]
        self.microgrid.set_load(self.env.now, state, phase, 0.0 if self.is_down else facility_kw)
        for name, task in self.tasks.items():
            self.recorder.state(name, "off" if task.phase == "waiting" else task.phase)

    def interrupted(self, run: Run, done: int) -> None:
        """A run has lost the segment it was in; what it had finished stays."""
        self.committed.remove(run)
        if done:
            self.committed.append(run.model_copy(update={"segments": done}))
        self.interrupted_runs.append(run.model_copy(update={"segments": run.segments - done}))

    def _first_plan(self) -> Planned:
        policy = self.scenario.policy
        self.recorder.event("planning_started", self.site_name, 0, self.name)
        if not self.own_plan:
            return self.planner.baseline(self.name)
        if policy.plan is not None:
            return self.planner.read(policy.plan)
        return self.planner.plan(Situation(0))

    def _follow(self, first: Planned) -> Process:
        """At every slot's start: plan if there is a reason to, then start what is due."""
        slots, slot_h = self.scenario.slots, self.scenario.dispatch.slot_h
        self._adopt(Situation(0), "plan_computed", first, promise=True)
        for slot in range(slots):
            yield settle(self.env, delay_ms=to_ms(slot * slot_h) - self.env.now)
            if not self.is_down:
                self._reconsider(slot)
                for run in [run for run in self.pending if run.start_slot <= slot]:
                    self._start(run, slot)

    def _reconsider(self, slot: int) -> None:
        """Make a new plan after an outage, for a new tranche, or because of a forecast error."""
        rolls = self.own_plan and self.scenario.policy.plan is None
        new_tranche = rolls and slot // self.planner.tranche_slots > self.tranche
        self.tranche = slot // self.planner.tranche_slots
        replan = self.scenario.policy.replan
        if self.interrupted_runs:
            self._recover(slot, new_tranche)
        elif new_tranche:
            situation = self._situation(slot)
            self._adopt(situation, "plan_computed", self.planner.plan(situation), promise=True)
        elif slot and rolls and replan is not None:
            self._replan_if_surprised(slot, replan)

    def _start(self, run: Run, slot: int) -> None:
        self.pending.remove(run)
        started = run.model_copy(update={"start_slot": slot})
        self.committed.append(started)
        self.tasks[run.task].start(started)

    def _situation(self, slot: int, known_h: float = 0.0) -> Situation:
        known = math.ceil(known_h / self.scenario.dispatch.slot_h - 1e-9)
        return Situation(slot, tuple(self.committed), tuple(sorted(self.lost.items())), known)

    def _adopt(self, situation: Situation, event: str, planned: Planned, promise: bool, reason: str = "") -> None:
        """Put a plan in force; a promise is what the executed run is compared with."""
        slot = situation.slot
        self.plans.append((slot, event, planned))
        for name, segments in (planned.given_up or {}).items():
            self.lost[name] = self.lost.get(name, 0) + segments
            self.event("segments_given_up", name, segments, "no plan can train them any more")
        self.pending = list(planned.runs)
        self.believed = self.planner.forecast(situation)
        if promise:
            self.promised_mw[slot : slot + len(planned.load_mw)] = planned.load_mw
            self.promised_restarts = [run for run in self.promised_restarts if run.start_slot < slot]
            self.promised_restarts += planned.runs
        detail = f"{len(planned.runs)} runs, {planned.status}" + (f": {reason}" if reason else "")
        self.recorder.event(event, self.site_name, 0, detail)

    def _recover(self, slot: int, new_tranche: bool) -> None:
        """Go on after an outage."""
        interrupted, self.interrupted_runs = self.interrupted_runs, []
        if self.own_plan:
            replan = self.scenario.policy.replan
            situation = self._situation(slot, replan.known_h if replan else 0.0)
            planned = self.planner.plan(situation)
            self._adopt(situation, "replanned", planned, promise=new_tranche, reason="the site failed")
        else:
            self.pending = list(self.planner.resumed(self.pending, interrupted, slot))
            self.recorder.event("resumed", self.site_name, 0, "the site failed")

    def _replan_if_surprised(self, slot: int, replan: Replan) -> None:
        actual, believed = self.planner.actual, self.believed
        renewable_mw = actual.renewable_mw[slot - 1] - believed.renewable_mw[slot - 1]
        price = actual.price_usd_per_mwh[slot - 1] - believed.price_usd_per_mwh[slot - 1]
        surprised = replan.above_mw is not None and abs(renewable_mw) > replan.above_mw
        surprised |= replan.above_per_mwh is not None and abs(price) > replan.above_per_mwh
        if surprised:
            self.disturbed = True
            reason = f"renewable power {renewable_mw:+.3f} MW, price {price:+.2f} per MWh off the forecast"
            situation = self._situation(slot, replan.known_h)
            self._adopt(situation, "replanned", self.planner.plan(situation), promise=False, reason=reason)

    def _fail(self, failure: Failure) -> Process:
        yield from self.until(to_ms(failure.at_h))
        self.is_down = True
        self.recorder.event("site_failed", self.site_name)
        running = [task for task in self.tasks.values() if task.run is not None]
        for task in running:
            task.stop()
        self.power_changed()
        yield from self.until(to_ms(failure.at_h + failure.duration_h))
        self.is_down = False
        self.recorder.event("site_restored", self.site_name)
        self.power_changed()
        # also runs that were due while there was no power have to be placed again
        self.interrupted_runs += [run for run in self.pending if run.start_slot * self._slot_ms < self.env.now]
        self.pending = [run for run in self.pending if run.start_slot * self._slot_ms >= self.env.now]
        self.disturbed = True

    @property
    def _slot_ms(self) -> float:
        return self.scenario.dispatch.slot_h * 3_600_000

    def _observe(self, recorder: Recorder) -> None:
        assert self.watcher is not None
        self.watcher(self.name, self.env.now, recorder, 0)


def _operate(env: Clock, microgrid: SiteMicrogrid) -> Process:
    """The ledger as a process: wait for its next change point, advance, and again."""
    while env.now < microgrid.horizon_ms:
        yield env.timeout(microgrid.wake_ms - env.now)
        microgrid.advance(env.now)


def _total_steps(scenario: DispatchScenario, task: Task) -> int:
    spec = next(spec for spec in scenario.dispatch.tasks if spec.name == task.name)
    return max(1, round(task.tokens / spec.shape.tokens_per_step))


def _learners(scenario: DispatchScenario) -> dict[str, Any]:
    spec = scenario.training.learner
    if isinstance(spec, TokensOnly):
        return {}
    from curtailsim.training.tasks import TaskLearner

    names = [task.name for task in scenario.dispatch.tasks]
    totals = {
        task.name: task.tokens * scenario.tranches / task.shape.tokens_per_step for task in scenario.dispatch.tasks
    }
    return {
        name: TaskLearner(spec, name, names, scenario.seed, max(1, round(totals[name])), scenario.training.stride)
        for name in names
    }


# ------------------------------------------------------------------------------------------------ what results.run asks


@dataclass(frozen=True)
class DispatchRun:
    """One plan to execute; named like the plans of other scenarios, so that progress is shown alike."""

    name: str

    @property
    def ledgers(self) -> dict[str, None]:
        """The one run it accounts for."""
        return {self.name: None}


def plans(scenario: DispatchScenario) -> Iterator[DispatchRun]:
    """What has to be simulated: the optimum, then its baselines."""
    for name in (OPTIMUM, *scenario.dispatch.baselines):
        yield DispatchRun(name)


def simulate(scenario: DispatchScenario, plan: DispatchRun, watcher: Watcher | None = None) -> dict[str, RunTables]:
    """Plan and execute one run.

    Returns:
        Its tables by its name; nothing for a baseline that no operator could carry out.

    Raises:
        ScenarioError: The scenario itself has no plan.
    """
    pool: Pool | None = None

    def progress(state: Progress) -> None:
        if pool is not None and watcher is not None:
            best = f"best {state.best_usd:.2f}, " if math.isfinite(state.best_usd) else ""
            pool.recorder.states["solver"] = f"{best}bound {state.bound_usd:.2f} after {state.time_s:.0f} s"
            watcher(plan.name, pool.env.now, pool.recorder, 0)
            del pool.recorder.states["solver"]

    planner = Planner(scenario, progress)
    pool = Pool(scenario, plan.name, planner, watcher)
    try:
        pool.run()
    except ScenarioError:
        if plan.name == OPTIMUM:
            raise
        return {}
    return {plan.name: tables(pool)}


def tables(pool: Pool) -> RunTables:
    """Everything a run leaves behind."""
    recorder, rules = pool.recorder, pool.scenario.dispatch
    intervals = interval_table(pool.microgrid)
    accounting = Accounting(surplus_price_per_mwh=rules.renewable_per_mwh)
    account = account_table(intervals, accounting)
    curves = _Curves(pool, intervals, account)
    events = pd.DataFrame(
        [(ms / 1000, event, site, number or None, detail) for ms, event, site, number, detail in recorder.events],
        columns=["time_s", "event", "site", "round", "detail"],
    ).astype({"round": "Int64"})
    losses = [(ms / 1000, site, number, step, value) for ms, site, number, step, value in sorted(recorder.losses)]
    loss = curves.extend(pd.DataFrame(losses, columns=["time_s", "site", "round", "step", "loss"]))
    rounds = curves.extend(round_table(recorder, {}), "sites")
    segments = pd.DataFrame(
        [(s.site, s.round, s.start_ms / 1000, s.step_ms / 1000, s.steps) for s in recorder.segments],
        columns=["site", "round", "start_s", "step_s", "steps"],
    )
    totals = {**totals_of(account), "sites": {pool.site_name: totals_of(account)}}
    totals["sites"][pool.site_name]["hours"] = state_hours(intervals)
    totals["sites"][pool.site_name]["steps"] = sum(segment.steps for segment in recorder.segments)
    summary = {**totals, **_training_summary(pool, loss, rounds), **_dispatch_summary(pool, intervals)}
    return RunTables(
        events,
        intervals,
        loss,
        rounds,
        segments,
        summary,
        _weights_digest(pool),
        extra={"tasks": pd.DataFrame(sorted(pool.task_rows), columns=TASK_COLUMNS)},
        documents={"plan.json": _executed(pool).to_json(), "solver.json": _solver_log(pool)},
    )


class _Curves:
    """A site's cumulative energy, cost and waste, and a task's tokens, at any time."""

    def __init__(self, pool: Pool, intervals: pd.DataFrame, account: pd.DataFrame) -> None:
        self.recorder = pool.recorder
        self.tokens_per_step = {task.name: task.shape.tokens_per_step for task in pool.scenario.dispatch.tasks}
        self.ends = np.concatenate([[0.0], intervals.end_s])
        penalty = pool.scenario.dispatch.curtailment_per_mwh / 1000
        series = {
            "energy_kwh": account.energy_kwh,
            "emissions_kg": account.emissions_kg,
            "surplus_wasted_kwh": account.surplus_wasted_kwh,
            "cost": account.cost + penalty * account.surplus_wasted_kwh,
        }
        self.sums = {name: np.concatenate([[0.0], values.cumsum()]) for name, values in series.items()}

    def extend(self, table: pd.DataFrame, task: str = "site") -> pd.DataFrame:
        """Add the curves' values at each row's time; tokens are those of the row's task."""
        times = table.time_s.to_numpy(dtype=float)
        values = {name: np.interp(times, self.ends, sums) for name, sums in self.sums.items()}
        tokens = [self._tokens(name, time) for name, time in zip(table[task], times, strict=True)]
        return table.assign(tokens=np.array(tokens, dtype=np.int64), **values)

    def _tokens(self, task: str, time_s: float) -> int:
        steps = 0
        for segment in self.recorder.segments:
            if segment.site == task and segment.start_ms < time_s * 1000:
                steps += min(segment.steps, int((time_s * 1000 - segment.start_ms + 0.5) / segment.step_ms))
        return steps * self.tokens_per_step[task]


def _training_summary(pool: Pool, loss: pd.DataFrame, rounds: pd.DataFrame) -> dict[str, Any]:
    """Steps, tokens and losses of all tasks together, and of each."""
    segments = pool.recorder.segments
    shapes = {task.name: task.shape for task in pool.scenario.dispatch.tasks}
    by_task = {}
    for name, task in pool.tasks.items():
        own, held_out = loss[loss.site == name], rounds[rounds.sites == name].eval_loss.dropna()
        steps = sum(segment.steps for segment in segments if segment.site == name)
        by_task[name] = {
            "steps": steps,
            "tokens": steps * shapes[name].tokens_per_step,
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
    undisturbed = not pool.disturbed and pool.planner.actual == pool.planner.foreseen
    if undisturbed and not any(task.run for task in pool.tasks.values()):
        assert energy_difference is None or abs(energy_difference) <= AGREEMENT, (planned.load_mwh, realised.load_mwh)
    executed = _executed(pool)
    labels = {name: sorted({run.mode for run in executed.of(name)}) for name in pool.tasks}
    worst = max((p.gap for _, _, p in pool.plans if p.gap is not None), default=None)
    statuses = sorted({p.status for _, _, p in pool.plans})
    return {
        "cost": realised.cost,
        "energy_cost": realised.energy_cost,
        "restart_cost": realised.cost
        - realised.energy_cost
        - pool.scenario.dispatch.curtailment_per_mwh * realised.curtailed_mwh,
        "curtailed_mwh": realised.curtailed_mwh,
        "load_mwh": realised.load_mwh,
        "green_share": realised.green_share,
        "peak_load_mw": realised.peak_load_mw,
        "peak_import_mw": realised.peak_import_mw,
        "modes_used": {name: len(found) for name, found in labels.items()},
        "modes": labels,
        "segments": {name: task.done for name, task in pool.tasks.items()},
        "segments_asked": {name: task.task.segments for name, task in pool.tasks.items()},
        "restarts": {name: task.restarts for name, task in pool.tasks.items()},
        "finished": all(task.done == task.task.segments for task in pool.tasks.values()),
        "planned": {**asdict(planned), "green_share": planned.green_share},
        "energy_difference": energy_difference,
        "differences": _differences(stages),
        "solver": {
            "status": statuses[0] if len(statuses) == 1 else ", ".join(statuses),
            "bound": pool.plans[0][2].bound if len(pool.plans) == 1 else None,
            "gap": worst,
            "plans": len(pool.plans),
        },
    }


def _stages(pool: Pool, intervals: pd.DataFrame) -> dict[str, Money]:
    """The way from the plan's cost to the ledger's, one cause at a time."""
    foreseen, actual, slots = pool.planner.foreseen, pool.planner.actual, pool.scenario.slots
    slot_hours = np.full(slots, foreseen.slot_h)
    restarts = sum(pool.tasks[run.task].task.restart_usd for run in pool.promised_restarts)
    own_restarts = sum(task.restarts * task.task.restart_usd for task in pool.tasks.values())
    hours = ((intervals.end_s - intervals.start_s) / 3600).to_numpy()
    load, generation = intervals.facility_kw.to_numpy() / 1000, intervals.generation_kw.to_numpy() / 1000
    price = intervals.price_per_mwh.to_numpy()

    def in_slots(problem: DispatchProblem, power: Floats, restart_cost: float) -> Money:
        series = np.array(problem.price_usd_per_mwh), np.array(problem.renewable_mw)
        return money(problem, *series, power, slot_hours, restart_cost)

    edges_h = np.arange(slots + 1) * foreseen.slot_h
    used_mwh = np.concatenate([[0.0], np.cumsum(load * hours)])
    ends_h = np.concatenate([[0.0], intervals.end_s / 3600])
    executed_mw = np.diff(np.interp(edges_h, ends_h, used_mwh)) / foreseen.slot_h
    supplied = intervals.surplus_used_kw.to_numpy() / 1000, intervals.grid_import_kw.to_numpy() / 1000
    return {
        "planned": in_slots(foreseen, pool.promised_mw, restarts),
        "forecast_error": in_slots(actual, pool.promised_mw, restarts),
        "deviations": in_slots(actual, executed_mw, own_restarts),
        "slot_averaging": money(actual, price, generation, load, hours, own_restarts),
        "realised": priced(actual, price, generation, *supplied, hours, own_restarts),
    }


def _differences(stages: dict[str, Money]) -> dict[str, dict[str, float]]:
    """What each cause adds to the plan's cost and curtailment.

    forecast_error: prices and supply are not as foreseen.  deviations: failures and what was planned anew.
    slot_averaging: within a slot neither load nor signals are constant.  supply_order: the site uses its own renewable
    power first, also where importing and curtailing would pay.
    """
    names, values = list(stages), list(stages.values())
    found = {}
    for cause, before, after in zip(names[1:], values, values[1:], strict=False):
        name = "supply_order" if cause == "realised" else cause
        found[name] = {"cost": after.cost - before.cost, "curtailed_mwh": after.curtailed_mwh - before.curtailed_mwh}
    return found


def _weights_digest(pool: Pool) -> str | None:
    learners = {name: task.learner for name, task in pool.tasks.items() if task.learner is not None}
    if not learners:
        return None
    total = hashlib.sha256()
    for name in sorted(learners):
        weights = learners[name].weights()
        for key in sorted(weights):
            total.update(f"{name}.{key}".encode() + weights[key].tobytes())
    return total.hexdigest()


def summarise(
    scenario: DispatchScenario, made: dict[str, RunTables], digest: str, currency: str | None
) -> dict[str, Any]:
    """The content of `summary.json`."""
    runs = {name: tables.summary for name, tables in made.items()}
    own = runs[OPTIMUM]
    keys = {"emission_ratio": "emissions_kg", "emission_ratio_surplus_first": "emissions_surplus_first_kg"}
    ratios = {
        title: {name: ratio(own[key], values[key]) for name, values in runs.items() if name != OPTIMUM}
        for title, key in keys.items()
    }
    return {
        "scenario": scenario.name,
        "seed": scenario.seed,
        "digest": digest,
        "system": "dispatch",
        "currency": currency,
        **ratios,
        "savings": _savings(runs),
        "catalogue": _catalogue(scenario),
        "comparators": _comparators(scenario, runs),
        "impossible": _impossible(scenario, runs),
        "runs": runs,
    }


def _savings(runs: dict[str, Any]) -> dict[str, Any]:
    """Share of each other run's cost that the dispatched plan saves, planned and realised; by the name of the run."""
    own = runs[OPTIMUM]
    return {
        name: {
            "cost_cut": 1 - own["cost"] / values["cost"],
            "cost_cut_planned": 1 - own["planned"]["cost"] / values["planned"]["cost"],
            "curtailed_mwh_avoided": values["curtailed_mwh"] - own["curtailed_mwh"],
        }
        for name, values in runs.items()
        if name != OPTIMUM and values["cost"]
    }


def _catalogue(scenario: DispatchScenario) -> dict[str, Any]:
    """Modes of each task: tried and rejected by rule, usable, offered to the solver."""
    found = {}
    for task in scenario.dispatch.tasks:
        catalogue = scenario.dispatch.catalogue(task)
        rules = sorted({rejection.rule for rejection in catalogue.rejections})
        found[task.name] = {
            "usable": len(catalogue.modes),
            "offered": len(scenario.dispatch.modes(task)),
            "rejected": {rule: catalogue.rejected(rule) for rule in rules},
        }
    return found


def _impossible(scenario: DispatchScenario, runs: dict[str, Any]) -> dict[str, str]:
    """Baselines that could not be carried out, and why."""
    planner, reasons = Planner(scenario), {}
    for name in scenario.dispatch.baselines:
        if name not in runs:
            try:
                planner.baseline(name)
            except ScenarioError as error:
                reasons[name] = "; ".join(problem.rule for problem in error.problems)
    return reasons


def _comparators(scenario: DispatchScenario, runs: dict[str, Any]) -> dict[str, Any]:
    """What other views of training promise, and by how much they overstate the saving of the dispatched plan.

    `overstated` is in percentage points of the cost of `fixed`, both as planned.
    """
    planner = Planner(scenario)
    problem, rules = planner.foreseen, scenario.dispatch
    reference = runs["fixed"]["planned"]["cost"] if "fixed" in runs else None
    own = runs[OPTIMUM]["planned"]["cost"]
    found = {}
    for name in rules.comparators:
        try:
            cost, curtailed = _comparator(problem, name, rules.gap, rules.time_limit_s)
        except ScenarioError as error:
            found[name] = {"cost": None, "reason": "; ".join(problem.rule for problem in error.problems)}
            continue
        found[name] = {
            "cost": cost,
            "curtailed_mwh": curtailed,
            "cost_cut": None if reference is None else 1 - cost / reference,
            "overstated": None if reference is None else (own - cost) / reference,
        }
    return found


def _comparator(problem: DispatchProblem, name: str, gap: float, time_limit_s: float) -> tuple[float, float]:
    if name == "heuristic":
        plan = heuristic(problem)
        if plan is None:
            raise ScenarioError("heuristic", [])
        found = evaluate(problem, plan)
        return found.cost_usd, found.curtailed_mwh
    view = getattr(dispatch_baselines, name)
    limits = {} if name in ("hull", "linear") else {"relative_gap": gap, "time_limit_s": time_limit_s}
    relaxed = view(problem, **limits)
    return relaxed.cost_usd, relaxed.curtailed_mwh
