# SPDX-License-Identifier: MIT
# ruff: noqa: D102, N802 - a test's name says which clause it is about, and what that demands
"""Clauses W5 to W12: when a slot can be won, schedules, and rolling windows."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rota.backend import (
    BUSY,
    EARLY,
    FAILED,
    GAVE_UP,
    HANDLED,
    LATE,
    LEASE,
    MISMATCH,
    RELEASED,
    ROLLING,
    UNUSED,
    WINDOW,
    WON,
    Claim,
    Override,
    Record,
)
from rota.duration import DAY, HOUR, MINUTE, SECOND
from rota.errors import ConfigurationError
from rota.schedule import Cron, Every, instant

from .base import RETENTION, Clauses, in_seconds
from .faces import Face, done


class Times(Clauses):
    """Clauses W5 to W12."""

    # -- W5

    async def test_W5_without_a_plan_the_slot_holds_the_stores_now(self, face: Face) -> None:
        client, schedule = face.connect(), Every("1s")
        for _ in range(5):
            grant = await done(client.try_window(self.fresh(), schedule))
            assert grant, grant
            slack = self.slack(face)
            assert grant.slot.start - slack <= grant.record.granted_at < grant.slot.end + slack
            assert (grant.record.slot_start, grant.record.slot_end) == grant.slot
            await done(grant.handled())

    async def test_W5_with_a_plan_the_slot_holds_it(self, face: Face) -> None:
        client, name, schedule = face.connect(), self.fresh(), self.hourly(face)
        slot = schedule.slot(face.began)
        grant = await done(client.try_window(name, schedule, planned=in_seconds(slot.start + 7 * MINUTE), early="60s"))
        assert grant.slot == slot
        await done(grant.handled())
        refused = await done(client.try_window(name, schedule))
        assert (refused.verdict, refused.next_start) == (HANDLED, slot.end)

    async def test_W5_an_arrival_before_the_plan_is_accepted_within_early(self, face: Face) -> None:
        client = face.connect()
        now = await face.now()
        refused = await done(client.try_window(self.fresh(), planned=in_seconds(now + 50 * SECOND), early="5s"))
        assert refused.verdict == EARLY
        assert 30 < refused.starts_in <= 45 + self.slack(face) / SECOND
        grant = await done(client.try_window(self.fresh(), planned=in_seconds(now + 50 * SECOND), early="60s"))
        assert grant
        assert grant.slot.start == now + 50 * SECOND
        half = await done(
            client.try_window(
                self.fresh(), Every("40s", anchor=in_seconds(now + 30 * SECOND)), planned=in_seconds(now + 30 * SECOND), early="60s"
            )
        )
        assert half.verdict == EARLY
        with pytest.raises(ConfigurationError):
            await done(client.try_window(self.fresh(), planned=in_seconds(now), early="61s"))

    async def test_W5_early_ends_at_its_very_instant(self, face: Face) -> None:
        clock = self.need_clock()
        with clock.stopped():
            claim = self.window(face, self.fresh(), not_before=clock.store() + 1)
            await self.refused(face, claim, EARLY)
            clock.leap(1)
            await self.win(face, claim)

    async def test_W5_a_window_without_a_schedule_is_named_by_its_plan(self, face: Face) -> None:
        client, name = face.connect(), self.fresh()
        now = await face.now()
        for back in (20 * DAY, 3 * HOUR, MINUTE):
            planned = in_seconds(now - back)
            grant = await done(client.try_window(name, planned=planned))
            assert grant.slot == (now - back, None)
            await done(grant.handled())
            assert (await done(client.try_window(name, planned=planned))).verdict == HANDLED
        assert (await done(client.try_window(self.fresh(), planned=in_seconds(now - 31 * DAY)))).verdict == LATE

    # -- W6

    async def test_W6_a_slot_that_has_ended_is_late(self, face: Face) -> None:
        now = await face.now()
        await self.refused(face, self.window(face, self.fresh(), -2, late_from=self.slot(face, -2)[1]), LATE)
        await self.win(face, self.window(face, self.fresh(), -2, late_from=now + MINUTE))

    async def test_W6_late_begins_at_its_very_instant(self, face: Face) -> None:
        clock = self.need_clock()
        with clock.stopped():
            claim = self.window(face, self.fresh(), late_from=clock.store() + 1)
            clock.leap(1)
            await self.refused(face, claim, LATE)
            clock.leap(-1)
            await self.win(face, claim)

    async def test_W6_a_named_slot_can_be_won_until_max_late(self, face: Face) -> None:
        client, schedule = face.connect(), self.hourly(face)
        base = schedule.slot(face.began).start
        for back, options, won in (
            (1, {}, True),
            (3, {}, False),
            (3, {"max_late": "5h"}, True),
            (3, {"max_late": "3h"}, False),
        ):
            verdict = await done(client.try_window(self.fresh(), schedule, planned=in_seconds(base - back * HOUR), **options))
            assert bool(verdict) is won, (back, options, verdict)
            assert won or verdict.verdict == LATE
        name = self.fresh()
        await self.handle(face, self.window(face, name, slot_start=base - 2 * HOUR, slot_end=base - HOUR, schedule=schedule.canonical))
        refused = await done(client.try_window(name, schedule, planned=in_seconds(base - 3 * HOUR), max_late="9h"))
        assert refused.verdict == HANDLED, "only slots above the mark can be won"

    async def test_W6_max_late_refuses_in_an_open_slot(self, face: Face) -> None:
        clock = self.need_clock()
        client, schedule = face.connect(), self.hourly(face)
        start = schedule.slot(clock.store() + HOUR).start
        with clock.stopped():
            clock.set(start + 10 * MINUTE)
            assert await done(client.try_window(self.fresh(), schedule, max_late="10m")), "exactly max_late after the start still wins"
            clock.leap(1)
            assert (await done(client.try_window(self.fresh(), schedule, max_late="10m"))).verdict == LATE

    async def test_W6_catch_up_takes_the_newest_ended_slot_first(self, face: Face) -> None:
        client, name, schedule = face.connect(), self.fresh(), self.hourly(face)
        base = schedule.slot(await face.now()).start
        for start in (base - HOUR, base):
            grant = await done(client.try_window(name, schedule, catch_up="latest"))
            assert grant.slot.start == start
            await done(grant.handled())
        assert (await done(client.try_window(name, schedule, catch_up="latest"))).verdict == HANDLED

    # -- W7

    async def test_W7_no_slot_starts_after_the_stores_now(self, face: Face) -> None:
        now = await face.now()
        claim = self.window(face, self.fresh(), 3, not_before=now + HOUR)
        await self.refused(face, claim, EARLY)
        assert await face.read(claim.name) is None

    async def test_W7_a_granted_slot_always_settles(self, face: Face) -> None:
        claim = self.window(face, self.fresh(), 3)  # as if the store's clock had been ahead at the claim
        await self.win(face, claim)
        assert (await self.end(face, claim, HANDLED)).applied
        assert (await self.known(face, claim.name)).mark == claim.slot_start

    async def test_W7_a_mark_ahead_of_now_is_said_loudly(self, face: Face) -> None:
        name, schedule = self.fresh(), self.hourly(face)
        ahead = schedule.slot(face.began + 5 * HOUR)
        await self.handle(face, self.window(face, name, slot_start=ahead.start, slot_end=ahead.end, schedule=schedule.canonical))
        client = face.connect()
        refused = await done(client.try_window(name, schedule))
        assert (refused.verdict, refused.mark_ahead) == (HANDLED, True)

    async def test_W7_an_operator_sets_the_mark_back_and_raises_the_token(self, face: Face) -> None:
        await self.needs(face, "override")
        claim = self.window(face, self.fresh(), 5)
        await self.handle(face, claim)
        before = await self.known(face, claim.name)
        back = self.slot(face, -1)[0]
        changed = await face.override(Override(claim.name, "mark", "operator: clock ran fast", RETENTION, back))
        assert changed.applied
        after = await self.known(face, claim.name)
        assert after.mark == back
        assert after.token > before.token
        assert after.label == "operator: clock ran fast"
        await self.refused(face, self.window(face, claim.name, -1), HANDLED)
        won = await self.win(face, self.window(face, claim.name, 0))
        assert won.token > after.token

    async def test_W7_an_override_fences_the_holder_at_work(self, face: Face) -> None:
        await self.needs(face, "override")
        for action, mark, outcome in (
            ("released", False, None),
            ("failed", False, FAILED),
            ("handled", True, HANDLED),
            ("mark", False, None),
        ):
            claim = self.window(face, self.fresh())
            held = await self.win(face, claim)
            wrong = await face.override(Override(claim.name, action, "who: why", RETENTION, expected_token=held.token + 1))
            assert not wrong.applied
            assert await self.known(face, claim.name) == held
            changed = await face.override(Override(claim.name, action, "who: why", RETENTION, expected_token=held.token))
            assert (changed.applied, changed.result) == (True, action)
            record = await self.known(face, claim.name)
            assert record.token > held.token
            assert (record.owner, record.expires_at, record.label) == ("", 0, "who: why")
            assert record.mark == (claim.slot_start if mark else None)
            assert outcome is None or record.outcome == outcome
            assert not await self.renewed(face, claim)
            assert not (await self.end(face, claim, HANDLED)).applied
            assert (await self.known(face, claim.name)) == record
        assert not (await face.override(Override(self.fresh(), "released", "who: why", RETENTION))).applied

    # -- W8

    async def test_W8_another_kind_under_the_name_is_refused(self, face: Face) -> None:
        for kind in (LEASE, WINDOW, ROLLING):
            claims = {LEASE: self.lease, WINDOW: self.window, ROLLING: self.rolling}
            name = self.fresh()
            first = claims[kind](face, name)
            await self.win(face, first)
            for settled in (False, True):
                if settled:
                    await self.end(face, first, RELEASED if kind == LEASE else FAILED)
                for other, make in claims.items():
                    if other != kind:
                        await self.refused(face, make(face, name), MISMATCH)
            client = face.connect()
            with pytest.raises(ConfigurationError):
                await done(client.try_once(name, "24h") if kind == LEASE else client.try_lease(name))

    async def test_W8_the_record_keeps_the_canonical_schedule(self, face: Face) -> None:
        client, name = face.connect(), self.fresh()
        daily = Cron("@daily")
        first = await done(client.try_window(name, daily))
        assert (first.record.schedule, first.warnings) == (Cron("0 0 * * *").canonical, ())
        assert first.record.zone_data == daily.zone_data
        await done(first.handled())
        now = await face.now()
        grant = await done(client.try_window(name, Every("1s", anchor=in_seconds(now + HOUR)), planned=in_seconds(now)))
        assert grant.warnings
        assert grant.record.mark == first.slot.start, "another schedule keeps the mark"
        await done(grant.handled())
        assert (await self.known(face, name)).schedule == Every("1s", anchor=in_seconds(now + HOUR)).canonical

    async def test_W8_a_start_inside_a_handled_slot_is_warned_of(self, face: Face) -> None:
        client, name, schedule = face.connect(), self.fresh(), self.hourly(face)
        slot = schedule.slot(await face.now())
        wide = self.window(
            face, name, slot_start=slot.start - HOUR, slot_end=slot.start + 1, schedule=schedule.canonical, zone_data="2019a"
        )
        await self.handle(face, wide)
        grant = await done(client.try_window(name, schedule))
        assert any("2019a" in warning for warning in grant.warnings), grant.warnings

    # -- W9 to W11: arithmetic, through the store

    async def test_W9_missed_slots_are_counted_in_bounded_time(self, face: Face) -> None:
        client, schedule = face.connect(), Every("1m")
        base = schedule.slot(face.began).start
        began = time.monotonic()
        for gap, count, exact in (
            (0, 0, True),
            (100, 100, True),
            (366 * 1440 - 1, 366 * 1440 - 1, True),
            (20 * 366 * 1440, 366 * 1440, False),
        ):
            name = self.fresh()
            start = base - (gap + 1) * MINUTE
            await self.handle(face, self.window(face, name, slot_start=start, slot_end=start + MINUTE, schedule=schedule.canonical))
            grant = await done(client.try_window(name, schedule, planned=in_seconds(base)))
            missed = grant.missed
            assert missed.exact is exact
            assert missed.count == count if exact else missed.count >= count - 1
        assert time.monotonic() - began < 20

    async def test_W10_a_fixed_time_runs_once_in_a_repeated_hour_and_after_a_skipped_one(self, face: Face) -> None:
        nightly = Cron("30 2 * * *", tz="Europe/Berlin")
        # 2025-10-26: 02:30 comes twice, at 00:30Z and 01:30Z; 2026-03-29: it does not come, the clock jumps at 01:00Z
        runs = {
            "2025-10-25T00:30:00Z": True,
            "2025-10-26T00:30:00Z": True,
            "2025-10-26T01:30:00Z": False,
            "2025-10-27T01:30:00Z": True,
            "2026-03-28T01:30:00Z": True,
            "2026-03-29T00:59:59Z": False,
            "2026-03-29T01:00:00Z": True,
            "2026-03-29T02:00:00Z": False,
            "2026-03-30T00:30:00Z": True,
        }
        assert await self._won(face, nightly, list(runs)) == list(runs.values())

    async def test_W10_a_star_follows_real_time(self, face: Face) -> None:
        hourly = Cron("30 * * * *", tz="Europe/Berlin")
        instants = [f"2025-10-{day}T{hour:02}:30:00Z" for day, hour in ((25, 23), (26, 0), (26, 1), (26, 2))]
        instants += [f"2026-03-29T{hour:02}:30:00Z" for hour in (0, 1, 2)]
        assert await self._won(face, hourly, instants) == [True] * 7

    async def test_W10_the_zone_is_utc_unless_given(self, face: Face) -> None:
        assert await self._won(face, Cron("0 2 * * *"), ["2026-03-29T01:59:59Z", "2026-03-29T02:00:00Z", "2026-03-29T12:00:00Z"]) == [
            True,
            True,
            False,
        ]

    async def _won(self, face: Face, schedule: Cron, instants: list[str]) -> list[bool]:
        """Return which of these instants find a slot that the earlier ones have not handled."""
        name, won = self.fresh(), []
        for text in instants:
            start, end = schedule.slot(instant(text, "at"))
            claim = self.window(face, name, slot_start=start, slot_end=end, schedule=schedule.canonical)
            answer = await face.claim(claim)
            won.append(bool(answer.verdict == "won"))
            if won[-1]:
                await self.end(face, claim, HANDLED)
        return won

    async def test_W11_every_is_aligned_to_the_epoch(self, face: Face) -> None:
        client = face.connect()
        for text, period in (("7m", 7 * MINUTE), ("1h", HOUR), ("36h", 36 * HOUR)):
            grant = await done(client.try_window(self.fresh(), Every(text)))
            assert (await self.known(face, grant.name)).slot_start == grant.slot.start
            assert grant.slot.start % period == 0
            assert grant.slot.end == grant.slot.start + period

    async def test_W11_wrong_schedules_are_refused_before_any_request(self, face: Face) -> None:
        client = face.connect()
        for expression in ("0 0 31 2 *", "@reboot", "R * * * *", "0 0 * * * *", "5-1 * * * *", "", "60 * * * *"):
            with pytest.raises(ConfigurationError):
                await done(client.try_window(self.fresh(), Cron(expression)))
        for schedule in ("0 2 * * *", None, 3600):
            with pytest.raises(ConfigurationError):
                await done(client.try_window(self.fresh(), schedule))
        assert client.driver.calls == []

    # -- W12

    async def test_W12_the_period_starts_at_the_winning_claim(self, face: Face) -> None:
        claim = self.rolling(face, self.fresh(), HOUR)
        won = await self.win(face, claim)
        assert won.slot_start is not None
        assert abs(won.slot_start - won.granted_at) <= self.slack(face)
        assert won.slot_end == won.slot_start + HOUR
        assert won.mark is None
        await self.end(face, claim, HANDLED)
        settled = await self.known(face, claim.name)
        assert (settled.mark, settled.slot_start, settled.slot_end) == (won.slot_start, won.slot_start, won.slot_end)

    async def test_W12_a_refused_claim_never_lengthens_it(self, face: Face) -> None:
        claim = self.rolling(face, self.fresh(), HOUR)
        await self.win(face, claim)
        await self.refused(face, self.rolling(face, claim.name, 9 * DAY), BUSY)
        await self.end(face, claim, HANDLED)
        for period in (9 * DAY, 1000, HOUR):
            await self.refused(face, self.rolling(face, claim.name, period), HANDLED)

    async def test_W12_its_stored_end_decides_whatever_others_name(self, face: Face) -> None:
        claim, end = await self._period_over_in(face, self.short(face))
        left = max(0, end - await face.now()) + self.slack(face)
        await self.pass_time(face, left / SECOND + 0.002)
        second = await self.take(face, self.rolling(face, claim.name, 9 * DAY))
        assert second.slot_start is not None
        assert second.slot_start >= end

    async def _period_over_in(self, face: Face, period: int) -> tuple[Claim, int]:
        """Handle a rolling window, whose stored end refuses a claim of a shorter period; return its claim, and that end."""
        for _ in range(20):
            claim = self.rolling(face, self.fresh(), period)
            won = await self.win(face, claim)
            assert won.slot_end is not None
            end = won.slot_end
            await self.end(face, claim, HANDLED)
            answer = await face.claim(self.rolling(face, claim.name, 1000))
            if answer.record is None or answer.verdict != WON or answer.record.granted_at < end - self.slack(face):
                break  # else the machine stood still, and the period was over
        assert answer.verdict == HANDLED
        return claim, end

    async def test_W12_it_is_over_at_its_very_end(self, face: Face) -> None:
        clock = self.need_clock()
        with clock.stopped():
            claim = self.rolling(face, self.fresh(), HOUR)
            won = await self.win(face, claim)
            await self.end(face, claim, HANDLED)
            assert won.slot_end is not None
            clock.set(won.slot_end - 1)
            await self.refused(face, self.rolling(face, claim.name), HANDLED)
            clock.set(won.slot_end)
            again = await self.win(face, self.rolling(face, claim.name))
            assert again.slot_start == won.slot_end

    async def test_W12_a_failure_or_crash_re_arms_it(self, face: Face) -> None:
        name = self.fresh()
        failed = self.rolling(face, name)
        first = await self.win(face, failed)
        await self.end(face, failed, FAILED)
        second = await self.crash(face, self.rolling(face, name))
        third = await self.take(face, self.rolling(face, name))
        starts = [record.slot_start or 0 for record in (first, second, third)]
        assert starts == sorted(set(starts)), "a retry starts a period of its own"
        assert [record.attempts for record in (first, second, third)] == [1, 2, 3]

    async def test_W12_the_claim_in_flight_has_a_ttl_of_its_own(self, face: Face) -> None:
        claim = self.rolling(face, self.fresh(), DAY)
        won = await self.win(face, claim)
        slack = self.slack(face) + face.capabilities.ttl_step
        assert claim.ttl - slack <= won.expires_at - won.granted_at <= claim.ttl + slack
        await self.refused(face, self.rolling(face, claim.name), BUSY)
        assert await self.renewed(face, claim)

    async def test_W12_a_seal_and_attempts_hold_for_it_too(self, face: Face) -> None:
        sealed = self.rolling(face, self.fresh(), seal=True)
        won: Record = await self.win(face, sealed)
        assert won.mark == won.slot_start
        await self.refused(face, self.rolling(face, sealed.name), HANDLED)
        await self.end(face, sealed, UNUSED)
        again = self.rolling(face, sealed.name)
        await self.win(face, again)
        await self.end(face, again, FAILED)
        last = self.rolling(face, sealed.name, max_attempts=2)
        await self.crash(face, last)
        answer = await face.claim(self.rolling(face, sealed.name, max_attempts=2))
        assert answer.verdict == HANDLED
        record = await self.known(face, sealed.name)
        assert (record.mark, record.outcome) == (record.slot_start, GAVE_UP)

    async def test_W12_through_the_client(self, face: Face) -> None:
        client, name = face.connect(), self.fresh()
        with pytest.raises(ValueError, match="body"):
            async with face.enter(client.once(name, "24h")):
                raise ValueError("body")
        async with face.enter(client.once(name, "24h")) as grant:
            token: Any = grant.token
        refused = await done(client.try_once(name, "1s"))
        record = await self.known(face, name)
        assert (refused.verdict, refused.next_start) == (HANDLED, record.slot_end)
        assert record.token == token
