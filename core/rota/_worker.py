# SPDX-License-Identifier: MIT
"""A thread that lives while there is something to do.

Whatever wakes it may run in a signal handler, or be left by one with an exception (Ctrl-C), at any instruction: no lock is held across
anything that waits, and the only one is held again without harm by the thread that has it. `threading.Condition` allows neither: its
``__enter__`` is Python code, and an exception between its lines leaves it locked for good.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from .errors import RotaError

#: How often `Worker.wait_idle` looks, seconds.
LOOK = 0.01
#: How long a thread pauses after a turn that raised, seconds.
AFTER_FAILURE = 1.0


class Worker:
    """Calls ``turn`` until it has nothing more to do, on a daemon thread that `wake` starts or wakes.

    Args:
        name: The thread's name, for people.
        turn: Does what is due, and returns in how many seconds it wants to be called again (infinity: not before it is woken); None ends
            the thread, unless it was woken since the turn began.
    """

    def __init__(self, name: str, turn: Callable[[], float | None]) -> None:
        self._name = name
        self._turn = turn
        #: None while the thread is not there.
        self.thread: threading.Thread | None = None
        self._closed = False
        self._forsaken = False
        self._lock = threading.RLock()
        # A bell, by way of a lock that whoever waits takes and whoever rings gives back: a single instruction, from wherever it is.
        self._bell = threading.Lock()
        self._bell.acquire()
        #: Whether the last wait was ended by `wake`.
        self.woken = False

    def wake(self) -> None:
        """Let there be a turn soon.

        Raises:
            RotaError: The thread is not there and can't be started.
        """
        self._ring()
        if self.thread is None and not self._closed:
            with self._lock:
                if self.thread is None and not self._closed:
                    self._start()

    def wait_idle(self, seconds: float) -> bool:
        """Wait until the thread has ended for want of anything to do, at most so long; return whether it has."""
        deadline = time.monotonic() + seconds
        while self.thread is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, LOOK))  # looks again and again: a wait that is told must own a lock to be told by
        return True

    def close(self) -> None:
        """Let the turn end that is on, then the thread; wait for it, except from itself."""
        self._closed = True
        thread = self.thread
        self._ring()
        if thread is not None and thread is not threading.current_thread():
            with suppress(RuntimeError):  # another thread is just starting it: it ends before its first turn
                thread.join()

    def forsake(self) -> None:
        """In a forked child: another one takes this one's place. Threads of the parent are not there, except gevent's, which go on."""
        self._forsaken = True

    def _ring(self) -> None:
        with suppress(RuntimeError):  # it rings already
            self._bell.release()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            self.thread = thread
            thread.start()
        except BaseException as error:
            # If it did start, and only the wait for it was interrupted, it sees that it is not wanted.
            self.thread = None
            if isinstance(error, RuntimeError) and "new thread" in str(error):
                raise RotaError(f"the thread {self._name} can't be started: {error}") from error
            self.wake()  # others may have come to rely on it
            if isinstance(error, RuntimeError) and error.__context__ is not None:
                # of an interrupt at one place in its wait for the thread `threading` makes "release unlocked lock"
                raise error.__context__ from None
            raise

    def _run(self) -> None:
        current = threading.current_thread()
        while self.thread is current and not self._closed:
            try:
                wait = self._turn()
            except Exception:  # a log's handler, say: whatever else this thread does for others must go on
                with suppress(Exception):
                    import logging

                    logging.getLogger("rota").exception("%s failed, and goes on", self._name)
                wait = AFTER_FAILURE
            if wait is None:
                with self._lock:
                    if not self._forsaken:
                        self.thread = None  # before looking: who rings from here on sees that it must start another one
                        if not self._bell.acquire(blocking=False):
                            return
                        self.thread = current
            else:
                self.woken = self._bell.acquire(timeout=-1 if wait > threading.TIMEOUT_MAX else max(0.0, wait))
            while self._forsaken:
                self._bell.acquire()  # for good: `threading` has forgotten this thread, so it may not end
