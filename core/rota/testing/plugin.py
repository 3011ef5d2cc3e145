# SPDX-License-Identifier: MIT
"""The pytest plug-in of the conformance suite: the report, and the rule that no standard test is overridden in silence.

Load it in a conftest: ``pytest_plugins = ["rota.testing.plugin"]``. It is no ``pytest11`` entry point, which would import it in the test
run of everybody who has rota installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from .base import HOOKS, Clauses, NotRun, RefusedHere
from .report import FAILED, NOT_RUN, PASSED, REFUSED, Report, standard_tests
from .watched import LEFT_ASIDE

_report = pytest.StashKey[Report]()
_status = pytest.StashKey[int]()


class _Progress:
    """Tells `rota conform` how far it is: a line with how many tests ran, and of how many."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._done = self._total = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = len(session.items)

    def pytest_runtest_logfinish(self) -> None:
        self._done += 1
        with suppress(OSError):  # nobody listens any more
            os.write(self._file, f"{self._done} {self._total}\n".encode())


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the suite's options."""
    group = parser.getgroup("rota", "conformance of rota's backends")
    group.addoption("--rota-report", metavar="FILE", type=Path, help="write what each clause came to, as JSON")
    group.addoption("--rota-progress", metavar="FD", type=int, help="write how many tests ran, and of how many, to this open file")
    url = os.environ.get("ROTA_CONFORM_URL", "")  # rota conform: an argument could be read by everybody on the host
    group.addoption("--rota-url", metavar="URL", default=url, help="the store that rota.testing.suite tests")


def pytest_configure(config: pytest.Config) -> None:
    """Start a report, which the processes of pytest-xdist would each write a part of."""
    if config.getoption("--rota-report") and config.getoption("numprocesses", None):
        raise pytest.UsageError("--rota-report needs all tests in one process: leave out -n")
    config.stash[_report] = Report()
    if config.getoption("--rota-progress") is not None:
        config.pluginmanager.register(_Progress(config.getoption("--rota-progress")))


def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> None:
    """Refuse a conformance class in which a standard test or helper is overridden, unless it is marked as failing, with a reason."""
    if isinstance(obj, type) and issubclass(obj, Clauses) and not _is_ours(obj):
        wrong = [f"  {wrong}" for wrong in overridden(obj)]
        if wrong:
            raise collector.CollectError(f"{name} overrides what every backend is held to:\n" + "\n".join(wrong))


def overridden(suite: type[Clauses]) -> list[str]:
    """Return what a class overrides and may not."""
    wrong = []
    standard = standard_tests(suite)
    own = [cls for cls in suite.__mro__ if issubclass(cls, Clauses) and not _is_ours(cls)]
    for attribute in dict.fromkeys(attribute for cls in own for attribute in vars(cls)):
        if attribute in HOOKS or (attribute.startswith("__") and attribute != "__init_subclass__"):
            continue
        if attribute in standard:
            marks = getattr(getattr(suite, attribute), "pytestmark", [])
            if not any(mark.name == "xfail" and str(mark.kwargs.get("reason") or "").strip() for mark in marks):
                wrong.append(f"{attribute}: mark it @pytest.mark.xfail(reason=...), and say in the reason what the backend can't do")
        elif any(attribute in vars(cls) for cls in suite.__mro__ if issubclass(cls, Clauses) and _is_ours(cls)) and attribute != "_away":
            wrong.append(f"{attribute}: only {', '.join(HOOKS)} are meant to be overridden")
    return wrong


def _is_ours(cls: type) -> bool:
    return f"{cls.__module__}.".startswith("rota.testing.")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Note what a standard test came to."""
    found = yield
    report: pytest.TestReport = found  # type: ignore[assignment]  # what a wrapper is sent is not typed
    suite = getattr(item, "cls", None)
    if isinstance(suite, type) and issubclass(suite, Clauses):
        result = _result_of(report, call)
        if result is not None:
            report.user_properties.append(("rota", result))
            name = getattr(item, "originalname", item.name)
            instance = item.instance if hasattr(item, "instance") else suite()
            item.config.stash[_report].add(instance, name, item.name, result, _why(report, call))
    return found


def _result_of(report: pytest.TestReport, call: pytest.CallInfo[None]) -> str | None:
    error = None if call.excinfo is None else call.excinfo.value
    if isinstance(error, RefusedHere):
        return REFUSED
    if isinstance(error, NotRun):
        return NOT_RUN
    if report.failed or hasattr(report, "wasxfail"):
        return FAILED
    if report.skipped:
        return NOT_RUN
    return PASSED if report.when == "call" else None


def _why(report: pytest.TestReport, call: pytest.CallInfo[None]) -> str:
    if call.excinfo is not None and isinstance(call.excinfo.value, (NotRun, RefusedHere)):
        return str(call.excinfo.value)
    if hasattr(report, "wasxfail"):
        return f"known: {str(report.wasxfail).removeprefix('reason: ')}"
    if report.skipped and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        return str(getattr(crash, "message", report.longrepr)).splitlines()[0]
    return ""


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.CollectReport | pytest.TestReport) -> tuple[str, str, str] | None:
    """Show *refused* and *not run* for what pytest only knows as skipped."""
    result = dict(report.user_properties).get("rota") if isinstance(report, pytest.TestReport) else None
    if result == REFUSED:
        return "refused", "r", "REFUSED"
    if result == NOT_RUN:
        return "not run", "n", "NOT RUN"
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was not run, and why: nobody is to believe that it was proved."""
    lines = config.stash[_report].unproved()
    if lines:
        terminalreporter.write_sep("=", "clauses that were not run, or in part")
        for line in lines:
            terminalreporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the report."""
    session.config.stash[_status] = int(exitstatus)
    file: Path | None = session.config.getoption("--rota-report")
    if file is not None:
        session.config.stash[_report].write(file)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave without the calls that never returned: Python itself would wait for their threads."""
    waiting = [thread for thread in LEFT_ASIDE if thread.is_alive()]
    if waiting:
        print(f"rota: left without waiting for {len(waiting)} calls that have not returned", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(config.stash.get(_status, 1))
