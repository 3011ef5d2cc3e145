# SPDX-License-Identifier: MIT
"""The verbs of the contract over Redis or Valkey: one script call each, decided by the server's own clock.

`Verbs` says what is asked and what an answer means, once for both faces; it awaits nothing but its link, so the blocking driver steps it
without a loop.
"""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rota.backend import (
    WON,
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
from rota.capabilities import Capabilities
from rota.errors import OutcomeUnknown, RotaError, Unavailable
from rota.url import Url

from . import _facts, _wire
from ._link import AsyncLink, BlockingLink, Link, Maker, monotonic
from ._resp import Reply
from ._route import Route, by_address, route
from ._url import OPTIONS, Address, Settings, settings

if TYPE_CHECKING:
    from rota.finding import Finding

T = TypeVar("T")

#: Keys that one SCAN looks at, and records read in one go.
SCAN, CHUNK = 1000, 500
#: The verbs that end a grant, and wake who waits.
ENDS = ("settle", "override", "forget")
#: How much longer than its wait somebody who waits is known of (milliseconds), and is waited for (seconds).
AFTER, GRACE = 1000, 0.25


def step(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine over a blocking link: it never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise RuntimeError("a blocking link was awaited")


class Verbs:
    """The verbs over one link."""

    def __init__(self, settings: Settings, link: Link) -> None:
        self.settings = settings
        self.link = link
        self.route: Route = route(settings, link)
        self.replicas = settings.wait_replicas
        self.sharded = settings.kind == "cluster"
        self.scripts = _wire.scripts(confirmed=self.replicas > 0)
        self.line_up = _wire.script(_wire.text_of("line_up"), confirmed=True)

    def pack(self, verb: str, keys: Sequence[bytes], arguments: Sequence[bytes]) -> bytes:
        """Pack the call of a script."""
        return _wire.evaluate(self.scripts[verb], keys, arguments)

    async def call(self, verb: str, name: str, *arguments: bytes, deadline: float, wait: float = 0.0, tells: bool = False) -> list[Reply]:
        """Call a script about one name, which may wake who waits for that if it ``tells``; see `send`."""
        key = _wire.key_of(name)
        keys = (key, *_wire.keys_of_waiters(key, self.sharded)) if tells or verb in ENDS else (key,)
        try:
            return await self.send(verb, key, self.pack(verb, keys, arguments), deadline, wait)
        except Unavailable as error:
            if len(keys) == 1 or not _wire.is_split(error):
                raise
        # The waiters' keys are on another node than the record, or nowhere: it counts more that the grant ends. Waiters look by themselves.
        return await self.send(verb, key, self.pack(verb, keys[:1], arguments), deadline, wait)

    async def send(self, verb: str, key: bytes, packed: bytes, deadline: float, wait: float = 0.0) -> list[Reply]:
        """Call a script; where replicas must confirm, WAIT so many seconds on its connection, and return how many did (None: too late)."""
        if wait > 0:
            waiting = _wire.command("WAIT", self.replicas, max(1, int(wait * 1000)))
            replies = [*await self.route.call(key, packed + waiting, 2, deadline, enough=1), None][:2]
        else:
            replies = await self.route.call(key, packed, 1, deadline)
        if isinstance(replies[0], Exception) and _wire.code_of(replies[0]) == "NOSCRIPT":
            # by its text, which loads it: one command, so that a cluster whose slots move is followed to the node that carries it out
            replies = await self.route.call(key, _wire.by_text(packed, self.scripts[verb]), 1, deadline)
        if isinstance(replies[0], Exception):
            raise _wire.translated(replies[0]) from replies[0]
        return replies

    async def claim(self, claim: Claim, timeout: float) -> Answer:
        deadline = monotonic() + timeout
        argument = _wire.claim_argument(claim)
        if not self.replicas:
            return _wire.answer(claim.name, (await self.call("claim", claim.name, argument, deadline=deadline))[0])
        # half of the time is left to give back what the replicas don't confirm
        reply, confirmed = await self.call("claim", claim.name, argument, deadline=deadline, wait=timeout / 2)
        answer = _wire.answer(claim.name, reply)
        if answer.verdict == WON and not self._is_confirmed(confirmed):
            back = Settlement(claim.name, claim.owner, "unused", claim.retention)
            try:
                await self.call("settle", claim.name, _wire.settlement_argument(back), deadline=deadline)
            except Unavailable as error:
                raise OutcomeUnknown(f"{self._unconfirmed(confirmed)}; whether it was given back is unknown") from error
            raise Unavailable(f"{self._unconfirmed(confirmed)}; it was given back")
        return answer

    async def settle(self, settlement: Settlement, timeout: float) -> Settled:
        history = settlement.history
        arguments = [_wire.settlement_argument(settlement)] + ([] if history is None else [history])
        wait = timeout if self.replicas else 0.0  # what was not confirmed by then is not
        replies = await self.call("settle", settlement.name, *arguments, deadline=monotonic() + timeout, wait=wait)
        settled = _wire.settled(settlement.name, replies[0], history)
        if wait and settled.applied and not self._is_confirmed(replies[1]):
            raise OutcomeUnknown(self._unconfirmed(replies[1]))
        return settled

    def _is_confirmed(self, reply: Reply) -> bool:
        return isinstance(reply, int) and reply >= self.replicas

    def _unconfirmed(self, reply: Reply) -> str:
        return f"{reply if isinstance(reply, int) else 0} of {self.replicas} replicas confirmed in time"

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> Renewed:
        """One call per slot, all of a server's at once; a server that fails leaves the others' answers as they are."""
        if not renewals:
            return Renewed([], None)
        deadline = monotonic() + timeout
        keys = [_wire.key_of(renewal.name) for renewal in renewals]
        arguments = [_wire.renewal_argument(renewal) for renewal in renewals]
        held: list[bool | None] = [None] * len(keys)
        times: list[int] = []
        problem: Exception | None = None

        def packed(group: list[int]) -> bytes:
            return self.pack("renew", [keys[index] for index in group], [arguments[index] for index in group])

        def take(group: list[int], reply: bytes) -> None:
            time, answers = _wire.renewed(len(group), reply)
            times.append(time)
            for index, answer in zip(group, answers, strict=True):
                held[index] = answer

        groups = self.route.slots(keys)
        one_by_one = list(groups)
        if len(groups) > 1:
            one_by_one = []
            servers = by_address([await self.route.where(keys[group[0]], deadline) for group in groups])
            for place, (address, indices) in enumerate(servers.items()):
                theirs = [groups[index] for index in indices]
                # a share of the time each: one server that hangs leaves the leases of the others alone
                share = monotonic() + (deadline - monotonic()) / (len(servers) - place)
                try:
                    replies = await self.link.exchange(address, b"".join(map(packed, theirs)), len(theirs), share)
                except Unavailable as error:
                    problem = error
                    self.route.distrust()
                    continue
                for group, reply in zip(theirs, replies, strict=True):
                    if isinstance(reply, Exception):
                        one_by_one.append(group)  # moved, or the script is not there
                    else:
                        take(group, reply)
        while one_by_one:
            group = one_by_one.pop(0)
            try:
                take(group, (await self.send("renew", keys[group[0]], packed(group), deadline))[0])
            except Unavailable as error:
                if len(group) > 1 and _wire.is_split(error):
                    one_by_one += [[index] for index in group]
                else:
                    problem = error
        if problem is not None and not times:
            raise problem
        return Renewed(held, (min(times), max(times)) if times else None)

    async def read(self, name: str, timeout: float) -> tuple[Record | None, Now | None]:
        (reply,) = await self.call("read", name, b"", deadline=monotonic() + timeout)
        return _wire.read(name, reply)

    async def listing(self, prefix: str, timeout: float, after: str, limit: int) -> list[Record]:
        """SCAN every primary, and keep the first ``limit`` names: as long as the database is large, never more memory than the answer."""
        deadline = monotonic() + timeout
        found: list[Record] = []
        first = after.encode()
        while len(found) < limit:
            names = await self._names(prefix.encode(), first, limit - len(found), deadline)
            for start in range(0, len(names), CHUNK):
                found += await self._records(names[start : start + CHUNK], deadline)
            if len(names) < limit - len(found):
                break
            first = names[-1]  # some went while we looked: look for those that come after
        return found

    async def _names(self, prefix: bytes, after: bytes, limit: int, deadline: float) -> list[bytes]:
        pattern = b"".join(b"\\%c" % byte if byte in b"\\*?[]^-" else b"%c" % byte for byte in _wire.PREFIX + prefix) + b"*"
        names: set[bytes] = set()
        for address in await self.route.all(deadline):
            cursor = b"0"
            while True:
                scan = _wire.command("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN, "TYPE", "string")
                (reply,) = await self.link.exchange(address, scan, 1, deadline)
                if isinstance(reply, Exception):
                    raise _wire.translated(reply) from reply
                cursor, some = _wire.scanned(reply)
                names.update(name for name in some if name > after and b"\n" not in name)
                if len(names) > 2 * limit + SCAN:
                    names = set(heapq.nsmallest(limit, names))
                if cursor == b"0":
                    break
        return heapq.nsmallest(limit, names)

    async def _records(self, names: list[bytes], deadline: float) -> list[Record]:
        keys = [_wire.PREFIX + name for name in names]
        values: list[Any] = [None] * len(keys)
        for address, indices in by_address([await self.route.where(key, deadline) for key in keys]).items():
            gets = b"".join(_wire.command("GET", keys[index]) for index in indices)
            for index, reply in zip(indices, await self.link.exchange(address, gets, len(indices), deadline), strict=True):
                if isinstance(reply, Exception):
                    (reply,) = await self.route.call(keys[index], _wire.command("GET", keys[index]), 1, deadline)
                if isinstance(reply, Exception):
                    raise _wire.translated(reply) from reply
                values[index] = reply
        # a key with another value under our prefix is not a record
        ours = ((name, raw) for name, raw in zip(names, values, strict=True) if isinstance(raw, bytes) and raw.startswith(_wire.FORMAT))
        return [record for name, raw in ours if (record := _wire.record(name.decode(), raw)) is not None]

    async def forget(self, name: str, timeout: float) -> bool:
        return _wire.forgotten((await self.call("forget", name, b"", deadline=monotonic() + timeout))[0])

    async def now(self, timeout: float) -> Now | None:
        # any key's server will do
        (reply,) = await self.route.call(_wire.PREFIX, _wire.command("TIME"), 1, monotonic() + timeout)
        if isinstance(reply, Exception):
            raise _wire.translated(reply) from reply
        return _wire.time(reply)

    # Whoever ends a grant wakes one waiter, who is in a BLPOP, its claim in the same packet right behind it. The server carries it out as
    # soon as BLPOP is over: no round trip, and nobody asks in vain.

    async def claim_when_free(self, claim: Claim, owner: str, wait: float, timeout: float) -> Answer:
        key = _wire.key_of(claim.name)
        line = _wire.keys_of_waiters(key, self.sharded)
        if self.replicas and line:
            await self.watch(claim.name, owner, wait)
        if self.replicas or not line:
            return await self.claim(claim, timeout)
        deadline = monotonic() + wait + timeout
        packed = self._in_line(key, line, owner, wait) + self.pack("claim", (key, *line), (_wire.claim_argument(claim),))
        reply = (await self.route.call(key, packed, 3, deadline, waits=True))[-1]
        if isinstance(reply, Exception):  # nothing was applied: moved, no longer the primary, or the script is not there any more
            (reply,) = await self.call("claim", claim.name, _wire.claim_argument(claim), deadline=deadline, tells=True)
        return _wire.answer(claim.name, reply)

    async def watch(self, name: str, owner: str, timeout: float) -> bool:
        deadline = monotonic() + timeout
        key = _wire.key_of(name)
        line = _wire.keys_of_waiters(key, self.sharded)
        if not line:
            raise Unavailable("nobody can be woken for a name with a '}' and no hash tag on a cluster")
        while (left := deadline - monotonic()) > 0:
            # the second look wakes the next one, who was not told
            packed = self._in_line(key, line, owner, left) + _wire.evaluate(self.line_up, (key, *line), (owner.encode(), b"1"))
            _, woken, is_gone = await self.route.call(key, packed, 3, deadline + GRACE, waits=True)
            if isinstance(is_gone, Exception) or isinstance(woken, Exception):
                raise Unavailable(f"redis can't wake waiters: {woken}")
            if is_gone or not woken:
                return bool(is_gone)
        return False

    def _in_line(self, key: bytes, line: list[bytes], owner: str, wait: float) -> bytes:
        """Pack what waits until the owner is gone."""
        wait = max(0.001, wait)
        look = _wire.evaluate(self.line_up, (key, *line), (owner.encode(), b"%d" % (wait * 1000 + AFTER)))
        return look + _wire.command("BLPOP", line[1], f"{wait:.3f}")

    async def override(self, override: Override, timeout: float) -> Settled:
        arguments = [_wire.override_argument(override)] + ([] if override.history is None else [override.history])
        (reply,) = await self.call("override", override.name, *arguments, deadline=monotonic() + timeout)
        return _wire.settled(override.name, reply)

    async def record(self, write_back: WriteBack, timeout: float) -> Settled:
        argument = _wire.write_back_argument(write_back)
        (reply,) = await self.call("write_back", write_back.name, argument, deadline=monotonic() + timeout)
        return _wire.settled(write_back.name, reply)

    async def facts(self, timeout: float) -> dict[str, str | int | float | bool | None]:
        deadline = monotonic() + timeout
        servers = [await self._facts_of(address, deadline) for address in await self.route.all(deadline)]
        return _facts.together(self.settings.kind, servers)

    async def bare(self, name: str, writes: bool, timeout: float) -> None:
        """GET, or SET with an expiry, on a key beside that is no record and expires by itself: as little as a lock needs."""
        key = _wire.key_of(name)
        asked = _wire.command("SET", key + b"~", "bare", "PX", 10_000) if writes else _wire.command("GET", key)
        (reply,) = await self.route.call(key + b"~" if writes else key, asked, 1, monotonic() + timeout)
        if isinstance(reply, Exception):
            raise _wire.translated(reply) from reply

    async def _facts_of(self, address: Address, deadline: float) -> dict[str, str | int | float | bool | None]:
        return _facts.read(await self.link.exchange(address, _facts.QUESTION, _facts.QUESTIONS, deadline))


class RedisDriver(Driver):
    """The blocking driver; see `Verbs`."""

    capabilities = Capabilities(
        verbs=frozenset({"watch", "claim_when_free", "override", "record", "facts"}),
        min_ttl=10_000,
        waiting="watch",
        # a server without persistence forgets everything when it is restarted; `facts` says what this one does
        durability="process",
        native_async=True,
    )

    #: How it asks and understands; tests put another clock there.
    verbs: type[Verbs] = Verbs

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.makers = {False: Maker(settings.connection, settings.tls), True: Maker(settings.sentinel, settings.tls)}
        self._link = BlockingLink(self.makers)
        self._verbs = self.verbs(settings, self._link)
        self._twins: weakref.WeakSet[AsyncRedisDriver] = weakref.WeakSet()

    def claim(self, claim: Claim, timeout: float) -> Answer:
        return step(self._verbs.claim(claim, timeout))

    def renew(self, renewals: Sequence[Renewal], timeout: float) -> Renewed:
        return step(self._verbs.renew(renewals, timeout))

    def settle(self, settlement: Settlement, timeout: float) -> Settled:
        return step(self._verbs.settle(settlement, timeout))

    def read(self, name: str, timeout: float) -> tuple[Record | None, Now | None]:
        return step(self._verbs.read(name, timeout))

    def list(self, prefix: str, timeout: float, *, after: str = "", limit: int = 1000) -> list[Record]:
        return step(self._verbs.listing(prefix, timeout, after, limit))

    def forget(self, name: str, timeout: float) -> bool:
        return step(self._verbs.forget(name, timeout))

    def now(self, timeout: float) -> Now | None:
        return step(self._verbs.now(timeout))

    def claim_when_free(self, claim: Claim, owner: str, wait: float, timeout: float) -> Answer:
        return step(self._verbs.claim_when_free(claim, owner, wait, timeout))

    def watch(self, name: str, owner: str, timeout: float) -> bool:
        return step(self._verbs.watch(name, owner, timeout))

    def override(self, override: Override, timeout: float) -> Settled:
        return step(self._verbs.override(override, timeout))

    def record(self, write_back: WriteBack, timeout: float) -> Settled:
        return step(self._verbs.record(write_back, timeout))

    def facts(self, timeout: float) -> dict[str, str | int | float | bool | None]:
        return step(self._verbs.facts(timeout))

    def examine(self, facts: Mapping[str, str | int | float | bool | None] | RotaError, timeout: float) -> Sequence[Finding]:
        from ._findings import examine

        return examine(self.settings, facts, timeout)

    def bare(self, name: str, writes: bool, timeout: float) -> None:
        step(self._verbs.bare(name, writes, timeout))

    def close(self) -> None:
        self._link.close()

    def after_fork(self) -> None:
        self._link.after_fork()
        for twin in self._twins:
            twin.after_fork()


class AsyncRedisDriver(AsyncDriver):
    """The native async twin."""

    def __init__(self, driver: RedisDriver) -> None:
        self._link = AsyncLink(driver.makers)
        self._verbs = driver.verbs(driver.settings, self._link)
        driver._twins.add(self)

    async def claim(self, claim: Claim, timeout: float) -> Answer:
        return await self._verbs.claim(claim, timeout)

    async def settle(self, settlement: Settlement, timeout: float) -> Settled:
        return await self._verbs.settle(settlement, timeout)

    async def now(self, timeout: float) -> Now | None:
        return await self._verbs.now(timeout)

    async def claim_when_free(self, claim: Claim, owner: str, wait: float, timeout: float) -> Answer:
        return await self._verbs.claim_when_free(claim, owner, wait, timeout)

    async def watch(self, name: str, owner: str, timeout: float) -> bool:
        return await self._verbs.watch(name, owner, timeout)

    async def close(self) -> None:
        self._link.close()

    def after_fork(self) -> None:
        self._link.after_fork()


class RedisBackend(Backend):
    """The backend of ``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://`` and ``redis+cluster://``."""

    contract = 1
    options = OPTIONS

    def driver(self, url: Url) -> Driver:
        return RedisDriver(settings(url))

    def async_driver(self, driver: Driver) -> AsyncDriver | None:
        return AsyncRedisDriver(driver) if isinstance(driver, RedisDriver) else None
