# SPDX-License-Identifier: MIT
"""The test of the tests: for every clause there are broken backends, and the suite finds each of them by a test that cites the clause.

A mutant is the memory backend with one rule changed: by a driver of its own, by a change of `rota.rules`, or, for clauses that are kept by
the core and not by the store, by a change of the core.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import rota.rules as rules
import rota.testing
from rota import _ask, _breaker, _engine, _heartbeat, _settling, grant
from rota.backend import (
    BUSY,
    EARLY,
    FAILED,
    FINISHED,
    GAVE_UP,
    HANDLED,
    LATE,
    LEASE,
    ROLLING,
    SEALED,
    UNUSED,
    WON,
    Answer,
    AsyncDriver,
    Claim,
    Driver,
    Record,
    Renewed,
    Settled,
)
from rota.duration import DAY, HOUR, SECOND
from rota.errors import NotSupported
from rota.memory import AsyncMemoryDriver, MemoryDriver, MemoryStore
from rota.testing.base import NotRun, RefusedHere
from rota.testing.faces import Face
from rota.testing.report import clause_of, standard_tests

CAPABILITIES = MemoryDriver.capabilities


class Mutant(NamedTuple):
    clause: str
    what: str
    driver: type[MemoryDriver] = MemoryDriver
    changes: Sequence[tuple[Any, str, Any]] = ()
    capabilities: dict[str, Any] = {}


class Suite(rota.testing.Conformance):
    """The conformance suite on a mutant; run by hand, below."""

    def __init__(self, mutant: Mutant) -> None:
        self.clock = rota.testing.Clock()
        self._store = MemoryStore(clock=self.clock.store)
        self._mutant = mutant

    def driver(self) -> Driver:
        driver = self._mutant.driver(self._store)
        driver.capabilities = driver.capabilities._replace(**self._mutant.capabilities)
        return driver

    def async_driver(self, driver: Driver) -> AsyncDriver | None:
        assert isinstance(driver, MemoryDriver)
        return AsyncMemoryDriver(driver)

    def raw(self, name: str) -> Any:
        record = self._store.records.get(name)
        return None if record is None else record._asdict()


TESTS = standard_tests(Suite)
MUTANTS: list[Mutant] = []


def mutant(clause: str, what: str, *changes: tuple[Any, str, Any], driver: type[MemoryDriver] = MemoryDriver, **capabilities: Any) -> None:
    MUTANTS.append(Mutant(clause, what, driver, changes, capabilities))


def rule(name: str) -> Callable[[Callable[..., Any]], tuple[Any, str, Any]]:
    """A change of a rule: the function gets the right one first."""
    right = getattr(rules, name)
    return lambda wrong: (rules, name, lambda *arguments, **options: wrong(right, *arguments, **options))


def before_claim(change: Callable[[Record | None, Claim, int], tuple[Record | None, Claim, int]]) -> tuple[Any, str, Any]:
    """Change what the rule of a claim sees."""
    return rule("claim")(lambda right, record, request, now, interval=None: right(*change(record, request, now)))


def granted(change: Callable[[Record | None, Record, Claim], Record]) -> tuple[Any, str, Any]:
    """Change the record that a grant leaves."""

    def wrong(right: Any, record: Any, request: Any, now: int, at: Any) -> Any:
        answer, written = right(record, request, now, at)
        written = change(record, written, request)
        return answer._replace(record=written), written

    return rule("_grant")(wrong)


def settled(change: Callable[[Record, Any, Record, Settled], Record | None]) -> tuple[Any, str, Any]:
    """Change the record that a settlement leaves; None: it changes nothing, and says that it is lost."""

    def wrong(right: Any, record: Any, request: Any, now: int, interval: Any = None) -> Any:
        answer, written = right(record, request, now)
        if written is None:
            return answer, written
        written = change(record, request, written, answer)
        if written is None:
            return Settled(False, record, (now, now)), None
        return answer._replace(record=written), written

    return rule("settle")(wrong)


def verdict(change: Callable[[str, Record | None, Claim, int], str]) -> tuple[Any, str, Any]:
    """Say another verdict; one that is won where it must not be is granted."""

    def wrong(right: Any, record: Any, request: Any, now: int, interval: Any = None) -> Any:
        answer, written = right(record, request, now)
        said = change(answer.verdict, record, request, now)
        if said == answer.verdict:
            return answer, written
        if said == WON:
            return rules._grant(record, request, now, (now, now))
        return Answer(said, record, (now, now)), None

    return rule("claim")(wrong)


def named(fold: Callable[[str], str]) -> type[MemoryDriver]:
    """A driver that keeps names otherwise than they are."""

    class Folding(MemoryDriver):
        def claim(self, claim: Claim, timeout: float) -> Answer:
            answer = super().claim(claim._replace(name=fold(claim.name)), timeout)
            return answer._replace(record=answer.record and answer.record._replace(name=claim.name))

        def read(self, name: str, timeout: float) -> Any:
            record, now = super().read(fold(name), timeout)
            return record and record._replace(name=name), now

    return Folding


# -- L1

mutant("L1", "two live owners", (rules, "is_live", lambda record, now: False))
mutant(
    "L1", "somebody is live at the very instant of expiry", (rules, "is_live", lambda r, now: bool(r and r.owner and r.expires_at >= now))
)
mutant("L1", "a release frees nothing", settled(lambda record, request, written, answer: None if request.result == "released" else written))
mutant("L1", "names are folded to lower case", driver=named(str.lower))
mutant("L1", "names are cut", driver=named(lambda name: name[:254]))
mutant("L1", "names are normalised as paths", driver=named(lambda name: name.replace("//", "/")))
mutant("L1", "names are trimmed", driver=named(lambda name: name.rstrip("/")))
mutant("L1", "names in different Unicode forms share a record", driver=named(lambda name: name.replace("e\u0301", "é")))


class Racing(MemoryDriver):
    def claim(self, claim: Claim, timeout: float) -> Answer:
        record = self.store.records.get(claim.name)
        import time

        time.sleep(0.005)  # read, then write: not one step
        answer, changed = rules.claim(record, claim, self.store.clock())
        if changed is not None:
            self.store.put(changed)
        return answer


mutant("L1", "reads and writes in two steps", driver=Racing)

# -- L2

mutant("L2", "tokens of a name without a record start at 1", (rules, "next_token", lambda r, now: r.token + 1 if r else 1))
mutant("L2", "tokens stay", (rules, "next_token", lambda r, now: r.token if r else now))
mutant("L2", "tokens are the store's time alone", (rules, "next_token", lambda r, now: now))
mutant(
    "L2", "a renewal raises the token", rule("renew")(lambda right, r, q, now: (n := right(r, q, now)) and n._replace(token=n.token + 1))
)


class Deleting(MemoryDriver):
    def settle(self, settlement: Any, timeout: float) -> Settled:
        answer = super().settle(settlement, timeout)
        if answer.applied:
            self.store.records.pop(settlement.name, None)
        return answer


mutant("L2", "tokens restart after deletion", (rules, "next_token", lambda r, now: r.token + 1 if r else 10), driver=Deleting)
mutant("L2", "forget drops the token", rule("forget")(lambda right, r, now: (t := right(r, now)) and t._replace(token=0)))

# -- L3

mutant("L3", "a late renewal revives", rule("renew")(lambda right, r, q, now: right(r and r._replace(expires_at=now + 1), q, now)))
mutant(
    "L3", "a renewal adds", rule("renew")(lambda right, r, q, now: (n := right(r, q, now)) and n._replace(expires_at=r.expires_at + q.ttl))
)
mutant(
    "L3",
    "a renewal never shortens",
    rule("renew")(lambda right, r, q, now: (n := right(r, q, now)) and n._replace(expires_at=max(r.expires_at, n.expires_at))),
)
mutant("L3", "anybody renews", rule("renew")(lambda right, r, q, now: right((r and r.owner and r._replace(owner=q.owner)) or r, q, now)))
mutant("L3", "a renewal at the very instant of expiry is in time", rule("renew")(lambda right, r, q, now: right(r, q, now - 1)))
mutant(
    "L3",
    "a settled grant is renewed",
    rule("renew")(lambda right, r, q, now: right((r and not r.owner and r._replace(owner=r.last_owner, expires_at=now + 1)) or r, q, now)),
)


class Shuffling(MemoryDriver):
    def renew(self, renewals: Sequence[Any], timeout: float) -> Renewed:
        renewed = super().renew(renewals, timeout)
        return renewed._replace(held=sorted(renewed.held))


mutant("L3", "a batch is answered in the wrong order", driver=Shuffling)

# -- L4

mutant(
    "L4",
    "a release by name",
    rule("settle")(lambda right, r, q, now, at=None: right((r and r.owner and r._replace(owner=q.owner)) or r, q, now)),
)
mutant("L4", "a release deletes", driver=Deleting)
mutant("L4", "a settled owner is granted again", before_claim(lambda r, q, now: (r and r._replace(last_owner=""), q, now)))
mutant(
    "L4",
    "an expired grant is revived by its claim",
    before_claim(lambda r, q, now: ((r and r.expires_at <= now and r._replace(owner="")) or r, q, now)),
)
mutant(
    "L4",
    "a repeated release says lost",
    rule("settle")(lambda right, r, q, now, at=None: (Settled(False, r, (now, now)), None) if r and not r.owner else right(r, q, now)),
)
mutant(
    "L4",
    "a repeated release answers as it was asked",
    rule("settle")(lambda right, r, q, now, at=None: ((a := right(r, q, now))[0]._replace(result=q.result if a[0].applied else ""), a[1])),
)
mutant(
    "L4",
    "a release after expiry doesn't say so",
    rule("settle")(lambda right, r, q, now, at=None: ((a := right(r, q, now))[0]._replace(expired=False), a[1])),
)
mutant(
    "L4",
    "after a later grant a release says that all is well",
    rule("settle")(lambda right, r, q, now, at=None: ((a := right(r, q, now))[0]._replace(applied=r is not None, result=q.result), a[1])),
)

# -- L5 to L12: of the core, or seen through it

_won, _terms, _lose = _engine.Engine._won, _ask.policy.terms, grant.BaseGrant._lose


def _won_late(self: Any, ask: Any, owner: str, sent: float, *rest: Any) -> Any:
    return _won(self, ask, owner, self.clock(), *rest)


def _without_margin(*arguments: Any) -> Any:
    terms = _terms(*arguments)
    terms.margin = -terms.ttl_s / 2
    return terms


def _unchecked(*arguments: Any) -> Any:
    options, capabilities, timeout = arguments
    try:
        return _terms(options, capabilities, timeout)
    except ValueError:
        return _terms({}, capabilities, timeout)


mutant("L5", "the deadline counts from the answer", (_engine.Engine, "_won", _won_late))
mutant("L6", "the holder's deadline comes after the store's", (_ask.policy, "terms", _without_margin))
mutant(
    "L7",
    "a claim found again gets a second token",
    before_claim(lambda r, q, now: ((r and r.owner == q.owner and r._replace(owner="", expires_at=0)) or r, q, now)),
)
mutant(
    "L7",
    "a claim found again is busy",
    before_claim(lambda r, q, now: ((r and r.owner == q.owner and r._replace(owner="f" * 32)) or r, q, now)),
)
mutant("L7", "apply_until is ignored", before_claim(lambda r, q, now: (r, q._replace(apply_until=now), now)))
mutant("L7", "apply_until is off by one", before_claim(lambda r, q, now: (r, q._replace(apply_until=q.apply_until - 1), now)))
mutant("L8", "an unknown claim is left as it is", (_engine.Engine, "abandon", lambda *arguments: None))
mutant("L9", "a lease is shorter than asked for", granted(lambda b, w, q: w._replace(expires_at=w.expires_at - q.ttl // 2)))
mutant("L9", "wrong times are not refused", (_ask.policy, "terms", _unchecked))
mutant("L10", "a child holds what its parent does", (_engine.Engine, "after_fork", lambda self: None))
mutant("L11", "leases are renewed one by one", (_heartbeat, "BATCH", 1))


class Lying(MemoryDriver):
    """Its answers tell a time that is not the one its records are made with."""

    def claim(self, claim: Claim, timeout: float) -> Answer:
        answer = super().claim(claim, timeout)
        assert answer.now is not None
        return answer._replace(now=(answer.now[0] - HOUR, answer.now[1] - HOUR))


mutant("L12", "answers carry another clock than the store's", driver=Lying)
mutant(
    "L12",
    "a step of the clock is passed over",
    (
        _engine.StoreClock,
        "observe",
        lambda self, now, sent, received: (setattr(self, "known", True), setattr(self, "_last", (now, sent, received)), "")[2],
    ),
)

# -- W1, W2


def _mark_seen(change: Callable[[int, Claim], int | None]) -> tuple[Any, str, Any]:
    """Let the rule of a claim see another mark."""

    def wrong(right: Any, record: Any, request: Any, now: int, at: Any) -> Any:
        if record is None or record.mark is None:
            return right(record, request, now, at)
        answer, written = right(record._replace(mark=change(record.mark, request)), request, now, at)
        return answer, written and written._replace(mark=written.mark if request.seal else record.mark)

    return rule("_claim_window")(wrong)


mutant(
    "W1",
    "a slot is identified by its end, too",
    _mark_seen(lambda mark, q: mark if q.slot_start != mark or q.slot_end == mark + HOUR else None),
)
mutant("W1", "the slot at the mark is not handled", _mark_seen(lambda mark, q: mark - 1))
mutant("W1", "the slot after the mark is handled", _mark_seen(lambda mark, q: mark + HOUR))
mutant("W1", "only the slot at the mark is handled", _mark_seen(lambda mark, q: mark if q.slot_start == mark else None))
mutant("W2", "only the slot at the mark is handled", _mark_seen(lambda mark, q: mark if q.slot_start == mark else None))
mutant("W2", "busy is said where handled is true", verdict(lambda v, r, q, now: BUSY if v == HANDLED and rules.is_live(r, now) else v))
mutant("W2", "handled is said where busy is true", verdict(lambda v, r, q, now: HANDLED if v == BUSY else v))
mutant(
    "W2",
    "late is said where handled is true",
    verdict(lambda v, r, q, now: LATE if v == HANDLED and q.late_from is not None and now >= q.late_from else v),
)
mutant(
    "W2",
    "late is said where busy is true",
    verdict(lambda v, r, q, now: LATE if v == BUSY and q.late_from is not None and now >= q.late_from else v),
)
mutant("W2", "busy with an older slot comes before late", verdict(lambda v, r, q, now: BUSY if v == LATE and rules.is_live(r, now) else v))
mutant(
    "W2",
    "handled comes before early",
    verdict(lambda v, r, q, now: HANDLED if v == EARLY and r and r.mark is not None and r.mark >= q.slot_start else v),
)
mutant("W2", "busy comes before early", verdict(lambda v, r, q, now: BUSY if v == EARLY and rules.is_live(r, now) else v))
mutant(
    "W2",
    "late comes before early",
    verdict(lambda v, r, q, now: LATE if v == EARLY and q.late_from is not None and now >= q.late_from else v),
)
mutant(
    "W2",
    "a mismatch comes before stale",
    verdict(lambda v, r, q, now: "mismatch" if v == "stale" and r and r.kind not in ("", q.kind) else v),
)
mutant("W2", "early comes before stale", verdict(lambda v, r, q, now: EARLY if v == "stale" and now < q.not_before else v))
mutant("W2", "finished is not told from handled", verdict(lambda v, r, q, now: HANDLED if v == FINISHED and r.mark is not None else v))
mutant(
    "W2",
    "a refused claim writes its label",
    rule("claim")(
        lambda right, r, q, now, at=None: (
            (a := right(r, q, now)) and (a if a[1] is not None or r is None else (a[0], r._replace(label=q.label + "!")))
        )
    ),
)

# -- W3

mutant("W3", "the mark is lost on release", settled(lambda r, q, w, a: w._replace(mark=None)))
mutant("W3", "the mark is lost at the next claim", granted(lambda b, w, q: w if q.seal else w._replace(mark=None)))
mutant("W3", "a failure closes the slot", settled(lambda r, q, w, a: w._replace(mark=w.slot_start) if q.result == FAILED else w))
mutant("W3", "the claim moves the mark", granted(lambda b, w, q: w._replace(mark=w.slot_start) if q.kind != LEASE else w))
mutant("W3", "settling moves the mark back", settled(lambda r, q, w, a: w._replace(mark=w.slot_start) if q.result == HANDLED else w))
mutant(
    "W3",
    "a crash holds the slot",
    rule("claim")(
        lambda right, r, q, now, at=None: (Answer(BUSY, r, (now, now)), None) if r and r.owner and r.owner != q.owner else right(r, q, now)
    ),
)
mutant(
    "W3",
    "a repeated settlement is applied anew",
    rule("settle")(
        lambda right, r, q, now, at=None: right(
            (r and not r.owner and r.last_owner == q.owner and r._replace(owner=q.owner, expires_at=now + 1)) or r, q, now
        )
    ),
)
mutant("W3a", "a late success is ignored though nobody followed", settled(lambda r, q, w, a: None if a.expired else w))
mutant(
    "W3a",
    "a late success is said to be in time",
    rule("settle")(lambda right, r, q, now, at=None: ((a := right(r, q, now))[0]._replace(expired=False), a[1])),
)
mutant(
    "W3a",
    "a late success counts although somebody followed",
    rule("settle")(lambda right, r, q, now, at=None: right(r and r._replace(owner=q.owner), q, now)),
)
mutant("W3b", "the seal is ignored", before_claim(lambda r, q, now: (r, q._replace(seal=False), now)))
mutant("W3b", "unused does not unseal", settled(lambda r, q, w, a: w._replace(mark=r.mark) if q.result == UNUSED else w))
mutant("W3b", "unused forgets the earlier mark", settled(lambda r, q, w, a: w._replace(mark=None) if q.result == UNUSED else w))
mutant(
    "W3b",
    "a failure unseals",
    settled(lambda r, q, w, a: w._replace(mark=r.prior_mark) if q.result == FAILED and r.outcome == SEALED else w),
)
mutant("W3b", "unused counts as an attempt", settled(lambda r, q, w, a: w._replace(attempts=r.attempts)))
mutant("W3c", "attempts are not counted", granted(lambda b, w, q: w._replace(attempts=1)))
mutant(
    "W3c",
    "crashes are not counted",
    granted(lambda b, w, q: w._replace(attempts=b.attempts) if b and b.owner and b.slot_start == w.slot_start else w),
)
mutant("W3c", "attempts go on in the next slot", granted(lambda b, w, q: w._replace(attempts=b.attempts + 1) if b else w))
mutant("W3c", "giving up does not close the slot", settled(lambda r, q, w, a: w._replace(mark=r.mark) if q.result == GAVE_UP else w))
mutant("W3c", "a crashed last attempt is granted once more", (rules, "_is_used_up", lambda record, request: False))


def close_and_end(right: Any, record: Record, now: int, at: Any) -> tuple[Answer, Record]:
    closed = right(record, now, at)[1]._replace(owner="", expires_at=0)
    return Answer(HANDLED, closed, at), closed


mutant("W3c", "closing the slot of a crashed owner ends its grant", rule("_close")(close_and_end))
mutant("W3c", "one attempt too few", (rules, "_is_used_up", lambda record, request: 0 < request.max_attempts <= record.attempts + 1))


class Hiding(MemoryDriver):
    def claim(self, claim: Claim, timeout: float) -> Answer:
        return super().claim(claim, timeout)._replace(before=None)


mutant("W3d", "the answer hides what a grant replaced", driver=Hiding)

# -- W4 to W8

mutant(
    "W4",
    "busy names the one who asks",
    rule("claim")(
        lambda right, r, q, now, at=None: (
            (a := right(r, q, now))[0]._replace(record=a[0].record and a[0].record._replace(label=q.label)),
            a[1],
        )
    ),
)
mutant(
    "W4", "overlap holds a lease", granted(lambda b, w, q: w._replace(owner=q.owner, expires_at=w.granted_at + q.ttl) if q.overlap else w)
)
mutant("W4", "overlap leaves the mark", granted(lambda b, w, q: w._replace(mark=b and b.mark) if q.overlap else w))
mutant("W4", "overlap passes by a live lease", verdict(lambda v, r, q, now: WON if v == BUSY and q.overlap else v))
mutant("W5", "early is not checked", before_claim(lambda r, q, now: (r, q._replace(not_before=0), now)))
mutant("W5", "early is off by one", before_claim(lambda r, q, now: (r, q._replace(not_before=q.not_before + 1), now)))
mutant("W5", "the slot's end is not kept", granted(lambda b, w, q: w._replace(slot_end=None)))
mutant("W6", "late is not checked", before_claim(lambda r, q, now: (r, q._replace(late_from=None), now)))
mutant("W6", "late is off by one", before_claim(lambda r, q, now: (r, q._replace(late_from=q.late_from and q.late_from + 1), now)))
mutant("W7", "a slot may start after now", before_claim(lambda r, q, now: (r, q._replace(not_before=0), now)))
mutant(
    "W7",
    "an override keeps the token",
    rule("override")(lambda right, r, q, now: ((a := right(r, q, now))[0], a[1] and a[1]._replace(token=r.token))),
)
mutant(
    "W7",
    "an override leaves the holder",
    rule("override")(lambda right, r, q, now: ((a := right(r, q, now))[0], a[1] and a[1]._replace(owner=r.owner, expires_at=r.expires_at))),
)
mutant(
    "W7",
    "an override ignores the expected token",
    rule("override")(lambda right, r, q, now: right(r, q._replace(expected_token=None), now)),
)
mutant("W7", "a granted slot does not settle", settled(lambda r, q, w, a: None if (w.slot_start or 0) > w.settled_at else w))
mutant("W8", "the kind is not checked", before_claim(lambda r, q, now: (r and r._replace(kind=q.kind), q, now)))
mutant("W8", "the schedule is not kept", granted(lambda b, w, q: w._replace(schedule="")))
mutant("W8", "another schedule clears the mark", granted(lambda b, w, q: w._replace(mark=None) if b and b.schedule != w.schedule else w))

# -- W9 to W12


class Unmarked(MemoryDriver):
    def claim(self, claim: Claim, timeout: float) -> Answer:
        answer = super().claim(claim, timeout)
        return answer._replace(record=answer.record and answer.record._replace(mark=None), before=None)


mutant("W9", "the winner is not told the mark", driver=Unmarked)
mutant(
    "W10",
    "slots are kept by their day",
    before_claim(lambda r, q, now: (r, q._replace(slot_start=q.slot_start and q.slot_start - q.slot_start % DAY), now)),
)
mutant("W11", "slots are kept by half seconds", granted(lambda b, w, q: w._replace(slot_start=w.slot_start and w.slot_start + SECOND // 2)))
mutant(
    "W12",
    "a refused claim lengthens the period",
    rule("claim")(
        lambda right, r, q, now, at=None: (
            (a := right(r, q, now)) and (a if a[0].verdict != HANDLED or q.kind != ROLLING else (a[0], r._replace(slot_end=now + q.period)))
        )
    ),
)
mutant(
    "W12",
    "what the claim names decides",
    rule("_claim_rolling")(
        lambda right, r, q, now, at: right((r and r.mark is not None and r._replace(slot_end=r.mark + q.period)) or r, q, now, at)
    ),
)
mutant(
    "W12",
    "the period is never over",
    rule("_claim_rolling")(
        lambda right, r, q, now, at: (Answer(HANDLED, r, at), None) if r and r.mark is not None else right(r, q, now, at)
    ),
)
mutant(
    "W12",
    "the period's end is off by one",
    rule("_claim_rolling")(lambda right, r, q, now, at: right(r and r._replace(slot_end=(r.slot_end or 0) + 1), q, now, at)),
)
mutant("W12", "a failure does not re-arm", settled(lambda r, q, w, a: w._replace(mark=w.slot_start) if q.result == FAILED else w))
mutant(
    "W12",
    "the claim in flight lives as long as the period",
    granted(lambda b, w, q: w._replace(expires_at=w.slot_end) if q.kind == ROLLING else w),
)
mutant(
    "W12",
    "a retry goes on with the period",
    granted(
        lambda b, w, q: (
            w._replace(slot_start=b.slot_start, slot_end=b.slot_end) if b and q.kind == ROLLING and b.attempts < w.attempts else w
        )
    ),
)

# -- keeping

mutant("R1", "a sweep removes live records", (rules, "may_remove", lambda record, now: True))
mutant("R1", "a sweep removes young records", (rules, "may_remove", lambda record, now: not rules.is_live(record, now)))
mutant("R1", "a sweep removes nothing", (rules, "may_remove", lambda record, now: False))
mutant("R1", "the retention does not count", granted(lambda b, w, q: w._replace(keep_until=w.expires_at)))
mutant("R1", "a renewal does not lengthen the keeping", (rules, "may_remove", lambda record, now: record.token + 30 * DAY < now))
mutant("R2", "forget keeps the mark", rule("forget")(lambda right, r, now: (t := right(r, now)) and t._replace(mark=r.mark)))
mutant("R2", "forget keeps the token", rule("forget")(lambda right, r, now: (t := right(r, now)) and t._replace(token=r.token)))
mutant(
    "R2",
    "forget leaves the holder",
    rule("forget")(lambda right, r, now: (t := right(r, now)) and t._replace(owner=r.owner, expires_at=r.expires_at)),
)
mutant("R2", "forget makes tombstones of tombstones", rule("forget")(lambda right, r, now: right(r and r._replace(kind=LEASE), now)))
mutant("R2", "settling deletes", driver=Deleting)


class Dropping(MemoryDriver):
    def forget(self, name: str, timeout: float) -> bool:
        return self.store.records.pop(name, None) is not None


class Unbounded(MemoryDriver):
    def sweep(self, limit: int, timeout: float) -> int:
        return super().sweep(1_000_000, timeout)


mutant("R2", "forget deletes", driver=Dropping)
mutant("R3", "a sweep has no bound", driver=Unbounded)


class Unswept(MemoryDriver):
    def sweep(self, limit: int, timeout: float) -> int:
        return 0


mutant("R3", "a sweep removes nothing", driver=Unswept)

# -- failing


class Immortal(MemoryDriver):
    def close(self) -> None:
        pass


def _raises(self: Any, ask: Any, error: Exception) -> Any:
    raise error


mutant("F1", "a closed driver goes on", driver=Immortal)
mutant("F2", "on_unavailable is ignored", (_engine.Engine, "_unavailable", _raises))
mutant("F3", "a write-back disturbs a holder", rule("write_back")(lambda right, r, q, now: right(r and r._replace(expires_at=0), q, now)))
mutant(
    "F3",
    "a write-back moves the mark back",
    rule("write_back")(lambda right, r, q, now: ((a := right(r, q, now))[0], (a[1] or r) and (a[1] or r)._replace(mark=q.slot_start))),
)
mutant("F3", "a write-back is lost", rule("write_back")(lambda right, r, q, now: (right(r, q, now)[0], None)))
mutant(
    "F3",
    "a write-back does not ask for the kind",
    rule("write_back")(lambda right, r, q, now: right(r and r._replace(kind=q.kind), q, now)),
)
mutant(
    "F3",
    "a write-back ends the grant of an owner that ran out",
    rule("write_back")(lambda right, r, q, now: right(r and (r if r.expires_at > now else r._replace(owner="", expires_at=0)), q, now)),
)
mutant(
    "F3",
    "an unused seal takes back what was written back",
    rule("write_back")(
        lambda right, r, q, now: (
            (a := right(r, q, now))[0],
            a[1] and (a[1] if a[1].mark != (r and r.mark) else a[1]._replace(prior_mark=None)),
        )
    ),
)
mutant(
    "F3",
    "a write-back does not keep the record for longer",
    rule("write_back")(
        lambda right, r, q, now: ((a := right(r, q, now))[0], a[1] and (a[1]._replace(keep_until=r.keep_until) if r else a[1]))
    ),
)
mutant("F4", "there is no breaker", (_breaker.Breaker, "admits", lambda self, now: True))
mutant("F5", "an unconfirmed success is dropped", (_settling, "_keep", lambda engine, grant, settlement: None))

# -- capabilities


class Refusing(MemoryDriver):
    def override(self, override: Any, timeout: float) -> Settled:
        raise NotSupported("not today")


class Schematic(MemoryDriver):
    capabilities = CAPABILITIES._replace(verbs=CAPABILITIES.verbs | {"schema"})

    def schema(self, **options: str) -> str:
        return "\n"


class Rounding(MemoryDriver):
    def claim(self, claim: Claim, timeout: float) -> Answer:
        return super().claim(claim._replace(ttl=claim.ttl + -claim.ttl % SECOND), timeout)


class InMilliseconds(MemoryDriver):
    def now(self, timeout: float) -> Any:
        now = self.store.clock() // 1000
        return now, now


class Backwards(MemoryDriver):
    def now(self, timeout: float) -> Any:
        now = self.store.clock()
        return now, now - 1


class Deaf(MemoryDriver):
    def watch(self, name: str, owner: str, timeout: float) -> bool:
        import time

        time.sleep(min(timeout, 0.5))
        return False


class Truncating(MemoryDriver):
    def settle(self, settlement: Any, timeout: float) -> Settled:
        history = settlement.history
        return super().settle(settlement._replace(history=history and history[:1024]), timeout)


class Decoding(MemoryDriver):
    def settle(self, settlement: Any, timeout: float) -> Settled:
        history = settlement.history
        return super().settle(settlement._replace(history=history and history.decode("utf-8", "replace").encode()), timeout)


class Alike(MemoryDriver):
    """Its list matches as SQL's LIKE does."""

    def list(self, prefix: str, timeout: float, *, after: str = "", limit: int = 1000) -> list[Record]:
        import re

        pattern = re.compile("".join(".*" if c == "%" else "." if c == "_" else re.escape(c) for c in prefix), re.IGNORECASE | re.DOTALL)
        found = super().list("", timeout, after=after, limit=1_000_000)
        return [record for record in found if pattern.match(record.name)][:limit]


