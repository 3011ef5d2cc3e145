# SPDX-License-Identifier: MIT
"""Threads and asyncio tasks that race for slots in one process (L1, L2, W2, W3, W3a).

A tenth of the winners fail, and a tenth stall beyond their lease and then say that they handled the slot: too late, or first.
Each racer notes what it did in a list of its own; the notes are compared with each other and with the raw records.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import rota

TTL = 0.2
_numbers = itertools.count()


class Holding(NamedTuple):
    """One grant: from when the store gave it until the last instant at which its holder surely held it, and how it ended."""

    name: str
    slot: int
    token: int
    granted: int
    until: int
    ended: str


class Race:
    """The slots, a second long and some minutes old: half of them have a name each, the others share one and are taken in order (W6)."""

    def __init__(self, slots: int) -> None:
        self.first = (int(time.time()) - slots - 10) * 1_000_000
        self.slots = [("shared" if number % 2 else f"slot-{number}", self.first + number * 1_000_000) for number in range(slots)]
        self.holdings: list[Holding] = []  # append is atomic
        self.stalled = 0
        self.deadline = time.monotonic() + 300

    def queues(self) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        own = [slot for slot in self.slots if slot[0] != "shared"]
        random.shuffle(own)
        return own, [slot for slot in self.slots if slot[0] == "shared"]

    def options(self, start: int) -> dict[str, Any]:
        assert time.monotonic() < self.deadline, "the race does not end"
        return {"planned": start / 1_000_000, "ttl": TTL, "timeout": 10}

    def fate(self, start: int, attempt: int) -> str:
        number = (start - self.first) // 1_000_000
        return {3: "fails", 4: "fails", 7: "stalls", 8: "stalls"}.get(number % 20, "works") if attempt == 1 else "works"

    def holding(self, grant: Any, until: int, ended: str) -> None:
        self.holdings.append(Holding(grant.name, grant.slot.start, grant.token, grant.record.granted_at, until, ended))

    def check(self, records: dict[str, Any]) -> None:
        by_name = defaultdict(list)
        for holding in self.holdings:
            by_name[holding.name].append(holding)
        for holdings in by_name.values():
            holdings.sort(key=lambda holding: (holding.granted, holding.token))
            for before, after in itertools.pairwise(holdings):
                assert before.token < after.token
                assert before.until <= after.granted, f"two owners at a time: {before} and {after}"
        ended = Counter(holding.ended for holding in self.holdings)
        handled = Counter((holding.name, holding.slot) for holding in self.holdings if holding.ended == "handled")
        assert handled == dict.fromkeys(self.slots, 1), f"not exactly once: {handled}"
        assert ended["failed"]  # the race had failures and late settlements in it
        assert self.stalled
        for name, holdings in by_name.items():
            record = records[name]
            assert (record.mark, record.outcome, record.owner) == (max(slot for n, slot in self.slots if n == name), "handled", "")
            assert record.token == holdings[-1].token


def wall() -> int:
    return time.time_ns() // 1000


def race_blocking(client: rota.Client, race: Race) -> None:
    own, shared = race.queues()
    while own or shared:
        busy = True
        for queue in (own, shared):
            if queue:
                done = work(client, race, *queue[0])
                busy = busy and done is None
                if done:
                    queue.pop(0)
                elif queue is own:
                    own.append(own.pop(0))
        if busy:
            time.sleep(random.uniform(0.002, 0.02))


def work(client: rota.Client, race: Race, name: str, start: int) -> bool | None:
    verdict = client.try_window(name, rota.Every("1s"), **race.options(start), max_hold=0.1)
    if isinstance(verdict, rota.Refused):
        assert verdict.verdict in ("busy", "handled"), verdict
        return True if verdict.verdict == "handled" else None
    until = verdict.record.granted_at
    fate = race.fate(start, verdict.attempt)
    at = wall()
    if not verdict.lost:
        until = max(until, at)
    if fate == "stalls":
        time.sleep(TTL * random.uniform(0.9, 1.5))  # max_hold is over: the lease runs out around this time
        race.stalled += 1
    try:
        verdict.failed() if fate == "fails" else verdict.handled()
    except rota.LeaseLost:
        race.holding(verdict, until, "lost")
        return False
    race.holding(verdict, until, verdict.outcome)
    return fate != "fails"


def run_threads(clients: list[rota.Client], threads: int, race: Race) -> None:
    errors: list[BaseException] = []

    def body(client: rota.Client) -> None:
        try:
            race_blocking(client, race)
        except BaseException as error:
            errors.append(error)
            race.deadline = 0

    running = [threading.Thread(target=body, args=(client,)) for client, _ in zip(itertools.cycle(clients), range(threads), strict=False)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("shared", [True, False], ids=["one client", "a client each"])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_L1_W3_sixteen_threads_handle_every_slot_exactly_once(tmp_path: Path, store: str, shared: bool) -> None:
    url = f"memory://race-{next(_numbers)}" if store == "memory" else f"sqlite://{tmp_path / 'rota.db'}"
    race = Race(200 if store == "memory" else 100)
    clients = [rota.connect(url) for _ in range(1 if shared else 16)]
    try:
        run_threads(clients, 16, race)
        race.check({record.name: record for record in clients[0].driver.list("", 5.0)})
    finally:
        for client in clients:
            client.close()


async def race_async(client: rota.AsyncClient, race: Race) -> None:
    own, shared = race.queues()
    while own or shared:
        busy = True
        for queue in (own, shared):
            if queue:
                done = await work_async(client, race, *queue[0])
                busy = busy and done is None
                if done:
                    queue.pop(0)
                elif queue is own:
                    own.append(own.pop(0))
        await asyncio.sleep(random.uniform(0.01, 0.1) if busy else 0)


async def work_async(client: rota.AsyncClient, race: Race, name: str, start: int) -> bool | None:
    verdict = await client.try_window(name, rota.Every("1s"), **race.options(start), max_hold=0.1)
    if isinstance(verdict, rota.Refused):
        assert verdict.verdict in ("busy", "handled"), verdict
        return True if verdict.verdict == "handled" else None
    until = verdict.record.granted_at
    fate = race.fate(start, verdict.attempt)
    await asyncio.sleep(0)
    at = wall()
    if not verdict.lost:
        until = max(until, at)
    if fate == "stalls":
        await asyncio.sleep(TTL * random.uniform(0.9, 1.5))
        race.stalled += 1
    try:
        await (verdict.failed() if fate == "fails" else verdict.handled())
    except rota.LeaseLost:
        race.holding(verdict, until, "lost")
        return False
    race.holding(verdict, until, verdict.outcome)
    return fate != "fails"


@pytest.mark.parametrize(("store", "tasks", "slots"), [("memory", 500, 200), ("sqlite", 100, 40)])
def test_L1_W3_tasks_handle_every_slot_exactly_once(tmp_path: Path, store: str, tasks: int, slots: int) -> None:
    """500 tasks on memory's native driver; 100 on SQLite, whose calls threads carry."""
    url = f"memory://race-{next(_numbers)}" if store == "memory" else f"sqlite://{tmp_path / 'rota.db'}"
    race = Race(slots)

    async def main() -> dict[str, Any]:
        async with rota.connect_async(url) as client:
            async with asyncio.TaskGroup() as group:
                for _ in range(tasks):
                    group.create_task(race_async(client, race))
            return {record.name: record for record in await asyncio.to_thread(client.driver.list, "", 5.0)}

    race.check(asyncio.run(main()))
