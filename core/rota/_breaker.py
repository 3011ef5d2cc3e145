# SPDX-License-Identifier: MIT
"""A breaker, so that a thousand claims don't wait a thousand timeouts (F4). It guards claims only, never a renewal or a settlement."""

from __future__ import annotations

#: The first and the longest time in which claims fail at once, seconds.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0


class Breaker:
    """Opens after a claim that the store did not answer; lets one claim through after each pause, and closes when that one is answered."""

    # `pause`: how long claims fail at once since the last one that was not answered (seconds); 0 while the store answers
    __slots__ = ("_opens_at", "pause")

    def __init__(self) -> None:
        self.answered()

    def answered(self) -> None:
        """The store answered."""
        self.pause = 0.0
        self._opens_at = 0.0

    def failed(self, now: float) -> None:
        """The store did not answer (local monotonic)."""
        self.pause = min(max(FIRST_PAUSE, self.pause * 2), LONGEST_PAUSE)
        self._opens_at = now + self.pause

    def undecided(self, now: float) -> None:
        """The probe ended without telling anything, as when its caller was cancelled: let the next claim through."""
        if self.pause:
            self._opens_at = now

    def admits(self, now: float) -> bool:
        """Say whether a claim may ask the store; the one that may is the probe, and the others wait for what becomes of it."""
        if not self.pause:
            return True
        if now < self._opens_at:
            return False
        self._opens_at = now + LONGEST_PAUSE
        return True
