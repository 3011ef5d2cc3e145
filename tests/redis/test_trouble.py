# SPDX-License-Identifier: MIT
"""Servers that are full, frozen, killed, read-only or forbidden: what the caller hears, and that nothing needs a restart (F1, F2, L6)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import rota
import servers
from rota.backend import Claim, Override, Renewal, Settlement, WriteBack
from rota.duration import DAY, SECOND
from rota.errors import ConfigurationError, OutcomeUnknown, Unavailable
from rota_redis._resp import Taker

DAILY = rota.Every("1d")


def filler(server: Any, count: int, *more: str) -> None:
    """Write many keys of 1 kB, in one script call each thousand."""
    script = "for i = 1, ARGV[1] do redis.pcall('SET', ARGV[2] .. i, string.rep('x', 1000), unpack(ARGV, 3)) end"
    for number in range(count // 1000):
        try:
            server.do("EVAL", script, 0, 1000, f"filler/{number}/", *more)
        except Exception as error:
            assert "OOM" in str(error)


# -- DV-13: evicted, or full


@pytest.mark.parametrize(("policy", "expiry"), [("allkeys-lru", ()), ("volatile-lru", ("PX", "600000"))])
def test_an_evicted_lease_is_lost_and_not_put_back(
    start: Any, connect: Any, until: Any, name: str, policy: str, expiry: tuple[str, ...]
) -> None:
    server = start(maxmemory="3mb", maxmemory_policy=policy)
    client, other = connect(server.url()), connect(server.url())
    told = threading.Event()
    grant = client.try_lease(name, ttl="3s", on_lost=lambda grant: told.set())
    for _ in range(10):  # LRU is by samples, and a renewal may touch the key meanwhile
        filler(server, 20_000, *expiry)
        if server.do("EXISTS", f"rota:{name}") == 0:
            break
    assert server.do("EXISTS", f"rota:{name}") == 0, "the record was evicted"
    assert told.wait(20), "the next heartbeat tells"
    assert grant.lost
    assert server.do("EXISTS", f"rota:{name}") == 0, "nobody put it back"
    assert other.try_lease(name).token > grant.token  # L2
    facts = client.driver.facts(1.5)
    assert facts["evicts"] is True
    assert facts["maxmemory_policy"] == policy
    with pytest.raises(rota.LeaseLost):
        grant.release()


def test_full_memory_is_unavailable_with_the_reason_and_leaves_nothing_half_written(start: Any, connect: Any, name: str) -> None:
    server = start(maxmemory="3mb", maxmemory_policy="noeviction")
    client = connect(server.url())
    held = client.try_lease(name + "/held", ttl="1m")
    before = server.do("GET", f"rota:{name}/held")
    filler(server, 5_000)
    with pytest.raises(Unavailable, match="OOM") as caught:
        client.try_lease(name)
    assert not isinstance(caught.value, OutcomeUnknown)
    with pytest.raises(Unavailable, match="OOM"):
        client.driver.renew([_renewal(held)], 1.5)
    assert server.do("GET", f"rota:{name}/held") == before
    assert server.do("EXISTS", f"rota:{name}") == 0
    ahead = client.try_once(name + "/mail", "1d", on_unavailable="run")
    assert ahead
    assert ahead.degraded
    assert ahead.warnings
    assert server.do("EXISTS", f"rota:{name}/mail") == 0
    assert client.driver.facts(1.5)["evicts"] is False


def _renewal(grant: Any) -> Any:
    return Renewal(grant.name, grant._owner, 60_000_000, 86_400_000_000)


# -- states of the server


def test_a_replica_is_unavailable_never_busy(start: Any, connect: Any, until: Any, name: str) -> None:
    primary = start()
    replica = start(replica_of=primary)
    until(replica.follows)
    connect(primary.url()).try_lease(name)
    client = connect(replica.url())
    with pytest.raises(Unavailable, match="READONLY"):
        client.try_lease(name + "/free")
    assert client.driver.facts(1.5)["role"] == "replica"
    replica.do("REPLICAOF", "NO", "ONE")
    assert until(lambda: _granted(client, name + "/free"))


def test_a_replica_without_its_primary_is_unavailable(start: Any, connect: Any, until: Any, name: str) -> None:
    primary = start()
    replica = start(replica_of=primary, replica_serve_stale_data="no")
    until(replica.follows)
    primary.kill()
    until(lambda: replica.info("replication")["master_link_status"] == "down")
    with pytest.raises(Unavailable, match="MASTERDOWN|READONLY"):
        connect(replica.url()).try_lease(name)


def test_a_server_that_loads_its_data_is_unavailable(start: Any, face: Any, until: Any, name: str) -> None:
    server = start(rdbcompression="no")
    client = face.connect(server.url())
    window = face.do(client.try_window(name, DAILY))
    face.do(window.handled())
    filler(server, 3_000)
    server.do("SAVE")
    server.stop()
    with (server.folder / "redis.conf").open("a") as settings:
        # it sleeps so many microseconds after each key, and looks at its clients after each kilobyte: it loads until it is told not to
        settings.write("key-load-delay 20000\nloading-process-events-interval-bytes 1024\n")
    server.start(wait=False)
    until(lambda: servers.accepts(server.port))  # it listens before it loads

    def loading(ask: Callable[[], Any]) -> Unavailable | None:
        """What was said, unless the answer did not come in time."""
        with pytest.raises(Unavailable) as caught:
            ask()
        return caught.value if "LOADING" in str(caught.value) else None

    assert not isinstance(until(lambda: loading(lambda: face.do(client.try_lease(name + "/lease")))), OutcomeUnknown)
    assert until(lambda: loading(lambda: client.driver.read(name, 1.5)))
    server.do("CONFIG", "SET", "key-load-delay", "0")
    server.wait_ready()
    assert until(lambda: face.verdict(lambda: client.try_window(name, DAILY))) == "handled"


def test_too_few_replicas_is_unavailable(start: Any, connect: Any, name: str) -> None:
    server = start(min_replicas_to_write="1")
    with pytest.raises(Unavailable, match="NOREPLICAS"):
        connect(server.url()).try_lease(name)
    assert connect(server.url()).driver.facts(1.5)["min_replicas_to_write"] == 1


def test_a_failed_snapshot_is_unavailable(start: Any, connect: Any, until: Any, name: str) -> None:
    server = start()
    server.do("CONFIG", "SET", "save", "3600 1")
    server.do("SET", "x", "y")
    (server.folder / "dump.rdb").mkdir()  # nothing can be put in its place
    server.do("BGSAVE")
    until(lambda: server.info("persistence")["rdb_last_bgsave_status"] == "err")
    with pytest.raises(Unavailable, match="MISCONF"):
        connect(server.url()).try_lease(name)
    server.do("CONFIG", "SET", "save", "")  # else it can't save when it is stopped, and goes on


def test_a_script_that_runs_too_long_is_unavailable(start: Any, connect: Any, until: Any, name: str) -> None:
    server = start(lua_time_limit="100")
    client = connect(server.url())
    client.driver.now(1.5)
    thread = threading.Thread(target=_forever, args=(server,))
    thread.start()
    until(lambda: _is_busy(server))
    with pytest.raises(Unavailable, match="BUSY"):
        client.try_lease(name, timeout="1s")
    server.do("SCRIPT", "KILL")
    thread.join()
    assert until(lambda: _granted(client, name))


def _forever(server: Any) -> None:
    with pytest.raises(Exception, match="[Kk]illed"):
        server.do("EVAL", "while true do end", 0, seconds=30)


def _is_busy(server: Any) -> bool:
    try:
        server.do("PING")
    except Exception as error:
        return "BUSY" in str(error)
    return False


def test_too_many_clients_is_unavailable(start: Any, connect: Any, name: str) -> None:
    server = start(maxclients="10")
    clients = [connect(server.url()) for _ in range(11)]
    with pytest.raises(Unavailable):
        for client in clients:
            client.try_lease(name)


def test_missing_and_wrong_rights_are_no_outage(start: Any, connect: Any, name: str) -> None:
    server = start()
    server.do("ACL", "SETUSER", "reader", "on", ">pw", "~rota:*", "+@read", "+@connection", "+evalsha", "+script|load", "+time")
    server.do("ACL", "SETUSER", "elsewhere", "on", ">pw", "~other:*", "+@all")
    server.do("ACL", "SETUSER", "default", "off")
    for user in ("reader:pw", "elsewhere:pw"):
        with pytest.raises(ConfigurationError, match="NOPERM"):
            connect(f"redis://{user}@127.0.0.1:{server.port}").try_lease(name, on_unavailable="run")
    with pytest.raises(ConfigurationError, match="WRONGPASS"):
        connect(f"redis://reader:no@127.0.0.1:{server.port}").try_lease(name, on_unavailable="run")
    with pytest.raises(ConfigurationError, match="NOAUTH|WRONGPASS Authentication required"):  # by 7.0; by 7.4 and Valkey 8
        connect(f"redis://127.0.0.1:{server.port}").try_lease(name, on_unavailable="run")


def test_the_rights_that_the_readme_names_are_enough(start: Any, connect: Any, only_woken: None, name: str) -> None:
    server = start()
    rights = "~rota:* +@connection +eval +evalsha +script|load +get +set +time +exists +pttl +pexpire +del +rpush +blpop"
    more = "+wait +scan +info +config|get +acl|whoami"
    server.do("ACL", "SETUSER", "app", "on", ">pw", *rights.split(), *more.split())
    client, other = (connect(f"redis://app:pw@127.0.0.1:{server.port}") for _ in range(2))
    grant = client.try_lease(name, ttl="30s")
    threading.Timer(0.2, grant.release).start()
    started = time.monotonic()
    assert other.try_lease(name, wait="40s")
    assert time.monotonic() - started < 20, "woken"
    with client.window(name + "/w", DAILY):
        pass
    assert len(client.driver.list("", 1.5)) == 2
    facts = client.driver.facts(1.5)
    assert (facts["user"], facts["forbidden"]) == ("app", None)
    server.do("ACL", "SETUSER", "app", "-set", "-blpop")
    assert client.driver.facts(1.5)["forbidden"] == "set, blpop"
    server.do("ACL", "SETUSER", "app", "+set")
    assert client.driver.forget(name, 1.5)


def test_a_foreign_value_under_our_key_is_told_as_such(redis_url: str, driver_for: Any, connect: Any, name: str) -> None:
    driver = driver_for(redis_url)
    from rota_redis._wire import command, key_of

    for number, value in enumerate((command("SET", key_of(f"{name}/0"), "theirs"), command("SADD", key_of(f"{name}/1"), "theirs"))):
        _exchange(driver, value)
        with pytest.raises(ConfigurationError, match="did not write"):
            connect(redis_url).try_lease(f"{name}/{number}")
    assert driver.list(name, 1.5) == []


def _exchange(driver: Any, packed: bytes) -> Any:
    from rota_redis.driver import step

    return step(driver._link.exchange(driver.settings.addresses[0], packed, 1, time.monotonic() + 5))[0]


# -- frozen, killed, gone


def _granted(client: Any, name: str, **options: Any) -> Any:
    try:
        grant = client.try_lease(name, **options)
    except Unavailable:
        return None
    if grant:
        grant.release()
    return grant


@pytest.mark.by_the_clock
def test_a_frozen_server_costs_the_timeout_and_not_more(start: Any, faces: Any, until: Any, name: str, stopwatch: Any) -> None:
    """F1; and L6: the holder of ttl 3 s knows in time over a freeze of 4 s, and all goes on afterwards without a restart."""
    server = start()
    clients = [face.connect(server.url(), timeout="500ms") for face in faces]
    both = list(zip(faces, clients, strict=True))
    grants = [face.do(client.try_lease(name + face.kind, ttl="3s", heartbeat="800ms")) for face, client in both]
    server.pause()
    frozen = stopwatch()
    try:
        for face, client in both:
            started = stopwatch()
            with pytest.raises(Unavailable, match=f"(127.0.0.1:{server.port})"):
                face.do(client.try_lease(name + "/other"))
            assert started.seconds < 1.0, "a call ends within its timeout"
        for _ in range(2):  # on a connection that was open, and on a fresh one, accepted by the kernel and answered by nobody
            started = stopwatch()
            with pytest.raises(Unavailable, match=f"(127.0.0.1:{server.port})"):
                clients[0].driver.read(name, 0.3)
            assert started.seconds < 0.6
        until(lambda: all(grant.lost for grant in grants))
        assert frozen.seconds < 3.0, "before the store can give it to somebody else"
        until(lambda: frozen.seconds > 4.0)  # the store has let go of it, too
    finally:
        server.resume()
    for face, client in both:
        assert until(lambda face=face, client=client: face.attempt(lambda: client.try_lease(f"{name}/{face.kind}/after")))
        assert until(lambda face=face, client=client: face.attempt(lambda: client.try_lease(name + face.kind))), "the lease is free again"


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"$abc\r\n", b"*-x\r\n", b"*1\r\n" * 5000, b"\0" * 64])
def test_what_is_no_answer_of_redis_is_an_outage_and_no_fault_of_ours(face: Any, said: bytes, name: str) -> None:
    """F2: so `on_unavailable` decides, and the keeper finishes the owner."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connection.recv(65536)
                    connection.sendall(said)

        threading.Thread(target=serve, daemon=True).start()
        client = face.connect(f"redis://127.0.0.1:{server.getsockname()[1]}/0", timeout="300ms")
        assert face.do(client.try_lease(name, on_unavailable="skip")).verdict == "unavailable"
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "parts", [[b">2\r\n$1\r\nx\r\n*0\r\n", b"%b"], [b"%b" + b"*2\r\n$1\r\n0\r\n"], [b"%b*2\r\n", b"$1\r\n0\r\n$1\r\n0\r\n"]]
)
def test_what_nobody_asked_for_is_no_answer_to_the_next_request(face: Any, parts: list[bytes]) -> None:
    """L1: a push of RESP3 before the answer, and what somebody in between adds behind it. A grant of another name would be believed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        seconds = itertools.count(1)

        def serve(connection: socket.socket) -> None:
            asked = Taker()
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while True:
                    asked.more(connection.recv(65536))
                    while (found := asked()) is not None:
                        if found[0][0] != b"TIME":
                            connection.sendall(b"+OK\r\n")
                            continue
                        answer = b"*2\r\n$1\r\n%d\r\n$1\r\n0\r\n" % next(seconds)
                        for part in parts:
                            connection.sendall(part.replace(b"%b", answer))
                            time.sleep(0.02)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=server.accept()[:1], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        client = face.connect(f"redis://127.0.0.1:{server.getsockname()[1]}/0")

        async def after_a_while() -> object:
            answer = await client._engine.io.now(5.0)
            await asyncio.sleep(0.05)  # by then the loop has read what else came
            return answer

        ask = after_a_while if face.kind == "async" else lambda: client.driver.now(5.0)
        assert [face.do(ask()) for _ in range(4)] == [(second * SECOND, second * SECOND) for second in range(1, 5)]
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("said", [b"+OK\r\n", b":1\r\n", b"$-1\r\n", b"*0\r\n", b"*2\r\n$1\r\nx\r\n$1\r\ny\r\n"])
@pytest.mark.parametrize("topology", ["/0", "+sentinel/service", "+cluster"])
def test_an_answer_to_another_question_is_an_outage_and_no_fault_of_ours(driver_for: Any, said: bytes, topology: str, name: str) -> None:
    """F2: of a proxy that says to everything that it is well."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(connection: socket.socket) -> None:
            asked = Taker()
            with contextlib.suppress(OSError):
                while True:
                    asked.more(connection.recv(65536))
                    while asked() is not None:
                        connection.sendall(said)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=server.accept()[:1], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        kind, slash, path = topology.partition("/")
        driver = driver_for(f"redis{kind}://127.0.0.1:{server.getsockname()[1]}{slash}{path}")
        claim = Claim(name, "1" * 32, "", "lease", SECOND, 2**60, DAY)
        for ask in (
            lambda: driver.claim(claim, 0.3),
            lambda: driver.claim_when_free(claim, "2" * 32, 0.3, 0.3),
            lambda: driver.renew([Renewal(name, claim.owner, SECOND, DAY)], 0.3),
            lambda: driver.settle(Settlement(name, claim.owner, "released", DAY), 0.3),
            lambda: driver.override(Override(name, "released", "op", DAY), 0.3),
            lambda: driver.record(WriteBack(name, "", "window", DAY, "", "", 1, 2), 0.3),
            lambda: driver.read(name, 0.3),
            lambda: driver.list("", 0.3),
            lambda: driver.forget(name, 0.3),
            lambda: driver.now(0.3),
            lambda: driver.facts(0.3),
        ):
            # a sentinel that knows nothing of the service is none
            knows_nothing = topology == "+sentinel/service" and said in (b"$-1\r\n", b"*0\r\n")
            with pytest.raises(ConfigurationError if knows_nothing else Unavailable):
                ask()
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.by_the_clock
def test_a_call_in_flight_when_the_server_freezes_is_unknown(start: Any, driver_for: Any, name: str) -> None:
    server = start()
    driver = driver_for(server.url())
    driver.now(1.0)
    server.pause()
    try:
        with pytest.raises(OutcomeUnknown, match=f"(127.0.0.1:{server.port})"):
            driver.forget(name, 0.3)
    finally:
        server.resume()
    assert driver.now(1.0)


