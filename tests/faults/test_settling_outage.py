# SPDX-License-Identifier: MIT
"""Settlements that are late, repeated, lost or impossible for a while (W3a, L4, F5)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import rota
from rota import Every, LeaseLost, Unrecorded
from rota._settling import gone
from rota.backend import HANDLED, Override, Record, WriteBack
from rota.history import runs

on_loop = pytest.mark.parametrize("face", ["async"], indirect=True)
HOURLY = Every("1h")


@pytest.fixture
def events(world: Any) -> Any:
    """What observers are told of this test's names: (outcome, expired) of each settlement."""

    class Observer:
        def __init__(self) -> None:
            self.settled: list[tuple[str, bool]] = []

        @rota.hookimpl
        def rota_settled(self, grant: Any, outcome: str, expired: bool) -> None:
            if grant.name.startswith(world.name):
                self.settled.append((outcome, expired))

    observer = Observer()
    rota.register(observer)
    yield observer
    rota.unregister(observer)


def settles(client: Any) -> list[Any]:
    return [call[1] for call in client.driver.calls if call[0] == "settle"]


# -- delayed beyond expiry


def test_a_success_that_arrives_after_expiry_counts_if_nobody_followed(world: Any, events: Any) -> None:
    """W3a: the mark moves, and the answer says that the lease had run out."""
    client = world.client()
    with client.window(world.name, HOURLY, ttl=10) as grant:
        world.clock.advance(11)
    record = world.read()
    assert record.mark == grant.slot.start
    assert (record.outcome, record.last_expired) == (HANDLED, True)
    assert grant.lost
    assert grant.outcome == HANDLED
    world.until(lambda: events.settled)
    assert events.settled == [(HANDLED, True)]
    assert world.client().try_window(world.name, HOURLY).verdict == "handled"


def test_a_settlement_that_is_on_its_way_while_the_lease_runs_out(world: Any) -> None:
    """W3a: sent in time, decided by the store's clock after expiry."""
    client = world.client(timeout=5)
    grant = client.try_window(world.name, HOURLY, ttl=10)
    client.driver.once("settle", world.REQUEST_LOST._replace(then=lambda: world.clock.advance(11)))
    with pytest.raises(Unrecorded):  # the time to wait is over
        grant.handled()
    assert client.flush(10)
    assert world.read().mark == grant.slot.start
    assert world.read().last_expired
    assert grant.outcome == HANDLED
    assert grant.lost, "the settlement that was kept told of it"


def test_a_success_after_a_later_grant_moves_nothing(world: Any) -> None:
    """W3a, L4: it says lost, every time that it is asked, and the successor does the slot's work."""
    first = world.client().try_window(world.name, HOURLY, ttl=10)
    world.clock.advance(10)
    second = world.client().try_window(world.name, HOURLY, ttl=10)
    assert second.token > first.token
    before = world.read()
    for _ in range(2):
        with pytest.raises(LeaseLost):
            first.handled()
    assert first.outcome == "lost"
    assert world.read() == before
    assert before.mark is None
    second.handled()
    assert world.read().mark == second.slot.start


def test_a_body_that_ends_well_after_a_later_grant_raises(world: Any) -> None:
    """W3a: leaving the block says so too; a body that raises by itself keeps its own error."""
    client = world.client()
    with pytest.raises(LeaseLost), client.window(world.name, HOURLY, ttl=10):
        world.clock.advance(10)
        assert world.client().try_window(world.name, HOURLY, ttl=10)
    world.clock.advance(10)
    with pytest.raises(ZeroDivisionError), client.window(world.name, HOURLY, ttl=10):
        world.clock.advance(10)
        assert world.client().try_window(world.name, HOURLY, ttl=10)
        raise ZeroDivisionError
    assert world.read().mark is None


def test_what_became_of_a_lost_grant_is_told_as_far_as_the_record_tells() -> None:
    """L2, L4: no later grant is claimed of a store that has lost this one, or that an operator told to let go."""
    granted = Record("job", "lease", token=7, label="host:1")
    assert gone(None, 7) == "the store has no record of it any more"
    assert gone(granted._replace(token=6, owner="a"), 7).startswith("the store knows nothing of this grant")
    assert gone(Record("job", token=8), 7) == "it was forgotten by an operator"
    changed = granted._replace(token=8, last_owner="operator", label="root@vm: stuck")
    assert gone(changed, 7) == "it was taken away by an operator, root@vm: stuck"
    later = changed._replace(token=9, label="host:2")
    for record in (later._replace(owner="b"), later._replace(last_owner="b")):
        assert gone(record, 7) == "a later grant was made, to host:2"


