# SPDX-License-Identifier: MIT
"""Threads and tasks: as few for 300 leases as for one, none after `close`, none that outlives its call (L8, L11)."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from typing import Any

import pytest
import rota
from rota import Every, LeaseLost, Unavailable, Unrecorded

on_loop = pytest.mark.parametrize("face", ["async"], indirect=True)
LEASES = 300


@pytest.fixture
def mine() -> Any:
    """The rota threads that this test made."""
    before = set(threading.enumerate())
    return lambda: sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("rota") and thread not in before)


def test_three_hundred_leases_need_as_many_threads_as_a_few(world: Any, mine: Any) -> None:
    """L11: one heartbeat, one watchdog; and 300 renewals are one call."""
    client = world.client()
    grants = [client.try_lease(f"{world.name}-{number}", ttl=60, on_lost=print) for number in range(20)]
    few = mine()
    grants += [client.try_lease(f"{world.name}-{number}", ttl=60, on_lost=print) for number in range(20, LEASES)]
    assert all(grants)
    assert [name for name in mine() if not name.startswith("rota-io")] == [name for name in few if not name.startswith("rota-io")]
    assert len(mine()) <= 2 + 16
    world.clock.advance(20)
    world.clock.beat()
    assert client.driver.count("renew") == 1
    assert len(next(call[1] for call in client.driver.calls if call[0] == "renew")) == LEASES
    assert not any(grant.lost for grant in grants)
    client.close()
    world.until(lambda: mine() == [])
    assert all(grant.lost for grant in grants)


def test_closing_ends_every_thread_whatever_is_going_on(live: Any, mine: Any) -> None:
    """L8: leases held, one listened to, one going on degraded, a success unrecorded, a waiter waiting."""
    client, other = live.client(timeout=0.2), live.client()
    other.try_lease(live.name + "-busy", ttl=60)
    held = client.try_lease(live.name, ttl=60)
    client.try_lease(live.name + "-told", ttl=60, on_lost=lambda grant: None)
    client.try_lease(live.name + "-goes-on", ttl=60, on_lost="continue").__enter__()
    done = client.try_window(live.name + "-done", Every("1h"), ttl=60, on_lost=lambda grant: None)
    waited: list[Any] = []

    def wait() -> None:
        try:
            client.try_lease(live.name + "-busy", wait=60)
        except Unavailable as error:
            waited.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    live.until(lambda: client.driver.count("claim") >= 5)
    client.driver.away()
    with pytest.raises(Unrecorded):
        done.handled()
    degraded = client.try_lease(live.name + "-degraded", ttl=60, max_hold=60, on_unavailable="run")
    degraded.__enter__()
    client.close()
    other.close()
    live.until(lambda: mine() == [], 8)
    assert held.lost
    waiter.join(10)
    assert len(waited) == 1
    with pytest.raises(Unavailable, match="closed"):
        client.try_lease(live.name)


@on_loop
def test_a_degraded_body_leaves_no_watchdog(world: Any, mine: Any) -> None:
    """F2, L11: a body without a lease is not looked after for ever."""

    async def main() -> None:
        client = world.async_client()
        client.driver.away()
        for number in range(3):
            async with client.lease(f"{world.name}-{number}", on_unavailable="run", max_hold=60):
                pass
            async with client.lease(f"{world.name}-{number}", on_unavailable="run"):
                pass
        assert client._engine.watchdog._watched == {}
        client.driver.back()
        await client.close()

    asyncio.run(main())
    world.until(lambda: mine() == [])


@on_loop
def test_no_task_outlives_its_call(live: Any, mine: Any) -> None:
    """L8: after wins, losses, refusals, waits and cancellations only the test's own task is left."""

    async def main() -> None:
        client, other = live.async_client(), live.async_client()
        async with client.lease(live.name) as grant:
            assert not await other.try_lease(live.name, wait=0.05)
            task = asyncio.create_task(other.try_lease(live.name, wait=30))
            await asyncio.sleep(0.02)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            grant.check()
        with pytest.raises(LeaseLost):
            async with client.lease(live.name + "-short", ttl=0.6, max_hold=0.1):
                await asyncio.sleep(10)
        async with client.window(live.name + "-window", Every("1h")):
            pass
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await client.close()
        await other.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    live.until(lambda: mine() == [])


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
@pytest.mark.by_the_clock
def test_a_lease_won_at_the_moment_the_heartbeat_looks_is_renewed(live: Any) -> None:
    """L11: it had just found nothing to do, and goes to sleep for good."""
    client = live.client()
    grant = client.try_lease(live.name)
    heartbeat = client._engine.heartbeat
    live.until(lambda: 0 < heartbeat._wakes_at < live.EVER)  # it is asleep
    grant.release()
    looks, won, grants = heartbeat._due, threading.Event(), []

    def due(now: float) -> Any:
        found = looks(now)
        if not won.is_set():
            won.set()
            thread = threading.Thread(target=lambda: grants.append(client.try_lease(live.name, ttl=0.6)))
            thread.start()
            thread.join(0.1)
        return found

    heartbeat._due = due
    heartbeat.wake()
    live.until(lambda: won.is_set() and live.read().owner)
    first = live.read()
    live.until(lambda: live.read().expires_at > first.expires_at, 2)
    assert live.read().token == first.token


def test_on_lost_is_not_called_for_a_body_that_has_ended(world: Any) -> None:
    """L6, F5: given back or done while the store was away: the deadline that passes later is nobody's business."""
    told: list[Any] = []
    client = world.client(timeout=0.5)
    released = client.try_lease(world.name, ttl=10, on_lost=told.append)
    done = client.try_window(world.name + "-window", Every("1h"), ttl=10, on_lost=told.append)
    canary = client.try_lease(world.name + "-canary", ttl=12, on_lost=lambda grant: told.append("canary"))
    client.driver.away(world.REFUSED._replace(then=lambda: world.clock.advance(0.1)))
    released.release()
    with pytest.raises(Unrecorded):
        done.handled()
    client.driver.away(world.REFUSED)
    world.clock.advance(12)
    world.until(lambda: told)
    assert canary.lost
    assert told == ["canary"]


def test_leases_that_come_while_garbage_is_collected_do_not_end_the_heartbeat() -> None:
    """L11: the collector may run in the middle of the heartbeat's look at its leases, and let another thread add one."""
    client = rota.connect(f"memory://{os.urandom(8).hex()}")
    grants = [client.try_lease(f"job-{number}") for number in range(500)]
    heartbeat = client._engine.heartbeat
    added = []

    def add(phase: str, _: object) -> None:
        if phase == "stop" and threading.current_thread() is threading.main_thread() and len(added) < 50:
            added.append(f"{len(added):032x}")
            heartbeat._held[added[-1]] = heartbeat._held[grants[0]._owner]

    thresholds = gc.get_threshold()
    gc.callbacks.append(add)
    gc.set_threshold(20)
    try:
        heartbeat._due(client._engine.clock())
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(add)
    assert added
    for owner in added:
        heartbeat._held.pop(owner)
    client.close()
