# SPDX-License-Identifier: MIT
"""What holds for every schedule and instant (W1, W9, W11)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import pytest
from cronsim import CronSim
from hypothesis import HealthCheck, assume, example, given, reject, settings
from hypothesis import strategies as st
from rota.errors import ConfigurationError
from rota.schedule import COUNTED, Cron, Every, Missed, Schedule, instant, iso

SECOND = 1_000_000
MINUTE = 60 * SECOND
DAY = 86_400 * SECOND
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ZONES = st.sampled_from(
    [
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "America/St_Johns",
        "Africa/Casablanca",
        "Asia/Beirut",
        "America/Santiago",
        "Pacific/Apia",
        "Asia/Kathmandu",
        "Antarctica/Troll",
        "Asia/Gaza",
        "Pacific/Chatham",
        "EST",
    ]
)
# from 1972, when the last offset of odd seconds had gone, to 2090
INSTANTS = st.integers(2 * 366 * DAY, 120 * 365 * DAY)


@st.composite
def fields(draw: st.DrawFn, low: int, high: int, names: tuple[str, ...] = (), star: float = 0.3) -> str:
    """A field of values between *low* and *high*: a star, or a list of numbers, names, ranges and steps."""
    if draw(st.floats(0, 1)) < star:
        return "*"

    def item() -> str:
        first = draw(st.integers(low, high))
        kind = draw(st.sampled_from(("value", "value", "range", "step", "from")))
        spelled = names[first - low] if names and draw(st.booleans()) else str(first)
        if kind == "value":
            return spelled
        width = draw(st.integers(1, high - low + 1))
        step = f"/{width}"
        if kind == "from":
            return spelled if high == 6 and (7 - first) % width == 0 else spelled + step  # refused for its two meanings
        last = draw(st.integers(first, high))
        # cronsim reads 4-4/1 as 4/1; here it is 4
        return f"{spelled}-{last}{step if kind == 'step' and last > first else ''}"

    return ",".join(item() for _ in range(draw(st.integers(1, 3))))


@st.composite
def expressions(draw: st.DrawFn) -> str:
    """Any expression that is not refused for its fields; it may never fire."""
    months = tuple("jan feb mar apr may jun jul aug sep oct nov dec".split())
    weekdays = tuple("sun mon tue wed thu fri sat".split())
    minute = draw(st.one_of(fields(0, 59), st.integers(1, 60).map(lambda step: f"*/{step}")))
    hour = draw(st.one_of(fields(0, 23), st.integers(1, 24).map(lambda step: f"*/{step}")))
    day = draw(st.one_of(fields(1, 31, star=0.6), st.just("L"), st.just("1,L")))
    month = draw(fields(1, 12, months, star=0.7))
    nth = st.tuples(st.sampled_from(weekdays), st.integers(1, 5)).map(lambda pair: f"{pair[0]}#{pair[1]}")
    last = st.integers(0, 7).map(lambda weekday: f"{weekday}L")
    weekday = draw(st.one_of(fields(0, 6, weekdays, star=0.6), nth, last))
    return f"{minute} {hour} {day} {month} {weekday}"


@st.composite
def crons(draw: st.DrawFn) -> Cron:
    """A cron schedule that fires."""
    expression, zone = draw(expressions()), draw(ZONES)
    try:
        return Cron(expression, tz=zone)
    except ConfigurationError as error:
        if "never fires" in str(error):
            reject()
        raise


EVERY = st.builds(Every, st.integers(1000, 366 * DAY).map(lambda us: timedelta(microseconds=us)), anchor=st.integers(0, 10**10))
SCHEDULES = st.one_of(crons(), crons(), crons(), EVERY)
steady = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], derandomize=True)


@settings(steady, max_examples=400)
@given(SCHEDULES, INSTANTS)
@example(Cron("0 0 29 2 *", tz="Europe/Berlin"), 1_000_000_000 * SECOND)
@example(Cron("30 2 * * *", tz="Europe/Berlin"), 1_711_846_800 * SECOND)
def test_slots_tile_time(schedule: Schedule, at: int) -> None:
    """W1: half-open, without gap or overlap, whoever asks first."""
    slot = schedule.slot(at)
    assert slot.end is not None
    assert slot.start <= at < slot.end
    assert schedule.slot(slot.end - 1) == schedule.slot(slot.start) == slot
    assert schedule.slot(slot.end).start == slot.end
    assert schedule.slot(slot.start - 1).end == slot.start
    assert schedule.slot(at) == slot
    assert schedule.slot(EPOCH + timedelta(microseconds=at)) == slot


@settings(steady, max_examples=300)
@given(SCHEDULES, INSTANTS, st.integers(1, 40))
def test_next_slots_are_those_that_hold_their_starts(schedule: Schedule, after: int, count: int) -> None:
    """W1: strictly after, in order, each the slot that holds its own start; one question or many."""
    found = schedule.next(after, count)
    assert len(found) == count
    assert found[0].start == schedule.slot(after).end
    assert all(slot.end == following.start for slot, following in pairwise(found))
    assert [schedule.slot(slot.start) for slot in found] == found
    assert schedule.next(found[0].start - 1) == found[:1]


@settings(steady, max_examples=300)
@given(SCHEDULES, INSTANTS, st.integers(0, 60), st.integers(-1, 1), st.integers(-1, 1))
def test_missed_is_what_counting_finds(schedule: Schedule, at: int, count: int, before: int, after: int) -> None:
    """W9: between two starts, and a microsecond beside them."""
    found = schedule.next(at, count + 1)
    first, last = found[0].start + before, found[-1].start + after
    assume(last - first <= COUNTED)
    assert schedule.missed(first, last) == Missed(sum(first < slot.start < last for slot in found), True)


@settings(steady, max_examples=60)
@given(crons(), INSTANTS, st.integers(1, COUNTED))
def test_missed_is_exact_up_to_366_days(schedule: Cron, after: int, gap: int) -> None:
    """W9: against the starts one by one, where they are not too many to list here."""
    missed = schedule.missed(after, after + gap)
    assert missed.exact
    assume(missed.count < 5000)
    found = schedule.next(after, missed.count + 1)
    assert found[-1].start >= after + gap
    assert missed.count == 0 or found[-2].start < after + gap


@settings(steady, max_examples=150)
@given(SCHEDULES, INSTANTS, st.integers(COUNTED + 1, 40 * COUNTED))
def test_missed_beyond_366_days_is_a_lower_bound(schedule: Schedule, after: int, gap: int) -> None:
    """W9: at least what the newest 366 days hold, never more than there are; said to be exact only where it is."""
    before = after + gap
    missed = schedule.missed(after, before)
    recent = schedule.missed(before - COUNTED, before)
    assert recent.count <= missed.count <= recent.count + 1
    whole, low = 0, after
    while low < before:  # year by year, with the start at each joint
        high = min(low + COUNTED, before)
        whole += schedule.missed(low, high).count
        whole += high < before and schedule.slot(high).start == high
        low = high
    if missed.exact:
        assert missed.count == whole
    else:
        assert missed.count == recent.count + 1 <= whole


@settings(steady, max_examples=200)
@given(expressions(), st.integers(0, 40 * 365))
def test_cronsim_reads_the_same_days_and_times(expression: str, day: int) -> None:
    """W11: a second opinion on names, lists, ranges, steps, L and #, in UTC; its parser and arithmetic are by others."""
    try:
        schedule = Cron(expression)
    except ConfigurationError:
        reject()
    start = EPOCH + timedelta(days=10_000 + day)
    theirs = list(islice(CronSim(expression, start), 12))  # it gives up after 50 years
    assert [slot.start_at for slot in schedule.next(start, 12)][: len(theirs)] == theirs
    assert theirs or schedule.next(start)[0].start_at > start + timedelta(days=40 * 365)


