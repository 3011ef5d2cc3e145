# SPDX-License-Identifier: MIT
"""Losing a lease: the holder is told before it can be somebody else's (L3, L5, L6, F2)."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from rota import ConfigurationError, Every, LeaseLost, Unavailable

blocking = pytest.mark.parametrize("face", ["blocking"], indirect=True)
on_loop = pytest.mark.parametrize("face", ["async"], indirect=True)
on_sqlite = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)


def work(grant: Any, clock: Any) -> list[int]:
    """Guarded steps until `check` forbids one; returns the store's time after each."""
    steps = []
    while True:
        try:
            grant.check()
        except LeaseLost:
            return steps
        steps.append(clock())
        time.sleep(0.003)


# -- the four ways of losing it unnoticed

STOPPED = """
import os, signal, sys, time
import rota
from rota._clock import monotonic

url, name, ttl = sys.argv[1:]
told = []
client = rota.connect(url)
grant = client.try_lease(name, ttl=float(ttl), on_lost=lambda grant: told.append(monotonic()))
grant.check()
print(grant.token, flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
resumed = monotonic()
try:
    grant.check()
    print("took a step", flush=True)
except rota.LeaseLost:
    print("lost", flush=True)
while not told and monotonic() < resumed + 10:
    time.sleep(0.002)
assert grant.lost and grant.lost and grant.remaining() == 0
print(told[0] - resumed, flush=True)
try:
    grant.release()
    print("released", flush=True)
except rota.LeaseLost:
    print("lost", flush=True)
client.close()
"""


