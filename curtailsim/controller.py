"""Turns a policy's wishes into starting and leaving sites, with the hysteresis that keeps them from flapping."""

from __future__ import annotations

from collections.abc import Collection

from curtailsim.clock import Clock, Process, settle, to_ms
from curtailsim.energy.signals import SiteSignals
from curtailsim.policy import Always, Custom, SiteView, Threshold
from curtailsim.protocol import Control
from curtailsim.recorder import Recorder
from curtailsim.site import Site
from curtailsim.spec import Problem, ScenarioError, near_match


class Controller:
    """Asks the policy whenever a signal it watches changes, or polls it.

    A site is started when it has been wanted for `acquire_delay_s`.  It is marked when it becomes unwanted and given
    back when the mark is `release_delay_s` old and the site has been ready for `minimum_stay_s`; a mark is lifted
    when the site is wanted again.

    Args:
        env: The clock. [ms]
        policy: Who should be on.
        control: How to look at it.
        sites: The sites it may use.
        signals: What each of them sees, by name.
        recorder: Where decisions are written down.
    """

    def __init__(
        self,
        env: Clock,
        policy: Always | Threshold | Custom,
        control: Control,
        sites: list[Site],
        signals: dict[str, SiteSignals],
        recorder: Recorder,
    ) -> None:
        self.env, self.policy, self.control, self.recorder = env, policy, control, recorder
        self.sites, self.signals = sites, signals
        self._open: set[str] = set()
        self._wanted_since: dict[str, int] = {}
        self._marks: dict[str, int] = {}
        self._stopped = False
        for site in sites:
            site.watchers.append(self._notice)

    def run(self) -> Process:
        """Decide at every change the policy, or a site's power limit, depends on; or poll."""
        if self.control.first_poll_s:
            yield self.env.timeout(to_ms(self.control.first_poll_s))
        if self.control.poll_interval_s is not None:
            yield from self._poll(to_ms(self.control.poll_interval_s))
        self.decide()
        for change_ms in self._changes():
            if change_ms > self.env.now:
                yield self.env.timeout(change_ms - self.env.now)
                self.decide()

    def stop(self) -> None:
        """Training is complete: every site is released at once; windows are still noted."""
        self._stopped = True
        for site in self.sites:
            site.release()

    def decide(self) -> None:
        """Compare what the policy wants with what there is."""
        wanted = self._wanted()
        for site in self.sites:
            self._decide(site, site.name in wanted)

    def _poll(self, pause_ms: int) -> Process:
        """Pass over the sites in their order, pause, and again."""
        while True:
            for site in self.sites:
                if self._decide(site, site.name in self._wanted()) and self.control.provisioning_blocks:
                    yield settle(self.env, delay_ms=to_ms(site.cluster.provisioning_delay_s))
            yield self.env.timeout(pause_ms)

    def _wanted(self) -> set[str]:
        views = [self._view(site) for site in self.sites]
        try:
            answer = self.policy.select(self.env.now / 1000, views)
        except (Exception, SystemExit) as error:
            # A user's own class may do anything; what it could have read is the likeliest help.
            offered = ", ".join(sorted({name for view in views for name in view.values}))
            rule = f"select failed at {self.env.now / 1000:g} s with {error!r}; site.values offers {offered}"
            raise self._mistake(rule) from error
        names = [site.name for site in self.sites]
        if isinstance(answer, str) or not isinstance(answer, Collection):
            raise self._mistake(f"select must return the names of sites, such as {set(names)} (got {answer!r:.60})")
        unknown = [name for name in answer if name not in names]
        if unknown:
            raise self._mistake(f"select wants {unknown[0]!r}, which is no site{near_match(str(unknown[0]), names)}")
        return set(answer)

    def _mistake(self, rule: str) -> ScenarioError:
        return ScenarioError("the policy", [Problem(self.policy.type, rule)])

    def _decide(self, site: Site, wanted: bool) -> bool:
        """Act on whether a site is wanted; whether that started it."""
        if wanted != (site.name in self._open):
            self._open ^= {site.name}
            self.recorder.event("window_opened" if wanted else "window_closed", site.name)
        if wanted:
            self._wanted_since.setdefault(site.name, self.env.now)
        else:
            self._wanted_since.pop(site.name, None)
        if self._stopped:
            return False
        if wanted:
            return self._want(site)
        if site.name in self._marks:
            if self.control.poll_interval_s is not None:
                self._release_if_due(site)
        elif site.state != "off" and (not site.leaving or self.control.remark_leaving):
            self._mark(site)
        return False

    def _notice(self, site: Site) -> None:
        """A site that went off while it is wanted may have to start again."""
        if site.state == "off":
            self._marks.pop(site.name, None)
            if self.control.poll_interval_s is None:
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

    def _want(self, site: Site) -> bool:
        if self._marks.pop(site.name, None) is not None:
            self.recorder.event("deprovision_mark_cleared", site.name)
        if site.state != "off":
            return False
        since, delay_ms = self._wanted_since[site.name], to_ms(self.policy.acquire_delay_s)
        if self.env.now < since + delay_ms:
            if self.control.poll_interval_s is None:
                self.env.process(self._look_again(since + delay_ms))
        elif site.microgrids[0].supply_kw(self.env.now) >= site.cluster.peak_kw * (1 - 1e-12):
            self.recorder.event("provision_decided", site.name)
            site.start()
            return True
        return False

    def _look_again(self, time_ms: int) -> Process:
        yield self.env.timeout(time_ms - self.env.now)
        self.decide()

    def _mark(self, site: Site) -> None:
        self._marks[site.name] = self.env.now
        self.recorder.event("deprovision_marked", site.name)
        if self.control.poll_interval_s is None:
            self.env.process(self._release(site, self.env.now))

    def _release(self, site: Site, mark_ms: int) -> Process:
        """Give a site back once its mark is old enough, unless the mark has been lifted."""
        yield self.env.timeout(to_ms(self.policy.release_delay_s))
        while self._marks.get(site.name) == mark_ms and not self._release_if_due(site):
            stay_ms = to_ms(self.policy.minimum_stay_s)
            yield self.env.timeout(stay_ms if site.state == "provisioning" else site.ready_ms + stay_ms - self.env.now)

    def _release_if_due(self, site: Site) -> bool:
        """Give a marked site back if its time has come; whether there is nothing more to wait for."""
        stay_ms = to_ms(self.policy.minimum_stay_s)
        old_enough = self.env.now >= self._marks[site.name] + to_ms(self.policy.release_delay_s)
        stayed = self.env.now >= site.ready_ms + stay_ms if site.state != "provisioning" else not stay_ms
        if site.state == "off" or site.leaving:
            return True
        if old_enough and stayed:
            del self._marks[site.name]
            site.leave()
            return True
        return False
