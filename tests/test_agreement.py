"""At every seam the product agrees with what it stands on: Vessim's environment, Flower's strategies, its own meter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import vessim
from worlds import START, below, built, cluster, site, world

from curtailsim.clock import Clock
from curtailsim.energy.microgrid import SiteMicrogrid
from curtailsim.energy.signals import site_signals
from curtailsim.scenario import Site, load
from curtailsim.simulation import HEADLINE, World, plans
from curtailsim.training.build import build_learner

HORIZON_S = 7200

# --- Vessim --------------------------------------------------------------------------------------------------------


class Watch(vessim.Controller):
    """Writes down every resource's power at every tick. [W]"""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def step(self, now: Any, microgrid_states: dict[str, vessim.MicrogridState]) -> None:
        """One tick."""
        states = microgrid_states["site"]["dispatch_states"]
        self.rows.append({name: state["current_power"] for name, state in states.items()})


def trace(pieces: list[tuple[int, float]]) -> vessim.Trace:
    """A step function as Vessim's own signal."""
    stamps, values = zip(*pieces, (HORIZON_S, pieces[-1][1]), strict=True)
    return vessim.Trace(pd.Series(values, index=stamps, name="trace"))


def by_vessim(
    generation: list[tuple[int, float]],
    absorption: list[tuple[int, float]],
    load_kw: list[tuple[int, float]],
    storage: dict[str, float] | None,
    step_s: int,
) -> tuple[pd.DataFrame, float]:
    """The same site from Vessim's stock parts: powers in W per tick, and the battery's level at the end in Wh.

    What the grid takes is a consumer here, and the sink for the rest is an export-only connection.
    """
    stamps = sorted({t for t, _ in [*generation, *absorption]})
    renewable, limit = trace(generation), trace(absorption)
    taken = trace([(t, min(renewable.at(t), limit.at(t)) * 1000) for t in stamps])
    battery = storage and vessim.SimpleBattery(
        "storage",
        storage["capacity_kwh"] * 1000,
        storage.get("initial_soc", 0),
        storage.get("min_soc", 0),
        storage.get("c_rate"),
    )
    sink = vessim.GridConnection("curtailment", max_import=0.0)
    grid = vessim.GridConnection("grid", max_export=0.0)
    watch = Watch()
    environment = vessim.Environment(sim_start=START.replace(tzinfo=None), step_size=step_s)
    environment.add_microgrid(
        [
            vessim.Producer("generation", trace([(t, kw * 1000) for t, kw in generation])),
            vessim.Consumer("zone", taken),
            vessim.Consumer("cluster", trace([(t, kw * 1000) for t, kw in load_kw])),
        ],
        [resource for resource in (battery, sink, grid) if resource],
        name="site",
    )
    environment.add_controller(watch)
    environment.run(until=HORIZON_S)
    return pd.DataFrame(watch.rows), battery.charge_level if battery else 0.0


def by_process(
    folder: Path,
    generation: list[tuple[int, float]],
    absorption: list[tuple[int, float]],
    load_kw: list[tuple[int, float]],
    storage: dict[str, float] | None,
) -> pd.DataFrame:
    """The site's own microgrid as a process on the clock, its load changed by another process."""
    parts = {"generation": generation, "absorption": absorption, **({"storage": storage} if storage else {})}
    spec = Site.model_validate(site(folder=folder, **parts))
    signals = site_signals(spec, START, HORIZON_S * 1000)
    microgrid = SiteMicrogrid("site", signals, spec.storage, None, HORIZON_S * 1000)
    env = Clock()

    def operate() -> Any:
        while env.now < HORIZON_S * 1000:
            yield env.timeout(microgrid.wake_ms - env.now)
            microgrid.advance(env.now)

    def switch() -> Any:
        for stamp, kw in load_kw:
            yield env.timeout(stamp * 1000 - env.now)
            microgrid.set_load(env.now, "training", "training", kw)

    env.process(operate())
    env.process(switch())
    env.run(until=HORIZON_S * 1000)
    microgrid.close()
    return pd.DataFrame(microgrid.columns)


