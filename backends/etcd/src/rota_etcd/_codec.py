# SPDX-License-Identifier: MIT
"""What etcd keeps for a name, and how it is written.

- ``PREFIX/records/NAME``: the record, as one line of JSON (what few records have is left out where it is at its default), and behind it the
  newest part of the history.
- ``PREFIX/history/NAME``: the rest of the history, where there is more: most bytes of a record, but few settlements change them. Whoever
  writes it writes the record, too, so that the record's revision tells of both.
- ``PREFIX/leases/NAME``: there while somebody holds the name, bound to an etcd lease. Its value is the grant's token, in digits, so that a
  transaction of the user's own can compare it.
- ``PREFIX/guards/LEASE``: of the claim for a grant without a lease (W4), bound to an etcd lease, for nothing but that lease.

Whether somebody holds a name is decided by the lease's key alone; the record's ``expires_at`` is for people. All writes are transactions
that compare the record's revision and that key's, so that each verb is decided in one step by the rules of rota.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring as quoted
from typing import Any, NamedTuple

from rota import rules
from rota.backend import Now, Record
from rota.duration import SECOND
from rota.errors import ConfigurationError

from . import _wire

_FORMAT = 1
#: How much of a history is written with the record at the most, bytes: about five runs.
_NEWEST = 400
#: The fields that are written as JSON, and their defaults: neither the name, which the key tells, nor the history and the format.
_FIELDS, _DEFAULTS = Record._fields[1:-2], Record("")[1:-2]
#: Those that few records have: they are left out at their default.
_OTHERS = "schedule", "zone_data", "last_expired", "mark", "prior_mark", "slot_start", "slot_end"
_OTHERS_DEFAULTS = tuple(Record._field_defaults[field] for field in _OTHERS)


class Keys:
    """The keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        self.records, self.history, self.leases, self.guards = (
            f"{prefix}/{part}/".encode() for part in ("records", "history", "leases", "guards")
        )
        self._all = self.records, self.history, self.leases

    def reading(self, name: str) -> Any:
        """Return the request that reads all of a name."""
        encoded, request = name.encode(), _wire.Txn()
        for keys in self._all:
            request.success.add().request_range.key = keys + encoded
        return request

    def looking(self, name: str, known: Found) -> bytes:
        """Return the request, ready to be sent, that reads all of a name unless it is held as is known."""
        encoded, request = name.encode(), _wire.Txn()
        request.compare.add(target=_wire.MOD, key=self.records + encoded, mod_revision=known.written)
        request.compare.add(target=_wire.VALUE, key=self.leases + encoded, value=known.value)
        for keys in self._all:
            request.failure.add().request_range.key = keys + encoded
        serialized: bytes = request.SerializeToString()
        return serialized


class Found(NamedTuple):
    """What etcd holds for a name at one revision.

    Attributes:
        stored: The record as it was written; None if there is none.
        seconds: The granted length of its lease.
        written: The revision that wrote the record; 0 if there is none.
        held: The revision that made the key of the lease; 0 if nobody holds the name.
        lease: The id of the etcd lease that the key is bound to.
        revision: The revision of the whole.
        fenced: Whether somebody else is about to revoke that etcd lease.
        value: That of the lease's key: the token of the grant, in digits.
        rest: That of the history's key.
    """

    stored: Record | None
    seconds: int
    written: int
    held: int
    lease: int
    revision: int
    fenced: bool = False
    value: bytes = b""
    rest: bytes = b""

    def record(self, now: Now) -> Record | None:
        """Return the record with an ``expires_at`` that agrees with the key: past without it, ahead of now with it."""
        record = self.stored
        if record is None or not record.owner:
            return record
        if not self.held:
            return record if record.expires_at <= now[0] else record._replace(expires_at=now[0])
        if record.expires_at > now[1]:
            return record
        return record._replace(expires_at=now[1] + self.seconds * SECOND)  # it was renewed since: it ends by then at the latest


def found(name: str, response: Any) -> Found:
    """Read the answer to `Keys.reading`, or to `Keys.looking` where it is another."""
    records, histories, leases = (each.response_range.kvs for each in response.responses)
    stored, seconds, fenced, written, held, its_lease, value, rest = None, 0, False, 0, 0, 0, b"", b""
    for history in histories:
        rest = history.value
    for record in records:
        stored, seconds, fenced = decode(name, record.value, rest)
        written = record.mod_revision
    for lease in leases:
        held, its_lease, value = lease.create_revision, lease.lease, lease.value
    return Found(stored, seconds, written, held, its_lease, response.header.revision, fenced, value, rest)


def rest_of(history: bytes, rest: bytes) -> bytes:
    """Return what the history's key is to hold: what it holds, as long as what is new in front is little."""
    return rest if len(history) - len(rest) <= _NEWEST and history.endswith(rest) else history


def encode(record: Record, seconds: int, fenced: bool, rest: bytes) -> bytes:
    """Return the value of a record's key, where ``rest`` of its history is in the history's."""
    # what nearly every record has, in one piece: field by field it takes three times as long, and this is on the way of every claim
    (_, kind, schedule, zone_data, token, owner, label, granted_at, expires_at, last_owner, last_result, last_expired) = record[:12]
    (mark, prior_mark, slot_start, slot_end, attempts, outcome, settled_at, keep_until) = record[12:-2]
    line = (
        f'{{"format":{_FORMAT},"kind":{quoted(kind)},"token":{token},"owner":{quoted(owner)},"label":{quoted(label)}'
        f',"granted_at":{granted_at},"expires_at":{expires_at},"last_owner":{quoted(last_owner)},"last_result":{quoted(last_result)}'
        f',"attempts":{attempts},"outcome":{quoted(outcome)},"settled_at":{settled_at},"keep_until":{keep_until}'
    )
    others = (schedule, zone_data, last_expired, mark, prior_mark, slot_start, slot_end)
    if others != _OTHERS_DEFAULTS:
        for field, value, default in zip(_OTHERS, others, _OTHERS_DEFAULTS, strict=True):
            if value != default:
                line += f',"{field}":{quoted(value) if isinstance(value, str) else "true" if value is True else value}'
    if owner:
        line += f',"lease_seconds":{seconds}'
        if fenced:
            line += ',"fenced":true'
    return f"{line}}}\n".encode() + record.history[: len(record.history) - len(rest)]


def decode(name: str, value: bytes, rest: bytes) -> tuple[Record, int, bool]:
    """Read the values of a record's key and its history's: the record, the granted seconds of its lease, whether that is `Found.fenced`."""
    line, _, newest = value.partition(b"\n")
    try:
        values = json.loads(line.decode())  # bytes are looked at for their encoding
        seconds, fenced = values.pop("lease_seconds", 0), values.pop("fenced", False)
        if (written := values.pop("format")) != _FORMAT:
            raise ConfigurationError(f"the record of {name!r} has format {written}, this rota knows {_FORMAT}")
        fields = [values.pop(field, default) for field, default in zip(_FIELDS, _DEFAULTS, strict=True)]
        if values:
            raise ValueError(f"unknown fields {', '.join(values)}")
        return rules.checked(Record._make([name, *fields, newest + rest, _FORMAT])), seconds, fenced
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(f"the key of {name!r} holds no record of rota's: {error}") from error
