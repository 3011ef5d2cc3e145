# SPDX-License-Identifier: MIT
"""``rota run``: claim, run the command, stop it in time when the lease is lost, settle by how it ended, say why it was skipped."""

from __future__ import annotations

import errno
import os
import signal
import time
from contextlib import suppress

from rota.backend import FAILED, GAVE_UP, HANDLED, UNUSED
from rota.errors import ConfigurationError, LeaseLost, RotaError, Unavailable, Unrecorded

from . import _codes
from ._child import Child
from ._options import RunOptions
from ._output import say
from ._signals import Interrupted, Signals

#: Words of a shell that are no programs.
_SHELL_WORDS = frozenset({"cd", "export", "set", "source", "if", "for", "while", "exec", "ulimit", "umask"})

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import cast

    from rota.client import Client
    from rota.grant import Grant
    from rota.schedule import Schedule
    from rota.url import Url
    from rota.verdict import Refused
else:
    from rota._value import cast

#: Deadlines are on a clock that runs through suspend, waits are not, and the store may say that the lease is gone: look this often (L6).
LOOK = 0.1
#: KILL comes so much before the deadline that the group is gone by then: a part of the grace, at most so many seconds.
KILL_LEAD, KILL_LEAD_PART = 0.1, 0.25
#: How long after the lease's end an unrecorded success is still said to the store, in calls' timeouts (F5).
WRITE_BACK_CALLS = 2
FOREVER = float("inf")
#: How often a waiting settlement looks for signals (seconds).
SLICE = 0.2


def run(given: list[str]) -> int:
    """Run a command under a lease or a window; return the exit code."""
    options = RunOptions(given)
    _fill_standard_files()
    child = Child(options.command)
    try:
        signals = Signals()
        return _Run(options, child, signals).run()
    except Interrupted as interrupted:
        return 128 + interrupted.number
    except Unavailable as error:
        say(f"{options.name}: not run: the store can't be asked: {error}")
        return _codes.UNAVAILABLE
    finally:
        child.close()


class _Run:
    """One run: its steps, in order."""

    def __init__(self, options: RunOptions, child: Child, signals: Signals) -> None:
        self._options = options
        self._child = child
        self._signals = signals
        self._said: set[str] = set()
        self._held_back: list[str] = []
        self._holds_back = True

    def run(self) -> int:
        """Claim, run, settle; return the exit code."""
        options = self._options
        schedule = options.schedule()
        from rota.client import connect

        client = connect(_store(options), timeout=options.timeout)
        if not options.url:
            self._note(
                f"only this host is coordinated, by the file {getattr(client.driver, 'path', '')}: for more, name a store with --url"
            )
        client._engine.warn = self._warn  # type: ignore[method-assign]  # to standard error, and without the import of logging
        verdict: Grant | Refused | None = None
        try:
            verdict = self._claim(client, schedule)
            self._signals.hold()
        except BaseException:
            if verdict:
                with suppress(RotaError):
                    cast("Grant", verdict).unused()
            client.close()  # which finishes a claim that is undecided (L8)
            raise
        self._holds_back = False
        code = self._refused(cast("Refused", verdict)) if not verdict else self._work(client, cast("Grant", verdict))
        client.close()
        return code

    def _claim(self, client: Client, schedule: Schedule | None) -> Grant | Refused:
        options = self._options
        if options.kind == "l":
            return client.try_lease(options.name, **options.claim)
        if options.kind == "o":
            return client.try_once(options.name, options.period, **options.claim)
        return client.try_window(options.name, schedule, **options.claim)

    # -- not run

    def _refused(self, refused: Refused) -> int:
        verdict, how = refused.verdict, refused.how
        if verdict == "handled" and refused.mark_ahead:
            say(refused.reason)  # what is held back says no more
            return _codes.MARK_AHEAD
        self._say_held_back()
        if verdict == "handled":
            self._note(f"skipped: {refused.reason}")
            if not self._options.strict:
                return 0
            return {"passed": _codes.PASSED, "gave up": _codes.GAVE_UP}.get(how, _codes.HANDLED)
        code = {"busy": _codes.BUSY, "late": _codes.LATE, "early": _codes.EARLY}.get(verdict, _codes.UNAVAILABLE)
        # unavailable is an error, the others are how things go
        (say if code == _codes.UNAVAILABLE else self._note)(f"skipped: {refused.reason}")
        return code

    # -- run

    def _work(self, client: Client, grant: Grant) -> int:
        self._say_held_back()
        failed = self._child.start(_environment(grant))
        if failed:
            command = self._options.command[0]
            hint = "; for a line of shell write sh -c '...'" if " " in command or command in _SHELL_WORDS else ""
            say(f"{grant.name}: {command!r} can't be run: {os.strerror(failed)}{hint}")
            self._settle(client, grant, UNUSED, 1)
            return _codes.NOT_FOUND if failed in (errno.ENOENT, errno.ENOTDIR) else _codes.CANNOT_RUN
        _let_go_of_standard_files()
        ended, lost = self._attend(grant)
        if lost:
            # not settled: the store is most likely still away, and expiry gives the slot back as after a crash
            return _codes.LOST
        code = ended if ended >= 0 else 128 - ended
        return self._settle(client, grant, FAILED if code else HANDLED, code)

    def _attend(self, grant: Grant) -> tuple[int, bool]:
        """Pass signals on until the group has ended, and end it in time; return how it ended, and whether the lease was lost."""
        child, signals, grace = self._child, self._signals, self._options.grace
        lead = min(KILL_LEAD, grace * KILL_LEAD_PART)
        lost = False
        kill_at = FOREVER
        while True:
            for number in signals.take():
                child.send(number)
                if number == signal.SIGTERM:
                    kill_at = min(kill_at, time.monotonic() + grace)
            ended = child.ended(lambda: not grant.lost)
            if ended is not None:
                break
            now, left = time.monotonic(), grant.remaining()
            if left <= grace and not lost:
                lost = True
                say(f"{grant.name}: the lease could not be kept, so the command is stopped")
                kill_at = min(kill_at, now + max(0.0, left - lead))
                child.send(signal.SIGTERM)
            if now >= kill_at:
                child.send(signal.SIGKILL)  # again at every look: processes that were just being made may have missed it
            look = 1.0 if left == FOREVER else LOOK if lost else min(LOOK, left - grace)
            signals.wait(min(look, kill_at - now) if now < kill_at else LOOK)
        child.take_terminal()
        if child.ending:
            child.drain(kill_at)
        return ended, lost

    def _settle(self, client: Client, grant: Grant, result: str, code: int) -> int:
        """Say to the store how it ended; return the exit code."""
        try:
            if result == UNUSED:
                grant.unused()
            elif self._options.kind == "l":
                grant.release()
            elif result == HANDLED:
                grant.handled()
            else:
                grant.failed()
        except LeaseLost as error:
            say(str(error))
            return code or _codes.LOST
        except Unrecorded as error:
            say(str(error))
            if not self._recorded_later(client, grant):
                say(f"{grant.name}: given up: the store did not confirm the outcome")
                return code or _codes.UNRECORDED
            say(f"{grant.name}: it is recorded now: {grant.outcome}")
        except RotaError as error:
            say(f"{grant.name}: the outcome could not be recorded: {error}")
            return code or _codes.UNRECORDED
        if grant.degraded and grant.outcome == HANDLED and not client.flush(self._options.timeout):
            say(f"{grant.name}: the store is still away, so nobody else knows that it is done")  # F3: it was told to run nevertheless
        if grant.outcome == GAVE_UP:
            say(f"{grant.name}: gave up: attempt {grant.attempt} failed too, and the slot is closed")
        return code

    def _recorded_later(self, client: Client, grant: Grant) -> bool:
        """F5: stay up while the lease lives, and a little longer for the write-back; a signal that asks for the end ends it."""
        until = time.monotonic() + grant.remaining() + WRITE_BACK_CALLS * self._options.timeout
        while not client.flush(SLICE):
            if time.monotonic() >= until or self._signals.ending():
                return False
        return grant.outcome in (HANDLED, GAVE_UP)

    # -- words

    def _note(self, line: str) -> None:
        if not self._options.quiet:
            say(line)

    def _say_held_back(self) -> None:
        for line in self._held_back:
            say(line)

    def _warn(self, name: str, message: str) -> None:
        line = f"{name}: {message}"
        if line not in self._said:
            self._said.add(line)
            if self._holds_back:
                self._held_back.append(line)
            else:
                say(line)