def test_a_body_that_finds_out_by_itself_is_told_the_rest_as_it_is_left(world: Any) -> None:
    """L6: `check` asks nobody, so its error learns who took the lease away from the settlement."""
    client = world.client()
    with pytest.raises(LeaseLost, match="not held any more") as raised, client.lease(world.name, ttl=30) as grant:
        assert world.driver().override(Override(world.name, "released", "root@vm: stuck", 10**12), 5).applied
        world.clock.run(15, step=5)
        world.until(lambda: grant.lost)
        grant.check()
    told = [str(raised.value), *getattr(raised.value, "__notes__", [])]
    assert any(line.endswith("it was taken away by an operator, root@vm: stuck") for line in told)


# -- repeated


def test_a_repeated_settlement_answers_the_same(world: Any) -> None:
    """L4: at the driver, with whatever it is repeated; at the grant, without another call."""
    client = world.client()
    grant = client.try_window(world.name, HOURLY)
    grant.handled()
    grant.handled()
    grant.failed()  # as in `finally`: it is settled, and stays as it is
    (settlement,) = settles(client)
    driver = world.driver()
    before = driver.read(world.name, 5)[0]
    for result in (HANDLED, "failed"):
        again = driver.settle(settlement._replace(result=result), 5)
        assert (again.applied, again.result, again.expired) == (True, HANDLED, False)
    assert driver.read(world.name, 5)[0] == before
    world.clock.advance(3600)
    later = world.client().try_window(world.name, HOURLY)
    assert later
    assert driver.settle(settlement, 5).applied is False
    assert driver.read(world.name, 5)[0].token == later.token
    driver.close()


def test_a_success_is_not_said_of_a_grant_that_was_given_back(world: Any) -> None:
    """L4, W3: `handled` after `failed` must not look recorded."""
    grant = world.client().try_window(world.name, HOURLY)
    grant.failed()
    with pytest.raises(LeaseLost):
        grant.handled()
    assert world.read().mark is None


# -- the reply is lost


def test_a_settlement_whose_reply_is_lost_is_recorded_once_and_not_lost(world: Any, events: Any) -> None:
    """L4, F5: applied; said again, the store answers as the first time."""
    client = world.client()
    client.driver.once("settle", world.REPLY_LOST)
    with client.window(world.name, HOURLY) as grant:
        pass
    assert grant.outcome == HANDLED
    record = world.read()
    assert record.mark == grant.slot.start
    assert [run.outcome for run in runs(record.history)] == [HANDLED]
    assert len(settles(client)) == 2
    assert len(set(settles(client))) == 1
    world.until(lambda: events.settled)
    assert events.settled == [(HANDLED, False)]


def test_a_lost_reply_and_a_later_grant_in_between_is_still_recorded(world: Any) -> None:
    """L4, W3a: the repeat meets the next slot's holder, and `last_owner` tells that the first time counted."""
    client = world.client(timeout=9)
    grant = client.try_window(world.name, HOURLY)
    later: list[Any] = []

    def next_slot() -> None:
        world.clock.passed += 3600_000_000
        world.clock.leap -= 3600  # to the client no time has gone by
        driver = world.driver()
        claim = next(call[1] for call in client.driver.calls if call[0] == "claim")
        now = world.clock.store()
        following = claim._replace(
            owner="f" * 32,
            apply_until=now + 1_000_000,
            slot_start=claim.slot_end,
            slot_end=now + 7200_000_000,
            not_before=0,
            late_from=None,
        )
        later.append(driver.claim(following, 5))
        driver.close()

    client.driver.once("settle", world.REPLY_LOST._replace(then=next_slot))
    grant.handled()
    assert later[0].verdict == "won"
    assert grant.outcome == HANDLED
    assert world.read().mark == grant.slot.start
    assert world.read().owner == "f" * 32


# -- the store is away


def test_a_success_while_the_store_is_away_is_kept_and_recorded_when_it_is_back(world: Any, events: Any) -> None:
    """F5: Unrecorded after `timeout`; renewals go on; then the keeper records it, by the same settlement."""
    client = world.client(timeout=1)
    grant = client.try_window(world.name, HOURLY, ttl=30)
    client.driver.away(world.REFUSED._replace(then=lambda: world.clock.advance(0.3)), verbs="settle")
    with pytest.raises(Unrecorded):
        grant.handled()
    assert grant.outcome == "unrecorded"
    with pytest.raises(Unrecorded):
        grant.handled()
    client.driver.away(verbs="settle")
    world.clock.run(120, step=5)  # four ttls
    assert world.read().owner, "it was renewed"
    assert world.client().try_window(world.name, HOURLY).verdict == "busy"
    grant.check()
    client.driver.back()
    assert client.flush(10)
    assert grant.outcome == HANDLED
    grant.handled()
    world.clock.advance(60)
    assert not grant.lost, "it was renewed until it was recorded, and lost nothing"
    record = world.read()
    assert (record.mark, record.outcome, record.last_expired) == (grant.slot.start, HANDLED, False)
    assert len(set(settles(client))) == 1
    world.until(lambda: len(events.settled) == 2)
    assert events.settled == [("unrecorded", False), (HANDLED, False)]
    renewals = client.driver.count("renew")
    world.clock.run(60, step=5)
    assert client.driver.count("renew") == renewals, "and is renewed no longer"


