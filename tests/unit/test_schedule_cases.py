# SPDX-License-Identifier: MIT
"""The slot values of cases DV-01 to DV-09, exactly as given (W1, W9-W11)."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
import time
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import pytest
import rota.errors
from rota.errors import ConfigurationError
from rota.schedule import Cron, Every, Missed, Schedule, Slot, instant

SECOND = 1_000_000
DAY = 86_400 * SECOND


def us(text: str) -> int:
    """Microseconds of an ISO text; a bare date or time without zone is UTC."""
    at = datetime.fromisoformat(text)
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def holds(schedule: Schedule, at: str, start: str, end: str) -> None:
    """The slot at *at* is the one given, asked fresh, from memory, by datetime, and by its neighbours."""
    expected = Slot(us(start), us(end))
    assert schedule.slot(us(at)) == expected, schedule.slot(us(at))
    assert schedule.slot(datetime.fromisoformat(at)) == expected
    assert schedule.next(us(start) - 1) == [expected]
    assert schedule.slot(us(end) - 1) == expected
    assert schedule.slot(us(end)).start == us(end)


DV_01 = [
    ("0 2 * * *", "Europe/Berlin", "2023-10-29T00:00:05Z", "2023-10-29T00:00Z", "2023-10-30T01:00Z"),
    ("0 2 * * *", "Europe/Berlin", "2023-10-29T01:00:05Z", "2023-10-29T00:00Z", "2023-10-30T01:00Z"),
    ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T14:45:05Z", "2026-04-04T14:45Z", "2026-04-05T15:15Z"),
    ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T15:15:05Z", "2026-04-04T14:45Z", "2026-04-05T15:15Z"),
]
DV_02 = [
    ("0 2 * * *", "America/Los_Angeles", "2025-03-09T09:59:59Z", "2025-03-08T10:00Z", "2025-03-09T10:00Z"),
    ("0 2 * * *", "America/Los_Angeles", "2025-03-09T10:00:05Z", "2025-03-09T10:00Z", "2025-03-10T09:00Z"),
    ("30 2 * * *", "America/Los_Angeles", "2025-03-09T10:45:00Z", "2025-03-09T10:00Z", "2025-03-10T09:30Z"),
    ("15 2 * * *", "Australia/Lord_Howe", "2025-10-04T15:30:05Z", "2025-10-04T15:30Z", "2025-10-05T15:15Z"),
]
DV_03 = [
    ("7 0 * * *", "UTC", "2020-02-26T00:14:40Z", "2020-02-26T00:07Z", "2020-02-27T00:07Z"),
    ("7 0 * * *", "UTC", "2020-02-27T00:00:30Z", "2020-02-26T00:07Z", "2020-02-27T00:07Z"),
    ("7 0 * * *", "UTC", "2020-02-27T00:07:02Z", "2020-02-27T00:07Z", "2020-02-28T00:07Z"),
]
DV_04 = [
    ("4 0 * * *", "UTC", "2020-02-06T00:04:01Z", "2020-02-06T00:04Z", "2020-02-07T00:04Z"),
    ("0 9 * * *", "EST", "2025-07-01T13:00:00Z", "2025-06-30T14:00Z", "2025-07-01T14:00Z"),
    ("0 9 * * *", "America/New_York", "2025-07-01T13:00:00Z", "2025-07-01T13:00Z", "2025-07-02T13:00Z"),
    ("0 9 * * *", "Etc/GMT+5", "2025-07-01T13:00:00Z", "2025-06-30T14:00Z", "2025-07-01T14:00Z"),
]
DV_05 = [
    ("0 10 * * *", "UTC", "2018-01-02T09:59:59.999999Z", "2018-01-01T10:00Z", "2018-01-02T10:00Z"),
    ("0 10 * * *", "UTC", "2018-01-02T10:00:00.000000Z", "2018-01-02T10:00Z", "2018-01-03T10:00Z"),
    ("0 10 * * *", "UTC", "2018-01-02T10:00:00.000001Z", "2018-01-02T10:00Z", "2018-01-03T10:00Z"),
    ("0 10 * * *", "UTC", "2018-01-02T10:00:00.500000Z", "2018-01-02T10:00Z", "2018-01-03T10:00Z"),
    ("1 * * * *", "UTC", "2020-01-01T10:00:59.500Z", "2020-01-01T09:01Z", "2020-01-01T10:01Z"),
]
DV_06 = [
    ("20 17 * * *", "America/New_York", "2025-03-09T21:19:59.999Z", "2025-03-08T22:20Z", "2025-03-09T21:20Z"),
    ("20 17 * * *", "America/New_York", "2025-03-09T21:20:00.000Z", "2025-03-09T21:20Z", "2025-03-10T21:20Z"),
    ("25 3 * * 0", "Europe/Prague", "2025-10-19T10:00:00Z", "2025-10-19T01:25Z", "2025-10-26T02:25Z"),
    ("25 3 * * 0", "Europe/Prague", "2025-10-26T01:30:00Z", "2025-10-19T01:25Z", "2025-10-26T02:25Z"),
]
DV_07 = [
    (expression, "UTC", at, start, end)
    for expression, at, start, end in [
        ("0 0 * * 5L", "2024-07-11T00:00Z", "2024-06-28", "2024-07-26"),
        ("0 0 * * L5", "2024-07-11T00:00Z", "2024-06-28", "2024-07-26"),
        ("0 0 * * 7L", "2024-07-11T00:00Z", "2024-06-30", "2024-07-28"),
        ("0 0 * * 0L", "2024-07-11T00:00Z", "2024-06-30", "2024-07-28"),
        ("0 0 * * 0", "2024-07-11T00:00Z", "2024-07-07", "2024-07-14"),
        ("0 0 * * 7", "2024-07-11T00:00Z", "2024-07-07", "2024-07-14"),
        ("0 0 * * sun", "2024-07-11T00:00Z", "2024-07-07", "2024-07-14"),
        ("0 0 * * 5-7", "2024-07-11T00:00Z", "2024-07-07", "2024-07-12"),
        ("0 0 * * fri-sun", "2024-07-11T00:00Z", "2024-07-07", "2024-07-12"),
        ("0 0 * * 1#1", "2024-07-11T00:00Z", "2024-07-01", "2024-08-05"),
        ("0 0 * * 5#5", "2024-07-11T00:00Z", "2024-05-31", "2024-08-30"),
        ("0 0 L * *", "2024-07-11T00:00Z", "2024-06-30", "2024-07-31"),
        ("@daily", "2026-08-17T10:13:20Z", "2026-08-17", "2026-08-18"),
        ("@midnight", "2026-08-17T10:13:20Z", "2026-08-17", "2026-08-18"),
        ("@weekly", "2026-08-17T10:13:20Z", "2026-08-16", "2026-08-23"),
        ("@hourly", "2026-08-17T10:13:20Z", "2026-08-17T10:00", "2026-08-17T11:00"),
        ("@monthly", "2026-08-17T10:13:20Z", "2026-08-01", "2026-09-01"),
        ("@yearly", "2026-08-17T10:13:20Z", "2026-01-01", "2027-01-01"),
        ("@Annually", "2026-08-17T10:13:20Z", "2026-01-01", "2027-01-01"),
        ("0 0 */5 * *", "2022-03-03T12:00Z", "2022-03-01", "2022-03-06"),
        ("0 0 */5 * *", "2022-02-01T00:00Z", "2022-02-01", "2022-02-06"),
        ("0 0 */5 * *", "2022-01-31T23:59Z", "2022-01-31", "2022-02-01"),
        ("*/45 * * * *", "2026-08-17T10:13:20Z", "2026-08-17T10:00", "2026-08-17T10:45"),
        ("*/45 * * * *", "2026-08-17T10:50Z", "2026-08-17T10:45", "2026-08-17T11:00"),
        ("0 0 29 2 *", "2024-07-11T00:00Z", "2024-02-29", "2028-02-29"),
        ("0 0 29 2 *", "2099-07-11T00:00Z", "2096-02-29", "2104-02-29"),
        ("0 0 * 2 1#5", "2100-07-11T00:00Z", "2072-02-29", "2112-02-29"),
        ("0 0 13 * 5", "2024-07-11T00:00Z", "2024-07-05", "2024-07-12"),
        ("0 0 13 * 5", "2024-07-12T00:00Z", "2024-07-12", "2024-07-13"),
        ("0 0 ? * 5", "2024-07-11T00:00Z", "2024-07-05", "2024-07-12"),
        ("0 0 L * 1#1", "2024-07-11T00:00Z", "2024-07-01", "2024-07-31"),
        ("5-5 0 * * *", "2024-07-11T00:10Z", "2024-07-11T00:05", "2024-07-12T00:05"),
        ("59/15 0 * * *", "2024-07-11T00:10Z", "2024-07-10T00:59", "2024-07-11T00:59"),
        ("0 0 1 */5 *", "2024-07-11T00:10Z", "2024-06-01", "2024-11-01"),
        ("0 0 31 jan-jun/5 *", "2024-07-11T00:10Z", "2024-01-31", "2025-01-31"),
    ]
]
DV_08 = [
    ("42 * * * *", "Asia/Shanghai", f"2023-08-03T03:42:00{at}Z", "2023-08-03T03:42Z", "2023-08-03T04:42Z") for at in (".060", ".950", "")
]


@pytest.mark.parametrize(("expression", "zone", "at", "start", "end"), [*DV_01, *DV_02, *DV_03, *DV_04, *DV_05, *DV_06, *DV_07, *DV_08])
def test_the_slot_is_the_one_of_the_case(expression: str, zone: str, at: str, start: str, end: str) -> None:
    """DV-01 to DV-08: every row with a window."""
    holds(Cron(expression, tz=zone), at, start, end)


@pytest.mark.parametrize(
    ("period", "at", "start", "end"),
    [
        ("15m", "2025-03-09T10:02Z", "2025-03-09T10:00Z", "2025-03-09T10:15Z"),
        ("15m", "2025-03-09T10:11Z", "2025-03-09T10:00Z", "2025-03-09T10:15Z"),
        ("15m", "2025-03-09T10:17Z", "2025-03-09T10:15Z", "2025-03-09T10:30Z"),
        ("15m", "2025-03-09T10:41Z", "2025-03-09T10:30Z", "2025-03-09T10:45Z"),
        ("7h", "2025-03-09T10:00Z", "2025-03-09T05:00Z", "2025-03-09T12:00Z"),
        ("7h", "2025-03-10T10:00Z", "2025-03-10T09:00Z", "2025-03-10T16:00Z"),
        ("7d", "2025-03-09T10:00Z", "2025-03-06T00:00Z", "2025-03-13T00:00Z"),
        ("30m", "2026-03-08T09:59:59Z", "2026-03-08T09:30Z", "2026-03-08T10:00Z"),
        ("30m", "2026-03-08T10:00:00Z", "2026-03-08T10:00Z", "2026-03-08T10:30Z"),
    ],
)
def test_intervals_are_aligned_to_the_epoch(period: str, at: str, start: str, end: str) -> None:
    """DV-09: and neither the start of a process nor a change of clocks plays a part."""
    holds(Every(period), at, start, end)


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ("0 0 * 2 1#5", lambda day: (day.month, day.day) == (2, 29) and day.isoweekday() == 1),
        ("0 0 31 12 5L", lambda day: day.month == 12 and (day.day == 31 or (day.isoweekday() == 5 and day.day > 24))),
    ],
)
def test_rare_days_are_those_of_the_gregorian_calendar(expression: str, fits: Callable[[date], bool]) -> None:
    """W1: over 400 years, in which every kind of year begins and ends the lists of its neighbours."""
    first = date(1972, 1, 1)
    days = [first + timedelta(days=number) for number in range(146_097)]
    expected = [us(day.isoformat()) for day in days if fits(day)]
    cron = Cron(expression)
    assert [slot.start for slot in cron.next(us("1971-12-31T12:00"), len(expected))] == expected
    backwards, at = [], us("2372-01-01") - 1
    while at >= expected[0]:
        backwards.append(cron.slot(at).start)
        at = backwards[-1] - 1
    assert backwards == expected[::-1]


def test_nine_claims_of_three_processes_fall_into_three_slots() -> None:
    """DV-09."""
    claims = [f"2025-03-09T10:{minute:02}Z" for minute in (2, 7, 11, 17, 22, 26, 32, 37, 41)]
    starts = [Every("15m").slot(us(at)).start for at in claims]
    assert starts == [us(at) for at in ("2025-03-09T10:00Z", "2025-03-09T10:15Z", "2025-03-09T10:30Z") for _ in range(3)]


def test_an_anchor_moves_the_slots_and_anchors_whole_periods_apart_are_equal() -> None:
    """W11: the schedule has no beginning; the anchor only says where its starts fall."""
    monday = Every("7d", anchor="2026-01-05T00:00:00+00:00")
    holds(monday, "2025-03-09T10:00Z", "2025-03-03", "2025-03-10")
    assert monday == Every("7d", anchor=datetime(2030, 1, 7, tzinfo=UTC)) == Every(7 * 86400, anchor=us("2026-01-05") // SECOND)
    assert monday.canonical == "every 7d anchor=1970-01-05T00:00:00Z"
    assert monday != Every("7d")
    assert Every("15m", anchor="2026-01-01T00:00:00Z") == Every("15m") == Every(900) == Every(timedelta(minutes=15))
    assert Every("15m", anchor="2026-01-01T00:00:00Z").canonical == "every 15m"
    assert Every("15m", anchor="2026-01-01T00:20:00.5+00:00").canonical == "every 15m anchor=1970-01-01T00:05:00.500000Z"
    assert Every("7d", anchor="2026-01-05T00:00:00+09:00").slot(us("2026-01-05")).start == us("2026-01-04T15:00")


def test_every_store_resolution_gets_the_same_slot() -> None:
    """DV-05: seconds, milliseconds or microseconds, on either side of the boundary."""
    schedule = Cron("0 10 * * *")
    at = us("2018-01-02T10:00")
    assert {schedule.slot(at + after).start for after in (0, 1, 999, 1000, 500_000, SECOND)} == {at}
    assert {schedule.slot(at - before).start for before in (1, 1000, SECOND)} == {at - DAY}


def test_an_hour_repeated_or_skipped_follows_real_time_for_stars_only() -> None:
    """W10: Berlin, where 02:00 to 03:00 came twice on 2023-10-29 and never on 2024-03-31."""
    from_two = us("2023-10-29T00:00Z") - 1

    def starts(expression: str, after: int, count: int) -> list[str]:
        return [slot.start_at.strftime("%H:%M") for slot in Cron(expression, tz="Europe/Berlin").next(after, count)]

    assert starts("*/30 2 * * *", from_two, 4) == ["00:00", "00:30", "01:00", "01:30"]
    assert starts("30 */2 * * *", from_two, 3) == ["00:30", "01:30", "03:30"]
    assert starts("0,30 2 * * *", from_two, 3) == ["00:00", "00:30", "01:00"]  # the last is the next day's
    assert starts("0 * * * *", from_two, 3) == ["00:00", "01:00", "02:00"]
    assert starts("0-59 * * * *", from_two + 30 * 60 * SECOND, 2) == ["00:30", "00:31"]
    before_jump = us("2024-03-31T00:30Z")
    assert starts("*/30 2,3 * * *", before_jump, 2) == ["01:00", "01:30"]  # 03:00 and 03:30
    assert starts("15,45 2 * * *", before_jump, 2) == ["01:00", "00:15"]  # both at once, right after the jump; then the next day
    assert starts("30 2,3 * * *", before_jump, 3) == ["01:00", "01:30", "00:30"]


def test_starts_on_one_instant_are_one_slot() -> None:
    """W1: a skipped time starts with the jump; a job due just then starts once, and is counted once."""
    schedule = Cron("0,10,50 2,3 * * *", tz="Europe/Berlin")
    jump = us("2024-03-31T01:00Z")
    assert [slot.start - jump for slot in schedule.next(jump - 1, 3)] == [0, 600 * SECOND, 3000 * SECOND]
    assert schedule.missed(jump - 1, jump + 601 * SECOND) == Missed(2, True)
    assert schedule.slot(jump) == Slot(jump, jump + 600 * SECOND)


def test_the_environments_zone_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """DV-04 (2): TZ plays no part, before or after the schedule is made."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        holds(Cron("4 0 * * *"), "2020-02-06T00:04:01Z", "2020-02-06T00:04Z", "2020-02-07T00:04Z")
        holds(Cron("0 9 * * *", tz="Europe/Berlin"), "2020-02-06T09:00:00Z", "2020-02-06T08:00Z", "2020-02-07T08:00Z")
        assert instant("2020-02-06T00:04:01Z", "at") == us("2020-02-06T00:04:01")
    finally:
        monkeypatch.undo()
        time.tzset()


