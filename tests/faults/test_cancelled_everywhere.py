# SPDX-License-Identifier: MIT
"""Every operation of the async face, cancelled at its first await, at its second, and so on until it ends of itself (L7, L8, W3, F5).

Over a native async driver (memory) and over threads (sqlite), with a network that loses the reply, loses the request, delays either, or
hangs; cancelled at once, or in the very moment in which the answer comes. After each: nobody is told a lie, the slot is there for another
client at once or, where the one that was cancelled can say no more, after exactly one ttl, and nothing of the operation is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest
from rota import Every, LeaseLost, Refused, Unavailable, Unrecorded, _engine, _settling
from rota.backend import BUSY, HANDLED, LEASE, RELEASED, ROLLING, WINDOW, WON, Claim, Driver, Record, Renewal, Settlement
from rota.duration import DAY, HOUR, SECOND
from rota.testing.faulty import EVER, REPLY_LOST, REQUEST_LOST, Fault

TTL, RETENTION = 60, 30 * DAY
#: Of a call, seconds; it runs out in reality only where the store hangs.
PATIENT, SHORT = 10.0, 0.04
FAULTS = {
    "none": Fault(),
    "the reply is lost": REPLY_LOST,
    "the request is lost": REQUEST_LOST,
    "the request is late": Fault(wait=0.012),
    "the reply is late": Fault(linger=0.012),
    "the store hangs": Fault(wait=EVER, apply=False),
}
#: More awaits than any operation has here.
MANY = 40

pytestmark = pytest.mark.parametrize("face", ["blocking"], indirect=True)  # the world's own clients are not used


# -- cancelling


class Cancelled:
    """A coroutine run as a task that is cancelled at its n-th suspension.

    Attributes:
        outcome: What it returned or raised.
        suspensions: How often it was suspended.
    """

    def __init__(self, number: int, when: str, at: Callable[[int], object]) -> None:
        self._number = number
        self._when = when
        self._at = at
        self.suspensions = 0
        self.outcome: Any = None

    async def run(self, coroutine: Any) -> Cancelled:
        task = asyncio.create_task(self._all_of(coroutine))
        try:
            self.outcome = await task
        except (Exception, asyncio.CancelledError) as error:
            self.outcome = error
        return self

    async def _all_of(self, coroutine: Any) -> Any:
        return await self._stepped(coroutine)

    @types.coroutine
    def _stepped(self, coroutine: Any) -> Generator[Any, Any, Any]:
        error: BaseException | None = None
        while True:
            try:
                waited_for = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as stop:
                return stop.value
            self.suspensions += 1
            self._at(self.suspensions)
            if self.suspensions == self._number:
                task = asyncio.current_task()
                assert task is not None
                if self._when == "as it is answered" and waited_for is not None:
                    waited_for.add_done_callback(lambda _, task=task: task.cancel())  # before the task itself hears of it
                else:
                    asyncio.get_running_loop().call_soon(task.cancel)
            error = None
            try:
                yield waited_for
            except BaseException as thrown:
                error = thrown


# -- the world after it


class Story:
    """One operation on one name, and what must hold after it.

    Attributes:
        verbs: Which calls the fault may befall: the first of each.
        faults: Which faults.
    """

    verbs: tuple[str, ...] = ("claim",)
    faults = tuple(FAULTS)

    def __init__(self, world: Any, client: Any, name: str) -> None:
        self.world = world
        self.client = client
        self.name = name
        self.other: Driver = world.driver()

    async def prepare(self) -> None:
        """What goes before, and is not cancelled."""

    def operation(self) -> Awaitable[Any]:
        """What is cancelled."""
        raise NotImplementedError

    def at(self, suspension: int) -> None:
        """What happens elsewhere when it is suspended."""

    def ended(self) -> None:
        """What no longer happens elsewhere."""

    async def meanwhile(self, outcome: Any) -> None:
        """Check what the caller was told, and what the others are told before this client has said more."""

    async def after(self, outcome: Any) -> None:
        """Check what holds once this client has said all it had to say."""
        self.wins()

    async def granted(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask until the store has answered: the timeout may be short, and the machine busy."""
        while True:
            with contextlib.suppress(Unavailable):
                grant = await ask()
                assert grant, grant
                return grant
            self.client._engine.breaker.answered()

    # -- other processes

    kind, slot_start, slot_end, period = LEASE, None, None, 0

    def ask(self) -> tuple[str, Record | None, str]:
        """Claim as another process does; return the verdict, the record, and the owner."""
        owner = os.urandom(16).hex()
        latest = self.world.clock.store() + HOUR
        claim = Claim(self.name, owner, "other:1", self.kind, TTL * SECOND, latest, RETENTION)
        if self.kind == WINDOW:
            claim = claim._replace(schedule="every 1h", slot_start=self.slot_start, slot_end=self.slot_end)
        elif self.kind == ROLLING:
            claim = claim._replace(schedule="per 1d", period=DAY)
        answer = self.other.claim(claim, 5.0)
        return answer.verdict, answer.record, owner

    def wins(self) -> tuple[Record, str]:
        """Check that another process wins; return its record and owner."""
        verdict, record, owner = self.ask()
        assert verdict == WON, (verdict, record)
        assert record is not None
        return record, owner

    def holds(self, owner: str) -> bool:
        return bool(self.other.renew([Renewal(self.name, owner, TTL * SECOND, RETENTION)], 5.0).held[0])

    def release(self, owner: str) -> None:
        self.other.settle(Settlement(self.name, owner, RELEASED, RETENTION), 5.0)


