# SPDX-License-Identifier: MIT
"""Keeps forks and gRPC's calls apart: at the instant of a fork none is under way, but those that last too long.

gRPC begins anew in a child, by handlers of its own, only where no thread is in the middle of a call. Else it leaves them out, or they
come at the wrong moment: the child hangs at its first call or is aborted, or its threads read from its parent's TLS connections, whose
calls then fail (all seen with grpcio 1.85, about once in a hundred forks under load). So before a fork no more calls are begun, and those
under way are waited for. Streams may stay open.

Nothing here takes a lock, for the same reasons as in rota's own gate for SQLite, which this resembles.
"""

from __future__ import annotations

import os
import time
from threading import get_ident
from weakref import ref

from rota.errors import Unavailable

from ._clock import monotonic

#: How long a fork waits for calls, seconds: longer than their usual timeout (1.5 s).
LONGEST_WAIT = 2.0
#: How often whoever waits looks, seconds.
LOOK = 0.001


class Call:
    """One that is under way for as long as somebody has this. Known weakly: one that was interrupted is not waited for."""

    __slots__ = ("__weakref__", "thread")

    def __init__(self) -> None:
        self.thread = get_ident()


class ForkGate:
    """The calls of this process, and the hooks of a fork."""

    def __init__(self) -> None:
        self._forks: list[int] = []  # the threads that are about to fork
        self._calls: set[ref[Call]] = set()
        self._pid = os.getpid()

    def enter(self, deadline: float) -> Call:
        """Let a call begin, by `_clock.monotonic` until the deadline; it is over when what is returned is let go of.

        Raises:
            Unavailable: A fork took until the deadline.
        """
        call = Call()
        known = ref(call, self._calls.discard)
        self._calls.add(known)
        while self._forks and call.thread not in self._forks:  # looked at after it is noted; a fork looks the other way round
            if self._pid != os.getpid():
                self.in_child()  # another hook in the child came before ours
            else:
                self._calls.discard(known)
                if monotonic() >= deadline:
                    raise Unavailable("this process is about to fork, which waits for another call of etcd")
                time.sleep(LOOK)
            self._calls.add(known)
        return call

    def before(self) -> None:
        """Wait for the calls of other threads. What this one does, in whose middle the handler of a signal forks, can't be waited for."""
        me = get_ident()
        self._forks.append(me)
        deadline = time.monotonic() + LONGEST_WAIT
        while self._others_call(me) and time.monotonic() < deadline:
            time.sleep(LOOK)

    def _others_call(self, me: int) -> bool:
        # by itself: whoever looks must not have the calls while it sleeps, or they would never be over
        return any((call := known()) is not None and call.thread != me for known in self._calls.copy())

    def in_parent(self) -> None:
        """Let calls begin again."""
        if get_ident() in self._forks:
            self._forks.remove(get_ident())

    def in_child(self) -> None:
        """Begin with nothing."""
        self._calls.clear()
        self._forks.clear()
        self._pid = os.getpid()


gate = ForkGate()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=gate.before, after_in_parent=gate.in_parent, after_in_child=gate.in_child)
