# SPDX-License-Identifier: MIT
"""rota on ZooKeeper beside bare kazoo doing the cheapest possible same thing, on one server that this starts.

Acquire and release: ``create`` and ``delete`` of a node; and kazoo's own Lock. Refused, and a slot lost: one ``get``. A slot won: one
``set``; won and handled: two. Hand-off: a ``set`` to somebody who has a watch on the node, and then sets it in turn. Renewals: bare
transactions of 250 for as many nodes.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rota
from kazoo.client import KazooClient
from rota.backend import Renewal
from rounds import Figure, alternating, interleaved, main

sys.path.append(str(Path(__file__).resolve().parents[1]))

import servers

CALLS, HAND_OFFS, LEASES = 100, 10, 1000
CONTENT = b"x" * 300  # about what a lease's record has


def ratio(what: str, rounds: dict[str, list[float]], ours: str, bare: str, bound: float | None) -> list[Figure]:
    pairs = [a / b for a, b in zip(rounds[ours], rounds[bare], strict=True)]
    return [
        Figure(f"{what}: {ours}", rounds[ours], "µs", None),
        Figure(f"{what}: {bare}", rounds[bare], "µs", None),
        Figure(f"{what}: ratio", pairs, "x", bound),
    ]


def blocking(bare: KazooClient, url: str, rounds: int) -> list[Figure]:
    client = rota.connect(url, timeout=10)
    run = uuid.uuid4().hex
    lock = bare.Lock(f"/{run}/lock")
    bare.create(f"/{run}/held", CONTENT, makepath=True)
    held = client.try_lease(f"{run}/held", ttl="1h")
    assert held
    schedule = rota.Every("1s")
    daily = rota.Every("1d")
    with client.window(f"{run}/done", daily):
        pass
    slots = iter(range(int(time.time()) - 7 * 86_400, 2**62))

    def kazoo_pair() -> None:
        bare.create(f"/{run}/pair", CONTENT)
        bare.delete(f"/{run}/pair")

    def kazoo_lock() -> None:
        lock.acquire()
        lock.release()

    def rota_pair() -> None:
        client.try_lease(f"{run}/job").release()

    def kazoo_get() -> None:
        bare.get(f"/{run}/held")

    def rota_refused() -> None:
        assert not client.try_lease(f"{run}/held")

    def rota_lost() -> None:
        assert not client.try_window(f"{run}/done", daily)

    def kazoo_set() -> None:
        bare.set(f"/{run}/held", CONTENT)

    def rota_won() -> Callable[[], object]:
        # of a name that this client has not seen
        return client.try_window(f"{run}/{os.urandom(8).hex()}", daily).handled

    def rota_handled() -> None:
        client.try_window(f"{run}/window", schedule, planned=next(slots), max_late="29d").handled()

    def kazoo_sets() -> None:
        bare.set(f"/{run}/held", CONTENT)
        bare.set(f"/{run}/held", CONTENT)

    measures = (kazoo_pair, kazoo_lock, rota_pair, kazoo_get, rota_refused, rota_lost, kazoo_set, rota_won, kazoo_sets, rota_handled)
    values = alternating(measures, rounds, CALLS)
    client.close()
    return [
        *ratio("acquire + release", values, "rota_pair", "kazoo_pair", 1.5),
        *ratio("acquire + release, beside kazoo's Lock", values, "rota_pair", "kazoo_lock", 1.0),
        *ratio("refused", values, "rota_refused", "kazoo_get", 1.1),
        *ratio("slot won", values, "rota_won", "kazoo_set", 2.2),
        *ratio("slot won and handled, beside two writes", values, "rota_handled", "kazoo_sets", 1.5),
        *ratio("slot lost", values, "rota_lost", "kazoo_get", 1.1),
    ]


# in a process of its own, as on another host: within one, both ends would wait for the same interpreter
WAITER = """
import sys, threading, time, rota
from kazoo.client import KazooClient
bare, client = KazooClient(sys.argv[1]), rota.connect(sys.argv[2])
bare.start()
client.try_lease("warm").release()
for line in sys.stdin:
    how, name = line.split()
    if how == "rota":
        grant = client.try_lease(name, wait=5)
    else:
        changed = threading.Event()
        bare.get(name, watch=lambda event: changed.set())
        changed.wait(5)
        bare.set(name, b"x" * 300)
    print(time.monotonic(), flush=True)
    if how == "rota":
        grant.release()
