# SPDX-License-Identifier: MIT
"""rota on Redis beside redis-py doing the cheapest possible same thing, on one server that this starts (or that ROTA_TEST_REDIS_URL names).

Acquire and release: ``SET NX PX`` and a compare-and-delete script. Refused: a refused ``SET NX``. A slot won: the same pair on a key of its
own. A slot lost: a refused ``SET NX``. Hand-off: ``LPUSH`` to somebody in ``BLPOP``, once alone and once with the ``SET NX`` that must
follow for a lock that expires. Renewal: one bare script call for all leases.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
import rota
from rota.backend import Claim, Renewal
from rounds import Figure, interleaved, main

sys.path.append(str(Path(__file__).resolve().parents[1]))

import servers

CALLS, HAND_OFFS, LEASES = 50, 40, 10_000
#: So many short rounds for each one asked for: on a busy machine neighbours are alike.
SHORT = 8
DELETE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
RENEW = "for i, key in ipairs(KEYS) do if redis.call('GET', key) == ARGV[1] then redis.call('PEXPIRE', key, 10000) end end return #KEYS"
DAILY = rota.Every("1d")


def timed(function: Callable[[], object], calls: int = CALLS) -> float:
    """Return microseconds per call, no garbage collection inside."""
    gc.collect()
    gc.disable()
    started = time.perf_counter()
    for _ in range(calls):
        function()
    ended = time.perf_counter()
    gc.enable()
    return (ended - started) / calls * 1e6


async def atimed(function: Callable[[], Awaitable[object]], calls: int = CALLS) -> float:
    gc.collect()
    gc.disable()
    started = time.perf_counter()
    for _ in range(calls):
        await function()
    ended = time.perf_counter()
    gc.enable()
    return (ended - started) / calls * 1e6


def ratio(what: str, rounds: dict[str, list[float]], ours: str, bare: str, bound: float | None) -> list[Figure]:
    pairs = [a / b for a, b in zip(rounds[ours], rounds[bare], strict=True)]
    return [
        Figure(f"{what}: rota", rounds[ours], "µs", None),
        Figure(f"{what}: bare", rounds[bare], "µs", None),
        Figure(f"{what}: ratio", pairs, "x", bound),
    ]


def blocking(url: str, rounds: int) -> list[Figure]:
    bare = redis.Redis.from_url(url)
    delete = bare.register_script(DELETE)
    client: Any = rota.connect(url)
    run = uuid.uuid4().hex
    bare.set(f"{run}/held", "x", px=600_000)
    held = client.try_lease(f"{run}/rheld", ttl="10m")
    assert held
    with client.window(f"{run}/done", DAILY):
        pass
    names = [f"{run}/window/{number}" for number in range(CALLS)]
    slots = iter(names)

    def bare_pair() -> None:
        owner = os.urandom(16).hex()
        assert bare.set(f"{run}/lock", owner, nx=True, px=30_000)
        assert delete([f"{run}/lock"], [owner])

    def pair() -> None:
        client.try_lease(f"{run}/job").release()

    def bare_refused() -> None:
        assert not bare.set(f"{run}/held", os.urandom(16).hex(), nx=True, px=30_000)

    def refused() -> None:
        assert not client.try_lease(f"{run}/rheld")

    def bare_won() -> None:
        owner, key = os.urandom(16).hex(), next(slots)
        assert bare.set(key, owner, nx=True, px=30_000)
        assert delete([key], [owner])

    def won() -> None:
        client.try_window(next(slots), DAILY).handled()

    def lost() -> None:
        assert not client.try_window(f"{run}/done", DAILY)

    def measured(function: Callable[[], object]) -> float:
        nonlocal slots
        bare.delete(*[f"rota:{name}" for name in names])  # windows that this client knows, slots that nobody has handled
        slots = iter(names)
        return timed(function)

    measures = {f.__name__: f for f in (bare_pair, pair, bare_refused, refused, bare_won, won, lost)}
    values = interleaved({name: lambda f=f: measured(f) for name, f in measures.items()}, rounds)
    client.close()
    return [
        *ratio("acquire + release", values, "pair", "bare_pair", 1.25),
        *ratio("refused", values, "refused", "bare_refused", 1.2),
        *ratio("slot won + handled", values, "won", "bare_won", 1.3),
        *ratio("slot lost", values, "lost", "bare_refused", 1.3),
    ]


async def asynchronous(url: str, rounds: int) -> list[Figure]:
    bare = redis.asyncio.Redis.from_url(url)
    delete = bare.register_script(DELETE)
    client: Any = rota.connect_async(url)
    run = uuid.uuid4().hex
    await bare.set(f"{run}/held", "x", px=600_000)
    held = await client.try_lease(f"{run}/rheld", ttl="10m")
    assert held
    async with client.window(f"{run}/done", DAILY):
        pass
    names = [f"{run}/window/{number}" for number in range(CALLS)]
    slots = iter(names)

    async def bare_pair() -> None:
        owner = os.urandom(16).hex()
        assert await bare.set(f"{run}/lock", owner, nx=True, px=30_000)
        assert await delete([f"{run}/lock"], [owner])

    async def pair() -> None:
        await (await client.try_lease(f"{run}/job")).release()

    async def bare_refused() -> None:
        assert not await bare.set(f"{run}/held", os.urandom(16).hex(), nx=True, px=30_000)

    async def refused() -> None:
        assert not await client.try_lease(f"{run}/rheld")

    async def bare_won() -> None:
        owner, key = os.urandom(16).hex(), next(slots)
        assert await bare.set(key, owner, nx=True, px=30_000)
        assert await delete([key], [owner])

    async def won() -> None:
        await (await client.try_window(next(slots), DAILY)).handled()

    async def lost() -> None:
        assert not await client.try_window(f"{run}/done", DAILY)

    measures = {f.__name__: f for f in (bare_pair, pair, bare_refused, refused, bare_won, won, lost)}
    values: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(-1, rounds):
        for name in list(measures) if number % 2 else reversed(list(measures)):
            await bare.delete(*[f"rota:{name}" for name in names])  # as above
            slots = iter(names)
            value = await atimed(measures[name])
            if number >= 0:
                values[name].append(value)
    await client.close()
    await bare.aclose()
    return [
        *ratio("async acquire + release", values, "pair", "bare_pair", 1.25),
        *ratio("async refused", values, "refused", "bare_refused", 1.2),
        *ratio("async slot won + handled", values, "won", "bare_won", 1.3),
        *ratio("async slot lost", values, "lost", "bare_refused", 1.3),
    ]


# in a process of its own, as on another host: within one, both ends would wait for the same interpreter
WAITER = """
import asyncio, inspect, sys, time, redis, redis.asyncio, rota

