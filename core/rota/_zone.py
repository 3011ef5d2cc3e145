# SPDX-License-Identifier: MIT
"""Time zones as stretches of constant offset, for schedule arithmetic in microseconds since the Unix epoch (W10).

Zone data comes from where ``zoneinfo`` would take it: the first folder of ``zoneinfo.TZPATH`` that has the zone, then the
``tzdata`` package. The file is opened here, so that `Zone.version` names the data that is really used. The
environment's ``TZ`` is never read, and UTC needs no files.
"""

from __future__ import annotations

from .errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, TypeAlias

    Stretch: TypeAlias = tuple[int, int, int, int]

SECOND = 1_000_000
DAY_SECONDS = 86_400
# The shortest time after which an offset has come back is 7 days (America/Recife 2000, Asia/Gaza 2040), so no change hides
# between samples that are 5 days apart.
_STEP = 5 * DAY_SECONDS
_SPAN = 20 * _STEP
_BLOCKS = 64  # 17 years; a block is about 1 kB
_ALWAYS = 4_000_000 * DAY_SECONDS * SECOND

# The names under which tzdata links to Etc/UTC: they are one zone, and work without zone files.
_UTC = frozenset({"UTC", "Etc/UTC", "UCT", "Etc/UCT", "Universal", "Etc/Universal", "Zulu", "Etc/Zulu"})
_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+-/")
_EXAMPLES = "name a zone of the IANA data, such as UTC or Europe/Berlin"


class Zone:
    """One time zone, checked.

    `around` answers with *stretches* ``(start, end, offset, seen)``: from *start* to *end* (UTC) the wall clock is *offset* ahead
    of UTC, and just before *start* it had shown every time below *seen* (less than ``start + offset``: the
    times between are skipped; more: they are repeated). All are microseconds.

    Args:
        name: The zone's IANA name.

    Raises:
        ConfigurationError: No such zone, or no zone data on this host.
    """

    __slots__ = ("_base", "_blocks", "_home", "_second", "_version", "name")

    def __init__(self, name: str) -> None:
        _check(name)
        self.name = "UTC" if name in _UTC else name
        self._blocks: dict[int, tuple[int, int, tuple[Stretch, ...]]] = {}
        self._version: str | None = None
        self._home: str | None = None
        if self.name == "UTC":
            self._version = ""
            self._blocks[0] = (-_ALWAYS, _ALWAYS, ((-_ALWAYS, _ALWAYS, 0, -_ALWAYS),))
            return
        import datetime
        import zoneinfo

        file, self._home = _open(name)
        with file:
            try:
                zone = zoneinfo.ZoneInfo.from_file(file, key=name)
            except Exception as error:
                raise ConfigurationError(f"time zone {name!r} is not a zone file: {_EXAMPLES}") from error
        self._base = datetime.datetime(1970, 1, 1, tzinfo=zone)
        self._second = datetime.timedelta(seconds=1)

    @property
    def version(self) -> str:
        """The release of the zone data in use, as in ``2026a``; "" for UTC and fixed zones, "unknown" where the files don't say."""
        if self._version is None:
            fixed = self.name.startswith("Etc/") or self.name in ("EST", "MST", "HST", "GMT")
            self._version = "" if fixed else _version(self._home)
        return self._version

    def around(self, at: int) -> tuple[int, int, tuple[Stretch, ...]]:
        """Return the start and end of a block of time that holds *at*, and the stretches that tile it."""
        if self.name == "UTC":
            return self._blocks[0]
        number = at // (_SPAN * SECOND)
        block = self._blocks.get(number)
        if block is None:
            block = self._block(number * _SPAN)
            if len(self._blocks) >= _BLOCKS:
                self._blocks.clear()
            self._blocks[number] = block
        return block

    def _offset(self, at: int) -> int:
        instant = self._base + self._second * at
        # both carry the same tzinfo, so this is the difference of their wall clocks; `utcoffset` would have to guess from `fold`
        delta = self._base.tzinfo.fromutc(instant) - instant  # type: ignore[union-attr]
        return delta.days * DAY_SECONDS + delta.seconds

    def _block(self, low: int) -> tuple[int, int, tuple[Stretch, ...]]:
        high = low + _SPAN
        # One step back: a change just before the block may still be repeating wall times in it (no change is longer than 26 hours).
        start = low - _STEP
        offset = self._offset(start)
        seen = start + offset
        found = []
        for sample in range(low, high + 1, _STEP):
            after = self._offset(sample)
            while after != offset:
                change, new = self._change(max(start, sample - _STEP), sample, offset)
                found.append((start, change, offset, seen))
                seen = max(seen, change + offset)
                start, offset = change, new
        found.append((start, high, offset, seen))
        stretches = []
        for start, end, offset, seen in found:
            since, until = max(start, low), min(end, high)
            if since < until:
                shown = seen if since == start else max(seen, since + offset)
                stretches.append((since * SECOND, until * SECOND, offset * SECOND, shown * SECOND))
        return low * SECOND, high * SECOND, tuple(stretches)

    def _change(self, low: int, high: int, offset: int) -> tuple[int, int]:
        """Return the second in ``(low, high]`` at which *offset*, in force at *low*, has changed, and the new offset."""
        new = self._offset(high)
        while high - low > 1:
            middle = (low + high) // 2
            now = self._offset(middle)
            if now == offset:
                low = middle
            else:
                high, new = middle, now
        return high, new


