# SPDX-License-Identifier: MIT
# ruff: noqa: D102, N802 - a test's name says which clause it is about, and what that demands
"""Clauses L1 to L12: leases."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import warnings
from typing import Any

import pytest

from rota.backend import BUSY, FINISHED, LEASE, RELEASED, STALE, UNUSED, WON, Answer, Renewal, Settlement
from rota.duration import DAY, SECOND
from rota.errors import ConfigurationError, LeaseLost, OutcomeUnknown

from .base import LONG, RETENTION, Clauses, new_owner, not_run
from .faces import Face, done
from .faulty import HUNG, REPLY_LOST, REQUEST_LOST, Fault

#: How late a loaded machine may be, in seconds, where a bound is stated.
LOADED = 1.0


class Leases(Clauses):
    """Clauses L1 to L12."""

    # -- L1

    async def test_L1_there_is_one_live_owner(self, face: Face) -> None:
        first = self.lease(face, self.fresh())
        won = await self.win(face, first)
        assert (won.owner, won.kind, won.label) == (first.owner, LEASE, first.label)
        answer = await self.refused(face, self.lease(face, first.name, label="site other:2"), BUSY)
        assert answer.record is not None
        assert answer.record.owner == first.owner
        assert answer.record.label == first.label

    async def test_L1_a_released_or_expired_name_is_free(self, face: Face) -> None:
        first = self.lease(face, self.fresh())
        await self.win(face, first)
        await self.end(face, first, RELEASED)
        crashed = self.lease(face, first.name)
        await self.crash(face, crashed)
        await self.take(face, self.lease(face, first.name))

    async def test_L1_at_the_very_instant_of_expiry_nobody_is_live(self, face: Face) -> None:
        clock = self.need_clock()
        with clock.stopped():
            first = await self.win(face, self.lease(face, self.fresh()))
            clock.set(first.expires_at - 1)
            await self.refused(face, self.lease(face, first.name), BUSY)
            clock.set(first.expires_at)
            await self.win(face, self.lease(face, first.name))

    async def test_L1_of_many_at_once_one_wins(self, face: Face) -> None:
        for _ in range(3):
            name = self.fresh()
            claims = [self.lease(face, name) for _ in range(8)]
            if face.is_async:
                answers = await asyncio.gather(*(face.claim(claim) for claim in claims))
            else:
                answers = self._in_threads(face, claims)
            verdicts = sorted(answer.verdict for answer in answers)
            assert verdicts == [BUSY] * 7 + [WON]
            winner = next(claim.owner for claim, answer in zip(claims, answers, strict=True) if answer.verdict == WON)
            assert (await self.known(face, name)).owner == winner

    @staticmethod
    def _in_threads(face: Face, claims: list[Any]) -> list[Answer]:
        answers: list[Any] = [None] * len(claims)
        drivers = [face.driver] * 4 + [face.another_driver()] * 4  # one driver serves several threads
        gate = threading.Barrier(len(claims))

        def claim(index: int) -> None:
            gate.wait(10)
            try:
                answers[index] = drivers[index].claim(claims[index], 10.0)
            except Exception as error:
                answers[index] = error

        threads = [threading.Thread(target=claim, args=(index,)) for index in range(len(claims))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    async def test_L1_different_names_are_different(self, face: Face) -> None:
        base = self.fresh()
        long = base + "x" * (254 - len(base))
        names = [base + end for end in ("", "a", "A", "/a", "/a/b", "//a", "/", "a b", "é", "e\u0301", "İ", "i", "%", "_", "\\", "'", '"')]
        names += [base + end for end in ("*", "?", "[a]", "{a}", ":", "\U0001f512", "..", "/..", "/.", "\u00df", "ss", "..%2F")]
        names += [long + "a", long + "b", long[:-1] + "é"]
        for name in names:
            assert len(name.encode()) <= 255
            record = await self.win(face, self.lease(face, name))
            assert record.name == name
        for name in names:
            assert (await self.known(face, name)).name == name

    # -- L2

    async def test_L2_tokens_grow_over_release_and_expiry(self, face: Face) -> None:
        name = self.fresh()
        tokens = []
        for result in (RELEASED, UNUSED, RELEASED):
            claim = self.lease(face, name)
            tokens.append((await self.win(face, claim)).token)
            await self.end(face, claim, result)
        tokens.append((await self.crash(face, self.lease(face, name))).token)
        tokens.append((await self.take(face, self.lease(face, name))).token)
        assert tokens == sorted(set(tokens))

    async def test_L2_tokens_grow_over_a_store_clock_that_stands_still(self, face: Face) -> None:
        clock = self.need_clock()
        name, tokens = self.fresh(), []
        with clock.stopped():
            for step in (0, 0, 0, -60 * SECOND, 0):
                clock.leap(step)
                claim = self.lease(face, name)
                tokens.append((await self.win(face, claim)).token)
                await self.end(face, claim, RELEASED)
        assert tokens == sorted(set(tokens))

    async def test_L2_tokens_grow_over_forget(self, face: Face) -> None:
        claim = self.lease(face, self.fresh())
        first = await self.win(face, claim)
        await face.forget(claim.name)
        assert (await self.known(face, claim.name)).token > first.token
        second = await self.win(face, self.lease(face, claim.name))
        assert second.token > (first.token + 1)

    async def test_L2_tokens_grow_over_removal_and_the_loss_of_all_data(self, face: Face) -> None:
        earlier = await face.now()
        record = await self.win(face, self.lease(face, self.fresh()))
        if face.capabilities.token_scope == "name":
            # a name without a record knows no earlier token, so the store's time has to be above all of them
            assert record.token >= earlier - self.slack(face), "the first token of a name is below the store's time in microseconds"
        else:
            assert record.token > earlier - 3650 * DAY, "tokens do not start from the store's time in microseconds"

    async def test_L2_a_renewal_keeps_the_token(self, face: Face) -> None:
        claim = self.lease(face, self.fresh())
        won = await self.win(face, claim)
        assert await self.renewed(face, claim)
        after = await self.known(face, claim.name)
        assert (after.token, after.owner, after.granted_at) == (won.token, won.owner, won.granted_at)

    async def test_L2_the_store_itself_holds_token_and_owner(self, face: Face) -> None:
        claim = self.lease(face, self.fresh())
        first = await self.win(face, claim)
        held = self.raw(claim.name)
        assert held is not None
        assert held.get("token", first.token) == first.token
        assert held.get("owner", claim.owner) == claim.owner
        await self.end(face, claim, RELEASED)
        released = self.raw(claim.name)
        assert released is not None, "a release deleted the record"
        assert released.get("token", first.token) == first.token
        assert not released.get("owner")

    # -- L3

    async def test_L3_a_renewal_sets_the_remaining_time(self, face: Face) -> None:
        claim = self.lease(face, self.fresh())
        won = await self.win(face, claim)
        for ttl in (LONG, 2 * LONG, LONG // 2):
            before = await face.now()
            assert await self.renewed(face, claim, ttl)
            after = await self.known(face, claim.name)
            slack = self.slack(face)
            assert before + ttl - slack <= after.expires_at <= await face.now() + ttl + slack, "a renewal sets the time, it adds nothing"
            assert after.token == won.token
            assert after.keep_until >= after.expires_at + RETENTION - slack

    async def test_L3_a_late_renewal_revives_nothing(self, face: Face) -> None:
        claim = self.lease(face, self.fresh())
        await self.crash(face, claim)
        assert not await self.renewed(face, claim)
        assert not await self.is_live(face, claim.name)
        await self.win(face, self.lease(face, claim.name))
        assert not await self.renewed(face, claim)

    async def test_L3_at_the_very_instant_of_expiry_a_renewal_is_late(self, face: Face) -> None:
        clock = self.need_clock()
        with clock.stopped():
            claim = self.lease(face, self.fresh())
            won = await self.win(face, claim)
            clock.set(won.expires_at - 1)
            assert await self.renewed(face, claim)
            clock.set((await self.known(face, claim.name)).expires_at)
            assert not await self.renewed(face, claim)

    async def test_L3_only_the_owner_renews(self, face: Face) -> None:
        claim = self.lease(face, self.fresh())
        before = await self.win(face, claim)
        assert not await self.renewed(face, claim._replace(owner=new_owner()))
        assert not await self.renewed(face, self.lease(face, self.fresh()))
        assert await self.known(face, claim.name) == before
        await self.end(face, claim, RELEASED)
        assert not await self.renewed(face, claim), "a settled grant was renewed"
        assert not await self.is_live(face, claim.name)

    async def test_L3_a_batch_is_answered_in_its_order(self, face: Face) -> None:
        held = [self.lease(face, self.fresh()) for _ in range(3)]
        for claim in held:
            await self.win(face, claim)
        strangers = [held[0]._replace(owner=new_owner()), self.lease(face, self.fresh())]
        batch = [held[0], strangers[0], held[1], strangers[1], held[2]]
        renewed = await face.renew(*(Renewal(claim.name, claim.owner, LONG * 2, RETENTION) for claim in batch))
        assert list(renewed.held) == [True, False, True, False, True]
        renewed = await face.renew(*(Renewal(claim.name, claim.owner, LONG * 2, RETENTION) for claim in reversed(batch[1:])))
        assert list(renewed.held) == [True, False, True, False]
        assert list((await face.renew()).held) == []

    # -- L4

    async def test_L4_a_late_release_touches_nothing_of_a_successor(self, face: Face) -> None:
        claim = self.lease(face, self.fresh())
        await self.crash(face, claim)
        successor = self.lease(face, claim.name)
        await self.take(face, successor)
        before = await self.known(face, claim.name)
        settled = await self.end(face, claim, RELEASED)
        assert not settled.applied
        assert await self.known(face, claim.name) == before
        assert await self.renewed(face, successor)

    async def test_L4_nobody_releases_by_name(self, face: Face) -> None:
        claim = self.lease(face, self.fresh())
        before = await self.win(face, claim)
        settled = await self.end(face, claim._replace(owner=new_owner()), RELEASED)
        assert not settled.applied
        assert await self.known(face, claim.name) == before
        unknown = await self.end(face, self.lease(face, self.fresh()), RELEASED)
        assert not unknown.applied
        assert unknown.record is None

    async def test_L4_a_repeated_release_answers_as_the_first(self, face: Face) -> None:
        claim = self.lease(face, self.fresh())
        await self.win(face, claim)
        first = await self.end(face, claim, RELEASED)
        assert (first.applied, first.result, first.expired) == (True, RELEASED, False)
        before = await self.known(face, claim.name)
        assert (before.owner, before.expires_at, before.last_owner, before.last_result) == ("", 0, claim.owner, RELEASED)
        for result in (RELEASED, UNUSED):
            again = await self.end(face, claim, result)
            assert (again.applied, again.result, again.expired) == (True, RELEASED, False)
        assert await self.known(face, claim.name) == before

    async def test_L4_a_release_after_expiry_says_so_each_time(self, face: Face) -> None:
        claim = self.lease(face, self.fresh())
        await self.crash(face, claim)
        for _ in range(2):
            settled = await self.end(face, claim, RELEASED)
            assert (settled.applied, settled.result, settled.expired) == (True, RELEASED, True)

    async def test_L4_after_a_later_grant_a_release_says_lost(self, face: Face) -> None:
        claim = self.lease(face, self.fresh())
        await self.win(face, claim)
        await self.end(face, claim, RELEASED)
        later = self.lease(face, claim.name)
        await self.win(face, later)
        before = await self.known(face, claim.name)
        assert not (await self.end(face, claim, RELEASED)).applied
        assert await self.known(face, claim.name) == before
        assert await self.renewed(face, later)
        await self.end(face, later, RELEASED)
        assert not (await self.end(face, claim, RELEASED)).applied

    async def test_L4_a_settled_owner_is_never_granted_again(self, face: Face) -> None:
        for result in (RELEASED, UNUSED):
            claim = self.lease(face, self.fresh())
            await self.win(face, claim)
            await self.end(face, claim, result)
            await self.refused(face, claim, FINISHED)
            assert not await self.is_live(face, claim.name)

    async def test_L4_an_owner_that_ran_out_is_never_granted_again(self, face: Face) -> None:
        claim = self.lease(face, self.fresh())
        await self.crash(face, claim)
        await self.refused(face, claim, FINISHED)
        assert not await self.is_live(face, claim.name)

    async def test_L4_release_keeps_what_the_record_knows(self, face: Face) -> None:
        claim = self.lease(face, self.fresh())
        won = await self.win(face, claim)
        await self.end(face, claim, RELEASED, b"known")
        after = await self.known(face, claim.name)
        assert (after.kind, after.token, after.label, after.granted_at) == (LEASE, won.token, won.label, won.granted_at)
        assert after.keep_until >= won.granted_at + RETENTION

    # -- L5, L6

    async def test_L5_the_deadline_counts_from_before_the_request(self, face: Face) -> None:
        client = face.connect()
        client.driver.once("claim", Fault(linger=0.2))
        grant = await done(client.try_lease(self.fresh(), ttl=60, margin=10))
        assert grant
        assert 49 < grant.remaining() <= 60 - 10 - 0.19
        await done(grant.release())

    async def test_L5_so_it_does_after_a_renewal(self, face: Face) -> None:
        client = face.connect()
        ttl = max(0.9, face.capabilities.min_ttl / SECOND)
        grant = await done(client.try_lease(self.fresh(), ttl=ttl, margin=ttl / 4, heartbeat=ttl / 6))
        client.driver.away(Fault(linger=ttl / 10), "renew")
        before = client.driver.count("renew")
        await face.until(lambda: client.driver.count("renew") >= before + 3, 60)
        for _ in range(20):
            assert grant.remaining() <= ttl - ttl / 4 - ttl / 10 + 0.001 or client.driver.count("renew") < before + 2
            await face.sleep(0.005)
        client.driver.back()
        await done(grant.release())

    async def test_L6_the_holder_is_told_before_the_store_lets_go(self, face: Face) -> None:
        told: list[Any] = []
        client = face.connect()
        ttl = max(0.9, face.capabilities.min_ttl / SECOND)
        grant = await done(client.try_lease(self.fresh(), ttl=ttl, margin=ttl / 3, heartbeat=ttl / 6, on_lost=told.append))
        client.driver.away(HUNG, "renew")
        await face.until(lambda: grant.lost, 60)
        record = await self.known(face, grant.name)
        assert record.expires_at > await face.now(), "the store had let the lease go before its holder knew"
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
            client = face.connect(timeout=self.soon())
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
        assert not await self.is_live(face, holder.name), "a wait that was cancelled took the name"

    async def test_L8_a_claim_that_stayed_unknown_holds_nothing(self, face: Face) -> None:
        client = face.connect(timeout=self.soon())
        name = self.fresh()
        client.driver.away(REPLY_LOST, "claim")
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
        ttl = 30.0 if self.clock is not None else max(1.5, face.capabilities.min_ttl / SECOND)
        grants = [await done(client.try_lease(self.fresh(), ttl=ttl)) for _ in range(many)]
        assert all(grants)
        bounded = [thread for thread in face.threads() if not thread.name.startswith("rota-io")]
        assert len(bounded) <= 3, bounded
        await self.work(face, client, ttl * 1.4, ttl / 5)
        assert [grant.name for grant in grants if grant.lost] == []
        for grant in grants:
            assert await self.is_live(face, grant.name)
        batches = [len(call[1]) for call in client.driver.calls if call[0] == "renew"]
        assert sum(batches) >= many
        assert max(batches) > 1
        for grant in grants:
            await done(grant.release())

    async def test_L11_max_hold_ends_renewals(self, face: Face) -> None:
        client = face.connect()
        ttl = max(0.6, face.capabilities.min_ttl / SECOND)
        grant = await done(client.try_lease(self.fresh(), ttl=ttl, max_hold=ttl / 2))
        await self.pass_time(face, ttl / 2)
        await face.until(lambda: grant.lost, 60)
        await self.pass_time(face, ttl)
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
        for told in (answer.now, busy.now, renewed.now, settled.now):
            if told is not None:  # it is carried where the store gives it
                assert interval[0] - self.slack(face) <= told[0] <= told[1] <= later[1] + self.slack(face)
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
