# SPDX-License-Identifier: MIT
"""The command's process: made before there are threads, started when the claim is won, ended whole.

It is forked before anything else is imported. There it waits on a pipe; only the word of a live parent makes it execute the command. So no
fork happens beside the heartbeat's thread, and its preparations (its group, the parent-death signal) go on while the parent claims.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from contextlib import suppress

from ._group import FIRST_LOOK, LONGEST_LOOK, has_living

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

#: What the parent says last, so that a parent killed half way through starts nothing.
_GO = b"\0go"
#: How long a killed group may take to be gone where it can't be told from its zombies (seconds).
_GONE = 1.0


class Child:
    """The command's process and its group.

    Attributes:
        pid: Its id, and its group's.
        ending: Whether it was told to end.
    """

    def __init__(self, command: list[str]) -> None:
        go, self._go = os.pipe()
        self._failure, failure = os.pipe()
        parent = os.getpid()
        self.ending = False
        self._started = False
        self._is_init = parent == 1
        self._has_terminal = False
        self._told_to_stop = False
        self._code: int | None = None
        self.pid = os.fork()
        if not self.pid:
            try:
                os.close(self._go)
                os.close(self._failure)
                _become(command, go, failure, parent)
            finally:
                os._exit(125)
        os.close(go)
        os.close(failure)
        with suppress(OSError):
            os.setpgid(self.pid, self.pid)  # both sides do it, so that it is done for whoever comes first

    def start(self, environment: dict[str, str | None]) -> int:
        """Let it execute the command with these variables set, or unset where None; return 0, or the errno of its failure."""
        self._started = True
        said = b"\0".join(os.fsencode(f"{name}={value}" if value is not None else name) for name, value in environment.items())
        with suppress(OSError):  # it was killed, which `ended` tells
            os.write(self._go, said + _GO)  # far less than PIPE_BUF, so it is written whole or not at all
        os.close(self._go)
        failure = os.read(self._failure, 16)
        os.close(self._failure)
        if failure:
            self._wait()
        return int(failure or 0)

    def close(self) -> None:
        """Leave nothing of it: unstarted, it ends without executing anything; started and not ended, its group is killed."""
        if not self._started:
            os.close(self._go)
            os.close(self._failure)
        elif self._code is None:
            self.send(signal.SIGKILL)
        self._wait()
        self.take_terminal()

    def _wait(self) -> None:
        if self._code is None:
            try:
                self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            except ChildProcessError:
                self._code = -signal.SIGKILL  # somebody else waited for it: how it ended is not known, and certainly no success

    def send(self, number: int) -> None:
        """Send a signal to the whole group."""
        if number in (signal.SIGTERM, signal.SIGKILL):
            self.ending = True
        if number == signal.SIGTSTP:
            self._told_to_stop = True
        with suppress(OSError):
            os.killpg(self.pid, number)
            if number in (signal.SIGTERM, signal.SIGHUP):
                # What is stopped sees them only when it goes on. Always, as systemd does (systemd.kill(5)): whether it is stopped is known
                # only after a wait, and a stop that nobody has seen yet would keep it until it is killed.
                os.killpg(self.pid, signal.SIGCONT)

    def ended(self, may_go_on: Callable[[], bool]) -> int | None:
        """Return how the command ended: its exit code, or -n by signal n; None while it runs.

        One that stopped because it wants the terminal is given it. With one that was stopped from the terminal this process stops too, as
        one job of the shell, and both go on together if they still may.
        """
        while self._code is None:
            try:
                # an init has to wait for everybody's orphans
                pid, status = os.waitpid(-1 if self._is_init else self.pid, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                self._code = -signal.SIGKILL  # as in `wait`
                break
            if pid == 0:
                break
            if pid != self.pid:
                continue
            if os.WIFSTOPPED(status):
                self._stopped(os.WSTOPSIG(status), may_go_on)
            else:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def drain(self, kill_at: float) -> None:
        """After the command has ended and was told to: wait for the rest of its group until then, kill it, and wait until it is gone."""
        look = FIRST_LOOK
        gone_by = float("inf")
        while self._group_lives():
            now = time.monotonic()
            if now >= kill_at:
                self.send(signal.SIGKILL)
                if gone_by == float("inf") and not os.path.exists("/proc/self/stat"):
                    gone_by = now + _GONE
            if now >= gone_by:
                return
            time.sleep(look)
            look = min(look * 1.5, LONGEST_LOOK)

    def _group_lives(self) -> bool:
        if self._is_init:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # what is left runs as somebody else, or, on macOS, is a zombie
            pass
        return has_living(self.pid) is not False

    def _stopped(self, number: int, may_go_on: Callable[[], bool]) -> None:
        if number in (signal.SIGTTIN, signal.SIGTTOU):
            # it wants the terminal, which its group does not have: hand it over if it is ours to give
            if self._pass_terminal(os.getpgrp(), self.pid):
                self._has_terminal = True
                self.send(signal.SIGCONT)
        elif number == signal.SIGTSTP and (self._told_to_stop or _has_terminal()):
            self._told_to_stop = False
            had_terminal = self.take_terminal()
            os.kill(os.getpid(), signal.SIGSTOP)
            if had_terminal:
                self._has_terminal = self._pass_terminal(os.getpgrp(), self.pid)
            if may_go_on():
                self.send(signal.SIGCONT)

    def take_terminal(self) -> bool:
        """Take back the terminal if the command's group was given it; return whether it was."""
        had, self._has_terminal = self._has_terminal, False
        if had:
            self._pass_terminal(self.pid, os.getpgrp())
        return had

    @staticmethod
    def _pass_terminal(giver: int, taker: int) -> bool:
        """Make the taker's group the terminal's foreground group if the giver's is."""
        try:
            terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        except OSError:
            return False
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # else a background group that does this is stopped
        try:
            if os.tcgetpgrp(terminal) != giver:
                return False
            os.tcsetpgrp(terminal, taker)
            return True
        except OSError:
            return False
        finally:
            signal.signal(signal.SIGTTOU, before)
            os.close(terminal)


