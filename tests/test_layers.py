"""Which module may import what: libraries live in one place each, and imports point down."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "curtailsim"
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))

AT_HOME = {
    "vessim": ("energy/",),
    "flwr": ("training/",),
    "torch": ("training/",),
    "simpy": (
        "clock.py",
        "simulation.py",
        "site.py",
        "federation.py",
        "controller.py",
        "recorder.py",
        "dispatch/clock.py",
        "training/",
    ),
}
"""Where each library may be imported at the top of a module."""

LAZY_GUESTS = {"flwr": ("bench.py",), "torch": ("bench.py", "results.py")}
"""Who else may import it, inside a function only."""

LEVELS = [
    ("__main__",),
    ("cli",),
    ("sweep", "bench", "regression", "compare"),
    ("report",),
    ("results",),
    ("plots",),
    ("simulation",),
    ("training.build",),
    ("training.app",),
    ("training.flower",),
    ("federation", "controller", "metrics"),
    ("site",),
    ("energy.microgrid",),
    ("scenario",),
    ("energy.signals",),
]
"""From top to bottom; a module imports only what is on a lower level than itself (names not listed are not checked)."""


def place(path: Path) -> str:
    """A module's path inside the package."""
    return path.relative_to(PACKAGE).as_posix()


def imports(tree: ast.AST, lazily: bool = False) -> Iterator[tuple[str, bool]]:
    """Imported modules, and whether inside a function; what only type checkers see is left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, lazily) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            if node.module == "curtailsim":
                yield from ((f"curtailsim.{alias.name}", lazily) for alias in node.names)
            else:
                yield node.module, lazily
        inside = lazily or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from imports(node, inside)


def imports_of(path: Path) -> list[tuple[str, bool]]:
    """All of a module's imports."""
    return list(imports(ast.parse(path.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("library", AT_HOME)
def test_library_lives_in_one_place(library: str) -> None:
    """Nobody else imports it, so it can be changed in one place."""
    strangers = [
        f"{place(path)} imports {name}"
        for path in MODULES
        for name, lazily in imports_of(path)
        if name.split(".")[0] == library
        and not place(path).startswith(AT_HOME[library])
        and not (lazily and place(path) in LAZY_GUESTS.get(library, ()))
    ]
    assert strangers == []


def test_imports_point_down() -> None:
    """No module imports one above itself, not even inside a function."""
    level = {name: number for number, names in enumerate(LEVELS) for name in names}
    wrong = []
    for path in MODULES:
        own = place(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name, _ in imports_of(path):
            other = name.removeprefix("curtailsim.")
            if own in level and other in level and level[other] <= level[own] and other != own:
                wrong.append(f"{own} imports {other}")
    assert wrong == []


def test_energy_and_training_do_not_know_each_other() -> None:
    """The two libraries' worlds meet in the site only."""
    for path in MODULES:
        here, others = place(path).split("/")[0], {name for name, _ in imports_of(path)}
        if here == "energy":
            assert not [name for name in others if name.startswith("curtailsim.training")], path
        if here == "training":
            assert not [name for name in others if name.startswith("curtailsim.energy")], path


def test_listed_modules_exist() -> None:
    """The levels above name modules that are there."""
    there = {place(path).removesuffix(".py").replace("/", ".") for path in MODULES}
    assert {name for names in LEVELS for name in names} - there == set()
