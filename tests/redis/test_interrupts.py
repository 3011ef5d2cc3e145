# SPDX-License-Identifier: MIT
"""Ctrl-C, time limits, handlers that take a lease: a signal at the worst moment costs the client of Redis nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import servers

WORKER = Path(__file__).parents[1] / "faults" / "_worker_signals.py"


@pytest.mark.parametrize("does", ["raise", "use", "use-new"])
def test_a_signal_at_any_line_leaves_no_lock_behind(start: Callable[..., servers.Redis], does: str) -> None:
    """L8, F4: whatever its handler does. The process ends itself when it hangs."""
    command = [sys.executable, "-W", "ignore", str(WORKER), start().url(), "rota_redis", does]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert int(ended.stdout.split()[0]) > 150, ended.stdout
