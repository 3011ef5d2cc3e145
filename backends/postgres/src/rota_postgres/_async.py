# SPDX-License-Identifier: MIT
"""The async face: the same statements on the same connections, waited for by the event loop."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

from psycopg import OperationalError
from psycopg.pq.abc import PGresult
from rota.backend import Answer, AsyncDriver, Claim, Now, Settled, Settlement
from rota.errors import NotSupported, Unavailable

from ._driver import UNLISTEN, PostgresDriver, Row, is_pooled, judge, judge_on, late, listen
from ._link import Late, Link, Pool
from ._sql import Statement
from ._verbs import Verbs, rows


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


async def _answer(link: Link, conversation: Generator[bool, None, PGresult], deadline: float) -> PGresult:
    try:
        writing = next(conversation)
        while True:
            if not await _ready(link.fd, writing, deadline - time.monotonic()):
                raise Late
            writing = next(conversation)
    except StopIteration as stop:
        result: PGresult = stop.value
        return result


async def _take(pool: Pool, deadline: float) -> Link:
    found = pool.take() if deadline > time.monotonic() else None
    if isinstance(found, Link):
        return found
    if found is not None:
        try:
            # shielded: what is cancelled is our waiting, never the promise, whose connection would be lost
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(found)), max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            pool.leave(found)
        except BaseException:
            pool.leave(found)
            raise
    raise Unavailable("no connection in time")


class _Async(Verbs):
    pool: Pool

    async def run(
        self, statement: Statement, values: Mapping[str, Any], deadline: float, *, writes: bool = True, urgent: bool = False
    ) -> Row:
        while True:
            link = await _take(self.pool, deadline)
            try:
                result = await _answer(link, link.ask(statement, values), deadline)
            except Late:
                self.pool.drop(link)
                raise late(writes) from None
            except OperationalError as error:
                self.pool.drop(link)
                raise late(writes, f"({str(error).strip()})") from error
            except BaseException:  # cancelled: the answer that is still to come is nobody's
                self.pool.drop(link)
                raise
            done, row = judge(self.pool, link, self, result, writes)
            if done:
                return row
            await self.sleep(random.uniform(0.0, 0.005))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class AsyncPostgresDriver(AsyncDriver):
    """The async twin of a `PostgresDriver`, whose connections it shares."""

    def __init__(self, driver: PostgresDriver) -> None:
        self._driver = driver
        self._verbs = _Async(driver.statements, driver._missing, driver.known)
        self._verbs.pool = driver.pool
        self._listening: Link | None = None
        self._lock: asyncio.Lock | None = None
        self._watchers: dict[str, set[asyncio.Event]] = {}

    async def claim(self, claim: Claim, timeout: float) -> Answer:
        return await self._verbs.claim(claim, timeout)

    async def settle(self, settlement: Settlement, timeout: float) -> Settled:
        return await self._verbs.settle(settlement, timeout)

    async def now(self, timeout: float) -> Now | None:
        return await self._verbs.now(timeout)

    async def watch(self, name: str, owner: str, timeout: float) -> bool:
        driver = self._driver
        if "watch" not in driver.capabilities.verbs:
            raise NotSupported("listen=off: waiters poll")
        deadline = time.monotonic() + timeout
        event = asyncio.Event()
        self._watchers.setdefault(name, set()).add(event)
        try:
            while not driver.pooled:
                event.clear()
                try:
                    if not await self._listen(deadline):
                        break
                    if not await self._verbs.is_held(name, owner, max(deadline, time.monotonic() + 0.05)):
                        return True
                    link = self._listening
                    async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                        await event.wait()
                    if self._listening is link:  # it was told: the grant that the note names has ended
                        return True
                except TimeoutError:
                    return False
        finally:
            self._watchers[name].discard(event)
            if not self._watchers[name]:
                del self._watchers[name]
            if not self._watchers:
                await self._unlisten()
        return await self._verbs.poll(name, owner, deadline)

    async def _listen(self, deadline: float) -> bool:
        """Listen, if nobody does yet; return False where a pooler stands in the way."""
        self._lock = self._lock or asyncio.Lock()
        pool, verbs = self._driver.listen_pool, self._verbs
        async with asyncio.timeout(max(0.0, deadline - time.monotonic())), self._lock:
            if self._listening is not None:
                return True
            link = await _take(pool, deadline)
            try:
                row = rows(await _answer(link, link.ask(verbs.statements.pid, {}), deadline))
                if row is None or is_pooled(link, row):
                    self._driver.pooled = True
                    pool.give(link)
                    return False
                judge_on(await _answer(link, link.ask(listen(verbs.channel), {}), deadline), link, pool, verbs)
            except (Late, OperationalError) as error:
                pool.drop(link)
                raise late(False) from error
            except BaseException:
                pool.drop(link)
                raise
            self._listening = link
            asyncio.get_running_loop().add_reader(link.fd, self._hear)
            return True

    def _hear(self) -> None:
        link = self._listening
        if link is None:
            return
        try:
            names = link.notified()
        except OperationalError:  # gone: everybody looks again, and listens anew
            self._stop_hearing(self._driver.listen_pool.drop)
            names = list(self._watchers)
        for name in names:
            for event in self._watchers.get(name, ()):
                event.set()

    def _stop_hearing(self, then: Callable[[Link], object]) -> None:
        link, self._listening = self._listening, None
        if link is not None:
            asyncio.get_running_loop().remove_reader(link.fd)
            then(link)

    async def _unlisten(self) -> None:
        """Nobody waits any more."""
        link = self._listening
        if link is None:
            return
        self._stop_hearing(lambda link: None)
        try:
            await _answer(link, link.ask(UNLISTEN, {}), time.monotonic() + 0.5)
            link.notified()
        except (Late, OperationalError):
            self._driver.listen_pool.drop(link)
        except BaseException:
            self._driver.listen_pool.drop(link)
            raise
        else:
            self._driver.listen_pool.give(link)

    async def close(self) -> None:
        self._stop_hearing(self._driver.listen_pool.drop)
