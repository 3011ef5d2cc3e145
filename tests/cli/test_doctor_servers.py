# SPDX-License-Identifier: MIT
"""`rota doctor` on real servers: each planted fault is found with its cure named, and a sound one is passed over in silence."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator
from urllib.parse import quote

import pytest
import rota
import servers
from servers import Etcd, PgBouncer, Postgres, Redis, RunningPostgres, RunningZooKeeper, ZooKeeper, add_user, wait_until

SLOW = ("--timeout", "60s")
#: Where no answer will come, however long it is waited for.
HANGS = "3s"
SECRET = "s3cr3t-w0rd"


@pytest.fixture
def finds(examined):
    """Assert that the doctor finds something about a subject, at this level, and names the cure; return the finding."""

    def finds(level: str, subject: str, cure: str, url: str, timeout: str = "60s") -> dict:
        code, found = examined(url, "--timeout", timeout)
        assert code == (1 if level == "bad" else 0), found
        assert found[subject]["level"] == level, found
        assert cure in found[subject]["cure"], found[subject]
        assert found[subject]["why"]
        assert SECRET not in json.dumps(found)
        return found[subject]

    return finds


# -- servers


@pytest.fixture(scope="module")
def redis() -> Iterator[Redis]:
    """A sound one: it keeps what it is told."""
    with Redis(appendonly="yes") as server:
        yield server


@pytest.fixture(scope="module")
def own_postgres(postgres: Postgres | RunningPostgres) -> Postgres:
    """The session's server, of our own, with a table for these tests and a user who may use its rows."""
    if not isinstance(postgres, Postgres):
        pytest.skip("not run: what is planted needs a server of our own")
    add_user(postgres, "doctored")
    with rota.connect(postgres.url(options="table=doctored")) as client:
        postgres.sql(client.driver.schema(role="doctored"))
    return postgres


def table(server, **options: str) -> str:
    """The URL of that table."""
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in {"table": "doctored", **options}.items())
    return server.url("doctored", options=query)


@pytest.fixture
def pooled(own_postgres: Postgres) -> Iterator[PgBouncer]:
    """PgBouncer in transaction mode."""
    with PgBouncer(own_postgres, users=("postgres", "doctored")) as pooler:
        yield pooler


@pytest.fixture(scope="module")
def zookeeper(conforming_zookeeper: ZooKeeper | RunningZooKeeper) -> ZooKeeper | RunningZooKeeper:
    """One where `/there` is used."""
    with rota.connect(conforming_zookeeper.url("/there"), timeout=10) as client:
        client.try_lease("job").release()
    return conforming_zookeeper


# -- sound ones


