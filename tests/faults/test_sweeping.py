# SPDX-License-Identifier: MIT
"""R1, R3: records that nobody needs any more go, a few at a time, whoever comes by."""

from __future__ import annotations

import time
import uuid

import pytest
import rota
from rota import _keeper
from rota._io import BlockingIo
from rota.backend import Claim, Settlement
from rota.client import Client
from rota.duration import DAY, HOUR
from rota.grant import Grant
from rota.memory import MemoryDriver, MemoryStore
from rota.sqlite import SqliteDriver

NOW = 1_790_000_000_000_000


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    """A driver of a fresh store whose clock the test sets."""
    clock = [NOW]
    driver = (
        MemoryDriver(MemoryStore(lambda: clock[0]))
        if request.param == "memory"
        else SqliteDriver(str(tmp_path / "rota.db"), lambda: clock[0])
    )
    yield driver, clock
    driver.close()


def client_of(driver) -> Client:
    return Client(driver, BlockingIo(driver), Grant, prefix="", site="", timeout=1.5, retention="1d", clock=time.monotonic)


def test_R3_a_client_that_ends_early_sweeps_when_its_turn_comes(store, monkeypatch):
    driver, clock = store
    monkeypatch.setattr(_keeper.Sweeper, "CLOSES", 1)
    monkeypatch.setattr(driver, "close", lambda: None)  # both clients share it
    with client_of(driver) as client:
        client.try_once("mail", "1h").handled()
    assert driver.read("mail", 1)[0] is not None
    clock[0] += 2 * DAY + 2 * HOUR
    with client_of(driver) as client:
        client.try_lease("anything").release()
        assert driver.read("mail", 1)[0] is not None
    assert driver.list("mail", 1) == []


def test_R3_a_client_that_asked_nothing_sweeps_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(_keeper.Sweeper, "CLOSES", 1)
    rota.connect(f"sqlite://{tmp_path}/rota.db").close()
    assert list(tmp_path.iterdir()) == []


def test_R1_a_planned_window_won_early_is_kept_until_its_own_retention(store):
    """The slot's start counts where there is no end, else it could be won again when the record has gone."""
    driver, clock = store
    planned = NOW + 50 * 1_000_000
    owner = uuid.uuid4().hex
    claim = Claim(
        "job", owner, "test", "window", 1_000_000, NOW + 1_000_000, DAY, slot_start=planned, not_before=NOW, late_from=planned + DAY
    )
    assert driver.claim(claim, 1).verdict == "won"
    driver.settle(Settlement("job", owner, "handled", DAY), 1)
    clock[0] = planned + DAY - 1
    assert driver.sweep(10, 1) == 0
    assert driver.claim(claim._replace(owner=uuid.uuid4().hex, apply_until=clock[0] + 1_000_000), 1).verdict == "handled"
