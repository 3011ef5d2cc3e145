# SPDX-License-Identifier: MIT
"""Several servers: a failover by sentinels, a cluster whose nodes come and go, replicas that must confirm. No client is restarted."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import rota
import servers
from redis.crc import key_slot
from rota.backend import Claim, Renewal, Settlement
from rota.duration import DAY, SECOND
from rota.errors import OutcomeUnknown, Unavailable

DAILY = rota.Every("1d")


def role(server: servers.Redis) -> str:
    """Return a server's role; nothing when the connection that asks is closed.

    Sentinel sends ``CLIENT KILL TYPE normal`` along with ``REPLICAOF`` to a primary that it demotes, which may hit the test's own.
    """
    try:
        return server.info("replication")["role"]
    except ConnectionError:
        return ""


def test_after_a_failover_every_client_goes_on(face: Any, until: Any, name: str) -> None:
    """The marks that the replica had are kept; a primary that hangs is left as one that died is."""
    with servers.RedisFailover(password="p@w") as group:
        url = group.url().replace("p@w", "p%40w")
        clients = [face.connect(url, timeout="500ms") for _ in range(3)]

        def claim(client: Any) -> Any:
            window = face.attempt(lambda: client.try_window(name, DAILY))
            if window:
                face.do(window.handled())
            return None if window is None else "won" if window else window.verdict

        assert [claim(client) for client in clients] == ["won", "handled", "handled"]
        token = clients[0].driver.read(name, 1.5)[0].token
        until(lambda: group.replica.do("EXISTS", f"rota:{name}"))
        group.primary.pause() if face.kind == "blocking" else group.primary.kill()
        for client in clients:
            assert until(lambda client=client: claim(client), 30) == "handled", "the mark was kept"
        assert clients[0].driver.facts(1.5)["role"] == "primary"
        lease = face.do(clients[1].try_lease(name + "/lease"))
        assert lease.token > token
        # the old primary comes back as a replica of the new one, and nobody asks it
        group.primary.resume() if face.kind == "blocking" else group.primary.start()
        until(lambda: role(group.primary) == "slave", 30)
        assert [claim(client) for client in clients] == ["handled"] * 3


def test_a_failover_that_rewinds_gives_larger_tokens(face: Any, until: Any, name: str) -> None:
    """L2: the replica never heard of the newest grant."""
    with servers.RedisFailover(password="pw") as group:
        client = face.connect(group.url(), timeout="500ms")
        first = face.do(client.try_lease(name, ttl="2s"))
        until(lambda: group.replica.do("EXISTS", f"rota:{name}"))
        group.replica.do("CONFIG", "SET", "masterauth", "wrong")
        group.primary.do("CLIENT", "KILL", "TYPE", "replica")
        until(lambda: group.replica.info("replication")["master_link_status"] == "down")
        face.do(first.release())
        second = face.do(client.try_lease(name, ttl="10s"))
        group.primary.kill()

        grant = until(lambda: face.attempt(lambda: client.try_lease(name)), 60)
        assert grant.record.last_owner != first._owner, "the release was never heard of"
        assert grant.token > second.token


def test_sentinels_that_hang_or_are_gone_leave_time_for_the_others(connect: Any, sentinel_url: str, name: str) -> None:
    with servers.Redis() as hung:
        hung.pause()
        hosts = sentinel_url.partition("://")[2].partition("/")[0].split(",")
        client = connect(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{hung.port},{hosts[0]}/rota")
        assert client.try_lease(name)
        hung.resume()


def test_a_service_that_no_sentinel_knows_is_a_mistake(connect: Any, sentinel_url: str, name: str) -> None:
    with pytest.raises(rota.ConfigurationError, match="'other'"):
        connect(sentinel_url.replace("/rota", "/other")).try_lease(name)


# -- clusters


ODD = ["{a}b", "a{b}c", "}{", "{}", "{}{x}", "a{", "}", "{é}", "{{x}}", "x" * 200, "a{b}{c}", "a b", "\\*?[x]"]


@pytest.mark.parametrize("odd", ODD)
def test_every_odd_name_works_on_a_cluster(face: Any, cluster_url: str, name: str, odd: str) -> None:
    client = face.connect(cluster_url)
    full = odd + name[-10:] if len(odd) > 100 else odd + name
    grant = face.do(client.try_lease(full))
    assert client.driver.renew([Renewal(full, grant._owner, SECOND, DAY)], 1.5).held == [True]
    assert face.do(client.try_lease(full)).verdict == "busy"
    assert [record.name for record in client.driver.list(full, 1.5)] == [full]
    face.do(grant.release())
    assert client.driver.forget(full, 1.5)


def test_a_listing_covers_all_primaries_in_order(driver_for: Any, cluster_url: str, redis_url: str, name: str) -> None:
    for url in (cluster_url, redis_url):
        driver = driver_for(url)
        wanted = sorted([f"{name}/{part}" for part in ("a", "é", "zz", "[x]", "b*", "Z", *map(str, range(40)))], key=str.encode)
        for one in [*wanted, name + "-not"]:
            driver.claim(Claim(one, "1" * 32, "", "lease", SECOND, 2**60, DAY), 1.5)
        assert [record.name for record in driver.list(name + "/", 1.5)] == wanted
        found: list[str] = []
        while page := driver.list(name + "/", 1.5, after=found[-1] if found else "", limit=7):
            assert len(page) <= 7
            found += [record.name for record in page]
        assert found == wanted
        assert driver.list(name + "/", 1.5, limit=0) == []


def test_renewals_go_out_as_one_batch_per_node(driver_for: Any, name: str) -> None:
    """L11; and with the same hash tag as one call."""
    with servers.RedisCluster() as cluster:
        driver = driver_for(cluster.url())
        names = [f"{name}/{number}" for number in range(60)] + [f"{{{name}}}/{number}" for number in range(40)]
        for one in names:
            assert driver.claim(Claim(one, "1" * 32, "", "lease", 60 * SECOND, 2**60, DAY), 1.5).verdict == "won"
        renewals = [Renewal(one, "1" * 32, 60 * SECOND, DAY) for one in names]
        assert all(driver.renew(renewals, 1.5).held)
        for node in cluster.nodes:
            node.do("CONFIG", "RESETSTAT")
        assert all(driver.renew(renewals, 1.5).held)
        calls = sum(int(node.info("commandstats")["cmdstat_evalsha"].split("calls=")[1].split(",")[0]) for node in cluster.primaries())
        assert calls == len({key_slot(f"rota:{one}".encode()) for one in names})
        assert calls <= 61


def test_a_node_that_hangs_leaves_the_leases_of_the_others_alone(driver_for: Any, connect: Any, until: Any, name: str) -> None:
    with servers.RedisCluster(cluster_node_timeout="20000") as cluster:
        client = connect(cluster.url())
        grants = [client.try_lease(f"{name}/{number}", ttl="4s", heartbeat="1s") for number in range(30)]
        frozen = cluster.primaries()[0]
        slots = _slots(cluster, frozen)
        on_frozen = [grant for grant in grants if key_slot(f"rota:{grant.name}".encode()) in slots]
        assert 0 < len(on_frozen) < len(grants)
        frozen.pause()
        try:
            until(lambda: all(grant.lost for grant in on_frozen))
            time.sleep(2)
            assert not [grant.name for grant in grants if grant not in on_frozen and grant.lost]
        finally:
            frozen.resume()


def _slots(cluster: servers.RedisCluster, node: servers.Redis) -> set[int]:
    found: set[int] = set()
    for first, last, primary, *_ in node.do("CLUSTER", "SLOTS"):
        if primary[1] == node.port:
            found |= set(range(first, last + 1))
    return found


def test_a_cluster_fails_over_and_slots_move_without_a_restart(face: Any, until: Any, name: str) -> None:
    with servers.RedisCluster() as cluster:
        client = face.connect(cluster.url(nodes=6), timeout="1s")

        def take(one: str) -> Any:
            return face.attempt(lambda: client.try_lease(one))

        held = [take(f"{name}/{number}") for number in range(20)]
        assert all(held)
        dead = cluster.primaries()[0]
        slots = _slots(cluster, dead)
        dead.kill()
        lost = next(number for number in range(10**6) if key_slot(f"rota:{name}/new/{number}".encode()) in slots)
        assert until(lambda: take(f"{name}/new/{lost}"), 30)
        # one slot moves to another node: MOVED is followed at once
        a, b = cluster.primaries()[:2]
        moved = next(number for number in range(10**6) if key_slot(f"rota:{name}/moved/{number}".encode()) in _slots(cluster, a))
        first = take(f"{name}/moved/{moved}")
        slot = key_slot(f"rota:{name}/moved/{moved}".encode())
        ids = {node: node.do("CLUSTER", "MYID") for node in (a, b)}
        b.do("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[a])
        a.do("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[b])
        # while it moves, a key that is gone already is asked for at the other node (ASK)
        for key in a.do("CLUSTER", "GETKEYSINSLOT", slot, 100):
            a.do("MIGRATE", "127.0.0.1", b.port, key, 0, 5000)
        assert take(f"{name}/moved/{moved}").verdict == "busy"
        for node in (b, a, *[node for node in cluster.primaries() if node not in (a, b)]):
            node.do("CLUSTER", "SETSLOT", slot, "NODE", ids[b])
        assert take(f"{name}/moved/{moved}").verdict == "busy"
        assert client.driver.renew([Renewal(first.name, first._owner, 30 * SECOND, DAY)], 1.5).held == [True]
        face.do(first.release())


def test_a_node_of_a_cluster_is_no_single_server(connect: Any, cluster_url: str, name: str) -> None:
    node = cluster_url.partition("://")[2].split(",")[0]
    client = connect(f"redis://{node}")
    with pytest.raises(rota.ConfigurationError, match=r"redis\+cluster"):
        for number in range(100):
            client.try_lease(f"{name}/{number}")


# -- replicas that must confirm


def test_what_the_replicas_confirm_counts(face: Any, sentinel_url: str, name: str) -> None:
    client = face.connect(sentinel_url + "?wait_replicas=1")
    grant = face.do(client.try_lease(name))
    assert grant
    face.do(grant.release())
    window = face.do(client.try_window(name + "/w", DAILY))
    face.do(window.handled())
    assert face.do(client.try_window(name + "/w", DAILY)).verdict == "handled"


def test_a_grant_that_no_replica_confirms_is_given_back(face: Any, start: Any, name: str) -> None:
    server = start()
    client = face.connect(server.url(options="wait_replicas=1"), timeout="1s")
    with pytest.raises(Unavailable, match="0 of 1 replicas confirmed in time; it was given back"):
        face.do(client.try_lease(name))
    record, _ = client.driver.read(name, 1.5)
    assert (record.owner, record.last_result) == ("", "unused")
    plain = face.connect(server.url())
    assert face.do(plain.try_lease(name)), "it is free"


def test_a_settlement_that_no_replica_confirms_is_kept_until_one_does(start: Any, connect: Any, until: Any, name: str) -> None:
    """F5, and L4: said again it answers as the first time, and is waited for anew."""
    primary = start()
    replica = start(replica_of=primary)
    until(replica.follows)
    client = connect(primary.url(options="wait_replicas=1"), timeout="1s")
    window = client.try_window(name, DAILY)
    assert window
    replica.pause()
    with pytest.raises(rota.Unrecorded, match="0 of 1 replicas confirmed in time"):
        window.handled()
    assert window.outcome == "unrecorded"
    assert primary.do("GET", f"rota:{name}").split("\n")[11] == "handled"
    replica.resume()
    until(lambda: window.outcome == "handled")
    until(lambda: replica.do("GET", f"rota:{name}").split("\n")[11] == "handled")


def test_a_repeated_request_is_confirmed_anew(start: Any, driver_for: Any, name: str) -> None:
    """A found grant counts only when the replicas have it, though the connection that asks has written nothing before."""
    server = start()
    claim = Claim(name, "1" * 32, "", "lease", 60 * SECOND, 2**60, DAY)
    assert driver_for(server.url()).claim(claim, 1.5).verdict == "won"
    strict = driver_for(server.url(options="wait_replicas=1"))
    with pytest.raises(Unavailable, match="given back"):
        strict.claim(claim, 0.5)
    plain = driver_for(server.url())
    assert plain.claim(claim._replace(owner="2" * 32), 1.5).verdict == "won"
    settlement = Settlement(name, "2" * 32, "released", DAY)
    assert plain.settle(settlement, 1.5).applied
    with pytest.raises(OutcomeUnknown, match="0 of 1 replicas confirmed in time"):
        strict.settle(settlement, 0.5)


def test_two_threads_learn_a_cluster_at_once(connect: Any, cluster_url: str, name: str) -> None:
    client = connect(cluster_url)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for again in range(10):
                client.try_lease(f"{name}/{number}/{again}").release()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
