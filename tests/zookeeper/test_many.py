# SPDX-License-Identifier: MIT
"""Many leases, and many that wait."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import rota
from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.connection import _CONNECTION_DROP
from rota.backend import LEASE, RELEASED, WON, Claim, Renewal, Settlement
from rota.duration import DAY, SECOND
from rota_zookeeper import AsyncZookeeperDriver, ZookeeperDriver, _line
from rota_zookeeper._record import Known, pack
from rota_zookeeper._verbs import may_remove
from servers import ZooKeeper

RETENTION = 30 * DAY


# -- many leases


def test_ten_thousand_leases_are_renewed_by_forty_transactions(
    driver: Any, other: Any, server: ZooKeeper, kazoo: Any, monkeypatch: Any, name: str
) -> None:
    claims = [claim_of_many(f"{name}/{number}") for number in range(10_000)]
    fill(driver, kazoo(server), claims)
    renewals = [Renewal(claim.name, claim.owner, 30 * SECOND, RETENTION) for claim in claims]
    commits: list[int] = []
    inner = TransactionRequest.commit_async
    monkeypatch.setattr(TransactionRequest, "commit_async", lambda self: commits.append(len(self.operations)) or inner(self))
    for _ in range(2):  # by a client that has not seen them, and by one that knows them
        commits.clear()
        for first in range(0, len(renewals), 1000):  # as the heartbeat calls it
            assert all(driver.renew(renewals[first : first + 1000], 20.0).held)
        assert commits == [250] * 40
    # one that somebody else took drops out of its transaction, and the rest is sent again
    commits.clear()
    assert other.forget(claims[10].name, 5.0)
    held = driver.renew(renewals[:1000], 20.0).held
    assert [number for number, is_held in enumerate(held) if not is_held] == [10]
    assert commits == [250] * 4 + [249]


def claim_of_many(name: str) -> Claim:
    return Claim(name, os.urandom(16).hex(), "test", LEASE, 600 * SECOND, 2**60, RETENTION)


def fill(driver: ZookeeperDriver, raw: KazooClient, claims: list[Claim]) -> None:
    """Write claims as they would be written one by one, many at a time."""
    driver.now(5.0)
    paths = [driver.verbs.path(claim.name) for claim in claims]
    for later in [raw.create_async(path) for path in {path.rpartition("/")[0] for path in paths}]:
        later.wait(20)
    for first in range(0, len(claims), 250):
        transaction = raw.transaction()
        for claim, path in zip(claims[first : first + 250], paths[first : first + 250], strict=True):
            transaction.create(path, pack("claim", None, claim))
        transaction.commit_async()
    raw.sync("/")


def test_large_histories_are_kept_below_jute_maxbuffer(driver: Any, server: ZooKeeper, kazoo: Any, name: str, win: Any) -> None:
    claims = [claim_of_many(f"{name}/{number}") for number in range(150)]
    fill(driver, kazoo(server), claims)
    again = []
    for claim in claims:
        assert driver.settle(Settlement(claim.name, claim.owner, RELEASED, RETENTION, os.urandom(4096)), 10.0).applied
        again.append(claim_of_many(claim.name))
        win(driver, again[-1])
    assert all(driver.renew([Renewal(claim.name, claim.owner, 30 * SECOND, RETENTION) for claim in again], 10.0).held)


# -- waiting


def places(raw: Any, path: str) -> list[str]:
    return raw.get_children(path)


def test_l8_a_thousand_cancelled_waits_leave_no_node(
    driver: Any, server: ZooKeeper, kazoo: Any, name: str, until: Any, claim_of: Any, win: Any
) -> None:
    claim = claim_of(driver, name)
    win(driver, claim)
    twin, raw, path = AsyncZookeeperDriver(driver), kazoo(server), driver.verbs.path(name)

    async def cancelled() -> None:
        for turn in range(4):
            waits = [asyncio.create_task(twin.watch(name, claim.owner, 60.0)) for _ in range(250)]
            if turn:  # in the first turn they are cancelled before anything was answered
                await asyncio.to_thread(until, lambda: len(places(raw, path)) == 250)
            else:
                await asyncio.sleep(0)
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    asyncio.run(cancelled())
    until(lambda: places(raw, path) == [])
    assert not driver.verbs.line._waiting
    assert len(driver.verbs.link._client._data_watchers.get(path, ())) <= 1


def test_l8_a_place_whose_making_was_not_answered_is_left_too(
    driver: Any, server: ZooKeeper, kazoo: Any, name: str, until: Any, claim_of: Any, win: Any, answers: Any, interrupt: Any
) -> None:
    claim = claim_of(driver, name)
    win(driver, claim)
    raw, path = kazoo(server), driver.verbs.path(name)
    server.pause()
    try:
        assert driver.watch(name, claim.owner, 0.2) is False
    finally:
        server.resume()
    until(lambda: answers(driver, name))
    # a place that is there, of a wait that ended when the connection broke
    driver.verbs.link._client.create(f"{path}/w-abandoned-", ephemeral=True, sequence=True)
    driver.verbs.line._lost.append((path, "w-abandoned-"))
    interrupt(driver, _CONNECTION_DROP)
    until(lambda: places(raw, path) == [])


def test_l8_a_place_is_left_of_which_it_is_learned_late_that_the_connection_broke(
    driver: Any, server: ZooKeeper, kazoo: Any, name: str, until: Any, claim_of: Any, win: Any
) -> None:
    """As by an event loop that was busy until there was a connection again."""
    win(driver, claim_of(driver, name))
    raw, path, client = kazoo(server), driver.verbs.path(name), driver.verbs.link.ready
    client.create(f"{path}/w-late-", ephemeral=True, sequence=True)
    late = client.handler.async_result()
    late.set_exception(ConnectionLoss())
    driver.verbs.line._leave(client, path, "w-late-", late)
    until(lambda: places(raw, path) == [])


def test_a_release_wakes_one_waiter_and_not_all(
    server: ZooKeeper, driver_for: Any, name: str, until: Any, kazoo: Any, claim_of: Any, win: Any
) -> None:
    drivers = [driver_for(server.url("/line")) for _ in range(6)]
    holder = claim_of(drivers[0], name)
    win(drivers[0], holder)
    raw, path = kazoo(server), drivers[0].verbs.path(name)
    woken: list[int] = []
    ends: list[threading.Event] = [threading.Event() for _ in drivers]

    def wait(number: int) -> None:
        owner = holder.owner
        while drivers[number].watch(name, owner, 30.0) and not ends[number].is_set():
            answer = drivers[number].claim(claim_of(drivers[number], name), 5.0)
            woken.append(number)
            if answer.verdict == WON:
                ends[number].wait(30)
                drivers[number].settle(Settlement(name, answer.record.owner, RELEASED, RETENTION), 5.0)
                return
            owner = answer.record.owner

    threads = []
    for number in range(1, 6):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        until(lambda number=number: len(places(raw, path)) == number)
    drivers[0].settle(Settlement(name, holder.owner, RELEASED, RETENTION), 5.0)
    for number in range(1, 6):  # in the order in which they came, each alone
        until(lambda number=number: woken[-1:] == [number])
        assert len(woken) <= 2 * number, f"more were woken than the next one: {woken}"
        ends[number].set()
    for thread in threads:
        thread.join(30)
    until(lambda: places(raw, path) == [])


def test_a_place_is_kept_for_the_claim_that_follows_the_wait(
    driver: Any, server: ZooKeeper, kazoo: Any, name: str, until: Any, claim_of: Any, win: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(_line, "UNCLAIMED", 30.0)
    other = claim_of(driver, f"{name}/other")
    win(driver, other)
    path = wait_for_a_release(driver, name, until, kazoo(server), claim_of, win)
    driver.settle(Settlement(other.name, other.owner, RELEASED, RETENTION), 5.0)  # this is no claim
    assert len(places(kazoo(server), path)) == 1
    win(driver, claim_of(driver, name))
    until(lambda: places(kazoo(server), path) == [])


def test_l8_a_place_is_left_though_no_claim_follows_the_wait(
    driver: Any, server: ZooKeeper, kazoo: Any, name: str, until: Any, claim_of: Any, win: Any
) -> None:
    path = wait_for_a_release(driver, name, until, kazoo(server), claim_of, win)
    until(lambda: places(kazoo(server), path) == [])


def wait_for_a_release(driver: Any, name: str, until: Any, raw: Any, claim_of: Any, win: Any) -> str:
    holder, path = claim_of(driver, name), driver.verbs.path(name)
    win(driver, holder)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(driver.watch, name, holder.owner, 30.0)
        until(lambda: places(raw, path))
        driver.settle(Settlement(name, holder.owner, RELEASED, RETENTION), 5.0)
        assert waiting.result(30) is True
    return str(path)


def test_r3_a_sweep_removes_claims_that_came_to_nothing() -> None:
    assert not may_remove(Known(None, 0, b"", 1_000), 1_000_000 + DAY)
    assert may_remove(Known(None, 0, b"", 1_000), 1_000_001 + DAY)


def test_a_client_holds_on_to_few_threads(server: ZooKeeper, connect: Any, name: str) -> None:
    before = threading.active_count()
    client: rota.Client = connect(server.url("/threads"))
    for number in range(50):
        assert client.try_lease(f"{name}/{number}")
    assert threading.active_count() - before <= 6, "three of kazoo's, the heartbeat, the watchdog, the observers"
