# SPDX-License-Identifier: MIT
"""etcd for a whole test run, as fixtures. One that a variable names is used as it is, instead of one of our own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from ._etcd import Etcd, EtcdEnsemble


@pytest.fixture(scope="session")
def etcd() -> Iterator[Etcd]:
    """One member that no test stops: the one on loopback that ``ROTA_TEST_ETCD_URL`` names, or one of our own."""
    running = os.environ.get("ROTA_TEST_ETCD_URL")
    if running:
        yield Etcd(urlsplit(running).port)
        return
    with Etcd() as server:
        yield server


@pytest.fixture(scope="session")
def conforming_etcd() -> Iterator[Etcd]:
    """A server of our own, which the conformance suite may freeze."""
    with Etcd() as server:
        yield server


@pytest.fixture(scope="session")
def conforming_ensemble() -> Iterator[EtcdEnsemble]:
    """Three members with a user and TLS."""
    with EtcdEnsemble(password="p-w/@", tls=True) as ensemble:
        yield ensemble
