# SPDX-License-Identifier: MIT
"""Mutants of clauses W1 to W12."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rota.rules as rules
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
    Claim,
    Record,
)
from rota.duration import DAY, HOUR, SECOND
from rota.memory import MemoryDriver

from mutants import before_claim, granted, mutant, rule, settled, verdict

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
mutant(
    "W3b",
    "an operator's release forgets the mark before the seal",
    rule("override")(lambda right, r, q, now: ((a := right(r, q, now))[0], a[1] and a[1]._replace(prior_mark=None))),
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
mutant(
    "W3c",
    "a mark that is set back leaves the attempts used up",
    rule("override")(lambda right, r, q, now: ((a := right(r, q, now))[0], a[1] and a[1]._replace(attempts=r.attempts))),
)
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
