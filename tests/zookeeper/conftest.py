# SPDX-License-Identifier: MIT
"""Servers, clients and names for the tests of this folder."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import rota
from kazoo.client import KazooClient
from rota.backend import LEASE, WON, Claim, Record
from rota.duration import DAY, SECOND
from rota.url import parse
from rota_zookeeper import ZookeeperBackend, ZookeeperDriver
from servers import HOST, ZooKeeper, wait_until

#: The timeout of a client of tests that are not about time, seconds: a machine that stands still for a while is no outage.
PATIENCE = 10


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeper]:
    """A server of the module's own."""
    with ZooKeeper() as server:
        yield server


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return f"test/{os.urandom(6).hex()}"


@pytest.fixture
def connect() -> Iterator[Callable[..., rota.Client]]:
    """`rota.connect`, closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda url, **options: stack.enter_context(rota.connect(url, **{"timeout": PATIENCE, **options}))


@pytest.fixture
def driver_for() -> Iterator[Callable[[str], ZookeeperDriver]]:
    """A driver, closed after the test."""
    made: list[ZookeeperDriver] = []

    def driver_for(url: str) -> ZookeeperDriver:
        made.append(ZookeeperBackend().driver(parse(url)))
        return made[-1]

    yield driver_for
    for driver in made:
        driver.close()


@pytest.fixture
def kazoo() -> Iterator[Callable[..., KazooClient]]:
    """The tests' own client, so that what is tested does not test itself."""
    made: list[KazooClient] = []

    def kazoo(server: ZooKeeper, **options: Any) -> KazooClient:
        made.append(KazooClient(f"{HOST}:{server.port}", **options))
        made[-1].start()
        return made[-1]

    yield kazoo
    for client in made:
        client.stop()
        client.close()


@pytest.fixture
def driver(server: ZooKeeper, driver_for: Callable[[str], ZookeeperDriver]) -> ZookeeperDriver:
    """One client's driver."""
    return driver_for(server.url("/drivers"))


@pytest.fixture
def other(server: ZooKeeper, driver_for: Callable[[str], ZookeeperDriver]) -> ZookeeperDriver:
    """Another client's."""
    return driver_for(server.url("/drivers"))


@pytest.fixture
def claim_of() -> Callable[..., Claim]:
    """Return a claim for a lease, by a fresh owner."""

    def claim_of(driver: ZookeeperDriver, name: str, ttl: int = 3600 * SECOND, **changes: Any) -> Claim:
        now = driver.now(5.0)[0]
        return Claim(name, os.urandom(16).hex(), "test", LEASE, ttl, now + 3600 * SECOND, 30 * DAY)._replace(**changes)

    return claim_of


@pytest.fixture
def win() -> Callable[[ZookeeperDriver, Claim], Record]:
    """Claim, which must be won; return the record."""

    def win(driver: ZookeeperDriver, claim: Claim) -> Record:
        answer = driver.claim(claim, 10.0)
        assert answer.verdict == WON
        return answer.record

    return win


@pytest.fixture
def answers() -> Callable[[ZookeeperDriver, str], bool]:
    """Whether the store answers."""

    def answers(driver: ZookeeperDriver, name: str) -> bool:
        try:
            driver.read(name, 1.0)
        except rota.Unavailable:
            return False
        return True

    return answers


@pytest.fixture
def interrupt() -> Callable[[ZookeeperDriver, Any], None]:
    """Let kazoo believe that its connection broke, or its session expired, as its own tests do."""

    def interrupt(driver: ZookeeperDriver, how: Any) -> None:
        client = driver.verbs.link._client
        client._queue.append((how, None))
        client._connection._write_sock.send(b"\0")

    return interrupt


@pytest.fixture
def until() -> Callable[..., Any]:
    """Wait until a condition holds and return its value; fail when it never does."""

    def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
        return wait_until(condition, seconds)

    return until


@pytest.fixture
def program() -> Callable[..., str]:
    """Run a Python program in a process of its own; return what it printed."""

    def program(text: str, *arguments: str, seconds: float = 60.0) -> str:
        command = [sys.executable, "-c", text, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        assert result.returncode == 0, f"ended with {result.returncode}:\n{result.stdout}\n{result.stderr}"
        return result.stdout

    return program
