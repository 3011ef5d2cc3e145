# SPDX-License-Identifier: MIT
"""Reading cron expressions: what is refused, what the fields hold, and one text for equal schedules (W8, W11).

``croniter`` expands the fields, but only those that are checked and spelled out here first, because on its own it
(7.0.0) drops ``W``, picks a number for ``R``, wraps ``5-1``, reads ``5-5`` as the whole field, takes 6 and 7 fields, takes
``0 0 31 2 *``, wants ``L5`` where people write ``5L``, and turns a full range such as ``0-59`` into a star, which decides
the rule for clock changes and how day and weekday combine.
"""

from __future__ import annotations

from ._calendar import Calendar
from .errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_LOW = (0, 0, 1, 1, 0)
_HIGH = (59, 23, 31, 12, 6)
_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_WEEKDAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
_NAMES: tuple[dict[str, int], ...] = ({}, {}, {}, _MONTHS, _WEEKDAYS)
_ALIASES = {
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_LONGEST = 256
_ORDER = "minute hour day-of-month month day-of-week"
MINUTE, HOUR, DAY, MONTH, WEEKDAY = range(5)


class Expression:
    """A cron expression, read.

    Args:
        text: Five fields or one of ``@daily @midnight @hourly @weekly @monthly @yearly @annually``.
        steady: Whether it is for a clock that never changes (UTC), where following real time and running at fixed times are one.

    Attributes:
        calendar: The wall minutes it names.
        follows_real_time: Whether its minute or hour field starts with ``*`` (W10).
        canonical: The same text for every spelling of the same schedule.

    Raises:
        ConfigurationError: Not an expression, or one that is refused; the message names the culprit.
    """

    __slots__ = ("calendar", "canonical", "follows_real_time")

    def __init__(self, text: str, *, steady: bool) -> None:
        raw = _split(text)
        fields = [_Field(text, index, field) for index, field in enumerate(raw)]
        day, weekday = fields[DAY], fields[WEEKDAY]
        for stepped, other in ((day, weekday), (weekday, day)):
            if stepped.stepped and not other.star:
                _refuse(
                    text,
                    f"{stepped.raw!r} in {_FIELDS[stepped.index]} with {other.raw!r} in {_FIELDS[other.index]} has two meanings: "
                    "days that fit both (classic cron) and days that fit either (Kubernetes); list the days instead",
                )
        values, ordinals, last_day = _expand(text, fields)
        minutes, hours, months = values[MINUTE], values[HOUR], values[MONTH]
        # A field that is no star decides which days fit, and with two of them either does; one that names them all lets all fit.
        all_fit = (not day.star and len(values[DAY]) == 31) or (not weekday.star and len(values[WEEKDAY]) == 7)
        every_day, every_weekday = day.star or all_fit, weekday.star or all_fit
        self.follows_real_time = fields[MINUTE].star or fields[HOUR].star or fields[MINUTE].stepped or fields[HOUR].stepped
        self.calendar = Calendar(
            tuple(hour * 60 + minute for hour in hours for minute in minutes),
            sum(1 << month - 1 for month in months),
            None if every_day else sum(1 << number for number in values[DAY]),
            last_day and not every_day,
            None if every_weekday else sum(1 << number for number in values[WEEKDAY]),
            () if every_weekday else ordinals,
        )
        if not self.calendar.fires():
            _refuse(text, f"it never fires: no month in {fields[MONTH].raw!r} has a day {fields[DAY].raw!r}")
        first, second = _spell_times(minutes, hours, None if steady else self.follows_real_time)
        self.canonical = " ".join(
            (
                first,
                second,
                "*" if every_day else ",".join(filter(None, (_spell(values[DAY]), "L" if last_day else ""))),
                _spell(months) if len(months) < 12 else "*",
                "*" if every_weekday else _spell(values[WEEKDAY]) or ",".join(f"{d}#{n}" if n else f"{d}L" for d, n in ordinals),
            )
        )


class _Field:
    """One field, checked and respelled for ``croniter``: numbers only, no equal ranges, ``L5`` for ``5L``.

    Attributes:
        star: It starts with ``*`` (or is ``?``) and has no step over 1.
        stepped: It starts with ``*`` and a step over 1.
        plain: Its items for ``croniter``.
    """

    __slots__ = ("index", "ordinal", "plain", "raw", "star", "stepped", "text")

    def __init__(self, text: str, index: int, raw: str) -> None:
        self.text, self.index, self.raw = text, index, raw
        self.star = self.stepped = False
        items = raw.lower().split(",")
        self.plain = [self._item(item, position) for position, item in enumerate(items)]
        self.ordinal = any("#" in item or item.startswith("l") for item in self.plain) and index == WEEKDAY
        if self.ordinal and not all("#" in item or item.startswith("l") for item in self.plain):
            self._refuse("mixes weekdays of every week with # or L; use two schedules")

    def _refuse(self, why: str) -> NoReturn:
        _refuse(self.text, f"{self.raw!r} in {_FIELDS[self.index]} {why}")

    def _item(self, item: str, position: int) -> str:
        if not item:
            self._refuse("has an empty item")
        if item == "?" and self.index in (DAY, WEEKDAY) and self.raw == "?":
            self.star = True  # as in Kubernetes and Quartz: no restriction
            return "*"
        if "?" in item:
            self._refuse("has a ?, which stands only alone, for day of month or day of week; write *")
        base, slash, step_text = item.partition("/")
        self._differs(base)
        step = 1
        if slash:
            step = self._number(step_text, "step")
            size = _HIGH[self.index] - _LOW[self.index] + 1
            if not 1 <= step <= size:
                self._refuse(f"has the step {step}; a step is 1 to {size}, and counts anew in each {self._whole()}")
        if base == "*":
            if position:
                self._refuse(f"has {item!r} behind other items; write it first, for only a field that starts with * follows real time")
            if step == 1:
                self.star = True
                return "*"
            self.stepped = True
            return item
        if "*" in base:
            self._refuse(f"has {item!r}, which is no item: * stands alone or before a step")
        special = self._special(base, slash)
        if special:
            return special
        first, dash, last = base.partition("-")
        low = self._value(first)
        high = self._value(last) if dash else _HIGH[self.index] if slash else low
        if self.index == WEEKDAY and low == 7 and (dash or slash) and high != 7:
            self._refuse("has a range that starts at 7; Sunday is 0 at the start of a range")
        if self.index == WEEKDAY and last == "sun" and low > 0:
            high = 7
        if self.index == WEEKDAY and slash and not dash and low and (7 - low) % step == 0:
            # croniter and Kubernetes end the week on Saturday, cronsim on Sunday
            self._refuse(
                f"has two meanings: {item!r} may count on to Sunday or not; write a range such as {low}-6/{step} or {low}-7/{step}"
            )
        if low > high:
            self._refuse(f"has the reversed range {base!r}; write two ranges")
        if low == high:
            return str(low % 7 if self.index == WEEKDAY else low)
        return f"{low}-{high}" if step == 1 else f"{low}-{high}/{step}"

    def _whole(self) -> str:
        return ("hour", "day", "month", "year", "week")[self.index]

    def _differs(self, base: str) -> None:
        """Refuse what another cron reads as a hash, a random number or the nearest working day."""
        if base in ("h", "r") or base.startswith(("h(", "r(")):
            word = "hash" if base[0] == "h" else "random number"
            self._refuse(f"asks for a {word} ({base[0].upper()}), which differs per process or per tool; write the number")
        if self.index == DAY and "w" in base and set(base) <= set("lw0123456789-"):
            self._refuse("asks for the nearest working day (W), which is not supported")

    def _special(self, base: str, slash: str) -> str:
        """Return the respelled ``L``, ``5L`` or ``5#2``, or "" if *base* is none of them."""
        if self.index == DAY and "l" in base:
            if base != "l" or slash:
                self._refuse("uses L with something else; L stands alone for the last day of the month")
            return "l"
        if self.index != WEEKDAY:
            return ""
        day, sharp, number = base.partition("#")
        if sharp:
            if slash or "-" in day:
                self._refuse("uses # with a range or a step; list the weekdays one by one")
            count = self._number(number, "number after #")
            if not 1 <= count <= 5:
                self._refuse(f"asks for weekday number {count} of a month; # takes 1 to 5")
            return f"{self._value(day) % 7}#{count}"
        if base == "l":
            self._refuse("is L alone; write 5L for the last Friday of the month, 6 for Saturday")
        if base.startswith("l") or base.endswith("l"):
            if slash or "-" in base:
                self._refuse("uses L with a range or a step; list the weekdays one by one")
            return f"l{self._value(base.removeprefix('l') if base.startswith('l') else base.removesuffix('l')) % 7}"
        return ""

    def _number(self, text: str, what: str) -> int:
        if not text.isdigit() or len(text) > 4:
            self._refuse(f"has the {what} {text!r}, which is no number")
        return int(text)

    def _value(self, text: str) -> int:
        names = _NAMES[self.index]
        if text in names:
            return names[text]
        if not text.isdigit() or len(text) > 4:
            if text[:3] in names and text[:3].isalpha():
                self._refuse(f"has the name {text!r}; write {text[:3]}")
            kind = f"a number or a name such as {', '.join(list(names)[:3])}" if names else "a number"
            self._refuse(f"has {text!r} where {kind} is due")
        value = int(text)
        high = 7 if self.index == WEEKDAY else _HIGH[self.index]
        if not _LOW[self.index] <= value <= high:
            self._refuse(f"is out of range: {value} is not within {_LOW[self.index]} to {high}")
        return value


def _refuse(text: object, why: str) -> NoReturn:
    shown = repr(text)
    raise ConfigurationError(f"cron expression {shown if len(shown) <= 100 else shown[:96] + '...'}: {why}")


def _split(text: str) -> list[str]:
    """Return the five raw fields, or refuse what is none."""
    if not isinstance(text, str):
        _refuse(text, "is not text")
    if len(text) > _LONGEST:
        _refuse(text, f"is too long ({len(text)} characters, at most {_LONGEST})")
    for letter in text:
        if letter != "\t" and not " " <= letter <= "~":
            kind = "control character" if ord(letter) < 32 or ord(letter) == 127 else "character"
            _refuse(text, f"has the {kind} {letter!a}; only ASCII letters, digits, spaces and * , - / # @ are used")
    stripped = text.strip()
    if not stripped:
        _refuse(text, f"is empty; write five fields: {_ORDER}")
    upper = stripped.upper()
    if upper.startswith(("TZ=", "CRON_TZ=")):
        _refuse(text, f"has the zone prefix {stripped.split()[0]!r}; give the zone by the tz option (tz=... or --tz) and the fields alone")
    if "'" in stripped or '"' in stripped:
        _refuse(text, "has quotes inside the value; remove them")
    if stripped.startswith("@"):
        return _alias(text, stripped.lower()).split()
    fields = stripped.split()
    if len(fields) in (6, 7):
        _refuse(text, f"has {len(fields)} fields; fields for seconds or years are not supported (tools disagree on their place): {_ORDER}")
    if len(fields) != 5:
        _refuse(text, f"has {len(fields)} field{'s' if len(fields) > 1 else ''} instead of five: {_ORDER}")
    return fields


def _alias(text: str, word: str) -> str:
    if word.startswith("@every"):
        period = word.removeprefix("@every").strip() or "5m"
        _refuse(text, f"@every counts from the start of each process elsewhere; use the interval: Every({period!r}), --every {period}")
    if word == "@reboot":
        _refuse(text, "@reboot depends on the host that starts, not on time")
    if word not in _ALIASES:
        import difflib

        near = difflib.get_close_matches(word, _ALIASES, n=1)
        _refuse(text, f"unknown name{f', did you mean {near[0]}?' if near else ''}; known are {', '.join(_ALIASES)}")
    return _ALIASES[word]


def _expand(text: str, fields: list[_Field]) -> tuple[list[list[int]], tuple[tuple[int, int], ...], bool]:
    """Return the values of the five fields, the pairs of ``#`` and ``5L`` (0 for the last), and whether the last day is named."""
    # Not at the top: croniter and dateutil take 20 ms, and intervals need neither.
    from croniter import croniter

    try:
        expanded, nth = croniter.expand(" ".join(",".join(field.plain) for field in fields))
    except Exception as error:  # it raises KeyError and others besides its own
        raise ConfigurationError(f"cron expression {text!r}: croniter can't read it: {error}") from error
    values = []
    for index, found in enumerate(expanded):
        everything = list(range(_LOW[index], _HIGH[index] + 1))
        values.append(everything if "*" in found else sorted(value for value in found if isinstance(value, int)))
    ordinals = sorted((int(day), 0 if number == "l" else int(number)) for day, numbers in nth.items() for number in numbers)
    if ordinals:
        values[WEEKDAY] = []
    return values, tuple(ordinals), "l" in expanded[DAY]


def _spell_times(minutes: list[int], hours: list[int], real_time: bool | None) -> tuple[str, str]:
    """Return minute and hour field; for real time (True) one of them starts with ``*``, for fixed times (False) none, else the shorter."""
    if real_time is False:
        return _spell(minutes), _spell(hours)
    spelled = [_stepped(minutes, 60) or _spell(minutes), _stepped(hours, 24) or _spell(hours)]
    if real_time and not any(field.startswith("*") for field in spelled):
        spelled[0] = _starred(minutes, 60) or spelled[0]
        if not spelled[0].startswith("*"):
            spelled[1] = _starred(hours, 24)
    return spelled[0], spelled[1]


def _stepped(values: list[int], size: int) -> str:
    """Return ``*`` or ``*/n`` if that is exactly *values*, and more than one of them."""
    if len(values) < 2 or values[0]:
        return ""
    step = values[1]
    if values != list(range(0, size, step)):
        return ""
    return "*" if step == 1 else f"*/{step}"


def _starred(values: list[int], size: int) -> str:
    """Return *values* with the smallest ``*/n`` that they hold in front, or nothing if they hold none."""
    for step in range(1, size + 1):
        held = range(0, size, step)
        if set(held) <= set(values):
            return ",".join(filter(None, (f"*/{step}", _spell([value for value in values if value not in held]))))
    return ""


def _spell(values: list[int]) -> str:
    """Return ascending *values* as a list, with ranges for three and more in a row."""
    parts, index = [], 0
    while index < len(values):
        end = index
        while end + 1 < len(values) and values[end + 1] == values[end] + 1:
            end += 1
        if end - index >= 2:
            parts.append(f"{values[index]}-{values[end]}")
            index = end + 1
        else:
            parts.append(str(values[index]))
            index += 1
    return ",".join(parts)
