"""How sites, server and controller deal with each other.

The defaults are clean: nobody waits in vain, nothing is lost, and exchanges take only the time the cluster's own
phases say.  Every mechanism of the system of arXiv:2602.22760 is a setting here, so that the published run can be
replayed and each of its oddities removed one at a time.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from curtailsim.spec import Spec

Seconds = Annotated[float, Field(ge=0)]


class Control(Spec):
    """How the controller looks at the policy.

    Attributes:
        poll_interval_s: Pause between two passes over the sites; absent: it looks whenever a signal changes. [s]
        first_poll_s: Time of the first look. [s]
        provisioning_blocks: While a site is being provisioned no other one is looked at (polling only).
        remark_leaving: A site that is leaving already is marked once more (polling only).
    """

    poll_interval_s: Annotated[float, Field(ge=0.001)] | None = None
    first_poll_s: Seconds = 0.0
    provisioning_blocks: bool = False
    remark_leaving: bool = False


class RoundRules(Spec):
    """How a round goes.

    Attributes:
        round_opens: A round is opened when a site is ready, or at_once after the last one, and then waits.
        join_s: From a provisioned cluster to a site the server knows. [s]
        name_query_s: Asking newcomers who they are before a round is sent out. [s]
        startup_s: From dispatch to a site's first step, beside the cluster's own phases. [s]
        startup_per_site_s: More of it for every site in the round. [s]
        first_startup_s: More of it in the very first round. [s]
        round_timer_from: The round's time counts from the first site's first step, or from dispatch.
        alone: A site that trains by itself does so until another joins, or first for a round's time and then
            until another joins (which also lets a federated round go on when only one site is left).
        recheck_s: How often it is checked whether another has joined, after a round's time. [s]
        return_s: From a site's last step to its reply, beside the cluster's own phases. [s]
        return_per_site_s: More of it for every site that is still in the round. [s]
        aggregation_s: Making one model of the replies. [s]
        late_update: A leaver's work is merged at the round's end, or its reply closes_round.
        leaver_waits: A leaving site goes off after its own_reply, or at round_end.
        stop_timeout_s: It goes off after this long at most; what has not arrived by then is lost. [s]
        stop_reaches_loading: Whether a site that has not begun to train yet hears that it has to leave.
        exit_s: How long the server still counts a site that is off. [s]
        budget_split: What is left of the token budget is shared out by_speed or in equal parts.
        uneven_shares: Or in these proportions, by site name, as where data is not cut evenly.
        exhaustion_hang_s: A site that has used up its part hangs this long, and its reply is lost. [s]
    """

    round_opens: Literal["when_ready", "at_once"] = "when_ready"
    join_s: Seconds = 0.0
    name_query_s: Seconds = 0.0
    startup_s: Seconds = 0.0
    startup_per_site_s: Seconds = 0.0
    first_startup_s: Seconds = 0.0
    round_timer_from: Literal["first_step", "dispatch"] = "first_step"
    alone: Literal["until_joined", "timer_then_until_joined"] = "until_joined"
    recheck_s: Annotated[float, Field(ge=0.001)] = 10.0
    return_s: Seconds = 0.0
    return_per_site_s: Seconds = 0.0
    aggregation_s: Seconds = 0.0
    late_update: Literal["round_end", "closes_round"] = "round_end"
    leaver_waits: Literal["own_reply", "round_end"] = "own_reply"
    stop_timeout_s: Seconds | None = None
    stop_reaches_loading: bool = True
    exit_s: Seconds = 0.0
    budget_split: Literal["by_speed", "equal"] = "by_speed"
    uneven_shares: dict[str, Annotated[float, Field(gt=0)]] | None = None
    exhaustion_hang_s: Seconds = 0.0

    def startup(self, sites: int, first: bool) -> float:
        """From dispatch to a site's first step, in a round of so many sites. [s]"""
        return self.startup_s + self.startup_per_site_s * sites + self.first_startup_s * first

    def giving_back(self, sites: int) -> float:
        """From a site's last step to its reply, in a round of so many sites. [s]"""
        return self.return_s + self.return_per_site_s * sites