"""


def hand_off(bare: KazooClient, server: servers.ZooKeeper, url: str, rounds: int) -> list[Figure]:
    """From just before the release until the waiter has it, in the median."""
    client = rota.connect(url, timeout=10)
    command = [sys.executable, "-c", WAITER, f"{servers.HOST}:{server.port}", url]
    waiter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert waiter.stdin is not None
    assert waiter.stdout is not None

    def watches() -> int:
        return sum(line.startswith("\t") for line in server.ask("wchp").splitlines())

    def once(how: str) -> float:
        name = uuid.uuid4().hex if how == "rota" else f"/{uuid.uuid4().hex}"
        grant = client.try_lease(name) if how == "rota" else bare.create(name, CONTENT)
        before = watches()
        waiter.stdin.write(f"{how} {name}\n")
        waiter.stdin.flush()
        while watches() <= before:
            pass
        time.sleep(0.005)
        started = time.monotonic()
        grant.release() if how == "rota" else bare.set(name, CONTENT)
        return (float(waiter.stdout.readline()) - started) * 1e6

    values: dict[str, list[float]] = {"kazoo": [], "rota": []}
    try:
        for _ in range(rounds):
            took: dict[str, list[float]] = {how: [] for how in values}
            for _ in range(HAND_OFFS):
                for how, some in took.items():
                    some.append(once(how))
            for how, some in took.items():
                values[how].append(statistics.median(some))
    finally:
        waiter.kill()
        waiter.wait()
        client.close()
    return ratio("hand-off", values, "rota", "kazoo", 1.5)


def renewals(bare: KazooClient, url: str, rounds: int) -> list[Figure]:
    """One batch of 1,000 renewals, beside four bare transactions of as many writes."""
    client = rota.connect(url, timeout=10)
    run = uuid.uuid4().hex
    grants = [client.try_lease(f"{run}/{number}", ttl="1h") for number in range(LEASES)]
    batch = [Renewal(grant.name, grant._owner, 3_600_000_000, 86_400_000_000) for grant in grants]
    for number in range(LEASES):
        bare.create(f"/{run}/{number}", CONTENT, makepath=True)

    def kazoo_multis() -> None:
        transactions = []
        for first in range(0, LEASES, 250):
            transaction = bare.transaction()
            for number in range(first, first + 250):
                transaction.set_data(f"/{run}/{number}", os.urandom(300))
            transactions.append(transaction.commit_async())
        for transaction in transactions:
            transaction.get()

    def rota_renew() -> None:
        assert all(client.driver.renew(batch, 10).held)

    def took(function: Callable[[], object]) -> float:
        started = time.perf_counter()
        for _ in range(3):
            function()
        return (time.perf_counter() - started) / 3 * 1e6

    values = interleaved({f.__name__: lambda f=f: took(f) for f in (kazoo_multis, rota_renew)}, rounds)
    client.close()
    return ratio("1,000 renewals", values, "rota_renew", "kazoo_multis", None)


def measure(rounds: int) -> list[Figure]:
    with servers.ZooKeeper(forceSync="yes") as server:
        bare: Any = KazooClient(f"{servers.HOST}:{server.port}")
        bare.start()
        url = server.url("/bench")
        try:
            return [*blocking(bare, url, rounds), *hand_off(bare, server, url, rounds), *renewals(bare, url, rounds)]
        finally:
            bare.stop()
            bare.close()


if __name__ == "__main__":
    main(measure, __doc__ or "")