@pytest.fixture(params=["redis", "redis with a replica", "postgres", "pgbouncer", "zookeeper", "etcd"])
def sound(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a store with which nothing is wrong."""
    if request.param == "redis":
        yield request.getfixturevalue("redis").url()
    elif request.param == "redis with a replica":
        with Redis(appendonly="yes") as primary, Redis(replica_of=primary) as replica:
            wait_until(replica.follows)
            yield primary.url(options="wait_replicas=1")
    elif request.param == "postgres":
        yield table(request.getfixturevalue("own_postgres"))
    elif request.param == "pgbouncer":
        yield table(request.getfixturevalue("pooled"), listen=request.getfixturevalue("own_postgres").url("doctored"))
    elif request.param == "zookeeper":
        yield request.getfixturevalue("zookeeper").url("/there")
    else:
        yield request.getfixturevalue("etcd").url(prefix="doctored")


def test_it_is_silent_on_a_sound_store(examined, sound):
    code, found = examined(sound, *SLOW)
    assert code == 0
    assert {subject: one for subject, one in found.items() if one["level"] != "ok"} == {}
    assert {"reach", "latency", "clock", "versions", "claim", "records", "ttl", "durability"} <= found.keys()
    of_one = ("a single one", "one endpoint")
    if any(found[subject]["finding"].startswith(of_one) for subject in ("servers", "members") if subject in found):
        assert "minority" not in found["durability"]["finding"]  # which it has none of
    # they are one clock, which two processes in a virtual machine may read half a millisecond apart
    assert found["clock"]["facts"]["ahead_least_s"] <= 0.01
    assert found["clock"]["facts"]["ahead_most_s"] >= -0.01
    with rota.connect(sound, timeout=10) as client:
        assert [record.name for record in client.driver.list("rota-doctor", 10.0) if record.kind] == []


# -- planted faults


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_redis_that_throws_keys_away(finds, redis, policy):
    redis.do("CONFIG", "SET", "maxmemory-policy", policy)
    try:
        finds("warn", "eviction", "noeviction", redis.url())
        redis.do("CONFIG", "SET", "maxmemory", "1gb")
        assert policy in finds("bad", "eviction", "CONFIG SET maxmemory-policy noeviction", redis.url())["finding"]
    finally:
        redis.do("CONFIG", "SET", "maxmemory", "0")
        redis.do("CONFIG", "SET", "maxmemory-policy", "noeviction")


def test_redis_without_persistence(finds, redis):
    redis.do("CONFIG", "SET", "appendonly", "no")
    try:
        finds("warn", "durability", "CONFIG SET appendonly yes", redis.url())
    finally:
        redis.do("CONFIG", "SET", "appendonly", "yes")


def test_redis_with_replicas_and_without_wait_replicas_and_a_replica_itself(finds, redis):
    with Redis(replica_of=redis) as replica:
        wait_until(replica.follows)
        finds("warn", "replicas", "wait_replicas=1", redis.url())
        finds("bad", "replicas", "wait_replicas=1", redis.url(options="wait_replicas=2"))
        finds("bad", "role", "Name the primary", replica.url())


def test_redis_behind_sentinels_without_wait_replicas(finds, sentinel_url):
    found = finds("warn", "replicas", "wait_replicas=1", sentinel_url)
    assert "1 replica," in found["finding"]


def test_redis_whose_user_has_too_few_rights(finds, redis):
    redis.do("ACL", "SETUSER", "poor", "on", f">{SECRET}", "~*", "+@all", "-blpop", "-set")
    finds("bad", "permissions", "ACL SETUSER poor +set +blpop", redis.url().replace("redis://", f"redis://poor:{SECRET}@"))


RUN = "~rota:* +@connection +eval +evalsha +script|load +get +set +time +exists +pttl +pexpire +del +rpush +blpop"


@pytest.mark.parametrize(
    ("level", "rights", "cure"),
    [
        ("warn", RUN, "ACL SETUSER USER +info +scan"),
        ("warn", f"{RUN} +acl|whoami +info", "ACL SETUSER {user} +scan"),
        ("warn", f"{RUN} +acl|whoami +scan", "ACL SETUSER {user} +info"),
        ("ok", f"{RUN} +acl|whoami +scan +info", None),
        ("bad", f"{RUN} +acl|whoami +scan +info -time", "ACL SETUSER {user} +time"),
        ("bad", f"{RUN} +acl|whoami +scan +info -pexpire", "ACL SETUSER {user} +pexpire"),
        ("bad", f"resetkeys {RUN.removeprefix('~rota:* ')} +acl|whoami +scan +info", "ACL SETUSER {user} ~rota:*"),
    ],
)
def test_redis_names_the_rights_that_are_missing(examined, redis, level, rights, cure):
    """What rota run works without is no reason to fail."""
    user = f"user{os.urandom(4).hex()}"
    redis.do("ACL", "SETUSER", user, "on", f">{SECRET}", *rights.split())
    code, findings = examined(redis.url().replace("redis://", f"redis://{user}:{SECRET}@"), "--timeout", "60s")
    found = findings["permissions"]
    assert (found["level"], found["cure"]) == (level, cure and cure.format(user=user))
    assert code == (1 if level == "bad" else 0), findings
    redis.do("ACL", "DELUSER", user)


def test_a_standby_is_read_only(finds, own_postgres):
    with Postgres(of=own_postgres) as standby:
        finds("bad", "role", "Name the primary", table(standby))
        finds("warn", "replication", "synchronous_standby_names", table(own_postgres))


def test_a_role_without_rights(finds, own_postgres):
    add_user(own_postgres, "unblessed")
    url = own_postgres.url("unblessed", options="table=doctored")
    assert "unblessed has no SELECT" in finds("bad", "permissions", "--role unblessed", url)["finding"]


def test_a_missing_table(finds, own_postgres):
    found = finds(
        "bad", "table", "?table=forgotten' rota init --role doctored, once", own_postgres.url("doctored", options="table=forgotten")
    )
    assert '"public"."forgotten"' in found["finding"]


def test_a_pooler_through_which_nobody_can_listen(finds, examined, own_postgres, pooled):
    finds("warn", "pooler", "listen=", table(pooled))
    finds("warn", "pooler", "listen=", table(pooled, listen=pooled.url("doctored")))
    finds("warn", "pooler", "listen=", table(pooled, listen="postgresql://doctored@127.0.0.1:1/rota"))
    assert examined(table(pooled, listen="off"), *SLOW)[1]["pooler"]["level"] == "ok"


def test_an_unlogged_table(finds, own_postgres):
    own_postgres.sql("ALTER TABLE doctored SET UNLOGGED")
    try:
        finds("warn", "table", "SET LOGGED", table(own_postgres))
    finally:
        own_postgres.sql("ALTER TABLE doctored SET LOGGED")


def test_commits_that_a_crash_loses(finds, own_postgres):
    own_postgres.sql("ALTER ROLE doctored SET synchronous_commit = off")
    try:
        finds("warn", "durability", "synchronous_commit = on", table(own_postgres))
    finally:
        own_postgres.sql("ALTER ROLE doctored RESET synchronous_commit")


def test_etcd_whose_http_cannot_be_reached(finds, etcd):
    found = finds("bad", "clock", "?http_port=", etcd.url(f"http_port={servers.free_port()}", "doctored"))
    assert "windows" in found["why"]
    finds("warn", "clock", "clock=local", etcd.url("clock=local", "doctored"))


def test_a_chroot_that_is_not_there_is_not_made(finds, examined, zookeeper):
    finds("bad", "chroot", "correct the URL", zookeeper.url("/typo"))
    assert examined(zookeeper.url("/typo"), *SLOW)[1]["chroot"]["level"] == "bad"
    with rota.connect(zookeeper.url("/typo"), timeout=10) as client:
        client.try_lease("job").release()
    assert examined(zookeeper.url("/typo"), *SLOW)[1]["chroot"]["level"] == "ok"


@pytest.mark.parametrize("ahead", [10, -10])
def test_a_servers_clock_that_is_ten_seconds_off(finds, ahead):
    with Etcd(skewed=True) as server:
        server.skew(ahead)
        found = finds("bad", "clock", "NTP", server.url())
        assert found["facts"]["ahead_least_s"] <= ahead <= found["facts"]["ahead_most_s"]


def test_this_hosts_clock_that_is_ten_seconds_off(cli, redis):
    library = max(glob.glob("/usr/lib/*/faketime/libfaketime.so.1"), default=None)
    if library is None:
        raise servers.NotInstalled("libfaketime is not installed")
    fake = {"LD_PRELOAD": library, "FAKETIME": "-10s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    ended = cli("doctor", redis.url(), "--json", env=fake)
    found = {one["subject"]: one for one in map(json.loads, ended.stdout.splitlines())}["clock"]
    assert (ended.returncode, found["level"]) == (1, "bad")
    assert "NTP" in found["cure"]
    assert found["facts"]["ahead_least_s"] <= 10 <= found["facts"]["ahead_most_s"]


# -- credentials


def test_a_password_of_redis_that_any_other_would_replace(finds, redis):
    finds("warn", "credentials", "requirepass", redis.url().replace("://", f"://default:{SECRET}@"))


def test_a_wrong_password_of_redis(finds, examined):
    with Redis(password="right") as server:
        for user in ("", "default"):
            assert "credentials" not in examined(server.url().replace("://:", f"://{user}:"), *SLOW)[1]
        finds("bad", "credentials", "user and password", server.url().replace("right", SECRET))
        finds("bad", "credentials", "user and password", server.url().replace(":right@", ""))


def test_a_wrong_password_of_postgres_and_a_connection_without_tls(finds, examined, own_postgres):
    own_postgres.sql("CREATE ROLE locked LOGIN PASSWORD 'right'")
    hba = own_postgres.data / "pg_hba.conf"
    open_to_all = hba.read_text()
    hba.write_text("host all locked all scram-sha-256\nhost all secretive all reject\n" + open_to_all)
    own_postgres.sql("SELECT pg_reload_conf()")
    try:
        url = own_postgres.url("locked", options="table=doctored")
        # a reload takes the server a moment
        wait_until(lambda: "password" in refusal(url))
        assert "credentials" not in examined(url.replace("locked@", "locked:right@"), *SLOW)[1]
        finds("bad", "credentials", "user and password", url.replace("locked@", f"locked:{SECRET}@"))
        finds("bad", "credentials", "user and password", url)
        # what a server says, too, that wants TLS (hostssl)
        finds("bad", "tls", "sslmode=", own_postgres.url("secretive", options="table=doctored"))
    finally:
        hba.write_text(open_to_all)
        own_postgres.sql("SELECT pg_reload_conf()")


def refusal(url: str) -> str:
    try:
        with rota.connect(url) as client:
            client.driver.now(5.0)
    except rota.RotaError as error:
        return str(error)
    return ""


def test_a_wrong_password_of_zookeeper(finds, zookeeper):
    host = zookeeper.hosts
    with rota.connect(f"zookeeper://owner:right@{host}/owned", timeout=10) as client:
        client.try_lease("job").release()
    finds("bad", "credentials", "user and password", f"zookeeper://owner:{SECRET}@{host}/owned")


def test_a_password_that_etcd_does_not_check(finds, etcd):
    found = finds("warn", "credentials", "etcdctl auth enable", etcd.url(prefix="doctored").replace("://", f"://u:{SECRET}@"))
    assert "not checked" in found["finding"]


def test_a_password_that_postgres_does_not_ask_for(finds, own_postgres):
    finds("warn", "credentials", "pg_hba.conf", table(own_postgres).replace("doctored@", f"doctored:{SECRET}@"))


def test_a_wrong_password_of_etcd_and_a_user_without_rights(finds, examined):
    with Etcd(password="right") as server:
        finds("bad", "credentials", "user and password", server.url().replace("right", SECRET))
        finds("bad", "credentials", "user and password", server.url().replace("root:right@", ""))
        server.do("auth/user/add", name="poor", password=SECRET)
        assert "credentials" not in examined(server.url(), *SLOW)[1]
        finds("bad", "permissions", "etcdctl role grant-permission", server.url().replace("root:right@", f"poor:{SECRET}@"))


# -- TLS, or not


@pytest.fixture(scope="module")
def by_tls() -> Iterator[Redis]:
    """A port that speaks TLS alone; of which kind the server is does not matter, as long as none comes to speak to it."""
    with Redis(tls=True) as server:
        yield server


def test_redis_spoken_to_in_the_wrong_way(finds, redis, by_tls):
    finds("bad", "tls", "redis:// instead of rediss://", redis.url(scheme="rediss"), HANGS)
    finds("bad", "tls", "rediss:// instead of redis://", f"redis://127.0.0.1:{by_tls.port}")
    finds("bad", "tls", "ssl_ca_certs=", f"rediss://127.0.0.1:{by_tls.port}")


def test_postgres_spoken_to_in_the_wrong_way(finds, own_postgres):
    finds("bad", "tls", "sslmode=", table(own_postgres, sslmode="require"))


def test_zookeeper_spoken_to_in_the_wrong_way(finds, zookeeper, by_tls):
    finds("bad", "tls", "tls=true out of the URL", f"zookeeper://{zookeeper.hosts}/there?tls=true", HANGS)
    finds("bad", "tls", "Write tls=true", f"zookeeper://127.0.0.1:{by_tls.port}", HANGS)
    finds("bad", "tls", "?ca=", f"zookeeper://127.0.0.1:{by_tls.port}?tls=true", HANGS)


def test_etcd_spoken_to_in_the_wrong_way(finds, etcd, by_tls):
    finds("bad", "tls", "Write etcd://", f"etcds://127.0.0.1:{etcd.port}")
    finds("bad", "tls", "Write etcds://", f"etcd://127.0.0.1:{by_tls.port}")
    finds("bad", "tls", "cacert=", f"etcds://127.0.0.1:{by_tls.port}")
