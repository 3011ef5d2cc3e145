# SPDX-License-Identifier: MIT
"""Time as it passed for a process that ran: a bound is about what is tested, and not about a machine that stood still meanwhile."""

from __future__ import annotations

import threading
import time
from typing import Self

#: How often it looks, seconds; and what may come between two looks of a machine that does its work.
BEAT, USUAL = 0.005, 0.02


class Stopwatch:
    """Measures from its making until it is closed; a thread that waits beside the test tells how late the machine wakes whoever waits.

    A call that takes longer than it may is told by `seconds` as well as by a clock. A machine that stands still for two seconds in the
    middle of it, and so makes any call longer, is not.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._seen = 0.0, self._began  # how late it was in all until it looked last, and when that was: noted at once
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="stopwatch", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        over = False
        while not over:
            over = self._over.wait(BEAT)
            self._seen = self._late_by(now := time.monotonic()), now  # the clock is read once: what comes then is seen by the next look

    def _late_by(self, now: float) -> float:
        before, looked = self._seen
        late = now - looked - BEAT
        return before + (late if late > USUAL else 0.0)

    @property
    def late(self) -> float:
        """By how much this machine has kept its processes waiting, in all, seconds."""
        return self._late_by(time.monotonic()) if self._thread.is_alive() else self._seen[0]

    @property
    def seconds(self) -> float:
        """The seconds that have passed, less those."""
        return time.monotonic() - self._began - self.late

    def close(self) -> None:
        """End it."""
        self._over.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


__all__ = ["Stopwatch"]
