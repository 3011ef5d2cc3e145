# SPDX-License-Identifier: MIT
"""Signals to ``rota run``: before the command runs they end it, while it runs they wake the main loop, which passes them on."""

from __future__ import annotations

import os
import select
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

#: Signals that are passed on to the command. The first four end a `rota run` that has not started it.
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON = (*ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGTSTP)


class Interrupted(BaseException):
    """A signal that ends what is not running yet."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Catches signals from when it is made. Those that the caller ignores (nohup) stay ignored, here and in the command."""

    def __init__(self) -> None:
        self._raising = True
        self._holds = False
        self._caught: list[int] = []
        self._woken, wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in PASSED_ON:
            if number != signal.SIGTSTP and signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._catch)
        signal.signal(signal.SIGCHLD, self._catch)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._caught.append(number)
            if self._raising and number in ENDING:
                self._raising = False
                raise Interrupted(number)

    def hold(self) -> None:
        """From now on raise nothing: `take` and `ending` tell of signals. May be called twice.

        Raises:
            Interrupted: One came that ends what is not running yet. Where it was raised it may have become another error, or none: Python
                does that to an import, and to the start of a thread, that are interrupted.
        """
        if self._holds:
            return
        self._holds, self._raising = True, False
        ending = self.ending()
        if ending:
            raise Interrupted(ending)
        self._caught = [number for number in self._caught if number not in (signal.SIGUSR1, signal.SIGUSR2)]
        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            signal.signal(signal.SIGTSTP, self._catch)

    def ending(self) -> int:
        """Return a signal caught, and not taken, that asks for the end; 0 if there is none."""
        return next((number for number in self._caught if number in ENDING), 0)

    def take(self) -> list[int]:
        """Return the signals caught since the last time."""
        caught = self._caught
        self._caught = []
        return caught

    def wait(self, seconds: float) -> None:
        """Wait until a signal comes, a child's end among them, or so many seconds have gone by."""
        if select.select([self._woken], [], [], None if seconds == float("inf") else max(0.0, seconds))[0]:
            try:
                while len(os.read(self._woken, 4096)) == 4096:
                    pass
            except BlockingIOError:
                pass
