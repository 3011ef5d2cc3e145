# SPDX-License-Identifier: MIT
"""What goes over the wire: commands as Redis reads them, requests as lines for the scripts, and records back from their answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.resources import files
from typing import NamedTuple, ParamSpec, TypeVar

from redis.crc import key_slot
from rota.backend import Answer, Claim, Now, Override, Record, Renewal, Settled, Settlement, WriteBack
from rota.errors import ConfigurationError, OutcomeUnknown, RotaError, Unavailable

P = ParamSpec("P")
T = TypeVar("T")

#: Put before the full name: the key that holds its record. One key for a name, so one hash slot, whatever braces the name has; names with
#: one hash tag (``{tag}``) share a slot, and are renewed by one call on a cluster.
PREFIX = b"rota:"
#: What a value that is ours begins with: the record's format.
FORMAT = b"1\n"

VERBS = ("claim", "renew", "settle", "read", "forget", "override", "write_back")

#: Error codes that say that the store can't serve now, and that nothing was applied.
TROUBLE = "READONLY LOADING CLUSTERDOWN MISCONF OOM MASTERDOWN NOREPLICAS TRYAGAIN BUSY UNBLOCKED NOTREADY FAILOVER".split()
#: Error codes of wrong or missing rights, which are never an outage (F2).
DENIED = ("NOAUTH", "WRONGPASS", "NOPERM")

# redis-py takes the code off the text of the errors that it has a class for
_CODES = {
    "AuthenticationError": "WRONGPASS",
    "AuthorizationError": "NOPERM",
    "NoPermissionError": "NOPERM",
    "BusyLoadingError": "LOADING",
    "ReadOnlyError": "READONLY",
    "OutOfMemoryError": "OOM",
    "NoScriptError": "NOSCRIPT",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "TryAgainError": "TRYAGAIN",
    "MovedError": "MOVED",
    "AskError": "ASK",
}


# what has no code of its own; of a right that is missing in a script: Redis, and Valkey 8.0
_SAID = {
    "max number of clients": "BUSY",
    "killed by user": "BUSY",
    "user executing the script": "NOPERM",
    "ACL failure in script": "NOPERM",
}


class Script(NamedTuple):
    """A script of one verb, and the head of its EVALSHA."""

    text: bytes
    head: bytes


def scripts(*, confirmed: bool) -> dict[str, Script]:
    """Return the script of each verb; ``confirmed`` where WAIT follows."""
    head = f"local TOUCH = {str(confirmed).lower()}\n{text_of('record')}"
    return {verb: script(head + text_of(verb), confirmed) for verb in VERBS}


def text_of(name: str) -> str:
    """Return the text of a file of ``scripts``."""
    return (files(__package__) / "scripts" / f"{name}.lua").read_text("utf-8")


def script(text: str, confirmed: bool) -> Script:
    """Return a script. Where WAIT follows its text goes along: one that is not there would have WAIT wait for nothing."""
    raw = text.encode()
    if confirmed:
        return Script(raw, b"$4\r\nEVAL\r\n$%d\r\n%b\r\n" % (len(raw), raw))
    sha = hashlib.sha1(raw, usedforsecurity=False).hexdigest().encode()  # Redis names scripts so
    return Script(raw, b"$7\r\nEVALSHA\r\n$40\r\n%b\r\n" % sha)


def by_text(packed: bytes, script: Script) -> bytes:
    """Return the call of a script that the server has not loaded, with its text in place of its name."""
    return packed.replace(script.head, b"$4\r\nEVAL\r\n$%d\r\n%b\r\n" % (len(script.text), script.text), 1)


def command(*parts: bytes | str | int) -> bytes:
    """Pack one command."""
    packed = [b"*%d\r\n" % len(parts)]
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode()
        packed.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(packed)


def evaluate(script: Script, keys: Sequence[bytes], arguments: Sequence[bytes]) -> bytes:
    """Pack the call of a script."""
    if len(keys) == 1 == len(arguments):  # as for nearly every claim
        key, argument = keys[0], arguments[0]
        return b"*5\r\n%b$1\r\n1\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (script.head, len(key), key, len(argument), argument)
    count = b"%d" % len(keys)
    rest = b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in (*keys, *arguments)])
    return b"*%d\r\n%b$%d\r\n%b\r\n%b" % (3 + len(keys) + len(arguments), script.head, len(count), count, rest)


def key_of(name: str) -> bytes:
    """Return the key of a name."""
    return PREFIX + name.encode()


def keys_of_waiters(key: bytes, sharded: bool) -> list[bytes]:
    """Return the keys of those who wait for a name, in the slot of its key: whether anybody does, and what wakes them.

    No name has a line break. Empty where there are none in that slot: for a name with a ``}`` and no hash tag, on a cluster.
    """
    keys = _behind(key)
    # by the keys themselves: without a hash tag, one may share the slot by chance
    if sharded and {key_slot(each) for each in keys} != {slot := key_slot(key)}:
        # no hash tag: the whole key becomes one. The break keeps it apart from that of the name {KEY}
        keys = _behind(b"%b{%b}\n" % (PREFIX, key))
        if key_slot(keys[0]) != slot:
            return []
    return keys


def _behind(key: bytes) -> list[bytes]:
    return [key + b"\nwaited", key + b"\nwake"]


def line(text: str) -> str:
    """Check a text that the record keeps in a line of its own."""
    if "\n" in text:
        raise ConfigurationError("a label, schedule or zone can't hold a line break")
    return text


def _maybe(number: int | None) -> str:
    return "" if number is None else str(number)


# -- requests, in the order that the scripts read them


def claim_argument(c: Claim) -> bytes:
    """Return a claim as lines."""
    return (
        f"{c.owner}\n{line(c.label)}\n{c.kind}\n{c.ttl}\n{c.apply_until}\n{c.retention}\n{line(c.schedule)}\n{line(c.zone_data)}\n"
        f"{_maybe(c.slot_start)}\n{_maybe(c.slot_end)}\n{c.not_before}\n{_maybe(c.late_from)}\n{c.period}\n{c.seal:d}\n{c.overlap:d}\n"
        f"{c.max_attempts}"
    ).encode(errors="replace")


def renewal_argument(r: Renewal) -> bytes:
    """Return a renewal as lines."""
    return f"{r.owner}\n{r.ttl}\n{r.retention}".encode()


def settlement_argument(s: Settlement) -> bytes:
    """Return a settlement as lines."""
    return f"{s.owner}\n{s.result}\n{s.retention}".encode()


def override_argument(o: Override) -> bytes:
    """Return an operator's change as lines."""
    return f"{o.action}\n{line(o.label)}\n{o.retention}\n{_maybe(o.mark)}\n{_maybe(o.expected_token)}".encode(errors="replace")


