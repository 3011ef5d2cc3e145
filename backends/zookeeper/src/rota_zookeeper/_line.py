# SPDX-License-Identifier: MIT
"""Waiting for a name, woken by the store, without a herd.

Who waits stands in line as an ephemeral child of the record's node. The first in line watches the record, every other one only the one
before it: a release wakes one waiter, not all. A place is left when the wait ends, however it ends (L8).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import NoNodeError
from rota.errors import Unavailable

from ._link import BROKEN
from ._step import Reply, TimedOut

if TYPE_CHECKING:
    from ._verbs import Verbs

#: What the names of places begin with; a random part, and the number that the store gives it, follow.
PLACE = "w-"


class Line:
    """The places of one client in all lines."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs
        self.after_fork()

    def after_fork(self) -> None:
        """The parent's places are not ours."""
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Any]] = {}  # by the path that is watched: what is to be set
        self._lost: list[tuple[str, str]] = []  # places that may still be there since the connection broke: a path, how its name begins

    async def watch(self, name: str, owner: str) -> bool:
        """Wait until the name is free, or until ``owner`` has lost it if that is so at once. Time being over is False."""
        verbs, path = self._verbs, self._verbs.path(name)
        client = await verbs.link.client()
        mark = f"{PLACE}{os.urandom(8).hex()}-"
        arriving = client.create_async(f"{path}/{mark}", acl=verbs.link.place.acl, ephemeral=True, sequence=True)
        try:
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
                        await self._change(client, f"{path}/{line[at - 1]}", client.exists_async)
                    elif await self._is_over(client, name, owner):
                        return True
                    owner = ""  # it was waited for; now it is for the name to be free
                except BROKEN:
                    ahead = True
        except NoNodeError:
            return True  # nobody holds a name without a record
        except TimedOut:
            return False
        finally:
            arriving.rawlink(lambda arrived: self._leave(client, path, mark, arrived))

    @staticmethod
    async def _line(client: Any, path: str) -> list[str]:
        return [child for child in await Reply(client.get_children_async(path)) if child.startswith(PLACE)]

    async def _is_over(self, client: Any, name: str, owner: str) -> bool:
        """Look whether the name is free, or not held by ``owner`` where that is given; if it is not, wait for the next change."""

        async def is_over(later: Any) -> bool:
            record = (await self._verbs.seen(name, later)).record  # remembered: the claim that follows is written upon it
            now = self._verbs.interval()
            if record is None or not record.owner or (now is not None and record.expires_at <= now[0]):
                return True
            return owner not in ("", record.owner)

        return await self._change(client, self._verbs.path(name), client.get_async, is_over)

    async def _change(self, client: Any, path: str, look: Any, is_over: Callable[[Any], Awaitable[bool]] | None = None) -> bool:
        """Look at a node, and wait until it changes, unless it is gone or what was seen is enough; return whether it was enough."""
        changed = client.handler.async_result()
        with self._lock:
            self._waiting.setdefault(path, []).append(changed)
        try:
            later = look(path, watch=self._fire)
            if is_over is not None:
                if await is_over(later):
                    return True
            elif await Reply(later) is None:
                return False
            await Reply(changed)
            return False
        finally:
            with self._lock:
                waiting = self._waiting.get(path, [])
                if changed in waiting:
                    waiting.remove(changed)
                if not waiting:
                    self._waiting.pop(path, None)

    def _fire(self, event: Any) -> None:
        # one bound method for all watches, of which kazoo keeps a set: waits that ended leave nothing in it
        if event.path is None:
            self.wake()
            return
        with self._lock:
            waiting = self._waiting.pop(event.path, [])
        for changed in waiting:
            changed.set()

    def wake(self) -> None:
        """Let all look again: the connection broke, and with it the watches."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for changed in [changed for some in waiting.values() for changed in some]:
            changed.set()

    # -- leaving

    def _leave(self, client: Any, path: str, mark: str, arrived: Any) -> None:
        if isinstance(arrived.exception, BROKEN):
            self._lost.append((path, mark))
        elif arrived.successful():
            client.delete_async(arrived.value).rawlink(lambda left: self._left(path, mark, left))

    def _left(self, path: str, mark: str, left: Any) -> None:
        if isinstance(left.exception, BROKEN):
            self._lost.append((path, mark))

    def clean(self, client: Any) -> None:
        """Remove places that a broken connection left behind, if their session is still the same."""
        lost, self._lost = self._lost, []
        for path, mark in lost:
            client.get_children_async(path).rawlink(lambda found, path=path, mark=mark: self._clean(client, path, mark, found))

    def _clean(self, client: Any, path: str, mark: str, found: Any) -> None:
        if isinstance(found.exception, BROKEN):
            self._lost.append((path, mark))
        for child in found.value or [] if found.successful() else []:
            if child.startswith(mark):
                client.delete_async(f"{path}/{child}").rawlink(lambda left: self._left(path, mark, left))
