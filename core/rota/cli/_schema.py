# SPDX-License-Identifier: MIT
"""``rota schema URL`` prints the SQL that prepares a store; ``rota init URL`` carries it out. Neither is needed by stores without SQL."""

from __future__ import annotations

from ._output import say, show
from ._parser import Parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rota.backend import Driver

_UNLOGGED = "faster, but a crash of the server empties the table, so that every slot may run once more, and no standby has it (PostgreSQL)"


def schema(given: list[str]) -> int:
    """Print the SQL; no connection is made."""
    url, options = _read("schema", "Print the SQL that prepares a store; safe to run twice. No connection is made.", given)
    driver = _driver(url)
    try:
        show(driver.schema(**options))
    finally:
        driver.close()
    return 0


def init(given: list[str]) -> int:
    """Prepare the store: by who may create tables there."""
    from rota.errors import NotSupported

    url, options = _read("init", "Prepare a store, as one who may create tables there. Safe to run twice.", given)
    driver = _driver(url)
    try:
        apply = getattr(driver, "init", None)
        if apply is None:
            raise NotSupported("this store needs no preparation: it is made at the first use")
        apply(30.0, **options)
    finally:
        driver.close()
    say("the store is ready")
    return 0


def _read(command: str, description: str, given: list[str]) -> tuple[str, dict[str, str]]:
    parser = Parser(command, f"rota {command} URL [--role ROLE] [--unlogged]", description)
    parser.add_argument("url", metavar="URL", help="the store, as for --url of rota run")
    parser.add_argument("--role", metavar="ROLE", help="grant it the rows of the table, and nothing else")
    parser.add_argument("--unlogged", action="store_true", help=_UNLOGGED)
    found = parser.read(given)
    options = {"role": found.role} if found.role else {}
    return found.url, options | ({"unlogged": "yes"} if found.unlogged else {})


def _driver(url: str) -> Driver:
    from rota._registry import backend

    found, parsed = backend(url)
    return found.driver(parsed)
