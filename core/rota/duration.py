# SPDX-License-Identifier: MIT
"""Durations as users write them, held as whole microseconds (the finest step of every store's clock)."""

from __future__ import annotations

from .errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import timedelta

MILLISECOND = 1_000
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
YEAR = 366 * DAY

_UNITS = {"us": 1, "ms": MILLISECOND, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}
_MOST = 10**12  # seconds: with an instant of today added it still fits 64 bits of microseconds
#: Texts that were read before: a claim's are the same each time.
_read: dict[str, int] = {}
_MOST_READ = 100
_UNITS_SHOWN = "such as '500ms', '30s', '15m', '1h30m', '7d'"


def duration(value: int | float | str | timedelta, what: str, *, zero: bool = False, most: int | None = YEAR) -> int:
    """Return *value* in whole microseconds.

    Args:
        value: Seconds as a number, a ``timedelta``, or text in which every number has a unit (us, ms, s, m, h, d, w).
        what: The option's name, for the message.
        zero: Whether 0 is allowed.
        most: The largest value allowed, in microseconds (default: 366 days); None for no limit.

    Raises:
        ConfigurationError: Not a duration, NaN, infinite, negative, zero where that is not allowed, or over *most*.
    """
    if isinstance(value, str):
        if value.lstrip()[:1] == "-" and value.lstrip()[1:2].isdigit():
            raise ConfigurationError(f"{what}={_shown(value)} must be {'zero or more' if zero else 'more than zero'}")
        microseconds = _read.get(value)
        if microseconds is None:
            microseconds = _from_text(value, what)
            if len(_read) < _MOST_READ:
                _read[value] = microseconds
    elif isinstance(value, bool) or value is None:
        raise ConfigurationError(f"{what}={value!r} is not a duration: {_examples(what)}")
    elif isinstance(value, (int, float)):
        if value != value or value in (float("inf"), float("-inf")):
            raise ConfigurationError(f"{what}={value!r} is not a finite duration")
        microseconds = round(max(-_MOST, min(value, _MOST)) * SECOND)  # a larger one would overflow a float, and is refused below
    elif hasattr(value, "total_seconds"):
        microseconds = round(value.total_seconds() * SECOND)
    else:
        raise ConfigurationError(f"{what}={_shown(value)} is not a duration: {_examples(what)}")
    if microseconds == 0 and not _is_zero(value):
        raise ConfigurationError(f"{what}={_shown(value)} is under a microsecond")
    if microseconds < 0 or (microseconds == 0 and not zero):
        raise ConfigurationError(f"{what}={_shown(value)} must be {'zero or more' if zero else 'more than zero'}")
    if most is not None and microseconds > most:
        raise ConfigurationError(f"{what}={_shown(value)} is more than the {describe(most)} allowed")
    if microseconds >= _MOST * SECOND:
        raise ConfigurationError(f"{what}={_shown(value)} is more than a store's clock can count")
    return microseconds


def is_typed(what: str) -> bool:
    """Whether an option's name, in a message, is one of the command line or the environment, where all that can be written is text."""
    return what.startswith(("-", "ROTA_"))


def _examples(what: str) -> str:
    if is_typed(what):
        return f"write it with units, {_UNITS_SHOWN}"
    return f"write seconds as a number (30, 0.5), a timedelta, or text with units, {_UNITS_SHOWN}"


def _is_zero(value: object) -> bool:
    # 1e-9 s rounds to zero microseconds without being what the caller asked for
    return not value or (isinstance(value, str) and not set(value) & set("123456789"))


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except ValueError:  # a whole number of more digits than Python prints
        return "a number without end"
    return shown if len(shown) <= 100 else shown[:96] + "..."


def _from_text(text: str, what: str) -> int:
    total: float = 0  # whole as long as the numbers are, so that no digit of a long one is lost
    rest = text.strip().lower()
    if not rest:
        raise ConfigurationError(f"{what} is empty: {_examples(what)}")
    seen: set[str] = set()
    while rest:
        digits = 0
        while digits < len(rest) and (rest[digits] in "0123456789."):
            digits += 1
        letters = digits
        while letters < len(rest) and rest[letters].isalpha():
            letters += 1
        number, unit = rest[:digits], rest[digits:letters]
        if not number or number.count(".") > 1 or number == "." or unit not in _UNITS or unit in seen:
            bare = text.strip()
            if bare == "0":
                return 0
            if bare.isascii() and bare.replace(".", "", 1).isdigit() and len(bare) <= 20:
                raise ConfigurationError(f"{what}={text!r} has no unit: write {bare}s, {bare}m or {bare}h")
            raise ConfigurationError(f"{what}={_shown(text)} is not a duration: {_examples(what)}")
        if digits > 20:
            raise ConfigurationError(f"{what}={_shown(text)} is not a duration: a number in it has {digits} digits")
        seen.add(unit)
        total += (float(number) if "." in number else int(number)) * _UNITS[unit]
        rest = rest[letters:].lstrip()
    return round(total)


def describe(microseconds: int) -> str:
    """Return the shortest exact text for a duration, as in ``1h30m``; `duration` reads it back."""
    if microseconds == 0:
        return "0s"
    parts, rest = [], microseconds
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, rest = divmod(rest, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def roughly(microseconds: int) -> str:
    """Return a duration for people, to two units at the most."""
    for least, step in ((DAY, HOUR), (HOUR, MINUTE), (MINUTE, SECOND), (SECOND, MILLISECOND)):
        if microseconds >= least:
            return describe(microseconds - microseconds % step)
    return describe(microseconds - microseconds % MILLISECOND if microseconds > MILLISECOND else microseconds)
