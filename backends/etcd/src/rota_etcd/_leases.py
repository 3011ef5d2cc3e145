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
from collections.abc import Callable
from contextlib import suppress

import grpc
from rota.backend import Claim
from rota.duration import SECOND
from rota.errors import ConfigurationError, RotaError, Unavailable

from . import _wire
from ._clock import monotonic
from ._link import Link, Refusal

#: How many leases wait to be taken over, and of how many grants something is remembered.
SPARE, KNOWN = 500, 100_000
#: How old the last renewal of one that is taken over may be, seconds and parts of its length; an older one is renewed.
FRESH, FRESH_PART = 0.5, 0.05

#: What may go wrong without a word: asking again tells.
_TOLD_LATER = grpc.RpcError, RotaError, Refusal, ValueError


class Lease:
    """An etcd lease.

    Attributes:
        id: Its id, which the driver chooses, so that asking again makes no second one.
        asked: The seconds that were asked for.
        seconds: The seconds that etcd granted.
        renewed_at: When the last renewal that is confirmed was sent, by `monotonic`.
        doubtful: Whether a claim on it may still be on its way.
        kept_at: When the record of its grant was written.
        stream: Which stream of keepalives was open when it was handed on, or its key last looked at; 0 if it never was handed on.
    """

    __slots__ = ("asked", "doubtful", "id", "kept_at", "renewed_at", "seconds", "stream")

    def __init__(self, asked: int) -> None:
        self.id = int.from_bytes(os.urandom(8), "big") >> 1 or 1
        self.asked = asked
        self.seconds = 0
        self.kept_at = self.renewed_at = monotonic()
        self.doubtful = False
        self.stream = 0


def whole_seconds(ttl: int) -> int:
    """Return how many seconds are asked of etcd for a ttl."""
    return -(-ttl // SECOND)


class Leases:
    """Which grant has which, and those that wait for the next one."""

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
            self.adopt(claim.owner, lease)
        return lease

    def adopt(self, owner: str, lease: Lease) -> None:
        """Note that this grant has this lease from now on."""
        self._of[owner] = lease
        if len(self._of) > KNOWN:
            with suppress(KeyError, RuntimeError, StopIteration):  # another thread is at it
                del self._of[next(iter(self._of))]

    def make(self, ttl: int, deadline: float) -> Lease:
        """Make one."""
        lease = Lease(whole_seconds(ttl))
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

    def renew_beside(self, lease: Lease, asked_at: float, deadline: float) -> Callable[[], bool]:
        """Begin to renew a lease that was taken over, unless it has just been; return what tells whether it is alive."""
        if asked_at - lease.renewed_at <= min(FRESH, lease.seconds * FRESH_PART):
            return lambda: True
        begun_at, begun = monotonic(), None
        with suppress(*_TOLD_LATER):
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
            lease.renewed_at = sent
            return answers.get(lease.id, 0) > 0

        return is_renewed

    def is_known(self, lease: Lease) -> bool:
        """Whether a lease that is alive still holds what it held: the store was never away since, or the lease is no older than its key."""
        return lease.stream in (0, self._link.stream)

    def know(self, owner: str, lease: int, stream: int) -> None:
        """Note that the lease of a grant was seen to hold its key while this stream was open."""
        mine = self._of.get(owner)
        if mine is not None and mine.id == lease:
            mine.stream = stream

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
            except _TOLD_LATER:
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

    def revoke(self, lease: int, deadline: float) -> None:
        """End an etcd lease and take its key away, for certain."""
        with suppress(Refusal):  # it is gone
            self._link.call(_wire.Revoke(ID=lease), deadline, writes=True)

    def close(self, seconds: float) -> None:
        """Revoke what waits for at most so long; the rest ends by itself."""
        deadline = monotonic() + seconds
        with suppress(RotaError):
            for waiting in self._spare.values():
                while waiting and monotonic() < deadline:
                    self.revoke(waiting.pop().id, deadline)
