# SPDX-License-Identifier: MIT
"""The two clocks: the local one that counts a holder's time, and what is known of the store's."""

from __future__ import annotations

import time

from .backend import Now
from .duration import SECOND, describe

#: How far two views of the store's clock may lie apart before it counts as a step (L12): 50 ms, and 500 ppm of the time between them.
TOLERANCE, DRIFT = 0.05, 500e-6

if hasattr(time, "CLOCK_BOOTTIME"):

    def monotonic() -> float:
        """Return seconds on a clock that runs through suspend (L5): CLOCK_BOOTTIME on Linux."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    #: Waits are counted on a clock that may stand still while `monotonic` runs, so a waiter looks this often (seconds).
    LOOK = 0.05
else:
    # macOS: CLOCK_MONOTONIC runs through sleep; Windows: so does time.monotonic
    monotonic = time.monotonic
    LOOK = 0.05


class StoreClock:
    """What the answers told of the store's time: an interval of its distance from the local clock."""

    __slots__ = ("_high", "_low", "_seen_at")

    def __init__(self) -> None:
        self._seen_at: float | None = None
        self._low = self._high = 0

    def observe(self, now: Now, sent: float, received: float) -> str:
        """Take in the store's time seen in an answer; return what to report if its clock stepped, else an empty text."""
        low, high = now[0] - int(received * SECOND), now[1] - int(sent * SECOND)
        stepped = ""
        if self._seen_at is not None:
            slack = int((TOLERANCE + (received - self._seen_at) * DRIFT) * SECOND)
            gap = low - self._high if low > self._high else high - self._low if high < self._low else 0
            if abs(gap) > slack:
                stepped = f"the store's clock stepped {'forward' if gap > 0 else 'back'} by about {describe(abs(gap) // 1000 * 1000)} (L12)"
        self._seen_at, self._low, self._high = received, low, high
        return stepped

    @property
    def known(self) -> bool:
        """Whether any answer told the store's time."""
        return self._seen_at is not None

    def now(self, local: float) -> int:
        """Return the store's time at the local instant: the lower end, so that nothing is taken for come before it has."""
        return self._low + int(local * SECOND)
