# SPDX-License-Identifier: MIT
"""Servers that hang, die, are replaced, or make a claim wait: holders know in time, calls end in time, and nobody has to restart."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
import rota
from rota.backend import Claim, Settlement
from rota.errors import LeaseLost, NotAcquired, OutcomeUnknown, Unavailable
from servers import HOST, PgBouncer, Postgres, free_port, wait_until

#: A call's bound, and what a loaded machine may add.
TIMEOUT, SLACK = 1.0, 1.0


@pytest.fixture(params=["direct", "pgbouncer"])
def way(request: pytest.FixtureRequest, victim: Postgres) -> Iterator[Postgres | PgBouncer]:
    """How clients reach the server that is hurt."""
    if request.param == "direct":
        yield victim
        return
    with PgBouncer(victim, users=("postgres", "app")) as pooler:
        yield pooler


def again(client: rota.Client, name: str) -> None:
    """Wait until claims work again, on the very same client."""

    def works() -> bool:
        try:
            with client.lease(name, timeout=TIMEOUT):
                return True
        except (Unavailable, NotAcquired):
            return False

    wait_until(works, 20, "claims work again", every=0.1)


@pytest.mark.by_the_clock
def test_a_server_that_hangs_during_a_hold(victim: Postgres, name: str, stopwatch: Any) -> None:
    """L6, F1: SIGSTOP for 4 s, ttl 3 s: the holder knows before the store's expiry, calls in flight end, all works after SIGCONT."""
    with rota.connect(victim.url("app"), timeout=TIMEOUT) as client:
        told = threading.Event()
        grant = client.try_lease(name, ttl="3s", timeout="500ms", on_lost=lambda _: told.set())
        assert grant
        held = stopwatch()
        victim.pause()
        try:
            for call in (
                lambda: client.try_lease(f"{name}-b"),
                lambda: client.driver.now(TIMEOUT),
                lambda: client.driver.read(name, TIMEOUT),
            ):
                started = stopwatch()
                with pytest.raises(Unavailable):
                    call()
                assert started.seconds < TIMEOUT + SLACK
            assert told.wait(10)
            assert held.seconds < 3 + SLACK  # ttl less margin, from the last renewal that was confirmed
            with pytest.raises(LeaseLost):
                grant.check()
            wait_until(lambda: held.seconds > 4, 10)  # the store has let go of it, too
        finally:
            victim.resume()
        again(client, name)


def test_a_hanging_server_and_the_async_face(victim: Postgres, name: str, stopwatch: Any) -> None:
    """F1, and the loop goes on meanwhile."""

    async def main() -> None:
        async with rota.connect_async(victim.url("app"), timeout=TIMEOUT) as client:
            async with client.lease(name):
                pass
            victim.pause()
            try:
                ticks = 0
                started = stopwatch()
                claims = [asyncio.create_task(client.try_lease(f"{name}-{number}")) for number in range(20)]
                while not all(claim.done() for claim in claims):
                    await asyncio.sleep(0.02)
                    ticks += 1
                assert started.seconds < TIMEOUT + SLACK
                assert all(isinstance(claim.exception(), Unavailable) for claim in claims)
                assert ticks > 10
            finally:
                victim.resume()
            for _ in range(200):
                try:
                    async with client.lease(name):
                        return
                except Unavailable:
                    await asyncio.sleep(0.1)
            raise AssertionError("claims don't work again")

    asyncio.run(main())


