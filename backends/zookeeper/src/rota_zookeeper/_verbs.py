# SPDX-License-Identifier: MIT
"""The verbs on ZooKeeper, as coroutines; `driver` carries them.

Each change is one compare-and-set on a node's version, decided at the leader's time of that very write (see `_record`). Who refuses
without a write needs the time, too: it is taken from an earlier write and the time since then, as an interval; where its two ends come to
different verdicts a write decides.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError, NotEmptyError
from rota import rules
from rota.backend import (
    BUSY,
    HANDLED,
    WINDOW,
    Answer,
    Claim,
    Now,
    Record,
    Renewal,
    Renewed,
)
from rota.duration import DAY
from rota.errors import OutcomeUnknown, Unavailable

from ._line import Line
from ._link import BROKEN, Link
from ._record import MOST_BYTES, SHARDS, VERBS, Known, name_of, pack, path_of, unpack
from ._step import Reply, TimedOut
from ._url import Place

#: What was asked of a node, and when, by the leader's time.
Reading = tuple[Now, Any]
#: Renewals of one transaction, each with what it is written upon, and with its content.
Batch = list[tuple[Renewal, Known, bytes]]

#: Renewals in one transaction.
MULTI = 250
#: Reads that are on their way at a time.
PIPELINE = 1000
#: How long what was seen of a node is taken for a guess of what to write upon, seconds. Far less than the day after which R1 may remove a
#: node: its successor's versions begin anew, and must not meet an old guess.
FRESH = 3600.0
#: How many nodes are remembered.
REMEMBERED = 20_000
#: How long the leader's time is counted on by the local clock before it is read again, seconds: a new leader may have another one.
CLOCK_AGE = 5.0
#: Where the time was lost again since it was asked for: whatever depends on it is decided by a write.
ANY_TIME = (0, 2**62)
#: How much faster or slower the local clock may run than the leader's.
DRIFT = 500e-6


class Verbs:
    """The verbs as coroutines; both faces run these."""

    def __init__(self, place: Place) -> None:
        self.link = Link(place, self._forget_seen, self._connected)
        self.line = Line(self)
        self._known: dict[str, Known] = {}
        self._clock: tuple[int, float, float] | None = None  # the leader's time, and when it was asked for and received
        self._shard = random.randrange(SHARDS)  # where the next sweep begins

    # -- what is known

    def _forget_seen(self, session_lost: bool) -> None:
        self._clock = None  # the leader may be another one
        if session_lost:
            self._known.clear()
        self.line.wake()

    def _connected(self, client: Any) -> None:
        self.line.clean(client)

    def _keep(self, name: str, known: Known) -> None:
        self._known.pop(name, None)
        self._known[name] = known
        if len(self._known) > REMEMBERED:
            with suppress(KeyError, RuntimeError, StopIteration):  # another thread did it
                del self._known[next(iter(self._known))]

    def _guess(self, name: str) -> Known | None:
        known = self._known.get(name)
        return known if known is not None and time.monotonic() - known.seen < FRESH else None

    def _observe(self, mtime: int, sent: float) -> int:
        """Take in the leader's time from the answer to a write; return it in microseconds."""
        self._clock = mtime * 1000, sent, time.monotonic()
        return mtime * 1000

    def interval(self) -> Now | None:
        """Return between which instants the leader's clock is now, from the newest write."""
        clock = self._clock
        return None if clock is None else _interval(*clock, time.monotonic())

    def _is_old(self) -> bool:
        return self._clock is None or time.monotonic() - self._clock[2] > CLOCK_AGE

    async def _current(self, client: Any) -> Now:
        """Return the same, asking the leader if the newest write is old."""
        if self._is_old():
            await self.touch(client)
        return self.interval() or ANY_TIME

    async def touch(self, client: Any) -> int:
        """Read the leader's time, by a write."""
        sent = time.monotonic()
        try:
            stat = await Reply(client.set_async(self.link.clock, b""))
        except NoNodeError:
            raise self.link.emptied() from None
        return self._observe(stat.mtime, sent)

    async def bare(self, name: str, writes: bool) -> None:
        """Ask whether a node is there, or write an empty one."""
        client = await self.link.client()
        await Reply(client.set_async(self.link.clock, b"") if writes else client.exists_async(self.path(name)))

    # -- nodes

    def path(self, name: str) -> str:
        """Return the path of a name's node."""
        return path_of(self.link.records, name)

    def read_later(self, client: Any, name: str, **watch: Any) -> Any:
        """Ask for a node."""
        if self.link.ensemble:
            client.sync_async(self.path(name))  # in order: what is read then is not older than any confirmed write
        return client.get_async(self.path(name), **watch)

    async def seen(self, name: str, later: Any) -> Known:
        """Return what was asked for, and remember it."""
        try:
            data, stat = await Reply(later)
        except NoNodeError:
            self._known.pop(name, None)
            return Known(None)
        known = self._known.get(name)
        if known is not None and known.data == data and known.mtime == stat.mtime and known.version == stat.version:
            return known  # as it was: no need to read it again
        known = Known(unpack(name, data, stat.mtime), stat.version, data, stat.mtime, time.monotonic())
        self._keep(name, known)
        return known

    def _write_later(self, client: Any, name: str, data: bytes, version: int) -> Any:
        if version < 0:
            return client.create_async(self.path(name), data, acl=self.link.place.acl, include_data=True)
        return client.set_async(self.path(name), data, version=version)

    # -- one step

    def refused(self, claim: Claim) -> tuple[Answer, Known, Reading] | None:
        """Return how a claim is refused by what was seen of its node, that, and a reading that is to find it unchanged.

        None where a claim may have a chance, or where it must be asked whether it has. It is what `decide` comes to, for the callers that
        ask again and again: at the time at which the reading was sent, since the node did not change in between.
        """
        known, clock, client = self._known.get(claim.name), self._clock, self.link.ready
        if known is None or known.record is None or clock is None or client is None:
            return None
        at = time.monotonic()
        if at - known.seen >= FRESH or at - clock[2] > CLOCK_AGE:
            return None
        now = _interval(*clock, at)
        answer, changed = rules.claim(known.record, claim, now[0], now)
        lasts = known.record.expires_at > now[1] if answer.verdict == BUSY else answer.verdict == HANDLED and claim.kind == WINDOW
        return (answer, known, (now, self.read_later(client, claim.name))) if lasts and changed is None else None

    async def decide(self, verb: str, request: Any, reading: Reading | None = None) -> Any:
        """Decide a request on a record: read it, unless it is guessed, and write it by compare-and-set where something changes.

        Args:
            verb: The verb.
            request: Its request.
            reading: What was asked of the node already; else it is guessed first.
        """
        rule, name = VERBS[verb][1], request.name
        known = guess = self._guess(name) if reading is None else None
        then = ANY_TIME  # when the node was asked for
        asked: tuple[Known, bytes] | None = None  # a write of which no answer came
        answer: Any = None
        try:
            while True:
                try:
                    client = self.link.ready or await self.link.client()
                    guessed = known is not None
                    if known is None:
                        if reading is None:
                            if self._is_old():
                                await self.touch(client)
                            reading = self.interval() or ANY_TIME, self.read_later(client, name)
                        (then, asking), reading = reading, None
                        known = await self.seen(name, asking)
                    if asked is not None and known.version == asked[0].version + 1 and known.data == asked[1]:
                        return rule(asked[0].record, request, known.mtime * 1000)[0]  # it was applied, and this is what it came to
                    if self._clock is None:
                        await self.touch(client)
                    low, high = self.interval() or ANY_TIME
                    if not guessed:  # what it comes to holds from before it was looked at: somebody may have changed the node since
                        low = min(low, then[0])
                    if guessed or known is not guess or answer is None:
                        answer, changed = rule(known.record, request, low)
                    # else that was answered before, of the same record: it is still so if it will be
                    if changed is None and guessed:
                        known = None  # only a write is tried on a guess
                        continue
                    if changed is None:
                        other, changed = rule(known.record, request, high)
                        if changed is None and _same(answer, other):
                            if asked is not None and known.version == asked[0].version:
                                break  # the write without an answer may yet come
                            return _at(answer, (low, high))
                except BROKEN:
                    known = None
                    continue
                data = pack(verb, known.record, request)
                sent = time.monotonic()
                try:
                    stat = await Reply(self._write_later(client, name, data, known.version))
                except (BadVersionError, NodeExistsError):
                    known = None  # somebody was faster
                    continue
                except NoNodeError:
                    if known.version < 0:  # the store was emptied under us
                        await self.link.ensure(client, self.path(name).rpartition("/")[0])
                    known = None
                    continue
                except (*BROKEN, TimedOut) as error:
                    asked, known = (known, data), None
                    if isinstance(error, TimedOut):
                        raise
                    continue
                if known.version < 0:
                    stat = stat[1]
                answer, changed = rule(known.record, request, self._observe(stat.mtime, sent))
                record = known.record if changed is None else changed
                self._keep(name, Known(record, stat.version, data, stat.mtime, time.monotonic()))
                return answer
        except (TimedOut, KazooException, Unavailable) as error:
            if asked is None:
                raise
            raise OutcomeUnknown(f"{self.link.place.shown}: no answer in time to a write") from error
        finally:
            if verb == "claim":  # not the settlement that woke who waited, whose claim is yet to come
                self.line.claimed()
        raise OutcomeUnknown(f"{self.link.place.shown}: a write without an answer may yet be applied")

    # -- many at a time

    async def renew(self, renewals: Sequence[Renewal]) -> Renewed:
        """Renew in transactions of up to `MULTI`; where one version is old none is applied: it is looked at, and the rest sent again."""
        held: dict[tuple[str, str], bool] = {}
        todo = {(renewal.name, renewal.owner): renewal for renewal in renewals}
        times: list[int] = []
        sent = 0.0
        try:
            while todo:
                try:
                    client = await self.link.client()
                    unsure = [renewal for renewal in todo.values() if not _owns(self._guess(renewal.name), renewal)]
                    for renewal, known in zip(unsure, await self._read_all(client, [renewal.name for renewal in unsure]), strict=True):
                        if not _owns(known, renewal):
                            held[renewal.name, renewal.owner] = False
                            del todo[renewal.name, renewal.owner]
                    sent = time.monotonic()
                    for batch, reply in [(batch, self._send(client, batch)) for batch in self._batches(todo.values())]:
                        for renewal, is_held, now in await self._renewed(batch, reply, sent):
                            times.append(now)
                            held[renewal.name, renewal.owner] = is_held
                            del todo[renewal.name, renewal.owner]
                except BROKEN:
                    continue
        except TimedOut as error:
            if not held:
                if not sent:
                    raise
                raise OutcomeUnknown(f"{self.link.place.shown}: no answer in time to renewals") from error
        at = (min(times), max(times)) if times else None
        return Renewed([held.get((renewal.name, renewal.owner)) for renewal in renewals], at)

    async def _renewed(self, batch: Batch, reply: Any, sent: float) -> list[tuple[Renewal, bool, int]]:
        """Return for each renewal of a transaction whether it is held, and the time; nothing where none was applied."""
        for renewal, *_ in batch:
            self._known.pop(renewal.name, None)  # until the answer is here
        results = await Reply(reply)
        if any(isinstance(result, Exception) for result in results):
            return []
        found = []
        for (renewal, known, data), stat in zip(batch, results, strict=True):
            now = self._observe(stat.mtime, sent)
            renewed = rules.renew(known.record, renewal, now)
            self._keep(renewal.name, Known(renewed or known.record, stat.version, data, stat.mtime, time.monotonic()))
            found.append((renewal, renewed is not None, now))
        return found

    def _batches(self, renewals: Iterable[Renewal]) -> list[Batch]:
        batches: list[Batch] = []
        size = MOST_BYTES
        for renewal in renewals:
            known = self._known.get(renewal.name)
            if known is None:
                continue  # forgotten since, with the session: it is read anew
            data = pack("renew", known.record, renewal)
            size += len(data)
            if size > MOST_BYTES or len(batches[-1]) == MULTI:
                batches.append([])
                size = len(data)
            batches[-1].append((renewal, known, data))
        return batches

    def _send(self, client: Any, batch: Batch) -> Any:
        transaction = client.transaction()
        for renewal, known, data in batch:
            transaction.set_data(self.path(renewal.name), data, version=known.version)
        return transaction.commit_async()

    async def _read_all(self, client: Any, names: list[str]) -> list[Known]:
        found: list[Known] = []
        for first in range(0, len(names), PIPELINE):
            some = names[first : first + PIPELINE]
            for name, later in [(name, self.read_later(client, name)) for name in some]:
                found.append(await self.seen(name, later))
        return found

    async def _shards(self, client: Any) -> list[str]:
        try:
            return sorted(await Reply(client.get_children_async(self.link.records)))
        except NoNodeError:  # somebody has removed them under us
            return []

    async def _children(self, client: Any, shards: Sequence[str]) -> dict[str, list[str]]:
        laters = [(shard, client.get_children_async(f"{self.link.records}/{shard}")) for shard in shards]
        found: dict[str, list[str]] = {}
        for shard, later in laters:
            with suppress(NoNodeError):
                found[shard] = [name_of(node) for node in await Reply(later) if node.startswith("=")]
        return found

    async def _page(self, prefix: str, after: str, limit: int) -> list[Record]:
        client = await self.link.reader()
        if client is None:
            return []
        if self.link.ensemble:
            await Reply(client.sync_async(self.link.records))
        shards = await self._shards(client)
        every = [name for names in (await self._children(client, shards)).values() for name in names if name.startswith(prefix)]
        names = sorted((name for name in every if name.encode() > after.encode()), key=str.encode)
        found: list[Record] = []
        while names and len(found) < limit:
            count = min(limit - len(found), PIPELINE)
            some, names = names[:count], names[count:]
            found += [known.record for known in await self._read_all(client, some) if known.record is not None]
        return found

    async def list(self, prefix: str, after: str, limit: int) -> list[Record]:
        """Return a page of records."""
        while True:
            with suppress(*BROKEN):
                return await self._page(prefix, after, limit)

    async def sweep(self, limit: int) -> int:
        """Remove records that R1 lets go, from one parent after the other, a bounded number of reads in all."""
        client = await self.link.reader()
        if client is None:
            return 0
        now = await self.touch(client)
        shards = await self._shards(client)
        removed = reads = 0
        for turn in range(len(shards)):
            shard = shards[(self._shard + turn) % len(shards)]
            names = (await self._children(client, [shard])).get(shard, [])
            names = random.sample(names, min(len(names), PIPELINE))
            reads += len(names)
            for name, known in zip(names, await self._read_all(client, names), strict=True):
                if removed < limit and known.version >= 0 and may_remove(known, now):
                    with suppress(BadVersionError, NoNodeError, NotEmptyError):
                        await Reply(client.delete_async(self.path(name), version=known.version))
                        removed += 1
            if removed >= limit or reads >= PIPELINE:
                self._shard += turn
                break
        return removed

    # -- the rest

    async def read(self, name: str) -> tuple[Record | None, Now | None]:
        """Return a record; where there is no store there is no clock of its own, either."""
        while True:
            with suppress(*BROKEN):
                client = await self.link.reader()
                if client is None:
                    return None, None
                known = await self.seen(name, self.read_later(client, name))
                return known.record, await self._current(client)

    async def now(self) -> Now:
        """Return the leader's time."""
        while True:
            with suppress(*BROKEN):
                now = await self.touch(await self.link.client())
                return now, now


