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

    def covering(self, kind: str, name: str, start: int) -> tuple[int, int | None] | None:
        """Return the slot in which this process handled what is asked for: the slot or a newer one, or a rolling period; else None."""
        known = self._slots.get(name)
        if known is None:
            return None
        covered = known[1] is not None and start < known[1] if kind == ROLLING else start <= known[0]
        return known if covered else None


_of_stores: dict[object, LocalRuns] = {}


def local_runs(store: object) -> LocalRuns:
    """Return what this process did on a store, by whichever client; a store that can't be named (None) has a memory of its own."""
    return LocalRuns() if store is None else _of_stores.setdefault(store, LocalRuns())
