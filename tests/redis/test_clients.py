# SPDX-License-Identifier: MIT
"""DV-12, and clients handed in: whatever speaks to the server, in whatever dialect, every verb finds its script and its own answers."""

from __future__ import annotations

from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
import rota
import servers
from rota.backend import Renewal
from rota.duration import DAY, SECOND
from rota_redis import backend_for

DAILY = rota.Every("1d")


@pytest.fixture(scope="module")
def server() -> Any:
    """A server whose scripts are flushed all the time."""
    with servers.Redis(password="p w/1") as server:
        yield server


def lives_through_flushes(server: servers.Redis, face: Any, store: Any, name: str) -> None:
    def flush() -> None:
        server.do("SCRIPT", "FLUSH")

    client = face.connect(store)
    first = face.do(client.try_lease(name))
    assert first
    flush()
    assert client.driver.renew([Renewal(name, first._owner, 30 * SECOND, 30 * DAY)], 1.5).held == [True]
    flush()
    window = face.do(client.try_window(name + "/w", DAILY))
    assert window
    flush()
    face.do(first.release())
    flush()
    face.do(window.handled())
    flush()
    second = face.do(client.try_lease(name))
    assert second.token > first.token
    assert face.do(client.try_window(name + "/w", DAILY)).verdict == "handled"
    flush()
    assert client.driver.read(name, 1.5)[0].owner == second._owner
    flush()
    assert client.driver.forget(name, 1.5)


@pytest.mark.parametrize("protocol", [2, 3])
def test_scripts_are_loaded_again_after_a_flush(server: servers.Redis, face: Any, protocol: int, name: str) -> None:
    url = f"redis://:p%20w%2F1@127.0.0.1:{server.port}/0?protocol={protocol}"
    lives_through_flushes(server, face, url, name)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "text"])
@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis], ids=["blocking client", "async client"])
def test_a_client_handed_in_may_decode(server: servers.Redis, face: Any, kind: Any, decode: bool, protocol: int, name: str) -> None:
    client = kind(port=server.port, password=server.password, decode_responses=decode, protocol=protocol)
    lives_through_flushes(server, face, backend_for(client), name)


@pytest.mark.parametrize("module", [redis, redis.asyncio], ids=["blocking client", "async client"])
def test_a_client_of_tls_or_a_socket_may_be_handed_in(start: Any, face: Any, module: Any, name: str) -> None:
    server = start(password="pw", tls=True)
    tls = module.Redis(host="localhost", port=server.port, password="pw", ssl=True, ssl_ca_certs=f"{server.certificate}.crt")
    unix = module.Redis(unix_socket_path=f"{server.folder}/redis.sock", password="pw")
    for client in (tls, unix):
        with_prefix = face.connect(backend_for(client, prefix=name, site="dc1"))
        grant = face.do(with_prefix.try_lease("job"))
        assert grant.name == f"{name}/job"
        assert grant.record.label.startswith("dc1 ")
        face.do(grant.release())


@pytest.mark.parametrize("kind", [redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel], ids=["blocking client", "async client"])
def test_a_client_of_sentinels_may_be_handed_in(sentinel_url: str, face: Any, kind: Any, name: str) -> None:
    hosts = sentinel_url.partition("://")[2].partition("/")[0].split(",")
    sentinel = kind([(host.rpartition(":")[0], int(host.rpartition(":")[2])) for host in hosts])
    client = face.connect(backend_for(sentinel.master_for("rota", decode_responses=True)))
    assert face.do(client.try_lease(name))
    with pytest.raises(rota.ConfigurationError, match="master_for"):
        backend_for(sentinel.slave_for("rota"))


@pytest.mark.parametrize("kind", [redis.RedisCluster, redis.asyncio.RedisCluster], ids=["blocking client", "async client"])
def test_a_client_of_a_cluster_may_be_handed_in(cluster_url: str, face: Any, kind: Any, name: str) -> None:
    host, _, port = cluster_url.partition("://")[2].split(",")[0].rpartition(":")
    client = face.connect(backend_for(kind(host=host, port=int(port), decode_responses=True)))
    for number in range(5):
        assert face.do(client.try_lease(f"{name}/{number}"))


def test_something_else_is_refused() -> None:
    with pytest.raises(rota.ConfigurationError, match="not str"):
        backend_for("redis://h.example")


def test_neither_client_disturbs_the_other(server: servers.Redis, connect: Any, name: str) -> None:
    theirs = redis.Redis(port=server.port, password=server.password, max_connections=1, socket_timeout=None)
    with theirs.pipeline() as pipeline:
        pipeline.watch(name)  # holds the only connection of the pool
        client = connect(backend_for(theirs))
        assert client.try_lease(name)
        theirs.close()
    assert client.try_lease(name).verdict == "busy"
