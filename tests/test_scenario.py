"""What a scenario may say, and what is said about every mistake in one."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from curtailsim.cli import app
from curtailsim.scenario import dump, load
from curtailsim.spec import ScenarioError

SCENARIO = """\
start: 2026-01-01T00:00:00Z
duration_h: 1
workload: {parameters: 1e6, tokens_per_step: 100}
sites:
  - name: california
    cluster: &cluster {accelerator: H100, count: 4, step_time_s: 10, pue: 1.1}
    mci: {type: trace, path: mci.csv, value: mci_g_per_kwh, unit: g/kWh}
  - name: texas
    cluster: *cluster
    mci: {type: constant, value: 0.4, unit: kg/kWh}
policy: {type: threshold, threshold_g_per_kwh: 100}
training: {learner: {type: tokens_only}}
"""
ROWS = [f"2026-01-01T00:{minute:02d}:00Z,{80 + minute}" for minute in range(0, 60, 5)]


def changed(*swaps: tuple[str, str]) -> str:
    """The scenario with pieces of its text replaced."""
    text = SCENARIO
    for old, new in swaps:
        assert old in text, old
        text = text.replace(old, new)
    return text


def stored(folder: Path, text: str = SCENARIO, rows: list[str] = ROWS) -> Path:
    """A scenario file and the trace it reads."""
    (folder / "mci.csv").write_text("\n".join(["time,mci_g_per_kwh", *rows]) + "\n")
    path = folder / "tiny.yaml"
    path.write_text(text)
    return path


def mistakes(path: Path, *overrides: str) -> dict[str, str]:
    """Every problem of a scenario: path to rule."""
    with pytest.raises(ScenarioError) as caught:
        load(path, overrides)
    assert len({problem.path for problem in caught.value.problems}) == len(caught.value.problems)
    return {problem.path: problem.rule for problem in caught.value.problems}


def without(row: int, replacement: str | None = None) -> list[str]:
    """The trace with a row left out or replaced."""
    return [*ROWS[:row], *([] if replacement is None else [replacement]), *ROWS[row + 1 :]]


MISTAKES = {
    "unknown_key": (
        changed(("threshold_g_per_kwh", "threshhold_g_per_kwh")),
        ROWS,
        r"policy\.threshhold_g_per_kwh +unknown key; did you mean 'threshold_g_per_kwh'\?",
    ),
    "missing_file": (
        changed(("mci.csv", "nowhere.csv")),
        ROWS,
        r"sites\[0\]\.mci +\S+nowhere\.csv: no such file; check the path",
    ),
    "naive_stamps": (
        SCENARIO,
        [row.replace("Z", "") for row in ROWS],
        r"sites\[0\]\.mci +\S+mci\.csv, line 2: the stamp '2026-01-01T00:00:00' carries no time zone; set tz",
    ),
    "trace_too_short": (
        SCENARIO,
        ROWS[:6],
        r"sites\[0\]\.mci +mci\.csv.*covers 2026-01-01T00:00:00Z to 2026-01-01T00:30:00Z.*wrap: true",
    ),
    "nan_row": (
        SCENARIO,
        without(3, "2026-01-01T00:15:00Z,NaN"),
        r"sites\[0\]\.mci +\S+mci\.csv, line 5: no value of 'mci_g_per_kwh' \(1 of 12 .*set fill",
    ),
    "unsorted_rows": (
        SCENARIO,
        [ROWS[1], ROWS[0], *ROWS[2:]],
        r"sites\[0\]\.mci +\S+mci\.csv, line 3: the stamps go back .* put the rows in order",
    ),
    "duplicate_stamps": (
        SCENARIO,
        [*ROWS[:4], "2026-01-01T00:15:00Z,99", *ROWS[4:]],
        r"sites\[0\]\.mci +\S+mci\.csv, line 6: 2026-01-01T00:15:00Z occurs before on line 5.*set duplicates",
    ),
    "pue_below_1": (
        changed(("*cluster", "{accelerator: H100, count: 4, step_time_s: 10, pue: 0.9}")),
        ROWS,
        r"sites\[1\]\.cluster\.pue +must be at least 1 \(got 0\.9\)",
    ),
    "unknown_accelerator": (
        changed(("*cluster", "{accelerator: H1000, count: 4, step_time_s: 10}")),
        ROWS,
        r"sites\[1\]\.cluster\.accelerator +'H1000' is unknown; did you mean 'H100'\? \(A100-40G",
    ),
    "two_sites_of_one_name": (
        changed(("name: texas", "name: california")),
        ROWS,
        r"sites\[1\]\.name +'california' is already the name of sites\[0\]; rename one",
    ),
    "no_sites": (
        re.sub(r"sites:.*(?=policy:)", "sites: []\n", SCENARIO, flags=re.DOTALL),
        ROWS,
        r"sites +must list at least 1; add one \(got an empty list\)",
    ),
    "yaml_syntax": (
        changed(("duration_h: 1", "duration_h: [1")),
        ROWS,
        r"line 3, column 9 +is not valid YAML: expected .*; correct it there",
    ),
    "carbon_trace_without_unit": (
        changed((", unit: g/kWh}", "}")),
        ROWS,
        r"sites\[0\]\.mci\.unit +is required; add it: g/kWh, kg/kWh or lb/MWh",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_gives_one_clear_message(name: str, tmp_path: Path) -> None:
    """Path, rule, value and repair; exit code 2; no traceback."""
    text, rows, expected = MISTAKES[name]
    path = stored(tmp_path, text, rows)
    for command in ("check", "run"):
        done = CliRunner().invoke(app, [command, str(path)])
        assert done.exit_code == 2
        assert done.stdout == ""
        first, *problems = done.stderr.splitlines()
        assert first == f"{path} has a problem:"
        assert len(problems) == 1
        assert re.search(expected, problems[0]), problems[0]
    assert sorted(tmp_path.iterdir()) == [tmp_path / "mci.csv", path]


def test_the_scenario_itself_is_fine(tmp_path: Path) -> None:
    """Each of the mistakes above is the only one in its file."""
    assert [site.name for site in load(stored(tmp_path)).sites] == ["california", "texas"]


def test_all_mistakes_are_listed_at_once(tmp_path: Path) -> None:
    """In the order of the file; a list with mistakes in its items is not called too short as well."""
    text = changed(
        ("duration_h: 1", "duration_h: -1"),
        ("pue: 1.1", "pue: 0.9"),
        ("count: 4", "count: four"),
        ("type: threshold,", ""),
    )
    found = mistakes(stored(tmp_path, text))
    assert list(found) == [
        "duration_h",
        "sites[0].cluster.count",
        "sites[0].cluster.pue",
        "sites[1].cluster.count",
        "sites[1].cluster.pue",
        "policy.type",
    ]
    assert found["sites[0].cluster.count"] == "must be a whole number (got 'four')"


def test_traces_of_all_sites_are_checked_at_once(tmp_path: Path) -> None:
    """So are names, batches and what the policy needs."""
    text = changed(
        ("{type: constant, value: 0.4, unit: kg/kWh}", "{type: trace, path: no.csv, value: v, unit: MW}"),
        ("tokens_per_step: 100", "tokens_per_step: 100, sequence_tokens: 30, total_tokens: 50"),
    )
    found = mistakes_by_any_path(stored(tmp_path, text, ROWS[:6]))
    assert [path for path, _ in found] == [
        "workload.total_tokens",
        "workload.tokens_per_step",
        "workload.tokens_per_step",
        "sites[0].mci",
        "sites[1].mci",
    ]


def mistakes_by_any_path(path: Path) -> list[tuple[str, str]]:
    """Problems as pairs, where one path may have several."""
    with pytest.raises(ScenarioError) as caught:
        load(path)
    return [(problem.path, problem.rule) for problem in caught.value.problems]


NEAR = {
    "top_level": (("seed: 1", "sed: 1"), "sed", "unknown key; did you mean 'seed'?"),
    "policy_type": (
        ("type: threshold", "type: treshold"),
        "policy.type",
        "'treshold' is unknown; did you mean 'threshold'?",
    ),
    "learner_type": (("tokens_only", "token_only"), "training.learner.type", "did you mean 'tokens_only'?"),
    "baseline_site": (("[texas]", "[texs]"), "baselines[0].sites[0]", "'texs' is no site; did you mean 'texas'?"),
    "cluster_key": (("idle_kw: 1", "idle_kW: 1"), "sites[0].cluster.idle_kW", "did you mean 'idle_kw'?"),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_matches(name: str, tmp_path: Path) -> None:
    """A slip of the pen is answered with what was probably meant."""
    swap, where, expected = NEAR[name]
    full = changed(("duration_h: 1", "duration_h: 1\nseed: 1"), ("pue: 1.1", "pue: 1.1, idle_kw: 1"))
    full += "baselines: [{type: centralized, sites: [texas]}]\n"
    assert swap[0] in full
    found = mistakes_by_any_path(stored(tmp_path, full.replace(*swap)))
    assert found[0][0] == where
    assert expected in found[0][1]


RULES = {
    "text_for_a_number": (("duration_h: 1", "duration_h: an hour"), "duration_h", "must be a number (got 'an hour')"),
    "naive_start": (
        ("00:00:00Z\n", "00:00:00\n"),
        "start",
        "must be a time with its time zone, such as 2021-03-20T00:00:00Z (got 2026-01-01T00:00:00)",
    ),
    "no_type": (
        ("{type: threshold, threshold_g_per_kwh: 100}", "{release_delay_s: 3}"),
        "policy.type",
        "is required; choose one of always, my_module:MyPolicy, threshold",
    ),
    "number_for_a_signal": (
        ("{type: constant, value: 0.4, unit: kg/kWh}", "400"),
        "sites[1].mci",
        "must be a mapping of keys to values (got 400)",
    ),
    "site_name": (
        ("name: texas", "name: New Mexico"),
        "sites[1].name",
        "must be lower case: a letter, then letters, digits and _ (got 'New Mexico')",
    ),
    "both_step_times": (
        ("pue: 1.1", "mfu: 0.4"),
        "sites[0].cluster",
        "give either mfu or step_time_s: one of them sets the step time",
    ),
    "policy_without_signal": (
        ("    mci: {type: constant, value: 0.4, unit: kg/kWh}\n", ""),
        "sites[1].mci",
        "is required by the policy's signal 'mci'; add it",
    ),
    "not_a_module": (
        ("{type: threshold, threshold_g_per_kwh: 100}", "{type: 'no_such_module:MyPolicy'}"),
        "policy",
        "'no_such_module:MyPolicy' cannot be imported (No module named 'no_such_module'); is its folder on PYTHONPATH?",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_rules(name: str, tmp_path: Path) -> None:
    """The message says what is wrong in the words of the file."""
    swap, where, expected = RULES[name]
    assert mistakes_by_any_path(stored(tmp_path, changed(swap)))[0] == (where, expected)


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words"], ids=["empty", "list", "text"])
def test_a_file_that_is_no_mapping(text: str, tmp_path: Path) -> None:
    """Neither an empty file nor a list is a scenario."""
    assert mistakes(stored(tmp_path, text))["file"].startswith("must be a mapping of keys to values")


def test_a_scenario_that_is_not_there(tmp_path: Path) -> None:
    """A wrong path is a mistake like any other."""
    assert mistakes(tmp_path / "no.yaml") == {"file": "cannot be read: No such file or directory; check the path"}


def test_a_key_given_twice(tmp_path: Path) -> None:
    """YAML would take the last one without a word."""
    found = mistakes(stored(tmp_path, changed(("duration_h: 1", "duration_h: 1\nduration_h: 2"))))
    assert found == {"line 3, column 1": "is not valid YAML: key 'duration_h' is given twice; correct it there"}


@pytest.mark.parametrize(
    ("text", "value"), [("561e6", 561e6), ("5.61e8", 5.61e8), ("1E3", 1000.0), (".5e3", 500.0), ("561000000", 561e6)]
)
def test_numbers_as_people_write_them(text: str, value: float, tmp_path: Path) -> None:
    """YAML 1.1 takes 561e6 for text; we do not."""
    assert load(stored(tmp_path, changed(("1e6", text)))).workload.parameters == value


def test_batches_must_divide(tmp_path: Path) -> None:
    """A step of 512 tokens cannot be made of micro-steps of 4 sequences of 256 tokens."""
    swap = ("tokens_per_step: 100", "tokens_per_step: 512, sequence_tokens: 256, device_batch_sequences: 4")
    found = mistakes_by_any_path(stored(tmp_path, changed(swap)))
    assert found[0] == (
        "workload.tokens_per_step",
        "512 does not divide into micro-steps of sites[0]: 4 accelerators x 4 sequences x 256 tokens = 4096; "
        "change one of them",
    )
    fits = changed((swap[0], "tokens_per_step: 4096, sequence_tokens: 256, device_batch_sequences: 4"))
    assert load(stored(tmp_path, fits)).workload.tokens_per_step == 4096


def test_environment_variable_in_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expanded if it is set, else one message for it that says how to go on."""
    path = stored(tmp_path, changed(("path: mci.csv", "path: '${TRACES_OF_MINE}/mci.csv'")))
    monkeypatch.delenv("TRACES_OF_MINE", raising=False)
    rule = "environment variable TRACES_OF_MINE is not set; set it, or use --set sites[0].mci.path=FILE"
    assert mistakes(path) == {"sites[0].mci.path": rule}
    monkeypatch.setenv("TRACES_OF_MINE", str(tmp_path))
    assert load(path).sites[0].mci.path == str(tmp_path / "mci.csv")  # type: ignore[union-attr]


