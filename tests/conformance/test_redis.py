# SPDX-License-Identifier: MIT
"""redis:// is held to every clause: a single server, behind sentinels, on a cluster."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping

import pytest
import rota.testing
from servers import Redis, RedisCluster, RedisFailover

#: In the order of the lines of a record.
LINES = {"owner": 2, "expires_at": 4, "mark": 5, "token": 10}


def held(value: object) -> Mapping[str, object] | None:
    """Return what a record's text says."""
    if value is None:
        return None
    lines = str(value).split("\n")
    return {field: lines[at] if field == "owner" else int(lines[at]) if lines[at] else None for field, at in LINES.items()}


class TestRedis(rota.testing.Conformance):
    @pytest.fixture(autouse=True)
    def store(self, conforming_redis: Redis) -> None:
        self.server = conforming_redis
        self.url = self.server.url()

    def raw(self, name: str) -> Mapping[str, object] | None:
        return held(self.server.do("GET", f"rota:{name}"))

    @contextlib.contextmanager
    def hang(self) -> Iterator[None]:
        self.server.pause()
        try:
            yield
        finally:
            self.server.resume()


class TestRedisWithTlsAndResp3(TestRedis):
    @pytest.fixture(autouse=True)
    def store(self, conforming_tls: Redis) -> None:
        self.server = conforming_tls
        self.url = self.server.url(options="protocol=3", db=3)

    def raw(self, name: str) -> Mapping[str, object] | None:
        found = self.server.do("EVAL", "redis.call('SELECT', 3) return redis.call('GET', ARGV[1])", 0, f"rota:{name}")
        return held(found)


class TestRedisSentinel(TestRedis):
    @pytest.fixture(autouse=True)
    def store(self, conforming_failover: RedisFailover) -> None:
        self.server = conforming_failover.primary
        self.url = conforming_failover.url("wait_replicas=1")


class TestRedisCluster(rota.testing.Conformance):
    @pytest.fixture(autouse=True)
    def store(self, conforming_cluster: RedisCluster) -> None:
        self.cluster = conforming_cluster
        self.url = conforming_cluster.url()

    def raw(self, name: str) -> Mapping[str, object] | None:
        slot = self.cluster.nodes[0].do("CLUSTER", "KEYSLOT", f"rota:{name}")
        for first, last, primary, *_ in self.cluster.nodes[0].do("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                node = next(node for node in self.cluster.nodes if node.port == primary[1])
                return held(node.do("GET", f"rota:{name}"))
        raise AssertionError(json.dumps(slot))

    @contextlib.contextmanager
    def hang(self) -> Iterator[None]:
        for node in self.cluster.nodes:
            node.pause()
        try:
            yield
        finally:
            for node in self.cluster.nodes:
                node.resume()
