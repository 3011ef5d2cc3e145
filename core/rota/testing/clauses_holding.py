# SPDX-License-Identifier: MIT
# ruff: noqa: D102, N802 - a test's name says which clause it is about, and what that demands
"""Clauses L5 to L12: what a holder knows and is told, waits that ended, forks, many leases at once, and clocks that step."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import warnings
from typing import Any

import pytest

from rota.backend import BUSY, FINISHED, RELEASED, STALE, UNUSED, WON, Renewal, Settlement
from rota.duration import SECOND
from rota.errors import ConfigurationError, LeaseLost, OutcomeUnknown

from .base import LONG, RETENTION, Clauses, not_run
from .faces import Face, done
from .faulty import HUNG, REPLY_LOST, REQUEST_LOST, Fault

#: How late a loaded machine may be, in seconds, where a bound is stated.
LOADED = 1.0


class Holding(Clauses):
    """Clauses L5 to L12."""

    # -- L5, L6

    async def test_L5_the_deadline_counts_from_before_the_request(self, face: Face) -> None:
        client = face.connect()
        client.driver.once("claim", Fault(linger=0.2))
        began = time.monotonic()
        grant = await done(client.try_lease(self.fresh(), ttl=60, margin=10))
        assert grant
        remaining = grant.remaining()
        assert 60 - 10 - (time.monotonic() - began) - 0.5 < remaining <= 60 - 10 - 0.19
        await done(grant.release())

    async def test_L5_so_it_does_after_a_renewal(self, face: Face) -> None:
        client = face.connect()
        ttl = max(30.0, face.capabilities.min_ttl / SECOND)  # a busy machine is not to lose it
        grant = await done(client.try_lease(self.fresh(), ttl=ttl, margin=ttl / 4, heartbeat=0.15))
        client.driver.away(Fault(linger=0.1), "renew")
        before = client.driver.count("renew")
        await face.until(lambda: client.driver.count("renew") >= before + 3, 60)
        for _ in range(20):
            assert grant.remaining() <= ttl - ttl / 4 - 0.1 + 0.001 or client.driver.count("renew") < before + 2
            await face.sleep(0.005)
        client.driver.back()
        await done(grant.release())

    async def test_L6_a_lease_that_was_released_in_time_is_not_lost(self, face: Face) -> None:
        client = face.connect()
        async with face.enter(client.lease(self.fresh())) as grant:
            assert not grant.lost
        assert (grant.lost, grant.remaining()) == (False, 0)
        with pytest.raises(LeaseLost):
            grant.check()

    async def test_L6_the_holder_is_told_before_the_store_lets_go(self, face: Face) -> None:
        told: list[Any] = []
        client = face.connect()
        ttl = max(0.9, face.capabilities.min_ttl / SECOND)
        grant = await done(client.try_lease(self.fresh(), ttl=ttl, margin=ttl / 3, heartbeat=ttl / 6, on_lost=told.append))
        client.driver.away(HUNG, "renew")

        unaware = time.monotonic()  # when the holder did not know yet

        async def knows() -> bool:
            nonlocal unaware
            is_free, looked = not await self.is_live(face, grant.name), time.monotonic()
            lost = bool(grant.lost)  # asked last: whatever stands still in between, it knows by then what it knew before
            assert lost or not is_free, "the store had let the lease go before its holder knew"
            unaware = unaware if lost else looked
            return lost

        await face.until(knows, 60, what="the loss")
        # a margin lies between the two, unless it is this test that stood still for half of it
        is_held = await self.is_live(face, grant.name)
        assert is_held or time.monotonic() - unaware > ttl / 6, "the store let the lease go as soon as its holder knew"
        calls = len(client.driver.calls)
        with pytest.raises(LeaseLost):
            grant.check()
        assert grant.remaining() == 0
        assert [call for call in client.driver.calls[calls:] if call[0] != "renew"] == [], "check() asked the store"
        await face.until(lambda: told, 0.1 + LOADED)
        client.driver.back()
        assert grant.lost, "what is lost stays lost"
        with contextlib.suppress(LeaseLost):
            await done(grant.release())

    async def test_L6_a_lost_body_is_cancelled(self, face: Face) -> None:
        if not face.is_async:
            return  # a blocking body can't be: check() tells it
        client = face.connect()
        ttl = max(0.6, face.capabilities.min_ttl / SECOND)

        async def body() -> None:
            async with client.lease(self.fresh(), ttl=ttl, margin=ttl / 4, heartbeat=ttl / 6):
                client.driver.away(HUNG, "renew")
                await asyncio.sleep(ttl + 30)

        with pytest.raises(LeaseLost):
            await body()

    async def test_L6_an_operator_or_successor_ends_the_holders_lease(self, face: Face) -> None:
        client = face.connect()
        ttl = max(0.6, face.capabilities.min_ttl / SECOND)
        grant = await done(client.try_lease(self.fresh(), ttl=ttl))
        await face.forget(grant.name)
        await face.until(lambda: grant.lost, 60)
        with pytest.raises(LeaseLost):
            grant.check()

    # -- L7, L8

    async def test_L7_a_claim_is_found_again_by_its_owner(self, face: Face) -> None:
        claim = self.lease(face, self.fresh())
        won = await self.win(face, claim)
        again = await face.claim(claim)
        assert again.verdict == WON
        assert again.record == won, "a claim that was repeated changed the record"
        assert again.before is None
        assert await self.known(face, claim.name) == won
        late = await face.claim(claim._replace(apply_until=await face.now() - 60 * SECOND))
        assert late.verdict == WON, "what was applied in time is found again at any time"

    async def test_L7_a_stale_claim_wins_nothing(self, face: Face) -> None:
        if await face.interval() is None:
            not_run("the store's time can't be known, so nothing can be stale")
        claim = self.lease(face, self.fresh())
        await self.refused(face, claim._replace(apply_until=await face.now() - self.slack(face) - 1000), STALE)
        assert not await self.is_live(face, claim.name)
        await self.win(face, claim._replace(apply_until=await face.now() + 60 * SECOND))

    async def test_L7_a_claim_is_applied_at_its_last_instant_and_not_after(self, face: Face) -> None:
        clock = self.need_clock()
        with clock.stopped():
            claim = self.lease(face, self.fresh())
            await self.refused(face, claim._replace(apply_until=clock.store() - 1), STALE)
            await self.win(face, claim._replace(apply_until=clock.store()))

    async def test_L7_a_claim_whose_reply_was_lost_is_won_once(self, face: Face) -> None:
        for fault in (REPLY_LOST, REQUEST_LOST):
            client = face.connect(timeout=self.ample())
            client.driver.once("claim", fault)
            grant = await done(client.try_lease(self.fresh()))
            assert grant, grant
            record = await self.known(face, grant.name)
            assert record.token == grant.token
            assert record.owner == grant._owner
            await done(grant.release())

    async def test_L7_an_unknown_claim_is_finished_by_a_write(self, face: Face) -> None:
        claim = self.lease(face, self.fresh())
        await self.win(face, claim)
        settled = await face.settle(Settlement(claim.name, claim.owner, UNUSED, RETENTION))
        assert settled.applied
        await self.refused(face, claim, FINISHED)
        await self.win(face, self.lease(face, claim.name))

    async def test_L8_a_wait_that_timed_out_holds_nothing(self, face: Face) -> None:
        holder = self.lease(face, self.fresh())
        await self.win(face, holder)
        client = face.connect()
        refused = await done(client.try_lease(holder.name, wait=0.2))
        assert not refused
        assert refused.verdict == BUSY
        await face.until(lambda: not face.threads() or not [t for t in face.threads() if "watch" in t.name], 5)
        await self.end(face, holder, RELEASED)
        await face.sleep(0.1)
        assert not await self.is_live(face, holder.name), "a wait that had ended took the name"
        await self.win(face, self.lease(face, holder.name))

    async def test_L8_a_wait_that_was_cancelled_holds_nothing(self, face: Face) -> None:
        if not face.is_async:
            return  # nobody cancels a blocking call
        holder = self.lease(face, self.fresh())
        await self.win(face, holder)
        client = face.connect()
        waiter = asyncio.create_task(client.try_lease(holder.name, wait=60))
        await face.until(lambda: client.driver.count("claim"))
        waiter.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiter
        await self.end(face, holder, RELEASED)
        await face.sleep(0.1)
        # its last request may have been on its way, and won: that grant is given back at once
        await face.until(lambda: self._is_free(face, holder.name), what="an end of what a wait that was cancelled took")

    async def test_L8_a_claim_that_stayed_unknown_holds_nothing(self, face: Face) -> None:
        client = face.connect(timeout=self.ample())
        name = self.fresh()
        client.driver.away(self.costly(face, REPLY_LOST), "claim")
        with pytest.raises(OutcomeUnknown):
            await done(client.try_lease(name, ttl=LONG / SECOND))
        client.driver.back()
        await face.until(lambda: self._is_free(face, name), what=f"an end of the unknown claim for {name!r}")

    async def _is_free(self, face: Face, name: str) -> bool:
        return not await self.is_live(face, name)

    # -- L9

    async def test_L9_a_wrong_ttl_is_refused_before_any_request(self, face: Face) -> None:
        client = face.connect()
        floor = face.capabilities.min_ttl / SECOND
        wrong: list[dict[str, Any]] = [{"ttl": ttl} for ttl in (0, -1, float("nan"), float("inf"), 367 * 86400, "30", None)]
        wrong += [{"ttl": floor / 2}, {"ttl": 30, "heartbeat": 10.001}, {"ttl": 30, "grace": 25}, {"ttl": 30, "margin": 20}]
        for options in wrong:
            with pytest.raises(ConfigurationError):
                await done(client.try_lease(self.fresh(), **options))
        assert client.driver.calls == []

    async def test_L9_a_lease_is_never_shorter_than_asked_for(self, face: Face) -> None:
        for ttl in (self.short(face), self.short(face) + 1, LONG + 1):
            claim = self.lease(face, self.fresh(), ttl=ttl)
            before = await face.now()
            answer = await face.claim(claim)
            assert answer.verdict == WON
            assert answer.record is not None
            given = answer.record.expires_at - before
            assert given >= ttl - self.slack(face)
            if given > ttl + self.slack(face) + 60 * SECOND:
                assert answer.ttl > ttl, "a longer ttl was given, and not reported"

    # -- L10

    async def test_L10_a_forked_child_holds_nothing_and_can_acquire(self, face: Face) -> None:
        if not hasattr(os, "fork"):
            not_run("this system does not fork")
        client = face.connect()
        grant = await done(client.try_lease(self.fresh(), ttl=60))
        other = self.fresh()
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of threads: that it works with them is what is tested
            child = os.fork()
        if not child:
            said = "?"
            try:
                said = _in_child(client, grant, other, face.is_async)
            except BaseException as error:
                said = repr(error)
            finally:
                os.write(writer, said.encode()[:4000])
                os._exit(0)
        os.close(writer)
        try:
            said = await face.call(_said, reader, child)
        finally:
            os.close(reader)
        assert said == "acquired", said
        grant.check()
        assert await self.is_live(face, grant.name), "the child's end released its parent's lease"
        assert await self.renewed(face, self.lease(face, grant.name, owner=grant._owner))
        await done(grant.release())

    # -- L11, L12

    async def test_L11_many_leases_are_renewed_in_batches_by_a_bounded_number_of_threads(self, face: Face) -> None:
        many = 40
        client = face.connect()
        ttl = max(30.0, face.capabilities.min_ttl / SECOND)
        heartbeat = {} if self.clock is not None else {"heartbeat": ttl / 60}  # in real time: soon, and none is lost on a busy machine
        grants = [await done(client.try_lease(self.fresh(), ttl=ttl, **heartbeat)) for _ in range(many)]
        assert all(grants)
        bounded = [thread for thread in face.threads() if not thread.name.startswith("rota-io")]
        assert len(bounded) <= 3, bounded
        first = {grant.name: (await self.known(face, grant.name)).expires_at for grant in grants}
        if self.clock is not None:
            await self.work(face, client, ttl * 1.4, ttl / 5)
        await face.until(lambda: self._are_renewed(face, first), 60, what="a renewal of each lease")
        assert [grant.name for grant in grants if grant.lost] == []
        for grant in grants:
            assert await self.is_live(face, grant.name)
        batches = [len(call[1]) for call in client.driver.calls if call[0] == "renew"]
        assert sum(batches) >= many
        assert max(batches) > 1
        for grant in grants:
            await done(grant.release())

    async def _are_renewed(self, face: Face, first: dict[str, int]) -> bool:
        return all([(await self.known(face, name)).expires_at > expires_at for name, expires_at in first.items()])

    async def test_L11_max_hold_ends_renewals(self, face: Face) -> None:
        client = face.connect()
        ttl = max(0.6, face.capabilities.min_ttl / SECOND)
        grant = await done(client.try_lease(self.fresh(), ttl=ttl, max_hold=ttl / 2))
        await self.pass_time(face, ttl / 2)
        await face.until(lambda: grant.lost, 60)
        await self.outlive(face, await self.known(face, grant.name))
        await face.until(lambda: self._is_free(face, grant.name), 60, what="an end of the lease")

    async def test_L12_a_step_of_the_stores_clock_is_noticed(self, face: Face) -> None:
        if await face.interval() is None:
            not_run("the store's time can't be known")
        client = face.connect()
        grant = await done(client.try_lease(self.fresh(), ttl=60, margin=10))
        told: list[str] = []
        client._engine.warn = lambda name, message: told.append(message)
        client.driver.skew = 5 * SECOND
        refused = await done(client.try_lease(grant.name))
        assert refused.verdict == BUSY
        assert any("stepped forward" in message for message in told), told
        grant.check()
        assert grant.remaining() > 40, "a holder's deadline counts its own time"
        client.driver.skew = 0
        await done(client.try_lease(grant.name))
        assert any("stepped back" in message for message in told), told
        await done(grant.release())

    async def test_L12_answers_carry_the_stores_time(self, face: Face) -> None:
        began = time.monotonic()
        interval = await face.interval()
        if interval is None:
            not_run("the store's time can't be known")
        claim = self.lease(face, self.fresh())
        answer = await face.claim(claim)
        busy = await face.claim(self.lease(face, claim.name))
        renewed = await face.renew(Renewal(claim.name, claim.owner, LONG, RETENTION))
        settled = await self.end(face, claim, RELEASED)
        later = await face.interval()
        assert later is not None
        # what is known by a request is as wide as that took, so its end may lie behind what a later one is told by as much
        took = int((time.monotonic() - began) * SECOND)
        for told in (answer.now, busy.now, renewed.now, settled.now):
            if told is not None:  # it is carried where the store gives it
                wide = min(told[1] - told[0], took)
                assert interval[0] - self.slack(face) <= told[0] <= told[1] <= later[1] + self.slack(face) + wide
        if face.capabilities.clock == "exact":
            assert None not in (answer.now, busy.now, renewed.now, settled.now)

    async def test_L12_a_lease_lasts_its_ttl_by_the_stores_clock(self, face: Face) -> None:
        claim = self.lease(face, self.fresh())
        before = await face.now()
        record = await self.win(face, claim)
        slack = self.slack(face)
        assert before - slack <= record.granted_at <= await face.now() + slack
        assert (
            record.granted_at + claim.ttl - slack <= record.expires_at <= record.granted_at + claim.ttl + slack + face.capabilities.ttl_step
        )


def _in_child(client: Any, grant: Any, other: str, is_async: bool) -> str:
    """Run in the forked child; the answer goes to the parent."""
    try:
        grant.check()
        return "the child holds its parent's lease"
    except LeaseLost:
        pass

    async def acquire() -> str:
        mine = await done(client.try_lease(other, ttl=60))
        if not mine:
            return f"not acquired: {mine!r}"
        mine.check()
        with contextlib.suppress(LeaseLost):
            await done(grant.release())
            return "the child released its parent's lease"
        await done(mine.release())
        return "acquired"

    said: list[str] = []

    def run() -> None:
        try:
            said.append(asyncio.run(acquire()))
        except BaseException as error:
            said.append(repr(error))

    if is_async:
        thread = threading.Thread(target=run)  # the parent's loop counts as running in this one
        thread.start()
        thread.join(8)
    else:
        run()
    return said[0] if said else "the child hung"


def _said(reader: int, child: int) -> str:
    deadline = time.monotonic() + 30
    os.set_blocking(reader, False)
    said = b""
    while time.monotonic() < deadline:
        try:
            part = os.read(reader, 4096)
        except BlockingIOError:
            time.sleep(0.01)
            continue
        if not part:
            break
        said += part
    else:
        os.kill(child, 9)
    os.waitpid(child, 0)
    return said.decode() or "the child said nothing"
