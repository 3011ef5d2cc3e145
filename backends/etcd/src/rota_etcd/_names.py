# SPDX-License-Identifier: MIT
"""Reading and writing what etcd keeps for names, each in one request."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

from rota.backend import Record

from . import _wire
from ._codec import Found, Keys, decode, encode, found, rest_of
from ._link import Link

#: How many names' records are remembered.
SEEN = 1000

T = TypeVar("T")


class Names:
    """The names under one prefix, and what was written of them last."""

    def __init__(self, link: Link, prefix: str) -> None:
        self.keys = Keys(prefix)
        self._link = link
        self._seen: dict[str, Found] = {}  # the next write starts from it, and reads only if it is outdated
        self._seen_on = 0
        self._looked: dict[str, tuple[Found, bytes]] = {}  # of names that were held, and how to ask whether they still are

    def find(self, name: str, deadline: float) -> Found:
        """Read a name."""
        return found(name, self._link.call(self.keys.reading(name), deadline))

    def look(self, name: str, deadline: float) -> Found:
        """Read a name for a claim: where it was held when it was looked at last, all of it only if that has changed.

        Whoever is refused mostly comes again. The key of the lease tells the grant by its token, the record's revision that it is the same;
        only a store that was restored from a snapshot can have another one there, of the same grant. So it does for refusing.
        """
        known = self._looked.get(name)
        if known is None:
            looked = self.find(name, deadline)
        else:
            response = self._link.call(known[1], deadline)
            if response.succeeded:
                return known[0]
            looked = found(name, response)
        if looked.held:
            _keep(self._looked, name, (looked, self.keys.looking(name, looked)))
        else:
            self._looked.pop(name, None)
        return looked

    def write(
        self,
        name: str,
        before: Found,
        record: Record | None,
        deadline: float,
        seconds: int = 0,
        hold: tuple[bytes, int] | None = None,
        fences: bool = False,
    ) -> tuple[bool, Found]:
        """Replace what was found, if it is still so. Return whether it was, and what is there now.

        Args:
            name: The name.
            before: What was found.
            record: The record to write; None deletes it.
            deadline: By `monotonic`.
            seconds: The length of the record's lease.
            hold: The key to bind to the etcd lease of this id.
            fences: Whether to say that its etcd lease will be revoked.
        """
        encoded, keys = name.encode(), self.keys
        record_key, lease_key = keys.records + encoded, keys.leases + encoded
        fenced = fences or (before.fenced and hold is None)
        rest = b"" if record is None else rest_of(record.history, before.rest)
        request = _wire.Txn()
        # field by field: in three quarters of the time that it takes from dicts, in a quarter of that from messages
        request.compare.add(target=_wire.MOD, key=record_key, mod_revision=before.written)
        request.compare.add(target=_wire.CREATE, key=lease_key, create_revision=before.held)
        if record is None:
            request.success.add().request_delete_range.key = record_key
            request.success.add().request_delete_range.key = keys.history + encoded
        else:
            put = request.success.add().request_put
            put.key, put.value = record_key, encode(record, seconds, fenced, rest)
            if hold is not None:
                put = request.success.add().request_put
                put.key, put.lease = hold
                put.value = b"%d" % record.token
            elif before.held and not record.owner:
                request.success.add().request_delete_range.key = lease_key
            if rest is not before.rest:
                if rest:
                    put = request.success.add().request_put
                    put.key, put.value = keys.history + encoded, rest
                else:
                    request.success.add().request_delete_range.key = keys.history + encoded
        response = self._link.call(request, deadline, writes=True)
        if not response.succeeded:
            return False, self.find(name, deadline)
        at = response.header.revision
        held, lease = (before.held, before.lease) if record is not None and record.owner else (0, 0)
        if hold is not None and hold[0] == lease_key:
            held, lease = held or at, hold[1]
        written = Found(record, seconds, at, held, lease, at, fenced, b"", rest)
        if record is not None:
            _keep(self._seen, name, written)
        return True, written

    def recall(self, name: str) -> Found | None:
        """Take what was written last, unless the store was away since: it may have been restored, and counts revisions anew then."""
        stream = self._link.stream
        if self._seen_on not in (0, stream):
            self._seen.clear()
        self._seen_on = stream
        return self._seen.pop(name, None)

    def page(self, prefix: bytes, first: bytes, limit: int, deadline: float) -> Sequence[tuple[str, Found]]:
        """Return up to ``limit`` names that start so, from one on."""
        keys = self.keys.records
        end = _after(keys + prefix)
        response = self._link.call(_wire.Range(key=keys + first, range_end=end, limit=limit), deadline)
        if not response.kvs:
            return []
        names = [kv.key[len(keys) :] for kv in response.kvs]
        at = response.header.revision
        held = self._between(self.keys.leases, names[0], names[-1], at, deadline)
        histories = self._between(self.keys.history, names[0], names[-1], at, deadline)
        page = []
        for name, kv in zip(names, response.kvs, strict=True):
            lease, history = held.get(name), histories.get(name)
            rest = history.value if history is not None else b""
            decoded = name.decode(errors="backslashreplace")  # what is no text is none of rota's, and `decode` says so
            stored, seconds, fenced = decode(decoded, kv.value, rest)
            held_since, its_lease = (lease.create_revision, lease.lease) if lease is not None else (0, 0)
            page.append((decoded, Found(stored, seconds, kv.mod_revision, held_since, its_lease, at, fenced, rest=rest)))
        return page

    def _between(self, keys: bytes, first: bytes, last: bytes, revision: int, deadline: float) -> dict[bytes, Any]:
        """Return what some keys had for the names from one to another at a revision."""
        asked = _wire.Range(key=keys + first, range_end=keys + last + b"\0", revision=revision)
        return {kv.key[len(keys) :]: kv for kv in self._link.call(asked, deadline).kvs}


def _keep(remembered: dict[str, T], name: str, found: T) -> None:
    remembered.pop(name, None)
    remembered[name] = found
    if len(remembered) > SEEN:
        with suppress(StopIteration, KeyError, RuntimeError):  # another thread is at it
            del remembered[next(iter(remembered))]


def _after(prefix: bytes) -> bytes:
    """Return the end of the range of all keys that start so; a name in UTF-8 never ends with 0xff."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))
