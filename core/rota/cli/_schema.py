# SPDX-License-Identifier: MIT
"""``rota schema`` prints the SQL that prepares a store; ``rota init`` carries it out. Neither is needed by stores without SQL."""

from __future__ import annotations

from rota.errors import ConfigurationError

from ._output import say, show
from ._parser import Parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rota.backend import Driver

_AFTER = """\
  ROTA_URL=postgresql://owner@db.example/app rota {command} --role app

Stores without SQL need neither rota schema nor rota init. Whoever may run ps
sees the command line: name a URL with a password by ROTA_URL.

Exit codes: 0; 2 the command line, the URL or a permission is wrong{away}."""


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
    url, options = _read("init", "Prepare a store, as one who may create tables there. Safe to run twice.", given)
    driver = _driver(url)
    try:
        apply = getattr(driver, "init", None)
        if apply is None:
            if options:
                raise ConfigurationError(f"--{next(iter(options))} is for stores with SQL: this one needs no preparation")
            say("nothing to do: this store needs no preparation, and what it needs is made at the first use")
            return 0
        apply(30.0, **options)
    finally:
        driver.close()
    say("the store is ready")
    return 0


def _read(command: str, description: str, given: list[str]) -> tuple[str, dict[str, str]]:
    away = "" if command == "schema" else ";\n115 the store did not answer"
    parser = Parser(command, f"rota {command} [URL] [--role ROLE] [--unlogged]", description, _AFTER.format(command=command, away=away))
    parser.add_url("the store [ROTA_URL]", needed=True)
    parser.add_argument("--role", metavar="ROLE", help="grant it the rows of the table, and nothing else")
    parser.add_argument("--unlogged", action="store_true", help="faster; a crash of the server empties the table (PostgreSQL)")
    found = parser.read(given)
    options = {"role": found.role} if found.role else {}
    return found.url, options | ({"unlogged": "yes"} if found.unlogged else {})


def _driver(url: str) -> Driver:
    from rota._registry import backend

    found, parsed = backend(url)
    return found.driver(parsed)