class ALease(Story):
    verbs = ("now", "claim")

    def operation(self) -> Awaitable[Any]:
        return self.client.try_lease(self.name, ttl=TTL)

    async def meanwhile(self, outcome: Any) -> None:
        assert not isinstance(outcome, Refused), outcome
        if not isinstance(outcome, BaseException):
            outcome.check()
            await self.client_ends(outcome)

    async def client_ends(self, grant: Any) -> None:
        """It was not cancelled: end what it won as a caller does."""
        if self.kind == LEASE:
            await grant.release()
        else:
            await grant.unused()


class AWindow(ALease):
    kind = WINDOW
    options: dict[str, Any] = {}

    def __init__(self, world: Any, client: Any, name: str) -> None:
        super().__init__(world, client, name)
        self.slot_start, self.slot_end = Every("1h").slot(world.clock.store())

    def operation(self) -> Awaitable[Any]:
        return self.client.try_window(self.name, Every("1h"), ttl=TTL, **self.options)

    async def after(self, outcome: Any) -> None:
        record, _ = self.wins()
        assert (record.mark, record.attempts) == (None, 1), "a body that never began counts as an attempt"


class ASealedWindow(AWindow):
    faults = ("the reply is lost", "the reply is late")  # those that leave a grant; the rest is as it is for a window
    options = {"at_most_once": True}


class AnOverlappingWindow(ASealedWindow):
    options = {"at_most_once": True, "overlap": True}


class ARollingWindow(AWindow):
    faults = ASealedWindow.faults
    kind = ROLLING

    def operation(self) -> Awaitable[Any]:
        return self.client.try_once(self.name, "1d", ttl=TTL)


class AWait(Story):
    """Somebody holds it, and releases it while the waiter waits."""

    verbs = ("claim", "claim again", "watch")  # refused, then won

    async def prepare(self) -> None:
        _, self.holder = self.wins()
        self.held = True

    def operation(self) -> Awaitable[Any]:
        return self.client.try_lease(self.name, ttl=TTL, wait=3600)

    def at(self, suspension: int) -> None:
        if suspension == 1:
            self.soon = asyncio.get_running_loop().call_later(0.02, self.let_go)

    def ended(self) -> None:
        self.soon.cancel()

    def let_go(self) -> None:
        self.release(self.holder)
        self.held = False

    async def meanwhile(self, outcome: Any) -> None:
        assert not isinstance(outcome, Refused), outcome
        if self.held:
            assert self.holds(self.holder), "a waiter that was cancelled took the name from its holder"
            self.let_go()
        if not isinstance(outcome, BaseException):
            await outcome.release()

    async def after(self, outcome: Any) -> None:
        self.wins()
        assert not self.world.memory.watchers
        assert not self.world.memory.waiting