def test_paths_start_at_the_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at the working directory."""
    path = stored(tmp_path)
    monkeypatch.chdir("/")
    assert load(path).sites[0].mci.path == str(tmp_path / "mci.csv")  # type: ignore[union-attr]


# --- overrides -----------------------------------------------------------------------------------------------------


def pues(path: Path, *overrides: str) -> list[float]:
    """PUE of both sites."""
    return [site.cluster.pue for site in load(path, overrides).sites]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("sites.texas.cluster.pue=1.5", [1.1, 1.5]),
        ("sites[0].cluster.pue=1.5", [1.5, 1.1]),
        ("sites.1.cluster.pue=1.5", [1.1, 1.5]),
        ("sites.*.cluster.pue=1.5", [1.5, 1.5]),
    ],
    ids=["by_name", "by_index", "by_number", "all"],
)
def test_overrides_reach_sites(override: str, expected: list[float], tmp_path: Path) -> None:
    """Even where two sites share one YAML anchor, only the named one changes."""
    assert pues(stored(tmp_path), override) == expected


def test_overrides_are_yaml(tmp_path: Path) -> None:
    """Mappings and lists too; later ones win; keys that are absent are added."""
    path = stored(tmp_path)
    generation = "sites[0].generation={type: constant, value: 2, unit: kW}"
    capacity = "sites[0].storage.capacity_kwh=1"
    overrides = ["policy={type: always}", "seed=1", "seed=2", "training.stride=3", generation, capacity]
    scenario = load(path, overrides)
    assert (scenario.policy.type, scenario.seed, scenario.training.stride) == ("always", 2, 3)
    assert scenario.sites[0].storage is not None
    assert scenario.sites[0].storage.capacity_kwh == 1


BAD_OVERRIDES = {
    "no_value": ("seed", {"seed": "must be path=value, such as policy.release_delay_s=300"}),
    "no_such_site": ("sites.nevada.seed=1", {"sites.nevada.seed": "has no 'nevada' there (california, texas)"}),
    "through_a_number": ("seed.deep=1", {"seed.deep": "has no keys"}),
    "not_yaml": ("seed=[1", {"seed": "value is not valid YAML (got '[1')"}),
    "unknown_key": ("sites.texas.cluster.puee=1", {"sites[1].cluster.puee": "did you mean 'pue'?"}),
}


@pytest.mark.parametrize("name", BAD_OVERRIDES)
def test_mistakes_in_overrides(name: str, tmp_path: Path) -> None:
    """They are explained like those of a file."""
    override, expected = BAD_OVERRIDES[name]
    path = stored(tmp_path, changed(("duration_h: 1", "duration_h: 1\nseed: 3")))
    found = mistakes(path, override)
    assert found.keys() == expected.keys()
    for where, words in expected.items():
        assert words in found[where]


# --- what comes out ------------------------------------------------------------------------------------------------


def test_dumped_scenario_is_the_same_scenario(tmp_path: Path) -> None:
    """Every default spelled out."""
    scenario = load(stored(tmp_path))
    (tmp_path / "resolved.yaml").write_text(dump(scenario))
    assert load(tmp_path / "resolved.yaml") == scenario
    assert "release_delay_s: 0.0" in dump(scenario)


def test_start_is_kept_in_utc(tmp_path: Path) -> None:
    """Whatever offset it was written with."""
    text = changed(("2026-01-01T00:00:00Z", "2026-01-01T10:30:00+10:30"))
    scenario = load(stored(tmp_path, text))
    assert scenario.start == datetime(2026, 1, 1, tzinfo=UTC)
    assert scenario.start.utcoffset() == datetime(2026, 1, 1, tzinfo=UTC).utcoffset()
    assert scenario.name == "tiny"


def test_a_mapping_instead_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python API takes the same content; relative paths then start at the working directory."""
    import yaml

    stored(tmp_path)
    monkeypatch.chdir(tmp_path)
    content = {"name": "tiny", **yaml.safe_load(SCENARIO.replace("1e6", "1000000"))}
    before = yaml.safe_dump(content)
    assert pues(content, "sites.texas.cluster.pue=2") == [1.1, 2.0]  # type: ignore[arg-type]
    assert yaml.safe_dump(content) == before


