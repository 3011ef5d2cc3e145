# SPDX-License-Identifier: MIT
"""The clocks: the local one that counts a holder's time, what is known of the store's, and this host's."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from math import inf

from .backend import Now
from .duration import SECOND, describe

#: How far two views of the store's clock may lie apart before it counts as a step (L12): 50 ms, and 500 ppm of the time between them.
TOLERANCE, DRIFT = 0.05, 500e-6

if hasattr(time, "CLOCK_BOOTTIME"):
    #: Seconds on a clock that runs through suspend (L5): CLOCK_BOOTTIME on Linux. A partial, since it is read three times a claim.
    monotonic: Callable[[], float] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)

    #: Waits are counted on a clock that may stand still while `monotonic` runs, so a waiter looks this often (seconds).
    LOOK = 0.05
else:
    # macOS: CLOCK_MONOTONIC runs through sleep; Windows: so does time.monotonic
    monotonic = time.monotonic
    LOOK = 0.05


def wall_clock() -> int:
    """Return this host's clock in microseconds since the epoch: the store's clock of the embedded backends."""
    return time.time_ns() // 1000


class StoreClock:
    """What the newest answer told of the store's time."""

    __slots__ = ("_last", "known")

    def __init__(self) -> None:
        #: Whether any answer told the store's time.
        self.known = False
        # its lower end; by how much it is ahead of ours at the least and at the most, microseconds; when we received it
        self._last: tuple[int, float, float, float] = (0, -inf, inf, 0.0)

    def observe(self, now: Now, sent: float, received: float) -> str:
        """Take in the store's time seen in an answer; return what to report if its clock stepped, else an empty text."""
        earliest, latest = now
        least, most = earliest - received * SECOND, latest - sent * SECOND
        _, last_least, last_most, last_received = self._last
        self._last = earliest, least, most, received  # one reference, replaced whole: threads need no lock
        self.known = True
        if least <= last_most and last_least <= most:
            return ""
        ahead = least > last_most
        gap = least - last_most if ahead else last_least - most
        if gap <= (TOLERANCE + (received - last_received) * DRIFT) * SECOND:
            return ""
        return f"the store's clock stepped {'forward' if ahead else 'back'} by about {describe(int(gap) // 1000 * 1000)} (L12)"

    def now(self, local: float) -> int:
        """Return the store's time at the local instant: the lower end, so that nothing is taken for come before it has."""
        earliest, _, _, received = self._last
        return earliest + int((local - received) * SECOND)
