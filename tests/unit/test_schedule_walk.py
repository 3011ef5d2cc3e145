# SPDX-License-Identifier: MIT
"""Clock changes, against a walk over UTC minutes with the standard library's zone data and the rule by hand (W1, W10; DV-01, DV-02, DV-06).

The walk shares nothing with rota: it parses simple fields itself, visits every minute, and remembers which wall times it has seen.
"""

from __future__ import annotations

import json
import re
import signal
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from rota import _zone
from rota.cli import main
from rota.errors import ConfigurationError
from rota.schedule import Cron

MINUTE = 60_000_000
DAY_MINUTES = 1440
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = (
    "Europe/Berlin",
    "Australia/Lord_Howe",  # shifts by 30 minutes
    "America/St_Johns",  # changed at 00:01 until 2011: back over midnight
    "Africa/Casablanca",  # by decree, around Ramadan
    "Asia/Beirut",  # at midnight
    "America/Santiago",  # at midnight
    "Pacific/Apia",  # left out 2011-12-30
)


def minute_of(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) // 60


def offset_at(zone: ZoneInfo, minute: int) -> int:
    offset = (EPOCH + timedelta(minutes=minute)).astimezone(zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds()) // 60


def changes_of(zone: ZoneInfo, first: int, last: int) -> list[int]:
    """The minutes at which the zone's offset changes: days compared, then halved."""
    found = []
    for low, high in pairwise([*range(first, last, DAY_MINUTES), last]):
        if offset_at(zone, low) != offset_at(zone, high):
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset_at(zone, middle) == offset_at(zone, low) else (low, middle)
            found.append(high)
    return found


def walls_of(zone: ZoneInfo, first: int, last: int) -> list[int]:
    """What the wall shows at each UTC minute of ``[first, last)``, as minutes since 1970-01-01T00:00 on the wall."""
    walls: list[int] = []
    for low, high in pairwise([first, *changes_of(zone, first, last), last]):
        offset = offset_at(zone, low)
        walls += range(low + offset, high + offset)
    return walls


def field_of(text: str, low: int, high: int) -> set[int]:
    """A number, a range, a list, or a star, with or without a step; a step after a number goes on to the end."""
    values: set[int] = set()
    for item in text.split(","):
        base, slash, step = item.partition("/")
        first, _, last = (f"{low}-{high}" if base == "*" else f"{base}-{high}" if slash and "-" not in base else base).partition("-")
        values.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return values


def matcher(expression: str) -> Callable[[int], bool]:
    """Whether a wall minute fits, by its date and time; days are asked once."""
    minute, hour, day, month, weekday = expression.split()
    minutes, hours, months = field_of(minute, 0, 59), field_of(hour, 0, 23), field_of(month, 1, 12)
    days = set() if day == "L" else field_of(day, 1, 31)
    numbered, _, occurrence = weekday.partition("#")
    last_of = int(weekday[0]) if weekday.endswith("L") else None
    weekdays = set() if last_of is not None else {number % 7 for number in field_of(numbered, 0, 6)}
    times = {h * 60 + m for h in hours for m in minutes}
    known: dict[int, bool] = {}

    def fits(number: int) -> bool:
        date = EPOCH + timedelta(days=number)
        by_day, by_weekday = date.day in days, date.isoweekday() % 7 in weekdays
        if day == "L":
            by_day = (date + timedelta(days=1)).day == 1
        if occurrence:
            by_weekday = by_weekday and (date.day + 6) // 7 == int(occurrence)
        if last_of is not None:
            by_weekday = date.isoweekday() % 7 == last_of and (date + timedelta(days=7)).month != date.month
        either = day != "*" and weekday != "*"
        return date.month in months and (by_day or by_weekday if either else by_day and by_weekday)

    def match(wall: int) -> bool:
        if wall % DAY_MINUTES not in times:
            return False
        number = wall // DAY_MINUTES
        if number not in known:
            known[number] = fits(number)
        return known[number]

    return match


