# SPDX-License-Identifier: MIT
"""``rota doctor``: is this store fit to be trusted with jobs, and if not, what is to be done.

The looking is in `_doctor_look`, and what a backend alone knows in its driver's `examine`. All of it runs on a thread of its own: whatever
the store does, the command ends in time and shows what was found until then. Every text passes `_hidden` on its way out, so that no
backend, not even one that quotes its own URL, makes it print a secret.
"""

from __future__ import annotations

import contextlib
import os
import threading
from textwrap import fill

from rota.duration import SECOND, duration
from rota.errors import ConfigurationError, Unavailable
from rota.finding import BAD, LEVELS, OK, WARN, Finding

from ._operator_table import JSON, is_terminal, show_columns, show_json
from ._output import clean, say, show
from ._parser import Parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from rota.url import Url

#: The exit code when something bad was found.
FAILED = 1
#: How long a driver may take to say goodbye, seconds.
GOODBYE = 0.5
#: How wide lines for people are.
WIDTH = 100

_DESCRIPTION = """\
Examine a store: can it be reached, and how fast; do the clocks agree; do its
settings keep what rota promises. Each finding is ok, warn or bad, and says what
to do. Nothing is changed but a lease, rota-doctor, that is taken and forgotten."""
_AFTER = """\
  rota doctor postgresql://app@db.example/app

Not on a terminal, a tab between columns and - for nothing: level, subject, what
was found, why it matters, what to do. [...] is a default.

Exit codes: 0 nothing bad; 1 something is bad, or it can't be reached or is not
there; 2 the command line or the URL is wrong, so that nothing was looked at."""


def doctor(given: list[str]) -> int:
    """Examine a store."""
    parser = Parser("doctor", "rota doctor [URL] [--json] [--timeout DUR]", _DESCRIPTION, _AFTER)
    parser.add_url("the store [ROTA_URL, else this host's file]")
    parser.add_argument("--json", action="store_true", help=JSON)
    parser.add_argument("--timeout", metavar="DUR", default="15s", help="the longest that all of it may take [15s]")
    found = parser.read(given)
    seconds = duration(found.timeout, "--timeout") / SECOND
    findings = _examined(named(found.url), seconds)
    if found.json:
        show_json(_row(finding) for finding in findings)
    elif is_terminal():
        show("".join(map(_for_people, findings)))
    else:
        show_columns((one.level, one.subject, one.text, one.why, one.cure) for one in findings)
    counts = {level: sum(finding.level == level for finding in findings) for level in LEVELS}
    if is_terminal() and not found.json:
        say(", ".join(f"{counts[level]} {level}" for level in (BAD, WARN, OK)))
    return FAILED if counts[BAD] else 0


def named(given: str | None) -> Url:
    """Return the store that the command line or the environment names."""
    from rota.url import parse

    from ._store import store

    url = os.environ.get("ROTA_URL") if given is None else given
    if url == "":
        source = "ROTA_URL" if given is None else "the URL"
        raise ConfigurationError(f"{source} is empty: name the store, or leave it out for this host's file")
    return store("", make=False) if url is None else parse(url)


def _examined(url: Url, seconds: float) -> list[Finding]:
    from rota._registry import backend

    from ._doctor_look import Examination
    from ._progress import Progress, carry_out

    found, parsed = backend(url)
    driver = found.driver(parsed)
    progress = Progress()
    examination = Examination(driver, parsed, max(0.05, seconds - GOODBYE), progress)
    try:
        if not carry_out(examination.run, progress, seconds):
            examination.failed(Unavailable(f"nothing came within {seconds:g}s while {progress.doing.removesuffix(' ...')}"))
    except Exception as error:
        examination.failed(error)
    finally:
        goodbye(driver.close)
    hide = _hidden(parsed)
    return [
        Finding(one.level, hide(one.subject), hide(one.text), hide(one.why), hide(one.cure), _plain(one.facts, hide))
        for one in list(examination.findings)
    ]


def goodbye(close: Callable[[], object]) -> None:
    """Let a driver close, in bounded time: the server may be the kind that never answers."""

    def run() -> None:
        with contextlib.suppress(Exception):
            close()

    ending = threading.Thread(target=run, name="rota-goodbye", daemon=True)
    ending.start()
    ending.join(GOODBYE)


def _hidden(url: Url) -> Callable[[str], str]:
    """Return what takes the URL's secrets out of a text, and makes one line of it."""
    from urllib.parse import unquote

    from rota.url import _SECRET

    raw = [url.rest.rpartition("@")[0].partition(":")[2]]
    raw += [value for name, value in url.options.items() if any(word in name.lower() for word in _SECRET)]
    raw += [value.rpartition("@")[0].rpartition(":")[2] for value in url.options.values() if "://" in value and "@" in value]
    secrets = sorted({form for value in raw for form in (value, unquote(value)) if len(form) > 2}, key=len, reverse=True)

    def hide(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, "***")
        return " ".join(text.split())

    return hide


def _plain(facts: Any, hide: Callable[[str], str]) -> dict[str, Any]:
    return {name: hide(value) if isinstance(value, str) else value for name, value in facts.items()}


def _row(finding: Finding) -> dict[str, Any]:
    """Return a finding for programs; `docs/operations.md` describes it."""
    return {
        "level": finding.level,
        "subject": finding.subject,
        "finding": finding.text,
        "why": finding.why or None,
        "cure": finding.cure or None,
        "facts": finding.facts,
    }


def _for_people(finding: Finding) -> str:
    def lines(head: str, text: str) -> Iterable[str]:
        if text:
            yield fill(clean(text), WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False) + "\n"

    head = f"{finding.level:4}  {finding.subject:12}  "
    return "".join([*lines(head, finding.text), *lines(" " * 6 + "why:  ", finding.why), *lines(" " * 6 + "cure: ", finding.cure)])
