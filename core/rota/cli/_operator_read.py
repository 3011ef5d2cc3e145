# SPDX-License-Identifier: MIT
"""The operator's eyes: ``rota ls``, ``rota show`` and ``rota history``. None changes anything in the store."""

from __future__ import annotations

import time

from rota.backend import FAILED, HANDLED, PENDING, RELEASED, Record
from rota.duration import duration
from rota.errors import ConfigurationError, NotSupported, Unavailable
from rota.history import Run, ended_by_operator, runs, unwritten
from rota.policy import EARLY
from rota.rules import is_live
from rota.schedule import instant
from rota.url import check_text

from ._operator_store import absent, add_store, check_made, connected, read
from ._operator_table import JSON, exact, is_terminal, seconds, show_columns, show_json, show_names, show_table, span, when
from ._operator_why import Why, explain, schedule_of
from ._output import clean, say, show
from ._parser import Parser
from ._progress import Progress, carry_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any

    from rota.backend import Now
    from rota.client import Client

#: How many records are asked for at a time.
PAGE = 1000
#: How long `rota ls --watch` waits between two looks, in seconds.
PAUSE = 2.0
#: What clears a terminal, and begins at its top (ECMA-48).
CLEAR = "\x1b[H\x1b[2J"
#: How many cells a timeline has.
TIMELINE = 32

_CODES = """\
Exit codes: 0; 1 the store has no such name, or there is no store yet; 2 the
command line or the URL is wrong; 115 the store did not answer. [...] is a
default."""


# -- ls

_LS = """\
List the names in a store: who holds each, since when and for how long still,
its token, its last slot, and what became of that."""
_LS_AFTER = """\
  rota ls billing/ --json

States: held; ran out (the holder died or was cut off: others can win); free;
forgotten (with --all). A narrow terminal shows fewer columns, rota show NAME
all there is. Where it is no terminal, tabs part the columns, and - is
nothing: name, state, holder, site, seconds since the grant, seconds that the
lease has left, token, slot, outcome, attempts, operator who changed it last.

Exit codes: 0; 1 there is no store yet; 2 the command line or the URL is wrong;
115 the store did not answer. [...] is a default."""


def ls(given: list[str]) -> int:
    """List names."""
    parser = Parser("ls", "rota ls [PREFIX] [--all] [--json | --names | --watch] [--url URL]", _LS, _LS_AFTER)
    parser.add_argument("prefix", metavar="PREFIX", nargs="?", default="", help="only names that start with this")
    parser.add_argument("--all", action="store_true", help="also names that were forgotten")
    parser.add_argument("--json", action="store_true", help=JSON)
    parser.add_argument("--names", action="store_true", help="the names alone, one a line, unescaped but on a terminal")
    parser.add_argument("--watch", action="store_true", help="look again every 2s, until interrupted; on a terminal")
    add_store(parser)
    found = parser.read(given)
    if found.prefix.strip():
        check_text(found.prefix.strip(), "PREFIX", 255)
    if found.names and found.json:
        raise ConfigurationError("--names and --json are two forms of one list: give one")
    if found.watch and (found.json or not is_terminal()):
        raise ConfigurationError("--watch is for people on a terminal")
    with connected(found) as (client, timeout):
        if not found.watch:
            _show_names(client, timeout, found)
        while found.watch and is_terminal():  # until interrupted, or the terminal is gone
            show(CLEAR)
            try:
                _show_names(client, timeout, found)
            except Unavailable as error:
                say(f"the store did not answer: {error}")
            time.sleep(PAUSE)
    return 0


def _show_names(client: Client, timeout: float, found: argparse.Namespace) -> None:
    check_made(client)
    records: list[Record] = []
    progress = Progress()
    progress.doing, progress.done = "asking the store ...", -1.0

    def read_all() -> None:
        for number, record in enumerate(listed(client, found.prefix, timeout), 1):
            if record.kind or found.all:
                records.append(record)
            progress.doing = f"{number} names so far ..."

    carry_out(read_all, progress, float("inf"))
    check_made(client)
    now = client.driver.now(timeout)
    rows = [row(client, record, now) for record in records]
    if found.names:
        show_names(one["name"] for one in rows)
    elif found.json:
        show_json(rows)
    elif is_terminal():
        show_table(
            ("NAME", "STATE", "HOLDER", "SITE", "AGE", "REMAINING", "TOKEN", "SLOT", "OUTCOME", "ATTEMPTS", "OPERATOR"),
            [_cells(one, record, now) for one, record in zip(rows, records, strict=True)],
            spare=("TOKEN", "ATTEMPTS", "OPERATOR", "REMAINING", "SITE", "AGE", "SLOT"),
        )
        if not rows:
            say(f"no name in {clean(found.store)}{' starts with ' + repr(found.prefix) if found.prefix else ''}")
    else:
        show_columns(_plain(one) for one in rows)


