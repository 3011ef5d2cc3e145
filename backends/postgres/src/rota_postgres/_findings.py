# SPDX-License-Identifier: MIT
"""What the facts of a PostgreSQL mean to rota: for ``rota doctor``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any

from rota.errors import RotaError, Unavailable
from rota.finding import BAD, OK, WARN, Finding

Facts = Mapping[str, Any]

_CREDENTIALS = re.compile(
    r"authentication failed|no password supplied|auth failed|no such user|role \S+ does not exist|not permitted to log in"
)
_TLS = re.compile(r"does not support SSL|SSL required|requires? SSL|certificate|root\.crt|no encryption")


def failed(error: RotaError, prepared_by: str) -> list[Finding]:
    """Return what is behind an error, as far as it is known."""
    said = str(error)
    if _TLS.search(said):
        cure = (
            "Write sslmode= as the server has it: require or verify-full where it speaks TLS (with sslrootcert= for its certificate),"
            " disable where it does not; SHOW ssl and pg_hba.conf at the server say which."
        )
        return [Finding(BAD, "tls", said, "The two never come together: no claim can be made.", cure)]
    if _CREDENTIALS.search(said):
        cure = "Correct user and password in the URL (percent-encoded), or in PGPASSWORD or ~/.pgpass; pg_hba.conf says who may come."
        return [Finding(BAD, "credentials", said, "With these nobody is let in, however long it is tried.", cure)]
    if "permission denied" in said:
        return [Finding(BAD, "permissions", said, "No claim can be made.", f"{prepared_by} ROLE, by the table's OWNER.")]
    if isinstance(error, Unavailable) and "read-only" in said:
        return [Finding(BAD, "role", said, "No claim can be made there.", _PRIMARY)]
    return []


_PRIMARY = "Name the primary; or all hosts, as in postgresql://USER@HOST1,HOST2/DATABASE: rota then takes the one that can write."


def examine(facts: Facts, prepared_by: str, table: str, listens: bool | RotaError | None) -> list[Finding]:
    """Return the findings.

    Args:
        facts: The driver's.
        prepared_by: The command that prepares the store; the role follows.
        table: Its name.
        listens: Whether notifications come, or why that can't be told; None: nobody wants them.
    """
    return [
        *_role(facts),
        *_table(facts, prepared_by, table),
        *_durability(facts),
        *_replication(facts),
        *_pooler(facts, listens),
        *_encoding(facts),
        *_credentials(facts),
    ]


def _role(facts: Facts) -> Iterator[Finding]:
    if facts["standby"]:
        yield Finding(BAD, "role", "the server is a standby, and read-only", "No claim can be made there.", _PRIMARY)
    else:
        yield Finding(OK, "role", "the primary")


def _table(facts: Facts, prepared_by: str, table: str) -> Iterator[Finding]:
    kind, init = facts["table"], f"{prepared_by} {quote(facts['role'])}"
    if kind == "missing":
        cure = f"{init}, once, by an OWNER who may create tables there; rota schema prints the SQL. Or correct ?table=, ?schema=."
        yield Finding(BAD, "table", f"there is no table {table}", "No claim can be made.", cure)
        return
    if kind == "unlogged":
        why = "A crash of the server empties it, so that each open slot may run once more; and no standby has it."
        yield Finding(WARN, "table", f"{table} is UNLOGGED", why, f"ALTER TABLE {table} SET LOGGED")
    elif kind == "temporary":
        why = "Nobody else sees it: nothing is coordinated."
        yield Finding(BAD, "table", f"{table} is a temporary table", why, f"{init}, in a schema that is not temporary.")
    else:
        yield Finding(OK, "table", f"{table} is there, and logged", facts={"records_estimate": facts["records_estimate"]})
    if facts["missing_permissions"]:
        cure = f"{init}, by the table's OWNER; it is safe to run twice."
        shown = f"the role {facts['role']} has no {facts['missing_permissions'].replace(' ', ', ')} on {table}"
        yield Finding(BAD, "permissions", shown, "Claims, or renewals and settling, are refused.", cure)
    else:
        yield Finding(OK, "permissions", f"the role {facts['role']} may use its rows")


def _durability(facts: Facts) -> Iterator[Finding]:
    again = "Slots that were handled may run once more, and a lease be held twice."
    if facts["fsync"] == "off":
        why = f"A crash of the host can lose or spoil everything. {again}"
        yield Finding(BAD, "durability", "fsync is off", why, "ALTER SYSTEM SET fsync = on; then SELECT pg_reload_conf()")
    elif facts["full_page_writes"] == "off":
        why = f"A crash of the host can leave half a page. {again}"
        cure = "ALTER SYSTEM SET full_page_writes = on; unless the file system never writes half a page."
        yield Finding(WARN, "durability", "full_page_writes is off", why, cure)
    elif facts["synchronous_commit"] == "off":
        why = f"A crash loses the last fraction of a second. {again}"
        cure = f"ALTER ROLE {facts['role']} SET synchronous_commit = on"
        yield Finding(WARN, "durability", "synchronous_commit is off", why, cure)
    else:
        yield Finding(OK, "durability", f"fsync on, synchronous_commit {facts['synchronous_commit']}: what was handled outlives a crash")


def _replication(facts: Facts) -> Iterator[Finding]:
    attached, names = facts["standbys_attached"], facts["synchronous_standby_names"]
    shown = f"{attached} standby{'' if attached == 1 else 's'} attached"
    if attached and not names:
        why = "A standby that takes over without the last commits lets their slots run once more, and a lease be held twice (W0)."
        cure = "Set synchronous_standby_names at the server; or see that a failover waits for the standby to catch up."
        yield Finding(WARN, "replication", f"{shown}, none of them synchronous", why, cure)
    elif names and not attached and not facts["standby"]:
        why = "Each commit waits for a standby that is not there: claims end as unknown."
        yield Finding(
            BAD, "replication", f"synchronous_standby_names = '{names}', and no standby is attached", why, "Attach one, or reset it."
        )
    else:
        yield Finding(OK, "replication", f"{shown}{', synchronous: ' + names if names else ''}")


def _pooler(facts: Facts, listens: bool | RotaError | None) -> Iterator[Finding]:
    if listens is None:
        yield Finding(OK, "pooler", f"{'a pooler' if facts['pooler'] else 'none'} in between; listen=off: waiters poll")
    elif isinstance(listens, RotaError):
        why = "Who waits for a name polls, up to a second late. Nothing else suffers."
        yield Finding(WARN, "pooler", f"waiters can't LISTEN: {listens}", why, "Correct the URL in listen=; or write listen=off.")
    elif not listens:
        why = "A pooler passes no notifications on: who waits for a name polls, up to a second late. Nothing else suffers."
        cure = "Write listen= in the URL, with a percent-encoded postgresql:// URL past the pooler; or listen=off, if polling will do."
        yield Finding(WARN, "pooler", "waiters can't LISTEN: a pooler in transaction mode is in between", why, cure)
    elif facts["pooler"]:
        yield Finding(OK, "pooler", "a pooler in between; waiters LISTEN past it")
    else:
        yield Finding(OK, "pooler", "none in between; waiters LISTEN")


def _encoding(facts: Facts) -> Iterator[Finding]:
    if facts["encoding"] != "UTF8":
        why = "Names and labels beyond ASCII are refused or spoilt."
        yield Finding(WARN, "encoding", f"the database's encoding is {facts['encoding']}", why, "Put the table into a database with UTF8.")


def _credentials(facts: Facts) -> Iterator[Finding]:
    if facts["password_unchecked"]:
        shown = "the server did not ask for the password that it would have been given"
        why = "Where pg_hba.conf says trust, whoever reaches the server may change who holds what, whatever password the URL has."
        cure = "Write scram-sha-256 in that line of pg_hba.conf; or leave the password out."
        yield Finding(WARN, "credentials", shown, why, cure)
