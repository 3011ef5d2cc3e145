# SPDX-License-Identifier: MIT
"""Mutants of clauses L1 to L12."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import rota.rules as rules
from rota import _ask, _engine, _heartbeat, grant
from rota.backend import (
    Answer,
    Claim,
    Renewed,
    Settled,
)
from rota.duration import HOUR
from rota.memory import MemoryDriver

from mutants import before_claim, granted, mutant, named, rule, settled

# -- L1

mutant("L1", "two live owners", (rules, "is_live", lambda record, now: False))
mutant(
    "L1", "somebody is live at the very instant of expiry", (rules, "is_live", lambda r, now: bool(r and r.owner and r.expires_at >= now))
)
mutant("L1", "a release frees nothing", settled(lambda record, request, written, answer: None if request.result == "released" else written))
mutant("L1", "names are folded to lower case", driver=named(str.lower))
mutant("L1", "names are cut", driver=named(lambda name: name[:254]))
mutant("L1", "names are normalised as paths", driver=named(lambda name: name.replace("//", "/")))
mutant("L1", "names are trimmed", driver=named(lambda name: name.rstrip("/")))
mutant("L1", "names in different Unicode forms share a record", driver=named(lambda name: name.replace("e\u0301", "é")))


class Racing(MemoryDriver):
    def claim(self, claim: Claim, timeout: float) -> Answer:
        record = self.store.records.get(claim.name)
        import time

        time.sleep(0.005)  # read, then write: not one step
        answer, changed = rules.claim(record, claim, self.store.clock())
        if changed is not None:
            self.store.put(changed)
        return answer


mutant("L1", "reads and writes in two steps", driver=Racing)

# -- L2

mutant("L2", "tokens of a name without a record start at 1", (rules, "next_token", lambda r, now: r.token + 1 if r else 1))
mutant("L2", "tokens stay", (rules, "next_token", lambda r, now: r.token if r else now))
mutant("L2", "tokens are the store's time alone", (rules, "next_token", lambda r, now: now))
mutant(
    "L2", "a renewal raises the token", rule("renew")(lambda right, r, q, now: (n := right(r, q, now)) and n._replace(token=n.token + 1))
)


class Deleting(MemoryDriver):
    def settle(self, settlement: Any, timeout: float) -> Settled:
        answer = super().settle(settlement, timeout)
        if answer.applied:
            self.store.records.pop(settlement.name, None)
        return answer


mutant("L2", "tokens restart after deletion", (rules, "next_token", lambda r, now: r.token + 1 if r else 10), driver=Deleting)
mutant("L2", "forget drops the token", rule("forget")(lambda right, r, now: (t := right(r, now)) and t._replace(token=0)))

# -- L3

mutant("L3", "a late renewal revives", rule("renew")(lambda right, r, q, now: right(r and r._replace(expires_at=now + 1), q, now)))
mutant(
    "L3", "a renewal adds", rule("renew")(lambda right, r, q, now: (n := right(r, q, now)) and n._replace(expires_at=r.expires_at + q.ttl))
)
mutant(
    "L3",
    "a renewal never shortens",
    rule("renew")(lambda right, r, q, now: (n := right(r, q, now)) and n._replace(expires_at=max(r.expires_at, n.expires_at))),
)
mutant("L3", "anybody renews", rule("renew")(lambda right, r, q, now: right((r and r.owner and r._replace(owner=q.owner)) or r, q, now)))
mutant("L3", "a renewal at the very instant of expiry is in time", rule("renew")(lambda right, r, q, now: right(r, q, now - 1)))
mutant(
    "L3",
    "a settled grant is renewed",
    rule("renew")(lambda right, r, q, now: right((r and not r.owner and r._replace(owner=r.last_owner, expires_at=now + 1)) or r, q, now)),
)


class Shuffling(MemoryDriver):
    def renew(self, renewals: Sequence[Any], timeout: float) -> Renewed:
        renewed = super().renew(renewals, timeout)
        return renewed._replace(held=sorted(renewed.held))


mutant("L3", "a batch is answered in the wrong order", driver=Shuffling)

# -- L4

mutant(
    "L4",
    "a release by name",
    rule("settle")(lambda right, r, q, now, at=None: right((r and r.owner and r._replace(owner=q.owner)) or r, q, now)),
)
mutant("L4", "a release deletes", driver=Deleting)
mutant("L4", "a settled owner is granted again", before_claim(lambda r, q, now: (r and r._replace(last_owner=""), q, now)))
mutant(
    "L4",
    "an expired grant is revived by its claim",
    before_claim(lambda r, q, now: ((r and r.expires_at <= now and r._replace(owner="")) or r, q, now)),
)
mutant(
    "L4",
    "a repeated release says lost",
    rule("settle")(lambda right, r, q, now, at=None: (Settled(False, r, (now, now)), None) if r and not r.owner else right(r, q, now)),
)
mutant(
    "L4",
    "a repeated release answers as it was asked",
    rule("settle")(lambda right, r, q, now, at=None: ((a := right(r, q, now))[0]._replace(result=q.result if a[0].applied else ""), a[1])),
)
mutant(
    "L4",
    "a release after expiry doesn't say so",
    rule("settle")(lambda right, r, q, now, at=None: ((a := right(r, q, now))[0]._replace(expired=False), a[1])),
)
mutant(
    "L4",
    "after a later grant a release says that all is well",
    rule("settle")(lambda right, r, q, now, at=None: ((a := right(r, q, now))[0]._replace(applied=r is not None, result=q.result), a[1])),
)

# -- L5 to L12: of the core, or seen through it

_won, _terms, _lose = _engine.Engine._won, _ask.policy.terms, grant.BaseGrant._lose
_observe = _engine.StoreClock.observe


def _won_late(self: Any, ask: Any, owner: str, sent: float, *rest: Any) -> Any:
    return _won(self, ask, owner, self.clock(), *rest)


def _without_margin(*arguments: Any) -> Any:
    terms = _terms(*arguments)
    terms.margin = -terms.ttl_s / 2
    return terms


def _unchecked(*arguments: Any) -> Any:
    options, capabilities, timeout = arguments
    try:
        return _terms(options, capabilities, timeout)
    except ValueError:
        return _terms({}, capabilities, timeout)


mutant("L5", "the deadline counts from the answer", (_engine.Engine, "_won", _won_late))
mutant("L6", "the holder's deadline comes after the store's", (_ask.policy, "terms", _without_margin))
mutant(
    "L7",
    "a claim found again gets a second token",
    before_claim(lambda r, q, now: ((r and r.owner == q.owner and r._replace(owner="", expires_at=0)) or r, q, now)),
)
mutant(
    "L7",
    "a claim found again is busy",
    before_claim(lambda r, q, now: ((r and r.owner == q.owner and r._replace(owner="f" * 32)) or r, q, now)),
)
mutant("L7", "apply_until is ignored", before_claim(lambda r, q, now: (r, q._replace(apply_until=now), now)))
mutant("L7", "apply_until is off by one", before_claim(lambda r, q, now: (r, q._replace(apply_until=q.apply_until - 1), now)))
mutant("L8", "an unknown claim is left as it is", (_engine.Engine, "abandon", lambda *arguments: None))
mutant("L9", "a lease is shorter than asked for", granted(lambda b, w, q: w._replace(expires_at=w.expires_at - q.ttl // 2)))
mutant("L9", "wrong times are not refused", (_ask.policy, "terms", _unchecked))
mutant("L10", "a child holds what its parent does", (_engine.Engine, "after_fork", lambda self: None))
mutant("L11", "leases are renewed one by one", (_heartbeat, "BATCH", 1))


class Lying(MemoryDriver):
    """Its answers tell a time that is not the one its records are made with."""

    def claim(self, claim: Claim, timeout: float) -> Answer:
        answer = super().claim(claim, timeout)
        assert answer.now is not None
        return answer._replace(now=(answer.now[0] - HOUR, answer.now[1] - HOUR))


mutant("L12", "answers carry another clock than the store's", driver=Lying)
mutant(
    "L12",
    "a step of the clock is passed over",
    (
        _engine.StoreClock,
        "observe",
        lambda self, now, sent, received: (_observe(self, now, sent, received), "")[1],
    ),
)
