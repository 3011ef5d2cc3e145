# SPDX-License-Identifier: MIT
"""The suite's stopwatch: a call that is slow takes its time by it, and a process that was stopped meanwhile does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from rota.testing import stopwatch
from rota.testing.stopwatch import Stopwatch
from servers import read_line, wait_until

STOPPED = """
import time
from rota.testing.stopwatch import Stopwatch

with Stopwatch() as watch:
    began = time.monotonic()
    print("ready", flush=True)
    while time.monotonic() - began < 1:
        pass
    print(watch.late, watch.seconds)
"""


@pytest.mark.by_the_clock
def test_a_slow_call_takes_its_time() -> None:
    with Stopwatch() as watch:
        time.sleep(0.3)
        assert watch.seconds > 0.25


def test_a_machine_that_stands_still_takes_no_time() -> None:
    """To a process, SIGSTOP is what a machine that stands still is."""
    with subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True) as process:
        assert read_line(process.stdout) == "ready\n"
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        stopped = time.monotonic()
        wait_until(lambda: time.monotonic() - stopped > 1.5)
        os.kill(process.pid, signal.SIGCONT)
        late, seconds = map(float, process.communicate()[0].split())
    assert late > 1.4
    assert seconds < 1.2


class Leaping:
    """A clock that a test sets forward, as it is found by a process that was stopped."""

    ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


def test_a_machine_that_stands_still_between_two_looks_at_the_clock_takes_no_time(monkeypatch: Any) -> None:
    """Wherever the stopwatch itself is just then."""

    class Halting(Leaping):
        def monotonic(self) -> float:
            now = super().monotonic()
            if threading.current_thread().name == "stopwatch":
                self.ahead += 0.1
            return now

    clock = Halting()
    monkeypatch.setattr(stopwatch, "time", clock)
    with Stopwatch() as watch:
        wait_until(lambda: clock.ahead > 3)
    assert watch.late > 0.8 * clock.ahead


def test_a_machine_that_stood_still_at_the_very_end_took_no_time(monkeypatch: Any) -> None:
    monkeypatch.setattr(stopwatch, "time", clock := Leaping())
    with Stopwatch() as watch:
        clock.ahead += 1
    assert watch.late > 0.9
