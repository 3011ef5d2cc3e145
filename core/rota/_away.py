# SPDX-License-Identifier: MIT
"""What a claim comes to while the store is away (F2, F3). ``engine`` is the client's engine throughout."""

from __future__ import annotations

import time

from ._observers import observers
from .backend import EARLY, HANDLED, LEASE, ROLLING, WINDOW
from .errors import Unavailable
from .grant import BaseGrant
from .schedule import Slot
from .verdict import UNAVAILABLE, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    from ._ask import Ask
    from ._engine import Engine
else:
    from ._value import TypeVar

G = TypeVar("G", bound=BaseGrant)


def unavailable(engine: Engine[G], ask: Ask, error: Unavailable) -> G | Refused:
    """F2: do what ``on_unavailable`` says about a claim that can't be asked."""
    if observers.listening:
        observers.tell("rota_unavailable", name=ask.name, error=error)
    policy = ask.terms.on_unavailable
    if policy == "raise":
        raise error
    if policy == "skip":
        return Refused(UNAVAILABLE, ask.name, cause=error)
    now, source = _now(engine)  # F3: the slot is the planned one, else that of this time
    slot = None if ask.kind == LEASE else Slot(now, now + ask.period) if ask.kind == ROLLING else ask.aim(now)
    if ask.kind == WINDOW:
        claim = ask.claim("", engine.label, slot, now)
        if now < claim.not_before:
            return Refused(EARLY, ask.name, slot, None, now, claim=claim)
    known = None if slot is None else engine.local.covering(ask.kind, ask.name, slot.start)
    if known is not None:
        return Refused(HANDLED, ask.name, Slot(*known) if ask.kind == ROLLING else slot)
    grant = engine.grant_type(engine, ask, "", engine.clock(), None, slot, 0.0, None)
    engine.warn_winner(grant, f"going ahead without the store{source if ask.floating or ask.kind == ROLLING else ''}: {error}")
    return grant


def _now(engine: Engine[G]) -> tuple[int, str]:
    """F3: the last known store time plus elapsed time, else that of the local clock, and how to say so."""
    if engine.store_clock.known:
        return engine.store_clock.now(engine.clock()), ""
    return time.time_ns() // 1000, ", by this host's clock"
