# SPDX-License-Identifier: MIT
"""Mutants of clauses R1 to R3 and F1 to F5, of the capabilities, and of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import rota.rules as rules
from rota import _breaker, _engine, _settling
from rota.backend import (
    LEASE,
    UNUSED,
    Answer,
    Claim,
    Record,
    Renewed,
    Settled,
)
from rota.duration import DAY, HOUR, SECOND
from rota.errors import NotSupported
from rota.finding import BAD, Finding
from rota.memory import MemoryDriver, MemoryStore

from mutants import CAPABILITIES, granted, mutant, rule
from mutants.leases import Deleting

# -- keeping

mutant("R1", "a sweep removes live records", (rules, "may_remove", lambda record, now: True))
mutant("R1", "a sweep removes young records", (rules, "may_remove", lambda record, now: not rules.is_live(record, now)))
mutant("R1", "a sweep removes nothing", (rules, "may_remove", lambda record, now: False))
mutant("R1", "the retention does not count", granted(lambda b, w, q: w._replace(keep_until=w.expires_at)))
mutant("R1", "a renewal does not lengthen the keeping", (rules, "may_remove", lambda record, now: record.token + 30 * DAY < now))
mutant("R2", "forget keeps the mark", rule("forget")(lambda right, r, now: (t := right(r, now)) and t._replace(mark=r.mark)))
mutant("R2", "forget keeps the token", rule("forget")(lambda right, r, now: (t := right(r, now)) and t._replace(token=r.token)))
mutant(
    "R2",
    "forget leaves the holder",
    rule("forget")(lambda right, r, now: (t := right(r, now)) and t._replace(owner=r.owner, expires_at=r.expires_at)),
)
mutant("R2", "forget makes tombstones of tombstones", rule("forget")(lambda right, r, now: right(r and r._replace(kind=LEASE), now)))
mutant("R2", "settling deletes", driver=Deleting)


class Dropping(MemoryDriver):
    def forget(self, name: str, timeout: float) -> bool:
        return self.store.records.pop(name, None) is not None


class Unbounded(MemoryDriver):
    def sweep(self, limit: int, timeout: float) -> int:
        return super().sweep(1_000_000, timeout)


mutant("R2", "forget deletes", driver=Dropping)
mutant("R3", "a sweep has no bound", driver=Unbounded)


class Unswept(MemoryDriver):
    def sweep(self, limit: int, timeout: float) -> int:
        return 0


mutant("R3", "a sweep removes nothing", driver=Unswept)

# -- failing


class Immortal(MemoryDriver):
    def close(self) -> None:
        pass


def _raises(engine: Any, ask: Any, error: Exception) -> Any:
    raise error


mutant("F1", "a closed driver goes on", driver=Immortal)
mutant("F2", "on_unavailable is ignored", (_engine, "unavailable", _raises))
mutant("F3", "a write-back disturbs a holder", rule("write_back")(lambda right, r, q, now: right(r and r._replace(expires_at=0), q, now)))
mutant(
    "F3",
    "a write-back moves the mark back",
    rule("write_back")(lambda right, r, q, now: ((a := right(r, q, now))[0], (a[1] or r) and (a[1] or r)._replace(mark=q.slot_start))),
)
mutant("F3", "a write-back is lost", rule("write_back")(lambda right, r, q, now: (right(r, q, now)[0], None)))
mutant(
    "F3",
    "a write-back does not ask for the kind",
    rule("write_back")(lambda right, r, q, now: right(r and r._replace(kind=q.kind), q, now)),
)
mutant(
    "F3",
    "a write-back ends the grant of an owner that ran out",
    rule("write_back")(lambda right, r, q, now: right(r and (r if r.expires_at > now else r._replace(owner="", expires_at=0)), q, now)),
)
mutant(
    "F3",
    "an unused seal takes back what was written back",
    rule("write_back")(
        lambda right, r, q, now: (
            (a := right(r, q, now))[0],
            a[1] and (a[1] if a[1].mark != (r and r.mark) else a[1]._replace(prior_mark=None)),
        )
    ),
)
mutant(
    "F3",
    "a write-back does not keep the record for longer",
    rule("write_back")(
        lambda right, r, q, now: ((a := right(r, q, now))[0], a[1] and (a[1]._replace(keep_until=r.keep_until) if r else a[1]))
    ),
)
mutant("F4", "there is no breaker", (_breaker.Breaker, "admits", lambda self, now: True))
mutant("F5", "an unconfirmed success is dropped", (_settling, "_keep", lambda engine, grant, settlement: None))

# -- capabilities


class Refusing(MemoryDriver):
    def override(self, override: Any, timeout: float) -> Settled:
        raise NotSupported("not today")


class Schematic(MemoryDriver):
    capabilities = CAPABILITIES._replace(verbs=CAPABILITIES.verbs | {"schema"})

    def schema(self, **options: str) -> str:
        return "\n"


class Rounding(MemoryDriver):
    def claim(self, claim: Claim, timeout: float) -> Answer:
        return super().claim(claim._replace(ttl=claim.ttl + -claim.ttl % SECOND), timeout)


class InMilliseconds(MemoryDriver):
    def now(self, timeout: float) -> Any:
        now = self.store.clock() // 1000
        return now, now


class Backwards(MemoryDriver):
    def now(self, timeout: float) -> Any:
        now = self.store.clock()
        return now, now - 1


class Deaf(MemoryDriver):
    def watch(self, name: str, owner: str, timeout: float) -> bool:
        import time

        time.sleep(min(timeout, 0.5))
        return False


class Hasty(MemoryDriver):
    def claim_when_free(self, claim: Any, owner: str, wait: float, timeout: float) -> Answer:
        return self.claim(claim, timeout)


class Truncating(MemoryDriver):
    def settle(self, settlement: Any, timeout: float) -> Settled:
        history = settlement.history
        return super().settle(settlement._replace(history=history and history[:1024]), timeout)


class Decoding(MemoryDriver):
    def settle(self, settlement: Any, timeout: float) -> Settled:
        history = settlement.history
        return super().settle(settlement._replace(history=history and history.decode("utf-8", "replace").encode()), timeout)


class Alike(MemoryDriver):
    """Its list matches as SQL's LIKE does."""

    def list(self, prefix: str, timeout: float, *, after: str = "", limit: int = 1000) -> list[Record]:
        import re

        pattern = re.compile("".join(".*" if c == "%" else "." if c == "_" else re.escape(c) for c in prefix), re.IGNORECASE | re.DOTALL)
        found = super().list("", timeout, after=after, limit=1_000_000)
        return [record for record in found if pattern.match(record.name)][:limit]