def walk(expression: str, walls: list[int], first: int) -> list[int]:
    """The starts among the UTC minutes from *first*, whose wall minutes are *walls*: Debian cron's rule, minute by minute."""
    match = matcher(expression)
    minute, hour = expression.split()[:2]
    if minute.startswith("*") or hour.startswith("*"):
        return [first + index for index, wall in enumerate(walls) if match(wall)]
    starts, seen, before = [], set(), walls[0] - 1
    for index, wall in enumerate(walls):
        due = match(wall) and wall not in seen
        if 1 < wall - before <= DAY_MINUTES - 1:  # a jump; one of a whole day leaves out a day that never was
            due = due or any(match(skipped) and skipped not in seen for skipped in range(before + 1, wall))
        seen.add(wall)
        before = wall
        if due:
            starts.append(first + index)
    return starts


def expressions_around(zone: ZoneInfo, change: int) -> list[str]:
    """Six expressions aimed at the change: at the edges of what is repeated or skipped, across it, in real time, on its weekday only."""
    before, after = change + offset_at(zone, change - 1), change + offset_at(zone, change)
    low, high = min(before, after), max(before, after)
    inside, day = (low + 10) % DAY_MINUTES, (low // DAY_MINUTES + 4) % 7
    return [
        f"{low % 60} {low // 60 % 24} * * *",
        f"{inside % 60} {inside // 60} * * {day}",
        f"{high % 60} {high // 60 % 24} * * *",
        f"0,20,59 {','.join(str(h) for h in sorted({(low // 60 - 1) % 24, low // 60 % 24, high // 60 % 24}))} * * *",
        f"*/20 {low // 60 % 24} * * *",
        f"{inside % 60} */2 * * *",
    ]


def check(zone_name: str, change: int, expressions: list[str], days: int = 4) -> None:
    half, zone = days * DAY_MINUTES // 2, ZoneInfo(zone_name)
    walls: dict[int, list[int]] = {}
    for expression in expressions:
        # so many days more on either side that every slot of the days in question has its start and end in the walk
        more = (2 if expression.split()[2:] == ["*", "*", "*"] else 8) * DAY_MINUTES
        first, last = change - half - more, change + half + more
        if more not in walls:
            walls[more] = walls_of(zone, first, last)
        schedule = Cron(expression, tz=zone_name)
        starts = [minute * MINUTE for minute in walk(expression, walls[more], first)]
        what = f"{expression} in {zone_name} around {EPOCH + timedelta(minutes=change)}"
        found = schedule.next(first * MINUTE - 1, len(starts))
        assert [slot.start for slot in found] == starts, what
        assert all(slot.end == following.start for slot, following in pairwise(found)), what
        slot_at = schedule.slot
        low, high = (change - half) * MINUTE, (change + half) * MINUTE
        visited = 0
        for start, end in pairwise(starts):
            for instant in range(max(start, low), min(end, high), MINUTE):
                if abs(instant - change * MINUTE) < 70 * MINUTE or instant % (60 * MINUTE) == 0:
                    schedule._last = None  # work it out afresh: the last slot is remembered
                assert slot_at(instant) == (start, end), (what, instant)
                visited += 1
        assert visited == 2 * half, what  # every minute
        inner = starts[bisect_right(starts, low) : bisect_right(starts, high)]
        for start in inner:
            assert slot_at(start - 1).end == start == slot_at(start).start, what
            assert schedule.slot(slot_at(start).end - 1).start == start, what
        assert schedule.missed(low, high) == (sum(low < start < high for start in starts), True), what


@pytest.mark.parametrize("zone", ZONES)
def test_slots_tile_and_agree_with_the_walk_around_every_change_of_twenty_years(zone: str) -> None:
    """DV-06, W1, W10: each minute of four days around every change from 2007 to 2027."""
    changes = changes_of(ZoneInfo(zone), minute_of("2007-01-01T00:00Z"), minute_of("2027-12-31T00:00Z"))
    assert len(changes) >= 20
    for change in changes:
        check(zone, change, expressions_around(ZoneInfo(zone), change))


@pytest.mark.parametrize(
    ("zone", "first", "last", "count"),
    [
        ("Asia/Gaza", "2040-09-01T00:00Z", "2040-12-01T00:00Z", 2),  # the offset comes back within seven days
        ("America/Recife", "2000-09-01T00:00Z", "2000-12-01T00:00Z", 2),
        ("America/Havana", "2024-01-01T00:00Z", "2025-01-01T00:00Z", 2),  # forward at midnight, back at 01:00 to midnight
        ("America/Asuncion", "2023-01-01T00:00Z", "2024-01-01T00:00Z", 2),  # back over midnight: a date comes twice
        ("Asia/Amman", "2021-01-01T00:00Z", "2022-01-01T00:00Z", 2),
        ("Antarctica/Troll", "2024-01-01T00:00Z", "2025-01-01T00:00Z", 2),  # two hours
        ("Antarctica/Casey", "2009-10-01T00:00Z", "2012-12-01T00:00Z", 4),  # three hours either way
        ("Pacific/Kwajalein", "1993-08-01T00:00Z", "1993-09-01T00:00Z", 1),  # left out 1993-08-21
        ("Pacific/Kanton", "1994-12-01T00:00Z", "1995-02-01T00:00Z", 1),
        ("Asia/Pyongyang", "2015-08-01T00:00Z", "2018-06-01T00:00Z", 2),  # half an hour for good
        ("America/Caracas", "2007-12-01T00:00Z", "2016-06-01T00:00Z", 2),
        ("Europe/Berlin", "2500-01-01T00:00Z", "2501-01-01T00:00Z", 2),  # by the rule at the end of the zone file
    ],
)
def test_slots_agree_with_the_walk_around_rare_changes(zone: str, first: str, last: str, count: int) -> None:
    """W1, W10: offsets that return within a week, changes at and over midnight, of hours, of a whole day, and far ahead."""
    changes = changes_of(ZoneInfo(zone), minute_of(first), minute_of(last))
    assert len(changes) >= count  # what is ahead may still be changed by new zone data
    for change in changes:
        check(zone, change, [*expressions_around(ZoneInfo(zone), change), "0 0 * * *", "59 23 * * *", "30 12 */7 * *", "30 0 * * 0,6"])


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("expression", ["30 2 * * *", "0 0 * * *", "45 1 * * *", "1 0 * * *"])
def test_a_job_at_a_fixed_time_has_one_slot_on_every_local_day(zone: str, expression: str) -> None:
    """W10, DV-01, DV-02: from 2007 to 2027, but for the day that Apia left out."""
    schedule, where = Cron(expression, tz=zone), ZoneInfo(zone)
    at = minute_of("2007-01-01T12:00Z") * MINUTE
    dates = [slot.start_at.astimezone(where).date() for slot in schedule.next(at, 21 * 365)]
    every = [dates[0] + timedelta(days=number) for number in range((dates[-1] - dates[0]).days + 1)]
    assert sorted(set(every) - set(dates)) == ([datetime(2011, 12, 30).date()] if zone == "Pacific/Apia" else [])
    assert len(dates) == len(set(dates))


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "Africa/Casablanca", "Antarctica/Troll"])
def test_where_the_blocks_of_a_zone_begin_does_not_matter(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """W1, W10: blocks that begin up to 42 minutes before or after the change, and of two days, so that sparse schedules jump over many."""
    where = ZoneInfo(zone)
    for change in changes_of(where, minute_of("2022-01-01T00:00Z"), minute_of("2026-01-01T00:00Z")):
        number = change // (8 * DAY_MINUTES)
        before = change * 60 // number  # as many blocks of so many seconds end just before the change, or at it
        for span in (before, before + 1, 2 * 86_400):
            monkeypatch.setattr(_zone, "_STEP", span)
            monkeypatch.setattr(_zone, "_SPAN", span)
            expressions = expressions_around(where, change)
            in_real_time_once_a_week = expressions[4][:-1] + expressions[1][-1]
            check(zone, change, [*expressions, in_real_time_once_a_week], days=1)


@pytest.mark.parametrize("zone", ["Asia/Gaza", "America/Recife", "Africa/Casablanca"])
def test_no_change_hides_between_samples(zone: str) -> None:
    """W10: offsets that come back within seven days (Gaza before 2086, Recife in 2000) are found from samples five days apart."""
    first, last = minute_of("1998-01-01T00:00Z"), minute_of("2086-01-01T00:00Z")
    found, at, stretches = [], first * MINUTE, _zone.Zone(zone)
    while at < last * MINUTE:
        _, at, block = stretches.around(at)
        found += [start // MINUTE for start, _, offset, seen in block if seen != start + offset]
    changes = changes_of(ZoneInfo(zone), first, last)
    assert [change for change in found if first < change < last] == changes
    assert all((after - before) * 60 > _zone._STEP for before, after in pairwise(changes))


def test_a_change_by_odd_seconds_starts_the_skipped_time_at_the_change() -> None:
    """W10: Monrovia's clocks went from -00:44:30 to UTC at 1972-01-07T00:44:30Z, showing 00:00 and then 00:44:30."""
    change = int(datetime(1972, 1, 7, 0, 44, 30, tzinfo=UTC).timestamp()) * 1_000_000
    daily = Cron("20 0 * * *", tz="Africa/Monrovia")
    assert daily.slot(change - 1) == (change - DAY_MINUTES * MINUTE + 20 * MINUTE, change)
    assert daily.slot(change) == (change, int(datetime(1972, 1, 8, 0, 20, tzinfo=UTC).timestamp()) * 1_000_000)
    # a minute of the wall that began before the change is not started in its middle
    minutely = Cron("* * * * *", tz="Africa/Monrovia")
    assert [slot.start - change for slot in minutely.next(change - 61_000_000, 2)] == [-MINUTE, 30_000_000]


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Give up on cronsim after *seconds*: it loops for ever on some changes."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"cronsim took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timer on this platform")
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "America/Los_Angeles", "Europe/Prague", "Africa/Casablanca"])
def test_cronsim_has_the_same_starts_around_changes_of_whole_hours(zone: str) -> None:
    """DV-01, DV-02, DV-06: a second opinion, an implementation of Debian's rule by others."""
    where = ZoneInfo(zone)
    for change in changes_of(where, minute_of("2019-01-01T00:00Z"), minute_of("2026-01-01T00:00Z")):
        for expression in expressions_around(where, change):
            start = EPOCH + timedelta(minutes=change - 3 * DAY_MINUTES)
            with within(5):
                simulated = CronSim(expression, start.astimezone(where))
                theirs = [next(simulated).astimezone(UTC) for _ in range(20)]
            ours = [slot.start_at for slot in Cron(expression, tz=zone).next(start, 20)]
            assert ours == theirs, (expression, start)