class Unordered(MemoryDriver):
    def list(self, prefix: str, timeout: float, *, after: str = "", limit: int = 1000) -> list[Record]:
        found = super().list(prefix, timeout, limit=1_000_000)
        return sorted((record for record in found if record.name > after), key=lambda record: record.name.encode("utf-16-be"))[:limit]


class Unpaged(MemoryDriver):
    def list(self, prefix: str, timeout: float, *, after: str = "", limit: int = 1000) -> list[Record]:
        return super().list(prefix, timeout, after=after)


class Inclusive(MemoryDriver):
    def list(self, prefix: str, timeout: float, *, after: str = "", limit: int = 1000) -> list[Record]:
        return super().list(prefix, timeout, after=after[:-1], limit=limit)


class Threadbound(MemoryDriver):
    def __init__(self, store: MemoryStore) -> None:
        import threading

        super().__init__(store)
        self._home = threading.get_ident()

    def claim(self, claim: Claim, timeout: float) -> Answer:
        import threading

        if threading.get_ident() != self._home:
            raise RuntimeError("this connection belongs to another thread")
        return super().claim(claim, timeout)


class Endless(MemoryDriver):
    def read(self, name: str, timeout: float) -> Any:
        record, now = super().read(name, timeout)
        return record and record._replace(slot_end=record.slot_end or 0), now


