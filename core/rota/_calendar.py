# SPDX-License-Identifier: MIT
"""Which minutes of the wall clock a cron expression names: integers only, without zones, clocks or ``datetime``.

A *wall minute* is a count of minutes since 1970-01-01T00:00 on the wall; a *day* counts days since 1970-01-01. Days are looked up as bit
masks of whole years (bit 0 is the first of January). There are but 14 kinds of year: leap or not, and the weekday it starts with. So the
rarest day is found by looking at the 40 years that it may stay away, and a long stretch is counted without walking through it.
"""

from __future__ import annotations

from bisect import bisect_left

DAY_MINUTES = 1440
# Every kind of year comes back within the Gregorian cycle (400 years, 146,097 days, whole weeks).
CYCLE_YEARS = 400
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_WEEKS = sum(1 << 7 * week for week in range(6))  # by which a weekday is repeated: every month lies within six weeks


def is_leap(year: int) -> bool:
    """Return whether *year* has a 29th of February."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def year_start(year: int) -> int:
    """Return the day on which *year* begins (proleptic Gregorian)."""
    before = year - 1
    return 365 * year + before // 4 - before // 100 + before // 400 - 719_527


def year_of(day: int) -> tuple[int, int]:
    """Return the year that holds *day*, and the number of days in it that come before *day*."""
    year = 1970 + day * 400 // 146_097  # right, or one off at the edges of a year
    start = year_start(year)
    if start > day:
        year -= 1
        start = year_start(year)
    elif day - start >= 365 + is_leap(year):
        start += 365 + is_leap(year)
        year += 1
    return year, day - start


def _kind_of(year: int) -> int:
    """Return the weekday (Sunday is 0) on which *year* begins, plus 7 in a leap year."""
    return (year_start(year) + 4) % 7 + 7 * is_leap(year)  # 1970-01-01 was a Thursday


_KINDS = bytes(_kind_of(year) for year in range(CYCLE_YEARS))


class Calendar:
    """The wall minutes of one expression.

    Args:
        times: Minutes of the day, ascending.
        months: Months of the year as a bit mask; bit 0 is January.
        days: Days of the month as a bit mask; bit 1 is the first. None: any day (a star).
        last_day: Whether the last day of the month is named (``L``).
        weekdays: Days of the week as a bit mask; bit 0 is Sunday. None: any day (a star).
        ordinals: Pairs of a weekday and its number in the month, 1 to 5, or 0 for the last (``1#1``, ``5L``).

    With both a day and a weekday named, a day that fits *either* of them fits (crontab(5)).
    """

    __slots__ = ("_masks", "days", "last_day", "months", "ordinals", "times", "weekdays")

    def __init__(
        self,
        times: tuple[int, ...],
        months: int,
        days: int | None,
        last_day: bool,
        weekdays: int | None,
        ordinals: tuple[tuple[int, int], ...],
    ) -> None:
        self.times = times
        self.months = months
        self.days = days
        self.last_day = last_day
        self.weekdays = weekdays
        self.ordinals = ordinals
        self._masks: dict[int, int] = {}  # by kind of year: at most 14

    def fires(self) -> bool:
        """Return whether any day at all fits: ``0 0 31 2 *`` has none."""
        if self.days is None or self.weekdays is not None or self.last_day:
            return True  # each weekday, first to fifth, comes to each month, the 29th of February included, within 400 years
        longest = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
        return any(self.months >> index & 1 and self.days & ((2 << longest[index]) - 2) for index in range(12))

    def mask(self, year: int) -> int:
        """Return the days of *year* that fit, as a bit mask; bit 0 is the first of January."""
        kind = _KINDS[year % CYCLE_YEARS]
        known = self._masks.get(kind)
        if known is None:
            known = self._masks[kind] = self._of_kind(kind)
        return known

    def _of_kind(self, kind: int) -> int:
        leap, first = divmod(kind, 7)
        mask = before = 0
        for index in range(12):
            length = 29 if leap and index == 1 else _LENGTHS[index]
            if self.months >> index & 1:
                mask |= self._of_month(length, (first + before) % 7) << before
            before += length
        return mask

    def _of_month(self, length: int, first: int) -> int:
        """Return the days that fit in a month of *length* days which starts with the weekday *first*; bit 0 is its first day."""
        everyday = (1 << length) - 1
        if self.days is None and self.weekdays is None:
            return everyday
        mask = 0
        if self.days is not None:
            mask |= self.days >> 1
        if self.last_day:
            mask |= 1 << length - 1
        if self.weekdays is not None:
            mask |= self.weekdays * _WEEKS >> first
            for weekday, number in self.ordinals:
                day = (weekday - first) % 7
                mask |= 1 << (day + 7 * (number - 1) if number else day + (length - 1 - day) // 7 * 7)
        return mask & everyday

    def at_or_after(self, minute: int) -> int:
        """Return the first wall minute of the schedule that is not before *minute*."""
        day, rest = divmod(minute, DAY_MINUTES)
        year, number = year_of(day)
        mask = self.mask(year) >> number
        if mask & 1:
            index = bisect_left(self.times, rest)
            if index < len(self.times):
                return day * DAY_MINUTES + self.times[index]
            mask &= -2
        for _ in range(CYCLE_YEARS + 1):
            if mask:
                return (day + (mask & -mask).bit_length() - 1) * DAY_MINUTES + self.times[0]
            year += 1
            day, mask = year_start(year), self.mask(year)
        raise AssertionError("a schedule that never fires")  # Cron refuses those

    def at_or_before(self, minute: int) -> int:
        """Return the last wall minute of the schedule that is not after *minute*."""
        day, rest = divmod(minute, DAY_MINUTES)
        year, number = year_of(day)
        mask = self.mask(year)
        if mask >> number & 1:
            index = bisect_left(self.times, rest + 1)
            if index:
                return day * DAY_MINUTES + self.times[index - 1]
        mask &= (1 << number) - 1
        for _ in range(CYCLE_YEARS + 1):
            if mask:
                return (year_start(year) + mask.bit_length() - 1) * DAY_MINUTES + self.times[-1]
            year -= 1
            mask = self.mask(year)
        raise AssertionError("a schedule that never fires")

    def count(self, low: int, high: int) -> int:
        """Return the number of the schedule's wall minutes in ``[low, high)``."""
        if high <= low:
            return 0
        times = self.times
        first, start = divmod(low, DAY_MINUTES)
        last, end = divmod(high, DAY_MINUTES)
        skipped, ended = bisect_left(times, start), bisect_left(times, end)
        # whole days [first, last), less what is before `low` on the first, plus what is before `high` on the last
        total = self._days(first, last) * len(times)
        if skipped and self._fits(first):
            total -= skipped
        if ended and self._fits(last):
            total += ended
        return total

    def _fits(self, day: int) -> bool:
        year, number = year_of(day)
        return bool(self.mask(year) >> number & 1)

    def _days(self, low: int, high: int) -> int:
        """Return the number of days in ``[low, high)`` that fit."""
        year, number = year_of(low)
        end, stop = year_of(high)
        total = (self.mask(end) & ((1 << stop) - 1)).bit_count() - (self.mask(year) & ((1 << number) - 1)).bit_count()
        return total + sum(self.mask(between).bit_count() for between in range(year, end))
