"""From a scenario to something that learns: text, trainers, strategy and grid put together."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from pydantic import TypeAdapter

from curtailsim.clock import Clock
from curtailsim.federation import Federation
from curtailsim.policy import load_object
from curtailsim.site import Site
from curtailsim.spec import Problem, ScenarioError
from curtailsim.training.app import AppGrid, run_server_app
from curtailsim.training.corpus import Corpus, assemble, pooled, split
from curtailsim.training.flower import SimGrid, StrategyLearner, make_context, prepare
from curtailsim.training.learner import GptTrainer, client_app, from_record, initial_arrays, to_record
from curtailsim.training.specs import Corpus as CorpusSpec
from curtailsim.training.strategies import build_strategy

if TYPE_CHECKING:
    from curtailsim.scenario import FlowerApp, Scenario

CORPUS: TypeAdapter[CorpusSpec] = TypeAdapter(CorpusSpec)


@lru_cache(maxsize=4)
def _assemble_once(spec: str) -> Corpus:
    """Every run of a scenario reads the same text."""
    return assemble(CORPUS.validate_json(spec))


def check_learner(scenario: Scenario) -> dict[str, str]:
    """Find what is wrong with a real learner before anything is run.

    Returns:
        What a manifest should say of it: the digest of the text, which differs between Python versions.

    Raises:
        ScenarioError: Text is missing, or apps cannot be imported.
    """
    from curtailsim.scenario import FlowerApp, TokensOnly

    spec = scenario.training.learner
    if isinstance(spec, TokensOnly):
        return {}
    prepare()
    if isinstance(spec, FlowerApp):
        _load_app(spec.server_app, "server_app", ServerApp)
        _load_app(spec.client_app, "client_app", ClientApp)
        return {}
    try:
        corpus = _assemble_once(spec.corpus.model_dump_json())
        split(corpus, [site.name for site in scenario.sites], spec.corpus, scenario.seed)
    except ScenarioError as error:
        problems = [Problem(f"training.learner.{p.path}", p.rule) for p in error.problems]
        raise ScenarioError("the scenario", problems) from None
    try:
        build_strategy(scenario.training.strategy)
    except Exception as error:
        raise ScenarioError("the scenario", [Problem("training.strategy", f"cannot be built: {error}")]) from None
    return {"corpus_sha256": corpus.sha256}


def build_learner(scenario: Scenario, sites: list[Site], is_pooled: bool) -> StrategyLearner:
    """The built-in GPT at every site.

    Args:
        scenario: What is asked.
        sites: Who trains.
        is_pooled: The (only) site trains on the text of all the scenario's sites.
    """
    prepare()
    spec = scenario.training.learner
    corpus = _assemble_once(spec.corpus.model_dump_json())  # type: ignore[union-attr]
    texts = split(corpus, [site.name for site in scenario.sites], spec.corpus, scenario.seed)  # type: ignore[union-attr]
    trainers, contexts = {}, {}
    for number, site in enumerate(sites):
        shard, stream = (pooled(texts), "all_sites") if is_pooled else (texts[site.name].training, site.name)
        trainers[number] = GptTrainer(spec, shard, stream, scenario.seed, texts[site.name].validation)  # type: ignore[arg-type]
        contexts[site.name] = make_context(site, number, len(sites))
    by_name = {site.name: trainers[number] for number, site in enumerate(sites)}
    judge = GptTrainer(spec, corpus.validation, "validation", scenario.seed)  # type: ignore[arg-type]

    def evaluate(arrays: ArrayRecord) -> float:
        return judge.evaluate(arrays, corpus.validation)

    return StrategyLearner(
        build_strategy(scenario.training.strategy),
        to_record(initial_arrays(spec, scenario.seed)),  # type: ignore[arg-type]
        client_app(trainers),
        contexts,
        lambda name: by_name[name].last_losses,
        evaluate,
        scenario.seed,
    )


def connect_learner(env: Clock, federation: Federation, learner: StrategyLearner) -> Callable[[], Any]:
    """Give a learner the grid of a simulation; returns a function for its final weights."""
    learner.grid = SimGrid(env, federation)
    return lambda: from_record(learner.arrays)


def connect_app(
    env: Clock, federation: Federation, spec: FlowerApp, seed: int
) -> tuple[Callable[[], None], Callable[[], Any]]:
    """A user's apps on the grid of a simulation.

    Returns:
        A function that runs the ServerApp, and one for the arrays of the last replies it was given.

    Raises:
        ScenarioError: The apps cannot be imported, or are not what they should be.
    """
    prepare()
    server = _load_app(spec.server_app, "server_app", ServerApp)
    client = _load_app(spec.client_app, "client_app", ClientApp)
    if server._main is None:  # built from a server_fn, it would run in threads of its own and in wall-clock time
        rule = f"{spec.server_app} has no @app.main(); the older server_fn form cannot run on a simulated clock"
        raise ScenarioError("the scenario", [Problem("training.learner.server_app", rule)])
    contexts = {
        site.name: make_context(site, number, len(federation.sites), spec.run_config)
        for number, site in enumerate(federation.sites)
    }
    grid = AppGrid(env, federation, client, contexts, spec.examples_per_step, spec.evaluate_share)

    def weights() -> dict[str, np.ndarray] | None:
        named: dict[str, np.ndarray] = {}
        for number, reply in enumerate(grid.last_replies):
            for record in reply.content.array_records.values():
                named |= {f"{number}.{key}": value for key, value in from_record(record).items()}
        return named or None

    return lambda: run_server_app(server, grid, dict(spec.run_config), seed), weights


def _load_app(reference: str, key: str, kind: type) -> Any:
    try:
        app = load_object(reference)
    except ValueError as error:
        raise ScenarioError("the scenario", [Problem(f"training.learner.{key}", str(error))]) from None
    if not isinstance(app, kind):
        raise ScenarioError(
            "the scenario",
            [Problem(f"training.learner.{key}", f"must be a {kind.__name__} (got {type(app).__name__})")],
        )
    return app