class Rounded(MemoryDriver):
    """Keeps instants as floats of little precision, as Lua's tostring does."""

    def read(self, name: str, timeout: float) -> Any:
        record, now = super().read(name, timeout)
        return record and record._replace(slot_end=record.slot_end and int(float(f"{record.slot_end:.14g}"))), now


class Factless(MemoryDriver):
    def facts(self, timeout: float) -> Any:
        return {}


class Unkept(MemoryDriver):
    def settle(self, settlement: Any, timeout: float) -> Settled:
        answer = super().settle(settlement, timeout)
        if answer.applied and settlement.result == UNUSED:
            record = self.store.records[settlement.name]
            self.store.records[settlement.name] = record._replace(outcome="unused")
        return answer


class Forgetful(MemoryDriver):
    def renew(self, renewals: Sequence[Any], timeout: float) -> Renewed:
        kept = {renewal.name: self.store.records.get(renewal.name) for renewal in renewals}
        renewed = super().renew(renewals, timeout)
        for renewal, held in zip(renewals, renewed.held, strict=True):
            if held:
                self.store.records[renewal.name] = self.store.records[renewal.name]._replace(keep_until=kept[renewal.name].keep_until)
        return renewed


mutant("capability verbs", "a refused verb works", verbs=CAPABILITIES.verbs - {"watch"})
mutant("capability verbs", "a declared verb is refused", driver=Refusing)
mutant("capability facts", "facts without a version", driver=Factless)
mutant("capability schema", "an empty schema", driver=Schematic)
mutant("capability values", "a word that is not defined", durability="eternal")
mutant(
    "capability minttl",
    "a lease at the floor lives much longer",
    granted(lambda b, w, q: w._replace(expires_at=w.expires_at + 10 * SECOND)),
)
mutant("capability minttl", "a lease ends at once", granted(lambda b, w, q: w._replace(expires_at=w.granted_at)))
mutant("capability ttlstep", "leases are rounded to seconds", driver=Rounding)
mutant("capability clock", "now is in milliseconds", driver=InMilliseconds)
mutant("capability clock", "now is an interval that ends before it begins", driver=Backwards)
mutant("capability clock", "a known clock is declared unknown", clock="none")
mutant("capability clock", "an exact clock with a bound", clock_bound=1000)
mutant("capability waiting", "a watcher is never woken", driver=Deaf)
mutant("capability waiting", "watching is declared as polling", waiting="poll")
mutant("capability history", "history is truncated", driver=Truncating)
mutant("capability history", "history is taken for text", driver=Decoding)
mutant("capability history", "history is lost at the next claim", granted(lambda b, w, q: w._replace(history=b"")))
mutant("capability history", "history that is not declared is kept", history=False)
mutant("capability windows", "windows that are not declared work", windows=False)
mutant("capability async", "a twin that is not declared", native_async=False)
mutant("capability list", "a prefix is matched as LIKE does", driver=Alike)
mutant("capability list", "names in the order of UTF-16", driver=Unordered)
mutant("capability list", "the limit is ignored", driver=Unpaged)
mutant("capability list", "pages overlap", driver=Inclusive)
mutant(
    "capability token",
    "tokens of one name only are declared to be the store's",
    (rules, "next_token", lambda r, now: r.token + 1 if r else now - now % HOUR),
    token_scope="store",
)
mutant("capability threads", "a driver for one thread", driver=Threadbound)
mutant("capability record", "an end that is none reads as 0", driver=Endless)
mutant("capability record", "digits are lost", driver=Rounded)
mutant("model", "the outcome of a grant that was unused is kept", driver=Unkept)
mutant("model", "a renewal does not lengthen the keeping", driver=Forgetful)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a mutant never does is waited for a few seconds only."""
    right = Face.until

    async def until(self: Face, condition: Callable[[], Any], seconds: float = 10.0, *, what: str = "") -> Any:
        return await right(self, condition, min(seconds, 5.0), what=what)

    monkeypatch.setattr(Face, "until", until)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.clause}: {mutant.what}")
def test_a_broken_backend_fails_the_clause_it_breaks(mutant: Mutant, monkeypatch: pytest.MonkeyPatch, impatient: None) -> None:
    for target, name, wrong in mutant.changes:
        monkeypatch.setattr(target, name, wrong)
    for name in TESTS:
        tries = 8 if mutant.clause == "model" else 1  # what it does is random, and these mutants are subtle
        if clause_of(name) == mutant.clause and any(_fails(mutant, name) for _ in range(tries)):
            return
    raise AssertionError(f"no test of {mutant.clause} notices it")


def _fails(mutant: Mutant, name: str) -> bool:
    suite = Suite(mutant)
    try:
        with suite.opened("blocking") as face:
            getattr(suite, name)(face)
    except (NotRun, RefusedHere):
        return False
    except (Exception, pytest.fail.Exception):
        return True
    return False


def test_the_right_backend_fails_nothing(impatient: None) -> None:
    right = Mutant("", "nothing is wrong")
    assert [name for name in TESTS if _fails(right, name)] == []


def test_a_broken_twin_fails_on_the_async_face_alone() -> None:
    class Twin(AsyncMemoryDriver):
        async def settle(self, settlement: Any, timeout: float) -> Settled:
            return Settled(True, None, None, settlement.result)

    class Broken(Suite):
        def async_driver(self, driver: Driver) -> AsyncDriver | None:
            assert isinstance(driver, MemoryDriver)
            return Twin(driver)

    name, failed = "test_L4_a_repeated_release_answers_as_the_first", []
    for kind in ("blocking", "async"):
        suite = Broken(Mutant("", ""))
        with suite.opened(kind) as face:
            try:
                getattr(suite, name)(face)
            except (AssertionError, AttributeError):
                failed.append(kind)
    assert failed == ["async"]


def test_every_clause_has_a_broken_backend() -> None:
    assert {mutant.clause for mutant in MUTANTS} == {clause_of(name) for name in TESTS}


def test_every_clause_of_the_documents_has_a_test() -> None:
    clauses = {f"L{n}" for n in range(1, 13)} | {f"W{n}" for n in range(1, 13)} | {"W3a", "W3b", "W3c", "W3d"}
    clauses |= {"R1", "R2", "R3"} | {f"F{n}" for n in range(1, 6)}
    assert clauses <= {clause_of(name) for name in TESTS}
    assert all(clause_of(name) for name in TESTS), "a standard test cites no clause"


def test_standard_tests_are_coroutines_of_both_faces() -> None:
    assert all(inspect.iscoroutinefunction(inspect.unwrap(test)) for test in TESTS.values())  # type: ignore[arg-type]
