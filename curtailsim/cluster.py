"""What does a virtual GPU cluster draw, and how long does one optimiser step take?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from curtailsim.spec import Spec, near_match

Kilowatts = Annotated[float, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class Accelerator:
    """One accelerator's dense BF16 peak [FLOP/s], idle and training board power [W], and where they come from."""

    peak_flops: float
    idle_w: float
    train_w: float
    source: str


ACCELERATORS = {
    "A100-40G": Accelerator(312e12, 50, 400, "NVIDIA A100 data sheet (peak, SXM board limit); idle: assumption"),
    "A100-80G": Accelerator(312e12, 60, 400, "NVIDIA A100 data sheet (peak, SXM board limit); idle: assumption"),
    "H100": Accelerator(989e12, 110, 700, "NVIDIA H100 SXM data sheet (dense peak, board limit); idle: assumption"),
    "H200": Accelerator(989e12, 115, 700, "NVIDIA H200 SXM data sheet (dense peak, board limit); idle: assumption"),
    "B200": Accelerator(2250e12, 140, 1000, "NVIDIA DGX B200 data sheet (dense peak, board limit); idle: assumption"),
    "MI300X": Accelerator(
        1307e12, 140, 750, "AMD Instinct MI300X data sheet (dense peak, board limit); idle: assumption"
    ),
    "V100": Accelerator(
        125e12, 40, 300, "NVIDIA V100 SXM2 data sheet (FP16 tensor peak, board limit); idle: assumption"
    ),
}


