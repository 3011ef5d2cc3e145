# SPDX-License-Identifier: MIT
"""Broken backends: each is the memory backend with one thing changed, by a driver of its own, by a change of `rota.rules`, or, for clauses
that are kept by the core and not by the store, by a change of the core.

The modules `leases`, `windows` and `keeping` add to `MUTANTS`; `conformance/test_suite_catches.py` holds the suite to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import rota.rules as rules
import rota.testing
from rota.backend import WON, Answer, AsyncDriver, Claim, Driver, Record, Settled
from rota.memory import AsyncMemoryDriver, MemoryDriver, MemoryStore
from rota.testing.report import standard_tests

CAPABILITIES = MemoryDriver.capabilities


class Mutant(NamedTuple):
    clause: str
    what: str
    driver: type[MemoryDriver] = MemoryDriver
    changes: Sequence[tuple[Any, str, Any]] = ()
    capabilities: dict[str, Any] = {}


class Suite(rota.testing.Conformance):
    """The conformance suite on a mutant; run by hand, in the test."""

    def __init__(self, mutant: Mutant) -> None:
        self.clock = rota.testing.Clock()
        self._store = MemoryStore(clock=self.clock.store)
        self._mutant = mutant

    def driver(self) -> Driver:
        driver = self._mutant.driver(self._store)
        driver.capabilities = driver.capabilities._replace(**self._mutant.capabilities)
        return driver

    def async_driver(self, driver: Driver) -> AsyncDriver | None:
        assert isinstance(driver, MemoryDriver)
        return AsyncMemoryDriver(driver)

    def raw(self, name: str) -> Any:
        record = self._store.records.get(name)
        return None if record is None else record._asdict()


TESTS = standard_tests(Suite)
MUTANTS: list[Mutant] = []


def mutant(clause: str, what: str, *changes: tuple[Any, str, Any], driver: type[MemoryDriver] = MemoryDriver, **capabilities: Any) -> None:
    MUTANTS.append(Mutant(clause, what, driver, changes, capabilities))


def rule(name: str) -> Callable[[Callable[..., Any]], tuple[Any, str, Any]]:
    """A change of a rule: the function gets the right one first."""
    right = getattr(rules, name)
    return lambda wrong: (rules, name, lambda *arguments, **options: wrong(right, *arguments, **options))


def before_claim(change: Callable[[Record | None, Claim, int], tuple[Record | None, Claim, int]]) -> tuple[Any, str, Any]:
    """Change what the rule of a claim sees."""
    return rule("claim")(lambda right, record, request, now, interval=None: right(*change(record, request, now)))


def granted(change: Callable[[Record | None, Record, Claim], Record]) -> tuple[Any, str, Any]:
    """Change the record that a grant leaves."""

    def wrong(right: Any, record: Any, request: Any, now: int, at: Any) -> Any:
        answer, written = right(record, request, now, at)
        written = change(record, written, request)
        return answer._replace(record=written), written

    return rule("_grant")(wrong)


def settled(change: Callable[[Record, Any, Record, Settled], Record | None]) -> tuple[Any, str, Any]:
    """Change the record that a settlement leaves; None: it changes nothing, and says that it is lost."""

    def wrong(right: Any, record: Any, request: Any, now: int, interval: Any = None) -> Any:
        answer, written = right(record, request, now)
        if written is None:
            return answer, written
        written = change(record, request, written, answer)
        if written is None:
            return Settled(False, record, (now, now)), None
        return answer._replace(record=written), written

    return rule("settle")(wrong)


def verdict(change: Callable[[str, Record | None, Claim, int], str]) -> tuple[Any, str, Any]:
    """Say another verdict; one that is won where it must not be is granted."""

    def wrong(right: Any, record: Any, request: Any, now: int, interval: Any = None) -> Any:
        answer, written = right(record, request, now)
        said = change(answer.verdict, record, request, now)
        if said == answer.verdict:
            return answer, written
        if said == WON:
            return rules._grant(record, request, now, (now, now))
        return Answer(said, record, (now, now)), None

    return rule("claim")(wrong)


def named(fold: Callable[[str], str]) -> type[MemoryDriver]:
    """A driver that keeps names otherwise than they are."""

    class Folding(MemoryDriver):
        def claim(self, claim: Claim, timeout: float) -> Answer:
            answer = super().claim(claim._replace(name=fold(claim.name)), timeout)
            return answer._replace(record=answer.record and answer.record._replace(name=claim.name))

        def read(self, name: str, timeout: float) -> Any:
            record, now = super().read(fold(name), timeout)
            return record and record._replace(name=name), now

    return Folding
