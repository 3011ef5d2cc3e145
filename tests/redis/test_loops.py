# SPDX-License-Identifier: MIT
"""One async client in several event loops, one after the other or at once: each has connections of its own, and none is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import rota
from rota import _engine
from rota.errors import Unavailable


@pytest.fixture(params=["single", "tls", "sentinel", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    """A store of each kind; each goes its own way to its servers."""
    if request.param == "tls":
        server = request.getfixturevalue("start")(password="pw", tls=True)
        return f"rediss://:pw@localhost:{server.port}?ssl_ca_certs={server.certificate}.crt"
    return request.getfixturevalue({"single": "redis_url"}.get(request.param, f"{request.param}_url"))


def sockets() -> set[str]:
    """Return this process's sockets."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {each for each in found if each.startswith("socket:")}


@pytest.fixture
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing is left open at the end, and nothing was found open by Python."""
    for each in {"url", "waiters"} & set(request.fixturenames):  # what they open is theirs
        found = request.getfixturevalue(each)
        if callable(found):
            found()
    gc.collect()
    before = sockets()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert not [str(warning.message) for warning in said]
    assert not sockets() - before


async def taken(client: rota.AsyncClient, name: str, timeout: float = 10) -> int:
    """Take a lease and give it back; return its token."""
    grant = await client.try_lease(name, ttl="1m", timeout=timeout)
    assert grant
    await grant.release()
    return grant.token


def in_turns(*mains: Callable[[], Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run each in a loop of a thread of its own, all at once, and return what each returns."""
    with ThreadPoolExecutor(len(mains)) as pool:
        return [running.result(60) for running in [pool.submit(asyncio.run, main()) for main in mains]]


@pytest.mark.usefixtures("nothing_left")
def test_one_loop_after_the_other(url: str, name: str) -> None:
    """As code that says asyncio.run for each task does. The connections of those that have ended don't pile up."""
    client = rota.connect_async(url, timeout=10)
    tokens, left = [], []
    for _ in range(4):
        tokens.append(asyncio.run(taken(client, name)))
        left.append(len(sockets()))
    asyncio.run(client.close())
    assert tokens == sorted(set(tokens))
    assert max(left[1:]) <= left[0]


@pytest.mark.usefixtures("nothing_left")
def test_two_loops_at_once(url: str, name: str) -> None:
    client = rota.connect_async(url, timeout=10)
    both = threading.Barrier(2)

    def of(who: int) -> Callable[[], Coroutine[Any, Any, list[int]]]:
        async def main() -> list[int]:
            tokens = []
            for _ in range(10):  # each finds what both have left
                both.wait(30)
                tokens += await asyncio.gather(*(taken(client, f"{name}/{who}/{number}") for number in range(3)))
            return tokens

        return main

    tokens = in_turns(of(0), of(1))
    assert [len(each) for each in tokens] == [30, 30]
    asyncio.run(client.close())


@pytest.mark.usefixtures("nothing_left")
def test_a_loop_that_is_not_running_keeps_its_connections(redis_url: str, name: str) -> None:
    """As loops that tests share do, which run now and then."""
    client = rota.connect_async(redis_url, timeout=10)
    with asyncio.Runner() as first, asyncio.Runner() as second:
        counts = []
        for runner in (first, second, first, second):
            runner.run(taken(client, name))
            counts.append(len(sockets()))
        assert counts[1:] == [counts[1]] * 3, "neither connects anew"
        second.run(client.close())
        with pytest.raises(Unavailable, match="closed"):
            first.run(taken(client, name))


@pytest.mark.usefixtures("nothing_left")
def test_a_loop_that_ends_leaves_a_grant_and_a_waiter(url: str, name: str) -> None:
    """What was granted in it is held, renewed and given back by the next one; who waited is gone (L8)."""
    client = rota.connect_async(url, timeout="500ms")  # as long as closing tries to finish the waiter's claim (L7)
    ended: list[BaseException] = []

    async def first() -> rota.AsyncGrant:
        grant = await client.try_lease(name, ttl="1m", timeout=10)
        asyncio.create_task(wait())  # noqa: RUF006 - nobody awaits it: the end of the loop cancels it
        await asyncio.sleep(0.1)
        return grant

    async def wait() -> None:
        try:
            await client.try_lease(name, ttl="1m", wait="30s", timeout=10)
        except BaseException as error:
            ended.append(error)
            raise

    async def second(grant: rota.AsyncGrant) -> int:
        grant.check()
        await grant.release()
        return await taken(client, name)

    grant = asyncio.run(first())
    assert asyncio.run(second(grant)) > grant.token
    asyncio.run(client.close())
    assert [type(error) for error in ended] == [asyncio.CancelledError]