class Unordered(MemoryDriver):
    def list(self, prefix: str, timeout: float, *, after: str = "", limit: int = 1000) -> list[Record]:
        found = super().list(prefix, timeout, limit=1_000_000)
        return sorted((record for record in found if record.name > after), key=lambda record: record.name.encode("utf-16-be"))[:limit]


class Unpaged(MemoryDriver):
    def list(self, prefix: str, timeout: float, *, after: str = "", limit: int = 1000) -> list[Record]:
        return super().list(prefix, timeout, after=after)


class Inclusive(MemoryDriver):
    def list(self, prefix: str, timeout: float, *, after: str = "", limit: int = 1000) -> list[Record]:
        return super().list(prefix, timeout, after=after[:-1], limit=limit)


class Threadbound(MemoryDriver):
    def __init__(self, store: MemoryStore) -> None:
        import threading

        super().__init__(store)
        self._home = threading.get_ident()

    def claim(self, claim: Claim, timeout: float) -> Answer:
        import threading

        if threading.get_ident() != self._home:
            raise RuntimeError("this connection belongs to another thread")
        return super().claim(claim, timeout)


class Endless(MemoryDriver):
    def read(self, name: str, timeout: float) -> Any:
        record, now = super().read(name, timeout)
        return record and record._replace(slot_end=record.slot_end or 0), now


class Rounded(MemoryDriver):
    """Keeps instants as floats of little precision, as Lua's tostring does."""

    def read(self, name: str, timeout: float) -> Any:
        record, now = super().read(name, timeout)
        return record and record._replace(slot_end=record.slot_end and int(float(f"{record.slot_end:.14g}"))), now


