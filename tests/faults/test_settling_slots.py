# SPDX-License-Identifier: MIT
"""The life of a slot, through failures and crashes (W2 to W9)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from rota import ConfigurationError, Cron, Early, Every, Handled, Late, Missed, Slot
from rota.backend import Override
from rota.history import runs

on_loop = pytest.mark.parametrize("face", ["async"], indirect=True)
HOURLY = Every("1h")
HOUR = 3600_000_000


class Boom(Exception):
    pass


def crash(world: Any, claim: Any, ttl: float) -> None:
    """The holder vanishes without a word: nobody renews, and its lease runs out."""
    assert claim
    world.clock.advance(ttl)


def attempt(world: Any, **options: Any) -> Any:
    """Another process tries."""
    return world.client().try_window(world.name, HOURLY, ttl=10, **options)


# -- failures and successes (W3)


@pytest.mark.parametrize(
    "error", [Boom(), SystemExit(1), SystemExit("no"), KeyboardInterrupt(), GeneratorExit()], ids=lambda error: repr(error)
)
@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_an_exception_that_leaves_the_body_gives_the_slot_back(world: Any, error: BaseException) -> None:
    """W3: a retry in the slot wins, with a larger token."""
    with pytest.raises(type(error)), world.client().window(world.name, HOURLY) as first:
        raise error
    assert first.outcome == "failed"
    assert world.read().owner == ""
    second = attempt(world)
    assert second
    assert (second.slot, second.attempt) == (first.slot, 2)
    assert second.token > first.token


@pytest.mark.parametrize("code", [0, None])
@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_a_clean_exit_is_a_success(world: Any, code: int | None) -> None:
    """W3: ``SystemExit(0)`` excepted."""
    with pytest.raises(SystemExit), world.client().window(world.name, HOURLY) as grant:
        raise SystemExit(code)
    assert world.read().mark == grant.slot.start


@on_loop
def test_a_cancelled_body_has_failed(world: Any) -> None:
    """W3: cancellation included; SystemExit(0) is a success on this face too."""

    async def main() -> None:
        client = world.async_client()
        entered = asyncio.Event()

        async def body() -> None:
            async with client.window(world.name, HOURLY):
                entered.set()
                await asyncio.sleep(30)

        task = asyncio.create_task(body())
        await entered.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert world.read().outcome == "failed"
        guard = client.window(world.name, HOURLY)
        grant = await guard.__aenter__()
        error = SystemExit(0)
        await guard.__aexit__(SystemExit, error, None)
        assert world.read().mark == grant.slot.start
        await client.close()

    asyncio.run(main())


def test_a_crash_gives_the_slot_back_at_expiry(world: Any) -> None:
    """W3, W4: busy until the very instant, then won with a larger token; the history says crashed."""
    first = attempt(world)
    world.clock.advance(9.999999)
    assert attempt(world).verdict == "busy"
    world.clock.advance(0.000001)
    second = attempt(world)
    assert second
    assert second.token > first.token
    assert second.attempt == 2
    second.handled()
    assert [run.outcome for run in runs(world.read().history)] == ["handled", "crashed"]


def test_tokens_grow_over_everything_that_ends_a_grant(world: Any) -> None:
    """L2: release, failure, expiry, `unused`, `forget`, the operator."""
    tokens, driver = [], world.driver()
    for end in ("handled", "failed", "unused", "crash", "forget", "override", "last"):
        claim = attempt(world)
        assert claim, (end, claim)
        tokens.append(claim.token)
        if end == "crash":
            crash(world, claim, 10)
        elif end == "forget":
            assert driver.forget(world.name, 5)
        elif end == "override":
            driver.override(Override(world.name, "failed", "an operator", 30 * 24 * HOUR), 5)
        elif end != "last":
            getattr(claim, end)()
        if end == "handled":
            world.clock.advance(3600)
    assert tokens == sorted(set(tokens))
    driver.close()


# -- at most once (W3b)


def test_at_most_once_is_not_given_back_by_a_crash_or_a_failure(world: Any) -> None:
    """W3b: sealed at the claim, so others are told handled while it runs, after the crash, and after the failure."""
    first = attempt(world, at_most_once=True)
    assert attempt(world, at_most_once=True).verdict == "handled"
    crash(world, first, 10)
    assert attempt(world, at_most_once=True).verdict == "handled"
    world.clock.advance(3600)
    with pytest.raises(Boom), world.client().window(world.name, HOURLY, at_most_once=True):
        raise Boom
    refused = attempt(world)
    assert refused.verdict == "handled"
    assert world.read().outcome == "failed"


def test_an_unused_grant_unseals_its_slot(world: Any) -> None:
    """W3b: the body never began (exit 126, 127): as if it had not been granted."""
    done = attempt(world)
    done.handled()
    world.clock.advance(3600)
    sealed = attempt(world, at_most_once=True)
    assert world.read().mark == sealed.slot.start
    sealed.unused()
    record = world.read()
    assert (record.mark, record.owner, record.attempts) == (done.slot.start, "", 0)
    again = attempt(world, at_most_once=True)
    assert again
    assert again.attempt == 1


# -- attempts (W3c)


def test_the_last_of_three_failures_closes_the_slot(world: Any) -> None:
    """W3c: crashes count; the mark moves, and it is said that the slot was given up."""
    with pytest.raises(Boom), world.client().window(world.name, HOURLY, attempts=3):
        raise Boom
    crash(world, attempt(world, attempts=3), 10)
    third = attempt(world, attempts=3)
    assert third.attempt == 3
    third.failed()
    assert third.outcome == "gave up"
    refused = attempt(world, attempts=3)
    assert (refused.verdict, refused.how) == ("handled", "gave up")
    assert "given up" in refused.reason
    assert world.read().mark == third.slot.start
    world.clock.advance(3600)
    assert attempt(world, attempts=3).attempt == 1


def test_a_last_attempt_that_crashes_closes_the_slot_at_the_next_claim(world: Any) -> None:
    """W3c: its owner couldn't; if it was no crash, its late success is recorded, since nobody was granted more (W3a)."""
    first = attempt(world, attempts=1)
    crash(world, first, 10)
    refused = attempt(world, attempts=1)
    assert (refused.verdict, refused.how) == ("handled", "gave up")
    first.handled()
    assert (first.outcome, world.read().outcome) == ("handled", "handled")


