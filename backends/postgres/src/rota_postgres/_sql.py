# SPDX-License-Identifier: MIT
"""Every statement, and how its values travel: binary both ways, instants as `timestamptz`, which is exact to the microsecond.

How a claim is decided. It writes a row only if that is still the version that it has seen (``xmin``): what was seen is then what is
replaced, and `rota.rules` says of it, in this process, exactly what the statement wrote. ``clock_timestamp()`` is read once for the values;
``WHERE`` reads it again once the row lock is held, and refuses when `apply_until` has passed meanwhile (L7) or the values have grown old.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from rota.backend import FAILED, GAVE_UP, HANDLED, LEASE, OVERLAP, PENDING, ROLLING, SEALED, UNUSED, WINDOW, Record
from rota.duration import DAY

#: 2000-01-01, from which PostgreSQL counts, in microseconds since the Unix epoch; and its ``infinity``.
EPOCH, INFINITY = 946_684_800_000_000, 2**63 - 1
#: The longest that a claim's values may have waited for the row lock; such a claim is asked again.
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
    "names": "texts", "owners": "texts", "ttls": "int8s", "retentions": "int8s", "known_token": "int8", "table": "text",
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


_DECODERS = tuple(_TYPES[kind][2] for kind, _ in COLUMNS.values())


def record(data: bytes | None) -> Record | None:
    """Return the record that a ``ROW(…)`` of all columns holds."""
    if data is None:
        return None
    fields: list[Any] = []
    at = 4
    for decoder in _DECODERS:
        size = _INT4.unpack_from(data, at + 4)[0]  # before it stands the type's oid
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


def _row(alias: str) -> str:
    return f"ROW({', '.join(f'{alias}.{column}' for column in COLUMNS)})"


class Statements:
    """The statements for one table; ``clock`` is only ever another one in tests."""

    def __init__(self, schema: str, table: str, clock: str = "clock_timestamp()") -> None:
        self.table = f"{quoted(schema)}.{quoted(table)}"
        self._names = schema, table
        self._clock = clock
        self.claim = lru_cache(self._claim)
        self.settle = lru_cache(self._settle)
        self.read = self._statement("SELECT {clock}, r.xmin, {row:r} FROM {table} AS r WHERE r.name = :name")
        self.lock = self._statement("SELECT {clock}, r.xmin, {row:r} FROM {table} AS r WHERE r.name = :name FOR UPDATE")
        self.now = self._statement("SELECT {clock}")
        self.pid = self._statement("SELECT pg_backend_pid()")
        self.list = self._statement(
            "SELECT {row:r} FROM {table} AS r"
            " WHERE r.name >= :prefix AND starts_with(r.name, :prefix) AND r.name > :after ORDER BY r.name LIMIT :limit"
        )
        # L7: settling an owner id whose claim may still be inserting waits for that claim, then finds nothing to insert or fails: no trace
        self.probe = self._statement(
            "INSERT INTO {table} AS r (name, token, keep_until) SELECT :name, 0, 'epoch' ON CONFLICT DO NOTHING"
            " RETURNING ('rota: nothing to settle for ' || r.name)::int"
        )
        self.renew = self._statement(
            "WITH asked AS (SELECT * FROM unnest(:names, :owners, :ttls, :retentions) AS a(name, owner, ttl, retention)),"
            # L3: the lock first, so that the clock is read after any wait for it
            " held AS (SELECT r.name, r.owner, r.expires_at FROM {table} AS r"
            "  WHERE r.name = ANY (:names) AND r.owner = ANY (:owners) ORDER BY r.name FOR UPDATE),"
            # L3: only the owner, only while unexpired; the remaining time is set
            " renewed AS (UPDATE {table} AS r SET expires_at = {clock} + a.ttl * interval '1 microsecond',"
            # R1
            "  keep_until = greatest(r.keep_until, {clock} + (a.ttl + a.retention) * interval '1 microsecond')"
            "  FROM held AS h JOIN asked AS a USING (name, owner) WHERE r.name = h.name AND h.expires_at > {clock} RETURNING r.owner || r.name)"
            " SELECT {clock}, ARRAY(SELECT * FROM renewed)"
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

    def schema(self, role: str = "", unlogged: str = "") -> str:
        """Return the SQL that makes the table; see `schema`."""
        return schema(*self._names, role=role, unlogged=unlogged not in ("", "no", "false", "0"))

    def _statement(self, text: str) -> Statement:
        text = re.sub(r"\{row:(\w)\}", lambda match: _row(match[1]), text)
        text = text.replace("{table}", "\0").replace("{clock}", self._clock)
        names: list[str] = []

        def number(match: re.Match[str]) -> str:
            if match[1] not in names:
                names.append(match[1])
            return f"${names.index(match[1]) + 1}"

        text = re.sub(r"(?<!:):(\w+)", number, text).replace("\0", self.table)  # the table's name may hold anything
        types = [_TYPES[_VALUES[name] if name in _VALUES else COLUMNS[name][0]] for name in names]
        return Statement(text.encode(), tuple(names), tuple(kind[0] for kind in types), tuple(kind[1] for kind in types))

    def _claim(self, kind: str, seal: bool, overlap: bool, known: bool) -> Statement:
        """The claim of a kind: of a row that was seen (``known``), else together with the look at it."""
        new = {
            "name": ":name",
            "kind": ":kind",
            "token": _MICROS.format("c.now"),
            "owner": "''" if overlap else ":owner",
            "label": ":label",
            "granted_at": "c.now",
            "expires_at": "'epoch'::timestamptz" if overlap else "c.now + :ttl",
            "keep_until": "c.now + :retention" if overlap else "c.now + :ttl + :retention",
            "outcome": f"'{SEALED if seal else PENDING}'",
        }
        # L2
        update = {column: f"EXCLUDED.{column}" for column in new if column != "name"} | {"token": "greatest(r.token + 1, EXCLUDED.token)"}
        update["attempts"] = "1"
        if overlap:  # W4: settled later, or never
            new |= {"last_owner": ":owner", "last_result": f"'{OVERLAP}'", "last_expired": "false"}
            update |= {column: f"EXCLUDED.{column}" for column in ("last_owner", "last_result", "last_expired")}
        if kind != LEASE:
            new |= {"schedule": ":schedule", "zone_data": ":zone_data"}
            update |= {"schedule": "EXCLUDED.schedule", "zone_data": "EXCLUDED.zone_data", "prior_mark": "NULL"}
        if kind == WINDOW:
            new |= {
                "slot_start": ":start",
                "slot_end": ":end",
                "keep_until": f"greatest(:start, :end, {new['keep_until'].rpartition(' + ')[0]}) + :retention",
            }
            update |= {"slot_start": "EXCLUDED.slot_start", "slot_end": "EXCLUDED.slot_end"}
            update["attempts"] = "CASE WHEN r.slot_start = EXCLUDED.slot_start THEN r.attempts + 1 ELSE 1 END"  # W3c
        if kind == ROLLING:
            start = "greatest(EXCLUDED.granted_at, r.mark + interval '1 microsecond')"  # a clock that went back: not one start twice
            new |= {"slot_start": "c.now", "slot_end": "c.now + :period", "keep_until": "c.now + greatest(:ttl, :period) + :retention"}
            update |= {"slot_start": start, "slot_end": f"{start} + :period"}
            update["keep_until"] = f"greatest({start} + :period, EXCLUDED.expires_at) + :retention"
            update["attempts"] = (
                "CASE WHEN r.slot_end > EXCLUDED.granted_at AND r.mark IS DISTINCT FROM r.slot_start THEN r.attempts + 1 ELSE 1 END"
            )
        if seal:  # W3b
            new["mark"] = new["slot_start"]
            update |= {"mark": update["slot_start"], "prior_mark": "r.mark"}
        # L7, W5, W6: the clock is read once the row is locked
        in_time = f"{self._clock} <= least(:latest, {{}}.granted_at + {PATIENCE})"
        insert = (
            f"INSERT INTO {{table}} AS r ({', '.join(new)}) SELECT {', '.join(new.values())} FROM (SELECT {{clock}} AS now) AS c"
            f" WHERE c.now <= :latest{' AND c.now >= :earliest' if kind == WINDOW else ''}"
        )
        update_text = f" ON CONFLICT (name) DO UPDATE SET {', '.join(f'{column} = {value}' for column, value in update.items())} WHERE "
        if known:
            return self._statement(
                insert
                + update_text
                # before L1 and W2 are trusted to the version, they are looked at again: after a failover an old number may be given anew
                + f"r.xmin = :version AND {self._free('r', 'EXCLUDED.granted_at', kind)} AND {in_time.format('EXCLUDED')}"
                + " RETURNING r.xmin, r.granted_at, r.xmax = 0"
            )
        return self._statement(
            "WITH seen AS (SELECT s.xmin AS version, {row:s} AS record,"
            " s.kind IN ('', :kind) AND s.owner <> :owner AND s.last_owner <> :owner"
            f" AND {self._free('s', '{clock}', kind)} AS free FROM {{table}} AS s WHERE s.name = :name),"
            # refused: no lock, no write
            f" won AS ({insert} AND NOT EXISTS (SELECT FROM seen WHERE NOT free)"
            f"{update_text}r.xmin = (SELECT version FROM seen) AND {in_time.format('EXCLUDED')}"
            # L7: an insert may wait too, for another one of the same name; then nothing but failing undoes it
            f" RETURNING r.xmin, r.granted_at, CASE WHEN NOT ({in_time.format('r')})"
            " THEN ('rota: too late, the claim had to wait for ' || r.name)::int END)"
            " SELECT {clock}, seen.version, seen.record, won.xmin, won.granted_at"
            " FROM (VALUES (1)) AS one LEFT JOIN seen ON true LEFT JOIN won ON true"
        )

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

    def _settle(self, result: str, known: bool) -> Statement:
        """The end of a grant, by its result; of a row that was seen, or of whatever is there."""
        mark, outcome, attempts = "r.mark", f"CASE r.kind WHEN '{LEASE}' THEN :result ELSE r.outcome END", "r.attempts"
        if result in (HANDLED, GAVE_UP):  # W3, W3a, W3c
            mark = f"CASE r.kind WHEN '{LEASE}' THEN r.mark WHEN '{ROLLING}' THEN r.slot_start ELSE greatest(r.mark, r.slot_start) END"
            outcome = ":result"
        elif result == FAILED:
            outcome = ":result"
        elif result == UNUSED:  # W3b
            mark = f"CASE WHEN r.outcome = '{SEALED}' AND r.mark = r.slot_start THEN r.prior_mark ELSE r.mark END"
            outcome = f"CASE r.kind WHEN '{LEASE}' THEN :result ELSE '' END"
            attempts = f"CASE r.kind WHEN '{LEASE}' THEN r.attempts ELSE greatest(0, r.attempts - 1) END"
        return self._statement(
            "UPDATE {table} AS r SET owner = '', expires_at = 'epoch', last_owner = :owner, last_result = :result,"
            # W3a
            " last_expired = r.owner = :owner AND r.expires_at <= {clock},"
            f" mark = {mark}, prior_mark = NULL, attempts = {attempts}, outcome = {outcome}, settled_at = {{clock}},"
            # R1
            " keep_until = greatest(r.keep_until, {clock} + :retention), history = coalesce(:history, r.history)"
            # L4, W4
            f" WHERE r.name = :name AND (r.owner = :owner OR r.owner = '' AND r.last_owner = :owner AND r.last_result = '{OVERLAP}')"
            + (" AND r.xmin = :version" if known else "")
            + " RETURNING r.xmin, r.settled_at, r.last_expired, r.keep_until, "
            + ("NULL" if known else "{row:r}")
            + ", CASE WHEN r.waited = r.token THEN pg_notify(:channel, r.name) END"
        )


def schema(schema: str, table: str, role: str = "", unlogged: bool = False) -> str:
    """Return the SQL that makes the table, safe to run twice."""
    name = f"{quoted(schema)}.{quoted(table)}"
    lines = ["-- rota: one row per name. Safe to run twice; run it as the owner of the schema."]
    if unlogged:
        lines.append(
            "-- UNLOGGED: faster, but a crash of the server empties the table: every slot may run once more, and no standby has it."
        )
    lines += [
        f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)};" if schema != "public" else "",
        f"CREATE {'UNLOGGED ' if unlogged else ''}TABLE IF NOT EXISTS {name} (",
        *(f"    {column} {definition}," for column, (_, definition) in COLUMNS.items()),
        "    waited bigint NOT NULL DEFAULT 0 -- the token whose end somebody waits for",
        # no other index, and room on each page: a renewal then touches nothing but its row (HOT)
        ") WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 200);",
    ]
    if role:
        lines += [
            f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(role)};",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE {name} TO {quoted(role)};",
        ]
    return "\n".join(line for line in lines if line) + "\n"
