"""The one clock: SimPy counting whole milliseconds since the scenario's start, and what everybody waits with."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, cast

import simpy
from simpy.core import EventPriority

Process = Generator[simpy.Event, Any, Any]
"""What a process on the clock yields and returns."""

AFTER_EVERYTHING, AT_THE_END = 2, 3
"""Priorities behind SimPy's own (0 and 1): when all else at the same instant has happened."""


class Clock(simpy.Environment):
    """Simulated time in whole milliseconds, so that edges a hair apart are either equal or a millisecond apart."""

    @property
    def now(self) -> int:
        """Time since the scenario's start. [ms]"""
        return cast(int, self._now)


def to_ms(seconds: float) -> int:
    """Seconds as whole milliseconds of the clock."""
    return round(seconds * 1000)


def everybody(works: Iterable[simpy.Event]) -> Process:
    """Wait for all of them.  A process, since SimPy's own condition cannot be part of another one and live on."""
    for work in works:  # noqa: UP028 - their values are not wanted
        yield work


def settle(clock: Clock, priority: int = AFTER_EVERYTHING, delay_ms: int = 0) -> simpy.Event:
    """An event after everything else that happens at the same instant."""
    event = clock.event()
    event._ok, event._value = True, None
    clock.schedule(event, priority=cast(EventPriority, priority), delay=delay_ms)
    return event


def trigger(event: simpy.Event) -> None:
    """Trigger an event unless that has happened."""
    if not event.triggered:
        event.succeed()
