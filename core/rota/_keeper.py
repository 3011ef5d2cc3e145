# SPDX-License-Identifier: MIT
"""What must still be said to the store: unconfirmed settlements, cancelled claims, slots that ran degraded (L7, F3, F5)."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from ._worker import Worker
from .backend import HANDLED, UNUSED, Driver, Settlement, WriteBack
from .errors import NotSupported, RotaError, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from ._value import NamedTuple

#: The first and the longest pause between tries, seconds.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
#: How many things are kept at the most; the oldest go first (F3: bounded memory).
KEPT = 10_000


class Kept(NamedTuple):
    """One thing to say.

    Attributes:
        settlement: The settlement to repeat; None for a slot that ran degraded.
        until: When to give up, local monotonic; infinity for a success.
        apply_until: The store's time from which on no claim of this owner can be applied any more (L7); 0 when it was answered.
        write_back: What to record if the settlement is lost, or instead of it.
        done: Called when it is said, with how it ended, and whether the lease of the settlement had been lost by then.
    """

    settlement: Settlement | None
    until: float
    apply_until: int
    write_back: WriteBack | None
    done: Callable[[str, bool], object]


class Keeper:
    """Says it as soon as the store answers again, on a thread that lives while there is something to say."""

    def __init__(self, driver: Driver, clock: Callable[[], float], timeout: float) -> None:
        self._driver = driver
        self._clock = clock
        self._timeout = timeout
        #: Whether nothing more will be said.
        self.closed = False
        self._begin()

    def reset(self) -> None:
        """Start with nothing in a forked child (L10)."""
        self._worker.forsake()
        self._begin()

    def _begin(self) -> None:
        self._kept: deque[Kept] = deque()
        self._lock = threading.RLock()
        self._worker = Worker("rota-keeper", self._turn)
        self._pause = FIRST_PAUSE

    def keep(self, kept: Kept) -> None:
        """Take over one thing."""
        dropped = None
        with self._lock:
            if len(self._kept) >= KEPT:
                dropped = self._kept.popleft()
            self._kept.append(kept)
        with suppress(RotaError):  # no thread can be started now: it stays kept for the one that the next thing starts
            self._worker.wake()
        if dropped is not None:
            dropped.done("given up: too much is unsaid", False)
        if self.closed:  # perhaps meanwhile
            self._give_up()

    def waiting(self) -> int:
        """Return how many things are unsaid."""
        return len(self._kept)

    def keeps(self, owner: str) -> bool:
        """Return whether how the grant of this owner ended is unsaid."""
        with self._lock:
            return any(kept.settlement is not None and kept.settlement.owner == owner and not kept.apply_until for kept in self._kept)

    def flush(self, seconds: float) -> bool:
        """Wait until everything is said, at most so long; return whether it is."""
        self._worker.wait_idle(seconds)
        return not self._kept

    def close(self, timeout: float) -> None:
        """Give what is unsaid one more time to be said, then give it up."""
        self.flush(timeout)
        self._worker.close()
        self.closed = True
        self._give_up()

    def _give_up(self) -> None:
        while self._kept:
            with suppress(IndexError):  # another thread took it
                self._tell(self._kept.popleft(), "given up: the client is closed", False)

    def _turn(self) -> float | None:
        """Try each kept thing once; after the first one that the store does not answer, leave the rest for the next turn."""
        said = self._round()
        if not self._kept:
            self._pause = FIRST_PAUSE
            return None
        self._pause = FIRST_PAUSE if said else min(self._pause * 2, LONGEST_PAUSE)
        return self._pause

    def _round(self) -> bool:
        said_any = False
        for _ in range(len(self._kept)):
            kept = self._kept[0]
            lost = False
            try:
                ended, lost = self._say(kept)
            except Unavailable as error:
                if self._clock() < kept.until:
                    return said_any
                ended = f"given up: {error}"
            except Exception as error:  # a driver's own fault must not end the keeping of everything else
                ended = f"given up: {error!r}"
            if ended:
                said_any = True
                self._tell(kept, ended, lost)
            with self._lock:
                if self._kept and self._kept[0] is kept:
                    self._kept.popleft()
                    if not ended:
                        self._kept.append(kept)
        return said_any

    @staticmethod
    def _tell(kept: Kept, ended: str, lost: bool) -> None:
        try:
            kept.done(ended, lost)
        except Exception:
            import logging

            logging.getLogger("rota").exception("noting a kept settlement failed")

    def _say(self, kept: Kept) -> tuple[str, bool]:
        """Say it; return how it ended, or an empty text when it must be said again, and whether the lease had been lost."""
        settlement = kept.settlement
        if settlement is not None:
            settled = self._driver.settle(settlement, self._timeout)
            if settled.applied and not (kept.apply_until and settled.result != UNUSED):
                return settled.result, settled.expired
            record = settled.record
            if not kept.apply_until and record is not None and record.last_owner == settlement.owner:
                return record.last_result, record.last_expired  # it was applied, and a later grant has been made since
            if kept.apply_until:
                # a claim may still be on its way: final only when the store's time says that it can't be applied any more
                passed = self._clock() >= kept.until if settled.now is None else settled.now[0] > kept.apply_until
                return "not granted" if passed else "", False
        if kept.write_back is not None:
            try:
                written = self._driver.record(kept.write_back, self._timeout)
            except NotSupported as error:
                return f"given up: {error}", False
            return HANDLED if written.applied else "lost", settlement is not None
        return "lost", True


class Sweeper:
    """Lets any client remove a bounded batch of records that R1 lets go, now and then (R3)."""

    #: Seconds between batches, and records in one.
    EVERY, BATCH = 60.0, 100
    #: Of how many clients that end early one sweeps.
    CLOSES = 16

    def __init__(self, driver: Driver, clock: Callable[[], float]) -> None:
        self._driver = driver
        self._clock = clock
        self._next = clock() + self.EVERY

    def sweep(self, timeout: float) -> None:
        """Remove a batch if it is time and the store needs it; whatever goes wrong is left for the next time."""
        now = self._clock()
        if now < self._next or "sweep" not in self._driver.capabilities.verbs:
            return
        self._next = now + self.EVERY
        with suppress(RotaError):
            self._driver.sweep(self.BATCH, timeout)

    def close(self, timeout: float) -> None:
        """Let one in `CLOSES` clients that end early sweep: where every client is a short `rota run`, nobody else would."""
        if os.urandom(1)[0] % self.CLOSES == 0:
            self._next = 0.0
            self.sweep(timeout)
