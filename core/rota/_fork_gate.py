# SPDX-License-Identifier: MIT
"""Keeps forks and SQLite apart: at the instant of a fork this process has no connection open, or else its child never uses any.

libsqlite keeps a process-wide book of the POSIX locks that it has, since the kernel would drop all locks of a process on a file when any
of its descriptors is closed. A fork copies the book, but not the locks. A child that goes by the copy takes the file for locked by itself:
then the parent can delete the write-ahead log under it, and two hold the same lease, or the child finds the file locked for ever. So before
a fork no more connections are opened, those in use are waited for, and idle ones are closed, which empties the book.

Nothing here takes a lock. A fork may come in the handler of a signal, in the middle of anything, and a lock that another thread holds stays
locked in the child. Instead each step is one operation on a list or set, which is atomic.
"""

from __future__ import annotations

import contextlib
import os
import time
from threading import get_ident
from weakref import ref

from .errors import Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: How long a fork waits for the calls of other threads, seconds: longer than the usual timeout of one (1.5 s). So they end in this time,
#: even those that wait for a file that somebody else has locked, unless they were given a longer one.
LONGEST_WAIT = 2.0
#: How often whoever waits looks, seconds. Nobody is woken, so that a call costs nothing more while nobody forks.
LOOK = 0.001

TAINTED = (
    "this process was forked in the middle of a call on an SQLite store, or while one was open and without all of Python's hooks:"
    " SQLite's locks can't be trusted here until it executes a new program"
)


class Line:
    """A connection to a file, from before it is opened until after it was closed.

    Attributes:
        pool: Where it is while nobody uses it.
        connection: The `sqlite3.Connection`; None while it isn't open.
        file: The identity of the file that it opened.
        thread: Who uses it; 0 in the pool.
        asks: Whether it waits to be let through the gate: nothing is open yet.
    """

    __slots__ = ("__weakref__", "asks", "connection", "file", "pool", "thread")

    def __init__(self, pool: list[Line]) -> None:
        self.pool = pool
        self.connection: Any = None
        self.file = (0, 0)
        self.thread = get_ident()
        self.asks = True


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
        self._lines: set[ref[Line]] = set()  # weakly: one that an interrupted call dropped is closed by that
        self._of_the_parent: list[Line] = []
        self._pid = os.getpid()

    # -- connections

    def admit(self, line: Line, deadline: float) -> None:
        """Let a connection be opened; in the end, `close` is to be called.

        Raises:
            Unavailable: A fork took until the deadline, or this process may not use SQLite.
        """
        self._note(line)
        if self.forks:  # looked at after the line is noted; a fork looks the other way round
            if self._pid != os.getpid():
                self.in_child()  # another hook in the child came before ours
                self._note(line)
            while self.forks and line.thread not in self.forks:
                self._lines.discard(ref(line))
                if time.monotonic() >= deadline:
                    raise Unavailable("this process is about to fork, which waits for another call on an SQLite store")
                time.sleep(LOOK)
                self._note(line)
        self.check()
        line.asks = False

    def check(self) -> None:
        """Raise Unavailable if this process may not use SQLite."""
        if self.tainted:
            raise Unavailable(TAINTED)

    def put_back(self, line: Line) -> None:
        """Keep a connection for later, unless a fork waits for that it is closed."""
        if self.forks or self.tainted:
            self.close(line)
        else:
            line.thread = 0
            line.pool.append(line)

    def close(self, line: Line) -> None:
        """Close a connection that is not in its pool, if it is ours to close."""
        line.thread = get_ident()
        try:
            if line.connection is not None and not self.tainted:
                line.connection.close()
        finally:
            self._lines.discard(ref(line))

    def _note(self, line: Line) -> None:
        self._lines.add(ref(line, self._lines.discard))

    def _open_lines(self) -> list[Line]:
        return [line for noted in self._lines.copy() if (line := noted()) is not None]

    def close_pool(self, pool: list[Line]) -> None:
        """Close what is in a pool. Never waits: garbage collection calls this, wherever that happens to run."""
        while pool:
            with contextlib.suppress(IndexError):  # another thread took it
                self.close(pool.pop())

    # -- forks

    def before(self) -> None:
        """Empty the book. What doesn't end in time is left for the child to find."""
        me = get_ident()
        self.forks.append(me)
        deadline = time.monotonic() + LONGEST_WAIT
        while True:
            for line in self._open_lines():
                with contextlib.suppress(ValueError):  # it is in use
                    line.pool.remove(line)
                    self.close(line)
            # what this very thread uses stays so until after the fork: the handler of a signal, or the user's clock, forks in its middle
            if all(line.thread == me for line in self._open_lines()) or time.monotonic() >= deadline:
                break
            time.sleep(LOOK)

    def in_parent(self) -> None:
        """Let connections be opened again."""
        if get_ident() in self.forks:
            self.forks.remove(get_ident())

    def in_child(self) -> None:
        """Find out whether the copied book is empty, and begin anew."""
        if self._pid == os.getpid() and not self.forks:
            return  # done already
        for line in self._open_lines():
            if not line.asks:
                self.tainted = True
                self._of_the_parent.append(line)
                with contextlib.suppress(ValueError):  # it was in use
                    line.pool.remove(line)
        self._lines.clear()
        self.forks.clear()
        self._pid = os.getpid()


gate = ForkGate()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=gate.before, after_in_parent=gate.in_parent, after_in_child=gate.in_child)