class ASettlement(AWindow):
    verbs = ("settle",)
    result, mark = "handled", True

    async def prepare(self) -> None:
        self.grant = await self.granted(lambda: self.client.try_window(self.name, Every("1h"), ttl=TTL))

    def operation(self) -> Awaitable[Any]:
        return getattr(self.grant, self.result)()

    async def meanwhile(self, outcome: Any) -> None:
        assert outcome is None or isinstance(outcome, (asyncio.CancelledError, Unrecorded)), outcome
        if not self.mark:
            return
        told = await _told(self.grant.handled())
        record = self.other.read(self.name, 5.0)[0]
        assert record is not None
        recorded = record.mark == self.slot_start
        if outcome is None or told is None:
            assert recorded, "it was said to be handled, and is not recorded"
        assert told is None or isinstance(told, Unrecorded), told
        if not recorded:
            verdict, record, _ = self.ask()
            assert record is not None
            # the keeper may have recorded it in the meantime
            assert verdict == (HANDLED if record.mark == self.slot_start else BUSY)

    async def after(self, outcome: Any) -> None:
        record = self.other.read(self.name, 5.0)[0]
        assert record is not None
        assert (record.owner, record.outcome) == ("", self.result)
        if self.mark:
            assert record.mark == self.slot_start
            assert self.ask()[0] == HANDLED
            assert await _told(self.grant.handled()) is None
        else:
            assert record.mark is None
            assert self.wins()[0].attempts == 2


class AFailure(ASettlement):
    result, mark = "failed", False


class ARelease(ALease):
    verbs = ("settle",)

    async def prepare(self) -> None:
        self.grant = await self.granted(lambda: self.client.try_lease(self.name, ttl=TTL))

    def operation(self) -> Awaitable[Any]:
        return self.grant.release()

    async def meanwhile(self, outcome: Any) -> None:
        assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome


class ABlock(AWindow):
    verbs = ("settle",)  # its claim is the window's

    def __init__(self, world: Any, client: Any, name: str) -> None:
        super().__init__(world, client, name)
        self.done = False

    def guard(self) -> Any:
        return self.client.window(self.name, Every("1h"), ttl=TTL)

    async def operation(self) -> None:  # type: ignore[override]
        async with self.guard():
            await self.body()
            self.done = True

    async def body(self) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def meanwhile(self, outcome: Any) -> None:
        expected = (asyncio.CancelledError, Unavailable)
        assert (outcome is None and self.done) or isinstance(outcome, expected), outcome
        assert not self.done or not isinstance(outcome, Unavailable) or isinstance(outcome, Unrecorded)

    async def after(self, outcome: Any) -> None:
        if self.done:
            assert self.ask()[0] == HANDLED
        else:
            assert self.wins()[0].mark is None


class ALeaseBlock(ABlock):
    kind = LEASE

    def guard(self) -> Any:
        return self.client.lease(self.name, ttl=TTL)

    async def after(self, outcome: Any) -> None:
        self.wins()


class ARenewal(ALeaseBlock):
    """The body goes on while its lease is renewed, in trouble."""

    verbs = ("renew",)

    async def body(self) -> None:
        self.world.clock.advance(TTL / 3 + 1)
        self.client._engine.heartbeat.wake()
        await self.world.reached(lambda: self.client.driver.count("renew"))
        await self.world.reached(lambda: not self.client.driver.under_way)


STORIES = [
    ALease,
    AWindow,
    ASealedWindow,
    AnOverlappingWindow,
    ARollingWindow,
    AWait,
    ASettlement,
    AFailure,
    ARelease,
    ABlock,
    ALeaseBlock,
    ARenewal,
]


async def _told(asked: Awaitable[Any]) -> Any:
    try:
        return await asked
    except Exception as error:
        return error


