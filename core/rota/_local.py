# SPDX-License-Identifier: MIT
"""What this process did itself: asked only while the store is away, so that a degraded process repeats nothing of its own (F3)."""

from __future__ import annotations

from collections import OrderedDict

from .backend import ROLLING

#: Names remembered; the one longest unused goes first.
NAMES = 10_000


class LocalRuns:
    """The newest success of each name: its slot's start and end, microseconds by the store's clock."""

    def __init__(self) -> None:
        self._slots: OrderedDict[str, tuple[int, int | None]] = OrderedDict()

    def add(self, name: str, start: int, end: int | None) -> None:
        """Remember a success."""
        known = self._slots.get(name)
        if known is None or known[0] <= start:
            self._slots[name] = (start, end)
            self._slots.move_to_end(name)
            if len(self._slots) > NAMES:
                self._slots.popitem(last=False)

    def covers(self, kind: str, name: str, start: int) -> bool:
        """Say whether this process handled the slot, or is inside a rolling period of its own."""
        known = self._slots.get(name)
        if known is None:
            return False
        return known[1] is not None and start < known[1] if kind == ROLLING else start <= known[0]
