# SPDX-License-Identifier: MIT
"""The contract between rota and a store: the record, the requests, the answers, and the driver that carries them.

Whoever writes a backend implements `Backend` and `Driver` (blocking; an `AsyncDriver` is optional) and proves them with
``rota conform``. ``docs/writing-a-backend.md`` leads through it; ``docs/semantics.md`` holds the clauses (L, W, R, F) named here.

Units: every instant and duration in this module is a whole number of microseconds, instants since the Unix epoch by the *store's* clock.
Timeouts of calls are seconds (float).

Rules for every driver:

- Making a driver does no I/O. It connects at the first verb, and again by itself after an error.
- Each verb is decided in one atomic step of the store, is idempotent for the same owner id, and returns within ``timeout`` seconds.
- Nothing applied, certainly: raise `Unavailable`. Perhaps applied: raise `OutcomeUnknown`. The driver's error is ``__cause__``.
  Wrong credentials or a missing table are no outage: raise `ConfigurationError`.
- A blocking driver is called from several threads at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from .capabilities import Capabilities
from .errors import NotSupported
from .url import Url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple

    from .errors import RotaError
    from .finding import Finding
else:
    from ._value import NamedTuple

#: The contract's number. A backend that was written for another one is refused when it is loaded.
CONTRACT = 1

#: The size that `Record.history` may have, in bytes.
HISTORY_LIMIT = 4096

# kinds of a record (W8)
LEASE, WINDOW, ROLLING = "lease", "window", "rolling"

# verdicts of a claim
WON, BUSY, HANDLED, EARLY, LATE = "won", "busy", "handled", "early", "late"
#: `Claim.apply_until` has passed: nothing was applied (L7).
STALE = "stale"
#: The name is kept as another kind: nothing was applied (W8).
MISMATCH = "mismatch"
#: This owner id was settled or ran out before: it is never granted again (L4).
FINISHED = "finished"

# how a grant is settled, and what `Record.outcome` says of the slot
RELEASED, FAILED, GAVE_UP, UNUSED = "released", "failed", "gave up", "unused"
PENDING, SEALED, DEGRADED = "pending", "sealed", "degraded"

#: `Record.last_result` of a grant that moved the mark and holds no lease (W4), until it is settled.
OVERLAP = "overlap"

#: An interval of the store's clock that holds its present time; both ends equal where it is exact. Act on the lower end only.
Now = tuple[int, int]


class Record(NamedTuple):
    """What the store keeps for one name, changed in one atomic step.

    Attributes:
        name: The full name, prefix included.
        kind: ``lease``, ``window``, ``rolling``, or empty for a tombstone (R2).
        schedule: The canonical schedule of the newest grant (W8); empty where there is none.
        zone_data: The version of the zone data that its slots were computed with.
        token: The fencing token of the newest grant (L2).
        owner: The owner id that was granted and is not settled; empty when there is none. It holds while `expires_at` is ahead.
        label: Who that is, or was last: ``site host:pid``, for people.
        granted_at: When it was granted.
        expires_at: When the lease ends unless renewed; 0 without an owner.
        last_owner: The owner id that was settled last.
        last_result: How it was settled.
        last_expired: Whether its lease had run out by then.
        mark: The start of the newest slot handled.
        prior_mark: The mark before a slot was sealed (W3b), to go back to.
        slot_start: The start of the slot that is pending, or was last.
        slot_end: Its end; None for a window without a schedule.
        attempts: How often that slot was granted.
        outcome: What became of that slot: pending, sealed, handled, failed, gave up, degraded; empty when its grant was unused.
        settled_at: When the last grant was settled.
        keep_until: Until when the record must be kept (R1).
        history: The newest runs, opaque to the store; at most `HISTORY_LIMIT` bytes.
        format: The number of this layout.
    """

    name: str
    kind: str = ""
    schedule: str = ""
    zone_data: str = ""
    token: int = 0
    owner: str = ""
    label: str = ""
    granted_at: int = 0
    expires_at: int = 0
    last_owner: str = ""
    last_result: str = ""
    last_expired: bool = False
    mark: int | None = None
    prior_mark: int | None = None
    slot_start: int | None = None
    slot_end: int | None = None
    attempts: int = 0
    outcome: str = ""
    settled_at: int = 0
    keep_until: int = 0
    history: bytes = b""
    format: int = 1


class Claim(NamedTuple):
    """Ask for a name, or for a slot of it.

    Attributes:
        name: The full name.
        owner: A fresh random id, 32 hexadecimal digits. Asking again with the same id finds the grant again (L7).
        label: Who asks, for people.
        kind: ``lease``, ``window`` or ``rolling``.
        ttl: The lease's length.
        apply_until: The latest time at which this may be applied (L7).
        retention: How long the record is kept beyond its slot and lease (R1).
        schedule: The canonical schedule; empty where there is none.
        zone_data: The version of the zone data.
        slot_start: The slot's start (window).
        slot_end: Its end; None for a window without a schedule.
        not_before: Early before this (W5, W7).
        late_from: Late from this on (W6); None: never.
        period: The slot's length from the winning claim on (rolling).
        seal: Move the mark at once (W3b).
        overlap: With `seal`: grant a token and no lease (W4).
        max_attempts: Close the slot instead of granting it once more than this often (W3c); 0: no limit.
    """

    name: str
    owner: str
    label: str
    kind: str
    ttl: int
    apply_until: int
    retention: int
    schedule: str = ""
    zone_data: str = ""
    slot_start: int | None = None
    slot_end: int | None = None
    not_before: int = 0
    late_from: int | None = None
    period: int = 0
    seal: bool = False
    overlap: bool = False
    max_attempts: int = 0


class Answer(NamedTuple):
    """What became of a claim.

    Attributes:
        verdict: ``won``, ``busy``, ``handled``, ``early``, ``late``, `STALE`, `MISMATCH` or `FINISHED`.
        record: The record after the claim; None where there is none.
        now: The store's time in the step that decided; None where it can't be known.
        before: Won: the record that the grant replaced; None if there was none, or if the grant was found again.
        ttl: Won: the length that the store gave the lease, if it is longer than asked for; else 0.
        age: Won: how long the lease had been counting already when it was asked for, where a store hands leases on (L5).
    """

    verdict: str
    record: Record | None
    now: Now | None
    before: Record | None = None
    ttl: int = 0
    age: int = 0


class Renewal(NamedTuple):
    """Set the remaining time of one lease to ``ttl`` if ``owner`` still holds it (L3)."""

    name: str
    owner: str
    ttl: int
    retention: int


class Renewed(NamedTuple):
    """For each renewal of the batch whether it is held, in order, and the store's time: from the first step to the last if it took several.

    None: not known, since the part of the store that keeps it did not answer, while others did; it is asked again. Where nothing answered
    the driver raises.
    """

    held: Sequence[bool | None]
    now: Now | None


class Settlement(NamedTuple):
    """End a grant.

    Attributes:
        name: The full name.
        owner: The owner id that was granted.
        result: ``released`` (a lease), ``handled``, ``failed``, ``gave up`` (closes the slot), ``unused`` (its body never began).
        retention: See `Claim.retention`.
        history: Replaces `Record.history` in the same step; None leaves it.
    """

    name: str
    owner: str
    result: str
    retention: int
    history: bytes | None = None


class Settled(NamedTuple):
    """What became of a settlement.

    Attributes:
        applied: Whether this owner's grant was settled by this request or an earlier one (then `result` says how); else it is lost.
        record: The record after it. A driver may leave it out (None) where this request settled the grant: nobody asks for it then.
        now: The store's time.
        result: How the grant was settled.
        expired: Whether its lease had run out by then, with nobody following (W3a).
    """

    applied: bool
    record: Record | None
    now: Now | None
    result: str = ""
    expired: bool = False


class Override(NamedTuple):
    """An operator's change without the owner. It raises the token, so that a holder at work is fenced.

    Attributes:
        name: The full name.
        action: ``released``, ``handled``, ``failed``, or ``mark`` (set the mark to `mark`, and `Record.attempts` to 0).
        label: Who and why, for people.
        retention: See `Claim.retention`.
        mark: The new mark; None clears it.
        expected_token: Refuse unless the record has this token; None: whatever it has.
        history: Replaces `Record.history`; None leaves it.
    """

    name: str
    action: str
    label: str
    retention: int
    mark: int | None = None
    expected_token: int | None = None
    history: bytes | None = None


class WriteBack(NamedTuple):
    """A slot that ran while the store was away (F3): ``mark = max(mark, slot_start)``; a holder at work is left alone.

    Attributes:
        name: The full name.
        label: Who ran it.
        kind: ``window`` or ``rolling``.
        retention: See `Claim.retention`.
        schedule: The canonical schedule; empty where there is none.
        zone_data: The version of the zone data.
        slot_start: The slot's start.
        slot_end: Its end; None for a window without a schedule.
    """

    name: str
    label: str
    kind: str
    retention: int
    schedule: str
    zone_data: str
    slot_start: int
    slot_end: int | None


class Driver(ABC):
    """The blocking I/O of one store, behind one URL."""

    capabilities: Capabilities

    @abstractmethod
    def claim(self, claim: Claim, timeout: float) -> Answer:
        """Grant or refuse, in this order of verdicts: mine · finished · stale · mismatch · early · handled · busy · late · won."""

    @abstractmethod
    def renew(self, renewals: Sequence[Renewal], timeout: float) -> Renewed:
        """Renew any number of leases in as few requests as the store allows (L3, L11)."""

    @abstractmethod
    def settle(self, settlement: Settlement, timeout: float) -> Settled:
        """End a grant (L4, W3a)."""

    @abstractmethod
    def read(self, name: str, timeout: float) -> tuple[Record | None, Now | None]:
        """Return the record of one name as it is now."""

    @abstractmethod
    def list(self, prefix: str, timeout: float, *, after: str = "", limit: int = 1000) -> list[Record]:
        """Return up to ``limit`` records whose names start with ``prefix`` and sort after ``after``, in order of their UTF-8 names."""

    @abstractmethod
    def forget(self, name: str, timeout: float) -> bool:
        """Leave a tombstone in the record's place (R2); return whether there was a record."""

    @abstractmethod
    def now(self, timeout: float) -> Now | None:
        """Return the store's time."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections. May be called twice; a verb called after it raises `Unavailable`."""

    def after_fork(self) -> None:
        """Called in a forked child: drop every connection without a word to the server, and make new locks (L10)."""

    # optional verbs: declared in `capabilities.verbs`

    def watch(self, name: str, owner: str, timeout: float) -> bool:
        """Wait until ``owner`` no longer holds ``name`` by the record; return False when ``timeout`` seconds went by."""
        raise NotSupported("this backend has no watch")

    def claim_when_free(self, claim: Claim, owner: str, wait: float, timeout: float) -> Answer:
        """Wait up to ``wait`` seconds until ``owner`` no longer holds the name, as `watch`, then claim; both in one flight.

        Offer it where the store itself can carry out the claim at the end of the wait, so that a waiter needs no second round trip, and
        where its clock is exact. It may answer before its time; it ends within ``wait + timeout`` seconds, and all this time the claim may
        be applied.
        """
        raise NotSupported("this backend has no claim_when_free")

    def override(self, override: Override, timeout: float) -> Settled:
        """Carry out an operator's change."""
        raise NotSupported("this backend has no override")

    def record(self, write_back: WriteBack, timeout: float) -> Settled:
        """Write back a slot that ran degraded."""
        raise NotSupported("this backend has no record")

    def facts(self, timeout: float) -> Mapping[str, str | int | float | bool | None]:
        """Return what a doctor wants to know: version, role, durability, permissions."""
        raise NotSupported("this backend has no facts")

    def examine(self, facts: Mapping[str, str | int | float | bool | None] | RotaError, timeout: float) -> Sequence[Finding]:
        """Say for ``rota doctor`` what is right, wrong or risky with the store, and what to do: what only a backend knows.

        It needs no declaration, and nothing of it: the core looks at time, latency, rights and records by the other verbs.

        Args:
            facts: What `facts` returned, empty where there is none; or the error that it raised: then say what is behind it.
            timeout: As of a verb. Whatever is wrong with the store is a finding, not an error.

        Raises:
            ConfigurationError: To look further makes no sense, or would make what is missing; it is given back to say what is behind it.
        """
        return ()

    def unmade(self) -> str:
        """Return where a verb would make the store, while it is known that there is none; else empty. No call to a server.

        It needs no declaration. The operator's commands ask it before they look, and again when they found nothing, which may have told
        the driver: who only looks makes no store.
        """
        return ""

    def bare(self, name: str, writes: bool, timeout: float) -> None:
        """Carry out the store's cheapest request and take its answer: what ``rota bench`` measures the verbs beside.

        It goes the way of the verbs, decides nothing, and leaves the record of ``name``, which nobody holds, as it is. It needs no
        declaration.

        Args:
            name: The full name.
            writes: A write that is as durable as a verb's; else a read.
            timeout: As of a verb.
        """
        raise NotSupported("this backend has no bare request")

    def schema(self, **options: str) -> str:
        """Return the SQL that prepares the store, without I/O."""
        raise NotSupported("this backend has no schema")

    def sweep(self, limit: int, timeout: float) -> int:
        """Remove up to ``limit`` records that R1 lets go; return how many. Not needed where the store expires them by itself."""
        raise NotSupported("this backend has no sweep")


