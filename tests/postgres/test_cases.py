# SPDX-License-Identifier: MIT
"""Failure reports of people who run scheduled work, on a real server: directly and through PgBouncer in transaction mode."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import rota
from rota.errors import Busy, ConfigurationError, LeaseLost
from rota_postgres._wire import COLUMNS
from servers import PgBouncer, Postgres, RunningPostgres, add_user, program, wait_until

Server = Postgres | PgBouncer | RunningPostgres

#: A client in a process of its own: what it prints is read line by line, what it is told comes line by line.
CLIENT = """
import sys, rota
client = rota.connect(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    try:
        said = eval(line)
    except rota.RotaError as error:
        said = error
    print(type(said).__name__, getattr(said, "verdict", ""), said, flush=True)
"""


class Process:
    """A client elsewhere, whose host's clock may be wrong."""

    def __init__(self, url: str, offset: str = "") -> None:
        environment = dict(os.environ)
        if offset:
            environment |= {"LD_PRELOAD": program("libfaketime"), "FAKETIME": offset}
        self._process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, url], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self._process.stdout.readline() == "ready\n"

    def say(self, text: str) -> str:
        self._process.stdin.write(text + "\n")
        return self._process.stdout.readline()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    started = []

    def make(url: str, offset: str = "") -> Process:
        started.append(Process(url, offset))
        return started[-1]

    yield make
    for process in started:
        process.end()


@pytest.mark.parametrize("offset", ["+180s", "+1d", "-1d"])
@pytest.mark.by_the_clock
def test_a_wrong_local_clock_decides_nothing(prepared: Server, start: Callable[..., Process], name: str, offset: str) -> None:
    """DV-10: a node minutes or days off neither finds a held lease expired, nor a later slot."""
    right, wrong = start(prepared.url("app")), start(prepared.url("app"), offset)
    assert "Grant" in right.say(f"client.try_lease('{name}', ttl='30s')")
    assert "busy" in wrong.say(f"client.try_lease('{name}', ttl='30s')")
    assert "Grant" in wrong.say(f"client.try_window('{name}-w', rota.Every('1d'))")
    slot = prepared.sql(f"SELECT slot_start <= now() AND now() < slot_end FROM rota WHERE name = '{name}-w'")
    assert slot == "t"
    # expiry, too, is the store's: a lease that its holder, stopped, no longer renews
    assert "Grant" in right.say(f"globals().setdefault('grant', client.try_lease('{name}-e', ttl='1s'))")
    right.signal(signal.SIGSTOP)
    assert "busy" in wrong.say(f"client.try_lease('{name}-e', ttl='1s')")
    assert "Grant" in wrong.say(f"client.try_lease('{name}-e', ttl='1s', wait=5)")
    right.signal(signal.SIGCONT)
    assert "True" in right.say("grant.lost")


