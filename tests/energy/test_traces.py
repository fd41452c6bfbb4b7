"""The trace loader against real exports, documented layouts and every mistake it should explain."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from pydantic import ValidationError
from shared import shared_data

from curtailsim.energy.traces import Quantity, Trace, TraceError, TraceSpec, load_trace


def ms(text: str) -> int:
    """Milliseconds of an ISO stamp; without an offset it is UTC."""
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def load(folder: Path, text: str, quantity: Quantity = "power", **spec: Any) -> Trace:
    """Write a file and load it; `value` and `unit` have defaults that suit most layouts here."""
    path = folder / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return load_trace(TraceSpec(**{"path": str(path), "value": "value", "unit": "kW"} | spec), quantity=quantity)


def hourly(count: int, first: str = "2021-01-01T00:00:00") -> str:
    """A file of hourly UTC rows whose values are 0, 1, 2, ..."""
    start = np.datetime64(first)
    rows = [f"{start + np.timedelta64(hour, 'h')}Z,{hour}" for hour in range(count)]
    return "\n".join(["time,value", *rows, ""])


# --- the twelve quirk files ----------------------------------------------------------------------------------------

CAISO_TIME = {"date": "Date", "hour_ending": "Hour", "interval": "Interval"}
QUIRKS: dict[str, tuple[Quantity, dict[str, Any]]] = {
    "q01_watttime_oootime_naive.csv": (
        "carbon_intensity",
        {"time": "oootime", "value": "Caiso_North", "unit": "g/kWh", "tz": "UTC"},
    ),
    "q02_vessim_seconds_offset_utf8_header.csv": (
        "fraction",
        {"time_format": "elapsed_s", "start_at": "1970-01-01T00:00Z", "value": "São Paulo", "unit": "fraction"},
    ),
    "q06_aemo_mms_CID_records.csv": (
        "power",
        {
            "skip_rows": 1,
            "time": "SETTLEMENTDATE",
            "label": "end",
            "tz": "+10:00",
            "value": "TOTALDEMAND",
            "unit": "MW",
            "where": {"I": "D", "REGIONID": "SA1"},
        },
    ),
    "q10_electricitymaps_units_in_header_estimated_flag.csv": (
        "carbon_intensity",
        {"time": "Datetime (UTC)", "tz": "UTC", "value": "Carbon Intensity gCO₂eq/kWh (direct)", "unit": "gCO₂eq/kWh"},
    ),
    "q11_elexon_settlement_period_46_day.csv": (
        "power",
        {
            "time": {"date": "#Settlement Date", "period": "Settlement Period"},
            "step_s": 1800,
            "tz": "Europe/London",
            "value": "WIND",
            "unit": "MW",
        },
    ),
    "q15_nrel_wtk_metadata_row_split_datetime.csv": (
        "wind_speed",
        {
            "skip_rows": 1,
            "time": {"year": "Year", "month": "Month", "day": "Day", "hour": "Hour", "minute": "Minute"},
            "tz": "UTC",
            "value": "wind speed at 100m (m/s)",
            "unit": "m/s",
        },
    ),
}


def expected(name: str) -> dict[str, Any]:
    """Oracle of a quirk file."""
    return json.loads(shared_data("quirks/expected.json").read_text(encoding="utf-8"))[name]


@pytest.mark.parametrize("name", QUIRKS)
def test_quirk_file(name: str) -> None:
    """Rows, first and last interval, step and mean of regular quirk files are those of the oracle."""
    quantity, spec = QUIRKS[name]
    want = expected(name)
    trace = load_trace(TraceSpec(path=name, **spec), base=shared_data("quirks"), quantity=quantity)
    first, last = (
        moment * 1000 if isinstance(moment, int) else ms(moment)
        for moment in (want["first_interval_start"], want["last_interval_start"])
    )
    factor = 1000 if quantity == "power" else 1
    assert len(trace.stamps) == want["rows_in_file"]
    assert (trace.stamps[0], trace.stamps[-1]) == (first, last)
    assert set(trace.durations_ms()) == {want["step_s"] * 1000}
    assert trace.values.mean() / factor == pytest.approx(want["mean"], abs=1e-4)
    assert (trace.filled_steps, trace.dropped_duplicates, trace.warnings) == (0, 0, ())


def test_q03_sparse_curtailment() -> None:
    """CAISO curtailments: two columns summed, absent steps and blank cells are 0, hours end at 1 to 24."""
    want = expected("q03_caiso_date_hour_interval_sparse_dst.csv")
    spec = TraceSpec(
        path=str(shared_data("quirks/q03_caiso_date_hour_interval_sparse_dst.csv")),
        time=CAISO_TIME,
        time_format="%m/%d/%Y",
        value=["Wind Curtailment", "Solar Curtailment"],
        unit="MW",
        tz="America/Los_Angeles",
        step_s=300,
        fill="zero",
        repeated_hour="first",
    )
    trace = load_trace(spec, quantity="power")
    assert trace.stamps[0] == ms(want["first_interval_start"])
    assert trace.stamps[-1] == ms(want["last_interval_start"])
    assert trace.filled_steps == want["missing_steps"]
    assert trace.warnings[0].endswith("values of 'Wind Curtailment' count as 0 (fill: zero)")
    energy_mwh = want["mean"] * want["rows_in_file"] * 300 / 3600
    assert float(trace.values @ trace.durations_ms()) / 3.6e9 == pytest.approx(energy_mwh, rel=1e-6)


def test_q03_does_not_guess_the_passage() -> None:
    """A sparse file that lists the repeated hour once has no order to infer from."""
    spec = TraceSpec(
        path=str(shared_data("quirks/q03_caiso_date_hour_interval_sparse_dst.csv")),
        time=CAISO_TIME,
        time_format="%m/%d/%Y",
        value="Solar Curtailment",
        unit="MW",
        tz="America/Los_Angeles",
        step_s=300,
        fill="zero",
        repeated_hour="infer",
    )
    with pytest.raises(TraceError, match=r"line 308: '11/7/2021 2 1'.*9 rows.*set repeated_hour: first or second"):
        load_trace(spec, quantity="power")


def test_q04_rows_summed_per_hour() -> None:
    """The CAISO report: energy per hour, several rows an hour out of order, categories in mixed case."""
    name = "q04_caiso_report_ymdh_columns_mixed_case.csv"
    want = expected(name)
    common: dict[str, Any] = {
        "path": name,
        "time": {"year": "year", "month": "month", "day": "day", "hour_ending": "hour"},
        "value": "curtailed_MWh",
        "unit": "MWh per step",
        "tz": "America/Los_Angeles",
        "step_s": 3600,
        "sort": True,
        "sum_rows": True,
        "fill": "zero",
    }
    trace = load_trace(TraceSpec(**common), base=shared_data("quirks"), quantity="power")
    assert float(trace.values @ trace.durations_ms()) / 3.6e9 == pytest.approx(want["total_MWh"])
    assert trace.dropped_duplicates == 0
    local = TraceSpec(**common, where={"reason": "LOCAL"})
    part = load_trace(local, base=shared_data("quirks"), quantity="power")
    assert 0 < part.values @ part.durations_ms() < trace.values @ trace.durations_ms()


def test_q07_repeated_hour_flag() -> None:
    """ERCOT day-ahead: 23 and 25 hours on the days of the change, told by the flag."""
    want = expected("q07_ercot_hour_ending_repeated_hour_flag_long.csv")
    spec = TraceSpec(
        path="q07_ercot_hour_ending_repeated_hour_flag_long.csv",
        time={"date": "Delivery Date", "hour_ending": "Hour Ending"},
        time_format="%m/%d/%Y",
        repeated_hour_column="Repeated Hour Flag",
        where={"Settlement Point": "HB_PAN"},
        value="Settlement Point Price",
        unit="USD/MWh",
        tz="America/Chicago",
        fill="hold",
    )
    trace = load_trace(spec, base=shared_data("quirks"), quantity="price")
    march = trace.stamps[trace.stamps < ms("2021-06-01")]
    november = trace.stamps[trace.stamps > ms("2021-06-01")]
    assert (len(march), len(november)) == (want["march_hours"], want["november_hours"])
    assert [march[0], march[-1]] == [ms(want["march_first"]), ms(want["march_last"])]
    assert [november[0], november[-1]] == [ms(want["november_first"]), ms(want["november_last"])]
    assert trace.values.mean() == pytest.approx(want["mean"], abs=1e-4)
    assert (trace.unit, trace.dropped_duplicates) == ("USD/MWh", 0)


SMARD: dict[str, Any] = {
    "path": "q08_smard_en_bom_semicolon_dash_missing_dst.csv",
    "sep": ";",
    "time": ["Date", "Time of day"],
    "time_format": "%b %d, %Y %I:%M %p",
    "tz": "Europe/Berlin",
    "unit": "€/MWh",
}


def test_q08_infers_the_repeated_hour() -> None:
    """SMARD: byte order mark, 12-hour clock, and a repeated 2:00 AM told by the order of the rows."""
    want = expected("q08_smard_en_bom_semicolon_dash_missing_dst.csv")
    spec = TraceSpec(**SMARD, value="Germany/Austria/Luxembourg[€/MWh]", repeated_hour="infer", fill="hold")
    ends_in_september = spec.model_copy(update={"fill": "error"})
    with pytest.raises(TraceError, match=r"line 25: no value of 'Germany/Austria/Luxembourg\[€/MWh\]' \(25 of 48"):
        load_trace(ends_in_september, base=shared_data("quirks"), quantity="price")
    trace = load_trace(
        spec.model_copy(update={"value": ("Denmark 1[€/MWh]",)}), base=shared_data("quirks"), quantity="price"
    )
    march = trace.stamps[trace.stamps < ms("2018-06-01")]
    october = trace.stamps[trace.stamps > ms("2018-06-01")]
    assert (len(march), len(october)) == (want["march_hours"], want["october_hours"])
    assert march[0] == ms(want["march_first"])
    assert [october[0], october[-1]] == [ms(want["october_first"]), ms(want["october_last"])]
    assert trace.unit == "EUR/MWh"
    germany = load_trace(spec, base=shared_data("quirks"), quantity="price")
    assert germany.values.mean() == pytest.approx(want["mean"], abs=1e-4)


@pytest.mark.parametrize("tz", ["America/Chicago", "UTC"])
def test_inferring_a_repeated_hour_where_there_is_none(tmp_path: Path, tz: str) -> None:
    """Summer days, and clocks that are never changed, have nothing to infer."""
    naive = hourly(48, "2021-07-01T00:00:00").replace("Z", "")
    assert len(load(tmp_path, naive, tz=tz, repeated_hour="infer").values) == 48


def test_q14_typical_year() -> None:
    """TMY3: metadata first, hours ending 01:00 to 24:00 in standard time, years put into one."""
    want = expected("q14_tmy3_metadata_row_24h_mixed_years.csv")
    spec = TraceSpec(
        path=str(shared_data("quirks/q14_tmy3_metadata_row_24h_mixed_years.csv")),
        skip_rows=1,
        time={"date": "Date (MM/DD/YYYY)", "hour_ending": "Time (HH:MM)"},
        time_format="%m/%d/%Y",
        tz="-09:00",
        year=2021,
        value="GHI (W/m^2)",
        unit="W/m^2",
    )
    trace = load_trace(spec, quantity="irradiance")
    assert (len(trace.stamps), trace.values.max()) == (want["rows"], want["max_ghi"])
    assert (trace.stamps[0], trace.end) == (ms("2021-01-01T00:00-09:00"), ms("2021-01-05T00:00-09:00"))


def test_q20_single_row_is_refused() -> None:
    """One row gives no step."""
    spec = TraceSpec(
        path=str(shared_data("quirks/q20_single_row_year_file.csv")),
        time="Datetime",
        value="Price (EUR/MWh)",
        unit="EUR/MWh",
        tz="UTC",
    )
    with pytest.raises(TraceError, match="1 data rows; at least two are needed"):
        load_trace(spec, quantity="price")


def test_q01_misspelt_column_lists_those_found() -> None:
    """The header `oootime` is found by its name only; the message shows it."""
    spec = TraceSpec(
        path=str(shared_data("quirks/q01_watttime_oootime_naive.csv")), value="Caiso_North", unit="g/kWh", tz="UTC"
    )
    with pytest.raises(TraceError, match=r"no column 'time'; did you mean 'oootime'.*columns found: 'oootime', 'Cais"):
        load_trace(spec, quantity="carbon_intensity")


# --- layouts known by their description ----------------------------------------------------------------------------


def test_aemo_price_file_changes_its_step() -> None:
    """Five years of AEMO: interval-ending stamps in UTC+10, 30 then 5 minutes; the mean is one over time."""
    spec = TraceSpec(
        path=str(shared_data("aemo_sa1_price_demand_2021_2025.csv.gz")),
        time="SETTLEMENTDATE",
        label="end",
        tz="+10:00",
        value="RRP",
        unit="AUD/MWh",
    )
    trace = load_trace(spec, quantity="price")
    steps, counts = np.unique(trace.durations_ms(), return_counts=True)
    assert dict(zip(steps.tolist(), counts.tolist(), strict=True)) == {300_000: 438_336, 1_800_000: 13_104}
    assert (trace.stamps[0], trace.end) == (ms("2020-12-31T14:00"), ms("2025-11-30T14:00"))
    assert trace.mean() != pytest.approx(trace.values.mean(), rel=1e-3)


def test_q05_excerpt_with_a_change_of_step(tmp_path: Path) -> None:
    """Each end-labelled row begins where the row before ends, also across a change of step."""
    text = (
        "SETTLEMENTDATE,RRP\n2021/09/30 22:30:00,10\n2021/09/30 23:00:00,20\n2021/09/30 23:30:00,30\n"
        "2021/10/01 00:00:00,40\n2021/10/01 00:05:00,-5\n2021/10/01 00:10:00,-6\n2021/10/01 00:15:00,-7\n"
    )
    trace = load(tmp_path, text, "price", time="SETTLEMENTDATE", label="end", tz="UTC+10", value="RRP", unit="AUD/MWh")
    assert trace.stamps[0] == ms("2021-09-30T22:00+10:00")
    assert trace.durations_ms().tolist() == [1_800_000] * 4 + [300_000] * 3
    assert trace.mean() == pytest.approx((100 * 6 - 18) / 27)


def test_q09_german_smard_energy_per_quarter(tmp_path: Path) -> None:
    """Decimal comma with grouping dots, energy per quarter hour, 100 rows on the day of the change."""
    local = [f"{hour:02d}:{minute:02d}" for hour in [0, 1, 2, 2, *range(3, 24)] for minute in (0, 15, 30, 45)]
    rows = "".join(f"31.10.2021;{clock};1.234,50;-\n" for clock in local)
    trace = load(
        tmp_path,
        "Datum;Uhrzeit;Wind Onshore[MWh];Kernenergie[MWh]\n" + rows,
        sep=";",
        decimal=",",
        time=["Datum", "Uhrzeit"],
        time_format="%d.%m.%Y %H:%M",
        tz="Europe/Berlin",
        repeated_hour="infer",
        value="Wind Onshore[MWh]",
        unit="MWh per step",
    )
    assert (len(trace.stamps), trace.end - trace.stamps[0]) == (100, 25 * 3_600_000)
    assert set(trace.values) == {1234.5 * 4 * 1000}


def test_q12_elexon_prices_on_a_day_of_50_periods(tmp_path: Path) -> None:
    """Settlement periods count from local midnight, so the long day has fifty; pounds are GBP."""
    rows = "".join(f"31/10/2021,{period},{period}.5\n" for period in range(1, 51))
    spec: dict[str, Any] = {
        "time": {"date": "Settlement Date", "period": "Settlement Period"},
        "time_format": "%d/%m/%Y",
        "step_s": 1800,
        "tz": "Europe/London",
        "value": "System Sell Price(£/MWh)",
        "unit": "£/MWh",
    }
    header = "Settlement Date,Settlement Period,System Sell Price(£/MWh)\n"
    trace = load(tmp_path, header + rows, "price", **spec)
    assert (len(trace.stamps), trace.unit) == (50, "GBP/MWh")
    assert (trace.stamps[0], trace.end) == (ms("2021-10-30T23:00"), ms("2021-11-01T00:00"))
    with pytest.raises(TraceError, match="line 52: period 51 of 1800 s lies beyond the end of that day"):
        load(tmp_path, header + rows + "31/10/2021,51,1\n", "price", **spec)


def test_q13_physical_notifications_are_refused(tmp_path: Path) -> None:
    """A file of records without a header is refused with what was taken for column names."""
    text = "HDR,PHYSICAL DATA\nPN,T_ABC,20210101000000,10,20210101003000,20\nPN,T_ABC,20210101003000,20,1,1\n"
    with pytest.raises(TraceError, match=r"no column 'time'.*columns found: 'HDR', 'PHYSICAL DATA'"):
        load(tmp_path, text)


def test_q16_ambiguous_day_and_month_need_a_format(tmp_path: Path) -> None:
    """SimBench: 01.02.2016 is not guessed; with the format it loads; the lacking 25th hour shows as NaN rows."""
    text = "time;P\n01.02.2016 00:00;0.5\n01.02.2016 00:15;0.6\n01.02.2016 00:30;\n"
    spec: dict[str, Any] = {"sep": ";", "value": "P", "unit": "fraction", "tz": "+01:00"}
    with pytest.raises(TraceError, match=r"line 2: the stamp '01.02.2016 00:00' is not ISO 8601, and day and month"):
        load(tmp_path, text, "fraction", **spec)
    with pytest.raises(TraceError, match=r"line 4: no value of 'P' \(1 of 3 values are missing\)"):
        load(tmp_path, text, "fraction", time_format="%d.%m.%Y %H:%M", **spec)


def test_q17_concatenated_months(tmp_path: Path) -> None:
    """Overlapping SGIP months: out of order with equal duplicates, which are dropped and counted."""
    raw = shared_data("sgip_moer_SCE_2021-03_with_36step_forecast.csv.gz").read_bytes()
    header, *rows = gzip.decompress(raw).decode().splitlines()
    (tmp_path / "months.csv.gz").write_bytes(gzip.compress("\n".join([header, *rows, *rows[-576:], ""]).encode()))
    spec: dict[str, Any] = {"path": "months.csv.gz", "value": "moer", "unit": "kg/kWh"}
    with pytest.raises(TraceError, match=rf"line {len(rows) + 2}: the stamps go back from .* set sort: true"):
        load_trace(TraceSpec(**spec), base=tmp_path, quantity="carbon_intensity")
    trace = load_trace(TraceSpec(**spec, sort=True), base=tmp_path, quantity="carbon_intensity")
    assert (len(trace.stamps), trace.dropped_duplicates) == (len(rows), 576)
    assert set(trace.durations_ms()) == {300_000}
    assert [warning for warning in trace.warnings if "missing source counted as 0" in warning]


def test_q18_unnamed_index(tmp_path: Path) -> None:
    """Orkney: the column without a name is asked for as an empty one."""
    text = ",Demand,Zone 1\n2018-12-01 00:00:00,17.55,0.5\n2018-12-01 00:10:00,17.76,1.0\n"
    trace = load(tmp_path, text, "fraction", time="", value="Zone 1", unit="1", tz="Europe/London")
    assert (trace.values.tolist(), trace.stamps[0]) == ([0.5, 1.0], ms("2018-12-01"))


def test_q19_mixed_offsets(tmp_path: Path) -> None:
    """+01:00 and +02:00 in one column are one ordered series; a tz that agrees changes nothing."""
    text = (
        ",DE\n2021-10-31 01:00:00+02:00,1\n2021-10-31 02:00:00+02:00,2\n2021-10-31 02:00:00+01:00,3\n"
        "2021-10-31 03:00:00+01:00,4\n"
    )
    for tz in (None, "Europe/Berlin"):
        trace = load(tmp_path, text, "price", time="", value="DE", unit="EUR/MWh", tz=tz)
        assert set(trace.durations_ms()) == {3_600_000}
        assert (trace.stamps[0], trace.warnings) == (ms("2021-10-30T23:00"), ())
    (warning,) = load(tmp_path, text, "price", time="", value="DE", unit="EUR/MWh", tz="UTC").warnings
    assert warning.startswith("tz UTC is not used: the stamps carry their own offset")


def test_oasis_price_component(tmp_path: Path) -> None:
    """CAISO OASIS: five components an hour, unsorted, -00:00 offsets, the price in column MW."""
    hours = [16, 15, 17]
    rows = "".join(
        f"2022-02-01T{hour}:00:00-00:00,2022-02-01T{hour + 1}:00:00-00:00,{kind},{hour if kind == 'LMP' else 99}\n"
        for hour in hours
        for kind in ("MCC", "LMP", "MCE")
    )
    trace = load(
        tmp_path,
        "INTERVALSTARTTIME_GMT,INTERVALENDTIME_GMT,LMP_TYPE,MW\n" + rows,
        "price",
        time="INTERVALSTARTTIME_GMT",
        value="MW",
        unit="USD/MWh",
        where={"LMP_TYPE": "LMP"},
        sort=True,
    )
    assert (trace.values.tolist(), trace.stamps[0]) == ([15, 16, 17], ms("2022-02-01T15:00"))


def test_entsoe_old_export(tmp_path: Path) -> None:
    """ENTSO-E, old web export: whole intervals as stamps, day first."""
    text = (
        '"MTU (CET/CEST)","Day-ahead Price [EUR/MWh]","Currency","BZN|FI"\n'
        "01.01.2020 00:00 - 01.01.2020 01:00,24.2,EUR,\n01.01.2020 01:00 - 01.01.2020 02:00,24.0,EUR,\n"
    )
    spec: dict[str, Any] = {
        "time": "MTU (CET/CEST)",
        "time_format": "%d.%m.%Y %H:%M",
        "tz": "Europe/Berlin",
        "value": "Day-ahead Price [EUR/MWh]",
        "unit": "EUR/MWh",
    }
    assert load(tmp_path, text, "price", **spec).stamps.tolist() == [ms("2019-12-31T23:00"), ms("2020-01-01T00:00")]
    with pytest.raises(TraceError, match=r"the stamps are whole intervals .* remove label: end"):
        load(tmp_path, text, "price", label="end", **spec)


def test_entsoe_new_export_in_autumn(tmp_path: Path) -> None:
    """ENTSO-E, new web export: the abbreviation after a stamp tells the passages apart, n/e is no value."""
    stamps = [
        "26/10/2025 01:00:00 (CEST) - 26/10/2025 02:00:00 (CEST)",
        "26/10/2025 02:00:00 (CEST) - 26/10/2025 02:00:00 (CET)",
        "26/10/2025 02:00:00 (CET) - 26/10/2025 03:00:00 (CET)",
        "26/10/2025 03:00:00 (CET) - 26/10/2025 04:00:00 (CET)",
    ]
    rows = "".join(f"{stamp},BZN|DK2,{value}\n" for stamp, value in zip(stamps, [1, 2, "n/e", 4], strict=True))
    trace = load(
        tmp_path,
        "MTU (CET/CEST),Area,Day-ahead Price (EUR/MWh)\n" + rows,
        "price",
        time="MTU (CET/CEST)",
        time_format="%d/%m/%Y %H:%M:%S",
        tz="Europe/Copenhagen",
        where={"Area": "BZN|DK2"},
        value="Day-ahead Price (EUR/MWh)",
        unit="EUR/MWh",
        step_s=3600,
        fill="interpolate",
        max_gap_s=3600,
    )
    assert trace.stamps[0] == ms("2025-10-25T23:00")
    assert (set(trace.durations_ms()), trace.values.tolist()) == ({3_600_000}, [1, 2, 3, 4])
    assert len(trace.warnings) == 2


def test_entsoe_file_service(tmp_path: Path) -> None:
    """ENTSO-E file service: tab-separated, several areas and types, resolutions mixed."""
    rows = "".join(
        f"2020-01-01 {hour:02d}:{minute:02d}:00\tDE\t{kind}\t{100 * hour + minute}\n"
        for hour, minutes in [(0, [0]), (1, [0]), (2, [0]), (3, [0, 15, 30, 45]), (4, [0])]
        for minute in minutes
        for kind in ("Solar", "Wind Onshore")
    )
    trace = load(
        tmp_path,
        "DateTime(UTC)\tAreaDisplayName\tProductionType\tActualGenerationOutput[MW]\n" + rows,
        sep="\t",
        time="DateTime(UTC)",
        tz="UTC",
        where={"AreaDisplayName": ["DE", "DE-LU"], "ProductionType": "Wind Onshore"},
        value="ActualGenerationOutput[MW]",
        unit="MW",
    )
    assert trace.durations_ms().tolist() == [3_600_000] * 3 + [900_000] * 5


def test_ercot_real_time(tmp_path: Path) -> None:
    """ERCOT real-time: hour 1 to 24, interval 1 to 4, DSTFlag on the repeated hour."""
    rows = "".join(
        f"11/07/2021,{hour},{interval},HB_WEST,HU,{hour}.5,{flag}\n"
        for hour, flag in [(1, "N"), (2, "N"), (2, "Y"), (3, "N"), (24, "N")]
        for interval in (1, 2, 3, 4)
    )
    trace = load(
        tmp_path,
        "DeliveryDate,DeliveryHour,DeliveryInterval,SettlementPointName,SettlementPointType,"
        "SettlementPointPrice,DSTFlag\n" + rows,
        "price",
        time={"date": "DeliveryDate", "hour_ending": "DeliveryHour", "interval": "DeliveryInterval"},
        time_format="%m/%d/%Y",
        step_s=900,
        tz="America/Chicago",
        repeated_hour_column="DSTFlag",
        value="SettlementPointPrice",
        unit="USD/MWh",
        fill="hold",
    )
    assert np.diff(trace.stamps[:16]).tolist() == [900_000] * 15
    assert (trace.stamps[0], trace.end) == (ms("2021-11-07T05:00"), ms("2021-11-08T06:00"))


def test_openelectricity_with_two_steps(tmp_path: Path) -> None:
    """A half-hourly column in a five-minute file: with fill its blank rows are no rows."""
    rows = "".join(
        f"2021-01-01T{hour:02d}:{minute:02d}+10:00,{minute},{hour if minute % 30 == 0 else ''}\n"
        for hour in range(3)
        for minute in range(0, 60, 5)
    )
    text = "date,Wind -  MW,Solar (Rooftop) -  MW\n" + rows
    trace = load(tmp_path, text, time="date", value="Solar (Rooftop) -  MW", unit="MW", fill="hold")
    assert (set(trace.durations_ms()), trace.values.tolist()) == ({1_800_000}, [0, 0, 1000, 1000, 2000, 2000])
    assert trace.filled_steps == 0


def test_rts_periods(tmp_path: Path) -> None:
    """RTS-GMLC: year, month, day and a period counted in steps."""
    text = "Year,Month,Day,Period,309_WIND_1\n2020,1,1,1,146\n2020,1,1,2,143.9\n2020,1,1,288,1\n"
    trace = load(
        tmp_path,
        text,
        time={"year": "Year", "month": "Month", "day": "Day", "period": "Period"},
        step_s=300,
        tz="-07:00",
        value="309_WIND_1",
        unit="MW",
        fill="hold",
    )
    assert (trace.stamps[0], trace.end) == (ms("2020-01-01T07:00"), ms("2020-01-02T07:00"))


def test_hours_2a_and_2b(tmp_path: Path) -> None:
    """Hours written 3A and 3B carry their passage."""
    hours = ["1", "2", "3A", "3B", "4"]
    text = "day,hour,value\n" + "".join(f"2021-10-31,{hour},{row}\n" for row, hour in enumerate(hours))
    trace = load(tmp_path, text, time={"date": "day", "hour_ending": "hour"}, tz="Europe/Paris")
    assert set(trace.durations_ms()) == {3_600_000}


def test_24_00_is_the_next_midnight(tmp_path: Path) -> None:
    """A stamp at 24:00 belongs to the next day; 12:24:00 is left alone."""
    text = "time,value\n12/30/2021 12:24:00,0\n12/31/2021 23:00:00,1\n12/31/2021 24:00:00,2\n"
    trace = load(tmp_path, text, time_format="%m/%d/%Y %H:%M:%S", tz="UTC")
    assert trace.stamps.tolist() == [ms("2021-12-30T12:24"), ms("2021-12-31T23:00"), ms("2022-01-01T00:00")]


def test_comment_lines_and_line_numbers(tmp_path: Path) -> None:
    """Comment and blank lines are skipped, and messages still give the line of the file."""
    text = "# source: meter 7\ntime,value\n2021-01-01T00:00Z,1\n\n# broken meter\n2021-01-01T01:00Z,x\n"
    with pytest.raises(TraceError, match=r"line 6: 'value' is 'x', which is not a number.*na_values"):
        load(tmp_path, text, comment="#")


# --- local time ----------------------------------------------------------------------------------------------------


def _caiso_autumn(naive: bool) -> str:
    """Five-minute rows from 00:00 to 03:00 local on 2025-11-02, where 01:00 to 02:00 occurs twice."""
    start = ms("2025-11-02T07:00") // 1000
    moments = [datetime.fromtimestamp(start + 300 * row, UTC) for row in range(48)]
    local = [moment.astimezone(ZoneInfo("America/Los_Angeles")) for moment in moments]
    stamps = [moment.strftime("%Y-%m-%d %H:%M:%S") if naive else moment.isoformat() for moment in local]
    return "time,value\n" + "".join(f"{stamp},{row}\n" for row, stamp in enumerate(stamps))


def test_repeated_hour_with_offsets_keeps_all_rows(tmp_path: Path) -> None:
    """Twelve extra rows in autumn are kept when the stamps carry their offset."""
    trace = load(tmp_path, _caiso_autumn(naive=False))
    assert (len(trace.stamps), set(trace.durations_ms())) == (48, {300_000})


def test_repeated_hour_naive_is_named(tmp_path: Path) -> None:
    """Naive stamps in the repeated hour are an error that names them; in order they can be inferred."""
    text = _caiso_autumn(naive=True)
    message = r"line 14: '2025-11-02 01:00:00' \(to '2025-11-02 01:55:00', line 37; 24 rows\) occurs twice in America"
    with pytest.raises(TraceError, match=message):
        load(tmp_path, text, tz="America/Los_Angeles")
    trace = load(tmp_path, text, tz="America/Los_Angeles", repeated_hour="infer")
    assert (len(trace.stamps), set(trace.durations_ms())) == (48, {300_000})


def test_midnight_that_does_not_exist(tmp_path: Path) -> None:
    """A daily profile anchored at midnight loads in Santiago, where one midnight is skipped."""
    text = "time,value\n" + "".join(f"2014-09-0{day} 00:00,{day}\n" for day in range(4, 10))
    trace = load(tmp_path, text, tz="America/Santiago")
    assert trace.stamps[3] == ms("2014-09-07T04:00")
    assert "line 5: '2014-09-07 00:00' does not exist in America/Santiago" in trace.warnings[0]
    periods = "day,period,value\n" + "".join(f"2014-09-07,{period},{period}\n" for period in range(1, 24))
    trace = load(tmp_path, periods, time={"date": "day", "period": "period"}, step_s=3600, tz="America/Santiago")
    assert (trace.stamps[0], trace.end) == (ms("2014-09-07T04:00"), ms("2014-09-08T03:00"))


@pytest.mark.parametrize("step_s", [None, 86_400])
def test_local_days_have_23_to_25_hours(tmp_path: Path, step_s: float | None) -> None:
    """Daily rows stamped in local time have no gap where clocks change; an absent day is one."""
    days = np.arange("2021-03-01", "2021-11-20", dtype="datetime64[D]")
    text = "time,value\n" + "".join(f"{day},{row}\n" for row, day in enumerate(days))
    trace = load(tmp_path, text, tz="America/Los_Angeles", step_s=step_s)
    assert set(trace.durations_ms() // 3_600_000) == {23, 24, 25}
    with pytest.raises(TraceError, match="a gap: 2021-05-"):
        load(tmp_path, without(text, 70), tz="America/Los_Angeles", step_s=step_s)


def test_standard_time_read_as_prevailing_time(tmp_path: Path) -> None:
    """A row inside the skipped hour next to the row it would fall on is an error with the likely cause."""
    text = "time,value\n" + "".join(f"2021-03-14 0{hour}:00,{hour}\n" for hour in range(6))
    with pytest.raises(TraceError, match=r"line 4: '2021-03-14 02:00' does not exist.*give tz as a fixed offset"):
        load(tmp_path, text, tz="America/Los_Angeles")


# --- gaps, duplicates, order ---------------------------------------------------------------------------------------


def without(text: str, *rows: int) -> str:
    """The file without some of its data rows (0 is the first)."""
    return "".join(line for row, line in enumerate(text.splitlines(keepends=True)) if row - 1 not in rows)


def test_gap_is_an_error_by_default(tmp_path: Path) -> None:
    """Gaps are listed, at most three, with the line they end on."""
    message = (
        r"4 gaps: 2021-01-01T03:00:00Z to 2021-01-01T05:00:00Z before line 5, "
        r"2021-01-01T08:00:00Z to 2021-01-01T09:00:00Z before line 8, .*, \.\.\.; complete the file or set fill"
    )
    with pytest.raises(TraceError, match=message):
        load(tmp_path, without(hourly(24), 3, 4, 8, 12, 17))


@pytest.mark.parametrize(
    ("fill", "values", "durations_h"),
    [
        pytest.param("hold", [0, 1, 2, 5, 6, 7], [1, 1, 3, 1, 1, 1], id="hold"),
        pytest.param("zero", [0, 1, 2, 0, 5, 6, 7], [1, 1, 1, 2, 1, 1, 1], id="zero"),
        pytest.param("interpolate", [0, 1, 2, 3, 4, 5, 6, 7], [1] * 8, id="interpolate"),
    ],
)
def test_fill(tmp_path: Path, fill: str, values: list[float], durations_h: list[int]) -> None:
    """A gap of two steps is filled as asked, counted, and warned of."""
    trace = load(tmp_path, without(hourly(8), 3, 4), fill=fill, step_s=3600)
    assert trace.values.tolist() == pytest.approx(values)
    assert (trace.durations_ms() // 3_600_000).tolist() == durations_h
    assert trace.filled_steps == 2
    assert trace.warnings[0].startswith("2 absent steps in a gap are filled by")


def test_max_gap(tmp_path: Path) -> None:
    """A gap longer than max_gap_s stays an error."""
    text = without(hourly(24), 3, 10, 11)
    with pytest.raises(TraceError, match=r"a gap longer than max_gap_s \(1 h\): 2021-01-01T10:00:00Z to"):
        load(tmp_path, text, fill="hold", max_gap_s=3600)
    assert load(tmp_path, text, fill="hold", max_gap_s=7200).filled_steps == 3


def test_declared_step_is_checked(tmp_path: Path) -> None:
    """Rows closer than the declared step are a mistake."""
    with pytest.raises(TraceError, match="line 3: 1 h after the row before, but step_s says 2 h"):
        load(tmp_path, hourly(5), step_s=7200)


def test_mixed_steps_are_integrated_by_duration(tmp_path: Path) -> None:
    """Runs of 30 and 15 minutes are both the file's steps; energies are divided by their own step."""
    stamps = ["00:00", "00:30", "01:00", "01:30", "01:45", "02:00", "02:15", "02:30"]
    text = "time,value\n" + "".join(f"2021-01-01T{stamp}Z,{row + 1}\n" for row, stamp in enumerate(stamps))
    trace = load(tmp_path, text, unit="kWh per step")
    assert trace.values.tolist() == [2, 4, 6, 16, 20, 24, 28, 32]
    assert float(trace.values @ trace.durations_ms()) / 3.6e6 == pytest.approx(36)


