# SPDX-License-Identifier: MIT
# ruff: noqa: D102, N802 - a test's name says which clause it is about, and what that demands
"""Clauses W1 and W2: slots, and the verdicts on claims for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from rota.backend import (
    BUSY,
    EARLY,
    FAILED,
    FINISHED,
    GAVE_UP,
    HANDLED,
    LATE,
    LEASE,
    MISMATCH,
    STALE,
    WON,
)
from rota.duration import HOUR, MINUTE, SECOND

from .base import Clauses, in_seconds
from .faces import Face, done

Plant = Callable[["Slots", Face, str], Awaitable[object]]


class Slots(Clauses):
    """Clauses W1 and W2."""

    # -- W1

    async def test_W1_a_slot_is_identified_by_its_start(self, face: Face) -> None:
        claim = self.window(face, self.fresh())
        await self.handle(face, claim)
        start, end = self.slot(face, 0)
        for other_end in (end, end + 1, end - MINUTE, None):
            await self.refused(face, self.window(face, claim.name, slot_end=other_end), HANDLED)
        await self.refused(face, self.window(face, claim.name, slot_start=start - 1), HANDLED)
        await self.win(face, self.window(face, claim.name, slot_start=start + 1))

    async def test_W1_the_end_of_a_slot_is_the_start_of_the_next(self, face: Face) -> None:
        name = self.fresh()
        for number in (-2, -1, 0):
            await self.handle(face, self.window(face, name, number))
            assert (await self.known(face, name)).mark == self.slot(face, number)[0]
            await self.refused(face, self.window(face, name, number), HANDLED)

    async def test_W1_an_instant_on_a_boundary_belongs_to_the_new_slot(self, face: Face) -> None:
        clock = self.need_clock()
        client, name, schedule = face.connect(), self.fresh(), self.hourly(face)
        start = schedule.slot(clock.store() + HOUR).start
        for at, slot in ((start - 1, start - HOUR), (start, start), (start + HOUR - 1, start), (start + HOUR, start + HOUR)):
            with clock.stopped():
                clock.set(at)
                verdict = await done(client.try_window(name, schedule))
                if verdict:
                    assert verdict.slot.start == slot
                    await done(verdict.handled())
                else:
                    assert (verdict.verdict, verdict.slot.start) == (HANDLED, slot)
        assert (await self.known(face, name)).mark == start + HOUR

    # -- W2

    async def test_W2_verdicts_come_in_their_order(self, face: Face) -> None:
        wrong = []
        for state, (plant, claims) in STATES.items():
            for changes, expected in claims:
                name = self.fresh()
                await plant(self, face, name)
                before = await face.read(name)
                number = changes.get("number", 0)
                now = await face.now()
                asked = self.window(face, name, number)._replace(
                    **{key: value(now) if callable(value) else value for key, value in changes.items() if key != "number"}
                )
                answer = await face.claim(asked)
                if answer.verdict != expected:
                    wrong.append(f"{state}, a claim with {sorted(changes) or 'nothing special'}: {answer.verdict}, not {expected}")
                elif expected not in (WON, HANDLED) and await face.read(name) != before:
                    wrong.append(f"{state}, a claim with {sorted(changes)}: it was refused, and changed the record")
        assert not wrong, "\n".join(wrong)

    async def test_W2_mine_and_finished_come_before_all_else(self, face: Face) -> None:
        now = await face.now()
        at_worst: dict[str, Any] = {"apply_until": now - MINUTE, "not_before": now + HOUR, "late_from": now - HOUR}
        claim = self.window(face, self.fresh(), seal=True)
        won = await self.win(face, claim)
        answer = await face.claim(claim._replace(**at_worst))
        assert (answer.verdict, answer.record) == (WON, won)
        await self.end(face, claim, HANDLED)
        await self.refused(face, claim._replace(**at_worst), FINISHED)
        await self.refused(face, self.window(face, claim.name, **at_worst), STALE)
        lease = self.lease(face, claim.name)
        await self.refused(face, lease, MISMATCH)
        await self.refused(face, lease._replace(apply_until=now - MINUTE), STALE)

    async def test_W2_handled_whenever_it_comes(self, face: Face) -> None:
        name = self.fresh()
        old = [self.window(face, name, number) for number in (-5, -3, -2)]
        await self.handle(face, self.window(face, name, -2))
        live = self.window(face, name, 0)
        for claim in old:
            await self.refused(face, claim, HANDLED)
        await self.win(face, live)
        for claim in old:
            await self.refused(face, claim, HANDLED)  # although a lease is live
        await self.end(face, live, HANDLED)
        for claim in old:
            await self.refused(face, claim, HANDLED)
        assert (await self.known(face, name)).mark == live.slot_start

    async def test_W2_handled_says_how(self, face: Face) -> None:
        client, name = face.connect(), self.fresh()
        schedule, hour = self.hourly(face), HOUR
        base = schedule.slot(face.began).start
        grant = await done(client.try_window(name, schedule, planned=in_seconds(base - 2 * hour), max_late="5h"))
        await done(grant.handled())
        grant = await done(client.try_window(name, schedule, planned=in_seconds(base - hour), max_late="5h", attempts=1))
        await done(grant.failed())
        hows = []
        for back in (3, 2, 1):
            refused = await done(client.try_window(name, schedule, planned=in_seconds(base - back * hour), max_late="5h"))
            assert refused.verdict == HANDLED
            hows.append(refused.how)
        if face.capabilities.history:
            assert hows == ["passed", "done", GAVE_UP]
        else:
            assert (hows[0], hows[2]) == ("passed", GAVE_UP)


# -- W2: what a name looks like, and what becomes of claims for slot 0 (or another `number`) in each state


async def _nothing(suite: Slots, face: Face, name: str) -> None:
    pass


def _handled(number: int) -> Plant:
    async def plant(suite: Slots, face: Face, name: str) -> None:
        await suite.handle(face, suite.window(face, name, number))

    return plant


def _live(number: int, **changes: Any) -> Plant:
    async def plant(suite: Slots, face: Face, name: str) -> None:
        await suite.win(face, suite.window(face, name, number, **changes))

    return plant


def _failed(*numbers: int) -> Plant:
    async def plant(suite: Slots, face: Face, name: str) -> None:
        for number in numbers:
            claim = suite.window(face, name, number)
            await suite.win(face, claim)
            await suite.end(face, claim, FAILED)

    return plant


def _both(*plants: Plant) -> Plant:
    async def plant(suite: Slots, face: Face, name: str) -> None:
        for each in plants:
            await each(suite, face, name)

    return plant


async def _lease(suite: Slots, face: Face, name: str) -> None:
    claim = suite.lease(face, name)
    await suite.win(face, claim)
    await suite.end(face, claim, "released")


async def _forgotten(suite: Slots, face: Face, name: str) -> None:
    await suite.handle(face, suite.window(face, name))
    await face.forget(name)


# changes of a claim; a function gets the store's time
_EARLY: dict[str, Any] = {"not_before": lambda now: now + MINUTE}
_ENDED: dict[str, Any] = {"late_from": lambda now: now - SECOND}
_OPEN: dict[str, Any] = {"not_before": lambda now: now - MINUTE, "late_from": lambda now: now + MINUTE}
_STALE: dict[str, Any] = {"apply_until": lambda now: now - MINUTE}
_LAST: dict[str, Any] = {"max_attempts": 2}
_LEASE: dict[str, Any] = {"kind": LEASE, "slot_start": None, "slot_end": None, "schedule": ""}

STATES: dict[str, tuple[Plant, list[tuple[dict[str, Any], str]]]] = {
    "no record": (
        _nothing,
        [({}, WON), (_OPEN, WON), (_EARLY, EARLY), (_ENDED, LATE), (_EARLY | _ENDED, EARLY), (_STALE, STALE), (_STALE | _EARLY, STALE)],
    ),
    "the slot is handled": (
        _handled(0),
        [
            ({}, HANDLED),
            (_ENDED, HANDLED),
            (_EARLY, EARLY),
            (_STALE, STALE),
            (_LEASE, MISMATCH),
            (_LEASE | _STALE, STALE),
            (_LAST, HANDLED),
        ],
    ),
    "a newer slot is handled": (_handled(2), [({}, HANDLED), (_ENDED, HANDLED), (_EARLY, EARLY), ({"number": 3}, WON)]),
    "an older slot is handled": (_handled(-2), [({}, WON), (_ENDED, LATE), (_EARLY, EARLY)]),
    "the slot is held": (
        _live(0),
        [({}, BUSY), (_ENDED, BUSY), (_EARLY, EARLY), (_STALE, STALE), (_LAST | {"max_attempts": 1}, BUSY), (_LEASE, MISMATCH)],
    ),
    "the slot is sealed and held": (_live(0, seal=True), [({}, HANDLED), (_ENDED, HANDLED), (_EARLY, EARLY)]),
    "an older slot is held": (_live(-2), [({}, BUSY), (_ENDED, LATE), (_EARLY, EARLY), (_EARLY | _ENDED, EARLY)]),
    "a newer slot is held": (_live(2), [({}, BUSY), (_ENDED, LATE)]),
    "an older slot is handled and a newer one held": (_both(_handled(-2), _live(1)), [({"number": -2}, HANDLED), ({}, BUSY)]),
    "the slot is handled and a newer one held": (_both(_handled(0), _live(1)), [({}, HANDLED), (_ENDED, HANDLED), (_EARLY, EARLY)]),
    "the slot has failed": (_failed(0), [({}, WON), (_LAST, WON), (_ENDED, LATE), (_EARLY, EARLY)]),
    "the slot's attempts are used up": (_failed(0, 0), [(_LAST, HANDLED), (_LAST | _ENDED, HANDLED), (_LAST | _EARLY, EARLY), ({}, WON)]),
    "an older slot's attempts are used up": (_failed(-2, -2), [(_LAST, WON)]),
    "the name was a lease": (_lease, [({}, MISMATCH), (_EARLY, MISMATCH), (_STALE, STALE)]),
    "the name was forgotten": (_forgotten, [({}, WON), (_ENDED, LATE), (_LEASE, WON)]),
}
