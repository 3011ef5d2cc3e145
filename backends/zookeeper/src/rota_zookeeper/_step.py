# SPDX-License-Identifier: MIT
"""Verbs are written once, as coroutines that await nothing but kazoo's results; here both faces carry them on, within a time limit.

kazoo itself has no limit for a call: a server that hangs is only noticed when the session's time is over.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class TimedOut(Exception):
    """Raised in a verb at what it waits for when its time is over."""


class Reply:
    """Awaiting it gives what a call of kazoo's gives, or raises what that raises."""

    __slots__ = ("_result",)

    def __init__(self, result: Any) -> None:
        self._result = result

    def __await__(self) -> Generator[Any, None, Any]:
        if not self._result.ready():
            yield self._result
        return self._result.get(block=False)


def run(verb: Coroutine[Any, Any, T], timeout: float) -> T:
    """Run a verb on this thread."""
    deadline = time.monotonic() + timeout
    late = False
    try:
        while True:
            pending = verb.throw(TimedOut()) if late else verb.send(None)
            late = not pending.wait(max(0.0, deadline - time.monotonic()))
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        verb.close()  # an interrupt leaves it where it waits


async def drive(verb: Coroutine[Any, Any, T], timeout: float) -> T:
    """Run a verb on the event loop. When it is cancelled it ends where it waits: what was sent is not taken back."""
    import asyncio  # twice the start of Python, which who has no event loop need not pay

    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    late = False
    try:
        while True:
            pending = verb.throw(TimedOut()) if late else verb.send(None)
            arrived = loop.create_future()
            timer = loop.call_at(deadline, _resolve, arrived)
            pending.rawlink(lambda _, arrived=arrived: _tell(loop, arrived))
            try:
                await arrived
            finally:
                timer.cancel()
            late = not pending.ready()
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        verb.close()


def _tell(loop: asyncio.AbstractEventLoop, arrived: asyncio.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(_resolve, arrived)


def _resolve(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)
