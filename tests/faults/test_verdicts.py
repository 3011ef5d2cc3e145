# SPDX-License-Identifier: MIT
"""What a verdict says of itself, won or refused, on both faces."""

from __future__ import annotations

import contextlib
import time

import pytest
import rota

HOURLY = rota.Every("1h")


def test_a_verdict_that_was_won_says_so_as_a_refused_one_says_why_not(world):
    world.clock.set("2026-01-01T09:20:00Z")
    client = world.client()
    for number, (take, slot) in enumerate(
        (
            (lambda name: client.try_lease(name), "it"),
            (lambda name: client.try_window(name, HOURLY), "the slot of 2026-01-01T09:00:00Z"),
            (lambda name: client.try_once(name, "1h"), "the slot of 2026-01-01T09:20:00Z"),
        )
    ):
        name = f"{world.name}-{number}"
        grant = take(name)
        assert (grant.verdict, grant.reason) == ("won", f"{name}: {slot} was won at 2026-01-01T09:20:00Z")
        assert take(name).verdict == "busy"
        grant.failed()
        assert grant.verdict == "won"  # what became of it is its outcome
        again = take(name)
        attempt = "" if slot == "it" else ", as attempt 2"
        assert again.reason == f"{name}: {slot} was won at 2026-01-01T09:20:00Z{attempt}"
        again.release()


def test_a_grant_without_the_store_says_that_it_is_degraded_and_why(world):
    """F2."""
    world.clock.set("2026-01-01T09:20:00Z")
    client = world.client()
    client.try_lease("other").release()  # so that the store's time is known
    client.driver.away(world.REFUSED)
    for take, slot in (
        (lambda: client.try_lease(world.name, on_unavailable="run"), "it"),
        (lambda: client.try_window(world.name, HOURLY, on_unavailable="run"), "the slot of 2026-01-01T09:00:00Z"),
    ):
        grant = take()
        assert grant.verdict == "won"
        assert grant.reason.startswith(f"{world.name}: {slot} runs degraded: going ahead without the store: ")
        assert "\n" not in grant.reason


def test_a_planned_instant_that_is_far_away_is_not_run_without_the_store_either(world):
    """W5, F3: neither by the store's time as far as it is known, nor by this host's."""
    for begun in (True, False):
        client = world.client()
        if begun:
            client.try_lease(f"{world.name}-other").release()  # so that the store's time is known
        now = world.clock.store() / 1e6 if begun else time.time()
        client.driver.away(world.REFUSED)
        name = f"{world.name}-{begun}"
        refused = client.try_window(name, HOURLY, planned=now + 300, on_unavailable="run")
        assert (refused.verdict, refused.starts_in) == ("early", pytest.approx(295, abs=60))
        assert "can be won in" in refused.reason
        assert client.try_window(name, HOURLY, planned=now + 30, early="60s", on_unavailable="run").degraded


def test_a_grant_that_goes_on_without_its_lease_says_so(world):
    """F2, ``on_lost="continue"``."""
    grant = world.client().try_lease(world.name, on_lost="continue", ttl="10s")
    at = grant.reason.rpartition(" ")[2]
    world.clock.advance(60)
    assert not grant.lost
    assert (grant.verdict, grant.reason) == ("won", f"{world.name}: it was won at {at}, and goes on degraded, since its lease was lost")


@pytest.mark.parametrize(
    ("options", "until"),
    [
        ({"max_late": "10m"}, "2026-01-01T09:10:00Z, by a max-late of 10m"),  # while the slot is open
        ({"planned": "2026-01-01T06:30:00Z"}, "2026-01-01T08:00:00Z"),
        ({"planned": "2026-01-01T06:30:00Z", "max_late": "90m"}, "2026-01-01T07:30:00Z, by a max-late of 1h30m"),
        ({"planned": "2026-01-01T06:30:00Z", "max_late": "24h"}, ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_one_that_is_too_late_is_told_until_when_it_was_not_and_by_what(world, options, until):
    """W6."""
    world.clock.set("2026-01-01T09:20:00Z")
    verdict = world.client().try_window(world.name, HOURLY, **options)
    start = "09" if "planned" not in options else "06"
    if not until:
        assert verdict.verdict == "won"
        return
    assert verdict.verdict == "late"
    assert verdict.reason == f"{world.name}: too late for the slot of 2026-01-01T{start}:00:00Z: it could be won until {until}"


@pytest.mark.parametrize("manner", ["with", "async with", "stack"])
def test_a_refused_verdict_that_is_entered_says_to_test_it_first(world, manner):
    client = world.client()
    grant = client.try_lease(world.name)
    refused = client.try_lease(world.name)
    assert not refused

    def enter():
        if manner == "stack":
            contextlib.ExitStack().enter_context(refused)
        elif manner == "with":
            with refused:
                raise AssertionError("the body of what was refused")
        else:
            coroutine = enter_async()
            with contextlib.suppress(StopIteration):
                coroutine.send(None)

    async def enter_async():
        async with refused:
            raise AssertionError("the body of what was refused")

    with pytest.raises(TypeError, match=f"{world.name}: .* has held it since .*: test the verdict with `if` before `with`, or .* raise"):
        enter()
    grant.release()
