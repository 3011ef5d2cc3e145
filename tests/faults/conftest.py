# SPDX-License-Identifier: MIT
"""Worlds for tests: a real store whose clock and answers a test decides, and clients of either face over it.

`world` has clocks that only move when the test moves them; `live` has the real ones. Both come once per store and face; a test of one
face alone says so with ``@pytest.mark.parametrize("face", ["blocking"], indirect=True)``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import rota
from rota._clock import monotonic, wall_clock
from rota._io import BlockingIo, NativeIo, ThreadedIo
from rota.backend import (
    Driver,
    Record,
)
from rota.client import AsyncClient, Client, _on_loop
from rota.grant import AsyncGrant, Grant
from rota.memory import AsyncMemoryDriver, MemoryDriver, MemoryStore
from rota.sqlite import SqliteDriver
from rota.testing.faulty import EVER, HUNG, REFUSED, REPLY_LOST, REQUEST_LOST, STUCK, Fault, FaultyDriver, FaultyTwin
from servers import read_line

_numbers = itertools.count(1)


def us(text: str) -> int:
    """Microseconds since the epoch of an ISO text with a zone."""
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Wait until the condition holds and return its value; fail when it never does."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g}s: {inspect.getsource(condition).strip()}"
        time.sleep(0.002)
    return value


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Any]:
    """`until`, with more time: servers are slower than what is embedded."""
    return lambda condition: until(condition, 20.0)


async def reached(condition: Callable[[], Any]) -> None:
    """As `until`, for a test that runs on a loop."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, f"not within 10s: {inspect.getsource(condition).strip()}"
        await asyncio.sleep(0.005)


# -- clocks


class RealClock:
    """This host's clocks."""

    store = staticmethod(wall_clock)
    local = staticmethod(monotonic)


class MovedClock:
    """The store's clock and the local one, moved together and by the test alone, unless it says otherwise."""

    def __init__(self) -> None:
        self.base = us("2020-01-01T00:00:00Z")
        self.passed = 0
        self.leap = 0.0
        self.engines: list[Any] = []

    def store(self) -> int:
        """The store's clock, microseconds."""
        return self.base + self.passed

    def local(self) -> float:
        """The clients' clock, seconds."""
        return 1000.0 + self.leap + self.passed / 1e6

    def set(self, at: str) -> None:
        """Move to this store time."""
        assert us(at) >= self.store(), "clocks go forward"
        self.passed = us(at) - self.base

    def advance(self, seconds: float) -> None:
        """Move on in one leap, as after a suspend: no heartbeat comes in between."""
        self.passed += round(seconds * 1e6)

    def run(self, seconds: float, step: float) -> None:
        """Move on in steps, and let every heartbeat that falls due take place in each."""
        end = self.passed + round(seconds * 1e6)
        while self.passed < end:
            self.passed = min(end, self.passed + round(step * 1e6))
            self.beat()

    def beat(self) -> None:
        """Let the heartbeats that are due take place: their threads look once a second of real time, which is too long for a test."""
        for engine in self.engines:
            heartbeat = engine.heartbeat
            if any(grant._due <= self.local() for grant in heartbeat.held()):
                heartbeat.wake()
                until(lambda heartbeat=heartbeat: not any(grant._due <= self.local() for grant in heartbeat.held()))


# -- the async face, driven from a test without a loop of its own