# -- overlap (W4)


def test_overlap_moves_the_mark_and_holds_no_lease(world: Any) -> None:
    """W4: fire and forget: the next slot is won while this one still runs; both settle."""
    client = world.client()
    first = attempt(world, at_most_once=True, overlap=True)
    assert world.read().mark == first.slot.start
    assert world.read().owner == ""
    assert first.remaining() == float("inf")
    assert attempt(world, at_most_once=True, overlap=True).verdict == "handled"
    world.clock.advance(3600)
    second = client.try_window(world.name, HOURLY, at_most_once=True, overlap=True)
    assert second.token > first.token
    first.check()
    first.handled()  # nothing of it was lost: its mark moved at the claim
    assert first.outcome == "handled"
    second.handled()
    assert world.read().outcome == "handled"
    with pytest.raises(ConfigurationError, match="at_most_once"):
        attempt(world, overlap=True)


# -- missed slots (W3d, W9)


@pytest.mark.parametrize("end", ["failed", "crash"])
def test_a_slot_whose_last_attempt_fails_after_its_end_is_missed(world: Any, end: str) -> None:
    """W3d, W9: the next winner reports it, and the slots that nobody came for."""
    attempt(world).handled()
    world.clock.advance(3600)
    late = world.client().try_window(world.name, HOURLY, ttl=900)
    world.clock.run(3600, step=200)
    if end == "failed":
        late.failed()
    else:
        crash(world, late, 900)
    world.clock.advance(2 * 3600)
    winner = attempt(world)
    assert winner.missed == Missed(3, True)
    winner.handled()
    world.clock.advance(3600)
    assert attempt(world).missed == Missed(0, True)


def test_a_first_slot_that_was_never_handled_is_missed(world: Any) -> None:
    """W3d: there is no mark yet; a retry in the same slot has missed nothing."""
    attempt(world).failed()
    retry = attempt(world)
    assert retry.missed == Missed(0, True)
    retry.failed()
    world.clock.advance(3600)
    assert attempt(world).missed == Missed(1, True)


def test_missed_counts_behind_a_seal(world: Any) -> None:
    """W9, W3b: the seal has moved the mark already."""
    attempt(world, at_most_once=True).handled()
    world.clock.advance(4 * 3600)
    assert attempt(world, at_most_once=True).missed == Missed(3, True)


# -- at or below the mark (W2)


def test_a_claim_at_or_below_the_mark_is_handled_whenever_it_comes(world: Any) -> None:
    """W2: `done` for the mark and for what the history has, else `passed`; also while a lease is live."""
    start = world.clock.store()
    for _ in range(2):
        attempt(world).handled()
        world.clock.advance(2 * 3600)
    holder = attempt(world)
    assert holder
    how = {}
    for hours in (0, 1, 2):
        refused = world.client().try_window(world.name, HOURLY, planned=(start + hours * HOUR) / 1e6, max_late="30d")
        how[hours] = (refused.verdict, refused.how)
    assert how == {0: ("handled", "done"), 1: ("handled", "passed"), 2: ("handled", "done")}
    unhandled = world.client().try_window(world.name, HOURLY, planned=(start + 3 * HOUR) / 1e6, max_late="30d")
    assert unhandled.verdict == "busy"  # above the mark, somebody works on a newer one
    holder.check()


