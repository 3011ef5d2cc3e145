# SPDX-License-Identifier: MIT
"""Answers that never come: a claim is found again or finished, never guessed at, and leaves nothing behind (L4, L5, L7, L8, F1, F4)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest
from rota import Busy, Every, LeaseLost, OutcomeUnknown, Unavailable, rules
from rota.backend import FAILED, FINISHED, HANDLED, LEASE, RELEASED, STALE, UNUSED, WINDOW, WON, Claim, Renewal, Settlement

blocking = pytest.mark.parametrize("face", ["blocking"], indirect=True)
on_loop = pytest.mark.parametrize("face", ["async"], indirect=True)
DAY = 86_400_000_000


def claim_of(world: Any, owner: str, *, kind: str = LEASE, within: int = 1_000_000, ttl: int = 10_000_000) -> Claim:
    now = world.clock.store()
    slot = (now - now % 3600_000_000, now - now % 3600_000_000 + 3600_000_000) if kind == WINDOW else (None, None)
    return Claim(world.name, owner, "test", kind, ttl, now + within, DAY, slot_start=slot[0], slot_end=slot[1])


# -- found again


@pytest.mark.parametrize("what", ["lease", "window", "once"])
def test_a_claim_whose_reply_is_lost_is_found_again(world: Any, what: str) -> None:
    """L7: one grant, with the token that the lost reply had."""
    client = world.client()
    tokens: list[int] = []
    client.driver.once("claim", world.REPLY_LOST._replace(then=lambda: tokens.append(world.read().token)))
    if what == "lease":
        grant = client.try_lease(world.name)
    elif what == "window":
        grant = client.try_window(world.name, Every("1h"))
    else:
        grant = client.try_once(world.name, per="24h")
    assert grant
    assert tokens == [grant.token]
    assert world.read().attempts == 1
    assert client.driver.count("claim") == 2
    assert len({call[1].owner for call in client.driver.calls if call[0] == "claim"}) == 1
    grant.check()
    grant.handled()


def test_the_deadline_of_a_grant_found_again_counts_from_its_first_request(world: Any) -> None:
    """L5: the lease has run since the store applied it, not since it was found."""
    client = world.client(timeout=9)
    client.driver.once("claim", world.REPLY_LOST._replace(then=lambda: world.clock.advance(5)))
    client.driver.away(verbs="renew")
    grant = client.try_lease(world.name, ttl=10)
    left = (world.read().expires_at - world.clock.store()) / 1e6
    assert left == pytest.approx(5)
    assert grant.remaining() <= left - 1  # the margin of a tenth
    client.driver.back()
    world.clock.run(1, step=1)
    world.until(lambda: grant.remaining() > 5)  # a renewal makes up for it


def test_the_deadline_counts_from_when_the_store_says_that_the_lease_began(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """L5: a store may hand on a lease that has been counting already."""
    client = world.client()
    claim = rules.claim

    def aged(*asked: Any) -> Any:
        answer, changed = claim(*asked)
        return answer._replace(age=500_000), changed

    monkeypatch.setattr(rules, "claim", aged)
    grant = client.try_lease(world.name, ttl=10)
    assert grant.remaining() == pytest.approx(8.5)


def test_a_request_that_was_lost_is_made_again(world: Any) -> None:
    """L7: a write resolves it, by the same owner id."""
    client = world.client()
    client.driver.once("claim", world.REQUEST_LOST, times=2)
    grant = client.try_lease(world.name, ttl=10)
    assert grant
    assert grant.remaining() == pytest.approx(9)  # nothing was granted before
    assert len({call[1].owner for call in client.driver.calls if call[0] == "claim"}) == 1


def test_a_grant_that_ran_out_while_its_reply_was_lost_is_not_believed(world: Any) -> None:
    """L4, L7: found again too late, the owner id is finished, and the claim is made anew."""
    client = world.client(timeout=20)
    client.driver.once("claim", world.REPLY_LOST._replace(then=lambda: world.clock.advance(11)))
    grant = client.try_lease(world.name, ttl=10, heartbeat=1, timeout=20)
    assert grant
    assert grant.remaining() == pytest.approx(9)
    assert world.read().token == grant.token
    assert len({call[1].owner for call in client.driver.calls if call[0] == "claim"}) == 2


def test_a_claim_is_unknown_when_an_earlier_request_of_it_may_have_been_applied(world: Any) -> None:
    """L7, F2: the last request was surely not applied, as when the store is gone or no thread is free; the one before may have been."""
    client = world.client()
    client.driver.once("claim", world.REPLY_LOST)
    client.driver.away(world.REFUSED)
    client.driver.once("now", world.Fault())
    with pytest.raises(OutcomeUnknown) as caught:
        client.try_lease(world.name, ttl=3600)
    assert type(caught.value.__cause__) is Unavailable
    assert world.read().owner
    client.driver.back()
    world.until(lambda: not world.read().owner)


def test_an_at_most_once_slot_survives_a_lost_reply(world: Any) -> None:
    """W3b, L7: the seal of the lost reply is this claim's own."""
    client = world.client()
    client.driver.once("claim", world.REPLY_LOST)
    with client.window(world.name, Every("1h"), at_most_once=True) as grant:
        assert grant.attempt == 1
    assert world.read().outcome == HANDLED