def listed(client: Client, prefix: str, timeout: float) -> Iterator[Record]:
    """Give all records below the client's prefix whose names go on with another one, page by page."""
    after = ""
    while True:
        page = client.driver.list(client._prefix + prefix, timeout, after=after, limit=PAGE)
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].name


def row(client: Client, record: Record, now: Now | None) -> dict[str, Any]:
    """Return what is shown of a record, for programs; `docs/operations.md` describes it."""
    at = None if now is None else now[0]
    holder, site, operator = _holder(record)
    return {
        "name": record.name.removeprefix(client._prefix),
        "kind": record.kind or None,
        "schedule": record.schedule or None,
        "state": _state(record, at),
        "holder": holder or None,
        "site": site or None,
        "granted_at": exact(record.granted_at or None),
        "age": seconds(_age(record, at)),
        "remaining": seconds(_remaining(record, at)),
        "token": record.token,
        "slot_start": exact(record.slot_start),
        "slot_end": exact(record.slot_end),
        "outcome": _outcome(record) or None,
        "attempts": record.attempts,
        "mark": exact(record.mark),
        "settled_at": exact(record.settled_at or None),
        "operator": operator or None,
    }


def _holder(record: Record) -> tuple[str, str, str]:
    """Return who holds it, or held it last, the site, and the operator who changed it since: that one's label took the holder's place."""
    site, holder, operator = _who(record.label)
    if record.owner or holder:
        return holder or record.label, site, ""
    run = ended_by_operator(record)
    site, holder, _ = ("", "", "") if run is None else _who(run.label)
    return holder, site, operator


def _outcome(record: Record) -> str:
    """Return what became of the last slot: one whose holder an operator replaced is pending no more."""
    return RELEASED if record.outcome == PENDING and not record.owner and record.last_owner == "operator" else record.outcome


def _state(record: Record, at: int | None) -> str:
    if not record.kind:
        return "forgotten"
    if not record.owner:
        return "free"
    return "unknown" if at is None else "held" if is_live(record, at) else "ran out"


def _age(record: Record, at: int | None) -> int | None:
    age = None if at is None or not record.granted_at else at - record.granted_at
    return 0 if age is not None and -EARLY < age < 0 else age  # its time is not known exactly; farther ahead: a clock once ran fast


def _remaining(record: Record, at: int | None) -> int | None:
    return record.expires_at - at if at is not None and is_live(record, at) else None


def _cells(one: dict[str, Any], record: Record, now: Now | None) -> tuple[str, ...]:
    at = None if now is None else now[0]
    return (
        one["name"],
        one["state"],
        one["holder"] or "",
        one["site"] or "",
        span(_age(record, at)),
        span(_remaining(record, at)),
        str(one["token"]),
        when(record.slot_start),
        one["outcome"] or "",
        str(one["attempts"]),
        one["operator"] or "",
    )


def _plain(one: dict[str, Any]) -> tuple[str, ...]:
    times = ("" if one[key] is None else f"{one[key]:.3f}" for key in ("age", "remaining"))
    return (
        one["name"],
        one["state"],
        one["holder"] or "",
        one["site"] or "",
        *times,
        str(one["token"]),
        one["slot_start"] or "",
        one["outcome"] or "",
        str(one["attempts"]),
        one["operator"] or "",
    )


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


# -- show

_SHOW = """\
Show one name: who holds it, what became of its last slot, which slots are next,
and why a claim right now would be won or refused. It is the claim of a plain
rota run; --planned and --max-late ask as a job does that has them."""
_SHOW_AFTER = f"""\
  rota show nightly
  rota show nightly --planned 2026-02-26T02:00:00Z

Where it is no terminal: a key, a tab and its value in each line.

{_CODES}"""


