"""What every part of a scenario has in common: strict, frozen models and one kind of error."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator


LARGEST = 1e18
"""No quantity of a scenario is larger, in the units of its keys; beyond, sums and squares would overflow."""


class Spec(BaseModel):
    """Base of every scenario model: frozen, and unknown keys are mistakes."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="after")
    def _sane(self) -> Self:
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, int | float) and abs(value) > LARGEST:
                raise ValueError(f"{name} is {value:g}; nothing here is larger than {LARGEST:g}, check its unit")
        return self


@dataclass(frozen=True)
class Problem:
    """One mistake in a user's input: where it is, what is wrong and how to repair it."""

    path: str
    rule: str


class ScenarioError(ValueError):
    """Mistakes in a user's input, all of them at once.

    Args:
        source: File or object the mistakes are in.
        problems: Every mistake found, in the order of the file.
    """

    def __init__(self, source: str, problems: list[Problem]) -> None:
        super().__init__(source, problems)
        self.source, self.problems = source, problems

    def __str__(self) -> str:
        """All mistakes, one per line."""
        count = "a problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        width = max((len(p.path) for p in self.problems), default=0)
        lines = [f"  {p.path:<{width}}  {p.rule}" for p in self.problems]
        return "\n".join([f"{self.source} has {count}:", *lines])


def near_match(word: str, known: Iterable[str]) -> str:
    """The tail of a message about an unknown word: a near match, if any, and what there is."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{hint} ({', '.join(names)})"