def _check(name: str) -> None:
    """Refuse what is no zone's name, before any file is touched."""
    if not isinstance(name, str):
        raise ConfigurationError(f"time zone {name!r} is not text: {_EXAMPLES}")
    if not name.strip():
        raise ConfigurationError(f"time zone {name!r} is empty: {_EXAMPLES}")
    shown = name if len(name) <= 64 else name[:61] + "..."
    if len(name) > 64:
        raise ConfigurationError(f"time zone {shown!r} is too long ({len(name)} characters): {_EXAMPLES}")
    if "'" in name or '"' in name:
        raise ConfigurationError(f"time zone {name!r} has quotes inside the value: write {name.strip(chr(34) + chr(39))} without them")
    if name.startswith(("/", "\\", ".")) or ".." in name or name[1:2] == ":":
        raise ConfigurationError(f"time zone {name!r} is a path: {_EXAMPLES}")
    first = name.split("/", 1)[0]
    if first in ("right", "posix"):
        reason = "counts leap seconds" if first == "right" else "is a second copy of the data"
        raise ConfigurationError(f"time zone {name!r}: the folder {first}/ {reason}; name the zone without it")
    if name.rsplit("/", 1)[-1] in ("localtime", "posixrules", "Factory", "local"):
        raise ConfigurationError(f"time zone {name!r} differs from host to host: {_EXAMPLES}")
    strange = sorted(set(name) - _LETTERS)
    if strange or name.endswith("/") or "//" in name or not name[0].isalpha():
        raise ConfigurationError(f"time zone {name!r} is not a zone's name{_meant(name)}: {_EXAMPLES}")


def _open(name: str) -> tuple[IO[bytes], str | None]:
    """Return the zone's open file and the folder it came from, None for the ``tzdata`` package."""
    import os
    import zoneinfo

    parts = name.split("/")
    folder = False
    for home in zoneinfo.TZPATH:
        path = os.path.join(home, *parts)
        folder = folder or os.path.isdir(path)
        if os.path.isfile(path) and _spelled(home, parts):
            try:
                return open(path, "rb"), home
            except OSError as error:
                raise ConfigurationError(f"time zone {name!r}: {path} can't be read: {error.strerror or error}") from error
    try:
        from importlib.resources import files

        place = files("tzdata.zoneinfo")
    except ImportError:
        place = None
    if place is not None:
        root = place
        for part in parts[:-1]:
            place = place.joinpath(part)
        place = place.joinpath(parts[-1])
        folder = folder or place.is_dir()
        if place.is_file() and _spelled_in_package(root, parts):
            return place.open("rb"), None
    elif not any(os.path.isdir(home) and os.listdir(home) for home in zoneinfo.TZPATH):
        raise ConfigurationError(
            f"time zone {name!r}: this host has no time zone data; install it with 'pip install tzdata' (or the system's tzdata package)"
        )
    if folder:
        raise ConfigurationError(f"time zone {name!r} is a folder of zones, not a zone: {_EXAMPLES}")
    meant = _meant(name)
    advice = meant or "; if the name is right, this host's zone data lack it: install newer ones with 'pip install -U tzdata'"
    raise ConfigurationError(f"time zone {name!r} is unknown{advice}")


def _spelled(home: str, parts: list[str]) -> bool:
    """Return whether *parts* are spelled as on disk: where case is ignored ``europe/berlin`` would open, and fail on the next host."""
    import os

    for part in parts:
        if part not in os.listdir(home):
            return False
        home = os.path.join(home, part)
    return True


def _spelled_in_package(place: object, parts: list[str]) -> bool:
    for part in parts:
        for entry in place.iterdir():  # type: ignore[attr-defined]
            if entry.name == part:
                place = entry
                break
        else:
            return False
    return True


def _meant(name: str) -> str:
    """Return `, did you mean ...?` for the nearest names, or nothing."""
    import difflib
    import zoneinfo

    try:
        names = {zone.lower(): zone for zone in zoneinfo.available_timezones() | {"UTC"}}
    except OSError:
        return ""
    wanted = name.strip().replace(" ", "_").lower()
    places = sorted(zone for lower, zone in names.items() if lower.rpartition("/")[2] == wanted and "/" in lower)
    if places and wanted not in names:  # a city without its continent
        return f", did you mean {' or '.join(places[:3])}?"
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.75)
    return f", did you mean {' or '.join(names[zone] for zone in near)}?" if near else ""


def _version(home: str | None) -> str:
    """Return the release of the zone data in *home*, or of the ``tzdata`` package for None."""
    import os

    if home is None:
        from importlib import import_module

        try:
            return str(import_module("tzdata").IANA_VERSION)
        except (ImportError, AttributeError):
            return "unknown"
    for file in ("+VERSION", "tzdata.zi"):
        try:
            with open(os.path.join(home, file), encoding="ascii", errors="replace") as lines:
                line = lines.readline(100)
        except OSError:
            continue
        word = line.removeprefix("#").strip().removeprefix("version").strip()
        if word and len(word) <= 32:
            return word
    return "unknown"
