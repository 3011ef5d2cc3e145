# SPDX-License-Identifier: MIT
"""postgresql:// is held to every clause: directly, and through PgBouncer in transaction mode with a pool of 3."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import rota
import rota.testing
from rota.backend import Driver
from rota.testing.base import not_run
from rota_postgres._driver import PostgresDriver
from rota_postgres._link import Link
from rota_postgres._sql import Statements
from rota_postgres._wire import Statement, statement
from servers import PgBouncer, Postgres, RunningPostgres

MICROS = "(extract(epoch FROM {0}) * 1000000)::bigint AS {0}"


@pytest.fixture(scope="session")
def conforming(postgres: Postgres | RunningPostgres) -> Postgres | RunningPostgres:
    """The server, with a table for this file."""
    client = rota.connect(postgres.url(options="table=conform"))
    postgres.sql(client.driver.schema())
    client.close()
    return postgres


@pytest.fixture(scope="session")
def clocked(conforming: Postgres | RunningPostgres) -> Statements:
    """The statements of a table whose functions ask for a time that the connection was told."""
    statements = Statements("public", "clocked", "public.told()")
    told = "$$ SELECT 'epoch'::timestamptz + current_setting('rota.now')::bigint * interval '1 microsecond' $$"
    clock = f"CREATE OR REPLACE FUNCTION public.told() RETURNS timestamptz LANGUAGE sql VOLATILE AS {told}"
    conforming.sql(clock, *statements.schema())
    return statements


class TestPostgres(rota.testing.Conformance):
    @pytest.fixture(autouse=True)
    def store(self, conforming: Postgres | RunningPostgres) -> None:
        self.server = conforming
        self.url = conforming.url(options="table=conform")

    def raw(self, name: str) -> Mapping[str, object] | None:
        columns = ("token", "owner", MICROS.format("mark"), MICROS.format("expires_at"))
        quoted = name.replace("'", "''")
        table = "conform" if self.clock is None else "clocked"
        found = self.server.sql(f"SELECT {', '.join(columns)} FROM {table} WHERE name = '{quoted}'")
        if not found:
            return None
        token, owner, mark, expires_at = found.split("|")
        return {"token": int(token), "owner": owner, "mark": int(mark) if mark else None, "expires_at": int(expires_at)}

    def spoil(self, name: str) -> contextlib.AbstractContextManager[object]:
        not_run("a table of typed columns holds nothing that is none")

    @contextlib.contextmanager
    def hang(self) -> Iterator[None]:
        if not isinstance(self.server, Postgres):
            pytest.skip("not run: a running server is not stopped")
        self.server.pause()
        try:
            yield
        finally:
            self.server.resume()


class TestPgBouncer(TestPostgres):
    @pytest.fixture(autouse=True)
    def store(self, conforming: Postgres | RunningPostgres, pgbouncer: PgBouncer | RunningPostgres) -> None:
        self.server = conforming
        self.url = pgbouncer.url(options="table=conform&listen=off")


class TestClockSet(TestPostgres):
    """What is decided at the very instant of a boundary: the functions ask for a time that each connection is told before.

    Only the tests that need it; the other two classes run the rest by the real clock, and would only be repeated.
    """

    only_what_needs_a_clock = True  # see conftest.py

    @pytest.fixture(autouse=True)
    def store(self, conforming: Postgres | RunningPostgres, clocked: Statements, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = conforming
        self.url = conforming.url(options="table=clocked")
        self.statements = clocked
        conforming.sql("TRUNCATE clocked")  # what other tests left would be swept when time leaps
        self.clock = rota.testing.Clock()
        ask, tell = Link.ask, statement("SELECT set_config('rota.now', $1, false)", "text")

        def ask_at(link: Link, asked: Statement, values: Sequence[Any]) -> None:
            ask(link, tell, (str(self.clock.store()),))
            while link.has_come(20) and link.answer() is None:
                pass
            ask(link, asked, values)

        monkeypatch.setattr(Link, "ask", ask_at)

    def driver(self) -> Driver:
        options = super().driver().pool._options
        return PostgresDriver(options, options, self.statements, self.url)
