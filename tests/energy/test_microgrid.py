"""One site's power supply, stepped by hand: order of supply, limits of storage, power that is short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from worlds import START, cluster, played, powers, site, world

from curtailsim.energy.microgrid import SiteMicrogrid
from curtailsim.energy.signals import site_signals
from curtailsim.scenario import Site

HOUR_MS = 3_600_000


def microgrid(folder: Path | None = None, limit_kw: float | None = None, **parts: Any) -> SiteMicrogrid:
    """The microgrid of a site, for an hour."""
    spec = Site.model_validate(site(folder=folder, **parts))
    return SiteMicrogrid(spec.name, site_signals(spec, START, HOUR_MS), spec.storage, limit_kw, HOUR_MS)


def rows(grid: SiteMicrogrid, *names: str) -> list[tuple[float, ...]]:
    """Columns of the ledger, row by row."""
    columns = grid.columns
    return list(zip(*(columns[name] for name in ("start_ms", "end_ms", *names)), strict=True))


def test_surplus_first_then_storage_then_grid() -> None:
    """5 kW of load: 2 from surplus, 1 from a battery with that limit, 2 from the grid."""
    storage = {"capacity_kwh": 2, "initial_soc": 1, "c_rate": 0.5}
    grid = microgrid(generation=3, absorption=1, storage=storage)
    grid.set_load(0, "training", "training", 5.0)
    grid.close()
    assert rows(grid, "surplus_used_kw", "storage_kw", "grid_import_kw", "surplus_wasted_kw") == [
        (0, HOUR_MS, 2, -1, 2, 0)
    ]


def test_the_grid_takes_its_share_whatever_the_site_does(tmp_path: Path) -> None:
    """Absorption comes before the cluster: only the rest is surplus, and storage is charged from that alone."""
    grid = microgrid(tmp_path, generation=[(0, 2), (1800, 6)], absorption=4, storage={"capacity_kwh": 5})
    grid.set_load(0, "training", "training", 1.5)
    grid.close()
    assert rows(grid, "surplus_kw", "surplus_used_kw", "storage_kw", "grid_import_kw") == [
        (0, 1_800_000, 0, 0, 0, 1.5),
        (1_800_000, HOUR_MS, 2, 1.5, 0.5, 0),
    ]


def test_load_changes_between_whole_seconds() -> None:
    """Intervals end on the millisecond, and the ledger tiles the hour."""
    grid = microgrid()
    grid.set_load(1, "training", "training", 4.0)
    grid.set_load(1500, "off", "off", 0.0)
    grid.close()
    assert rows(grid, "facility_kw") == [(0, 1, 0), (1, 1500, 4), (1500, HOUR_MS, 0)]


def test_battery_that_is_full_is_a_change_point() -> None:
    """3 kW into 1 kWh with 1/4 in it: full after 900 s, to the millisecond."""
    grid = microgrid(generation=3, storage={"capacity_kwh": 1, "initial_soc": 0.25})
    assert grid.wake_ms == 900_000
    grid.close()
    assert rows(grid, "storage_kw", "stored_kwh", "surplus_wasted_kw") == [
        (0, 900_000, 3, 1, 0),
        (900_000, HOUR_MS, 0, 1, 3),
    ]


def test_less_than_a_millisecond_of_energy_is_spread() -> None:
    """7 kW fill 0.1 kWh in 51,428.57 ms: no interval is shorter than a millisecond, and no energy is lost."""
    grid = microgrid(generation=7, storage={"capacity_kwh": 0.1})
    grid.close()
    table = rows(grid, "surplus_stored_kw", "stored_kwh")
    assert [(start, end) for start, end, _, _ in table] == [(0, 51_428), (51_428, HOUR_MS)]
    assert sum((end - start) * kw / 3.6e6 for start, end, kw, _ in table) == pytest.approx(0.1, rel=1e-12)
    assert table[-1][3] == pytest.approx(0.1, rel=1e-12)


def test_supply_is_surplus_battery_and_import() -> None:
    """What the site can draw for a second: 2 kW of surplus, 1 kW of battery, 0.5 kW of import."""
    storage = {"capacity_kwh": 2, "initial_soc": 1, "c_rate": 0.5}
    assert microgrid(limit_kw=0.5, generation=2, storage=storage).supply_kw(0) == pytest.approx(3.5)
    assert microgrid(generation=2).supply_kw(0) == float("inf")
    assert microgrid(limit_kw=3).supply_kw(0) == 3


def test_owner_is_told_when_power_is_short(tmp_path: Path) -> None:
    """At the instant the surplus falls below the load the owner is told, and the ledger balances all the same."""
    grid = microgrid(tmp_path, limit_kw=1, generation=[(0, 4), (1800, 2)])
    told = []

    def go_off() -> None:
        told.append(grid.wake_ms)

    grid.on_short = go_off
    grid.set_load(0, "training", "training", 5.0)
    assert told == []
    grid.advance(1_800_000)
    assert len(told) == 1
    grid.set_load(1_800_000, "off", "off", 0.0)
    grid.close()
    assert rows(grid, "facility_kw", "grid_import_kw") == [(0, 1_800_000, 5, 1), (1_800_000, HOUR_MS, 0, 0)]


@pytest.mark.parametrize(("limit_kw", "surplus_kw"), [(0.1, 0.2), (0.0, 0.3)], ids=["import", "islanded"])
def test_load_exactly_at_the_limit_is_not_short(limit_kw: float, surplus_kw: float) -> None:
    """Surplus plus import limit carry exactly their sum, also where 0.1 + 0.2 is rounded up."""
    grid = microgrid(limit_kw=limit_kw, generation=surplus_kw)
    grid.on_short = lambda: pytest.fail("told that power is short")
    grid.set_load(0, "training", "training", 0.1 + 0.2)
    grid.close()
    assert rows(grid, "facility_kw") == [(0, HOUR_MS, 0.1 + 0.2)]


def test_rounding_does_not_keep_a_site_off() -> None:
    """A cluster of 0.3 kW starts where surplus and import limit are 0.1 and 0.2 kW, or 0.3 kW of surplus."""
    small = cluster(idle_kw=0.1, train_kw=0.1 + 0.2)
    for parts in ({"generation": 0.2, "grid_import_limit_kw": 0.1}, {"generation": 0.3, "grid_import_limit_kw": 0}):
        tables = played(world(site(cluster=small, **parts)))
        assert powers(tables) == [(0, 3600, "training", 0.1 + 0.2)]
