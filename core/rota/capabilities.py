# SPDX-License-Identifier: MIT
"""What a backend can do, in degrees: one frozen value per backend, checked both ways by the conformance suite."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from ._value import NamedTuple

#: The optional verbs of the contract, by the names of the driver's methods.
OPTIONAL_VERBS = ("watch", "claim_when_free", "override", "record", "facts", "schema", "sweep")


class Capabilities(NamedTuple):
    """What a backend can do.

    Attributes:
        verbs: The optional verbs it offers, from `OPTIONAL_VERBS`. Any other one must raise `NotSupported`.
        min_ttl: The shortest lease it can keep, in microseconds. A shorter one is refused before any I/O (L9).
        ttl_step: The step in which it keeps a lease's length, in microseconds; the length is rounded up.
        clock: ``exact`` (the store's time is read in the step that decides), ``interval`` (known within `clock_bound`), ``none``.
        clock_bound: The widest interval of the store's clock, in microseconds; 0 when it is exact.
        windows: Whether it decides windows. Leases are never optional.
        waiting: ``watch`` (a waiter is told by the store) or ``poll``.
        token_scope: Among what tokens are ordered: ``name`` or ``store``.
        scope: Who is coordinated: ``process``, ``host`` or ``network``.
        durability: What a record outlives: ``process``, ``host`` (a restart), ``disk`` (a power cut), ``quorum``.
        history: How many runs of a name are kept at the least, in the record's bounded field, where labels have up to 40 bytes; 0: none.
        native_async: Whether the driver has an async twin of its own.
    """

    verbs: frozenset[str] = frozenset()
    min_ttl: int = 10_000
    ttl_step: int = 1
    clock: str = "exact"
    clock_bound: int = 0
    windows: bool = True
    waiting: str = "poll"
    token_scope: str = "name"
    scope: str = "network"
    durability: str = "disk"
    history: int = 10
    native_async: bool = False
