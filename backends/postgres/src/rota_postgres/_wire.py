# SPDX-License-Identifier: MIT
"""How values travel: binary both ways, instants as `timestamptz`, which is exact to the microsecond whatever `DateStyle` and `TimeZone`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from rota.backend import Record
from rota.errors import ConfigurationError

#: 2000-01-01, from which PostgreSQL counts, in microseconds since the Unix epoch; and its ``infinity``.
EPOCH, INFINITY = 946_684_800_000_000, 2**63 - 1

_INT8, _INT4, _FIELD = struct.Struct("!q"), struct.Struct("!i"), struct.Struct("!ii")
_BYTES = 17
#: By their names here: PostgreSQL's oid, to bytes, from bytes.
TYPES: dict[str, tuple[int, Any, Any]] = {
    "text": (25, str.encode, lambda data: str(data, "utf-8")),
    "time": (1184, lambda at: _INT8.pack(at if at == INFINITY else at - EPOCH), lambda data: _INT8.unpack(data)[0] + EPOCH),
    "span": (1186, lambda span: struct.pack("!qii", span, 0, 0), None),
    "int8": (20, _INT8.pack, lambda data: _INT8.unpack(data)[0]),
    "int4": (23, _INT4.pack, lambda data: _INT4.unpack(data)[0]),
    "bool": (16, lambda flag: b"\1" if flag else b"\0", lambda data: data == b"\1"),
    "bytes": (_BYTES, bytes, bytes),
    "texts": (1009, lambda items: _array(25, [item.encode() for item in items]), None),
    "int8s": (1016, lambda items: _array(20, [_INT8.pack(item) for item in items]), None),
}
#: The table's columns: what `Record` keeps, and `waited`, the token whose end somebody waits for. First what is never NULL and always of
#: one size, then the instants that may be NULL, then the texts, so that `record` takes most of a row in one go. The history comes last: the
#: log leaves out what two versions of a row have in common at their ends. (In the first tables `waited` came last: as good, but for that.)
COLUMNS = {
    "token": "bigint NOT NULL",
    "granted_at": "timestamptz NOT NULL DEFAULT 'epoch'",
    "expires_at": "timestamptz NOT NULL DEFAULT 'epoch'",
    "settled_at": "timestamptz NOT NULL DEFAULT 'epoch'",
    "keep_until": "timestamptz NOT NULL",
    "attempts": "integer NOT NULL DEFAULT 0",
    "format": "integer NOT NULL DEFAULT 1",
    "last_expired": "boolean NOT NULL DEFAULT false",
    "mark": "timestamptz",
    "prior_mark": "timestamptz",
    "slot_start": "timestamptz",
    "slot_end": "timestamptz",
    "name": 'text COLLATE "C" PRIMARY KEY',  # "C": by bytes, as `list` promises
    "kind": "text NOT NULL DEFAULT ''",
    "schedule": "text NOT NULL DEFAULT ''",
    "zone_data": "text NOT NULL DEFAULT ''",
    "owner": "text NOT NULL DEFAULT ''",
    "label": "text NOT NULL DEFAULT ''",
    "last_owner": "text NOT NULL DEFAULT ''",
    "last_result": "text NOT NULL DEFAULT ''",
    "outcome": "text NOT NULL DEFAULT ''",
    "waited": "bigint NOT NULL DEFAULT -1",
    "history": "bytea NOT NULL DEFAULT ''",
}
#: A row on the wire: the number of its fields, and of each its type, its size (-1: NULL) and its value. These are the first eight.
_FIXED = struct.Struct("!4x8xq8xq8xq8xq8xq8xi8xi8x?")
_TIME, _TEXT, _NUMBER = TYPES["time"][0], TYPES["text"][0], TYPES["int8"][0]
_NO_TOKEN, _ZERO_TOKEN, _NO_SLOT = _FIELD.pack(_NUMBER, -1), _FIELD.pack(_NUMBER, 8) + bytes(8), _FIELD.pack(_TIME, -1) * 4
#: What a function answers: the time, whether it changed the record, and the record that it found, of which this has the size.
_ANSWER = struct.Struct("!12xq8x?4xi")
#: The same of a grant that is settled: the time, that it is done, and whether the lease had run out by then.
_SETTLED = struct.Struct("!12xq8x?8x?")


#: What is said of a table that another version made.
OTHER_COLUMNS = (
    "the columns of the table are others, or in another order, than `rota schema` prints. While nobody uses it: CREATE TABLE kept AS TABLE"
    " ...; DROP TABLE ... CASCADE; then rota init; and copy the rows by the columns' names, as in INSERT INTO ... (name, token, ...)"
    " SELECT name, token, ... FROM kept"
)


class Statement(NamedTuple):
    """A statement as it is sent: text with ``$1``…, the types of its values, their formats (binary), and how they get onto the wire."""

    text: bytes
    oids: tuple[int, ...]
    formats: tuple[int, ...]
    encoders: tuple[Any, ...]

    def encode(self, values: Sequence[Any]) -> list[bytes | None]:
        """Return the values in the form of the wire."""
        return [None if value is None else encode(value) for value, encode in zip(values, self.encoders, strict=True)]


def statement(text: str, types: str = "") -> Statement:
    """Return a statement; ``types`` are names of `TYPES`, one for each of its values."""
    kinds = [TYPES[kind] for kind in types.split()]
    return Statement(text.encode(), tuple(kind[0] for kind in kinds), (1,) * len(kinds), tuple(kind[1] for kind in kinds))


def _array(oid: int, items: Sequence[bytes]) -> bytes:
    head = struct.pack("!iiiii", 1, 0, oid, len(items), 1) if items else struct.pack("!iii", 0, 0, oid)
    return head + b"".join(_INT4.pack(len(item)) + item for item in items)


def decode(kind: str, data: bytes | None) -> Any:
    """Return a value that came, by its type's name here."""
    return None if data is None else TYPES[kind][2](data)