def test_handled_says_when_the_next_slot_starts(world: Any) -> None:
    """W5."""
    grant = attempt(world)
    grant.handled()
    assert attempt(world).next_start == grant.slot.end


# -- early and late (W5, W6)


def test_a_planned_instant_is_accepted_a_little_early(world: Any) -> None:
    """W5: 5 s by default; before that it says in how much time."""
    start = world.clock.store() + HOUR
    world.clock.advance(3600 - 6)
    refused = attempt(world, planned=start / 1e6)
    assert (refused.verdict, refused.starts_in) == ("early", pytest.approx(1.0))
    with pytest.raises(Early), world.client().window(world.name, HOURLY, planned=start / 1e6):
        pass
    world.clock.advance(1)
    grant = attempt(world, planned=start / 1e6)
    assert grant.slot == Slot(start, start + HOUR)


def test_early_is_at_most_half_a_slot(world: Any) -> None:
    """W5: so that nobody takes the next slot for this one."""
    start = world.clock.store() + 4_000_000
    options = {"planned": start / 1e6, "early": 5}
    assert world.client().try_window(world.name, Every("4s"), **options).verdict == "early"
    world.clock.advance(2)
    assert world.client().try_window(world.name, Every("4s"), **options)


def test_an_ended_slot_is_late_unless_it_is_named(world: Any) -> None:
    """W6: by `planned`, within one slot's length after its end."""
    start = world.clock.store()
    world.clock.advance(2 * 3600 - 0.000001)
    client = world.client()
    named = client.try_window(world.name, HOURLY, planned=start / 1e6)
    assert named.slot == Slot(start, start + HOUR)
    named.failed()
    world.clock.advance(0.000001)
    with pytest.raises(Late), client.window(world.name, HOURLY, planned=start / 1e6):
        pass
    assert client.try_window(world.name, HOURLY, planned=start / 1e6, max_late="2h")


@pytest.mark.parametrize(("late", "verdict"), [("07:40", "won"), ("10:00", "won"), ("10:00.001", "late")])
def test_dv03_max_late_refuses_in_an_open_slot_too(world: Any, late: str, verdict: str) -> None:
    """W6, DV-03: 600 s: 460 s late wins, exactly 600 s wins, beyond is late."""
    minute, second = late.split(":")
    world.clock.set(f"2020-02-26T00:{7 + int(minute):02d}:{second}Z")
    claim = world.client().try_window(world.name, Cron("7 0 * * *"), max_late=600)
    assert ("won" if claim else claim.verdict) == verdict
    assert claim.slot.start == world.us("2020-02-26T00:07:00Z")