@on_sqlite
@blocking
@pytest.mark.by_the_clock
def test_a_process_stopped_for_two_ttls_takes_no_step_after_it_resumes(live: Any, program: Any, stopwatch: Any) -> None:
    """L6, L4: SIGSTOP, 2 ttl, SIGCONT: the first `check` raises, and its release touches nothing of the successor."""
    ttl = 0.5
    stopped = program(STOPPED, live.url, live.name, str(ttl))
    token = int(stopped.line())
    live.until(lambda: Path(f"/proc/{stopped.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    since = time.monotonic()
    successor = live.until(lambda: live.client().try_lease(live.name, ttl=30))
    live.until(lambda: time.monotonic() - since > 2 * ttl)
    resumed = stopwatch()
    stopped.process.send_signal(18)  # SIGCONT
    assert stopped.line() == "lost"
    assert float(stopped.line()) < 0.1 + resumed.late
    assert stopped.line() == "lost"
    stopped.end()
    assert successor.token > token
    successor.check()
    assert live.read().token == successor.token
    assert live.read().owner != ""


LOCKER = """
import sqlite3, sys

connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
"""


@on_sqlite
@pytest.mark.by_the_clock
def test_a_file_locked_for_longer_than_the_ttl(live: Any, program: Any, stopwatch: Any) -> None:
    """L6, F1: another process holds the file; every guarded step comes before the lease's end, and claims stay bounded."""
    holder, other = live.client(), live.client(timeout=0.2)
    grant = holder.try_lease(live.name, ttl=0.6)
    assert other.try_lease(live.name, ttl=0.6, timeout=0.1).verdict == "busy"
    locker = program(LOCKER, live.path)
    assert locker.line() == "locked"
    steps = work(grant, live.clock.store)
    before = stopwatch()
    with pytest.raises(Unavailable):
        other.try_lease(live.name, ttl=0.6)
    assert before.seconds < 0.2 + 1
    live.until(lambda: live.clock.store() > steps[-1] + 700_000)
    locker.tell()
    locker.end()
    record = live.read()
    assert steps
    assert steps[-1] < record.expires_at
    assert live.until(lambda: live.client().try_lease(live.name, ttl=30))
    assert grant.lost
    with pytest.raises(LeaseLost):
        grant.check()
    with pytest.raises(LeaseLost):
        grant.release()


def test_a_suspend_longer_than_the_ttl(world: Any) -> None:
    """L5, L6: the local clock runs through suspend, so the first `check` afterwards raises, and it stays lost."""
    grant = world.client().try_lease(world.name, ttl=30)
    world.clock.advance(26.9)
    grant.check()
    assert grant.remaining() == pytest.approx(0.1)
    world.clock.advance(0.1)  # the margin of a tenth: 3 s before the store's own end
    with pytest.raises(LeaseLost):
        grant.check()
    assert world.read().expires_at == world.clock.store() + 3_000_000
    assert grant.lost
    assert grant.remaining() == 0


def test_a_local_clock_that_leaps_ahead_alone(world: Any) -> None:
    """L6: to the store the lease is alive; to the holder it is lost for good, whatever its clock says later."""
    client = world.client()
    grant = client.try_lease(world.name, ttl=30)
    world.clock.leap = 27.0
    assert grant.lost
    world.clock.leap = 0.0
    assert grant.lost
    with pytest.raises(LeaseLost):
        grant.check()
    world.clock.run(20, step=5)
    assert client.driver.count("renew") == 0


def test_a_renewal_answered_after_the_deadline_does_not_revive(world: Any) -> None:
    """L5, L6: the store renewed it, but the holder could have been told by then."""
    client = world.client()
    grant = client.try_lease(world.name, ttl=30)
    client.driver.once("renew", world.Fault(then=lambda: world.clock.advance(20)))
    world.clock.advance(10)
    world.clock.beat()
    world.until(lambda: not client._engine.heartbeat.held())
    assert world.read().expires_at == world.clock.store() + 10_000_000  # the store did renew, 20 s ago
    assert grant.lost
    with pytest.raises(LeaseLost):
        grant.check()
    assert client.driver.count("renew") == 1


def test_a_renewal_counts_from_before_it_was_sent(world: Any) -> None:
    """L5: the store's answer took 5 s, which are not the holder's."""
    client = world.client()
    grant = client.try_lease(world.name, ttl=30)
    client.driver.once("renew", world.Fault(then=lambda: world.clock.advance(5)))
    world.clock.advance(10)
    world.clock.beat()
    world.until(lambda: grant.remaining() == pytest.approx(27 - 5))


def test_a_lease_that_the_store_does_not_know_any_more_is_lost_at_the_next_heartbeat(world: Any) -> None:
    """L3, DV-13: an operator, or an eviction: the holder is told, and nothing is put back."""
    client = world.client()
    grant = client.try_lease(world.name, ttl=30)
    driver = world.driver()
    assert driver.forget(world.name, 5.0)
    before = driver.read(world.name, 5.0)[0]
    world.clock.advance(10)
    world.clock.beat()
    world.until(lambda: grant.lost)
    assert driver.read(world.name, 5.0)[0] == before
    assert world.client().try_lease(world.name).token > grant.token
    driver.close()


# -- renewals


def test_dv15_a_hundred_renewals_set_and_never_add(world: Any) -> None:
    """L3: ttl 10 s, a renewal each 3 s: adding would give 710 s. Then the holder dies: free within 10 s."""
    client = world.client()
    grant = client.try_lease(world.name, ttl=10, heartbeat=3)
    token = grant.token
    for _ in range(100):
        world.clock.run(3, step=3)
        assert 0 < world.read().expires_at - world.clock.store() <= 10_000_000
        assert grant.remaining() <= 9.0
    assert client.driver.count("renew") >= 100
    assert world.read().token == token
    client._engine.heartbeat.remove(grant.target if hasattr(grant, "target") else grant)  # as by kill -9
    left = (world.read().expires_at - world.clock.store()) / 1e6
    world.clock.advance(left - 0.000001)
    assert world.client().try_lease(world.name).verdict == "busy"
    world.clock.advance(0.000001)
    assert world.client().try_lease(world.name)


@pytest.mark.parametrize("heartbeat", [10, 12, 9])
@pytest.mark.parametrize("kind", ["memory"], indirect=True)
def test_dv15_a_heartbeat_that_is_too_slow_is_refused(world: Any, heartbeat: int) -> None:
    """L9: before any I/O."""
    client = world.client()
    with pytest.raises(ConfigurationError, match="heartbeat"):
        client.try_lease(world.name, ttl=10, heartbeat=heartbeat)
    assert client.driver.calls == []
    assert client.try_lease(world.name, ttl=10, heartbeat=3)


def test_max_hold_ends_renewals_and_tells_the_holder(world: Any) -> None:
    """L11: after 50 s; the name is free one ttl after the last renewal at the latest."""
    client = world.client()
    grant = client.try_lease(world.name, ttl=30, max_hold=50)
    world.clock.run(49, step=7)
    grant.check()
    assert grant.remaining() == pytest.approx(1.0)
    world.clock.run(1, step=1)
    with pytest.raises(LeaseLost, match="max_hold"):
        grant.check()
    renewals = client.driver.count("renew")
    world.clock.run(30, step=5)
    assert client.driver.count("renew") == renewals
    assert world.client().try_lease(world.name)


# -- being told


@pytest.mark.by_the_clock
def test_on_lost_is_called_within_100_ms_of_the_deadline(live: Any, stopwatch: Any) -> None:
    """L6: whatever the heartbeat is waiting for; once."""
    client, told, watch = live.client(), [], stopwatch()
    grant = client.try_lease(live.name, ttl=0.6, on_lost=lambda grant: told.append((live.clock.local(), grant.lost)))
    client.driver.away(live.HUNG)
    live.until(lambda: told)
    at, lost = told[0]
    assert lost
    assert 0 <= at - grant._deadline < 0.1 + watch.late
    client.driver.back()
    with pytest.raises(LeaseLost):
        grant.check()
    grant.release()  # nobody followed
    assert len(told) == 1


@blocking
@pytest.mark.by_the_clock
def test_on_lost_that_raises_or_dawdles_delays_no_other(live: Any, caplog: pytest.LogCaptureFixture) -> None:
    """L6, L11: renewals and deadlines don't wait for a user's function."""
    client, told = live.client(), []

    def on_lost(grant: Any) -> None:
        told.append(grant.name)
        time.sleep(0.3)
        raise ValueError(grant.name)

    first = client.try_lease(live.name + "-a", ttl=0.5, max_hold=0.1, on_lost=on_lost)
    second = client.try_lease(live.name + "-b", ttl=0.5)
    live.until(lambda: told)
    live.until(lambda: live.read(live.name + "-b").expires_at > second.record.expires_at)
    live.until(lambda: "an on_lost function failed" in caplog.text)
    assert first.lost
    second.check()


@on_loop
@pytest.mark.by_the_clock
def test_the_body_is_cancelled_within_100_ms_and_leaves_by_lease_lost(live: Any, stopwatch: Any) -> None:
    """L6: the cancellation that reaches the body becomes the error it stands for."""

    async def main() -> None:
        client = live.async_client()
        cancelled_at, watch = [], stopwatch()
        with pytest.raises(LeaseLost) as caught:
            async with client.lease(live.name, ttl=0.6) as grant:
                client.driver.away(live.HUNG)
                try:
                    await asyncio.sleep(10)
                except asyncio.CancelledError:
                    cancelled_at.append(live.clock.local())
                    client.driver.back()
                    raise
        assert 0 <= cancelled_at[0] - grant._deadline < 0.1 + watch.late
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)  # it is not cancelled any more
        await client.close()

    asyncio.run(main())


@on_loop
def test_somebody_elses_cancellation_stays_one(live: Any) -> None:
    """L6, W3: a body cancelled from outside leaves by CancelledError, and its lease is released."""

    async def main() -> None:
        client = live.async_client()
        entered = asyncio.Event()

        async def body() -> None:
            async with client.lease(live.name):
                entered.set()
                await asyncio.sleep(10)

        task = asyncio.create_task(body())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert live.read().owner == ""
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), client.lease(live.name):
                await asyncio.sleep(10)
        assert live.read().owner == ""
        await client.close()

    asyncio.run(main())


