# SPDX-License-Identifier: MIT
"""A state machine that does the same to a backend and to the memory model, and compares what they answer and keep.

Each verb goes to the backend first; the model then decides with the store's time that the answer told. So a backend whose clock is exact
must agree in every field, and any other one in all but the instants, which may be off by what it declares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from rota.backend import (
    FAILED,
    GAVE_UP,
    HANDLED,
    HISTORY_LIMIT,
    LEASE,
    RELEASED,
    ROLLING,
    UNUSED,
    WINDOW,
    Answer,
    Claim,
    Now,
    Override,
    Record,
    Renewal,
    Settled,
    Settlement,
    WriteBack,
)
from rota.duration import DAY, HOUR, MINUTE, SECOND
from rota.memory import MemoryDriver, MemoryStore

from .base import LONG, RETENTION, Clauses
from .faces import PATIENCE, Face

if TYPE_CHECKING:
    from rota.backend import Driver

NAMES = 3
PICK = st.integers(0, 10_000)
#: Fields that hold instants, or follow from them.
TIMES = ("granted_at", "expires_at", "settled_at", "keep_until", "mark", "prior_mark", "slot_start", "slot_end")


async def compare(suite: Clauses, face: Face) -> None:
    """Run the state machine on a face."""
    loop = asyncio.get_running_loop() if face.is_async else None
    settable = suite.clock is not None
    # short runs first, and none is shrunk: on a real store that takes minutes, and a failure of few steps can be read as it is
    rounds = ((40, 8), (25, 50)) if settable else ((8, 8), (4, 40))
    with suite.clock.stopped() if suite.clock is not None else nullcontext():
        for examples, steps in rounds:
            some = settings(
                max_examples=examples // 2 if face.is_async else examples,  # only claims and settlements go another way there
                stateful_step_count=steps,
                deadline=None,
                database=None,
                phases=(Phase.generate,),
                suppress_health_check=list(HealthCheck),
            )
            await face.call(_run, lambda: Machine(suite, face, loop), some)


def _run(machine: Callable[[], Machine], some: settings) -> None:
    run_state_machine_as_test(machine, settings=some)  # type: ignore[arg-type]  # it only calls what it is given


class Machine(RuleBasedStateMachine):
    """Two stores, one of them the model."""

    def __init__(self, suite: Clauses, face: Face, loop: asyncio.AbstractEventLoop | None) -> None:
        super().__init__()
        self._suite, self._face, self._loop = suite, face, loop
        self._driver = face.driver
        self._capabilities = face.capabilities
        self._exact = face.capabilities.clock == "exact"
        self._at = 0
        self._store = MemoryStore(clock=lambda: self._at)
        self._model: Driver = MemoryDriver(self._store)
        self._claims: list[Claim] = []
        self._names: list[str] = []

    @initialize()
    def begin(self) -> None:
        """Take names that nobody has used."""
        self._names = [self._suite.fresh() for _ in range(NAMES)]
        self._face.began = self._now()

    # -- the rules of the game

    @rule(
        index=st.integers(0, NAMES - 1),
        number=st.integers(-2, 2),
        flags=st.sets(st.sampled_from(["early", "late", "stale", "seal", "overlap", "endless", "limit"]), max_size=3),
        kind=st.sampled_from([LEASE, WINDOW, WINDOW, WINDOW, ROLLING]),
        ttl=st.sampled_from([LONG, 2 * LONG, 40 * LONG]),
        period=st.sampled_from([2 * HOUR, DAY]),
    )
    def claim(self, index: int, number: int, flags: set[str], kind: str, ttl: int, period: int) -> None:
        """Claim for a new owner."""
        suite, face, name = self._suite, self._face, self._names[index]
        now = self._now()
        changes: dict[str, Any] = {"ttl": ttl}
        if "stale" in flags:
            changes["apply_until"] = now - MINUTE
        if kind == LEASE or not self._capabilities.windows:
            asked = suite.lease(face, name, **changes)
        else:
            if "limit" in flags:
                changes["max_attempts"] = 2
            changes["seal"] = "seal" in flags
            if kind == ROLLING:
                asked = suite.rolling(face, name, period, **changes)
            else:
                if "early" in flags:
                    changes["not_before"] = now + HOUR
                if "late" in flags:
                    changes["late_from"] = now - HOUR
                if "endless" in flags:
                    changes["slot_end"] = None
                changes["overlap"] = {"seal", "overlap"} <= flags
                asked = suite.window(face, name, number, **changes)
        self._claims.append(asked)
        self._compare_claim(asked)

    @precondition(lambda self: self._claims)
    @rule(pick=PICK)
    def claim_again(self, pick: int) -> None:
        """Repeat an earlier claim, of the same owner."""
        self._compare_claim(self._pick(pick))

    @precondition(lambda self: self._claims)
    @rule(picks=st.lists(PICK, min_size=1, max_size=4), ttl=st.sampled_from([LONG, 3 * LONG]))
    def renew(self, picks: list[int], ttl: int) -> None:
        """Renew a batch, of which some is lost."""
        claims = list({claim.name: claim for claim in map(self._pick, picks)}.values())
        renewals = [Renewal(claim.name, claim.owner, ttl, RETENTION) for claim in claims]
        found = self._driver.renew(renewals, PATIENCE)
        self._set(found.now)
        expected = self._model.renew(renewals, PATIENCE)
        assert list(found.held) == list(expected.held), renewals
        # a store in several parts renews each at its own time, and says between which
        self._look([claim.name for claim in claims], 0 if found.now is None else found.now[1] - found.now[0])

    @precondition(lambda self: self._claims)
    @rule(
        pick=PICK,
        result=st.sampled_from([HANDLED, HANDLED, FAILED, UNUSED, GAVE_UP]),
        history=st.one_of(st.none(), st.binary(max_size=40), st.just(b"\0\xff" * (HISTORY_LIMIT // 2))),
    )
    def settle(self, pick: int, result: str, history: bytes | None) -> None:
        """Settle what was claimed, again and again, and in vain, too."""
        claim = self._pick(pick)
        if claim.kind == LEASE:
            result = RELEASED if result == HANDLED else UNUSED
        if not self._capabilities.history:
            history = None
        request = Settlement(claim.name, claim.owner, result, RETENTION, history)
        found: Settled = self._both("settle", request)
        self._set(found.now)
        self._compare_settled(found, self._model.settle(request, PATIENCE), claim.name)

    @rule(index=st.integers(0, NAMES - 1))
    def forget(self, index: int) -> None:
        """Leave a tombstone."""
        name = self._names[index]
        self._at = self._now()
        found = self._driver.forget(name, PATIENCE)
        expected = self._model.forget(name, PATIENCE)
        assert found is expected
        self._look([name], 10 * SECOND)

    @precondition(lambda self: "override" in self._capabilities.verbs)
    @rule(
        index=st.integers(0, NAMES - 1),
        action=st.sampled_from([RELEASED, HANDLED, FAILED, "mark"]),
        number=st.one_of(st.none(), st.integers(-2, 2)),
        token=st.sampled_from(["any", "right", "wrong"]),
    )
    def override(self, index: int, action: str, number: int | None, token: str) -> None:
        """Change it as an operator does."""
        name = self._names[index]
        known = self._store.records.get(name)
        expected_token = None if token == "any" or known is None else known.token + (token == "wrong")
        mark = None if number is None else self._suite.slot(self._face, number)[0]
        request = Override(name, action, "operator: why", RETENTION, mark, expected_token)
        found = self._driver.override(request, PATIENCE)
        self._set(found.now)
        self._compare_settled(found, self._model.override(request, PATIENCE), name)

    @precondition(lambda self: "record" in self._capabilities.verbs and self._capabilities.windows)
    @rule(index=st.integers(0, NAMES - 1), number=st.integers(-2, 2), kind=st.sampled_from([WINDOW, ROLLING]))
    def write_back(self, index: int, number: int, kind: str) -> None:
        """Record a slot that ran degraded."""
        start, end = self._suite.slot(self._face, number)
        name = self._names[index]
        request = WriteBack(name, "site degraded:1", kind, RETENTION, "every 1h" if kind == WINDOW else "per 1h", "", start, end)
        found = self._driver.record(request, PATIENCE)
        self._set(found.now)
        self._compare_settled(found, self._model.record(request, PATIENCE), name)

    @precondition(lambda self: self._suite.clock is not None)
    @rule(step=st.sampled_from([1, MINUTE, MINUTE, MINUTE, LONG - 1, LONG, 2 * LONG, DAY, 40 * DAY, -MINUTE]))
    def clock(self, step: int) -> None:
        """Let time pass, or the clock step back a little."""
        assert self._suite.clock is not None
        self._suite.clock.leap(step)

    @precondition(lambda self: self._suite.clock is not None and "sweep" in self._capabilities.verbs)
    @rule()
    def sweep(self) -> None:
        """Remove what R1 lets go: of these names, and of whatever else is there."""
        while self._driver.sweep(1000, PATIENCE):
            pass
        self._at = self._now()
        while self._model.sweep(1000, PATIENCE):
            pass
        self._look(self._names)

    def _pick(self, pick: int) -> Claim:
        """Return a claim made so far: more often one that holds something, since most of a random choice is over and done.

        Not drawn from the claims themselves: what they hold depends on the store, and Hypothesis wants draws that don't.
        """
        held = {record.owner for record in self._store.records.values()}
        likely = self._claims[-20:] + [claim for claim in self._claims if claim.owner in held] * 10
        return likely[pick % len(likely)]

    # -- comparing

    def _both(self, verb: str, request: Any) -> Any:
        """Ask the backend: on the async face its twin, on the test's own loop."""
        if self._loop is None:
            return getattr(self._driver, verb)(request, PATIENCE)
        ask: Callable[[Any], Any] = getattr(self._face, verb)
        return asyncio.run_coroutine_threadsafe(ask(request), self._loop).result(3 * PATIENCE)

    def _now(self) -> int:
        now = self._driver.now(PATIENCE)
        return self._face.began if now is None else now[0]

    def _set(self, now: Now | None) -> None:
        self._at = self._now() if now is None else now[0]

    def _compare_claim(self, asked: Claim) -> None:
        found: Answer = self._both("claim", asked)
        self._set(found.now)
        expected = self._model.claim(asked, PATIENCE)
        assert found.verdict == expected.verdict, f"{asked}\n  found {found}\n  expected {expected}"
        if self._exact:
            assert (found.before is None) is (expected.before is None)
        self._same(found.record, expected.record)
        self._look([asked.name])

    def _compare_settled(self, found: Settled, expected: Settled, name: str) -> None:
        assert found.applied == expected.applied, (found, expected)
        if expected.applied:
            assert found.result == expected.result, (found, expected)
            assert found.expired == expected.expired, (found, expected)
        if found.record is not None or not found.applied:  # else the driver leaves it out, as it may
            self._same(found.record, expected.record)
        self._look([name])

    def _look(self, names: list[str], tolerance: int = 0) -> None:
        """Compare what is kept; the model then goes on from what the store has."""
        for name in names:
            found, _ = self._driver.read(name, PATIENCE)
            known = self._store.records.get(name)
            self._same(found, known, tolerance)
            if found is not None:
                self._store.records[name] = found

    def _same(self, found: Record | None, expected: Record | None, tolerance: int = 0) -> None:
        assert (found is None) is (expected is None), f"found {found}, expected {expected}"
        if found is None or expected is None:
            return
        if not self._exact:
            tolerance += self._suite.slack(self._face) + 5 * SECOND
        differ = []
        for field, is_, should in zip(Record._fields, found, expected, strict=True):
            if field == "token" and (self._capabilities.token_scope == "store" or tolerance):
                continue
            near = isinstance(is_, int) and isinstance(should, int) and 0 not in (is_, should) and abs(is_ - should) <= tolerance
            if field in TIMES and near:
                continue
            if is_ != should:
                differ.append(f"{field} is {is_!r}, should be {should!r}")
        assert not differ, f"{found.name}: {'; '.join(differ)}"
