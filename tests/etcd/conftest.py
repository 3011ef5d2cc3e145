# SPDX-License-Identifier: MIT
"""What the tests of etcd share: drivers, clients, requests."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import rota
from rota.backend import LEASE, WINDOW, Claim
from rota.duration import DAY, HOUR, SECOND
from rota.errors import Unavailable
from rota_etcd import EtcdBackend, EtcdDriver

#: The timeout of a client of tests that are not about time, seconds: a machine that stands still for a while is no outage.
PATIENCE = 10


@pytest.fixture
def name() -> str:
    """A name that nobody has used."""
    return f"n-{os.urandom(6).hex()}"


@pytest.fixture
def driver_for() -> Iterator[Callable[[str], EtcdDriver]]:
    """Make a driver for a URL; it is closed with the test."""
    made: list[EtcdDriver] = []

    def make(url: str) -> EtcdDriver:
        made.append(EtcdBackend().driver(rota.url.parse(url)))
        return made[-1]

    yield make
    for driver in made:
        driver.close()


@pytest.fixture
def connect() -> Iterator[Callable[..., rota.Client]]:
    """Connect a client; it is closed with the test."""
    made: list[rota.Client] = []

    def make(url: object, **options: object) -> rota.Client:
        made.append(rota.connect(url, **{"timeout": PATIENCE, **options}))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def lease() -> Callable[..., Claim]:
    """Make a claim for a lease, by a fresh owner."""

    def make(name: str, ttl: float = 30, **changes: object) -> Claim:
        owner = os.urandom(16).hex()
        return Claim(name, owner, "test", LEASE, int(ttl * SECOND), 2**62, 30 * DAY)._replace(**changes)

    return make


@pytest.fixture
def slot(lease: Callable[..., Claim]) -> Callable[..., Claim]:
    """Make a claim for a slot of an hour that begins at a store's time."""

    def make(name: str, start: int, **changes: object) -> Claim:
        return lease(name, kind=WINDOW, schedule="every 1h", slot_start=start, slot_end=start + HOUR, not_before=start)._replace(**changes)

    return make


@pytest.fixture
def requests_of() -> Callable[[EtcdDriver], Counter[str]]:
    """Count what a driver sends from here on, by the names of the messages."""

    def count(driver: EtcdDriver) -> Counter[str]:
        sent, stub = Counter[str](), driver.link._stub

        def counted(at: int, kind: type[Any]) -> Any:
            sent["TxnRequest" if kind is bytes else kind.DESCRIPTOR.name] += 1
            return stub(at, kind)

        driver.link._stub = counted
        return sent

    return count


@pytest.fixture
def is_answered() -> Callable[[EtcdDriver], bool]:
    """Whether a driver has an answer of its store."""

    def ask(driver: EtcdDriver) -> bool:
        try:
            return driver.read("x", 1.0) is not None
        except Unavailable:
            return False

    return ask
