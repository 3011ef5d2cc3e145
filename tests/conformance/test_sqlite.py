# SPDX-License-Identifier: MIT
"""sqlite:// is held to every clause."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import rota.testing
from rota.backend import Driver
from rota.sqlite import SqliteDriver


class TestSqlite(rota.testing.Conformance):
    @pytest.fixture(autouse=True)
    def store(self, tmp_path: Path) -> None:
        self.clock = rota.testing.Clock()
        self._path = str(tmp_path / "rota.db")
        self.url = f"sqlite://{self._path}"

    def driver(self) -> Driver:
        return SqliteDriver(self._path, clock=self.clock.store)

    def raw(self, name: str) -> Mapping[str, object] | None:
        with contextlib.closing(sqlite3.connect(self._path)) as file:
            file.row_factory = sqlite3.Row
            row = file.execute("SELECT * FROM rota_record WHERE name = ?", (name,)).fetchone()
        return None if row is None else dict(row)

    @contextlib.contextmanager
    def spoil(self, name: str) -> Iterator[None]:
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as file:
            file.execute("UPDATE rota_record SET expires_at = 'nonsense' WHERE name = ?", (name,))
        yield

    @contextlib.contextmanager
    def hang(self) -> Iterator[None]:
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as stopped:
            stopped.execute("BEGIN IMMEDIATE")  # as a process that was stopped in the middle of a transaction
            yield
            stopped.execute("ROLLBACK")
