# SPDX-License-Identifier: MIT
"""redis:// is held to every clause: a single server, behind sentinels (with RESP3), on a cluster.

The single server is held to them in real time. Elsewhere the scripts are told the time instead of asking for it: so waiting costs none, and
what is decided at the very instant of a boundary is tested too. What differs there is the way to the server, not its clock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import pytest
import rota.testing
from rota.backend import Driver
from rota_redis import RedisDriver, _wire
from rota_redis._link import Link
from rota_redis._url import Settings
from rota_redis.driver import Verbs
from servers import Redis, RedisCluster, RedisFailover

#: In the order of the lines of a record.
LINES = {"owner": 2, "expires_at": 4, "mark": 5, "token": 10}


def held(value: object) -> Mapping[str, object] | None:
    """Return what a record's text says."""
    if value is None:
        return None
    lines = str(value).split("\n")
    return {field: lines[at] if field == "owner" else int(lines[at]) if lines[at] else None for field, at in LINES.items()}


class Clocked(Verbs):
    """Scripts that are told the time."""

    clock: ClassVar[rota.testing.Clock]

    def __init__(self, settings: Settings, link: Link) -> None:
        super().__init__(settings, link)
        for verb, (text, _) in self.scripts.items():
            before, asked, after = text.decode().partition("local time = redis.call('TIME')\nlocal now = time[1] * 1000000 + time[2]\n")
            assert asked
            self.scripts[verb] = _wire.script(f"{before}local now = tonumber(table.remove(ARGV))\n{after}", settings.wait_replicas > 0)

    def pack(self, verb: str, keys: Sequence[bytes], arguments: Sequence[bytes]) -> bytes:
        return super().pack(verb, keys, [*arguments, b"%d" % self.clock.store()])

    async def now(self, timeout: float) -> tuple[int, int]:
        await super().now(timeout)
        now = self.clock.store()
        return now, now


class ClockedDriver(RedisDriver):
    verbs = Clocked


class TestRedis(rota.testing.Conformance):
    @pytest.fixture(autouse=True)
    def store(self, conforming_redis: Redis) -> None:
        self.servers = [conforming_redis]
        self.url = conforming_redis.url()

    def raw(self, name: str) -> Mapping[str, object] | None:
        return held(self.server_of(name).do("GET", f"rota:{name}"))

    def server_of(self, name: str) -> Redis:
        return self.servers[0]

    @contextlib.contextmanager
    def spoil(self, name: str) -> Iterator[None]:
        server, key = self.server_of(name), f"rota:{name}"
        kept = server.do("GET", key)
        server.do("SET", key, "nonsense")
        yield
        server.do("SET", key, kept)

    @contextlib.contextmanager
    def hang(self) -> Iterator[None]:
        for server in self.servers:
            server.pause()
        try:
            yield
        finally:
            for server in self.servers:
                server.resume()


class ByAClockOfOurs(TestRedis):
    def driver(self) -> Driver:
        return ClockedDriver(super().driver().settings)

    @pytest.fixture(autouse=True)
    def told_the_time(self) -> None:
        self.clock = Clocked.clock = rota.testing.Clock()


class TestRedisSentinel(ByAClockOfOurs):
    @pytest.fixture(autouse=True)
    def store(self, conforming_failover: RedisFailover) -> None:
        self.servers = [conforming_failover.primary]
        self.url = conforming_failover.url("wait_replicas=1&protocol=3")


class TestRedisCluster(ByAClockOfOurs):
    @pytest.fixture(autouse=True)
    def store(self, conforming_cluster: RedisCluster) -> None:
        self.servers = conforming_cluster.nodes
        self.url = conforming_cluster.url()

    def server_of(self, name: str) -> Redis:
        slot = self.servers[0].do("CLUSTER", "KEYSLOT", f"rota:{name}")
        (port,) = [primary[1] for first, last, primary, *_ in self.servers[0].do("CLUSTER", "SLOTS") if first <= slot <= last]
        (node,) = [node for node in self.servers if node.port == port]
        return node
