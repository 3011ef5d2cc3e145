# SPDX-License-Identifier: MIT
"""The thread that lives while there is something to do: no work is left because it was just about to end, or because it failed once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import rota
from rota import _worker
from rota._worker import Worker


def test_work_that_comes_as_the_thread_ends_is_done() -> None:
    """It has looked at its bell for the last time when somebody rings it and sees the thread still there."""
    todo: list[str] = []
    done = threading.Event()

    def turn() -> float | None:
        if not todo:
            return None
        if todo.pop() == "late":
            done.set()
        return 0.0

    class Bell:
        """Rings right after the thread has looked and heard nothing."""

        def __init__(self, bell: Any) -> None:
            self.bell = bell
            self.late: threading.Thread | None = None

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            heard: bool = self.bell.acquire(blocking, timeout)
            if not blocking and not heard and self.late is None:
                self.late = threading.Thread(target=lambda: (todo.append("late"), worker.wake()))
                self.late.start()
                self.late.join(0.2)
            return heard

        def release(self) -> None:
            self.bell.release()

    worker = Worker("rota-test", turn)
    worker._bell = Bell(worker._bell)  # type: ignore[assignment]
    todo.append("first")
    worker.wake()
    assert done.wait(10)
    worker.close()


def test_it_may_be_closed_while_another_thread_starts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a client that is closed while others claim; there is no turn then."""
    start, turns = threading.Thread.start, []
    worker = Worker("rota-test", lambda: turns.append(1))

    def start_late(thread: threading.Thread) -> None:
        if thread.name == "rota-test":
            started.append(thread)
            with ThreadPoolExecutor() as pool:
                pool.submit(worker.close).result(10)
        start(thread)

    started: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "start", start_late)
    worker.wake()
    started[0].join(10)
    assert not started[0].is_alive()
    assert not turns


def test_a_turn_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A log's own handler may raise: the leases of everybody else must go on."""
    monkeypatch.setattr(_worker, "AFTER_FAILURE", 0.01)
    turns, done = [], threading.Event()

    def turn() -> float | None:
        turns.append(len(turns))
        if len(turns) == 1:
            raise ValueError("a handler of a log")
        done.set()
        return None

    worker = Worker("rota-test", turn)
    worker.wake()
    assert done.wait(10)
    assert "rota-test failed" in caplog.text
    worker.close()


def test_short_leases_do_not_shorten_the_calls_for_long_ones() -> None:
    """L9, L11: a batch has the least time of those in it, and a store that needs more would never renew the others."""
    client = rota.connect("memory://")
    renew, asked = client.driver.renew, []
    enough = threading.Event()

    def recorded(renewals: Any, timeout: float) -> Any:
        asked.append(({renewal.name for renewal in renewals}, timeout))
        if sum("long" in names for names, _ in asked) >= 2 and sum("short" in names for names, _ in asked) >= 2:
            enough.set()
        return renew(renewals, timeout)

    client.driver.renew = recorded  # type: ignore[method-assign]
    long, short = client.try_lease("long", ttl=3), client.try_lease("short", ttl=0.3)
    assert enough.wait(20)
    assert long
    assert short
    assert all(timeout >= 0.5 for names, timeout in asked if "long" in names), asked
    client.close()


@pytest.mark.by_the_clock
def test_an_on_lost_function_that_gets_no_thread_ends_no_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    """L11: it waits for the next one that is told."""
    client = rota.connect("memory://")
    start, told, refused = threading.Thread.start, threading.Event(), threading.Event()
    kept = client.try_lease("kept", ttl=1)
    gone = client.try_lease("gone", ttl=1, on_lost=lambda grant: told.set())

    def start_others(thread: threading.Thread) -> None:
        if thread.name == "rota-on-lost":
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_others)
        client.driver.forget("gone", 1)
        assert refused.wait(10)
    assert gone.lost
    first = client.driver.store.records["kept"].expires_at  # type: ignore[attr-defined]
    for _ in range(1000):
        if client.driver.store.records["kept"].expires_at > first:  # type: ignore[attr-defined]
            break
        threading.Event().wait(0.01)
    kept.check()
    assert not told.is_set()
    another = client.try_lease("another", ttl=1, on_lost=lambda grant: None)
    client.driver.forget("another", 1)
    assert told.wait(10)
    assert another.lost
    client.close()
