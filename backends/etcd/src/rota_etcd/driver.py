# SPDX-License-Identifier: MIT
"""The verbs of the contract over etcd.

A name is held while its lease key is there, which etcd itself deletes with its lease: leases need no time of day. Each verb reads the
record and that key in one request, lets rota's rules decide, and writes both in one transaction that applies only if neither has changed.

A claim's transaction puts a key on the etcd lease of its grant. So a request that is stuck somewhere can't win later (L7): whoever
finishes the owner revokes that lease, and etcd refuses a transaction that puts a key on a lease that is gone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from rota import rules
from rota.backend import (
    LATE,
    LEASE,
    STALE,
    UNUSED,
    WON,
    Answer,
    Backend,
    Claim,
    Driver,
    Now,
    Override,
    Record,
    Renewal,
    Renewed,
    Settled,
    Settlement,
    WriteBack,
)
from rota.capabilities import Capabilities
from rota.duration import SECOND
from rota.errors import ConfigurationError, OutcomeUnknown, RotaError, Unavailable
from rota.url import Url

from . import _wire
from ._clock import BOUND, Clock, members, monotonic
from ._codec import Found
from ._leases import Leases, is_shared, whole_seconds
from ._link import LEAST, Link, OwnEndpoints, Refusal
from ._names import Names
from ._shared import SharedLeases
from ._url import MIN_TTL, OPTIONS, Settings, settings

if TYPE_CHECKING:
    from rota.finding import Finding

T = TypeVar("T")

#: A record is written anew after so many seconds of renewals, and so many of them with one renewal.
REWRITE, REWRITES = 86_400.0, 10
#: A claim this far from the ends of its slot is decided by the time as far as it is known, and does not wait to know it better
#: (microseconds): more than a second, which a member tells, and the time by which callers think that the next slot is near.
EDGE = 10 * SECOND
#: How long `close` takes to revoke what is left, seconds.
LAST = 0.2


class EtcdDriver(Driver):
    """Blocking verbs; the async face uses them from threads."""

    capabilities = Capabilities(
        verbs=frozenset({"watch", "override", "record", "facts", "sweep"}),
        min_ttl=MIN_TTL * SECOND,
        ttl_step=SECOND,
        clock="interval",
        clock_bound=int(BOUND * SECOND),
        waiting="watch",
        durability="quorum",
    )

    def __init__(self, link: Link, clocks: Sequence[Clock], settings: Settings) -> None:
        self.link = link
        self.names = Names(link, settings.prefix)
        self._settings = settings
        self.capabilities = self.capabilities._replace(min_ttl=settings.min_ttl * SECOND)
        self._clocks = clocks
        self._leases = SharedLeases(link, self.names.keys) if settings.leases == "shared" else Leases(link)
        self._swept = b""

    # -- deciding

    def _decide(
        self, name: str, deadline: float, decide: Callable[[Record | None, Now], tuple[T, Record | None]], *, fences: bool = False
    ) -> tuple[T, Now | None]:
        """Read, let the rules decide, write; again if somebody else wrote in between. Return their answer, and the store's time.

        With ``fences`` the holder's etcd lease is revoked before, so that it can't be renewed any more once the record is changed. Before
        that the record says so, and if the holder releases it meanwhile, no other grant takes that lease over. One that is shared is left:
        its driver looks at the key whenever it renews.
        """
        now, known = self._times(deadline)
        seen = before = self.names.recall(name)
        before = before or self.names.find(name, deadline)
        while True:
            answer, changed = decide(before.record(now), now)
            if changed is None:
                if before is not seen:
                    return answer, known
                before = self.names.find(name, deadline)
                continue
            if fences and before.lease and not is_shared(before.lease):
                if before.fenced or before.stored is None:
                    self._leases.revoke(before.lease, deadline)
                else:
                    self.names.write(name, before, before.stored, deadline, before.seconds, fences=True)
                before = self.names.find(name, deadline)
                continue
            replaced = before
            is_written, before = self.names.write(name, before, changed, deadline, before.seconds)
            if is_written:
                if replaced.lease and not changed.owner:
                    self._let_go(replaced, deadline)
                return answer, known

    def _let_go(self, ended: Found, deadline: float) -> None:
        """Hand on the etcd lease of a grant that this driver made and has ended; revoke another one, so that its driver can't renew it."""
        owner = ended.stored.owner if ended.stored is not None else ""
        lease = self._leases.drop(owner)
        if lease is not None and lease.id == ended.lease:
            if not ended.fenced:
                self._leases.hand_on(lease)
        elif not is_shared(ended.lease):
            with suppress(RotaError):
                self._leases.revoke(ended.lease, deadline)

    def _settle(
        self, name: str, deadline: float, decide: Callable[[Record | None, Now], tuple[Settled, Record | None]], *, fences: bool = False
    ) -> Settled:
        settled, known = self._decide(name, deadline, decide, fences=fences)
        return settled if settled.now is known else settled._replace(now=known)

    # -- time

    def _deadline(self, timeout: float) -> float:
        if self.link.closed:
            raise Unavailable("the client is closed")
        return monotonic() + timeout

    def _time(self, deadline: float, sharp: bool = False) -> Now | None:
        return self._clocks[self.link.at].interval(deadline, sharp)

    def _sharp(self, deadline: float) -> Now | None:
        """Return the store's time for whom it decides; None if a member answers all but HTTP."""
        known = self._time(deadline, sharp=True)
        if known is None:
            self.link.call(_wire.Range(key=self.names.keys.records), deadline)  # is it HTTP that didn't answer, or all of etcd?
            known = self._time(deadline, sharp=True)
            if known is None and deadline - monotonic() < LEAST:
                raise Unavailable("no time is left to ask for the time")
        return known

    def _times(self, deadline: float) -> tuple[Now, Now | None]:
        """Return the time to write into records, and the store's as far as known.

        Without the latter the former is this host's: leases are not decided by it.
        """
        known = self._clocks[self.link.at].interval(deadline, False)
        if known is not None:
            return known, known
        here = time.time_ns() // 1000
        return (here, here), None

    # -- verbs

    def claim(self, claim: Claim, timeout: float) -> Answer:
        deadline = self._deadline(timeout)
        began = deadline - timeout
        seen = before = self.names.recall(claim.name)
        looked = before = before or self.names.look(claim.name, deadline)
        now, known = self._times(deadline)
        if claim.kind != LEASE and (known is None or not _is_well_inside(claim, before, now)):
            known = self._sharp(deadline)
            now = known or now
        if known is None:
            if claim.kind != LEASE:
                raise ConfigurationError(
                    "etcd's members don't answer HTTP, which alone tells their time, and windows are decided by it: leases work;"
                    " else name the port by http_port=, or take this host's clock by clock=local"
                )
            claim = claim._replace(apply_until=2**63)  # by a clock that nobody knows nothing is stale; the etcd lease guards (L7)
        keys, asked, lease, won = self.names.keys, claim.ttl, None, False
        try:
            while True:
                answer, changed = rules.claim(before.record(now), claim, now[0], now)
                # what was remembered shows to be so by a write alone, and what was looked at does for refusing alone; not that it was late,
                # before which it may have been handled (W2): that is told by a look behind `now`
                if (before is seen and (changed is None or answer.verdict != WON)) or (
                    before is looked and (answer.verdict == LATE or (before.held and (changed is not None or answer.verdict == WON)))
                ):
                    before = self.names.find(claim.name, deadline)
                    continue
                if changed is None:
                    won = answer.verdict == WON
                    if won and before.lease and not self._is_confirmed(claim, before.lease, deadline):
                        before = self.names.find(claim.name, deadline)
                        continue
                    break
                if answer.verdict != WON:
                    is_written, before = self.names.write(claim.name, before, changed, deadline, before.seconds)
                    if is_written:
                        break
                    continue
                if before.lease and not is_shared(before.lease):
                    # somebody took the record away by hand, and left the holder its key: it must not go on beside the new one
                    self._leases.revoke(before.lease, deadline)
                    before = self.names.find(claim.name, deadline)
                    continue
                # `now` is from before this request, so the record's times are never ahead of what etcd counts
                lease = self._leases.take(claim, deadline)
                # L7: who finishes this owner takes that lease away from here on. Who came before found none, and was done once it was told
                # a time after `apply_until`: it is behind `now`, if this thread stood still.
                if known is not None and known[1] + (monotonic() - began) * SECOND > claim.apply_until:
                    later = self._time(deadline)
                    if later is not None and later[0] > claim.apply_until:
                        answer, known = Answer(STALE, before.record(later), later), later
                        break
                if lease.seconds > lease.asked and claim.ttl == asked:
                    claim = claim._replace(ttl=lease.seconds * SECOND)
                    continue
                is_renewed = self._leases.renew_beside(lease, began, deadline)
                hold = (keys.guards + b"%d" % lease.id if claim.overlap else keys.leases + claim.name.encode()), lease.id
                try:
                    is_written, before = self.names.write(claim.name, before, changed, deadline, lease.seconds, hold)
                except Refusal as refusal:  # the etcd lease is not there
                    lease.doubtful = True
                    if self._leases.drop(claim.owner) is None:
                        raise Unavailable("the claim was given up meanwhile") from refusal
                    before = self.names.find(claim.name, deadline)
                    continue
                if is_written:
                    won = True
                    try:
                        if claim.overlap or (
                            (is_renewed is None or is_renewed())
                            and (
                                not self._leases.shares
                                or self._leases.applied(claim.owner, lease, changed.token, before.written)
                                or self._renew_otherwise(_renewal(claim), monotonic(), deadline)
                            )
                        ):
                            break
                    except Unavailable as error:
                        raise OutcomeUnknown("the claim was applied, and nothing told for how long") from error
                    before, won = self.names.find(claim.name, deadline), False
        except BaseException as error:
            if lease is not None and (isinstance(error, OutcomeUnknown) or not isinstance(error, RotaError)):
                self._leases.doubt(claim.owner, lease)  # also when interrupted
            raise
        finally:
            is_over = lease is not None and (not won or claim.overlap) and not self._leases.is_doubtful(claim.owner, lease)
            if lease is not None and is_over and self._leases.drop(claim.owner) is not None:
                self._leases.hand_on(lease)
        if answer.verdict != WON or lease is None:
            return answer if known is not None else answer._replace(now=None)
        age = max(0, math.ceil((began - lease.renewed_at) * SECOND))
        return Answer(WON, answer.record, known, answer.before, claim.ttl if claim.ttl > asked else 0, age)

    def _is_confirmed(self, claim: Claim, lease: int, deadline: float) -> bool:
        """Make sure that a grant that was found again has as long to live as its claim asked for; return False if it has ended."""
        mine = self._leases.of(claim.owner)
        if mine is None or not mine.doubtful:
            return True
        if is_shared(lease):
            return self._renew_otherwise(_renewal(claim), monotonic(), deadline)
        return self.link.keep_alive([lease], deadline).get(lease, 0) > 0

    def renew(self, renewals: Sequence[Renewal], timeout: float) -> Renewed:
        deadline, sent = self._deadline(timeout), monotonic()
        held = self._leases.renew(renewals, deadline)
        for at, renewal in enumerate(renewals):
            if held[at] is False:
                held[at] = None
                try:
                    held[at] = self._renew_otherwise(renewal, sent, deadline)
                except Unavailable:
                    if renewal is renewals[-1] and all(each is None for each in held):
                        raise  # nothing answered
        self._keep_records([renewal for renewal, is_held in zip(renewals, held, strict=True) if is_held], deadline)
        return Renewed(held, self._time(deadline))

    def _keep_records(self, renewals: Sequence[Renewal], deadline: float) -> None:
        """Write the `keep_until` that follows from renewals (R1), which leave records alone, once a day. What fails is done next time."""
        now = monotonic()
        kept = ((renewal, self._leases.kept(renewal.owner)) for renewal in renewals)
        old = [(renewal, grant) for renewal, grant in kept if grant is not None and now - grant.kept_at > REWRITE]
        for renewal, grant in old[:REWRITES]:
            with suppress(RotaError):
                self._keep_record(renewal, deadline)
                grant.kept_at = now

    def _keep_record(self, renewal: Renewal, deadline: float) -> None:
        self._decide(renewal.name, deadline, lambda record, now: (None, rules.renew(record, renewal, now[0])))

    def _renew_otherwise(self, renewal: Renewal, sent: float, deadline: float) -> bool:
        """Renew a grant after a look at its key: another driver's, or one whose etcd lease is gone, or may have lost the key in a restore.

        An etcd lease of another length keeps that: the grant gets a new one, renewed since it was ``sent``. So it does instead of one that
        is shared, whose other grants nobody may have asked to renew.
        """
        asked, other, stream = whole_seconds(renewal.ttl), None, self.link.stream
        now, _ = self._times(deadline)
        before = self.names.find(renewal.name, deadline)
        while True:
            record = before.record(now)
            if record is None or record.owner != renewal.owner or not before.held:
                self._leases.drop(renewal.owner)
                return False
            is_own = not is_shared(before.lease)
            if other is None and is_own and self.link.keep_alive([before.lease], deadline).get(before.lease) == asked:
                self._leases.know(renewal.owner, before.lease, stream)
                return True
            other = other or self._leases.another(renewal, sent, deadline)
            longer = renewal._replace(ttl=max(renewal.ttl, other.seconds * SECOND))
            changed = rules.renew(record, longer, now[0])
            hold, replaced = (self.names.keys.leases + renewal.name.encode(), other.id), before.lease
            try:
                is_written, before = self.names.write(renewal.name, before, changed, deadline, other.seconds, hold)
            except Refusal as refusal:
                raise Unavailable("the etcd lease that the grant was to move to is not there") from refusal
            if is_written:
                is_whole = self._leases.adopt(renewal.owner, renewal.name, other, record.token, before.written)
                if is_own:
                    with suppress(Unavailable):
                        self._leases.revoke(replaced, deadline)
                if is_whole:
                    return True
                other = None

    def settle(self, settlement: Settlement, timeout: float) -> Settled:
        def decide(record: Record | None, now: Now) -> tuple[Settled, Record | None]:
            return rules.settle(record, settlement, now[0], now)

        deadline = self._deadline(timeout)
        settled = self._settle(settlement.name, deadline, decide)
        # dropped before anything else is done with it: the claim may end just now on another thread, which hands on what it still finds
        lease = self._leases.drop(settlement.owner)
        if lease is not None and not settled.applied and settlement.result == UNUSED:
            # a claim that may still be on its way (L7): without its etcd lease it can't be applied; it may have been, just before
            try:
                self._leases.finish(lease, deadline)
                settled = self._settle(settlement.name, deadline, decide)
            except BaseException:
                self._leases.adopt(settlement.owner, settlement.name, lease)  # for the next one who tries
                raise
        return settled

    def read(self, name: str, timeout: float) -> tuple[Record | None, Now | None]:
        deadline = self._deadline(timeout)
        before = self.names.find(name, deadline)
        now, known = self._times(deadline)
        return before.record(now), known

    def list(self, prefix: str, timeout: float, *, after: str = "", limit: int = 1000) -> list[Record]:
        deadline = self._deadline(timeout)
        first = max(prefix.encode(), after.encode() + b"\0" if after else b"")
        page = self.names.page(prefix.encode(), first, limit, deadline)
        now, _ = self._times(deadline)
        return [record for _, before in page if (record := before.record(now)) is not None]

    def forget(self, name: str, timeout: float) -> bool:
        def decide(record: Record | None, now: Now) -> tuple[bool, Record | None]:
            tombstone = rules.forget(record, now[0])
            return tombstone is not None, tombstone

        return self._decide(name, self._deadline(timeout), decide, fences=True)[0]

    def now(self, timeout: float) -> Now | None:
        deadline = self._deadline(timeout)
        return self._sharp(deadline)

    def close(self) -> None:
        self._leases.close(LAST)
        self.link.close()

    def after_fork(self) -> None:
        self._leases.reset()
        self.link.after_fork()
        for clock in self._clocks:
            clock.after_fork()

    # -- optional verbs

    def watch(self, name: str, owner: str, timeout: float) -> bool:
        deadline = self._deadline(timeout)
        try:
            before = self.names.find(name, deadline)
            if not before.held or before.stored is None or before.stored.owner != owner:
                return True
            return self.link.await_delete(self.names.keys.leases + name.encode(), before.revision + 1, deadline)
        except Unavailable:
            if deadline - monotonic() > LEAST:
                raise
            return False

    def override(self, override: Override, timeout: float) -> Settled:
        deadline = self._deadline(timeout)
        return self._settle(override.name, deadline, lambda record, now: rules.override(record, override, now[0]), fences=True)

    def record(self, write_back: WriteBack, timeout: float) -> Settled:
        deadline = self._deadline(timeout)
        return self._settle(write_back.name, deadline, lambda record, now: rules.write_back(record, write_back, now[0]))

    def sweep(self, limit: int, timeout: float) -> int:
        """Look at the next so many records, and remove those that R1 lets go; all records have their turn, call by call."""
        deadline = self._deadline(timeout)
        removed = 0
        page = self.names.page(b"", self._swept, limit, deadline)
        now, known = self._times(deadline)
        self._swept = page[-1][0].encode() + b"\0" if len(page) == limit else b""
        for name, before in page:
            record = before.record(now)
            if known is not None and record is not None and rules.may_remove(record, known[0]):
                removed += self.names.write(name, before, None, deadline)[0]
        return removed

    def facts(self, timeout: float) -> dict[str, str | int | float | bool | None]:
        deadline = self._deadline(timeout)
        status = self.link.call(_wire.Status(), deadline)
        here = self._time(deadline, sharp=True)
        facts: dict[str, str | int | float | bool | None] = {
            "version": status.version,
            "endpoints": self.link.endpoints.count,
            "is_leader": status.leader == status.header.member_id,
            "db_size": status.dbSize,
            "credentials_unchecked": self.link.endpoints.unchecked,
            "clock_width_ms": None if here is None else (here[1] - here[0]) / 1000,
        }
        if here is not None and len(self._clocks) > 1:
            facts["clock_spread_ms"] = self._spread(deadline)
        return facts

    def examine(self, facts: Mapping[str, str | int | float | bool | None] | RotaError, timeout: float) -> Sequence[Finding]:
        from ._findings import examine

        return examine(self._settings, facts, timeout)

    def bare(self, name: str, writes: bool, timeout: float) -> None:
        # to delete what is not there is agreed on by a quorum and written to its logs like any change, and leaves nothing behind
        request: Any = _wire.Range(key=self.names.keys.records + name.encode())
        if writes:
            delete = _wire.Delete(key=self.names.keys.guards + name.encode())
            request = _wire.Txn(success=[_wire.RequestOp(request_delete_range=delete)])
        self.link.call(request, self._deadline(timeout), writes=writes)

    def _spread(self, deadline: float) -> float | None:
        """Return how far the members' clocks are apart at least: beyond a ttl's margin, only tokens protect while members change (L12)."""
        times = [(now, monotonic()) for clock in self._clocks if (now := clock.interval(deadline, sharp=False)) is not None]
        return max(max(a[0] - b[1] - (at - bt) * SECOND, 0.0) for a, at in times for b, bt in times) / 1000


def _renewal(claim: Claim) -> Renewal:
    return Renewal(claim.name, claim.owner, claim.ttl, claim.retention)


def _is_well_inside(claim: Claim, before: Found, now: Now) -> bool:
    """Whether any instant of the interval decides a claim for a slot alike. A rolling one begins at that instant, which is recorded."""
    if claim.slot_start is None:
        return False
    ends = [end for end in (claim.slot_end, claim.late_from) if end is not None]
    mark = before.stored.mark if before.stored is not None else None
    return max(claim.slot_start, claim.not_before) <= now[0] and now[1] + EDGE < min(ends, default=0) and (mark or 0) <= now[0]


class EtcdBackend(Backend):
    """``etcd://`` and ``etcds://``."""

    contract = 1
    options = OPTIONS

    def driver(self, url: Url) -> EtcdDriver:
        parsed = settings(url)
        return EtcdDriver(Link(OwnEndpoints(parsed)), members(parsed), parsed)
