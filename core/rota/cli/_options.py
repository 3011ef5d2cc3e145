# SPDX-License-Identifier: MIT
"""The options of ``rota run``: read, given defaults from the environment, and checked for what goes with what."""

from __future__ import annotations

import os

from rota.duration import SECOND, duration
from rota.errors import ConfigurationError
from rota.url import did_you_mean

from ._output import hide, say, show

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


#: What says when to run. Variables count where the command line says nothing of it; ROTA_PLANNED is for ``--planned auto`` alone.
WHEN = (
    Option("cron", "EXPR", "s", "slots by a cron expression of five fields, or @daily and the like"),
    Option("tz", "ZONE", "s", "with --cron: the IANA time zone [UTC]"),
    Option("every", "DUR", "s", "slots of this length, counted from 1970-01-01T00:00:00Z"),
    Option("anchor", "T", "s", "with --every: any instant at which one of them starts [1970-01-01T00:00:00Z]"),
    Option("once_per", "DUR", "o", "once, and then not until so much time has gone by"),
    Option("planned", "T", "p", "the instant it is meant for, which names its slot; auto: as Kubernetes or ROTA_PLANNED tells"),
)
#: Kinds: l lease, o once (rolling), s window by schedule, p window with a planned instant. Each has an environment variable.
OPTIONS = (
    Option("url", "URL", "losp", "the store all share, as redis://HOST (see rota backends) [a file for this host alone]"),
    Option("wait", "DUR", "losp", "how long to stand by while others run it; inf: for ever [until the slot ends; a lease: 0s]"),
    Option("busy_ok", None, "losp", "somebody else who runs it is no failure: exit 0, not 112"),
    Option("wait_early", "DUR", "p", "wait so long for a planned slot that has not begun [5m]"),
    Option("early", "DUR", "osp", "a start so shortly before a slot is meant for it [5s]"),
    Option("max_late", "DUR", "sp", "refuse later than this after the slot's start [while the slot is open]"),
    Option("catch_up", None, "s", "if the slot before this one was missed, run that one; one more start in this slot runs this one"),
    Option("at_most_once", None, "osp", "never run a slot again, even after a failure or crash, as long as the store can be asked"),
    Option("overlap", None, "sp", "with --at-most-once: don't keep the next slot waiting while this one runs"),
    Option("attempts", "N", "osp", "close the slot after N failures [no limit]"),
    Option("ttl", "DUR", "losp", "how long others wait when this host dies; renewed while the command runs [30s]"),
    Option("grace", "DUR", "losp", "time between TERM and KILL [10s, at most a fifth of the ttl]"),
    Option("standby", "DUR", "losp", "let the others go first by so much"),
    Option("jitter", "DUR", "losp", "start later by a random part of this"),
    Option("site", "NAME", "losp", "where this runs, for people"),
    Option("timeout", "DUR", "losp", "the longest that one call to the store may take [1500ms]"),
    Option("on_unavailable", "WHAT", "losp", "when the store can't be asked: raise or skip, both exit 115, or run without it [raise]"),
    Option("strict", None, "losp", "skipping a slot that is handled is not 0 but has its own code"),
    Option("json", None, "losp", "say what happens as JSON, one line per event"),
    Option("quiet", None, "losp", "say nothing of what ends with 0"),
)
#: What a variable of an option without a value may say.
YES = ("1", "true", "yes", "on")
#: Of an anchor without an interval, in `rota next` too.
ANCHOR_ALONE = "--anchor goes with --every: it says where slots of one length start"
#: What an option without a value is in Python, where it has one.
_ALONE = {"--catch-up": ', and is what catch_up="latest" is in Python'}
_KIND_WORDS = {"o": "--once-per", "s": "--cron or --every", "p": "--planned"}
_BY_FLAG = {option.flag: option for option in (*WHEN, *OPTIONS)}


def variable(option: Option) -> str:
    """Return the name of the environment variable that is the option's default."""
    return "ROTA_" + option.name.upper()


