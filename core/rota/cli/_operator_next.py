# SPDX-License-Identifier: MIT
"""``rota next``: the next slots of a schedule, in UTC and on the wall clock, with the days marked on which clocks change."""

from __future__ import annotations

import time
from itertools import pairwise

from rota.duration import DAY, HOUR, MINUTE, duration
from rota.errors import ConfigurationError
from rota.schedule import Cron, Every, Schedule, instant

from ._operator_table import JSON, exact, is_terminal, show_columns, show_json, show_table
from ._options import ANCHOR_ALONE
from ._parser import Parser

_USAGE = """\
rota next (--cron EXPR [--tz ZONE] | --every DUR [--anchor T])
                 [-n N] [--after T] [--json]"""
_DESCRIPTION = """\
Print the next slots of a schedule: when each starts in UTC and on the zone's
wall clock, and on which days clocks change. No store is asked. The schedule
means what it means to rota run."""
_AFTER = """\
  rota next --cron '30 2 * * *' --tz Europe/Berlin -n 5

Where it is no terminal, tabs part the columns: start, start on the wall clock,
and how clocks change on that day, as in 02:00->03:00, or - where they don't.

Exit codes: 0; 2 the command line is wrong. [...] is a default."""


def upcoming(given: list[str]) -> int:
    """Print the next slots of a schedule."""
    parser = Parser("next", _USAGE, _DESCRIPTION, _AFTER)
    parser.add_argument("--cron", metavar="EXPR", help="a cron expression of five fields, or @daily and the like")
    parser.add_argument("--tz", metavar="ZONE", help="with --cron: the IANA time zone [UTC]")
    parser.add_argument("--every", metavar="DUR", help="slots of this length, counted from 1970-01-01T00:00:00Z")
    parser.add_argument("--anchor", metavar="T", help="with --every: any instant at which one of them starts")
    parser.add_argument("-n", "--count", metavar="N", default="10", help="how many, at most 100000 [10]")
    parser.add_argument("--after", metavar="T", help="slots that start after this instant [now, by this host's clock]")
    parser.add_argument("--json", action="store_true", help=JSON)
    found = parser.read(given)
    if (found.cron is None) == (found.every is None):
        raise ConfigurationError("rota next needs --cron or --every, and not both, as in: rota next --cron '0 2 * * *'")
    if found.tz is not None and found.cron is None:
        raise ConfigurationError("--tz goes with --cron: nothing else depends on a time zone")
    if found.anchor is not None and found.every is None:
        raise ConfigurationError(ANCHOR_ALONE)
    if not (found.count.isascii() and found.count.isdigit() and 0 < len(found.count) <= 6 and int(found.count) > 0):
        raise ConfigurationError(f"--count={found.count!r} must be a whole number from 1 up to 100000")
    if found.every is not None:
        duration(found.every, "--every")
    if found.anchor is not None:
        instant(found.anchor, "--anchor")
    schedule: Schedule = Every(found.every, anchor=found.anchor) if found.cron is None else Cron(found.cron, tz=found.tz or "UTC")
    after = time.time_ns() // 1000 if found.after is None else instant(found.after, "--after")
    slots = schedule.next(after, int(found.count))
    rows = [(exact(slot.start) or "", local(schedule, slot.start), clock_change(schedule, slot.start)) for slot in slots]
    if found.json:
        show_json(
            {"start": start, "end": exact(slot.end), "local": there, "clock_change": change or None}
            for slot, (start, there, change) in zip(slots, rows, strict=True)
        )
    elif is_terminal():
        zone = schedule.tz if isinstance(schedule, Cron) else "UTC"
        if zone == "UTC":
            show_table(("START (UTC)",), [(start,) for start, _, _ in rows])
        else:
            marked = [(start, there, f"clocks change: {change}" if change else " ") for start, there, change in rows]
            show_table(("START (UTC)", f"START ({zone})", " "), marked)
    else:
        show_columns(rows)
    return 0


def _stretches(schedule: Schedule, at: int) -> list[tuple[int, int, int]]:
    """Return the stretches of constant offset from two days before an instant to two days after it: start, end, offset."""
    if not isinstance(schedule, Cron):
        return [(at - 2 * DAY, at + 2 * DAY, 0)]
    found: list[tuple[int, int, int]] = []
    low, until = at - 2 * DAY, at + 2 * DAY
    while low < until:
        _, high, stretches = schedule._zone.around(low)
        for start, end, offset, _ in stretches:
            if found and found[-1][2] == offset:
                found[-1] = (found[-1][0], end, offset)
            else:
                found.append((start, end, offset))
        low = high
    return found


def local(schedule: Schedule, at: int) -> str:
    """Return what the wall clock shows, with its offset, as in ``2026-03-29T03:00:00+02:00``; by intervals it is UTC's."""
    offset = next(offset for start, end, offset in _stretches(schedule, at) if start <= at < end)
    hours, minutes = divmod(abs(offset) // MINUTE, 60)
    return (exact(at + offset) or "").removesuffix("Z") + f"{'-' if offset < 0 else '+'}{hours:02d}:{minutes:02d}"


def clock_change(schedule: Schedule, at: int) -> str:
    """Return how clocks change on the wall-clock day of an instant, as in ``02:00->03:00``; empty on a day of 24 hours."""
    stretches = _stretches(schedule, at)
    today = next((at + offset) // DAY for start, end, offset in stretches if start <= at < end)
    for (_, change, before), (_, _, after) in pairwise(stretches):
        low, high = sorted((change + before, change + after))
        if low // DAY <= today <= (high - 1) // DAY:  # the day on which wall times are skipped or repeated
            return f"{_clock(change + before)}->{_clock(change + after)}"
    return ""


def _clock(wall: int) -> str:
    rest = wall % DAY
    return f"{rest // HOUR:02d}:{rest % HOUR // MINUTE:02d}"
