# SPDX-License-Identifier: MIT
"""A claim reads the server's clock in the statement that looks at the record: what it grants is never older than what it replaces."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import rota
from rota.backend import BUSY, LEASE, ROLLING, WINDOW, WON, Claim, Settlement
from rota.duration import DAY, SECOND
from rota_postgres._sql import Statements
from servers import Postgres, RunningPostgres, wait_until

PATIENCE = 10.0
LOCK = 7
SLOT = 1_790_000_000 * SECOND


@pytest.fixture
def admin(prepared: Postgres | RunningPostgres) -> Iterator[psycopg.Connection]:
    """A session that holds the advisory lock: clients that are named ``slow`` stand still behind each look at the clock."""
    with psycopg.connect(prepared.url(), autocommit=True) as admin:
        admin.execute(f"SELECT pg_advisory_lock({LOCK})")
        yield admin


@pytest.fixture
def schema(admin: psycopg.Connection) -> Iterator[str]:
    """A schema with a table whose functions read the clock that way."""
    schema = f"t{os.urandom(6).hex()}"
    admin.execute(f"CREATE SCHEMA {schema}")
    admin.execute(
        f"CREATE FUNCTION {schema}.told() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$"
        " DECLARE told timestamptz := clock_timestamp();"
        f" BEGIN IF current_setting('application_name') = 'slow' THEN PERFORM pg_advisory_xact_lock_shared({LOCK}); END IF;"
        " RETURN told; END $$"
    )
    for statement in Statements(schema, "rota", f"{schema}.told()").schema():
        admin.execute(statement)
    yield schema
    admin.execute(f"DROP SCHEMA {schema} CASCADE")


def claim(name: str, kind: str) -> Claim:
    now = time.time_ns() // 1000
    asked = Claim(name, os.urandom(16).hex(), "here", kind, 30 * SECOND, now + 60 * SECOND, DAY)
    if kind == WINDOW:
        return asked._replace(schedule="every 1h", slot_start=SLOT, slot_end=SLOT + 3600 * SECOND)
    return asked._replace(schedule="once per 1us", period=1) if kind == ROLLING else asked


@pytest.mark.parametrize("kind", [LEASE, WINDOW, ROLLING])
def test_a_grant_is_not_older_than_a_settlement_that_came_in_between(
    kind: str, schema: str, admin: psycopg.Connection, prepared: Postgres | RunningPostgres, name: str
) -> None:
    url = prepared.url(options=f"schema={schema}")
    with rota.connect(url) as holder, rota.connect(f"{url}&application_name=slow") as slow, ThreadPoolExecutor(1) as pool:
        held = claim(name, kind)
        assert holder.driver.claim(held, PATIENCE).verdict == WON
        late = pool.submit(slow.driver.claim, claim(name, kind), PATIENCE)
        waits = f"SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = {LOCK} AND NOT granted"
        wait_until(lambda: admin.execute(waits).fetchone() is not None, PATIENCE)
        result = "released" if kind == LEASE else "failed"
        assert holder.driver.settle(Settlement(name, held.owner, result, DAY), PATIENCE).applied
        admin.execute(f"SELECT pg_advisory_unlock({LOCK})")
        answer = late.result(PATIENCE)
    # looked at as it was at the time that was read: held; else the time is read anew
    assert answer.verdict == BUSY or (answer.verdict == WON and answer.record.granted_at >= answer.before.settled_at)
