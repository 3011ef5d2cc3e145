# SPDX-License-Identifier: MIT
"""The operator's hands: ``rota release``, ``rota settle`` and ``rota forget``.

Each raises the token, so that a holder at work is fenced, asks first, and leaves who did it and why. It refuses when the name was granted
anew since it was looked at: then somebody else would be hit.
"""

from __future__ import annotations

import os
import sys

from rota import history
from rota.backend import FAILED, HANDLED, LEASE, RELEASED, ROLLING, SEALED, Override, Record
from rota.errors import ConfigurationError, NotSupported
from rota.rules import is_live
from rota.schedule import instant, iso
from rota.url import check_text
from rota.verdict import text

from ._operator_read import CHANGED
from ._operator_store import ABSENT, absent, add_store, connected, read
from ._operator_table import JSON, exact, show_json
from ._operator_why import explain, last_handled, schedule_of
from ._output import clean, say, show
from ._parser import Parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from rota.backend import Now
    from rota.client import Client

#: The action that sets the mark, as the contract calls it.
MARK = "mark"
#: What `rota forget` did, in its JSON.
FORGOTTEN = "forgotten"
#: The longest reason, in bytes: it is kept in the record, and with the run in its history.
WHY_LIMIT = 200

_CODES = """\
Exit codes: 0 done; 1 nothing was changed: no such name or holder, answered no,
or granted anew; 2 the command line or the URL is wrong, or the store can't do
it; 115 the store did not answer: look before repeating. [...] is a default."""
_FENCED = """\
The token grows: a holder at work is told at its next heartbeat, and whatever
checks tokens refuses what it writes. Work that looks at neither goes on."""

_RELEASE = f"""\
Free a name that somebody holds. A slot that was at work is given back, and the
next claim wins it; with --at-most-once it stays taken (rota settle --failed).
{_FENCED}"""
_RELEASE_AFTER = f"""\
  rota release nightly --why "node 7 is gone"

{_CODES}"""

_SETTLE = f"""\
Say how the last slot of a window ended, in its holder's place; or set the mark.
{_FENCED}"""
_SETTLE_AFTER = f"""\
  rota settle nightly --handled --why "done by hand"
  rota settle nightly --mark 2026-02-26T02:00:00Z --why "the clock ran ahead"

A fast clock's mark goes back to the last slot handled, which rota show names.
{_CODES}"""

_FORGET = f"""\
Forget all of a name: kind, schedule, slots, history. Slots that were handled
can be won again. Who did it is printed, and kept nowhere.
{_FENCED}"""
_FORGET_AFTER = f"""\
  rota forget nightly --why "renamed"

{_CODES}"""


def release(given: list[str]) -> int:
    """Free a name in its holder's place."""
    parser = _parser("release", "rota release NAME [--why TEXT] [--yes] [--json] [--url URL]", _RELEASE, _RELEASE_AFTER)
    found = _read(parser, given)

    def decide(record: Record, now: Now | None) -> tuple[str, int | None] | None:
        if record.owner:
            return RELEASED, None
        say(f"{found.name}: nobody holds it, so there is nothing to release, and nothing was changed")
        return None

    return _override(found, decide, "release it?")


def settle(given: list[str]) -> int:
    """Settle a window's last slot in its holder's place, or set the mark."""
    usage = "rota settle NAME (--handled | --failed | --mark T) [--why TEXT] [--yes]"
    parser = _parser("settle", usage, _SETTLE, _SETTLE_AFTER)
    parser.add_argument("--handled", action="store_true", help="it was handled: nobody is to run it again")
    parser.add_argument("--failed", action="store_true", help="it was not: within --attempts the next claim wins it")
    parser.add_argument("--mark", metavar="T", help="slots up to that of T count as handled, no later; none: no slot")
    found = _read(parser, given)
    if found.handled + found.failed + (found.mark is not None) != 1:
        raise ConfigurationError("rota settle needs one of --handled, --failed and --mark, as in: rota settle nightly --handled")

    def decide(record: Record, now: Now | None) -> tuple[str, int | None]:
        if record.kind == LEASE:
            raise ConfigurationError(f"{found.name!r} is kept as a lease, which has no slots: see rota release")
        if found.mark is not None:
            return MARK, _mark(found.mark, record, now)
        if found.failed:
            _check_can_fail(found.name, record)
        return (HANDLED if found.handled else FAILED), None

    return _override(
        found, decide, "set the mark?" if found.mark is not None else f"settle it as {'handled' if found.handled else 'failed'}?"
    )