def _interval(mtime: int, sent: float, received: float, at: float) -> Now:
    """Return between which instants the leader's clock is, if it was at a time somewhere between two instants of the local one.

    A write that follows is stamped in whole milliseconds: it must not be told an earlier time.
    """
    low, high = mtime + int((at - received) * (1 - DRIFT) * 1e6), mtime + 1000 + int((at - sent) * (1 + DRIFT) * 1e6)
    return low - low % 1000, high


def is_found(known: Known, reading: Any) -> bool:
    """Say whether a reading that has come found a node as it was known."""
    if not reading.successful():
        return False
    data, stat = reading.value
    return bool(known.version == stat.version and known.mtime == stat.mtime and known.data == data)


def _owns(known: Known | None, renewal: Renewal) -> bool:
    return known is not None and known.record is not None and known.record.owner == renewal.owner


def may_remove(known: Known, now: int) -> bool:
    if known.record is None:  # a claim that came to nothing
        return known.mtime * 1000 + DAY < now
    return rules.may_remove(known.record, now)


def _same(answer: Any, other: Any) -> bool:
    same: bool = answer == other if isinstance(answer, bool) else answer[0] == other[0]
    return same


def _at(answer: Any, now: Now) -> Any:
    # third in an Answer and in a Settled; a claim that is refused feels how long `_replace` takes
    return answer if isinstance(answer, bool) else tuple.__new__(type(answer), (*answer[:2], now, *answer[3:]))


__all__ = ["Verbs", "is_found", "may_remove"]