@pytest.mark.parametrize("how", ["accepts and says nothing", "drops packets", "refuses"])
def test_nobody_there(how: str, name: str, stopwatch: Any) -> None:
    """F1: the first connection is bounded too."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = []
        if how == "drops packets":  # a full backlog: Linux drops further SYNs
            for _ in range(3):
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex((HOST, port))
                fillers.append(filler)
        elif how == "refuses":
            port = free_port()
        with rota.connect(f"postgresql://app@{HOST}:{port}/rota", timeout=TIMEOUT) as client:
            started = stopwatch()
            with pytest.raises(Unavailable):
                client.try_lease(name)
            assert started.seconds < TIMEOUT + SLACK
        for filler in fillers:
            filler.close()


def test_kill_9_and_restart(victim: Postgres, way: Postgres | PgBouncer, name: str) -> None:
    """Marks and tokens are kept, claims work again without a restart of the client."""
    with rota.connect(way.url("app"), timeout=TIMEOUT) as client:
        with client.window(f"{name}-w", rota.Every("1d")) as grant:
            token = grant.token
        held = client.try_lease(name, ttl="60s")
        assert held
        victim.kill()
        with pytest.raises(Unavailable):
            client.try_lease(f"{name}-b")
        victim.start()
        again(client, f"{name}-b")
        assert client.try_window(f"{name}-w", rota.Every("1d")).verdict == "handled"
        held.check()
        held.release()
        assert client.driver.read(f"{name}-w", 5)[0].token == token


@pytest.mark.by_the_clock
def test_a_holder_outlives_a_restart_that_is_short(victim: Postgres, name: str) -> None:
    """DV-23: the heartbeat survives a second without the store."""
    with rota.connect(victim.url("app"), timeout=TIMEOUT) as client, client.lease(name, ttl="6s") as grant:
        victim.kill()
        time.sleep(1)
        victim.start()
        due = time.monotonic() + 6
        wait_until(lambda: grant.lost or grant.remaining() > 4.5, 10)
        assert time.monotonic() < due
        grant.check()


@pytest.mark.parametrize("silent", [1, 2])
def test_a_host_that_keeps_silent_leaves_the_first_call_time_for_the_next_one(prepared: Any, name: str, silent: int) -> None:
    """F1: or a `rota run` would never get beyond the first. It takes connections, and says nothing."""
    url = urlsplit(prepared.url("app"))
    with contextlib.ExitStack() as stack:
        holes = [stack.enter_context(socket.create_server((HOST, 0))).getsockname()[1] for _ in range(silent)]
        hosts = ",".join(f"{HOST}:{port}" for port in (*holes, url.port))
        client = stack.enter_context(rota.connect(f"postgresql://{url.netloc.rpartition('@')[0]}@{hosts}{url.path}"))
        assert client.try_lease(name)


def test_failover_to_the_replica(name: str) -> None:
    """A replica alone is unavailable: never busy, no configuration error. It takes over, every client goes on by itself, marks are kept."""
    with Postgres() as primary:
        from_here = rota.connect(primary.url())
        primary.sql("CREATE ROLE app LOGIN", from_here.driver.schema(role="app"))
        with Postgres(of=primary) as replica:
            hosts = f"postgresql://app@{HOST}:{primary.port},{HOST}:{replica.port}/rota"
            with rota.connect(hosts, timeout=TIMEOUT) as client, rota.connect(hosts, timeout=TIMEOUT) as other:
                with client.window(f"{name}-w", rota.Every("1d")) as grant:
                    token = grant.token
                assert other.try_window(f"{name}-w", rota.Every("1d")).verdict == "handled"
                held = client.try_lease(name, ttl="60s")
                primary.wait_for_replica(replica)
                for options in ("", "target_session_attrs=read-write"):  # 25006, and a session that is refused
                    with rota.connect(replica.url(options=options)) as reader, pytest.raises(Unavailable):
                        reader.try_lease(name)
                primary.kill()
                with pytest.raises(Unavailable):
                    client.try_lease(f"{name}-b")
                replica.promote()
                again(client, f"{name}-b")
                again(other, f"{name}-c")
                assert other.try_window(f"{name}-w", rota.Every("1d")).verdict == "handled"
                assert other.try_lease(name).verdict == "busy"
                held.check()
                held.release()
                assert other.try_lease(name).token > token
                assert other.driver.facts(5)["standby"] is False
        from_here.close()


@pytest.mark.parametrize("changed", [False, True], ids=["the row stays as it was", "the row is changed"])
@pytest.mark.by_the_clock
def test_a_claim_that_waited_longer_than_its_timeout_is_not_applied(victim: Postgres, name: str, changed: bool, stopwatch: Any) -> None:
    """L7: it waits for a row lock, its client leaves; when the lock is gone nothing is applied."""
    with rota.connect(victim.url("app"), timeout="500ms") as client:
        with rota.connect(victim.url("app")) as other, other.lease(name):
            pass
        client.driver.now(5)
        before = victim.sql(f"SELECT token, owner FROM rota WHERE name = '{name}'")
        lock = "UPDATE rota SET label = 'locked'" if changed else "SELECT FROM rota"
        blocker = victim.sql_later(f"BEGIN; {lock} WHERE name = '{name}' {'' if changed else 'FOR UPDATE'}; SELECT pg_sleep(1.5); COMMIT")
        wait_until(lambda: victim.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "1")
        started = stopwatch()
        with pytest.raises(OutcomeUnknown):
            client.try_lease(name)
        assert started.seconds < 0.5 + SLACK
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND wait_event_type = 'Lock'"
        assert victim.sql(waiting) != "0"  # the server goes on waiting for a client that is gone
        blocker.result(10)
        wait_until(lambda: victim.sql(waiting) == "0")
        assert client.flush(5)
        token, _, owner = victim.sql(f"SELECT token, owner FROM rota WHERE name = '{name}'").partition("|")
        assert (token, owner) == (before.partition("|")[0], "")
        again(client, name)


@pytest.mark.by_the_clock
def test_a_claim_that_waited_for_another_insert_is_not_applied(victim: Postgres, name: str) -> None:
    """L7: a new name has no row to lock; the claim waits for the other insert to commit or, here, to be undone."""
    with rota.connect(victim.url("app"), timeout="500ms") as client:
        client.driver.now(5)
        blocker = victim.sql_later(
            f"BEGIN; INSERT INTO rota (name, token, keep_until) VALUES ('{name}', 1, now()); SELECT pg_sleep(1.5); ROLLBACK"
        )
        wait_until(lambda: victim.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "1")
        with pytest.raises(OutcomeUnknown):
            client.try_lease(name)
        # nobody may say that the owner id holds nothing before the claim is decided
        assert not client.flush(0.3)
        blocker.result(10)
        assert client.flush(10)
        assert victim.sql(f"SELECT count(*) FROM rota WHERE name = '{name}'") == "0"


@pytest.mark.by_the_clock
@pytest.mark.parametrize("known", [False, True], ids=["a new name", "a name that was held before"])
def test_an_unused_owner_id_is_settled_behind_its_claim(victim: Postgres, name: str, known: bool) -> None:
    """L7: the claim is applied and not committed yet; settling its owner id waits for it, and ends it."""
    owner = os.urandom(16).hex()
    claim = (
        f"INSERT INTO rota (name, kind, token, owner, expires_at, keep_until)"
        f" VALUES ('{name}', 'lease', 1, '{owner}', now() + interval '1 hour', now())"
    )
    with rota.connect(victim.url("app")) as client:
        if known:
            with client.lease(name):
                pass
            claim = f"UPDATE rota SET owner = '{owner}', expires_at = now() + interval '1 hour' WHERE name = '{name}'"
        blocker = victim.sql_later(f"BEGIN; {claim}; SELECT pg_sleep(0.7); COMMIT")
        wait_until(lambda: victim.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "1")
        settled = client.driver.settle(Settlement(name, owner, "unused", 1), 5)
        assert settled.applied
        assert client.driver.read(name, 5)[0].owner == ""
        blocker.result(5)


@pytest.mark.by_the_clock
def test_a_renewal_that_waited_past_its_expiry_is_refused(victim: Postgres, name: str) -> None:
    """L3: the clock is read behind the lock, even when the row stays as it was."""
    owner = os.urandom(16).hex()
    with rota.connect(victim.url("app")) as client:
        now = client.driver.now(5)[0]
        assert client.driver.claim(Claim(name, owner, "here", "lease", 600_000, now + 5_000_000, 10), 5).verdict == "won"
        blocker = victim.sql_later(f"BEGIN; SELECT FROM rota WHERE name = '{name}' FOR UPDATE; SELECT pg_sleep(1); ROLLBACK")
        wait_until(lambda: victim.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "1")
        renewed = client.driver.renew([rota.backend.Renewal(name, owner, 60_000_000, 10)], 5)
        assert renewed.held == [False]
        blocker.result(5)


@pytest.mark.by_the_clock
def test_sweeping_passes_over_rows_in_use(victim: Postgres, name: str) -> None:
    """R3: never blocked by a claim, never blocking one for long; R1 decides what goes."""
    old = "interval '40 days'"
    victim.sql(
        "INSERT INTO rota (name, kind, token, keep_until)"
        f" SELECT '{name}-' || n, 'lease', (extract(epoch FROM now() - {old}) * 1000000)::bigint, now() - {old}"
        " FROM generate_series(1, 30) AS n"
    )
    with rota.connect(victim.url("app")) as client:
        blocker = victim.sql_later(f"BEGIN; SELECT FROM rota WHERE name = '{name}-7' FOR UPDATE; SELECT pg_sleep(1.5); COMMIT")
        wait_until(lambda: victim.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "1")
        assert client.driver.sweep(10, 1) == 10
        client.driver.sweep(100, 1)
        assert victim.sql(f"SELECT name FROM rota WHERE name LIKE '{name}%'") == f"{name}-7"
        blocker.result(5)
        assert client.driver.sweep(100, 1) == 1
        assert client.driver.sweep(100, 1) == 0


def test_idle_connections_that_the_server_closed_are_replaced_in_silence(victim: Postgres, name: str) -> None:
    with rota.connect(victim.url("app")) as client:
        with client.lease(name):
            pass
        victim.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
        wait_until(lambda: victim.sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'") == "0")
        with client.lease(name):
            pass


@pytest.mark.parametrize("face", ["blocking", "async"])
@pytest.mark.by_the_clock
def test_a_waiter_is_woken_at_once_and_asks_little(victim: Postgres, name: str, face: str) -> None:
    """One NOTIFY for a release that somebody waits for, none otherwise; far sooner than polling would."""
    listener = rota.connect(victim.url("app"))
    waited = []
    with rota.connect(victim.url("app")) as client, ThreadPoolExecutor() as pool:

        async def wait_async() -> float:
            async with rota.connect_async(victim.url("app")) as other, other.lease(name, wait=20):
                return time.monotonic()

        def wait_blocking() -> float:
            with listener.lease(name, wait=20):
                return time.monotonic()

        for _ in range(2):
            grant = client.try_lease(name, wait=5)
            assert grant
            waiting = pool.submit(wait_blocking if face == "blocking" else lambda: asyncio.run(wait_async()))
            wait_until(lambda: victim.sql(f"SELECT waited = token FROM rota WHERE name = '{name}'") == "t")
            time.sleep(1.2)  # by now a poller would pause for about a second
            released = time.monotonic()
            grant.release()
            waited.append(waiting.result() - released)
    listener.close()
    assert min(waited) < 0.25, waited


@pytest.mark.parametrize("face", ["blocking", "async"])
@pytest.mark.by_the_clock
def test_closing_wakes_those_who_wait(victim: Postgres, name: str, face: str) -> None:
    """L8: they are told at once, and not when the longest watch is over."""
    noted = f"SELECT waited = token FROM rota WHERE name = '{name}'"

    async def wait_async() -> None:
        async with rota.connect_async(victim.url("app")) as client:
            waiting = asyncio.ensure_future(client.try_lease(name, wait=20))
            await asyncio.to_thread(wait_until, lambda: victim.sql(noted) == "t")
            await client.close()
            await asyncio.wait_for(waiting, 3)

    def wait_blocking() -> None:
        with ThreadPoolExecutor() as pool, rota.connect(victim.url("app")) as client:
            waiting = [pool.submit(client.try_lease, name, wait=20) for _ in range(3)]
            wait_until(lambda: victim.sql(noted) == "t")
            client.close()
            for each in waiting:
                each.exception(3)
            waiting[0].result()

    with rota.connect(victim.url("app")) as holder, holder.lease(name), pytest.raises(rota.Unavailable, match="closed"):
        if face == "async":
            asyncio.run(wait_async())
        else:
            wait_blocking()


def test_waiters_behind_a_pooler(victim: Postgres, name: str) -> None:
    """Without a direct connection they poll, and disturb no other session; with ``listen=`` they are woken."""
    from urllib.parse import quote

    with PgBouncer(victim, users=("app", "postgres")) as pooler:
        for options in ("", "listen=off", "listen=" + quote(victim.url("app"), safe="")):
            with rota.connect(pooler.url("app", options=options)) as client, rota.connect(pooler.url("app", options=options)) as other:
                grant = other.try_lease(name, wait=5)
                with ThreadPoolExecutor() as pool:
                    waiting = pool.submit(client.try_lease, name, wait=20)
                    if "5432" in options or "%3A" in options:
                        wait_until(lambda: victim.sql(f"SELECT waited = token FROM rota WHERE name = '{name}'") == "t")
                    listening = victim.sql("SELECT count(*) FROM pg_stat_activity WHERE query ILIKE 'LISTEN%'")
                    assert listening == "0" or "%3A" in options
                    grant.release()
                    assert waiting.result()
                    waiting.result().release()
            assert ("watch" in client.driver.capabilities.verbs) is (options != "listen=off")


@pytest.mark.parametrize("changed", [False, True], ids=["the row stays as it was", "the row is changed"])
@pytest.mark.by_the_clock
def test_a_settlement_that_waited_says_the_time_behind_the_wait(victim: Postgres, name: str, changed: bool) -> None:
    """W3a: whether the lease had run out is judged once the row is locked."""
    owner = os.urandom(16).hex()
    with rota.connect(victim.url("app")) as client:
        now = client.driver.now(5)[0]
        assert client.driver.claim(Claim(name, owner, "here", "lease", 600_000, now + 5_000_000, 10), 5).verdict == "won"
        lock = "UPDATE rota SET label = 'locked'" if changed else "SELECT FROM rota"
        blocker = victim.sql_later(f"BEGIN; {lock} WHERE name = '{name}' {'' if changed else 'FOR UPDATE'}; SELECT pg_sleep(1); COMMIT")
        wait_until(lambda: victim.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "1")
        settled = client.driver.settle(Settlement(name, owner, "released", 10), 5)
        blocker.result(5)
        assert settled.applied
        assert settled.expired
        assert client.driver.read(name, 5)[0].settled_at > now + 900_000