class AsyncDriver(ABC):
    """The async twin of the verbs that a claim needs; the rest, and the heartbeat, use the blocking driver from a thread.

    One twin serves any number of event loops, one after the other or in several threads at once; `close` is called in any of them.
    """

    @abstractmethod
    async def claim(self, claim: Claim, timeout: float) -> Answer:
        """As `Driver.claim`. When it is cancelled the outcome is unknown; rota finishes the owner id."""

    @abstractmethod
    async def settle(self, settlement: Settlement, timeout: float) -> Settled:
        """As `Driver.settle`."""

    @abstractmethod
    async def now(self, timeout: float) -> Now | None:
        """As `Driver.now`."""

    async def watch(self, name: str, owner: str, timeout: float) -> bool:
        """As `Driver.watch`."""
        raise NotSupported("this backend has no watch")

    async def claim_when_free(self, claim: Claim, owner: str, wait: float, timeout: float) -> Answer:
        """As `Driver.claim_when_free`, and as `claim` when it is cancelled."""
        raise NotSupported("this backend has no claim_when_free")

    @abstractmethod
    async def close(self) -> None:
        """Let go of connections."""

    def after_fork(self) -> None:
        """As `Driver.after_fork`, for connections of its own."""


class Backend(ABC):
    """What an entry point of the group ``rota.backends`` names; the entry point's name is the URL's scheme.

    Attributes:
        contract: The number of the contract that it was written for: write the number itself, not `CONTRACT`.
        options: The URL options it knows, each with a line of help. Any other one is refused, with a did-you-mean.
        url: Of a backend that is handed to `rota.connect` in a URL's place, made by hand around somebody's client: what stands for the
            URL, with its ``prefix`` and ``site``.
    """

    contract: int
    options: Mapping[str, str] = {}
    url: Url | None = None

    @abstractmethod
    def driver(self, url: Url) -> Driver:
        """Return a driver; check the URL, do no I/O.

        Raises:
            ConfigurationError: The URL is wrong; the message names the part, and holds no secret.
        """

    def async_driver(self, driver: Driver) -> AsyncDriver | None:
        """Return the async twin of ``driver``, or None where there is none (a thread then carries its calls)."""
        return None
