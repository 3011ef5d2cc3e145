# SPDX-License-Identifier: MIT
"""memory:// is held to every clause."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

import pytest
import rota.testing
from rota.backend import AsyncDriver, Driver
from rota.memory import AsyncMemoryDriver, MemoryDriver, MemoryStore
from rota.testing.base import not_run


class TestMemory(rota.testing.Conformance):
    @pytest.fixture(autouse=True)
    def store(self) -> None:
        self.clock = rota.testing.Clock()
        self._store = MemoryStore(clock=self.clock.store)

    def driver(self) -> Driver:
        return MemoryDriver(self._store)

    def async_driver(self, driver: Driver) -> AsyncDriver | None:
        assert isinstance(driver, MemoryDriver)
        return AsyncMemoryDriver(driver)

    def raw(self, name: str) -> Mapping[str, object] | None:
        record = self._store.records.get(name)
        return None if record is None else record._asdict()

    def hang(self) -> AbstractContextManager[object]:
        not_run("nothing hangs that is all in one process")

    def spoil(self, name: str) -> AbstractContextManager[object]:
        not_run("what it keeps are records, and nothing else")
