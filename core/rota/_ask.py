# SPDX-License-Identifier: MIT
"""What a caller asks for, checked once, and how it becomes a claim for the store at a given store time."""

from __future__ import annotations

from . import policy
from .backend import LEASE, ROLLING, WINDOW, Claim
from .capabilities import Capabilities
from .duration import DAY, describe, duration
from .errors import ConfigurationError
from .schedule import Schedule, Slot, instant
from .url import check_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The longest full name, in bytes of UTF-8: what every store's index can hold.
NAME_LIMIT = 255

#: The fields of a `Claim` that say nothing of a lease: its defaults from `schedule` on.
_NO_WINDOW = tuple(Claim("", "", "", "", 0, 0, 0))[7:]

_new = tuple.__new__


class Ask:
    """A lease, or the base of the others.

    Attributes:
        name: The full name, prefix included.
        kind: ``lease``, ``window`` or ``rolling``.
        terms: The checked times and policies.
        catch_up: Whether the newest ended slot is asked for first.
    """

    schedule: Schedule | None = None
    max_late: int | None = None

    def __init__(self, name: str, kind: str, terms: policy.Terms, retention: int) -> None:
        # what each claim reads lies on the instance: there Python finds it in a fraction of the time it takes on the class
        self.catch_up = False
        self.max_attempts = 0
        self.overlap = False
        self.seal = False
        self.name = name
        self.kind = kind
        self.terms = terms
        self.retention = retention

    period = 0

    @property
    def canonical(self) -> str:
        """The schedule as the record keeps it (W8); empty where there is none."""
        return "" if self.schedule is None else self.schedule.canonical

    @property
    def floating(self) -> bool:
        """Whether the slot follows from the store's time, so that an answer counts only for the slot that holds it."""
        return False

    def aim(self, now: int, back: bool = False) -> Slot | None:
        """Return the slot meant at the store time ``now``; with ``back``, the ended one before it."""
        return None

    def claim(self, owner: str, label: str, slot: Slot | None, apply_until: int, back: bool = False) -> Claim:
        """Return the request; ``back`` says that the slot has ended and is meant nevertheless (W6, ``catch_up``)."""
        # every value given, and past the checks of making a NamedTuple by name: this is on the way of every claim
        values = (self.name, owner, label, self.kind, self.terms.ttl, apply_until, self.retention)
        return _new(Claim, values + _NO_WINDOW)


class OnceAsk(Ask):
    """A rolling window."""

    @property
    def canonical(self) -> str:
        return f"per {describe(self.period)}"

    def claim(self, owner: str, label: str, slot: Slot | None, apply_until: int, back: bool = False) -> Claim:
        return Claim(
            self.name,
            owner,
            label,
            self.kind,
            self.terms.ttl,
            apply_until,
            self.retention,
            schedule=self.canonical,
            period=self.period,
            seal=self.seal,
            max_attempts=self.max_attempts,
        )


