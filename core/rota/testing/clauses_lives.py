# SPDX-License-Identifier: MIT
# ruff: noqa: D102, N802 - a test's name says which clause it is about, and what that demands
"""Clauses W3 and W4: the life of a slot, from its claim to what becomes of it, and those who find it busy."""

from __future__ import annotations

import pytest

from rota.backend import (
    BUSY,
    FAILED,
    FINISHED,
    GAVE_UP,
    HANDLED,
    OVERLAP,
    PENDING,
    RELEASED,
    SEALED,
    UNUSED,
    WINDOW,
    WON,
    Override,
    WriteBack,
)
from rota.duration import HOUR, SECOND
from rota.errors import LeaseLost

from .base import RETENTION, Clauses, in_seconds
from .faces import Face, done


class Lives(Clauses):
    """Clauses W3 and W4."""

    # -- W3

    async def test_W3_a_failure_gives_the_slot_back(self, face: Face) -> None:
        name, tokens = self.fresh(), []
        for number in (1, 2, 3):
            claim = self.window(face, name)
            won = await self.win(face, claim)
            tokens.append(won.token)
            assert (won.mark, won.attempts, won.outcome) == (None, number, PENDING)
            assert (await self.end(face, claim, FAILED)).applied
            failed = await self.known(face, name)
            assert (failed.mark, failed.outcome, failed.owner) == (None, FAILED, "")
        await self.handle(face, self.window(face, name))
        assert tokens == sorted(set(tokens))

    async def test_W3_a_crash_gives_the_slot_back_by_expiry(self, face: Face) -> None:
        claim = self.window(face, self.fresh())
        crashed = await self.crash(face, claim)
        assert crashed.mark is None
        again = await self.take(face, self.window(face, claim.name))
        assert again.token > crashed.token
        assert again.mark is None

    async def test_W3_success_moves_the_mark_and_nothing_moves_it_back(self, face: Face) -> None:
        name = self.fresh()
        older = self.window(face, name, -3)
        await self.win(face, older)
        await self.end(face, older, HANDLED)
        settled = await self.known(face, name)
        assert (settled.mark, settled.outcome, settled.expires_at) == (older.slot_start, HANDLED, 0)
        newer = self.window(face, name, 0)
        await self.handle(face, newer)
        for result in (FAILED, UNUSED, HANDLED):
            claim = self.window(face, name, 1)
            await self.win(face, claim)
            await self.end(face, claim, result)
            mark = (await self.known(face, name)).mark
            assert mark == (claim.slot_start if result == HANDLED else newer.slot_start)
        again = await self.end(face, older, HANDLED)
        assert not again.applied
        assert (await self.known(face, name)).mark == self.slot(face, 1)[0]

    async def test_W3_a_holder_that_settles_moves_no_mark_back(self, face: Face) -> None:
        await self.needs(face, "record")
        held = self.window(face, self.fresh(), 0)
        await self.win(face, held)
        newer, end = self.slot(face, 2)
        await face.write_back(WriteBack(held.name, "site degraded:1", WINDOW, RETENTION, "every 1h", "", newer, end))
        assert (await self.end(face, held, HANDLED)).applied
        assert (await self.known(face, held.name)).mark == newer

    async def test_W3_the_store_itself_holds_the_mark(self, face: Face) -> None:
        claim = self.window(face, self.fresh())
        await self.win(face, claim)
        held = self.raw(claim.name)
        assert held is not None
        assert held.get("mark") is None, "the mark moved at the claim"
        await self.end(face, claim, HANDLED)
        after = self.raw(claim.name)
        assert after is not None, "settling deleted the record"
        assert after.get("mark", claim.slot_start) == claim.slot_start
        await self.refused(face, self.window(face, claim.name), HANDLED)

    async def test_W3_a_settlement_is_idempotent(self, face: Face) -> None:
        claim = self.window(face, self.fresh())
        await self.win(face, claim)
        assert (await self.end(face, claim, HANDLED)).result == HANDLED
        before = await self.known(face, claim.name)
        for result in (HANDLED, FAILED, UNUSED):
            again = await self.end(face, claim, result)
            assert (again.applied, again.result) == (True, HANDLED), "it answers as it did the first time"
        assert await self.known(face, claim.name) == before

    async def test_W3_what_leaves_the_body_decides(self, face: Face) -> None:
        client = face.connect()
        planned = in_seconds(face.began)
        for error, handled in (
            (None, True),
            (SystemExit(0), True),
            (SystemExit(None), True),
            (SystemExit(3), False),
            (ValueError("no"), False),
            (KeyboardInterrupt(), False),
        ):
            name, came_out = self.fresh(), None
            try:
                async with face.enter(client.window(name, planned=planned)):
                    if error is not None:
                        raise error
            except BaseException as left:
                came_out = left
            assert came_out is error, "what leaves the body leaves the block, and nothing else does"
            record = await self.known(face, name)
            assert (record.mark is not None, record.outcome) == (handled, HANDLED if handled else FAILED), repr(error)
            assert record.owner == ""

    async def test_W3a_a_late_success_counts_if_nobody_followed(self, face: Face) -> None:
        claim = self.window(face, self.fresh())
        await self.crash(face, claim)
        settled = await self.end(face, claim, HANDLED)
        assert (settled.applied, settled.result, settled.expired) == (True, HANDLED, True)
        assert (await self.known(face, claim.name)).mark == claim.slot_start
        await self.refused(face, self.window(face, claim.name), HANDLED)
        again = await self.end(face, claim, HANDLED)
        assert (again.applied, again.expired) == (True, True)

    async def test_W3a_with_a_later_grant_a_late_success_moves_nothing(self, face: Face) -> None:
        claim = self.window(face, self.fresh())
        await self.crash(face, claim)
        later = self.window(face, claim.name)
        await self.take(face, later)
        before = await self.known(face, claim.name)
        settled = await self.end(face, claim, HANDLED)
        assert not settled.applied
        assert await self.known(face, claim.name) == before
        assert await self.renewed(face, later)
        await self.end(face, later, FAILED)
        settled = await self.end(face, claim, HANDLED)
        assert not settled.applied
        assert (await self.known(face, claim.name)).mark is None

    async def test_W3a_the_grant_tells_which_of_both(self, face: Face) -> None:
        for followed in (False, True):
            client, name = face.connect(), self.fresh()
            client.driver.away(verbs="renew")
            ttl = max(0.4, self.short(face) / SECOND)
            grant = await done(client.try_window(name, planned=in_seconds(face.began), ttl=ttl))
            assert grant
            await self.outlive(face, await self.known(face, name))
            if followed:
                later = self.window(face, name, slot_start=grant.slot.start + 1, schedule="", slot_end=None, label="site other:2")
                await self.take(face, later)
                with pytest.raises(LeaseLost, match="a later grant was made, to site other:2"):
                    await done(grant.handled())
            else:
                await done(grant.handled())
            assert grant.lost
            assert (await self.known(face, name)).mark == (None if followed else grant.slot.start)

    async def test_W3a_a_grant_that_ended_in_time_is_not_lost(self, face: Face) -> None:
        client, planned = face.connect(), in_seconds(face.began)
        for how in ("handled", "failed", "unused", "release"):
            grant = await done(client.try_window(self.fresh(), planned=planned))
            assert not grant.lost
            await done(getattr(grant, how)())
            assert (grant.lost, grant.remaining()) == (False, 0), "who asks whether a recorded success was late is told that it was"
            with pytest.raises(LeaseLost):
                grant.check()
        async with face.enter(client.window(self.fresh(), planned=planned, at_most_once=True, overlap=True)) as grant:
            pass
        assert not grant.lost
        async with face.enter(client.once(self.fresh(), "1d")) as grant:
            pass
        assert not grant.lost

    async def test_W3b_a_seal_moves_the_mark_at_the_claim(self, face: Face) -> None:
        for result in (FAILED, "", HANDLED):
            claim = self.window(face, self.fresh(), seal=True)
            if result:
                won = await self.win(face, claim)
            else:
                won = await self.crash(face, claim)
            assert (won.mark, won.outcome) == (claim.slot_start, SEALED)
            await self.refused(face, self.window(face, claim.name), HANDLED)
            if result:
                await self.end(face, claim, result)
            assert (await self.known(face, claim.name)).mark == claim.slot_start
            await self.refused(face, self.window(face, claim.name), HANDLED)

    async def test_W3b_unused_unseals(self, face: Face) -> None:
        name = self.fresh()
        await self.handle(face, self.window(face, name, -2))
        claim = self.window(face, name, 0, seal=True)
        won = await self.win(face, claim)
        assert won.prior_mark == self.slot(face, -2)[0]
        await self.end(face, claim, UNUSED)
        after = await self.known(face, name)
        assert after.mark == self.slot(face, -2)[0], "unused goes back to the mark before the seal"
        assert after.attempts == won.attempts - 1
        again = await self.win(face, self.window(face, name, 0, seal=True))
        assert again.attempts == 1

    async def test_W3b_a_released_seal_still_knows_the_mark_before_it(self, face: Face) -> None:
        await self.needs(face, "override")
        name = self.fresh()
        await self.handle(face, self.window(face, name, -1))
        earlier = (await self.known(face, name)).mark
        await self.win(face, self.window(face, name, 0, seal=True))
        for action in (RELEASED, FAILED):
            assert (await face.override(Override(name, action, "operator: it hung", RETENTION))).applied
        assert (await self.known(face, name)).mark == earlier
        await self.refused(face, self.window(face, name, -1), HANDLED)

    async def test_W3b_unused_gives_an_unsealed_slot_back_too(self, face: Face) -> None:
        claim = self.window(face, self.fresh())
        await self.win(face, claim)
        await self.end(face, claim, UNUSED)
        record = await self.known(face, claim.name)
        assert (record.mark, record.outcome, record.attempts, record.owner) == (None, "", 0, "")
        await self.handle(face, self.window(face, claim.name))

    async def test_W3c_a_mark_that_is_set_back_gives_all_attempts_anew(self, face: Face) -> None:
        await self.needs(face, "override")
        name = self.fresh()
        for attempt in (1, 2):
            claim = self.window(face, name, max_attempts=2)
            assert (await self.win(face, claim)).attempts == attempt
            await self.end(face, claim, FAILED if attempt == 1 else GAVE_UP)
        await self.refused(face, self.window(face, name, max_attempts=2), HANDLED)
        assert (await face.override(Override(name, "mark", "operator: it is mended", RETENTION))).applied
        again = await self.win(face, self.window(face, name, max_attempts=2))
        assert again.attempts == 1

    async def test_W3c_attempts_count_grants_and_crashes(self, face: Face) -> None:
        name = self.fresh()
        first = self.window(face, name)
        assert (await self.win(face, first)).attempts == 1
        await self.end(face, first, FAILED)
        assert (await self.crash(face, self.window(face, name))).attempts == 2
        third = self.window(face, name)
        assert (await self.take(face, third)).attempts == 3
        await self.end(face, third, UNUSED)
        fourth = self.window(face, name)
        assert (await self.win(face, fourth)).attempts == 3
        await self.end(face, fourth, FAILED)
        assert (await self.win(face, self.window(face, name, 1))).attempts == 1, "a new slot counts anew"

    async def test_W3c_the_last_failure_closes_the_slot(self, face: Face) -> None:
        client, name = face.connect(), self.fresh()
        planned = in_seconds(face.began)
        for attempt in (1, 2):
            grant = await done(client.try_window(name, planned=planned, attempts=2))
            assert grant.attempt == attempt
            await done(grant.failed())
        record = await self.known(face, name)
        assert (record.mark, record.outcome, record.last_result) == (record.slot_start, GAVE_UP, GAVE_UP)
        refused = await done(client.try_window(name, planned=planned, attempts=2))
        assert (refused.verdict, refused.how) == (HANDLED, GAVE_UP)

    async def test_W3c_a_crash_of_the_last_attempt_is_closed_by_the_next_claim(self, face: Face) -> None:
        first = self.window(face, self.fresh(), max_attempts=2)
        await self.win(face, first)
        await self.end(face, first, FAILED)
        crashed = self.window(face, first.name, max_attempts=2)
        await self.crash(face, crashed)
        answer = await face.claim(self.window(face, first.name, max_attempts=2))
        assert answer.verdict == HANDLED
        record = await self.known(face, first.name)
        assert (record.mark, record.outcome) == (first.slot_start, GAVE_UP)
        assert answer.record == record
        # it was no crash after all, and nobody was granted more (W3a)
        settled = await self.end(face, crashed, HANDLED)
        assert (settled.applied, settled.result, settled.expired) == (True, HANDLED, True)
        record = await self.known(face, first.name)
        assert (record.mark, record.outcome, record.owner) == (first.slot_start, HANDLED, "")

    async def test_W3c_a_live_last_attempt_is_left_alone(self, face: Face) -> None:
        claim = self.window(face, self.fresh(), max_attempts=1)
        await self.win(face, claim)
        await self.refused(face, self.window(face, claim.name, max_attempts=1), BUSY)
        assert (await self.end(face, claim, HANDLED)).applied

    async def test_W3d_a_slot_that_failed_and_ended_is_missed(self, face: Face) -> None:
        client, name, schedule = face.connect(), self.fresh(), self.hourly(face)
        base = schedule.slot(face.began).start
        grant = await done(client.try_window(name, schedule, planned=in_seconds(base - 3 * HOUR), max_late="9h"))
        assert grant.missed.count == 0
        await done(grant.failed())
        grant = await done(client.try_window(name, schedule, planned=in_seconds(base), max_late="9h"))
        assert (grant.missed.count, grant.missed.exact) == (3, True)
        await done(grant.handled())

    async def test_W3d_the_answer_tells_the_record_that_a_grant_replaced(self, face: Face) -> None:
        name = self.fresh()
        answer = await face.claim(self.window(face, name, -3))
        assert (answer.verdict, answer.before) == (WON, None)
        before = await self.known(face, name)
        await face.forget(self.fresh())
        await self.end(face, self.window(face, name, -3, owner=before.owner), FAILED)
        before = await self.known(face, name)
        answer = await face.claim(self.window(face, name, 0))
        assert (answer.verdict, answer.before) == (WON, before)

    # -- W4

    async def test_W4_busy_tells_the_holder_since_when_and_for_which_slot(self, face: Face) -> None:
        client, name, schedule = face.connect(), self.fresh(), self.hourly(face)
        slot = schedule.slot(face.began)
        holder = self.window(
            face, name, label="site holder:7", schedule=schedule.canonical, slot_start=slot.start - HOUR, slot_end=slot.start
        )
        won = await self.win(face, holder)
        refused = await done(client.try_window(name, schedule))
        assert (refused.verdict, refused.holder, refused.same_slot) == (BUSY, "site holder:7", False)
        assert refused.record.granted_at == won.granted_at
        same = await done(client.try_window(name, schedule, planned=in_seconds(slot.start - HOUR), max_late="5h"))
        assert (same.verdict, same.same_slot) == (BUSY, True)

    async def test_W4_overlap_moves_the_mark_and_holds_no_lease(self, face: Face) -> None:
        name = self.fresh()
        first = self.window(face, name, -1, seal=True, overlap=True)
        won = await self.win(face, first)
        assert (won.mark, won.owner, won.expires_at) == (first.slot_start, "", 0)
        assert (won.last_owner, won.last_result) == (first.owner, OVERLAP)
        assert not await self.renewed(face, first)
        again = await face.claim(first)
        assert (again.verdict, again.record) == (WON, won), "its owner finds it again"
        second = await self.win(face, self.window(face, name, 0, seal=True, overlap=True))
        assert second.token > won.token
        await self.refused(face, self.window(face, name, -1), HANDLED)

    async def test_W4_an_overlapping_grant_can_be_settled(self, face: Face) -> None:
        for result, mark in ((HANDLED, True), (FAILED, True), (UNUSED, False)):
            claim = self.window(face, self.fresh(), seal=True, overlap=True)
            await self.win(face, claim)
            settled = await self.end(face, claim, result)
            assert (settled.applied, settled.result, settled.expired) == (True, result, False)
            record = await self.known(face, claim.name)
            assert record.mark == (claim.slot_start if mark else None)
            await self.refused(face, claim, FINISHED)

    async def test_W4_a_live_lease_refuses_overlap_too(self, face: Face) -> None:
        name = self.fresh()
        await self.win(face, self.window(face, name, -1))
        await self.refused(face, self.window(face, name, 0, seal=True, overlap=True), BUSY)