def write_back_argument(w: WriteBack) -> bytes:
    """Return a slot that ran degraded as lines."""
    return (
        f"{line(w.label)}\n{w.kind}\n{w.retention}\n{line(w.schedule)}\n{line(w.zone_data)}\n{w.slot_start}\n{_maybe(w.slot_end)}"
    ).encode(errors="replace")


# -- answers


def understood(read: Callable[P, T]) -> Callable[P, T]:
    """Make what is an answer of Redis, and none to what was asked, an outage (F2): a proxy speaks, or another kind of server."""

    @wraps(read)
    def read_or_unknown(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return read(*arguments, **named)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise OutcomeUnknown(f"redis answered something else than was asked: {error}") from error

    return read_or_unknown


def record(name: str, raw: bytes, history: bytes | None = None) -> Record | None:
    """Return the record that a value holds, with another history if one is given; None for an empty value."""
    try:
        return _record(name, raw, history) if raw else None
    except ValueError as error:
        raise ConfigurationError(f"the key of {name!r} holds something that this rota did not write: {error}") from error


def _record(name: str, raw: bytes, history: bytes | None) -> Record:
    (
        _,
        kind,
        owner,
        last_owner,
        expires,
        mark,
        start,
        end,
        last_result,
        attempts,
        token,
        outcome,
        settled,
        prior,
        expired,
        keep,
        schedule,
        zone,
        label,
        granted,
        kept,
    ) = raw.split(b"\n", 20)  # fmt: skip - in the order of record.lua
    return Record(
        name,
        kind.decode(),
        schedule.decode(),
        zone.decode(),
        int(token),
        owner.decode(),
        label.decode(),
        int(granted),
        int(expires),
        last_owner.decode(),
        last_result.decode(),
        expired == b"1",
        int(mark) if mark else None,
        int(prior) if prior else None,
        int(start) if start else None,
        int(end) if end else None,
        int(attempts),
        outcome.decode(),
        int(settled),
        int(keep),
        kept if history is None else history,
        1,
    )


@understood
def answer(name: str, reply: list[bytes]) -> Answer:
    """Return what became of a claim."""
    verdict, _, time = reply[0].partition(b"\n")
    now = int(time)
    found = record(name, reply[1])
    before = None if found is None or len(reply) < 3 else record(name, reply[2], found.history)
    return Answer(verdict.decode(), found, (now, now), before)


@understood
def settled(name: str, reply: list[bytes], history: bytes | None = None) -> Settled:
    """Return what became of a settlement or an operator's change, whose history is left out of the answer where we gave it."""
    applied, result, expired, time, whole = reply[0].split(b"\n")
    now = int(time)
    return Settled(
        applied == b"1", record(name, reply[1], None if whole == b"1" else history), (now, now), result.decode(), expired == b"1"
    )


@understood
def renewed(count: int, reply: bytes) -> tuple[int, list[bool]]:
    """Return the time, and for each of so many renewals whether it is held."""
    time, _, answers = reply.partition(b"\n")
    if len(answers) != count:
        raise ValueError(f"{len(answers)} renewals were answered, not {count}")
    return int(time), [each == 49 for each in answers]  # "1"


@understood
def read(name: str, reply: list[bytes]) -> tuple[Record | None, Now]:
    """Return the record, and the time."""
    now = int(reply[0])
    return record(name, reply[1]), (now, now)


@understood
def forgotten(reply: bytes) -> bool:
    """Return whether there was a record."""
    return {b"1": True, b"0": False}[reply]


@understood
def time(reply: list[bytes]) -> Now:
    """Return what TIME says."""
    seconds, microseconds = b" ".join(reply).split(b" ")  # of two texts, and not of one, whose bytes are two numbers
    now = int(seconds) * 1_000_000 + int(microseconds)
    return now, now


@understood
def scanned(reply: tuple[bytes, list[bytes]]) -> tuple[bytes, list[bytes]]:
    """Return the next cursor, and names."""
    cursor, keys = reply
    return b"%d" % int(cursor), [key[len(PREFIX) :] for key in keys]


# -- errors


def code_of(error: Exception) -> str:
    """Return the code of an error that the server answered with."""
    text = str(error)
    for kind in type(error).__mro__:
        if kind.__name__ in _CODES:
            return _CODES[kind.__name__]
    for said, code in _SAID.items():
        if said in text:
            return code
    # servers before 7.0 put what went wrong inside a script behind a text of their own
    return next((code for code in (*TROUBLE, *DENIED, "WRONGTYPE") if f"-{code} " in text or text.startswith(code)), text.split(" ", 1)[0])


def translated(error: Exception) -> RotaError:
    """Return rota's error for one that the server answered with: nothing was applied."""
    code = code_of(error)
    if code in TROUBLE:
        return Unavailable(f"redis can't serve now: {code} {_plain(error, code)}")
    if code in DENIED:
        if code == "NOPERM":
            hint = "the README of rota-redis names the rights that are needed"
            return ConfigurationError(f"redis lets us in, and the user lacks a right: {code} {_plain(error, code)}; {hint}")
        return ConfigurationError(f"redis refuses these credentials: {code} {_plain(error, code)}")
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return ConfigurationError(f"the server's certificate is not trusted (see ssl_ca_certs): {error}")
    if code == "WRONGTYPE" or "ROTAFORMAT" in str(error):
        return ConfigurationError("the key of this name holds something that this rota did not write: use another prefix or database")
    if code in ("MOVED", "ASK"):
        return ConfigurationError("this server is a node of a cluster: write redis+cluster://")
    return ConfigurationError(f"redis answered: {error}")


def is_split(error: Exception) -> bool:
    """Whether the keys of one call were on two nodes of a cluster, while their slot moves from one to the other; nothing was applied."""
    cause = error.__cause__
    return isinstance(cause, Exception) and code_of(cause) == "TRYAGAIN"


def _plain(error: Exception, code: str) -> str:
    return str(error).removeprefix(code).strip()


def lost(error: BaseException, sent: bool, address: tuple[str, int] | str) -> Unavailable:
    """Return rota's error for a connection that failed, which names the server, as not each of redis-py's errors does."""
    said, where = str(error) or type(error).__name__, address if isinstance(address, str) else f"{address[0]}:{address[1]}"
    if where not in said:
        said = f"{said} ({where})"
    if sent:
        return OutcomeUnknown(f"redis did not answer: {said}")
    return Unavailable(f"redis can't be reached: {said}")