# -- lines as people write them

LINES = [
    line for line in Path(__file__).with_name("crontab_lines.txt").read_text(encoding="utf-8").splitlines() if not line.startswith("# ")
]
#: Those that are refused, each by the rule of W11 that it breaks; a word of the reason.
REFUSED = {
    "@reboot": "depends on the host",
    "@every 1m": "counts from the start of each process",
    "@every 10s": "counts from the start of each process",
    "@every 1h": "counts from the start of each process",
    "H H 1-7 * 0": "a hash (H)",
    "H/15 * * * *": "a hash (H)",
    "0 0 1 */3 * ?": "has 6 fields",
    "0 0 9 L * *": "has 6 fields",
    "0 0 22 * * MON-FRI": "has 6 fields",
    "0 15 9 * * MON-FRI": "has 6 fields",
    "CRON_TZ=America/New_York 0 9 18 * * 1": "the zone prefix",
    "99 * * * *": "99 is not within 0 to 59",
    "0 0 L-1 * *": "L with something else",
    "1-3,7 0 */3 2,6 0": "has two meanings",
    "0 0 30 2 *": "never fires",
    "0 0 31 2 *": "never fires",
}
NAMES = {name: str(number) for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
MACROS = {"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@monthly": "0 0 1 * *"}


def in_numbers(expression: str) -> str:
    """The expression as the walk reads it."""
    plain = MACROS.get(expression, expression).lower().replace("?", "*")
    for name, number in NAMES.items():
        plain = plain.replace(name, number)
    return plain.replace("l", "L")


def test_there_are_two_hundred_lines_of_crontabs_each_once() -> None:
    assert len(LINES) == len(set(LINES)) >= 200
    assert set(REFUSED) <= set(LINES)


@pytest.mark.parametrize("expression", REFUSED)
def test_a_line_that_means_different_things_is_refused_with_the_reason(expression: str) -> None:
    """W11."""
    with pytest.raises(ConfigurationError, match=re.escape(REFUSED[expression])):
        Cron(expression)


def test_all_other_lines_have_the_starts_of_the_walk() -> None:
    """W1, W10: twelve days around a change of clocks; a year where the day of the month or the month is fixed."""
    zone = ZoneInfo("Europe/Berlin")
    days = minute_of("2026-03-24T00:00Z"), minute_of("2026-04-05T00:00Z")
    year = minute_of("2025-12-31T00:00Z"), minute_of("2027-01-02T00:00Z")
    walls = {span: walls_of(zone, *span) for span in (days, year)}
    for expression in LINES:
        if expression in REFUSED:
            continue
        plain = in_numbers(expression)
        span = days if plain.split()[2:4] == ["*", "*"] and not plain.endswith("L") and "#" not in plain else year
        starts = [minute * MINUTE for minute in walk(plain, walls[span], span[0])]
        assert starts, expression
        schedule = Cron(expression, tz="Europe/Berlin")
        assert [slot.start for slot in schedule.next(span[0] * MINUTE - 1, len(starts))] == starts, expression
        for low, high in pairwise(starts[:50]):
            assert schedule.slot(high - 1) == (low, high), expression


def starts_by_walking(plain: str, zone: ZoneInfo, first: int, count: int) -> list[int]:
    """The first starts after a minute, day by day; days on which the wall shows no date that fits are not walked."""
    match = matcher(plain)
    minute, hour = plain.split()[:2]
    time = min(field_of(hour, 0, 23)) * 60 + min(field_of(minute, 0, 59))
    starts: list[int] = []
    day = first // DAY_MINUTES
    while len(starts) < count:
        if match(day * DAY_MINUTES + time) or match((day + 1) * DAY_MINUTES + time):  # the zone is east of Greenwich
            before = day * DAY_MINUTES - 180  # whether a minute was there already shows within an hour of a change
            walls = walls_of(zone, before, (day + 1) * DAY_MINUTES)
            starts += [start for start in walk(plain, walls, before) if start >= max(first + 1, day * DAY_MINUTES)]
        day += 1
    return starts[:count]


def test_rota_next_agrees_with_the_walk_on_50_slots_of_each_line(capfd: pytest.CaptureFixture[str]) -> None:
    """W1, W10: as the command prints them, over a change of clocks; with the change told on the days that have one, and on no other."""
    zone, after = ZoneInfo("Europe/Berlin"), "2026-03-27T12:00:00Z"
    lines = [line for line in LINES if line not in REFUSED]
    assert len(lines) + len(REFUSED) >= 200
    marked = 0
    for line in lines:
        assert main(["next", "--cron", line, "--tz", "Europe/Berlin", "-n", "50", "--after", after, "--json"]) == 0
        rows = [json.loads(row) for row in capfd.readouterr().out.splitlines()]
        walked = starts_by_walking(in_numbers(line), zone, minute_of(after), 50)
        assert [minute_of(row["start"]) for row in rows] == walked, line
        assert [row["end"] for row in rows[:-1]] == [row["start"] for row in rows[1:]], line
        for row in rows:
            date = (EPOCH + timedelta(minutes=minute_of(row["start"]))).astimezone(zone).date()
            midnights = [datetime(d.year, d.month, d.day, tzinfo=zone).astimezone(UTC) for d in (date, date + timedelta(days=1))]
            assert (row["clock_change"] is not None) == (midnights[1] - midnights[0] != timedelta(days=1)), (line, row)
            marked += row["clock_change"] is not None
    assert marked > 100
