"""Which layouts can a model be trained in, how fast and at what power?  The catalogue, and its calibration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from curtailsim.parallelism import (
    ACCELERATORS,
    SHAPES,
    Accelerator,
    Catalogue,
    ModelShape,
    ParallelMode,
    calibration,
    enumerate_modes,
    pareto_front,
    rms_log_error,
)
from curtailsim.spec import Problem, ScenarioError, near_match

RULES = {
    "capacity": "more GPUs than the pool has",
    "heads": "attention heads do not divide by TP",
    "mlp": "MLP columns do not divide by TP",
    "layers": "layers do not divide by PP",
    "batch": "the global batch does not divide by DP",
    "memory": "memory is too small, even with full recomputation",
}


@dataclass(frozen=True)
class ModesReport:
    """The catalogue of one model on one pool.

    Attributes:
        shape: The model.
        accelerator: The GPU.
        gpus: GPUs in the pool.
        catalogue: Usable modes and rejected layouts.
        front: The modes that none beats on GPUs, energy per token and throughput together.
    """

    shape: ModelShape
    accelerator: Accelerator
    gpus: int
    catalogue: Catalogue
    front: tuple[ParallelMode, ...]

    @classmethod
    def of(cls, model: str, accelerator: str, gpus: int, pue: float) -> ModesReport:
        """The catalogue of a model by its name; capitals and small letters are the same.

        Raises:
            ScenarioError: A name is unknown.
        """
        shapes, gpu_types = ({name.lower(): name for name in table} for table in (SHAPES, ACCELERATORS))
        problems = []
        if model.lower() not in shapes:
            problems.append(Problem("MODEL", f"{model!r} is unknown{near_match(model, SHAPES)}"))
        if accelerator.lower() not in gpu_types:
            problems.append(
                Problem("--accelerator", f"{accelerator!r} is unknown{near_match(accelerator, ACCELERATORS)}")
            )
        if problems:
            raise ScenarioError("modes", problems)
        shape, gpu = SHAPES[shapes[model.lower()]], ACCELERATORS[gpu_types[accelerator.lower()]]
        catalogue = enumerate_modes(shape, gpu, gpus, pue=pue)
        return cls(shape, gpu, gpus, catalogue, pareto_front(catalogue.modes))

    def parts(self, everything: bool = False) -> Iterator[RenderableType]:
        """What to print: the modes (those of the front, or all), and why the others were rejected."""
        yield self._modes(self.catalogue.modes if everything else self.front)
        yield self._rejections()
        if not self.catalogue.modes:
            yield Text("No layout is usable: add GPUs, or take a smaller model.", style="yellow")

    def _modes(self, modes: tuple[ParallelMode, ...]) -> Table:
        shape = self.shape
        title = (
            f"{shape.name} ({shape.parameters / 1e9:.2f}e9 parameters, batch of {shape.global_batch:,} x "
            f"{shape.sequence:,} tokens) on {self.gpus:,} {self.accelerator.name}: "
            f"{len(self.catalogue.modes)} usable modes, {len(self.front)} on the front (*)"
        )
        table = Table(title=title, title_justify="left")
        table.add_column("mode", no_wrap=True)
        columns = ("GPUs", "tokens/s", "MFU", "power\n[MW]", "above idle\n[MW]", "restoring\n[MW]", "energy\n[J/token]")
        for column in (*columns, "memory\n[GB]"):
            table.add_column(column, justify="right")
        table.add_column("recompute")
        for mode in modes:
            table.add_row(
                f"{'*' if mode in self.front else ' '} {mode.label}",
                f"{mode.gpus:,}",
                f"{mode.tokens_per_s:,.0f}",
                f"{100 * mode.mfu:.1f} %",
                f"{mode.facility_mw:.4f}",
                f"{mode.training_increment_mw:.4f}",
                f"{mode.restoring_increment_mw:.4f}",
                f"{mode.joules_per_token:.4f}",
                f"{mode.memory_gb:.1f}",
                mode.recompute,
            )
        return table

    def _rejections(self) -> Table:
        table = Table(title=f"{len(self.catalogue.rejections)} layouts rejected", title_justify="left")
        for column in ("rule", "layouts", "meaning", "for example"):
            table.add_column(column, justify="right" if column == "layouts" else "left")
        for rule, meaning in RULES.items():
            found = [rejection for rejection in self.catalogue.rejections if rejection.rule == rule]
            if found:
                example = f"{found[0].layout.label}: {found[0].reason}"
                table.add_row(rule, str(len(found)), meaning, example)
        return table

    def plot(self, path: Path) -> None:
        """Draw throughput against power, with the front.

        Raises:
            ScenarioError: The file cannot be written.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 5))
        axis = figure.subplots()
        modes = self.catalogue.modes
        axis.scatter(
            [mode.facility_mw for mode in modes],
            [mode.tokens_per_s / 1e3 for mode in modes],
            s=14,
            color="#999999",
            label=f"usable ({len(modes)})",
        )
        axis.plot(
            [mode.facility_mw for mode in self.front],
            [mode.tokens_per_s / 1e3 for mode in self.front],
            "o-",
            color="#D55E00",
            markersize=5,
            linewidth=0.9,
            label=f"front of GPUs, energy and throughput ({len(self.front)})",
        )
        for mode in self.front:
            place = (mode.facility_mw, mode.tokens_per_s / 1e3)
            axis.annotate(mode.label, place, fontsize=5.5, xytext=(3, -7), textcoords="offset points")
        axis.set_xlabel("facility power of the mode's GPUs [MW]")
        axis.set_ylabel("throughput [1e3 tokens/s]")
        axis.set_title(f"{self.shape.name} on {self.gpus:,} {self.accelerator.name}", fontsize=10)
        axis.legend(fontsize=8)
        figure.tight_layout()
        try:
            figure.savefig(path, dpi=110, metadata={"Software": None} if path.suffix == ".png" else None)
        except (OSError, ValueError) as error:
            raise ScenarioError("--plot", [Problem(str(path), f"cannot be written: {error}")]) from None


def calibration_parts() -> Iterator[RenderableType]:
    """The model's MFU beside that of published training runs."""
    anchors = calibration()
    table = Table(
        title="Step-time model against published training runs (they were fitted, not held out)", title_justify="left"
    )
    for column in ("run", "source", "published MFU", "modelled MFU", "error"):
        table.add_column(column, justify="left" if column in ("run", "source") else "right")
    for anchor in anchors:
        table.add_row(
            anchor.run,
            anchor.source,
            f"{anchor.published_mfu:.3f}",
            f"{anchor.modelled_mfu:.3f}",
            f"{100 * anchor.relative_error:+.1f} %",
        )
    yield table
    close = sum(abs(anchor.relative_error) <= 0.1 for anchor in anchors)
    yield Text(f"RMS log error {rms_log_error(anchors):.3f}; {close} of {len(anchors)} within 10 %.")