def test_rare_long_steps_in_a_regular_file(tmp_path: Path) -> None:
    """Two half-hour holes in a quarter-hour file: an error that offers hold, which integrates by duration."""
    start = np.datetime64("2021-01-01T00:00")
    stamps = [start + np.timedelta64(15 * row, "m") for row in range(96) if row not in (20, 50)]
    text = "time,value\n" + "".join(f"{stamp}Z,{row}\n" for row, stamp in enumerate(stamps))
    with pytest.raises(TraceError, match="2 gaps"):
        load(tmp_path, text)
    trace = load(tmp_path, text, fill="hold")
    assert (len(trace.stamps), trace.end - trace.stamps[0]) == (94, 86_400_000)


def test_change_points_are_no_gaps(tmp_path: Path) -> None:
    """A file of events without a step of its own holds each value until the next."""
    text = "time,value\n2021-01-01T00:00Z,1\n2021-01-01T08:00Z,2\n2021-01-01T09:15Z,3\n2021-01-02T00:00Z,4\n"
    trace = load(tmp_path, text)
    assert trace.durations_ms().tolist() == [28_800_000, 4_500_000, 53_100_000, 53_100_000]


def test_unsorted_rows(tmp_path: Path) -> None:
    """Rows out of order are an error with the line, unless the file is known for it."""
    text = "time,value\n2021-01-01T00:00Z,1\n2021-01-01T02:00Z,3\n2021-01-01T01:00Z,2\n"
    with pytest.raises(TraceError, match="line 4: the stamps go back from 2021-01-01T02:00:00Z to 2021-01-01T01"):
        load(tmp_path, text)
    assert load(tmp_path, text, sort=True).values.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("spec", "value"),
    [({"duplicates": "mean"}, 3), ({"duplicates": "first"}, 2), ({"duplicates": "last"}, 4), ({"sum_rows": True}, 6)],
)
def test_duplicates(tmp_path: Path, spec: dict[str, Any], value: float) -> None:
    """Different values for one stamp are an error unless the spec says what they mean."""
    text = "time,value\n2021-01-01T00:00Z,1\n2021-01-01T01:00Z,2\n2021-01-01T01:00Z,4\n2021-01-01T02:00Z,5\n"
    with pytest.raises(TraceError, match="line 4: 2021-01-01T01:00:00Z occurs before on line 3, with another value"):
        load(tmp_path, text)
    trace = load(tmp_path, text, **spec)
    assert trace.values.tolist() == [1, value, 5]
    assert trace.dropped_duplicates == (0 if "sum_rows" in spec else 1)


