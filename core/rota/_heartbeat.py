# SPDX-License-Identifier: MIT
"""One heartbeat engine per client (L11): one thread renews, one tells of losses, both off the user's loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from weakref import ref

from ._clock import LOOK
from ._keeper import Sweeper
from ._worker import Worker
from .backend import Driver, Renewal
from .errors import RotaError
from .grant import NEVER, BaseGrant

#: Why a grant is lost of which the store says so.
NOT_HELD = "the store says that it is not held any more"
#: Leases renewed by one call of the driver.
BATCH = 1000
#: After it was woken the thread looks again in so long (seconds) before it waits to be woken again: short leases that come and go then
#: wake it once in that time, not each.
LINGER = 1.0
#: Renewals that fall due within this part of the heartbeat go along with the one that is due now, so that calls stay few.
AHEAD = 0.25
#: Threads that run users' on_lost functions, per client.
CALLERS = 8


class Heartbeat:
    """Renews the leases that are added to it until they are removed, lost, or dropped by everybody."""

    def __init__(
        self,
        driver: Driver,
        clock: Callable[[], float],
        observe: Callable[[object, float, float], None],
        warn: Callable[[str, str], None],
        sweeper: Sweeper,
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._observe = observe
        self._warn = warn
        self._sweeper = sweeper
        self._begin()

    def reset(self) -> None:
        """Start with nothing in a forked child, whose copies of threads and locks are worthless (L10)."""
        self._worker.forsake()
        self._begin()

    def _begin(self) -> None:
        # By weak references: a grant that nobody has any more can't be settled by anybody, and must not be renewed for ever.
        self._held: dict[str, tuple[ref[BaseGrant], str]] = {}
        self._worker = Worker("rota-heartbeat", self._turn)
        self._wakes_at = NEVER
        #: Why the last renewal failed; empty when it was answered, or when something was granted since.
        self.trouble = ""

    def add(self, grant: BaseGrant) -> None:
        """Renew this grant from now on.

        Raises:
            RotaError: There is no thread to do it, and none can be started.
        """
        self._held[grant._owner] = ref(grant), grant.name
        self.trouble = ""  # it was granted just now
        if self._worker.thread is None or grant._due < self._wakes_at:
            self.wake()

    def wake(self) -> None:
        """Look now: its thread counts real time, and the clock may be another."""
        self._worker.wake()

    def remove(self, grant: BaseGrant) -> None:
        """Renew it no longer."""
        self._held.pop(grant._owner, None)

    def held(self) -> list[BaseGrant]:
        """Return the grants that are renewed now."""
        grants = [held() for held, _ in self._held.copy().values()]
        return [grant for grant in grants if grant is not None]

    def close(self) -> None:
        """Stop renewing; wait for the call in flight."""
        self._worker.close()

    def _turn(self) -> float:
        self._wakes_at = NEVER  # before looking: whoever adds a grant from here on wakes this thread
        now = self._clock()
        due, wait = self._due(now)
        if due:
            self._wakes_at = 0.0
            # those that have less time for a call don't set the others' timeout, and don't go first
            due.sort(key=lambda grant: -grant._ask.terms.renew_timeout)
            first = 0
            while first < len(due):
                least, last = due[first]._ask.terms.renew_timeout / 2, first
                while last < len(due) and last - first < BATCH and due[last]._ask.terms.renew_timeout >= least:
                    last += 1
                self._renew(due[first:last])
                first = last
            self._sweeper.sweep(min(grant._ask.terms.renew_timeout for grant in due))
            return 0.0
        if wait == NEVER and not self._worker.woken:
            return NEVER
        wait = min(wait, LINGER)
        self._wakes_at = now + wait
        # an injected clock, or one that runs through suspend, may be ahead of the wait: look again now and then
        return wait

    def _due(self, now: float) -> tuple[list[BaseGrant], float]:
        grants = []
        # a copy: making a list of its items allocates, so the garbage collector may run finalizers, and other threads that add, in between
        for owner, (held, name) in self._held.copy().items():
            grant = held()
            if grant is not None:
                grants.append(grant)
            elif self._held.pop(owner, None) is not None:
                self._warn(name, "its grant was dropped without being settled, so it is not renewed any more and ends by expiry")
        earliest = min((grant._due for grant in grants), default=NEVER)
        if earliest > now:
            return [], earliest - now
        return [grant for grant in grants if grant._due - grant._ask.terms.heartbeat * AHEAD <= now], 0.0

    def _renew(self, grants: list[BaseGrant]) -> None:
        sent = self._clock()
        batch = []
        for grant in grants:
            if grant._hold_until <= sent:
                self.remove(grant)  # max_hold: `lost` follows from the clock, expiry frees the name
            elif grant._lost or grant.lost or grant.degraded:
                self.remove(grant)
            else:
                batch.append(grant)
        if not batch:
            return
        renewals = [Renewal(grant.name, grant._owner, grant._ask.terms.ttl, grant._ask.retention) for grant in batch]
        try:
            renewed = self._driver.renew(renewals, min(grant._ask.terms.renew_timeout for grant in batch))
        except Exception as error:  # whatever a driver raises must not end the renewals of all other leases
            self._failed(batch, error)
            return
        received = self._clock()
        self.trouble = ""
        self._observe(renewed.now, sent, received)
        unknown = []
        for grant, held in zip(batch, renewed.held, strict=True):
            if held is None:
                unknown.append(grant)
            elif not held:
                if self._held.pop(grant._owner, None) is not None and not grant.outcome:
                    grant._lose(NOT_HELD)
            elif received >= grant._deadline:
                # the holder was told that it is lost, or could have been: that stays so, and expiry frees the name
                self.remove(grant)
                grant.lost  # noqa: B018 - notes the loss
            else:
                grant._deadline = min(sent + grant._ttl - grant._ask.terms.margin, grant._hold_until)
                grant._due = sent + grant._ask.terms.heartbeat
                if grant.degraded:  # the old deadline passed before the new one was noted, and its holder chose to go on without a lease
                    grant._deadline = NEVER
        self._try_soon(unknown, received)

    def _failed(self, batch: list[BaseGrant], error: Exception) -> None:
        now = self._clock()
        self.trouble = str(error) if isinstance(error, RotaError) else repr(error)
        self._try_soon(batch, now)
        if not isinstance(error, RotaError):
            self._observe(error, now, now)

    @staticmethod
    def _try_soon(batch: list[BaseGrant], now: float) -> None:
        for grant in batch:
            # soon, and never less often than needed to use the time until the deadline
            grant._due = now + min(grant._ask.terms.heartbeat / 4, 1.0)


class Watchdog:
    """Tells listeners of a loss within 100 ms, whatever the heartbeat is waiting for (L6)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begin()

    def reset(self) -> None:
        """Start with nothing; see `Heartbeat.reset`."""
        for worker in (self._worker, *self._callers):
            worker.forsake()
        self._begin()

    def _begin(self) -> None:
        self._watched: dict[BaseGrant, None] = {}
        self._next = NEVER  # no watched deadline is earlier, but for those that a turn looks at: renewals only move them later
        self._lock = threading.RLock()
        self._worker = Worker("rota-watchdog", self._turn)
        self._calls: deque[Callable[[], object]] = deque()
        self._callers = [Worker("rota-on-lost", self._call) for _ in range(CALLERS)]

    def add(self, grant: BaseGrant) -> None:
        """Look after a grant that has a listener. The grant lives on for as long, since its listener is told of it."""
        with self._lock:
            self._watched[grant] = None
            self._next = min(self._next, grant._deadline)
        self._worker.wake()

    def remove(self, grant: BaseGrant) -> bool:
        """Look after it no longer; return whether it was. The thread ends when nothing is left."""
        watched = self._watched.pop(grant, False) is None
        if watched and not self._watched and self._worker.thread is not None:
            self._worker.wake()
        return watched

    def close(self) -> None:
        """Look after nothing any more; wait for the thread."""
        self._watched.clear()
        self._worker.close()

    def call(self, function: Callable[[], object]) -> None:
        """Run a user's function on a thread that renewals and deadlines don't wait for; a slow one keeps a few others from their turn."""
        self._calls.append(function)
        idle = [caller for caller in self._callers if caller.thread is None]
        for caller in idle[:1] or self._callers:
            with suppress(RotaError):  # no thread can be started now: it waits for the one that the next call starts
                caller.wake()

    def _turn(self) -> float | None:
        with self._lock:
            if not self._watched:
                return None
            now = self._clock()
            if now < self._next:
                return min(self._next - now, LOOK)
            watched = list(self._watched)
            self._next = NEVER  # before looking: whoever adds a grant from here on makes it earlier
        earliest = NEVER
        for grant in watched:
            if grant._deadline <= now:
                if grant.lost:
                    continue  # noting the loss told the listener
                if grant._lost or grant.degraded:
                    self.remove(grant)  # settled, or going on degraded
                    continue
                # else a renewal that was answered in time is noted just now
            earliest = min(earliest, grant._deadline)
        with self._lock:
            self._next = min(self._next, earliest)
        return 0.0

    def _call(self) -> float | None:
        try:
            function = self._calls.popleft()
        except IndexError:
            return None
        try:
            function()
        except BaseException:  # SystemExit, too, would end the thread that runs on_lost functions
            import logging

            logging.getLogger("rota").exception("an on_lost function failed")
        return 0.0