def test_a_connection_that_the_server_closed_meanwhile_is_not_used(start: Any, face: Any, name: str) -> None:
    """Also by an event loop that has not run since: nothing was sent, so nothing is unknown."""
    server = start()
    client = face.connect(server.url())
    assert face.do(client.try_lease(name))
    server.kill()
    with pytest.raises(Unavailable) as caught:
        face.do(client.try_lease(name))
    assert not isinstance(caught.value, OutcomeUnknown)


def test_a_killed_server_is_surely_not_asked(start: Any, driver_for: Any, connect: Any, until: Any, name: str) -> None:
    """L2: a server without persistence forgets everything; its tokens go on."""
    server = start()
    driver, client = driver_for(server.url()), connect(server.url())
    first = client.try_lease(name, ttl="1m")
    server.kill()
    until(lambda: not server.is_running)
    for _ in range(3):
        with pytest.raises(Unavailable) as caught:
            client.driver.read(name, 1.0)
        assert not isinstance(caught.value, OutcomeUnknown), "the idle connection was seen to be closed before anything was sent"
    server.start()
    second = until(lambda: _granted(client, name))
    assert second.token > first.token
    with pytest.raises(rota.LeaseLost):
        first.release()
    assert driver.now(1.0)


def test_a_record_on_disk_outlives_a_kill(start: Any, connect: Any, until: Any, name: str) -> None:
    server = start(appendonly="yes", appendfsync="always")
    client = connect(server.url())
    with client.window(name, DAILY):
        pass
    held = client.try_lease(name + "/held", ttl="1m")
    server.kill()
    server.start()
    assert until(lambda: _verdict(client, name)) == "handled"
    assert client.driver.renew([_renewal(held)], 1.5).held == [True]
    assert client.driver.facts(1.5)["appendfsync"] == "always"