def forget(given: list[str]) -> int:
    """Leave a tombstone in a name's place, which has no room for who did it: what is printed is all that tells."""
    parser = _parser("forget", "rota forget NAME [--why TEXT] [--yes] [--json] [--url URL]", _FORGET, _FORGET_AFTER)
    found = _read(parser, given)
    with connected(found) as (client, timeout):
        record, now = read(client, found.name, timeout)
        if record is None or not record.kind:
            return absent(client, found.name, timeout, record)
        if not _agreed(found, record, now, "forget it?"):
            return ABSENT
        if not client.driver.forget(client._full(found.name), timeout):
            return absent(client, found.name, timeout)
        left, now = read(client, found.name, timeout)
        if left is None:  # removed already, or by somebody else
            left = Record(record.name, token=record.token)
        _show_change(client, found, FORGOTTEN, record, left, now)
        if not found.json:
            was = f"a {record.kind}{' of ' + clean(record.schedule) if record.schedule else ''}"
            mark = f", handled up to {text(record.mark)}" if record.mark is not None else ""
            show(f"{clean(found.name)}: it was {was}{mark}; the store keeps neither that nor who forgot it\n")
    return 0


COMMANDS = {"release": release, "settle": settle, "forget": forget}


def _parser(command: str, usage: str, description: str, after: str) -> Parser:
    parser = Parser(command, usage, description, after)
    parser.add_argument("name", metavar="NAME", help="the name, as given to rota run")
    kept = "printed" if command == "forget" else "kept"
    parser.add_argument("--why", metavar="TEXT", help=f"the reason, which is {kept} with who you are")
    parser.add_argument("--yes", action="store_true", help="don't ask; needed where there is no terminal")
    parser.add_argument("--json", action="store_true", help=JSON)
    add_store(parser)
    return parser


def _read(parser: Parser, given: list[str]) -> argparse.Namespace:
    found = parser.read(given)
    if found.why is not None:
        check_text(found.why, "--why", WHY_LIMIT)
    if not found.yes and not _can_ask():
        raise ConfigurationError(f"{parser.prog} asks before it changes anything, and there is no terminal: give --yes")
    return found


def _override(found: argparse.Namespace, decide: Callable[[Record, Now | None], tuple[str, int | None] | None], question: str) -> int:
    """Look, ask, look again, change, and say what a claim would come to now."""
    with connected(found) as (client, timeout):
        if "override" not in client.driver.capabilities.verbs:
            raise NotSupported("this store can't be changed by an operator: see its capabilities (rota forget works)")
        record, now = read(client, found.name, timeout)
        if record is None or not record.kind:
            return absent(client, found.name, timeout, record)
        decided = decide(record, now)
        if decided is None:
            if found.json:
                _show_change(client, found, None, record, record, now)
            return ABSENT
        if not _agreed(found, record, now, question):
            return ABSENT
        seen = record
        record, now = read(client, found.name, timeout)  # people take their time, and the holder goes on meanwhile
        if record is None or (record.token, record.owner) != (seen.token, seen.owner):
            return _changed(found.name)
        action, mark = decided
        label = f"{_who()}: {found.why or 'no reason given'}"
        settled = client.driver.override(
            Override(
                client._full(found.name),
                action,
                label,
                client._retention,
                mark=mark,
                expected_token=record.token,
                history=_history(record, now, action, mark, label),
            ),
            timeout,
        )
        if not settled.applied or settled.record is None:
            return _changed(found.name)
        _show_change(client, found, action, record, settled.record, settled.now)
    return 0


def _show_change(client: Client, found: argparse.Namespace, change: str | None, before: Record, after: Record, now: Now | None) -> None:
    """Say what was done, to whom, and what a claim would come to now."""
    why = explain(client, found.name, after, now)
    if found.json:
        show_json(
            [
                {
                    "name": found.name,
                    "change": change,
                    "by": _who(),
                    "why": found.why,
                    "fenced": (before.label or None) if change and before.owner else None,
                    "mark": exact(after.mark),
                    "token": after.token,
                    "verdict": why.verdict,
                    "how": why.how or None,
                    "reason": why.reason,
                }
            ]
        )
        return
    forgotten = f"forgotten by {_who()}{': ' + clean(found.why) if found.why else ''}"
    done = {RELEASED: "released", MARK: "the mark is set", FORGOTTEN: forgotten}.get(change or "", f"settled as {change}")
    fenced = f", and {clean(before.label)} is fenced" if before.owner else ""
    show(f"{clean(found.name)}: {done}; the token is {after.token}{fenced}\n")
    show(f"{clean(found.name)}: a claim now would be {why.verdict}: {clean(why.reason)}\n")


