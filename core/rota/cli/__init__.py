# SPDX-License-Identifier: MIT
"""The command line: ``rota run`` and its companions. Each subcommand imports only what it needs."""

from __future__ import annotations

import contextlib
import os
import sys

from ._output import Unwritten, fill_standard_files, hide, say, show, tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_HELP = """\
usage: rota COMMAND ...

  rota run NAME ... -- COMMAND...  run a command once per slot of a schedule
  rota ls [PREFIX]                 list names: who holds what, what became of it
  rota show NAME                   one name; why a claim would be won or refused
  rota history NAME                the newest runs of a name
  rota release NAME                free a name, and fence its holder
  rota settle NAME                 say how its last slot ended; set its mark
  rota forget NAME                 forget the slots and history of a name
  rota next --cron EXPR            the next slots of a schedule
  rota doctor [URL]                what is wrong with a store, and the cure
  rota bench [URL]                 what rota costs on a store
  rota backends                    the stores that a URL can name
  rota conform [URL]               hold a store to each clause of the semantics
  rota schema [URL]                the SQL that prepares a store
  rota init [URL]                  prepare a store
  rota completion SHELL            let bash, zsh or fish complete all this
  rota help json COMMAND           the JSON Schema of a command's --json
  rota --version

rota COMMAND --help says more, with an example; rota help run says all of run.
Exit code 74: what a command was to print could not be written.
"""
_READ = ("ls", "show", "history")
_CHANGE = ("release", "settle", "forget")
#: The commands beside ``run`` that take the store from a variable.
_ASKING = (*_READ, *_CHANGE, "doctor", "bench", "conform", "schema", "init")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; without arguments, run the program's own and end the process. Never raises."""
    if arguments is not None:
        return _main(list(arguments))
    try:
        code = _main(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    import _signal  # type: ignore[import-not-found]  # as in __main__

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # of an interrupt from here on Python would show a traceback
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    # Taking the interpreter down module by module costs as much as a third of its start. All that it would do for us is done: the command
    # has ended, the client is closed, and nothing of ours is buffered. What others registered or buffered is seen to here.
    import atexit

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:
                stream.flush()
    os._exit(code)


def _main(given: list[str]) -> int:
    try:
        if given[:1] != ["run"]:  # which does it where it can say that there is no room
            fill_standard_files()
            _let_interrupts_raise()
        return _dispatch(given)
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:  # a --help
        return end.code if isinstance(end.code, int) else 0
    except Unwritten as error:
        from ._codes import UNWRITTEN

        say(str(error), "error")
        return UNWRITTEN
    except Exception as error:
        return _explain(error)


def _let_interrupts_raise() -> None:
    """Undo what ``__main__`` did: a command that is interrupted closes what it has opened."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _dispatch(given: list[str]) -> int:
    command = given[0] if given else ""
    if command in _ASKING and not {"-h", "--help"} & set(given):
        from ._variables import OF_OTHERS, misspelt

        for line in misspelt(OF_OTHERS):
            say(line)
    if command == "run":
        if os.name != "posix":
            say("rota run needs a POSIX system; here use the library")
            return 2
        from ._run import run

        return run(given[1:])
    if command == "backends":
        from ._backends import backends

        return backends(given[1:])
    if command == "conform":
        from ._conform import conform

        return conform(given[1:])
    if command in ("schema", "init"):
        from . import _schema

        return (_schema.schema if command == "schema" else _schema.init)(given[1:])
    if command in _READ:
        from . import _operator_read

        return _operator_read.COMMANDS[command](given[1:])
    if command in _CHANGE:
        from . import _operator_change

        return _operator_change.COMMANDS[command](given[1:])
    if command == "bench":
        from ._bench import bench

        return bench(given[1:])
    if command == "doctor":
        from ._doctor import doctor

        return doctor(given[1:])
    if command == "next":
        from ._operator_next import upcoming

        return upcoming(given[1:])
    if command == "completion":
        from ._completion import completion

        return completion(given[1:], _HELP, _dispatch)
    if command == "help" and len(given) > 1:
        from ._topics import topic

        return topic(given[1:], _dispatch)
    if command in ("-h", "--help", "help"):
        show(_HELP)
        return 0
    if command in ("-V", "--version"):
        from rota import __version__

        show(f"rota {__version__}\n")
        return 0
    from rota.url import did_you_mean

    if command:
        known = ("run", *_READ, *_CHANGE, "next", "doctor", "bench", "backends", "conform", "schema", "init", "completion", "help")
        say(f"there is no command {hide(command)!r}{did_you_mean(command, known)} (see rota --help)")
    else:
        say("a command is needed, as in: rota run NAME --every 1h -- COMMAND...; see rota --help")
    return 2


def _explain(error: Exception) -> int:
    """Say an error in one line; return its code."""
    from rota import errors

    from . import _codes

    if not isinstance(error, errors.RotaError):
        say(f"internal error, please report it: {type(error).__name__}: {error}", "error")
        code = _codes.INTERNAL
    else:
        say(str(error), "error")
        if isinstance(error, errors.Unrecorded):
            code = _codes.UNRECORDED
        elif isinstance(error, errors.Unavailable):
            code = _codes.UNAVAILABLE
        else:
            code = _codes.LOST if isinstance(error, errors.LeaseLost) else _codes.USAGE
    tell("exit", code=code, by="rota", word=_codes.word(code))
    return code
