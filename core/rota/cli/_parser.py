# SPDX-License-Identifier: MIT
"""argparse for the subcommands: their help, and every command line that is not plain."""

from __future__ import annotations

import argparse
from textwrap import fill

from rota.errors import ConfigurationError
from rota.url import did_you_mean

from . import _codes
from ._options import OPTIONS, WHEN, variable
from ._output import hide, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_DESCRIPTION = """\
Run a command once per slot of a schedule, however many hosts start it; or, without a schedule, in one place at a time.

  rota run nightly --cron "0 2 * * *" --tz Europe/Berlin --url URL -- ./backup --all
  rota run report --every 1h --url URL -- ./report
  rota run mail --once-per 24h --url URL -- ./send-mail
  rota run worker --wait inf --url URL -- ./worker

Put it in front of the command in every crontab or CronJob that starts it, all with the same NAME, schedule and URL.
The slot counts as handled when the command ends with 0. When it fails, crashes or loses its host, the next start in
the slot runs it again: the work is done at least once, and success is recorded once."""

_AFTER = """\
A duration is text like 500ms, 30s, 15m, 1h30m, 7d. An instant is ISO 8601 with a zone (2026-02-26T02:00:00Z) or
seconds since the epoch.

The command finds in its environment:
  ROTA_NAME         the name, with the URL's prefix
  ROTA_TOKEN        the fencing token: larger than that of any earlier run; unset when it runs without the store
  ROTA_SLOT_START   the slot's start, as 2026-02-26T02:00:00Z; unset without a slot
  ROTA_SLOT_END     the slot's end; unset without one
  ROTA_ATTEMPT      1 for the first run of the slot, 2 for the first retry, ...

The signals TERM, INT, HUP, QUIT, USR1, USR2 and WINCH are passed on to the command and all that it started (its
process group). If it has not ended --grace after a TERM, it is killed. When the lease is lost, because the store was
not reached for so long, all of it gets TERM and then KILL before anybody else can start it. Where the store can't be
asked at the end of a success, rota keeps asking for as long as the lease lives, and a little longer.

{variables}

Exit codes: the command's own; 128+n when signal n ended it; else
{codes}"""


class Parser(argparse.ArgumentParser):
    """As argparse's, but it raises `ConfigurationError`, in one line that quotes no secret."""

    def __init__(self, command: str, usage: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"rota {command}",
            usage=usage,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=_Formatter,
            add_help=False,
        )
        self.add_argument("-h", "--help", action="store_true", help="show this and exit")

    def read(self, given: list[str]) -> argparse.Namespace:
        """Return the options; show the help and end where that was asked for."""
        if "-h" in given or "--help" in given:
            show(self.format_help())
            raise SystemExit(0)
        found, rest = self.parse_known_args(given)
        if rest:
            self.unknown(rest[0])
        return found

    def unknown(self, word: str) -> NoReturn:
        """Refuse a word of the command line that nothing takes."""
        if word.startswith("-"):
            flag = word.partition("=")[0]
            known = [flag for action in self._actions for flag in action.option_strings]
            raise ConfigurationError(f"there is no option {hide(flag)}{did_you_mean(flag, known)} (see {self.prog} --help)")
        hint = ": quote a schedule, as in --cron '0 2 * * *'" if word == "*" or word.isdigit() else ""
        raise ConfigurationError(f"{hide(word)!r} is one word too many{hint}; see {self.prog} --help")

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        shown, explicit, _ = message.partition(": ignored explicit argument")  # which argparse quotes
        raise ConfigurationError(f"{shown + ' takes no value' if explicit else hide(message)}; see {self.prog} --help")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=118)


def read(given: list[str]) -> dict[str, Any]:
    """Read the options of ``rota run``."""
    return vars(_run_parser().read(given))


def _run_parser() -> Parser:
    parser = Parser(
        "run",
        "rota run NAME [--cron EXPR [--tz ZONE] | --every DUR | --once-per DUR] [--planned T] [--url URL] [options] -- COMMAND...",
        _DESCRIPTION,
        _AFTER.format(
            variables=fill(f"Environment variables are defaults for the options: {', '.join(map(variable, OPTIONS))}.", 118),
            codes="\n".join(f"  {code:3}  {word:12} {says}" for code, word, says in _codes.TABLE),
        ),
    )
    parser.add_argument("name", metavar="NAME", help="what is run; the same on every host")
    when = parser.add_argument_group("when (without any of these: a plain lease, one holder at a time)")
    for option in WHEN:
        when.add_argument(option.flag, metavar=option.metavar, help=option.says)
    how = parser.add_argument_group("how")
    for option in OPTIONS:
        if option.metavar is None:
            how.add_argument(option.flag, action="store_true", default=None, help=option.says)
        else:
            how.add_argument(option.flag, metavar=option.metavar, help=option.says)
    return parser
