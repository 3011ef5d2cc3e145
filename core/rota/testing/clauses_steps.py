# SPDX-License-Identifier: MIT
# ruff: noqa: D102, N802 - a test's name says which clause it is about, and what that demands
"""What only shows where a verb takes the store several requests: L7 and F1 when the store stops between a driver's read and its write.

The suite stops it there by `rota.rules`: a driver that reads, decides and writes asks a rule in between. One that asks none has to show
that it writes with its first request; else the test is not run.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from rota import rules
from rota.backend import RELEASED, UNUSED, WON, Answer, Claim, Driver, Record, Renewal, Settlement
from rota.duration import SECOND
from rota.errors import ConfigurationError, OutcomeUnknown, Unavailable

from .base import LONG, RETENTION, Clauses, not_run
from .faces import PATIENCE, Face

T = TypeVar("T")

#: How long a verb waits for the store to be stopped in its middle, seconds, and as a multiple of the time that it takes else: a store that
#: the verb itself has locked can't be.
STOPPING, TIMES = 0.3, 5
#: How long a request that was left behind may take to be applied once the store goes on, seconds.
LEFT_BEHIND = 0.5
UNSEEN = "the driver asks no rule of rota.rules between its read and its write, and what it sends first is no write: nothing can be told"


class Stop:
    """Stops the store in the middle of a verb.

    Attributes:
        reached: Whether a rule has decided that something is to be written.
        in_time: Whether the store was stopped before it was.
        entered: Whether the store answers nobody.
    """

    def __init__(self, hang: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
        self._hang = hang
        began = time.monotonic()
        with hang():
            self._patience = max(STOPPING, TIMES * (time.monotonic() - began))
        self._over = threading.Event()
        self._wrong: list[BaseException] = []
        self._thread: threading.Thread | None = None
        self.reached = self.in_time = False
        self.entered = threading.Event()

    def begin(self) -> None:
        """Stop the store. One that the verb has locked is stopped after it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._stop)
            self._thread.start()
            self.in_time = self.entered.wait(self._patience)
            self.reached = True

    def _stop(self) -> None:
        try:
            with self._hang():
                self.entered.set()
                self._over.wait(2 * PATIENCE)
        except BaseException as error:
            self._wrong.append(error)
            self.entered.set()

    def end(self) -> None:
        """Let it go on."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._wrong:
            raise self._wrong[0]


class Steps(Clauses):
    """Clauses L7, F1 and the capability record, in verbs of several requests."""

    @contextlib.contextmanager
    def _stopped_at(self, name: str) -> Iterator[Stop]:
        """Stop the store when a rule makes a name's next record, which is then to be written."""
        stop = Stop(self.hang)

        def stopping(of: str, *fields: Any, **named: Any) -> Record:
            if of == name:
                stop.begin()
            return Record(of, *fields, **named)

        vars(rules)["Record"] = stopping  # a driver may have taken hold of the rules themselves
        try:
            yield stop
        finally:
            vars(rules)["Record"] = Record
            stop.end()

    # -- L7

    async def test_L7_a_write_that_comes_too_late_wins_nothing(self, face: Face) -> None:
        if face.is_async:
            return
        driver = face.driver_of_url()
        if await face.call(driver.now, PATIENCE) is None:
            not_run("the store's time can't be known, so nothing can be stale")
        for bound in (0.25, 1.0, 5.0):  # on a busy machine a claim is stale before it is decided
            if await self._is_decided_in_time(face, driver, bound):
                return
        if not await self._writes_at_once(face):
            not_run(UNSEEN)

    async def _is_decided_in_time(self, face: Face, driver: Driver, bound: float) -> bool:
        """Say whether the driver asked a rule about a claim that is stale so many seconds later; check what became of it."""
        claim, came = self.lease(face, self.fresh()), list[Any]()
        with self._stopped_at(claim.name) as stop:
            now = await face.call(driver.now, PATIENCE)
            assert now is not None
            claim = claim._replace(apply_until=now[1] + round(bound * SECOND))

            def ask() -> None:
                try:
                    came.append(driver.claim(claim, PATIENCE))
                except Exception as error:
                    came.append(error)

            thread = threading.Thread(target=ask)
            thread.start()
            await face.until(lambda: stop.reached or came, 2 * PATIENCE, what="the claim's decision")
            if stop.in_time and not came:
                await face.sleep(bound + 0.15 + self.slack(face) / SECOND)
            before_it_went_on = list(came)
        await face.call(thread.join, 2 * PATIENCE)
        assert came, "the claim has not returned"
        assert isinstance(came[0], (Answer, Unavailable)), came[0]
        if before_it_went_on or not stop.in_time:
            return stop.reached  # nothing was left to be written when the store stopped, or the claim itself had locked it
        if face.capabilities.clock != "exact":  # the store can't compare: what finishes the owner keeps the claim from being applied
            await face.call(driver.settle, Settlement(claim.name, claim.owner, UNUSED, RETENTION), PATIENCE)
        elif isinstance(came[0], Answer):
            wrong = "a claim won by a write that the store carried out after its apply_until: the write is to carry the bound"
            assert came[0].verdict != WON, wrong
        assert not await self.is_live(face, claim.name), "a claim that was applied after its apply_until holds the name"
        return True

    async def _writes_at_once(self, face: Face) -> bool:
        """Say whether the first request of a claim writes: sent to a store that hangs, it is applied when the store goes on."""
        claim = self.lease(face, self.fresh())
        with self.hang():
            came = await self._raised(face.claim(claim, self.soon()))
        return isinstance(came, OutcomeUnknown) or bool(await self._within(face, lambda: self._has_changed(face, claim.name, None)))

    # -- F1

    async def test_F1_what_was_sent_and_not_answered_is_unknown(self, face: Face) -> None:
        if face.is_async and not face.capabilities.native_async:
            return  # its verbs are the other face's
        limit = self.soon()
        free, held, kept, forgotten, free_yet, held_yet = claims = [self.lease(face, self.fresh()) for _ in range(6)]
        for claim in (held, kept, forgotten, held_yet):
            await self.win(face, claim)
        before = {claim.name: await face.read(claim.name) for claim in claims}

        def release(claim: Claim) -> Settlement:
            return Settlement(claim.name, claim.owner, RELEASED, RETENTION)

        # by their first request, on connections that are there
        renewals = [Renewal(kept.name, kept.owner, 2 * LONG, RETENTION)]
        verbs: dict[str, tuple[str, Callable[[], Coroutine[Any, Any, Any]]]] = {
            "claim": (free.name, lambda: face.claim(free, limit)),
            "settle": (held.name, lambda: face.settle(release(held), limit)),
            "renew": (kept.name, lambda: face.call(face.driver.renew, renewals, limit)),
            "forget": (forgotten.name, lambda: face.call(face.driver.forget, forgotten.name, limit)),
        }
        with self.hang():
            came = await self._beside(face, {verb: call for verb, (_, call) in verbs.items()})
        seen = any(isinstance(error, OutcomeUnknown) for error in came.values())
        names = {verb: name for verb, (name, _) in verbs.items()}
        # and in their middle
        later = {"claim": (free_yet, face.claim(free_yet, limit)), "settle": (held_yet, face.settle(release(held_yet), limit))}
        for verb, (claim, call) in later.items():
            with self._stopped_at(claim.name) as stop:
                error = await self._raised(call)
            at = f"{verb}, stopped after it has read"
            names[at], came[at], seen = claim.name, error, seen or stop.reached
        undone = {verb for verb, error in came.items() if isinstance(error, Unavailable) and not isinstance(error, OutcomeUnknown)}
        others = {verb: error for verb, error in came.items() if error is not None and not isinstance(error, Unavailable)}
        assert not others, f"neither an answer nor Unavailable: {others}"

        async def applied() -> str:
            for verb in undone:
                if await self._has_changed(face, names[verb], before[names[verb]]):
                    return f"{verb}: {came[verb]!r} for what was applied: it was sent, and not answered"
            return ""

        wrong = await self._within(face, applied) if undone else ""
        assert not wrong, wrong
        if not seen:
            not_run(UNSEEN)

    async def _beside(self, face: Face, calls: Mapping[str, Callable[[], Coroutine[Any, Any, Any]]]) -> dict[str, Exception | None]:
        """Return what each call raised, all made at once."""
        asked = {verb: self._raised(call()) for verb, call in calls.items()}
        if face.is_async:
            return dict(zip(asked, await asyncio.gather(*asked.values()), strict=True))
        with ThreadPoolExecutor(len(asked)) as pool:
            return dict(zip(asked, pool.map(_done, asked.values()), strict=True))

    async def _raised(self, verb: Awaitable[object]) -> Exception | None:
        try:
            await verb
        except Exception as error:
            return error
        return None

    async def _has_changed(self, face: Face, name: str, before: Record | None) -> bool:
        with contextlib.suppress(Unavailable):
            return await face.read(name) != before
        return False

    async def _within(self, face: Face, condition: Callable[[], Any]) -> Any:
        """Return what comes to be soon after the store goes on, if it does."""
        with contextlib.suppress(AssertionError):
            return await face.until(condition, LEFT_BEHIND, what="a change")
        return None

    # -- a record that can't be read

    async def test_capability_record_that_cant_be_read_is_not_taken_for_none(self, face: Face) -> None:
        claim = self.lease(face, self.fresh())
        await self.win(face, claim)
        other = face.another_driver()
        following = self.lease(face, claim.name)
        with self.spoil(claim.name):
            verbs: dict[str, Callable[[], Any]] = {
                "read": lambda: face.call(other.read, claim.name, PATIENCE),
                "claim": lambda: face.claim(following),
                "claim by a new driver": lambda: face.call(other.claim, following, PATIENCE),
            }
            for verb, call in verbs.items():
                try:
                    came = await call()
                except ConfigurationError:
                    continue
                except Unavailable as error:
                    came = error
                pytest.fail(f"{verb}: {came!r} for a record that can't be read, no ConfigurationError (None would grant the name again)")


def _done(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the blocking face, which does not suspend."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    raise AssertionError("it waits on the blocking face")
