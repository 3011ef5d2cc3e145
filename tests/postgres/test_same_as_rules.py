# SPDX-License-Identifier: MIT
"""Whatever is asked in whatever order, the statements answer and write what `rota.rules` says (the contract's reference).

The store's clock is handed over: the statements ask a function of the test's, which returns what the reference model's clock shows.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
import rota
from rota.backend import (
    FAILED,
    GAVE_UP,
    HANDLED,
    LEASE,
    RELEASED,
    ROLLING,
    UNUSED,
    WINDOW,
    Claim,
    Override,
    Renewal,
    Settlement,
    WriteBack,
)
from rota.memory import MemoryDriver, MemoryStore
from rota_postgres._driver import PostgresDriver
from rota_postgres._sql import Statements
from servers import Postgres, RunningPostgres

START = 1_700_000_000_000_000
SECOND = 1_000_000
HOUR, DAY = 3600 * SECOND, 86_400 * SECOND


class Clock:
    """The time of both stores; it also goes back a little now and then."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


class Pair:
    """The driver and the reference, asked the same."""

    def __init__(self, driver: PostgresDriver, clock: Clock, set_clock: object) -> None:
        self.clock = clock
        self.driver = driver
        self.model = MemoryDriver(MemoryStore(clock))
        self._set_clock = set_clock

    def ask(self, verb: str, *arguments: object) -> object:
        self._set_clock(self.clock.now)
        said = getattr(self.driver, verb)(*arguments, 10.0)
        meant = getattr(self.model, verb)(*arguments, 10.0)
        if verb == "settle" and meant.applied and said.record is None:  # left out, as it may be
            meant = meant._replace(record=None)
        assert said == meant, f"{said}\n{meant}\n{verb}{arguments} at {self.clock.now}"
        return said


@pytest.fixture
def pair(prepared: Postgres | RunningPostgres) -> Iterator[Pair]:
    """Fresh ones."""
    table = f"t{os.urandom(6).hex()}"
    prepared.sql(
        f"CREATE SCHEMA {table}",
        f"CREATE TABLE {table}.clock (now timestamptz)",
        f"INSERT INTO {table}.clock VALUES (now())",
        f"CREATE FUNCTION {table}.now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT now FROM {table}.clock'",
    )
    import psycopg

    admin = psycopg.connect(prepared.url(), autocommit=True)
    statements = Statements(table, "Rota", f"{table}.now()")
    for statement in statements.schema():
        admin.execute(statement)
    parsed = rota.connect(prepared.url()).driver
    options = parsed.pool._options
    parsed.close()
    driver = PostgresDriver(options, None, statements, "postgresql://here")

    def set_clock(now: int) -> None:
        admin.execute(f"UPDATE {table}.clock SET now = 'epoch'::timestamptz + %s * interval '1 microsecond'", (now,))

    yield Pair(driver, Clock(), set_clock)
    driver.close()
    admin.execute(f"DROP SCHEMA {table} CASCADE")
    admin.close()


def one_of(chance: random.Random, name: str, owners: list[str], clock: Clock) -> tuple[str, object]:
    """Return a request: likely ones often, odd ones sometimes."""
    now = clock.now
    verb = chance.choices(["claim", "settle", "renew", "forget", "override", "record", "read"], [10, 6, 2, 0.4, 0.7, 1, 1])[0]
    owner = chance.choice(owners[-4:]) if owners and chance.random() < (0.25 if verb == "claim" else 0.9) else os.urandom(16).hex()
    if owner not in owners:
        owners.append(owner)
    retention = chance.choice([DAY, 30 * DAY])
    slot = now // (10 * SECOND) * (10 * SECOND) + chance.choice([0, 0, 0, -10, 10]) * SECOND
    kind = {"l": LEASE, "w": WINDOW, "r": ROLLING}[name[0]] if chance.random() < 0.95 else chance.choice([LEASE, WINDOW, ROLLING])
    if verb == "claim":
        seal = chance.random() < 0.3
        return verb, Claim(
            name,
            owner,
            chance.choice(["dc1 a:1", "b:2", "é:3"]),
            kind,
            chance.choice([SECOND, 5 * SECOND, 30 * SECOND]),
            now + chance.choice([SECOND, SECOND, 0, -1]),
            retention,
            "" if kind == LEASE else chance.choice(["every 10s", "per 10s"]),
            "" if kind == LEASE else chance.choice(["", "2026a"]),
            slot if kind == WINDOW else None,
            chance.choice([slot + 10 * SECOND, slot + 10 * SECOND, None]) if kind == WINDOW else None,
            slot - chance.choice([0, 2]) * SECOND if kind == WINDOW else 0,
            chance.choice([None, slot + 10 * SECOND, slot + 20 * SECOND, now, now + 1]) if kind == WINDOW else None,
            chance.choice([8 * SECOND, HOUR]) if kind == ROLLING else 0,
            seal,
            seal and kind == WINDOW and chance.random() < 0.4,
            chance.choice([0, 0, 1, 2]) if kind != LEASE else 0,
        )
    if verb == "settle":
        result = chance.choice([RELEASED, RELEASED, HANDLED, FAILED, GAVE_UP, UNUSED])
        return verb, Settlement(name, owner, result, retention, chance.choice([None, b"", b"a\0\xff" * 9]))
    if verb == "renew":
        return verb, [Renewal(name, owner, chance.choice([SECOND, 9 * SECOND]), retention), Renewal("no such", owner, SECOND, retention)]
    if verb == "override":
        action = chance.choice([RELEASED, HANDLED, FAILED, "mark"])
        return verb, Override(name, action, "by hand: why", retention, chance.choice([None, slot]), chance.choice([None, None, 7]), None)
    if verb == "record":
        kind = kind if kind != LEASE else WINDOW
        return verb, WriteBack(name, "b:2", kind, retention, "every 10s", "", slot, chance.choice([None, slot + 10 * SECOND]))
    return verb, name


@pytest.mark.parametrize("seed", range(2))
def test_the_statements_say_and_write_what_the_rules_do(pair: Pair, seed: int) -> None:
    chance = random.Random(seed if os.environ.get("CI") else None)
    won = 0
    owners: dict[str, list[str]] = {}
    for _ in range(300):
        name = chance.choice(["l1", "l2", "w1", "w2", "w3", "r1", "r2"])
        verb, argument = one_of(chance, name, owners.setdefault(name, []), pair.clock)
        answer = pair.ask(verb, argument)
        if verb == "claim":
            won += answer.verdict == "won"
        pair.ask("read", name)
        pair.clock.now += chance.choice([0, 1, 700, SECOND, 2 * SECOND, 4 * SECOND, -500, 9 * SECOND])
    assert won > 20
    listed = pair.driver.list("", 10.0)
    assert listed == pair.model.list("", 10.0)
    pair.clock.now += 62 * DAY
    pair._set_clock(pair.clock.now)
    assert pair.driver.sweep(1000, 10.0) == pair.model.sweep(1000, 10.0)
    assert pair.driver.list("", 10.0) == pair.model.list("", 10.0)
