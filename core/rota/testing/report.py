# SPDX-License-Identifier: MIT
"""The conformance report: what each clause came to, on which server, with which capabilities."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from rota import __version__
from rota.backend import CONTRACT

from .base import Clauses
from .watched import Watch, WatchedDriver, in_time

PASSED, IN_PART, REFUSED, FAILED, NOT_RUN = "passed", "passed in part", "refused", "failed", "not run"
#: The number of the report's layout.
FORMAT = 1

_CLAUSE = re.compile(r"test_(?:([LWRF]\d+[a-d]?)|capability_([a-z]+)|(model))_")


def clause_of(test: str) -> str:
    """Return the clause that a standard test's name cites, as in ``W3a``; ``capability …`` or ``model`` for those that cite none."""
    found = _CLAUSE.match(test)
    if found is None:
        return ""
    clause, capability, model = found.groups()
    return clause or (f"capability {capability}" if capability else model)


def standard_tests(suite: type[Clauses]) -> dict[str, object]:
    """Return the standard tests of a conformance class, by name."""
    classes = [cls for cls in reversed(suite.__mro__) if f"{cls.__module__}.".startswith("rota.testing.")]
    return {name: test for cls in classes for name, test in vars(cls).items() if name.startswith("test_")}


def order(clause: str) -> tuple[int, int, str]:
    """Return a clause's place in the documents' order."""
    found = re.match(r"([LWRF])(\d+)", clause)
    return (4, 0, clause) if found is None else ("LWRF".index(found[1]), int(found[2]), clause)


class Report:
    """What the tests of a session came to, by conformance class."""

    def __init__(self) -> None:
        self._runs: dict[type[Clauses], dict[str, Any]] = {}

    def add(self, suite: Clauses, test: str, shown: str, result: str, why: str) -> None:
        """Note one test; a test that failed twice, as in its teardown, has failed."""
        run = self._runs.get(type(suite))
        if run is None:
            run = self._runs[type(suite)] = {**_about(suite), "clauses": {}}
        clause = run["clauses"].setdefault(clause_of(test), {"result": "", "why": [], "tests": {}})
        known = clause["tests"].get(shown)
        if known is None or result == FAILED:
            clause["tests"][shown] = {"result": result} | ({"why": why} if why else {})
        clause["result"] = _whole([test["result"] for test in clause["tests"].values()])
        clause["why"] = reasons(clause["tests"])

    def content(self) -> dict[str, Any]:
        """Return the report as it is written."""
        runs = []
        for run in self._runs.values():
            clauses = run["clauses"]
            results = [clause["result"] for clause in clauses.values()]
            totals = {result: results.count(result) for result in (PASSED, IN_PART, REFUSED, FAILED, NOT_RUN)}
            runs.append({**run, "clauses": {clause: clauses[clause] for clause in sorted(clauses, key=order)}, "totals": totals})
        return {
            "format": FORMAT,
            "rota": __version__,
            "contract": CONTRACT,
            "python": ".".join(map(str, sys.version_info[:3])),
            "runs": runs,
        }

    def unproved(self) -> list[str]:
        """Return a line for each reason for which tests were not run, with their clauses."""
        lines = []
        for run in self.content()["runs"]:
            by_reason: dict[str, list[str]] = {}
            for clause, found in run["clauses"].items():
                for why in dict.fromkeys(test.get("why", NOT_RUN) for test in found["tests"].values() if test["result"] == NOT_RUN):
                    by_reason.setdefault(why, []).append(clause)
            lines += [f"{run['suite']}: {', '.join(clauses)}: {why}" for why, clauses in by_reason.items()]
        return lines

    def write(self, file: Path) -> None:
        """Write the report."""
        file.write_text(json.dumps(self.content(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _whole(results: list[str]) -> str:
    """One failure fails the clause; it has passed when all of its tests have, and in part when some were refused or not run."""
    if FAILED in results:
        return FAILED
    if PASSED in results:
        return PASSED if set(results) == {PASSED} else IN_PART
    return REFUSED if REFUSED in results else NOT_RUN


def reasons(tests: dict[str, dict[str, str]]) -> list[str]:
    """Return why tests of a clause were refused or not run, each reason once."""
    return list(dict.fromkeys(test.get("why") or test["result"] for test in tests.values() if test["result"] in (REFUSED, NOT_RUN)))


def _about(suite: Clauses) -> dict[str, Any]:
    """Say what is tested: its URL without secrets, its capabilities, and what the server tells of itself."""
    about: dict[str, Any] = {"suite": type(suite).__name__, "url": "", "server": "", "facts": {}, "capabilities": {}}
    try:
        if suite.url:
            about["url"] = suite._backend()[1].safe
        driver = suite.driver()
        capabilities = driver.capabilities._asdict()
    except Exception:
        return about  # what is wrong with it is what its tests fail for
    about["capabilities"] = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in capabilities.items()}
    if "facts" in driver.capabilities.verbs and not suite._away:
        watched = WatchedDriver(driver, Watch())

        def ask() -> None:
            about["facts"] = {name: value for name, value in watched.facts(5.0).items() if _is_plain(value)}

        with contextlib.suppress(Exception):  # as above
            in_time(ask, watched.watched)
        about["server"] = str(about["facts"].get("version", ""))
    driver.close()
    return about


def _is_plain(value: object) -> bool:
    return isinstance(value, (str, int, float, bool, type(None)))
