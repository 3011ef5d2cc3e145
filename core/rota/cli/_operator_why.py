# SPDX-License-Identifier: MIT
"""Why a claim right now would be won or refused, in one sentence: by the rules themselves, on a record that was read."""

from __future__ import annotations

import os

from rota import rules
from rota.backend import BUSY, DEGRADED, FAILED, GAVE_UP, HANDLED, LEASE, RELEASED, ROLLING, SEALED, WON, Record
from rota.duration import MINUTE
from rota.errors import ConfigurationError
from rota.history import runs
from rota.policy import EARLY
from rota.schedule import Cron, Every, Schedule, Slot, iso
from rota.verdict import CLOSING, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NamedTuple

    from rota._ask import Ask
    from rota.backend import Now
    from rota.client import Client
else:
    from rota._value import NamedTuple


class Why(NamedTuple):
    """What a claim would come to.

    Attributes:
        verdict: ``won``, ``busy``, ``handled``, ``late`` or ``early``; ``unknown`` where it can't be told.
        how: Of ``handled``: ``done``, ``passed``, ``gave up`` or ``mark-ahead``; else empty.
        reason: Why, in one sentence without a full stop.
        slot: The slot asked for; None for a lease, a rolling window, or where it can't be told.
    """

    verdict: str
    how: str
    reason: str
    slot: Slot | None = None


def schedule_of(canonical: str) -> Schedule | None:
    """Return the schedule that a record's text names (W8); None where there is none, or it is the period of a rolling window.

    Raises:
        ConfigurationError: This host can't read it: it lacks the zone, or a newer rota wrote it.
    """
    kind, _, rest = canonical.partition(" ")
    if kind == "cron":
        expression, _, zone = rest.rpartition(" tz=")
        return Cron(expression, tz=zone)
    if kind == "every":
        period, _, anchor = rest.partition(" anchor=")
        return Every(period, anchor=anchor or None)
    if kind in ("", "per"):
        return None
    raise ConfigurationError(f"the schedule {canonical!r} is of a kind that this rota does not know")


def explain(client: Client, name: str, record: Record, now: Now | None, options: dict[str, Any] | None = None) -> Why:
    """Say what a claim at this instant would come to; nothing is asked of the store.

    Args:
        client: The client that would ask.
        name: The name, without the client's prefix.
        record: The record as it was read.
        now: The store's time when it was read; None where that is not known.
        options: ``planned`` and ``max_late``, for windows.

    Raises:
        ConfigurationError: A wrong option.
    """
    options = {option: value for option, value in (options or {}).items() if value is not None}
    if options and record.kind not in ("", "window"):
        raise ConfigurationError(f"--planned and --max-late go with windows, and {name!r} is kept as a {record.kind}")
    if not record.kind:
        return Why(WON, "", "it was forgotten, so nothing stands in the way")
    if now is None:
        return Why("unknown", "", "the store's time is not known here, and by that alone a claim is decided")
    try:
        ask = _ask(client, name, record, options)
    except ConfigurationError as error:
        if options:
            raise
        return Why("unknown", "", f"a claim can't be made from here: {error}")
    slot = ask.aim(now[0])
    claim = ask.claim(os.urandom(16).hex(), "", slot, now[0] + MINUTE)
    answer, _ = rules.claim(record, claim, now[0], now)
    if answer.verdict == WON:
        assert answer.record is not None
        return Why(WON, "", _won(record, answer.record), slot)
    refused = client._engine._refused(ask, slot, claim, answer)
    reason = refused.reason.removeprefix(f"{refused.name}: ")
    if refused.mark_ahead:
        reason += _cure(name, record, now[0])
    elif refused.verdict == BUSY and record.granted_at > now[1] + EARLY:
        reason += f", which lies ahead of the store's time: a clock once ran fast, and rota release {name} frees it"
    return Why(refused.verdict, "mark-ahead" if refused.mark_ahead else refused.how, reason, slot)


def _ask(client: Client, name: str, record: Record, options: dict[str, Any]) -> Ask:
    if record.kind == LEASE:
        return client._lease(name, {})
    if record.kind == ROLLING:
        # not by the schedule's text, which whoever wrote back a slot without the store may have left out
        return client._once(name, f"{(record.slot_end or 0) - (record.slot_start or 0)}us", {})
    schedule = schedule_of(record.schedule)
    if schedule is None and "planned" not in options and record.slot_start is not None:
        options = {**options, "planned": iso(record.slot_start)}  # its slots have no other name: ask for the last one again
    return client._window(name, schedule, options)


def _won(before: Record, granted: Record) -> str:
    """Say what lets a claim win, from the record before and after it."""
    once = _once(before, granted)
    what = "it" if granted.kind == LEASE else "the period" if granted.kind == ROLLING else f"the slot of {text(granted.slot_start)}"
    again = granted.kind != LEASE and granted.attempts > 1
    attempt = f", and this would be attempt {granted.attempts}" if again else ""
    if before.owner:
        held = "it" if granted.kind == LEASE else what if again else "an older slot"
        free = "" if again or granted.kind == LEASE else f", and {once}" if once else f", and nobody has handled {what}"
        return f"the lease of {before.label}, who held {held} and did not settle, ran out at {text(before.expires_at)}{free}{attempt}"
    if granted.kind == LEASE:
        return f"nobody has held it since {text(before.settled_at)}" if before.settled_at else "nobody holds it"
    was_set = before.last_result == "mark" and (bool(once) or granted.kind == ROLLING or granted.slot_start == before.slot_start)
    if before.last_owner == "operator" and (again or was_set):
        did = "the mark was set" if was_set else f"{what} was {'' if before.last_result == RELEASED else 'settled as '}{before.last_result}"
        return f"{did} in the holder's place at {text(before.settled_at)} by {before.label}{', and ' + once if once else attempt}"
    if again:
        ended = "failed" if before.outcome == FAILED else "ended without success"
        return f"the last attempt for {what}, by {before.label}, {ended} at {text(before.settled_at)}{attempt}"
    if granted.kind == ROLLING:
        if before.mark is not None and before.outcome in (HANDLED, SEALED) and before.slot_end is not None:
            return f"the last period ended at {text(before.slot_end)}, and nobody has begun another"
        return "no period is open"
    return once or f"nobody has handled {what}, and nobody holds the name"


def _once(before: Record, granted: Record) -> str:
    """Say how the slot that would be won was closed before, of which the mark, which was set back, tells no more; else nothing."""
    for run in runs(before.history) if granted.slot_start is not None else ():
        if run.slot_start == granted.slot_start and run.outcome in CLOSING:
            did = {GAVE_UP: "was given up", DEGRADED: "was handled without the store"}.get(run.outcome, "was handled")
            return f"the slot of {text(run.slot_start)}, which {did} by {run.label} at {text(run.ended_at)}, would run again"
    return ""


def last_handled(record: Record, at: int) -> int | None:
    """Return the newest slot, of those that have begun, that the history has as closed."""
    starts = (run.slot_start for run in runs(record.history) if run.outcome in CLOSING and run.slot_start is not None)
    return max((start for start in starts if start <= at), default=None)


def _cure(name: str, record: Record, at: int) -> str:
    """Say how the mark of a fast clock is set back, and up to where."""
    last = last_handled(record, at)
    if last is None:
        return f": rota settle {name} --mark T, where T lies in the last slot that really was handled; none, if none was"
    return f": rota settle {name} --mark {iso(last)}, the newest slot up to now that the history has as handled"
