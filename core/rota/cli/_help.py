# SPDX-License-Identifier: MIT
"""The help of ``rota run``: one screen, from which a newcomer can protect a job; and all of it, for ``rota help run``."""

from __future__ import annotations

from textwrap import fill, wrap

from . import _codes
from ._options import OPTIONS, WHEN, Option

_SCREEN = """\
usage: rota run NAME [--cron EXPR [--tz ZONE] | --every DUR [--anchor T] |
                     --once-per DUR] [options] -- COMMAND...

Run a command once per slot of a schedule, however many hosts start it; without
a schedule, in one place at a time. NAME, schedule and store are alike on each:

  0 2 * * *  rota run nightly --cron "0 2 * * *" --tz Asia/Tokyo -- /srv/backup

A slot is handled when the command ends with 0. If it fails, or its host dies,
the next start in the slot, or a run that stands by, runs it again.

  --cron EXPR, --tz ZONE  five fields or @daily and the like, in a zone [UTC]
  --every DUR, --anchor T slots of this length, as 15m, one from T [1970-01-01]
  --once-per DUR          once, and then not until so much time has gone by
  --url URL               the store [ROTA_URL, else a file for this host alone]
  --wait DUR              stand by so long while others run it [slot's end]
  --at-most-once          never run a slot again, not even after a crash
  --on-unavailable run    run without the store while it is away [exit 115]

[...] is a default. A password in --url shows in ps: set ROTA_URL instead.
Exit codes: the command's own; 0 too when the slot is handled; 2 usage, 112
busy, 115 unavailable, 116 lost. rota help run: all options, codes, variables.
"""
_ALL = """\
usage: rota run NAME [--cron EXPR [--tz ZONE] | --every DUR [--anchor T] |
                     --once-per DUR] [options] -- COMMAND...

A slot is handled when the command ends with 0. If it fails, or its host dies,
the next start in the slot, or a run that stands by, runs it again: done at
least once, recorded once. --at-most-once never does, not even after a crash.

{when}

{how}

[...] is a default. DUR: 500ms, 30s, 15m, 1h30m, 7d. T: 2026-02-26T02:00:00Z or
seconds since the epoch. --on-unavailable can be set in the environment as
ROTA_ON_UNAVAILABLE, and so on; a variable that is one letter off is an error.
Whoever may run ps sees the command line: put a password into ROTA_URL alone.

The command finds ROTA_NAME (NAME, without the URL's prefix=), ROTA_TOKEN
(fencing; not there when it runs without the store), ROTA_SLOT_START,
ROTA_SLOT_END and ROTA_ATTEMPT. TERM, INT, HUP,
QUIT, USR1, USR2 and WINCH are passed on to it.

{codes}

rota help json run: the events of --json.
"""
#: How wide a screen is.
_WIDTH = 80


def screen() -> str:
    """Return what fits a screen."""
    return _SCREEN


def everything() -> str:
    """Return all options, exit codes and variables."""
    codes = ", ".join(f"{code} {word}" for code, word, _ in _codes.TABLE)
    return _ALL.format(
        when="\n".join(map(_lines, WHEN)),
        how="\n".join(map(_lines, OPTIONS)),
        codes=fill(
            "Exit codes: the command's own; 128+n when signal n ended it; 0 too when the slot is handled (--strict: 110, 111, 119);"
            f" {codes}.",
            _WIDTH,
        ),
    )


def _lines(option: Option) -> str:
    first, *more = wrap(option.says, _WIDTH - 25)
    flag = f"{option.flag} {option.metavar or ''}"
    return "\n".join([f"  {flag:<22} {first}", *(" " * 25 + line for line in more)])
