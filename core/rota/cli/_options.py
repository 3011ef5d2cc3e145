# SPDX-License-Identifier: MIT
"""The options of ``rota run``: read, given defaults from the environment, and checked for what goes with what."""

from __future__ import annotations

import os

from rota.duration import SECOND, duration
from rota.errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Option:
    """One option of ``rota run``: flags, the kinds of claim it goes with, and what the help says."""

    __slots__ = ("flag", "kinds", "metavar", "name", "says")

    def __init__(self, name: str, metavar: str | None, kinds: str, says: str) -> None:
        self.name = name
        self.flag = "--" + name.replace("_", "-")
        self.metavar = metavar
        self.kinds = kinds
        self.says = says


#: What says when to run; none has an environment variable.
WHEN = (
    Option("cron", "EXPR", "s", "slots by a cron expression of five fields, or @daily and the like"),
    Option("tz", "ZONE", "s", "with --cron: the IANA time zone (UTC)"),
    Option("every", "DUR", "s", "slots of this length, counted from 1970-01-01T00:00:00Z"),
    Option("once_per", "DUR", "o", "once, and then not until so much time has gone by"),
    Option("planned", "T", "p", "the instant this run was planned for: names the slot that holds it; alone, each instant is a slot"),
)
#: Kinds: l lease, o once (rolling), s window by schedule, p window with a planned instant. Each has an environment variable.
OPTIONS = (
    Option("url", "URL", "losp", "the store that coordinates, the same everywhere; default: a file for this host alone"),
    Option("ttl", "DUR", "losp", "how long the lease lives when this host dies (30s); renewed while the command runs"),
    Option("grace", "DUR", "losp", "time between TERM and KILL (10s, at most a fifth of the ttl)"),
    Option("wait", "DUR", "losp", "wait in line while somebody else runs it; inf: for ever (0s)"),
    Option("early", "DUR", "p", "how much before the planned instant a start is accepted (5s)"),
    Option("max_late", "DUR", "sp", "refuse later than this after the slot's start (while the slot is open)"),
    Option("catch_up", None, "s", "first run the newest slot that ended, if it was missed"),
    Option("at_most_once", None, "osp", "never run a slot again, not even after a crash"),
    Option("attempts", "N", "osp", "close the slot after N failures (no limit)"),
    Option("site", "NAME", "losp", "where this runs, for people"),
    Option("timeout", "DUR", "losp", "the longest that one call to the store may take (1500ms)"),
    Option("on_unavailable", "WHAT", "losp", "when the store can't be asked: raise or skip (exit 115), or run without it"),
    Option("strict", None, "losp", "skipping a slot that is handled is not 0 but has its own code"),
    Option("quiet", None, "losp", "say nothing when all is well or a slot is skipped"),
)
_KIND_WORDS = {"o": "--once-per", "s": "--cron or --every", "p": "--planned"}


def variable(option: Option) -> str:
    """Return the name of the environment variable that is the option's default."""
    return "ROTA_" + option.name.upper()


def plain(given: list[str]) -> dict[str, Any] | None:
    """Read a command line that is nothing but known options, each once, and a name; return None for any other.

    Such a line means the same to argparse, whose import and parser cost as much as a third of Python's start, and which reads all others.
    """
    by_flag = {option.flag: option for option in (*WHEN, *OPTIONS)}
    found: dict[str, Any] = {option.name: None for option in by_flag.values()}
    words = iter(given)
    for word in words:
        if not word.startswith("-"):
            key, value = "name", word
        else:
            flag, equals, value = word.partition("=")
            option = by_flag.get(flag)
            if option is None or (equals and (option.metavar is None or not value)):
                return None
            key = option.name
            if option.metavar is None:
                found[key] = True
                continue
            if not equals:
                value = next(words, "-")
                if value.startswith("-"):
                    return None
        if found.get(key) is not None:
            return None
        found[key] = value
    return found if "name" in found else None


