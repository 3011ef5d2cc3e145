# SPDX-License-Identifier: MIT
"""Observers are told everything, and can neither break nor slow a caller."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
import uuid

import pytest
import rota
from rota._observers import observers


@pytest.fixture
def observe():
    """Register observers, and take them out again."""
    registered = []

    def register(observer: object) -> None:
        rota.register(observer)
        registered.append(observer)

    yield register
    for observer in registered:
        rota.unregister(observer)
    assert not observers.listening
    assert observers.flush(5)


class Notes:
    """Of some names alone: what other clients of this process do, of earlier tests, is told as well."""

    def __init__(self, names: str) -> None:
        self.names = names
        self.seen = []

    def note(self, name: str, *what: object) -> None:
        if name.startswith(self.names):
            self.seen.append(what)

    @rota.hookimpl
    def rota_granted(self, grant):
        self.note(grant.name, "granted", grant.name)

    @rota.hookimpl
    def rota_refused(self, refused):
        self.note(refused.name, "refused", refused.verdict)

    @rota.hookimpl
    def rota_settled(self, grant, outcome, expired):
        self.note(grant.name, "settled", outcome, expired)

    @rota.hookimpl
    def rota_lost(self, grant, reason):
        self.note(grant.name, "lost", grant.name)

    @rota.hookimpl
    def rota_unavailable(self, name, error):
        self.note(name, "unavailable", name)

    @rota.hookimpl
    def rota_warning(self, name, message):
        self.note(name, "warning", name)


def fresh() -> str:
    return f"job-{uuid.uuid4().hex}"


def test_each_event_is_told_in_order(observe):
    name = fresh()
    notes = Notes(name)
    observe(notes)
    with rota.connect("memory://") as client:
        grant = client.try_lease(name)
        assert not client.try_lease(name)
        grant.release()
        with client.window(name + "w", rota.Every("1h")):
            pass
    assert observers.flush(5)
    assert notes.seen == [
        ("granted", name),
        ("refused", "busy"),
        ("settled", "released", False),
        ("granted", name + "w"),
        ("settled", "handled", False),
    ]


def test_a_loss_and_an_outage_are_told(observe):
    name, now = fresh(), [1000.0]
    notes = Notes(name)
    observe(notes)
    client = rota.connect("memory://", clock=lambda: now[0])
    grant = client.try_lease(name, ttl="10s")
    now[0] += 60
    assert grant.lost
    client.close()
    with pytest.raises(rota.Unavailable):
        client.try_lease(name)
    assert observers.flush(5)
    assert ("lost", name) in notes.seen


def test_an_observer_that_raises_breaks_neither_the_caller_nor_other_observers(observe, caplog):
    class Broken:
        @rota.hookimpl
        def rota_granted(self, grant):
            raise RuntimeError("the observer's own fault")

    name = fresh()
    notes = Notes(name)
    observe(Broken())
    observe(notes)
    with caplog.at_level(logging.ERROR, "rota"), rota.connect("memory://") as client:
        client.try_lease(name).release()
        assert observers.flush(5)
    assert len(notes.seen) == 2
    assert "the observer's own fault" in caplog.text


def test_an_observer_that_hangs_delays_no_caller(observe):
    entered, go_on = threading.Event(), threading.Event()

    class Slow:
        @rota.hookimpl
        def rota_granted(self, grant):
            entered.set()
            go_on.wait(30)

    observe(Slow())
    with rota.connect("memory://") as client:
        for _ in range(200):
            client.try_lease(fresh()).release()  # all of them pass while the first event's hook hangs
        assert entered.wait(5)
        assert not go_on.is_set()
        go_on.set()


def test_a_client_ends_when_its_observers_have_been_told(observe):
    """A process that ends right after it would take the events along."""
    told = []

    class Slow:
        @rota.hookimpl
        def rota_settled(self, grant):
            time.sleep(0.05)
            told.append(grant.name)

    observe(Slow())
    with rota.connect("memory://") as client:
        names = [fresh() for _ in range(3)]
        for name in names:
            client.try_lease(name).release()
    assert told == names


def test_a_misspelt_hook_is_refused_when_it_is_registered():
    class Wrong:
        @rota.hookimpl
        def rota_grantd(self, grant):
            raise AssertionError

    with pytest.raises(rota.ConfigurationError, match="rota_grantd"):
        rota.register(Wrong())
    assert not observers.listening


def test_without_an_observer_pluggy_is_not_even_imported():
    code = """
import rota, sys
with rota.connect("memory://") as client:
    client.try_lease("job").release()
print("pluggy" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"


def test_a_full_queue_drops_and_counts_instead_of_growing(observe, monkeypatch):
    monkeypatch.setattr("rota._observers.QUEUE", 5)
    go_on = threading.Event()

    class Slow:
        @rota.hookimpl
        def rota_granted(self, grant):
            go_on.wait(30)

    observe(Slow())
    before = observers.dropped
    with rota.connect("memory://") as client:
        for _ in range(20):
            client.try_lease(fresh()).release()
        assert observers.dropped > before
        go_on.set()
