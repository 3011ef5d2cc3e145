# SPDX-License-Identifier: MIT
"""One async client in several event loops, one after the other or at once: the embedded stores (tests/redis has its own)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import rota


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/rota.db"


async def taken(client: rota.AsyncClient, name: str) -> int:
    grant = await client.try_lease(name, ttl="1m", timeout=10)
    assert grant
    await grant.release()
    return grant.token


def at_once(*mains: Callable[[], Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run each in a loop of a thread of its own, and return what each returns."""
    with ThreadPoolExecutor(len(mains)) as pool:
        return [running.result(60) for running in [pool.submit(asyncio.run, main()) for main in mains]]


def test_one_loop_after_the_other(url: str) -> None:
    """A grant of one is held, and given back by the next; who waited in it is gone (L8)."""
    client = rota.connect_async(url, timeout="500ms")

    async def first() -> rota.AsyncGrant:
        grant = await client.try_lease("held", ttl="1m", timeout=10)
        asyncio.create_task(client.try_lease("held", ttl="1m", wait="30s"))  # noqa: RUF006 - the end of the loop cancels it
        await asyncio.sleep(0.05)
        return grant

    async def second(grant: rota.AsyncGrant) -> int:
        grant.check()
        await grant.release()
        return await taken(client, "held")

    grant = asyncio.run(first())
    assert asyncio.run(second(grant)) > grant.token
    asyncio.run(client.close())
    with pytest.raises(rota.Unavailable, match="closed"):
        asyncio.run(taken(client, "held"))


def test_two_loops_at_once(url: str) -> None:
    """Each has what it asks for, and is woken when the other gives back what it waits for."""
    client = rota.connect_async(url, timeout=10)
    both = threading.Barrier(2)

    def of(who: int) -> Callable[[], Coroutine[Any, Any, list[int]]]:
        async def main() -> list[int]:
            tokens = []
            for number in range(5):
                both.wait(30)
                tokens += await asyncio.gather(*(taken(client, f"{who}/{number}/{each}") for each in range(3)))
            async with client.lease("shared", ttl="1m", wait="30s", timeout=10) as grant:
                tokens.append(grant.token)
            return tokens

        return main

    tokens = at_once(of(0), of(1))
    assert [len(each) for each in tokens] == [16, 16]
    asyncio.run(client.close())
