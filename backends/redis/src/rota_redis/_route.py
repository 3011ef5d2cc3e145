# SPDX-License-Identifier: MIT
"""Which server a key belongs to: the only one, the primary that sentinels name, or the node that owns its slot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from redis.crc import key_slot
from rota.errors import ConfigurationError, OutcomeUnknown, Unavailable

from ._link import Link, monotonic
from ._resp import Reply
from ._url import Address, Settings
from ._wire import code_of, command, translated, understood

#: How often a cluster may point elsewhere within one call.
REDIRECTIONS = 5

_ASKING = command("ASKING")
_SLOTS = command("CLUSTER", "SLOTS")


class Route:
    """One server, or whatever stands in front of one. Sends commands to where they belong; an error in an answer is returned."""

    def __init__(self, settings: Settings, link: Link) -> None:
        self._addresses = list(settings.addresses)
        self._link = link

    async def call(self, key: bytes, packed: bytes, count: int, deadline: float, *, enough: int = 0, waits: bool = False) -> list[Reply]:
        """Send ``packed``, ``count`` commands about ``key``, and return the replies; see `Link.exchange`."""
        address = self._addresses[0]
        replies = await self._link.exchange(address, packed, count, deadline, enough=enough, waits=waits)
        if isinstance(replies[0], Exception) and code_of(replies[0]) in ("READONLY", "MASTERDOWN"):
            # behind a name or a proxy another server may be the primary by now: connect anew next time
            self._link.drop(address)
        return replies

    async def where(self, key: bytes, deadline: float) -> Address:
        """Return the server that ``key`` belongs to."""
        return self._addresses[0]

    async def all(self, deadline: float) -> list[Address]:
        """Return every server that takes writes."""
        return [await self.where(b"", deadline)]

    def slots(self, keys: Sequence[bytes]) -> list[list[int]]:
        """Return the indices of the keys that one script may take together."""
        return [list(range(len(keys)))]

    def distrust(self) -> None:
        """A server failed: learn anew who is the primary, or has which slots."""

    async def _ask(self, servers: Sequence[Address], question: bytes, deadline: float, sentinel: bool) -> tuple[Reply, Address]:
        """Ask one server after the other until one knows; None if all answer and none does.

        Each has a share of the time, so that one that hangs leaves some for the others.
        """
        problem: Exception | None = None
        for index, server in enumerate(servers):
            share = monotonic() + (deadline - monotonic()) / (len(servers) - index + 1)
            try:
                (reply,) = await self._link.exchange(server, question, 1, share, sentinel=sentinel)
                if isinstance(reply, Exception):
                    raise translated(reply)
            except Unavailable as error:
                problem = error
                continue
            if reply:
                return reply, server
        if problem is None:
            return None, servers[0]
        raise Unavailable(f"no {'sentinel names the primary' if sentinel else 'node of the cluster can be asked'}: {problem}") from problem


class Sentinel(Route):
    """The primary that the sentinels name; asked again after any failure, so that a failover needs no restart."""

    def __init__(self, settings: Settings, link: Link) -> None:
        super().__init__(settings, link)
        self._service = settings.service
        self._primary: Address | None = None

    async def call(self, key: bytes, packed: bytes, count: int, deadline: float, *, enough: int = 0, waits: bool = False) -> list[Reply]:
        known = self._primary
        address = await self.where(key, deadline)
        try:
            replies = await self._link.exchange(address, packed, count, deadline, enough=enough, waits=waits)
        except Unavailable as error:
            self._primary = None
            if known is None or isinstance(error, OutcomeUnknown):
                raise
        else:
            if not (isinstance(replies[0], Exception) and code_of(replies[0]) in ("READONLY", "MASTERDOWN", "LOADING")):
                return replies
            self._primary = None
            self._link.drop(address)
            if known is None:
                return replies
        # nothing was applied by what was the primary: if there is another one by now, ask that
        return await self.call(key, packed, count, deadline, enough=enough, waits=waits)

    def distrust(self) -> None:
        self._primary = None

    async def where(self, key: bytes, deadline: float) -> Address:
        if self._primary is None:
            question = command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
            found, answered = await self._ask(list(self._addresses), question, deadline, sentinel=True)
            if found is None:
                raise ConfigurationError(f"no sentinel knows the service {self._service!r}")
            self._addresses.sort(key=lambda other: other != answered)  # the next time first the one that answered
            self._primary = _named(found)
        return self._primary


class Cluster(Route):
    """The nodes of a cluster, by slot."""

    def __init__(self, settings: Settings, link: Link) -> None:
        super().__init__(settings, link)
        self._owners: dict[int, Address] = {}  # by slot
        self._nodes: list[Address] = []
        self._stale = True

    async def call(self, key: bytes, packed: bytes, count: int, deadline: float, *, enough: int = 0, waits: bool = False) -> list[Reply]:
        learnt = self._stale
        address = await self.where(key, deadline)
        asking = 0
        for _ in range(REDIRECTIONS):
            try:
                packed_too = _ASKING * asking + packed
                at_least = enough and asking + enough
                replies = await self._link.exchange(address, packed_too, asking + count, deadline, enough=at_least, waits=waits)
            except Unavailable as error:
                self._stale = True
                if learnt or isinstance(error, OutcomeUnknown):
                    raise
                # nothing was applied by whom the slot belonged to: if it belongs to another by now, ask that
                learnt, asking, address = True, 0, await self.where(key, deadline)
                continue
            del replies[:asking]
            code = code_of(replies[0]) if isinstance(replies[0], Exception) else ""
            if code not in ("MOVED", "ASK"):
                if code in ("READONLY", "CLUSTERDOWN", "MASTERDOWN", "LOADING"):
                    self._stale = True
                return replies
            address = _pointed_at(replies[0], address)
            asking = int(code == "ASK")
            if code == "MOVED":
                self._owners[key_slot(key)] = address
                self._stale = True
        raise Unavailable("the nodes of the cluster point at each other")

    async def where(self, key: bytes, deadline: float) -> Address:
        if self._stale:
            await self._learn(deadline)
        address = self._owners.get(key_slot(key))
        if address is None:
            self._stale = True
            raise Unavailable("no node of the cluster serves this slot")
        return address

    async def all(self, deadline: float) -> list[Address]:
        await self._learn(deadline)
        return list(dict.fromkeys(self._owners.values()))

    def slots(self, keys: Sequence[bytes]) -> list[list[int]]:
        groups: dict[int, list[int]] = {}
        for index, key in enumerate(keys):
            groups.setdefault(key_slot(key), []).append(index)
        return list(groups.values())

    def distrust(self) -> None:
        self._stale = True

    async def _learn(self, deadline: float) -> None:
        reply, asked = await self._ask(list(dict.fromkeys([*self._nodes, *self._addresses])), _SLOTS, deadline, sentinel=False)
        self._owners, self._nodes = _shared_out(reply, asked)
        self._stale = False


@understood
def _named(reply: Sequence[bytes]) -> Address:
    """Return the primary that a sentinel names."""
    host, port = reply
    return host.decode(), int(port)


@understood
def _shared_out(reply: Sequence[Sequence[Any]], asked: Address) -> tuple[dict[int, Address], list[Address]]:
    """Return who has which slot, and all nodes."""
    owners: dict[int, Address] = {}
    nodes: dict[Address, None] = {asked: None}
    for first, last, *serving in reply:
        addresses = [_node(entry, asked) for entry in serving]
        nodes.update(dict.fromkeys(addresses))
        owners.update(dict.fromkeys(range(first, last + 1), addresses[0]))
    return owners, list(nodes)


def _node(entry: Sequence[bytes | int | None], asked: Address) -> Address:
    host = entry[0]
    # a node that knows no name of its own means the one by which it was asked
    return (host.decode() if isinstance(host, bytes) and host not in (b"", b"?") else str(asked[0])), int(entry[1] or 0)


def _pointed_at(error: Exception, asked: Address) -> Address:
    host, _, port = str(error).split(" ")[-1].rpartition(":")
    return host or str(asked[0]), int(port)


def route(settings: Settings, link: Link) -> Route:
    """Return the route for some settings."""
    return {"single": Route, "sentinel": Sentinel, "cluster": Cluster}[settings.kind](settings, link)


def by_address(addresses: Iterable[Address]) -> dict[Address, list[int]]:
    """Return the indices of each address."""
    found: dict[Address, list[int]] = {}
    for index, address in enumerate(addresses):
        found.setdefault(address, []).append(index)
    return found
