# SPDX-License-Identifier: MIT
"""What etcd keeps for a name, and how it is written.

- ``PREFIX/records/NAME``: the record, as one line of JSON (fields at their default left out), and behind it the history's bytes.
- ``PREFIX/leases/NAME``: there while somebody holds the name, bound to an etcd lease. Its value is the grant's token, in digits, so that a
  transaction of the user's own can compare it.
- ``PREFIX/guards/LEASE``: of the claim for a grant without a lease (W4), bound to an etcd lease, for nothing but that lease.

Whether somebody holds a name is decided by the second key alone; the record's ``expires_at`` is for people. All writes are transactions
that compare the record's revision and the second key's, so that each verb is decided in one step by the rules of rota.
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
#: The fields that are written as JSON, and their defaults: neither the name, which the key tells, nor the history and the format.
_FIELDS, _DEFAULTS = Record._fields[1:-2], Record("")[1:-2]


class Keys:
    """The keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        self.records, self.leases, self.guards = (f"{prefix}/{part}/".encode() for part in ("records", "leases", "guards"))

    def reading(self, name: str) -> Any:
        """Return the request that reads all of a name."""
        encoded, request = name.encode(), _wire.Txn()
        for keys in (self.records, self.leases):
            request.success.add().request_range.key = keys + encoded
        return request

    def looking(self, name: str, known: Found) -> Any:
        """Return the request that reads all of a name unless it is held as is known."""
        encoded, request = name.encode(), _wire.Txn()
        request.compare.add(target=_wire.MOD, key=self.records + encoded, mod_revision=known.written)
        request.compare.add(target=_wire.VALUE, key=self.leases + encoded, value=known.value)
        for keys in (self.records, self.leases):
            request.failure.add().request_range.key = keys + encoded
        return request


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
    """

    stored: Record | None
    seconds: int
    written: int
    held: int
    lease: int
    revision: int
    fenced: bool = False
    value: bytes = b""

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
    first, second = response.responses
    stored, seconds, fenced, written, held, its_lease, value = None, 0, False, 0, 0, 0, b""
    for record in first.response_range.kvs:
        stored, seconds, fenced = decode(name, record.value)
        written = record.mod_revision
    for lease in second.response_range.kvs:
        held, its_lease, value = lease.create_revision, lease.lease, lease.value
    return Found(stored, seconds, written, held, its_lease, response.header.revision, fenced, value)


def encode(record: Record, seconds: int, fenced: bool) -> bytes:
    """Return the value of a record's key."""
    # field by field, in half the time that a JSONEncoder takes: this is on the way of every claim
    parts = [f'{{"format":{_FORMAT}']
    for field, value, default in zip(_FIELDS, record[1:-2], _DEFAULTS, strict=True):
        if value != default:
            parts.append(f'"{field}":{quoted(value) if isinstance(value, str) else "true" if value is True else value}')
    if record.owner:
        parts.append(f'"lease_seconds":{seconds}')
        if fenced:
            parts.append('"fenced":true')
    return f"{','.join(parts)}}}\n".encode() + record.history


def decode(name: str, value: bytes) -> tuple[Record, int, bool]:
    """Read the value of a record's key, the granted seconds of its lease, and whether that is `Found.fenced`."""
    line, _, history = value.partition(b"\n")
    try:
        values = json.loads(line.decode())  # bytes are looked at for their encoding
        seconds, fenced = values.pop("lease_seconds", 0), values.pop("fenced", False)
        if (written := values.pop("format")) != _FORMAT:
            raise ConfigurationError(f"the record of {name!r} has format {written}, this rota knows {_FORMAT}")
        fields = [values.pop(field, default) for field, default in zip(_FIELDS, _DEFAULTS, strict=True)]
        if values:
            raise ValueError(f"unknown fields {', '.join(values)}")
        return rules.checked(Record._make([name, *fields, history, _FORMAT])), seconds, fenced
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(f"the key of {name!r} holds no record of rota's: {error}") from error
