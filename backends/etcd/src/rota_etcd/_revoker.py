# SPDX-License-Identifier: MIT
"""Revokes etcd leases that have no key any more, when nothing else is going on. What fails is left to expiry."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rota.errors import RotaError

#: How long the thread waits for more before it ends, seconds.
IDLE = 1.0
#: It begins when nothing was added for so long (seconds), so that it is not in the way of the next claim; or when so many wait.
QUIET, MANY = 0.05, 500


class Revoker:
    """One thread that lives while there is something to revoke.

    Attributes:
        pending: The ids that are not revoked yet.
    """

    def __init__(self, revoke: Callable[[int], object]) -> None:
        self._revoke = revoke
        self.reset()

    def reset(self) -> None:
        """Start with nothing: also called in a forked child."""
        self.pending: dict[int, None] = {}
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._closed = self._hurries = self._is_idle = False
        self._added_at = 0.0
        self._current = 0

    def add(self, lease: int) -> None:
        """Revoke this one soon."""
        with self._changed:
            if self._closed:
                return
            self.pending[lease] = None
            self._added_at = time.monotonic()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="rota-etcd-revoker", daemon=True)
                thread.start()  # it may fail; one that did not start is none
                self._thread = thread
            elif self._is_idle:
                self._changed.notify_all()

    def withdraw(self, lease: int, seconds: float) -> bool:
        """Leave this one alone after all; return False if it is being revoked just now, and still is after so long."""
        with self._changed:
            if lease != self._current:
                self.pending.pop(lease, None)
            return self._changed.wait_for(lambda: lease not in self.pending, max(0.0, seconds))

    def close(self, seconds: float) -> None:
        """Revoke what is left for at most so long, then stop."""
        with self._changed:
            self._hurries = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self.pending, seconds)
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_idle = True
                waited = self._changed.wait_for(lambda: self.pending or self._closed, IDLE)
                self._is_idle = False
                if not waited or self._closed:
                    self._thread = None
                    return
                quiet_in = self._added_at + QUIET - time.monotonic()
                if quiet_in > 0 and len(self.pending) < MANY and not self._hurries:
                    self._changed.wait(quiet_in)
                    continue
                lease = self._current = next(iter(self.pending))
            try:
                self._revoke(lease)
            except RotaError:
                pass
            finally:
                with self._changed:
                    del self.pending[lease]
                    self._current = 0
                    self._changed.notify_all()
