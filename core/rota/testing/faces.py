# SPDX-License-Identifier: MIT
"""The two faces of rota, so that a test is written once: as a coroutine, which is stepped without a loop or run by asyncio."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from rota.backend import (
    Answer,
    AsyncDriver,
    Backend,
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
from rota.client import connect, connect_async
from rota.duration import MINUTE
from rota.errors import RotaError
from rota.url import Url

from .clock import LocalClock
from .faulty import FaultyDriver, FaultyTwin
from .stopwatch import Stopwatch
from .watched import Overdue, Watch, WatchedDriver, WatchedTwin, in_time

if TYPE_CHECKING:
    from .base import Clauses

BLOCKING, ASYNC = "blocking", "async"
#: The timeout of a verb whose own speed is not what a test is about, seconds.
PATIENCE = 10.0


async def done(value: Any) -> Any:
    """Return what a client's method gives, awaited on the async face."""
    return await value if inspect.isawaitable(value) else value


def stepped(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that awaits only what is done."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()
    raise RuntimeError("on the blocking face a test may only await what does not suspend: use the face's own sleep, until and verbs")


T = TypeVar("T")


class Face:
    """One test's way to the store: the driver's verbs, clients, and waiting.

    Attributes:
        name: ``blocking`` or ``async``.
        driver: The driver under test; on the async face `claim`, `settle`, `now` and `watch` go to its twin, if it has one.
        capabilities: The driver's.
        clock: The clock of its clients, and of the store where that can be set, too.
        began: The store's time when the test began, microseconds; this host's where the store's can't be known.
    """

    def __init__(self, suite: Clauses, name: str) -> None:
        self.name = name
        self.is_async = name == ASYNC
        self._suite = suite
        self.clock = LocalClock() if suite.clock is None else suite.clock
        self._threads = set(threading.enumerate())
        self._watch = Watch()
        self._drivers: list[WatchedDriver] = []
        self.driver = self.another_driver()
        self.capabilities = self.driver.capabilities
        self._twin = self._watched_twin(self.driver) if self.is_async else None
        self._clients: list[Any] = []
        self.began = 0

    # -- running

    def run(self, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a test; afterwards no task and no thread of its clients is left."""
        run = asyncio.run if self.is_async else stepped
        self._in_time(lambda: run(self._to_the_end(test)))

    def probe(self) -> None:
        """Raise if the store can't be read."""
        self._in_time(lambda: self.driver.read(self._suite.fresh(), PATIENCE))

    def _in_time(self, run: Callable[[], object]) -> None:
        try:
            in_time(run, self._watch)
        except Overdue as late:
            # whoever waits for ever may hold what every other test needs
            type(self._suite).stop(f"an earlier call has not returned: {late}")
            raise

    async def _to_the_end(self, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            now = await self.interval()
            self.began = time.time_ns() // 1000 if now is None else now[0]
            await test()
        finally:
            await self._close()
        if self.is_async:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"tasks are left: {left}"
        await self.until(lambda: not self.threads(), what="an end of all threads")

    async def _close(self) -> None:
        self.clock.leap(MINUTE)  # what a client still has to wait for by these clocks is over
        for client in self._clients:
            client.driver.back()
            if self._suite.clock is None:
                client._engine.timeout = 0.1  # it keeps owner ids until no claim of theirs can come any more, which nobody waits for here
            await done(client.close())
        if self._twin is not None:
            await self._twin.close()
        for driver in self._drivers:
            driver.close()

    def threads(self) -> list[threading.Thread]:
        """Return rota's threads that were started since the test began (that of the observers is shared, and stays)."""
        since = set(threading.enumerate()) - self._threads
        return [thread for thread in since if thread.name.startswith("rota-") and not thread.name.startswith("rota-observers")]

    # -- verbs

    async def claim(self, claim: Claim, timeout: float = PATIENCE) -> Answer:
        """As `Driver.claim`."""
        if self._twin is not None:
            return await self._twin.claim(claim, timeout)
        return await self.call(self.driver.claim, claim, timeout)

    async def settle(self, settlement: Settlement, timeout: float = PATIENCE) -> Settled:
        """As `Driver.settle`."""
        if self._twin is not None:
            return await self._twin.settle(settlement, timeout)
        return await self.call(self.driver.settle, settlement, timeout)

    async def interval(self) -> Now | None:
        """As `Driver.now`."""
        if self._twin is not None:
            return await self._twin.now(PATIENCE)
        return await self.call(self.driver.now, PATIENCE)

    async def now(self) -> int:
        """Return the store's time, the lower end; this host's where it can't be known."""
        now = await self.interval()
        return time.time_ns() // 1000 if now is None else now[0]

    async def watch(self, name: str, owner: str, timeout: float) -> bool:
        """As `Driver.watch`."""
        if self._twin is not None:
            return await self._twin.watch(name, owner, timeout)
        return await self.call(self.driver.watch, name, owner, timeout)

    async def claim_when_free(self, claim: Claim, owner: str, wait: float) -> Answer:
        """As `Driver.claim_when_free`."""
        if self._twin is not None:
            return await self._twin.claim_when_free(claim, owner, wait, PATIENCE)
        return await self.call(self.driver.claim_when_free, claim, owner, wait, PATIENCE)

    async def renew(self, *renewals: Renewal) -> Renewed:
        """As `Driver.renew`."""
        return await self.call(self.driver.renew, renewals, PATIENCE)

    async def read(self, name: str) -> Record | None:
        """Return the record of a name."""
        record, _ = await self.call(self.driver.read, name, PATIENCE)
        return record

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[Record]:
        """As `Driver.list`."""
        return await self.call(lambda: self.driver.list(prefix, PATIENCE, after=after, limit=limit))

    async def forget(self, name: str) -> bool:
        """As `Driver.forget`."""
        return await self.call(self.driver.forget, name, PATIENCE)

    async def override(self, override: Override) -> Settled:
        """As `Driver.override`."""
        return await self.call(self.driver.override, override, PATIENCE)

    async def write_back(self, write_back: WriteBack) -> Settled:
        """As `Driver.record`."""
        return await self.call(self.driver.record, write_back, PATIENCE)

    async def facts(self) -> Mapping[str, str | int | float | bool | None]:
        """As `Driver.facts`."""
        return await self.call(self.driver.facts, PATIENCE)

    async def sweep(self, limit: int) -> int:
        """As `Driver.sweep`."""
        return await self.call(self.driver.sweep, limit, PATIENCE)

    async def call(self, verb: Callable[..., T], *arguments: Any) -> T:
        """Call something that blocks: in place, or from a thread beside the loop, as rota does."""
        return await asyncio.to_thread(verb, *arguments) if self.is_async else verb(*arguments)

    # -- clients

    def another_driver(self) -> WatchedDriver:
        """Return one more driver of the same store, as another process has it."""
        self._drivers.append(WatchedDriver(_driver_of(self._suite), self._watch))
        return self._drivers[-1]

    def driver_of_url(self) -> WatchedDriver:
        """Return one more driver as the URL gives it to other processes, its clock the real one; without a URL, the class's own."""
        if not self._suite.url:
            return self.another_driver()
        found, parsed = self._suite._backend()
        self._drivers.append(WatchedDriver(found.driver(parsed), self._watch))
        return self._drivers[-1]

    def _watched_twin(self, driver: WatchedDriver) -> WatchedTwin | None:
        twin = self._suite.async_driver(driver.inner)
        return None if twin is None else WatchedTwin(twin, self._watch)

    def connect(self, **options: Any) -> Any:
        """Return a client of this face, made by `rota.connect` or `rota.connect_async`; its ``driver`` is a `FaultyDriver`."""
        inner = WatchedDriver(_driver_of(self._suite), self._watch)
        wired = _Wired(inner, self._watched_twin(inner))
        options.setdefault("clock", self.clock.local)
        options.setdefault("timeout", PATIENCE)
        client: Any = (connect_async if self.is_async else connect)(wired, **options)
        self._clients.append(client)
        return client

    @asynccontextmanager
    async def enter(self, guard: Any) -> AsyncIterator[Any]:
        """Enter a guard or a grant of either face."""
        if self.is_async:
            async with guard as grant:
                yield grant
        else:
            with guard as grant:
                yield grant

    # -- waiting

    async def sleep(self, seconds: float) -> None:
        """Wait in reality."""
        if self.is_async:
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)  # noqa: ASYNC251 - this face has no loop

    async def until(self, condition: Callable[[], Any], seconds: float = PATIENCE, *, what: str = "") -> Any:
        """Wait until the condition holds, and return its value; fail when it never does. It may be a coroutine function."""
        with Stopwatch() as watch:
            while True:
                over = watch.seconds >= seconds  # looked at first: who stood still here looks once more
                value = condition()
                if isinstance(value, Awaitable):
                    value = await value
                if value:
                    return value
                assert not over, f"not within {seconds:g}s: {what or inspect.getsource(condition).strip()}"
                await self.sleep(0.005)


def _driver_of(suite: Clauses) -> Driver:
    """Return a driver of the class under test; what is wrong with it is said in a line, once."""
    try:
        driver = suite.driver()
    except RotaError:
        raise
    except Exception as error:
        wrong = f"driver() can't be made: {type(error).__name__}: {error}"
        type(suite).stop(wrong)
        raise AssertionError(f"{wrong} (the contract is rota.backend.Driver)") from error
    if not isinstance(driver, Driver):
        type(suite).stop(wrong := f"driver() returned {driver!r}, which is no rota.backend.Driver")
        raise AssertionError(wrong)
    return driver


class _Wired(Backend):
    contract = 1

    def __init__(self, inner: Driver, twin: AsyncDriver | None) -> None:
        self._driver = FaultyDriver(inner)
        self._twin = None if twin is None else FaultyTwin(self._driver, twin)

    def driver(self, url: Url) -> Driver:
        return self._driver

    def async_driver(self, driver: Driver) -> AsyncDriver | None:
        return self._twin