def test_a_seal_that_nobody_heard_of_is_taken_back(world: Any) -> None:
    """W3b, L7: no reply at all: the keeper unseals the slot, since its body never began."""
    client = world.client(timeout=1)
    client.driver.away(world.REPLY_LOST._replace(then=lambda: world.clock.advance(0.3)), verbs="claim")
    with pytest.raises(OutcomeUnknown):
        client.try_window(world.name, Every("1h"), at_most_once=True)
    world.until(lambda: not world.read().owner)
    assert world.read().mark is None
    assert world.client().try_window(world.name, Every("1h"), at_most_once=True)


# -- L7's latest time


def test_a_claim_that_arrives_after_its_latest_time_is_not_applied(world: Any) -> None:
    """L7: stuck behind a lock or in a dead socket, it can't win later."""
    client = world.client(timeout=1)
    client.driver.away(world.STUCK._replace(then=lambda: world.clock.advance(0.3)), verbs="claim")
    with pytest.raises(OutcomeUnknown):
        client.try_lease(world.name)
    client.driver.back()
    world.clock.advance(1)
    answers = client.driver.deliver()
    assert answers
    assert {answer.verdict for answer in answers} <= {STALE, FINISHED}
    assert world.read() is None or not world.read().owner
    assert client.flush(10)
    assert client._engine.keeper.waiting() == 0


def test_a_claim_that_arrives_late_but_in_time_is_finished_by_the_keeper(world: Any) -> None:
    """L7, L8: it is granted to nobody, and given back long before its ttl."""
    client = world.client(timeout=1)
    client.driver.away(world.STUCK._replace(then=lambda: world.clock.advance(0.3)), verbs="claim")
    client.driver.once("settle", world.REFUSED, times=10_000)
    with pytest.raises(OutcomeUnknown):
        client.try_lease(world.name, ttl=60)
    world.clock.passed -= 600_000  # the requests were on their way for less than that
    client.driver.back()
    asked = client.driver.count("settle")
    world.until(lambda: client.driver.count("settle") > asked)  # the keeper asked before it arrived
    assert client.driver.deliver()[0].verdict == WON
    world.until(lambda: not world.read().owner)
    assert world.client().try_lease(world.name)


def test_a_duplicate_that_arrives_after_later_owners_is_no_ghost(world: Any) -> None:
    """L4, L7: won by its second request, settled, followed by others; then the first arrives, still in time."""
    client, other = world.client(timeout=5), world.client()
    client.driver.once("claim", world.STUCK)
    client.try_lease(world.name, ttl=60).release()
    other.try_lease(world.name, ttl=60).release()
    client.driver.deliver()
    world.until(lambda: not world.read().owner)
    assert world.client().try_lease(world.name)


def test_the_claim_carries_now_plus_timeout(world: Any) -> None:
    """L7: by the store's clock."""
    client = world.client(timeout=2)
    assert client.try_lease(world.name)
    (claim,) = [call[1] for call in client.driver.calls if call[0] == "claim"]
    assert claim.apply_until == world.clock.store() + 2_000_000


@blocking
def test_an_owner_id_that_was_settled_is_never_granted_again(world: Any) -> None:
    """L4: the delayed duplicate of a claim makes no ghost: after release, failure, `unused` and expiry."""
    driver = world.driver()
    for number, result in enumerate((RELEASED, FAILED, UNUSED)):
        kind = LEASE if result == RELEASED else WINDOW
        claim = claim_of(world, f"{number:032d}", kind=kind)._replace(name=f"{world.name}-{number}")
        assert driver.claim(claim, 5).verdict == WON
        assert driver.claim(claim, 5).verdict == WON  # asked again while it lives: mine
        assert driver.settle(Settlement(claim.name, claim.owner, result, DAY), 5).applied
        assert driver.claim(claim, 5).verdict == FINISHED
        assert not driver.read(claim.name, 5)[0].owner
    claim = claim_of(world, "e" * 32, within=60_000_000)
    renewal = Renewal(claim.name, claim.owner, claim.ttl, DAY)
    assert driver.claim(claim, 5).verdict == WON
    world.clock.advance(9.999999)
    assert list(driver.renew([renewal], 5).held) == [True]
    world.clock.advance(10)
    assert list(driver.renew([renewal], 5).held) == [False]  # L3: only while unexpired
    assert driver.claim(claim, 5).verdict == FINISHED
    other = claim_of(world, "f" * 32)
    assert driver.claim(other, 5).verdict == WON
    assert driver.settle(Settlement(claim.name, claim.owner, RELEASED, DAY), 5).applied is False
    assert driver.read(world.name, 5)[0].owner == other.owner
    driver.close()