# --- other mistakes ------------------------------------------------------------------------------------------------

ROWS = "2021-01-01T00:00Z,1\n2021-01-01T01:00Z,2\n"


@pytest.mark.parametrize(
    ("text", "spec", "message"),
    [
        pytest.param("", {}, "no header line", id="empty file"),
        pytest.param("time,value\n", {}, "0 data rows; at least two are needed", id="no rows"),
        pytest.param("time;value\n1;2\n", {}, "no column 'time'; set sep: ';'", id="separator"),
        pytest.param("time,value,value\n" + ROWS, {}, "the column 'value' occurs 2 times", id="column twice"),
        pytest.param("time,Value\n" + ROWS, {}, "no column 'value'; did you mean 'Value'", id="case of a name"),
        pytest.param("time,value\n2021-01-01T00:00Z,1,5\n", {}, "line 2: 3 cells under 2", id="decimal comma"),
        pytest.param('time,value\n2021-01-01T00:00Z,"1,5"\n' + ROWS, {}, "set decimal: ','", id="quoted comma"),
        pytest.param("time,value\n2021-01-01 00:00,1\n2021-01-01 01:00,1\n", {}, "line 2: .*no time zone", id="naive"),
        pytest.param("time,value\n2021-01-01T00:00Z,1\n2021-01-01 01:00,1\n", {}, "line 3: .*no offset", id="mixed"),
        pytest.param("time,value\n0,1\n300,2\n", {"tz": "UTC"}, "a number; .*elapsed_s", id="seconds"),
        pytest.param("time,value\n2021-02-30T00:00Z,1\n" + ROWS, {}, "line 2: there is no such time", id="30 February"),
        pytest.param("time,value\n2021-01-01T00:00Z,1\n,2\n", {}, "line 3: no time stamp", id="no stamp"),
        pytest.param("time,value\n" + ROWS + "2021-01-01T02:00Z,\n", {}, "line 4: no value", id="NaN row"),
        pytest.param("time,value\n" + ROWS + "2021-01-01T02:00Z\n", {}, "line 4: no value", id="short row"),
        pytest.param("time,value\n" + ROWS + "2021-01-01T02:00Z,inf\n", {}, "line 4: .*finite", id="infinite"),
        pytest.param("time,value\n2021-01-01T00:00Z,\n2021-01-01T01:00Z,-\n", {}, "every value", id="all missing"),
        pytest.param("time,value\n" + ROWS, {"where": {"time": "x"}}, "no row has time = x", id="filter"),
        pytest.param("time,value\n" + ROWS, {"time_format": "%d.%m.%Y"}, "line 2: .*not have the form", id="format"),
        pytest.param("time,value\n" + ROWS, {"encoding": "utf-77"}, "cannot be read as utf-77", id="encoding"),
        pytest.param("d,h,value\n2021-01-01,25,1\n2021-01-01,26,1\n", {"tz": "UTC"}, "1 to 24", id="hour 25"),
    ],
)
def test_mistake(tmp_path: Path, text: str, spec: dict[str, Any], message: str) -> None:
    """Each mistake gives one message with the file, the rule and, where there is one, the line."""
    if text.startswith("d,h"):
        spec = spec | {"time": {"date": "d", "hour_ending": "h"}}
    with pytest.raises(TraceError, match=rf"^{tmp_path}/trace\.csv.*{message}"):
        load(tmp_path, text, **spec)


