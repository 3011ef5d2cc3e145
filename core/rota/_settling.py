# SPDX-License-Identifier: MIT
"""The end of a grant: how it is settled, kept when the store does not confirm it, and written back (W3, L4, F2, F3, F5).

As in the engine, coroutines await nothing but its `Io`. ``engine`` is the client's engine throughout.
"""

from __future__ import annotations

from . import history
from ._io import step_out
from ._keeper import Kept
from ._observers import observers
from .backend import FAILED, GAVE_UP, HANDLED, Record, Settled, Settlement, WriteBack
from .errors import LeaseLost, Unavailable, Unrecorded
from .grant import NEVER, SETTLED, BaseGrant
from .schedule import Slot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._engine import Engine

FORKED = "a forked child holds nothing: the parent has the lease (L10)"


async def settle(engine: Engine[Any], grant: BaseGrant, result: str, raising: bool = False) -> None:
    """Say how the grant ended; unconfirmed, keep it to be said (F5). ``raising``: by an error that leaves the body."""
    now = engine.clock()
    settlement = _begin(engine, grant, result, now, raising)
    if settlement is not None:
        await _say(engine, grant, settlement, now)


def settle_at_once(engine: Engine[Any], grant: BaseGrant, result: str, raising: bool = False) -> None:
    """As `settle`, on the blocking face; as for a claim, the one request that is nearly always enough needs no coroutine."""
    now = engine.clock()
    settlement = _begin(engine, grant, result, now, raising)
    if settlement is None:
        return
    try:
        settled = engine.io.settle(settlement, grant._ask.terms.timeout)
    except BaseException as error:
        step_out(_say(engine, grant, settlement, now, error))
        return
    _note_settled(engine, grant, settlement, settled)


def _begin(engine: Engine[Any], grant: BaseGrant, result: str, now: float, raising: bool) -> Settlement | None:
    """Return what to say to the store; None where that is nothing."""
    if grant.outcome:
        _settle_again(grant, result)
        return None
    ask = grant._ask
    if grant._forks != engine.forks:
        raise LeaseLost(f"{grant.name}: {FORKED}")
    if not grant._owner:
        _settle_degraded(engine, grant, result)
        return None
    if result == FAILED and 0 < ask.max_attempts <= grant.attempt:
        result = GAVE_UP
    try:
        grant.outcome = result  # from here on a renewal that is refused is no loss
        values = (grant.name, grant._owner, result, ask.retention, _history(engine, grant, result, now))
        settlement: Settlement = tuple.__new__(Settlement, values)  # as for a claim
    except BaseException:
        _keep(engine, grant, Settlement(grant.name, grant._owner, result, ask.retention))
        raise
    in_vain = raising and engine.heartbeat.trouble and result not in (HANDLED, GAVE_UP)
    if in_vain and (grant._lost or grant.degraded or now >= grant._deadline):
        _keep(engine, grant, settlement)  # its lease is over, the caller is told, and a store that does not answer has nothing to add
        return None
    return settlement


async def _say(engine: Engine[Any], grant: BaseGrant, settlement: Settlement, now: float, failed: BaseException | None = None) -> None:
    """Say it until the store confirms it, or keep it; ``failed`` is what the first request came to, if it was made."""
    io, clock, left, pause = engine.io, engine.clock, grant._ask.terms.timeout, 0.02
    deadline = now + left
    try:
        while True:
            try:
                if failed is not None:
                    try:
                        raise failed
                    finally:
                        failed = None  # else it, its traceback and this frame would be a cycle
                settled = io.settle(settlement, left)
                if io.suspends:
                    settled = await settled
                break
            except Unavailable as error:
                closed = engine.keeper.closed  # then it is not kept either
                if closed or clock() + pause >= deadline:
                    if settlement.result not in (HANDLED, GAVE_UP):
                        _keep(engine, grant, settlement)
                        return
                    how = "not recorded" if closed else "not confirmed yet and kept"
                    raise Unrecorded(f"{grant.name}: the work is done, its outcome {settlement.result!r} is {how}: {error}") from error
            await engine.call(io.sleep, pause)
            pause *= 2
            left = max(0.001, deadline - clock())
    except BaseException:
        _keep(engine, grant, settlement)
        raise
    _note_settled(engine, grant, settlement, settled)


def _settle_again(grant: BaseGrant, result: str) -> None:
    """Answer as the first time (L4); a success in particular is never said of a grant that ended otherwise."""
    if grant.outcome == "lost":
        raise LeaseLost(f"{grant.name}: {grant._lost}")
    if result == HANDLED and grant.outcome == "unrecorded":
        raise Unrecorded(f"{grant.name}: the work is done, its outcome is not confirmed yet and kept")
    if result == HANDLED and grant.outcome.startswith("given up"):
        raise Unrecorded(f"{grant.name}: the work is done, its outcome is not recorded: {grant.outcome}")
    if result == HANDLED and grant.outcome != HANDLED:
        raise LeaseLost(f"{grant.name}: it was settled before, as {grant.outcome!r}")


