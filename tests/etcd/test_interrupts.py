# SPDX-License-Identifier: MIT
"""Ctrl-C, time limits, handlers that take a lease: a signal at the worst moment costs the client of etcd nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from rota.backend import WON, Claim, Renewal
from rota.url import parse
from rota_etcd import EtcdBackend
from servers import Etcd

WORKER = Path(__file__).parents[1] / "faults" / "_worker_signals.py"


@pytest.mark.parametrize("does", ["raise", "use", "use-new"])
def test_a_signal_at_any_line_leaves_no_lock_behind(etcd: Etcd, does: str) -> None:
    """L8, F4: whatever its handler does. The process ends itself when it hangs."""
    command = [sys.executable, "-W", "ignore", str(WORKER), etcd.url(), "rota_etcd", does]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert int(ended.stdout.split()[0]) > 150, ended.stdout


@pytest.mark.parametrize("nth", [1, 2])
def test_f1_an_interrupt_that_leaves_grpcs_own_lock_taken_costs_one_call(
    etcd: Etcd, name: str, lease: Callable[..., Claim], nth: int
) -> None:
    """A time limit that raises on a thread (as Dramatiq's) comes right behind an answer, since it waits for the interpreter's next step."""
    driver = EtcdBackend().driver(parse(etcd.url()))
    held = lease(name)
    assert driver.claim(held, 10.0).verdict == WON
    driver.link.open_stream(0.0)
    answered: list[str] = []
    leaves = threading.Condition.__exit__.__code__

    class Interrupt(BaseException):
        pass

    def interrupted() -> None:
        left = nth

        def trace(frame: FrameType, event: str, argument: object) -> None:
            nonlocal left
            if frame.f_code is leaves and frame.f_back is not None and "grpc" in frame.f_back.f_code.co_filename:
                left -= 1
                if not left:
                    sys.settrace(None)
                    raise Interrupt

        sys.settrace(trace)
        try:
            driver.read(name, 10.0)
        except Interrupt:
            answered.append("interrupted")
        finally:
            sys.settrace(None)

    def later() -> None:
        answered.append(driver.claim(lease(f"{name}-later"), 10.0).verdict)
        answered.extend(["held"] * driver.renew([Renewal(name, held.owner, held.ttl, held.retention)], 10.0).held.count(True))

    for what in (interrupted, later):
        thread = threading.Thread(target=what, daemon=True)
        thread.start()
        thread.join(20.0)
    assert answered == ["interrupted", WON, "held"]
    driver.close()  # not where it failed: it would hang, too
