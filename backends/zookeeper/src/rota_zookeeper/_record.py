# SPDX-License-Identifier: MIT
"""How a record lies in a node, and what it is: the record before, the request, and the time at which the leader applied it.

ZooKeeper can't decide by its clock within a write, but it stamps each write with its leader's time, ``Stat.mtime``. So a node holds the
record as it was, and the request that was written upon it by compare-and-set on the version. What the record *is* follows: `rota.rules`
applied to both at ``mtime``. Every reader comes to the same result, and it is that of one atomic step: a claim that turns out to be early,
stale (L7), or against a live lease, and a renewal that turns out to be late (L3), change nothing, whether its sender lives or not, and
nothing has to be undone.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from zlib import crc32

from rota import rules
from rota.backend import Claim, Override, Record, Renewal, Settlement, WriteBack
from rota.errors import ConfigurationError

#: The number of the layout, and of the rules that read it: what the same content means must never change under one number.
FORMAT = 1
#: Over how many parents records are spread: to list 60,000 children of one node takes 0.1 s, and all servers are busy with it.
SHARDS = 64
#: How much a request and its answer hold at most, with room below jute.maxbuffer.
MOST_BYTES = 512 * 1024


class Forget(NamedTuple):
    """Leave a tombstone (R2)."""

    name: str


#: From a verb's name to its request and its rule: record, request and time in, answer and changed record out.
Rule = Callable[[Record | None, Any, int], tuple[Any, Record | None]]
VERBS: dict[str, tuple[Any, Rule]] = {
    "claim": (Claim, rules.claim),
    "settle": (Settlement, rules.settle),
    "override": (Override, rules.override),
    "record": (WriteBack, rules.write_back),
}


def _renew(record: Record | None, request: Renewal, now: int) -> tuple[bool, Record | None]:
    renewed = rules.renew(record, request, now)
    return renewed is not None, renewed


def _forget(record: Record | None, request: Forget, now: int) -> tuple[bool, Record | None]:
    tombstone = rules.forget(record, now)
    return tombstone is not None, tombstone


VERBS["renew"] = (Renewal, _renew)
VERBS["forget"] = (Forget, _forget)


class Known(NamedTuple):
    """What was seen of a node.

    Attributes:
        record: The record that it makes; None where there is none.
        version: The node's version; -1 where there is no node.
        data: The node's content.
        mtime: When it was written by the leader's clock, milliseconds.
        seen: When we saw it, by the local clock.
    """

    record: Record | None
    version: int = -1
    data: bytes = b""
    mtime: int = 0
    seen: float = 0.0


def pack(verb: str, before: Record | None, request: Any) -> bytes:
    """Return a node's content."""
    return _encode([FORMAT, verb, before, request]).encode()


def unpack(name: str, data: bytes, mtime: int) -> Record | None:
    """Return the record that a node makes.

    Raises:
        ConfigurationError: It is none of ours, or a newer rota's.
    """
    try:
        number, verb, before, request = json.loads(data)
        if number != FORMAT:
            raise ValueError(f"its format is {number}, this rota knows {FORMAT}")
        make, rule = VERBS[verb]
        record = None if before is None else _bytes(Record._make(before))
        _, changed = rule(record, _bytes(make._make(request)), mtime * 1000)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"the node of {name!r} holds no record that this rota can read: {error}") from error
    return record if changed is None else rules.checked(changed)


def _text(value: object) -> str:
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} in a record")
    return b64encode(value).decode()


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_text, check_circular=False).encode


def _bytes(value: Any) -> Any:
    history = getattr(value, "history", None)
    return value if history is None else value._replace(history=b64decode(history))


@lru_cache(maxsize=10_000)
def path_of(folder: str, name: str) -> str:
    """Return the path of a name's node: two levels below the folder, for parents of a bounded size; no two are alike.

    What it ends with is never ``.`` or ``..``, empty, or with a ``/`` in it.
    """
    return f"{folder}/{crc32(name.encode()) % SHARDS:02x}/={quote(name, safe='')}"


def name_of(node: str) -> str:
    """Return the name back."""
    return unquote(node[1:])
