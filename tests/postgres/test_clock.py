# SPDX-License-Identifier: MIT
"""Verbs go by a time that is not older than the record that they find: what was changed before has an earlier time in it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import rota
from rota.backend import BUSY, HANDLED, LATE, LEASE, ROLLING, WINDOW, WON, Claim, Settlement
from rota.duration import DAY, SECOND
from rota_postgres._sql import Statements
from servers import Postgres, RunningPostgres, wait_until

PATIENCE = 10.0
LOCK = 7
#: Finds whoever stands still.
WAITS = f"SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = {LOCK} AND NOT granted"
SLOT = 1_790_000_000 * SECOND


@pytest.fixture
def admin(prepared: Postgres | RunningPostgres) -> Iterator[psycopg.Connection]:
    """A session that holds the advisory lock: clients that are named ``slow`` stand still behind each look at the clock, or before it."""
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
        " DECLARE told timestamptz := clock_timestamp(); who text := current_setting('application_name');"
        f" BEGIN IF who LIKE 'slow%' THEN PERFORM pg_advisory_xact_lock_shared({LOCK}); END IF;"
        " IF who = 'slow before' THEN RETURN clock_timestamp(); END IF; RETURN told; END $$"
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
        wait_until(lambda: admin.execute(WAITS).fetchone() is not None, PATIENCE)
        result = "released" if kind == LEASE else "failed"
        assert holder.driver.settle(Settlement(name, held.owner, result, DAY), PATIENCE).applied
        admin.execute(f"SELECT pg_advisory_unlock({LOCK})")
        answer = late.result(PATIENCE)
    # looked at as it was at the time that was read: held; else the time is read anew
    assert answer.verdict == BUSY or (answer.verdict == WON and answer.record.granted_at >= answer.before.settled_at)


@pytest.mark.parametrize("kind", [LEASE, WINDOW])
def test_a_settlement_is_not_older_than_the_claim_that_came_in_between(
    kind: str, schema: str, admin: psycopg.Connection, prepared: Postgres | RunningPostgres, name: str
) -> None:
    """L7: the claim of an owner that is being finished was still on its way."""
    url = prepared.url(options=f"schema={schema}")
    asked = claim(name, kind)
    with rota.connect(url) as first, rota.connect(f"{url}&application_name=slow") as slow, ThreadPoolExecutor(2) as pool:
        finished = pool.submit(slow.driver.settle, Settlement(name, asked.owner, "unused", DAY), PATIENCE)
        wait_until(lambda: admin.execute(WAITS).fetchone() is not None, PATIENCE)
        claimed = pool.submit(first.driver.claim, asked, PATIENCE)
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        wait_until(lambda: claimed.done() or admin.execute(waits).fetchone() == (2,), PATIENCE)
        admin.execute(f"SELECT pg_advisory_unlock({LOCK})")
        assert claimed.result(PATIENCE).verdict == WON
        applied = finished.result(PATIENCE).applied
        record, _ = first.driver.read(name, PATIENCE)
    assert record.owner == ("" if applied else asked.owner)
    assert not applied or record.settled_at >= record.granted_at


@pytest.mark.parametrize("tried", [False, True])
def test_a_slot_that_was_handled_while_a_claim_looked_is_not_called_late(
    tried: bool, schema: str, admin: psycopg.Connection, prepared: Postgres | RunningPostgres, name: str
) -> None:
    """W2: handled comes before late, and it was handled before it was late."""
    url = prepared.url(options=f"schema={schema}")
    with rota.connect(url) as first, rota.connect(f"{url}&application_name=slow%20before") as slow, ThreadPoolExecutor(1) as pool:

        def settle(result: str) -> None:
            held = claim(name, WINDOW)
            assert first.driver.claim(held, PATIENCE).verdict == WON
            assert first.driver.settle(Settlement(name, held.owner, result, DAY), PATIENCE).applied

        if tried:
            settle("failed")
        late_from = first.driver.now(PATIENCE)[0] + SECOND // 4
        asked = pool.submit(slow.driver.claim, claim(name, WINDOW)._replace(late_from=late_from), PATIENCE)
        wait_until(lambda: admin.execute(WAITS).fetchone() is not None, PATIENCE)
        settle("handled")
        wait_until(lambda: first.driver.now(PATIENCE)[0] >= late_from, PATIENCE)
        admin.execute(f"SELECT pg_advisory_unlock({LOCK})")
        assert asked.result(PATIENCE).verdict == HANDLED
        assert first.driver.claim(claim(f"{name}-late", WINDOW)._replace(late_from=late_from), PATIENCE).verdict == LATE
