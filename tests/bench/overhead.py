# SPDX-License-Identifier: MIT
"""What the engine adds to the driver's two verbs: (try_lease + release - claim - settle) / 2, on memory and on its native async twin.

The baseline makes its two requests in the loop, a fresh random owner id in each, as whoever calls a driver must; it keeps a ready history
of the usual length. Beyond that everything a claim costs counts: the grant, the heartbeat's bookkeeping, the history, the clocks. The
stricter figure, against requests made before the clock started, is shown too. Each side works on one name of a store of its own, with
garbage collection off.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import time
from collections.abc import Awaitable, Callable

import rota
from rota.backend import Claim, Settlement
from rounds import Figure, main

#: Pairs of verbs in a round: a round takes a few hundredths of a second.
PAIRS = 2000
TTL, RETENTION = 30_000_000, 30 * 86_400_000_000
UNTIL = time.time_ns() // 1000 + 86_400_000_000
#: 20 runs.
HISTORY = b"\t\t1700000000000000\t1700000000000000\t1700000000000000\treleased\thost:1234\n" * 20


def request() -> tuple[Claim, Settlement]:
    """Return the two requests of one lease, as the engine would make them."""
    owner = os.urandom(16).hex()
    return Claim("job", owner, "host:1234", "lease", TTL, UNTIL, RETENTION), Settlement("job", owner, "released", RETENTION, HISTORY)


async def rounds_of(loops: dict[str, Callable[[], Awaitable[None]]], rounds: int) -> dict[str, list[float]]:
    """Run each loop once a round, in turn; return microseconds per verb. The first round only warms."""
    values: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(rounds + 1):
        for name in list(loops) if number % 2 else reversed(list(loops)):
            made.extend(request() for _ in range(PAIRS) if name == "made beforehand")
            gc.collect()
            gc.disable()
            started = time.perf_counter()
            await loops[name]()
            ended = time.perf_counter()
            gc.enable()
            made.clear()
            if number:
                values[name].append((ended - started) / PAIRS / 2 * 1e6)
    return values


made: list[tuple[Claim, Settlement]] = []


async def blocking(rounds: int) -> dict[str, list[float]]:
    client, other = rota.connect("memory://"), rota.connect("memory://")
    driver = other.driver

    async def engine() -> None:
        for _ in range(PAIRS):
            client.try_lease("job").release()  # type: ignore[union-attr]

    async def verbs() -> None:
        for _ in range(PAIRS):
            claim, settlement = request()
            driver.claim(claim, 1.5)
            driver.settle(settlement, 1.5)

    async def beforehand() -> None:
        for claim, settlement in made:
            driver.claim(claim, 1.5)
            driver.settle(settlement, 1.5)

    with client, other:
        return await rounds_of({"engine": engine, "made in the loop": verbs, "made beforehand": beforehand}, rounds)


async def asynchronous(rounds: int) -> dict[str, list[float]]:
    client, other = rota.connect_async("memory://"), rota.connect_async("memory://")
    twin = other._twin
    assert twin is not None

    async def engine() -> None:
        for _ in range(PAIRS):
            await (await client.try_lease("job")).release()  # type: ignore[union-attr]

    async def verbs() -> None:
        for _ in range(PAIRS):
            claim, settlement = request()
            await twin.claim(claim, 1.5)
            await twin.settle(settlement, 1.5)

    async def beforehand() -> None:
        for claim, settlement in made:
            await twin.claim(claim, 1.5)
            await twin.settle(settlement, 1.5)

    async with client, other:
        return await rounds_of({"engine": engine, "made in the loop": verbs, "made beforehand": beforehand}, rounds)


def figures(rounds: int) -> list[Figure]:
    found = []
    for face, measure, bound in (("blocking", blocking, 5.0), ("async", asynchronous, 6.0)):
        values = asyncio.run(measure(rounds))
        found.append(Figure(f"{face}: a verb by the engine", values["engine"], "µs", None))
        for how in ("made in the loop", "made beforehand"):
            found.append(Figure(f"{face}: a driver's verb, request {how}", values[how], "µs", None, "baseline"))
            overhead = [value - statistics.median(values[how]) for value in values["engine"]]
            found.append(Figure(f"{face}: overhead per verb, request {how}", overhead, "µs", bound if how == "made in the loop" else None))
    return found


if __name__ == "__main__":
    main(figures, __doc__)
