# SPDX-License-Identifier: MIT
"""Keeps forks and gRPC's calls apart: at the instant of a fork none is under way, but those that last too long.

gRPC begins anew in a child, by handlers of its own, only where no thread is in the middle of a call. Else it leaves them out, or they
come at the wrong moment: the child hangs at its first call or is aborted, or its threads read from its parent's TLS connections, whose
calls then fail (all seen with grpcio 1.85, about once in a hundred forks under load). So before a fork no more calls are begun, and those
under way are waited for. Streams may stay open.

A call costs next to nothing for this: it notes nothing down, and a fork finds those under way by a look at the threads' stacks. So one
that was interrupted between two lines is not waited for either. Nothing here takes a lock, for the same reasons as in rota's own gate for
SQLite.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
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
        forks: The threads that are about to fork. A call that finds any here has to `wait` before it begins.
    """

    def __init__(self) -> None:
        self.forks: list[int] = []
        self._calling: set[CodeType] = set()
        self._pid = os.getpid()

    def calls(self, function: F) -> F:
        """Decorate a function that looks at `forks` first, and then calls gRPC: a fork waits until no other thread is in it."""
        self._calling.add(function.__code__)
        return function

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
        self._pid = os.getpid()


_WAIT = ForkGate.wait.__code__

gate = ForkGate()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=gate.before, after_in_parent=gate.in_parent, after_in_child=gate.in_child)