# --- what an attacker tried ----------------------------------------------------------------------------------------

LAST = "training: {learner: {type: tokens_only}}\n"
APP = "training: {learner: {type: flower_app, server_app: 'a:b', client_app: 'a:b', examples_per_step: 1, run_config: "
HOSTILE = {
    "list_as_key": (LAST, LAST + "? [a]\n: b\n", "line 13, column 3", "a key must be text (got ['a'])"),
    "mapping_as_key": (LAST, LAST + "{[a]: b}: 1\n", "line 13, column 2", "a key must be text"),
    "number_as_key": (LAST, LAST + "3: b\n", "file", "the key 3 is not text"),
    "number_as_deep_key": (LAST, APP + "{3: b}}}\n", "training.learner.run_config", "the key 3 is not text"),
    "nested": (LAST, LAST + "x: " + "[" * 5000 + "\n", "file", "is nested too deeply"),
    "date": ("2026-01-01T00:00:00Z", "2021-13-45", "line 1, column 8", "'2021-13-45' is no timestamp (month must"),
    "null_in_config": (LAST, APP + "{a: null}}}\n", "training.learner.run_config.a", "must be text, a finite number"),
    "true_hours": ("duration_h: 1", "duration_h: true", "duration_h", "must be a number (got True)"),
    "true_seed": ("duration_h: 1", "duration_h: 1\nseed: true", "seed", "must be a whole number (got True)"),
    "number_as_start": ("2026-01-01T00:00:00Z", "5", "start", "must be a time with its time zone"),
    "threads": ("duration_h: 1", "duration_h: 1\nthreads: 1025", "threads", "must be at most 1024 (got 1025)"),
    "name": ("duration_h: 1", "duration_h: 1\nname: " + "a" * 101, "name", "must be at most 100 characters long"),
    "site_twice": (
        LAST,
        LAST + "baselines: [{type: centralized, sites: [texas, texas]}]\n",
        "baselines[0].sites[1]",
        "'texas' is listed twice; remove one",
    ),
    "no_path": ("path: mci.csv", "path: ''", "sites[0].mci.path", "must name a file (got '')"),
    "nul_in_path": ("path: mci.csv", 'path: "a\\0b"', "sites[0].mci.path", "must name a file (got 'a\\x00b')"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(name: str, tmp_path: Path) -> None:
    """One message, in its place."""
    old, new, where, words = HOSTILE[name]
    found = mistakes_by_any_path(stored(tmp_path, changed((old, new))))
    assert [place for place, _ in found] == [where]
    assert words in found[0][1]


def test_an_empty_mapping_is_shown(tmp_path: Path) -> None:
    """As an empty list is."""
    text = re.sub(r"sites:.*(?=policy:)", "sites: {}\n", SCENARIO, flags=re.DOTALL)
    assert mistakes(stored(tmp_path, text)) == {"sites": "must be a list (got an empty mapping)"}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("start=2021-13-45", "value is not valid YAML: '2021-13-45' is no timestamp"),
        ("sites[\u00b2].name=x", "has no '\u00b2' there (california, texas)"),
        ("sites.*=3", "must go on to a key of every item, such as sites.*.KEY=1"),
        ("seed=" + "[" * 5000, "it is nested too deeply"),
    ],
    ids=["date", "superscript", "star", "nested"],
)
def test_hostile_overrides(override: str, words: str, tmp_path: Path) -> None:
    """Explained like any other."""
    ((_, rule),) = mistakes(stored(tmp_path), override).items()
    assert words in rule
