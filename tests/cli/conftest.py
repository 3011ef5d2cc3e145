# SPDX-License-Identifier: MIT
"""The command line as a user has it: a real process, on a real SQLite file of its own for each test."""

from __future__ import annotations

import contextlib
import glob
import inspect
import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import beside.sites
import pytest
import rota
from rota.backend import Record
from rota.cli import _doctor_look, main
from rota.sqlite import SqliteDriver


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Wait until the condition holds and return its value; fail when it never does."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g}s: {inspect.getsource(condition).strip()}"
        time.sleep(0.005)
    return value


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


class Cli:
    """Runs `rota` in a folder of its own.

    Attributes:
        folder: Where it runs.
        url: The store's URL, which ``ROTA_URL`` names unless a test says otherwise.
        environment: What it finds in its environment.
        before: A command that starts it, as the words before its own.
    """

    before: tuple[str, ...] = ()
    until = staticmethod(until)
    is_alive = staticmethod(is_alive)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "store.db"
        self.url = f"sqlite://{self.path}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROTA_", "XDG_", "KUBERNETES_"))}
        self.environment = {**kept, "ROTA_URL": self.url, "HOME": str(folder)}
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, env: dict[str, str | None] | None = None, **options: Any) -> subprocess.Popen[str]:
        """Start it; standard output and error are pipes."""
        environment = {name: value for name, value in {**self.environment, **(env or {})}.items() if value is not None}
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        process = subprocess.Popen([*self.command, *arguments], env=environment, cwd=self.folder, **options)
        self._started.append(process)
        return process

    @property
    def command(self) -> list[str]:
        """The words that start it, without its own arguments."""
        return [*self.before, sys.executable, "-m", "rota"]

    def pid(self, process: subprocess.Popen[str]) -> int:
        """The id of `rota` itself, which something else may have started."""
        if not self.before:
            return process.pid
        return int(until(lambda: Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()).split()[0])

    def caught(self, process: subprocess.Popen[str]) -> set[int]:
        """The signals that `rota` has a handler for; what it does not show otherwise can be ended by one only after that."""
        lines = Path(f"/proc/{self.pid(process)}/status").read_text().splitlines()
        mask = int(next(line for line in lines if line.startswith("SigCgt:")).split()[1], 16)
        return {number for number in range(1, 65) if mask >> (number - 1) & 1}

    def end(self, process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
        """Wait for its end; it may never have shown a traceback."""
        output, error = process.communicate(timeout=30)
        assert "Traceback" not in (error or ""), error
        return subprocess.CompletedProcess(process.args, process.returncode, output, error)

    def on_terminal(self, *arguments: str, code: int = 0, streams: tuple[str, ...] = ("stdout",), columns: int = 0) -> str:
        """Run it with these streams on a terminal, so many columns wide if it tells that, and return what that shows."""
        mine, other = pty.openpty()
        termios.tcsetwinsize(other, (24 if columns else 0, columns))
        process = self.start(*arguments, **dict.fromkeys(streams, other))
        os.close(other)
        shown = b""
        try:
            while part := os.read(mine, 65536):
                shown += part
        except OSError:  # Linux: the other side is closed
            pass
        os.close(mine)
        assert self.end(process).returncode == code
        return shown.decode().replace("\r\n", "\n")

    def __call__(self, *arguments: str, env: dict[str, str | None] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return self.end(self.start(*arguments, env=env, **options))

    def shell(self, *options: str, script: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run ``rota run OPTIONS -- sh -c SCRIPT``."""
        return self("run", *options, "--", "sh", "-c", script, **more)

    def start_shell(self, *options: str, script: str, **more: Any) -> subprocess.Popen[str]:
        """Start ``rota run OPTIONS -- sh -c SCRIPT``."""
        return self.start("run", *options, "--", "sh", "-c", script, **more)

    def file(self, name: str) -> Path:
        """A file in the folder, which scripts find by its bare name."""
        return self.folder / name

    def said(self, name: str) -> list[str]:
        """The lines of a file, which may not be there yet."""
        try:
            return self.file(name).read_text().splitlines()
        except FileNotFoundError:
            return []

    def record(self, name: str) -> Record | None:
        """The record of a name as it is in the store."""
        driver = SqliteDriver(str(self.path))
        try:
            return driver.read(name, 5.0)[0]
        finally:
            driver.close()

    @contextlib.contextmanager
    def client(self) -> Iterator[rota.Client]:
        """A client of the same store."""
        with rota.connect(self.url) as client:
            yield client

    def make(self, url: str = "") -> None:
        """Make its store, or another, which has no names yet."""
        with rota.connect(url or self.url) as client:
            client.driver.read("job", 10.0)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep everybody else from writing to the store."""
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=10)
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield
        finally:
            connection.close()

    def close(self) -> None:
        """Leave nothing running."""
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(10)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """`rota`, with a store of its own."""
    made = Cli(tmp_path)
    yield made
    made.close()


# -- two sites, whose supervisors are at work beside the other tests (test_sites.py)


class Sites:
    """Supervisors, and all that they start, on wrong clocks, by libfaketime: see `beside.sites`.

    Attributes:
        skews: By how many seconds the clock of each site is ahead of the store's, for each name that they run.
        folder: Where they work.
    """

    skews, slots, period = beside.sites.SKEWS, beside.sites.SLOTS, beside.sites.PERIOD

    def __init__(self, folder: Path, library: str) -> None:
        self.folder = folder
        self._library = library

    def told(self, what: str, seconds: float) -> Any:
        """What they have written, once they have."""

        def found() -> bool:
            return (self.folder / what).exists()

        try:
            until(found, seconds)
        except AssertionError:
            raise AssertionError(f"no {what} within {seconds:g}s:\n{(self.folder / 'log').read_text()}") from None
        return json.loads((self.folder / what).read_text())

    def environment(self, skew: float) -> dict[str, str]:
        """Variables that give a process, and all that it starts, a clock that is ahead by so much."""
        return beside.sites.environment(self.folder, self._library, skew)


@pytest.fixture(scope="session", autouse=True)
def sites(request: pytest.FixtureRequest) -> Sites | None:
    """Begun with the first test of this folder; None without libfaketime, or where nobody looks at the outcome."""
    library = max(glob.glob("/usr/lib/*/faketime/libfaketime.so.1"), default=None)
    folder = library and beside.begin("sites", request, library)
    return Sites(folder, library) if folder else None


# -- the doctor, in this process: its start would take longer than what it does


@pytest.fixture
def examined(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, dict[str, dict[str, Any]]]]:
    """Run ``rota doctor URL --json``; return its exit code and its findings by their subjects."""

    monkeypatch.setattr(_doctor_look, "SLOW", 60.0)  # how busy this machine is is no finding

    def examine(url: str, *options: str) -> tuple[int, dict[str, dict[str, Any]]]:
        capfd.readouterr()
        code = main(["doctor", url, "--json", *options])
        shown = capfd.readouterr()
        assert "Traceback" not in shown.err
        found = [json.loads(line) for line in shown.out.splitlines()]
        assert len({one["subject"] for one in found}) == len(found), "a subject is spoken of twice"
        return code, {one["subject"]: one for one in found}

    return examine


# -- a place of a test's own on a real server


@pytest.fixture
def on_server(request: pytest.FixtureRequest) -> Callable[[str, str], str]:
    """Takes a kind of server and a word for what is tested; returns a URL with a prefix of its own."""

    def url(kind: str, word: str) -> str:
        prefix = f"prefix={word}-{os.urandom(4).hex()}"
        if kind == "redis":
            given = request.getfixturevalue("redis_url")
            return f"{given}{'&' if '?' in given else '?'}{prefix}"
        if kind == "etcd":
            return str(request.getfixturevalue("etcd").url(prefix))
        if kind == "zookeeper":
            return f"{request.getfixturevalue('conforming_zookeeper').url(f'/{word}')}?{prefix}"
        made: str = request.getfixturevalue("postgres").url(options=f"table={word}&{prefix}")
        with rota.connect(made) as client:
            client.driver.init(30.0)
        return made

    return url