class WindowAsk(Ask):
    """A window: by schedule, by planned instant, or both."""

    planned: int | None = None
    early = policy.EARLY

    period = 0
    #: The part of a claim that is the same for a slot, and for which it is: losers ask for the same one again and again.
    _part: tuple[Slot, bool, tuple[Any, ...]] | None = None

    def at(self, planned: int) -> WindowAsk:
        """Return the same for another planned instant."""
        ask = object.__new__(WindowAsk)
        ask.__dict__.update(self.__dict__, planned=planned, _part=None)
        return ask

    @property
    def floating(self) -> bool:
        return self.planned is None

    def aim(self, now: int, back: bool = False) -> Slot:
        if self.schedule is None:
            assert self.planned is not None
            return Slot(self.planned, None)
        slot = self.schedule.slot(now if self.planned is None else self.planned)
        return self.schedule.slot(slot.start - 1) if back else slot

    def claim(self, owner: str, label: str, slot: Slot | None, apply_until: int, back: bool = False) -> Claim:
        assert slot is not None
        part = self._part
        if part is None or part[0] is not slot or part[1] is not back:
            part = self._part = slot, back, self._of_slot(slot, back)
        values = (self.name, owner, label, self.kind, self.terms.ttl, apply_until, self.retention)
        return _new(Claim, values + part[2])

    def _of_slot(self, slot: Slot, back: bool) -> tuple[Any, ...]:
        """Return the fields of a claim from `Claim.schedule` on."""
        start, end = slot
        return (
            self.canonical,
            self.schedule.zone_data if self.schedule is not None else "",
            start,
            end,
            start if self.planned is None else self.planned - self._earliness(slot),
            self._late_from(slot, named=back or self.planned is not None),
            0,
            self.seal,
            self.overlap,
            self.max_attempts,
        )

    def _earliness(self, slot: Slot) -> int:
        """W5: at most half the slot, so that nobody takes the next slot for this one."""
        return self.early if slot.end is None else min(self.early, (slot.end - slot.start) // 2)

    def _late_from(self, slot: Slot, named: bool) -> int:
        start, end = slot
        late_from = (start if end is None else end) + self.retention  # R1: nothing reaches back further than the record is kept
        if self.max_late is not None:
            late_from = min(late_from, start + self.max_late + 1)  # exactly max_late after the start still wins
            return late_from if named or end is None else min(late_from, end)
        if end is None:
            return late_from
        return min(late_from, end + max(end - start, policy.LEAST_LATE) if named else end)


def lease(name: str, options: dict[str, Any], capabilities: Capabilities, timeout: float, retention: int) -> Ask:
    """Check the options of a lease."""
    policy.check_names(options, policy.LeaseOptions)
    return Ask(check_text(name, "name", NAME_LIMIT), LEASE, policy.terms(options, capabilities, timeout), retention)


def window(
    name: str, schedule: Schedule | None, options: dict[str, Any], capabilities: Capabilities, timeout: float, retention: int
) -> WindowAsk:
    """Check the options of a window."""
    policy.check_names(options, policy.WindowOptions)
    policy.needs_windows(capabilities)
    ask = WindowAsk(check_text(name, "name", NAME_LIMIT), WINDOW, policy.terms(options, capabilities, timeout), retention)
    if schedule is not None and not isinstance(schedule, Schedule):
        hint = f"Cron({schedule!r})" if isinstance(schedule, str) and " " in schedule.strip() else "Cron('0 2 * * *') or Every('15m')"
        raise ConfigurationError(f"schedule={schedule!r} is not a schedule: write {hint}")
    planned = options.get("planned")
    if schedule is None and planned is None:
        raise ConfigurationError("a window needs a schedule, as in Every('1h'), or planned=, the planned instant")
    ask.schedule = schedule
    ask.planned = None if planned is None else instant(planned, "planned")
    ask.early = policy.EARLY
    if "early" in options:
        if planned is None:
            raise ConfigurationError("early= goes with planned=: without a planned instant the slot is the one that holds the store's time")
        ask.early = duration(options["early"], "early", zero=True, most=policy.MOST_EARLY)
    max_late = options.get("max_late")
    ask.max_late = None if max_late is None else duration(max_late, "max_late", zero=True)
    if ask.max_late is not None and ask.max_late > retention:
        raise ConfigurationError(
            f"max_late={max_late!r} is over the retention of {retention // DAY} days, after which the record may be gone"
        )
    catch_up = options.get("catch_up")
    if catch_up not in (None, "latest"):
        raise ConfigurationError(f"catch_up={catch_up!r} must be 'latest' or None")
    if catch_up and planned is not None:
        raise ConfigurationError("catch_up= goes without planned=: a planned instant names its slot")
    ask.catch_up = catch_up is not None
    ask.seal = policy.flag(options, "at_most_once")
    ask.overlap = policy.flag(options, "overlap")
    if ask.overlap and not ask.seal:
        raise ConfigurationError("overlap=True needs at_most_once=True: without a lease a crash can't be told from work")
    ask.max_attempts = policy.attempts(options)
    return ask


def once(name: str, per: policy.Duration, options: dict[str, Any], capabilities: Capabilities, timeout: float, retention: int) -> OnceAsk:
    """Check the options of a rolling window."""
    policy.check_names(options, policy.OnceOptions)
    policy.needs_windows(capabilities)
    ask = OnceAsk(check_text(name, "name", NAME_LIMIT), ROLLING, policy.terms(options, capabilities, timeout), retention)
    ask.period = duration(per, "per")
    ask.seal = policy.flag(options, "at_most_once")
    ask.max_attempts = policy.attempts(options)
    return ask
