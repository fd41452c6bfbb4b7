"""Published traces: downloaded whole and checked, or not at all."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from shared import shared_data
from typer.testing import CliRunner

from curtailsim import download
from curtailsim.cli import app
from curtailsim.spec import ScenarioError

BODY = b"point_time,here\n2026-01-11 17:00:00+00:00,12.5\n"
DATA = download.DataSet(
    repository="someone/something",
    commit="0" * 40,
    path="folder/file.csv",
    file="trace.csv",
    sha256=hashlib.sha256(BODY).hexdigest(),
    licence="none; for this test only",
)


class Server(ThreadingHTTPServer):
    """A server on loopback that sends what it is told to and remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body, self.status, self.promised = BODY, 200, len(BODY)
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """Answers every request in the same way."""

    server: Server

    def do_GET(self) -> None:
        """Send the body, whatever length was promised."""
        self.server.asked.append(self.path)
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(self.server.promised))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A running server, which a proxy of this machine does not stand before, and a data set it may have."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setitem(download.DATA_SETS, "something", DATA)
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_success(server: Server, tmp_path: Path) -> None:
    """The file is in the folder, which is made, under its own name; nothing else is."""
    fetched = download.fetch("something", tmp_path / "new" / "data", base_url=server.url)
    assert fetched == download.Fetched(DATA, tmp_path / "new" / "data" / "trace.csv", downloaded=True)
    assert fetched.path.read_bytes() == BODY
    assert [path.name for path in fetched.path.parent.iterdir()] == ["trace.csv"]
    assert server.asked == [f"/someone/something/{'0' * 40}/folder/file.csv"]
    assert str(fetched).splitlines() == [
        f"{fetched.path}: downloaded; SHA-256 as expected",
        "Source: someone/something at 0000000, folder/file.csv",
        "Licence: none; for this test only",
    ]


def test_already_there(server: Server, tmp_path: Path) -> None:
    """A file with the right hash is left alone, and the server is not asked."""
    (tmp_path / "trace.csv").write_bytes(BODY)
    fetched = download.fetch("something", tmp_path, base_url=server.url)
    assert not fetched.downloaded
    assert server.asked == []


def test_another_file_is_there(server: Server, tmp_path: Path) -> None:
    """A file of the same name with other content is the user's: it is neither replaced nor used."""
    (tmp_path / "trace.csv").write_bytes(b"mine")
    with pytest.raises(ScenarioError, match=r"trace\.csv is another one .*move it away or use --out"):
        download.fetch("something", tmp_path, base_url=server.url)
    assert (tmp_path / "trace.csv").read_bytes() == b"mine"
    assert server.asked == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param({"body": BODY[:-1] + b" "}, r"SHA-256  of what http://.* is not [0-9a-f]{64}", id="wrong hash"),
        pytest.param({"body": b"", "promised": 0}, r"SHA-256  of what http://.* is not [0-9a-f]{64}", id="empty"),
        pytest.param({"promised": len(BODY) + 1000}, r"transfer  of http://.* broke off", id="truncated"),
        pytest.param({"status": 404}, r"server  answered 404 Not Found for http://", id="absent"),
        pytest.param({"status": 503}, r"server  answered 503 Service Unavailable for http://", id="out of order"),
    ],
)
def test_nothing_is_left_over(server: Server, tmp_path: Path, answer: dict[str, object], message: str) -> None:
    """A download that went wrong is one message and leaves the folder as it was."""
    vars(server).update(answer)
    with pytest.raises(ScenarioError, match=message):
        download.fetch("something", tmp_path, base_url=server.url)
    assert list(tmp_path.iterdir()) == []
    assert len(server.asked) == 1


def test_no_network(server: Server, tmp_path: Path) -> None:
    """Where nobody listens, the message says what to do without a network."""
    server.server_close()
    with pytest.raises(ScenarioError, match=r"network  http://127.* cannot be reached \(ConnectionError\).*put it at "):
        download.fetch("something", tmp_path, base_url=server.url)
    assert list(tmp_path.iterdir()) == []


def test_unwritable_folder(server: Server, tmp_path: Path) -> None:
    """A folder that cannot be one is a clear message, and so is one below it."""
    (tmp_path / "file").write_bytes(b"mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ScenarioError, match=r"folder  .*file.* \(Not a directory\); choose another with --out"):
            download.fetch("something", folder, base_url=server.url)
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_disk_full(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that takes no new file is a clear message."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pooch.core.shutil.move", refuse)
    with pytest.raises(ScenarioError, match=r"folder  .* cannot be written to \(No space left on device\)"):
        download.fetch("something", tmp_path, base_url=server.url)
    assert list(tmp_path.iterdir()) == []


def test_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As asked; else as the environment says; else ./data."""
    monkeypatch.setenv("CURTAILSIM_DATA", "named")
    assert download.data_folder("asked") == Path("asked")
    assert download.data_folder() == Path("named")
    monkeypatch.delenv("CURTAILSIM_DATA")
    assert download.data_folder() == Path("data")


def test_published_trace_is_the_shared_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared copy has the registered hash, so with it the command needs no network and states the licence."""
    path = shared_data("curtail_llm_mci.csv")
    monkeypatch.setenv("CURTAILSIM_DATA", str(path.parent))
    done = CliRunner().invoke(app, ["data", "fetch", "curtail-llm"])
    assert done.exit_code == 0
    assert "already there" in done.stdout
    assert "do not redistribute" in done.stdout


def test_unknown_name() -> None:
    """A name that is not registered is exit code 2 and a near match."""
    done = CliRunner().invoke(app, ["data", "fetch", "curtail_llm"])
    assert done.exit_code == 2
    assert done.stderr == (
        "data fetch has a problem:\n  name  'curtail_llm' is unknown; did you mean 'curtail-llm'? (curtail-llm)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["generate", "--days", "400"], "calendar year", id="too many days"),
        pytest.param(["generate", "--start", "soon"], "start must be an ISO date", id="no date"),
        pytest.param(["verify", "nowhere"], "no such file; write the data first", id="no manifest"),
    ],
)
def test_generator_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    """What the generator cannot do is one line and exit code 2."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["data", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_generator_without_pvlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pvlib the message says how to get it."""
    monkeypatch.setitem(sys.modules, "pvlib", None)
    done = CliRunner().invoke(app, ["data", "generate", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert done.stderr.startswith("generating data needs pvlib, which is not installed: pip install")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", download.DATA_SETS.values(), ids=download.DATA_SETS)
def test_registry(data: download.DataSet) -> None:
    """Every data set is pinned by a full commit and a whole SHA-256, and says what may be done with it."""
    assert (len(data.commit), len(data.sha256)) == (40, 64)
    assert data.url().startswith(f"https://raw.githubusercontent.com/{data.repository}/{data.commit}/")
    assert data.licence
