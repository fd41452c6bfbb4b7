"""Layouts, memory, step time and power of language-model training."""

from __future__ import annotations

import pytest

from curtailsim.parallelism import (
    ACCELERATORS,
    SHAPES,
    Anchor,
    Catalogue,
    Layout,
    Measurement,
    calibration,
    enumerate_modes,
    memory_bytes,
    parallel_mode,
    pareto_front,
    rms_log_error,
    step_time,
    with_measurements,
)

A100 = ACCELERATORS["A100-80G"]
POOL = 2048
TASKS = ("Llama-2-7B", "Llama-2-70B")


@pytest.fixture(scope="module")
def catalogues() -> dict[str, Catalogue]:
    """The catalogues of both tasks on the reference pool."""
    return {name: enumerate_modes(SHAPES[name], A100, POOL) for name in TASKS}


@pytest.mark.parametrize(
    ("name", "parameters", "flops_per_token"),
    [
        ("Llama-2-7B", 6_738_415_616, 4.608649e10),
        ("Llama-2-70B", 68_976_648_192, 4.444992e11),
        ("Llama-3.1-405B", 405_853_388_800, None),
        ("GPT-175B", 174.6e9, None),
    ],
)
def test_sizes_are_the_published_ones(name: str, parameters: float, flops_per_token: float | None) -> None:
    """Parameters are exact for Llama and close for GPT, whose position embeddings and biases are left out."""
    tolerance = 0.01 if name.startswith("GPT") else 0
    assert SHAPES[name].parameters == pytest.approx(parameters, rel=tolerance, abs=0)
    if flops_per_token is not None:
        assert SHAPES[name].flops_per_token == pytest.approx(flops_per_token, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "feasible", "too_large", "out_of_memory", "on_the_front"),
    [("Llama-2-7B", 135, 14, 1, 14), ("Llama-2-70B", 111, 14, 57, 17)],
)
def test_counts(
    catalogues: dict[str, Catalogue],
    name: str,
    feasible: int,
    too_large: int,
    out_of_memory: int,
    on_the_front: int,
) -> None:
    """The reference rules leave 135 and 111 of 280 layouts, 14 and 17 after pruning."""
    catalogue = catalogues[name]
    assert len(catalogue.modes) + len(catalogue.rejections) == 280
    assert len(catalogue.modes) == feasible
    assert catalogue.rejected("capacity") == too_large
    assert catalogue.rejected("memory") == out_of_memory
    assert len(pareto_front(catalogue.modes)) == on_the_front


@pytest.mark.parametrize(
    ("name", "layout", "tokens_per_s", "facility_mw", "increment_mw", "joules_per_token", "mfu"),
    [
        ("Llama-2-7B", Layout(2, 2, 64), 842_295.4, 0.186125, 0.124685, 0.220973, 0.486),
        ("Llama-2-7B", Layout(2, 4, 64), 1_499_186.9, 0.354271, 0.231391, 0.236309, 0.433),
        ("Llama-2-70B", Layout(4, 4, 64), 312_264.2, 0.709839, 0.464079, 2.273201, 0.434),
        ("Llama-2-70B", Layout(8, 4, 64), 559_197.2, 1.405107, 0.913587, 2.512721, 0.389),
    ],
)
def test_golden_modes(
    catalogues: dict[str, Catalogue],
    name: str,
    layout: Layout,
    tokens_per_s: float,
    facility_mw: float,
    increment_mw: float,
    joules_per_token: float,
    mfu: float,
) -> None:
    """Speed and power of four modes stay what they were when the dispatch results were made."""
    mode = next(mode for mode in catalogues[name].modes if mode.layout == layout)
    assert mode.tokens_per_s == pytest.approx(tokens_per_s, rel=1e-5)
    assert mode.facility_mw == pytest.approx(facility_mw, rel=1e-5)
    assert mode.training_increment_mw == pytest.approx(increment_mw, rel=1e-5)
    assert mode.joules_per_token == pytest.approx(joules_per_token, rel=1e-5)
    assert mode.mfu == pytest.approx(mfu, abs=5e-4)


@pytest.mark.parametrize(
    ("shape", "layout", "rule", "reason"),
    [
        ("Llama-2-7B", Layout(16, 8, 64), "capacity", "needs 8,192 GPUs, the pool has 2,048"),
        ("Llama-2-7B", Layout(1, 3, 1), "layers", "32 layers cannot be divided by 3 pipeline stages"),
        ("Llama-2-7B", Layout(1, 1, 1), "memory", "needs 108.9 GB per GPU with full recomputation, 72.0 usable"),
        ("GPT-1.7B", Layout(16, 1, 1), "heads", "24 attention heads cannot be divided by 16 tensor-parallel GPUs"),
        (
            "GPT-22B",
            Layout(8, 1, 8),
            "batch",
            "4 sequences of the global batch cannot be divided by 8 (replicas × micro-batch)",
        ),
    ],
)
def test_every_rejection_says_why(shape: str, layout: Layout, rule: str, reason: str) -> None:
    """A rejected layout names the rule it breaks, with both numbers."""
    catalogue = enumerate_modes(
        SHAPES[shape], A100, POOL, tensor=[layout.tensor], pipeline=[layout.pipeline], data=[layout.data]
    )
    assert [(r.rule, r.reason) for r in catalogue.rejections] == [(rule, reason)]
    assert catalogue.modes == ()


