# SPDX-License-Identifier: MIT
"""rota on etcd beside bare gRPC doing the cheapest same thing, on one member that this starts.

Bare acquire and release: a lease per key, one transaction to put it, one to delete it, the lease revoked; "in 3" lets the revocation
delete it; "on one lease" is the two transactions alone, on one lease for ever, which nobody renews. Beside that stands rota with
``leases=shared``, and with leases of its own, which are handed on from grant to grant. aetcd takes part where it is installed.

Refused: the transaction that finds the key. A slot won is claimed and settled; lost, it is refused. Hand-off: a watch on the key
until it is deleted, and the grant and transaction that must follow. Renewal: 10,000 leases, each with a ttl of 30 s, so 10 s a round at the
most.

What is compared takes turns call by call, on channels that are warm. A round's value is the median of its calls, so that a single slow
fsync or commit of the server does not count. etcd writes to the disk that temporary files are on, and waits for it, as it does for its
users: without (``--unsafe-no-fsync``) or in memory both sides of a ratio would be faster by as much, and it would tell of nobody's store.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import rota
from rota.backend import LEASE, Claim, Renewal
from rota_etcd import _wire as wire
from rota_etcd import python_etcd3
from rota_etcd._leases import Lease
from rounds import Figure, alternating, alternating_async, interleaved, main

try:
    import aetcd  # before etcd3, whose failing import leaves its descriptors where aetcd's must go
except ImportError:
    aetcd = None

sys.path.append(str(Path(__file__).resolve().parents[1]))
python_etcd3.install()

import etcd3  # noqa: E402 - as its users do
from servers import HOST, Etcd  # noqa: E402

CALLS, REFUSALS, HAND_OFFS, LEASES, PENDING = 20, 60, 15, 10_000, 1000
#: So many short rounds for each one asked for: on a busy machine neighbours are alike.
SHORT = 4
DAY = 86_400


class Bare:
    """The same messages over a channel, and nothing else."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.insecure_channel(f"{HOST}:{port}")
        self.stubs: dict[Any, Any] = {}
        for kind, (path, response) in wire.METHODS.items():
            make = self.channel.stream_stream if kind in (wire.KeepAlive, wire.Watch) else self.channel.unary_unary
            self.stubs[kind] = make(path, kind.SerializeToString, response)

    def call(self, request: Any) -> Any:
        return self.stubs[type(request)](request, 10.0)

    def grant(self, ttl: int = 30) -> int:
        return int(self.call(wire.Grant(TTL=ttl)).ID)

    def put(self, key: bytes, lease: int) -> Any:
        absent = wire.Compare(target=wire.CREATE, key=key, create_revision=0)
        put = wire.RequestOp(request_put=wire.Put(key=key, value=b"x" * 300, lease=lease))
        look = wire.RequestOp(request_range=wire.Range(key=key))
        return self.call(wire.Txn(compare=[absent], success=[put], failure=[look]))

    def delete(self, key: bytes, revision: int) -> None:
        mine = wire.Compare(target=wire.CREATE, key=key, create_revision=revision)
        delete = wire.RequestOp(request_delete_range=wire.Delete(key=key))
        assert self.call(wire.Txn(compare=[mine], success=[delete])).succeeded

    def pair(self, key: bytes) -> None:
        lease = self.grant()
        self.delete(key, self.put(key, lease).header.revision)
        self.call(wire.Revoke(ID=lease))

    def pair_in_3(self, key: bytes) -> None:
        lease = self.grant()
        assert self.put(key, lease).succeeded
        self.call(wire.Revoke(ID=lease))

    def await_delete(self, key: bytes, revision: int, ready: threading.Event) -> None:
        ended = threading.Event()

        def requests() -> Any:
            yield wire.Watch(create_request=wire.WatchCreate(key=key, start_revision=revision))
            ended.wait()

        call = self.stubs[wire.Watch](requests(), 10.0)
        for response in call:
            ready.set()
            if response.events:
                break
        ended.set()
        call.cancel()


def ratio(what: str, rounds: dict[str, list[float]], ours: str, bare: str, bound: float | None, note: str = "") -> Figure:
    return Figure(what, [a / b for a, b in zip(rounds[ours], rounds[bare], strict=True)], "x", bound, note)


def times(face: str, *groups: dict[str, list[float]]) -> list[Figure]:
    return [Figure(f"{face}{name}: time", found, "µs", None) for values in groups for name, found in values.items()]


