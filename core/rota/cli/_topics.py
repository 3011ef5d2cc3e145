# SPDX-License-Identifier: MIT
"""``rota help``: what does not fit a command's ``--help``, for those who have the package and not its repository."""

from __future__ import annotations

from rota.errors import ConfigurationError
from rota.url import did_you_mean

from ._output import hide, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Which JSON Schema, of the folder ``schemas``, describes the JSON of each command.
SCHEMAS = {
    **{command: command for command in ("ls", "show", "history", "next", "doctor", "bench", "backends", "run")},
    **dict.fromkeys(("release", "settle", "forget"), "change"),
}


def topic(given: list[str], show_command: Callable[[list[str]], int]) -> int:
    """Show a command's help, or what a program has to know of its JSON.

    Args:
        given: What follows ``rota help``, at least one word.
        show_command: Carries out a command line.
    """
    first, *rest = given
    if first == "json":
        if len(rest) != 1 or rest[0] not in SCHEMAS:
            near = did_you_mean(rest[0], SCHEMAS) if len(rest) == 1 else ""
            raise ConfigurationError(f"rota help json needs one of the commands {', '.join(sorted(SCHEMAS))}{near}")
        show(schema(rest[0]))
        return 0
    if rest:
        raise ConfigurationError(f"{hide(rest[0])!r} is one word too many; see rota --help")
    if first == "run":
        from ._help import everything

        show(everything())
        return 0
    return show_command([first, "--help"])


def schema(command: str) -> str:
    """Return the JSON Schema of what a command prints with ``--json``."""
    from importlib.resources import files

    return (files(__package__) / "schemas" / f"{SCHEMAS[command]}.json").read_text(encoding="utf-8")
