# SPDX-License-Identifier: MIT
"""rota on PostgreSQL beside the bare driver doing the cheapest same thing: autocommit, nothing prepared (as a pooler needs).

Bare acquire: an upsert that takes what has expired. Bare release: a delete by name and owner. A slot won is claimed and settled; lost, it
is refused. Run it as ``python tests/bench/bench_postgres.py``; it starts its own server, fsync on.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import rota
from rounds import Figure, interleaved, main

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from servers import Postgres, wait_until

T = TypeVar("T")
PAIRS, PORTIONS = 150, 30
UPSERT = (
    "INSERT INTO bare AS b (name, owner, expires_at) VALUES (%s, %s, clock_timestamp() + interval '30 s')"
    " ON CONFLICT (name) DO UPDATE SET owner = EXCLUDED.owner, expires_at = clock_timestamp() + interval '30 s'"
    " WHERE b.expires_at <= clock_timestamp() RETURNING owner"
)
DELETE = "DELETE FROM bare WHERE name = %s AND owner = %s"
RELEASE_AND_TELL = "WITH gone AS (DELETE FROM bare WHERE name = %s RETURNING name) SELECT pg_notify('freed', name) FROM gone"
RENEW = (
    "UPDATE bare AS b SET expires_at = clock_timestamp() + interval '10 s' FROM unnest(%s::text[], %s::text[]) AS a(name, owner)"
    " WHERE b.name = a.name AND b.owner = a.owner AND b.expires_at > clock_timestamp() RETURNING b.name"
)
SLOT = rota.Every("100ms")


def alternating(measures: dict[str, Callable[[int], object]], rounds: int) -> dict[str, list[float]]:
    """Return microseconds per turn, for each round: in small portions in turn, as disks and neighbours change within a second."""
    values: dict[str, list[float]] = {what: [] for what in measures}
    for number in range(rounds + 1):  # the first only warms
        spent = dict.fromkeys(measures, 0.0)
        gc.collect()
        gc.disable()
        for portion in range(PORTIONS):
            for what in list(measures) if portion % 2 else reversed(list(measures)):
                started = time.perf_counter()
                measures[what](PAIRS // PORTIONS)
                spent[what] += time.perf_counter() - started
        gc.enable()
        if number:
            for what, seconds in spent.items():
                values[what].append(seconds / PAIRS * 1e6)
    return values


class Planned:
    """Slots in order, each named once; all within the ten minutes in which a named slot can be won."""

    def __init__(self) -> None:
        self._next = time.time() - 560

    def __next__(self) -> float:
        self._next += 0.1
        return self._next


def blocking(server: Postgres, rounds: int) -> dict[str, list[float]]:
    client, other = rota.connect(server.url(), timeout=10), rota.connect(server.url(), timeout=10)
    bare = psycopg.connect(server.url(), autocommit=True, prepare_threshold=None)
    bare.execute(UPSERT, ("held", "somebody"))
    bare.execute("UPDATE bare SET expires_at = 'infinity'")
    held = other.try_lease("held", ttl="1h")
    planned = Planned()
    handled = next(planned)
    with other.window("lost", SLOT, planned=handled, max_late="1d"):
        pass

    def bare_pair(turns: int) -> None:
        for _ in range(turns):
            owner = os.urandom(16).hex()
            assert bare.execute(UPSERT, ("job", owner)).fetchone()
            bare.execute(DELETE, ("job", owner))

    def bare_refused(turns: int) -> None:
        for _ in range(turns):
            assert not bare.execute(UPSERT, ("held", os.urandom(16).hex())).fetchone()

    def pair(turns: int) -> None:
        for _ in range(turns):
            client.try_lease("job").release()  # type: ignore[union-attr]

    def refused(turns: int) -> None:
        for _ in range(turns):
            assert not client.try_lease("held")

    def slot(turns: int) -> None:
        for _ in range(turns):
            client.try_window("slots", SLOT, planned=next(planned)).handled()  # type: ignore[union-attr]

    def lost(turns: int) -> None:
        for _ in range(turns):
            assert not client.try_window("lost", SLOT, planned=handled, max_late="1d")

    measures = {
        "bare acquire + release": bare_pair,
        "acquire + release": pair,
        "bare refused": bare_refused,
        "refused": refused,
        "slot won + handled": slot,
        "slot lost": lost,
    }
    try:
        return alternating(measures, rounds)
    finally:
        held.release()  # type: ignore[union-attr]
        client.close()
        other.close()
        bare.close()


async def asynchronous(server: Postgres, rounds: int) -> dict[str, list[float]]:
    client, other = rota.connect_async(server.url(), timeout=10), rota.connect_async(server.url(), timeout=10)
    bare = await psycopg.AsyncConnection.connect(server.url(), autocommit=True, prepare_threshold=None)
    held = await other.try_lease("held", ttl="1h")
    planned = Planned()
    handled = next(planned)
    await (await other.try_window("async-lost", SLOT, planned=handled, max_late="1d")).handled()  # type: ignore[union-attr]

    async def bare_pair() -> None:
        owner = os.urandom(16).hex()
        assert await (await bare.execute(UPSERT, ("job", owner))).fetchone()
        await bare.execute(DELETE, ("job", owner))

    async def bare_refused() -> None:
        assert not await (await bare.execute(UPSERT, ("held", os.urandom(16).hex()))).fetchone()

    async def pair() -> None:
        await (await client.try_lease("job")).release()  # type: ignore[union-attr]

    async def refused() -> None:
        assert not await client.try_lease("held")

    async def slot() -> None:
        await (await client.try_window("async-slots", SLOT, planned=next(planned))).handled()  # type: ignore[union-attr]

    async def lost() -> None:
        assert not await client.try_window("async-lost", SLOT, planned=handled, max_late="1d")

    measures = {
        "bare acquire + release": bare_pair,
        "acquire + release": pair,
        "bare refused": bare_refused,
        "refused": refused,
        "slot won + handled": slot,
        "slot lost": lost,
    }

    async def turns(measure: Callable[[], Awaitable[None]], count: int) -> None:
        for _ in range(count):
            await measure()

    values = await asyncio.to_thread(alternating, {what: in_loop(partial(turns, measure)) for what, measure in measures.items()}, rounds)
    await held.release()  # type: ignore[union-attr]
    await client.close()
    await other.close()
    await bare.close()
    return values


def in_loop(measure: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    """Return a measure that a thread can take, carried out by the loop that runs now."""
    loop = asyncio.get_running_loop()
    return lambda *arguments: asyncio.run_coroutine_threadsafe(measure(*arguments), loop).result()


def hand_off(server: Postgres, rounds: int) -> dict[str, list[float]]:
    """From the release to the waiter's return, which holds then; bare: DELETE and NOTIFY, a waiter that listens, then upserts."""
    client, other = rota.connect(server.url(), timeout=10), rota.connect(server.url(), timeout=10)
    bare = psycopg.connect(server.url(), autocommit=True, prepare_threshold=None)
    waiter = psycopg.connect(server.url(), autocommit=True, prepare_threshold=None)
    waiter.execute("LISTEN freed")

    def ours() -> float:
        spent = []
        for _ in range(8):
            grant = client.try_lease("handed")
            got: list[float] = []

            def wait() -> None:
                with other.lease("handed", wait=30):
                    got.append(time.perf_counter())

            thread = threading.Thread(target=wait)
            thread.start()
            while server.sql("SELECT waited = token FROM rota WHERE name = 'handed'") != "t":
                time.sleep(0.01)
            time.sleep(0.02)
            released = time.perf_counter()
            grant.release()  # type: ignore[union-attr]
            thread.join()
            spent.append(got[0] - released)
        return sorted(spent)[len(spent) // 2] * 1e6

    def theirs(with_lock: bool) -> float:
        spent = []
        for _ in range(8):
            bare.execute(UPSERT, ("handed", "first"))
            got: list[float] = []

            def wait() -> None:
                for _ in waiter.notifies(timeout=30, stop_after=1):
                    pass
                if with_lock:
                    assert waiter.execute(UPSERT, ("handed", "second")).fetchone()
                got.append(time.perf_counter())

            thread = threading.Thread(target=wait)
            thread.start()
            time.sleep(0.05)
            released = time.perf_counter()
            if with_lock:
                bare.execute(RELEASE_AND_TELL, ("handed",))
            else:
                bare.execute("NOTIFY freed")
            thread.join()
            spent.append(got[0] - released)
            bare.execute("DELETE FROM bare WHERE name = 'handed'")
        return sorted(spent)[len(spent) // 2] * 1e6

    try:
        return interleaved({"notify": lambda: theirs(False), "bare": lambda: theirs(True), "ours": ours}, rounds)
    finally:
        client.close()
        other.close()
        bare.close()
        waiter.close()


async def asynchronous_hand_off(server: Postgres, rounds: int) -> dict[str, list[float]]:
    """As `hand_off`, both sides in one loop."""
    client, other = rota.connect_async(server.url(), timeout=10), rota.connect_async(server.url(), timeout=10)
    bare = await psycopg.AsyncConnection.connect(server.url(), autocommit=True, prepare_threshold=None)
    waiter = await psycopg.AsyncConnection.connect(server.url(), autocommit=True, prepare_threshold=None)
    await waiter.execute("LISTEN freed")

    async def ours() -> float:
        spent = []
        for _ in range(8):
            grant = await client.try_lease("async-handed")

            async def wait() -> float:
                async with other.lease("async-handed", wait=30):
                    return time.perf_counter()

            waiting = asyncio.create_task(wait())
            noted = "SELECT waited = token FROM rota WHERE name = 'async-handed'"
            await asyncio.to_thread(wait_until, lambda: server.sql(noted) == "t")
            await asyncio.sleep(0.02)
            released = time.perf_counter()
            await grant.release()  # type: ignore[union-attr]
            spent.append(await waiting - released)
        return sorted(spent)[len(spent) // 2] * 1e6

    async def theirs() -> float:
        spent = []
        for _ in range(8):
            await bare.execute(UPSERT, ("handed", "first"))

            async def wait() -> float:
                async for _ in waiter.notifies(timeout=30, stop_after=1):
                    pass
                assert await (await waiter.execute(UPSERT, ("handed", "second"))).fetchone()
                return time.perf_counter()

            waiting = asyncio.create_task(wait())
            await asyncio.sleep(0.05)
            released = time.perf_counter()
            await bare.execute(RELEASE_AND_TELL, ("handed",))
            spent.append(await waiting - released)
            await bare.execute("DELETE FROM bare WHERE name = 'handed'")
        return sorted(spent)[len(spent) // 2] * 1e6

    values = await asyncio.to_thread(interleaved, {"bare": in_loop(theirs), "ours": in_loop(ours)}, rounds)
    await client.close()
    await other.close()
    await bare.close()
    await waiter.close()
    return values


def many(server: Postgres, count: int = 10_000, seconds: float = 20.0) -> list[Figure]:
    """10,000 leases at ttl 10 s kept by one client: calls per second; and its CPU beside bare batches, as often and as large meanwhile."""
    client = rota.connect(server.url(), timeout=10)
    bare = psycopg.connect(server.url(), autocommit=True, prepare_threshold=None)
    names, owners = [f"n{number}" for number in range(count)], [f"{number:032x}" for number in range(count)]
    bare.cursor().executemany("INSERT INTO bare VALUES (%s, %s, 'infinity')", list(zip(names, owners, strict=True)))
    grants = [client.try_lease(name, ttl="10s") for name in names]

    def calls() -> int:
        return int(server.sql("SELECT xact_commit FROM pg_stat_database WHERE datname = 'rota'"))

    time.sleep(11)  # the counters of a session that became idle are up to 10 s late
    lost = sum(grant.lost for grant in grants)  # type: ignore[union-attr]
    before, cpu, own, started, batches = calls(), time.process_time(), time.thread_time(), time.monotonic(), 0
    while (spent := time.monotonic() - started) < seconds:
        first = batches * 1000 % count
        bare.execute(RENEW, (names[first : first + 1000], owners[first : first + 1000])).fetchall()
        batches += 1
        time.sleep(max(0.0, started + batches * (10 / 3) / (count / 1000) - time.monotonic()))  # each lease once in a third of its ttl
    theirs = (time.thread_time() - own) / spent
    ours = (time.process_time() - cpu) / spent - theirs
    time.sleep(1.1)  # the server's counters are a second late
    made = (calls() - before - batches) / (spent + 1.1)
    lost += sum(grant.lost for grant in grants)  # type: ignore[union-attr]
    client.close()
    bare.close()
    return [
        Figure(f"{count} leases: lost", [float(lost)], "", 0),
        Figure(f"{count} leases: server calls", [made], "/s", 2 + count / 1000),
        Figure(f"{count} leases: client CPU, bare batches", [theirs * 100], "%", None),
        Figure(f"{count} leases: client CPU", [ours * 100], "%", None),
        Figure(f"{count} leases: client CPU by bare", [ours / theirs], "x", 3.0),
    ]


def ratio(values: dict[str, list[float]], what: str, bare: str, bound: float, face: str) -> list[Figure]:
    ratios = [ours / theirs for ours, theirs in zip(values[what], values[bare], strict=True)]
    return [
        Figure(f"{face}: {bare}", values[bare], "µs", None),
        Figure(f"{face}: {what}", values[what], "µs", None),
        Figure(f"{face}: {what} by {bare}", ratios, "x", bound),
    ]


def figures(rounds: int) -> list[Figure]:
    found: list[Figure] = []
    with Postgres() as server:
        maker = rota.connect(server.url())
        server.sql(maker.driver.schema(), "CREATE TABLE bare (name text PRIMARY KEY, owner text NOT NULL, expires_at timestamptz NOT NULL)")
        maker.close()
        for face, values in (("blocking", blocking(server, rounds)), ("async", asyncio.run(asynchronous(server, rounds)))):
            found += ratio(values, "acquire + release", "bare acquire + release", 1.15, face)
            found += ratio(values, "slot won + handled", "bare acquire + release", 1.15, face)[1:]
            found += ratio(values, "refused", "bare refused", 0.7, face)
            found += ratio(values, "slot lost", "bare refused", 0.7, face)[1:]
        values = hand_off(server, max(5, rounds))
        found.append(Figure("bare NOTIFY to a listener", values["notify"], "µs", None))
        for face, handed in (("blocking", values), ("async", asyncio.run(asynchronous_hand_off(server, max(5, rounds))))):
            found += ratio({"hand-off": handed["ours"], "bare hand-off": handed["bare"]}, "hand-off", "bare hand-off", 1.5, face)
        found += many(server)
    return found


if __name__ == "__main__":
    main(figures, __doc__)
