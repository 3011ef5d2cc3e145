# SPDX-License-Identifier: MIT
"""The facts of a ZooKeeper, what they mean to rota, and what is behind a connection that fails: for ``rota doctor``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kazoo.security import OPEN_ACL_UNSAFE
from rota.errors import ConfigurationError, RotaError, Unavailable
from rota.finding import BAD, OK, WARN, Finding, tls_mismatch

from ._step import Reply
from ._url import Place

if TYPE_CHECKING:
    from ._verbs import Verbs

Facts = Mapping[str, Any]

#: The longest that a look at what the port speaks may take, seconds.
PROBE = 1.0


async def facts(verbs: Verbs) -> dict[str, str | int | float | bool | None]:
    """Return what a doctor wants to know. What is not there is not made: it may be another chroot that is meant."""
    link = verbs.link
    chroot, client = link.place.chroot, await link.reader()
    there = client is not None or not chroot or await Reply((await link.connected()).exists_async(chroot)) is not None
    now, local = None if client is None else await verbs.touch(client), time.time()
    said = link.ask("srvr")
    return {
        "version": said.get("Zookeeper version", "unknown").partition("-")[0],
        "role": said.get("Mode"),
        "ensemble": link.ensemble if there else None,
        "chroot": chroot or "/",
        "chroot_exists": there,
        # by this host's clock: the leader's stamps every lease and slot
        "clock_difference": None if now is None else round(now / 1e6 - local, 3),
    }


def examine(place: Place, facts: Facts | RotaError, seconds: float) -> list[Finding]:
    """Return the findings."""
    if isinstance(facts, RotaError):
        return _failed(place, facts, seconds)
    if not facts["chroot_exists"]:  # the next verb would make it
        raise ConfigurationError(f"the chroot {facts['chroot']} does not exist")
    return [Finding(OK, "chroot", str(facts["chroot"])), *_servers(place, facts), *_durability(facts), *_rights(place)]


def _failed(place: Place, error: RotaError, seconds: float) -> list[Finding]:
    said = str(error)
    if "by TLS" in said and "WRONG_VERSION" not in said:
        cure = "Name the file of the certificates to trust by ?ca=, and each host as its certificate does."
        return [Finding(BAD, "tls", said, "Without it anybody could stand in for the servers.", cure)]
    if "does not exist" in said:
        why = "Nobody has used it yet. Jobs that name another one are not coordinated with those that name this."
        cure = (
            f"If another one was meant, correct the URL. Else make it, by who may: zkCli.sh create {place.chroot or 'PATH'}; the"
            " first claim tries that, too."
        )
        return [Finding(BAD, "chroot", said, why, cure)]
    if "password" in said:
        cure = (
            "Correct user and password in the URL, as in zookeeper://USER:PASSWORD@HOST (percent-encoded), and auth=; getAcl in zkCli.sh"
            " shows whose the nodes are."
        )
        return [Finding(BAD, "credentials", said, "What is there belongs to another user: no claim can be made.", cure)]
    found: list[Finding] = []
    tls = bool(place.options.get("use_ssl"))
    servers = place.shown.split(", ")
    if isinstance(error, Unavailable) or "by TLS" in said:
        cure = (
            "Leave tls=true out of the URL"
            if tls
            else "Write tls=true in the URL (and ca=, where the system does not trust the server's certificate)"
        )
        for server in servers:
            host, _, port = server.rpartition(":")
            share = min(PROBE, seconds / len(servers))
            found += tls_mismatch(host.strip("[]"), int(port), tls, b"ruok", share, f"{cure}; or name the servers' other port.")
    return found[:1]


def _servers(place: Place, facts: Facts) -> Iterator[Finding]:
    named = place.shown.count(",") + 1
    if not facts["ensemble"]:
        yield Finding(OK, "servers", "a single one; while it is away, claims are refused")
        return
    shown = f"an ensemble, of which the URL names {named}"
    if named == 1:
        why = "While that one is away, claims are refused, though the others would serve."
        yield Finding(WARN, "servers", shown, why, "Name all: zookeeper://HOST,HOST,HOST/CHROOT")
    else:
        yield Finding(OK, "servers", f"{shown}; connected to a {facts['role'] or 'member'}")


def _durability(facts: Facts) -> Iterator[Finding]:
    if not facts["ensemble"]:  # of an ensemble the core says what it promises
        yield Finding(OK, "durability", "what was handled outlives a power cut, and not the loss of its one server's disk")


def _rights(place: Place) -> Iterator[Finding]:
    whose = "anybody who reaches the servers" if place.acl is OPEN_ACL_UNSAFE else "the URL's user"
    yield Finding(OK, "permissions", f"what is made may be changed by {whose}")
