"""Execute a dispatch plan on the clock: one virtual cluster, its tasks, and a microgrid as the ledger of its power.

    wait -> restore -> train a segment, write its checkpoint -> ... -> wait

A segment that has begun is never interrupted, except by a failure of the site, which loses it.  The ledger has no
slots: it sees every change of power and of a signal at its own time.  So a run's energy is that of the plan, and what
the plan's averages over slots have hidden of its cost and curtailment shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import simpy

from curtailsim.clock import AT_THE_END, Clock, Process, settle
from curtailsim.dispatch.plan import Run
from curtailsim.dispatch.planner import FOR_MEAN, OPTIMUM, Planned, Planner, Situation
from curtailsim.dispatch.problem import Floats, Mode, Task
from curtailsim.dispatch.scenario import DispatchScenario, DivisibleTask, Failure, Replan, actual_signals
from curtailsim.energy.microgrid import SiteMicrogrid
from curtailsim.recorder import Recorder, Segment
from curtailsim.scenario import TokensOnly

Watcher = Callable[[str, int, Recorder, int], None]
"""Told a run's name, the clock, what happened so far and, elsewhere, the virtual steps done."""

STATES = {"waiting": "ready", "restoring": "ready", "training": "training", "checkpointing": "training"}


def to_ms(hours: float) -> int:
    """Hours as whole milliseconds of the clock."""
    return round(hours * 3_600_000)


class Host(Protocol):
    """What a task needs of the place it runs in: a clock, a record, and a ledger that is told of its power."""

    env: Clock
    recorder: Recorder
    task_rows: list[tuple[Any, ...]]
    trained: set[str]

    def event(self, event: str, site: str, number: int = 0, detail: str = "") -> None:
        """Something happened to a task."""

    def until(self, time_ms: int) -> Process:
        """Wait until a time of the clock."""

    def power_changed(self) -> None:
        """A task's power has changed."""

    def interrupted(self, run: Run, done: int) -> None:
        """A run has lost the segment it was in."""


class TaskOnClock:
    """One task's life on the clock; a step of a divisible task is one of its units.

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

    def __init__(self, pool: Host, task: Task, total_steps: int, learner: Any) -> None:
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

    def shortened(self) -> Run | None:
        """The run under way, if any, ending at its next checkpoint."""
        return self.run and self.run.model_copy(update={"segments": min(self.run.segments, self.done_in_run + 1)})

    def end_at_next_checkpoint(self) -> Run:
        """Shorten the run under way; its present segment is finished."""
        shorter = self.shortened()
        assert shorter is not None, f"{self.task.name} is not running"
        self.run = shorter
        return shorter

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
            while self.done_in_run < self.run.segments:
                yield from self._segment(mode, began, self.done_in_run + 1)
        except simpy.Interrupt:
            self.pool.event("task_interrupted", self.task.name, self.done, "back to its last checkpoint")
            self.pool.interrupted(self.run, self.done_in_run)
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
        event = "checkpoint_written" if self.task.name in pool.trained else "unit_finished"
        pool.event(event, self.task.name, self.done, mode.label)

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
        self.trained = {task.name for task in scenario.dispatch.pretraining}
        learners = make_learners(scenario)
        self.tasks = {
            task.name: TaskOnClock(self, task, total_steps(scenario, task), learners.get(task.name))
            for task in problem.tasks
        }
        self.pending: list[Run] = []
        self.committed: list[Run] = []
        self.lost: dict[str, int] = {}
        self.promised_mw: Floats = np.full(problem.slots, problem.idle_mw)
        self.promised_gpu_h: Floats = np.zeros(problem.slots)
        self.promised_restarts: list[Run] = []
        self.plans: list[tuple[int, str, Planned]] = []
        self.believed = problem
        self.tranche = 0
        self.is_down, self.interrupted_runs = False, list[Run]()
        self.disturbed = False

    @property
    def own_plan(self) -> bool:
        """Whether this run makes its plans as it goes; other baselines go on as they are."""
        return self.name in (OPTIMUM, FOR_MEAN)

    @property
    def plan_file(self) -> str | None:
        """The plan that this run is given."""
        return self.scenario.policy.plan if self.name == OPTIMUM else None

    def run(self) -> None:
        """To the horizon."""
        self.recorder.event("run_started")
        self.power_changed()
        first = self._first_plan()
        self.env.process(self._follow(first))
        self.env.process(operate(self.env, self.microgrid))
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
        self.recorder.event("planning_started", self.site_name, 0, self.name)
        if not self.own_plan:
            return self.planner.baseline(self.name)
        if self.plan_file is not None:
            return self.planner.read(self.plan_file)
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
        rolls = self.own_plan and self.plan_file is None
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
            self.promised_gpu_h[slot : slot + len(planned.gpu_h)] = planned.gpu_h
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
            self._replan(slot, replan, reason)

    def _replan(self, slot: int, replan: Replan, reason: str) -> None:
        """The cheaper of two plans: runs under way go on to their end, or only to their next checkpoint."""
        going_on = self._situation(slot, replan.known_h)
        situation, planned = going_on, self.planner.plan(going_on)
        running = {id(task.run): task for task in self.tasks.values() if task.run != task.shortened()}
        if running:
            shorter_runs = (running[id(run)].shortened() if id(run) in running else run for run in self.committed)
            cut = replace(going_on, committed=tuple(run for run in shorter_runs if run is not None))
            shorter = self.planner.plan(cut)
            worse = shorter.given_up or shorter.cost is None or planned.cost is None or shorter.cost >= planned.cost
            if not worse:
                situation, planned = cut, shorter
                for place, run in enumerate(self.committed):
                    if id(run) in running:
                        self.committed[place] = running[id(run)].end_at_next_checkpoint()
        self._adopt(situation, "replanned", planned, promise=False, reason=reason)

    def _fail(self, failure: Failure) -> Process:
        yield from self.until(to_ms(failure.at_h))
        self.is_down = self.disturbed = True
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

    @property
    def _slot_ms(self) -> float:
        return self.scenario.dispatch.slot_h * 3_600_000

    def _observe(self, recorder: Recorder) -> None:
        assert self.watcher is not None
        self.watcher(self.name, self.env.now, recorder, 0)


def operate(env: Clock, microgrid: SiteMicrogrid) -> Process:
    """The ledger as a process: wait for its next change point, advance, and again."""
    while env.now < microgrid.horizon_ms:
        yield env.timeout(microgrid.wake_ms - env.now)
        microgrid.advance(env.now)


def total_steps(scenario: DispatchScenario, task: Task) -> int:
    """Virtual optimiser steps of a task's tranches."""
    spec = next(spec for spec in scenario.dispatch.tasks if spec.name == task.name)
    if isinstance(spec, DivisibleTask):
        return task.segments
    return max(1, round(task.tokens / spec.shape.tokens_per_step))


def make_learners(scenario: DispatchScenario) -> dict[str, Any]:
    """The real learner of every task; none where only tokens are counted."""
    spec = scenario.training.learner
    if isinstance(spec, TokensOnly):
        return {}
    from curtailsim.training.tasks import TaskLearner

    names = [task.name for task in scenario.dispatch.pretraining]
    totals = {
        task.name: task.tokens * scenario.tranches / task.shape.tokens_per_step
        for task in scenario.dispatch.pretraining
    }
    return {
        name: TaskLearner(spec, name, names, scenario.seed, max(1, round(totals[name])), scenario.training.stride)
        for name in names
    }
