# SPDX-License-Identifier: MIT
"""What the command line writes: whole lines, unbuffered. That nobody reads on is no error; that they can't be written is one."""

from __future__ import annotations

import errno
import os
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: A reader of standard error that is stuck must not keep us from ending the command in time: a line waits for it so long (seconds).
#: What is not read by then is lost.
_PATIENCE = 0.5

_speaks_json = False
#: Whether the caller closed standard output, in the place of which nothing stands but what `fill_standard_files` put there.
_is_closed = False


class Unwritten(Exception):
    """What a command was asked to print could not be written, though somebody wants it; `show` raises it."""


def speak_json() -> None:
    """From now on write each line to standard error as one JSON object."""
    global _speaks_json  # noqa: PLW0603 - the process has one standard error
    _speaks_json = True


def say(line: str, event: str = "note", **facts: Any) -> None:
    """Write one line to standard error; the event and its facts go along in JSON only."""
    line = " ".join(line.split())
    if _speaks_json:
        tell(event, message=line, **facts)
    else:
        _write(2, f"rota: {clean(line)}\n", _PATIENCE)


def tell(event: str, **facts: Any) -> None:
    """Write one event to standard error where JSON is spoken; else nothing."""
    if _speaks_json:
        import json
        from time import time_ns

        from rota.verdict import text

        known = {name: value for name, value in facts.items() if value is not None}
        _write(2, json.dumps({"at": text(time_ns() // 1000), "event": event, **known}) + "\n", _PATIENCE)


def show(text: str) -> None:
    """Write text to standard output.

    Raises:
        Unwritten: It could not be written whole, for another reason than that nobody reads it any more.
    """
    data = _encoded(text)
    while data:
        try:
            if _is_closed:
                raise OSError(errno.EBADF, "")
            data = data[os.write(1, data) :]
        except BlockingIOError:  # whoever shares the pipe with us has made it so
            select.select([], [1], [])
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader has seen enough
                return
            why = "it is closed" if error.errno == errno.EBADF else error.strerror
            raise Unwritten(f"standard output can't be written ({why}); all else was done") from error


def clean(cell: str) -> str:
    """Escape what moves a terminal's cursor or hides text: the store may hold what others wrote."""
    if cell.isprintable():
        return cell
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cell)


def fill_standard_files() -> None:
    """Open what the caller closed of 0, 1 and 2, so that no file of ours gets such a number, and what is said lands in none."""
    global _is_closed  # noqa: PLW0603 - the process has one standard output
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
        _is_closed = _is_closed or number == 1
    os.close(number)


def hide(text: str) -> str:
    """Return a part of the command line for a message: what may be a URL's secret is left out."""
    scheme, colon, _ = text.partition("://")
    if colon:
        return f"{scheme}://***"
    return "***" if "@" in text else text


def _write(number: int, text: str, patience: float) -> None:
    data = _encoded(text)
    try:
        # a pipe that is ready takes a line as long as PIPE_BUF at once
        if select.select([], [number], [], patience)[1]:
            while data:
                data = data[os.write(number, data) :]
    except (OSError, ValueError):
        pass  # there is nowhere else to say it


def _encoded(text: str) -> bytes:
    return text.encode(sys.getfilesystemencoding(), "backslashreplace")
