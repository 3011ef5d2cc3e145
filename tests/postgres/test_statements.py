# SPDX-License-Identifier: MIT
"""What is really sent, by the server's own log: one statement for each verb, and nothing that a pooler or a session would remember."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import rota
from rota.backend import Claim, Override, Renewal, Settlement, WriteBack
from servers import HOST, PgBouncer, Postgres, wait_until

SECOND = 1_000_000
SLOT = 1_800_000_000 * SECOND


class Log:
    """The statements that the role ``logged`` sent, as the server wrote them down."""

    def __init__(self, server: Postgres) -> None:
        self._path = server.log_path
        self._at = 0
        self.new()

    def new(self) -> list[str]:
        """Return those since the last look."""
        with self._path.open(errors="replace") as log:
            log.seek(self._at)
            text = log.read()
            self._at = log.tell()
        return re.findall(
            r" logged \S* LOG:  (?:statement|execute [^:]*|parse [^:]*|bind [^:]*): (.*)|LOG:  (execute (?!<unnamed>).*)", text
        )


@pytest.fixture(scope="module")
def log(victim: Postgres) -> Log:
    victim.sql("CREATE ROLE logged LOGIN SUPERUSER", "ALTER ROLE logged SET log_statement = 'all'")
    return Log(victim)


@pytest.fixture
def driver(victim: Postgres) -> Iterator[rota.backend.Driver]:
    client = rota.connect(victim.url("logged"))
    client.driver.now(5)
    yield client.driver
    client.close()


def claim(name: str, owner: str, **options: object) -> Claim:
    until = time.time_ns() // 1000 + 5 * SECOND
    return Claim(name, owner, "here", options.pop("kind", "lease"), 30 * SECOND, until, 86_400 * SECOND, **options)  # type: ignore[arg-type]


def one(log: Log, call: Callable[[], object], verdict: str | None = None) -> str:
    """Make one call, and return its one statement."""
    log.new()
    said = call()
    if verdict is not None:
        assert said.verdict == verdict
    sent = [max(found) for found in log.new()]
    assert len(sent) == 1, sent
    return sent[0]


def test_one_statement_per_verb(log: Log, driver: rota.backend.Driver, name: str) -> None:
    owner, other = os.urandom(16).hex(), os.urandom(16).hex()
    sent = [
        one(log, lambda: driver.claim(claim(name, owner), 5), "won"),
        one(log, lambda: driver.claim(claim(name, owner), 5), "won"),
        one(log, lambda: driver.claim(claim(name, other), 5), "busy"),
        one(log, lambda: driver.renew([Renewal(name, owner, SECOND * 30, SECOND * 9)] * 500, 5)),
        one(log, lambda: driver.settle(Settlement(name, owner, "released", SECOND), 5)),
        one(log, lambda: driver.claim(claim(name, other), 5), "won"),
        one(log, lambda: driver.settle(Settlement(name, other, "released", SECOND), 5)),
        one(log, lambda: driver.read(name, 5)),
        one(log, lambda: driver.read(f"{name}-absent", 5)),
        one(log, lambda: driver.override(Override(name, "released", "ada: by hand", SECOND), 5)),
        one(log, lambda: driver.forget(name, 5)),
        one(log, lambda: driver.record(WriteBack(f"{name}-w", "b:2", "window", SECOND, "every 60s", "", SLOT, SLOT + 60 * SECOND), 5)),
        one(log, lambda: driver.record(WriteBack(f"{name}-w", "b:2", "window", SECOND, "every 60s", "", SLOT + 60 * SECOND, None), 5)),
        one(log, lambda: driver.settle(Settlement(f"{name}-n", other, "unused", SECOND), 5)),
        one(log, lambda: driver.list("job-", 5)),
        one(log, lambda: driver.now(5)),
        one(log, lambda: driver.sweep(100, 5)),
        one(log, lambda: driver.facts(5)),
    ]
    assert not re.search(r"\b(SET SESSION|SET LOCAL|PREPARE|LOCK TABLE|CREATE|ALTER)\b|advisory|^(BEGIN|COMMIT|SET) ", "\n".join(sent))


def test_a_slot_is_won_and_lost_by_one_statement(log: Log, driver: rota.backend.Driver, name: str) -> None:
    start = time.time_ns() // 1000 // (60 * SECOND) * 60 * SECOND
    owner, other, third = (os.urandom(16).hex() for _ in range(3))
    slot = {"kind": "window", "slot_start": start, "slot_end": start + 600 * SECOND}
    one(log, lambda: driver.claim(claim(name, owner, **slot), 5), "won")
    one(log, lambda: driver.settle(Settlement(name, owner, "handled", SECOND), 5))
    one(log, lambda: driver.claim(claim(name, other, **slot), 5), "handled")
    # W3c: the claim that closes a slot whose last attempt ran out
    slot |= {"slot_start": start + 1, "max_attempts": 1}
    one(log, lambda: driver.claim(claim(name, other, **slot)._replace(ttl=1), 5), "won")
    one(log, lambda: driver.claim(claim(name, third, **slot), 5), "handled")
    assert driver.read(name, 5)[0].outcome == "gave up"


def test_the_first_look_at_a_name_is_one_statement_too(log: Log, victim: Postgres, driver: rota.backend.Driver, name: str) -> None:
    """A process that runs once has seen nothing before."""
    driver.claim(claim(name, os.urandom(16).hex()), 5)
    stranger = rota.connect(victim.url("logged")).driver
    stranger.now(5)
    before = victim.sql(f"SELECT xmin, xmax FROM public.rota WHERE name = '{name}'")
    one(log, lambda: stranger.claim(claim(name, os.urandom(16).hex()), 5), "busy")
    assert victim.sql(f"SELECT xmin, xmax FROM public.rota WHERE name = '{name}'") == before  # not even locked
    stranger.close()


def test_the_async_face_sends_the_same(log: Log, victim: Postgres, name: str) -> None:
    async def pair() -> None:
        async with rota.connect_async(victim.url("logged")) as client:
            (await client.try_lease(f"{name}-other")).token  # noqa: B018
            log.new()
            grant = await client.try_lease(name)
            assert grant
            await grant.release()

    asyncio.run(pair())
    assert len([sent for sent in log.new() if "DELETE" not in max(sent)]) == 2  # the heartbeat may sweep meanwhile (R3)


def sent_while_it_waits(log: Log, url: str, holder: str, name: str, face: str) -> list[str]:
    """Return what a client of `url` sends while it waits for a name, until it has looked at its record three times; then it gets it."""
    sent: list[str] = []

    def wait_blocking() -> None:
        with rota.connect(url) as client, client.lease(name, wait=60):
            pass

    async def wait_async() -> None:
        async with rota.connect_async(url) as client, client.lease(name, wait=60):
            pass

    def has_looked() -> bool:
        sent.extend(max(found) for found in log.new())
        return sum("(SELECT r FROM" in statement for statement in sent) >= 3

    with rota.connect(holder) as client, ThreadPoolExecutor() as pool:
        grant = client.try_lease(name, ttl="60s")
        assert grant
        log.new()
        waiting = pool.submit(wait_blocking if face == "blocking" else lambda: asyncio.run(wait_async()))
        try:
            wait_until(has_looked, 20, "the waiter has looked three times")
        finally:
            grant.release()
        waiting.result()
    return sent


@pytest.mark.parametrize("face", ["blocking", "async"])
def test_a_waiter_behind_an_idle_pooler_asks_once_for_it_and_then_polls(log: Log, victim: Postgres, name: str, face: str) -> None:
    """With nobody else in the pool all clients get the same connection to the server."""
    with PgBouncer(victim, users=("logged",)) as pooler:
        sent = sent_while_it_waits(log, pooler.url("logged"), pooler.url("logged"), name, face)
    assert sum("pg_backend_pid" in statement for statement in sent) == 1
    assert not any("LISTEN" in statement for statement in sent)


@pytest.mark.parametrize("face", ["blocking", "async"])
def test_a_waiter_polls_while_nobody_answers_where_it_is_to_listen(log: Log, victim: Postgres, name: str, face: str) -> None:
    """A firewall is in the way of ``listen=``, say."""
    with socket.create_server((HOST, 0)) as silent:
        listen = f"postgresql%3A%2F%2Flogged%40{HOST}%3A{silent.getsockname()[1]}%2Frota"
        sent_while_it_waits(log, victim.url("logged", options=f"listen={listen}"), victim.url("logged"), name, face)


def test_no_session_is_ever_left_in_a_transaction(victim: Postgres, name: str) -> None:
    """Sampled while six clients work; and no advisory lock is held."""
    import threading

    stop = threading.Event()

    def work(number: int) -> None:
        with rota.connect(victim.url("app")) as client:
            while not stop.is_set():
                with client.lease(f"{name}-{number % 3}", wait=5):
                    pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    seen = set()
    for _ in range(40):
        seen |= set(victim.sql("SELECT DISTINCT state FROM pg_stat_activity WHERE usename = 'app'").split("\n"))
        assert victim.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == "0"
    stop.set()
    for thread in threads:
        thread.join()
    assert "idle" in seen
    assert not {state for state in seen if "in transaction" in state}
