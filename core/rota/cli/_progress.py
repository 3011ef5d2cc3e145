# SPDX-License-Identifier: MIT
"""Work on a thread of its own, with a time limit that holds whatever it does; a terminal is shown how far it is once it takes a while.

A signal that asks for the end can be made an exception, for work that leaves something behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

#: How long it takes until something is shown, and between two looks, seconds.
PATIENCE, LOOK = 1.0, 0.1
#: How many cells the bar has.
CELLS = 24
#: Signals that ask for the end, where the system has them.
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]


class Ended(SystemExit):
    """A signal asks for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Raise `Ended` for the first signal that asks for the end, and let those that follow not disturb the tidying up.

    A terminal that goes away may send the same signal twice; what is tidied must take a bounded time.
    """
    ended = False

    def catch(number: int, frame: FrameType | None) -> None:
        nonlocal ended
        if not ended:
            ended = True
            raise Ended(number)

    before = {number: signal.getsignal(number) for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, catch)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Progress:
    """How far the work is.

    Attributes:
        doing: What is being done, for people.
        done: How much of it is done, from 0 to 1; less where that is not known, and then there is no bar.
    """

    def __init__(self) -> None:
        self.doing = ""
        self.done = 0.0


def carry_out(work: Callable[[], None], progress: Progress, seconds: float) -> bool:
    """Do the work; return False when it was not done in time, and is left alone. What it raises is raised here.

    An end of the process does not wait for it: `rota.cli.main` leaves by `os._exit`.
    """
    failure: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failure.append(error)

    started = time.monotonic()
    thread = threading.Thread(target=run, name="rota-work", daemon=True)
    thread.start()
    shown = 0
    while thread.is_alive() and (left := started + seconds - time.monotonic()) > 0:
        thread.join(min(LOOK, left))
        if thread.is_alive() and time.monotonic() - started > PATIENCE and _is_watched():
            cells = int(progress.done * CELLS)
            bar = f"[{'#' * cells}{'.' * (CELLS - cells)}] " if progress.done >= 0 else ""
            line = f"{bar}{progress.doing}"[:78]
            _draw("\r" + line.ljust(shown))
            shown = len(line)
    if shown:
        _draw("\r" + " " * shown + "\r")
    if failure:
        raise failure[0]
    return not thread.is_alive()


def _is_watched() -> bool:
    try:
        return os.isatty(2)
    except OSError:
        return False


def _draw(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, text.encode(sys.getfilesystemencoding(), "backslashreplace"))
