# SPDX-License-Identifier: MIT
"""How the one engine reaches the store and waits: blocking, by a native async driver, or by a thread behind an event loop.

The engine is written once, as ``async def``, and awaits nothing but these objects. The blocking face steps it without a loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from contextlib import suppress

from .backend import Answer, AsyncDriver, Claim, Driver, Now, Record, Settled, Settlement
from .errors import Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol, TypeVar

    T = TypeVar("T")
else:
    Protocol = object

#: Threads that carry the calls of a driver without an async twin, per client.
THREADS = 16
#: The longest that such a thread watches before it looks whether its caller is still there, seconds.
WATCH_SLICE = 0.25


class Io(Protocol):
    """What the engine calls; see `Driver` for the verbs.

    Attributes:
        suspends: Whether the verbs return awaitables; else they return their results. A coroutine around each verb of a blocking driver
            would cost a fifth of what the engine adds to it.
    """

    suspends: bool

    @property
    def read(self) -> Any:
        """The verb; None where an async driver has none."""

    def claim(self, claim: Claim, timeout: float, /) -> Any: ...
    def settle(self, settlement: Settlement, timeout: float, /) -> Any: ...
    def now(self, timeout: float, /) -> Any: ...
    def watch(self, name: str, owner: str, timeout: float, /) -> Any: ...
    def claim_when_free(self, claim: Claim, owner: str, wait: float, timeout: float, /) -> Any: ...
    def sleep(self, seconds: float, /) -> Any: ...
    def after_fork(self) -> None: ...


def step(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the engine over `BlockingIo`: it never suspends, so one step ends it."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise RuntimeError("the engine awaited something other than its I/O")


def step_out(coroutine: Coroutine[Any, Any, None]) -> None:
    """As `step`, of a coroutine that returns nothing: a loop sees its end without an exception, in half the time."""
    for _ in coroutine.__await__():
        raise RuntimeError("the engine awaited something other than its I/O")


class BlockingIo:
    """The blocking driver's own verbs."""

    def __init__(self, driver: Driver) -> None:
        self.suspends = False
        self.claim = driver.claim
        self.settle = driver.settle
        self.read = driver.read
        self.now = driver.now
        self.watch = driver.watch
        self.claim_when_free = driver.claim_when_free
        self.sleep = time.sleep

    def after_fork(self) -> None:
        """The driver forgets its connections itself."""


class NativeIo:
    """An async driver: its verbs are awaited as they are."""

    read = None

    def __init__(self, driver: AsyncDriver) -> None:
        self.suspends = True
        self.claim = driver.claim
        self.settle = driver.settle
        self.now = driver.now
        self.watch = driver.watch
        self.claim_when_free = driver.claim_when_free
        self.after_fork = driver.after_fork

    async def sleep(self, seconds: float) -> None:
        import asyncio

        await asyncio.sleep(seconds)


class ThreadedIo:
    """A blocking driver behind an event loop.

    A caller that is cancelled leaves at once, its thread's call runs on to its timeout. The engine hands every cancelled claim to the
    keeper, which settles the owner id until no claim of it can be applied any more: a grant that arrives late is released.
    """

    suspends = True

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.after_fork()

    def after_fork(self) -> None:
        """Start with threads of our own: those of the parent are not there (L10)."""
        from concurrent.futures import ThreadPoolExecutor

        # Calls that come one at a time go by the same thread, whose memory is warm: taken from a pool in turn, sixteen take a tenth longer.
        self._first = ThreadPoolExecutor(1, thread_name_prefix="rota-io")
        self._others = ThreadPoolExecutor(THREADS - 1, thread_name_prefix="rota-io")
        self._first_is_free = True

    async def _call(self, verb: Callable[..., T], *arguments: Any, timeout: float) -> T:
        import asyncio

        loop = asyncio.get_running_loop()
        told: asyncio.Future[T] = loop.create_future()  # by itself: the executor's future, wrapped, takes the loop longer
        deadline = time.monotonic() + timeout
        is_first = self._first_is_free

        def call() -> None:
            try:
                left = 0.0 if told.cancelled() else deadline - time.monotonic()
                if left <= 0:
                    raise Unavailable(f"no thread was free within {timeout:g}s")
                result = verb(*arguments, left)
            except BaseException as error:
                tell(told.set_exception, error)
            else:
                tell(told.set_result, result)

        def tell(how: Callable[[Any], None], what: object) -> None:
            if is_first:
                self._first_is_free = True  # first: whoever is told may call again at once
            with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                loop.call_soon_threadsafe(lambda: None if told.done() else how(what))

        if is_first:
            self._first_is_free = False
        try:
            (self._first if is_first else self._others).submit(call)
        except RuntimeError as error:
            if "shutdown" in str(error):
                raise Unavailable("the client is closed") from error
            raise
        return await told

    async def claim(self, claim: Claim, timeout: float) -> Answer:
        return await self._call(self._driver.claim, claim, timeout=timeout)

    async def settle(self, settlement: Settlement, timeout: float) -> Settled:
        return await self._call(self._driver.settle, settlement, timeout=timeout)

    async def read(self, name: str, timeout: float) -> tuple[Record | None, Now | None]:
        return await self._call(self._driver.read, name, timeout=timeout)

    async def now(self, timeout: float) -> Now | None:
        return await self._call(self._driver.now, timeout=timeout)

    async def watch(self, name: str, owner: str, timeout: float) -> bool:
        # in slices, so that the thread of a caller that is cancelled is soon free again (L8)
        while timeout > WATCH_SLICE:
            if await self._call(self._driver.watch, name, owner, timeout=WATCH_SLICE):
                return True
            timeout -= WATCH_SLICE
        return await self._call(self._driver.watch, name, owner, timeout=timeout)

    async def claim_when_free(self, claim: Claim, owner: str, wait: float, timeout: float) -> Answer:
        # not the driver's own, whose thread would be taken for as long
        await self.watch(claim.name, owner, wait)
        return await self.claim(claim, timeout)

    async def sleep(self, seconds: float) -> None:
        import asyncio

        await asyncio.sleep(seconds)

    def close(self) -> None:
        for pool in (self._first, self._others):
            pool.shutdown(wait=False)  # calls that wait for a thread are told by the driver, which is closed
