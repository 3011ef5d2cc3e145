# SPDX-License-Identifier: MIT
"""What a doctor wants to know of the servers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ._wire import PREFIX, code_of, command, translated, understood
from ._wire import time as told

Facts = dict[str, str | int | float | bool | None]

_SETTINGS = ("appendonly", "appendfsync", "save", "min-replicas-to-write", "cluster-require-full-coverage")
#: What must be allowed, asked for in a way that changes nothing: no record has this key. What a script may not do, its error does not name.
_PROBES = {
    "get": command("GET", PREFIX),
    "set": command("SET", PREFIX, "", "XX"),
    "exists": command("EXISTS", PREFIX),
    "pttl": command("PTTL", PREFIX),
    "pexpire": command("PEXPIRE", PREFIX, 1),
    "del": command("DEL", PREFIX),
    "eval": command("EVAL", "return 0", 1, PREFIX),
    "evalsha": command("EVALSHA", "0" * 40, 1, PREFIX),
    "blpop": command("BLPOP", PREFIX, "0.001"),
}
#: What only those who operate need: ``rota ls`` and the doctor.
FURTHER = ("info", "scan", "config|get", "acl|whoami")
_COMMANDS = [
    command("TIME"),
    command("INFO"),
    command("SCAN", 0, "COUNT", 1),
    *_PROBES.values(),
    *(command("CONFIG", "GET", name) for name in _SETTINGS),  # may be forbidden: then None
    command("ACL", "GETUSER", "default"),  # may be forbidden, too
    command("ACL", "WHOAMI"),
]
QUESTION, QUESTIONS = b"".join(_COMMANDS), len(_COMMANDS)

_WHOLE = {"connected_slaves": "replicas", "maxmemory": "maxmemory", "used_memory": "used_memory", "evicted_keys": "evicted_keys"}


@understood
def read(replies: Sequence[Any]) -> Facts:
    """Return the facts of one server."""
    clock, info, scan, *rest = replies
    denied = {name: _is_denied(reply) for name, reply in (("time", clock), ("info", info), ("scan", scan))}
    for name, reply in (("time", clock), ("info", info)):
        if isinstance(reply, Exception) and not denied[name]:
            raise translated(reply) from reply
    local = time.time()
    probes, rest = rest[: len(_PROBES)], rest[len(_PROBES) :]
    forbidden = _lacking(probes) + ["time"] * denied["time"]
    further = [name for name in ("info", "scan") if denied[name]]
    lines = (line.split(":", 1) for line in ("" if denied["info"] else info.decode(errors="replace")).splitlines() if ":" in line)
    said = dict(lines)
    settings = {name: _value(reply) for name, reply in zip(_SETTINGS, rest, strict=False)}
    policy = said.get("maxmemory_policy")
    user = rest[-1].decode() if isinstance(rest[-1], bytes) else None
    facts: Facts = {
        "server": "valkey" if "valkey_version" in said else "redis",
        "version": said.get("valkey_version") or said.get("redis_version"),
        "mode": said.get("redis_mode") or said.get("server_mode"),
        "role": {"master": "primary", "slave": "replica"}.get(said.get("role", ""), said.get("role")),
        "maxmemory_policy": policy,
        # L2 holds nevertheless, but a live lease or a handled slot may be forgotten
        "evicts": policy is not None and policy != "noeviction",
        "appendonly": said["aof_enabled"] == "1" if "aof_enabled" in said else None,
        "appendfsync": settings["appendfsync"],
        "snapshots": None if settings["save"] is None else settings["save"] != "",
        "min_replicas_to_write": None if settings["min-replicas-to-write"] is None else int(settings["min-replicas-to-write"]),
        "forbidden": ", ".join(forbidden) or None,
        "forbidden_further": ", ".join(further) or None,
        "user": user,
        "any_password": user == "default" and isinstance(rest[-2], list) and b"nopass" in rest[-2][1],
        "clock_difference": None if denied["time"] else round(told(clock)[0] / 1e6 - local, 3),
    }
    facts.update({ours: int(said[theirs]) for theirs, ours in _WHOLE.items() if said.get(theirs, "").isdigit()})
    return facts


def _is_denied(reply: Any) -> bool:
    return isinstance(reply, Exception) and code_of(reply) == "NOPERM"


def _lacking(probes: Sequence[Any]) -> list[str]:
    """Return the commands that the user may not use, or the keys where it is those that are kept from it."""
    denied = {name: str(reply) for name, reply in zip(_PROBES, probes, strict=True) if _is_denied(reply)}
    commands = [name for name, said in denied.items() if " key" not in said]
    return commands + ["~rota:*"] * (len(commands) < len(denied))


def together(kind: str, servers: list[Facts]) -> Facts:
    """Return the facts of all primaries: a value where all agree, else all values, by the order of the servers."""
    facts: Facts = {"topology": kind, "primaries": len(servers)}
    for name in servers[0]:
        values = [server.get(name) for server in servers]
        same = all(value == values[0] for value in values)
        facts[name] = any(values) if name == "evicts" else values[0] if same else ", ".join(map(str, values))
    return facts


def _value(reply: Any) -> str | None:
    return reply[1].decode() if isinstance(reply, list) and len(reply) == 2 else None
