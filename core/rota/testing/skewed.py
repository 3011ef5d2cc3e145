# SPDX-License-Identifier: MIT
"""`racer` in a process whose clock is a day ahead; run as a script.

What Python tells of the time is changed before anything else is imported, so that nobody holds on to the right one. The monotonic clock is
left as it is, and with it everybody's deadlines.
"""

from __future__ import annotations

import datetime
import runpy
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

AHEAD = 86_400


def _ahead(right: Callable[[], float], per_second: int) -> float:
    return right() + AHEAD * per_second


def _ahead_if_real(right: Callable[[int], float], per_second: int, clock: int) -> float:
    return right(clock) + (AHEAD * per_second if clock == time.CLOCK_REALTIME else 0)


def main() -> None:
    """Set the clock ahead, then do what `racer` does."""
    right = time.time
    for name, per_second in (("time", 1), ("time_ns", 10**9)):
        setattr(time, name, partial(_ahead, getattr(time, name), per_second))
    if hasattr(time, "clock_gettime"):
        for name, per_second in (("clock_gettime", 1), ("clock_gettime_ns", 10**9)):
            setattr(time, name, partial(_ahead_if_real, getattr(time, name), per_second))

    class Ahead(datetime.datetime):
        __slots__ = ()  # of the same size: compiled modules look at it

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Ahead:
            return cls.fromtimestamp(right() + AHEAD, tz)

        @classmethod
        def utcnow(cls) -> Ahead:
            return cls.now(datetime.UTC).replace(tzinfo=None)

    Ahead.__name__ = Ahead.__qualname__ = "datetime"
    datetime.datetime = Ahead  # type: ignore[misc]  # that is what this is for
    runpy.run_path(str(Path(__file__).with_name("racer.py")), run_name="__main__")


if __name__ == "__main__":
    main()