def pairs(server: Etcd, rounds: int) -> list[Figure]:
    bare, client, run = Bare(server.port), rota.connect(server.url()), uuid.uuid4().hex
    sharing = rota.connect(server.url("leases=shared"))
    theirs = etcd3.client(port=server.port)
    numbers = itertools.count()
    key, held, shared = f"{run}/pair".encode(), f"{run}/held".encode(), bare.grant(600)
    bare.put(held, bare.grant(600))
    kept = client.try_lease(f"{run}/held", ttl="10m")
    now = int(time.time())
    handled = now - now % DAY
    with client.window(f"{run}/done", planned=handled):
        pass

    def bare_pair() -> None:
        bare.pair(key)

    def bare_in_3() -> None:
        bare.pair_in_3(key)

    def bare_shared() -> None:
        bare.delete(key, bare.put(key, shared).header.revision)

    def bare_refused() -> None:
        assert not bare.put(held, 0).succeeded

    def pair() -> None:
        client.try_lease(f"{run}/job").release()

    def shared_pair() -> None:
        sharing.try_lease(f"{run}/shared").release()

    def lock() -> None:
        with theirs.lock(f"{run}/lock", ttl=30):
            pass

    def refused() -> None:
        assert not client.try_lease(f"{run}/held")

    def won() -> None:
        client.try_window(f"{run}/window", planned=now - 20 * DAY + next(numbers)).handled()

    def won_first() -> None:
        client.try_window(f"{run}/window/{next(numbers)}", planned=handled).handled()

    def lost() -> None:
        assert not client.try_window(f"{run}/done", planned=handled)

    rounds *= SHORT
    shared_pairs = alternating((pair, bare_shared, shared_pair), rounds, CALLS)
    values = alternating((pair, bare_pair, bare_in_3, lock), rounds, CALLS)
    refusals = alternating((refused, bare_refused, lost), rounds, REFUSALS)
    slots = alternating((won, bare_pair, won_first), rounds, CALLS)
    kept.release()
    client.close()
    sharing.close()
    theirs.close()
    return [
        *times("", shared_pairs, values, refusals, slots),
        ratio("acquire + release / bare", values, "pair", "bare_pair", 1.6),
        ratio("acquire + release / bare in 3", values, "pair", "bare_in_3", 1.6),
        ratio("acquire + release, leases=shared / bare on one lease", shared_pairs, "shared_pair", "bare_shared", 1.15),
        ratio("acquire + release / bare on one lease", shared_pairs, "pair", "bare_shared", None),
        ratio("acquire + release / python-etcd3's Lock", values, "pair", "lock", 1.0),
        ratio("refused / bare", refusals, "refused", "bare_refused", 0.8),
        ratio("slot won + handled / bare", slots, "won", "bare_pair", 1.15),
        ratio("slot won + handled, name not seen before / bare", slots, "won_first", "bare_pair", None),
        ratio("slot lost / bare refused", refusals, "lost", "bare_refused", 1.1),
    ]


