"""Where does a published trace come from?  Public files at a fixed version, checked, and never half-written.

The files are not part of this repository; each comes with a note on what may be done with it.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from curtailsim.spec import Problem, ScenarioError, near_match

RAW_FILES = "https://raw.githubusercontent.com"
"""Host of single files of public repositories: <host>/<owner>/<name>/<commit>/<path>."""

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class DataSet:
    """One public file at a fixed version.

    Attributes:
        repository: Owner and name of the public repository.
        commit: Full commit.
        path: Path inside it.
        file: Name in the data folder.
        sha256: SHA-256 of the file's bytes.
        licence: What may be done with it.
    """

    repository: str
    commit: str
    path: str
    file: str
    sha256: str
    licence: str

    def url(self, base_url: str = RAW_FILES) -> str:
        """Address of the file."""
        return f"{base_url.rstrip('/')}/{self.repository}/{self.commit}/{self.path}"


@dataclass(frozen=True)
class Fetched:
    """A data set that is in place.

    Attributes:
        data: Which.
        path: Where.
        downloaded: False if it was there already.
    """

    data: DataSet
    path: Path
    downloaded: bool

    def __str__(self) -> str:
        done = "downloaded" if self.downloaded else "already there, nothing downloaded"
        source = f"{self.data.repository} at {self.data.commit[:7]}, {self.data.path}"
        return f"{self.path}: {done}; SHA-256 as expected\nSource: {source}\nLicence: {self.data.licence}"


DATA_SETS = {
    "curtail-llm": DataSet(
        repository="exalsius/curtail-llm",
        commit="017258ff2d0f83abe77264be7f958421daf81c00",
        path="evaluation/mci.csv",
        file="curtail_llm_mci.csv",
        sha256="5f557c35977f361deac9f64ea0721efeafa95d8f7e38295010c98bd475bb21a0",
        licence="repository without a licence file, data by WattTime; for tests and research, do not redistribute",
    ),
}


def data_folder(out: str | Path | None = None) -> Path:
    """The data folder: as asked, else the environment variable CURTAILSIM_DATA, else ./data."""
    return Path(out or os.environ.get("CURTAILSIM_DATA") or "data")


def fetch(name: str, out: str | Path | None = None, *, base_url: str = RAW_FILES) -> Fetched:
    """Have a public data set in the data folder; download it unless it is there already.

    Args:
        name: Key of `DATA_SETS`.
        out: Data folder; see `data_folder`. It is made if it is missing.
        base_url: Host to download from, for a mirror.

    Returns:
        Where it is, and whether it had to be downloaded.

    Raises:
        ScenarioError: There is no such data set, or it cannot be downloaded and written; the folder then holds
            what it held before.
    """
    if name not in DATA_SETS:
        raise ScenarioError("data fetch", [Problem("name", f"{name!r} is unknown{near_match(name, DATA_SETS)}")])
    data = DATA_SETS[name]
    path = data_folder(out) / data.file
    try:
        there = _sha256(path)
    except OSError as error:
        _fail(name, "folder", f"{path} cannot be read ({error.strerror or error}); choose another with --out")
    if there == data.sha256:
        return Fetched(data, path, downloaded=False)
    if there is not None:
        _fail(name, "file", f"{path} is another one (SHA-256 {there}, not {data.sha256}); move it away or use --out")
    _download(name, data.url(base_url), path, data.sha256)
    return Fetched(data, path, downloaded=True)


def _sha256(path: Path) -> str | None:
    """SHA-256 of a file; None if there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


def _download(name: str, url: str, path: Path, sha256: str) -> None:
    """Download to a temporary name beside `path` and move it there once its hash is right."""
    pooch, requests = _libraries(name)
    by_hand = f"get the file another way and put it at {path}"
    pooch.get_logger().setLevel("ERROR")
    whole = pooch.HTTPDownloader(timeout=TIMEOUT_S, stream=False)  # the connection is closed before anything is written
    try:
        pooch.retrieve(url, f"sha256:{sha256}", path.name, path.parent, downloader=whole)
    except requests.HTTPError as error:
        answer = f"{error.response.status_code} {error.response.reason}"
        _fail(name, "server", f"answered {answer} for {url}; {by_hand}")
    except (requests.exceptions.ChunkedEncodingError, requests.exceptions.ContentDecodingError):
        _fail(name, "transfer", f"of {url} broke off before the end and was thrown away; try again")
    except requests.RequestException as error:
        reason = type(error).__name__
        _fail(name, "network", f"{url} cannot be reached ({reason}); check the connection, or {by_hand}")
    except OSError as error:
        reason = error.strerror or str(error)
        _fail(name, "folder", f"{path.parent} cannot be written to ({reason}); choose another with --out")
    except ValueError:
        _fail(name, "SHA-256", f"of what {url} sent is not {sha256}; thrown away; try again, or {by_hand}")


def _libraries(name: str) -> tuple[Any, Any]:
    """The packages pooch and requests, which only this command needs."""
    try:
        import pooch
        import requests
    except ImportError as error:
        _fail(name, "pooch", f"cannot be imported ({error}): pip install pooch")
    return pooch, requests


def _fail(name: str, where: str, rule: str) -> NoReturn:
    raise ScenarioError(f"data fetch {name}", [Problem(where, rule)]) from None