def test_a_loop_that_is_closed_beneath_a_waiter_takes_it_out_of_the_line(
    redis_url: str, name: str, until: Any, waiters: Any, caplog: Any, nothing_left: None, only_woken: None
) -> None:
    """L8: nobody cancelled it, so its connection would get the lease that the next loop gives back."""
    client = rota.connect_async(redis_url, timeout=10)
    kept = []

    async def first() -> rota.AsyncGrant:
        grant = await client.try_lease(name, ttl="1m")
        kept.append(asyncio.create_task(client.try_lease(name, ttl="1m", wait="30s")))
        while not waiters():  # noqa: ASYNC110 - the server has no event
            await asyncio.sleep(0.01)
        return grant

    loop = asyncio.new_event_loop()
    grant = loop.run_until_complete(first())
    loop.close()

    async def second() -> int:
        await client.try_lease(f"{name}/other")
        await asyncio.to_thread(until, lambda: not waiters())
        await grant.release()
        return await taken(client, name)

    assert asyncio.run(second()) > grant.token
    asyncio.run(client.close())
    with caplog.at_level("CRITICAL", "asyncio"):  # which says what we did to the task
        kept.clear()
        gc.collect()


@pytest.mark.usefixtures("nothing_left", "only_woken")
@pytest.mark.parametrize("ways", ["from another loop", "when its own has ended"])
def test_closing_ends_what_other_loops_have(url: str, name: str, ways: str) -> None:
    client = rota.connect_async(url, timeout=10)
    waits, closed = threading.Event(), threading.Event()

    async def first() -> None:
        assert await client.try_lease(name, ttl="1m")
        await asyncio.gather(*(taken(client, f"{name}/{number}") for number in range(3)))  # idle ones
        if ways == "from another loop":
            waiter = asyncio.create_task(client.try_lease(name, ttl="1m", wait="30s"))
            await asyncio.sleep(0.1)
            waits.set()
            with pytest.raises(Unavailable):
                await asyncio.wait_for(waiter, 20)

    async def second() -> None:
        await asyncio.to_thread(waits.wait, 30)
        await client.close()
        closed.set()

    if ways == "from another loop":
        in_turns(first, second)
    else:
        waits.set()
        asyncio.run(first())
        asyncio.run(second())
    with pytest.raises(Unavailable, match="closed"):
        asyncio.run(taken(client, name))


@pytest.mark.usefixtures("nothing_left")
def test_a_client_that_is_closed_while_others_call(redis_url: str, name: str) -> None:
    """They are told that it is closed, or have their answer; whatever they had open is closed, too."""
    for turn in range(10):
        client = rota.connect_async(redis_url, timeout="300ms")
        begun = threading.Barrier(3)

        def of(who: int, client: Any = client, begun: Any = begun, turn: int = turn) -> Callable[[], Coroutine[Any, Any, None]]:
            async def main() -> None:
                await taken(client, f"{name}/{turn}/{who}")
                begun.wait(30)
                with pytest.raises(Unavailable):
                    while True:
                        await taken(client, f"{name}/{turn}/{who}", 0.3)

            return main

        async def close(client: Any = client, begun: Any = begun) -> None:
            begun.wait(30)
            await client.close()

        in_turns(of(0), of(1), close)


def test_waiters_in_two_loops_are_woken(url: str, connect: Any, only_woken: None, nothing_left: None, name: str) -> None:
    assert _engine.LONGEST_IN_LINE > 60
    client, holder = rota.connect_async(url, timeout=10), connect(url)
    grants = [holder.try_lease(f"{name}/{who}", ttl="1m") for who in (0, 1)]
    timers = [threading.Timer(0.3, grant.release) for grant in grants]

    def of(who: int) -> Callable[[], Coroutine[Any, Any, int]]:
        async def main() -> int:
            timers[who].start()
            grant = await asyncio.wait_for(client.try_lease(f"{name}/{who}", ttl="1m", wait="40s"), 20)
            await grant.release()
            return grant.token

        return main

    tokens = in_turns(of(0), of(1))
    assert all(token > grant.token for token, grant in zip(tokens, grants, strict=True))
    asyncio.run(client.close())
    holder.close()