def test_a_success_is_still_recorded_after_the_lease_ran_out(world: Any, events: Any) -> None:
    """F5, W3a: the store was away for everything, longer than the ttl."""
    client = world.client(timeout=1)
    grant = client.try_window(world.name, HOURLY, ttl=30)
    client.driver.away(world.REFUSED._replace(then=lambda: world.clock.advance(0.3)))
    with pytest.raises(Unrecorded):
        grant.handled()
    client.driver.away()
    world.clock.advance(600)
    client.driver.back()
    assert client.flush(10)
    assert world.read().mark == grant.slot.start
    assert grant.lost
    world.until(lambda: len(events.settled) == 2)
    assert events.settled == [("unrecorded", False), (HANDLED, True)]
    assert world.client().try_window(world.name, HOURLY).verdict == "handled"


def test_a_success_overtaken_by_a_later_grant_is_written_back(world: Any) -> None:
    """F5, F3: the slot was done; the later holder at work is left alone, and the next claim finds the mark."""
    client = world.client(timeout=1)
    grant = client.try_window(world.name, HOURLY, ttl=30)
    client.driver.away(world.REFUSED._replace(then=lambda: world.clock.advance(0.3)))
    with pytest.raises(Unrecorded):
        grant.handled()
    client.driver.away()
    world.clock.advance(60)
    successor = world.client().try_window(world.name, HOURLY, ttl=30)
    assert successor
    client.driver.back()
    assert client.flush(10)
    record = world.read()
    assert (record.mark, record.token) == (grant.slot.start, successor.token)
    assert record.owner != ""
    successor.check()
    assert grant.lost
    assert any(isinstance(call[1], WriteBack) for call in client.driver.calls)


def test_two_hours_of_work_and_the_store_away_at_its_end(world: Any) -> None:
    """F5: held through 240 heartbeats of 30 s; the success survives the outage."""
    client = world.client(timeout=1)
    grant = client.try_window(world.name, HOURLY, ttl=90)
    world.clock.run(7200, step=30)
    grant.check()
    client.driver.away(world.REFUSED._replace(then=lambda: world.clock.advance(0.3)))
    with pytest.raises(Unrecorded):
        grant.handled()
    client.driver.back()
    assert client.flush(10)
    record = world.read()
    assert (record.mark, record.last_expired) == (grant.slot.start, False)
    assert client.driver.count("renew") >= 200
    run = runs(record.history)[0]
    assert (run.ended_at - run.started_at) // 1_000_000 in range(7200, 7203)


def test_closing_says_what_is_unsaid_once_more(world: Any) -> None:
    """F5: the store came back a moment before the end."""
    client = world.client(timeout=1)
    grant = client.try_window(world.name, HOURLY, ttl=30)
    client.driver.away(world.REFUSED._replace(then=lambda: world.clock.advance(0.3)))
    with pytest.raises(Unrecorded):
        grant.handled()
    client.driver.back()
    client.close()
    assert world.read().mark == grant.slot.start


def test_what_is_unsaid_when_its_client_is_closed_is_given_up(world: Any, events: Any) -> None:
    """F5: nobody tries any more, and that is said."""
    client = world.client(timeout=0.2)
    grant = client.try_window(world.name, HOURLY, ttl=30)
    client.driver.away(world.REFUSED._replace(then=lambda: world.clock.advance(0.3)))
    with pytest.raises(Unrecorded, match="not confirmed yet and kept"):
        grant.handled()
    client.close()
    assert grant.outcome == "given up: the client is closed"
    with pytest.raises(Unrecorded, match="the work is done, its outcome is not recorded: given up"):
        grant.handled()
    world.until(lambda: len(events.settled) == 2)
    assert events.settled == [("unrecorded", False), (grant.outcome, False)]


def test_a_failure_or_release_that_is_not_confirmed_raises_nothing(world: Any) -> None:
    """F5: expiry does it, and the keeper does it sooner."""
    client = world.client(timeout=1)
    failed = client.try_window(world.name, HOURLY, ttl=30)
    released = client.try_lease(world.name + "-lease", ttl=30)
    client.driver.away(world.REFUSED._replace(then=lambda: world.clock.advance(0.3)))
    failed.failed()
    released.release()
    assert world.read().owner != ""
    world.clock.advance(10)
    for grant in (failed, released):
        assert not grant.lost, "its holder gave it up, and lost nothing"
        with pytest.raises(LeaseLost):
            grant.check()
    client.driver.back()
    assert client.flush(10)
    assert not world.read().owner
    assert not world.read(world.name + "-lease").owner
    assert world.client().try_window(world.name, HOURLY).attempt == 2


