# SPDX-License-Identifier: MIT
"""A won claim: what the holder knows of it, computed from its own clock without I/O (L5, L6)."""

from __future__ import annotations

from .backend import FAILED, HANDLED, LEASE, RELEASED, UNUSED, WON, Record
from .errors import LeaseLost, RotaError
from .schedule import Missed, Slot
from .verdict import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, Generic, Literal, Self

    from typing_extensions import TypeVar  # type checkers have it, whether it is installed or not

    from ._ask import Ask
    from ._engine import Engine

    #: What a grant's slot is: ``Slot`` of a window, ``None`` of a lease; where nothing is said, either.
    S_co = TypeVar("S_co", bound=Slot | None, default=Slot | None, covariant=True)
else:
    from ._value import Generic

    S_co = None

NEVER = float("inf")

#: `_lost` of a grant that ended before its lease was lost: it holds nothing, and lost nothing.
SETTLED = "it was settled"


class BaseGrant(Generic[S_co]):
    """What both faces share. Truthy.

    Keep it for as long as the work goes on: a grant that nobody refers to any more is renewed no longer, and ends by expiry.

    Attributes:
        verdict: ``won``, as a `Refused` has another; what became of the work is ``outcome``.
        name: The full name, prefix included.
        slot: The slot that was won; None for a lease.
        record: The record as the claim left it; None when degraded.
        degraded: The store could not be asked and ``on_unavailable="run"``, or the lease was lost and ``on_lost="continue"``.
        outcome: How the grant was settled; empty before that. ``lost``: it could not be settled any more; ``unrecorded``: a success that
            the store has not confirmed yet (F5), or, after a run without it, did not take when it was back (F3); ``given up: ...``: a
            success that is tried no more, and why.
        warnings: What the winner should know: another schedule or other zone data under the name (W8), or why it runs degraded (F3).
    """

    __slots__ = (
        "__weakref__",
        "_ask",
        "_before",
        "_clock",
        "_deadline",
        "_due",
        "_engine",
        "_forks",
        "_ghost_until",
        "_hold_until",
        "_listener",
        "_lost",
        "_owner",
        "_ttl",
        "degraded",
        "name",
        "outcome",
        "record",
        "slot",
        "warnings",
    )

    verdict = WON

    def __init__(
        self,
        engine: Engine[Any],
        ask: Ask,
        owner: str,
        sent: float,
        record: Record | None,
        slot: S_co,
        ttl: float,
        before: Record | None,
    ) -> None:
        terms = ask.terms
        self._engine = engine
        self._forks = engine.forks
        self._ghost_until = 0
        self._ask = ask
        self._clock = engine.clock
        self._owner = owner
        self._before = before
        self._ttl = ttl
        self._lost = ""
        self._listener: Callable[[], object] | None = None
        self._hold_until = hold_until = sent + terms.max_hold
        self.name = ask.name
        self.record = record
        self.slot = slot
        self.degraded = record is None
        self.outcome = ""
        self.warnings: tuple[str, ...] = ()
        if record is None or ask.overlap:
            self._deadline = hold_until
            self._due = NEVER
        else:
            deadline = sent + ttl - terms.margin
            self._deadline = deadline if deadline < hold_until else hold_until
            self._due = sent + terms.heartbeat

    if TYPE_CHECKING:  # true like any object, which Python tells quicker without a method

        def __bool__(self) -> Literal[True]: ...

    def __repr__(self) -> str:
        state = self.outcome or ("lost" if self.lost else "degraded" if self.degraded else "held")
        return f"<{type(self).__name__} {self.name!r} token={self.token} {state}>"

    def __reduce_ex__(self, protocol: object) -> str:
        raise TypeError(f"{self.name}: a grant can't be copied or pickled: one of two would settle what the other still holds")

    @property
    def reason(self) -> str:
        """What was won and when, and whether it goes on degraded and why, in one sentence without a full stop; see `Refused.reason`."""
        record, slot = self.record, self.slot
        what = f"{self.name}: {'it' if slot is None else f'the slot of {text(slot.start)}'}"
        if record is None:
            return f"{what} runs degraded: {'; '.join(self.warnings)}"
        attempt = f", as attempt {record.attempts}" if slot is not None and record.attempts > 1 else ""
        degraded = ", and goes on degraded, since its lease was lost" if self.degraded else ""
        return f"{what} was won at {text(record.granted_at)}{attempt}{degraded}"

    @property
    def lost(self) -> bool:
        """Whether the lease was lost before the grant was settled (L6, W3a). No I/O; once True it stays True.

        It can turn True as late as at the settlement, by the store's answer, which may be that the lease had run out though nobody was
        granted the name since; a grant that ended in time stays False.
        """
        if self._lost:
            return self._lost is not SETTLED
        if self._clock() < self._deadline:
            return False
        self._lose("its deadline passed without a confirmed renewal" if self._deadline < self._hold_until else "max_hold is over")
        return bool(self._lost) and self._lost is not SETTLED

    def check(self) -> None:
        """Return if the lease is surely held; call it before every step that must not run twice. No I/O.

        Raises:
            LeaseLost: The deadline passed, the store said so, the grant was settled, or this is a forked child (L10).
        """
        if self._lost or (self._clock() >= self._deadline and self.lost):
            raise LeaseLost(f"{self.name}: {self._lost}")

    def remaining(self) -> float:
        """Return the seconds until the holder's own deadline; 0 when lost or settled, infinity when nothing can be lost. No I/O."""
        return 0.0 if self._lost else max(0.0, self._deadline - self._clock())

    @property
    def token(self) -> int | None:
        """The fencing token (L2): hand it to the thing that is written to. None when degraded."""
        return None if self.record is None else self.record.token

    @property
    def attempt(self) -> int:
        """The how-manieth grant of the slot this is, crashes counted (W3c); 1 when degraded."""
        return 1 if self.record is None else self.record.attempts

    @property
    def missed(self) -> Missed:
        """How many slots before this one nobody handled, in bounded time (W9, W3d); 0 where there is no schedule or no earlier slot."""
        schedule, record, slot = self._ask.schedule, self.record, self.slot
        if schedule is None or record is None or slot is None:
            return Missed(0, True)
        before = self._before
        last = record.prior_mark if self._ask.seal else record.mark
        if last is None:
            if before is None or before.slot_start is None:
                return Missed(0, True)
            last = before.slot_start - 1  # nothing was ever handled: that slot itself was missed
        if before is not None and before.schedule != record.schedule and before.slot_start == last and before.slot_end is not None:
            last = before.slot_end - 1  # by another schedule that slot covered the time until its end
        return schedule.missed(last, slot.start)

    def _lose(self, reason: str) -> None:
        """Note that the lease is lost: for good, unless the holder chose to go on without it (F2)."""
        if self._lost or self.degraded:
            return
        if self._ask.terms.on_lost == "continue":
            self.degraded = True
            self._deadline = NEVER
        else:
            self._lost = reason
        self._engine.lost(self, reason)

    def _check_unsettled(self) -> None:
        """A grant is for one body: a second one would run without a lease."""
        if self.outcome:
            raise LeaseLost(f"{self.name}: this grant was settled ({self.outcome}): ask again")

    def _result(self, error: BaseException | None) -> str:
        """W3: success, or which kind of failure, by the exception that leaves the body."""
        if self._ask.kind == LEASE:
            return RELEASED
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            return HANDLED
        return FAILED


