"""The same microgrids in `vessim.Environment` alone, at its fixed step: what the benchmark measures against."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import vessim

from curtailsim.energy.microgrid import Curtailment
from curtailsim.energy.signals import Steps, site_signals

if TYPE_CHECKING:
    from curtailsim.scenario import Scenario


def environment(scenario: Scenario, load_kw: float, step_s: int = 300) -> tuple[vessim.Environment, vessim.Recorder]:
    """Every site's microgrid with a constant load, and a recorder that keeps everything in memory.

    Args:
        scenario: Whose sites; their storage and import limits are left out.
        load_kw: Facility load of each site. [kW]
        step_s: Step of the environment. [s]
    """
    world = vessim.Environment(sim_start=scenario.start, step_size=step_s)
    for site in scenario.sites:
        steps = site_signals(site, scenario.start, scenario.horizon_ms).steps
        generation, surplus = steps["generation"], steps["surplus"]
        taken = generation.combine(surplus, np.subtract)
        world.add_microgrid(
            [
                vessim.Producer("generation", _trace(generation, 1000)),
                vessim.Consumer("absorption", _trace(taken, 1000)),
                vessim.Consumer("cluster", vessim.StaticSignal(load_kw * 1000)),
            ],
            [Curtailment(), vessim.GridConnection("grid", max_export=0.0)],
            grid_signals={name: _trace(steps[name]) for name in ("mci", "price") if name in steps},
            name=site.name,
        )
    return world, world.add_controller(vessim.Recorder())


def simulate(world: vessim.Environment, scenario: Scenario) -> None:
    """Run it over the scenario's horizon."""
    world.run(until=timedelta(milliseconds=scenario.horizon_ms))


def _trace(steps: Steps, factor: float = 1.0) -> vessim.Trace:
    """A step function as Vessim's own kind of trace; the factor turns kW into W."""
    return vessim.Trace(pd.Series(np.asarray(steps.values) * factor, index=np.asarray(steps.times_ms) / 1000))
