# SPDX-License-Identifier: MIT
"""The test of the tests: for every clause there are broken backends, and the suite finds each of them by a test that cites the clause."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any

import mutants.keeping  # each of the three adds its own
import mutants.leases
import mutants.windows  # noqa: F401
import pytest
from mutants import MUTANTS, TESTS, Mutant, Suite
from rota.backend import (
    Answer,
    AsyncDriver,
    Claim,
    Driver,
    Now,
    Record,
    Renewal,
    Renewed,
    Settled,
)
from rota.memory import AsyncMemoryDriver, MemoryDriver
from rota.testing.base import NotRun, RefusedHere
from rota.testing.faces import Face
from rota.testing.report import clause_of


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a mutant never does is waited for a few seconds only."""
    right = Face.until

    async def until(self: Face, condition: Callable[[], Any], seconds: float = 10.0, *, what: str = "") -> Any:
        return await right(self, condition, min(seconds, 5.0), what=what)

    monkeypatch.setattr(Face, "until", until)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.clause}: {mutant.what}")
def test_a_broken_backend_fails_the_clause_it_breaks(mutant: Mutant, monkeypatch: pytest.MonkeyPatch, impatient: None) -> None:
    for target, name, wrong in mutant.changes:
        monkeypatch.setattr(target, name, wrong)
    for name in TESTS:
        tries = 8 if mutant.clause == "model" else 1  # what it does is random, and these mutants are subtle
        if clause_of(name) == mutant.clause and any(_fails(mutant, name) for _ in range(tries)):
            return
    raise AssertionError(f"no test of {mutant.clause} notices it")


def _fails(mutant: Mutant, name: str) -> bool:
    suite = Suite(mutant)
    try:
        with suite.opened("blocking") as face:
            getattr(suite, name)(face)
    except (NotRun, RefusedHere):
        return False
    except (Exception, pytest.fail.Exception):
        return True
    return False


def test_the_right_backend_fails_nothing(impatient: None) -> None:
    right = Mutant("", "nothing is wrong")
    assert [name for name in TESTS if _fails(right, name)] == []


def test_a_store_that_is_slow_to_be_looked_at_fails_nothing_of_a_holders_deadline() -> None:
    """L6: the test itself may stand still for longer than the margin between the holder's deadline and the store's."""

    class Slow(MemoryDriver):
        def read(self, name: str, timeout: float) -> tuple[Record | None, Now | None]:
            read = super().read(name, timeout)
            time.sleep(0.5)
            return read

    assert not _fails(Mutant("", "", Slow), "test_L6_the_holder_is_told_before_the_store_lets_go")


def test_a_store_that_lets_go_as_soon_as_the_holder_knows_is_found() -> None:
    """L6: nothing is left of the margin."""

    class Early(MemoryDriver):
        def claim(self, claim: Claim, timeout: float) -> Answer:
            return super().claim(claim._replace(ttl=claim.ttl * 2 // 3), timeout)

        def renew(self, renewals: Sequence[Renewal], timeout: float) -> Renewed:
            return super().renew([renewal._replace(ttl=renewal.ttl * 2 // 3) for renewal in renewals], timeout)

    assert _fails(Mutant("", "", Early), "test_L6_the_holder_is_told_before_the_store_lets_go")


def test_who_stood_still_until_the_time_was_over_looks_once_more() -> None:
    looks = list[bool]()

    def look() -> bool:
        looks.append(bool(looks))
        if not looks[-1]:
            time.sleep(0.3)
        return looks[-1]

    suite = Suite(Mutant("", ""))
    with suite.opened("blocking") as face:
        face.run(lambda: face.until(look, 0.1))
    assert looks == [False, True]


def test_a_broken_twin_fails_on_the_async_face_alone() -> None:
    class Twin(AsyncMemoryDriver):
        async def settle(self, settlement: Any, timeout: float) -> Settled:
            return Settled(True, None, None, settlement.result)

    class Broken(Suite):
        def async_driver(self, driver: Driver) -> AsyncDriver | None:
            assert isinstance(driver, MemoryDriver)
            return Twin(driver)

    name, failed = "test_L4_a_repeated_release_answers_as_the_first", []
    for kind in ("blocking", "async"):
        suite = Broken(Mutant("", ""))
        with suite.opened(kind) as face:
            try:
                getattr(suite, name)(face)
            except (AssertionError, AttributeError):
                failed.append(kind)
    assert failed == ["async"]


def test_every_clause_has_a_broken_backend() -> None:
    assert {mutant.clause for mutant in MUTANTS} == {clause_of(name) for name in TESTS}


def test_every_clause_of_the_documents_has_a_test() -> None:
    clauses = {f"L{n}" for n in range(1, 13)} | {f"W{n}" for n in range(1, 13)} | {"W3a", "W3b", "W3c", "W3d"}
    clauses |= {"R1", "R2", "R3"} | {f"F{n}" for n in range(1, 6)}
    assert clauses <= {clause_of(name) for name in TESTS}
    assert all(clause_of(name) for name in TESTS), "a standard test cites no clause"


def test_standard_tests_are_coroutines_of_both_faces() -> None:
    assert all(inspect.iscoroutinefunction(inspect.unwrap(test)) for test in TESTS.values())  # type: ignore[arg-type]
