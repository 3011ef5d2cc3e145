# SPDX-License-Identifier: MIT
"""Tests by the real clock, on a machine that may stand still: such a test that failed meanwhile is run again, and it is said.

For what nobody can hold on such a machine: that a lease of a second is renewed in time, that a command is ended in time. Not for what must
hold on any: that nobody else had it at the time. A failure without a stall is one at once, and so is the third.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from _pytest.runner import runtestprotocol
from rota.testing.stopwatch import Stopwatch

#: As late as this, in all, has a machine to have woken a waiting thread beside a test that failed, seconds: less than the margins of the
#: tests marked so. On a quiet machine it is none.
STALL = 0.1
TRIES = 3


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test that is marked ``by_the_clock``; the others run as ever."""
    if item.get_closest_marker("by_the_clock") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for left in reversed(range(TRIES)):
        with Stopwatch() as watch:
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if not left or watch.late < STALL or not any(report.failed for report in reports):
            break
        item.user_properties.append(("stalled", f"run again, for the machine kept it waiting for {watch.late:.1f}s"))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture
def stopwatch() -> Iterator[Callable[[], Stopwatch]]:
    """Start one, for a bound that is about what is tested; they end with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(Stopwatch())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which tests were run again."""
    reports = [report for several in terminalreporter.stats.values() for report in several]
    for report in reports:
        for name, why in getattr(report, "user_properties", ()):
            if name == "stalled" and report.when == "call":
                terminalreporter.write_line(f"{report.nodeid}: {why}")