def test_catch_up_takes_the_newest_ended_slot_first(world: Any) -> None:
    """W6: then the open one; nothing older."""
    start = world.clock.store()
    attempt(world).handled()
    world.clock.advance(3 * 3600 + 60)
    slots = []
    for _ in range(2):
        with world.client().window(world.name, HOURLY, catch_up="latest") as grant:
            slots.append((grant.slot.start - start) // HOUR)
    assert slots == [2, 3]
    assert attempt(world, catch_up="latest").verdict == "handled"


def test_a_window_without_a_schedule(world: Any) -> None:
    """W5: `planned` itself is its start, and it has no end: for schedulers that plan their own runs."""
    planned = world.clock.store() / 1e6
    world.clock.advance(7200)
    client = world.client()
    with client.window(world.name, planned=planned) as grant:
        assert grant.slot == Slot(round(planned * 1e6), None)
        assert grant.missed == Missed(0, True)
    with pytest.raises(Handled), client.window(world.name, planned=planned):
        pass
    assert client.try_window(world.name, planned=planned - 1).how == "passed"
    assert client.try_window(world.name, planned=planned + 1)
    with pytest.raises(ConfigurationError, match="planned"):
        client.try_window(world.name)


# -- the mark ahead of the clock (W7)


def test_a_mark_ahead_of_the_clock_is_said_loudly(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    """W7: a store that once ran fast; the operator sets it back, which raises the token."""
    client = world.client()
    world.clock.advance(5 * 3600)
    ahead = attempt(world)
    ahead.handled()
    world.clock.passed -= 4 * HOUR
    caplog.set_level(logging.WARNING, "rota")
    refused = client.try_window(world.name, HOURLY)
    assert refused.verdict == "handled"
    assert refused.mark_ahead
    assert "ahead of the store's time" in refused.reason
    assert "ahead of the store's time" in caplog.text
    driver = world.driver()
    driver.override(Override(world.name, "mark", "an operator", HOUR, mark=None), 5)
    assert client.try_window(world.name, HOURLY).token > ahead.token
    driver.close()


def test_a_mark_that_an_early_arrival_moved_is_not_ahead(world: Any) -> None:
    """W7, W5: 3 s before its slot; somebody else asks for it in the same second."""
    start = world.clock.store() + HOUR
    world.clock.advance(3597)
    attempt(world, planned=start / 1e6).handled()
    refused = attempt(world, planned=start / 1e6)
    assert (refused.verdict, refused.how, refused.mark_ahead) == ("handled", "done", False)


# -- one name, one kind, one schedule (W8)


def test_another_kind_under_the_name_is_refused(world: Any) -> None:
    """W8: lease, window and rolling are told apart; nothing is changed."""
    client = world.client()
    attempt(world).handled()
    before = world.read()
    with pytest.raises(ConfigurationError, match="window"):
        client.try_lease(world.name)
    with pytest.raises(ConfigurationError, match="window"):
        client.try_once(world.name, per="1h")
    assert world.read() == before
    client.try_lease(world.name + "-lease").release()
    with pytest.raises(ConfigurationError, match="lease"):
        client.try_window(world.name + "-lease", HOURLY)


def test_another_schedule_keeps_the_mark_and_warns(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    """W8: it wins slots above the mark; `@daily` is no other schedule than ``0 0 * * *``."""
    caplog.set_level(logging.WARNING, "rota")
    client = world.client()
    with client.window(world.name, Cron("@daily")) as first:
        assert first.warnings == ()
    assert client.try_window(world.name, Every("24h")).verdict == "handled"  # the same start
    assert not caplog.records
    world.clock.advance(86_400)
    with client.window(world.name, Cron("0 0 * * *")) as second:
        assert second.warnings == ()
    world.clock.advance(3600)
    with client.window(world.name, HOURLY) as third:
        assert len(third.warnings) == 1
        assert "W8" in third.warnings[0]
    assert third.slot.start > second.slot.start
    assert "cron 0 0 * * * tz=UTC" in caplog.text
    assert "every 1h" in caplog.text


def test_a_slot_inside_a_handled_one_of_the_same_schedule_warns(world: Any) -> None:
    """W8: two hosts with different zone data: both versions are named."""

    class Elsewhere(Every):
        """The same schedule by other zone data: its slots lie half an hour off."""

        def slot(self, at: Any) -> Slot:
            found = super().slot(at - HOUR // 2)
            return Slot(found.start + HOUR // 2, found.end + HOUR // 2)

        @property
        def zone_data(self) -> str:
            return "2031z"

    with world.client().window(world.name, HOURLY):
        pass
    world.clock.advance(1800)
    with world.client().window(world.name, Elsewhere("1h")) as inside:
        (warning,) = inside.warnings
    assert "2031z" in warning
    assert "none" in warning


# -- rolling windows (W12)


def test_a_failed_body_re_arms_a_rolling_window(world: Any) -> None:
    """W12: its in-flight claim has a ttl of its own; `per` that others name does not lengthen the period."""
    client, other = world.client(), world.client()
    start = world.clock.store()
    with pytest.raises(Boom), client.once(world.name, per="24h"):
        raise Boom
    world.clock.advance(60)
    crashed = client.try_once(world.name, per="24h", ttl=30)
    assert other.try_once(world.name, per="24h").verdict == "busy"
    crash(world, crashed, 30)
    with other.once(world.name, per="24h") as grant:
        assert grant.slot.start == start + 90_000_000
    assert client.try_once(world.name, per="1000h").verdict == "handled"
    assert client.try_once(world.name, per="1s").verdict == "handled"
    assert client.try_once(world.name, per="1s").next_start == grant.slot.end
    world.clock.advance(86_400)
    assert client.try_once(world.name, per="24h")


def test_a_rolling_window_at_most_once_is_sealed_at_the_claim(world: Any) -> None:
    """W12, W3b: a crash doesn't re-arm it."""
    client = world.client()
    crash(world, client.try_once(world.name, per="24h", ttl=30, at_most_once=True), 30)
    assert client.try_once(world.name, per="24h", at_most_once=True).verdict == "handled"
    world.clock.advance(86_400)
    assert client.try_once(world.name, per="24h", at_most_once=True)
