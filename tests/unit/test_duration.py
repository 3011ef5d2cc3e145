# SPDX-License-Identifier: MIT
"""Durations: what is read, what is refused, and that nothing is lost on the way to microseconds and back (L9)."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rota.duration import DAY, HOUR, MINUTE, SECOND, YEAR, describe, duration, roughly
from rota.errors import ConfigurationError


@pytest.mark.parametrize(
    ("value", "microseconds"),
    [
        (30, 30 * SECOND),
        (0.5, 500_000),
        (1e-6, 1),
        ("500ms", 500_000),
        ("1us", 1),
        ("30s", 30 * SECOND),
        ("15m", 15 * MINUTE),
        ("1h30m", 90 * MINUTE),
        ("30m1h", 90 * MINUTE),
        ("1.5h", 90 * MINUTE),
        (".5s", 500_000),
        ("0.1s", 100_000),
        ("7d", 7 * DAY),
        ("2w", 14 * DAY),
        (" 1H 30M ", 90 * MINUTE),
        (timedelta(minutes=5, microseconds=1), 5 * MINUTE + 1),
        ("366d", YEAR),
    ],
)
def test_a_duration_is_read(value: Any, microseconds: int) -> None:
    assert duration(value, "ttl") == microseconds


@pytest.mark.parametrize("value", [0, 0.0, -0.0, "0", "0s", "0.0ms", "0h0m", timedelta(0)])
def test_zero_is_read_where_it_is_allowed(value: Any) -> None:
    assert duration(value, "wait", zero=True) == 0
    with pytest.raises(ConfigurationError, match="wait="):
        duration(value, "wait")


@pytest.mark.parametrize("value", [1e-9, "0.0001us", "0.0000001s"])
def test_what_rounds_to_zero_is_not_taken_for_zero(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="under a microsecond"):
        duration(value, "wait", zero=True)


NO_TEXTS = (
    "10|1.5|-5s|+5s|5 s|5|s|1h1h|1e5s|1,5s|1.2.3s|.s|5x|five|inf|nan|1y|1mo|\u0663s|\u0663|\xb2|1h-5m|PT5M|0:05|5s;|5s\0|\ud800||  "
).split("|")
NO_NUMBERS = [-1, -0.001, float("nan"), float("inf"), -float("inf"), 367 * 86_400, 1e300, 10**5000, -(10**5000)]
OTHERS = [True, False, None, b"5s", [5], {}, 5j, Decimal(5), object, timedelta.max, timedelta(-1), "9" * 21 + "us"]


@pytest.mark.parametrize("value", [*NO_TEXTS, *NO_NUMBERS, *OTHERS], ids=range(len(NO_TEXTS + NO_NUMBERS + OTHERS)))
def test_what_is_no_duration_is_refused_and_named(value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        duration(value, "ttl")
    message = str(caught.value)
    assert message.startswith("ttl")
    assert len(message) < 300
    message.encode()  # a lone surrogate would not be printable


def test_a_number_without_a_unit_gets_the_units_as_an_answer() -> None:
    with pytest.raises(ConfigurationError, match="write 10s, 10m or 10h"):
        duration("10", "ttl")


def test_no_limit_still_means_what_a_clock_can_count() -> None:
    """A store adds it to an instant, in 64 bits."""
    assert duration("4000d", "retention", most=None) == 4000 * DAY
    for value in ("99999999999d", 10**12, 1e300, 10**5000):
        with pytest.raises(ConfigurationError, match="retention="):
            duration(value, "retention", most=None)


@given(st.integers(0, 10**18 - 1))
def test_what_describe_writes_is_read_back(microseconds: int) -> None:
    assert duration(describe(microseconds), "ttl", zero=True, most=None) == microseconds


@given(st.integers(1, YEAR))
def test_a_timedelta_is_read_exactly(microseconds: int) -> None:
    assert duration(timedelta(microseconds=microseconds), "ttl") == microseconds


@given(st.floats(1e-6, 366 * 86_400))
def test_seconds_are_read_to_the_microsecond(seconds: float) -> None:
    assert abs(duration(seconds, "ttl") - seconds * SECOND) <= 0.5


@given(st.text() | st.floats() | st.integers() | st.none() | st.booleans())
def test_anything_is_read_or_refused_by_our_own_error(value: Any) -> None:
    try:
        microseconds = duration(value, "ttl")
    except ConfigurationError as error:
        assert str(error).startswith("ttl")
    else:
        assert type(microseconds) is int
        assert 0 < microseconds <= YEAR


@given(st.text("0123456789.smhdwu ", max_size=12))
def test_texts_of_the_right_letters_are_read_or_refused(text: str) -> None:
    try:
        microseconds = duration(text, "ttl")
    except ConfigurationError as error:
        assert str(error).startswith("ttl")
    else:
        assert duration(describe(microseconds), "ttl") == microseconds


def test_describe_is_short() -> None:
    assert describe(90 * MINUTE) == "1h30m"
    assert describe(HOUR) == "1h"
    assert describe(0) == "0s"
    assert describe(SECOND + 1) == "1s1us"


@pytest.mark.parametrize(
    ("microseconds", "shown"),
    [
        (1128 * DAY + 58 * MINUTE + 56 * SECOND + 1_000, "1128d"),
        (3 * DAY + 4 * HOUR + MINUTE, "3d4h"),
        (22 * HOUR + 59 * MINUTE + 55 * SECOND, "22h59m"),
        (12 * MINUTE + 5 * SECOND + 1_000, "12m5s"),
        (5 * SECOND + 1_234, "5s1ms"),
        (1_234, "1ms"),
        (12, "12us"),
        (0, "0s"),
    ],
)
def test_people_are_shown_two_units_at_most(microseconds: int, shown: str) -> None:
    assert roughly(microseconds) == shown


@pytest.mark.parametrize("what", ["--every", "ROTA_EVERY"])
def test_what_was_typed_is_told_only_forms_that_can_be_typed(what: str) -> None:
    with pytest.raises(ConfigurationError, match="with units") as refused:
        duration("abc", what)
    assert "timedelta" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="timedelta"):
        duration("abc", "every")