def _verdict(client: Any, name: str) -> str | None:
    try:
        return client.try_window(name, DAILY).verdict
    except Unavailable:
        return None


def test_tokens_grow_over_a_flush_of_everything(start: Any, connect: Any, name: str) -> None:
    """L2"""
    server = start()
    client = connect(server.url())
    tokens = []
    for _ in range(5):
        grant = client.try_lease(name)
        tokens.append(grant.token)
        server.do("FLUSHALL")
        with pytest.raises(rota.LeaseLost):
            grant.release()
    assert tokens == sorted(set(tokens))


def test_the_key_goes_by_itself_when_the_record_may_go(start: Any, connect: Any, name: str) -> None:
    """R1, R3: at ``keep_until``, and not before a day after the token was made."""
    server = start()
    client = connect(server.url(), retention="2d")
    with client.lease(name, ttl="1m") as grant:
        pass
    record, _ = client.driver.read(name, 1.5)
    expires = server.do("PEXPIRETIME", f"rota:{name}")
    assert 0 <= expires * 1000 - record.keep_until <= 2_000
    assert expires * 1000 >= grant.token + 2 * 86_400_000_000
    client.driver.forget(name, 1.5)
    tombstone, _ = client.driver.read(name, 1.5)
    assert server.do("PEXPIRETIME", f"rota:{name}") * 1000 > tombstone.token + 86_400_000_000


def test_a_store_that_is_not_there_is_unavailable_and_known_not_to_have_heard(connect: Any, name: str) -> None:
    with pytest.raises(Unavailable) as caught:
        connect("redis://127.0.0.1:1").try_lease(name)
    assert not isinstance(caught.value, OutcomeUnknown)
    assert caught.value.__cause__ is not None
    with pytest.raises(Unavailable):
        connect("unix:///nowhere/x.sock").try_lease(name)


def test_a_closed_client_says_so(redis_url: str, driver_for: Any, name: str) -> None:
    driver = driver_for(redis_url)
    driver.now(1.5)
    driver.close()
    driver.close()
    with pytest.raises(Unavailable, match="closed"):
        driver.now(1.5)