class RunOptions:
    """What ``rota run`` was asked for.

    Attributes:
        name: The name.
        command: The command and its arguments, untouched.
        kind: ``l`` lease, ``o`` once, ``s`` window by schedule, ``p`` window with a planned instant.
        url: The store's URL; empty for the default file.
        site: The site given by ``--site``; else empty.
        strict: Whether skipping has codes of its own.
        quiet: Whether it says only what went wrong.
        timeout: The longest that one call to the store may take, in seconds.
        grace: Seconds between TERM and KILL.
        claim: The options of the claim, for the client.
    """

    __slots__ = ("_found", "claim", "command", "grace", "kind", "name", "quiet", "site", "strict", "timeout", "url")

    def __init__(self, given: list[str]) -> None:
        cut = given.index("--") if "--" in given else len(given)
        self.command = given[cut + 1 :]
        if not self.command and not {"-h", "--help"} & set(given):
            missing = "the command is missing" if cut < len(given) else "-- is missing"
            raise ConfigurationError(f"{missing}: write -- and then the command, as in: rota run NAME --every 1h -- COMMAND...")
        found = plain(given[:cut])
        if found is None:
            from ._parser import read

            found = read(given[:cut])
        self._found = found
        self.name: str = found["name"]
        self.kind = self._kind()
        values = self._values()
        self.url: str = values.pop("url", "")
        self.site: str = values.pop("site", "")
        self.strict: bool = values.pop("strict", False)
        self.quiet: bool = values.pop("quiet", False)
        self.claim = values
        self.timeout = duration(values.pop("timeout", "1500ms"), "timeout") / SECOND
        ttl = duration(values.get("ttl", "30s"), "ttl")
        # L9 is checked by the client for the grace as for everything else
        values.setdefault("grace", min(10.0, ttl / SECOND / 5))
        self.grace = duration(values["grace"], "grace", zero=True) / SECOND

    def _kind(self) -> str:
        found = self._found
        given = [f"--{name.replace('_', '-')}" for name in ("cron", "every", "once_per") if found[name] is not None]
        if len(given) > 1:
            raise ConfigurationError(f"{' and '.join(given)} are two schedules: give one")
        if found["tz"] is not None and found["cron"] is None:
            raise ConfigurationError("--tz goes with --cron: nothing else depends on a time zone")
        if found["once_per"] is not None:
            if found["planned"] is not None:
                raise ConfigurationError(
                    "--planned goes with --cron, --every or alone: with --once-per the period starts when the run does"
                )
            return "o"
        return "p" if found["planned"] is not None else "s" if given else "l"

    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for option in OPTIONS:
            value, applies = self._found[option.name], self.kind in option.kinds
            if value is not None and not applies:
                wanted = [_KIND_WORDS[kind] for kind in option.kinds if kind in _KIND_WORDS]
                without = ", without --planned" if self.kind == "p" else ""
                raise ConfigurationError(f"{option.flag} goes with {' or '.join(wanted)}{without}")
            source = option.flag
            if value is None:
                source = variable(option)
                value = os.environ.get(source, "")
                # one set of variables may serve many jobs, so those that don't fit this one are no error
                if not value or not applies:
                    continue
            values[option.name] = self._read(option, value, source)
        if self._found["planned"] is not None:
            values["planned"] = self._found["planned"]
        return values

    @staticmethod
    def _read(option: Option, value: Any, source: str) -> Any:
        if option.metavar is None:
            if isinstance(value, bool):
                return value if option.name != "catch_up" else "latest"
            word = value.strip().lower()
            if word not in ("1", "true", "yes", "on", "0", "false", "no", "off"):
                raise ConfigurationError(f"{source}={value!r} must be true or false")
            yes = word in ("1", "true", "yes", "on")
            return ("latest" if yes else None) if option.name == "catch_up" else yes
        if option.metavar == "N":
            if not (value.isascii() and value.isdigit() and int(value) > 0):
                raise ConfigurationError(f"{source}={value!r} must be a whole number from 1 up")
            return int(value)
        if option.name == "wait" and value.strip().lower() in ("inf", "infinity", "forever"):
            return float("inf")
        if option.metavar == "DUR":
            duration(value, source, zero=True)  # so that the message names the option as it was written
        if not value:
            raise ConfigurationError(f"{source} is empty")
        return value

    def schedule(self) -> Any:
        """Return the schedule; None where there is none."""
        found = self._found
        if found["cron"] is not None:
            from rota.schedule import Cron

            return Cron(found["cron"], **({} if found["tz"] is None else {"tz": found["tz"]}))
        if found["every"] is not None:
            from rota.schedule import Every

            return Every(found["every"])
        return None

    @property
    def period(self) -> str:
        """The period of ``--once-per``."""
        period: str = self._found["once_per"]
        return period
