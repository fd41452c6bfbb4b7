"""The generator: its statistics, its determinism, and the committed files it must give again."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError
from shared import REPOSITORY

from curtailsim.energy.traces import TraceSpec, load_trace
from curtailsim.generator import (
    CURTAILED_MW,
    DECIMALS,
    GeneratorError,
    SiteParameters,
    default_parameters,
    generate,
    site_year,
    verify,
)

pytest.importorskip("pvlib", reason='generating data needs pip install "curtailsim[data]"')

COMMITTED = REPOSITORY / "data"
SITES = ("california", "texas", "south_australia")


def texas() -> dict[str, SiteParameters]:
    """One site, to keep the tests short."""
    return {"texas": default_parameters()["texas"]}


def committed(site: str) -> pd.DataFrame:
    """A committed file as a frame."""
    return pd.read_csv(COMMITTED / f"{site}.csv", index_col="time", parse_dates=True)


@pytest.mark.slow
def test_statistics_of_2021() -> None:
    """Share of time, energy and overlap of curtailment are those the parameters were fitted to reach."""
    years = {name: site_year(site) for name, site in default_parameters().items()}
    on = pd.DataFrame({name: year["curtailed_mw"] >= CURTAILED_MW for name, year in years.items()})
    assert on.mean().round(3).to_dict() == {"california": 0.147, "texas": 0.126, "south_australia": 0.219}
    energy_gwh = {name: round(year["curtailed_mw"].sum() / 12e3, 1) for name, year in years.items()}
    assert energy_gwh == {"california": 92.4, "texas": 85.8, "south_australia": 214.7}
    overlap = on.sum(axis=1).value_counts(normalize=True).sort_index()
    assert overlap.tolist() == pytest.approx([0.568, 0.373, 0.057, 0.002], abs=1e-3)


@pytest.mark.slow
def test_committed_files_are_what_the_generator_gives() -> None:
    """Regenerating from the manifest gives the committed bytes, and their hashes are those recorded."""
    checks = verify(COMMITTED)
    assert {check.name for check in checks} == {f"{site}.csv" for site in SITES}
    written_with = json.loads((COMMITTED / "manifest.json").read_text())["versions"]
    same = all(version(name) == written_with[name] for name in ("numpy", "pandas", "pvlib", "scipy"))
    last_decimal = 0.0 if same else 0.0011
    assert [check for check in checks if check.max_difference is None or check.max_difference > last_decimal] == []
    assert [check for check in checks if "SHA-256" in check.detail] == []


@pytest.mark.parametrize("site", SITES)
def test_committed_file_loads(site: str) -> None:
    """Thirty days at five minutes, without a gap, for every column."""
    for column in DECIMALS:
        unit, quantity = {
            "generation_mw": ("MW", "power"),
            "absorption_mw": ("MW", "power"),
            "mci_g_per_kwh": ("g/kWh", "carbon_intensity"),
            "price_usd_per_mwh": ("USD/MWh", "price"),
        }[column]
        trace = load_trace(TraceSpec(path=f"{site}.csv", value=column, unit=unit), base=COMMITTED, quantity=quantity)
        assert (len(trace.stamps), set(trace.durations_ms()), trace.warnings) == (8640, {300_000}, ())


@pytest.mark.parametrize("site", SITES)
def test_signals_follow_curtailment(site: str) -> None:
    """In the file itself: intensity is low and the price negative exactly while power is curtailed."""
    frame, mci = committed(site), default_parameters()[site].mci
    surplus_mw = frame["generation_mw"] - frame["absorption_mw"]
    curtailed = surplus_mw.round(3) >= CURTAILED_MW
    low, fossil = frame["mci_g_per_kwh"][curtailed], frame["mci_g_per_kwh"][~curtailed]
    assert low.between(0, mci.curtailed_max_g_per_kwh).all()
    assert fossil.between(mci.low_g_per_kwh, mci.high_g_per_kwh).all()
    price = frame["price_usd_per_mwh"]
    assert price[surplus_mw > 1].max() < 0 < price[surplus_mw < -1].min()
    assert price.corr(-surplus_mw, method="spearman") > 0.8


def test_first_week_has_every_number_of_sites() -> None:
    """The week of the scenario: several windows at each site; none, one, two and three sites on at a time."""
    on = pd.DataFrame({site: committed(site)["mci_g_per_kwh"] < 100 for site in SITES}).iloc[: 7 * 288]
    opened = (on & ~on.shift(fill_value=False)).sum()
    assert opened.to_dict() == {"california": 14, "texas": 45, "south_australia": 28}
    shares = on.sum(axis=1).value_counts(normalize=True).sort_index()
    assert shares.round(3).to_dict() == {0: 0.262, 1: 0.485, 2: 0.232, 3: 0.021}


@pytest.fixture(scope="module")
def one_day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with one day of one site, begun at noon."""
    return generate(tmp_path_factory.mktemp("one_day"), start="2021-03-13T12:00:00Z", days=1, sites=texas()).parent


