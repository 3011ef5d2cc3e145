# SPDX-License-Identifier: MIT
"""Schedules: which slot holds an instant, which come next, and how many were missed (W1, W9-W11).

All arithmetic is on instants as whole microseconds since the Unix epoch, UTC. Nothing here asks a clock, does I/O after a schedule
is made, or reads the environment's ``TZ``: every process gets the same slots for the same schedule and zone data.
"""

from __future__ import annotations

from .duration import DAY, MILLISECOND, MINUTE, SECOND, describe, duration, is_typed
from .errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime, timedelta
    from typing import NamedTuple

    from ._zone import Zone
else:
    from ._value import NamedTuple

EARLIEST = 0
LATEST = 221_845_392_000 * SECOND  # 9000-01-01T00:00:00Z
COUNTED = 366 * DAY  # W9
MOST_SLOTS = 100_000
# Starts and ends of slots may lie outside the instants asked for: a leap day on a Monday takes up to 40 years to come back.
_MARGIN = 450 * 366 * DAY
_SHIFT = 2 * DAY  # no two offsets are further apart: 26 hours at most


class Slot(NamedTuple):
    """A slot of a schedule, half-open: ``[start, end)``, in microseconds since the Unix epoch (W1).

    Attributes:
        start: Its first instant, which identifies it.
        end: The start of the next slot; None for a window that has a planned instant alone.
    """

    start: int
    end: int | None

    @property
    def start_at(self) -> datetime:
        """The start as an aware UTC datetime."""
        return _datetime(self.start)

    @property
    def end_at(self) -> datetime | None:
        """The end as an aware UTC datetime, None without an end."""
        return None if self.end is None else _datetime(self.end)

    def __str__(self) -> str:
        return f"[{iso(self.start)}, {'...' if self.end is None else iso(self.end)})"


class Missed(NamedTuple):
    """A number of slots nobody handled; as text ``3`` or ``at least 3`` (W9)."""

    count: int  # type: ignore[assignment]  # hides tuple.count, as the interface wants it
    exact: bool

    def __str__(self) -> str:
        return str(self.count) if self.exact else f"at least {self.count}"


