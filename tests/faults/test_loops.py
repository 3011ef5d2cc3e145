# SPDX-License-Identifier: MIT
"""One async client in several event loops, at once or one after the other, on every store. tests/redis has more of its kinds of servers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import rota
from kazoo.client import KazooClient
from rota import LeaseLost, Unavailable, _engine
from rota.backend import RELEASED, Override
from rota.duration import DAY

#: The longest that anything may take that is to come at once, seconds; a waiter that nobody wakes takes longer.
SOON = 20


@pytest.fixture
def loops(loop: Callable[[], Any]) -> list[Any]:
    """Two loops in threads of their own, which say so when one is used in the other's thread."""
    made = [loop(), loop()]
    for each in made:
        each.loop.set_debug(True)
    return made


@pytest.fixture
def waiters(request: pytest.FixtureRequest, store_url: str, client: Any, fresh_name: str) -> Iterator[Callable[[], object]]:
    """Whether somebody waits for the fresh name, as the store sees it; of SQLite, where all look for themselves, nobody can say."""
    kind = store_url.partition(":")[0]
    with contextlib.ExitStack() as stack:
        if kind == "redis":
            asked = stack.enter_context(redis.Redis.from_url(store_url))
            yield lambda: asked.info("clients")["blocked_clients"]
        elif kind == "zookeeper":
            kazoo = KazooClient(store_url.partition("//")[2])
            kazoo.start()
            stack.callback(kazoo.close)
            stack.callback(kazoo.stop)
            path = client.driver.verbs.path(fresh_name)
            yield lambda: kazoo.exists(path) and [place for place in kazoo.get_children(path) if place.startswith("w-")]
        elif kind == "postgresql":
            server = request.getfixturevalue("postgres")
            yield lambda: server.sql(f"SELECT waited = token FROM rota WHERE name = '{fresh_name}'") == "t"
        elif kind == "etcd":
            server = request.getfixturevalue("etcd")
            yield lambda: server.metric("etcd_debugging_mvcc_watcher_total")
        else:
            yield {"memory": lambda: client.driver.store.watchers, "sqlite": lambda: True}[kind]


@pytest.fixture
def client(store_url: str) -> rota.AsyncClient:
    """The one that all loops share."""
    return rota.connect_async(store_url, timeout=10)


