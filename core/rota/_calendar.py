# SPDX-License-Identifier: MIT
"""Which minutes of the wall clock a cron expression names: integers only, without zones, clocks or ``datetime``.

A *wall minute* is a count of minutes since 1970-01-01T00:00 on the wall; a *day* counts days since 1970-01-01; a *month* is
``year * 12 + month - 1``. Days are looked up as bit masks of months (bit 1 is the first), so a sparse schedule is found
by jumping over months and a long stretch is counted without walking through its minutes.
"""

from __future__ import annotations

from bisect import bisect_left

DAY_MINUTES = 1440
# Every combination of leap year, month and weekday comes back within the Gregorian cycle (400 years, 146,097 days, whole weeks).
CYCLE_MONTHS = 4800
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def month_length(month: int) -> int:
    """Return the number of days in *month*."""
    year, index = divmod(month, 12)
    if index == 1 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        return 29
    return _LENGTHS[index]


def month_start(month: int) -> int:
    """Return the day on which *month* begins (Howard Hinnant's ``days_from_civil``, proleptic Gregorian)."""
    year, index = divmod(month, 12)
    if index < 2:
        year -= 1
        index += 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * (index - 2) + 2) // 5 - 719468


def month_of(day: int) -> tuple[int, int]:
    """Return the month that holds *day* and the day's number in it, from 1."""
    month = 23640 + day * 4800 // 146097  # right, or one off at the edges of a month
    start = month_start(month)
    while start > day:
        month -= 1
        start = month_start(month)
    while day - start >= month_length(month):
        start += month_length(month)
        month += 1
    return month, day - start + 1


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
        # at most 12 months x 4 lengths x 7 weekdays: bounded by what a month can look like
        self._masks: dict[tuple[int, int], int] = {}

    def fires(self) -> bool:
        """Return whether any day at all fits: ``0 0 31 2 *`` has none."""
        if self.days is None or self.weekdays is not None or self.last_day:
            return True  # each weekday, first to fifth, comes to each month, the 29th of February included, within 400 years
        longest = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
        return any(self.months >> index & 1 and self.days & ((2 << longest[index]) - 2) for index in range(12))

    def mask(self, month: int) -> int:
        """Return the days of *month* that fit, as a bit mask; bit 1 is the first."""
        if not self.months >> month % 12 & 1:
            return 0
        length = month_length(month)
        first = (month_start(month) + 4) % 7  # 1970-01-01 was a Thursday
        key = (length, first)
        known = self._masks.get(key)
        if known is None:
            known = self._masks[key] = self._compute(length, first)
        return known

    def _compute(self, length: int, first: int) -> int:
        everyday = (2 << length) - 2
        if self.days is None and self.weekdays is None:
            return everyday
        mask = 0
        if self.days is not None:
            mask |= self.days & everyday
        if self.last_day:
            mask |= 1 << length
        if self.weekdays is not None:
            for day in range(1, length + 1):
                if self.weekdays >> (first + day - 1) % 7 & 1:
                    mask |= 1 << day
            for weekday, number in self.ordinals:
                day = (weekday - first) % 7 + 1
                day = day + 7 * (number - 1) if number else day + (length - day) // 7 * 7
                if day <= length:
                    mask |= 1 << day
        return mask

    def at_or_after(self, minute: int) -> int:
        """Return the first wall minute of the schedule that is not before *minute*."""
        day, rest = divmod(minute, DAY_MINUTES)
        month, number = month_of(day)
        mask = self.mask(month)
        if mask >> number & 1:
            index = bisect_left(self.times, rest)
            if index < len(self.times):
                return day * DAY_MINUTES + self.times[index]
        mask = mask >> number + 1 << number + 1
        for _ in range(CYCLE_MONTHS + 2):
            if mask:
                return (month_start(month) + (mask & -mask).bit_length() - 2) * DAY_MINUTES + self.times[0]
            month += 1
            mask = self.mask(month)
        raise AssertionError("a schedule that never fires")  # Cron refuses those

    def at_or_before(self, minute: int) -> int:
        """Return the last wall minute of the schedule that is not after *minute*."""
        day, rest = divmod(minute, DAY_MINUTES)
        month, number = month_of(day)
        mask = self.mask(month)
        if mask >> number & 1:
            index = bisect_left(self.times, rest + 1)
            if index:
                return day * DAY_MINUTES + self.times[index - 1]
        mask &= (1 << number) - 1
        for _ in range(CYCLE_MONTHS + 2):
            if mask:
                return (month_start(month) + mask.bit_length() - 2) * DAY_MINUTES + self.times[-1]
            month -= 1
            mask = self.mask(month)
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
        month, number = month_of(day)
        return bool(self.mask(month) >> number & 1)

    def _days(self, low: int, high: int) -> int:
        """Return the number of days in ``[low, high)`` that fit."""
        month, number = month_of(low)
        end, stop = month_of(high)
        total = -(self.mask(month) & ((1 << number) - 1)).bit_count() + (self.mask(end) & ((1 << stop) - 1)).bit_count()
        while month < end:
            total += self.mask(month).bit_count()
            month += 1
        return total
