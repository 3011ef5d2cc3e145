# SPDX-License-Identifier: MIT
"""The async face: the same statements on the same connections, waited for by the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Coroutine
from typing import Any

from psycopg import OperationalError
from psycopg.pq.abc import PGresult
from rota.backend import Answer, AsyncDriver, Claim, Now, Settled, Settlement
from rota.errors import NotSupported, Unavailable

from ._driver import PostgresDriver
from ._link import Late, Link, Pool, Promise
from ._verbs import SOON, Verbs


async def _ready(fd: int, writing: bool, seconds: float) -> bool:
    loop = asyncio.get_running_loop()
    come: asyncio.Future[bool] = loop.create_future()

    def tell(ready: bool) -> None:
        if not come.done():
            come.set_result(ready)

    timer = loop.call_later(max(0.0, seconds), tell, False)
    loop.add_reader(fd, tell, True)
    if writing:
        loop.add_writer(fd, tell, True)
    try:
        return await come
    finally:
        timer.cancel()
        loop.remove_reader(fd)
        if writing:
            loop.remove_writer(fd)


class _Async(Verbs):
    suspends = True

    async def come(self, pool: Pool, promise: Promise, deadline: float) -> Link:
        loop = asyncio.get_running_loop()
        has_come = asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(has_come.set)

        promise.tell = tell
        try:
            if not promise.is_there():  # it came before there was somebody to tell
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await has_come.wait()
            return promise.result(0.0)
        except TimeoutError:
            pool.leave(promise)
            raise Unavailable("no connection in time") from None
        except BaseException:
            pool.leave(promise)
            raise

    async def answer(self, link: Link, deadline: float) -> PGresult:
        while True:
            if not await _ready(link.fd, link.writing, deadline - time.monotonic()):
                raise Late
            result = link.answer()
            if result is not None:
                return result

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class AsyncPostgresDriver(AsyncDriver):
    """The async twin of a `PostgresDriver`, whose connections it shares."""

    def __init__(self, driver: PostgresDriver) -> None:
        self._driver = driver
        self._verbs = _Async(driver.verbs.statements, driver.pool, driver.verbs.prepared_by)
        self.after_fork()

    def after_fork(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None  # whose waiters listen; those of others meanwhile look for themselves
        self._taking = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._listening: Link | None = None
        self._lock: asyncio.Lock | None = None
        self._watchers: dict[str, set[asyncio.Event]] = {}

    def claim(self, claim: Claim, timeout: float) -> Coroutine[Any, Any, Answer]:
        return self._verbs.claim(claim, timeout)

    def settle(self, settlement: Settlement, timeout: float) -> Coroutine[Any, Any, Settled]:
        return self._verbs.settle(settlement, timeout)

    async def now(self, timeout: float) -> Now | None:
        return await self._verbs.now(timeout)

    async def watch(self, name: str, owner: str, timeout: float) -> bool:
        driver = self._driver
        if "watch" not in driver.capabilities.verbs:
            raise NotSupported("listen=off: waiters poll")
        deadline = time.monotonic() + timeout
        event, loop = asyncio.Event(), asyncio.get_running_loop()
        with self._taking:
            is_ours = self._is_for(loop)
            watchers = self._watchers
            if is_ours:
                watchers.setdefault(name, set()).add(event)
        if not is_ours:
            return await self._verbs.poll(name, owner, deadline)
        try:
            while (link := await self._listens(deadline)) is not None:
                event.clear()
                try:
                    if not await self._verbs.is_held(name, owner, max(deadline - time.monotonic(), 0.05)):
                        return True
                    async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                        await event.wait()
                    if self._listening is link:  # it was told: the grant that the note names has ended
                        return True
                except TimeoutError:
                    return False
        finally:
            with self._taking:
                watchers[name].discard(event)
                if not watchers[name]:
                    del watchers[name]
                last = self._stop_hearing() if not watchers and watchers is self._watchers else None
            if last is not None:
                await self._verbs.unlisten(last, driver.listen_pool)
        return await self._verbs.poll(name, owner, deadline)

    def _is_for(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the waiters of a loop may listen: nobody does in another one, which alone can hear, and tell its own."""
        if self._loop is not loop:
            if self._loop is not None and self._watchers and not self._loop.is_closed():
                return False
            link, self._loop = self._listening, loop
            self._forget()
            if link is not None:  # of a loop that was closed beneath its waiters
                self._driver.listen_pool.drop(link)
        return True

    async def _listens(self, deadline: float) -> Link | None:
        """Listen, if nobody does yet; return on which connection, or None if that isn't to be had: the waiter has to look for itself."""
        self._lock = self._lock or asyncio.Lock()
        soon = min(deadline, time.monotonic() + SOON)
        with contextlib.suppress(TimeoutError, Unavailable):
            async with asyncio.timeout(max(0.0, soon - time.monotonic())), self._lock:
                if self._listening is None and not self._driver.pooled:
                    self._listening = await self._verbs.listen(self._driver.listen_pool, soon)
                    self._driver.pooled = self._listening is None
                    if self._listening is not None:
                        asyncio.get_running_loop().add_reader(self._listening.fd, self._hear)
        return self._listening

    def _hear(self) -> None:
        names = list(self._watchers)
        try:
            if self._listening is not None:
                names = self._listening.notified()
        except OperationalError:  # gone: everybody looks again, and listens anew
            link = self._stop_hearing()
            if link is not None:
                self._driver.listen_pool.drop(link)
        for name in names:
            for event in self._watchers.get(name, ()):
                event.set()

    def _stop_hearing(self) -> Link | None:
        link, self._listening = self._listening, None
        if link is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                asyncio.get_running_loop().remove_reader(link.fd)
        return link

    async def close(self) -> None:
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            try:
                self._loop.call_soon_threadsafe(self._end)
                return
            except RuntimeError:  # the loop is closed: nobody waits in it, and nobody can be told there
                self._watchers = {}
        self._end()

    def _end(self) -> None:
        link = self._stop_hearing()
        if link is not None:
            self._driver.listen_pool.drop(link)
        for events in self._watchers.values():  # they would listen anew, and are told that it is closed
            for event in events:
                event.set()
