# SPDX-License-Identifier: MIT
"""postgresql:// is held to every clause: directly, and through PgBouncer in transaction mode with a pool of 3."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest
import rota
import rota.testing
from rota.backend import Driver
from rota_postgres._driver import PostgresDriver
from rota_postgres._sql import Statement, Statements
from servers import PgBouncer, Postgres, RunningPostgres

MICROS = "(extract(epoch FROM {0}) * 1000000)::bigint AS {0}"


@pytest.fixture(scope="session")
def conforming(postgres: Postgres | RunningPostgres) -> Postgres | RunningPostgres:
    """The server, with a table for this file."""
    client = rota.connect(postgres.url(options="table=conform"))
    postgres.sql(client.driver.schema())
    client.close()
    return postgres


class TestPostgres(rota.testing.Conformance):
    @pytest.fixture(autouse=True)
    def store(self, conforming: Postgres | RunningPostgres) -> None:
        self.server = conforming
        self.url = conforming.url(options="table=conform")

    def raw(self, name: str) -> Mapping[str, object] | None:
        columns = ("token", "owner", MICROS.format("mark"), MICROS.format("expires_at"))
        quoted = name.replace("'", "''")
        found = self.server.sql(f"SELECT {', '.join(columns)} FROM conform WHERE name = '{quoted}'")
        if not found:
            return None
        token, owner, mark, expires_at = found.split("|")
        return {"token": int(token), "owner": owner, "mark": int(mark) if mark else None, "expires_at": int(expires_at)}

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


class Clocked(Statement):
    """A statement that is told the time."""

    clock: ClassVar[rota.testing.Clock]

    def encode(self, values: Mapping[str, Any]) -> list[bytes | None]:
        return super().encode({**values, "at": self.clock.store()})


class ClockedStatements(Statements):
    def _statement(self, text: str) -> Statement:
        return Clocked._make(super()._statement(text))


class TestPostgresWithAClockOfOurs(TestPostgres):
    """What is decided at the very instant of a boundary: the statements are told the time instead of asking for it."""

    @pytest.fixture(autouse=True)
    def store(self, conforming: Postgres | RunningPostgres) -> None:
        self.server = conforming
        self.url = conforming.url(options="table=conform")
        function = "CREATE OR REPLACE FUNCTION public.at(timestamptz) RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT $1'"
        conforming.sql(function, "TRUNCATE conform")  # what other tests left would be swept when time leaps
        self.clock = Clocked.clock = rota.testing.Clock()

    def driver(self) -> Driver:
        driver = super().driver()
        return PostgresDriver(
            driver.pool._options, driver.pool._options, ClockedStatements("public", "conform", "public.at(:at)"), self.url
        )
