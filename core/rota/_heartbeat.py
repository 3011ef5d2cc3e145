# SPDX-License-Identifier: MIT
"""One heartbeat engine per client (L11): one thread renews, one tells of losses, both off the user's loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ._clock import LOOK
from ._keeper import Sweeper
from .backend import Driver, Renewal
from .errors import RotaError
from .grant import NEVER, BaseGrant

#: Leases renewed by one call of the driver.
BATCH = 1000
#: After it was woken the thread looks again in so long (seconds) before it waits to be woken again: short leases that come and go then
#: wake it once in that time, not each.
LINGER = 1.0
#: Renewals that fall due within this part of the heartbeat go along with the one that is due now, so that calls stay few.
AHEAD = 0.25


class Heartbeat:
    """Renews the leases that are added to it until they are removed or lost."""

    def __init__(
        self, driver: Driver, clock: Callable[[], float], observe: Callable[[object, float, float], None], sweeper: Sweeper
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._observe = observe
        self._sweeper = sweeper
        self.reset()

    def reset(self) -> None:
        """Start with nothing: also called in a forked child, whose copies of threads and locks are worthless (L10)."""
        self._held: dict[str, BaseGrant] = {}
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._wakes_at = NEVER
        self._closed = False

    def add(self, grant: BaseGrant) -> None:
        """Renew this grant from now on."""
        self._held[grant._owner] = grant
        if self._thread is None or grant._due < self._wakes_at:
            self._wake()

    def remove(self, grant: BaseGrant) -> None:
        """Renew it no longer."""
        self._held.pop(grant._owner, None)

    def held(self) -> list[BaseGrant]:
        """Return the grants that are renewed now."""
        return list(self._held.values())

    def close(self) -> None:
        """Stop renewing; wait for the call in flight."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _wake(self) -> None:
        with self._changed:
            if self._thread is None and not self._closed:
                thread = threading.Thread(target=self._run, name="rota-heartbeat", daemon=True)
                thread.start()  # it may fail; one that did not start is none
                self._thread = thread
            self._changed.notify_all()

    def _run(self) -> None:
        woken = False
        while True:
            with self._changed:
                if self._closed:
                    return
                self._wakes_at = NEVER  # before looking: whoever adds a grant from here on wakes this thread, which then waits
                now = self._clock()
                due, wait = self._due(now)
                if not due:
                    if woken and wait == NEVER:
                        wait = LINGER
                    self._wakes_at = now + wait
                    # an injected clock, or one that runs through suspend, may be ahead of the wait: look again now and then
                    woken = self._changed.wait(None if wait == NEVER else min(wait, 1.0))
                    continue
                self._wakes_at = 0.0
            for first in range(0, len(due), BATCH):
                self._renew(due[first : first + BATCH])
            self._sweeper.sweep(min(grant._ask.terms.renew_timeout for grant in due))

    def _due(self, now: float) -> tuple[list[BaseGrant], float]:
        grants = list(self._held.values())
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
        self._observe(renewed.now, sent, received)
        unknown = []
        for grant, held in zip(batch, renewed.held, strict=True):
            if held is None:
                unknown.append(grant)
            elif not held:
                if self._held.pop(grant._owner, None) is not None and not grant.outcome:
                    grant._lose("the store says that it is not held any more")
            elif received >= grant._deadline:
                # the holder was told that it is lost, or could have been: that stays so, and expiry frees the name
                self.remove(grant)
                grant.lost  # noqa: B018 - notes the loss
            else:
                grant._deadline = min(sent + grant._ttl - grant._ask.terms.margin, grant._hold_until)
                grant._due = sent + grant._ask.terms.heartbeat
        self._try_soon(unknown, received)

    def _failed(self, batch: list[BaseGrant], error: Exception) -> None:
        now = self._clock()
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
        self.reset()

    def reset(self) -> None:
        """Start with nothing; see `Heartbeat.reset`."""
        self._watched: dict[BaseGrant, None] = {}
        self._next = NEVER  # no watched deadline is earlier: renewals only move them later
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._calls: deque[Callable[[], object]] = deque()
        self._caller: threading.Thread | None = None

    def add(self, grant: BaseGrant) -> None:
        """Look after a grant that has a listener."""
        with self._changed:
            self._watched[grant] = None
            self._next = min(self._next, grant._deadline)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="rota-watchdog", daemon=True)
                thread.start()  # it may fail; one that did not start is none
                self._thread = thread
            self._changed.notify_all()

    def remove(self, grant: BaseGrant) -> bool:
        """Look after it no longer; return whether it was. The thread ends when nothing is left."""
        with self._changed:
            watched = grant in self._watched
            self._watched.pop(grant, None)
            if not self._watched:
                self._changed.notify_all()
            return watched

    def close(self) -> None:
        """Look after nothing any more; wait for the thread."""
        with self._changed:
            self._watched.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def call(self, function: Callable[[], object]) -> None:
        """Run a user's function on a thread that renewals and deadlines don't wait for."""
        with self._changed:
            self._calls.append(function)
            if self._caller is None:
                thread = threading.Thread(target=self._run_calls, name="rota-on-lost", daemon=True)
                thread.start()  # it may fail; one that did not start is none
                self._caller = thread

    def _run(self) -> None:
        while True:
            passed: list[BaseGrant] = []
            with self._changed:
                if not self._watched:
                    self._thread = None
                    return
                now = self._clock()
                if now >= self._next:
                    passed = [grant for grant in self._watched if grant._deadline <= now]
                    self._next = min((grant._deadline for grant in self._watched if grant._deadline > now), default=NEVER)
                if not passed:
                    self._changed.wait(min(self._next - now, LOOK))
            for grant in passed:
                if not grant.lost:  # noting the loss tells the listener
                    self.remove(grant)  # settled, or going on degraded

    def _run_calls(self) -> None:
        while True:
            with self._changed:
                if not self._calls:
                    self._caller = None
                    return
                function = self._calls.popleft()
            try:
                function()
            except BaseException:  # SystemExit, too, would end the thread that all on_lost functions share
                import logging

                logging.getLogger("rota").exception("an on_lost function failed")