def test_missing_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing file is reported with a near match, its folder or the variable that is not set."""
    (tmp_path / "texas.csv").write_text("time,value\n" + ROWS)

    def read(path: str) -> Trace:
        return load_trace(TraceSpec(path=path, value="value", unit="kW"), base=tmp_path, quantity="power")

    with pytest.raises(TraceError, match=r"texsa\.csv: no such file; did you mean 'texas\.csv'\?"):
        read("texsa.csv")
    with pytest.raises(TraceError, match=r"there is no folder .* either"):
        read("absent/texas.csv")
    with pytest.raises(TraceError, match="is a folder"):
        read(".")
    with pytest.raises(TraceError, match="an environment variable in the path is not set"):
        read("$CURTAILSIM_NO_SUCH/texas.csv")
    monkeypatch.setenv("CURTAILSIM_TEST_FOLDER", str(tmp_path))
    assert read("$CURTAILSIM_TEST_FOLDER/texas.csv").values.tolist() == [1, 2]


def test_broken_gzip(tmp_path: Path) -> None:
    """A truncated or a plain file named .gz is refused."""
    packed = gzip.compress(hourly(500).encode())
    for content in (packed[:-20], b"time,value\n"):
        (tmp_path / "trace.csv.gz").write_bytes(content)
        with pytest.raises(TraceError, match="not a complete gzip file"):
            load_trace(TraceSpec(path="trace.csv.gz", value="value", unit="kW"), base=tmp_path, quantity="power")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"tz": "America/Los_Angles"}, "did you mean 'America/Los_Angeles'"),
        ({"label": "end", "time": {"date": "d", "hour_ending": "h"}}, "already give the interval's start"),
        ({"time": {"date": "d", "period": "p"}}, "step_s is needed"),
        ({"time": {"date": "d", "hour": "h", "period": "p"}}, "exactly one of"),
        ({"time": {"year": "y", "hour": "h"}}, "name the day"),
        ({"time": {"date": "d", "hour_ending": "h", "minute": "m"}}, "'minute' goes with 'hour'"),
        ({"time": {"date": "d", "period": "h", "interval": "m"}, "step_s": 300}, "cannot go with 'period'"),
        ({"time_format": "elapsed_s"}, "start_at"),
        ({"max_gap_s": 3600}, "max_gap_s limits 'fill'"),
        ({"sum_rows": True, "duplicates": "mean"}, "sum_rows"),
        ({"repeated_hour": "infer", "sort": True}, "order of the rows"),
        ({"repeated_hour": "infer", "repeated_hour_column": "x"}, "give either"),
        ({"decimal": ","}, "sep and decimal"),
        ({"start_at": "2021-01-01T00:00"}, "timezone"),
        ({"threshhold": 1}, "Extra inputs"),
    ],
)
def test_spec_mistakes(spec: dict[str, Any], message: str) -> None:
    """Options that contradict each other are refused before any file is read."""
    with pytest.raises(ValidationError, match=message):
        TraceSpec(**{"path": "x.csv", "value": "v", "unit": "kW"} | spec)


def test_one_mistake_in_time_is_one_problem() -> None:
    """The forms of `time` do not multiply its problems."""
    with pytest.raises(ValidationError) as caught:
        TraceSpec.model_validate(
            {"path": "x.csv", "value": "v", "unit": "kW", "time": {"date": "d", "hourending": "h"}}
        )
    (problem,) = caught.value.errors()
    assert (problem["loc"], problem["type"]) == (("time", "parts", "hourending"), "extra_forbidden")


def test_spec_survives_writing_and_reading() -> None:
    """A resolved spec, as written into a results folder, reads as the same spec."""
    spec = TraceSpec.model_validate(
        {"path": "x.csv", "time": ["a", "b"], "value": "v", "unit": "kW", "where": {"a": 1, "b": ["x", "y"]}}
    )
    assert TraceSpec.model_validate_json(spec.model_dump_json()) == spec


def test_unit_is_required() -> None:
    """A trace without a unit is refused."""
    with pytest.raises(ValidationError, match="unit\n  Field required"):
        TraceSpec.model_validate({"path": "x.csv", "value": "v"})


# --- units ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quantity", "unit", "one", "canonical"),
    [
        ("power", "W", 0.001, "kW"),
        ("power", "MW", 1000, "kW"),
        ("power", "GW", 1e6, "kW"),
        ("power", "MWh per step", 1000, "kW"),
        ("power", "kWh/step", 1, "kW"),
        ("power", "MWh", 1000, "kW"),
        ("carbon_intensity", "gCO₂eq/kWh", 1, "g/kWh"),
        ("carbon_intensity", "kg CO2/kWh", 1000, "g/kWh"),
        ("carbon_intensity", "kg/MWh", 1, "g/kWh"),
        ("carbon_intensity", "lbs CO2/MWh", 0.45359237, "g/kWh"),
        ("carbon_intensity", "t/MWh", 1000, "g/kWh"),
        ("price", "AUD/MWh", 1, "AUD/MWh"),
        ("price", "USD/kWh", 1000, "USD/MWh"),
        ("price", "€/MWh", 1, "EUR/MWh"),
        ("fraction", "%", 0.01, "1"),
        ("irradiance", "W/m²", 1, "W/m2"),
        ("wind_speed", "m/s", 1, "m/s"),
    ],
)
def test_units(tmp_path: Path, quantity: Quantity, unit: str, one: float, canonical: str) -> None:
    """Each accepted unit is converted to the one unit of its quantity."""
    trace = load(tmp_path, "time,value\n" + ROWS, quantity, unit=unit, scale=0.5)
    assert (trace.values.tolist(), trace.unit) == (pytest.approx([one / 2, one]), canonical)


@pytest.mark.parametrize(
    ("quantity", "unit", "message"),
    [
        ("power", "mw", r"unit 'mw' is not one of power; did you mean 'MW'\?; use W, kW, MW, GW, .*MWh per step"),
        ("power", "g/kWh", "is not one of power.*use W, kW"),
        ("carbon_intensity", "MW", "is not one of carbon_intensity.*use g/kWh, kg/kWh, kg/MWh, t/MWh, .*lb/MWh"),
        ("price", "$/MWh", "use a currency code per MWh or kWh"),
    ],
)
def test_unknown_units(tmp_path: Path, quantity: Quantity, unit: str, message: str) -> None:
    """An unknown or mismatched unit is refused with those accepted."""
    with pytest.raises(TraceError, match=message):
        load(tmp_path, "time,value\n" + ROWS, quantity, unit=unit)


# --- warnings, windows, moves --------------------------------------------------------------------------------------


def test_warnings(tmp_path: Path) -> None:
    """A constant signal, zeros in a carbon trace and fractions above 1 are suspicious, not wrong."""
    rows = "".join(f"2021-01-01T0{hour}:00Z,{{}}\n" for hour in range(6))
    constant = load(tmp_path, "time,value\n" + rows.format(*[5] * 6))
    assert constant.warnings == (
        "the signal never changes (5 kW) from 2021-01-01T00:00:00Z to 2021-01-01T06:00:00Z; no window can exist",
    )
    zeros = load(tmp_path, "time,value\n" + rows.format(9, 0, 9, 0, 0, 9), "carbon_intensity", unit="g/kWh")
    assert zeros.warnings == (
        "exactly 0 over 2021-01-01T03:00:00Z to 2021-01-01T05:00:00Z, the longest of such runs; "
        "was a missing source counted as 0?",
    )
    percent = load(tmp_path, "time,value\n" + rows.format(1, 20, 35, 0, 1, 2), "fraction", unit="fraction")
    assert percent.warnings == ("a fraction outside 0 to 1 (up to 35); is the unit '%', or scale wrong?",)


def test_window(tmp_path: Path) -> None:
    """A window begins with the value in force and keeps the interval lengths inside it."""
    trace = load(tmp_path, hourly(24))
    part = trace.window(ms("2021-01-01T02:30"), ms("2021-01-01T05:00"))
    assert part.values.tolist() == [2, 3, 4]
    assert part.durations_ms().tolist() == [1_800_000, 3_600_000, 3_600_000]
    assert trace.window(int(trace.stamps[0]), trace.end).values.tolist() == list(range(24))
    still = trace.window(ms("2021-01-01T02:00"), ms("2021-01-01T02:30"))
    assert still.warnings == (
        "the signal never changes (2 kW) from 2021-01-01T02:00:00Z to 2021-01-01T02:30:00Z; no window can exist",
    )
    message = "covers 2021-01-01T00:00:00Z to 2021-01-02T00:00:00Z but 2021-01-01T23:00:00Z to 2021-01-02T01:00:00Z"
    with pytest.raises(TraceError, match=message):
        trace.window(ms("2021-01-01T23:00"), ms("2021-01-02T01:00"))
    with pytest.raises(TraceError, match="empty span"):
        trace.window(trace.end, trace.end)


def test_wrap(tmp_path: Path) -> None:
    """A trace repeats in both directions only when asked, and says when that moves the daily cycle."""
    day = load(tmp_path, hourly(24), wrap=True)
    assert day.warnings == ()
    after = day.window(ms("2021-01-03T22:30"), ms("2021-01-04T02:00"))
    assert after.values.tolist() == [22, 23, 0, 1]
    before = day.window(ms("2020-12-30T23:00"), ms("2020-12-31T01:00"))
    assert before.values.tolist() == [23, 0]
    assert "moves the daily cycle" in load(tmp_path, hourly(18), wrap=True).warnings[0]


def test_start_at(tmp_path: Path) -> None:
    """A trace moves by whole days, unless an exact shift is asked for."""
    text = hourly(24, "2021-01-01T06:00:00")
    moved = load(tmp_path, text, start_at="2026-03-01T06:00Z")
    assert (moved.stamps[0], moved.end) == (ms("2026-03-01T06:00"), ms("2026-03-02T06:00"))
    with pytest.raises(TraceError, match="by a part of a day; use 2026-02-28T06:00:00Z, or shift: exact"):
        load(tmp_path, text, start_at="2026-03-01T00:00Z")
    assert load(tmp_path, text, start_at="2026-03-01T00:00Z", shift="exact").stamps[0] == ms("2026-03-01")


def test_summary(tmp_path: Path) -> None:
    """One line says what was read."""
    assert load(tmp_path, hourly(24)).summary() == (
        "trace.csv [value]: 24 rows, 2021-01-01T00:00:00Z to 2021-01-02T00:00:00Z, step 1 h, 0 steps filled, "
        "0 duplicates dropped, min 0 / mean 11.5 / max 23 kW"
    )


def test_arrays_cannot_be_changed(tmp_path: Path) -> None:
    """A trace may be shared: its arrays are read-only."""
    trace = load(tmp_path, hourly(3))
    with pytest.raises(ValueError, match="read-only"):
        trace.values[0] = 1


def test_paper_trace() -> None:
    """The paper's five-minute intensity covers its 18 hours; a threshold of 100 leaves the documented minutes."""
    for column, minutes in {"CAISO_NORTH": 365, "SPP_TX": 410, "NEM_SA": 630, "DE": 0}.items():
        spec = TraceSpec(path="curtail_llm_mci.csv", time="point_time", value=column, unit="g/kWh")
        trace = load_trace(spec, base=shared_data("curtail_llm_mci.csv").parent, quantity="carbon_intensity")
        part = trace.window(ms("2026-01-11T17:00"), ms("2026-01-12T11:00"))
        assert int(part.durations_ms()[part.values < 100].sum()) == minutes * 60_000


