# SPDX-License-Identifier: MIT
"""Keeps forks and gRPC's calls apart: at the instant of a fork none is under way, but those that last too long.

gRPC begins anew in a child, by handlers of its own, only where no thread is in the middle of a call. Else it leaves them out, or they
come at the wrong moment: the child hangs at its first call or is aborted, or its threads read from its parent's TLS connections, whose
calls then fail (all seen with grpcio 1.85, about once in a hundred forks under load). So before a fork no more calls are begun, and those
under way are waited for. Streams are ended: their users open them again. While one is open, a thread of gRPC's polls for it, and a child
whose own thread comes to lie where that one was is aborted ("Check failed: g_active_poller"; up to half of the children of a process with
several threads, with grpcio 1.85).

A call costs next to nothing for this: it notes nothing down, and a fork finds those under way by a look at the threads' stacks. So one
that was interrupted between two lines is not waited for either. Nothing here takes a lock, for the same reasons as in rota's own gate for
SQLite.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, TypeVar

from rota.errors import Unavailable

from ._clock import monotonic

#: How long a fork waits for calls, seconds: longer than their usual timeout (1.5 s).
LONGEST_WAIT = 2.0
#: How often whoever waits looks, seconds.
LOOK = 0.001

F = TypeVar("F", bound=Callable[..., Any])


class ForkGate:
    """The hooks of a fork, and what a call asks before it begins.

    Attributes:
        forks: The threads that are about to fork. A call that finds any here has to `enter` before it begins.
        streams: The open ones, and which thread reads them; 0: one that does nothing else.
    """

    def __init__(self) -> None:
        self.forks: list[int] = []
        self.streams: dict[Any, int] = {}
        self._of_the_parent: list[object] = []
        self._calling: set[CodeType] = set()
        self._pid = os.getpid()

    def calls(self, function: F) -> F:
        """Decorate a function that looks at `forks` first, and then calls gRPC: a fork waits until no other thread is in it."""
        self._calling.add(function.__code__)
        return function

    def enter(self, deadline: float) -> None:
        """Wait until no other thread is about to fork. For `wait`'s errors see there."""
        while self.forks and self.wait(deadline):
            pass

    def wait(self, deadline: float) -> bool:
        """Wait for the forks of other threads, by `_clock.monotonic` until the deadline; return whether to look at `forks` again.

        Who has waited does so: for the next fork, which came while it was still in here, it counts as one that waits.

        Raises:
            Unavailable: They took until then.
        """
        if get_ident() in self.forks:
            return False
        while self.forks:
            if self._pid != os.getpid():
                self.in_child()  # another hook in the child came before ours
            elif monotonic() >= deadline:
                raise Unavailable("this process is about to fork, which waits for another call of etcd")
            else:
                time.sleep(LOOK)
        return True

    def before(self) -> None:
        """Wait for the calls of other threads. What this one does, in whose middle the handler of a signal forks, can't be waited for."""
        me = get_ident()
        self.forks.append(me)
        deadline = time.monotonic() + LONGEST_WAIT
        while self.others_call(me) and time.monotonic() < deadline:
            time.sleep(LOOK)
        self._end_streams(me, deadline)

    def _end_streams(self, me: int, deadline: float) -> None:
        streams = list(self.streams.copy())
        if not streams:
            return
        # on another thread, which may hang: an interrupt can have left a lock of gRPC's taken
        ending = threading.Thread(target=lambda: [stream.cancel() for stream in streams], name="rota-etcd-end", daemon=True)
        with suppress(RuntimeError):  # no thread can be started now
            ending.start()
        # not for one that this thread reads, in whose middle the handler of a signal forks
        while ending.is_alive() or any(reader != me for reader in self.streams.copy().values()):
            if time.monotonic() >= deadline:
                self.streams.clear()  # those whose readers were interrupted: they cost one fork its time
                return
            time.sleep(LOOK)

    def others_call(self, me: int) -> bool:
        """Whether another thread than this is in the middle of a call."""
        # a call looks at the forks when its frame is there already; this looks at the frames when the fork is noted already
        return any(thread != me and self._is_calling(frame) for thread, frame in sys._current_frames().items())

    def _is_calling(self, frame: FrameType | None) -> bool:
        waits = False
        while frame is not None:
            if frame.f_code is _WAIT:
                waits = True
            elif frame.f_code in self._calling:
                if not waits:
                    return True
                waits = False  # it waits for us; the one below it, in whose middle the handler of a signal came, does not
            frame = frame.f_back
        return False

    def in_parent(self) -> None:
        """Let calls begin again."""
        if get_ident() in self.forks:
            self.forks.remove(get_ident())

    def in_child(self) -> None:
        """Begin with nothing."""
        self.forks.clear()
        self._of_the_parent.extend(self.streams)  # not let go of: gRPC's threads are not here to do it
        self.streams.clear()
        self._pid = os.getpid()


_WAIT = ForkGate.wait.__code__

gate = ForkGate()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=gate.before, after_in_parent=gate.in_parent, after_in_child=gate.in_child)
