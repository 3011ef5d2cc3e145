# SPDX-License-Identifier: MIT
"""Waiting for a name, woken by the store, without a herd.

Who waits stands in line as an ephemeral child of the record's node. The first in line watches the record, every other one only the one
before it: a release wakes one waiter, not all. A place is left when the wait ends, however it ends (L8).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import NoNodeError
from rota.errors import Unavailable

from ._handler import Flag
from ._link import BROKEN
from ._step import Reply, TimedOut

if TYPE_CHECKING:
    from ._verbs import Verbs

#: A result that comes when a node changes, and how to look at the node then.
Waiting = tuple[Any, Callable[[], Any] | None]
#: What the names of places begin with; a random part, and the number that the store gives it, follow.
PLACE = "w-"
#: How long a place is kept for a claim that follows the wait, seconds.
UNCLAIMED = 0.05


class Line:
    """The places of one client in all lines."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs
        self.after_fork()

    def after_fork(self) -> None:
        """The parent's places are not ours."""
        # By the path that is watched; see `_changing`. There is no lock: the handler of a signal would come while it is held, and wait for
        # an answer from the thread that brings events, which would wait for the lock.
        self._waiting: dict[str, deque[Waiting]] = {}
        self._ended: list[tuple[Any, str, str, Any]] = []  # places of waits that are over, until the claim that follows is decided
        self._claimed = Flag()
        self._lost: list[tuple[str, str]] = []  # places that may still be there since the connection broke: a path, how its name begins

    async def watch(self, name: str, owner: str) -> bool:
        """Wait until the name is free, or until ``owner`` has lost it if that is so at once. Time being over is False."""
        verbs, path = self._verbs, self._verbs.path(name)
        client = await verbs.link.client()
        mark = f"{PLACE}{os.urandom(8).hex()}-"
        arriving, leave = None, self._leave
        try:
            arriving = client.create_async(f"{path}/{mark}", acl=verbs.link.place.acl, ephemeral=True, sequence=True)
            place = (await Reply(arriving)).rpartition("/")[2]
            ahead = True  # of us in line: only while somebody is, the line is looked at again
            while True:
                try:
                    client = await verbs.link.client()
                    if ahead:
                        line = sorted(await self._line(client, path), key=lambda child: child[-10:])
                        if place not in line:
                            raise Unavailable("the place in line was lost with the session")
                        at = line.index(place)
                        ahead = at > 0
                    if ahead:
                        await self._gone(client, f"{path}/{line[at - 1]}")
                    elif await self._is_over(client, name, owner):
                        leave = self._leave_soon
                        return True
                    owner = ""  # it was waited for; now it is for the name to be free
                except BROKEN:
                    ahead = True
        except NoNodeError:
            return True  # nobody holds a name without a record
        except TimedOut:
            return False
        finally:
            if arriving is None:  # the handler of a signal has raised: perhaps when it was on its way
                self._miss(client, path, mark)
            else:
                arriving.rawlink(lambda arrived: leave(client, path, mark, arrived))

    @staticmethod
    async def _line(client: Any, path: str) -> list[str]:
        return [child for child in await Reply(client.get_children_async(path)) if child.startswith(PLACE)]

    async def _is_over(self, client: Any, name: str, owner: str) -> bool:
        """Look whether the name is free, or not held by ``owner`` where that is given; else wait for the next change, and look again."""
        path = self._verbs.path(name)
        with self._changing(client, path, lambda: client.get_async(path)) as changed:
            if await self._is_free(name, owner, client.get_async(path, watch=self._fire)):
                return True
            reading = await Reply(changed)
        # once it was waited for, it is for the name to be free
        return reading is not None and await self._is_free(name, "", reading)

    async def _is_free(self, name: str, owner: str, later: Any) -> bool:
        record = (await self._verbs.seen(name, later)).record  # remembered: the claim that follows is written upon it
        now = self._verbs.interval()
        if record is None or not record.owner or (now is not None and record.expires_at <= now[0]):
            return True
        return owner not in ("", record.owner)

    async def _gone(self, client: Any, place: str) -> None:
        """Wait until a place is left."""
        with self._changing(client, place) as changed:
            if await Reply(client.exists_async(place, watch=self._fire)) is not None:
                await Reply(changed)

    @contextmanager
    def _changing(self, client: Any, path: str, look: Callable[[], Any] | None = None) -> Iterator[Any]:
        """Give a result that comes when a node changes, or when all must look again: then with None.

        With a ``look`` at the node, it is looked at there and then, by the thread that brings the event; the result is what was seen.
        """
        changed = client.handler.async_result()
        waiting = changed, look
        try:
            while True:
                others = self._waiting.setdefault(path, deque())
                others.append(waiting)
                if self._waiting.get(path) is others:  # else they were taken meanwhile, perhaps without this one
                    break
            yield changed
        finally:
            others = self._waiting.get(path, deque())
            with suppress(ValueError):
                others.remove(waiting)
            if not others:
                for other, _ in self._take(path):  # it came meanwhile: as when all must look again
                    other.set()

    def _take(self, path: str) -> Iterator[Waiting]:
        waiting = self._waiting.pop(path, deque())
        while waiting:
            with suppress(IndexError):
                yield waiting.popleft()

    def _fire(self, event: Any) -> None:
        # one bound method for all watches, of which kazoo keeps a set: waits that ended leave nothing in it
        if event.path is None:
            self.wake()
            return
        for changed, look in self._take(event.path):
            if look is None:
                changed.set()
            else:
                look().rawlink(changed.set)

    def wake(self) -> None:
        """Let all look again: the connection broke, and with it the watches."""
        for path in list(self._waiting):
            for changed, _ in self._take(path):
                changed.set()

    # -- leaving

    def _leave_soon(self, client: Any, path: str, mark: str, arrived: Any) -> None:
        """Leave when the claim that follows is decided, which this would hold up: a write before a write."""
        self._ended.append((client, path, mark, arrived))
        client.handler.completion_queue.put(self._leave_ended)  # a thread of kazoo's that has nothing else to do

    def claimed(self) -> None:
        """Say that a claim was decided."""
        if self._ended:
            self._claimed.set()

    def _leave_ended(self) -> None:
        if not self._ended:
            return  # they were left with others
        self._claimed.wait(UNCLAIMED)
        self._claimed.clear()
        while self._ended:
            self._leave(*self._ended.pop())

    def _leave(self, client: Any, path: str, mark: str, arrived: Any) -> None:
        if isinstance(arrived.exception, BROKEN):
            self._miss(client, path, mark)
        elif arrived.successful():
            client.delete_async(arrived.value).rawlink(lambda left: self._left(client, path, mark, left))

    def _left(self, client: Any, path: str, mark: str, left: Any) -> None:
        if isinstance(left.exception, BROKEN):
            self._miss(client, path, mark)

    def _miss(self, client: Any, path: str, mark: str) -> None:
        """Have a place removed that may be there, as soon as there is a connection."""
        self._lost.append((path, mark))
        if client.connected:  # looked at behind that: who has connected meanwhile may have found nothing
            self.clean(client)

    def clean(self, client: Any) -> None:
        """Remove places that a broken connection left behind, if their session is still the same."""
        for _ in range(len(self._lost)):
            with suppress(IndexError):  # another thread took it
                path, mark = self._lost.pop(0)
                client.get_children_async(path).rawlink(lambda found, path=path, mark=mark: self._clean(client, path, mark, found))

    def _clean(self, client: Any, path: str, mark: str, found: Any) -> None:
        if isinstance(found.exception, BROKEN):
            self._miss(client, path, mark)
        for child in found.value or [] if found.successful() else []:
            if child.startswith(mark):
                client.delete_async(f"{path}/{child}").rawlink(lambda left: self._left(client, path, mark, left))