async def _case(world: Any, story: type[Story], verb: str, fault: Fault, number: int, when: str, dead: bool) -> bool:
    """Play it once; return whether it was long enough to be cancelled there."""
    threads = set(threading.enumerate())
    timeout = SHORT if fault.wait == EVER else PATIENT
    client = world.async_client(timeout=timeout)
    driver, keeper = client.driver, client._engine.keeper
    play = story(world, client, f"{world.name}-{next(_numbers)}")
    await play.prepare()
    if verb == "claim again":
        driver.once("claim", Fault())
    driver.once(verb.split(maxsplit=1)[0], fault)
    cancelled = await Cancelled(number, when, play.at).run(play.operation())
    play.ended()
    outcome = cancelled.outcome
    assert not isinstance(outcome, LeaseLost), "it was told that its lease is lost"
    await world.reached(lambda: not driver.under_way or fault.wait == EVER)
    followed, verdict = "", ""
    if dead := dead and cancelled.suspensions >= number:
        driver.away()
        await world.reached(lambda: not driver.under_way)
        world.clock.advance(TTL)
        verdict, record, followed = play.ask()
        handled = record is not None and record.mark is not None
        assert verdict == (HANDLED if handled and verdict == HANDLED else WON), "it is held for more than a ttl"
        driver.back()
    else:
        driver.back()
        await world.reached(lambda: not driver.under_way)
        await play.meanwhile(outcome)
    world.clock.advance(timeout + 1)  # whatever is still on its way can't be applied any more
    if keeper.waiting():
        keeper._worker.wake()  # it pauses in real time
    assert await client.flush(10)
    if dead:
        assert verdict == HANDLED or play.holds(followed), "what was said late disturbs a successor"
    else:
        await play.after(outcome)
    assert keeper.waiting() == 0
    assert client._engine.heartbeat.held() == []
    assert not client._engine.watchdog._watched
    if getattr(client._engine.io, "_pool", None) is not None:
        await world.reached(client._engine.io._pool._work_queue.empty)
    world.clock.advance(10)
    again = await client.try_lease(f"{play.name}-again", ttl=TTL, timeout=PATIENT)
    assert again, "the client is of no use any more"
    await again.release()
    await client.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await world.reached(
        lambda: not [t for t in set(threading.enumerate()) - threads if t.name.startswith("rota-") and "observers" not in t.name]
    )
    play.other.close()
    return cancelled.suspensions >= number


_numbers = itertools.count(1)


def _play(world: Any, story: type[Story]) -> None:
    whens = (("at once", False), ("as it is answered", False), ("as it is answered", True))

    async def play() -> None:
        for what, verb, (when, dead) in itertools.product(story.faults, story.verbs, whens):
            fault = FAULTS[what]
            if (what == "none" and verb != story.verbs[0]) or (fault.wait == EVER and verb == "watch"):
                continue  # the same as before; a watch that hangs is one that waits
            for number in range(1, MANY):
                try:
                    if not await _case(world, story, verb, fault, number, when, dead):
                        break
                except BaseException as error:
                    error.add_note(f"{what}: the first {verb}; cancelled {when} at await {number}{', and then cut off' if dead else ''}")
                    raise
            else:
                raise AssertionError(f"{what}: the first {verb}; it never came to its end")

    asyncio.run(play())


@pytest.mark.parametrize("story", STORIES)
def test_cancelled_at_every_await(world: Any, story: type[Story]) -> None:
    _play(world, story)


ABANDON, KEEP = (_engine.Engine, "abandon"), (_settling, "_keep")


@pytest.mark.parametrize(
    ("story", "broken"),
    [(ALease, ABANDON), (ASealedWindow, ABANDON), (AWait, ABANDON), (ASettlement, KEEP), (AFailure, KEEP), (ABlock, KEEP)],
)
def test_an_engine_that_forgets_what_was_cancelled_is_found(
    world: Any, story: type[Story], broken: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*broken, lambda *arguments: None)
    with pytest.raises(AssertionError):
        _play(world, story)