def test_micro_batches_are_part_of_the_layout() -> None:
    """Larger micro-batches are listed under their own label and must divide the batch of a replica."""
    catalogue = enumerate_modes(
        SHAPES["Llama-2-7B"], A100, POOL, tensor=[8], pipeline=[1], data=[64], micro_batch=[1, 2, 3]
    )
    assert [mode.label for mode in catalogue.modes] == ["tp8-pp1-dp64", "tp8-pp1-dp64-mb2"]
    assert [rejection.rule for rejection in catalogue.rejections] == ["batch"]


def test_one_gpu_has_no_traffic() -> None:
    """Without parallelism a step is computation, optimizer and overhead."""
    time = step_time(SHAPES["Llama-2-7B"], A100, Layout(1, 1, 1))
    assert (time.tensor_s, time.pipeline_s, time.bubble_s, time.data_s) == (0, 0, 0, 0)
    assert time.total_s == time.compute_s + time.optimizer_s + time.overhead_s


@pytest.mark.parametrize(
    ("layout", "term"),
    [(Layout(2, 1, 1), "tensor_s"), (Layout(1, 2, 1), "bubble_s"), (Layout(1, 1, 2), "data_s")],
    ids=["tensor", "pipeline", "data"],
)
def test_each_dimension_has_its_price(layout: Layout, term: str) -> None:
    """Every kind of parallelism shortens the step by less than the GPUs it takes."""
    shape = SHAPES["Llama-2-7B"]
    alone, split = step_time(shape, A100, Layout(1, 1, 1)), step_time(shape, A100, layout)
    assert getattr(split, term) > 0
    assert alone.total_s / 2 < split.total_s < alone.total_s


def test_sharding_saves_memory() -> None:
    """More data parallelism shards the optimizer state; full recomputation keeps fewer activations."""
    shape = SHAPES["Llama-2-70B"]
    narrow, wide = Layout(8, 4, 1), Layout(8, 4, 64)
    assert memory_bytes(shape, wide, "full") < memory_bytes(shape, narrow, "full")
    assert memory_bytes(shape, wide, "full") < memory_bytes(shape, wide, "selective")


def test_pool_power() -> None:
    """2,048 A100 at a PUE of 1.2 are rated at 1.573 MW and draw 0.492 MW when nothing runs."""
    assert A100.rated_mw(POOL, 1.2) == pytest.approx(1.572864)
    assert A100.idle_mw(POOL, 1.2) == pytest.approx(0.49152)
    assert A100.parked().idle_mw(POOL, 1.2) == 0


def test_parked_nodes_move_power_from_the_pool_to_the_modes() -> None:
    """Where free nodes are off, a mode's increment is all of its power."""
    mode = parallel_mode(SHAPES["Llama-2-7B"], A100.parked(), Layout(2, 2, 64))
    assert mode.training_increment_mw == mode.facility_mw
    assert mode.restoring_increment_mw == mode.restoring_mw


def test_no_mode_on_the_front_is_beaten(catalogues: dict[str, Catalogue]) -> None:
    """Each pruned mode is beaten by one on the front, none on the front by another."""
    for catalogue in catalogues.values():
        front = pareto_front(catalogue.modes)
        assert pareto_front(front) == front
        for mode in catalogue.modes:
            assert any(
                other.gpus <= mode.gpus
                and other.joules_per_token <= mode.joules_per_token
                and other.tokens_per_s >= mode.tokens_per_s
                for other in front
            )


def test_measurements_replace_the_model(catalogues: dict[str, Catalogue]) -> None:
    """A measured mode has the measured speed and power; the others stay."""
    front = pareto_front(catalogues["Llama-2-7B"].modes)
    measured = Measurement(mode=front[0].label, tokens_per_s=front[0].tokens_per_s / 2, facility_mw=0.5)
    first, *rest = with_measurements(front, [measured])
    assert (first.facility_mw, first.mfu) == (0.5, pytest.approx(front[0].mfu / 2))
    assert tuple(rest) == front[1:]


@pytest.mark.parametrize("anchor", calibration(), ids=lambda anchor: anchor.run)
def test_each_published_run_is_met(anchor: Anchor) -> None:
    """The model is within a quarter of every published run."""
    assert abs(anchor.relative_error) <= 0.25


def test_calibration_as_a_whole() -> None:
    """17 runs with an RMS error of at most 12 %, most of them within 10 %."""
    anchors = calibration()
    assert len(anchors) == 17
    assert rms_log_error(anchors) <= 0.12
    assert sum(abs(anchor.relative_error) < 0.1 for anchor in anchors) == 13