def read(given: list[str], *, dashed: bool = False) -> dict[str, Any]:
    """Read a command line's words before its ``--``: argparse's import and parser would cost as much as a third of Python's start.

    Args:
        given: The words.
        dashed: Whether the command begins with a dash, so that a name may be meant by it.

    Raises:
        ConfigurationError: A word that nothing takes, a value that is missing or one too many; no message quotes a secret.
    """
    found: dict[str, Any] = dict.fromkeys(("name", *(option.name for option in _BY_FLAG.values())))
    words, last = iter(given), ""
    for word in words:
        behind, last = last, word
        if not word.startswith("-"):
            if found["name"] is not None:
                hint = ": quote a schedule, as in --cron '0 2 * * *'" if word == "*" or word.isdigit() else ""
                if behind in _BY_FLAG and _BY_FLAG[behind].metavar is None:
                    hint = f": {behind} takes no value{_ALONE.get(behind, '')}"
                raise _wrong(f"{hide(word)!r} is one word too many{hint}")
            found["name"] = word
            continue
        flag, equals, value = word.partition("=")
        option = _BY_FLAG.get(flag)
        if option is None:
            raise _wrong(f"there is no option {hide(flag)}{did_you_mean(flag, _BY_FLAG)}")
        if option.metavar is None:
            if equals:
                raise _wrong(f"{flag} takes no value{_ALONE.get(flag, '')}")
            found[option.name] = True
            continue
        if not equals:
            value = next(words, "-")
            if value.startswith("-") and not value[1:2].isdigit():  # a negative number is refused for what it is
                raise _wrong(f"{flag} needs a value, as in {flag} {option.metavar}")
        if found[option.name] is not None:
            raise _wrong(f"{flag} is given twice")
        found[option.name] = value
    if found["name"] is None and dashed:
        raise _wrong("NAME is missing before the --: what follows it is the command, and rota run takes no NAME that begins with a dash")
    if found["name"] is None:
        raise _wrong("NAME is missing: what is run, the same on every host, as in: rota run nightly --every 1d -- COMMAND...")
    return found


def _wrong(message: str) -> ConfigurationError:
    return ConfigurationError(f"{message}{' (see rota run --help)' if message.endswith('?') else '; see rota run --help'}")