def run(code: str, **environment: str) -> str:
    """Run *code* in a fresh interpreter and return what it printed."""
    paths = os.pathsep.join([str(Path(rota.errors.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_zone_data_utc_works_and_others_say_what_to_install() -> None:
    """DV-04 (3): no zone files, no tzdata package; never a silent UTC."""
    code = """
import sys, zoneinfo
zoneinfo.reset_tzpath(to=[])
sys.modules["tzdata"] = None
from rota.schedule import Cron
from rota.errors import ConfigurationError
print(Cron("0 9 * * *", tz="UTC").slot(1_000_000_000_000_000), Cron("0 9 * * *", tz="Etc/UTC").zone_data == "")
for name in ("Europe/Berlin", "EST", "GMT"):
    try:
        print(Cron("0 9 * * *", tz=name))
    except ConfigurationError as error:
        print(error)
"""
    utc, *errors = run(code).splitlines()
    assert utc == "[2001-09-08T09:00:00Z, 2001-09-09T09:00:00Z) True"
    assert len(errors) == 3
    for name, error in zip(("Europe/Berlin", "EST", "GMT"), errors, strict=True):
        assert name in error
        assert "pip install tzdata" in error


def test_every_process_has_the_same_slots_whatever_its_hash_seed() -> None:
    """DV-07: equal canonical text, slots and next starts."""
    code = """
from rota.schedule import Cron, Every
for text in ("0 0 * * 5#2,1#1,3L", "7,3,5 1,2 L,15 feb,jan *", "*/7,5 * * * *"):
    s = Cron(text, tz="Europe/Berlin")
    print(s.canonical, s.next(1_700_000_000_000_000, 50), s.zone_data)
"""
    assert (
        len({run(code, PYTHONHASHSEED=seed, TZ=zone) for seed, zone in (("0", "UTC"), ("1", "America/New_York"), ("4711", "Asia/Tokyo"))})
        == 1
    )


def test_importing_schedules_loads_nothing_slow() -> None:
    """The path of `rota run`: parser, zone files, datetime and logging are loaded when a schedule needs them."""
    code = """
import sys
import rota.errors, rota.duration
before = set(sys.modules)
import rota.schedule
rota.schedule.Every("15m").slot(1_700_000_000_000_000)
slow = {"croniter", "dateutil", "zoneinfo", "logging", "asyncio", "dataclasses", "re", "datetime", "typing"}
print(sorted(slow & (set(sys.modules) - before)))
"""
    assert run(code) == "[]"


@pytest.fixture
def tzpath() -> Iterator[None]:
    yield
    zoneinfo.reset_tzpath()


def test_zone_data_names_the_source_that_is_used(tmp_path: Path, tzpath: None) -> None:
    """W8: the files of the zone path come first, the tzdata package after them; UTC and fixed zones have none."""
    from importlib.resources import files

    import tzdata

    berlin = files("tzdata.zoneinfo").joinpath("Europe").joinpath("Berlin").read_bytes()
    (tmp_path / "Europe").mkdir()
    (tmp_path / "Europe" / "Berlin").write_bytes(berlin)
    zoneinfo.reset_tzpath(to=[str(tmp_path)])
    assert Cron("@daily", tz="Europe/Berlin").zone_data == "unknown"
    (tmp_path / "tzdata.zi").write_text("# version 1999z\nR A 1916\n")
    assert Cron("@daily", tz="Europe/Berlin").zone_data == "1999z"
    (tmp_path / "+VERSION").write_text("2001b\n")
    assert Cron("@daily", tz="Europe/Berlin").zone_data == "2001b"
    assert Cron("@daily", tz="Europe/Paris").zone_data == tzdata.IANA_VERSION  # not in the folder: from the package
    zoneinfo.reset_tzpath(to=[])
    assert Cron("@daily", tz="Europe/Berlin").zone_data == tzdata.IANA_VERSION
    for name in ("UTC", "Etc/UTC", "EST", "Etc/GMT+5"):
        assert Cron("@daily", tz=name).zone_data == ""
    assert Every("1h").zone_data == ""


@pytest.mark.parametrize(
    ("spellings", "canonical"),
    [
        (["@daily", "@midnight", "0 0 * * *", " 0\t0  * * * ", "00 00 */1 1-12 0-7", "0 0 1-31 * ?", "0 0 ? jan-dec *"], "0 0 * * *"),
        (["@weekly", "0 0 * * 7", "0 0 * * SUN", "0 0 * * 0,7", "0 0 ? * sun-sun"], "0 0 * * 0"),
        (["0 9 * * mon-fri", "0 9 * * 5,4,3,2,1", "0 9 * * 1-3,Tue-5"], "0 9 * * 1-5"),
        (["@hourly", "0 * * * *", "0 0-23 * * *", "0 */1 * * *"], "0 * * * *"),
        (["*/15 * * * *", "0/15 * * * *", "45,30,15,0 0-23 * * *"], "*/15 * * * *"),
        (["0 0 * * 5L", "0 0 * * L5", "0 0 * * friL"], "0 0 * * 5L"),
        (["0 0 * * 5#2,1#1", "0 0 * * mon#1,fri#2"], "0 0 * * 1#1,5#2"),
        (["0 0 l,15 * *", "0 0 15,L * *"], "0 0 15,L * *"),
        (["0 0 1-31 * 5", "0 0 13 * 0-6", "0 0 * * *"], "0 0 * * *"),
        (["0 0 13 * 5", "00 0 13 * fri"], "0 0 13 * 5"),
        (["7 0 * FEB,jan *", "7 0 * 1-2 *"], "7 0 * 1,2 *"),
        (["*/25 3 * * *", "0,25,50 3 * * *"], "*/25 3 * * *"),
    ],
)
def test_equal_schedules_have_equal_text(spellings: list[str], canonical: str) -> None:
    """W8: in UTC, where real time and fixed times are one; the canonical text stands for itself."""
    schedules = [Cron(text) for text in [*spellings, canonical]]
    assert {schedule.canonical for schedule in schedules} == {f"cron {canonical} tz=UTC"}
    assert len(set(schedules)) == 1
    assert len({tuple(schedule.next(us("2024-01-01"), 40)) for schedule in schedules}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("* 2 * * *", "0-59 2 * * *"),
        ("*/30 2 * * *", "0,30 2 * * *"),
        ("0 */24 * * *", "0 0 * * *"),
        ("*/60 2 * * *", "0 2 * * *"),
        ("*/15,7 2 * * *", "0,7,15,30,45 2 * * *"),
    ],
)
def test_texts_differ_where_only_the_rule_for_clock_changes_differs(one: str, other: str) -> None:
    """W10: a star follows real time; in a zone with changes these are two schedules, and each text reads back as itself."""
    for zone in ("Europe/Berlin", "America/New_York"):
        first, second = Cron(one, tz=zone), Cron(other, tz=zone)
        assert first != second
        for schedule in (first, second):
            expression = schedule.canonical.removeprefix("cron ").removesuffix(f" tz={zone}")
            assert Cron(expression, tz=zone) == schedule


def test_schedules_compare_by_text_and_can_be_copied() -> None:
    """W8: by expression and zone."""
    cron, every = Cron("@daily", tz="Europe/Berlin"), Every("90m", anchor=60)
    assert cron != Cron("@daily")
    assert cron != Cron("@daily", tz="Europe/Paris")
    assert cron != every
    assert cron != "cron 0 0 * * * tz=Europe/Berlin"
    assert Cron("@daily", tz="Etc/UTC") == Cron("@daily", tz="Zulu") == Cron("@daily")
    assert repr(cron) == "Cron('@daily', tz='Europe/Berlin')"
    assert repr(every) == "Every('1h30m', anchor='1970-01-01T00:01:00Z')"
    for schedule in (cron, every):
        for twin in (copy.deepcopy(schedule), pickle.loads(pickle.dumps(schedule))):
            assert twin == schedule
            assert hash(twin) == hash(schedule)
            assert twin.slot(us("2024-02-29")) == schedule.slot(us("2024-02-29"))


def test_slots_and_missed_counts_read_well() -> None:
    """W1, W9."""
    slot = Every("15m").slot(us("2026-02-26T00:07"))
    assert (slot.start_at, slot.end_at) == (datetime(2026, 2, 26, tzinfo=UTC), datetime(2026, 2, 26, 0, 15, tzinfo=UTC))
    assert str(slot) == "[2026-02-26T00:00:00Z, 2026-02-26T00:15:00Z)"
    planned = Slot(slot.start, None)
    assert planned.end_at is None
    assert str(planned) == "[2026-02-26T00:00:00Z, ...)"
    assert (str(Missed(3, True)), str(Missed(3, False))) == ("3", "at least 3")


def test_missed_counts_strictly_between() -> None:
    """W9, DV-02: the day Kubernetes leaves out is one missed slot."""
    schedule = Cron("0 2 * * *", tz="America/Los_Angeles")
    last, now = schedule.slot(us("2025-03-08T12:00")).start, schedule.slot(us("2025-03-10T12:00")).start
    assert schedule.missed(last, now) == Missed(1, True)
    assert schedule.missed(last, last) == schedule.missed(now, last) == Missed(0, True)
    assert [schedule.missed(last, last + DAY + more).count for more in (0, 1)] == [0, 1]
    minutely = Cron("* * * * *", tz="Europe/Berlin")
    start = us("2024-01-01T00:00Z")
    assert minutely.missed(start, start + 366 * DAY) == Missed(366 * 1440 - 1, True)
    assert minutely.missed(start, start + 366 * DAY + 1) == Missed(366 * 1440, True)  # the first of them is the last there was
    assert minutely.missed(start - 60 * SECOND, start + 366 * DAY + 1) == Missed(366 * 1440 + 1, False)
    assert minutely.missed(0, start) == Missed(366 * 1440, False)
    assert Every("1h").missed(start, start + 2 * DAY) == Missed(47, True)
    yearly = Cron("@yearly")
    assert yearly.missed(us("2020-01-01"), us("2021-06-01")) == Missed(1, True)  # longer, but there is no other to look for
    assert yearly.missed(us("2018-01-01"), us("2021-06-01")) == Missed(2, False)


@pytest.mark.parametrize(
    ("value", "microseconds"),
    [
        ("2026-02-26T00:07:00Z", 1772064420_000000),
        ("2026-02-26T01:07:00+01:00", 1772064420_000000),
        ("2026-02-26 00:07:00.000001Z", 1772064420_000001),
        (" 1772064420 ", 1772064420_000000),
        ("1772064420.25", 1772064420_250000),
        (1772064420, 1772064420_000000),
        (1772064420.5, 1772064420_500000),
        (0, 0),
        (datetime(2026, 2, 26, 1, 7, tzinfo=timezone(timedelta(hours=1))), 1772064420_000000),
        (datetime(2023, 10, 29, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")), 1698543000_000000),
    ],
)
def test_instants_are_read_to_the_microsecond(value: str | float | datetime, microseconds: int) -> None:
    """W5: what names a planned instant."""
    assert instant(value, "planned") == microseconds


def test_threads_share_a_schedule() -> None:
    """The last slot and the zone's changes are remembered without locks: every thread still gets its own answer."""
    schedule = Cron("30 2 * * *", tz="Europe/Berlin")
    instants = [us("2000-01-01") + number * 37 * DAY for number in range(400)]
    expected = [Cron("30 2 * * *", tz="Europe/Berlin").slot(at) for at in instants]
    wrong: list[int] = []

    def ask(turn: int) -> None:
        for index in range(len(instants)):
            which = (index * (turn + 1)) % len(instants)
            if schedule.slot(instants[which]) != expected[which]:
                wrong.append(which)

    threads = [threading.Thread(target=ask, args=(turn,)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_a_long_life_keeps_memory_bounded() -> None:
    """The blocks of a zone's changes are dropped when they are many."""
    schedule = Cron("0 0 1 * *", tz="Europe/Berlin")
    for year in range(1970, 2170):
        schedule.slot(us(f"{year}-06-01"))
    assert len(schedule._zone._blocks) <= 64


def test_the_edges_of_time_are_refused_and_what_is_near_them_works() -> None:
    """No OverflowError: 1970 to 9000, with slots that reach over either edge."""
    leap = Cron("0 0 29 2 *", tz="Europe/Berlin")
    assert leap.slot(0) == Slot(us("1968-02-28T23:00"), us("1972-02-28T23:00"))
    assert leap.slot(us("8999-12-31")) == Slot(us("8996-02-28T23:00"), us("9004-02-28T23:00"))
    assert leap.missed(leap.slot(0).start, us("1970-06-01")) == Missed(0, True)
    for at in (-1, us("9000-01-01"), 10**30, datetime(9999, 12, 31, tzinfo=UTC), datetime(1969, 12, 31, tzinfo=UTC)):
        for ask in (leap.slot, leap.next, Every("1h").slot, lambda at: leap.missed(0, at)):
            with pytest.raises(ConfigurationError, match="1970 and 9000"):
                ask(at)
    with pytest.raises(ConfigurationError, match="1970 and 9000"):
        leap.next(us("8990-01-01"), 10)
