# SPDX-License-Identifier: MIT
"""Ctrl-C, signal handlers, threads that can't be started: what happens to the main thread at the worst moment harms nothing else."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rota
from rota import Every, history
from rota import client as _client

WORKER = Path(__file__).with_name("_worker_interrupts.py")


@pytest.mark.parametrize("body", ["with", "window"])
def test_an_exception_at_any_line_leaves_nothing_locked_and_nothing_renewed(body: str) -> None:
    """L8: as Ctrl-C raises one. The process ends itself when it hangs."""
    ended = subprocess.run([sys.executable, "-W", "ignore", str(WORKER), body], capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert all(int(line.split()[0]) > 100 for line in ended.stdout.splitlines()), ended.stdout


@pytest.fixture
def name() -> str:
    return f"job-{uuid.uuid4().hex}"


@pytest.mark.by_the_clock
def test_a_grant_that_nobody_has_any_more_is_not_renewed(live: Any, caplog: pytest.LogCaptureFixture) -> None:
    """L8: nobody could ever settle it. It is said, and the lease ends by expiry."""
    client = live.client()
    client.try_lease(live.name, ttl=0.9)
    kept = client.try_lease(live.name + "-kept", ttl=0.9)
    gc.collect()
    live.until(lambda: client.try_lease(live.name, ttl=0.9))
    kept.check()
    assert f"{live.name}: its grant was dropped" in caplog.text


@pytest.mark.parametrize(("place", "call"), [(_client._Entered, "push"), (history, "add")])
def test_ctrl_c_as_a_block_with_on_lost_begins_or_ends_leaves_nothing_renewed(
    name: str, monkeypatch: pytest.MonkeyPatch, place: Any, call: str
) -> None:
    """L8: the function that waits for the loss would keep the grant alive that nobody else has."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with rota.connect("memory://") as client:
        with monkeypatch.context() as patch:
            patch.setattr(place, call, interrupted)
            with pytest.raises(KeyboardInterrupt), client.lease(name, on_lost=lambda grant: None):
                pass
        gc.collect()
        assert client.flush(5)
        assert client._engine.heartbeat.held() == []


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process may not start any."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        yield


def test_a_lease_that_no_thread_can_renew_is_given_back(name: str, no_threads: None) -> None:
    """L11, W3b: the caller is told, and the slot is not sealed for work that never began."""
    client = rota.connect("memory://")
    for ask in (lambda: client.try_lease(name), lambda: client.try_window(name + "-window", Every("1h"), at_most_once=True)):
        with pytest.raises(rota.RotaError, match="can't be started"):
            ask()
    records = client.driver.store.records
    assert {record.owner for record in records.values()} == {""}
    assert records[name + "-window"].mark is None


def test_ctrl_c_of_which_the_start_of_a_thread_makes_another_error_stays_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of Python 3.11: interrupted between two steps of a Condition, its `__exit__` fails."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name != "rota-heartbeat" or interrupts:
            return
        interrupts.append(thread)
        try:
            raise KeyboardInterrupt
        finally:
            threading.Lock().release()

    interrupts: list[threading.Thread] = []
    with rota.connect("memory://") as client:
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.try_lease(name)
        assert client.flush(5)
        assert client.try_lease(name), "nothing is held"


def test_a_body_that_no_thread_could_end_does_not_begin(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """L6, W3b: as on the blocking face; and the guard, which may live on, does not keep it."""
    start = threading.Thread.start
    with monkeypatch.context() as patch:

        def none_to_watch(thread: threading.Thread) -> None:
            if thread.name == "rota-watchdog":
                raise RuntimeError("can't start new thread")
            start(thread)

        patch.setattr(threading.Thread, "start", none_to_watch)

        async def main() -> None:
            async with rota.connect_async("memory://") as client:
                guard = client.window(name, Every("1h"), at_most_once=True)
                with pytest.raises(rota.RotaError, match="can't be started"):
                    async with guard:
                        raise AssertionError("it began")
                assert client._engine.heartbeat.held() == []
                record = client.driver.store.records[name]
                assert (record.owner, record.mark) == ("", None)

        asyncio.run(main())


def test_a_grant_is_not_copied(name: str) -> None:
    """L4: leaving the copy would end what the original holds."""
    with rota.connect("memory://") as client, client.lease(name) as grant:
        for how in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="can't be copied"):
                how(grant)
        grant.check()


def test_a_guard_shared_by_interleaved_generators_settles_each_ones_own_grant(name: str) -> None:
    """L4: they run in one thread, and end in any order."""
    now = [1_790_000_000_000_000]
    client = rota.connect("memory://")
    client.driver.store.clock = lambda: now[0]
    guard = client.window(name, Every("1s"), at_most_once=True, overlap=True)

    def body() -> Iterator[Any]:
        with guard as grant:
            yield grant
            yield grant

    first, second = body(), body()
    one = next(first)
    now[0] += 2_000_000
    two = next(second)
    next(first)
    assert list(first) == []
    assert (one.outcome, two.outcome) == ("handled", "")
    next(second)
    assert list(second) == []
    assert two.outcome == "handled"
    client.close()


def test_a_plain_function_that_returns_a_coroutine_is_refused(name: str) -> None:
    """Its body would run outside, after the slot was recorded as handled."""

    async def work() -> None: ...

    with rota.connect("memory://") as client:
        guarded = client.window(name, Every("1h"))(lambda: work())
        with pytest.raises(rota.ConfigurationError, match="coroutine"):
            guarded()
        assert client.driver.store.records[name].outcome == "failed"


def test_a_slow_on_lost_keeps_no_other_from_its_turn(name: str) -> None:
    """L6: within the bound for each of them."""
    go_on, told = threading.Event(), threading.Event()
    clock = [1000.0]
    with rota.connect("memory://", clock=lambda: clock[0]) as client:
        slow = client.try_lease(name + "-slow", on_lost=lambda grant: go_on.wait(20))
        quick = client.try_lease(name + "-quick", on_lost=lambda grant: told.set())
        clock[0] += 3600
        assert told.wait(10)
        go_on.set()
        assert slow.lost
        assert quick.lost


def test_flush_may_wait_for_ever(name: str) -> None:
    with rota.connect("memory://") as client:
        assert client.flush(float("inf"))