def _changed(name: str) -> int:
    say(f"{name}: it changed meanwhile, so nothing was done: look again with rota show")
    return ABSENT


def _history(record: Record, now: Now | None, action: str, mark: int | None, label: str) -> bytes | None:
    """Return the history with the run that is ended, and with the change itself where that ends none; None leaves it as it is."""
    if now is None:
        return None
    if record.owner:
        outcome, who = RELEASED if action == MARK else action, f"{record.label} ({label})"
        known = history.add(record.history, record.slot_start, record.slot_end, record.token, record.granted_at, now[0], outcome, who)
    else:
        known = history.complete(record)  # what ran degraded is added before the record tells of it no more
    if action == MARK:
        return history.add(known, mark, None, record.token, now[0], now[0], MARK, label)
    return known if record.owner else history.add(known, record.slot_start, record.slot_end, record.token, now[0], now[0], action, label)


def _check_can_fail(name: str, record: Record) -> None:
    """Refuse what would leave the slot handled, or lose the mark that was there before it was sealed (W3b)."""
    handled = record.mark is not None and record.slot_start is not None and record.slot_start <= record.mark
    if handled and record.outcome != SEALED:
        raise ConfigurationError(
            f"{name!r}: the slot of {text(record.slot_start)} counts as handled, and that it failed would not give it back:"
            f" set the mark to an earlier slot, as in --mark {_before(record)}"
        )


def _before(record: Record) -> str:
    """Return a mark that opens the record's slot again."""
    schedule = schedule_of(record.schedule)
    return "none" if schedule is None or record.slot_start is None else iso(schedule.slot(record.slot_start - 1).start)


def _mark(given: str, record: Record, now: Now | None) -> int | None:
    """Return the mark that was asked for: the start of a slot, and never one that lies ahead."""
    if given.strip().lower() == "none":
        return None
    if record.kind == ROLLING:
        raise ConfigurationError("the periods of a rolling window have no fixed starts: only --mark none works, which ends the period")
    schedule, at = schedule_of(record.schedule), instant(given, "--mark")
    if now is None or at > now[0]:
        at_store = "" if now is None else " " + text(now[0])
        raise ConfigurationError(
            f"--mark={given!r} lies ahead of the store's time{at_store}: no slot can be marked ahead of its"
            " time; to keep slots from running, stop what starts rota run (the line in the crontab, the timer)"
        )
    return at if schedule is None else schedule.slot(at).start


def _can_ask() -> bool:
    try:
        return os.isatty(0) and os.isatty(2)
    except OSError:
        return False


def _agreed(found: argparse.Namespace, record: Record, now: Now | None, question: str) -> bool:
    if found.yes:
        return True
    again = _again(found, record, now)
    say(f"{found.name}: {clean(_state(record, now))}{again}: {question} [y/N]")
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    say(f"{found.name}: nothing was changed")
    return False


def _state(record: Record, now: Now | None) -> str:
    """Say who holds it, or who held or changed it last."""
    if record.owner:
        if now is None or is_live(record, now[0]):
            return f"{record.label} has held it since {text(record.granted_at)}"
        return f"{record.label} held it from {text(record.granted_at)} on, and its lease ran out"
    at = text(record.settled_at)
    if record.last_owner == "operator":
        who, _, why = record.label.partition(": ")
        return f"nobody holds it; {CHANGED.get(record.last_result, 'changed')} at {at} by {who}, who said {why!r}"
    if not record.label:
        return "nobody holds it"
    slot = "" if record.slot_start is None else f", and the slot of {text(record.slot_start)} is {record.outcome}"
    return f"nobody holds it; {record.label} held it last, until {at}{slot}"


def _again(found: argparse.Namespace, record: Record, now: Now | None) -> str:
    """Say which handled slot may run once more, before the mark is set back behind it."""
    if now is None or getattr(found, "mark", None) is None or (last := last_handled(record, now[0])) is None:
        return ""
    mark = _mark(found.mark, record, now)
    return f"; the slot of {text(last)} was handled, and may run again" if mark is None or mark < last else ""


def _who() -> str:
    """Return who is at the keyboard, for people: ``user@host``."""
    import getpass

    from rota.client import label

    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user without a name, as in many containers
        user = f"uid {os.getuid()}" if hasattr(os, "getuid") else "somebody"
    return f"{clean(user)[:64]}@{label('').rpartition(':')[0]}"