class Schedule:
    """The base of all schedules: an endless row of starts, each slot lasting until the next. Immutable; equal by `canonical`.

    Attributes:
        canonical: The same text for equal schedules, as in ``cron 0 0 * * * tz=UTC`` or ``every 15m``.
    """

    __slots__ = ("_last", "canonical")

    canonical: str

    def __init__(self, canonical: str) -> None:
        self.canonical = canonical
        self._last: Slot | None = None

    @property
    def zone_data(self) -> str:
        """The release of the zone data in use, as in ``2026a``; "" where none is: UTC, fixed zones, intervals."""
        return ""

    def slot(self, at: int | datetime) -> Slot:
        """Return the slot that holds *at*; an instant on a boundary belongs to the new slot (W1).

        Args:
            at: Microseconds since the epoch, or an aware datetime.

        Raises:
            ConfigurationError: A naive datetime, or not between the years 1970 and 9000.
        """
        instant = at if type(at) is int else _microseconds(at, "at")
        last = self._last  # one reference, replaced whole: threads need no lock
        if last is not None and last.start <= instant < last.end:  # type: ignore[operator]
            return last
        _bounded(instant, "at")
        found = Slot(self._at_or_before(instant), self._after(instant))
        if found.start >= EARLIEST and found.end <= LATEST:  # type: ignore[operator]
            self._last = found
        return found

    def next(self, after: int | datetime, count: int = 1) -> list[Slot]:
        """Return the first *count* slots that start strictly after *after*.

        Args:
            after: Microseconds since the epoch, or an aware datetime.
            count: How many, 1 to 100,000.

        Raises:
            ConfigurationError: As `slot`; a wrong count; or fewer than *count* slots before the year 9000.
        """
        instant = _bounded(_microseconds(after, "after"), "after")
        if type(count) is not int or not 1 <= count <= MOST_SLOTS:
            raise ConfigurationError(f"count={count!r} is not a whole number from 1 to {MOST_SLOTS}")
        slots, start = [], self._after(instant)
        for _ in range(count):
            end = self._after(_bounded(start, "the next slot"))
            slots.append(Slot(start, end))
            start = end
        return slots

    def missed(self, after: int | datetime, before: int | datetime) -> Missed:
        """Return how many slots start strictly between *after* and *before* (W9).

        Exact when they are up to 366 days apart. Of a longer gap the last 366 days are counted and one start more is looked for: if
        there is none, as with yearly jobs, the count is exact, else there are at least so many. The time is bounded whatever the gap.

        Raises:
            ConfigurationError: A naive datetime, or *before* not between the years 1970 and 9000.
        """
        low, high = _microseconds(after, "after"), _bounded(_microseconds(before, "before"), "before")
        if high - low <= COUNTED:
            return Missed(self._between(low, high) if low < high else 0, True)
        near, far = self._between(high - COUNTED, high), self._at_or_before(high - COUNTED)
        return Missed(near, True) if far <= low else Missed(near + 1, False)

    def _at_or_before(self, at: int) -> int:
        """Return the last start that is not after *at*."""
        raise NotImplementedError

    def _after(self, at: int) -> int:
        """Return the first start that is after *at*."""
        raise NotImplementedError

    def _between(self, after: int, before: int) -> int:
        """Return the number of starts strictly between."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return self.canonical == other.canonical if isinstance(other, Schedule) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.canonical)

    def __str__(self) -> str:
        return self.canonical


class Cron(Schedule):
    """A cron expression in a time zone.

    Five fields (minute, hour, day of month, month, day of week) with names (``jan``, ``mon``), ranges, steps and lists; ``L`` for
    the last day of the month, ``5L`` or ``L5`` for its last Friday, ``1#2`` for its second Monday; Sunday is 0 or 7; ``?``
    alone stands for ``*`` in either day field, as in Kubernetes; ``@daily``, ``@midnight``, ``@hourly``, ``@weekly``, ``@monthly``,
    ``@yearly`` and ``@annually``. With both day fields given, a day fits that fits either (crontab(5)).

    When clocks change, Debian cron's rule holds (cron(8), "daylight saving"; W10): a job with fixed minute and hour runs once in a
    repeated hour, the first time, and right after the jump when its time was skipped; times skipped by one jump are one
    start. A job whose minute or hour field starts with ``*`` follows real time. A jump of a day or more (Pacific/Apia
    2011-12-30) leaves out days that never were, and starts nothing for them.

    Refused, naming the culprit: what never fires (``0 0 31 2 *``); what means different things to different tools (fields for seconds, a
    stepped star in one day field with the other given, ranges that run backwards, ``*`` behind other items, ``W``);
    what differs per process (``R``, ``H``, ``@reboot``, ``@every``); a ``CRON_TZ=`` prefix.

    Args:
        expression: The expression.
        tz: An IANA zone name (default: UTC, which needs no zone files). The environment's ``TZ`` is not read.

    Attributes:
        expression: The expression as given.
        tz: The zone's name.

    Raises:
        ConfigurationError: The expression or the zone is refused, or this host has no zone data.
    """

    __slots__ = ("_calendar", "_fixed", "_zone", "expression", "tz")

    def __init__(self, expression: str, *, tz: str = "UTC") -> None:
        from ._cron import Expression
        from ._zone import Zone

        self._zone: Zone = Zone(tz)
        read = Expression(expression, steady=self._zone.name == "UTC")
        self.expression = expression
        self.tz = self._zone.name
        self._calendar = read.calendar
        self._fixed = not read.follows_real_time
        super().__init__(f"cron {read.canonical} tz={self.tz}")

    @property
    def zone_data(self) -> str:
        """The release of the zone data in use, as in ``2026a``; "" for UTC and fixed zones; "unknown" where the data don't say."""
        return self._zone.version

    def _at_or_before(self, at: int) -> int:
        calendar, fixed = self._calendar, self._fixed
        while at > EARLIEST - _MARGIN:
            low, _, stretches = self._zone.around(at)
            wall = top = at
            offset = 0
            for start, end, offset, seen in reversed(stretches):
                if start > at:
                    continue
                top, shown = min(at, end - 1), start + offset
                wall = calendar.at_or_before((top + offset) // MINUTE) * MINUTE
                if wall >= (seen if fixed and seen > shown else shown):
                    return wall - offset
                if fixed and self._skipped(seen, shown):
                    return start
            # The walls between `wall` and `top` hold no start whatever the offset; if they span more than any shift, jump over them.
            jump = wall - offset + _SHIFT if top - low > _SHIFT else low
            at = min(low - 1, jump)
        raise AssertionError("a schedule without a start")

    def _after(self, at: int) -> int:
        calendar, fixed = self._calendar, self._fixed
        at += 1
        while at < LATEST + _MARGIN:
            _, high, stretches = self._zone.around(at)
            wall = bottom = at
            offset = 0
            for start, end, offset, seen in stretches:
                if end <= at:
                    continue
                shown = start + offset
                if fixed and start >= at and self._skipped(seen, shown):
                    return start
                bottom = max(at, start)
                wall = bottom + offset
                if fixed and seen > wall:
                    wall = seen
                wall = calendar.at_or_after(-(-wall // MINUTE)) * MINUTE
                if wall - offset < end:
                    return wall - offset
            jump = wall - offset - _SHIFT if high - bottom > _SHIFT else high
            at = max(high, jump)
        raise AssertionError("a schedule without a start")

    def _between(self, after: int, before: int) -> int:
        calendar, fixed = self._calendar, self._fixed
        total, at = 0, after + 1
        while at < before:
            _, high, stretches = self._zone.around(at)
            for start, end, offset, seen in stretches:
                if end <= at or start >= before:
                    continue
                shown = start + offset
                low = max(at, start) + offset
                if fixed and seen > low:
                    low = seen
                first, stop = -(-low // MINUTE), -(-(min(before, end) + offset) // MINUTE)
                total += calendar.count(first, stop)
                if fixed and start >= at and self._skipped(seen, shown):
                    # a skipped time starts with the jump, and so may a time of its own: one slot
                    own = shown % MINUTE == 0 and calendar.count(shown // MINUTE, shown // MINUTE + 1)
                    total += 0 if own else 1
            at = high
        return total

    def _skipped(self, seen: int, shown: int) -> bool:
        """Return whether a jump of the wall clock from *seen* to *shown* left out a time of the schedule, on a day that there was."""
        return 0 < shown - seen < DAY and self._calendar.at_or_after(-(-seen // MINUTE)) * MINUTE < shown

    def __repr__(self) -> str:
        return f"Cron({self.expression!r}, tz={self.tz!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _cron, (self.expression, self.tz)  # opened zone files can't be copied


def _cron(expression: str, tz: str) -> Cron:
    return Cron(expression, tz=tz)


class Every(Schedule):
    """A fixed interval of real time, aligned to the Unix epoch unless there is an anchor; zones and clock changes play no part (DV-09).

    Aligned to the epoch, ``7d`` starts on Thursdays at 00:00 UTC: give an anchor for another day.

    Args:
        period: Seconds as a number, a ``timedelta``, or text such as ``15m``; 1 ms to 366 days, in whole microseconds.
        anchor: An instant at which some slot starts, before or after now: an aware datetime, ISO text with a zone, or epoch seconds.
            Anchors a whole number of periods apart are equal, and `canonical` names the first since 1970.

    Attributes:
        period: The interval in microseconds.
        phase: Where the first slot since 1970 starts, in microseconds, less than the period.

    Raises:
        ConfigurationError: The period or the anchor is none.
    """

    __slots__ = ("period", "phase")

    def __init__(self, period: float | str | timedelta, *, anchor: datetime | str | float | None = None) -> None:
        self.period = duration(period, "every")
        if self.period < MILLISECOND:
            raise ConfigurationError(f"every={period!r} is less than the least interval, 1ms")
        self.phase = 0 if anchor is None else instant(anchor, "anchor") % self.period
        super().__init__(f"every {describe(self.period)}" + (f" anchor={iso(self.phase)}" if self.phase else ""))

    def _at_or_before(self, at: int) -> int:
        return at - (at - self.phase) % self.period

    def _after(self, at: int) -> int:
        return self._at_or_before(at) + self.period

    def _between(self, after: int, before: int) -> int:
        return max(0, (before - 1 - self.phase) // self.period - (after - self.phase) // self.period)

    def __repr__(self) -> str:
        return f"Every({describe(self.period)!r}" + (f", anchor={iso(self.phase)!r})" if self.phase else ")")

    def __reduce__(self) -> tuple[object, ...]:
        return _every, (self.period, self.phase)


def _every(period: int, phase: int) -> Every:
    return Every(describe(period), anchor=iso(phase))


def instant(value: datetime | str | float, what: str) -> int:
    """Return an instant that a user wrote, in microseconds since the epoch.

    Args:
        value: An aware datetime, ISO-8601 text with a zone (``2026-02-26T00:07:00Z``, ``...+01:00``), or *seconds* since the epoch as a
            number or digits.
        what: The option's name, for the message.

    Raises:
        ConfigurationError: Not an instant, without a zone, or not between the years 1970 and 9000.
    """
    if isinstance(value, bool):
        raise _no_instant(value, what)
    if isinstance(value, int):
        return _bounded(value * SECOND, what, value)
    if isinstance(value, float):
        if not abs(value) < LATEST:  # NaN as well
            raise _no_instant(value, what)
        return _bounded(round(value * SECOND), what, value)
    if isinstance(value, str):
        return _from_text(value, what)
    return _bounded(_microseconds(value, what), what, value)


def iso(microseconds: int) -> str:
    """Return an instant as ISO-8601 text in UTC, which `instant` reads back: ``2026-02-26T00:07:00Z``."""
    text = _datetime(microseconds).isoformat()
    return text.removesuffix("+00:00") + "Z"


def _from_text(text: str, what: str) -> int:
    stripped = text.strip()
    whole, dot, fraction = stripped.partition(".")
    if stripped.isascii() and whole.isdigit() and (fraction.isdigit() or not dot):
        if len(stripped) == 8 and "19700101" <= stripped < "22000101" and stripped[4:6] <= "12" and stripped[6:] <= "31":
            date = f"{stripped[:4]}-{stripped[4:6]}-{stripped[6:]}"
            raise ConfigurationError(f"{what}={text!r} may be a date or epoch seconds: write {date}T00:00:00Z")
        if len(whole) > 18:
            raise _no_instant(text, what)
        return _bounded(int(whole) * SECOND + int(fraction[:6].ljust(6, "0")), what, text)
    from datetime import datetime

    try:
        parsed = datetime.fromisoformat(stripped)
    except ValueError:
        raise _no_instant(text, what) from None
    if parsed.utcoffset() is None:
        raise ConfigurationError(f"{what}={text!r} has no time zone: end it in Z or +01:00, as in {parsed.isoformat()}Z")
    return _bounded(_microseconds(parsed, what), what, text)


def _no_instant(value: object, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what}={_short(value)} is no instant: give 2026-02-26T00:07:00Z{'' if is_typed(what) else ', an aware datetime,'}"
        " or seconds since the epoch"
    )


def _microseconds(value: object, what: str) -> int:
    """Return *value*, whole microseconds already or an aware datetime, as microseconds."""
    if type(value) is int:
        return value
    from datetime import UTC, datetime, timedelta

    if not isinstance(value, datetime):
        raise ConfigurationError(f"{what}={value!r} is neither whole microseconds since the epoch nor a datetime")
    if value.utcoffset() is None:
        raise ConfigurationError(f"{what}={value.isoformat()!r} has no time zone: make the datetime aware")
    return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _short(value: object) -> str:
    try:
        shown = repr(value)
    except ValueError:  # Python refuses to spell out whole numbers of more than 4300 digits
        return "a number without end"
    return shown if len(shown) <= 100 else shown[:96] + "..."


def _bounded(microseconds: int, what: str, shown: object = None) -> int:
    if EARLIEST <= microseconds < LATEST:
        return microseconds
    hint = ""
    if isinstance(shown, (int, float, str)) and microseconds >= LATEST:
        hint = "; numbers are seconds, not milliseconds"
    raise ConfigurationError(f"{what}={microseconds if shown is None else _short(shown)} is not between the years 1970 and 9000{hint}")


def _datetime(microseconds: int) -> datetime:
    from datetime import UTC, datetime, timedelta

    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
