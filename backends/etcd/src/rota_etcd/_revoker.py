# SPDX-License-Identifier: MIT
"""Revokes etcd leases that have no key any more, so that nobody has to wait for it. What fails is left to expiry."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rota.errors import RotaError

#: How long the thread waits for more before it ends, seconds.
IDLE = 1.0


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
        self._closed = False

    def add(self, lease: int) -> None:
        """Revoke this one soon."""
        with self._changed:
            if self._closed:
                return
            self.pending[lease] = None
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="rota-etcd-revoker", daemon=True)
                thread.start()  # it may fail; one that did not start is none
                self._thread = thread
            else:
                self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Revoke what is left for at most so long, then stop."""
        with self._changed:
            self._changed.wait_for(lambda: not self.pending, seconds)
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self.pending or self._closed, IDLE) or self._closed:
                    self._thread = None
                    return
                lease = next(iter(self.pending))
            try:
                self._revoke(lease)
            except RotaError:
                pass
            finally:
                with self._changed:
                    self.pending.pop(lease, None)
                    self._changed.notify_all()
