# SPDX-License-Identifier: MIT
# ruff: noqa: D102, N802 - a test's name says which clause it is about, and what that demands
"""Clauses R1 to R3: how long records are kept."""

from __future__ import annotations

from rota.backend import BUSY, HANDLED, RELEASED, Claim
from rota.duration import DAY, SECOND
from rota.errors import NotSupported

from .base import LONG, RETENTION, Clauses, RefusedHere, not_run
from .faces import Face, done


class Keeping(Clauses):
    """Clauses R1 to R3."""

    async def _sweeps(self, face: Face) -> None:
        """Go on where a sweep removes records; else the store's own expiry serves (R3), which is only refused, not waited for."""
        await self.needs(face, "sweep")
        self.need_clock()

    async def _sweep_all(self, face: Face) -> int:
        removed = 0
        while count := await face.sweep(100):
            removed += count
        return removed

    async def test_R1_a_record_says_until_when_it_is_kept(self, face: Face) -> None:
        slack = self.slack(face)
        lease = self.lease(face, self.fresh())
        won = await self.win(face, lease)
        assert won.keep_until >= won.expires_at + RETENTION - slack
        if face.capabilities.windows:
            for claim in (self.window(face, self.fresh(), 5), self.rolling(face, self.fresh(), 3 * DAY)):
                won = await self.win(face, claim)
                assert won.slot_end is not None
                assert won.keep_until >= max(won.slot_end, won.expires_at) + RETENTION - slack
                await self.end(face, claim, HANDLED)
                settled = await self.known(face, claim.name)
                assert settled.keep_until >= max(won.slot_end + RETENTION, settled.settled_at + RETENTION) - slack

    async def test_R1_what_is_live_or_young_is_not_removed(self, face: Face) -> None:
        await self.needs(face, "sweep")
        live = self.lease(face, self.fresh(), retention=DAY)
        young = self.lease(face, self.fresh(), retention=DAY)
        forgotten = self.lease(face, self.fresh(), retention=DAY)
        for claim in (live, young, forgotten):
            await self.win(face, claim)
        await self.end(face, young, RELEASED)
        await face.forget(forgotten.name)
        await self._sweep_all(face)
        for claim in (live, young, forgotten):
            assert await face.read(claim.name) is not None, "a record was removed that R1 keeps"
        await self.refused(face, self.lease(face, live.name), BUSY)

    async def test_R1_a_lease_that_is_renewed_for_years_is_kept(self, face: Face) -> None:
        await self._sweeps(face)
        clock = self.need_clock()
        claim = self.lease(face, self.fresh(), ttl=300 * DAY, retention=DAY)
        won = await self.win(face, claim)
        with clock.stopped():
            clock.leap(299 * DAY)
            assert await self.renewed(face, claim, 300 * DAY)
            clock.leap(299 * DAY)
            await self._sweep_all(face)
            assert (await self.known(face, claim.name)).token == won.token

    async def test_R1_a_record_goes_after_its_time_and_not_before(self, face: Face) -> None:
        await self._sweeps(face)
        clock = self.need_clock()
        await self._sweep_all(face)
        claim = self.lease(face, self.fresh(), ttl=LONG)
        with clock.stopped():
            won = await self.win(face, claim)
            await self.end(face, claim, RELEASED)
            clock.set((await self.known(face, claim.name)).keep_until)
            await self._sweep_all(face)
            assert await face.read(claim.name) is not None
            clock.leap(2)
            await self._sweep_all(face)
            assert await face.read(claim.name) is None
            again = await self.win(face, self.lease(face, claim.name))
            assert again.token > won.token  # L2

    async def test_R1_handled_holds_while_the_record_lives(self, face: Face) -> None:
        await self.check_windows(face)
        clock = self.need_clock()
        claim = self.window(face, self.fresh())
        await self.handle(face, claim)
        with clock.stopped():
            clock.leap(29 * DAY)
            if "sweep" in face.capabilities.verbs:
                await self._sweep_all(face)
            await self.refused(face, self.window(face, claim.name), HANDLED)
            client = face.connect()
            clock.leap(32 * DAY)
            verdict = await done(client.try_window(claim.name, planned=(claim.slot_start or 0) / SECOND))
            assert not verdict, "W6 refuses what reaches back further than the retention"

    async def test_R2_forget_leaves_a_tombstone(self, face: Face) -> None:
        await self.check_windows(face)
        handled = self.window(face, self.fresh())
        await self.handle(face, handled, b"runs")
        before = await self.known(face, handled.name)
        assert await face.forget(handled.name) is True
        tombstone = await self.known(face, handled.name)
        assert (tombstone.kind, tombstone.owner, tombstone.mark, tombstone.history) == ("", "", None, b"")
        assert tombstone.token > before.token
        assert await face.forget(handled.name) is False, "there is nothing left to forget"
        assert await face.forget(self.fresh()) is False
        await self.win(face, self.window(face, handled.name))

    async def test_R2_forget_fences_a_holder_at_work(self, face: Face) -> None:
        held = self.lease(face, self.fresh())
        won = await self.win(face, held)
        assert await face.forget(held.name) is True
        tombstone = await self.known(face, held.name)
        assert tombstone.token > won.token
        assert not await self.renewed(face, held)
        assert not (await self.end(face, held, RELEASED)).applied
        assert await self.known(face, held.name) == tombstone
        await self.win(face, self.lease(face, held.name))

    async def test_R2_the_store_itself_keeps_the_tombstone(self, face: Face) -> None:
        held = self.lease(face, self.fresh())
        won = await self.win(face, held)
        await face.forget(held.name)
        found = self.raw(held.name)
        assert found is not None, "forget deleted the record"
        token = found.get("token", won.token + 1)
        assert isinstance(token, int)
        assert token > won.token
        assert not found.get("owner")
        assert found.get("mark") is None

    async def test_R2_release_and_settle_never_delete(self, face: Face) -> None:
        for result in (RELEASED, "unused", "failed", HANDLED):
            claim: Claim = self.lease(face, self.fresh())
            if result != RELEASED:
                if not face.capabilities.windows:
                    continue
                claim = self.window(face, self.fresh())
            won = await self.win(face, claim)
            await self.end(face, claim, result)
            assert (await self.known(face, claim.name)).token == won.token

    async def test_R3_a_sweep_is_bounded(self, face: Face) -> None:
        await self._sweeps(face)
        clock = self.need_clock()
        await self._sweep_all(face)
        names = [self.fresh() for _ in range(5)]
        for name in names:
            claim = self.lease(face, name, retention=DAY)
            await self.win(face, claim)
            await self.end(face, claim, RELEASED)
        with clock.stopped():
            clock.leap(90 * DAY)
            counts = [await face.sweep(2) for _ in range(4)]
        assert counts == [2, 2, 1, 0]
        assert [name for name in names if await face.read(name) is not None] == []

    async def test_R3_a_store_that_needs_no_sweep_refuses_it(self, face: Face) -> None:
        if "sweep" in face.capabilities.verbs:
            return  # what it does is tested above
        try:
            await face.sweep(1)
        except NotSupported:
            raise RefusedHere("refused: no sweep; the store's own expiry serves") from None
        raise AssertionError("sweep is not declared, and works")

    async def test_R3_a_client_that_holds_leases_sweeps(self, face: Face) -> None:
        await self._sweeps(face)
        clock = self.need_clock()
        gone = self.lease(face, self.fresh(), retention=DAY)
        await self.win(face, gone)
        await self.end(face, gone, RELEASED)
        client = face.connect()
        clock.leap(90 * DAY)
        grant = await done(client.try_lease(self.fresh(), ttl="30s"))
        assert grant
        if not hasattr(client._engine, "sweeper"):
            not_run("this client has no sweeper")
        client._engine.sweeper._next = 0.0  # a minute is over
        clock.leap(11 * SECOND)  # and a renewal is due
        client._engine.heartbeat.wake()
        await face.until(lambda: client.driver.count("sweep"))
        await face.until(lambda: self._is_gone(face, gone.name), what="an end of a record that R1 lets go")
        await done(grant.release())

    async def _is_gone(self, face: Face, name: str) -> bool:
        return await face.read(name) is None
