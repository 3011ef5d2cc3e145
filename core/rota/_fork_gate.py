# SPDX-License-Identifier: MIT
"""Keeps forks and SQLite apart: at the instant of a fork this process has no connection open, or else its child never uses any.

libsqlite keeps a process-wide book of the POSIX locks that it has, since the kernel would drop all locks of a process on a file when any
of its descriptors is closed. A fork copies the book, but not the locks. A child that goes by the copy takes the file for locked by itself:
then the parent can delete the write-ahead log under it, and two hold the same lease, or the child finds the file locked for ever. So before
a fork new visits to SQLite are held up, those under way are waited for, and idle connections are closed, which empties the book.

Nothing here takes a lock. A fork may come in the handler of a signal, in the middle of anything, and a lock that another thread holds stays
locked in the child. Instead each step is one operation on a list, dict or set, which is atomic.
"""

from __future__ import annotations

import contextlib
import os
import time
from threading import get_ident

from .errors import Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3

    Pool = list[tuple[sqlite3.Connection, tuple[int, int]]]

#: How long a fork waits for visits of other threads, seconds: longer than the usual timeout of a call (1.5 s). So they end in this time,
#: even those that wait for a file that somebody else has locked, unless they were given a longer one.
LONGEST_WAIT = 2.0
#: How often whoever waits looks, seconds. Nobody is woken, so that a visit costs nothing more while nobody forks.
LOOK = 0.001

TAINTED = (
    "this process was forked in the middle of a call on an SQLite store, or while one was open and without all of Python's hooks:"
    " SQLite's locks can't be trusted here until it executes a new program"
)


class Visit:
    """A call on a store: from before it takes a connection until it has put it back."""

    __slots__ = ("inside", "thread")

    def __init__(self) -> None:
        self.thread = get_ident()
        self.inside = False  # it may hold a connection; else it only asks whether it may take one


class ForkGate:
    """What this process has open in SQLite, and the hooks of a fork.

    Attributes:
        forks: The threads that are about to fork.
        tainted: Whether this process is a child whose copy of the book is not empty. Then all connections that there are belong to the
            parent, and are neither used nor closed: both would disturb its locks.
    """

    def __init__(self) -> None:
        self.forks: list[int] = []
        self.tainted = False
        self._visits: set[Visit] = set()
        self._pools: dict[int, Pool] = {}  # by id
        self._of_the_parent: list[sqlite3.Connection] = []
        self._pid = os.getpid()

    def add(self, pool: Pool) -> None:
        """Look after the idle connections that are put into a list, until `drop`."""
        self._pools[id(pool)] = pool

    def drop(self, pool: Pool) -> None:
        """Close a pool that nobody has any more. Never waits: garbage collection calls this, wherever that happens to run."""
        self.close_pool(pool)
        if not pool:  # else a thread that is about to fork closes it
            self._pools.pop(id(pool), None)

    # -- visits

    def enter(self, visit: Visit, deadline: float) -> None:
        """Begin a visit. Whatever comes of this, `leave` is to be called.

        Raises:
            Unavailable: A fork took until the deadline, or this process may not use SQLite.
        """
        self._visits.add(visit)
        if self.forks:  # looked at after the visit is noted; a fork looks the other way round
            self._wait(visit, deadline)
        visit.inside = True
        if self.tainted:
            raise Unavailable(TAINTED)

    def _wait(self, visit: Visit, deadline: float) -> None:
        if self._pid != os.getpid():
            self.in_child()  # another hook in the child came before ours
            self._visits.add(visit)
        while self.forks and visit.thread not in self.forks:
            self._visits.discard(visit)
            if time.monotonic() >= deadline:
                raise Unavailable("this process is about to fork, which waits for another call on an SQLite store")
            time.sleep(LOOK)
            self._visits.add(visit)

    def leave(self, visit: Visit) -> None:
        """End a visit."""
        self._visits.discard(visit)

    def check(self) -> None:
        """Raise Unavailable if this process may not use SQLite."""
        if self.tainted:
            raise Unavailable(TAINTED)

    def keep(self, pool: Pool, connection: sqlite3.Connection, identity: tuple[int, int]) -> None:
        """Keep a connection for later, or close it if a fork is waiting for that."""
        if self.forks or self.tainted:
            self.close(connection)
        else:
            pool.append((connection, identity))

    def close(self, connection: sqlite3.Connection) -> None:
        """Close a connection if it is ours to close."""
        if self.tainted:
            self._of_the_parent.append(connection)
        else:
            connection.close()

    def close_pool(self, pool: Pool) -> None:
        """Close the connections in a pool."""
        visit = Visit()
        try:
            self._visits.add(visit)
            if not self.forks or visit.thread in self.forks:  # else a thread that is about to fork does it
                visit.inside = True
                while pool:
                    with contextlib.suppress(IndexError):  # another thread took it
                        self.close(pool.pop()[0])
        finally:
            self.leave(visit)

    # -- forks

    def before(self) -> None:
        """Empty the book. Visits that don't end in time are left for the child to find."""
        me = get_ident()
        self.forks.append(me)
        deadline = time.monotonic() + LONGEST_WAIT
        while True:
            for pool in self._pools.copy().values():
                self.close_pool(pool)
            # a visit of this very thread can't end before the fork has: the handler of a signal, or the user's clock, forks in its middle
            if all(visit.thread == me for visit in self._visits.copy()) or time.monotonic() >= deadline:
                break
            time.sleep(LOOK)

    def in_parent(self) -> None:
        """Let visits begin again."""
        if get_ident() in self.forks:
            self.forks.remove(get_ident())

    def in_child(self) -> None:
        """Find out whether the copied book is empty, and begin anew."""
        if self._pid == os.getpid() and not self.forks:
            return  # done already
        if any(visit.inside for visit in self._visits) or any(self._pools.values()):
            self.tainted = True
        self.forks.clear()
        for pool in self._pools.copy().values():
            self.close_pool(pool)
        self._visits.clear()
        self._pid = os.getpid()


gate = ForkGate()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=gate.before, after_in_parent=gate.in_parent, after_in_child=gate.in_child)