def answer(data: bytes) -> tuple[int, Record | None, bool]:
    """Return what a function said: the time, the record that it found, whether it changed it. Each is a field: type, size, value."""
    now, done, size = _ANSWER.unpack_from(data)
    return now + EPOCH, record(data[_ANSWER.size : _ANSWER.size + size]) if size > 0 else None, done


def settled(data: bytes) -> tuple[int, bool, bool]:
    """Return what the settling function said: the time, whether it settled, and if so whether the lease had run out; else see `answer`."""
    now, done, expired = _SETTLED.unpack_from(data)
    return now + EPOCH, done, expired


def record(data: bytes | None) -> Record | None:
    """Return the record that a whole row of the table holds, if any.

    Raises:
        ConfigurationError: The table's columns are not those of `COLUMNS`.
    """
    # a function that found no row returns one of nothing, or the one that it made, which has no token yet
    if data is None or data.startswith((_NO_TOKEN, _ZERO_TOKEN), 4):
        return None
    try:
        return _record(data)
    except (struct.error, UnicodeDecodeError):
        raise ConfigurationError(OTHER_COLUMNS) from None


def _record(data: bytes) -> Record:
    token, granted_at, expires_at, settled_at, keep_until, attempts, form, last_expired = _FIXED.unpack_from(data)
    at, head = _FIXED.size, _FIELD.unpack_from
    times: list[int | None] = []
    if data.startswith(_NO_SLOT, at):  # of most leases
        times = [None, None, None, None]
        at += len(_NO_SLOT)
    else:
        for _ in range(4):
            found, size = head(data, at)
            if found != _TIME:
                raise struct.error
            at += 8
            if size < 0:
                times.append(None)
            else:
                times.append(_INT8.unpack_from(data, at)[0] + EPOCH)
                at += size
    texts: list[str] = []
    for _ in range(9):
        found, size = head(data, at)
        if found != _TEXT:
            raise struct.error
        at += 8
        texts.append(str(data[at : at + size], "utf-8") if size else "")
        at += size
    found, size = head(data, at)
    if found == _NUMBER:  # waited
        at += 8 + size
        found, size = head(data, at)
    if found != _BYTES:
        raise struct.error
    name, kind, schedule, zone_data, owner, label, last_owner, last_result, outcome = texts
    mark, prior_mark, slot_start, slot_end = times
    # fmt: off
    return Record(
        name, kind, schedule, zone_data, token, owner, label, granted_at + EPOCH, expires_at + EPOCH if owner else 0,
        last_owner, last_result, last_expired, mark, prior_mark, slot_start, slot_end, attempts, outcome, settled_at + EPOCH,
        keep_until + EPOCH, data[at + 8 : at + 8 + size], form,
    )
    # fmt: on


def texts(data: bytes) -> list[str]:
    """Return the items of a ``text[]``."""
    if not _INT4.unpack_from(data)[0]:
        return []
    found, at = [], 20
    for _ in range(_INT4.unpack_from(data, 12)[0]):
        size = _INT4.unpack_from(data, at)[0]
        found.append(str(data[at + 4 : at + 4 + size], "utf-8"))
        at += 4 + size
    return found
