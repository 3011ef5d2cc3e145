# SPDX-License-Identifier: MIT
"""Waiting without polling. The channel of a name is called as its key is.

Whoever ends a grant publishes, in the same script, which owner is gone and how many listen. A waiter subscribes, on a connection that it
has for itself meanwhile, looks once whether the owner is still there, and then only listens. So that not everybody asks at once, each waits
a random part of a time that grows with their number. The claim that follows ends the subscription in the same packet.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from redis.exceptions import RedisError
from rota.errors import Unavailable

from . import _wire
from ._link import Line, Link, monotonic
from ._resp import Reply
from ._url import Address

#: Seconds between two waiters on the average, and the most that anybody is held back.
STEP, MOST = 0.0005, 0.1

#: Seconds that a waiter who gives up waits for the end of its subscription; then it closes the connection.
FAREWELL = 0.05


async def watch(
    link: Link, address: Address, channel: bytes, owner: str, deadline: float, sharded: bool, is_there: Callable[[], Awaitable[bool]]
) -> bool:
    """Wait until ``owner`` is gone; return False at the deadline. ``is_there`` looks whether it still holds the name."""
    s = "S" if sharded else ""
    line = await link.take(address, deadline)
    link.listening.add(line)
    confirmed: list[Reply] = []
    try:
        if link.closed:  # meanwhile, so that it did not find this line
            raise Unavailable("the client is closed")
        await line.talk(line.first + _wire.command(f"{s}SUBSCRIBE", channel), 1, deadline, confirmed)
        if isinstance(confirmed[0], Exception):  # an old cluster, no right to the channel, the slot of another server: claims will tell
            raise Unavailable(f"redis can't wake waiters: {confirmed[0]}")
        woken = not await is_there() or await _hear(line, owner, deadline)
        line.first, line.skips = _wire.command(f"{s}UNSUBSCRIBE", channel), True
        if not woken:
            await line.talk(line.first, 0, monotonic() + FAREWELL, [])
            line.first = b""
    except BaseException as error:
        line.close()
        if isinstance(error, (RedisError, OSError)):
            raise _wire.lost(error, sent=False) if not link.closed else Unavailable("the client is closed") from error
        raise
    finally:
        link.listening.discard(line)
    link.give(address, line)
    return woken


async def _hear(line: Line, owner: str, deadline: float) -> bool:
    while (news := await line.hear(deadline)) is not None:
        kind, _, payload = news
        if kind.endswith(b"unsubscribe"):
            raise Unavailable("redis ended the subscription: the slot has moved to another server")
        gone, _, listeners = payload.decode().partition(" ")
        if gone == owner:
            held_back = min(MOST, random.random() * STEP * (int(listeners) - 1), deadline - monotonic())
            if held_back > 0:
                await line.sleep(held_back)
            return True
    return False
