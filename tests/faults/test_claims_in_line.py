# SPDX-License-Identifier: MIT
"""A claim that stands in line at the store (`Driver.claim_when_free`): its deadline, and what becomes of it when it fails (L5, L7, L8)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import rota
from rota.backend import Answer, Claim, Settlement
from rota.duration import DAY, SECOND
from rota.memory import AsyncMemoryDriver, MemoryBackend, MemoryDriver, MemoryStore
from rota.testing.faulty import EVER, REFUSED, REPLY_LOST, REQUEST_LOST, Fault, FaultyDriver, FaultyTwin
from rota.url import Url

HOLDER = "1" * 32
VERBS = MemoryDriver.capabilities.verbs | {"claim_when_free"}


class InLine(MemoryDriver):
    """Waits and claims in one call, as a server that carries the claim out itself."""

    capabilities = MemoryDriver.capabilities._replace(verbs=VERBS)
    waits = True

    def claim_when_free(self, claim: Claim, owner: str, wait: float, timeout: float) -> Answer:
        if self.waits:
            self.watch(claim.name, owner, wait)
        return self.claim(claim, timeout)


class AsyncInLine(AsyncMemoryDriver):
    async def claim_when_free(self, claim: Claim, owner: str, wait: float, timeout: float) -> Answer:
        await self.watch(claim.name, owner, wait)
        return await self.claim(claim, timeout)


class Given(MemoryBackend):
    url = Url("memory", "", {}, "", "")

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.made = FaultyDriver(InLine(self.store))

    def driver(self, url: Url) -> FaultyDriver:
        return self.made

    def async_driver(self, driver: Any) -> FaultyTwin:
        return FaultyTwin(driver, AsyncInLine(self.made.inner))


@pytest.fixture
def given() -> Given:
    given = Given()
    assert given.made.inner.claim(Claim("job", HOLDER, "", "lease", 60 * SECOND, 2**60, DAY), 1.0).verdict == "won"
    return given


@pytest.fixture
def client(given: Given) -> Iterator[Any]:
    with rota.connect(given) as client:
        yield client


def release(given: Given) -> None:
    given.made.inner.settle(Settlement("job", HOLDER, "released", DAY), 1.0)


def test_who_waits_stands_in_line_and_wins_by_that_claim(given: Given, client: Any) -> None:
    threading.Timer(0.1, release, [given]).start()
    grant = client.try_lease("job", wait="20s")
    assert grant
    assert [call[0] for call in given.made.calls if "claim" in call[0]] == ["claim", "claim_when_free"]
    assert given.made.count("watch") == 0


@pytest.mark.by_the_clock
def test_the_deadline_counts_from_the_grant(given: Given, client: Any) -> None:
    """L5: neither from when it began to wait, which would be too early, nor from when the answer came."""
    given.made.away(REFUSED, "renew")
    given.made.once("claim_when_free", Fault(linger=0.5))
    threading.Timer(1.0, release, [given]).start()  # before the wait of 1.5 s ends, and more than a ttl before the answer
    grant = client.try_lease("job", ttl="1.4s", heartbeat="350ms", wait="20s")
    age = (given.made.inner.now(1.0)[0] - grant.record.granted_at) / SECOND
    assert age >= 0.5
    assert 0 < grant.remaining() <= 1.4 - 0.14 - age + 0.02


@pytest.mark.parametrize("fault", [REPLY_LOST, REQUEST_LOST], ids=["reply lost", "request lost"])
def test_what_became_of_it_is_asked_with_the_same_owner(given: Given, client: Any, fault: Any) -> None:
    """L7"""
    given.made.once("claim_when_free", fault)
    if fault is REPLY_LOST:
        threading.Timer(0.1, release, [given]).start()
        grant = client.try_lease("job", wait="20s")
        assert grant
    else:
        assert client.try_lease("job", wait="200ms").verdict == "busy"
    owners = [request.owner for verb, request, _ in given.made.calls if "claim" in verb]
    assert owners[1] == owners[2] != owners[0]


def test_a_store_that_went_away_meanwhile_is_unavailable(given: Given, client: Any) -> None:
    given.made.once("claim_when_free", REFUSED)
    with pytest.raises(rota.Unavailable) as caught:
        client.try_lease("job", wait="20s")
    assert not isinstance(caught.value, rota.OutcomeUnknown)


def test_a_driver_that_answers_at_once_is_not_asked_in_a_loop(given: Given, client: Any) -> None:
    given.made.inner.waits = False
    assert client.try_lease("job", wait="500ms").verdict == "busy"
    assert given.made.count("claim_when_free") <= 3
    threading.Timer(0.1, release, [given]).start()
    assert client.try_lease("job", wait="20s"), "it watches instead"


def test_who_is_cancelled_in_line_holds_nothing(given: Given) -> None:
    """L8: what is granted to it nevertheless is given back."""

    def owner() -> str:
        return given.made.inner.read("job", 1.0)[0].owner

    async def main() -> None:
        async with rota.connect_async(given) as client:
            given.made.once("claim_when_free", Fault(linger=EVER))  # granted, and never heard of
            task = asyncio.create_task(client.try_lease("job", ttl="10m", wait="20s"))
            while not given.made.count("claim_when_free"):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
            release(given)
            while owner() in ("", HOLDER):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while owner():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert given.made.inner.read("job", 1.0)[0].last_result == "unused"

    asyncio.run(asyncio.wait_for(main(), 30))
