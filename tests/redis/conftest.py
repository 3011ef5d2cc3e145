# SPDX-License-Identifier: MIT
"""Servers that a test has for itself, clients, and names."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import rota
import servers
from rota import _engine
from rota.url import parse
from rota_redis import RedisBackend, RedisDriver

#: The timeout of a client of tests that are not about time, seconds: a machine that stands still for a while is no outage.
PATIENCE = 10


@pytest.fixture
def start() -> Iterator[Callable[..., servers.Redis]]:
    """Start a server for one test alone."""
    started = []

    def start(**settings: Any) -> servers.Redis:
        started.append(servers.Redis(**settings))
        return started[-1].start()

    yield start
    for server in reversed(started):
        server.remove()


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return f"test/{uuid.uuid4().hex}"


@pytest.fixture
def names(name: str) -> Iterator[str]:
    """Many of them."""
    return (f"{name}/{number}" for number in itertools.count())


@pytest.fixture
def connect() -> Iterator[Callable[..., rota.Client]]:
    """`rota.connect`, closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda url, **options: stack.enter_context(rota.connect(url, **{"timeout": PATIENCE, **options}))


@pytest.fixture
def driver_for() -> Iterator[Callable[[str], RedisDriver]]:
    """A driver, closed after the test."""
    made = []

    def driver_for(url: str) -> RedisDriver:
        made.append(RedisBackend().driver(parse(url)))
        return made[-1]

    yield driver_for
    for driver in made:
        driver.close()


class Face:
    """Either face of rota behind blocking calls: the async one runs on a loop of its own."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._runner = asyncio.Runner() if kind == "async" else None
        self._clients: list[Any] = []

    def connect(self, url: Any, **options: Any) -> Any:
        self._clients.append((rota.connect if self.kind == "blocking" else rota.connect_async)(url, **options))
        return self._clients[-1]

    def do(self, result: Any) -> Any:
        """Return a call's result, awaited where that must be."""
        if inspect.isawaitable(result):
            return self._runner.run(_as_coroutine(result))
        return result

    def attempt(self, call: Callable[[], Any]) -> Any:
        """Return a call's result; None where the store was unavailable, the only error that a caller may see of a store that is away."""
        try:
            return self.do(call())
        except rota.Unavailable:
            return None

    def verdict(self, call: Callable[[], Any]) -> str | None:
        """Return a claim's verdict in a word; None where the store was unavailable."""
        result = self.attempt(call)
        return None if result is None else "won" if result else result.verdict

    def close(self) -> None:
        for client in self._clients:
            self.do(client.close())
        if self._runner is not None:
            self._runner.close()


async def _as_coroutine(awaitable: Any) -> Any:
    return await awaitable


@pytest.fixture(params=["blocking", "async"])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    """Both faces."""
    face = Face(request.param)
    yield face
    face.close()


@pytest.fixture
def faces() -> Iterator[list[Face]]:
    """Both at once, for what takes long."""
    faces = [Face("blocking"), Face("async")]
    yield faces
    for face in faces:
        face.close()


@pytest.fixture
def only_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters never look by themselves, so who gets what is released meanwhile was woken."""
    for longest in ("LONGEST_WATCH", "LONGEST_IN_LINE"):
        monkeypatch.setattr(_engine, longest, 3600.0)


@pytest.fixture
def until() -> Callable[..., Any]:
    """Wait until a condition holds and return its value; fail when it never does."""

    def until(condition: Callable[[], Any], seconds: float = 15.0) -> Any:
        return servers.wait_until(condition, seconds)

    return until


@pytest.fixture
def waiters(redis_url: str) -> Iterator[Callable[[], int]]:
    """How many stand in line, as the server sees it."""
    with redis.Redis.from_url(redis_url.partition("?")[0]) as asked:
        yield lambda: asked.info("clients")["blocked_clients"]
