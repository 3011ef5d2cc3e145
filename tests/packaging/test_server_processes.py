# SPDX-License-Identifier: MIT
"""The tests' own processes lose nothing of what they are told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from servers import free_port, freeze, read_line


def test_what_a_fast_process_says_after_a_line_that_was_read_is_not_lost() -> None:
    process = subprocess.Popen([sys.executable, "-c", "print('ready\\ndone')"], stdout=subprocess.PIPE, text=True)
    process.wait(30)
    assert process.stdout is not None
    assert read_line(process.stdout) == "ready\n"
    assert process.communicate() == ("done\n", None)
    assert process.returncode == 0


def test_who_has_frozen_a_process_finds_that_it_stands_still_however_long_that_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine servers answered for tens of milliseconds after they were told to stop."""
    kill = os.kill
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            monkeypatch.setattr(os, "kill", lambda *told: threading.Timer(0.3, kill, told).start())
            freeze(process.pid)
            monkeypatch.undo()
            told = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG)
            assert told is not None
            assert told.si_status == signal.SIGSTOP
        finally:
            process.kill()


def test_two_workers_of_a_run_are_never_given_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is down keeps its port, and where nobody is to listen nobody does."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    given = []
    for worker in ("gw0", "gw1", "gw2"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        given.append({free_port() % 3 for _ in range(20)})
    assert [len(each) for each in given] == [1, 1, 1]
    assert len(set.union(*given)) == 3
