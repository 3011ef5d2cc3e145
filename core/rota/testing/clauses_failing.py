# SPDX-License-Identifier: MIT
# ruff: noqa: D102, N802 - a test's name says which clause it is about, and what that demands
"""Clauses F1 to F5: when the store does not answer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from rota.backend import DEGRADED, FAILED, HANDLED, ROLLING, UNUSED, WINDOW, WriteBack
from rota.duration import DAY, HOUR, SECOND
from rota.errors import Busy, ConfigurationError, LeaseLost, NotAcquired, OutcomeUnknown, RotaError, Unavailable, Unrecorded
from rota.schedule import Every

from .base import RETENTION, Clauses, in_seconds
from .faces import Face, done
from .faulty import HUNG, REFUSED, REPLY_LOST, REQUEST_LOST, Fault
from .stopwatch import Stopwatch

#: How much longer than its timeout a call may take on a loaded machine, seconds.
LATE_BY = 1.0


class Failing(Clauses):
    """Clauses F1 to F5."""

    # -- F1

    async def test_F1_a_claim_is_bounded_by_its_timeout(self, face: Face) -> None:
        client = face.connect(timeout=self.soon())
        client.driver.away(HUNG)
        with Stopwatch() as watch:
            with pytest.raises(Unavailable):
                await done(client.try_lease(self.fresh()))
            assert watch.seconds < self.soon() + LATE_BY
        assert all(call[2] <= self.soon() for call in client.driver.calls)

    async def _granted(self, face: Face, ask: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Ask until the store has answered: the client's timeout is short, and the machine may be busy."""

        async def granted() -> Any:
            with contextlib.suppress(Unavailable):
                return await done(ask(*arguments, **options))
            return None

        return await face.until(granted, what="a grant")

    async def test_F1_a_closed_driver_says_so_at_once(self, face: Face) -> None:
        driver = face.another_driver()
        driver.now(5.0)
        driver.close()
        driver.close()
        for call in (lambda: driver.claim(self.lease(face, self.fresh()), 5.0), lambda: driver.read(self.fresh(), 5.0)):
            with pytest.raises(Unavailable):
                await face.call(call)

    # -- F2

    async def test_F2_on_unavailable_decides_claims(self, face: Face) -> None:
        cold = face.connect(timeout=self.ample())
        cold.driver.away(self.costly(face, REQUEST_LOST), "now read")
        with pytest.raises(Unavailable) as raised:
            await done(cold.try_lease(self.fresh()))
        assert not isinstance(raised.value, OutcomeUnknown), "no claim was sent before the store's time was known"
        client = face.connect(timeout=self.soon())
        planned = in_seconds(face.began)
        await self._granted(face, client.try_lease, self.fresh())
        for fault in (REFUSED, REQUEST_LOST, HUNG):
            client._engine.breaker.answered()
            client.driver.away(self.costly(face, fault), "claim now read")
            with pytest.raises(Unavailable) as raised:
                await done(client.try_lease(self.fresh(), timeout=self.soon() if fault is HUNG else self.ample()))
            assert isinstance(raised.value, OutcomeUnknown) is (fault is not REFUSED) or fault is HUNG
            client._engine.breaker.answered()
            skipped = await done(client.try_lease(self.fresh(), on_unavailable="skip"))
            assert not skipped
            assert skipped.verdict == "unavailable"
            client._engine.breaker.answered()
            if face.capabilities.windows:
                grant = await done(client.try_window(self.fresh(), planned=planned, on_unavailable="run"))
                assert (bool(grant), grant.degraded, grant.token) == (True, True, None)
                assert grant.warnings, "a degraded run is said loudly"
                await done(grant.failed())
        client.driver.back()

    async def test_F2_busy_unavailable_and_unknown_differ_in_type(self, face: Face) -> None:
        assert issubclass(OutcomeUnknown, Unavailable)
        assert issubclass(Unrecorded, OutcomeUnknown)
        assert not issubclass(Unavailable, (NotAcquired, ConfigurationError))
        assert not issubclass(Busy, Unavailable)
        claim = self.lease(face, self.fresh())
        await self.win(face, claim)
        client = face.connect(timeout=self.ample())
        with pytest.raises(Busy):
            async with face.enter(client.lease(claim.name)):
                raise AssertionError("entered")
        client.driver.away(REFUSED)
        with pytest.raises(Unavailable) as raised:
            async with face.enter(client.lease(claim.name)):
                raise AssertionError("entered")
        assert not isinstance(raised.value, OutcomeUnknown)

    async def test_F2_a_claim_that_may_have_been_applied_is_unknown(self, face: Face) -> None:
        client = face.connect(timeout=self.ample())
        client.driver.away(self.costly(face, REPLY_LOST), "claim")
        with pytest.raises(OutcomeUnknown):
            await done(client.try_lease(self.fresh()))
        client = face.connect(timeout=self.ample())
        client.driver.once("now read", Fault())
        client.driver.once("claim", REPLY_LOST)
        client.driver.away(REFUSED)
        with pytest.raises(OutcomeUnknown):  # the last request was not applied, but an earlier one may have been
            await done(client.try_lease(self.fresh()))

    async def test_F2_on_lost_decides_what_becomes_of_a_holder_that_is_cut_off(self, face: Face) -> None:
        ttl = max(0.5, face.capabilities.min_ttl / SECOND)
        for policy in ("stop", "continue"):
            client = face.connect(timeout=self.soon())
            grant = await self._granted(face, client.try_lease, self.fresh(), ttl=ttl, on_lost=policy)
            client.driver.away(REFUSED)
            face.clock.leap(round(ttl * SECOND))

            def cut_off(grant: Any = grant) -> bool:
                return bool(grant.lost or grant.degraded)

            await face.until(cut_off, 60)
            if policy == "stop":
                with pytest.raises(LeaseLost):
                    grant.check()
            else:
                grant.check()
                assert (grant.degraded, grant.lost) == (True, False)

    # -- F3

    def _write_back(self, face: Face, name: str, number: int = 0, **changes: Any) -> WriteBack:
        start, end = self.slot(face, number)
        return WriteBack(name, "site degraded:1", WINDOW, RETENTION, "every 1h", "", start, end)._replace(**changes)

    async def test_F3_a_write_back_moves_the_mark_up_and_never_back(self, face: Face) -> None:
        await self.check_windows(face)
        await self.needs(face, "record")
        name = self.fresh()
        for number, mark in ((-2, -2), (-3, -2), (0, 0), (-1, 0), (0, 0)):
            written = await face.write_back(self._write_back(face, name, number))
            assert written.applied
            record = await self.known(face, name)
            assert record.mark == self.slot(face, mark)[0]
        assert (record.outcome, record.owner, record.kind) == (DEGRADED, "", WINDOW)
        assert record.keep_until >= self.slot(face, 0)[1] + RETENTION - self.slack(face)
        await self.refused(face, self.window(face, name, 0), HANDLED)
        assert (await self.win(face, self.window(face, name, 1))).token > record.token

    async def test_F3_a_write_back_leaves_a_holder_at_work_alone(self, face: Face) -> None:
        await self.check_windows(face)
        await self.needs(face, "record")
        held = self.window(face, self.fresh(), 0)
        won = await self.win(face, held)
        for number in (-1, 0):
            assert (await face.write_back(self._write_back(face, held.name, number))).applied
            record = await self.known(face, held.name)
            assert (record.token, record.owner, record.expires_at) == (won.token, won.owner, won.expires_at)
            assert (record.slot_start, record.mark) == (won.slot_start, self.slot(face, number)[0])
        assert await self.renewed(face, held)
        assert (await self.end(face, held, HANDLED)).applied

    async def test_F3_an_owner_that_ran_out_may_still_settle_after_a_write_back(self, face: Face) -> None:
        await self.check_windows(face)
        await self.needs(face, "record")
        for number, mark in ((0, 0), (-1, 0), (1, 1)):
            late = self.window(face, self.fresh(), 0)
            await self.crash(face, late)
            assert (await face.write_back(self._write_back(face, late.name, number))).applied
            settled = await self.end(face, late, HANDLED)
            assert (settled.applied, settled.result, settled.expired) == (True, HANDLED, True)  # W3a: no later grant was made
            assert (await self.known(face, late.name)).mark == self.slot(face, mark)[0]

    async def test_F3_an_unused_seal_does_not_take_back_what_was_written_back(self, face: Face) -> None:
        await self.check_windows(face)
        await self.needs(face, "record")
        for number in (0, -1, 1):
            sealed = self.window(face, self.fresh(), 0, seal=True)
            await self.win(face, sealed)
            assert (await face.write_back(self._write_back(face, sealed.name, number))).applied
            assert (await self.end(face, sealed, UNUSED)).applied
            assert (await self.known(face, sealed.name)).mark == self.slot(face, number)[0]

    async def test_F3_a_write_back_keeps_the_record_for_its_retention(self, face: Face) -> None:
        await self.check_windows(face)
        await self.needs(face, "record")
        name = self.fresh()
        for number in (0, -1):
            request = self._write_back(face, name, number, retention=RETENTION * (1 - number))
            await face.write_back(request)
            kept = self.slot(face, number)[1] + request.retention
            assert (await self.known(face, name)).keep_until >= kept

    async def test_F3_a_write_back_of_another_kind_changes_nothing(self, face: Face) -> None:
        await self.check_windows(face)
        await self.needs(face, "record")
        lease = self.lease(face, self.fresh())
        before = await self.win(face, lease)
        assert not (await face.write_back(self._write_back(face, lease.name))).applied
        assert await self.known(face, lease.name) == before

    async def test_F3_a_rolling_period_is_written_back_unless_a_later_one_is_kept(self, face: Face) -> None:
        await self.check_windows(face)
        await self.needs(face, "record")
        now = await face.now()
        period: dict[str, Any] = {"kind": ROLLING, "schedule": "per 1d", "slot_start": now - HOUR, "slot_end": now + 23 * HOUR}
        fresh = self.fresh()
        assert (await face.write_back(self._write_back(face, fresh, **period))).applied
        await self.refused(face, self.rolling(face, fresh), HANDLED)
        later = self.rolling(face, self.fresh(), DAY)
        await self.handle(face, later)
        before = await self.known(face, later.name)
        assert not (await face.write_back(self._write_back(face, later.name, **period))).applied
        assert await self.known(face, later.name) == before

    async def test_F3_a_degraded_run_is_written_back(self, face: Face) -> None:
        await self.check_windows(face)
        client, name, schedule = face.connect(timeout=self.soon()), self.fresh(), self.hourly(face)
        now = await face.now()
        await self._granted(face, client.try_window, self.fresh(), schedule)  # so that the store's time is known
        client.driver.away(REFUSED)
        grant = await done(client.try_window(name, schedule, on_unavailable="run"))
        assert grant.degraded
        assert grant.slot in (schedule.slot(now), schedule.slot(now + HOUR))
        await done(grant.handled())
        again = await done(client.try_window(name, schedule, on_unavailable="run"))
        assert not again, "the process repeats nothing itself"
        assert again.verdict == HANDLED
        client.driver.back()
        if "record" not in face.capabilities.verbs:
            assert await done(client.flush(10)) or client.driver.count("record") == 0
            await self.needs(face, "record")
        assert await done(client.flush(10))
        assert (await self.known(face, name)).mark == grant.slot.start
        await face.until(lambda: self._verdict(client, name, schedule), what="an answer after the store is back")
        assert (await done(client.try_window(name, schedule))).verdict == HANDLED

    async def test_F3_a_degraded_period_is_written_back_as_a_claim_would_have_kept_it(self, face: Face) -> None:
        await self.check_windows(face)
        await self.needs(face, "record")
        client, name = face.connect(timeout=self.soon()), self.fresh()
        await self._granted(face, client.try_once, self.fresh(), "90m")  # so that the store's time is known
        client.driver.away(REFUSED)
        grant = await done(client.try_once(name, "90m", on_unavailable="run"))
        assert grant.degraded
        await done(grant.handled())
        client.driver.back()
        assert await done(client.flush(10))
        written = await self.known(face, name)
        assert (written.kind, written.mark) == (ROLLING, grant.slot.start)
        assert (written.slot_start, written.slot_end) == (grant.slot.start, grant.slot.end)
        other = self.fresh()
        granted = await self._granted(face, face.connect().try_once, other, "90m")
        assert written.schedule == granted.record.schedule

    async def _verdict(self, client: Any, name: str, schedule: Every) -> bool:
        with contextlib.suppress(Unavailable):
            return bool((await done(client.try_window(name, schedule))).verdict)
        return False

    async def test_F3_a_degraded_failure_is_not_written_back(self, face: Face) -> None:
        await self.check_windows(face)
        client, name = face.connect(timeout=self.soon()), self.fresh()
        client.driver.away(REFUSED)
        grant = await done(client.try_window(name, planned=in_seconds(face.began), on_unavailable="run"))
        await done(grant.failed())
        again = await done(client.try_window(name, planned=in_seconds(face.began), on_unavailable="run"))
        assert again, "a failure may be tried again"
        await done(again.failed())
        client.driver.back()
        assert await done(client.flush(10))
        record = await face.read(name)
        assert record is None or record.mark is None

    # -- F4

    async def test_F4_many_claims_do_not_wait_many_timeouts(self, face: Face) -> None:
        client = face.connect(timeout=self.soon())
        held = await self._granted(face, client.try_lease, self.fresh(), ttl=60)
        client.driver.away(HUNG, "claim now read")
        began = time.monotonic()
        for _ in range(1000):
            with pytest.raises(Unavailable):
                await done(client.try_lease(self.fresh()))
            assert client.driver.count("claim") <= 5 + (time.monotonic() - began) / 2, "claims go on waiting for a store that is away"
        await done(held.release())  # no breaker guards a settlement
        assert not await self.is_live(face, held.name)
        client.driver.back()
        face.clock.leap(5 * SECOND)
        await face.until(lambda: self._is_back(client), what="a claim that is answered after the store is back")

    async def _is_back(self, client: Any) -> bool:
        with contextlib.suppress(Unavailable):
            return bool(await done(client.try_lease(self.fresh())))
        return False

    # -- F5

    async def test_F5_an_unconfirmed_success_is_kept_and_recorded(self, face: Face) -> None:
        await self.check_windows(face)
        for fault in (REFUSED, REQUEST_LOST, REPLY_LOST):
            client, name = face.connect(timeout=self.soon()), self.fresh()
            grant = await self._granted(face, client.try_window, name, planned=in_seconds(face.began))
            client.driver.away(self.costly(face, fault), "settle")
            with pytest.raises(Unrecorded):
                await done(grant.handled())
            if fault is not REPLY_LOST:
                await self.refused(face, self.window(face, name, slot_start=grant.slot.start, slot_end=None), "busy")
            client.driver.back()
            assert await done(client.flush(10))
            record = await self.known(face, name)
            assert (record.mark, record.outcome, record.owner) == (grant.slot.start, HANDLED, "")
            assert grant.outcome == HANDLED

    async def test_F5_a_success_whose_lease_ran_out_is_recorded_once(self, face: Face) -> None:
        await self.check_windows(face)
        client, name = face.connect(timeout=self.soon()), self.fresh()
        ttl = self.short(face) / SECOND
        client.driver.away(REFUSED, "renew")
        grant = await self._granted(face, client.try_window, name, planned=in_seconds(face.began), ttl=ttl)
        client.driver.away(self.costly(face, REFUSED))
        await self.outlive(face, grant.record)
        with pytest.raises(Unrecorded):
            await done(grant.handled())
        client.driver.back()
        assert await done(client.flush(10))
        assert (await self.known(face, name)).mark == grant.slot.start
        await self.refused(face, self.window(face, name, slot_start=grant.slot.start, slot_end=None), HANDLED)

    async def test_F5_after_a_later_grant_a_success_is_written_back_and_the_holder_left_alone(self, face: Face) -> None:
        await self.check_windows(face)
        client, name = face.connect(timeout=self.soon()), self.fresh()
        ttl = self.short(face) / SECOND
        client.driver.away(REFUSED, "renew")
        grant = await self._granted(face, client.try_window, name, planned=in_seconds(face.began), ttl=ttl)
        client.driver.away(self.costly(face, REFUSED))
        await self.outlive(face, grant.record)
        with pytest.raises(Unrecorded):
            await done(grant.handled())
        later = self.window(face, name, slot_start=grant.slot.start + 1, slot_end=None, schedule="")
        won = await self.take(face, later)
        client.driver.back()
        assert await done(client.flush(10))
        record = await self.known(face, name)
        assert (record.token, record.owner) == (won.token, won.owner)
        if "record" not in face.capabilities.verbs:
            await self.needs(face, "record")
        assert record.mark == grant.slot.start
        assert (await self.end(face, later, FAILED)).applied

    async def test_F5_a_failure_that_stays_unconfirmed_ends_by_expiry(self, face: Face) -> None:
        await self.check_windows(face)
        client, name = face.connect(timeout=self.ample()), self.fresh()
        ttl = self.short(face) / SECOND
        with contextlib.suppress(RotaError):
            async with face.enter(client.window(name, planned=in_seconds(face.began), ttl=ttl)):
                client.driver.away(self.costly(face, REFUSED, self.ample()))
                raise ConfigurationError("the body's own")
        await self.pass_time(face, ttl)
        await face.until(lambda: self._is_open(face, name), 60, what="the slot given back")

    async def _is_open(self, face: Face, name: str) -> bool:
        record = await self.known(face, name)
        return record.mark is None and not await self.is_live(face, name)