class Grant(BaseGrant[S_co]):
    """A won claim, blocking face. As a context manager it settles by how the body ends (W3)."""

    __slots__ = ()

    def handled(self) -> None:
        """Record the slot as handled: one round trip.

        Raises:
            LeaseLost: A later grant was made, or an operator took it away, so nothing was recorded (W3a); the message says which.
            Unrecorded: The store did not confirm within ``timeout``; rota goes on trying until the client is closed. Once it is, this is
                raised at once, and nobody tries (F5).
        """
        self._engine.settle_at_once(self, HANDLED)

    def failed(self) -> None:
        """Give the slot back for a retry, or close it at the last of ``attempts`` (W3c): one round trip; unconfirmed, expiry does it.

        Raises:
            LeaseLost: As of `handled`.
        """
        self._engine.settle_at_once(self, FAILED)

    def unused(self) -> None:
        """Give the slot back as if it had not been granted: its body never began (W3b). Raises as `failed`."""
        self._engine.settle_at_once(self, UNUSED)

    def release(self) -> None:
        """Release the lease: one round trip; unconfirmed, expiry does it. A window's grant that is released has failed.

        Raises:
            LeaseLost: The lease was lost and a later grant was made, which is not touched (L4), or an operator took it away.
        """
        self._engine.settle_at_once(self, RELEASED if self._ask.kind == LEASE else FAILED)

    def __enter__(self) -> Self:
        self._check_unsettled()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.outcome:
            return
        try:
            self._engine.settle_at_once(self, self._result(error), error is not None)
        except LeaseLost as lost:
            if error is None:
                raise
            if isinstance(error, LeaseLost):
                error.add_note(str(lost))  # the store told more of it than could be known in the body


class AsyncGrant(BaseGrant[S_co]):
    """A won claim, async face. As an async context manager it settles by how the body ends, and cancels the body when the lease is lost."""

    __slots__ = ("_cancelled", "_task")

    async def handled(self) -> None:
        """As `Grant.handled`."""
        await self._engine.settle(self, HANDLED)

    async def failed(self) -> None:
        """As `Grant.failed`."""
        await self._engine.settle(self, FAILED)

    async def unused(self) -> None:
        """As `Grant.unused`."""
        await self._engine.settle(self, UNUSED)

    async def release(self) -> None:
        """As `Grant.release`."""
        await self._engine.settle(self, RELEASED if self._ask.kind == LEASE else FAILED)

    async def __aenter__(self) -> Self:
        self._check_unsettled()
        self._cancelled = 0
        if self._ask.terms.on_lost != "continue":
            import asyncio

            self._task = asyncio.current_task()
            loop = asyncio.get_running_loop()
            try:
                self._engine.listen(self, lambda: loop.call_soon_threadsafe(self._cancel))
            except RotaError:  # for want of a thread nobody would end the body when the lease is lost: it does not begin
                await self.unused()
                raise
        return self

    def _cancel(self) -> None:
        if not self.outcome and self._task is not None:
            self._cancelled = self._task.cancelling() + 1
            self._task.cancel(f"rota: {self.name}: {self._lost}")

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # as asyncio.timeout does it: our own cancellation becomes the error it stands for, anybody else's goes on
        ours = self._cancelled and self._task is not None and self._task.uncancel() < self._cancelled
        cancelled = kind is not None and kind.__name__ == "CancelledError"
        try:
            if not self.outcome:
                await self._engine.settle(self, self._result(error), error is not None)
        except LeaseLost as lost:
            if error is None:
                raise
            if isinstance(error, LeaseLost):
                error.add_note(str(lost))  # the store told more of it than could be known in the body
        except BaseException as interrupted:
            # the body ended before our cancellation reached it: it reached the settlement, which the keeper has taken over
            if not ours or type(interrupted).__name__ != "CancelledError":
                raise
            cancelled, error = True, interrupted
        if ours and cancelled:
            raise LeaseLost(f"{self.name}: {self._lost}") from error


__all__ = ["AsyncGrant", "BaseGrant", "Grant"]
