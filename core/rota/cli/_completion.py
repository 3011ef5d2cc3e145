# SPDX-License-Identifier: MIT
"""``rota completion``: a script with which a shell completes commands, options and the store's names.

It is made of the parsers themselves, so that it can't lag behind them, and runs without Python except for names, which it takes from
``rota ls --names``. What shtab makes of one argparse parser does not fit: ``rota run`` has none, since it may not wait for argparse.
"""

from __future__ import annotations

import re
import shlex

from rota.errors import ConfigurationError

from ._options import OPTIONS, WHEN
from ._output import hide, show
from ._parser import DESCRIBE, Described, Parser
from ._topics import SCHEMAS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NamedTuple
else:
    from rota._value import NamedTuple

_DESCRIPTION = """\
Print a script with which a shell completes commands, options and names. Names
are asked of the store that ROTA_URL names, for at most a second."""
_AFTER = """\
  rota completion bash > ~/.local/share/bash-completion/completions/rota
  rota completion zsh > ~/.zfunc/_rota       (a folder of fpath)
  rota completion fish > ~/.config/fish/completions/rota.fish
  eval "$(rota completion bash)"             (for this shell only)

Exit codes: 0; 2 the command line is wrong."""
#: The commands whose first word is a name of the store.
_NAMED = ("ls", "show", "history", "release", "settle", "forget", "run")
#: The words that an option or a command takes, but for those of `_values`.
_VALUES = {
    "--on-unavailable": ("raise", "skip", "run"),
    "completion": ("bash", "zsh", "fish"),
    "json": tuple(SCHEMAS),
}
#: Options whose value is a file.
_FILES = ("--report",)


class Command(NamedTuple):
    """What a shell has to know of a command: its options, as flag, whether a value follows, and help."""

    name: str
    says: str
    options: list[tuple[str, bool, str]]


def completion(given: list[str], summary: str, dispatch: Callable[[list[str]], int]) -> int:
    """Print a shell's script.

    Args:
        given: The words behind ``rota completion``.
        summary: The text of ``rota --help``, which has a line for each command.
        dispatch: Carries out a command line.
    """
    parser = Parser("completion", "rota completion (bash | zsh | fish)", _DESCRIPTION, _AFTER)
    parser.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")
    shell = parser.read(given).shell
    if shell not in _SHELLS:
        raise ConfigurationError(f"there is no completion for {hide(shell)!r}: bash, zsh and fish have one")
    show(_SHELLS[shell](commands(summary, dispatch)))
    return 0


def commands(summary: str, dispatch: Callable[[list[str]], int]) -> list[Command]:
    """Return all commands with their options, as their parsers have them."""
    found = []
    for name, says in re.findall(r"^  rota (\w+).*?  +(\S.*)$", summary, re.MULTILINE):
        options: list[tuple[str, bool, str]] = []
        if name == "run":
            options = [(option.flag, option.metavar is not None, option.says) for option in (*WHEN, *OPTIONS)]
        elif name != "help":
            try:
                dispatch([name, DESCRIBE])
            except Described as described:
                for action in described.parser._actions:
                    options += [(flag, action.nargs != 0, action.help or "") for flag in action.option_strings if flag.startswith("--")]
        if all(flag != "--help" for flag, _, _ in options) and name != "help":
            options.append(("--help", False, "show its help"))
        found.append(Command(name, says, options))
    return found


def _values(all_commands: list[Command]) -> dict[str, tuple[str, ...]]:
    """Return the words that an option or a command takes; the zones are those of this host, as no shell can be quick to ask for them."""
    import zoneinfo

    topics = tuple(command.name for command in all_commands if command.name != "help")
    return {**_VALUES, "--tz": tuple(sorted(zoneinfo.available_timezones())), "help": (*topics, "json")}


def _with_value(all_commands: list[Command]) -> list[str]:
    return sorted({flag for command in all_commands for flag, value, _ in command.options if value} - {*_values(all_commands), *_FILES})