# --- what an attacker tried ----------------------------------------------------------------------------------------

HOSTILE: dict[str, tuple[str, dict[str, Any], str]] = {
    "directive": (hourly(4), {"time_format": "%Q"}, r"time_format '%Q' cannot be used"),
    "year_0": (hourly(4).replace("2021", "0000"), {}, r"line 2: the year of the stamp .* is not between 1000 and 9000"),
    "underscore": (hourly(4).replace(",3", ",1_000"), {}, r"line 5: 'value' is '1_000', which is not a number"),
    "full_width": (hourly(4).replace(",3", ",\uff13"), {}, r"line 5: 'value' is '\uff13', which is not a number"),
    "infinite": (
        hourly(4).replace(",3", ",1e300"),
        {"scale": 1e18},
        r"line 5: the value is not finite .* scale 1e\+18",
    ),
    "unit": (hourly(4), {"unit": "g/MWh", "quantity": "carbon_intensity"}, r"unit 'g/MWh' is not one of"),
    "elapsed": (
        "time,value\n0,1\n1e300,2\n",
        {"time_format": "elapsed_s", "start_at": "2021-01-01T00:00Z"},
        r"line 3: 1e\+300 s is no time stamp",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(name: str, tmp_path: Path) -> None:
    """One message with the place, and neither a traceback nor a wrong number."""
    text, spec, words = HOSTILE[name]
    with pytest.raises(TraceError, match=words):
        load(tmp_path, text, **spec)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"value": ["a", "a"]}, "value names the column 'a' twice"),
        ({"step_s": 1e300}, "less than or equal to 31622400"),
        ({"path": ""}, "at least 1 character"),
        ({"path": "a\0b"}, "no NUL character"),
    ],
    ids=["twice", "step", "no_path", "nul"],
)
def test_hostile_specs(spec: dict[str, Any], words: str) -> None:
    """Refused before any file is opened."""
    with pytest.raises(ValidationError, match=words):
        TraceSpec(**{"path": "a.csv", "value": "value", "unit": "kW"} | spec)