class Loop:
    """An event loop on a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test-loop", daemon=True)
        self._thread.start()

    def begin(self, coroutine: Any) -> Future[Any]:
        """Begin to run a coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine to its end."""
        return self.begin(coroutine).result(30)

    def close(self) -> None:
        """End the loop; no task may be left."""
        self.run(asyncio.sleep(0))
        left = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        assert not left, f"tasks left: {left}"


class OnLoop:
    """An object of the async face whose coroutines run to their end on a loop; with it, a test is written once for both faces."""

    def __init__(self, loop: Loop, target: Any) -> None:
        self.on_loop = loop
        self.target = target

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.target, name)
        if inspect.iscoroutinefunction(attribute):
            return lambda *args, **options: self._wrap(self.on_loop.run(attribute(*args, **options)))
        if name in ("lease", "window", "once"):
            return lambda *args, **options: OnLoop(self.on_loop, attribute(*args, **options))
        return attribute

    def _wrap(self, value: Any) -> Any:
        return OnLoop(self.on_loop, value) if isinstance(value, AsyncGrant) else value

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def body(*args: Any, **options: Any) -> Any:
            return function(*args, **options)

        guarded = self.target(body)
        return lambda *args, **options: self.on_loop.run(guarded(*args, **options))

    def __enter__(self) -> Any:
        return self._wrap(self.on_loop.run(self.target.__aenter__()))

    def __exit__(self, *error: Any) -> None:
        self.on_loop.run(self.target.__aexit__(*error))


@pytest.fixture
def loop() -> Iterator[Callable[[], Loop]]:
    """Make a loop on a thread; no task may be left on it when the test ends."""
    made: list[Loop] = []

    def make() -> Loop:
        made.append(Loop())
        return made[-1]

    yield make
    for each in made:
        each.close()


# -- worlds


class World:
    """One store, and clients of one face over it.

    Attributes:
        kind: ``memory`` or ``sqlite``.
        face: ``blocking`` or ``async``.
        clock: The clocks of the store and of the clients.
        name: A fresh name.
        url: Another process's way to the store (sqlite).
    """

    us = staticmethod(us)
    until = staticmethod(until)
    reached = staticmethod(reached)
    Fault, EVER = Fault, EVER
    REFUSED, REQUEST_LOST, REPLY_LOST, STUCK, HUNG = REFUSED, REQUEST_LOST, REPLY_LOST, STUCK, HUNG
    FaultyDriver = FaultyDriver

    def __init__(self, kind: str, face: str, folder: Path, clock: Any) -> None:
        self.kind = kind
        self.face = face
        self.clock = clock
        self.name = f"job-{next(_numbers)}"
        self.path = str(folder / "rota.db")
        self.url = f"sqlite://{self.path}"
        self.memory = MemoryStore(clock=clock.store)
        self.loop = Loop() if face == "async" else None
        self._clients: list[Any] = []

    def driver(self) -> Driver:
        """A new plain driver of the store."""
        return MemoryDriver(self.memory) if self.kind == "memory" else SqliteDriver(self.path, clock=self.clock.store)

    def client(self, *, timeout: float | str = 1.5, retention: str = "30d", site: str = "") -> Any:
        """A new client; its `driver` is a `FaultyDriver`. On the async face its coroutines are run for the test."""
        if self.face == "async":
            client: Any = OnLoop(self.loop, self.async_client(timeout=timeout, retention=retention, site=site))
        else:
            driver = FaultyDriver(self.driver())
            client = Client(
                driver, BlockingIo(driver), Grant, prefix="", site=site, timeout=timeout, retention=retention, clock=self.clock.local
            )
            self._note(client)
        self._clients.append(client)
        return client

    def async_client(self, *, timeout: float | str = 1.5, retention: str = "30d", site: str = "") -> AsyncClient:
        """A new client of the async face, for a test that has a loop of its own and closes it."""
        inner = self.driver()
        driver = FaultyDriver(inner)
        twin = FaultyTwin(driver, AsyncMemoryDriver(inner)) if isinstance(inner, MemoryDriver) else None
        io = ThreadedIo(driver) if twin is None else NativeIo(twin)
        client = AsyncClient(driver, io, AsyncGrant, prefix="", site=site, timeout=timeout, retention=retention, clock=self.clock.local)
        client._twin = twin
        client._engine.wraps = _on_loop
        self._note(client)
        return client

    def _note(self, client: Any) -> None:
        if isinstance(self.clock, MovedClock):
            self.clock.engines.append(client._engine)

    def read(self, name: str = "") -> Record | None:
        """The record as the store has it, past every fault."""
        driver = self.driver()
        try:
            return driver.read(name or self.name, 5.0)[0]
        finally:
            driver.close()

    def close(self) -> None:
        if isinstance(self.clock, MovedClock):
            self.clock.advance(3600)  # whatever is waited for by these clocks is over, so that closing waits for nothing
        for client in self._clients:
            client.driver.back()
            client.close()
        if self.loop is not None:
            self.loop.close()


@pytest.fixture(params=["memory", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["blocking", "async"])
def face(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def world(kind: str, face: str, tmp_path: Path) -> Iterator[World]:
    """A store and clients whose clocks the test moves."""
    made = World(kind, face, tmp_path, MovedClock())
    yield made
    made.close()


@pytest.fixture
def live(kind: str, face: str, tmp_path: Path) -> Iterator[World]:
    """A store and clients with the real clocks."""
    made = World(kind, face, tmp_path, RealClock())
    yield made
    made.close()


# -- every store

STORES = ("memory", "sqlite", "postgres", "redis", "zookeeper", "etcd")


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store of each kind."""
    if request.param == "memory":
        return f"memory://{os.urandom(6).hex()}"
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/rota.db"
    if request.param == "redis":
        return request.getfixturevalue("redis_url")
    url = request.getfixturevalue({"zookeeper": "conforming_zookeeper"}.get(request.param, request.param)).url()
    if request.param == "postgres":
        with rota.connect(url, timeout=10) as client:
            client.driver.init(10.0)
    return url


@pytest.fixture
def fresh_name() -> str:
    """A name that nobody has used, on servers that others use, too."""
    return f"faults/{os.urandom(6).hex()}"


# -- other processes


class Program:
    """A Python program in a process of its own, spoken to by lines."""

    def __init__(self, text: str, *arguments: str) -> None:
        core = str(Path(rota.__file__).parents[1])
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [core, os.environ.get("PYTHONPATH", "")]))}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error:::rota", "-c", text, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.pid = self.process.pid

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        line = read_line(self.process.stdout)
        if not line:
            self.end()
            raise AssertionError("the program ended without another line")
        return line.strip()

    def tell(self, line: str = "") -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self, seconds: float = 30.0) -> str:
        """Wait for its good end; return what else it printed."""
        out, err = self.process.communicate(timeout=seconds)
        assert self.process.returncode == 0, f"exit code {self.process.returncode}\n{out}\n{err}"
        return out


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    """Start a program; it is killed when the test ends."""
    started: list[Program] = []

    def start(text: str, *arguments: str) -> Program:
        started.append(Program(text, *arguments))
        return started[-1]

    yield start
    for one in started:
        with contextlib.suppress(ProcessLookupError):
            one.process.kill()
        one.process.communicate()