async def main(url, is_async):
    async def done(value):
        return await value if inspect.isawaitable(value) else value

    client = (rota.connect_async if is_async else rota.connect)(url)
    bare = (redis.asyncio.Redis if is_async else redis.Redis).from_url(url)
    await done((await done(client.try_lease("warm"))).release())
    for line in sys.stdin:
        how, name = line.split()
        grant = await done(client.try_lease(name, wait=5) if how == "lease" else bare.blpop([name], 5))
        if how == "queue_and_set":
            await done(bare.set(name + "/set", "x", nx=True, px=5000))
        print(time.monotonic(), flush=True)
        if how == "lease":
            await done(grant.release())

asyncio.run(main(sys.argv[1], sys.argv[2] == "async"))
"""


def hand_off(url: str, rounds: int, face: str) -> list[Figure]:
    """From just before the release until a waiter has it, in the median; the kinds take turns at every single one."""
    bare = redis.Redis.from_url(url)
    client: Any = rota.connect(url)
    waiter = subprocess.Popen([sys.executable, "-c", WAITER, url, face], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert waiter.stdin is not None
    assert waiter.stdout is not None

    def once(how: str) -> float:
        name = uuid.uuid4().hex
        grant = client.try_lease(name) if how == "lease" else None
        waiter.stdin.write(f"{how} {name}\n")
        waiter.stdin.flush()
        while not bare.info("clients")["blocked_clients"]:
            pass
        time.sleep(0.01)  # as who holds a lease has done something else meanwhile, and the server too
        started = time.monotonic()
        grant.release() if grant is not None else bare.lpush(name, "x")
        return (float(waiter.stdout.readline()) - started) * 1e6

    kinds = ("queue", "queue_and_set", "lease")
    values: dict[str, list[float]] = {how: [] for how in kinds}
    for number in range(-1, rounds):
        taken: dict[str, list[float]] = {how: [] for how in kinds}
        for turn in range(HAND_OFFS):
            for how in kinds if turn % 2 else reversed(kinds):
                taken[how].append(once(how))
        if number >= 0:  # the first one warms up
            for how in kinds:
                values[how].append(statistics.median(taken[how]))
    waiter.kill()
    waiter.wait()
    client.close()
    return [
        *ratio(f"{face} hand-off, beside BLPOP alone", values, "lease", "queue", 1.5),
        *ratio(f"{face} hand-off, beside BLPOP and SET NX", values, "lease", "queue_and_set", None),
    ]


def renewals(url: str, rounds: int) -> list[Figure]:
    """One batch of 1,000 renewals, in CPU time of this thread, beside a bare script call for as many keys."""
    bare = redis.Redis.from_url(url)
    client = rota.connect(url)
    driver, run = client.driver, uuid.uuid4().hex
    owner = os.urandom(16).hex()
    names = [f"{run}/{number}" for number in range(1000)]
    until = time.time_ns() // 1000 + 10**9
    for name in names:
        driver.claim(Claim(name, owner, "", "lease", 600_000_000, until, 86_400_000_000), 5)
        bare.set("bare" + name, owner, px=600_000)
    renew = bare.register_script(RENEW)
    keys = ["bare" + name for name in names]
    batch = [Renewal(name, owner, 600_000_000, 86_400_000_000) for name in names]

    def cpu(function: Callable[[], object]) -> float:
        started = time.thread_time()
        for _ in range(5):
            function()
        return (time.thread_time() - started) / 5 * 1e6

    measures = {"bare": lambda: cpu(lambda: renew(keys, [owner])), "rota": lambda: cpu(lambda: driver.renew(batch, 5))}
    values = interleaved(measures, rounds)
    client.close()
    return ratio("client CPU of 1,000 renewals", values, "rota", "bare", 3.0)


def kept(url: str) -> list[Figure]:
    """10,000 leases at ttl 10 s, kept by one thread: server calls per second."""
    client: Any = rota.connect(url)
    bare = redis.Redis.from_url(url)
    run = uuid.uuid4().hex
    grants = [client.try_lease(f"{run}/{number}", ttl=10) for number in range(LEASES)]
    time.sleep(6)  # the renewals find their rhythm
    calls, busy = [], []
    for _ in range(5):
        before, cpu, started = bare.info("commandstats")["cmdstat_evalsha"]["calls"], time.process_time(), time.perf_counter()
        time.sleep(3)
        took = time.perf_counter() - started
        busy.append((time.process_time() - cpu) / took * 100)
        calls.append((bare.info("commandstats")["cmdstat_evalsha"]["calls"] - before) / took)
    lost = sum(grant.lost for grant in grants)
    client.close()
    return [
        Figure("10,000 leases at ttl 10s: calls per second", calls, "/s", 2 + LEASES / 1000),
        Figure("10,000 leases at ttl 10s: client CPU", busy, "%", None),
        Figure("10,000 leases at ttl 10s: lost", [float(lost)] * 5, "", 0.0),
    ]


def measure(rounds: int) -> list[Figure]:
    running = os.environ.get("ROTA_TEST_REDIS_URL")
    server = None if running else servers.Redis().start()
    url = running or server.url()
    try:
        return [
            *blocking(url, rounds * SHORT),
            *asyncio.run(asynchronous(url, rounds * SHORT)),
            *hand_off(url, rounds, "blocking"),
            *hand_off(url, rounds, "async"),
            *renewals(url, rounds),
            *kept(url),
        ]
    finally:
        if server is not None:
            server.remove()


if __name__ == "__main__":
    main(measure, __doc__)