def show_one(given: list[str]) -> int:
    """Show one name."""
    parser = Parser("show", "rota show NAME [--planned T] [--max-late DUR] [--json] [--url URL]", _SHOW, _SHOW_AFTER)
    parser.add_argument("name", metavar="NAME", help="the name, as given to rota run")
    parser.add_argument("--planned", metavar="T", help="as if the claim were for the slot of this instant")
    parser.add_argument("--max-late", metavar="DUR", help="as if it were refused later than this after the slot's start")
    parser.add_argument("--json", action="store_true", help=JSON)
    add_store(parser)
    found = parser.read(given)
    if found.planned is not None:
        instant(found.planned, "--planned")
    if found.max_late is not None:
        duration(found.max_late, "--max-late", zero=True)
    with connected(found) as (client, timeout):
        record, now = read(client, found.name, timeout)
        if record is None:
            return absent(client, found.name, timeout)
        why = explain(client, found.name, record, now, {"planned": found.planned, "max_late": found.max_late})
        one = row(client, record, now)
    one.update(_more(record, now, why))
    if found.json:
        show_json([one])
    elif is_terminal():
        show_people(one, record, now, why)
    else:
        show_columns((key, _cell(value)) for key, value in one.items())
    return 0


def _more(record: Record, now: Now | None, why: Why) -> dict[str, Any]:
    """Return what `rota show` adds to a row of `rota ls`."""
    current = following = None
    try:
        schedule = schedule_of(record.schedule)
        if schedule is not None and now is not None:
            current = schedule.slot(now[0])
            (following,) = schedule.next(now[0])
    except ConfigurationError:
        pass  # this host can't read it, which the reason says
    return {
        "expires_at": exact(record.expires_at or None),
        "zone_data": record.zone_data or None,
        "keep_until": exact(record.keep_until or None),
        "history": len(runs(record.history)),
        "current_start": None if current is None else exact(current.start),
        "next_start": None if following is None else exact(following.start),
        "asked_start": None if why.slot is None else exact(why.slot.start),
        "asked_end": None if why.slot is None else exact(why.slot.end),
        "verdict": why.verdict,
        "how": why.how or None,
        "reason": why.reason,
    }


#: What an operator did, in words.
CHANGED = {RELEASED: "released", HANDLED: "settled as handled", FAILED: "settled as failed", "mark": "mark set"}


def show_people(one: dict[str, Any], record: Record, now: Now | None, why: Why) -> None:
    """Print one name for people; what is empty is left out."""
    at = None if now is None else now[0]
    held, remaining = span(_age(record, at)), span(_remaining(record, at))
    slot = "" if record.slot_start is None else f"[{when(record.slot_start)}, {when(record.slot_end) or '...'})"
    lines = (
        ("name", one["name"]),
        ("kind", one["kind"]),
        ("schedule", one["schedule"]),
        ("zone data", one["zone_data"]),
        ("state", one["state"] + (f", for {remaining} still unless renewed" if remaining else "")),
        ("holder" if record.owner else "last holder", f"{one['site'] or ''} {one['holder'] or ''}".strip()),
        (CHANGED.get(record.last_result, "changed") + " by", one["operator"]),
        ("granted", when(record.granted_at or None) + (f", {held} ago" if held else "")),
        ("token", str(record.token)),
        ("last slot", slot),
        ("outcome", (one["outcome"] or "") + (f", attempt {record.attempts}" if record.attempts > 1 else "")),
        ("handled up to", when(record.mark)),
        ("settled", when(record.settled_at or None)),
        ("this slot since", one["current_start"]),
        ("next slot", one["next_start"]),
        ("runs kept", str(one["history"] or "")),
        ("a claim now", f"{why.verdict}{' (' + why.how + ')' if why.how else ''}: {why.reason}"),
    )
    rows = [line for line in lines if line[1]]
    show_table(rows[0], rows[1:])


# -- history

