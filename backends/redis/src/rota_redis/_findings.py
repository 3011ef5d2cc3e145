# SPDX-License-Identifier: MIT
"""What the facts of a Redis mean to rota, and what is behind a connection that fails: for ``rota doctor``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rota.errors import RotaError, Unavailable
from rota.finding import BAD, OK, WARN, Finding, tls_mismatch

from ._facts import FURTHER
from ._url import Settings

Facts = Mapping[str, Any]

#: The share of the memory from which on it is worth a word.
NEARLY_FULL = 0.9
#: The longest that a look at what the port speaks may take, seconds.
PROBE = 1.0
_NEEDED = "rota needs it for claims, or to wake waiters."
_FURTHER = "rota run works without; rota ls needs +scan, and the doctor +info: what it can't ask for it can't judge."


def examine(settings: Settings, facts: Facts | RotaError, seconds: float) -> list[Finding]:
    """Return the findings."""
    if isinstance(facts, RotaError):
        return _failed(settings, facts, seconds)
    if "info" in str(facts["forbidden_further"]):  # nothing else is known
        return list(_rights(facts))
    ours = [*_replicas(settings, facts), *_rights(facts), *_credentials(settings, facts)]
    return [*_role(facts), *_eviction(facts), *_memory(facts), *_durability(facts), *ours]


def _failed(settings: Settings, error: RotaError, seconds: float) -> list[Finding]:
    said = str(error)
    if any(code in said for code in ("WRONGPASS", "NOAUTH", "invalid password", "without any password", "invalid username")):
        cure = (
            "Correct user and password in the URL, as in redis://USER:PASSWORD@HOST (percent-encoded; no USER means default): requirepass,"
            " and ACL LIST at the server, say who may come."
        )
        return [Finding(BAD, "credentials", said, "With these nobody is let in, however long it is tried.", cure)]
    if "NOPERM" in said:
        return [_denied(said)]
    if "CERTIFICATE_VERIFY_FAILED" in said or "certificate" in said.lower():
        cure = "Name the file of the certificates to trust by ?ssl_ca_certs=, and the host as the server's certificate does."
        return [Finding(BAD, "tls", said, "Without it anybody could stand in for the server.", cure)]
    address = settings.addresses[0]
    if not isinstance(error, Unavailable) or isinstance(address, str):
        return []
    schemes = {
        ("single", True): "redis:// instead of rediss://",
        ("single", False): "rediss:// instead of redis://",
    }
    other = schemes.get((settings.kind, settings.tls), "no ssl=" if settings.tls else "ssl=true")
    trusted = "" if settings.tls else " (and ssl_ca_certs=, where the system does not trust the server's certificate)"
    cure = f"Write {other} in the URL{trusted}; or name the server's other port."
    return tls_mismatch(*address, settings.tls, b"PING\r\n", min(seconds, PROBE), cure)


def _role(facts: Facts) -> Iterator[Finding]:
    where = facts["topology"]
    if facts["role"] != "primary":
        cure = "Name the primary; or the sentinels, which know who it is: redis+sentinel://HOST,HOST/SERVICE."
        yield Finding(BAD, "role", f"the server is a {facts['role']}, and takes no writes", "No claim can be made there.", cure)
        return
    shown = {"sentinel": "the primary that the sentinels name", "cluster": f"a cluster of {facts['primaries']} primaries"}
    alone = "one primary; while it is away, claims are refused"
    yield Finding(OK, "role", shown.get(where, alone), facts={"topology": where, "primaries": facts["primaries"]})


def _eviction(facts: Facts) -> Iterator[Finding]:
    policy, limit = facts["maxmemory_policy"], facts.get("maxmemory")
    if not facts["evicts"]:
        yield Finding(OK, "eviction", f"maxmemory-policy {policy}: no record is thrown away")
        return
    why = "When memory runs short, Redis throws away keys: a live lease, so that two run at once, or a handled slot, which runs again."
    cure = "CONFIG SET maxmemory-policy noeviction, and in redis.conf; or give rota a Redis of its own."
    never = "" if limit else "; without a maxmemory it never comes to that"
    yield Finding(BAD if limit else WARN, "eviction", f"maxmemory-policy {policy}{never}", why, cure)


def _memory(facts: Facts) -> Iterator[Finding]:
    limit, used = facts.get("maxmemory"), facts.get("used_memory")
    if isinstance(limit, int) and isinstance(used, int) and limit and used > NEARLY_FULL * limit and not facts["evicts"]:
        why = "A full Redis refuses claims and successes (OOM)."
        yield Finding(WARN, "memory", f"{used * 100 // limit} % of maxmemory is used", why, "Raise maxmemory, or find what fills it.")


def _durability(facts: Facts) -> Iterator[Finding]:
    again = "every slot that is still open may run once more. Tokens grow all the same"
    if facts["appendonly"] is True and facts["appendfsync"] != "no":
        lost = "no" if facts["appendfsync"] == "always" else "at most a second"
        yield Finding(OK, "durability", f"appendonly yes, appendfsync {facts['appendfsync'] or 'unknown'}: a crash loses {lost} of it")
    elif facts["appendonly"] is True:
        why = f"A crash of the host loses up to half a minute: {again}."
        yield Finding(WARN, "durability", "appendonly yes, appendfsync no", why, "CONFIG SET appendfsync everysec, and in redis.conf.")
    elif facts["snapshots"] is not False:
        shown = "snapshots only" if facts["snapshots"] else "no append-only file; whether there are snapshots this user can't see"
        why = f"A crash loses what came after the newest snapshot: {again}."
        yield Finding(WARN, "durability", shown, why, "CONFIG SET appendonly yes, and in redis.conf.")
    else:
        why = f"A restart loses everything, leases too: {again}."
        yield Finding(WARN, "durability", "nothing is written to disk", why, "CONFIG SET appendonly yes, and in redis.conf.")


def _replicas(settings: Settings, facts: Facts) -> Iterator[Finding]:
    wanted, text = settings.wait_replicas, str(facts.get("replicas") or 0)
    counts = [int(part) for part in text.split(", ") if part.isdigit()] or [0]
    least, most = min(counts), max(counts)
    shown = f"{text} replica{'' if text == '1' else 's'}"
    if wanted > least:
        why = "Each grant waits for so many replicas, and is given back when they don't confirm: no claim succeeds."
        cure = f"Attach replicas, or write wait_replicas={least} in the URL." if least else "Attach replicas, or leave wait_replicas= out."
        yield Finding(BAD, "replicas", f"wait_replicas={wanted}, and there are {shown}", why, cure)
    elif most and not wanted:
        why = (
            "Replication is asynchronous: a replica that takes over without the newest writes lets their slots run once more, and a lease"
            " be held twice (W0)."
        )
        cure = "Write wait_replicas=1 in the URL: a grant then counts once a replica has it."
        yield Finding(WARN, "replicas", f"{shown}, and no wait_replicas= in the URL", why, cure)
    else:
        yield Finding(OK, "replicas", f"{shown}, of which {wanted} must confirm a grant" if wanted else shown)


def _denied(said: str) -> Finding:
    """Judge an error of the server, which names what is not allowed: a command, or else a key."""
    user = re.search(r"[Uu]ser ([^ ,;:']+) has no permissions", said)
    command = re.search(r"run the '([^']+)' command", said)
    name = user[1] if user and user[1] != "this" else "USER"
    if command is None:
        right = "~rota:*" if " key" in said else ""
        cure = f"ACL SETUSER {name} {right}" if right else "The README of rota-redis names the rights that rota run needs."
        return Finding(BAD, "permissions", said, _NEEDED, cure)
    right = f"+{command[1].lower()}"
    if command[1].lower() in FURTHER:
        return Finding(WARN, "permissions", said, _FURTHER, f"ACL SETUSER {name} {right}")
    return Finding(BAD, "permissions", said, _NEEDED, f"ACL SETUSER {name} {right}")


def _rights(facts: Facts) -> Iterator[Finding]:
    user = str(facts["user"] or "USER")
    for key, level, why in (("forbidden", BAD, _NEEDED), ("forbidden_further", WARN, _FURTHER)):
        if facts[key]:
            # those of several servers may be together
            names = [name for name in dict.fromkeys(str(facts[key]).split(", ")) if name != "None"]
            rights = " ".join(name if name.startswith("~") else f"+{name}" for name in names)
            who = f"the user {user}" if facts["user"] else "the URL's user"
            yield Finding(level, "permissions", f"{who} may not use: {', '.join(names)}", why, f"ACL SETUSER {user} {rights}")
            return
    yield Finding(OK, "permissions", f"the user {facts['user'] or 'of the URL'} may do what rota needs")


def _credentials(settings: Settings, facts: Facts) -> Iterator[Finding]:
    if settings.connection.get("password") and facts["any_password"] is not False:
        shown = "the user default has no password: that of the URL is not checked"
        why = "Whoever reaches the server may change who holds what, and the URL looks as if nobody else could."
        yield Finding(WARN, "credentials", shown, why, "Set requirepass; or leave user and password out of the URL.")
