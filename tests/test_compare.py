"""Two runs, or a run and a published log, laid side by side."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared import REPOSITORY, shared_data
from typer.testing import CliRunner

from curtailsim.cli import app
from curtailsim.compare import compare, compare_numbers, pair_in_order, read_log
from curtailsim.spec import ScenarioError

OURS = """time_s,event,site,round,detail
0.0,run_started,,,
0.0,round_started,,1,
60.0,window_opened,california,,
60.0,provision_decided,california,,
300.0,provisioned,california,,
900.0,round_ended,,1,california
902.0,aggregated,,1,california
902.0,round_started,,2,
1500.0,round_ended,,2,california
1502.0,aggregated,,2,california
"""

PUBLISHED = """wall_time,elapsed_s,event_type,round,client,details
2026-02-02 17:47:38,0.0,EXPERIMENT_START,,,"client_0, client_1, client_2"
2026-02-02 17:47:38,0.0,ROUND_START,1,,
2026-02-02 17:48:40,61.5,PROVISION_DECISION,,client_0,mci=68.9
2026-02-02 17:52:36,298.0,PROVISION_COMPLETE,,client_0,"pid=14417 gpus=0,1,2,3"
2026-02-02 17:53:38,360.0,CLIENT_CONNECTED,,client_0,
2026-02-02 18:02:38,900.5,ROUND_END,1,,clients=1
2026-02-02 18:02:40,902.25,ROUND_START,2,,
2026-02-02 18:12:40,1506.0,AGGREGATION,2,,num_clients=1
2026-02-02 18:12:38,1500.0,ROUND_END,2,,clients=1
"""

SITES = ("california", "texas", "south_australia")


def folder(path: Path, events: str = OURS, summary: dict[str, Any] | None = None) -> Path:
    """A results folder with one run, written by hand."""
    path.mkdir()
    runs = {"runs": {"curtailment_aware": {"energy_kwh": 10.0, "sites": {}}}}
    manifest = {"status": "complete", "scenario": {"sites": [{"name": name} for name in SITES]}}
    (path / "summary.json").write_text(json.dumps(summary or runs))
    (path / "manifest.json").write_text(json.dumps(manifest))
    (path / "curtailment_aware").mkdir()
    (path / "curtailment_aware" / "events.csv").write_text(events)
    return path


def log(path: Path, text: str = PUBLISHED) -> Path:
    """A log file."""
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return path


def errors(count: dict[str, Any]) -> tuple[Any, ...]:
    """A count without its names."""
    return tuple(count.values())


def test_published_log(tmp_path: Path) -> None:
    """Every kind is counted and timed; what has no counterpart is missing, extra or not compared."""
    found = compare(folder(tmp_path / "run"), log=log(tmp_path / "log.csv")).alignments[0]
    assert {kind: errors(found.count(kind)) for kind in found.kinds} == {
        # ours, theirs, matched, missing, extra, mean and maximum error [s]
        "round_started": (2, 2, 2, 0, 0, 0.125, 0.25),
        "provision_decided": (1, 1, 1, 0, 0, 1.5, 1.5),
        "provisioned": (1, 1, 1, 0, 0, 2.0, 2.0),
        "client_connected": (0, 1, 0, 1, 0, None, None),
        "round_ended": (2, 2, 2, 0, 0, 0.25, 0.5),
        "aggregated": (2, 1, 1, 0, 1, 4.0, 4.0),
    }
    assert errors(found.count()) == (8, 8, 7, 1, 1, 1.179, 4.0)
    assert [(pair.ours.kind, pair.ours.site, pair.error_s) for pair in found.worst(3)] == [
        ("aggregated", "", -4.0),
        ("provisioned", "california", 2.0),
        ("provision_decided", "california", -1.5),
    ]
    assert found.missing == [(360.0, "client_connected", "california", "")]
    assert found.extra == [(902.0, "aggregated", "", "1")]
    assert found.not_compared == {"run_started": 1, "window_opened": 1}


def test_own_log(tmp_path: Path) -> None:
    """With an events.csv of ours every kind is compared, but for the zero of the clock."""
    theirs = OURS.replace("60.0,window", "50.0,window").replace("902.0,aggregated,,1,california\n", "")
    found = compare(folder(tmp_path / "run"), log=log(tmp_path / "events.csv", theirs)).alignments[0]
    assert errors(found.count()) == (9, 8, 8, 0, 1, 1.25, 10.0)
    assert found.extra == [(902.0, "aggregated", "", "1")]
    assert found.not_compared == {"run_started": 1}


@pytest.mark.parametrize(
    ("ours", "theirs", "within_s", "pairs"),
    [
        pytest.param([], [], None, [], id="nothing"),
        pytest.param([1, 2], [], None, [], id="one side only"),
        pytest.param([0, 100, 200], [90, 190, 900], None, [(0, 0), (1, 1), (2, 2)], id="as many: in order"),
        pytest.param([0, 200, 300], [1, 101, 201, 301], None, [(0, 0), (1, 2), (2, 3)], id="one missing"),
        pytest.param([0, 100, 200, 300], [99, 299], None, [(1, 0), (3, 1)], id="two extra"),
        pytest.param([0, 100, 200], [90, 190, 900], 10, [(1, 0), (2, 1)], id="limit: one missing and one extra"),
        pytest.param([0, 100], [10, 90], 9.999, [], id="limit: none near enough"),
        pytest.param([0, 100], [10, 90], 10, [(0, 0), (1, 1)], id="limit: exactly near enough"),
    ],
)
def test_pair_in_order(
    ours: list[float], theirs: list[float], within_s: float | None, pairs: list[tuple[int, int]]
) -> None:
    """As many pairs as possible, in order, with the smallest sum of errors."""
    assert pair_in_order(ours, theirs, within_s) == pairs


times = st.lists(st.integers(0, 30), max_size=5).map(sorted)


@given(ours=times, theirs=times, within_s=st.sampled_from([None, 0, 3, 10]))
def test_pairing_is_the_best_one(ours: list[float], theirs: list[float], within_s: float | None) -> None:
    """No other pairing in order has more pairs, or as many and a smaller sum of errors."""

    def allowed() -> Any:
        for size in range(min(len(ours), len(theirs)) + 1):
            for left in itertools.combinations(ours, size):
                for right in itertools.combinations(theirs, size):
                    gaps = [abs(a - b) for a, b in zip(left, right, strict=True)]
                    if within_s is None or all(gap <= within_s for gap in gaps):
                        yield -size, sum(gaps)

    pairs = pair_in_order(ours, theirs, within_s)
    assert pairs == sorted(pairs)
    assert (-len(pairs), sum(abs(ours[i] - theirs[j]) for i, j in pairs)) == min(allowed())


def test_clients(tmp_path: Path) -> None:
    """A client stands for the site it is said to stand for."""
    named = log(tmp_path / "log.csv", PUBLISHED.replace("client_0,", "here,"))
    found = compare(folder(tmp_path / "run"), log=named, clients=["here=california"]).alignments[0]
    assert found.count("provisioned")["matched"] == 1
    assert read_log(tmp_path / "log.csv", {"here": "texas"}).events[1].site == "texas"


SUMMARY = {
    "scenario": "x",
    "seed": 0,
    "emission_ratio": {"base": 0.5},
    "runs": {
        "curtailment_aware": {
            "energy_kwh": 11.0,
            "cost": 0.0,
            "share": None,
            "sites": {"texas": {"hours": {"off": 3}}},
        },
        "base": {"energy_kwh": 20},
    },
}


def test_numbers() -> None:
    """All numbers, by run and site, with difference and relative change against the second."""
    other = json.loads(json.dumps(SUMMARY))
    other["runs"]["curtailment_aware"].update(energy_kwh=10.0, share=0.25)
    other["runs"]["curtailment_aware"]["sites"]["texas"]["hours"]["off"] = 4
    other["emission_ratio"]["base"] = -0.25
    del other["runs"]["base"]
    found = compare_numbers(SUMMARY, other)
    assert [(*vars(number).values(), number.difference, number.relative) for number in found] == [
        ("curtailment_aware", "", "energy_kwh", 11.0, 10.0, 1.0, 0.1),
        ("curtailment_aware", "", "cost", 0.0, 0.0, 0.0, None),
        ("curtailment_aware", "", "share", None, 0.25, None, None),
        ("curtailment_aware", "texas", "hours.off", 3, 4, -1, -0.25),
        ("base", "", "emission_ratio", 0.5, -0.25, 0.75, 3.0),
        ("base", "", "energy_kwh", 20, None, None, None),
        ("", "", "seed", 0, 0, 0, None),
    ]
    assert [number.name for number in compare_numbers(SUMMARY, other, "base")] == ["emission_ratio", "energy_kwh"]


def test_two_folders_and_a_log(tmp_path: Path) -> None:
    """One command compares numbers and events with another folder, and events with a log; JSON says the same."""
    ours = folder(tmp_path / "ours", summary=SUMMARY)
    theirs = folder(tmp_path / "theirs", OURS.replace("902.0,aggregated", "912.0,aggregated"))
    arguments = ["compare", str(ours), str(theirs), "--events", str(log(tmp_path / "log.csv"))]
    plain, as_json = (CliRunner().invoke(app, [*arguments, *more]) for more in ([], ["--json"]))
    assert (plain.exit_code, as_json.exit_code) == (0, 0)
    shown = plain.stdout.splitlines()
    first = next(line for line in shown if "energy_kwh" in line)
    assert [cell.strip() for cell in first.split("│")[2:-1]] == ["energy_kwh", "11", "10", "1", "+10.00 %"]
    assert "Worst: aggregated (round 1) at 902.0 s instead of 912.0 s (-10.0 s)" in shown
    assert "Missing: client_connected california at 360.0 s" in shown
    assert "Extra: aggregated (round 1) at 902.0 s" in shown
    found = json.loads(as_json.stdout)
    assert [event["reference"] for event in found["events"]] == [str(theirs), str(tmp_path / "log.csv")]
    assert found["events"][0]["kinds"]["aggregated"] == {
        "ours": 2,
        "theirs": 2,
        "matched": 2,
        "missing": 0,
        "extra": 0,
        "mean_abs_error_s": 5.0,
        "max_abs_error_s": 10.0,
    }
    assert found["events"][0]["worst"] == [
        {"time_s": 902.0, "kind": "aggregated", "site": "", "round": "1", "reference_s": 912.0, "error_s": -10.0}
    ]
    assert found["numbers"][0] == {
        "run": "curtailment_aware",
        "site": "",
        "name": "energy_kwh",
        "value": 11.0,
        "other": 10.0,
        "difference": 1.0,
        "relative": 0.1,
    }


def test_same_folder(tmp_path: Path) -> None:
    """A run does not differ from itself."""
    ours = folder(tmp_path / "ours", summary=SUMMARY)
    found = compare(ours, ours)
    assert {number.difference for number in found.numbers} == {0}
    assert errors(found.alignments[0].count()) == (9, 9, 9, 0, 0, 0.0, 0.0)
    assert found.alignments[0].worst() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", r"columns  must include elapsed_s, .* or time_s, .*; there are none", id="empty"),
        pytest.param(
            PUBLISHED.replace("elapsed_s", "seconds"), r"there are wall_time, seconds, event_type", id="column"
        ),
        pytest.param(
            PUBLISHED.replace("ROUND_END", "ROUND_ENDED"),
            r"line 7, event_type  'ROUND_ENDED' is unknown; did you mean 'ROUND_END'",
            id="kind",
        ),
        pytest.param(
            PUBLISHED.replace("61.5", "soon"), r"line 4, elapsed_s  must be seconds \(got 'soon'\)", id="time"
        ),
        pytest.param(OURS.replace("300.0", "nan"), r"line 6, time_s  must be seconds \(got 'nan'\)", id="no time"),
        pytest.param(PUBLISHED.replace("client_0,", "me,"), r"line 4, client  'me' stands for no site", id="client"),
        pytest.param("\udcff", r"file  cannot be read as CSV \('utf-8' codec can't decode", id="bytes"),
    ],
)
def test_bad_log(tmp_path: Path, text: str, message: str) -> None:
    """A log that cannot be understood is one message that says where."""
    with pytest.raises(ScenarioError, match=message):
        compare(folder(tmp_path / "run"), log=log(tmp_path / "log.csv", text))


def test_all_mistakes_of_a_log_at_once(tmp_path: Path) -> None:
    """One message lists every kind of mistake, each with its first line."""
    text = PUBLISHED.replace("61.5", "soon").replace("client_0,", "me,").replace("AGGREGATION", "SUM")
    with pytest.raises(ScenarioError) as raised:
        compare(folder(tmp_path / "run"), log=log(tmp_path / "log.csv", text))
    assert [problem.path for problem in raised.value.problems] == [
        "line 4, elapsed_s",
        "line 4, client",
        "line 9, event_type",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param([], "OTHER  is missing: name a second results folder, or --events LOG.csv", id="nothing"),
        pytest.param(
            ["--events", "absent.csv"], "file  cannot be read as CSV (No such file or directory)", id="no log"
        ),
        pytest.param(["--events", "run"], "file  cannot be read as CSV (Is a directory)", id="folder as log"),
        pytest.param(
            ["absent"], "manifest.json  is missing: this is no results folder; check the path", id="no folder"
        ),
        pytest.param(["run", "--run", "aware"], "--run  'aware' is unknown", id="run"),
        pytest.param(["--events", "log.csv", "--client", "me"], "--client  must be NAME=SITE", id="no client"),
        pytest.param(
            ["--events", "log.csv", "--client", "me=texs"],
            "--client  me=texs: 'texs' is no site of these results; did you mean 'texas'?",
            id="no site",
        ),
    ],
)
def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str) -> None:
    """A mistake on the command line is one message and exit code 2."""
    monkeypatch.chdir(tmp_path)
    folder(Path("run"))
    log(Path("log.csv"))
    done = CliRunner().invoke(app, ["compare", "run", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert "has a problem:\n" in done.stderr


# Shifts of our own events, in the reference's favour [s]; sites and rounds as in the replay.
SHIFTS = {
    "provision_decided": ("PROVISION_DECISION", 1.0),
    "provisioning_started": ("PROVISION_START", 1.0),
    "provisioned": ("PROVISION_COMPLETE", -2.0),
    "client_connected": ("CLIENT_CONNECTED", 0.0),
    "deprovision_marked": ("DEPROVISION_MARKED", 3.0),
    "deprovision_started": ("DEPROVISION_STARTED", 0.5),
    "deprovisioned": ("DEPROVISION", -0.5),
    "round_started": ("ROUND_START", 12.0),
    "round_ended": ("ROUND_END", 8.0),
    "aggregated": ("AGGREGATION", -4.0),
}


def test_replay_against_its_own_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay's own events in the published format, shifted, one left out and one added, are found as such."""
    monkeypatch.setenv("CURTAILSIM_DATA", str(shared_data("curtail_llm_mci.csv").parent))
    from curtailsim.scenario import load
    from curtailsim.simulation import HEADLINE, plans, simulate

    scenario = load(REPOSITORY / "scenarios" / "paper.yaml", ["training.learner={type: tokens_only}"])
    events = simulate(scenario, next(plans(scenario)))[HEADLINE].events
    clients = {"california": "client_0", "texas": "client_1", "south_australia": "client_2", "": ""}
    lines = ["wall_time,elapsed_s,event_type,round,client,details", "-,0.0,EXPERIMENT_START,,,"]
    for time_s, event, site, number, _ in events.itertuples(index=False):
        if event in SHIFTS and not (event == "aggregated" and number == 5):
            kind, shift_s = SHIFTS[event]
            lines.append(f"-,{time_s + shift_s},{kind},,{clients[site]},")
    lines.append("-,50000.0,DEPROVISION,,client_2,")
    ours = folder(tmp_path / "run", events.to_csv(index=False))
    found = compare(ours, log=log(tmp_path / "log.csv", "\n".join(lines) + "\n")).alignments[0]
    assert {kind: errors(found.count(kind)) for kind in found.kinds} == {
        "round_started": (39, 39, 39, 0, 0, 12.0, 12.0),
        "provision_decided": (4, 4, 4, 0, 0, 1.0, 1.0),
        "provisioning_started": (4, 4, 4, 0, 0, 1.0, 1.0),
        "provisioned": (4, 4, 4, 0, 0, 2.0, 2.0),
        "client_connected": (4, 4, 4, 0, 0, 0.0, 0.0),
        "deprovision_marked": (5, 5, 5, 0, 0, 3.0, 3.0),
        "deprovision_started": (2, 2, 2, 0, 0, 0.5, 0.5),
        "round_ended": (38, 38, 38, 0, 0, 8.0, 8.0),
        "deprovisioned": (2, 3, 2, 1, 0, 0.5, 0.5),
        "aggregated": (37, 36, 36, 0, 1, 4.0, 4.0),
    }
    assert (found.count()["ours"], found.count()["theirs"]) == (139, 139)
    assert [(event.kind, event.site, event.time_s) for event in found.missing] == [
        ("deprovisioned", "south_australia", 50000.0)
    ]
    assert [(event.kind, event.round) for event in found.extra] == [("aggregated", "5")]
    assert {"window_opened", "training_finished", "released", "run_ended"} <= set(found.not_compared)
