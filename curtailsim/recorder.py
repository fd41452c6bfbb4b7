"""What happened in one run, as it happens: events, real losses, rounds and training segments.

Times are whole milliseconds on the clock; the results folder turns them into seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from curtailsim.clock import Clock

Observer = Callable[["Recorder"], None]


@dataclass
class Segment:
    """Whole optimiser steps of one site, back to back: step k of it ends at start_ms + k x step_ms.

    Attributes:
        site: Site name.
        round: Round it belongs to.
        start_ms: When the first step began. [ms]
        step_ms: Duration of a step; not a whole number. [ms]
        steps: Steps finished.
    """

    site: str
    round: int
    start_ms: int
    step_ms: float
    steps: int

    def end_ms(self, step: int) -> int:
        """When its step number `step` (from 1) is done, to the clock's millisecond. [ms]"""
        return self.start_ms + finish_ms(step, self.step_ms)


def finish_ms(steps: int, step_ms: float) -> int:
    """Time until `steps` steps are done; rounded once, so it does not drift. [ms]"""
    return round(steps * step_ms)


def steps_done(elapsed_ms: int, step_ms: float) -> int:
    """Whole steps finished after a time."""
    steps = int(elapsed_ms / step_ms) + 1
    while finish_ms(steps, step_ms) > elapsed_ms:
        steps -= 1
    return steps


@dataclass
class Recorder:
    """The tables of one run.

    Attributes:
        env: The clock.
        observer: Called after every event and report, for progress; it must not change anything.
    """

    env: Clock
    observer: Observer | None = None
    events: list[tuple[int, str, str, int, str]] = field(default_factory=list)
    losses: list[tuple[int, str, int, int, float]] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)

    def event(self, event: str, site: str = "", round: int = 0, detail: str = "") -> None:
        """Something happened now."""
        self.events.append((self.env.now, event, site, round, detail))
        self._observe()

    def loss(self, time_ms: int, site: str, round: int, step: int, loss: float) -> None:
        """A site took a real step, its `step`-th virtual one, and saw this training loss."""
        self.losses.append((time_ms, site, round, step, loss))

    def round(self, **row: Any) -> None:
        """A round, or a report from within one, is complete."""
        self.rounds.append({"time_ms": self.env.now, **row})
        self._observe()

    def state(self, site: str, state: str) -> None:
        """A site's state changed."""
        self.states[site] = state

    def _observe(self) -> None:
        if self.observer is not None:
            self.observer(self)
