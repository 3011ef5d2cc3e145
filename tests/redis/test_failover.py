# SPDX-License-Identifier: MIT
"""Several servers: a failover by sentinels, a cluster whose nodes come and go, replicas that must confirm. No client is restarted."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import pytest
import rota
import servers
from redis.crc import key_slot
from rota.backend import Claim, Override, Renewal, Settlement
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


def test_after_a_failover_every_client_goes_on(faces: Any, until: Any, name: str) -> None:
    """The marks that the replica had are kept. A primary that hangs is left as one that died is, see below."""
    with servers.RedisFailover(password="p@w") as group:
        clients = [(face, face.connect(group.url().replace("p@w", "p%40w"), timeout="500ms")) for face in faces for _ in range(2)]

        def claim(face: Any, client: Any) -> Any:
            window = face.attempt(lambda: client.try_window(name, DAILY))
            if window:
                face.do(window.handled())
            return None if window is None else "won" if window else window.verdict

        assert [until(lambda client=client: claim(*client)) for client in clients] == ["won", "handled", "handled", "handled"]
        token = clients[0][1].driver.read(name, 1.5)[0].token
        until(lambda: group.replica.do("EXISTS", f"rota:{name}"))
        group.primary.pause()
        for client in clients:
            assert until(lambda client=client: claim(*client), 30) == "handled", "the mark was kept"
        for face, client in clients:
            assert client.driver.facts(1.5)["role"] == "primary"
            lease = until(lambda face=face, client=client: face.attempt(lambda: client.try_lease(name + "/lease")))
            assert lease.token > token
            face.do(lease.release())
        # the old primary comes back as a replica of the new one, and nobody asks it
        group.primary.resume()
        until(lambda: role(group.primary) == "slave", 30)
        assert [until(lambda client=client: claim(*client)) for client in clients] == ["handled"] * 4


def test_a_failover_that_rewinds_gives_larger_tokens(faces: Any, until: Any, name: str) -> None:
    """L2: the replica never heard of the newest grant."""
    with servers.RedisFailover(password="pw") as group:
        clients = [face.connect(group.url(), timeout="500ms") for face in faces]

        def take(face: Any, client: Any) -> Any:
            return until(lambda: face.attempt(lambda: client.try_lease(name + face.kind, ttl="2s")))

        first = [take(*pair) for pair in zip(faces, clients, strict=True)]
        until(lambda: all(group.replica.do("EXISTS", f"rota:{name}{face.kind}") for face in faces))
        group.replica.do("CONFIG", "SET", "masterauth", "wrong")
        group.primary.do("CLIENT", "KILL", "TYPE", "replica")
        until(lambda: group.replica.info("replication")["master_link_status"] == "down")
        for face, grant in zip(faces, first, strict=True):
            face.do(grant.release())
        second = [take(*pair) for pair in zip(faces, clients, strict=True)]
        group.primary.kill()
        for face, client, before, lost in zip(faces, clients, first, second, strict=True):
            grant = until(lambda face=face, client=client: face.attempt(lambda: client.try_lease(name + face.kind)), 60)
            assert grant.record.last_owner != before._owner, "the release was never heard of"
            assert grant.token > lost.token
            assert lost.lost


def test_sentinels_that_hang_or_are_gone_leave_time_for_the_others(connect: Any, sentinel_url: str, name: str) -> None:
    with servers.Redis() as hung:
        hung.pause()
        hosts = sentinel_url.partition("://")[2].partition("/")[0].split(",")
        client = connect(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{hung.port},{hosts[0]}/rota", timeout=1.5)
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


def test_renewals_go_out_as_one_batch_per_node(driver_for: Any, conforming_cluster: servers.RedisCluster, name: str) -> None:
    """L11; and with the same hash tag as one call."""
    driver = driver_for(conforming_cluster.url())
    names = [f"{name}/{number}" for number in range(60)] + [f"{{{name}}}/{number}" for number in range(40)]
    for one in names:
        assert driver.claim(Claim(one, "1" * 32, "", "lease", 60 * SECOND, 2**60, DAY), 1.5).verdict == "won"
    renewals = [Renewal(one, "1" * 32, 60 * SECOND, DAY) for one in names]
    assert all(driver.renew(renewals, 1.5).held), "the script is not there yet"
    for node in conforming_cluster.nodes:
        node.do("CONFIG", "RESETSTAT")
    assert all(driver.renew(renewals, 1.5).held)
    stats = [node.info("commandstats")["cmdstat_evalsha"] for node in conforming_cluster.primaries()]
    calls = sum(int(stat.split("calls=")[1].split(",")[0]) for stat in stats)
    assert calls == len({key_slot(f"rota:{one}".encode()) for one in names})
    assert calls <= 61


@pytest.mark.by_the_clock
def test_a_node_that_hangs_leaves_the_leases_of_the_others_alone(
    connect: Any, conforming_cluster: servers.RedisCluster, until: Any, name: str
) -> None:
    client = connect(conforming_cluster.url())
    grants = [client.try_lease(f"{name}/{number}", ttl="3s", heartbeat="800ms") for number in range(30)]
    frozen = conforming_cluster.primaries()[0]
    slots = _slots(frozen)
    on_frozen = [grant for grant in grants if key_slot(f"rota:{grant.name}".encode()) in slots]
    assert 0 < len(on_frozen) < len(grants)
    frozen.pause()
    try:
        until(lambda: all(grant.lost for grant in on_frozen))
        # all were taken and renewed together, so without a renewal since these would be lost by now, too
        assert not [grant.name for grant in grants if grant not in on_frozen and grant.lost]
        assert min(grant.remaining() for grant in grants if grant not in on_frozen) > 0.5
    finally:
        frozen.resume()
    until(lambda: "cluster_state:ok" in conforming_cluster.nodes[-1].do("CLUSTER", "INFO"))


@pytest.mark.parametrize("stage", ["before", "between", "after"])
def test_every_verb_works_while_a_slot_moves(driver_for: Any, conforming_cluster: servers.RedisCluster, name: str, stage: str) -> None:
    """The record is on one node, what waiters are known by on the other or nowhere; and the node that it moves to has seen no script."""
    driver = driver_for(conforming_cluster.url(nodes=6))
    a, b = conforming_cluster.primaries()[:2]
    slots = _slots(a)
    tag = next(f"{name}{number}" for number in itertools.count() if key_slot(f"{name}{number}".encode()) in slots)
    slot, names = key_slot(tag.encode()), [f"{{{tag}}}/1", f"{{{tag}}}/2"]
    for one in names:
        assert driver.claim(Claim(one, "1" * 32, "", "lease", 60 * SECOND, 2**60, DAY), 1.5).verdict == "won"
    ids = {node: node.do("CLUSTER", "MYID") for node in (a, b)}
    b.do("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[a])
    a.do("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[b])
    try:
        for one in names[: {"before": 0, "between": 1, "after": 2}[stage]]:
            a.do("MIGRATE", "127.0.0.1", b.port, f"rota:{one}", 0, 5000)
        b.do("SCRIPT", "FLUSH")
        assert driver.renew([Renewal(one, "1" * 32, 60 * SECOND, DAY) for one in names], 1.5).held == [True, True]
        for one in names:
            assert driver.claim(Claim(one, "2" * 32, "", "lease", SECOND, 2**60, DAY), 1.5).verdict == "busy"
            assert driver.settle(Settlement(one, "1" * 32, "released", DAY), 1.5).applied
            assert driver.claim(Claim(one, "3" * 32, "", "lease", SECOND, 2**60, DAY), 1.5).verdict == "won"
            assert driver.override(Override(one, "released", "me: why", DAY), 1.5).applied
            assert driver.forget(one, 1.5)
    finally:
        for key in a.do("CLUSTER", "GETKEYSINSLOT", slot, 100):
            a.do("MIGRATE", "127.0.0.1", b.port, key, 0, 5000)
        for node in (b, a, *[node for node in conforming_cluster.primaries() if node not in (a, b)]):
            node.do("CLUSTER", "SETSLOT", slot, "NODE", ids[b])


def _slots(node: servers.Redis, asked: servers.Redis | None = None) -> set[int]:
    """Return the slots that a node is the primary of: by its own view, or by that of another."""
    found: set[int] = set()
    for first, last, primary, *_ in (asked or node).do("CLUSTER", "SLOTS"):
        if primary[1] == node.port:
            found |= set(range(first, last + 1))
    return found


def test_a_cluster_fails_over_and_slots_move_without_a_restart(faces: Any, until: Any, name: str) -> None:
    with servers.RedisCluster() as cluster:
        clients = [(face, face.connect(cluster.url(nodes=6), timeout="1s")) for face in faces]

        def take(face: Any, client: Any, one: str) -> Any:
            return face.attempt(lambda: client.try_lease(one))

        def name_in(slots: set[int], kind: str) -> str:
            names = (f"{name}/{kind}/{number}" for number in itertools.count())
            return next(one for one in names if key_slot(f"rota:{one}".encode()) in slots)

        for face, client in clients:
            assert all(take(face, client, f"{name}/{face.kind}/{number}") for number in range(20))
        dead = cluster.primaries()[0]
        slots = _slots(dead)
        dead.kill()
        alive = [node for node in cluster.nodes if node is not dead]
        until(lambda: not any(_slots(dead, node) for node in alive), 30)
        until(lambda: all("cluster_state:ok" in node.do("CLUSTER", "INFO") for node in alive), 30)
        for face, client in clients:
            assert face.do(client.try_lease(name_in(slots, face.kind + "/new"))), "the first claim finds the new owner of the slot"
        # one slot moves to another node
        a, b = cluster.primaries()[:2]
        moved = name_in(_slots(a), "moved")
        slot = key_slot(f"rota:{moved}".encode())
        first = take(*clients[0], moved)
        ids = {node: node.do("CLUSTER", "MYID") for node in (a, b)}
        b.do("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[a])
        a.do("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[b])
        # while it moves, a key that is gone already is asked for at the other node (ASK)
        for key in a.do("CLUSTER", "GETKEYSINSLOT", slot, 100):
            a.do("MIGRATE", "127.0.0.1", b.port, key, 0, 5000)
        assert [take(*client, moved).verdict for client in clients] == ["busy", "busy"]
        for node in (b, a, *[node for node in cluster.primaries() if node not in (a, b)]):
            node.do("CLUSTER", "SETSLOT", slot, "NODE", ids[b])
        # and then at the other node alone (MOVED)
        assert [take(*client, moved).verdict for client in clients] == ["busy", "busy"]
        for _, client in clients:
            assert client.driver.renew([Renewal(moved, first._owner, 30 * SECOND, DAY)], 1.5).held == [True]
        faces[0].do(first.release())


def test_the_rights_that_the_readme_names_are_enough_on_a_cluster(
    conforming_cluster: servers.RedisCluster, connect: Any, only_woken: None, name: str
) -> None:
    rights = "~rota:* +@connection +eval +evalsha +script|load +get +set +time +exists +pttl +pexpire +del +rpush +blpop"
    more = "+cluster|slots +asking +scan +wait"
    for node in conforming_cluster.nodes:
        node.do("ACL", "SETUSER", "app", "on", ">pw", *rights.split(), *more.split())
    url = conforming_cluster.url().replace("//", "//app:pw@")
    client, other = connect(url), connect(url + "?wait_replicas=1")
    grant = client.try_lease(name, ttl="1m")
    threading.Timer(0.2, grant.release).start()
    started = time.monotonic()
    assert other.try_lease(name, wait="40s")
    assert time.monotonic() - started < 20, "woken"
    assert [record.name for record in client.driver.list(name, 1.5)] == [name]


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
    window = until(lambda: client.try_window(name, DAILY, on_unavailable="skip"))  # confirmed, on a busy machine too
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