def _has_terminal() -> bool:
    """Say whether there is a terminal, and so a shell's job control: without one, whoever stopped the command lets only that go on."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _become(command: list[str], go: int, failure: int, parent: int) -> NoReturn:
    """In the child: wait for the word, then be the command."""
    os.setpgid(0, 0)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, which executing would hand on
        signal.signal(number, signal.SIG_DFL)
    _die_with(parent)
    said = b""
    while part := os.read(go, 65536):
        said += part
    if not said.endswith(_GO):
        os._exit(0)
    environment = dict(os.environb)
    for item in said.removesuffix(_GO).split(b"\0"):
        name, equals, value = item.partition(b"=")
        environment.pop(name, None)
        if equals:
            environment[name] = value
    os.write(failure, str(_execute(command, environment)).encode())
    os._exit(125)


def _die_with(parent: int) -> None:
    """Be killed when the parent dies, where the system can do that: Linux, by prctl(2)."""
    if sys.platform.startswith("linux"):
        try:
            import ctypes

            ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
        except (ImportError, OSError, AttributeError):
            pass
        if os.getppid() != parent:  # it died before it was asked for
            os._exit(0)


def _execute(command: list[str], environment: dict[bytes, bytes]) -> int:
    """Execute it as execvp(3) does; return the errno of the failure."""
    file = os.fsencode(command[0])
    if b"/" in file:
        places = [file]
    else:
        path = environment.get(b"PATH", os.fsencode(os.defpath))
        places = [os.path.join(folder or b".", file) for folder in path.split(b":")] if file else []
    failed = errno.ENOENT
    for place in places:
        try:
            os.execve(place, command, environment)
        except OSError as error:
            number = error.errno or errno.EINVAL
        if number == errno.ENOEXEC:  # a script without #!, as execvp(3)
            try:
                os.execve("/bin/sh", ["/bin/sh", os.fsdecode(place), *command[1:]], environment)
            except OSError as error:
                return error.errno or number
        if number not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
            return number
        if number == errno.EACCES:
            failed = number
    return failed
