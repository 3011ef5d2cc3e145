# SPDX-License-Identifier: MIT
"""Redis for a whole test run, as fixtures. One that a variable names is used as it is, instead of one of our own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ._redis import Redis, RedisCluster, RedisFailover


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of a server that nobody stops, fills or flushes: ``ROTA_TEST_REDIS_URL``, or one of our own."""
    running = os.environ.get("ROTA_TEST_REDIS_URL")
    if running:
        yield running
        return
    with Redis() as server:
        yield server.url()


@pytest.fixture(scope="session")
def sentinel_url() -> Iterator[str]:
    """The same behind sentinels: ``ROTA_TEST_REDIS_SENTINEL_URL``, or our own."""
    running = os.environ.get("ROTA_TEST_REDIS_SENTINEL_URL")
    if running:
        yield running
        return
    with RedisFailover() as group:
        yield group.url()


@pytest.fixture(scope="session")
def cluster_url() -> Iterator[str]:
    """The same on a cluster: ``ROTA_TEST_REDIS_CLUSTER_URL``, or our own."""
    running = os.environ.get("ROTA_TEST_REDIS_CLUSTER_URL")
    if running:
        yield running
        return
    with RedisCluster() as group:
        yield group.url()


@pytest.fixture(scope="session")
def conforming_redis() -> Iterator[Redis]:
    """A server of our own, which the conformance suite may freeze."""
    with Redis() as server:
        yield server


@pytest.fixture(scope="session")
def conforming_failover() -> Iterator[RedisFailover]:
    """The same behind sentinels that are in no hurry to fail over."""
    with RedisFailover(patience=60_000) as group:
        yield group


@pytest.fixture(scope="session")
def conforming_cluster() -> Iterator[RedisCluster]:
    """The same as a cluster."""
    with RedisCluster(cluster_node_timeout="60000") as group:
        yield group
