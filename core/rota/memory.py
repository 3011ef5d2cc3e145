# SPDX-License-Identifier: MIT
"""``memory://`` and ``memory://NAME``: one process only. The reference model of the contract, with a clock that tests can set.

Clients of one NAME share a store; without a name each has its own. Nothing outlives the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from . import rules
from ._clock import wall_clock
from .backend import (
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
from .capabilities import Capabilities
from .errors import ConfigurationError, Unavailable
from .url import Url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Event


class MemoryStore:
    """The records of one store.

    Attributes:
        clock: The store's clock: a function that returns microseconds since the epoch. Tests set it.
        records: By name.
    """

    def __init__(self, clock: Callable[[], int] = wall_clock) -> None:
        self.clock = clock
        self.records: dict[str, Record] = {}
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.waiting = 0  # how many are in `watch`: notifying nobody takes a third of a claim's time
        self.watchers: set[tuple[AbstractEventLoop, Event]] = set()

    def put(self, record: Record | None) -> None:
        """Write a record; call it with the lock held."""
        if record is not None:
            self.records[record.name] = record
            self.wake()

    def wake(self) -> None:
        """Let every watcher look again; call it with the lock held."""
        if self.waiting:
            self.changed.notify_all()
        for loop, event in list(self.watchers) if self.watchers else ():
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                self.watchers.discard((loop, event))  # its loop is closed

    def after_fork(self) -> None:
        """The child's copy is a store of its own; whoever held the lock is not there."""
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.waiting = 0
        self.watchers.clear()


_stores: dict[str, MemoryStore] = {}


class MemoryDriver(Driver):
    """Blocking verbs; none ever waits but `watch`."""

    capabilities = Capabilities(
        verbs=frozenset({"watch", "override", "record", "facts", "sweep"}),
        min_ttl=1_000,
        waiting="watch",
        scope="process",
        durability="process",
        native_async=True,
    )

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self._closed = False

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the client is closed")

    def claim(self, claim: Claim, timeout: float) -> Answer:
        store = self.store
        with store.lock:
            if self._closed:
                raise Unavailable("the client is closed")
            answer, changed = rules.claim(store.records.get(claim.name), claim, store.clock())
            if changed is not None:
                store.put(changed)
            return answer

    def renew(self, renewals: Sequence[Renewal], timeout: float) -> Renewed:
        store = self.store
        with store.lock:
            if self._closed:
                raise Unavailable("the client is closed")
            now = store.clock()
            held = []
            for renewal in renewals:
                renewed = rules.renew(store.records.get(renewal.name), renewal, now)
                if renewed is not None:
                    store.records[renewal.name] = renewed
                held.append(renewed is not None)
            return Renewed(held, (now, now))

    def settle(self, settlement: Settlement, timeout: float) -> Settled:
        store = self.store
        with store.lock:
            if self._closed:
                raise Unavailable("the client is closed")
            settled, changed = rules.settle(store.records.get(settlement.name), settlement, store.clock())
            if changed is not None:
                store.put(changed)
            return settled

    def read(self, name: str, timeout: float) -> tuple[Record | None, Now | None]:
        with self.store.changed:
            self._check_open()
            now = self.store.clock()
            return self.store.records.get(name), (now, now)

    def list(self, prefix: str, timeout: float, *, after: str = "", limit: int = 1000) -> list[Record]:
        with self.store.changed:
            self._check_open()
            names = sorted((name for name in self.store.records if name.startswith(prefix)), key=str.encode)
            return [self.store.records[name] for name in names if name.encode() > after.encode()][:limit]

    def forget(self, name: str, timeout: float) -> bool:
        with self.store.changed:
            self._check_open()
            tombstone = rules.forget(self.store.records.get(name), self.store.clock())
            self.store.put(tombstone)
            return tombstone is not None

    def now(self, timeout: float) -> Now | None:
        self._check_open()
        now = self.store.clock()
        return now, now

    def watch(self, name: str, owner: str, timeout: float) -> bool:
        store = self.store
        with store.changed:
            store.waiting += 1
            try:
                return store.changed.wait_for(lambda: not self._owns(name, owner), timeout)
            finally:
                store.waiting -= 1

    def _owns(self, name: str, owner: str) -> bool:
        record = self.store.records.get(name)
        return record is not None and record.owner == owner and not self._closed

    def override(self, override: Override, timeout: float) -> Settled:
        with self.store.changed:
            self._check_open()
            settled, changed = rules.override(self.store.records.get(override.name), override, self.store.clock())
            self.store.put(changed)
            return settled

    def record(self, write_back: WriteBack, timeout: float) -> Settled:
        with self.store.changed:
            self._check_open()
            settled, changed = rules.write_back(self.store.records.get(write_back.name), write_back, self.store.clock())
            self.store.put(changed)
            return settled

    def facts(self, timeout: float) -> dict[str, str | int | float | bool | None]:
        return {"version": "embedded", "records": len(self.store.records), "durable": False}

    def sweep(self, limit: int, timeout: float) -> int:
        with self.store.changed:
            self._check_open()
            now = self.store.clock()
            names = [name for name, record in self.store.records.items() if rules.may_remove(record, now)][:limit]
            for name in names:
                del self.store.records[name]
            return len(names)

    def close(self) -> None:
        self._closed = True
        with self.store.changed:
            self.store.wake()

    def after_fork(self) -> None:
        self.store.after_fork()


class AsyncMemoryDriver(AsyncDriver):
    """The same verbs without a thread: none of them waits, so none yields to the loop but `watch`."""

    def __init__(self, driver: MemoryDriver) -> None:
        self._driver = driver

    async def claim(self, claim: Claim, timeout: float) -> Answer:
        return self._driver.claim(claim, timeout)

    async def settle(self, settlement: Settlement, timeout: float) -> Settled:
        return self._driver.settle(settlement, timeout)

    async def now(self, timeout: float) -> Now | None:
        return self._driver.now(timeout)

    async def watch(self, name: str, owner: str, timeout: float) -> bool:
        import asyncio

        store, driver = self._driver.store, self._driver
        watcher = (asyncio.get_running_loop(), asyncio.Event())
        with store.changed:
            store.watchers.add(watcher)
        try:
            async with asyncio.timeout(timeout):
                while driver._owns(name, owner):
                    watcher[1].clear()
                    if driver._owns(name, owner):
                        await watcher[1].wait()
            return True
        except TimeoutError:
            return False
        finally:
            with store.changed:
                store.watchers.discard(watcher)

    async def close(self) -> None:
        self._driver.close()


class MemoryBackend(Backend):
    """The backend of ``memory://``."""

    contract = 1

    def driver(self, url: Url) -> MemoryDriver:
        if "/" in url.rest or "@" in url.rest:
            raise ConfigurationError("write memory:// or memory://NAME")
        return MemoryDriver(_stores.setdefault(url.rest, MemoryStore()) if url.rest else MemoryStore())

    def async_driver(self, driver: Driver) -> AsyncMemoryDriver | None:
        return AsyncMemoryDriver(driver) if isinstance(driver, MemoryDriver) else None