def _environment(grant: Grant) -> dict[str, str | None]:
    """Return the variables that the command gets; None takes one out that an outer `rota run` may have set."""
    slot = grant.slot
    return {
        "ROTA_NAME": grant.name,
        "ROTA_TOKEN": None if grant.token is None else str(grant.token),
        "ROTA_SLOT_START": None if slot is None else _iso(slot.start),
        "ROTA_SLOT_END": None if slot is None or slot.end is None else _iso(slot.end),
        "ROTA_ATTEMPT": str(grant.attempt),
    }


def _iso(instant: int) -> str:
    """As `rota.schedule.iso`, without the import of datetime, which not every store's driver needs."""
    seconds, rest = divmod(instant, 1_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + (f".{rest:06d}Z" if rest else "Z")


def _store(options: RunOptions) -> Url:
    """Return the store's URL: the one given, else that of the file for this host."""
    from rota.url import Url, parse

    if options.url:
        url = parse(options.url)
        if url.scheme == "memory":
            raise ConfigurationError("memory:// lives and ends with this one run: name a store that others see, or leave --url out")
        return url._replace(site=options.site) if options.site else url
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        raise ConfigurationError("in Kubernetes pods share no file: name a store with --url or ROTA_URL")
    if os.environ.get("HOME") == "":
        del os.environ["HOME"]  # or it would stand for the root folder
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # the XDG base directory specification: a relative path is invalid, and ignored
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    folder = os.path.join(state, "rota")
    try:
        if not os.path.isabs(folder):
            raise FileNotFoundError(errno.ENOENT, "there is no home folder")
        os.makedirs(folder, 0o700, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"the folder {folder} can't be made ({error.strerror}): name a store with --url or ROTA_URL") from error
    return Url("sqlite", os.path.join(folder, "rota.db").replace("%", "%25"), {}, "", options.site)


def _fill_standard_files() -> None:
    """Open what the caller closed of 0, 1 and 2, so that no file of ours gets such a number, and what is said lands in it."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)


def _let_go_of_standard_files() -> None:
    """Let whoever reads the command's output see its end when the command closes it, and not when we end."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
