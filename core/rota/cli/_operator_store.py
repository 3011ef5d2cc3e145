# SPDX-License-Identifier: MIT
"""The store that an operator's command asks: which one it is, and what is said where it, or a name in it, is not there."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress

from rota.duration import SECOND, duration
from rota.errors import ConfigurationError, RotaError
from rota.url import did_you_mean

from ._output import clean, say
from ._parser import Parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from rota.backend import Now, Record
    from rota.client import Client

#: The exit code where the store has no such name, or there is no store.
ABSENT = 1
#: Among how many names one is looked for that may have been meant.
SOME = 1000


def add_store(parser: Parser) -> None:
    """Add the options of every command that asks a store."""
    parser.add_argument("--url", metavar="URL", help="the store [ROTA_URL, else this host's file]")
    parser.add_argument("--timeout", metavar="DUR", help="the longest that one call to the store may take [1500ms]")


@contextmanager
def connected(found: argparse.Namespace) -> Iterator[tuple[Client, float]]:
    """Give a client of the store that the options name, and the timeout of its calls in seconds."""
    from rota.client import connect

    from ._store import store

    source = "--timeout" if found.timeout else "ROTA_TIMEOUT"
    timeout = duration(found.timeout or os.environ.get("ROTA_TIMEOUT") or "1500ms", source) / SECOND
    url = os.environ.get("ROTA_URL") if found.url is None else found.url
    if url == "":  # a variable that was not set must not lead to another store than rota run's
        source = "ROTA_URL" if found.url is None else "--url"
        raise ConfigurationError(f"{source} is empty: name the store, or leave it out for this host's file")
    place = store(url or "", make=False)
    found.store = place.safe
    with connect(place, timeout=timeout) as client:
        client._engine.warn = lambda name, message: None  # type: ignore[method-assign]  # what it would say, the output says
        check_made(client, "" if url else ": another one is named with --url or ROTA_URL")
        yield client, timeout


def read(client: Client, name: str, timeout: float) -> tuple[Record | None, Now | None]:
    """Read one name's record, and the store's time."""
    check_made(client)
    record, now = client.driver.read(client._full(name), timeout)
    check_made(client)  # the driver of a server has learnt it by that
    return record, now if now is not None else client.driver.now(timeout)


def check_made(client: Client, hint: str = "") -> None:
    """End the command where there is no store: a look must not make one, which could keep those out who were to make it."""
    if place := client.driver.unmade():
        say(f"there is no store at {clean(place)} yet: it is made at the first claim{hint}")
        raise SystemExit(ABSENT)


def absent(client: Client, name: str, timeout: float, tombstone: Record | None = None) -> int:
    """Say that the store has no such name, or no more than its tombstone; return the exit code."""
    if tombstone is None:
        others: list[str] = []
        with suppress(RotaError):  # the first of them will do: it is a hint
            page = client.driver.list(client._prefix, timeout, limit=SOME)
            others = [record.name.removeprefix(client._prefix) for record in page if record.kind]
        say(f"{name}: the store has no record of it, so a claim would be won (rota ls lists the names){did_you_mean(name, others)}")
    else:
        say(f"{name}: it was forgotten, so there is nothing to change, and a claim would be won (rota ls --all lists it)")
    return ABSENT