# -- callers that leave


@on_loop
def test_a_cancelled_claim_whose_reply_is_on_its_way_holds_nothing(live: Any) -> None:
    """L7, L8: applied, then cancelled before the answer: given back by the keeper, not by expiry."""

    async def main() -> None:
        client = live.async_client()
        await client.try_lease(live.name + "-warm")
        client.driver.once("claim", live.Fault(linger=5))
        task = asyncio.create_task(client.try_lease(live.name, ttl=60))
        await live.reached(lambda: live.read() is not None)
        assert live.read().owner
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        client.driver.back()
        await live.reached(lambda: not live.read().owner)
        other = live.async_client()
        grant = await other.try_lease(live.name)
        assert grant
        assert await client.flush(10)
        grant.check()
        assert live.read().token == grant.token
        await other.close()
        await client.close()

    asyncio.run(main())


@blocking
def test_an_interrupted_claim_holds_nothing(world: Any) -> None:
    """L8: control-C while the answer is read."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    client = world.client()
    client.driver.once("claim", world.Fault(then=interrupt))
    with pytest.raises(KeyboardInterrupt):
        client.try_lease(world.name, ttl=60)
    world.until(lambda: not world.read().owner)


def test_without_a_keeper_a_lost_claim_is_free_after_one_ttl(world: Any) -> None:
    """L8: the process died right after its claim was applied."""
    client = world.client(timeout=1)
    client.driver.away(world.REPLY_LOST._replace(then=lambda: world.clock.advance(0.3)), verbs="claim")
    client.driver.once("settle", world.REFUSED, times=10_000)
    with pytest.raises(OutcomeUnknown):
        client.try_lease(world.name, ttl=10)
    expires_at = world.read().expires_at
    world.clock.advance(10)
    assert world.clock.store() >= expires_at
    assert world.client().try_lease(world.name)


# -- waiting (L8)


def test_a_waiter_that_times_out_leaves_nothing(live: Any, stopwatch: Any) -> None:
    """L8: no grant later, no thread, and it took as long as it said."""
    holder, waiter = live.client(), live.client()
    held = holder.try_lease(live.name, ttl=30)
    before, watch = time.monotonic(), stopwatch()
    with pytest.raises(Busy), waiter.lease(live.name, wait=0.3):
        pass
    assert time.monotonic() - before > 0.25
    assert watch.seconds < 0.3 + 1.5
    held.release()
    assert waiter.flush(1)
    assert not live.read().owner
    assert waiter._engine.keeper.waiting() == 0


def test_a_waiter_wakes_when_the_holder_releases(live: Any) -> None:
    """L8: by the store's word where it has one (memory), else by looking again soon."""
    holder, waiter = live.client(), live.client()
    held = holder.try_lease(live.name, ttl=60)
    claims = waiter.driver.count
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(waiter.try_lease(live.name, ttl=60, wait=30)))
    thread.start()
    if live.kind == "memory":
        live.until(lambda: claims("watch") == 1)
    else:
        live.until(lambda: claims("claim") >= 3)
    asked = claims("claim")
    held.release()
    thread.join(10)
    assert result
    assert result[0]
    assert result[0].token > held.token
    if live.kind == "memory":
        assert claims("claim") == asked + 1  # it did not poll
    result[0].release()


@pytest.mark.by_the_clock
def test_a_waiter_wakes_when_the_holders_lease_runs_out(live: Any) -> None:
    """L8: nobody announces an expiry, so the waiter knows when to look."""
    holder, waiter = live.client(), live.client()
    held = holder.try_lease(live.name, ttl=0.5, max_hold=0.05)  # it isn't renewed
    expires_at = live.read().expires_at
    grant = waiter.try_lease(live.name, ttl=60, wait=30)
    assert grant
    assert expires_at <= grant.record.granted_at < expires_at + 1_500_000
    assert held.lost
    grant.release()


