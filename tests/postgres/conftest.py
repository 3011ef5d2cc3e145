# SPDX-License-Identifier: MIT
"""A table of rota's for the tests of this folder, used by a role that may only read and write rows, directly and through a pooler."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import rota
from servers import PgBouncer, Postgres, RunningPostgres, add_user

Server = Postgres | PgBouncer | RunningPostgres

#: The timeout of a client of tests that are not about time, seconds: a machine that stands still for a while is no outage.
PATIENCE = 10


@pytest.fixture(scope="session")
def prepared(postgres: Postgres | RunningPostgres) -> Postgres | RunningPostgres:
    """The server with the table, and the role ``app``, which may use its rows and nothing else."""
    if postgres.sql("SELECT 1 FROM pg_roles WHERE rolname = 'app'") != "1":
        add_user(postgres, "app")
    client = rota.connect(postgres.url())
    postgres.sql(client.driver.schema(role="app"))
    client.close()
    return postgres


@pytest.fixture(params=["direct", "pgbouncer"])
def server(request: pytest.FixtureRequest, prepared: Server) -> Server:
    """The way to the server: itself, or the pooler in front of it."""
    if request.param == "direct":
        return prepared
    pooler: Server = request.getfixturevalue("pgbouncer")
    return pooler


@pytest.fixture
def connect(prepared: Server) -> Iterator[Callable[..., rota.Client]]:
    """Make clients of the role ``app``, closed at the end."""
    clients = []

    def make(server: Server = prepared, options: str = "", **named: object) -> rota.Client:
        clients.append(rota.connect(server.url("app", options=options), **{"timeout": PATIENCE, **named}))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def name() -> str:
    """A fresh name."""
    return f"job-{os.urandom(6).hex()}"


@pytest.fixture(scope="module")
def victim() -> Iterator[Postgres]:
    """A server of the module's own, to be hurt; with the table and the role ``app``."""
    with Postgres() as server:
        prepare(server)
        yield server


def prepare(server: Postgres) -> None:
    add_user(server, "app")
    client = rota.connect(server.url())
    server.sql(client.driver.schema(role="app"))
    client.close()
