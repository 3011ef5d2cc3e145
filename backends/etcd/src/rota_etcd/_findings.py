# SPDX-License-Identifier: MIT
"""What the facts of an etcd mean to rota, and what is behind a connection that fails: for ``rota doctor``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rota.errors import RotaError, Unavailable
from rota.finding import BAD, OK, WARN, Finding, tls_mismatch

from ._url import Settings

Facts = Mapping[str, Any]

#: The longest that a look at what the port speaks may take, seconds.
PROBE = 1.0
#: How far the members' clocks may be apart: a tenth of the default ttl (L12); from the first on it is worth a word. Milliseconds.
APART, TOO_FAR = 500.0, 3000.0
#: etcd's space quota unless it is set otherwise (quota-backend-bytes), and the share of it that is worth a word.
QUOTA, NEARLY_FULL = 2 * 2**30, 0.8
#: Versions of which a leader that stood still revokes leases that its successor has renewed: from, and before (etcd issue 15247).
_REVOKES = ([3], [3, 4, 31]), ([3, 5], [3, 5, 13])


def examine(settings: Settings, facts: Facts | RotaError, seconds: float) -> list[Finding]:
    """Return the findings."""
    if isinstance(facts, RotaError):
        return _failed(settings, facts, seconds)
    return [*_time(settings, facts), *_members(facts), *_space(facts), *_durability(facts), *_credentials(facts)]


def _failed(settings: Settings, error: RotaError, seconds: float) -> list[Finding]:
    said = str(error)
    lowered = said.lower()
    if "certificate" in lowered or "unknown ca" in lowered or "unknown_ca" in lowered:
        cure = "Name the file of the certificates to trust by ?cacert=, hosts as their certificates do; cert= and key= if it wants ours."
        return [Finding(BAD, "tls", said, "Without it anybody could stand in for the members.", cure)]
    if "permission denied" in lowered:
        cure = f"etcdctl role grant-permission ROLE readwrite --prefix=true {settings.prefix}/, and grant the role to the user."
        return [Finding(BAD, "permissions", said, "No claim can be made.", cure)]
    if any(sign in lowered for sign in ("credentials", "authentication failed", "user name is empty", "password")):
        cure = (
            "Correct user and password in the URL, as in etcd://USER:PASSWORD@HOST (percent-encoded); etcdctl user list says who there is."
        )
        return [Finding(BAD, "credentials", said, "With these nobody is let in, however long it is tried.", cure)]
    found: list[Finding] = []
    if isinstance(error, Unavailable) or "TLS" in said:
        trusted = "cacert=, where the system does not trust the server's certificate"
        cure = "Write etcd:// without tls=" if settings.tls else f"Write etcds:// in the URL (and {trusted})"
        share = min(PROBE, seconds / len(settings.addresses))
        for host, port in settings.addresses:
            found += tls_mismatch(host, port, settings.tls, b"GET /version HTTP/1.0\r\n\r\n", share, f"{cure}; or name the other port.")
    return found[:1]


def _time(settings: Settings, facts: Facts) -> Iterator[Finding]:
    if settings.clock == "local":
        why = "Windows are decided by the clock of each host that claims: where two differ, a slot can be lost or come early."
        cure = "Leave clock=local out where the members answer HTTP; else keep all hosts synchronised by NTP."
        yield Finding(WARN, "clock", "this host's own, by clock=local", why, cure)
    elif facts["clock_width_ms"] is None:
        why = "Only a member's HTTP answers tell its time. Without them leases work, and windows (rota run --cron, --every) are refused."
        cure = (
            "Let HTTP through to the members' client port, or name the port that answers it by ?http_port= (listen-client-http-urls of"
            " etcd); or take this host's clock by ?clock=local."
        )
        yield Finding(BAD, "clock", "no member answers HTTP, so that the store's time can't be known", why, cure)
    spread = facts.get("clock_spread_ms")
    if spread is None:
        return
    shown = f"the members' clocks are {spread / 1000:.1f}s apart at least"
    if spread > APART:
        why = "When another member answers, leases and slots are judged by another time: beyond a tenth of a ttl only tokens protect (L12)."
        cure = "Synchronise the members by NTP."
        yield Finding(BAD if spread > TOO_FAR else WARN, "members' clocks", shown, why, cure)
    else:
        yield Finding(OK, "members' clocks", f"less than {APART:g}ms apart, as far as can be told")


def _members(facts: Facts) -> Iterator[Finding]:
    named = facts["endpoints"]
    if named == 1:
        yield Finding(OK, "members", "one endpoint; while it is away, claims are refused")
        return
    shown = f"{named} endpoints; one after the other is tried"
    version = _version(facts)
    if version and any(since <= version < mended for since, mended in _REVOKES):
        why = (
            "A leader that stood still for longer than a ttl (a frozen machine, a disk that hangs) revokes leases as it goes on that its"
            " successor has renewed: a name then has two holders until the first one is told, and only tokens protect (etcd issue 15247)."
        )
        cure = "Run etcd 3.4.31, 3.5.13, 3.6 or newer."
        yield Finding(WARN, "members", f"{shown}; they run etcd {facts['version']}", why, cure)
    else:
        yield Finding(OK, "members", shown)


def _version(facts: Facts) -> list[int]:
    return [int(part) for part in str(facts["version"]).partition("-")[0].split(".") if part.isdigit()]


def _space(facts: Facts) -> Iterator[Finding]:
    size = facts["db_size"]
    shown = f"the database has {size // 2**20} MiB"
    if size > NEARLY_FULL * QUOTA:
        why = "At its quota (2 GiB unless set otherwise) etcd refuses every claim until it is compacted."
        yield Finding(WARN, "space", shown, why, "Set auto-compaction-retention, run etcdctl defrag; or raise quota-backend-bytes.")
    else:
        yield Finding(OK, "space", shown, facts={"db_size": size})


def _durability(facts: Facts) -> Iterator[Finding]:
    shown = "what was handled outlives the loss of a minority of the members"
    if facts["endpoints"] == 1:  # which may be one of several, or all there are
        shown = "what was handled outlives a power cut; the loss of a disk only where the cluster has three members or more"
    version = _version(facts)
    if version and version < [3, 5]:
        shown += "; before etcd 3.5 a lease whose holder died is free later by as much as the leader's clock was set back"
    yield Finding(OK, "durability", shown)


def _credentials(facts: Facts) -> Iterator[Finding]:
    if facts["credentials_unchecked"]:
        shown = "authentication is off: the user and the password of the URL are not checked"
        why = "Whoever reaches the members may change who holds what, and the URL looks as if nobody else could."
        cure = "etcdctl auth enable, once root and the URL's user are there with their roles; or leave both out of the URL."
        yield Finding(WARN, "credentials", shown, why, cure)
