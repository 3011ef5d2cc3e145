# SPDX-License-Identifier: MIT
"""The meaning of the verbs as pure functions from a record to the next one.

Backends that read a record and write it back in one step (a transaction, a lock, a compare-and-set) call these; those that decide
inside the store (SQL, Lua) say the same in the store's language and are compared with these by the conformance suite.

Each function takes the record found (None: there is none), the request, and ``now`` (the store's time; the lower end where it is an
interval), and returns the answer's parts and the record to write, None when nothing changes. Instants and durations are microseconds.
"""

from __future__ import annotations

from .backend import (
    BUSY,
    DEGRADED,
    EARLY,
    FAILED,
    FINISHED,
    GAVE_UP,
    HANDLED,
    LATE,
    LEASE,
    MISMATCH,
    OVERLAP,
    PENDING,
    RELEASED,
    ROLLING,
    SEALED,
    STALE,
    UNUSED,
    WON,
    Answer,
    Claim,
    Override,
    Record,
    Renewal,
    Settled,
    Settlement,
    WriteBack,
)
from .duration import DAY
from .errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .backend import Now


#: What rota writes into each field of a record.
_TYPES = tuple((int, type(None)) if value is None else (type(value),) for value in Record(""))
#: The types of whole records that were found to be right: as many as there are ways to leave fields out.
_right: set[tuple[type, ...]] = set()


def checked(record: Record) -> Record:
    """Return a record that was read, if each field holds what rota writes; for stores that keep anything.

    Raises:
        ConfigurationError: Somebody else has written it.
    """
    types = tuple(map(type, record))
    if types not in _right:
        for field, found, written in zip(Record._fields, types, _TYPES, strict=True):
            if found not in written:
                raise ConfigurationError(f"the record of {record.name!r} is none that rota wrote: its {field} is a {found.__name__}")
        _right.add(types)
    return record


def is_live(record: Record | None, now: int) -> bool:
    """Say whether somebody holds the record's lease (L1): at the very instant of ``expires_at`` nobody does."""
    return record is not None and record.owner != "" and record.expires_at > now


def next_token(record: Record | None, now: int) -> int:
    """Return the token of the next grant (L2): larger than the last one, and than that of any wiped store before."""
    return max(record.token + 1, now) if record is not None else now


def may_remove(record: Record, now: int) -> bool:
    """Say whether R1 lets the record go. A token is at least the time it was made, so a day after that any new token is larger."""
    return not is_live(record, now) and record.keep_until < now and record.token + DAY < now


def claim(record: Record | None, request: Claim, now: int, interval: Now | None = None) -> tuple[Answer, Record | None]:
    """Decide a claim; the order of the verdicts is W2's."""
    at = interval or (now, now)
    if record is not None:
        if record.owner == request.owner:  # L7: found again, or ran out in the meantime
            return Answer(WON if record.expires_at > now else FINISHED, record, at), None
        if record.last_owner == request.owner:
            return Answer(WON if record.last_result == OVERLAP else FINISHED, record, at), None
    if now > request.apply_until:
        return Answer(STALE, record, at), None
    if record is not None and record.kind not in ("", request.kind):
        return Answer(MISMATCH, record, at), None
    if request.kind == LEASE:
        return (Answer(BUSY, record, at), None) if is_live(record, now) else _grant(record, request, now, at)
    if request.kind == ROLLING:
        return _claim_rolling(record, request, now, at)
    return _claim_window(record, request, now, at)


def _claim_window(record: Record | None, request: Claim, now: int, at: Now) -> tuple[Answer, Record | None]:
    start = request.slot_start
    assert start is not None
    if now < request.not_before:
        return Answer(EARLY, record, at), None
    if record is not None:
        if record.mark is not None and start <= record.mark:
            return Answer(HANDLED, record, at), None
        if record.slot_start == start:
            if is_live(record, now):
                return Answer(BUSY, record, at), None
            if _is_used_up(record, request):
                return _close(record, now, at)
    if request.late_from is not None and now >= request.late_from:
        return Answer(LATE, record, at), None
    if is_live(record, now):
        return Answer(BUSY, record, at), None
    return _grant(record, request, now, at)


