# SPDX-License-Identifier: MIT
"""The guard: a small process that kills the command's group when ``rota run`` can't, because it was killed, stopped or starved.

It is forked before there are threads, opens nothing, keeps no file of the caller's open, and sleeps on a pipe that only `rota run` holds
the other end of. It is told by when the group must be gone, and again after each renewal. It kills the group when that time has come and
nothing newer was said, and at once when the pipe ends, as it does with the life of `rota run`.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress

from rota._clock import monotonic

from ._group import FIRST_LOOK, LONGEST_LOOK, has_living

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

FOREVER = float("inf")
#: A deadline that moved by less is not told (seconds).
_STEP = 0.001
#: The deadline is on a clock that runs through suspend, a wait is not: look this often (seconds).
_LOOK = 1.0
#: Without /proc a killed group can't be told from its zombies: kill for so long (seconds).
_KILLS = 1.0


class Guard:
    """The guard of one process group.

    Attributes:
        kill_at: When it kills the group unless it is told otherwise, on the clock of `rota._clock.monotonic`.
    """

    def __init__(self, group: int) -> None:
        feed, self._feed = os.pipe()
        os.set_blocking(self._feed, False)
        self.kill_at = FOREVER
        self._pid = os.fork()
        if not self._pid:
            try:
                os.close(self._feed)
                _watch(feed, group)
            finally:
                os._exit(125)
        os.close(feed)

    def feed(self, kill_at: float) -> None:
        """Let the group live until then, on the clock of `rota._clock.monotonic`."""
        if self._pid and abs(kill_at - self.kill_at) > _STEP:
            self.kill_at = kill_at
            # Far less than PIPE_BUF, so it is written whole or not at all. A guard that somebody killed is not needed as long as this
            # process lives. One that somebody stopped for some thousand renewals finds no newer words than fit the pipe: when it goes on
            # it ends the group too early, never too late, since deadlines only move on.
            with suppress(OSError):
                os.write(self._feed, b"%r\n" % kill_at)

    def close(self) -> None:
        """End the guard, and leave the group alone. May be called twice."""
        if not self._pid:
            return
        with suppress(ChildProcessError):  # an init, which waits for whoever ends, may have waited for it
            if not os.waitpid(self._pid, os.WNOHANG)[0]:
                os.kill(self._pid, signal.SIGKILL)  # whatever state it is in
                os.waitpid(self._pid, 0)
        os.close(self._feed)
        self._pid = 0


def _watch(feed: int, group: int) -> NoReturn:
    """In the guard: sleep until the group has to end."""
    os.setsid()  # what a terminal or a shell sends to our group is not meant for it
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    _keep_only(feed)
    kill_at, rest = FOREVER, b""
    while (left := kill_at - monotonic()) > 0:
        if select.select([feed], [], [], None if left == FOREVER else min(left, _LOOK))[0]:
            said = os.read(feed, 65536)  # all that a pipe holds, if this process was stopped meanwhile
            if not said:
                break
            told = (rest + said).rpartition(b"\n")
            rest = told[2]
            if told[0]:
                kill_at = float(told[0].split()[-1])
    _kill(group)
    os._exit(0)


def _keep_only(kept: int) -> None:
    """Close every other file: whoever waits for the end of a pipe, or the release of a lock, must not wait for the guard."""
    try:
        numbers = [int(number) for number in os.listdir("/dev/fd")]
    except OSError:
        numbers = list(range(256))
    for number in numbers:
        if number != kept:
            with suppress(OSError):  # among them the one that listed them
                os.close(number)


def _kill(group: int) -> None:
    """Kill the group, again and again until it is gone: processes that were just being made may have missed it."""
    look, until = FIRST_LOOK, time.monotonic() + _KILLS
    while True:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            return
        except PermissionError:  # what is left runs as somebody else, or, on macOS, is a zombie
            pass
        living = has_living(group)
        if not (time.monotonic() < until if living is None else living):
            return
        time.sleep(look)
        look = min(look * 1.5, LONGEST_LOOK)
