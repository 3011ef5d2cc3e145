# SPDX-License-Identifier: MIT
"""The clocks of a store and of its clients that a test can stop and set; else they run as the real ones do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rota._clock import monotonic
from rota.duration import SECOND


class Clock:
    """A store's clock and its clients' local one: they run, stand still and leap together.

    A backend whose store's clock can be given (`rota.memory.MemoryStore`, `rota.sqlite.SqliteDriver`) takes `store`; its conformance class
    names the clock as `Conformance.clock`. Then waiting costs no time, and what happens at the very instant of a boundary can be tested.
    """

    def __init__(self) -> None:
        self._wall = time.time_ns() // 1000
        self._began = time.monotonic_ns() // 1000
        self._stopped: int | None = None

    def _passed(self) -> int:
        return self._stopped if self._stopped is not None else time.monotonic_ns() // 1000 - self._began

    def store(self) -> int:
        """Return the store's time, in microseconds since the epoch."""
        return self._wall + self._passed()

    def local(self) -> float:
        """Return the clients' local time, in seconds."""
        return 1000.0 + self._passed() / SECOND

    def leap(self, microseconds: int) -> None:
        """Move both on at once, as a suspend does."""
        if self._stopped is not None:
            self._stopped += microseconds
        else:
            self._began -= microseconds

    @contextmanager
    def stopped(self) -> Iterator[Clock]:
        """Let both stand still; only `leap` and `set` move them."""
        self._stopped = self._passed()
        try:
            yield self
        finally:
            self._began = time.monotonic_ns() // 1000 - self._stopped
            self._stopped = None

    def set(self, store: int) -> None:
        """Move both so that the store's time is this one."""
        self.leap(store - self.store())


class LocalClock:
    """The clients' local clock alone, for a store whose own can't be set: it runs as the real one does, and leaps when a test says so."""

    def __init__(self) -> None:
        self._ahead = 0

    def local(self) -> float:
        """Return the clients' local time, in seconds."""
        return monotonic() + self._ahead / SECOND

    def leap(self, microseconds: int) -> None:
        """Move it on at once."""
        self._ahead += microseconds
