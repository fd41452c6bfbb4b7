"""What the README names exists: commands, options, files, modules, keys and columns."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import curtailsim
from curtailsim.cli import app
from curtailsim.scenario import load

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^(?:python -m curtailsim|curtailsim) (.*)$", README.replace("&& ", "\n"), re.MULTILINE)


def blocks(language: str) -> list[str]:
    """Code blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_first_screen() -> None:
    """One sentence, one picture, one command with its output."""
    sentence, picture, command = (README.index(text) for text in ("Find out what", "docs/three_sites.png", "```bash"))
    output = README.index("│ curtailment_aware")
    assert sentence < picture < command < output < README.index("## ")
    assert (ROOT / "docs" / "three_sites.png").stat().st_size <= 200_000


def test_set_up_and_test_commands() -> None:
    """The two commands of the first screen, and the same test command in CI."""
    first, second = (block.strip() for block in blocks("bash")[:2])
    assert first.endswith("pip install -e . && python -m curtailsim run scenarios/three_sites.yaml")
    assert second == 'pip install -e ".[dev]" && python -m pytest'
    ci = (ROOT / ".ci" / "run").read_text()
    assert '-e ".[dev]"' in ci
    assert re.search(r"^python -m pytest$", ci, re.MULTILINE)


def test_commands_exist() -> None:
    """Every `curtailsim ...` in the text is a command."""
    named = {words for words in re.findall(r"`(?:python -m )?curtailsim (\w+)", README)}
    named |= {shlex.split(command)[0] for command in COMMANDS}
    listed = re.search(r"lists the commands: (.*?)\.\n", README, re.DOTALL)
    assert listed
    named |= set(re.findall(r"`(\w+)`", listed[1]))
    assert named >= {found.name or found.callback.__name__ for found in app.registered_commands if found.callback}
    assert {"run", "regress", "bench", "data"} <= named
    for command in named:
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0, command


def test_files_exist() -> None:
    """Every path of the repository in the text, and every module of the layout."""
    named = set(re.findall(r"[`(]((?:curtailsim|scenarios|data|docs|notebooks|tests|\.ci)/[\w./]*)[`)]", README))
    assert "scenarios/three_sites.yaml" in named
    missing = [path for path in sorted(named) if not (ROOT / path).exists()]
    assert missing == []
    layout = README[README.index("## Layout") :]
    modules = re.findall(r"[├└]── (.+?)(?:  |$)", layout, re.MULTILINE)
    assert "cli.py" in modules
    for module in (name for names in modules for name in names.split(", ")):
        assert list((ROOT / "curtailsim").glob(module)), module


def test_contract_in_the_text_is_the_contract() -> None:
    """Columns named in the results table are those of the tables."""
    columns = {name: re.search(rf"`<run>/{name}\.csv` \| `(.*?)`", README) for name in ("events", "intervals", "loss")}
    from test_results import COLUMNS

    for name, found in columns.items():
        assert found, name
        assert [column for column in found[1].split(", ") if column != "..."] == COLUMNS[name]


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda block: block.split()[0])
def test_yaml_blocks_are_yaml(block: str) -> None:
    """And hold what the text around them says."""
    assert isinstance(yaml.safe_load(block), dict)


def test_own_policy_from_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class shown works as shown."""
    code = next(block for block in blocks("python") if "class Cheapest" in block)
    reference = re.search(r"policy: (\{.*\})", code)
    assert reference
    (tmp_path / "my_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    policy = load(ROOT / "scenarios" / "three_sites.yaml", [f"policy={reference[1]}"]).policy
    assert policy.release_delay_s == 600

    class View:
        def __init__(self, name: str, price: float) -> None:
            self.name, self.values = name, {"price": price}

    views = [View("a", 3), View("b", 1), View("c", 2)]
    assert policy.select(0.0, views) == ["b", "c"]  # type: ignore[union-attr, arg-type, unused-ignore]


def test_python_api_in_the_text() -> None:
    """The names it imports are the package's, the overrides are accepted."""
    code = next(block for block in blocks("python") if "from curtailsim import" in block)
    imported = re.search(r"from curtailsim import (.*)", code)
    assert imported
    assert set(imported[1].split(", ")) <= set(curtailsim.__all__)
    overrides = re.search(r"load\((.*)\)", code)
    assert overrides
    assert load(ROOT / "scenarios" / "three_sites.yaml", re.findall(r'"(\S+=\S+)"', overrides[1])).name == "short"


def test_overrides_in_the_text() -> None:
    """Every --set shown is accepted."""
    shown = re.findall(r'--set "?([\w.*]+=[\w.]+)"?', README)
    assert len(shown) >= 3
    load(ROOT / "scenarios" / "three_sites.yaml", shown)


def test_strategies_and_learners_in_the_text() -> None:
    """Every variant named is one, and none is left out."""
    from curtailsim.scenario import Training
    from curtailsim.scenario import _tags_at as tags

    named = set(re.findall(r"`(\w+)`", README[README.index("**Strategies.**") : README.index("**Flower apps.**")]))
    assert tags(Training, ("strategy",)) <= named
    learners = README[README.index("**Learners.**") : README.index("**Strategies.**")]
    assert tags(Training, ("learner",)) <= set(re.findall(r"`(\w+)`", learners))