def _bash(all_commands: list[Command]) -> str:
    names = " ".join(command.name for command in all_commands)
    cases = "\n".join(f"        {each.name}) words='{' '.join(flag for flag, _, _ in each.options)}' ;;" for each in all_commands)
    values = "\n".join(f"        {word}) words='{' '.join(words)}' ;;" for word, words in _values(all_commands).items())
    return f"""\
# SPDX-License-Identifier: MIT
# Completes rota in bash.
_rota() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} command=${{COMP_WORDS[1]}} words='' name i
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W '{names} --help --version' -- "$cur"))
        return
    fi
    if [[ $command == run ]]; then
        for ((i = 2; i < COMP_CWORD; i++)); do
            if [[ ${{COMP_WORDS[i]}} == -- ]]; then
                if declare -F _command_offset >/dev/null; then _command_offset $((i + 1)); return; fi
                if ((COMP_CWORD == i + 1)); then COMPREPLY=($(compgen -c -- "$cur")); else compopt -o default; fi
                return
            fi
        done
    fi
    case $prev in
{values}
    esac
    if [[ -n $words && $cur != -* ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$cur"))
        return
    fi
    case $prev in
        {"|".join(_FILES)}) compopt -o default; return ;;
        {"|".join(_with_value(all_commands))}) return ;;
    esac
    if [[ $cur == -* ]]; then
        case $command in
{cases}
        esac
        COMPREPLY=($(compgen -W "$words" -- "$cur"))
        return
    fi
    case $command in {"|".join(_NAMED)}) ;; *) return ;; esac
    [[ " ${{COMP_WORDS[*]}} " == *" --url"* ]] && return # another store than the one that would be asked
    while IFS= read -r name; do
        [[ $name == "$cur"* ]] && COMPREPLY+=("$(printf %q "$name")")
    done < <("${{COMP_WORDS[0]}}" ls --names --timeout 1s 2>/dev/null)
}}
complete -F _rota rota
"""


def _zsh(all_commands: list[Command]) -> str:
    def described(rows: list[tuple[str, str]]) -> str:
        return " ".join(shlex.quote(f"{word}:{says.replace(':', chr(92) + ':')}") for word, says in rows)

    names = described([(command.name, command.says) for command in all_commands])
    cases = "\n".join(
        f"        {each.name}) options=({described([(flag, says) for flag, _, says in each.options])}) ;;" for each in all_commands
    )
    values = "\n".join(f"        {word}) compadd {' '.join(words)}; return ;;" for word, words in _values(all_commands).items())
    return f"""\
#compdef rota
# SPDX-License-Identifier: MIT
# Completes rota in zsh.
_rota() {{
    local command=$words[2]
    local -a commands options names
    commands=({names})
    if ((CURRENT == 2)); then
        _describe command commands
        return
    fi
    local dashes=${{words[(I)--]}}
    if [[ $command == run ]] && ((dashes > 0 && dashes < CURRENT)); then
        shift $dashes words
        ((CURRENT -= dashes))
        _normal
        return
    fi
    case $words[CURRENT-1] in
{values}
        {"|".join(_FILES)}) _files; return ;;
        {"|".join(_with_value(all_commands))}) return ;;
    esac
    if [[ $PREFIX == -* ]]; then
        case $command in
{cases}
        esac
        _describe -o option options
        return
    fi
    case $command in {"|".join(_NAMED)}) ;; *) return ;; esac
    ((${{words[(I)--url*]}})) && return # another store than the one that would be asked
    names=(${{(f)"$($words[1] ls --names --timeout 1s 2>/dev/null)"}})
    compadd -a names
}}
if [[ $funcstack[1] == _rota ]]; then _rota "$@"; else compdef _rota rota; fi
"""


def _fish(all_commands: list[Command]) -> str:
    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    values = _values(all_commands)
    lines = [
        "# SPDX-License-Identifier: MIT",
        "# Completes rota in fish.",
        "function __rota_is",
        "    set -l given (commandline -opc)",
        "    test (count $given) -ge 2; and contains -- $given[2] $argv; and not contains -- -- $given",
        "end",
        "function __rota_names",
        "    set -l given (commandline -opc)",
        "    string match -qr -- '^--url' $given; or $given[1] ls --names --timeout 1s 2>/dev/null",
        "end",
        f"complete -c rota -n '__rota_is {' '.join(each.name for each in all_commands)}' -f",
        "complete -c rota -n 'test (count (commandline -opc)) -eq 1' -f -l version -d 'print the version'",
    ]
    for each in all_commands:
        lines.append(f"complete -c rota -n 'test (count (commandline -opc)) -eq 1' -f -a {each.name} -d {quoted(each.says)}")
        for flag, value, says in each.options:
            takes = "" if not value else " -r -F" if flag in _FILES else " -x"
            words = f" -a {quoted(' '.join(values[flag]))}" if flag in values else ""
            lines.append(f"complete -c rota -n '__rota_is {each.name}' -l {flag[2:]}{takes}{words} -d {quoted(says)}")
        if each.name in values:
            lines.append(f"complete -c rota -n '__rota_is {each.name}' -f -a {quoted(' '.join(values[each.name]))}")
    lines.append(f"complete -c rota -n '__rota_is {' '.join(_NAMED)}' -f -a '(__rota_names)'")
    return "\n".join(lines) + "\n"


_SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