@pytest.fixture(autouse=True)
def only_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters whom the store can wake don't look by themselves before the holder's lease may have ended, which is not soon."""
    for longest in ("LONGEST_WATCH", "LONGEST_IN_LINE"):
        monkeypatch.setattr(_engine, longest, 3600.0)


def ours() -> set[object]:
    """Return this process's sockets, and its threads of rota's."""
    found: set[object] = {thread for thread in threading.enumerate() if thread.name.startswith("rota")}
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {each for each in found if not isinstance(each, str) or each.startswith("socket:")}


@pytest.fixture
def nothing_left(store_url: str, waiters: Callable[[], object], loops: list[Any], until: Callable[..., Any]) -> Iterator[None]:
    """No connection and no thread is left of a client that was closed."""
    waiters()
    with rota.connect(store_url, timeout=10) as other:  # all of etcd's clients in a process ask for the time on one connection, which stays
        other.driver.now(10.0)
    gc.collect()
    before = ours()
    yield
    until(lambda: ours() <= before)


async def taken(client: rota.AsyncClient, name: str) -> int:
    """Take a lease and give it back; return its token."""
    grant = await client.try_lease(name, ttl="1m")
    assert grant
    await grant.release()
    return grant.token


async def several(client: rota.AsyncClient, name: str) -> list[int]:
    """As `taken`, of several at once, so that there are several connections, and again."""
    return [token for _ in range(3) for token in await asyncio.gather(*(taken(client, f"{name}/{number}") for number in range(3)))]


def is_renewed(grant: rota.AsyncGrant, until: Callable[..., Any]) -> bool:
    """Wait for a renewal, which moves the deadline by a heartbeat or so."""
    deadline = time.monotonic() + grant.remaining()
    return until(lambda: time.monotonic() + grant.remaining() > deadline + 0.1)


@pytest.mark.usefixtures("nothing_left")
def test_one_loop_after_the_other(store_url: str, fresh_name: str, waiters: Any, until: Any) -> None:
    """As by asyncio.run for each task. What was granted in one is held after its end, and given back in the next; who waited is gone."""
    client = rota.connect_async(store_url, timeout="500ms")  # as long as closing tries to finish the waiter's claim (L7)

    async def first() -> rota.AsyncGrant:
        grant = await client.try_lease(fresh_name, ttl="30s", heartbeat="200ms", timeout=10)
        asyncio.create_task(client.try_lease(fresh_name, ttl="1m", wait="50s", timeout=10))  # noqa: RUF006 - the loop's end cancels it
        await asyncio.to_thread(until, waiters)
        return grant

    async def second(grant: rota.AsyncGrant) -> int:
        grant.check()
        await grant.release()
        later = await client.try_lease(fresh_name, ttl="1m", timeout=10)
        await later.release()
        return later.token

    grant = asyncio.run(first())
    assert is_renewed(grant, until)
    assert asyncio.run(second(grant)) > grant.token
    asyncio.run(client.close())


@pytest.mark.usefixtures("nothing_left")
def test_two_loops_at_once(client: rota.AsyncClient, loops: list[Any], fresh_name: str, waiters: Any, until: Any) -> None:
    """Each has its own claims; all are renewed; what one gives back the other has at once, and may give back in its turn."""
    first, second = loops
    running = [loop.begin(several(client, f"{fresh_name}/{number}")) for number, loop in enumerate(loops)]
    assert [len(each.result(SOON)) for each in running] == [9, 9]

    for number, (loop, other) in enumerate([(first, second), (second, first)]):
        grant = loop.run(client.try_lease(f"{fresh_name}/renewed/{number}", ttl="30s", heartbeat="200ms"))
        assert is_renewed(grant, until)
        other.run(grant.release())

    holder = first.run(client.try_lease(fresh_name, ttl="1m"))
    for loop, other in [(second, first), (first, second)]:
        waiting = loop.begin(client.try_lease(fresh_name, ttl="1m", wait="50s"))
        until(waiters)
        other.run(holder.release())
        later = waiting.result(SOON)
        assert later.token > holder.token
        holder = later
    first.run(client.close())


@pytest.mark.usefixtures("nothing_left")
def test_a_loss_is_told_in_the_loop_of_its_holder(client: rota.AsyncClient, loops: list[Any], fresh_name: str) -> None:
    """L6: to its function and to its body."""
    told: dict[str, object] = {}

    async def hold(name: str, begun: threading.Event) -> None:
        def lost(grant: rota.AsyncGrant) -> None:
            told[grant.name] = asyncio.get_running_loop()

        with pytest.raises(LeaseLost, match="not held any more"):
            async with client.lease(name, ttl="30s", heartbeat="200ms", on_lost=lost):
                begun.set()
                await asyncio.get_running_loop().create_future()

    begun = [threading.Event() for _ in loops]
    running = [loop.begin(hold(f"{fresh_name}/{number}", begun[number])) for number, loop in enumerate(loops)]
    for number, each in enumerate(running):
        assert begun[number].wait(SOON)
        client.driver.override(Override(f"{fresh_name}/{number}", RELEASED, "operator", 30 * DAY), 10.0)
        each.result(SOON)
    assert told == {f"{fresh_name}/{number}": loop.loop for number, loop in enumerate(loops)}
    loops[1].run(client.close())


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("closer", ["the holder's", "the other's", "a third one"])
def test_closing_ends_what_every_loop_has(
    client: rota.AsyncClient, loops: list[Any], closer: str, fresh_name: str, waiters: Any, until: Any
) -> None:
    """Who waits is told at once, in whichever loop; so is who holds, and who calls afterwards."""
    first, second = loops
    for loop in loops:
        loop.run(several(client, f"{fresh_name}/several"))  # idle connections
    holder = first.run(client.try_lease(fresh_name, ttl="1m"))
    waiting = [first.begin(client.try_lease(fresh_name, ttl="1m", wait="50s"))]
    until(waiters)
    waiting.append(second.begin(client.try_lease(fresh_name, ttl="1m", wait="50s")))
    if closer == "a third one":
        asyncio.run(client.close())
    else:
        loops[closer == "the other's"].run(client.close())
    for each in waiting:
        with pytest.raises(Unavailable, match="closed"):
            each.result(SOON)
    assert holder.lost
    for loop in loops:
        with pytest.raises(Unavailable, match="the client is closed"):
            loop.run(taken(client, fresh_name))
        loop.run(client.close())


@pytest.mark.usefixtures("nothing_left")
def test_closing_when_the_loop_has_ended(store_url: str, fresh_name: str) -> None:
    client = rota.connect_async(store_url, timeout=10)
    asyncio.run(several(client, fresh_name))
    asyncio.run(client.close())
    with pytest.raises(Unavailable, match="the client is closed"):
        asyncio.run(taken(client, fresh_name))


def test_closing_when_the_loop_was_closed_beneath_a_waiter(
    store_url: str, fresh_name: str, waiters: Any, until: Any, caplog: Any, nothing_left: None
) -> None:
    """Nobody cancelled it, and nobody can be told: all that it had is closed with the client."""
    client = rota.connect_async(store_url, timeout="500ms")
    kept = []

    async def first() -> None:
        await several(client, f"{fresh_name}/several")
        assert await client.try_lease(fresh_name, ttl="1m", timeout=10)
        kept.append(asyncio.create_task(client.try_lease(fresh_name, ttl="1m", wait="50s", timeout=10)))
        await asyncio.to_thread(until, waiters)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(first())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    asyncio.run(client.close())
    with pytest.raises(Unavailable, match="the client is closed"):
        asyncio.run(taken(client, fresh_name))
    with caplog.at_level("CRITICAL", "asyncio"):  # which says what we did to the task
        kept.clear()
        gc.collect()
