# SPDX-License-Identifier: MIT
"""zookeeper:// is held to every clause: a single server, and an ensemble of three."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from urllib.parse import quote
from zlib import crc32

import pytest
import rota.testing
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from servers import RunningZooKeeper, ZooKeeper, ZooKeeperEnsemble


class TestZooKeeper(rota.testing.Conformance):
    @pytest.fixture(autouse=True)
    def store(self, conforming_zookeeper: ZooKeeper | RunningZooKeeper) -> None:
        self.servers = [conforming_zookeeper]
        self.url = conforming_zookeeper.url("/conform")

    @contextlib.contextmanager
    def node(self, name: str) -> Iterator[tuple[KazooClient, str]]:
        """A client past the code under test, and the path of a name's node."""
        client = KazooClient(self.servers[0].hosts)
        client.start()
        try:
            path = f"/conform/rota/records/{crc32(name.encode()) % 64:02x}/={quote(name, safe='')}"
            client.sync(path)
            yield client, path
        finally:
            client.stop()
            client.close()

    def raw(self, name: str) -> Mapping[str, object] | None:
        with self.node(name) as (client, path):
            try:
                data, stat = client.get(path)
            except NoNodeError:
                return None
        return said(json.loads(data), stat.mtime * 1000)

    @contextlib.contextmanager
    def spoil(self, name: str) -> Iterator[None]:
        with self.node(name) as (client, path):
            kept, _ = client.get(path)
            client.set(path, b"nonsense")
            yield
            client.set(path, kept)

    @contextlib.contextmanager
    def hang(self) -> Iterator[None]:
        if any(isinstance(server, RunningZooKeeper) for server in self.servers):
            super().hang()  # not run
        for server in self.servers:
            server.pause()
        try:
            yield
        finally:
            for server in self.servers:
                server.resume()


def said(content: list, mtime: int) -> Mapping[str, object]:
    """Return what a node says by its verb alone, without the rules that rota reads it by."""
    _, verb, before, request = content
    token, owner = (before[4], before[5]) if before else (0, "")
    if verb == "claim":
        return {"token": max(token + 1, mtime), "owner": request[1]}
    if verb == "forget":
        return {"token": max(token + 1, mtime), "owner": "", "mark": None}
    return {"token": token, "owner": "" if verb == "settle" else owner}


class TestZooKeeperEnsemble(TestZooKeeper):
    @pytest.fixture(autouse=True)
    def store(self, conforming_zookeepers: ZooKeeperEnsemble) -> None:
        self.servers = conforming_zookeepers.members
        self.url = conforming_zookeepers.url("/conform")