def _claim_rolling(record: Record | None, request: Claim, now: int, at: Now) -> tuple[Answer, Record | None]:
    if record is not None and record.mark is not None and record.mark == record.slot_start and now < (record.slot_end or 0):
        return Answer(HANDLED, record, at), None
    if is_live(record, now):
        return Answer(BUSY, record, at), None
    if record is not None and _is_open_period(record, now) and _is_used_up(record, request):
        return _close(record, now, at)
    # a clock that went back must not give two periods one start
    start = now if record is None or record.mark is None else max(now, record.mark + 1)
    return _grant(record, request._replace(slot_start=start, slot_end=start + request.period), now, at)


def _is_open_period(record: Record, now: int) -> bool:
    return record.slot_end is not None and now < record.slot_end and record.mark != record.slot_start


def _is_used_up(record: Record, request: Claim) -> bool:
    return 0 < request.max_attempts <= record.attempts


def _close(record: Record, now: int, at: Now) -> tuple[Answer, Record | None]:
    """W3c: the last attempt ran out, and its owner did not close the slot. It may still settle, since nobody was granted more (W3a)."""
    closed = record._replace(mark=record.slot_start, outcome=GAVE_UP, settled_at=now)
    return Answer(HANDLED, closed, at), closed


def _grant(record: Record | None, request: Claim, now: int, at: Now) -> tuple[Answer, Record | None]:
    found = record or Record(request.name)
    owner, expires_at = ("", 0) if request.overlap else (request.owner, now + request.ttl)
    if request.kind == ROLLING:
        again = _is_open_period(found, now)
    else:
        again = request.kind != LEASE and found.slot_start == request.slot_start
    sealed = request.seal and request.kind != LEASE
    granted = Record(
        request.name,
        request.kind,
        request.schedule,
        request.zone_data,
        next_token(record, now),
        owner,
        request.label,
        now,
        expires_at,
        request.owner if request.overlap else found.last_owner,
        OVERLAP if request.overlap else found.last_result,
        False if request.overlap else found.last_expired,
        request.slot_start if sealed else found.mark,
        found.mark if sealed else None,
        request.slot_start,
        request.slot_end,
        found.attempts + 1 if again else 1,
        SEALED if sealed else PENDING,
        found.settled_at,
        max(request.slot_end or request.slot_start or 0, expires_at, now) + request.retention,
        found.history,
    )
    return Answer(WON, granted, at, record), granted


def renew(record: Record | None, renewal: Renewal, now: int) -> Record | None:
    """Return the renewed record, or None when the lease is lost (L3): the remaining time is set, never added to."""
    if record is None or record.owner != renewal.owner or record.expires_at <= now:
        return None
    expires_at = now + renewal.ttl
    return record._replace(expires_at=expires_at, keep_until=max(record.keep_until, expires_at + renewal.retention))


def settle(record: Record | None, request: Settlement, now: int, interval: Now | None = None) -> tuple[Settled, Record | None]:
    """End a grant (L4, W3a): the owner's, expired or not, unless a later grant was made."""
    at = interval or (now, now)
    if record is None:
        return Settled(False, None, at), None
    if record.owner == request.owner:
        expired = record.expires_at <= now
    elif not record.owner and record.last_owner == request.owner:
        if record.last_result != OVERLAP:
            return Settled(True, record, at, record.last_result, record.last_expired), None
        expired = False
    else:
        return Settled(False, record, at), None
    result, mark, outcome, attempts = request.result, record.mark, record.outcome, record.attempts
    if record.kind != LEASE:
        if result in (HANDLED, GAVE_UP):
            mark = record.slot_start if record.kind == ROLLING or mark is None else max(mark, record.slot_start or 0)
            outcome = result
        elif result == FAILED:
            outcome = FAILED
        elif result == UNUSED:
            if outcome == SEALED and mark == record.slot_start:
                mark = record.prior_mark
            outcome, attempts = "", max(0, attempts - 1)
    else:
        outcome = result
    settled = Record(
        record.name,
        record.kind,
        record.schedule,
        record.zone_data,
        record.token,
        "",
        record.label,
        record.granted_at,
        0,
        request.owner,
        result,
        expired,
        mark,
        None,
        record.slot_start,
        record.slot_end,
        attempts,
        outcome,
        now,
        max(record.keep_until, now + request.retention),
        record.history if request.history is None else request.history,
        record.format,
    )
    return Settled(True, settled, at, result, expired), settled