@on_loop
def test_both_cancellations_at_once_are_somebody_elses(world: Any) -> None:
    """L6: a task that somebody cancelled must end as cancelled, even if the lease was lost as well."""

    async def main() -> None:
        client = world.async_client()
        entered, cancelled = asyncio.Event(), asyncio.Event()

        async def body() -> None:
            async with client.lease(world.name, ttl=10):
                entered.set()
                try:
                    await asyncio.sleep(10)
                except asyncio.CancelledError:
                    cancelled.set()
                    await asyncio.sleep(10)  # cleaning up, slowly

        task = asyncio.create_task(body())
        await entered.wait()
        world.clock.advance(10)
        await cancelled.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await client.close()

    asyncio.run(main())


# -- going on without it


def test_on_lost_continue_goes_on_degraded(world: Any) -> None:
    """F2: from the deadline on; nothing raises, nothing is cancelled, and the success still counts if nobody followed."""
    grant = world.client().try_window(world.name, Every("1h"), ttl=30, on_lost="continue")
    assert not grant.degraded
    world.clock.advance(27)
    grant.check()
    assert grant.degraded
    assert not grant.lost
    assert grant.remaining() == float("inf")
    world.clock.advance(60)
    grant.handled()
    assert world.read().mark == grant.slot.start


def test_on_lost_continue_with_a_successor_is_written_back(world: Any) -> None:
    """F2, F3: the work was done twice; the mark says so, and the successor at work is left alone."""
    client = world.client()
    grant = client.try_window(world.name, Every("1h"), ttl=30, on_lost="continue")
    world.clock.advance(30)
    assert grant.check() is None
    successor = world.client().try_window(world.name, Every("1h"), ttl=30)
    assert successor
    grant.handled()
    assert client.flush(10)
    record = world.read()
    assert record.mark == grant.slot.start
    assert record.token == successor.token
    assert record.owner != ""
    successor.check()


@on_loop
def test_on_lost_continue_cancels_no_body(world: Any) -> None:
    """F2: also not one that is inside ``async with``."""

    async def main() -> None:
        client = world.async_client()
        async with client.lease(world.name, ttl=10, on_lost="continue") as grant:
            world.clock.advance(10)
            grant.check()
            await asyncio.sleep(0.15)
            assert grant.degraded
        await client.close()

    asyncio.run(main())
