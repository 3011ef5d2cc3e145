# SPDX-License-Identifier: MIT
"""Losing a lease while a thread, or the process, stands still between two steps: an answer has come, and is not noted yet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rota import LeaseLost
from rota.grant import NEVER

blocking = pytest.mark.parametrize("face", ["blocking"], indirect=True)
on_memory = pytest.mark.parametrize("kind", ["memory"], indirect=True)


class StoodStill:
    """Between the time at which a renewal was answered and what is noted of it the heartbeat's thread stands still; the next one hangs."""

    def __init__(self, client: Any) -> None:
        self.answered, self.go_on, self.over = threading.Event(), threading.Event(), threading.Event()
        renew: Callable[..., Any] = client.driver.renew

        def renew_and_stop(*arguments: Any) -> Any:
            if self.answered.is_set():
                assert self.over.wait(10)
            renewed = renew(*arguments)
            return renewed._replace(held=self._noted_later(renewed.held))

        client.driver.renew = renew_and_stop

    def _noted_later(self, held: list[bool | None]) -> Iterator[bool | None]:
        self.answered.set()
        assert self.go_on.wait(10)
        yield from held


@blocking
@on_memory
@pytest.mark.parametrize("before", [0, 1], ids=["the first that is looked at", "behind one that is lost"])
def test_a_loss_is_told_though_the_deadline_before_it_was_moved_in_the_middle_of_a_look(world: Any, before: int) -> None:
    """L6: the watchdog found the deadline over, and then that nothing is lost: it has to go on looking."""
    told: list[Any] = []
    looks: list[float] = []

    def clock() -> float:
        now: float = world.clock.__class__.local(world.clock)
        if threading.current_thread().name == "rota-watchdog" and now >= 1009:
            looks.append(now)
            if len(looks) == 2:  # it has decided to look at its grants, and asks one of them
                still.go_on.set()
                world.until(lambda: grant._deadline > now)
        return now

    world.clock.local = clock
    client = world.client()
    others = [client.try_lease(f"{world.name}-{number}", ttl=10, on_lost=told.append) for number in range(before)]
    grant = client.try_lease(world.name, ttl=10, heartbeat=1, on_lost=told.append)  # until 9 s from now
    still = StoodStill(client)
    world.clock.advance(1.1)
    client._engine.heartbeat.wake()
    assert still.answered.wait(10)
    world.clock.advance(8.4)
    world.until(lambda: len(looks) > 2)
    world.until(lambda: told == others)
    assert not grant.lost  # until 10.1 s from then
    world.clock.advance(1)
    world.until(lambda: told == [*others, grant])
    still.over.set()


@blocking
@on_memory
def test_who_goes_on_without_a_lease_is_never_short_of_time_again(world: Any) -> None:
    """F2: a renewal that is noted after its holder went on degraded gives it no deadline again."""
    client = world.client()
    grant = client.try_lease(world.name, ttl=10, on_lost="continue")
    still = StoodStill(client)
    world.clock.advance(3.4)
    client._engine.heartbeat.wake()
    assert still.answered.wait(10)
    world.clock.advance(6)
    assert not grant.lost
    assert (grant.degraded, grant.remaining()) == (True, NEVER)
    due = grant._due
    still.go_on.set()
    world.until(lambda: grant._due > due)
    world.until(lambda: grant.remaining() == NEVER)
    world.clock.advance(60)
    assert grant.remaining() == NEVER
    grant.check()


@blocking
@on_memory
def test_what_is_won_while_the_client_is_closed_is_lost_and_told(world: Any) -> None:
    """L6: nobody renews it any more, and nobody would tell when its deadline passes."""
    told: list[Any] = []
    client, other = world.client(), world.client()
    claims = client.driver.inner.claim

    def closed_meanwhile(*arguments: Any) -> Any:
        answer = claims(*arguments)
        closing = threading.Thread(target=client.close)
        closing.start()
        closing.join(10)
        return answer

    client.driver.inner.claim = closed_meanwhile
    grant = client.try_lease(world.name, ttl=10, on_lost=told.append)
    assert grant.lost
    with pytest.raises(LeaseLost, match="the client was closed"):
        grant.check()
    world.until(lambda: len(told) == 1)
    world.clock.advance(10)
    assert other.try_lease(world.name)
