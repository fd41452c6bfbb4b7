"""`python -m curtailsim modes`: the catalogue of a model, its rejections, its front and its calibration."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from curtailsim.cli import app
from curtailsim.modes_report import RULES, ModesReport
from curtailsim.parallelism import Rule


def asked(*arguments: str) -> str:
    """What the command prints."""
    found = CliRunner().invoke(app, ["modes", *arguments])
    assert found.exit_code == 0, found.output
    return found.output


@pytest.mark.parametrize(("model", "usable", "front"), [("Llama-2-7B", 135, 14), ("llama-2-70b", 111, 17)])
def test_counts(model: str, usable: int, front: int) -> None:
    """The table says how many modes are usable and on the front, whatever the spelling of the name."""
    text = " ".join(asked(model).split())
    assert f"{usable} usable modes, {front} on" in text


def test_all_modes_and_rejections_by_reason() -> None:
    """Every layout tried is either listed or counted under the rule that rejects it."""
    text = asked("Llama-2-70B", "--all")
    assert sum(line.count("tp") for line in text.splitlines() if "selective" in line or "│ full" in line) >= 111
    report = ModesReport.of("Llama-2-70B", "A100-80G", 2048, 1.2)
    rejected = {rule: report.catalogue.rejected(rule) for rule in RULES}
    assert rejected == {"capacity": 14, "heads": 0, "mlp": 0, "layers": 98, "batch": 0, "memory": 57}
    assert "169 layouts rejected" in text and "98" in text and "57" in text


def test_every_rule_is_explained() -> None:
    """No rejection is without a meaning in the table."""
    assert set(RULES) == set(Rule.__args__)  # type: ignore[attr-defined]


def test_figure(tmp_path: Path) -> None:
    """Throughput against power is drawn; a place that cannot be written is one message."""
    assert "Figure:" in asked("Llama-2-7B", "--plot", str(tmp_path / "modes.png"))
    assert (tmp_path / "modes.png").stat().st_size > 10_000
    found = CliRunner().invoke(app, ["modes", "Llama-2-7B", "--plot", str(tmp_path / "no" / "modes.png")])
    assert found.exit_code == 2 and "cannot be written" in found.output


def test_other_accelerator_and_pool() -> None:
    """An H100 pool of 64 lists no mode of more GPUs."""
    assert "on 64 H100" in asked("Llama-2-7B", "--accelerator", "h100", "--gpus", "64")
    assert "No layout is usable" in asked("Llama-3.1-405B", "--gpus", "8")


def test_calibration_lists_every_published_run() -> None:
    """Error per anchor, and the two figures the model is judged by."""
    text = asked("--calibration")
    assert text.count("arXiv:") + text.count("README") == 17
    assert "RMS log error 0.095; 13 of 17 within 10 %" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Llama-2-7"], "did you mean 'Llama-2-7B'"),
        (["Llama-2-7B", "--accelerator", "A100-80"], "did you mean 'A100-80G'"),
        ([], "is required"),
    ],
    ids=["model", "accelerator", "nothing"],
)
def test_mistakes(arguments: list[str], message: str) -> None:
    """An unknown name is one message with the near match, exit code 2."""
    found = CliRunner().invoke(app, ["modes", *arguments])
    assert found.exit_code == 2 and message in found.output