@pytest.mark.by_the_clock
def test_longer_than_its_own_interval(pgbouncer: Server, connect: Callable[..., rota.Client], name: str) -> None:
    """DV-11: three instances, a job of five intervals: busy, not handled, and the losers touch nothing of the holder's."""
    holder, *others = (connect(pgbouncer) for _ in range(3))
    every = rota.Every("1s")
    grant = holder.try_window(name, every, ttl="700ms", timeout="200ms")
    assert grant
    first = grant.slot.start
    last = 0
    while last < 5:
        for other in others:
            refused = other.try_window(name, every, ttl="700ms", timeout="200ms")
            assert refused.verdict == "busy", refused
            assert refused.record.token == grant.token
            last = max(last, (refused.slot.start - first) // 1_000_000)
        time.sleep(0.2)
    grant.handled()
    wait_until(lambda: holder.driver.now(5)[0] >= first + 6_000_000)
    later = others[0].try_window(name, every, ttl="700ms", timeout="200ms")
    assert later
    assert later.missed.count >= 4


@pytest.mark.by_the_clock
def test_timeouts_that_the_owner_of_the_database_set(victim: Postgres, start: Callable[..., Process], name: str, stopwatch: Any) -> None:
    """DV-16: sessions are closed under us, statements are cut; the lease stays, nobody is told, nothing is ever idle in a transaction."""
    add_user(victim, "hardened", "idle_in_transaction_session_timeout = '1s'", "statement_timeout = '500ms'", "idle_session_timeout = '1s'")
    states: set[str] = set()
    with rota.connect(victim.url("hardened")) as client, rota.connect(victim.url("hardened")) as other:
        victim.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON rota TO hardened")
        with client.lease(name, ttl="5s", heartbeat="1500ms") as grant, ThreadPoolExecutor() as pool:
            waiting = pool.submit(other.try_lease, name, wait=30)
            until = time.monotonic() + 4
            while time.monotonic() < until:
                grant.check()
                assert not waiting.done()
                states |= set(victim.sql("SELECT state FROM pg_stat_activity WHERE usename = 'hardened'").split("\n"))
                longest = victim.sql(
                    "SELECT coalesce(max(now() - query_start), '0') < '1s' FROM pg_stat_activity"
                    " WHERE usename = 'hardened' AND state = 'active'"
                )
                assert longest == "t"  # a waiter is not one long statement
                time.sleep(0.2)
            grant.check()
            grant.release()
            assert waiting.result()
    assert not {state for state in states if "transaction" in state}

    holder = start(victim.url("hardened"))
    assert "Grant" in holder.say(f"client.try_lease('{name}-s', ttl='2s')")
    holder.signal(signal.SIGSTOP)  # its connection stays open
    with rota.connect(victim.url("hardened")) as client:
        stopped = stopwatch()
        assert client.try_lease(f"{name}-s", wait=10)
        assert stopped.seconds < 4
    holder.signal(signal.SIGCONT)


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_whatever_the_isolation_level_by_default(victim: Postgres, name: str, level: str) -> None:
    """DV-17: one winner, nine refused, no error, on every verb."""
    role = level.replace(" ", "_")
    add_user(victim, role, f"default_transaction_isolation = '{level}'")
    victim.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON rota TO {role}")
    clients = [rota.connect(victim.url(role), timeout="10s") for _ in range(10)]
    barrier = threading.Barrier(10)

    def race(number: int, call: Callable[[rota.Client], object]) -> object:
        barrier.wait(30)
        return call(clients[number])

    with ThreadPoolExecutor(10) as pool:

        def all_at_once(call: Callable[[rota.Client], object]) -> list[object]:
            return [future.result() for future in [pool.submit(race, number, call) for number in range(10)]]

        for turn in range(4):
            verdicts = all_at_once(lambda client: client.try_lease(name, ttl="60s"))
            (grant,) = [verdict for verdict in verdicts if verdict]
            assert [verdict.verdict for verdict in verdicts if not verdict] == ["busy"] * 9
            # renewing and refusing at once, on the same row
            renewal = rota.backend.Renewal(name, grant._owner, 60_000_000, 86_400_000_000)
            assert all(renewed.held == [True] for renewed in all_at_once(lambda client: client.driver.renew([renewal], 10)))
            settlement = rota.backend.Settlement(name, grant._owner, "released", 86_400_000_000)
            assert all(settled.applied for settled in all_at_once(lambda client: client.driver.settle(settlement, 10)))
            planned = time.time()
            verdicts = all_at_once(lambda client: client.try_window(f"{name}-w{turn}", planned=planned, ttl="60s"))
            (slot,) = [verdict for verdict in verdicts if verdict]
            assert [verdict.verdict for verdict in verdicts if not verdict] == ["busy"] * 9
            slot.handled()
            verdicts = all_at_once(lambda client: client.try_window(f"{name}-w{turn}", planned=planned, ttl="60s"))
            assert [verdict.verdict for verdict in verdicts] == ["handled"] * 10
            grant._engine.heartbeat.remove(grant)
    for client in clients:
        client.close()


@pytest.mark.parametrize("schema", ["Coord-Locks", 'a"b', "100%:name"])
@pytest.mark.parametrize("way", ["direct", "pgbouncer"])
def test_a_role_that_may_not_create_anything(victim: Postgres, name: str, schema: str, way: str) -> None:
    """DV-19: rows only, any schema name, whatever the search path, through the pooler too; no DDL is ever sent."""
    from urllib.parse import quote

    role = f"rows-only-{os.urandom(3).hex()}"
    add_user(victim, role, "search_path = ''")
    victim.sql("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    options = f"schema={quote(schema)}&table=Odd%20%24table"
    with rota.connect(victim.url(options=options)) as client:
        printed = client.driver.schema(role=role)
    victim.sql(printed)
    victim.sql(printed)  # safe to run twice
    if way == "pgbouncer":
        with PgBouncer(victim, users=(role,)) as pooler:
            use(pooler.url(role, options=options), name)
    else:
        use(victim.url(role, options=options), name)
    with rota.connect(victim.url(role, options=options + "2")) as client, pytest.raises(ConfigurationError) as error:
        client.try_lease(name, on_unavailable="run")
    assert "rota init" in str(error.value)
    assert "rota schema" in str(error.value)


def test_a_role_without_rights_is_told_so_in_one_line(victim: Postgres, name: str) -> None:
    """DV-19: no outage, which a policy could go ahead on; and nothing of where in which function it happened."""
    role = f"stranger-{os.urandom(3).hex()}"
    add_user(victim, role)
    with rota.connect(victim.url(role)) as client, pytest.raises(ConfigurationError, match="permission denied for table rota") as error:
        client.try_lease(name, on_unavailable="run")
    assert "--role" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_role_that_does_not_exist_makes_nothing(victim: Postgres) -> None:
    """DV-19: half of it would be worse than none, as the next error would be about rights."""
    refused = pytest.raises(ConfigurationError, match="'nobody-at-all' does not exist, so nothing was made")
    with rota.connect(victim.url(options="table=half_done")) as client, refused:
        client.driver.init(5.0, role="nobody-at-all")  # type: ignore[attr-defined]
    assert victim.sql("SELECT to_regclass('half_done') IS NULL") == "t"


def test_a_table_that_another_version_made_is_told_with_the_cure(victim: Postgres, name: str) -> None:
    """DV-19: ``rota init`` can't mend it, and must not say that the store is ready."""
    table = f"other_{os.urandom(3).hex()}"
    columns = [*COLUMNS.items()]
    made = ", ".join(f"{column} {declared}" for column, declared in [*columns[1:], columns[0]])
    row = f"INSERT INTO {table} (name, token, keep_until) VALUES ('{name}', 7, now() + '1 day')"
    victim.sql(f"CREATE TABLE {table} ({made})", row)
    url = victim.url(options=f"table={table}")
    with rota.connect(url) as client:
        victim.sql(client.driver.schema())  # the functions of the other version: they are tied to the table
        for ask in (lambda: client.driver.init(5.0), lambda: client.driver.read(name, 5.0)):  # type: ignore[attr-defined]
            with pytest.raises(ConfigurationError, match="DROP TABLE ... CASCADE; then rota init; and copy the rows"):
                ask()
        # as it says
        named = ", ".join(COLUMNS)
        victim.sql(f"CREATE TABLE {table}_kept AS TABLE {table}", f"DROP TABLE {table} CASCADE")
        client.driver.init(5.0)  # type: ignore[attr-defined]
        victim.sql(f"INSERT INTO {table} ({named}) SELECT {named} FROM {table}_kept")
        assert client.driver.read(name, 5.0)[0].token == 7
        client.driver.init(5.0)  # type: ignore[attr-defined]
    use(url, name)


def test_a_table_of_the_first_version_goes_on_serving(victim: Postgres, name: str) -> None:
    """Its last column, `waited`, has another place now."""
    table = f"first_{os.urandom(3).hex()}"
    made = ", ".join(f"{column} {COLUMNS[column]}" for column in [*(each for each in COLUMNS if each != "waited"), "waited"])
    victim.sql(f"CREATE TABLE {table} ({made})", f"INSERT INTO {table} (name, token, keep_until) VALUES ('{name}-old', 7, now() + '1 day')")
    url = victim.url(options=f"table={table}")
    with rota.connect(url) as client:
        client.driver.init(5.0)  # type: ignore[attr-defined]
        assert client.driver.read(f"{name}-old", 5.0)[0].token == 7
    use(url, name)


def use(url: str, name: str) -> None:
    with rota.connect(url) as client:
        with client.lease(name), pytest.raises(Busy), client.lease(name):
            pass
        with client.window(f"{name}-w", rota.Every("1d")):
            pass
        assert client.try_window(f"{name}-w", rota.Every("1d")).verdict == "handled"
        assert client.driver.facts(5)["missing_permissions"] == ""
        assert [record.name for record in client.driver.list("", 5)]
        client.driver.sweep(10, 5)


def test_a_table_named_as_a_variable_of_the_functions(victim: Postgres, name: str) -> None:
    """DV-19: any name for the table, even one that the functions use for something else."""
    with rota.connect(victim.url(options="table=now")) as client:
        client.driver.init(5.0)  # type: ignore[attr-defined]
        client.driver.record(rota.backend.WriteBack(f"{name}-r", "b:2", "window", 1, "every 60s", "", 0, 60_000_000), 5)
        client.driver.override(rota.backend.Override(f"{name}-r", "released", "ada: by hand", 1), 5)
        assert client.driver.forget(f"{name}-r", 5)
    use(victim.url(options="table=now"), name)


def test_the_sql_is_printed_without_a_connection(capsys: pytest.CaptureFixture[str]) -> None:
    """DV-19."""
    driver = rota.connect("postgresql://nobody@192.0.2.1/none?table=x").driver
    printed = driver.schema(role="app", unlogged="yes")
    assert "CREATE UNLOGGED TABLE IF NOT EXISTS" in printed
    assert 'GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE "public"."x" TO "app"' in printed
    assert not driver.pool._open


@pytest.mark.by_the_clock
def test_a_forked_child_holds_nothing_and_can_hold_for_itself(pgbouncer: Server, connect: Callable[..., rota.Client], name: str) -> None:
    """DV-23: the client was used before the fork; the child's end neither releases nor breaks what the parent has."""
    client = connect(pgbouncer)
    with client.lease(name, ttl="2s", timeout="500ms") as grant:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                if grant.lost:
                    with client.lease(f"{name}-child", ttl="2s", timeout="500ms") as own:
                        time.sleep(3)
                        own.check()
                    code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        grant.check()
        assert client.try_lease(name).verdict == "busy"
    with client.lease(name):
        pass


@pytest.mark.by_the_clock
def test_threads_share_leases(server: Server, connect: Callable[..., rota.Client], name: str) -> None:
    """DV-23: acquired in one thread, released in another; a tenure that ran out can't release its successor's."""
    client, other = connect(server), connect(server)
    with ThreadPoolExecutor() as pool:
        grant = pool.submit(client.try_lease, name).result()
        pool.submit(grant.release).result()
        old = pool.submit(client.try_lease, name, ttl="300ms", timeout="90ms").result()
        client._engine.heartbeat.remove(old)  # a heartbeat that starved
        new = pool.submit(other.try_lease, name, wait=5).result()
        assert new
        with pytest.raises(LeaseLost):
            pool.submit(old.release).result()
        new.check()
        assert client.try_lease(name).verdict == "busy"
        new.release()


def test_the_command_prints_the_sql_and_carries_it_out(victim: Postgres, name: str) -> None:
    """DV-19: what the missing table's error names does what it says."""
    from rota.cli import main

    role = f"made-by-{os.urandom(3).hex()}"
    add_user(victim, role)
    table = f"table={name}"
    for _ in range(2):
        assert main(["init", victim.url(options=table), "--role", role]) == 0
    use(victim.url(role, options=table), name)
    printed = subprocess.run(
        [sys.executable, "-m", "rota", "schema", "postgresql://u:s3cret@192.0.2.1/x?table=t", "--unlogged"], capture_output=True, text=True
    )
    assert printed.returncode == 0
    assert "CREATE UNLOGGED TABLE" in printed.stdout
    assert "s3cret" not in printed.stdout + printed.stderr