def test_twice_gives_the_same_bytes(one_day: Path, tmp_path: Path) -> None:
    """Two runs write equal files and nothing else; another seed gives other numbers."""
    again = generate(tmp_path / "again", start="2021-03-13T12:00:00Z", days=1, sites=texas()).parent
    assert sorted(path.name for path in again.iterdir()) == ["manifest.json", "texas.csv"]
    for name in ("manifest.json", "texas.csv"):
        assert (one_day / name).read_bytes() == (again / name).read_bytes()
    other = generate(tmp_path / "other", start="2021-03-13T12:00:00Z", days=1, seed=1, sites=texas()).parent
    assert (one_day / "texas.csv").read_bytes() != (other / "texas.csv").read_bytes()


def test_span_is_cut_from_the_year(one_day: Path) -> None:
    """Another span, generated without the other sites, holds the numbers of the committed file."""
    part = pd.read_csv(one_day / "texas.csv", index_col="time", parse_dates=True)
    pd.testing.assert_frame_equal(part, committed("texas").loc[part.index], check_freq=False)


def test_added_series_leave_the_physical_ones_alone() -> None:
    """Intensity and price draw from streams of their own."""
    site = texas()["texas"]
    noisy = site.model_copy(update={"price": site.price.model_copy(update={"noise_sd": 0.9})})
    before, after = site_year(site), site_year(noisy)
    assert not np.array_equal(before["price_usd_per_mwh"], after["price_usd_per_mwh"])
    unchanged = before.columns.drop("price_usd_per_mwh")
    pd.testing.assert_frame_equal(before[unchanged], after[unchanged])


def test_verify_tells_what_differs(one_day: Path, tmp_path: Path) -> None:
    """A changed value and a missing file are each reported."""
    folder = Path(shutil.copytree(one_day, tmp_path / "copy"))
    path = folder / "texas.csv"
    lines = path.read_text().splitlines()
    cells = lines[5].split(",")
    cells[1] = f"{float(cells[1]) + 1:.3f}"
    path.write_text("\n".join([*lines[:5], ",".join(cells), *lines[6:], ""]))
    (check,) = verify(folder)
    assert (check.equal, check.max_difference) == (False, pytest.approx(1))
    assert check.detail == "SHA-256 differs from manifest.json; max difference 1 in generation_mw"
    path.unlink()
    assert [(check.max_difference, check.detail) for check in verify(folder)] == [(None, "missing")]


def test_manifest(one_day: Path) -> None:
    """The manifest names seed, span, versions and parameters."""
    manifest = json.loads((one_day / "manifest.json").read_text())
    assert (manifest["seed"], manifest["start"], manifest["days"]) == (0, "2021-03-13T12:00:00Z", 1)
    assert set(manifest["versions"]) == {"python", "numpy", "pandas", "pvlib", "scipy"}
    assert SiteParameters.model_validate(manifest["sites"]["texas"]) == texas()["texas"]


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ({"days": 0}, "days must be at least 1"),
        ({"start": "2021-12-31", "days": 2}, "inside one calendar year"),
        ({"start": "2021-03-12T00:01"}, "300 s grid"),
        ({"start": "spring"}, "ISO date"),
    ],
)
def test_impossible_spans(tmp_path: Path, span: dict[str, object], message: str) -> None:
    """A span that cannot be generated is refused before anything is written."""
    with pytest.raises(GeneratorError, match=message):
        generate(tmp_path / "out", **span)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_verify_without_manifest(tmp_path: Path) -> None:
    """A folder without a manifest, or with another one, cannot be verified."""
    with pytest.raises(GeneratorError, match="no such file"):
        verify(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(GeneratorError, match="not a manifest of this generator"):
        verify(tmp_path)


def test_parameters_are_checked() -> None:
    """Unknown and impossible parameters are refused."""
    site = texas()["texas"].model_dump()
    with pytest.raises(ValidationError, match="albedo"):
        SiteParameters.model_validate(site | {"albedo": 0.2})
    with pytest.raises(ValidationError, match="latitude_deg"):
        SiteParameters.model_validate(site | {"latitude_deg": 95})


def test_without_pvlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the optional packages the message says what to install."""
    monkeypatch.setitem(sys.modules, "pvlib", None)
    with pytest.raises(GeneratorError, match=r'needs pvlib, .*pip install "curtailsim\[data\]"'):
        site_year(texas()["texas"])
