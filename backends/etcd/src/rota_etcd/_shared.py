# SPDX-License-Identifier: MIT
"""etcd leases that hold up to `ROOM` names each, of one driver (``?leases=shared``): fewer leases to make, to renew, and for etcd to keep.

An etcd lease ends with all its keys or with none, so these rules keep each grant a lease of its own for the caller (L1, L3, L7):

- A grant is renewed by a keepalive of its etcd lease and a look at its key after that: the key is gone when somebody else has ended the
  grant, whose etcd lease goes on.
- An etcd lease is kept alive only while each grant on it is asked to be renewed. Where one is not any more, or a claim on it may still be
  on its way, or the store was away, the others move to another one, and it ends by itself. Where a claim must never be applied, it is
  revoked once the others have left.
- A grant moves in one step with its neighbours, each only if its key is as it was written last: by its revision, so that a request that
  is stuck moves nothing back, and by its token, since a store that was restored counts revisions anew.
- A claim does not lengthen what others have: it takes an etcd lease that was renewed a moment ago, or has no other grant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from rota.backend import Claim, Renewal
from rota.duration import SECOND
from rota.errors import ConfigurationError, Unavailable

from . import _wire
from ._clock import monotonic
from ._codec import Keys
from ._leases import FRESH, FRESH_PART, SPARE, TOLD_LATER, Lease, Leases, whole_seconds
from ._link import Link, Refusal

#: How many grants are on one lease. A transaction that moves them has two comparisons of each, and may have 128.
ROOM = 60
#: A grant that nobody asked to renew for this part of its length is given up: heartbeats are a third.
GIVEN_UP_PART = 0.5


class Grant:
    """A grant on a shared lease; one that may be on two of them has one on each.

    Attributes:
        doubtful: Whether its claim may still be on its way.
        name: Of what.
        token: Its token; 0 until its claim is known to be applied.
        written: The revision that put its key on this lease, as far as known: if the key's is another one, it is elsewhere, or gone.
        asked_at: When it was claimed or asked to be renewed, by `monotonic`.
        kept_at: When its record was written.
    """

    __slots__ = ("asked_at", "doubtful", "kept_at", "name", "token", "written")

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.doubtful = False
        self.token = self.written = 0
        self.asked_at = self.kept_at = now

    def on_another(self) -> Grant:
        """Return the same for the lease that it may be on, too, from now on."""
        other = Grant(self.name, self.asked_at)
        other.token, other.written, other.kept_at = self.token, self.written, self.kept_at
        return other


class SharedLeases(Leases):
    """As `Leases`, each for several grants."""

    shares = True

    def __init__(self, link: Link, keys: Keys) -> None:
        self._keys = keys
        self._most = ROOM  # how many names one transaction can have
        super().__init__(link)

    # -- coming and going

    def take(self, claim: Claim, deadline: float) -> Lease:
        """As `Leases.take`."""
        lease = self._of.get(claim.owner)
        if lease is None:
            now = monotonic()
            lease = self._with_room(whole_seconds(claim.ttl), now) or self.make(claim.ttl, deadline)
            lease.grants[claim.owner] = Grant(claim.name, now)
            self._note(claim.owner, lease)
        return lease

    def _with_room(self, asked: int, now: float) -> Lease | None:
        """Return one whose other grants are not lengthened by what a claim does."""
        leases = self._spare.get(asked)
        while leases:
            try:
                lease = leases[-1]
                if not lease.doubtful and lease.stream and lease.stream == self._link.stream:
                    age, count = now - lease.renewed_at, len(lease.grants)
                    is_fresh = age <= min(FRESH, lease.seconds * FRESH_PART)
                    if (is_fresh and count < ROOM) or (not count and age < lease.seconds / 2):
                        return lease
                lease.is_spare = False
                leases.remove(lease)
            except (IndexError, ValueError):  # another thread is at it, too
                continue
        return None

    def make(self, ttl: int, deadline: float) -> Lease:
        """As `Leases.make`."""
        try:
            self._link.open_stream(deadline)  # from here on it is seen when the store goes away
        except TOLD_LATER:
            stream = 0
        else:
            stream = self._link.stream
        lease = super().make(ttl, deadline)
        lease.stream = stream
        self._add_spare(lease)
        return lease

    def another(self, renewal: Renewal, since: float, deadline: float) -> Lease:
        """As `Leases.another`; the grant is on it from now on, so that it is not renewed for ever if the answer to the move is lost."""
        lease = self._with_room(whole_seconds(renewal.ttl), monotonic())
        if lease is None or lease.renewed_at < since:
            lease = self.make(renewal.ttl, deadline)
        lease.grants.setdefault(renewal.owner, Grant(renewal.name, monotonic()))
        return lease

    def adopt(self, owner: str, name: str, lease: Lease, token: int = 0, written: int = 0) -> bool:
        """As `Leases.adopt`."""
        mine, former = lease.grants.setdefault(owner, Grant(name, monotonic())), self._of.get(owner)
        mine.written = written
        self._note(owner, lease)
        mine.token = token  # from here on `finish` moves it
        if former is not None and former is not lease:
            there = former.grants.get(owner)
            if there is not None and there.written < written:  # else another thread has moved it there since
                former.grants.pop(owner, None)
        return not lease.doubtful

    def applied(self, owner: str, lease: Lease, token: int, written: int) -> bool:
        """Note which key a grant has; return False if its lease is being left by the others, so that it has to move, too."""
        grant = lease.grants.get(owner)
        if grant is not None:
            grant.written, grant.token = written, token
        return not lease.doubtful  # looked at last: `finish` says so first, and then looks who is there

    def doubt(self, owner: str, lease: Lease) -> None:
        """As `Leases.doubt`."""
        super().doubt(owner, lease)
        grant = lease.grants.get(owner)
        if grant is not None:
            grant.doubtful = True

    def is_doubtful(self, owner: str, lease: Lease) -> bool:
        """As `Leases.is_doubtful`; the lease may be left on account of another one's claim."""
        grant = lease.grants.get(owner)
        return grant is not None and grant.doubtful

    def drop(self, owner: str) -> Lease | None:
        """As `Leases.drop`."""
        lease = self._of.pop(owner, None)
        if lease is not None:
            lease.grants.pop(owner, None)
        return lease

    def hand_on(self, lease: Lease) -> None:
        """As `Leases.hand_on`, once it has no grant any more; before that it is in the line as long as it can take others."""
        if not lease.grants and not lease.doubtful and not lease.is_spare:
            self._add_spare(lease)

    def _add_spare(self, lease: Lease) -> None:
        lease.is_spare = True
        self._spare.setdefault(lease.asked, deque(maxlen=SPARE)).append(lease)

    def kept(self, owner: str) -> Lease | Grant | None:
        """As `Leases.kept`."""
        lease = self._of.get(owner)
        return None if lease is None else lease.grants.get(owner)

    # -- renewing

    def renew(self, renewals: Sequence[Renewal], deadline: float) -> list[bool | None]:
        """As `Leases.renew`."""
        sent = monotonic()
        at_owner = {renewal.owner: at for at, renewal in enumerate(renewals)}
        groups: dict[Lease, dict[str, Grant]] = {}
        for renewal in renewals:
            lease = self._of.get(renewal.owner)
            grant = lease.grants.get(renewal.owner) if lease is not None else None
            if lease is not None and grant is not None:
                grant.asked_at = sent
                if grant.token and lease.asked == whole_seconds(renewal.ttl):
                    groups.setdefault(lease, {})[renewal.owner] = grant
        staying = [lease for lease in groups if self._is_whole(lease, sent)]
        alive = self._link.keep_alive([lease.id for lease in staying], deadline) if staying else {}
        renewed: list[bool | None] = [False] * len(renewals)
        error: Unavailable | None = None
        for lease, grants in groups.items():
            found: set[str] | None = set()
            try:
                if lease not in staying:
                    found = self._move(lease, grants, deadline)
                elif lease.id not in alive:
                    found = None
                elif alive[lease.id]:
                    lease.renewed_at = sent
                    found = self._check(grants, deadline)
                else:
                    lease.doubtful = True
            except Unavailable as unavailable:
                error, found = unavailable, None
            for owner in grants:
                renewed[at_owner[owner]] = None if found is None else owner in found
        if error is not None and all(each is None for each in renewed):
            raise error
        return renewed

    def _is_whole(self, lease: Lease, now: float) -> bool:
        """Whether all that a keepalive of a lease lengthens is asked for; one that is not is left by the others."""
        longest = lease.seconds * GIVEN_UP_PART
        if lease.stream != self._link.stream or any(now - grant.asked_at > longest for grant in lease.grants.copy().values()):
            lease.doubtful = True
        return not lease.doubtful

    def _check(self, grants: dict[str, Grant], deadline: float) -> set[str]:
        """Return the owners of those whose keys are as they were written."""
        held = set[str]()
        for some in _parts(grants, self._most):
            request, look = _wire.Txn(), _wire.Txn()
            for grant in some.values():
                key = self._key(grant)
                request.compare.add(target=_wire.MOD, key=key, mod_revision=grant.written)
                look.success.add().request_range.key = key
            # one key is read, too: without that etcd would compare what this member knows, which may lag behind
            request.success.append(look.success[0])
            try:
                is_all = self._link.call(request, deadline).succeeded
            except ConfigurationError as error:
                self._take_fewer(len(some), error)
                held |= self._check(some, deadline)
                continue
            if is_all:
                held.update(some)
            else:
                found = _found(some, self._link.call(look, deadline))
                held.update(owner for owner, grant in some.items() if found.get(owner) == grant.written)
        return held

    def _move(self, lease: Lease, grants: dict[str, Grant], deadline: float) -> set[str]:
        """Take grants from one lease to another; return the owners of those that are there.

        Raises:
            Unavailable: Some may be there, and some not: it can be done again.
        """
        moved = set[str]()
        for part in _parts(grants, self._most):
            left = {owner: grant.written for owner, grant in part.items()}
            other = self.make(lease.asked * SECOND, deadline)
            while left:
                there = {owner: part[owner].on_another() for owner in left}
                other.grants.update(there)  # before they are there: see `another`
                request = _wire.Txn()
                for owner, grant in there.items():
                    key, token = self._key(grant), b"%d" % grant.token
                    request.compare.add(target=_wire.MOD, key=key, mod_revision=left[owner])
                    request.compare.add(target=_wire.VALUE, key=key, value=token)
                    put = request.success.add().request_put
                    put.key, put.value, put.lease = key, token, other.id
                    request.failure.add().request_range.key = key
                try:
                    response = self._link.call(request, deadline, writes=True)
                except BaseException as error:
                    other.doubtful = True
                    if isinstance(error, ConfigurationError):
                        self._take_fewer(len(there), error)
                        moved |= self._move(lease, {owner: part[owner] for owner in left}, deadline)
                        break
                    if isinstance(error, Refusal):
                        raise Unavailable(f"the etcd lease that grants were to move to is not there: {error}") from error
                    raise
                if response.succeeded:
                    for owner, grant in there.items():
                        grant.written = response.header.revision
                        self._moved(owner, lease, other)
                    # looked at last: see `applied`
                    moved |= self._move(other, there, deadline) if other.doubtful else there.keys()
                    break
                for owner in there:
                    other.grants.pop(owner, None)
                left = _found(there, response)  # some were settled, or were moved by another thread or an earlier request
        return moved

    def _moved(self, owner: str, lease: Lease, other: Lease) -> None:
        lease.grants.pop(owner, None)
        if self._of.get(owner) is lease:
            self._note(owner, other)
        elif owner not in self._of:  # settled meanwhile
            other.grants.pop(owner, None)
        # else another thread has moved it, too: where the key is not, the look at it tells, and where it is, it is not renewed for ever

    def finish(self, lease: Lease, deadline: float) -> None:
        """As `Leases.finish`: the other grants leave it before it is revoked."""
        lease.doubtful = True
        grants = {owner: grant for owner, grant in lease.grants.copy().items() if grant.token}
        self._move(lease, grants, deadline)
        self.revoke(lease.id, deadline)

    def _take_fewer(self, names: int, error: ConfigurationError) -> None:
        """Take at the most half as many names from now on, if that is what is wrong (``--max-txn-ops``)."""
        if "too many operations" not in str(error) or names == 1:
            raise error
        self._most = min(self._most, names // 2)

    def _key(self, grant: Grant) -> bytes:
        return self._keys.leases + grant.name.encode()


def _parts(grants: dict[str, Grant], most: int) -> Iterator[dict[str, Grant]]:
    """Return them in parts that one transaction can hold: where many claims came at once, there are more than `ROOM`."""
    left = iter(grants.items())
    while some := dict(islice(left, most)):
        yield some


def _found(grants: dict[str, Grant], response: Any) -> dict[str, int]:
    """Return which revisions wrote the keys that are there, by the owners of the grants, from the answer to a look at each."""
    return {
        owner: kv.mod_revision
        for (owner, grant), answer in zip(grants.items(), response.responses, strict=True)
        for kv in answer.response_range.kvs
        if kv.value == b"%d" % grant.token
    }
