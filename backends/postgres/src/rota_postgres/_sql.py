# SPDX-License-Identifier: MIT
"""Every statement, and how its values travel: binary both ways, instants as `timestamptz`, which is exact to the microsecond.

How a claim is decided. It writes a row only if that is still the version that it has seen (``xmin``): what was seen is then what is
replaced, and `rota.rules` says of it, in this process, exactly what the statement wrote. ``clock_timestamp()`` is read once for the values.
Behind the row lock it is read again: where it shows that the claim waited past its `apply_until` (L7), or that the values have grown old,
the statement fails, which undoes it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from rota.backend import FAILED, GAVE_UP, HANDLED, LEASE, OVERLAP, PENDING, ROLLING, SEALED, UNUSED, WINDOW, Record
from rota.duration import DAY
from rota.errors import ConfigurationError

#: 2000-01-01, from which PostgreSQL counts, in microseconds since the Unix epoch; and its ``infinity``.
EPOCH, INFINITY = 946_684_800_000_000, 2**63 - 1
#: The longest that a claim may have waited for the row lock since the values were made; beyond it is asked again.
PATIENCE = "interval '100 ms'"
#: What `Record` keeps, in its order: the columns, their types here, and how the table is made.
COLUMNS = {
    "name": ("text", 'text COLLATE "C" PRIMARY KEY'),  # "C": by bytes, as `list` promises
    "kind": ("text", "text NOT NULL DEFAULT ''"),
    "schedule": ("text", "text NOT NULL DEFAULT ''"),
    "zone_data": ("text", "text NOT NULL DEFAULT ''"),
    "token": ("int8", "bigint NOT NULL"),
    "owner": ("text", "text NOT NULL DEFAULT ''"),
    "label": ("text", "text NOT NULL DEFAULT ''"),
    "granted_at": ("time", "timestamptz NOT NULL DEFAULT 'epoch'"),
    "expires_at": ("time", "timestamptz NOT NULL DEFAULT 'epoch'"),
    "last_owner": ("text", "text NOT NULL DEFAULT ''"),
    "last_result": ("text", "text NOT NULL DEFAULT ''"),
    "last_expired": ("bool", "boolean NOT NULL DEFAULT false"),
    "mark": ("time", "timestamptz"),
    "prior_mark": ("time", "timestamptz"),
    "slot_start": ("time", "timestamptz"),
    "slot_end": ("time", "timestamptz"),
    "attempts": ("int4", "integer NOT NULL DEFAULT 1"),
    "outcome": ("text", "text NOT NULL DEFAULT ''"),
    "settled_at": ("time", "timestamptz NOT NULL DEFAULT 'epoch'"),
    "keep_until": ("time", "timestamptz NOT NULL"),
    "history": ("bytes", "bytea NOT NULL DEFAULT ''"),
    "format": ("int4", "integer NOT NULL DEFAULT 1"),
}
#: Type names here: PostgreSQL's oid, to bytes, from bytes.
_INT8, _INT4 = struct.Struct("!q"), struct.Struct("!i")
_TYPES: dict[str, tuple[int, Any, Any]] = {
    "text": (25, str.encode, lambda data: str(data, "utf-8")),
    "time": (1184, lambda at: _INT8.pack(at if at == INFINITY else at - EPOCH), lambda data: _INT8.unpack(data)[0] + EPOCH),
    "span": (1186, lambda span: struct.pack("!qii", span, 0, 0), None),
    "int8": (20, _INT8.pack, lambda data: _INT8.unpack(data)[0]),
    "int4": (23, _INT4.pack, lambda data: _INT4.unpack(data)[0]),
    "bool": (16, lambda flag: b"\1" if flag else b"\0", lambda data: data == b"\1"),
    "bytes": (17, bytes, bytes),
    "version": (28, bytes, bytes),  # xid: as it came
    "texts": (1009, lambda items: _array(25, [item.encode() for item in items]), None),
    "int8s": (1016, lambda items: _array(20, [_INT8.pack(item) for item in items]), None),
}
#: The types of values that are no columns.
_VALUES = {
    "ttl": "span", "retention": "span", "period": "span", "latest": "time", "earliest": "time", "start": "time", "end": "time",
    "most": "int4", "version": "version", "result": "text", "channel": "text", "prefix": "text", "after": "text", "limit": "int8",
    "names": "texts", "owners": "texts", "ttls": "int8s", "retentions": "int8s", "known_token": "int8", "table": "text", "at": "time",
}  # fmt: skip


class Statement(NamedTuple):
    """A statement as it is sent: text with ``$1``…, and the names and types of its values."""

    text: bytes
    names: tuple[str, ...]
    oids: tuple[int, ...]
    encoders: tuple[Any, ...]

    def encode(self, values: Mapping[str, Any]) -> list[bytes | None]:
        """Return the values in the order and form of the wire."""
        return [None if (value := values[name]) is None else encode(value) for name, encode in zip(self.names, self.encoders, strict=True)]


def _array(oid: int, items: Sequence[bytes]) -> bytes:
    head = struct.pack("!iiiii", 1, 0, oid, len(items), 1) if items else struct.pack("!iii", 0, 0, oid)
    return head + b"".join(_INT4.pack(len(item)) + item for item in items)


def decode(kind: str, data: bytes | None) -> Any:
    """Return a value that came, by its type's name here."""
    return None if data is None else _TYPES[kind][2](data)