def hand_offs(server: Etcd, rounds: int) -> list[Figure]:
    bare, run = Bare(server.port), uuid.uuid4().hex
    holder, waiter = rota.connect(server.url()), rota.connect(server.url())

    def measured(acquire: Callable[[], Callable[[], None]], wait: Callable[[threading.Event], None]) -> float:
        took = []
        for _ in range(HAND_OFFS):
            release, ready, got = acquire(), threading.Event(), []

            def waiting(ready: threading.Event = ready, got: list[float] = got) -> None:
                wait(ready)
                got.append(time.perf_counter())

            thread = threading.Thread(target=waiting)
            thread.start()
            ready.wait(10)
            time.sleep(0.03)
            started = time.perf_counter()
            release()
            thread.join()
            took.append(got[0] - started)
        return sorted(took)[HAND_OFFS // 2] * 1e6

    key = f"{run}/hand".encode()

    def bare_acquire() -> Callable[[], None]:
        revision = bare.put(key, bare.grant()).header.revision
        return lambda: bare.delete(key, revision)

    def bare_wait(ready: threading.Event) -> None:
        revision = bare.call(wire.Range(key=key)).header.revision
        bare.await_delete(key, revision + 1, ready)
        bare.delete(key, bare.put(key, bare.grant()).header.revision)

    def acquire() -> Callable[[], None]:
        return holder.try_lease(run).release

    def wait(ready: threading.Event) -> None:
        ready.set()
        waiter.try_lease(run, wait=10).release()

    values = interleaved({"bare": lambda: measured(bare_acquire, bare_wait), "rota": lambda: measured(acquire, wait)}, rounds)
    for client in (holder, waiter):
        client.close()
    return [
        *(Figure(f"hand-off: {name}", values[name], "µs", None) for name in values),
        ratio("hand-off / bare", values, "rota", "bare", 1.5),
    ]


def renewals(server: Etcd, rounds: int) -> list[Figure]:
    bare, client = Bare(server.port), rota.connect(server.url())
    owners, made = [os.urandom(16).hex() for _ in range(LEASES)], []
    for number, owner in enumerate(owners):  # as many claims would be no faster
        lease = Lease(30)
        made.append(bare.stubs[wire.Grant].future(wire.Grant(ID=lease.id, TTL=lease.asked)))
        client.driver._leases.adopt(owner, "bench/renewed", lease)
        if number >= PENDING:  # etcd refuses more than 5,000 at a time
            made[number - PENDING].result()
    for granted in made:
        granted.result()
    some = Claim("bench/renewed", os.urandom(16).hex(), "bench", LEASE, 30_000_000, 2**62, 1)
    assert client.driver.claim(some, 5.0).verdict == "won"
    batch = [Renewal("bench", owner, 30_000_000, 1) for owner in [*owners, some.owner]]

    sharing = rota.connect(server.url("leases=shared"))

    def claimed(number: int) -> Renewal:
        claim = Claim(f"bench/shared/{number}", os.urandom(16).hex(), "bench", LEASE, 30_000_000, 2**62, 1)
        assert sharing.driver.claim(claim, 10.0).verdict == "won"
        return Renewal(claim.name, claim.owner, claim.ttl, 1)

    with ThreadPoolExecutor(8) as threads:
        shared_batch = list(threads.map(claimed, range(LEASES)))

    def all_of_them(client: rota.Client, batch: list[Renewal]) -> float:
        started = time.perf_counter()
        for first in range(0, len(batch), 1000):
            assert all(client.driver.renew(batch[first : first + 1000], 10.0).held)
        return time.perf_counter() - started

    values = interleaved(
        {"own": lambda: all_of_them(client, batch), "shared": lambda: all_of_them(sharing, shared_batch)}, max(5, min(rounds, 7))
    )
    client.close()
    sharing.close()
    return [
        Figure(f"a round of renewals of {LEASES:,} leases", values["own"], "s", 10.0),
        Figure(f"a round of renewals of {LEASES:,} leases, leases=shared", values["shared"], "s", 10.0),
    ]


def asynchronous(server: Etcd, rounds: int) -> list[Figure]:
    async def measure() -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        channel = grpc.aio.insecure_channel(f"{HOST}:{server.port}")
        stubs = {
            kind: channel.unary_unary(wire.METHODS[kind][0], kind.SerializeToString, wire.METHODS[kind][1])
            for kind in (wire.Grant, wire.Txn, wire.Revoke)
        }
        client = rota.connect_async(server.url())
        kept = await client.try_lease("aio/held")

        async def put() -> Any:
            absent = wire.Compare(target=wire.CREATE, key=b"aio", create_revision=0)
            put = wire.RequestOp(request_put=wire.Put(key=b"aio", value=b"x" * 300, lease=lease))
            look = wire.RequestOp(request_range=wire.Range(key=b"aio"))
            return await stubs[wire.Txn](wire.Txn(compare=[absent], success=[put], failure=[look]))

        async def bare_pair() -> None:
            nonlocal lease
            lease = (await stubs[wire.Grant](wire.Grant(TTL=30))).ID
            assert (await put()).succeeded
            await stubs[wire.Txn](wire.Txn(success=[wire.RequestOp(request_delete_range=wire.Delete(key=b"aio"))]))
            await stubs[wire.Revoke](wire.Revoke(ID=lease))

        async def bare_refused() -> None:
            assert not (await stubs[wire.Txn](refusal)).succeeded

        async def pair() -> None:
            await (await client.try_lease("aio")).release()

        async def refused() -> None:
            assert not await client.try_lease("aio/held")

        lease = (await stubs[wire.Grant](wire.Grant(TTL=600))).ID
        found = wire.Compare(target=wire.CREATE, key=b"rota/leases/aio/held", create_revision=0)
        refusal = wire.Txn(compare=[found], success=[wire.RequestOp(request_put=wire.Put(key=b"rota/leases/aio/held"))])
        measured: tuple[Callable[[], Awaitable[None]], ...] = (bare_pair, pair)
        if aetcd is not None:
            theirs = aetcd.Client(HOST, server.port)

            async def lock() -> None:
                async with theirs.lock(b"aio/lock", 30):
                    pass

            measured += (lock,)
        values = await alternating_async(measured, rounds * SHORT, CALLS)
        refusals = await alternating_async((bare_refused, refused), rounds * SHORT, REFUSALS)
        await kept.release()
        await client.close()
        await channel.close()
        if aetcd is not None:
            await theirs.close()
        return values, refusals

    values, refusals = asyncio.run(measure())
    figures = [
        *times("async ", values, refusals),
        ratio("async acquire + release / bare aio", values, "pair", "bare_pair", 1.6),
        ratio("async refused / bare aio", refusals, "refused", "bare_refused", 0.8),
    ]
    if aetcd is not None:
        figures.append(ratio("async acquire + release / aetcd's Lock", values, "pair", "lock", 1.0))
    return figures


def measure(rounds: int) -> list[Figure]:
    with Etcd(heartbeat_interval="100", election_timeout="1000") as server:
        return [
            *pairs(server, rounds),
            *hand_offs(server, rounds),
            *asynchronous(server, rounds),
            *renewals(server, rounds),
        ]


if __name__ == "__main__":
    main(measure, __doc__ or "")
