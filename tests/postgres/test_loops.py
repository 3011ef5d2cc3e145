# SPDX-License-Identifier: MIT
"""One async client in several event loops at once: a connection that listens belongs to one of them, and nobody waits for it in another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import rota
from servers import wait_until


def test_waiters_in_two_loops_both_hear_of_a_release(prepared: Any, connect: Callable[..., rota.Client], name: str) -> None:
    """A waiter that another loop tells never wakes."""
    client, holder = rota.connect_async(prepared.url(), timeout=10), connect()
    for turn in range(3):
        grants = [holder.try_lease(f"{name}/{turn}/{who}", ttl="1m") for who in (0, 1)]
        waits: list[int] = []

        async def wait(who: int, turn: int = turn, waits: list[int] = waits) -> int:
            waits.append(who)
            grant = await asyncio.wait_for(client.try_lease(f"{name}/{turn}/{who}", ttl="1m", wait="30s", timeout=10), 20)
            await asyncio.sleep(0.05)
            await grant.release()
            return grant.token

        with ThreadPoolExecutor(2) as pool:
            running = [pool.submit(lambda who=who: asyncio.run(wait(who), debug=True)) for who in (0, 1)]
            wait_until(lambda waits=waits: len(waits) == 2, 15)
            for grant in grants:
                grant.release()
            assert all(each.result(40) > grant.token for each, grant in zip(running, grants, strict=True))
    asyncio.run(client.close())
