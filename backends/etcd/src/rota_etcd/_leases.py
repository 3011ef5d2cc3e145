# SPDX-License-Identifier: MIT
"""The etcd leases of one driver: one for each grant. After the release the next grant of the same length takes it over.

So a claim in a process that has held something before makes no etcd lease, which is a write: it renews one, which is none, beside its
transaction. These rules make that safe:

- What a lease that is taken over has left counts from its last renewal (L5), which is a moment ago or is made beside the claim.
- One is handed on only after its key is certainly gone, and only if no earlier claim on it may still be on its way (L7).
- Somebody else may revoke the lease of a grant (`Found.fenced`) only after the record says so: then its holder doesn't hand it on.
- One that an earlier stream of keepalives knew is not taken, and one that was taken is not renewed on another stream without a look at its
  key: a store that was restored from a snapshot meanwhile may have bound an older key to it, and not have the present one.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import grpc
from rota.backend import Claim, Renewal
from rota.duration import SECOND
from rota.errors import ConfigurationError, RotaError, Unavailable

from . import _wire
from ._clock import monotonic
from ._link import Link, Refusal

if TYPE_CHECKING:
    from ._shared import Grant

#: How many leases wait to be taken over, and of how many grants something is remembered.
SPARE, KNOWN = 500, 100_000
#: How old the last renewal of one that is taken over may be, seconds and parts of its length; an older one is renewed.
FRESH, FRESH_PART = 0.5, 0.05

#: What may go wrong without a word: asking again tells.
TOLD_LATER = grpc.RpcError, RotaError, Refusal, ValueError


#: What the ids of etcd leases that may hold several names end with (16 bits), so that whoever ends a grant leaves the others alone.
SHARED = 0x5348


def is_shared(lease: int) -> bool:
    """Whether an etcd lease may hold several names, by its id."""
    return lease & 0xFFFF == SHARED


class Lease:
    """An etcd lease.

    Attributes:
        id: Its id, which the driver chooses, so that asking again makes no second one.
        asked: The seconds that were asked for.
        seconds: The seconds that etcd granted.
        renewed_at: When the last renewal that is confirmed was sent, by `monotonic`.
        doubtful: Whether a claim on it may still be on its way, or something on it may not be renewed: no other grant takes it.
        kept_at: When the record of its grant was written.
        stream: Which stream of keepalives was open when it was handed on, or its key last looked at; 0 if it never was handed on.
        grants: Of one that is shared, the grants that are on it, by their owners.
        is_spare: Of one that is shared, whether it is among those that wait for the next grant.
    """

    __slots__ = ("asked", "doubtful", "grants", "id", "is_spare", "kept_at", "renewed_at", "seconds", "stream")

    def __init__(self, asked: int, shared: bool = False) -> None:
        number = int.from_bytes(os.urandom(8), "big") >> 1
        if shared is not is_shared(number):
            number ^= (number ^ SHARED) & 0xFFFF if shared else 1
        self.id = number or 1
        self.asked = asked
        self.seconds = 0
        self.kept_at = self.renewed_at = monotonic()
        self.doubtful = False
        self.stream = 0
        self.grants: dict[str, Grant] = {}
        self.is_spare = False


def whole_seconds(ttl: int) -> int:
    """Return how many seconds are asked of etcd for a ttl."""
    return -(-ttl // SECOND)


class Leases:
    """Which grant has which, and those that wait for the next one.

    Attributes:
        shares: Whether one may hold several names.
    """

    shares = False

    def __init__(self, link: Link) -> None:
        self._link = link
        self.reset()

    def reset(self) -> None:
        """Start with nothing: also called in a forked child, which has nothing to do with its parent's."""
        self._of: dict[str, Lease] = {}
        self._spare: dict[int, deque[Lease]] = {}

    def of(self, owner: str) -> Lease | None:
        """Return the lease of a grant that this driver has made, until it is settled."""
        return self._of.get(owner)

    def take(self, claim: Claim, deadline: float) -> Lease:
        """Return the lease for a claim: the same one when it is asked again."""
        lease = self._of.get(claim.owner)
        if lease is None:
            lease = self._taken_over(whole_seconds(claim.ttl)) or self.make(claim.ttl, deadline)
            self.adopt(claim.owner, claim.name, lease)
        return lease

    def adopt(self, owner: str, name: str, lease: Lease, token: int = 0, written: int = 0) -> bool:
        """Note that this grant has this lease from now on, its token, and the revision that put its key there, as far as known.

        Return as `applied` does.
        """
        self._note(owner, lease)
        return True

    def _note(self, owner: str, lease: Lease) -> None:
        self._of[owner] = lease
        if len(self._of) > KNOWN:
            with suppress(KeyError, RuntimeError, StopIteration):  # another thread is at it
                del self._of[next(iter(self._of))]

    def another(self, renewal: Renewal, since: float, deadline: float) -> Lease:
        """Return one, renewed since then by `monotonic`, for a grant that is to leave its own."""
        return self.make(renewal.ttl, deadline)

    def make(self, ttl: int, deadline: float) -> Lease:
        """Make one."""
        lease = Lease(whole_seconds(ttl), self.shares)
        try:
            lease.seconds = self._link.call(_wire.Grant(ID=lease.id, TTL=lease.asked), deadline).TTL
        except Refusal as refusal:
            if refusal.code != grpc.StatusCode.FAILED_PRECONDITION:
                raise ConfigurationError(f"etcd grants no lease of {lease.asked}s: {refusal}") from refusal
            lease.renewed_at = monotonic()
            lease.seconds = self._link.keep_alive([lease.id], deadline).get(lease.id, 0)  # "already exists": by an earlier try
            if not lease.seconds:
                raise Unavailable("the etcd lease of this grant was revoked") from refusal
        return lease

    def renew_beside(self, lease: Lease, asked_at: float, deadline: float) -> Callable[[], bool] | None:
        """Begin to renew a lease that was taken over, and return what tells whether it is alive; None if it has just been renewed."""
        if asked_at - lease.renewed_at <= min(FRESH, lease.seconds * FRESH_PART):
            return None
        begun_at, begun = monotonic(), None
        with suppress(*TOLD_LATER):
            begun = self._link.begin_keep_alive([lease.id], deadline)

        def is_renewed() -> bool:
            sent, answers = begun_at, dict[int, int]()
            if begun is not None:
                with suppress(grpc.RpcError):
                    begun.wait(deadline - monotonic())
                answers = begun.answers
            if lease.id not in answers:
                sent = monotonic()
                answers = self._link.keep_alive([lease.id], deadline)
            if not answers.get(lease.id, 0):
                return False
            lease.renewed_at = sent
            return True

        return is_renewed

    def renew(self, renewals: Sequence[Renewal], deadline: float) -> list[bool | None]:
        """Renew grants together: True for each that is, False where a look at its key must tell, None where nothing was answered.

        Raises:
            Unavailable: Nothing at all was answered.
        """
        sent = monotonic()
        leases = [self._of.get(renewal.owner) for renewal in renewals]
        ids = [lease.id for lease in leases if lease is not None]
        alive = self._link.keep_alive(ids, deadline) if ids else {}
        renewed: list[bool | None] = []
        for renewal, lease in zip(renewals, leases, strict=True):
            if lease is not None and lease.id not in alive:
                renewed.append(None)
            elif lease is not None and alive[lease.id] and lease.asked == whole_seconds(renewal.ttl) and self._is_known(lease):
                lease.renewed_at = sent
                renewed.append(True)
            else:
                renewed.append(False)
        return renewed

    def _is_known(self, lease: Lease) -> bool:
        """Whether a lease that is alive still holds what it held: the store was never away since, or the lease is no older than its key."""
        return lease.stream in (0, self._link.stream)

    def kept(self, owner: str) -> Lease | Grant | None:
        """Return what holds `kept_at` of a grant; None of one that is not known."""
        return self._of.get(owner)

    def know(self, owner: str, lease: int, stream: int) -> None:
        """Note that the lease of a grant was seen to hold its key while this stream was open."""
        mine = self._of.get(owner)
        if mine is not None and mine.id == lease:
            mine.stream = stream

    def applied(self, owner: str, lease: Lease, token: int, written: int) -> bool:
        """Note a grant's token, and the revision that wrote its key; return False if it must leave its lease at once."""
        return True

    def doubt(self, owner: str, lease: Lease) -> None:
        """Note that this grant's claim may still be on its way, so that no other grant takes its lease over."""
        lease.doubtful = True

    def is_doubtful(self, owner: str, lease: Lease) -> bool:
        """Whether this grant's claim may still be on its way."""
        return lease.doubtful

    def drop(self, owner: str) -> Lease | None:
        """Forget a grant; return its lease."""
        return self._of.pop(owner, None)

    def hand_on(self, lease: Lease) -> None:
        """Keep one whose key is gone for the next grant of its length; what is too many ends by itself."""
        if lease.doubtful:
            return
        if not lease.stream or lease.stream != self._link.stream:
            try:
                self._link.open_stream(monotonic())  # from here on it is seen when the store goes away
            except TOLD_LATER:
                return
            lease.stream = self._link.stream
        if lease.stream:
            spare = self._spare.get(lease.asked)
            if spare is None:
                spare = self._spare.setdefault(lease.asked, deque(maxlen=SPARE))
            spare.append(lease)

    def _taken_over(self, asked: int) -> Lease | None:
        waiting = self._spare.get(asked)
        if not waiting:
            return None
        try:
            lease = waiting.pop()
        except IndexError:  # another thread was faster
            return None
        if lease.stream == self._link.stream and monotonic() - lease.renewed_at < lease.seconds / 2:
            return lease
        waiting.clear()  # the others are older
        return None

    def finish(self, lease: Lease, deadline: float) -> None:
        """Make sure that a claim on a lease that may be on its way is never applied (L7)."""
        lease.doubtful = True
        self.revoke(lease.id, deadline)

    def revoke(self, lease: int, deadline: float) -> None:
        """End an etcd lease and take its key away, for certain."""
        with suppress(Refusal):  # it is gone
            self._link.call(_wire.Revoke(ID=lease), deadline, writes=True)

    def close(self, seconds: float) -> None:
        """Revoke what waits for at most so long; the rest ends by itself."""
        deadline = monotonic() + seconds
        with suppress(RotaError):
            for waiting in self._spare.copy().values():  # claims of other threads come and go meanwhile
                while waiting and monotonic() < deadline:
                    try:
                        lease = waiting.pop()
                    except IndexError:  # one of them took the last
                        break
                    lease.doubtful = True  # a claim that has just taken it leaves it again
                    if not lease.grants:
                        self.revoke(lease.id, deadline)
