# SPDX-License-Identifier: MIT
"""A name's newest runs, kept in the record's bounded field and replaced in the same step as the settlement.

One run a line, newest first, fields parted by tabs: an operator can read it in the raw store, and start-up needs no parser.
"""

from __future__ import annotations

from .backend import DEGRADED, HISTORY_LIMIT, Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from ._value import NamedTuple

#: How much is kept, in bytes: 10 runs with labels of 40 bytes (`Capabilities.history`), more with shorter ones. A third of what a record
#: may hold, since every settlement writes it; with it a row of PostgreSQL stays under the 2 kB from which on it takes more steps to
#: write it.
KEPT = HISTORY_LIMIT // 3
#: What it may grow to before it is cut back to that: while the older runs stay as they are, a store whose log says in what two versions of
#: a record differ (PostgreSQL) writes little for them.
MOST = KEPT + KEPT // 4

#: What became of a grant whose holder never settled it.
CRASHED = "crashed"


class Run(NamedTuple):
    """One grant that ended. Instants are microseconds since the epoch by the store's clock.

    Attributes:
        slot_start: The slot's start; None for a lease.
        slot_end: The slot's end; None for a lease, or where the slot has none.
        token: The grant's token; 0 when it ran degraded.
        started_at: When it was granted.
        ended_at: When it was settled; for a crash, when its lease ran out. A degraded run began and ended, for the store, when it was
            told of it.
        outcome: ``handled``, ``failed``, ``gave up``, ``released``, ``unused``, ``degraded``, ``crashed``, or ``mark``: no run, but an
            operator who set the mark, to `slot_start`.
        label: Who held it; behind it the operator in brackets who ended it in its place, or the operator alone.
    """

    slot_start: int | None
    slot_end: int | None
    token: int
    started_at: int
    ended_at: int
    outcome: str
    label: str


def runs(history: bytes) -> list[Run]:
    """Read a history; a line that this version can't read is left out."""
    found = []
    for line in history.decode("utf-8", "replace").splitlines():
        fields = line.split("\t")
        if len(fields) != 7:
            continue
        try:
            start, end = (int(field) if field else None for field in fields[:2])
            token, started, ended = (int(field) for field in fields[2:5])
        except ValueError:
            continue
        found.append(Run(start, end, token, started, ended, fields[5], fields[6]))
    return found


def ended_by_operator(record: Record) -> Run | None:
    """Return the run of a record's newest grant, where an operator changed the record since, and so took the holder's place in it."""
    if record.owner or record.last_owner != "operator":
        return None
    return next((run for run in runs(record.history) if run.started_at == record.granted_at and run.token < record.token), None)


def add(history: bytes, start: int | None, end: int | None, token: int, started: int, ended: int, outcome: str, label: str) -> bytes:
    """Return the history with a run (see `Run`) in front, the oldest few dropped where there is no room."""
    slot = "\t" if start is None else f"{start}\t" if end is None else f"{start}\t{end}"
    begun = f"{started}"
    # nearly always the token is the time of the grant: writing numbers is most of the work
    history = f"{slot}\t{begun if token == started else token}\t{begun}\t{ended}\t{outcome}\t{label}\n".encode() + history
    return history if len(history) <= MOST else history[: history.rfind(b"\n", 0, KEPT) + 1]


def unwritten(record: Record) -> Run | None:
    """Return the run that a record tells of and its history does not: of an owner that never settled, or one that ran degraded.

    Whoever replaces the record in a settlement adds it. Of several in a row, which no settled grant parts, only the last is known.
    """
    if record.owner:
        return Run(record.slot_start, record.slot_end, record.token, record.granted_at, record.expires_at, CRASHED, record.label)
    if record.outcome == DEGRADED and record.last_owner != "operator":
        return Run(record.slot_start, record.slot_end, 0, record.settled_at, record.settled_at, DEGRADED, record.label)
    return None


def complete(record: Record) -> bytes:
    """Return a record's history with the run that it does not hold yet in front; see `unwritten`."""
    if not record.owner and record.outcome != DEGRADED:
        return record.history  # nearly always, and each settlement asks
    run = unwritten(record)
    return record.history if run is None else add(record.history, *run)
