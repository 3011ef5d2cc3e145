# SPDX-License-Identifier: MIT
"""A real driver behind a network that fails on demand: blocking, and in front of an async twin.

Nothing is pretended: what a fault lets through is decided by the real store, and what it holds back never reaches it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rota.backend import Answer, AsyncDriver, Claim, Driver, Now, Override, Record, Renewal, Renewed, Settled, Settlement, WriteBack
from rota.errors import OutcomeUnknown, RotaError, Unavailable
from rota.finding import Finding

EVER = float("inf")


class Fault(NamedTuple):
    """What befalls one call.

    Attributes:
        wait: Seconds before the request reaches the store; `EVER`: until the call's timeout (its outcome is then unknown) or `back`.
        apply: Whether the store applies it.
        stuck: It is neither applied nor lost: it reaches the store when the test calls `deliver`. The caller learns nothing.
        error: What the caller gets instead of the answer.
        then: Called when the store has decided, before the caller gets the answer.
        linger: Seconds from there until the caller gets the answer, or until `back`.
    """

    wait: float = 0.0
    apply: bool = True
    stuck: bool = False
    error: type[Exception] | None = None
    then: Callable[[], object] | None = None
    linger: float = 0.0


REFUSED = Fault(apply=False, error=Unavailable)  # connection refused: nothing applied, and the caller knows
REQUEST_LOST = Fault(apply=False, error=OutcomeUnknown)
REPLY_LOST = Fault(apply=True, error=OutcomeUnknown)
STUCK = Fault(apply=False, stuck=True, error=OutcomeUnknown)
HUNG = Fault(wait=EVER, apply=False, error=OutcomeUnknown)


class FaultyDriver(Driver):
    """A real driver behind a network that fails on demand; faults are also those of its twin (`FaultyTwin`).

    Attributes:
        inner: The real driver: never fails on demand.
        calls: Every call that was tried: verb, request, timeout.
        skew: Microseconds added to the store's time in every answer, as if its clock had stepped (L12).
        under_way: How many calls have not returned yet.
    """

    def __init__(self, inner: Driver) -> None:
        self.inner = inner
        self.capabilities = inner.capabilities
        self.calls: list[tuple[str, Any, float]] = []
        self.skew = 0
        self.under_way = 0
        self._planned: list[tuple[frozenset[str], Fault]] = []
        self._standing: tuple[frozenset[str], Fault] | None = None
        self._stuck: list[tuple[str, Any]] = []
        self._lock = threading.Lock()
        self._is_back = threading.Event()

    def once(self, verbs: str, fault: Fault, times: int = 1) -> None:
        """Let the fault befall the next calls of these verbs (parted by spaces)."""
        self._planned += [(frozenset(verbs.split()), fault)] * times

    def away(self, fault: Fault = REFUSED, verbs: str = "") -> None:
        """Let it befall every call (of these verbs) until `back`."""
        self._is_back.clear()
        self._standing = (frozenset(verbs.split()), fault)

    def back(self) -> None:
        """End every fault, those that wait now too."""
        self._standing = None
        self._planned.clear()
        self._is_back.set()

    def deliver(self) -> list[Any]:
        """Let the stuck requests arrive; return the answers that nobody gets."""
        stuck, self._stuck = self._stuck, []
        return [getattr(self.inner, verb)(request, 5.0) for verb, request in stuck]

    def count(self, verb: str) -> int:
        """Return how often a verb was tried."""
        return sum(call[0] == verb for call in self.calls)

    def meet(self, verb: str, request: object, timeout: float) -> Fault:
        """Note a call and return what befalls it."""
        with self._lock:
            self.calls.append((verb, request, timeout))
            for entry in self._planned:
                if verb in entry[0]:
                    self._planned.remove(entry)
                    return entry[1]
            if self._standing is not None and (not self._standing[0] or verb in self._standing[0]):
                return self._standing[1]
        return Fault()

    def reach(self, fault: Fault, verb: str, request: object, timeout: float) -> None:
        """Raise for a request that never reaches the store; the time to wait is over."""
        back = self._is_back.is_set()
        if fault.wait >= timeout and not back:
            raise OutcomeUnknown(f"{verb}: no answer within {timeout:g}s")
        if fault.stuck:
            self._stuck.append((verb, request))
        if not fault.apply and fault.error is not None and not (fault.wait and back):
            if fault.then is not None:
                fault.then()
            raise fault.error(f"{verb}: lost on its way")

    def answer(self, fault: Fault, verb: str, answer: Any) -> Any:
        """Hand on the answer, or lose it."""
        if fault.then is not None:
            fault.then()
        if fault.apply and fault.error is not None:
            raise fault.error(f"{verb}: the reply was lost")
        return self._skewed(answer)

    def _skewed(self, answer: Any) -> Any:
        if not self.skew:
            return answer
        if isinstance(answer, (Answer, Renewed, Settled)) and answer.now is not None:
            return answer._replace(now=(answer.now[0] + self.skew, answer.now[1] + self.skew))
        if type(answer) is tuple and len(answer) == 2 and type(answer[0]) is int:
            return answer[0] + self.skew, answer[1] + self.skew
        return answer

    @contextlib.contextmanager
    def going(self) -> Iterator[None]:
        """Count a call for as long as it is under way."""
        with self._lock:
            self.under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self.under_way -= 1

    def _call(self, verb: str, request: object, timeout: float, *arguments: Any, **options: Any) -> Any:
        with self.going():
            fault = self.meet(verb, request, timeout)
            if fault.wait:
                self._is_back.wait(min(fault.wait, timeout))
            self.reach(fault, verb, request, timeout)
            answer = getattr(self.inner, verb)(*arguments, timeout, **options)
            if fault.linger:
                self._is_back.wait(fault.linger)
            return self.answer(fault, verb, answer)

    # the verbs, each through `_call`

    def claim(self, claim: Claim, timeout: float) -> Answer:
        answer: Answer = self._call("claim", claim, timeout, claim)
        return answer

    def renew(self, renewals: Sequence[Renewal], timeout: float) -> Renewed:
        answer: Renewed = self._call("renew", renewals, timeout, renewals)
        return answer

    def settle(self, settlement: Settlement, timeout: float) -> Settled:
        answer: Settled = self._call("settle", settlement, timeout, settlement)
        return answer

    def read(self, name: str, timeout: float) -> tuple[Record | None, Now | None]:
        answer: tuple[Record | None, Now | None] = self._call("read", name, timeout, name)
        return answer

    def list(self, prefix: str, timeout: float, *, after: str = "", limit: int = 1000) -> list[Record]:
        answer: list[Record] = self._call("list", prefix, timeout, prefix, after=after, limit=limit)
        return answer

    def forget(self, name: str, timeout: float) -> bool:
        return bool(self._call("forget", name, timeout, name))

    def now(self, timeout: float) -> Now | None:
        answer: Now | None = self._call("now", None, timeout)
        return answer

    def watch(self, name: str, owner: str, timeout: float) -> bool:
        return bool(self._call("watch", (name, owner), timeout, name, owner))

    def claim_when_free(self, claim: Claim, owner: str, wait: float, timeout: float) -> Answer:
        answer: Answer = self._call("claim_when_free", claim, timeout, claim, owner, wait)
        return answer

    def override(self, override: Override, timeout: float) -> Settled:
        answer: Settled = self._call("override", override, timeout, override)
        return answer

    def record(self, write_back: WriteBack, timeout: float) -> Settled:
        answer: Settled = self._call("record", write_back, timeout, write_back)
        return answer

    def sweep(self, limit: int, timeout: float) -> int:
        return int(self._call("sweep", limit, timeout, limit))

    def facts(self, timeout: float) -> Mapping[str, str | int | float | bool | None]:
        answer: Mapping[str, str | int | float | bool | None] = self._call("facts", None, timeout)
        return answer

    def examine(self, facts: Mapping[str, str | int | float | bool | None] | RotaError, timeout: float) -> Sequence[Finding]:
        answer: Sequence[Finding] = self._call("examine", None, timeout, facts)
        return answer

    def bare(self, name: str, writes: bool, timeout: float) -> None:
        self._call("bare", name, timeout, name, writes)

    def schema(self, **options: str) -> str:
        return self.inner.schema(**options)

    def close(self) -> None:
        self.inner.close()

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._is_back = threading.Event()
        self.inner.after_fork()


class FaultyTwin(AsyncDriver):
    """The same network in front of a native async driver."""

    def __init__(self, driver: FaultyDriver, twin: AsyncDriver) -> None:
        self._driver = driver
        self._twin = twin

    async def _call(self, verb: str, request: object, timeout: float, *arguments: Any) -> Any:
        driver = self._driver
        with driver.going():
            fault = driver.meet(verb, request, timeout)
            await self._wait(min(fault.wait, timeout))
            driver.reach(fault, verb, request, timeout)
            answer = await getattr(self._twin, verb)(*arguments, timeout)
            await self._wait(fault.linger)
            return driver.answer(fault, verb, answer)

    async def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while seconds and not self._driver._is_back.is_set() and (left := deadline - time.monotonic()) > 0:  # noqa: ASYNC110 - no event
            await asyncio.sleep(min(left, 0.005))

    async def claim(self, claim: Claim, timeout: float) -> Answer:
        answer: Answer = await self._call("claim", claim, timeout, claim)
        return answer

    async def settle(self, settlement: Settlement, timeout: float) -> Settled:
        answer: Settled = await self._call("settle", settlement, timeout, settlement)
        return answer

    async def now(self, timeout: float) -> Now | None:
        answer: Now | None = await self._call("now", None, timeout)
        return answer

    async def watch(self, name: str, owner: str, timeout: float) -> bool:
        return bool(await self._call("watch", (name, owner), timeout, name, owner))

    async def claim_when_free(self, claim: Claim, owner: str, wait: float, timeout: float) -> Answer:
        answer: Answer = await self._call("claim_when_free", claim, timeout, claim, owner, wait)
        return answer

    async def close(self) -> None:
        await self._twin.close()
