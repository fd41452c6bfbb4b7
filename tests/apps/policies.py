"""Policies of a user, good and bad ones."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from curtailsim.policy import SiteView


@dataclass(frozen=True)
class Cheapest:
    """Train at the cheapest sites, `count` at a time."""

    count: int = 1

    def select(self, now_s: float, sites: Sequence[SiteView]) -> Collection[str]:
        """Names of the cheapest sites."""
        return [site.name for site in sorted(sites, key=lambda site: site.values["price"])[: self.count]]


@dataclass(frozen=True)
class Answers:
    """Answers whatever it is told to, after a first time without fault."""

    answer: Any = None
    from_s: float = 0

    def select(self, now_s: float, sites: Sequence[SiteView]) -> Any:
        """The given answer."""
        return [site.name for site in sites] if now_s < self.from_s else self.answer


class Selectless:
    """Has no select."""