_HEAD = struct.Struct("!ii")
_DECODERS = tuple((_TYPES[kind][0], _TYPES[kind][2]) for kind, _ in COLUMNS.values())


def record(data: bytes | None) -> Record | None:
    """Return the record that a whole row holds. Naming the row instead of its columns saves the server a tenth of a claim.

    Raises:
        ConfigurationError: The table's columns are not those of `schema`.
    """
    if data is None:
        return None
    fields: list[Any] = []
    at = 4
    for oid, decoder in _DECODERS:
        found, size = _HEAD.unpack_from(data, at)
        if found != oid:
            raise ConfigurationError("the columns of the table are others, or in another order, than `rota schema` prints")
        at += 8
        if size < 0:
            fields.append(None)
        else:
            fields.append(decoder(data[at : at + size]))
            at += size
    return Record._make(fields)


def texts(data: bytes) -> list[str]:
    """Return the items of a ``text[]``."""
    if not _INT4.unpack_from(data)[0]:
        return []
    at, items = 20, []
    while at < len(data):
        size = _INT4.unpack_from(data, at)[0]
        items.append(str(data[at + 4 : at + 4 + size], "utf-8"))
        at += 4 + size
    return items


def quoted(name: str) -> str:
    """Return an SQL identifier for any name."""
    return '"' + name.replace('"', '""') + '"'


_MICROS = "(extract(epoch FROM {}) * 1000000)::bigint"