def forget(record: Record | None, now: int) -> Record | None:
    """Return the tombstone that takes the record's place (R2); None where there is nothing to forget."""
    if record is None or not record.kind:
        return None
    return Record(record.name, token=next_token(record, now), keep_until=now + DAY)


def override(record: Record | None, request: Override, now: int) -> tuple[Settled, Record | None]:
    """Carry out an operator's change: whoever holds the name is fenced by the raised token."""
    at = (now, now)
    if record is None or not record.kind or request.expected_token not in (None, record.token):
        return Settled(False, record, at), None
    mark, outcome, attempts = record.mark, record.outcome, record.attempts
    if request.action == "mark":
        mark, attempts = request.mark, 0  # W3c: a slot that was given up, and is open again, has all its attempts
    elif request.action == HANDLED and record.slot_start is not None:
        mark, outcome = record.slot_start if mark is None else max(mark, record.slot_start), HANDLED
    elif request.action in (FAILED, RELEASED):
        outcome = request.action if record.kind == LEASE or request.action == FAILED else outcome
        if record.outcome == SEALED and mark == record.slot_start and request.action == FAILED:
            mark = record.prior_mark
    changed = record._replace(
        token=next_token(record, now),
        owner="",
        expires_at=0,
        label=request.label,
        last_owner="operator",
        last_result=request.action,
        last_expired=False,
        mark=mark,
        prior_mark=record.prior_mark if outcome == SEALED else None,  # what a later `failed` goes back to (W3b)
        attempts=attempts,
        outcome=outcome,
        settled_at=now,
        keep_until=max(record.keep_until, now + request.retention),
        history=record.history if request.history is None else request.history,
    )
    return Settled(True, changed, at, request.action), changed


def write_back(record: Record | None, request: WriteBack, now: int) -> tuple[Settled, Record | None]:
    """Record a slot that ran degraded (F3): the mark moves up; an owner that has not settled, live or run out, keeps its grant (W3a)."""
    at = (now, now)
    start, end = request.slot_start, request.slot_end
    if record is None or not record.kind:
        found = record or Record(request.name)
        written = found._replace(
            kind=request.kind,
            schedule=request.schedule,
            zone_data=request.zone_data,
            token=found.token or now,
            label=request.label,
            mark=start,
            slot_start=start,
            slot_end=end,
            outcome=DEGRADED,
            settled_at=now,
            keep_until=max(found.keep_until, max(end or start, now) + request.retention),
        )
        return Settled(True, written, at, HANDLED), written
    if record.kind != request.kind:
        return Settled(False, record, at), None
    if record.kind == ROLLING and (is_live(record, now) or (record.slot_end or 0) >= (end or 0)):
        return Settled(False, record, at), None
    mark, prior_mark = record.mark, record.prior_mark
    if mark is None or mark < start:
        mark = start
    elif record.outcome == SEALED and mark == record.slot_start:
        prior_mark = start if prior_mark is None else max(prior_mark, start)  # what `unused` falls back to (W3b)
    written = record._replace(mark=mark, prior_mark=prior_mark, keep_until=max(record.keep_until, (end or start) + request.retention))
    newer = record.slot_start is None or record.slot_start <= start
    if mark != record.mark and newer and (not record.owner or record.kind == ROLLING):
        written = written._replace(
            schedule=request.schedule or record.schedule,
            zone_data=request.zone_data or record.zone_data,
            label=request.label,
            slot_start=start,
            slot_end=end,
            outcome=DEGRADED,
            settled_at=now,
        )
    return Settled(True, written, at, HANDLED), None if written == record else written