@pytest.mark.parametrize(("on_lost", "outcome"), [("stop", "failed"), ("continue", "failed"), ("stop", "released")])
def test_a_lost_lease_that_ends_without_success_waits_for_no_store_that_is_away(
    world: Any, monkeypatch: Any, on_lost: str, outcome: str
) -> None:
    """L6, F5: whoever catches LeaseLost outside the block is there at once; the keeper says the rest."""
    client = world.client(timeout=1)
    waited_for: list[Any] = []
    settle = client._engine.io.settle
    monkeypatch.setattr(client._engine.io, "settle", lambda *given: waited_for.append(given) or settle(*given))
    options = {"ttl": 6, "on_lost": on_lost}
    entered = client.window(world.name, HOURLY, **options) if outcome == "failed" else client.lease(world.name, **options)
    client.driver.away(world.REFUSED, verbs="renew settle")
    with pytest.raises(LeaseLost), entered as grant:
        world.clock.run(6, step=1)
        assert grant.degraded is (on_lost == "continue")
        grant.check()
        raise LeaseLost("it goes on degraded, and finds out by itself")
    assert (grant.outcome, waited_for) == (outcome, [])
    client.driver.back()
    assert client.flush(10)
    assert not world.read().owner, "it was said as soon as the store was back"


def test_a_success_of_a_lost_lease_is_waited_for_as_ever(world: Any) -> None:
    """F5: the caller is told that it is not recorded."""
    client = world.client(timeout=1)
    client.driver.away(world.REFUSED._replace(then=lambda: world.clock.advance(0.3)), verbs="renew settle")
    with pytest.raises(Unrecorded), client.window(world.name, HOURLY, ttl=6):
        world.clock.run(12, step=1)
    client.driver.back()
    assert client.flush(10)
    assert world.read().outcome == HANDLED


def test_a_run_without_the_store_that_has_ended_may_not_go_on(world: Any) -> None:
    """F2: it can lose nothing, but `check` is for steps of a body that has not ended."""
    client = world.client(timeout=1)
    client.driver.away()
    for how in ("failed", "unused", "handled"):
        grant = client.try_window(world.name, HOURLY, on_unavailable="run")
        grant.check()
        getattr(grant, how)()
        assert (grant.lost, grant.remaining()) == (False, 0)
        with pytest.raises(LeaseLost):
            grant.check()


def test_a_run_without_the_store_that_it_does_not_take_is_unrecorded(world: Any) -> None:
    """F3, W12: somebody is at work in a period of their own, and is left alone."""
    client = world.client(timeout=1)
    client.driver.away()
    grant = client.try_once(world.name, "1h", on_unavailable="run")
    holder = world.client().try_once(world.name, "1h")
    assert holder.token
    grant.handled()
    assert grant.outcome == HANDLED
    client.driver.back()
    assert client.flush(10)
    assert grant.outcome == "unrecorded"
    holder.handled()


@on_loop
def test_a_settlement_whose_caller_is_cancelled_is_kept(live: Any) -> None:
    """F5, L8: the success was the body's; it is recorded though nobody waits for it."""

    async def main() -> None:
        client = live.async_client()
        grant = await client.try_window(live.name, HOURLY)
        client.driver.away(live.HUNG, verbs="settle")
        task = asyncio.create_task(grant.handled())
        await live.reached(lambda: client.driver.count("settle"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        client.driver.back()
        assert await client.flush(10)
        assert live.read().mark == grant.slot.start
        assert grant.outcome == HANDLED
        await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_a_settlement_interrupted_by_a_signal_is_kept(world: Any) -> None:
    """F5: control-C while the answer is awaited, the request lost."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    client = world.client()
    grant = client.try_window(world.name, HOURLY)
    client.driver.once("settle", world.REQUEST_LOST._replace(then=interrupt))
    with pytest.raises(KeyboardInterrupt):
        grant.handled()
    assert client.flush(10)
    assert world.read().mark == grant.slot.start


def test_settling_by_a_thread_that_is_not_the_winner(world: Any) -> None:
    """L4, L11: nothing of the settlement is bound to a thread."""
    grant = world.client().try_window(world.name, HOURLY)
    thread = threading.Thread(target=grant.handled)
    thread.start()
    thread.join()
    assert world.read().mark == grant.slot.start
