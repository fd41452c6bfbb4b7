"""What happens to emissions, cost, wasted renewable energy and the loss when a language model trains on curtailment?

scenario = load("scenarios/three_sites.yaml", ["policy.release_delay_s=300"])
results = run(scenario)
results.summary["emission_ratio"], results.rounds("curtailment_aware")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from curtailsim.results import Results, open_results, run
    from curtailsim.scenario import Scenario, load
    from curtailsim.spec import ScenarioError

__all__ = ["Results", "Scenario", "ScenarioError", "load", "open_results", "run"]

_HOMES = {
    "Results": "results",
    "Scenario": "scenario",
    "ScenarioError": "spec",
    "load": "scenario",
    "open_results": "results",
    "run": "results",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `--help` must not wait for pandas."""
    if name not in _HOMES:
        raise AttributeError(f"module 'curtailsim' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"curtailsim.{_HOMES[name]}"), name)
