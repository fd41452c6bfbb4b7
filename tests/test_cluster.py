"""Step time and power of a virtual cluster, against figures computed by hand."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from worlds import cluster, played, site, world

from curtailsim.cluster import ACCELERATORS, Cluster, Network, Workload
from curtailsim.scenario import load
from curtailsim.spec import ScenarioError


def test_step_time_from_flops() -> None:
    """6 x 1e9 parameters x 500,000 tokens = 3e15 FLOP on 4 x 312 TFLOP/s at 40 %: 6.0096 s."""
    workload = Workload(parameters=1e9, tokens_per_step=500_000)
    assert workload.flops_per_step == 3e15
    step_s = Cluster(accelerator="A100-80G", count=4, mfu=0.4).step_s(workload)
    assert step_s == pytest.approx(6.009615384615385, rel=1e-12)
    assert Cluster(accelerator="A100-80G", count=8, mfu=0.4).step_s(workload) == pytest.approx(step_s / 2, rel=1e-12)


def test_step_time_of_the_published_run() -> None:
    """3.49 GFLOP per token x 524,288 tokens at 53.6 % of 4 x A100 are the 2.735 s that were measured."""
    workload = Workload(parameters=561e6, tokens_per_step=524_288, flops_per_token=3.49e9)
    assert Cluster(count=4, mfu=0.536).step_s(workload) == pytest.approx(2.735, rel=2e-3)
    assert Cluster(count=4, step_time_s=2.735).step_s(workload) == 2.735


def test_steps_below_the_clock_take_a_millisecond() -> None:
    """A step is never shorter than the clock can tell."""
    assert Cluster(count=8, mfu=1.0).step_s(Workload(parameters=1, tokens_per_step=1)) == 0.001


def test_budget_in_steps() -> None:
    """A last, partial step is not taken."""
    assert Workload(parameters=1, tokens_per_step=100, total_tokens=1099).total_steps == 10
    assert Workload(parameters=1, tokens_per_step=100).total_steps is None


def test_power_of_every_phase() -> None:
    """PUE times what is given for a phase, or the idle power; the table where nothing is given."""
    given = Cluster(
        count=4, mfu=0.4, pue=1.25, idle_kw=0.4, train_kw=2.0, model_load_kw=0.8, network=Network(power_kw=0.6)
    )
    assert [given.facility_kw(phase) for phase in ("off", "provisioning", "waiting", "serialisation")] == [
        0,
        0.5,
        0.5,
        0.5,
    ]
    assert [given.facility_kw(phase) for phase in ("training", "model_load", "transfer")] == [2.5, 1.0, 0.75]
    assert given.peak_kw == 2.5
    table = Cluster(accelerator="H100", count=8, mfu=0.4)
    assert (table.facility_kw("training"), table.facility_kw("waiting")) == pytest.approx((5.6, 0.88))
    assert Cluster(count=1, mfu=0.4, idle_kw=0.0, provisioning_kw=0.0).facility_kw("provisioning") == 0.0


def test_transfer_time() -> None:
    """561e6 parameters of 2 bytes at 100 Mbit/s: 1.122 GB in 89.76 s; no rate, no time."""
    workload = Workload(parameters=561e6, tokens_per_step=1)
    assert workload.model_bytes == 1.122e9
    assert Network(rate_mbit_per_s=100).transfer_s(workload.model_bytes) == pytest.approx(89.76, rel=1e-12)
    assert Network().transfer_s(workload.model_bytes) == 0.0


@pytest.mark.parametrize("name", ACCELERATORS)
def test_accelerators_have_sources(name: str) -> None:
    """Every figure names where it comes from, and is of a plausible size: 0.1 to 5 PFLOP/s, idle below training."""
    accelerator = ACCELERATORS[name]
    assert "data sheet" in accelerator.source
    assert 1e14 < accelerator.peak_flops < 5e15
    assert 0 < accelerator.idle_w < accelerator.train_w < 2000


def test_site_draws_what_its_table_says() -> None:
    """An hour on 8 H100 at PUE 1.2: 8 x 700 W x 1.2 = 6.72 kWh."""
    made = {"accelerator": "H100", "count": 8, "step_time_s": 10, "pue": 1.2}
    assert played(world(site(cluster=made))).summary["energy_kwh"] == pytest.approx(6.72, rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pue": 0.9}, "sites[0].cluster.pue  must be at least 1 (got 0.9)"),
        ({"accelerator": "A100-8G"}, "'A100-8G' is unknown; did you mean 'A100-80G'?"),
        ({"mfu": 0.4}, "give either mfu or step_time_s"),
        ({"step_time_s": 0}, "sites[0].cluster.step_time_s  must be at least 0.001 (got 0)"),
        ({"count": 0}, "sites[0].cluster.count  must be above 0 (got 0)"),
        ({"network": {"energy_kwh_per_gb": 0.1}}, "energy_kwh_per_gb needs rate_mbit_per_s"),
    ],
    ids=["pue", "accelerator", "both", "step_time", "count", "network"],
)
def test_mistakes_are_explained(changes: dict[str, Any], message: str) -> None:
    """One clear message each."""
    with pytest.raises(ScenarioError) as caught:
        load(world(site(cluster=cluster(**changes))))
    assert message in str(caught.value)


def test_cluster_is_frozen() -> None:
    """Nothing changes a cluster once it is checked."""
    with pytest.raises(ValidationError):
        Cluster(count=1, mfu=0.4).count = 2  # type: ignore[misc]
