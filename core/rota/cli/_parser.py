# SPDX-License-Identifier: MIT
"""argparse for the subcommands that may take their time."""

from __future__ import annotations

import argparse
import os

from rota.errors import ConfigurationError
from rota.url import did_you_mean

from ._output import hide, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn


#: Given in the place of options it makes `Parser.read` raise `Described`. No command line can hold it.
DESCRIBE = "\0"


class Described(Exception):
    """Brings a command's parser to who asks for it."""

    def __init__(self, parser: Parser) -> None:
        super().__init__(parser.prog)
        self.parser = parser


class Parser(argparse.ArgumentParser):
    """As argparse's, but it raises `ConfigurationError`, in one line that quotes no secret."""

    _needs_url = False

    def __init__(self, command: str, usage: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"rota {command}",
            usage=usage,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            add_help=False,
        )
        self.add_argument("-h", "--help", action="store_true", help="show this and exit")

    def add_url(self, says: str, *, needed: bool = False) -> None:
        """Take the store that the command is about as a word, or as the other commands do; one that is needed is no file of this host."""
        self.add_argument("url", metavar="URL", nargs="?", help=says)
        self.add_argument("--url", dest="named_url", metavar="URL", help="the same, as the other commands have it")
        self._needs_url = needed

    def read(self, given: list[str]) -> argparse.Namespace:
        """Return the options; show the help and end where that was asked for."""
        if given == [DESCRIBE]:
            raise Described(self)
        if "-h" in given or "--help" in given:
            show(self.format_help())
            raise SystemExit(0)
        found, rest = self.parse_known_args(self._with_negatives(given))
        self._check_is_no_store(found)
        if rest:
            self.unknown(rest[0], behind=given[given.index("--") + 1 :] if "--" in given else [])
        if "named_url" in found and found.named_url is not None:
            if found.url is not None:
                raise ConfigurationError(f"the URL is given twice; see {self.prog} --help")
            found.url = found.named_url
        if self._needs_url and found.url is None:
            found.url = os.environ.get("ROTA_URL")  # not in the command line, which everybody on the host can read
            if not found.url:
                missing = "URL is missing" if found.url is None else "ROTA_URL is empty"
                raise ConfigurationError(f"{missing}: name the store, by a word or by ROTA_URL; see {self.prog} --help")
        return found

    def _check_is_no_store(self, found: argparse.Namespace) -> None:
        """Refuse a URL where a name is meant, unless the store is named too, so that it can be one."""
        word = getattr(found, "name", None) or getattr(found, "prefix", None) or ""
        scheme, colon, _ = word.partition("://")
        if colon and getattr(found, "url", "") is None:
            from rota._registry import KNOWN

            if scheme in (*KNOWN, "sqlite", "memory"):
                raise ConfigurationError(f"{hide(word)!r} is a store and no name: write --url before it; see {self.prog} --help")

    def _with_negatives(self, given: list[str]) -> list[str]:
        """Join a negative value to its option, or argparse would take it for an option of its own."""
        flags = {flag for action in self._actions if action.nargs != 0 for flag in action.option_strings}
        words: list[str] = []
        for word in given:
            if words and words[-1] in flags and word[:1] == "-" and word[1:2].isdigit():
                words[-1] += f"={word}"
            else:
                words.append(word)
        return words

    def format_help(self) -> str:
        """Return a screen of 80 columns: usage, what it does, the words and options, and then examples and exit codes."""
        rows = []
        for action in self._actions:
            flags = ", ".join(action.option_strings)
            words = [flags, str(action.metavar or action.dest) if action.nargs != 0 else ""]
            rows.append((" ".join(filter(None, words)), action.help or ""))
        rows.sort(key=lambda row: row[0].startswith("-h"))  # last
        wide = max(len(row[0]) for row in rows)
        listed = "".join(f"  {word:<{wide}}  {says}\n" for word, says in rows)
        return f"usage: {self.usage}\n\n{self.description}\n\n{listed}\n{self.epilog or ''}".rstrip() + "\n"

    def unknown(self, word: str, behind: Sequence[str] = ()) -> NoReturn:
        """Refuse a word of the command line that nothing takes; those behind ``--`` are no options, whatever they look like."""
        if word in behind and word.startswith("-"):
            shown = hide(word)
            raise ConfigurationError(
                f"{shown!r} is one word too many: what follows -- is no option, so write {shown} before it; see {self.prog} --help"
            )
        if word.startswith("-"):
            flag = word.partition("=")[0]
            known = [flag for action in self._actions for flag in action.option_strings]
            raise ConfigurationError(f"there is no option {hide(flag)}{did_you_mean(flag, known)} (see {self.prog} --help)")
        hint = ": quote a schedule, as in --cron '0 2 * * *'" if word == "*" or word.isdigit() else ""
        raise ConfigurationError(f"{hide(word)!r} is one word too many{hint}; see {self.prog} --help")

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        named, missing, _ = message.partition(": expected one argument")
        if missing:
            flag = named.removeprefix("argument ").partition("/")[0]
            action = next((action for action in self._actions if flag in action.option_strings), None)
            raise ConfigurationError(f"{flag} needs a value{f', as in {flag} {action.metavar}' if action else ''}; see {self.prog} --help")
        shown, explicit, _ = message.partition(": ignored explicit argument")  # which argparse quotes
        raise ConfigurationError(f"{shown + ' takes no value' if explicit else hide(message)}; see {self.prog} --help")
