# SPDX-License-Identifier: MIT
"""The falsy verdict of a refused claim: which, and why, in one sentence."""

from __future__ import annotations

from . import errors
from .backend import BUSY, DEGRADED, EARLY, GAVE_UP, HANDLED, LATE, LEASE, ROLLING, SEALED, Record
from .duration import SECOND, describe, roughly
from .history import Run, ended_by_operator, runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, NoReturn

    from .backend import Claim
    from .schedule import Slot

#: The verdict when the store can't be asked and ``on_unavailable`` says ``skip``.
UNAVAILABLE = "unavailable"

#: What a run comes to that closes its slot.
CLOSING = (HANDLED, DEGRADED, GAVE_UP)
_ERRORS = {BUSY: errors.Busy, HANDLED: errors.Handled, LATE: errors.Late, EARLY: errors.Early}


class Refused:
    """A claim that was not won. Falsy.

    Attributes:
        verdict: ``busy``, ``handled``, ``late``, ``early`` or ``unavailable``.
        name: The full name.
        slot: The slot that was asked for; None for a lease, or when the store was not reached.
        record: The record as the store showed it; None if it has none or was not reached.
        now: The store's time, microseconds since the epoch; None when it is not known.
        not_before: ``early``: from when on the slot can be won, microseconds since the epoch.
        mark_ahead: ``handled``: the mark lies ahead of the store's time, so a clock once ran fast (W7); an operator can set it back.
        cause: ``unavailable``: the error.
    """

    __slots__ = ("_late_from", "_max_late", "_next_start", "cause", "mark_ahead", "name", "not_before", "now", "record", "slot", "verdict")

    def __init__(
        self,
        verdict: str,
        name: str,
        slot: Slot | None = None,
        record: Record | None = None,
        now: int | None = None,
        *,
        claim: Claim | None = None,
        max_late: int | None = None,
        mark_ahead: bool = False,
        next_start: int | None = None,
        cause: errors.Unavailable | None = None,
    ) -> None:
        self.verdict = verdict
        self.name = name
        self.slot = slot
        self.record = record
        self.now = now
        self.not_before = 0 if claim is None else claim.not_before
        self._late_from = None if claim is None else claim.late_from
        self._max_late = max_late
        self.mark_ahead = mark_ahead
        self.cause = cause
        self._next_start = next_start

    def __bool__(self) -> Literal[False]:  # so precisely, for type checkers: `if verdict:` tells a grant from a refusal
        return False

    def __repr__(self) -> str:
        return f"<{self.verdict}: {self.reason}>"

    @property
    def how(self) -> str:
        """``handled``: ``done``, ``passed`` (a newer slot was handled), or ``gave up``; else empty (W2)."""
        record = self.record
        if self.verdict != HANDLED:
            return ""
        if record is None:  # F3: this process's own memory said so
            return "done"
        if self.slot is None or record.kind == ROLLING or record.mark == self.slot.start:
            return GAVE_UP if record.outcome == GAVE_UP and record.slot_start == record.mark else "done"
        run = self.run
        return "passed" if run is None else GAVE_UP if run.outcome == GAVE_UP else "done"

    @property
    def run(self) -> Run | None:
        """``handled``: the run that closed the slot, if the record's history still has it."""
        if self.record is None:
            return None
        start = self.record.mark if self.slot is None or self.record.kind == ROLLING else self.slot.start
        return next((run for run in runs(self.record.history) if run.slot_start == start and run.outcome in CLOSING), None)

    @property
    def holder(self) -> str:
        """``busy``: the label of who holds it; ``handled``: of who handled it, if that is known."""
        if self.record is None:
            return ""
        run = self.run
        return run.label if self.verdict == HANDLED and run is not None else self.record.label

    @property
    def same_slot(self) -> bool:
        """``busy``: whether the holder works on the slot asked for; False when on an older one (W4)."""
        return self.record is not None and (self.slot is None or self.record.slot_start == self.slot.start)

    @property
    def starts_in(self) -> float | None:
        """``early``: seconds until the slot can be won, by the store's clock; else None."""
        return max(0, self.not_before - self.now) / SECOND if self.verdict == EARLY and self.now is not None else None

    @property
    def next_start(self) -> int | None:
        """``handled``: when the next slot starts, microseconds since the epoch, if that is known."""
        if self.record is not None and self.record.kind == ROLLING:
            return self.record.slot_end
        return self._next_start

    @property
    def reason(self) -> str:
        """Why the claim was refused, in one sentence without a full stop."""
        return f"{self.name}: {self._reason()}"

    def _reason(self) -> str:
        record = self.record
        if self.verdict == UNAVAILABLE or (record is None and self.verdict == BUSY):
            return f"the store can't be asked: {self.cause}"
        if self.verdict == BUSY:
            assert record is not None
            older = self.slot is None or (record.slot_start or 0) < self.slot.start
            what = "it" if record.kind == LEASE else self._slot_text() if self.same_slot else "an older slot" if older else "a newer slot"
            return f"{record.label} has held {what} since {text(record.granted_at)}"
        if self.verdict == EARLY:
            starts_in = max(0, self.not_before - (self.now or 0))
            return f"{self._slot_text()} can be won in {roughly(starts_in)}"
        if self.verdict == LATE:
            return f"too late for {self._slot_text()}: it could be won until {text(self._late_from)}{self._by_max_late()}"
        return self._handled_reason()

    def _by_max_late(self) -> str:
        most, slot = self._max_late, self.slot
        if most is None or slot is None or self._late_from != slot.start + most + 1:  # it was late anyhow
            return ""
        return f", by a max-late of {describe(most)}"

    def _handled_reason(self) -> str:
        record = self.record
        if record is None:
            return f"{self._slot_text()} was handled by this process, and the store can't be asked whether by others too (F3)"
        if self.mark_ahead:
            return (
                f"the mark {text(record.mark)} lies ahead of the store's time {text(self.now)}: a clock once ran fast,"
                " and no slot is run until then unless an operator sets the mark back"
            )
        how, run = self.how, self.run
        if how == "passed":
            return f"{self._slot_text()} was passed over: the newer slot of {text(record.mark)} was handled"
        done = "was given up" if how == GAVE_UP else "was handled"
        who, when = (run.label, run.ended_at) if run is not None else (record.label, record.settled_at or record.granted_at)
        if run is None and record.slot_start == record.mark and record.outcome not in (HANDLED, GAVE_UP):
            # sealed at the claim (W3b), or run degraded and written back since (F3)
            done, when = f"was taken ({record.outcome})", record.granted_at if record.outcome == SEALED else record.settled_at
            ended = ended_by_operator(record) if record.outcome == SEALED else None
            who = who if ended is None else ended.label
        upto = f", until {text(record.slot_end)}" if record.kind == ROLLING else ""
        return f"{self._slot_text()} {done} by {who} at {text(when)}{upto}"

    def _slot_text(self) -> str:
        start = self.slot.start if self.slot is not None else self.record.slot_start if self.record is not None else None
        return "the slot" if start is None else f"the slot of {text(start)}"

    def error(self) -> errors.RotaError:
        """Return the refusal as the error that the context managers raise."""
        if self.cause is not None:
            return self.cause
        return _ERRORS[self.verdict](self.reason, self)

    def raise_(self) -> NoReturn:
        """Raise `error`."""
        raise self.error()

    if not TYPE_CHECKING:  # which is to go on finding the missing `if`

        def _enter(self, *_: object) -> None:
            """There is nothing to enter, and a body can't be skipped."""
            raise TypeError(f"{self.reason}: test the verdict with `if` before `with`, or use lease(), window() or once(), which raise")

        __enter__ = __exit__ = __aenter__ = __aexit__ = _enter


def text(instant: int | None) -> str:
    """Return an instant as ISO 8601 in UTC: to the second where it is whole, else to the millisecond."""
    if instant is None:
        return "never"
    from time import gmtime, strftime  # datetime costs start-up time that a refused `rota run` need not pay

    seconds, rest = divmod(instant, SECOND)
    return strftime("%Y-%m-%dT%H:%M:%S", gmtime(seconds)) + (f".{rest // 1000:03d}Z" if rest >= 1000 else "Z")
