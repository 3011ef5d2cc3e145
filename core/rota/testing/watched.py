# SPDX-License-Identifier: MIT
# ruff: noqa: D102 - the verbs of a driver are documented once, in the contract
"""A driver under watch: every call must come back in time, with what the contract says.

A call that never returns would stop pytest for good: the test that made it fails instead, and its thread is left aside.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rota.backend import Answer, AsyncDriver, Claim, Driver, Now, Override, Record, Renewal, Renewed, Settled, Settlement, WriteBack
from rota.errors import RotaError
from rota.finding import Finding

#: How much longer than its timeout a call may take before the test is given up, seconds. What F1 demands is tested for itself, and is less.
AFTER = 20.0
#: The longest that a test may take in all, seconds.
WHOLE = 600.0

#: The threads of tests that were given up.
LEFT_ASIDE: list[threading.Thread] = []


class Overdue(AssertionError):
    """A call did not return: its thread is left aside, and whatever it holds with it."""


class Watch:
    """The calls of some drivers that are under way, and what they did that the contract does not allow."""

    def __init__(self) -> None:
        self._calls: dict[object, tuple[str, float, float]] = {}
        self.wrong: list[str] = []

    @contextlib.contextmanager
    def call(self, verb: str, timeout: float) -> Iterator[None]:
        """Note a call for as long as it is under way."""
        mark = object()
        self._calls[mark] = verb, timeout, time.monotonic() + timeout + AFTER
        try:
            yield
        finally:
            self._calls.pop(mark, None)

    def overdue(self) -> str:
        """Return what to say of a call that should be over by now; empty when there is none."""
        now = time.monotonic()
        for verb, timeout, until in list(self._calls.values()):
            if now > until:
                return f"{verb} has not returned {AFTER:g}s after its timeout of {timeout:g}s: every verb is bounded by its timeout (F1)"
        return ""

    def checked(self, verb: str, answer: Any, right: bool, wanted: str) -> Any:
        """Return the answer of a verb, which must be what the contract wants."""
        if not right:
            shown = repr(answer)
            shown = shown if len(shown) <= 80 else shown[:77] + "..."
            self.wrong.append(f"{verb} returned {shown}: the contract wants {wanted} (see rota.backend)")
            raise AssertionError(self.wrong[-1])
        return answer


def in_time(run: Callable[[], object], watch: Watch) -> None:
    """Run a test on a thread of its own, and raise what it raises; give it up when a call of it is overdue.

    Raises:
        Overdue: A call did not return, or the test did not end.
        AssertionError: A verb returned what the contract does not know.
    """
    ended: list[BaseException | None] = []

    def body() -> None:
        try:
            run()
        except BaseException as error:
            ended.append(error)
        else:
            ended.append(None)

    thread = threading.Thread(target=body, name="conformance", daemon=True)
    began = time.monotonic()
    thread.start()
    while thread.is_alive():
        thread.join(0.5)
        late = watch.overdue()
        if not late and time.monotonic() - began > WHOLE:
            late = f"the test has not ended within {WHOLE:g}s"
        if late and thread.is_alive():
            LEFT_ASIDE.append(thread)
            raise Overdue(late)
    error = ended[0]
    if watch.wrong and watch.wrong[0] not in str(error):
        raise AssertionError(watch.wrong[0]) from error  # that is why, whatever came of it
    if error is not None:
        raise error


def _is_now(now: object) -> bool:
    return now is None or (isinstance(now, tuple) and len(now) == 2 and all(type(end) is int for end in now))


def _is_record(record: object) -> bool:
    return record is None or isinstance(record, Record)


NOW = "(low, high) in microseconds, or None"


class WatchedDriver(Driver):
    """Another driver under watch.

    Attributes:
        inner: That driver.
        watched: Who watches it.
    """

    def __init__(self, inner: Driver, watch: Watch) -> None:
        self.inner = inner
        self.watched = watch
        self.capabilities = inner.capabilities

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)  # what an author's own tests want of it

    def _call(self, verb: str, timeout: float, *arguments: Any, **options: Any) -> Any:
        with self.watched.call(verb, timeout):
            return getattr(self.inner, verb)(*arguments, timeout, **options)

    def claim(self, claim: Claim, timeout: float) -> Answer:
        answer: Answer = checked_claim(self.watched, self._call("claim", timeout, claim))
        return answer

    def renew(self, renewals: Sequence[Renewal], timeout: float) -> Renewed:
        found = self._call("renew", timeout, renewals)
        right = isinstance(found, Renewed) and isinstance(found.held, Sequence) and _is_now(found.now)
        right = right and len(found.held) == len(renewals) and all(held in (True, False, None) for held in found.held)
        answer: Renewed = self.watched.checked("renew", found, right, f"Renewed(held, now), held with a bool per renewal, now as {NOW}")
        return answer

    def settle(self, settlement: Settlement, timeout: float) -> Settled:
        answer: Settled = checked_settled(self.watched, "settle", self._call("settle", timeout, settlement))
        return answer

    def read(self, name: str, timeout: float) -> tuple[Record | None, Now | None]:
        found = self._call("read", timeout, name)
        right = isinstance(found, tuple) and len(found) == 2 and _is_record(found[0]) and _is_now(found[1])
        answer: tuple[Record | None, Now | None] = self.watched.checked("read", found, right, f"(a Record or None, now), now as {NOW}")
        return answer

    def list(self, prefix: str, timeout: float, *, after: str = "", limit: int = 1000) -> list[Record]:
        found = self._call("list", timeout, prefix, after=after, limit=limit)
        right = isinstance(found, list) and all(isinstance(record, Record) for record in found)
        answer: list[Record] = self.watched.checked("list", found, right, "a list of Records")
        return answer

    def forget(self, name: str, timeout: float) -> bool:
        found = self._call("forget", timeout, name)
        return bool(self.watched.checked("forget", found, isinstance(found, bool), "whether there was a record: True or False"))

    def now(self, timeout: float) -> Now | None:
        found = self._call("now", timeout)
        answer: Now | None = self.watched.checked("now", found, _is_now(found), NOW)
        return answer

    def close(self) -> None:
        self.inner.close()

    def after_fork(self) -> None:
        self.inner.after_fork()

    def watch(self, name: str, owner: str, timeout: float) -> bool:
        found = self._call("watch", timeout, name, owner)
        return bool(self.watched.checked("watch", found, isinstance(found, bool), "True, or False when the time is over"))

    def claim_when_free(self, claim: Claim, owner: str, wait: float, timeout: float) -> Answer:
        with self.watched.call("claim_when_free", wait + timeout):
            answer: Answer = checked_claim(self.watched, self.inner.claim_when_free(claim, owner, wait, timeout))
        return answer

    def override(self, override: Override, timeout: float) -> Settled:
        answer: Settled = checked_settled(self.watched, "override", self._call("override", timeout, override))
        return answer

    def record(self, write_back: WriteBack, timeout: float) -> Settled:
        answer: Settled = checked_settled(self.watched, "record", self._call("record", timeout, write_back))
        return answer

    def facts(self, timeout: float) -> Mapping[str, str | int | float | bool | None]:
        found = self._call("facts", timeout)
        answer: Mapping[str, str | int | float | bool | None] = self.watched.checked(
            "facts", found, isinstance(found, Mapping), "a mapping of what a doctor wants to know"
        )
        return answer

    def examine(self, facts: Mapping[str, str | int | float | bool | None] | RotaError, timeout: float) -> Sequence[Finding]:
        found = self._call("examine", timeout, facts)
        right = isinstance(found, Sequence) and all(isinstance(finding, Finding) for finding in found)
        answer: Sequence[Finding] = self.watched.checked("examine", found, right, "a sequence of rota.finding.Finding")
        return answer

    def bare(self, name: str, writes: bool, timeout: float) -> None:
        found = self._call("bare", timeout, name, writes)
        self.watched.checked("bare", found, found is None, "None")

    def schema(self, **options: str) -> str:
        found = self.inner.schema(**options)
        return str(self.watched.checked("schema", found, isinstance(found, str), "text"))

    def sweep(self, limit: int, timeout: float) -> int:
        found = self._call("sweep", timeout, limit)
        return int(self.watched.checked("sweep", found, type(found) is int, "how many records were removed"))


def checked_claim(watch: Watch, found: Any) -> Any:
    """Return what a claim answered, if it is an answer."""
    right = isinstance(found, Answer) and _is_record(found.record) and _is_record(found.before) and _is_now(found.now)
    return watch.checked("claim", found, right, f"Answer(verdict, record, now, before), now as {NOW}")


def checked_settled(watch: Watch, verb: str, found: Any) -> Any:
    """Return what became of a settlement, if it says so."""
    right = isinstance(found, Settled) and _is_record(found.record) and _is_now(found.now)
    return watch.checked(verb, found, right, f"Settled(applied, record, now, result, expired), now as {NOW}")


class WatchedTwin(AsyncDriver):
    """An async twin under watch."""

    def __init__(self, inner: AsyncDriver, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    async def claim(self, claim: Claim, timeout: float) -> Answer:
        with self._watch.call("claim", timeout):
            answer: Answer = checked_claim(self._watch, await self._inner.claim(claim, timeout))
        return answer

    async def settle(self, settlement: Settlement, timeout: float) -> Settled:
        with self._watch.call("settle", timeout):
            answer: Settled = checked_settled(self._watch, "settle", await self._inner.settle(settlement, timeout))
        return answer

    async def now(self, timeout: float) -> Now | None:
        with self._watch.call("now", timeout):
            found = await self._inner.now(timeout)
        answer: Now | None = self._watch.checked("now", found, _is_now(found), NOW)
        return answer

    async def watch(self, name: str, owner: str, timeout: float) -> bool:
        with self._watch.call("watch", timeout):
            return await self._inner.watch(name, owner, timeout)

    async def claim_when_free(self, claim: Claim, owner: str, wait: float, timeout: float) -> Answer:
        with self._watch.call("claim_when_free", wait + timeout):
            answer: Answer = checked_claim(self._watch, await self._inner.claim_when_free(claim, owner, wait, timeout))
        return answer

    async def close(self) -> None:
        await self._inner.close()

    def after_fork(self) -> None:
        self._inner.after_fork()
