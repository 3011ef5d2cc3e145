# SPDX-License-Identifier: MIT
"""Ctrl-C, time limits, handlers that take a lease: a signal at the worst moment costs the client of ZooKeeper nothing."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from linecache import getline
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from rota.backend import RELEASED, WON, Settlement
from rota.errors import Unavailable
from rota_zookeeper import _line
from servers import ZooKeeper

WORKER = Path(__file__).parents[1] / "faults" / "_worker_signals.py"


@pytest.mark.parametrize("does", ["raise", "use", "use-new"])
def test_a_signal_at_any_line_leaves_no_lock_and_no_request_behind(server: ZooKeeper, does: str) -> None:
    """L8, F4: whatever its handler does. The process ends itself when it hangs."""
    command = [sys.executable, "-W", "ignore", str(WORKER), server.url("/interrupts"), "rota_zookeeper", does]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert int(ended.stdout.split()[0]) > 150, ended.stdout


class Interrupt(BaseException):
    """As KeyboardInterrupt, and nobody else's."""


def at_each_line(of: str, body: Callable[[], object], handler: Callable[[], object]) -> int:
    """Run a body again and again, with a signal at each line in turn of what is called below a function, in whatever library."""
    point = passed = 0
    while passed == point:
        point, passed = point + 1, 0

        def trace(frame: FrameType, event: str, argument: object, point: int = point) -> Any:
            nonlocal passed
            if "weakref" in frame.f_code.co_filename:
                return None  # called by the collector, which takes exceptions
            above: FrameType | None = frame
            while above is not None and above.f_code.co_name != of:
                above = above.f_back
            # not where a with block is left: no signal handler runs between its end and the release of its lock
            is_left = getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")
            if event == "line" and above not in (None, frame) and not is_left:
                passed += 1
                if passed == point:
                    sys.settrace(None)
                    handler()
            return trace

        gc.disable()  # what it calls in the middle of anything is not what is looked at, and keeps exceptions
        sys.settrace(trace)
        try:
            body()
        finally:
            sys.settrace(None)
            gc.enable()
    return point


def test_a_handler_may_use_the_client_where_its_thread_tells_that_a_claim_was_decided(
    driver: Any, name: str, claim_of: Any, win: Any, until: Any, monkeypatch: Any
) -> None:
    """In a place that it keeps until then. The handler waits in line, too."""
    monkeypatch.setattr(_line, "UNCLAIMED", 30.0)
    failed: list[object] = []

    def wait_and_win() -> None:
        claim = claim_of(driver, name)
        win(driver, claim)
        end = Settlement(name, claim.owner, RELEASED, 0)
        ending = threading.Timer(0.02, driver.settle, (end, 5.0))
        ending.start()
        answer = (driver.watch(name, claim.owner, 10.0), driver.claim(claim_of(driver, name), 5.0))[1]
        ending.join()
        if answer.verdict != WON or not driver.settle(Settlement(name, answer.record.owner, RELEASED, 0), 5.0).applied:
            failed.append(answer)

    def wait_for_another() -> None:
        claim = claim_of(driver, f"{name}-handler")
        win(driver, claim)
        if driver.watch(f"{name}-handler", "somebody else", 5.0) is not True:
            failed.append("the wait")
        driver.settle(Settlement(f"{name}-handler", claim.owner, RELEASED, 0), 5.0)

    def run() -> None:
        for of in ("claimed", "_leave_soon"):
            at_each_line(of, wait_and_win, wait_for_another)

    running = threading.Thread(target=run, daemon=True)
    running.start()
    running.join(60)
    assert not running.is_alive()
    assert failed == []


def test_l8_an_exception_while_a_place_is_taken_is_its_callers_and_leaves_none(
    driver: Any, server: ZooKeeper, kazoo: Any, name: str, until: Any, claim_of: Any, win: Any
) -> None:
    claim = claim_of(driver, name)
    win(driver, claim)
    raw, path, taken = kazoo(server), driver.verbs.path(name), list[int]()

    def wait() -> None:
        try:
            driver.watch(name, claim.owner, 0.01)
        except Interrupt:
            taken.append(1)

    def interrupt() -> None:
        raise Interrupt

    points = at_each_line("create_async", wait, interrupt)
    assert len(taken) == points - 1 > 20, "kazoo took one for an error of its own"
    until(lambda: raw.get_children(path) == [])


def test_a_client_that_can_start_no_thread_is_unavailable(driver_for: Any, server: ZooKeeper, monkeypatch: Any) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    driver = driver_for(server.url("/starts"))
    with monkeypatch.context() as patch, pytest.raises(Unavailable, match="can't start new thread"):
        patch.setattr(threading.Thread, "start", start)
        driver.now(10.0)
    assert driver.now(10.0)


def test_an_exception_while_a_client_is_started_leaves_no_thread_and_no_session(
    driver_for: Any, server: ZooKeeper, kazoo: Any, name: str, until: Any
) -> None:
    before, sessions = set(threading.enumerate()), server.ask("cons").count("sid=")

    def start() -> None:
        driver = driver_for(server.url("/starts"))
        try:
            driver.now(10.0)
        except Interrupt:
            interrupted.append(1)
        driver.close()

    def interrupt() -> None:
        raise Interrupt

    interrupted: list[int] = []
    assert at_each_line("start_async", start, interrupt) - 1 == len(interrupted) > 20
    until(lambda: not [thread for thread in threading.enumerate() if thread.is_alive() and thread not in before])
    until(lambda: server.ask("cons").count("sid=") <= sessions)