@settings(steady, max_examples=200)
@given(crons())
def test_the_canonical_text_reads_back_as_itself(schedule: Cron) -> None:
    """W8: and means the same."""
    expression = schedule.canonical.removeprefix("cron ").removesuffix(f" tz={schedule.tz}")
    twin = Cron(expression, tz=schedule.tz)
    assert twin == schedule
    assert twin.canonical == schedule.canonical
    at = 1_700_000_000 * SECOND
    assert twin.next(at, 30) == schedule.next(at, 30)


@settings(steady, max_examples=200)
@given(
    st.lists(st.integers(0, 59), min_size=1, max_size=8),
    st.lists(st.integers(0, 23), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_the_order_of_a_list_does_not_matter(minutes: list[int], hours: list[int], random: object) -> None:
    """W8: nor do repetitions."""
    shuffled = sorted(minutes, key=lambda _: random.random()) + minutes[:2]  # type: ignore[attr-defined]
    one = Cron(f"{','.join(map(str, minutes))} {','.join(map(str, hours))} * * *", tz="Europe/Berlin")
    assert one == Cron(f"{','.join(map(str, shuffled))} {','.join(map(str, reversed(hours)))} * * *", tz="Europe/Berlin")


@settings(steady, max_examples=300)
@given(st.text(alphabet="0123456789*/-,#LWHR?@ abcdefghijklmnopqrstuvwxyz", max_size=30))
@example("0 0 * * 5l,l5")
@example("@daily")
def test_any_text_is_a_schedule_or_a_configuration_error(text: str) -> None:
    """W11: nothing else comes out, and what is accepted has slots."""
    try:
        schedule = Cron(text)
    except ConfigurationError:
        return
    slot = schedule.slot(1_700_000_000 * SECOND)
    assert slot.end is not None
    assert slot.start < slot.end


@settings(steady, max_examples=300)
@given(st.lists(st.text(alphabet="0123456789*/-,#LlFri", min_size=1, max_size=7), min_size=5, max_size=5))
def test_any_five_fields_are_a_schedule_or_a_configuration_error(parts: list[str]) -> None:
    """W11: as above, with the right number of fields."""
    test_any_text_is_a_schedule_or_a_configuration_error.hypothesis.inner_test(" ".join(parts))  # type: ignore[attr-defined]


@settings(steady, max_examples=200)
@given(st.integers(0, 9_000 * 365 * DAY - DAY * 800_000))
def test_instants_written_are_read_back(at: int) -> None:
    """W5: the text for an instant is exact to the microsecond."""
    assert instant(iso(at), "at") == at
    assert instant(EPOCH + timedelta(microseconds=at), "at") == at


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_every_minute_of_a_year_is_counted(zone: str) -> None:
    """W9: 527,040 slots in 366 days, at once."""
    start = (datetime(2024, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    assert Cron("* * * * *", tz=zone).missed(start - 1, start + COUNTED - 1) == Missed(527_040, True)
