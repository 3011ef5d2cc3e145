# SPDX-License-Identifier: MIT
"""The two drivers of ZooKeeper, which carry the same verbs on one session."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from kazoo.exceptions import KazooException
from rota.backend import (
    Answer,
    AsyncDriver,
    Claim,
    Driver,
    Now,
    Override,
    Record,
    Renewal,
    Renewed,
    Settled,
    Settlement,
    WriteBack,
)
from rota.capabilities import Capabilities
from rota.errors import RotaError

from ._record import Forget
from ._step import TimedOut, drive, run
from ._url import Place
from ._verbs import Verbs, is_found

if TYPE_CHECKING:
    from rota.finding import Finding

T = TypeVar("T")


class ZookeeperDriver(Driver):
    """The blocking face."""

    capabilities = Capabilities(
        verbs=frozenset({"watch", "override", "record", "facts", "sweep"}),
        min_ttl=10_000,
        waiting="watch",
        durability="quorum",
        native_async=True,
    )

    def __init__(self, place: Place) -> None:
        self.verbs = Verbs(place)

    def _run(self, verb: Coroutine[Any, Any, T], timeout: float) -> T:
        try:
            return run(verb, timeout)
        except (TimedOut, KazooException) as error:
            raise self.verbs.link.translated(error) from error

    def claim(self, claim: Claim, timeout: float) -> Answer:
        began, reading = time.monotonic(), None
        refused = self.verbs.refused(claim)
        if refused is not None:
            answer, known, reading = refused
            if reading[1].wait(timeout) and is_found(known, reading[1]):
                return answer
        answer = self._run(self.verbs.decide("claim", claim, reading), timeout - (time.monotonic() - began))
        return cast("Answer", answer)

    def renew(self, renewals: Sequence[Renewal], timeout: float) -> Renewed:
        return self._run(self.verbs.renew(renewals), timeout)

    def settle(self, settlement: Settlement, timeout: float) -> Settled:
        settled: Settled = self._run(self.verbs.decide("settle", settlement), timeout)
        return settled

    def read(self, name: str, timeout: float) -> tuple[Record | None, Now | None]:
        return self._run(self.verbs.read(name), timeout)

    def list(self, prefix: str, timeout: float, *, after: str = "", limit: int = 1000) -> list[Record]:
        return self._run(self.verbs.list(prefix, after, limit), timeout)

    def forget(self, name: str, timeout: float) -> bool:
        forgotten: bool = self._run(self.verbs.decide("forget", Forget(name)), timeout)
        return forgotten

    def now(self, timeout: float) -> Now | None:
        return self._run(self.verbs.now(), timeout)

    def watch(self, name: str, owner: str, timeout: float) -> bool:
        return self._run(self.verbs.line.watch(name, owner), timeout)

    def override(self, override: Override, timeout: float) -> Settled:
        settled: Settled = self._run(self.verbs.decide("override", override), timeout)
        return settled

    def record(self, write_back: WriteBack, timeout: float) -> Settled:
        settled: Settled = self._run(self.verbs.decide("record", write_back), timeout)
        return settled

    def facts(self, timeout: float) -> dict[str, str | int | float | bool | None]:
        from ._findings import facts

        return self._run(facts(self.verbs), timeout)

    def examine(self, facts: Mapping[str, str | int | float | bool | None] | RotaError, timeout: float) -> Sequence[Finding]:
        from ._findings import examine

        return examine(self.verbs.link.place, facts, timeout)

    def unmade(self) -> str:
        link = self.verbs.link
        return f"{link.root} of {link.place.shown}" if link.absent else ""

    def bare(self, name: str, writes: bool, timeout: float) -> None:
        self._run(self.verbs.bare(name, writes), timeout)

    def sweep(self, limit: int, timeout: float) -> int:
        return self._run(self.verbs.sweep(limit), timeout)

    def close(self) -> None:
        self.verbs.link.close()

    def after_fork(self) -> None:
        self.verbs.line.after_fork()  # first: the parent's locks may be held for ever
        self.verbs.link.after_fork()


class AsyncZookeeperDriver(AsyncDriver):
    """The async face of the same verbs, on the same session."""

    def __init__(self, driver: ZookeeperDriver) -> None:
        self._verbs = driver.verbs

    async def _drive(self, verb: Coroutine[Any, Any, T], timeout: float) -> T:
        try:
            return await drive(verb, timeout)
        except (TimedOut, KazooException) as error:
            raise self._verbs.link.translated(error) from error

    async def claim(self, claim: Claim, timeout: float) -> Answer:
        answer: Answer = await self._drive(self._verbs.decide("claim", claim), timeout)
        return answer

    async def settle(self, settlement: Settlement, timeout: float) -> Settled:
        settled: Settled = await self._drive(self._verbs.decide("settle", settlement), timeout)
        return settled

    async def now(self, timeout: float) -> Now | None:
        return await self._drive(self._verbs.now(), timeout)

    async def watch(self, name: str, owner: str, timeout: float) -> bool:
        return await self._drive(self._verbs.line.watch(name, owner), timeout)

    async def close(self) -> None:
        """The blocking driver owns the session, and ends it."""


__all__ = ["AsyncZookeeperDriver", "ZookeeperDriver"]