class Workload(Spec):
    """The virtual model: it sets step time and energy, whatever the real learner is.

    Attributes:
        parameters: Model parameters.
        tokens_per_step: Tokens in one optimiser step of one site (its whole batch).
        total_tokens: Training ends when all sites together have trained this many; the horizon otherwise.
        flops_per_token: Model FLOPs per token, forward and backward; 6 x parameters when absent
            (Kaplan et al., Scaling Laws, 2020, arXiv:2001.08361, section 2.1). [FLOP]
        sequence_tokens: Tokens per sequence; only checked: batches must divide into it.
        device_batch_sequences: Sequences per accelerator and micro-step; only checked.
        bytes_per_parameter: Size of one parameter when the model is moved (2 = BF16). [B]
    """

    parameters: float = Field(gt=0)
    tokens_per_step: int = Field(gt=0)
    total_tokens: float | None = Field(default=None, gt=0)
    flops_per_token: float | None = Field(default=None, gt=0)
    sequence_tokens: int | None = Field(default=None, gt=0)
    device_batch_sequences: int | None = Field(default=None, gt=0)
    bytes_per_parameter: float = Field(default=2.0, gt=0)

    @property
    def total_steps(self) -> int | None:
        """Optimiser steps in the token budget; a last, partial step is not taken."""
        return None if self.total_tokens is None else int(self.total_tokens // self.tokens_per_step)

    @property
    def model_bytes(self) -> float:
        """Size of one model state on the wire. [B]"""
        return self.parameters * self.bytes_per_parameter

    @property
    def flops_per_step(self) -> float:
        """Model FLOPs of one optimiser step. [FLOP]"""
        return self.tokens_per_step * (self.flops_per_token or 6 * self.parameters)


class Network(Spec):
    """The link between a site and the server.

    Attributes:
        rate_mbit_per_s: Net transfer rate; absent: a transfer takes no time. [Mbit/s]
        power_kw: IT power of the site while it transfers; the cluster's idle power when absent. [kW]
        energy_kwh_per_gb: Energy of the network outside the site, reported apart from facility energy. [kWh/GB]
    """

    rate_mbit_per_s: float | None = Field(default=None, gt=0)
    power_kw: Kilowatts | None = None
    energy_kwh_per_gb: float = Field(default=0.0, ge=0)

    def transfer_s(self, size_bytes: float) -> float:
        """Time to move a model state. [s]"""
        return 0.0 if self.rate_mbit_per_s is None else size_bytes * 8 / (self.rate_mbit_per_s * 1e6)

    @model_validator(mode="after")
    def _energy_needs_time(self) -> Self:
        if self.energy_kwh_per_gb and self.rate_mbit_per_s is None:
            raise ValueError("energy_kwh_per_gb needs rate_mbit_per_s: energy is drawn while the transfer lasts")
        return self


class Cluster(Spec):
    """A site's accelerators, their power and the phases of their life.

    Attributes:
        accelerator: Name in the accelerator table.
        count: Number of accelerators.
        mfu: Model FLOPs utilisation, which gives the step time (or give step_time_s).
        step_time_s: Duration of one optimiser step, for example as measured. [s]
        pue: Power usage effectiveness: facility power = PUE x IT power.
        idle_kw: IT power when ready but not training; from the table when absent. [kW]
        train_kw: IT power while training; from the table when absent. [kW]
        provisioning_delay_s: From the decision to a ready cluster. [s]
        provisioning_kw: IT power meanwhile; idle_kw when absent. [kW]
        model_load_s: Restoring the model into the accelerators before training. [s]
        model_load_kw: IT power meanwhile; idle_kw when absent. [kW]
        serialisation_s: Writing the model out after training, before it is sent. [s]
        serialisation_kw: IT power meanwhile; idle_kw when absent. [kW]
        network: Link to the server.
    """

    accelerator: str = "A100-80G"
    count: int = Field(gt=0)
    mfu: float | None = Field(default=None, gt=0, le=1)
    step_time_s: float | None = Field(default=None, ge=0.001)
    pue: float = Field(default=1.0, ge=1)
    idle_kw: Kilowatts | None = None
    train_kw: Kilowatts | None = None
    provisioning_delay_s: Seconds = 0.0
    provisioning_kw: Kilowatts | None = None
    model_load_s: Seconds = 0.0
    model_load_kw: Kilowatts | None = None
    serialisation_s: Seconds = 0.0
    serialisation_kw: Kilowatts | None = None
    network: Network = Network()

    @field_validator("accelerator")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in ACCELERATORS:
            raise ValueError(f"{name!r} is unknown{near_match(name, ACCELERATORS)}")
        return name

    @model_validator(mode="after")
    def _one_step_time(self) -> Self:
        if (self.mfu is None) == (self.step_time_s is None):
            raise ValueError("give either mfu or step_time_s: one of them sets the step time")
        return self

    def step_s(self, workload: Workload) -> float:
        """Duration of one optimiser step, to the millisecond of the clock and at least one. [s]

        FLOPs of a step / (accelerators x peak x MFU); Chowdhery et al., PaLM, 2022, appendix B, arXiv:2204.02311.
        """
        if self.step_time_s is not None:
            return self.step_time_s
        assert self.mfu is not None
        peak = self.count * ACCELERATORS[self.accelerator].peak_flops
        return max(workload.flops_per_step / (peak * self.mfu), 0.001)

    def it_kw(self, phase: str) -> float:
        """IT power in a phase of a site's life. [kW]"""
        table = ACCELERATORS[self.accelerator]
        idle = self.idle_kw if self.idle_kw is not None else self.count * table.idle_w / 1000
        if phase == "off":
            return 0.0
        if phase == "training":
            return self.train_kw if self.train_kw is not None else self.count * table.train_w / 1000
        own = {
            "provisioning": self.provisioning_kw,
            "model_load": self.model_load_kw,
            "serialisation": self.serialisation_kw,
            "transfer": self.network.power_kw,
        }.get(phase)
        return idle if own is None else own

    def facility_kw(self, phase: str) -> float:
        """Facility power in a phase: PUE x IT power. [kW]"""
        return self.pue * self.it_kw(phase)

    @property
    def peak_kw(self) -> float:
        """Largest facility power of any phase. [kW]"""
        phases = ("provisioning", "waiting", "model_load", "training", "serialisation", "transfer")
        return max(self.facility_kw(phase) for phase in phases)