class RunOptions:
    """What ``rota run`` was asked for.

    Attributes:
        name: The name, as it was typed.
        prefix: What the library puts before it, as the URL says; empty until that was read.
        command: The command and its arguments, untouched.
        kind: ``l`` lease, ``o`` once, ``s`` window by schedule, ``p`` window with a planned instant.
        url: The store's URL; empty for the default file.
        site: The site given by ``--site``; else empty.
        strict: Whether skipping has codes of its own.
        quiet: Whether it says only what went wrong.
        busy_ok: Whether busy is no failure.
        timeout: The longest that one call to the store may take, in seconds.
        grace: Seconds between TERM and KILL.
        wait: How long to stand by or wait in line, in seconds; None where nothing was said.
        wait_early: How long to wait for a planned slot to begin, in seconds.
        early: How shortly before a slot a start is meant for it; None where nothing was said.
        standby: By how much the others may go first, in seconds.
        jitter: The most by which to start later, in seconds.
        claim: The options of the claim, for the client.
    """

    __slots__ = (
        "_found",
        "_read_there",
        "busy_ok",
        "claim",
        "command",
        "early",
        "grace",
        "jitter",
        "kind",
        "name",
        "prefix",
        "quiet",
        "site",
        "standby",
        "strict",
        "timeout",
        "url",
        "wait",
        "wait_early",
    )

    def __init__(self, given: list[str]) -> None:
        cut = given.index("--") if "--" in given else len(given)
        if {"-h", "--help"} & set(given[:cut]):
            from ._help import screen

            show(screen())
            raise SystemExit(0)
        self.command = given[cut + 1 :]
        if not self.command:
            missing = "the command is missing" if cut < len(given) else "-- is missing"
            raise ConfigurationError(f"{missing}: write -- and then the command, as in: rota run NAME --every 1h -- COMMAND...")
        self._found = found = read(given[:cut], dashed=self.command[0].startswith("-"))
        self._schedule_from_environment()
        self.name: str = found["name"]
        self.prefix = ""
        planned = self._planned()
        self.kind = self._kind(planned)
        self._check_when(planned)
        values = self._values()
        if planned is not None:
            values["planned"] = planned
        self.url: str = values.pop("url", "")
        self.site: str = values.pop("site", "")
        self.strict: bool = values.pop("strict", False)
        self.quiet: bool = values.pop("quiet", False)
        self.busy_ok: bool = values.pop("busy_ok", False)
        values.pop("json", None)
        wait = values.pop("wait", None)
        self.wait = wait if wait is None or wait == float("inf") else _seconds(wait, "wait")
        self.wait_early = _seconds(values.pop("wait_early", "5m"), "wait_early")
        self.early = values.get("early")
        if self.kind != "p":
            values.pop("early", None)
        self.standby = _seconds(values.pop("standby", "0s"), "standby")
        self.jitter = _seconds(values.pop("jitter", "0s"), "jitter")
        self.claim = values
        self.timeout = duration(values.pop("timeout", "1500ms"), "timeout") / SECOND
        ttl = duration(values.get("ttl", "30s"), "ttl")
        # L9 is checked by the client for the grace as for everything else
        values.setdefault("grace", min(10.0, ttl / SECOND / 5))
        self.grace = _seconds(values["grace"], "grace")
        self._check_together(values)

    def _schedule_from_environment(self) -> None:
        found = self._found
        self._read_there: set[str] = set()
        schedules = ("cron", "every", "once_per")
        if all(found[name] is None for name in schedules):
            self._take_there(*schedules)
        # one set of variables may serve many jobs
        if found["cron"] is not None:
            self._take_there("tz")
        if found["every"] is not None:
            self._take_there("anchor")

    def _take_there(self, *names: str) -> None:
        """Take from the environment what the command line has not."""
        for name in names:
            if self._found[name] is None:
                self._found[name] = os.environ.get("ROTA_" + name.upper()) or None
                self._read_there.add(name)

    def _planned(self) -> str | None:
        """Return the planned instant as text; None where there is none."""
        planned: str | None = self._found["planned"]
        if planned is None or planned.strip().lower() != "auto":
            return planned
        from rota.schedule import instant

        from ._planned import find

        found, where = find()
        if not found:
            if self._found["cron"] is None and self._found["every"] is None:
                raise ConfigurationError(
                    f"--planned auto found no planned instant: {where}: without --cron or --every there is no other slot to run"
                )
            say(f"no planned instant was found: {where}: the slot is the one of the store's time", "unplanned")
            return None
        try:
            instant(found, where)
        except ConfigurationError as error:
            raise ConfigurationError(f"--planned auto: {error}") from error
        return found

    def _kind(self, planned: str | None) -> str:
        found = self._found
        given = [f"--{name.replace('_', '-')}" for name in ("cron", "every", "once_per") if found[name] is not None]
        if len(given) > 1:
            raise ConfigurationError(f"{' and '.join(given)} are two schedules: give one")
        if found["tz"] is not None and found["cron"] is None:
            raise ConfigurationError("--tz goes with --cron: nothing else depends on a time zone")
        if found["anchor"] is not None and found["every"] is None:
            raise ConfigurationError(ANCHOR_ALONE)
        if found["once_per"] is not None:
            if found["planned"] is not None:
                raise ConfigurationError(
                    "--planned goes with --cron, --every or alone: with --once-per the period starts when the run does"
                )
            return "o"
        return "p" if planned is not None else "s" if given else "l"

    def _source(self, option: Option) -> str:
        """Return what an option is called where its value was written."""
        return variable(option) if self._found[option.name] is None or option.name in self._read_there else option.flag

    def as_typed(self, message: str) -> str:
        """Return a message that begins with a library's option, as in ``every=``, with the option as it was written."""
        name, equals, rest = message.partition("=")
        option = _BY_FLAG.get("--" + name.replace("_", "-"))
        return message if option is None or not equals else f"{self._source(option)}={rest}"

    def by_name(self, message: str) -> str:
        """Return a message of the library, which has the URL's prefix before the name, with the name as it was typed."""
        full = self.prefix + self.name
        return message.removeprefix(self.prefix) if message.startswith(f"{full}: ") else message.replace(repr(full), repr(self.name))

    def _check_when(self, planned: str | None) -> None:
        """Refuse values under the name by which they were written, before the schedule does it under its own."""
        for option in WHEN:
            value = self._found[option.name]
            if option.metavar == "DUR" and value is not None:
                duration(value, self._source(option))
            elif value is not None and (option.name == "anchor" or (option.name == "planned" and value == planned)):
                from rota.schedule import instant

                instant(value, self._source(option))

    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        kinds = self.kind if self._found["planned"] is None else "ps"  # --planned auto may find one, and may find none
        for option in OPTIONS:
            value, applies = self._found[option.name], self.kind in option.kinds
            if value is not None and not set(kinds) & set(option.kinds):
                wanted = [_KIND_WORDS[kind] for kind in option.kinds if kind in _KIND_WORDS]
                raise ConfigurationError(f"{option.flag} goes with {' or '.join(wanted)}")
            if value is not None and option.name == "catch_up" and self._found["planned"] is not None:
                raise ConfigurationError("--catch-up goes with --cron or --every, without --planned: a planned instant names its slot")
            source = option.flag
            if value is None:
                source = variable(option)
                value = os.environ.get(source, "")
                if option.name == "url" and not value and source in os.environ:
                    raise ConfigurationError(f"{source} is empty: name the store, or unset it to use a file for this host alone")
                # one set of variables may serve many jobs, so those that don't fit this one are no error
                if not value or not applies:
                    continue
            elif not applies:
                continue
            values[option.name] = self._read(option, value, source)
        return values

    def _check_together(self, values: dict[str, Any]) -> None:
        found = self._found
        if values.get("overlap") and not values.get("at_most_once"):
            if found["overlap"]:
                raise ConfigurationError("--overlap needs --at-most-once: it holds no lease, so a crash can't be told from work")
            del values["overlap"]
        if values.get("at_most_once") and "attempts" in values:
            if found["attempts"] is not None:
                raise ConfigurationError("--attempts counts retries, and with --at-most-once there are none: give one of them")
            del values["attempts"]

    @staticmethod
    def _read(option: Option, value: Any, source: str) -> Any:
        if option.metavar is None:
            if isinstance(value, bool):
                return value if option.name != "catch_up" else "latest"
            word = value.strip().lower()
            if word not in (*YES, "0", "false", "no", "off"):
                latest = ': true is what catch_up="latest" is in Python' if option.name == "catch_up" else ""
                raise ConfigurationError(f"{source}={value!r} must be true or false{latest}")
            yes = word in YES
            return ("latest" if yes else None) if option.name == "catch_up" else yes
        if option.metavar == "N":
            if not (value.isascii() and value.isdigit() and int(value) > 0):
                raise ConfigurationError(f"{source}={value!r} must be a whole number from 1 up")
            return int(value)
        if option.name == "wait" and value.strip().lower() in ("inf", "infinity", "forever"):
            return float("inf")
        if option.metavar == "DUR":
            duration(value, source, zero=option.name not in ("ttl", "timeout"))  # so that the message names the option as it was written
            if option.name == "early":
                from rota.policy import MOST_EARLY

                duration(value, source, zero=True, most=MOST_EARLY)
        if not value:
            raise ConfigurationError(f"{source} is empty")
        if option.name == "on_unavailable" and value not in ("raise", "skip", "run"):
            raise ConfigurationError(f"{source}={value!r} must be raise, skip or run")
        return value

    @property
    def floating(self) -> bool:
        """Whether the slot is the one of the store's time."""
        return self.kind == "s"

    def schedule(self) -> Any:
        """Return the schedule; None where there is none."""
        found = self._found
        if found["cron"] is not None:
            from rota.schedule import Cron

            return Cron(found["cron"], **({} if found["tz"] is None else {"tz": found["tz"]}))
        if found["every"] is not None:
            from rota.schedule import Every

            return Every(found["every"], anchor=found["anchor"])
        return None

    @property
    def period(self) -> str:
        """The period of ``--once-per``."""
        period: str = self._found["once_per"]
        return period


def _seconds(value: Any, what: str) -> float:
    return duration(value, what, zero=True) / SECOND