CASES = {
    "no_storage": (
        [(0, 0.0), (1200, 5.0), (2400, 7.5), (4800, 1.25), (6000, 0.0)],
        [(0, 1.0), (1800, 2.0), (5400, 0.5)],
        [(0, 0.0), (17, 1.0), (619, 4.0), (3001, 0.468), (3600, 2.024), (7000, 0.0)],
        None,
        1,
    ),
    "storage": (
        [(0, 6.0), (3600, 0.0), (6000, 4.0)],
        [(0, 0.0), (6000, 1.0)],
        [(0, 4.0), (5400, 2.0)],
        {"capacity_kwh": 1.0},
        300,
    ),
    "storage_with_limits": (
        [(0, 0.0), (3600, 9.0)],
        [(0, 1.0), (1800, 2.0)],
        [(0, 2.5), (2700, 0.5), (4500, 4.0), (5400, 0.0)],
        {"capacity_kwh": 4.0, "initial_soc": 0.75, "min_soc": 0.25, "c_rate": 0.5},
        60,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_microgrid_process_is_the_vessim_environment(tmp_path: Path, case: str) -> None:
    """Energies through every resource and the battery's level are those of `vessim.Environment.run`."""
    generation, absorption, load_kw, storage, step_s = CASES[case]
    expected, level_wh = by_vessim(generation, absorption, load_kw, storage, step_s)
    actual = by_process(tmp_path, generation, absorption, load_kw, storage)
    seconds = (actual.end_ms - actual.start_ms) / 1000
    pairs = {"curtailment": actual.surplus_wasted_kw, "grid": -actual.grid_import_kw}
    if storage:
        pairs["storage"] = actual.storage_kw
    for name, kilowatts in pairs.items():
        joules = expected[name].sum() * step_s
        assert joules != 0
        assert (kilowatts * seconds).sum() * 1000 == pytest.approx(joules, rel=1e-12)
    assert actual.stored_kwh.iloc[-1] * 1000 == pytest.approx(level_wh, rel=1e-12)
    for row in actual.itertuples():
        first, last = round(row.start_ms / (step_s * 1000)), round(row.end_ms / (step_s * 1000))
        inside = expected.iloc[first:last]
        assert len(inside) > 0
        assert inside.grid.to_numpy() == pytest.approx(-row.grid_import_kw * 1000, rel=1e-12, abs=1e-9)
        assert inside.curtailment.to_numpy() == pytest.approx(row.surplus_wasted_kw * 1000, rel=1e-12, abs=1e-9)


def test_energy_at_the_meter_is_energy_of_the_grid(tmp_path: Path) -> None:
    """Facility energy from states and their powers is what came through Vessim's resources."""
    phases = cluster(provisioning_delay_s=77, model_load_s=3, serialisation_s=2, pue=1.25, step_time_s=7)
    mci = [(0, 50), (1500, 500), (4500, 50)]
    generation = [(0, 9), (900, 2), (2700, 9), (5400, 0)]
    storage = {"capacity_kwh": 0.7, "c_rate": 1}
    sites = [
        site("a", tmp_path, mci=mci, generation=generation, storage=storage, cluster=phases),
        site("b", tmp_path, mci=50, generation=generation, absorption=1.5),
    ]
    made = built(world(*sites, hours=2, policy=below(release_delay_s=60)))
    tables = made.tables()[HEADLINE]
    for spec in made.plan.sites:
        own = tables.intervals[tables.intervals.site == spec.name]
        hours = (own.end_s - own.start_s) / 3600
        powers = {phase: spec.cluster.pue * spec.cluster.it_kw(phase) for phase in set(own.phase)}
        meter = sum(powers[phase] * length for phase, length in zip(own.phase, hours, strict=True))
        through = own.surplus_used_kw - own.storage_kw.clip(upper=0) + own.grid_import_kw
        assert meter > 1
        assert tables.summary["sites"][spec.name]["energy_kwh"] == pytest.approx(meter, rel=1e-12)
        assert (through * hours).sum() == pytest.approx(meter, rel=1e-12)


# --- Flower --------------------------------------------------------------------------------------------------------

TINY = {"type": "gpt", "layers": 1, "width": 16, "batch_sequences": 2, "sequence_bytes": 16, "evaluation_bytes": 64}
STRATEGIES = [
    {"type": "fedavg"},
    {"type": "fedavgm", "server_momentum": 0.9},
    {"type": "fedadam", "eta": 0.05},
    {"type": "diloco"},
]
ROUNDS = 4


def always_on(strategy: dict[str, Any]) -> dict[str, Any]:
    """Three sites of unlike speed, always on, for exactly four rounds of ten minutes."""
    sites = [site(name, cluster=cluster(step_time_s=step)) for name, step in (("c", 10), ("a", 20), ("b", 30))]
    training = {"learner": TINY, "strategy": strategy, "stride": 10}
    budget = {"total_tokens": 100 * ROUNDS * (60 + 30 + 20)}
    return world(*sites, hours=1, training=training, workload=budget)


def by_flower(scenario: dict[str, Any]) -> dict[str, np.ndarray]:
    """The final arrays of the same world, its rounds driven by Flower's own `Strategy.start`."""
    checked = load(scenario)
    made = World(checked, next(plans(checked)))
    made.env.process(made.controller.run())
    made.env.run(until=1)
    learner = made.learner
    result = learner.strategy.start(grid=learner.grid, initial_arrays=learner.arrays, num_rounds=ROUNDS)
    return {name: array.numpy() for name, array in result.arrays.items()}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=[strategy["type"] for strategy in STRATEGIES])
def test_rounds_are_those_of_flower(strategy: dict[str, Any]) -> None:
    """After four rounds the arrays are those of Flower's `Strategy.start` on the same grid, bit by bit."""
    made = built(always_on(strategy))
    actual = made.weights()
    initial = build_learner(made.scenario, made.sites, False).arrays
    expected = by_flower(always_on(strategy))
    assert actual.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(actual[name], expected[name])
        assert not np.array_equal(actual[name], initial[name].numpy())
    assert made.federation.number == ROUNDS
    assert made.federation.site_steps == {"c": 240, "a": 120, "b": 80}
