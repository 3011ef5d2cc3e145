# SPDX-License-Identifier: MIT
"""One real server as a process of the tests: a free port, a folder of its own, ended by process id. Standard library only.

A server is a subclass of `Process` that says which command to run and when it is ready. What all of them share: they listen on loopback
only, write their log into their folder, are ended with the tests (also when those are killed), and can be stopped hard or frozen.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, ClassVar, Self, TypeVar

import server_packages

T = TypeVar("T")

HOST = "127.0.0.1"

#: Below the range from which the kernel takes the ports of clients: a server that is down keeps its port.
PORTS = (20_000, 32_000)

_given: set[int] = set()
_running: weakref.WeakSet[Process] = weakref.WeakSet()


class ServerError(Exception):
    """A server could not be started or stopped; the message ends with its log."""


class NotInstalled(ServerError):
    """Its program is not on this machine."""


def free_port() -> int:
    """Return a loopback port that nobody listens on, never the same one twice.

    Nor do two workers of one run: where a server is down, or nobody is to listen, the other one's would answer.
    """
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    while True:
        port = random.randrange(PORTS[0] + int(worker[2:]), PORTS[1], int(workers))
        if port in _given:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        _given.add(port)
        return port


def program(name: str) -> str:
    """Return the path of a server that the table of `server_packages` names.

    Raises:
        NotInstalled: It is not there; the message names the packages.
    """
    server = next(server for server in server_packages.SERVERS if server.name == name)
    found = server_packages.find(server)
    if found is None:
        raise NotInstalled(f"{name} is not installed: apt-get install --no-install-recommends {' '.join(server.packages)}")
    return found


def wait_until(condition: Callable[[], T], seconds: float = 30.0, what: str = "", every: float = 0.02) -> T:
    """Wait until ``condition()`` is true, and return what it is.

    Raises:
        TimeoutError: It was not within so many seconds.
    """
    began, late = time.monotonic(), 0.0
    while not (value := condition()):
        asleep = time.monotonic()
        if asleep - began - late > seconds:
            raise TimeoutError(f"not within {seconds:g}s: {what or getattr(condition, '__name__', 'the condition')}")
        time.sleep(every)
        late += max(0.0, time.monotonic() - asleep - every)  # a machine that stands still is no fault of whom is waited for
    return value


def read_line(stream: IO[str]) -> str:
    """Return the next line of a process's pipe, "" at its end, and take nothing beyond it.

    ``stream.readline()`` takes all that is there, and `subprocess.Popen.communicate` never gives what was taken: what a fast process said
    last would be lost.
    """
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(stream.fileno(), 1)):
        line += byte
    return line.decode()


def accepts(port: int, host: str = HOST) -> bool:
    """Whether somebody accepts connections there."""
    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError:
        return False
    return True


class Process:
    """A server. Subclasses set `name` and `command`, and may set `is_ready`, `prepare`, `stop_signal` and `user`.

    Attributes:
        name: For messages.
        port: Where it listens, on `HOST`.
        folder: Its own, removed with it.
        user: Whom it runs as when the tests run as root (postgres refuses root); None: as the tests do.
    """

    name = "server"
    user: ClassVar[str | None] = None
    stop_signal = signal.SIGTERM

    def __init__(self, port: int | None = None) -> None:
        self.port = free_port() if port is None else port
        self.folder = Path(tempfile.mkdtemp(prefix=f"rota-{self.name.lower().replace(' ', '-')}-"))
        self.folder.chmod(0o755)
        self._process: subprocess.Popen[bytes] | None = None
        if self._is_other_user():
            shutil.chown(self.folder, self.user, self.user)

    # -- what a server says of itself

    def command(self) -> list[str]:
        """Return the command that runs it in the foreground."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Make its data, before the first start."""

    def is_ready(self) -> bool:
        """Whether it serves."""
        return accepts(self.port)

    # -- its life

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self, seconds: float = 30.0, *, wait: bool = True) -> Self:
        """Start it and wait until it is ready; started before, it goes on with its data."""
        if self._process is None:
            self.prepare()
        command = self.command()
        if threading.current_thread() is threading.main_thread() and shutil.which("setpriv"):
            # it ends with the tests even when they are killed; the kernel means the thread that started it, so only on the main one
            command = ["setpriv", "--pdeathsig", self.stop_signal.name[3:], "--", *command]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._as_user(command), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        _running.add(self)
        if wait:
            self.wait_ready(seconds)
        return self

    def wait_ready(self, seconds: float = 30.0) -> None:
        """Wait until it serves; a server that has ended meanwhile is an error at once."""

        def ready() -> bool:
            if not self.is_running:
                raise ServerError(f"{self.name} ended with {self._process and self._process.returncode}; its log:\n{self.log()}")
            return self.is_ready()

        try:
            wait_until(ready, seconds, f"{self.name} is ready")
        except TimeoutError as error:
            raise ServerError(f"{error}; its log:\n{self.log()}") from None

    def stop(self, seconds: float = 20.0) -> None:
        """End it in order; by SIGKILL where it doesn't end in time."""
        if self._process is None:
            return
        if self.is_running:
            self.resume()
            self._signal([self.pid], self.stop_signal)
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process.wait()

    def kill(self) -> None:
        """``kill -9``, its children too, as if the machine had lost power; the data stay."""
        if self.is_running:
            assert self._process is not None
            self._signal(self.pids(), signal.SIGKILL)
            self._process.wait()

    def restart(self) -> None:
        """Stop it in order, and start it again."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP to it and its children: it takes bytes and answers nothing, like a hung server."""
        # the parent first, so that no child is born meanwhile
        freeze(self.pid)
        freeze(*self.pids()[1:])

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        if self.is_running:
            self._signal(self.pids(), signal.SIGCONT)

    def remove(self) -> None:
        """Stop it and remove its folder."""
        self.stop(5.0)
        _running.discard(self)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self if self.is_running else self.start()

    def __exit__(self, *_: object) -> None:
        self.remove()

    # -- what tests ask

    @property
    def log_path(self) -> Path:
        """What it printed."""
        return self.folder / "log"

    def log(self, lines: int = 60) -> str:
        """Return the end of its log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        return "(no log)"

    def pids(self) -> list[int]:
        """Return the process and all below it: servers that fork a process for each client are more than one."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):  # it has just ended
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    children.setdefault(parent, []).append(int(entry.name))
        found = [self.pid]
        for pid in found:
            found.extend(children.get(pid, ()))
        return found

    # -- inside

    def run(self, *command: str, seconds: float = 60.0) -> str:
        """Run a tool of the server as its user; return what it printed."""
        result = subprocess.run(
            self._as_user(command),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if result.returncode:
            raise ServerError(f"{' '.join(command)} ended with {result.returncode}:\n{result.stdout}{result.stderr}")
        return result.stdout

    def write(self, name: str, text: str, mode: int = 0o600) -> Path:
        """Write a file of its folder, which belongs to its user."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(mode)
        if self._is_other_user():
            shutil.chown(path, self.user, self.user)
        return path

    def _is_other_user(self) -> bool:
        return self.user is not None and os.geteuid() == 0

    def _as_user(self, command: Sequence[str]) -> Sequence[str]:
        return as_user(self.user, self.user, command) if self.user is not None and self._is_other_user() else command

    def _signal(self, pids: list[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def freeze(*pids: int) -> None:
    """SIGSTOP to processes, until they stand still: a busy machine lets the other threads go on until the one that is told has its turn."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(_stands_still(pid) for pid in pids), what="the processes stand still", every=0.001)


def _stands_still(pid: int) -> bool:
    """Whether each of its threads is stopped, or has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended, or one of its threads
        stats = [thread.joinpath("stat").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
        return all(stat.rpartition(")")[2].split()[0] in "TtZX" for stat in stats)
    return not Path(f"/proc/{pid}").exists()


def running() -> list[Process]:
    """Return every server of this process that was started and not removed."""
    return list(_running)


_owner = os.getpid()


@atexit.register
def _remove_all() -> None:
    if os.getpid() == _owner:  # not in a child that forked and left by the front door
        for server in running():
            server.remove()


def as_user(user: str, group: str, command: Sequence[str]) -> list[str]:
    """Return the command that carries out another one as this user, by names or numbers; only root may.

    `subprocess` itself would fork for that, where it else does as vfork; and a child of a process that has used gRPC may be aborted
    before it executes anything, by gRPC's own threads, which its handlers of forks start anew there.
    """
    return ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--", *command]