@on_loop
def test_a_cancelled_waiter_leaves_nothing(live: Any) -> None:
    """L8: nor does it win when the holder goes."""

    async def main() -> None:
        client, other = live.async_client(), live.async_client()
        held = await client.try_lease(live.name)
        task = asyncio.create_task(other.try_lease(live.name, wait=30))
        await live.reached(lambda: other.driver.count("claim") >= 1)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await held.release()
        assert await other.flush(10)
        assert not live.read().owner
        await client.close()
        await other.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_the_keeper_finishes_no_claim_that_a_waiter_has_won_since(live: Any) -> None:
    """L7: a waiter's first request stays unknown, it waits on, wins: what the keeper says of the first concerns no later one."""
    holder, waiter = live.client(), live.client(timeout=0.5)
    held = holder.try_lease(live.name, ttl=60)
    waiter.driver.once("claim", live.REQUEST_LOST)
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(waiter.try_lease(live.name, ttl=60, wait=30)))
    thread.start()
    live.until(lambda: waiter._engine.keeper.waiting() == 1)
    held.release()
    thread.join(10)
    assert result
    grant = result[0]
    assert waiter.flush(10)
    assert live.read().token == grant.token
    assert live.read().owner, "the keeper gave the waiter's lease back"
    grant.check()
    grant.release()


# -- the time limit and the breaker


@pytest.mark.parametrize("fault", ["HUNG", "REFUSED", "REQUEST_LOST"])
def test_every_claim_is_bounded_by_its_timeout(live: Any, fault: str, stopwatch: Any) -> None:
    """F1: a hung server included; what can't be known is said to be unknown, and nothing can be before a claim was sent."""
    for verbs in ("now", "claim"):
        client = live.client(timeout=0.2)
        client.driver.away(getattr(live, fault), verbs=verbs)
        before = stopwatch()
        with pytest.raises(Unavailable) as caught:
            client.try_lease(live.name)
        assert before.seconds < 0.2 + 1
        assert isinstance(caught.value, OutcomeUnknown) == (fault != "REFUSED" and verbs == "claim")
        assert live.read() is None


def test_a_breaker_keeps_claims_from_waiting_and_guards_no_settlement(live: Any, stopwatch: Any) -> None:
    """F4: twenty claims during an outage cost about one timeout; a release gets through; recovery needs nothing."""
    client = live.client(timeout=0.3)
    grant = client.try_lease(live.name, ttl=60)
    client.driver.away(live.HUNG, verbs="claim now")
    before = stopwatch()
    for number in range(20):
        with pytest.raises(Unavailable):
            client.try_lease(f"{live.name}-{number}")
    assert before.seconds < 2
    grant.release()
    assert not live.read().owner
    client.driver.back()

    def claims() -> Any:
        try:
            return client.try_lease(live.name)
        except Unavailable:
            return None

    live.until(claims).release()


@on_loop
def test_a_task_that_asks_on_and_on_does_not_keep_the_answer_from_its_loop(live: Any) -> None:
    """F4: what fails at once lets the loop run, or else the one claim that is let through is never answered."""

    async def main() -> None:
        client = live.async_client(timeout=0.3)
        client.driver.away()
        assert not await client.try_lease(live.name, on_unavailable="skip")
        for policy in ("skip", "run", "raise"):
            ran: list[str] = []
            asyncio.get_running_loop().call_soon(ran.append, policy)
            with contextlib.suppress(Unavailable):
                await client.try_lease(live.name, on_unavailable=policy)
            assert ran == [policy]

    asyncio.run(main())


def test_unavailable_and_busy_and_skip_are_told_apart(world: Any) -> None:
    """F2: raise, skip, run."""
    client = world.client()
    grant = client.try_lease(world.name)
    assert client.try_lease(world.name, on_unavailable="run").verdict == "busy"  # the store answered
    client.driver.away()
    skipped = client.try_lease(world.name + "-b", on_unavailable="skip")
    assert (bool(skipped), skipped.verdict) == (False, "unavailable")
    assert isinstance(skipped.error(), Unavailable)
    with pytest.raises(Unavailable):
        client.try_lease(world.name + "-b")
    degraded = client.try_lease(world.name + "-b", on_unavailable="run")
    assert degraded.degraded
    degraded.check()
    client.driver.back()
    grant.release()


def test_a_lost_lease_answers_the_same_however_often_it_is_released(world: Any) -> None:
    """L4: a repeated release must not look like a success."""
    grant = world.client().try_lease(world.name, ttl=10)
    world.clock.advance(10)
    successor = world.client().try_lease(world.name, ttl=10)
    for _ in range(2):
        with pytest.raises(LeaseLost):
            grant.release()
    successor.check()
    assert world.read().token == successor.token