def _note_settled(engine: Engine[Any], grant: BaseGrant, settlement: Settlement, settled: Settled) -> None:
    result = settlement.result
    applied, record, _, ended, expired = settled  # at once, as an answer
    engine.heartbeat.remove(grant)
    if grant._listener is not None:
        engine.watchdog.remove(grant)
    if not applied and record is not None and record.last_owner == grant._owner:
        # an earlier request was applied, and a later grant has been made since
        applied, ended, expired = True, record.last_result, record.last_expired
    why = ""
    if applied and ended != result:
        applied, why = False, f"it was settled before, as {ended!r}"
    if not applied and grant._ask.overlap:
        applied = True  # W4: the mark moved at the claim, and a later slot's grant takes nothing away
    if not applied:
        grant.outcome = "lost"
        why = why or gone(record, grant.token)
        grant._lost = f"{grant._lost}; {why}" if grant._lost else why
        if result == HANDLED and grant._ask.terms.on_lost == "continue":
            grant.outcome = HANDLED
            _write_back(engine, grant)  # F2: it went on, degraded
            return
        if observers.listening:
            observers.tell("rota_settled", grant=grant, outcome="lost", expired=True)
        raise LeaseLost(f"{grant.name}: {result!r} was not recorded: {grant._lost}")
    if grant._ghost_until:
        # an earlier request of this id may still be on its way, and win once later owners have made the store forget the id (L4)
        engine.abandon(grant._ask, grant._owner, grant._ghost_until)
    if expired:
        grant._lost = grant._lost or "it ran out before it was settled"
    else:
        grant._lost = grant._lost or SETTLED
    if result == HANDLED and grant.slot is not None:
        engine.local.add(grant.name, *grant.slot)
    if observers.listening:
        observers.tell("rota_settled", grant=grant, outcome=result, expired=expired)


def gone(record: Record | None, token: int | None) -> str:
    """Say from the record what became of the name since the grant of this token, which it tells of no more."""
    if record is None:
        return "the store has no record of it any more"
    if record.token <= (token or 0):
        return "the store knows nothing of this grant, as after a failover or from a backup"
    if not record.kind:
        return "it was forgotten by an operator"
    if record.last_owner == "operator" and not record.owner:
        return f"it was taken away by an operator, {record.label}"
    return f"a later grant was made, to {record.label}"


def _history(engine: Engine[Any], grant: BaseGrant, result: str, now: float) -> bytes:
    record, before = grant.record, grant._before
    assert record is not None
    known = record.history if before is None else history.complete(before)
    start, end = grant.slot or (None, None)
    started, ended = record.granted_at, engine.store_clock.now(now)
    return history.add(known, start, end, record.token, started, ended if ended > started else started, result, record.label)


def _settle_degraded(engine: Engine[Any], grant: BaseGrant, result: str) -> None:
    grant.outcome, grant._lost = result, SETTLED
    if grant._listener is not None:
        engine.watchdog.remove(grant)
    if result == HANDLED and grant.slot is not None:
        engine.local.add(grant.name, *grant.slot)
        _write_back(engine, grant)
    if observers.listening:
        observers.tell("rota_settled", grant=grant, outcome=result, expired=False)


def _write_back(engine: Engine[Any], grant: BaseGrant) -> None:
    slot = grant.slot

    def done(ended: str, _: bool) -> None:
        engine.store_answered(ended)
        if ended != HANDLED:
            grant.outcome = "unrecorded"

    if slot is not None and "record" in engine.driver.capabilities.verbs:
        engine.keeper.keep(Kept(None, NEVER, 0, _as_write_back(engine, grant, slot), done))


def _as_write_back(engine: Engine[Any], grant: BaseGrant, slot: Slot) -> WriteBack:
    ask = grant._ask
    schedule = ask.schedule
    return WriteBack(
        grant.name,
        engine.label,
        ask.kind,
        ask.retention,
        ask.canonical,
        "" if schedule is None else schedule.zone_data,
        slot.start,
        slot.end,
    )


def _keep(engine: Engine[Any], grant: BaseGrant, settlement: Settlement) -> None:
    """F5: an unconfirmed success is said again while the process lives, renewals going on; anything else until expiry has done it."""
    success = settlement.result in (HANDLED, GAVE_UP)
    grant.outcome = "unrecorded" if success else settlement.result
    if grant._listener is not None:
        engine.watchdog.remove(grant)
    if success and settlement.result == HANDLED and grant.slot is not None:
        engine.local.add(grant.name, *grant.slot)
    if not success:
        engine.heartbeat.remove(grant)
        if not grant.lost:
            grant._lost = SETTLED
    write_back = None
    if success and grant.slot is not None and "record" in engine.driver.capabilities.verbs:
        write_back = _as_write_back(engine, grant, grant.slot)
    until = NEVER if success else engine.clock() + grant._ttl

    def done(ended: str, lost: bool) -> None:
        engine.store_answered(ended)
        engine.heartbeat.remove(grant)
        if success:
            grant.outcome = ended
            if lost:
                grant._lost = grant._lost or "it was lost before it was settled"
            elif ended == settlement.result:
                grant._lost = grant._lost or SETTLED
        if observers.listening:
            observers.tell("rota_settled", grant=grant, outcome=ended, expired=lost)

    if observers.listening:
        observers.tell("rota_settled", grant=grant, outcome=grant.outcome, expired=False)
    engine.keeper.keep(Kept(settlement, until, 0, write_back, done))
