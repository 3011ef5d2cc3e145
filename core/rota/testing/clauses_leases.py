# SPDX-License-Identifier: MIT
# ruff: noqa: D102, N802 - a test's name says which clause it is about, and what that demands
"""Clauses L1 to L4: who holds a lease, its token, its renewal and its release."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rota.backend import BUSY, FINISHED, LEASE, RELEASED, UNUSED, WON, Answer, Override, Renewal
from rota.duration import DAY, SECOND
from rota.errors import LeaseLost

from .base import LONG, RETENTION, Clauses, new_owner
from .faces import Face, done


class Leases(Clauses):
    """Clauses L1 to L4."""

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

    async def test_L4_who_loses_a_lease_to_an_operator_is_told_who_and_why(self, face: Face) -> None:
        await self.needs(face, "override")
        operator = "root@vm: node is stuck"
        grants: list[Any] = []

        async def hold(ttl: float, told: bool) -> None:
            name = self.fresh()
            async with face.enter(face.connect().lease(name, ttl=ttl)) as grant:
                grants.append(grant)
                assert (await face.override(Override(name, RELEASED, operator, RETENTION))).applied
                if told:
                    await face.until(lambda: grant.lost)

        # before the settlement, a renewal tells some
        for ttl, told in ((60, False), (max(0.9, face.capabilities.min_ttl / SECOND), True)):
            with pytest.raises(LeaseLost) as raised:
                await hold(ttl, told)
            assert str(raised.value).endswith(f"it was taken away by an operator, {operator}")
            assert "later grant" not in str(raised.value)
            assert grants[-1].lost
            with pytest.raises(LeaseLost, match=operator):
                grants[-1].check()

    async def test_L4_who_loses_a_lease_that_was_forgotten_is_told_so(self, face: Face) -> None:
        client, name = face.connect(), self.fresh()
        grant = await done(client.try_lease(name))
        assert await face.forget(name)
        with pytest.raises(LeaseLost, match="it was forgotten by an operator"):
            await done(grant.release())

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
