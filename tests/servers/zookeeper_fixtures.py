# SPDX-License-Identifier: MIT
"""ZooKeeper for a whole test run, as fixtures. One that a variable names is used as it is, instead of one of our own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ._zookeeper import RunningZooKeeper, ZooKeeper, ZooKeeperEnsemble


@pytest.fixture(scope="session")
def conforming_zookeeper() -> Iterator[ZooKeeper | RunningZooKeeper]:
    """The one that ``ROTA_TEST_ZOOKEEPER_URL`` names, or one of our own, which the conformance suite may freeze."""
    running = os.environ.get("ROTA_TEST_ZOOKEEPER_URL")
    if running:
        yield RunningZooKeeper(running)
        return
    with ZooKeeper() as server:
        yield server


@pytest.fixture(scope="session")
def conforming_zookeepers() -> Iterator[ZooKeeperEnsemble]:
    """An ensemble that the suite may freeze."""
    with ZooKeeperEnsemble() as ensemble:
        yield ensemble
