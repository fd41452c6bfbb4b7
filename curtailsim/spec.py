"""What every part of a scenario has in common: strict, frozen models and one kind of error."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self, get_args

from pydantic import AwareDatetime, BaseModel, ConfigDict, model_validator

LARGEST = 1e18
"""No quantity of a scenario is larger, in the units of its keys; beyond, sums and squares would overflow."""


class Spec(BaseModel):
    """Base of every scenario model: frozen, and unknown keys are mistakes."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _kinds_differ(cls, content: Any) -> Any:
        """Pydantic would take true for 1, and 5 for a moment in 1970."""
        if not isinstance(content, dict):
            return content
        wrong = {name for name, field in cls.model_fields.items() if _is_wrong(content.get(name), field.annotation)}
        return {key: _Refused(value) if key in wrong else value for key, value in content.items()}

    @model_validator(mode="after")
    def _sane(self) -> Self:
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, int | float) and abs(value) > LARGEST:
                raise ValueError(f"{name} is {value:g}; nothing here is larger than {LARGEST:g}, check its unit")
        return self


class _Refused:
    """A value of no kind at all, which is reported as it stands in the file."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


def _is_wrong(value: Any, annotation: Any) -> bool:
    """Whether a truth value stands where a number belongs, or a number where a time does."""
    if not isinstance(value, bool | int | float | str):
        return False
    kinds = _kinds(annotation)
    if isinstance(value, bool) and kinds & {int, float} and bool not in kinds:
        return True
    return bool(kinds & {AwareDatetime, datetime}) and _is_number(value)


def _kinds(annotation: Any) -> set[Any]:
    """The types that a field may be of."""
    arguments = get_args(annotation)
    return {kind for argument in arguments for kind in _kinds(argument)} if arguments else {annotation}


def _is_number(value: bool | int | float | str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


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
