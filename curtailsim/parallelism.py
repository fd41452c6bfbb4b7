"""How fast, how large and how power-hungry is language-model training in each (TP, PP, DP) layout?

A layout splits one replica over `tensor` × `pipeline` accelerators and repeats it `data` times.  From a model's shape,
an accelerator and a pool this module enumerates the layouts, says why each unusable one is rejected, and gives memory,
step time, throughput, power and energy per token of the others.  `calibration()` compares the step-time model with
published training runs.

The step-time model is a roofline with four fitted numbers (kernel efficiency and its half-saturation width, hidden
shares of tensor- and data-parallel traffic).  Every other number is a data sheet's, or an assumption named as such.

References:
    Shoeybi et al., Megatron-LM, 2019. arXiv:1909.08053
    Narayanan et al., Efficient large-scale language model training on GPU clusters, 2021. arXiv:2104.04473
    Korthikanti et al., Reducing activation recomputation in large transformer models, 2022. arXiv:2205.05198
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from curtailsim.spec import Spec

Recompute = Literal["selective", "full"]


# --------------------------------------------------------------------------------------------------- model shapes


class ModelShape(Spec):
    """Everything about a decoder-only transformer that sets its cost.

    Args:
        name: What tables and plots call it.
        layers: Transformer blocks.
        hidden: Width of the residual stream.
        heads: Attention heads.
        kv_heads: Key/value heads (fewer than `heads` with grouped-query attention).
        mlp: Inner width of the MLP.
        vocabulary: Tokens in the vocabulary; input and output embeddings are not tied.
        sequence: Tokens per sequence.
        global_batch: Sequences per optimizer step, the same in every layout.
        gated_mlp: Three MLP matrices (SwiGLU) rather than two.
    """

    name: str
    layers: PositiveInt
    hidden: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    mlp: PositiveInt
    vocabulary: PositiveInt
    sequence: PositiveInt
    global_batch: PositiveInt
    gated_mlp: bool = True

    @property
    def layer_parameters(self) -> int:
        """Parameters of one block: attention, MLP and its two norms."""
        attention = 2 * self.hidden**2 + 2 * self.hidden * (self.hidden * self.kv_heads // self.heads)
        matrices = 3 if self.gated_mlp else 2
        return attention + matrices * self.hidden * self.mlp + 2 * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        return self.layers * self.layer_parameters + 2 * self.vocabulary * self.hidden + self.hidden

    @property
    def flops_per_token(self) -> int:
        """Model FLOPs per token, forward and backward, attention not halved for causality [FLOP].

        References:
            Chowdhery et al., PaLM, 2022, appendix B. arXiv:2204.02311
        """
        matmul = self.layers * self.layer_parameters + self.vocabulary * self.hidden
        return 6 * matmul + 12 * self.layers * self.sequence * self.hidden

    @property
    def tokens_per_step(self) -> int:
        """Tokens in one global batch."""
        return self.global_batch * self.sequence


def _llama(name: str, layers: int, hidden: int, heads: int, kv_heads: int, mlp: int) -> ModelShape:
    """A model of the Llama-2 family at its published batch of 4 Mi tokens."""
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        mlp=mlp,
        vocabulary=32_000,
        sequence=4096,
        global_batch=1024,
    )


def _gpt(name: str, layers: int, hidden: int, heads: int, global_batch: int) -> ModelShape:
    """A GPT of the Megatron-LM papers: plain MLP of 4 × hidden, 51,200 tokens, sequences of 2,048."""
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        mlp=4 * hidden,
        vocabulary=51_200,
        sequence=2048,
        global_batch=global_batch,
        gated_mlp=False,
    )


# Llama 2: Touvron et al., 2023, arXiv:2307.09288; the 34B shape is that of Code Llama, arXiv:2308.12950.
# Llama 3.1: Grattafiori et al., 2024, arXiv:2407.21783, table 3.
# GPT shapes and batches: arXiv:2104.04473, table 1, and arXiv:2205.05198, table 3.
SHAPES: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        _llama("Llama-2-7B", 32, 4096, 32, 32, 11_008),
        _llama("Llama-2-13B", 40, 5120, 40, 40, 13_824),
        _llama("Llama-2-34B", 48, 8192, 64, 8, 22_016),
        _llama("Llama-2-70B", 80, 8192, 64, 8, 28_672),
        ModelShape(
            name="Llama-3.1-405B",
            layers=126,
            hidden=16_384,
            heads=128,
            kv_heads=8,
            mlp=53_248,
            vocabulary=128_256,
            sequence=8192,
            global_batch=2048,
        ),
        _gpt("GPT-1.7B", 24, 2304, 24, 512),
        _gpt("GPT-7.5B", 36, 4096, 32, 512),
        _gpt("GPT-22B", 48, 6144, 64, 4),
        _gpt("GPT-39B", 48, 8192, 64, 1536),
        _gpt("GPT-145B", 80, 12_288, 96, 2304),
        _gpt("GPT-175B", 96, 12_288, 96, 1536),
        _gpt("GPT-530B", 105, 20_480, 128, 280),
        _gpt("GPT-1T", 128, 25_600, 160, 3072),
    )
}


# --------------------------------------------------------------------------------------------------- accelerators


class Accelerator(Spec):
    """One GPU with its share of host and network.

    Args:
        name: What tables and plots call it.
        peak_flops: Dense BF16 peak. [FLOP/s]
        memory_bytes: Device memory. [B]
        nvlink_bytes_per_s: Bandwidth inside a node, per direction. [B/s]
        network_bytes_per_s: Bandwidth between nodes per GPU, per direction. [B/s]
        hbm_bytes_per_s: Device memory bandwidth. [B/s]
        kernel_efficiency: Share of peak that very wide matrix products reach (fitted, see `calibration`). [-]
        max_w: Board power while computing. [W]
        waiting_w: Board power while allocated but waiting: communication, pipeline bubble, restore. [W]
        host_idle_w: Host power per allocated GPU without computing. [W]
        host_dynamic_w: Further host power per GPU at full compute. [W]
        unallocated_w: Board and host power of a GPU that no task holds. [W]
    """

    name: str
    peak_flops: PositiveFloat
    memory_bytes: PositiveFloat
    nvlink_bytes_per_s: PositiveFloat
    network_bytes_per_s: PositiveFloat
    hbm_bytes_per_s: PositiveFloat
    kernel_efficiency: float = Field(gt=0, le=1)
    max_w: PositiveFloat
    waiting_w: PositiveFloat
    host_idle_w: NonNegativeFloat
    host_dynamic_w: NonNegativeFloat
    unallocated_w: NonNegativeFloat

    def parked(self, unallocated_w: float = 0.0) -> Accelerator:
        """The same accelerator where nodes that no task holds are switched off, or kept at `unallocated_w` [W]."""
        return self.model_copy(update={"unallocated_w": unallocated_w})

    def idle_mw(self, gpus: int, pue: float) -> float:
        """Facility power of a pool in which nothing runs [MW]."""
        return pue * gpus * self.unallocated_w / 1e6

    def rated_mw(self, gpus: int, pue: float) -> float:
        """Facility power of a pool in which every GPU computes at its limit [MW]."""
        return pue * gpus * (self.max_w + self.host_idle_w + self.host_dynamic_w) / 1e6


# Peak, memory, links and board power: NVIDIA data sheets of the SXM boards (A100 80GB: NVLink 600 GB/s and HDR 200 Gb/s
# in both directions together and per port; H100: 900 GB/s and NDR 400 Gb/s).  The other powers are assumptions inside
# the ratings of the eight-GPU servers (6.5 kW and 10.2 kW); an unallocated board draws 60 W (A100) or 110 W (H100).
ACCELERATORS: dict[str, Accelerator] = {
    accelerator.name: accelerator
    for accelerator in (
        Accelerator(
            name="A100-80G",
            peak_flops=312e12,
            memory_bytes=80e9,
            nvlink_bytes_per_s=300e9,
            network_bytes_per_s=25e9,
            hbm_bytes_per_s=2.0e12,
            kernel_efficiency=0.62,
            max_w=400,
            waiting_w=200,
            host_idle_w=140,
            host_dynamic_w=100,
            unallocated_w=60 + 140,
        ),
        Accelerator(
            name="H100",
            peak_flops=989e12,
            memory_bytes=80e9,
            nvlink_bytes_per_s=450e9,
            network_bytes_per_s=50e9,
            hbm_bytes_per_s=3.35e12,
            kernel_efficiency=0.58,
            max_w=700,
            waiting_w=350,
            host_idle_w=200,
            host_dynamic_w=150,
            unallocated_w=110 + 200,
        ),
    )
}


class Performance(Spec):
    """Constants of the step-time and memory model.

    Args:
        half_width: Columns of a tensor-parallel shard at which kernels reach half of `kernel_efficiency` (fitted).
        achieved_bandwidth: Achieved over nominal bandwidth of every link. [-]
        tensor_overlap: Share of tensor-parallel traffic hidden behind computation (fitted). [-]
        data_overlap: Share of gradient traffic hidden behind computation (fitted). [-]
        step_overhead_s: Fixed time per optimizer step: data, logging, launch. [s]
        interleave: Virtual pipeline stages per GPU.
        gradient_bytes: Bytes per gradient element: 2 for bf16, 4 for fp32. [B]
        usable_memory: Share of device memory a layout may fill; the rest is fragmentation and buffers. [-]
        gpus_per_node: GPUs joined by NVLink.
    """

    half_width: NonNegativeFloat = 200.0
    achieved_bandwidth: float = Field(default=0.8, gt=0, le=1)
    tensor_overlap: float = Field(default=0.5, ge=0, le=1)
    data_overlap: float = Field(default=0.5, ge=0, le=1)
    step_overhead_s: NonNegativeFloat = 0.02
    interleave: PositiveInt = 1
    gradient_bytes: PositiveInt = 2
    usable_memory: float = Field(default=0.9, gt=0, le=1)
    gpus_per_node: PositiveInt = 8


CALIBRATED = Performance()
"""The constants that `calibration` compares with published runs."""


# -------------------------------------------------------------------------------------------- layout, memory, time


@dataclass(frozen=True)
class Layout:
    """A 3D-parallel layout with its micro-batch in sequences."""

    tensor: int
    pipeline: int
    data: int
    micro_batch: int = 1

    @property
    def gpus(self) -> int:
        """GPUs the layout holds."""
        return self.tensor * self.pipeline * self.data

    @property
    def label(self) -> str:
        """Short name, such as tp4-pp8-dp64."""
        suffix = f"-mb{self.micro_batch}" if self.micro_batch > 1 else ""
        return f"tp{self.tensor}-pp{self.pipeline}-dp{self.data}{suffix}"


@dataclass(frozen=True)
class _RecomputeCost:
    """What recomputing activations in the backward pass costs and saves."""

    flops: float  # computed over model FLOPs
    all_reduces: int  # tensor-parallel all-reduces per layer, forward and backward
    activation_bytes: float  # kept per token, hidden unit and layer


# Activation bytes: arXiv:2205.05198, section 4 (34 with selective recomputation, 2 for the layer input alone).  Full
# recomputation repeats the forward pass: a third more FLOPs and two more all-reduces.
_RECOMPUTE: dict[Recompute, _RecomputeCost] = {
    "selective": _RecomputeCost(flops=1.03, all_reduces=4, activation_bytes=34),
    "full": _RecomputeCost(flops=4 / 3, all_reduces=6, activation_bytes=2),
}


def memory_bytes(
    shape: ModelShape, layout: Layout, recompute: Recompute, performance: Performance = CALIBRATED
) -> float:
    """Memory on the fullest GPU, which is on the first stage of a one-forward-one-backward pipeline [B].

    Weights in bf16, gradients, an fp32 optimizer state of 12 bytes sharded over the data-parallel group (ZeRO-1), and
    the activations of as many micro-batches as the pipeline is deep.

    References:
        Rajbhandari et al., ZeRO, 2019. arXiv:1910.02054; activations: arXiv:2205.05198, section 4
    """
    layers = shape.layers // layout.pipeline
    embeddings = 2 if layout.pipeline == 1 else 1  # input and output embedding share a GPU only without a pipeline
    parameters = (layers * shape.layer_parameters + embeddings * shape.vocabulary * shape.hidden) / layout.tensor
    in_flight = min(layout.pipeline, _micro_batches(shape, layout))
    per_layer = _RECOMPUTE[recompute].activation_bytes * shape.sequence * layout.micro_batch * shape.hidden
    activations = in_flight * layers * per_layer / layout.tensor
    return parameters * (2 + performance.gradient_bytes + 12 / layout.data) + activations


def _micro_batches(shape: ModelShape, layout: Layout) -> int:
    """Micro-batches each pipeline works through per optimizer step."""
    return max(1, shape.global_batch // (layout.data * layout.micro_batch))


@dataclass(frozen=True)
class StepTime:
    """One optimizer step, by cause [s]."""

    compute_s: float
    tensor_s: float
    pipeline_s: float
    bubble_s: float
    data_s: float
    optimizer_s: float
    overhead_s: float

    @property
    def total_s(self) -> float:
        """Length of the step [s]."""
        traffic_s = self.tensor_s + self.pipeline_s + self.data_s
        return self.compute_s + traffic_s + self.bubble_s + self.optimizer_s + self.overhead_s

    @property
    def compute_share(self) -> float:
        """Share of the step in which kernels run [-]."""
        return self.compute_s / self.total_s


def step_time(
    shape: ModelShape,
    accelerator: Accelerator,
    layout: Layout,
    recompute: Recompute = "selective",
    performance: Performance = CALIBRATED,
) -> StepTime:
    """Time of one optimizer step under a one-forward-one-backward pipeline schedule.

    Kernels lose efficiency as tensor parallelism narrows them; ring all-reduces move 2 (n-1)/n of a tensor; the bubble
    lasts (pipeline - 1) / interleave micro-batches.

    References:
        Bubble and traffic: arXiv:2104.04473, sections 2 and 3; all-reduces per layer: arXiv:1909.08053, section 3
    """
    tp, pp, dp = layout.tensor, layout.pipeline, layout.data
    cost = _RECOMPUTE[recompute]
    tokens = shape.sequence * layout.micro_batch
    activation = 2 * tokens * shape.hidden  # bf16 bytes of one micro-batch at a layer's border

    def bandwidth(group: int) -> float:
        inside = group <= performance.gpus_per_node
        nominal = accelerator.nvlink_bytes_per_s if inside else accelerator.network_bytes_per_s
        return nominal * performance.achieved_bandwidth

    width = shape.hidden / tp
    efficiency = accelerator.kernel_efficiency * width / (width + performance.half_width)
    compute_s = shape.flops_per_token * tokens * cost.flops / (tp * pp * accelerator.peak_flops * efficiency)
    all_reduce_s = 2 * (tp - 1) / tp * activation / bandwidth(tp)
    tensor_s = shape.layers / pp * cost.all_reduces * all_reduce_s * (1 - performance.tensor_overlap)
    network = accelerator.network_bytes_per_s * performance.achieved_bandwidth
    pipeline_s = 2 * activation / tp / network if pp > 1 else 0.0

    shard = shape.parameters / (tp * pp)
    sharded_bytes = (2 + performance.gradient_bytes) * shard  # gradients out, weights back
    data_s = (dp - 1) / dp * sharded_bytes / bandwidth(tp * dp) * (1 - performance.data_overlap)
    count = _micro_batches(shape, layout)
    return StepTime(
        compute_s=count * compute_s,
        tensor_s=count * tensor_s,
        pipeline_s=count * pipeline_s,
        bubble_s=(pp - 1) / performance.interleave * (compute_s + tensor_s + pipeline_s),
        data_s=data_s,
        optimizer_s=16 * shard / dp / accelerator.hbm_bytes_per_s,
        overhead_s=performance.step_overhead_s,
    )


# ---------------------------------------------------------------------------------------------------------- modes


class ParallelMode(Spec):
    """A layout that works, with its speed and its power.

    Args:
        tensor: Tensor-parallel GPUs.
        pipeline: Pipeline stages.
        data: Data-parallel replicas.
        micro_batch: Sequences per micro-batch.
        recompute: Activations recomputed in the backward pass.
        memory_gb: Memory on the fullest GPU. [GB]
        tokens_per_s: Throughput. [tokens/s]
        mfu: Model FLOPs over peak FLOPs. [-]
        compute_share: Share of the time in which kernels run. [-]
        facility_mw: Facility power of its GPUs while training. [MW]
        restoring_mw: Facility power of its GPUs while a checkpoint is restored. [MW]
        unallocated_mw: Facility power of the same GPUs when no task holds them. [MW]
    """

    tensor: PositiveInt
    pipeline: PositiveInt
    data: PositiveInt
    micro_batch: PositiveInt
    recompute: Recompute
    memory_gb: PositiveFloat
    tokens_per_s: PositiveFloat
    mfu: PositiveFloat
    compute_share: PositiveFloat
    facility_mw: PositiveFloat
    restoring_mw: PositiveFloat
    unallocated_mw: NonNegativeFloat

    @property
    def layout(self) -> Layout:
        """The layout alone."""
        return Layout(self.tensor, self.pipeline, self.data, self.micro_batch)

    @property
    def gpus(self) -> int:
        """GPUs the mode holds."""
        return self.layout.gpus

    @property
    def label(self) -> str:
        """Short name, such as tp4-pp8-dp64."""
        return self.layout.label

    @property
    def joules_per_token(self) -> float:
        """Facility energy per token [J]."""
        return self.facility_mw * 1e6 / self.tokens_per_s

    @property
    def training_increment_mw(self) -> float:
        """Facility power above that of the idle pool while training [MW]."""
        return self.facility_mw - self.unallocated_mw

    @property
    def restoring_increment_mw(self) -> float:
        """Facility power above that of the idle pool while restoring [MW]."""
        return self.restoring_mw - self.unallocated_mw


def parallel_mode(
    shape: ModelShape,
    accelerator: Accelerator,
    layout: Layout,
    recompute: Recompute = "selective",
    *,
    pue: float = 1.2,
    performance: Performance = CALIBRATED,
) -> ParallelMode:
    """Speed and power of a layout.

    Board and host power rise linearly with the share of time in which kernels run.
    """
    time = step_time(shape, accelerator, layout, recompute, performance)
    tokens_per_s = shape.tokens_per_step / time.total_s
    share = time.compute_share
    board_w = accelerator.waiting_w + (accelerator.max_w - accelerator.waiting_w) * share
    host_w = accelerator.host_idle_w + accelerator.host_dynamic_w * share
    restoring_w = accelerator.waiting_w + accelerator.host_idle_w
    return ParallelMode(
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        data=layout.data,
        micro_batch=layout.micro_batch,
        recompute=recompute,
        memory_gb=memory_bytes(shape, layout, recompute, performance) / 1e9,
        tokens_per_s=tokens_per_s,
        mfu=shape.flops_per_token * tokens_per_s / (layout.gpus * accelerator.peak_flops),
        compute_share=share,
        facility_mw=pue * layout.gpus * (board_w + host_w) / 1e6,
        restoring_mw=pue * layout.gpus * restoring_w / 1e6,
        unallocated_mw=accelerator.idle_mw(layout.gpus, pue),
    )


Rule = Literal["capacity", "heads", "mlp", "layers", "batch", "memory"]


@dataclass(frozen=True)
class Rejection:
    """Why a layout cannot be used: the first rule it breaks, with its numbers."""

    layout: Layout
    rule: Rule
    reason: str


@dataclass(frozen=True)
class Catalogue:
    """The usable modes of a model on a pool, and the layouts that were rejected."""

    modes: tuple[ParallelMode, ...]
    rejections: tuple[Rejection, ...]

    def rejected(self, rule: Rule) -> int:
        """Number of layouts rejected by a rule."""
        return sum(rejection.rule == rule for rejection in self.rejections)


def enumerate_modes(
    shape: ModelShape,
    accelerator: Accelerator,
    gpus: int,
    *,
    pue: float = 1.2,
    tensor: Sequence[int] = (1, 2, 4, 8, 16),
    pipeline: Sequence[int] = tuple(range(1, 9)),
    data: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    micro_batch: Sequence[int] = (1,),
    performance: Performance = CALIBRATED,
) -> Catalogue:
    """Every layout from the given values: usable as a mode, or rejected with its reason.

    Activations are recomputed selectively where that fits in memory, fully where only that does.

    Args:
        shape: The model.
        accelerator: The GPU.
        gpus: GPUs in the pool.
        pue: Power usage effectiveness. [-]
        tensor: Tensor-parallel sizes to try.
        pipeline: Pipeline depths to try.
        data: Data-parallel sizes to try.
        micro_batch: Micro-batches to try. [sequences]
        performance: Constants of the step-time model.

    Returns:
        Modes ordered by GPUs and then by throughput; rejections in the order tried.
    """
    modes: list[ParallelMode] = []
    rejections: list[Rejection] = []
    for tp, pp, dp, batch in itertools.product(tensor, pipeline, data, micro_batch):
        layout = Layout(tp, pp, dp, batch)
        broken = _misfit(shape, layout, gpus) or _memory_misfit(shape, accelerator, layout, performance)
        if broken is not None:
            rejections.append(broken)
            continue
        recompute = _recompute_that_fits(shape, accelerator, layout, performance)
        assert recompute is not None, f"{layout.label} passed the memory screening but does not fit"
        modes.append(parallel_mode(shape, accelerator, layout, recompute, pue=pue, performance=performance))
    return Catalogue(tuple(sorted(modes, key=lambda mode: (mode.gpus, mode.tokens_per_s))), tuple(rejections))


def _misfit(shape: ModelShape, layout: Layout, gpus: int) -> Rejection | None:
    """The capacity or divisibility rule a layout breaks, if any."""
    if layout.gpus > gpus:
        return Rejection(layout, "capacity", f"needs {layout.gpus:,} GPUs, the pool has {gpus:,}")
    replicas = layout.data * layout.micro_batch
    checks: tuple[tuple[Rule, str, int, int, str], ...] = (
        ("heads", "attention heads", shape.heads, layout.tensor, "tensor-parallel GPUs"),
        ("mlp", "MLP columns", shape.mlp, layout.tensor, "tensor-parallel GPUs"),
        ("layers", "layers", shape.layers, layout.pipeline, "pipeline stages"),
        ("batch", "sequences of the global batch", shape.global_batch, replicas, "(replicas × micro-batch)"),
    )
    for rule, what, count, parts, whom in checks:
        if count % parts:
            return Rejection(layout, rule, f"{count:,} {what} cannot be divided by {parts:,} {whom}")
    return None


def _memory_misfit(
    shape: ModelShape, accelerator: Accelerator, layout: Layout, performance: Performance
) -> Rejection | None:
    """The rejection of a layout that does not fit in memory even with full recomputation."""
    if _recompute_that_fits(shape, accelerator, layout, performance) is not None:
        return None
    need_gb = memory_bytes(shape, layout, "full", performance) / 1e9
    have_gb = performance.usable_memory * accelerator.memory_bytes / 1e9
    return Rejection(layout, "memory", f"needs {need_gb:.1f} GB per GPU with full recomputation, {have_gb:.1f} usable")


def _recompute_that_fits(
    shape: ModelShape, accelerator: Accelerator, layout: Layout, performance: Performance
) -> Recompute | None:
    """The cheaper way of recomputing activations that fits in memory."""
    budget = performance.usable_memory * accelerator.memory_bytes
    for recompute in _RECOMPUTE:
        if memory_bytes(shape, layout, recompute, performance) <= budget:
            return recompute
    return None


def pareto_front(modes: Iterable[ParallelMode]) -> tuple[ParallelMode, ...]:
    """The modes that no other mode beats on GPUs, energy per token and throughput together.

    Power itself is no criterion: slow modes draw little, so hardly any mode would be dropped.
    """
    candidates = tuple(modes)

    def beats(other: ParallelMode, mode: ParallelMode) -> bool:
        no_worse = (
            other.gpus <= mode.gpus
            and other.joules_per_token <= mode.joules_per_token
            and other.tokens_per_s >= mode.tokens_per_s
        )
        return no_worse and (
            other.gpus < mode.gpus
            or other.joules_per_token < mode.joules_per_token
            or other.tokens_per_s > mode.tokens_per_s
        )

    front = (mode for mode in candidates if not any(beats(other, mode) for other in candidates))
    return tuple(sorted(front, key=lambda mode: (mode.gpus, mode.tokens_per_s)))


class Measurement(Spec):
    """Measured speed and power of a layout.

    Args:
        mode: The mode it belongs to, such as tp4-pp8-dp64.
        tokens_per_s: Throughput. [tokens/s]
        facility_mw: Facility power of its GPUs while training. [MW]
    """

    mode: str
    tokens_per_s: PositiveFloat
    facility_mw: PositiveFloat


def with_measurements(modes: Iterable[ParallelMode], measurements: Iterable[Measurement]) -> tuple[ParallelMode, ...]:
    """The same modes with measured speed and power in place of modelled ones, where there are any.

    The MFU scales with the throughput; the compute share is left as modelled, since no meter gives it.
    """
    measured = {measurement.mode: measurement for measurement in measurements}

    def replaced(mode: ParallelMode) -> ParallelMode:
        found = measured.get(mode.label)
        if found is None:
            return mode
        mfu = mode.mfu * found.tokens_per_s / mode.tokens_per_s
        update = {"tokens_per_s": found.tokens_per_s, "facility_mw": found.facility_mw, "mfu": mfu}
        return mode.model_copy(update=update)

    return tuple(replaced(mode) for mode in modes)


# ---------------------------------------------------------------------------------------------------- calibration


@dataclass(frozen=True)
class Anchor:
    """A published training run beside what the model says.

    Args:
        run: Model, machine and size.
        source: Where the figure was published.
        published_mfu: Model FLOPs over peak FLOPs. [-]
        modelled_mfu: The same from `step_time`. [-]
    """

    run: str
    source: str
    published_mfu: float
    modelled_mfu: float

    @property
    def relative_error(self) -> float:
        """Modelled over published, minus one [-]."""
        return self.modelled_mfu / self.published_mfu - 1


def rms_log_error(anchors: Iterable[Anchor]) -> float:
    """Root mean square of the logarithmic errors [-]."""
    errors = [math.log(anchor.modelled_mfu / anchor.published_mfu) for anchor in anchors]
    return math.sqrt(sum(error**2 for error in errors) / len(errors))


def calibration() -> tuple[Anchor, ...]:
    """Published training runs with the MFU the model gives for each.

    The kernel efficiencies, half-saturation width and overlap shares were fitted to these runs together; they are not
    a check on unseen data.  The layouts of the Llama-2 runs were not published: the fastest one that fits is taken.
    """
    return (*_llama2_anchors(), *_megatron_anchors(), *_full_recompute_anchors(), *_h100_anchors())


def _modelled_mfu(
    shape: ModelShape, accelerator: str, layout: Layout, recompute: Recompute = "selective", interleave: int = 1
) -> float:
    performance = CALIBRATED.model_copy(update={"interleave": interleave})
    gpu = ACCELERATORS[accelerator]
    return parallel_mode(shape, gpu, layout, recompute, performance=performance).mfu


def _llama2_anchors() -> list[Anchor]:
    """GPU-hours for 2T tokens on A100: arXiv:2307.09288, table 2, and its model card."""
    runs = (
        ("Llama-2-7B", 184_320, 512),
        ("Llama-2-13B", 368_640, 1024),
        ("Llama-2-34B", 1_038_336, 1024),
        ("Llama-2-70B", 1_720_320, 2048),
    )
    gpu = ACCELERATORS["A100-80G"]
    anchors = []
    for name, gpu_hours, gpus in runs:
        shape = SHAPES[name]
        published = 2e12 * shape.flops_per_token / (gpu_hours * 3600 * gpu.peak_flops)
        splits = itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16))
        data = sorted({gpus // (tp * pp) for tp, pp in splits})
        catalogue = enumerate_modes(
            shape, gpu, gpus, tensor=(1, 2, 4, 8), pipeline=(1, 2, 4, 8, 16), data=data, micro_batch=(1,)
        )
        best = max(mode.mfu for mode in catalogue.modes if mode.gpus == gpus)
        anchors.append(Anchor(f"{name}, {gpu_hours:,} A100-hours", "arXiv:2307.09288", published, best))
    return anchors


def _megatron_anchors() -> list[Anchor]:
    """Selective recomputation on A100, one replica: arXiv:2205.05198, tables 3 and 5."""
    runs = (
        ("GPT-22B", 4, Layout(8, 1, 1, 4), 1, 0.415),
        ("GPT-175B", 64, Layout(8, 8, 1), 3, 0.514),
        ("GPT-530B", 280, Layout(8, 35, 1), 3, 0.560),
        ("GPT-1T", 512, Layout(8, 64, 1), 1, 0.563),
    )
    anchors = []
    for name, batch, layout, interleave, published in runs:
        shape = SHAPES[name].model_copy(update={"global_batch": batch})
        modelled = _modelled_mfu(shape, "A100-80G", layout, interleave=interleave)
        anchors.append(Anchor(f"{name}, {layout.gpus:,} A100", "arXiv:2205.05198", published, modelled))
    return anchors


def _full_recompute_anchors() -> list[Anchor]:
    """Full recomputation on A100, published as computed TFLOP/s per GPU: arXiv:2104.04473, table 1."""
    runs = (
        ("GPT-1.7B", Layout(1, 1, 32, 16), 137),
        ("GPT-7.5B", Layout(4, 1, 32, 4), 142),
        ("GPT-39B", Layout(8, 2, 32, 4), 138),
        ("GPT-145B", Layout(8, 8, 24, 2), 148),
        ("GPT-1T", Layout(8, 64, 6, 1), 163),
    )
    anchors = []
    for name, layout, tflops in runs:
        published = tflops / 312 * 3 / 4  # a quarter of what full recomputation computes is repeated
        modelled = _modelled_mfu(SHAPES[name], "A100-80G", layout, "full")
        anchors.append(Anchor(f"{name}, {layout.gpus:,} A100, full", "arXiv:2104.04473", published, modelled))
    return anchors


def _h100_anchors() -> list[Anchor]:
    """GPT-3 strong scaling on H100 (Megatron-LM's README) and Llama 3.1 (arXiv:2407.21783, table 4)."""
    gpt = SHAPES["GPT-175B"].model_copy(update={"global_batch": 1152})
    llama = SHAPES["Llama-3.1-405B"]
    runs = (
        (gpt, Layout(4, 8, 3), 6, 0.47, "Megatron-LM README"),
        (gpt, Layout(4, 8, 144), 6, 0.42, "Megatron-LM README"),
        (llama, Layout(8, 16, 64), 8, 0.43, "arXiv:2407.21783"),
        (llama, Layout(8, 16, 128), 8, 0.41, "arXiv:2407.21783"),
    )
    return [
        Anchor(
            f"{shape.name}, {layout.gpus:,} H100",
            source,
            published,
            _modelled_mfu(shape, "H100", layout, interleave=interleave),
        )
        for shape, layout, interleave, published, source in runs
    ]
