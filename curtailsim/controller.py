"""Turns a policy's wishes into starting and leaving sites, with the hysteresis that keeps them from flapping."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

from curtailsim.energy.signals import SiteSignals
from curtailsim.policy import Always, Custom, SiteView, Threshold
from curtailsim.recorder import Recorder
from curtailsim.site import Site, to_ms


class Controller:
    """Asks the policy whenever a signal it watches changes.

    A site is marked when it becomes unwanted and released when the mark is `release_delay_s` old and the site has
    been ready for `minimum_stay_s`; a mark is lifted when the site is wanted again.

    Args:
        env: The clock. [ms]
        policy: Who should be on.
        sites: The sites it may use.
        signals: What each of them sees, by name.
        recorder: Where decisions are written down.
    """

    def __init__(
        self,
        env: simpy.Environment,
        policy: Always | Threshold | Custom,
        sites: list[Site],
        signals: dict[str, SiteSignals],
        recorder: Recorder,
    ) -> None:
        self.env, self.policy, self.sites, self.signals, self.recorder = env, policy, sites, signals, recorder
        self._open: set[str] = set()
        self._marks: dict[str, int] = {}
        self._stopped = False
        for site in sites:
            site.watchers.append(self._notice)

    def run(self) -> Generator[simpy.Event, Any, None]:
        """Decide now and at every change the policy, or a site's power limit, depends on."""
        self.decide()
        for change_ms in self._changes():
            if change_ms > self.env.now:
                yield self.env.timeout(change_ms - self.env.now)
                self.decide()

    def stop(self) -> None:
        """Training is complete: every site is given back at once; windows are still noted."""
        self._stopped = True
        for site in self.sites:
            site.leave()

    def decide(self) -> None:
        """Compare what the policy wants with what there is."""
        views = [self._view(site) for site in self.sites]
        wanted = set(self.policy.select(self.env.now / 1000, views))
        unknown = wanted - {site.name for site in self.sites}
        assert not unknown, f"the policy wants {sorted(unknown)}, which are no sites"
        for site in self.sites:
            self._note_window(site.name, site.name in wanted)
            if self._stopped:
                continue
            if site.name in wanted:
                self._want(site)
            elif site.state != "off" and not site.leaving and site.name not in self._marks:
                self._mark(site)

    def _notice(self, site: Site) -> None:
        """A site that went off while it is wanted may have to start again."""
        if site.state == "off":
            self._marks.pop(site.name, None)
            self.decide()

    def _changes(self) -> list[int]:
        watches = self.policy.watches
        times: set[int] = set()
        for site in self.sites:
            limited = site.microgrids[0].import_limit_kw is not None
            for name, steps in self.signals[site.name].steps.items():
                if watches is None or name in watches or limited:
                    times.update(steps.times_ms)
        return sorted(times)

    def _view(self, site: Site) -> SiteView:
        watches, signals = self.policy.watches, self.signals[site.name]
        values = {
            name: steps.at_ms(self.env.now)
            for name, steps in signals.steps.items()
            if watches is None or name in watches
        }
        return SiteView(site.name, site.state, values, site.cluster.facility_kw("training"))

    def _note_window(self, name: str, wanted: bool) -> None:
        if wanted != (name in self._open):
            self._open ^= {name}
            self.recorder.event("window_opened" if wanted else "window_closed", name)

    def _want(self, site: Site) -> None:
        if self._marks.pop(site.name, None) is not None:
            self.recorder.event("deprovision_mark_cleared", site.name)
        if site.state == "off" and site.microgrids[0].supply_kw(self.env.now) >= site.cluster.peak_kw:
            self.recorder.event("provision_decided", site.name)
            site.start()

    def _mark(self, site: Site) -> None:
        self._marks[site.name] = self.env.now
        self.recorder.event("deprovision_marked", site.name)
        self.env.process(self._release(site, self.env.now))

    def _release(self, site: Site, mark_ms: int) -> Generator[simpy.Event, Any, None]:
        """Give a site back once its mark is old enough, unless the mark has been lifted."""
        yield self.env.timeout(to_ms(self.policy.release_delay_s))
        while self._marks.get(site.name) == mark_ms and site.state != "off":
            stay_ms = to_ms(self.policy.minimum_stay_s)
            left = stay_ms if site.state == "provisioning" and stay_ms else site.ready_ms + stay_ms - self.env.now
            if left <= 0 or (site.state == "provisioning" and not stay_ms):
                site.leave()
                del self._marks[site.name]
                return
            yield self.env.timeout(left)
