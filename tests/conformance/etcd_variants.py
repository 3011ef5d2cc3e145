# SPDX-License-Identifier: MIT
"""The kinds of etcd that are held to every clause; `test_etcd.py` runs them, and so does pytest when it is given this file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping

import pytest
import rota.testing
from servers import Etcd, EtcdEnsemble


class TestEtcd(rota.testing.Conformance):
    """One member."""

    @pytest.fixture(autouse=True)
    def store(self, conforming_etcd: Etcd) -> None:
        self.members = [conforming_etcd]
        self.url = conforming_etcd.url()

    def raw(self, name: str) -> Mapping[str, object] | None:
        value = self.members[0].get(f"rota/records/{name}")
        if value is None:
            return None
        held = json.loads(value.partition(b"\n")[0])
        return {"token": held["token"], "owner": held.get("owner", ""), "mark": held.get("mark")}

    @contextlib.contextmanager
    def spoil(self, name: str) -> Iterator[None]:
        member, key = self.members[0], f"rota/records/{name}"
        kept = member.get(key)
        assert kept is not None
        member.do("kv/put", key=key.encode(), value=b"nonsense")
        yield
        member.do("kv/put", key=key.encode(), value=kept)

    @contextlib.contextmanager
    def hang(self) -> Iterator[None]:
        for member in self.members:
            member.pause()
        try:
            yield
        finally:
            for member in self.members:
                member.resume()


class TestEtcdEnsemble(TestEtcd):
    """Three members, with a user and TLS."""

    @pytest.fixture(autouse=True)
    def store(self, conforming_ensemble: EtcdEnsemble) -> None:
        self.members = conforming_ensemble.members
        self.url = conforming_ensemble.url()


class TestEtcdShared(TestEtcd):
    """One member, whose etcd leases hold several names each."""

    @pytest.fixture(autouse=True)
    def store(self, conforming_etcd: Etcd) -> None:
        self.members = [conforming_etcd]
        self.url = conforming_etcd.url("leases=shared")
