# SPDX-License-Identifier: MIT
"""The options of a claim, checked before any I/O (L9), and the times that follow from them."""

from __future__ import annotations

from collections.abc import Callable

from .capabilities import Capabilities
from .duration import DAY, MINUTE, SECOND, describe, duration, roughly
from .errors import ConfigurationError, NotSupported
from .url import did_you_mean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime, timedelta
    from typing import Any, Literal, TypedDict

    from .grant import BaseGrant

    Duration = int | float | str | timedelta
    Instant = datetime | int | float | str
    OnUnavailable = Literal["raise", "run", "skip"]
else:
    from ._value import TypedDict

#: How long a record is kept beyond its slot and lease (R1), unless the client is told otherwise.
RETENTION = 30 * DAY
#: How long a call may take (F1).
TIMEOUT = 1.5
TTL = "30s"
#: What waits for ever.
FOR_EVER = (float("inf"), "inf")
#: W5: how early a planned instant is accepted, and the most that may be asked for.
EARLY, MOST_EARLY = 5 * SECOND, MINUTE
#: W6: the least time beyond its end in which a named slot can still be won.
LEAST_LATE = 10 * MINUTE


class LeaseOptions(TypedDict, total=False):
    """Options of every claim.

    Attributes:
        ttl: How long the lease lives without a renewal. Default 30 s.
        heartbeat: How often it is renewed. Default and most: a third of the ttl.
        margin: By how much the holder's own deadline comes before the store's (L5). Default: a tenth of the ttl.
        grace: Time that the holder needs to stop before its deadline; ``rota run`` takes it, in the library it only enters the check that
            all of it fits into the ttl. Default 0.
        timeout: The longest that one call may take. Default 1.5 s.
        wait: How long to wait in line while somebody else holds. Default 0; ``"inf"`` or ``float("inf")`` waits for ever.
        max_hold: After this long renewals end and the holder is told. Default: none.
        on_lost: ``stop`` (default: `check` raises, an async body is cancelled), ``continue`` (go on, degraded), or a function that is
            called with the grant within 100 ms (and then as ``stop``).
        on_unavailable: When the store can't be asked: ``raise`` (default), ``run`` (go ahead, degraded), ``skip`` (a falsy verdict).
    """

    ttl: Duration
    heartbeat: Duration
    margin: Duration
    grace: Duration
    timeout: Duration
    wait: Duration
    max_hold: Duration | None
    on_lost: Literal["stop", "continue"] | Callable[[BaseGrant], object]
    on_unavailable: OnUnavailable


class WindowOptions(LeaseOptions, total=False):
    """Options of a window, beside those of every claim (`LeaseOptions`).

    Attributes:
        planned: The planned instant (aware datetime, ISO text with zone, epoch seconds); names the slot that holds it (W5).
        early: How early an arrival for a planned instant is accepted. Default 5 s, at most half a slot and 60 s.
        max_late: The longest time after the slot's start in which it can be won (W6). Default: while the slot is open; a planned slot also
            for one slot's length, at least 10 min, after its end.
        catch_up: ``latest``: take the newest ended slot first if it was missed (W6). Default: none.
        at_most_once: Seal the slot at the claim: a crash doesn't give it back (W3b).
        overlap: Move the mark and hold no lease (W4); needs ``at_most_once``.
        attempts: Close the slot after this many failures (W3c). Default: no limit.
    """

    planned: Instant | None
    early: Duration
    max_late: Duration | None
    catch_up: Literal["latest"] | None
    at_most_once: bool
    overlap: bool
    attempts: int | None


class OnceOptions(LeaseOptions, total=False):
    """Options of a rolling window, beside those of every claim (`LeaseOptions`).

    Attributes:
        at_most_once: Start the period at the claim: a crash doesn't re-arm it (W3b).
        attempts: Close the period after this many failures (W3c). Default: no limit.
    """

    at_most_once: bool
    attempts: int | None