class Factless(MemoryDriver):
    def facts(self, timeout: float) -> Any:
        return {}


class Helpless(MemoryDriver):
    def examine(self, facts: Any, timeout: float) -> Any:
        return [Finding(BAD, "store", "something is wrong", "It matters.")]


class Overwriting(MemoryDriver):
    def bare(self, name: str, writes: bool, timeout: float) -> None:
        if writes:
            self.store.records[name] = self.store.records[name]._replace(token=0)


class Unkept(MemoryDriver):
    def settle(self, settlement: Any, timeout: float) -> Settled:
        answer = super().settle(settlement, timeout)
        if answer.applied and settlement.result == UNUSED:
            record = self.store.records[settlement.name]
            self.store.records[settlement.name] = record._replace(outcome="unused")
        return answer


class Forgetful(MemoryDriver):
    def renew(self, renewals: Sequence[Any], timeout: float) -> Renewed:
        kept = {renewal.name: self.store.records.get(renewal.name) for renewal in renewals}
        renewed = super().renew(renewals, timeout)
        for renewal, held in zip(renewals, renewed.held, strict=True):
            if held:
                self.store.records[renewal.name] = self.store.records[renewal.name]._replace(keep_until=kept[renewal.name].keep_until)
        return renewed


mutant("capability verbs", "a refused verb works", verbs=CAPABILITIES.verbs - {"watch"})
mutant("capability verbs", "a bare write spoils the record", driver=Overwriting)
mutant("capability verbs", "a declared verb is refused", driver=Refusing)
mutant("capability facts", "facts without a version", driver=Factless)
mutant("capability facts", "a finding without a cure", driver=Helpless)
mutant("capability schema", "an empty schema", driver=Schematic)
mutant("capability values", "a word that is not defined", durability="eternal")
mutant(
    "capability minttl",
    "a lease at the floor lives much longer",
    granted(lambda b, w, q: w._replace(expires_at=w.expires_at + 10 * SECOND)),
)
mutant("capability minttl", "a lease ends at once", granted(lambda b, w, q: w._replace(expires_at=w.granted_at)))
mutant("capability ttlstep", "leases are rounded to seconds", driver=Rounding)
mutant("capability clock", "now is in milliseconds", driver=InMilliseconds)
mutant("capability clock", "now is an interval that ends before it begins", driver=Backwards)
mutant("capability clock", "a known clock is declared unknown", clock="none")
mutant("capability clock", "an exact clock with a bound", clock_bound=1000)
mutant("capability waiting", "a watcher is never woken", driver=Deaf)
mutant("capability waiting", "watching is declared as polling", waiting="poll")
mutant("capability waiting", "a claim in line does not wait", driver=Hasty, verbs=CAPABILITIES.verbs | {"claim_when_free"})
mutant("capability history", "history is truncated", driver=Truncating)
mutant("capability history", "history is taken for text", driver=Decoding)
mutant("capability history", "history is lost at the next claim", granted(lambda b, w, q: w._replace(history=b"")))
mutant("capability history", "history that is not declared is kept", history=False)
mutant("capability windows", "windows that are not declared work", windows=False)
mutant("capability async", "a twin that is not declared", native_async=False)
mutant("capability list", "a prefix is matched as LIKE does", driver=Alike)
mutant("capability list", "names in the order of UTF-16", driver=Unordered)
mutant("capability list", "the limit is ignored", driver=Unpaged)
mutant("capability list", "pages overlap", driver=Inclusive)
mutant(
    "capability token",
    "tokens of one name only are declared to be the store's",
    (rules, "next_token", lambda r, now: r.token + 1 if r else now - now % HOUR),
    token_scope="store",
)
mutant("capability threads", "a driver for one thread", driver=Threadbound)
mutant("capability record", "an end that is none reads as 0", driver=Endless)
mutant("capability record", "digits are lost", driver=Rounded)
mutant("model", "the outcome of a grant that was unused is kept", driver=Unkept)
mutant("model", "a renewal does not lengthen the keeping", driver=Forgetful)