_HISTORY = """\
Show the newest runs of a name, 10 or more (fewer where site and host have very
long names), the newest first: when each began and ended, how, and by whom."""
_HISTORY_AFTER = f"""\
  rota history nightly

Outcomes: handled, failed, gave up, released, unused; degraded, without the
store; crashed, never ended; running, now; mark, no run, but an operator who set
the mark, to the slot start. The timeline is from the oldest start to now, and #
when it ran. Where it is no terminal, tabs part the columns:
started, ended, outcome, slot start, slot end, token, holder, site, operator.

{_CODES}"""
#: The outcome of the run that has not ended.
RUNNING = "running"


def history(given: list[str]) -> int:
    """Show the runs of one name."""
    parser = Parser("history", "rota history NAME [--json] [--url URL]", _HISTORY, _HISTORY_AFTER)
    parser.add_argument("name", metavar="NAME", help="the name, as given to rota run")
    parser.add_argument("--json", action="store_true", help=JSON)
    add_store(parser)
    found = parser.read(given)
    with connected(found) as (client, timeout):
        if not client.driver.capabilities.history:
            raise NotSupported("this store keeps no history (see its capabilities)")
        record, now = read(client, found.name, timeout)
        if record is None:
            return absent(client, found.name, timeout)
    rows = past(record, None if now is None else now[0])
    if found.json:
        show_json(map(_run_row, rows))
    elif is_terminal():
        latest = max((run.ended_at or run.started_at for run in rows), default=0) if now is None else now[0]
        shown = [
            (
                when(run.started_at),
                span(run.ended_at - run.started_at) if run.ended_at else "",
                run.outcome,
                when(run.slot_start),
                str(run.token or ""),
                run.label,
                bar,
            )
            for run, bar in zip(rows, timeline(rows, latest), strict=True)
        ]
        scale = _scale(rows, latest)
        show_table(("STARTED", "TOOK", "OUTCOME", "SLOT", "TOKEN", "HOLDER", scale), shown, spare=(scale, "TOKEN", "SLOT"))
        if not rows:
            say(f"{found.name}: no run has ended yet")
    else:
        show_columns(
            tuple("" if value is None else str(value) for key, value in _run_row(run).items() if key != "degraded") for run in rows
        )
    return 0


def past(record: Record, at: int | None) -> list[Run]:
    """Return the runs that are kept, newest first, with the one that is at work, or died at work, in front."""
    kept = runs(record.history)
    if record.owner and (at is None or is_live(record, at)):
        return [Run(record.slot_start, record.slot_end, record.token, record.granted_at, 0, RUNNING, record.label), *kept]
    last = unwritten(record)
    return kept if last is None else [last, *kept]


def _run_row(run: Run) -> dict[str, Any]:
    site, holder, operator = _who(run.label)
    return {
        "started_at": exact(run.started_at),
        "ended_at": exact(run.ended_at or None),
        "outcome": run.outcome,
        "slot_start": exact(run.slot_start),
        "slot_end": exact(run.slot_end),
        "token": run.token or None,
        "holder": holder or None,
        "site": site or None,
        "degraded": run.outcome == "degraded" or not run.token,
        "operator": operator or None,
    }


def _who(label: str) -> tuple[str, str, str]:
    """Take a run's label apart: ``site host:pid``, behind it ``(operator: why)`` of one that was ended, or the operator alone (by hand)."""
    import re

    if re.match(r"[^:]*@[^:]*: ", label):  # whatever the reason ends with
        return "", "", label
    found = re.fullmatch(r"(?:(.*?) )?(\S+:\d+)(?: \((.*)\))?", label)
    return (found[1] or "", found[2], found[3] or "") if found else ("", "", label)


def timeline(rows: list[Run], latest: int) -> list[str]:
    """Return a bar for each run, on one scale from the oldest start to the latest instant."""
    first = min((run.started_at for run in rows), default=0)
    whole = max(1, latest - first)

    def cell(at: int) -> int:
        return max(0, min(TIMELINE - 1, (at - first) * TIMELINE // whole))

    bars = []
    for run in rows:
        start, end = cell(run.started_at), cell(run.ended_at or latest)
        bars.append("." * start + "#" * (max(start, end) - start + 1) + "." * (TIMELINE - 1 - max(start, end)))
    return bars


def _scale(rows: list[Run], latest: int) -> str:
    return f"TIMELINE: {span(latest - min(run.started_at for run in rows))} UNTIL NOW" if rows else " "


COMMANDS = {"ls": ls, "show": show_one, "history": history}
