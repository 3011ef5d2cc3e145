# SPDX-License-Identifier: MIT
"""Every statement for one table.

The verbs that change a record are functions in the database (functions.sql): planning a long statement costs more than carrying it out. A
function's plans are kept by each connection to the server, where nothing may be prepared by clients, who share it through a pooler.
"""

from __future__ import annotations

import re
from hashlib import sha256
from importlib import resources

from rota.duration import DAY

from ._wire import COLUMNS, statement

#: In the functions' names; it grows with what they do, so that clients of two versions can go on side by side.
VERSION = 5
#: The functions and the types of their parameters, which are the fields of the requests.
FUNCTIONS = {
    "lease": "text text text text span time span",
    "window": "text text text text span time span text text time time time time",
    "claim": "text text text text span time span text text time time time time span bool bool int4",
    "settle": "text text text span bytes",
    "forget": "text",
    "override": "text text text span time int8 bytes",
    "record": "text text text span text text time time",
}


def quoted(name: str) -> str:
    """Return an SQL identifier for any name."""
    return '"' + name.replace('"', '""') + '"'


class Statements:
    """The statements; ``clock`` is only ever another one in tests."""

    def __init__(self, schema: str, table: str, clock: str = "clock_timestamp()") -> None:
        self.table = f"{quoted(schema)}.{quoted(table)}"
        self.channel = "rota_" + sha256(self.table.encode()).hexdigest()[:32]
        self._schema = schema
        self._names = {verb: f"{quoted(schema)}.{quoted(f'{table}_{verb}_{VERSION}')}" for verb in FUNCTIONS}
        self._filled = {"table": self.table, "clock": clock, "channel": f"'{self.channel}'", "quote": "$rota$", **self._names}
        while self._filled["quote"] in self.table:
            self._filled["quote"] = self._filled["quote"].replace("$r", "$r_")
        # the whole answer as one value: a scan of the function would cost more
        self.verbs = {
            verb: statement(f"SELECT {self._names[verb]}({', '.join(f'${n}' for n in range(1, len(types.split()) + 1))})", types)
            for verb, types in FUNCTIONS.items()
        }
        self.read = statement(self._fill("SELECT {clock}, (SELECT r FROM {table} AS r WHERE r.name = $1)"), "text")
        self.now = statement(self._fill("SELECT {clock}"))
        self.pid = statement("SELECT pg_backend_pid()")
        self.listen = statement(f"LISTEN {self.channel}")
        self.unlisten = statement("UNLISTEN *")
        self.list = statement(
            self._fill(
                "SELECT r FROM {table} AS r WHERE r.name >= $1 AND starts_with(r.name, $1) AND r.name > $2 ORDER BY r.name LIMIT $3"
            ),
            "text text int8",
        )
        self.renew = statement(
            self._fill(
                "WITH asked AS (SELECT * FROM unnest($1, $2, $3, $4) AS a(name, owner, ttl, retention)),"
                " held AS (SELECT r.name, r.owner, r.expires_at FROM {table} AS r"
                "  WHERE r.name = ANY ($1) AND r.owner = ANY ($2) ORDER BY r.name FOR UPDATE),"
                # L3: the clock is read once, behind all these locks: counting comes to all rows
                " at AS MATERIALIZED (SELECT {clock} AS now FROM (SELECT count(*) FROM held) AS locked),"
                # L3: only the owner, only while unexpired; the remaining time is set
                " renewed AS (UPDATE {table} AS r SET expires_at = at.now + a.ttl * interval '1 microsecond',"
                # R1
                "  keep_until = greatest(r.keep_until, at.now + (a.ttl + a.retention) * interval '1 microsecond')"
                "  FROM at, held AS h JOIN asked AS a USING (name, owner) WHERE r.name = h.name AND h.expires_at > at.now"
                "  RETURNING r.owner || r.name)"
                " SELECT at.now, ARRAY(SELECT * FROM renewed) FROM at"
            ),
            "texts texts int8s int8s",
        )
        # a waiter leaves a note, so that a release without waiters costs no NOTIFY: those queue up behind each other at commit
        self.note = statement(
            self._fill(
                "WITH noted AS (UPDATE {table} AS r SET waited = r.token WHERE r.name = $1 AND r.owner = $2 AND r.waited <> r.token"
                "  RETURNING r.name)"
                " SELECT r.owner = $2, r.waited = r.token OR EXISTS (SELECT FROM noted) FROM {table} AS r WHERE r.name = $1"
            ),
            "text text",
        )
        # R3: at most 256 pages, from anywhere, so that a table of millions of records is never read as a whole; rows in use are passed over
        self.sweep = statement(
            self._fill(
                "WITH size AS (SELECT pg_relation_size($1::regclass) / current_setting('block_size')::int AS pages),"
                " first AS (SELECT floor(random() * greatest(1, pages - 255))::int AS page FROM size)"
                " DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT r.ctid FROM {table} AS r"
                "  WHERE r.ctid >= (SELECT format('(%s,0)', page)::tid FROM first)"
                "  AND r.ctid < (SELECT format('(%s,0)', page + 256)::tid FROM first)"
                # R1
                f"  AND r.expires_at <= {{clock}} AND r.keep_until < {{clock}}"
                f"  AND r.token + {DAY} < (extract(epoch FROM {{clock}}) * 1000000)::bigint"
                "  LIMIT $2 FOR UPDATE SKIP LOCKED))"
            ),
            "text int8",
        )
        self.columns = statement(
            "SELECT ARRAY(SELECT a.attname::text FROM pg_attribute AS a WHERE a.attrelid = to_regclass($1) AND a.attnum > 0"
            " AND NOT a.attisdropped ORDER BY a.attnum)",
            "text",
        )
        self.bare_read = statement(self._fill("SELECT r.token FROM {table} AS r WHERE r.name = $1"), "text")
        self.bare_write = statement(self._fill("UPDATE {table} SET waited = waited WHERE name = $1"), "text")
        self.facts = statement(
            self._fill(
                "SELECT current_setting('server_version'), pg_is_in_recovery(), current_setting('fsync'),"
                " current_setting('full_page_writes'), current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),"
                " current_setting('default_transaction_isolation'), current_setting('server_encoding'),"
                " current_setting('statement_timeout'), current_setting('max_connections'), current_user::text,"
                " (SELECT c.relpersistence::text FROM pg_class AS c WHERE c.oid = to_regclass($1)),"
                " (SELECT string_agg(p, ' ') FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p"
                "  WHERE NOT has_table_privilege(to_regclass($1), p)),"
                " (SELECT count(*) FROM pg_stat_replication),"
                " (SELECT c.reltuples::bigint FROM pg_class AS c WHERE c.oid = to_regclass($1)),"
                " {clock}, pg_backend_pid()"
            ),
            "text",
        )

    def schema(self, role: str = "", unlogged: str = "") -> list[str]:
        """Return the statements that make the table and its functions, safe to run twice."""
        kind = "" if unlogged in ("", "no", "false", "0") else "UNLOGGED "
        table = [
            f"CREATE {kind}TABLE IF NOT EXISTS {self.table} (",
            ",\n".join(f"    {column} {made}" for column, made in COLUMNS.items()),
            # no other index, and room on each page: a change then touches nothing but its row (HOT). Whoever reads a page with less room
            # than that clears it of former versions, so it has to be more than a row with a full history takes.
            # toast_tuple_target: compressing a full history at each settlement would cost more than all else that a settlement does
            ") WITH (fillfactor = 60, toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 200)",
        ]
        source = resources.files(__package__).joinpath("functions.sql").read_text(encoding="utf-8")
        found = [] if self._schema == "public" else [f"CREATE SCHEMA IF NOT EXISTS {quoted(self._schema)}"]
        found += ["\n".join(table), f"ALTER TABLE {self.table} SET (fillfactor = 60)"]
        _, otherwise, *functions = source.split("\n\n")
        self._filled["otherwise"] = self._fill(otherwise.partition("\n")[2])
        found += [self._fill(each.strip().rstrip(";")) for each in functions]
        if role:
            found.append(f"GRANT USAGE ON SCHEMA {quoted(self._schema)} TO {quoted(role)}")
            found.append(f"GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE {self.table} TO {quoted(role)}")
            found += [f"GRANT EXECUTE ON FUNCTION {name} TO {quoted(role)}" for name in self._names.values()]
        return found

    def _fill(self, text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda match: self._filled[match[1]], text)  # in one go: a name may hold anything
