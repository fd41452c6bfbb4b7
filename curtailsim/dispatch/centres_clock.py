"""Execute a plan for several data centres on one clock: every centre has its own ledger, tasks move between them.

    wait -> restore -> train a segment, write its checkpoint -> ... -> wait -> move -> wait -> restore -> ...

The transfer's power is drawn where the checkpoint comes from, as part of that facility's load.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from curtailsim.clock import AT_THE_END, Clock, Process, settle
from curtailsim.dispatch.centres import (
    Centre,
    CentresPlan,
    CentresProblem,
    CentresSolution,
    Move,
    PlacedRun,
    Transfer,
    evaluate,
    solve,
)
from curtailsim.dispatch.centres_scenario import CentresScenario
from curtailsim.dispatch.clock import STATES, TaskOnClock, Watcher, make_learners, operate, to_ms, total_steps
from curtailsim.dispatch.horizon import actual_problem
from curtailsim.dispatch.plan import Run
from curtailsim.dispatch.planner import OPTIMUM
from curtailsim.dispatch.scenario import actual_signals
from curtailsim.energy.microgrid import SiteMicrogrid
from curtailsim.linear_program import Progress
from curtailsim.recorder import Recorder
from curtailsim.spec import ScenarioError

FIXED_PLACEMENT = "fixed_placement"
"""The run of the best plan without moves."""


def centres_problem(scenario: CentresScenario) -> CentresProblem:
    """The dispatch problem of all sites, signals as means over the slots."""
    rules, centres = scenario.dispatch, []
    for site in scenario.sites:
        hosted = scenario.hosted(site)
        centres.append(Centre(name=site.name, problem=actual_problem(hosted)))
    transfers = [
        Transfer(
            task=task.name,
            hours=rules.wan.hours(task.shape.parameters),
            energy_mwh=rules.wan.energy_mwh(task.shape.parameters),
        )
        for task in rules.tasks
    ]
    homes = {task.name: task.home for task in rules.tasks if task.home is not None}
    return CentresProblem(centres=tuple(centres), transfers=tuple(transfers), homes=homes)


class MovingTask(TaskOnClock):
    """One task's life on the clock, at one centre after the other.

    Attributes:
        site: Where its checkpoint is; empty until it is placed.
        moves: Transfers so far.
        bytes_moved: Bytes of all its transfers. [B]
    """

    def __init__(self, centres: Centres, name: str, learner: Any, first_site: str) -> None:
        self.centres, self.site = centres, first_site
        self.moves, self.bytes_moved = 0, 0.0
        self.places = centres.problem.places(name)
        task = next(iter(self.places.values()))
        super().__init__(centres, task, total_steps(centres.scenario, task), learner)

    def begin(self, run: PlacedRun) -> None:
        """Begin a run now, with the modes of the place."""
        assert run.site == self.site, (run.site, self.site)
        self.task = self.places[run.site]
        self.start(run)

    def depart(self, move: Move, transfer: Transfer) -> None:
        """Begin a transfer now."""
        assert self.run is None and self.phase == "waiting", f"{move.task} is still {self.phase}"
        self.process = self.pool.env.process(self._move(move, transfer))

    def _move(self, move: Move, transfer: Transfer) -> Process:
        pool, began = self.pool, self.pool.env.now
        size = self.centres.checkpoint_bytes(move.task)
        way = f"{move.origin} to {move.destination}"
        pool.event("transfer_started", move.task, self.done, f"{way}, {size / 1e9:.1f} GB")
        self.mode = None
        self.become("moving", 1000 * transfer.energy_mwh / transfer.hours)
        yield from pool.until(began + to_ms(transfer.hours))
        self.become("waiting", 0.0)
        self.site = move.destination
        self.moves += 1
        self.bytes_moved += size
        pool.event("task_moved", move.task, self.done, way)

    def _write_phase(self) -> None:
        rows = self.pool.task_rows
        before = len(rows)
        super()._write_phase()
        rows[before:] = [(*row, self.site) for row in rows[before:]]


class Centres:
    """Several pools that follow one plan, slot by slot.

    Args:
        scenario: What is asked.
        name: Name of the run.
        watcher: For progress.
    """

    def __init__(self, scenario: CentresScenario, name: str, watcher: Watcher | None = None) -> None:
        self.scenario, self.name, self.watcher = scenario, name, watcher
        self.problem = centres_problem(scenario)
        self.env = Clock()
        self.recorder = Recorder(self.env, self._observe if watcher else None)
        self.microgrids = {
            site.name: SiteMicrogrid(site.name, actual_signals(scenario.alone(site)), None, None, scenario.horizon_ms)
            for site in scenario.sites
        }
        self.loads: dict[str, tuple[str, str, float, float]] = {}
        self.task_rows: list[tuple[Any, ...]] = []
        self.trained = {task.name for task in scenario.dispatch.tasks}
        self.tasks: dict[str, MovingTask] = {}
        self.plan = CentresPlan(slot_h=self.problem.slot_h, runs=())
        self.solution: CentresSolution | None = None

    def run(self) -> None:
        """Plan, then execute to the horizon.

        Raises:
            ScenarioError: There is no plan.
        """
        self.recorder.event("run_started")
        self.recorder.event("planning_started", "", 0, self.name)
        self.plan = self._plan()
        status = "file" if self.solution is None else self.solution.status
        counts = f"{len(self.plan.runs)} runs, {len(self.plan.moves)} moves"
        self.recorder.event("plan_computed", "", 0, f"{counts}, {status}")
        learners = make_learners(self.scenario)
        for task in self.scenario.dispatch.tasks:
            first = task.home or next(run.site for run in self.plan.runs if run.task == task.name)
            self.tasks[task.name] = MovingTask(self, task.name, learners.get(task.name), first)
        self.power_changed()
        self.env.process(self._follow())
        for microgrid in self.microgrids.values():
            self.env.process(operate(self.env, microgrid))
        self.env.run(until=settle(self.env, AT_THE_END, self.scenario.horizon_ms))
        for moving in self.tasks.values():
            moving.close()
        for microgrid in self.microgrids.values():
            microgrid.close()
        self.recorder.event("run_ended")

    def checkpoint_bytes(self, name: str) -> float:
        """Size of a task's checkpoint. [B]"""
        rules = self.scenario.dispatch
        task = next(task for task in rules.tasks if task.name == name)
        return rules.wan.checkpoint_bytes(task.shape.parameters)

    def event(self, event: str, site: str, number: int = 0, detail: str = "") -> None:
        """Something happened to a task."""
        self.recorder.event(event, site, number, detail)

    def until(self, time_ms: int) -> Process:
        """Wait until a time of the clock."""
        yield self.env.timeout(max(time_ms - self.env.now, 0))

    def interrupted(self, run: Run, done: int) -> None:
        """Nothing interrupts a run here."""
        raise AssertionError(f"{run} was interrupted after {done} segments")

    def power_changed(self) -> None:
        """Tell every ledger whose load has changed the facility power of the moment."""
        for centre in self.problem.centres:
            here = [task for task in self.tasks.values() if task.site == centre.name]
            phases = {task.phase for task in here}
            order = ("training", "checkpointing", "restoring", "moving", "waiting")
            phase = next((phase for phase in order if phase in phases), "waiting")
            network_kw = sum(task.increment_kw for task in here if task.phase == "moving")
            facility_kw = 1000 * centre.problem.idle_mw + sum(task.increment_kw for task in here)
            load = (STATES.get(phase, "ready"), phase, facility_kw, network_kw)
            if self.loads.get(centre.name) != load:
                self.loads[centre.name] = load
                self.microgrids[centre.name].set_load(self.env.now, *load)
        for name, task in self.tasks.items():
            self.recorder.state(name, "off" if task.phase == "waiting" else task.phase)

    def _plan(self) -> CentresPlan:
        path = self.scenario.policy.plan
        if path is not None and self.name == OPTIMUM:
            plan = CentresPlan.from_json(Path(path).read_text(encoding="utf-8"), path)
            try:
                evaluate(self.problem, plan)
            except ScenarioError as error:
                raise ScenarioError(path, error.problems) from None
            return plan
        rules = self.scenario.dispatch
        self.solution = solve(
            self.problem,
            moving=self.name == OPTIMUM,
            relative_gap=rules.gap,
            time_limit_s=rules.time_limit_s,
            progress=self._progress,
        )
        return self.solution.plan

    def _follow(self) -> Process:
        """At every slot's start, begin what is due."""
        due: dict[int, list[PlacedRun | Move]] = {}
        steps: list[PlacedRun | Move] = [*self.plan.moves, *self.plan.runs]
        for step in steps:
            due.setdefault(step.start_slot, []).append(step)
        for slot in sorted(due):
            yield settle(self.env, delay_ms=to_ms(slot * self.problem.slot_h) - self.env.now)
            for step in due[slot]:
                task = self.tasks[step.task]
                if isinstance(step, Move):
                    task.depart(step, self.problem.transfer(step.task))
                else:
                    task.begin(step)

    def _progress(self, state: Progress) -> None:
        if self.watcher is not None:
            self.recorder.states["solver"] = f"bound {state.bound_usd:.2f} after {state.time_s:.0f} s"
            self.watcher(self.name, self.env.now, self.recorder, 0)
            del self.recorder.states["solver"]

    def _observe(self, recorder: Recorder) -> None:
        assert self.watcher is not None
        self.watcher(self.name, self.env.now, recorder, 0)