class Statements:
    """The statements for one table; ``clock`` is only ever another one in tests."""

    def __init__(self, schema: str, table: str, clock: str = "clock_timestamp()") -> None:
        self.table = f"{quoted(schema)}.{quoted(table)}"
        self._names = schema, table
        self._clock = clock
        self.claim = lru_cache(self._claim)
        self.settle = lru_cache(self._settle)
        self.read = self._statement("SELECT {clock}, r.xmin, r FROM {table} AS r WHERE r.name = :name")
        self.lock = self._statement("SELECT {clock}, r.xmin, r FROM {table} AS r WHERE r.name = :name FOR UPDATE")
        self.now = self._statement("SELECT {clock}")
        self.pid = self._statement("SELECT pg_backend_pid()")
        self.list = self._statement(
            "SELECT r FROM {table} AS r"
            " WHERE r.name >= :prefix AND starts_with(r.name, :prefix) AND r.name > :after ORDER BY r.name LIMIT :limit"
        )
        # L7: settling an owner id whose claim may still be inserting waits for that claim, then finds nothing to insert or fails: no trace
        self.probe = self._statement(
            "INSERT INTO {table} AS r (name, token, keep_until) SELECT :name, 0, 'epoch' ON CONFLICT DO NOTHING"
            " RETURNING ('rota: nothing to settle for ' || r.name)::int"
        )
        self.renew = self._statement(
            "WITH asked AS (SELECT * FROM unnest(:names, :owners, :ttls, :retentions) AS a(name, owner, ttl, retention)),"
            " held AS (SELECT r.name, r.owner, r.expires_at FROM {table} AS r"
            "  WHERE r.name = ANY (:names) AND r.owner = ANY (:owners) ORDER BY r.name FOR UPDATE),"
            # L3: the clock is read once, behind all these locks: counting comes to all rows
            " at AS MATERIALIZED (SELECT {clock} AS now FROM (SELECT count(*) FROM held) AS locked),"
            # L3: only the owner, only while unexpired; the remaining time is set
            " renewed AS (UPDATE {table} AS r SET expires_at = at.now + a.ttl * interval '1 microsecond',"
            # R1
            "  keep_until = greatest(r.keep_until, at.now + (a.ttl + a.retention) * interval '1 microsecond')"
            "  FROM at, held AS h JOIN asked AS a USING (name, owner) WHERE r.name = h.name AND h.expires_at > at.now"
            "  RETURNING r.owner || r.name)"
            " SELECT at.now, ARRAY(SELECT * FROM renewed) FROM at"
        )
        columns = list(COLUMNS)
        self.insert = self._statement(
            f"INSERT INTO {{table}} AS r ({', '.join(columns)}) VALUES ({', '.join(':' + column for column in columns)})"
            " ON CONFLICT DO NOTHING RETURNING r.xmin"
        )
        self.replace = self._statement(
            f"UPDATE {{table}} AS r SET {', '.join(f'{column} = :{column}' for column in columns[1:])}"
            " WHERE r.name = :name AND r.xmin = :version"
            " RETURNING r.xmin, CASE WHEN r.waited = :known_token THEN pg_notify(:channel, r.name) END"
        )
        # a waiter leaves a note, so that a release without waiters costs no NOTIFY: those queue up behind each other at commit
        self.note = self._statement(
            "WITH noted AS (UPDATE {table} AS r SET waited = r.token WHERE r.name = :name AND r.owner = :owner AND r.waited <> r.token"
            "  RETURNING r.name)"
            " SELECT r.owner = :owner, r.waited = r.token OR EXISTS (SELECT FROM noted) FROM {table} AS r WHERE r.name = :name"
        )
        # R3: at most 256 pages, from anywhere, so that a table of millions of records is never read as a whole; rows in use are passed over
        self.sweep = self._statement(
            "WITH size AS (SELECT pg_relation_size(:table::regclass) / current_setting('block_size')::int AS pages),"
            " first AS (SELECT floor(random() * greatest(1, pages - 255))::int AS page FROM size)"
            " DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT r.ctid FROM {table} AS r"
            "  WHERE r.ctid >= (SELECT format('(%s,0)', page)::tid FROM first)"
            "  AND r.ctid < (SELECT format('(%s,0)', page + 256)::tid FROM first)"
            # R1
            f"  AND r.expires_at <= {{clock}} AND r.keep_until < {{clock}} AND r.token + {DAY} < {_MICROS.format('{clock}')}"
            "  LIMIT :limit FOR UPDATE SKIP LOCKED))"
        )
        self.facts = self._statement(
            "SELECT current_setting('server_version'), pg_is_in_recovery(), current_setting('fsync'), current_setting('full_page_writes'),"
            " current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),"
            " current_setting('default_transaction_isolation'), current_setting('server_encoding'), current_setting('statement_timeout'),"
            " current_setting('max_connections'), current_user::text,"
            " (SELECT c.relpersistence::text FROM pg_class AS c WHERE c.oid = to_regclass(:table)),"
            " (SELECT string_agg(p, ' ') FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p"
            "  WHERE NOT has_table_privilege(to_regclass(:table), p)),"
            " (SELECT count(*) FROM pg_stat_replication),"
            " (SELECT c.reltuples::bigint FROM pg_class AS c WHERE c.oid = to_regclass(:table)),"
            " {clock}, pg_backend_pid()"
        )

    def schema(self, role: str = "", unlogged: str = "") -> list[str]:
        """Return the statements that make the table; see `definition`."""
        return definition(*self._names, role=role, unlogged=unlogged not in ("", "no", "false", "0"))

    def _statement(self, text: str) -> Statement:
        text = text.replace("{table}", "\0").replace("{clock}", self._clock)
        names: list[str] = []

        def number(match: re.Match[str]) -> str:
            if match[1] not in names:
                names.append(match[1])
            return f"${names.index(match[1]) + 1}"

        text = re.sub(r"(?<!:):(\w+)", number, text).replace("\0", self.table)  # the table's name may hold anything
        types = [_TYPES[_VALUES[name] if name in _VALUES else COLUMNS[name][0]] for name in names]
        return Statement(text.encode(), tuple(names), tuple(kind[0] for kind in types), tuple(kind[1] for kind in types))

    def _claim(self, kind: str, seal: bool, overlap: bool, seen: bool, alike: bool = False) -> Statement:
        """The claim of a kind: of a row that was seen, which may be ``alike`` in what a grant seldom changes; else with the look at it."""
        if seen:
            columns = self._granted(kind, seal, overlap, "now")
            columns |= self._regranted(kind, seal, "now", _MICROS.format("now"))
            if alike:  # each column that is not written saves time
                columns = {column: value for column, value in columns.items() if column not in ("kind", "label", "schedule", "zone_data")}
            if alike and kind == LEASE:
                del columns["attempts"]
            return self._statement(
                f"UPDATE {{table}} AS r SET {_assignments(columns)} FROM {{clock}} AS now WHERE r.name = :name"
                # L1 and W2 follow from the version, and are looked at again: after a failover an old one may be given anew
                f" AND r.xmin = :version AND {self._free('r', 'now', kind)} AND {_in_time(kind)}"
                f" RETURNING r.xmin, r.granted_at, {self._undo(latest=':latest, ')}"
            )
        new = {"name": ":name", "token": _MICROS.format("now")} | self._granted(kind, seal, overlap, "now")
        again = self._granted(kind, seal, overlap, "EXCLUDED.granted_at") | self._regranted(
            kind, seal, "EXCLUDED.granted_at", "EXCLUDED.token"
        )
        return self._statement(
            "WITH seen AS (SELECT s.xmin AS version, s AS record, s.kind IN ('', :kind) AND s.owner <> :owner AND s.last_owner <> :owner"
            f" AND {self._free('s', '{clock}', kind)} AS free FROM {{table}} AS s WHERE s.name = :name),"
            # refused: no lock, no write
            f" won AS (INSERT INTO {{table}} AS r ({', '.join(new)}) SELECT {', '.join(new.values())} FROM {{clock}} AS now"
            f" WHERE {_in_time(kind)} AND NOT EXISTS (SELECT FROM seen WHERE NOT free)"
            f" ON CONFLICT (name) DO UPDATE SET {_assignments(again)}"
            f" WHERE r.xmin = (SELECT version FROM seen) RETURNING r.xmin, r.granted_at, {self._undo(latest=':latest, ')})"
            " SELECT {clock}, seen.version, seen.record, won.xmin, won.granted_at"
            " FROM (VALUES (1)) AS one LEFT JOIN seen ON true LEFT JOIN won ON true"
        )

    def _granted(self, kind: str, seal: bool, overlap: bool, now: str) -> dict[str, str]:
        """The columns of a grant, and their values, where nothing was before."""
        ends = now if overlap else f"{now} + :ttl"
        columns = {
            "kind": ":kind",
            "owner": "''" if overlap else ":owner",
            "label": ":label",
            "granted_at": now,
            "expires_at": "'epoch'" if overlap else ends,
            "outcome": f"'{SEALED if seal else PENDING}'",
            "keep_until": f"{ends} + :retention",  # R1
        }
        if overlap:  # W4: settled later, or never
            columns |= {"last_owner": ":owner", "last_result": f"'{OVERLAP}'", "last_expired": "false"}
        if kind != LEASE:
            columns |= {"schedule": ":schedule", "zone_data": ":zone_data"}
        if kind == WINDOW:
            columns |= {"slot_start": ":start", "slot_end": ":end", "keep_until": f"greatest(:start, :end, {ends}) + :retention"}
        if kind == ROLLING:  # W12
            columns |= {"slot_start": now, "slot_end": f"{now} + :period", "keep_until": f"{now} + greatest(:ttl, :period) + :retention"}
        if seal:  # W3b
            columns["mark"] = columns["slot_start"]
        return columns

    def _regranted(self, kind: str, seal: bool, now: str, token: str) -> dict[str, str]:
        """The columns whose values depend on what was before."""
        columns = {"token": f"greatest(r.token + 1, {token})", "attempts": "1"}  # L2
        if kind != LEASE:
            columns["prior_mark"] = "r.mark" if seal else "NULL"  # W3b
        if kind == WINDOW:
            columns["attempts"] = "CASE WHEN r.slot_start = :start THEN r.attempts + 1 ELSE 1 END"  # W3c
        if kind == ROLLING:
            start = f"greatest({now}, r.mark + interval '1 microsecond')"  # a clock that went back: not one start twice
            columns |= {"slot_start": start, "slot_end": f"{start} + :period"}
            columns["keep_until"] = f"greatest({start} + :period, {now} + :ttl) + :retention"
            columns["attempts"] = f"CASE WHEN r.slot_end > {now} AND r.mark IS DISTINCT FROM r.slot_start THEN r.attempts + 1 ELSE 1 END"
            if seal:
                columns["mark"] = start
        return columns

    def _undo(self, made: str = "r.granted_at", latest: str = "") -> str:
        """Evaluated behind every wait for a lock or for another insert; failing is what undoes the statement when that took long (L7)."""
        return f"CASE WHEN {self._clock} > least({latest}{made} + {PATIENCE}) THEN ('rota: undone, it had to wait for ' || r.name)::int END"

    def _free(self, row: str, now: str, kind: str) -> str:
        """Whether a row may be granted (L1, W2, W3c, W12); see `rota.rules.claim`. Never NULL."""
        free = f"{row}.expires_at <= {now}"
        if kind == WINDOW:
            free += (
                f" AND ({row}.mark IS NULL OR {row}.mark < :start) AND ({row}.slot_start IS DISTINCT FROM :start OR {row}.attempts < :most)"
            )
        if kind == ROLLING:
            free += (
                f" AND (coalesce({row}.slot_end <= {now}, true) OR {row}.mark IS DISTINCT FROM {row}.slot_start AND {row}.attempts < :most)"
            )
        return free

    def _settle(self, result: str, kind: str, history: bool) -> Statement:
        """The end of a grant by its result: of a grant that is known to be of a kind, else of any."""
        window = f"CASE r.kind WHEN '{ROLLING}' THEN r.slot_start ELSE greatest(r.mark, r.slot_start) END"
        by_kind = {LEASE: "r.mark", WINDOW: "greatest(r.mark, r.slot_start)", ROLLING: "r.slot_start"}
        columns = {
            "owner": "''",
            "expires_at": "'epoch'",
            "last_owner": ":owner",
            "last_result": ":result",
            # W3a
            "last_expired": "r.expires_at <= now" if kind else "r.owner = :owner AND r.expires_at <= now",
            "settled_at": "now",
            # R1
            "keep_until": "greatest(r.keep_until, now + :retention)",
            "prior_mark": "NULL",
            "outcome": ":result",
        }
        if history:
            columns["history"] = ":history"
        if result in (HANDLED, GAVE_UP):  # W3, W3a, W3c
            columns["mark"] = by_kind.get(kind, f"CASE r.kind WHEN '{LEASE}' THEN r.mark ELSE {window} END")
        elif result == UNUSED:  # W3b
            columns["mark"] = f"CASE WHEN r.outcome = '{SEALED}' AND r.mark = r.slot_start THEN r.prior_mark ELSE r.mark END"
            columns["outcome"] = f"CASE r.kind WHEN '{LEASE}' THEN :result ELSE '' END"
            columns["attempts"] = f"CASE r.kind WHEN '{LEASE}' THEN r.attempts ELSE greatest(0, r.attempts - 1) END"
        elif result != FAILED and kind != LEASE:
            columns["outcome"] = f"CASE r.kind WHEN '{LEASE}' THEN :result ELSE r.outcome END"
        if kind == LEASE:
            columns = {column: value for column, value in columns.items() if column not in ("mark", "prior_mark")}
        # L4, W4
        mine = "r.owner = :owner"
        overlap = f"r.owner = '' AND r.last_owner = :owner AND r.last_result = '{OVERLAP}'"
        return self._statement(
            f"UPDATE {{table}} AS r SET {_assignments(columns)} FROM {{clock}} AS now WHERE r.name = :name"
            + (f" AND {mine}" if kind else f" AND ({mine} OR {overlap})")
            + f" RETURNING r.xmin, r, CASE WHEN r.waited = r.token THEN pg_notify(:channel, r.name) END, {self._undo('r.settled_at')}"
        )


def _assignments(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{column} = {value}" for column, value in columns.items())


def _in_time(kind: str) -> str:
    """L7, W5, W6: the claim may be applied now."""
    return "now <= :latest AND now >= :earliest" if kind == WINDOW else "now <= :latest"


def definition(schema: str, table: str, role: str = "", unlogged: bool = False) -> list[str]:
    """Return the statements that make the table, safe to run twice."""
    name = f"{quoted(schema)}.{quoted(table)}"
    columns = [f"    {column} {made}," for column, (_, made) in COLUMNS.items()]
    statements = [
        f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}" if schema != "public" else "",
        "\n".join(
            [
                f"CREATE {'UNLOGGED ' if unlogged else ''}TABLE IF NOT EXISTS {name} (",
                *columns,
                "    waited bigint NOT NULL DEFAULT 0 -- the token whose end somebody waits for",
                # no other index, and room on each page: a renewal then touches nothing but its row (HOT)
                ") WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 200)",
            ]
        ),
        f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(role)}" if role else "",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE {name} TO {quoted(role)}" if role else "",
    ]
    return [statement for statement in statements if statement]