class Terms:
    """A lease's times, checked: ``ttl`` and ``timeout_us`` in microseconds, the others in seconds."""

    # no NamedTuple: these are read all the time, and Python reads a slot five times as fast as a NamedTuple's field
    __slots__ = (
        "heartbeat",
        "listens",
        "margin",
        "max_hold",
        "on_lost",
        "on_unavailable",
        "renew_timeout",
        "timeout",
        "timeout_us",
        "ttl",
        "ttl_s",
        "wait",
    )

    def __init__(
        self,
        ttl: int,
        margin: float,
        heartbeat: float,
        renew_timeout: float,
        timeout: float,
        wait: float,
        max_hold: float,
        on_lost: Any,
        on_unavailable: str,
    ) -> None:
        self.ttl = ttl
        self.ttl_s = ttl / SECOND
        self.margin = margin
        self.heartbeat = heartbeat
        self.renew_timeout = renew_timeout
        self.timeout = timeout
        self.timeout_us = int(timeout * SECOND)
        self.wait = wait
        self.max_hold = max_hold
        self.on_lost = on_lost
        self.listens = callable(on_lost)
        self.on_unavailable = on_unavailable


def check_names(options: dict[str, Any], known: type) -> None:
    """Refuse an option that does not exist, with a did-you-mean."""
    allowed = known.__annotations__.keys() | LeaseOptions.__annotations__.keys()
    for name in options:
        if name not in allowed:
            raise ConfigurationError(f"there is no option {name!r}{did_you_mean(name, allowed)} (known: {', '.join(sorted(allowed))})")


def terms(options: dict[str, Any], capabilities: Capabilities, timeout: float) -> Terms:
    """Check the common options (L9).

    Raises:
        ConfigurationError: A wrong value; the message names the option.
    """
    ttl = duration(options.get("ttl", TTL), "ttl")
    if ttl < capabilities.min_ttl:
        raise ConfigurationError(f"ttl={options.get('ttl', TTL)!r} is under this backend's floor of {describe(capabilities.min_ttl)}")
    ttl += -ttl % capabilities.ttl_step
    heartbeat = duration(options["heartbeat"], "heartbeat") if "heartbeat" in options else ttl // 3
    if heartbeat * 3 > ttl:
        raise ConfigurationError(
            f"heartbeat={describe(heartbeat)} is over a third of ttl={describe(ttl)}: one lost renewal would lose the lease"
        )
    margin = duration(options["margin"], "margin", zero=True) if "margin" in options else ttl // 10
    grace = duration(options.get("grace", 0), "grace", zero=True)
    call = duration(options["timeout"], "timeout") / SECOND if "timeout" in options else timeout
    renew_timeout = min(call, heartbeat / SECOND)
    if grace + margin + heartbeat + renew_timeout * SECOND >= ttl:
        raise ConfigurationError(
            f"ttl={describe(ttl)} is too short: grace {roughly(grace)} + margin {roughly(margin)} + heartbeat {roughly(heartbeat)}"
            f" + one renewal's timeout {roughly(round(renew_timeout * SECOND))} must come to less"
        )
    wait = options.get("wait", 0)
    if wait is None:
        wait = 0
    wait_s = float("inf") if wait in FOR_EVER else duration(wait, "wait", zero=True) / SECOND
    max_hold = options.get("max_hold")
    on_lost = options.get("on_lost", "stop")
    if on_lost not in ("stop", "continue") and not callable(on_lost):
        raise ConfigurationError(f"on_lost={on_lost!r} must be 'stop', 'continue' or a function of the grant")
    if getattr(getattr(on_lost, "__code__", None), "co_flags", 0) & 0x80:  # CO_COROUTINE
        raise ConfigurationError(f"on_lost={on_lost!r} must be a plain function: nobody would await a coroutine")
    on_unavailable = options.get("on_unavailable", "raise")
    if on_unavailable not in ("raise", "run", "skip"):
        raise ConfigurationError(f"on_unavailable={on_unavailable!r} must be 'raise', 'run' or 'skip'")
    return Terms(
        ttl,
        margin / SECOND,
        heartbeat / SECOND,
        renew_timeout,
        call,
        wait_s,
        float("inf") if max_hold is None else duration(max_hold, "max_hold") / SECOND,
        on_lost,
        on_unavailable,
    )


def flag(options: dict[str, Any], name: str) -> bool:
    """Return a yes-or-no option; anything but True or False is refused."""
    value = options.get(name, False)
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name}={value!r} must be True or False")
    return value


def attempts(options: dict[str, Any]) -> int:
    """Return the option ``attempts``; 0 where there is no limit."""
    value = options.get("attempts")
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"attempts={value!r} must be a whole number from 1 up")
    return value


def needs_windows(capabilities: Capabilities) -> None:
    """Refuse windows on a backend that only keeps leases."""
    if not capabilities.windows:
        raise NotSupported("this backend keeps leases only, no windows")
