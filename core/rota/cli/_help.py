# SPDX-License-Identifier: MIT
"""The help of ``rota run``: one screen, from which a newcomer can protect a job."""

from __future__ import annotations

from textwrap import fill

from . import _codes
from ._options import OPTIONS, WHEN, Option

_HELP = """\
usage: rota run NAME [--cron EXPR [--tz ZONE] | --every DUR | --once-per DUR] [options] -- COMMAND...

Run a command once per slot of a schedule, however many hosts start it; without a schedule, in one place at a time.
Put it before the command wherever that is started, with the same NAME, schedule and URL everywhere:

  0 2 * * *  rota run nightly --cron "0 2 * * *" --tz Europe/Berlin --url URL -- /srv/backup --all

A slot is handled when the command ends with 0. If it fails, or its host dies, the next start in the slot, or a run
that stands by, runs it again: done at least once, recorded once. --at-most-once never does, not even after a crash.

{when}

{how}

DUR: 500ms, 30s, 15m, 1h30m, 7d. T: 2026-02-26T02:00:00Z or seconds since the epoch. --on-unavailable can be set in
the environment as ROTA_ON_UNAVAILABLE, and so on. The command finds ROTA_NAME, ROTA_TOKEN (fencing), ROTA_SLOT_START,
ROTA_SLOT_END and ROTA_ATTEMPT. TERM, INT, HUP, QUIT, USR1, USR2 and WINCH are passed on to it.

{codes}
More: docs/operations.md, docs/kubernetes.md
"""


def text() -> str:
    """Return the help."""
    codes = ", ".join(f"{code} {word}" for code, word, _ in _codes.TABLE)
    return _HELP.format(
        when="\n".join(map(_line, WHEN)),
        how="\n".join(map(_line, OPTIONS)),
        codes=fill(
            "Exit codes: the command's own; 128+n when signal n ended it; 0 too when the slot is handled (--strict: 110, 111, 119);"
            f" {codes}.",
            118,
        ),
    )


def _line(option: Option) -> str:
    return f"  {option.flag + (' ' + option.metavar if option.metavar else ''):<21} {option.says}"
