# SPDX-License-Identifier: MIT
"""``rota run``: claim, run the command, stop it in time when the lease is lost, settle by how it ended, say why it was skipped."""

from __future__ import annotations

import errno
import os
import signal
import time
from contextlib import suppress

from rota._clock import monotonic
from rota._heartbeat import NOT_HELD
from rota._settling import gone
from rota.backend import FAILED, GAVE_UP, HANDLED, UNUSED
from rota.errors import ConfigurationError, LeaseLost, RotaError, Unavailable, Unrecorded

from . import _codes
from ._child import Child
from ._guard import Guard
from ._options import YES, RunOptions
from ._output import fill_standard_files, say, speak_json, tell
from ._signals import Interrupted, Signals

#: Words of a shell that are no programs.
_SHELL_WORDS = frozenset({"cd", "export", "set", "source", "if", "for", "while", "exec", "ulimit", "umask"})

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import cast

    from rota.client import Client
    from rota.grant import Grant
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
#: How many files it opens at a time at the most, with some to spare for the store's driver.
FILES = 16
#: How often a waiting settlement looks for signals (seconds).
SLICE = 0.2


def run(given: list[str]) -> int:
    """Run a command under a lease or a window; return the exit code."""
    if "--json" in given[: given.index("--") if "--" in given else None] or os.environ.get("ROTA_JSON", "").lower() in YES:
        speak_json()
    options = RunOptions(given)
    try:
        fill_standard_files()
        _check_files()
        child = Child(options.command)
    except OSError as error:
        return _no_room(options, error.strerror)
    guard = signals = None
    try:
        try:
            guard = Guard(child.pid)
            signals = Signals()
            code, by = _Run(options, child, guard, signals).run()
        finally:
            if signals is not None:
                signals.hold()
    except Interrupted as interrupted:
        code, by = 128 + interrupted.number, "rota"
    except Unavailable as error:
        say(f"{options.name}: not run: the store can't be asked: {error}", "skipped", name=options.name, verdict="unavailable")
        code, by = _codes.UNAVAILABLE, "rota"
    except OSError as error:
        if guard is not None:
            raise
        return _no_room(options, error.strerror)
    except RotaError as error:
        if type(error) is ConfigurationError:
            raise ConfigurationError(options.by_name(options.as_typed(str(error)))) from error
        if type(error) is not RotaError:
            raise
        return _no_room(options, str(error))  # a thread can't be started
    finally:
        child.close()
        if guard is not None:
            guard.close()
    tell("exit", name=options.name, code=code, by=by, word=(_codes.word(code) or None) if by == "rota" else None)
    return code


def _no_room(options: RunOptions, why: str | None) -> int:
    say(f"{options.name}: not run: this host has no room for it: {why}", "skipped", name=options.name, verdict="host")
    tell("exit", name=options.name, code=_codes.HOST, by="rota", word="host")
    return _codes.HOST


def _check_files() -> None:
    """Find out now, and not in the middle of the work, whether this process may open as many files as it needs."""
    spare: list[int] = []
    try:
        for _ in range(FILES):
            spare.append(os.open(os.devnull, os.O_RDONLY))
    finally:
        for number in spare:
            os.close(number)


class _Run:
    """One run: its steps, in order."""

    def __init__(self, options: RunOptions, child: Child, guard: Guard, signals: Signals) -> None:
        self._options = options
        self._child = child
        self._guard = guard
        self._signals = signals
        self._lead = min(KILL_LEAD, options.grace * KILL_LEAD_PART)
        self._said: set[str] = set()
        self._held_back: list[str] = []
        self._holds_back = True

    def run(self) -> tuple[int, str]:
        """Claim, run, settle; return the exit code, and whether it is the command's or rota's."""
        options = self._options
        schedule = options.schedule()
        from rota.client import connect

        from ._store import store
        from ._variables import OF_RUN, misspelt
        from ._waiting import Waiting

        for line in misspelt(OF_RUN):
            self._note(line)

        client = connect(store(options.url, options.site), timeout=options.timeout)
        options.prefix = client._prefix
        if not options.url:
            self._note(
                f"only this host is coordinated, by the file {getattr(client.driver, 'path', '')}: for more, name a store with --url"
            )
        client._engine.warn = self._warn  # type: ignore[method-assign]  # to standard error, and without the import of logging
        verdict: Grant | Refused | None = None
        try:
            verdict = Waiting(options, client, schedule).claim()
            self._signals.hold()
        except BaseException:
            # also one that was won when the signal came, and never got here
            for grant in {*cast("list[Grant]", client._engine.heartbeat.held()), *([verdict] if verdict else [])}:
                with suppress(RotaError):
                    grant.unused()
            client.close()  # which finishes a claim that is undecided (L8)
            raise
        self._holds_back = False
        ended = self._work(client, verdict) if verdict else self._refused(verdict)
        client.close()
        return ended

    # -- not run

    def _refused(self, refused: Refused) -> tuple[int, str]:
        options, verdict, how = self._options, refused.verdict, refused.how
        mark_ahead = verdict == "handled" and refused.mark_ahead
        if mark_ahead:
            code = _codes.MARK_AHEAD
            self._held_back.clear()  # it says no more
        elif verdict == "handled":
            code = {"passed": _codes.PASSED, "gave up": _codes.GAVE_UP}.get(how, _codes.HANDLED) if options.strict else 0
        elif verdict == "busy":
            code = 0 if options.busy_ok else _codes.BUSY
        else:
            code = {"late": _codes.LATE, "early": _codes.EARLY}.get(verdict, _codes.UNAVAILABLE)
        self._say_held_back()
        if code or not options.quiet:
            reason = options.by_name(refused.reason)
            line = reason if mark_ahead else f"skipped: {reason}"
            say(line, "skipped", name=options.name, verdict=verdict, how="mark-ahead" if mark_ahead else how or None)
        return code, "rota"

    # -- run

    def _work(self, client: Client, grant: Grant) -> tuple[int, str]:
        self._say_held_back()
        options, slot, missed = self._options, grant.slot, grant.missed
        if missed.count and not options.quiet:
            what = "slot before this one was" if str(missed) == "1" else "slots before this one were"
            say(f"{options.name}: {missed} {what} not handled", "missed", name=options.name, count=missed.count, exact=missed.exact)
        tell(
            "granted",
            name=options.name,
            token=grant.token,
            slot_start=None if slot is None else _iso(slot.start),
            slot_end=None if slot is None or slot.end is None else _iso(slot.end),
            attempt=grant.attempt,
            degraded=grant.degraded,
        )
        self._feed(grant)
        if grant.remaining() <= options.grace:
            say(f"{options.name}: not run: the lease was lost before the command could start", "lost", name=options.name)
            return self._settle(client, grant, UNUSED, _codes.LOST), "rota"
        failed = self._child.start(_environment(options.name, grant))
        if failed:
            command = options.command[0]
            hint = "; for a line of shell write sh -c '...'" if " " in command or command in _SHELL_WORDS else ""
            say(f"{options.name}: {command!r} can't be run: {os.strerror(failed)}{hint}")
            self._guard.close()
            return self._settle(
                client, grant, UNUSED, _codes.NOT_FOUND if failed in (errno.ENOENT, errno.ENOTDIR) else _codes.CANNOT_RUN
            ), "rota"
        _let_go_of_standard_files()
        ended, lost = self._attend(client, grant)
        self._guard.close()  # nothing is left to guard, and the group's number may be given to others
        if lost:
            # not settled: the store is most likely still away, and expiry gives the slot back as after a crash
            if grant._lost == NOT_HELD:
                self._say_who(client, grant)
            return _codes.LOST, "rota"
        code = ended if ended >= 0 else 128 - ended
        settled = self._settle(client, grant, FAILED if code else HANDLED, code)
        return settled, "command" if settled == code else "rota"

    def _feed(self, grant: Grant) -> None:
        """Tell the guard by when the command must be gone: after this process would have killed it, and before the lease can end."""
        self._guard.feed(monotonic() + grant.remaining() - self._lead / 2)

    def _attend(self, client: Client, grant: Grant) -> tuple[int, bool]:
        """Pass signals on until the group has ended, and end it in time; return how it ended, and whether the lease was lost."""
        child, signals, grace = self._child, self._signals, self._options.grace
        lost = False
        kill_at = FOREVER
        while True:
            for number in signals.take():
                child.send(number)
                if number == signal.SIGTERM:
                    kill_at = min(kill_at, time.monotonic() + grace)
            ended = child.ended(lambda: not grant.lost)
            if ended is not None:
                # a signal, and the guard's time has come or the lease is lost: the guard ended it, while this process was stopped, and may
                # not be through with the others
                if not lost and ended < 0 and (grant.lost or monotonic() >= self._guard.kill_at):
                    lost = True
                    self._say_lost(client, grant)
                    kill_at = time.monotonic()
                    child.send(signal.SIGKILL)
                break
            now, left = time.monotonic(), grant.remaining()
            if left <= grace and not lost:
                lost = True
                self._say_lost(client, grant)
                kill_at = min(kill_at, now + max(0.0, left - self._lead))
                child.send(signal.SIGTERM)
            if now >= kill_at:
                child.send(signal.SIGKILL)  # again at every look: processes that were just being made may have missed it
            if not lost:
                self._feed(grant)
            look = 1.0 if left == FOREVER else LOOK if lost else min(LOOK, left - grace)
            signals.wait(min(look, kill_at - now) if now < kill_at else LOOK)
        child.take_terminal()
        if child.ending:
            child.drain(kill_at)
        return ended, lost

    def _settle(self, client: Client, grant: Grant, result: str, code: int) -> int:
        """Say to the store how it ended, and to others what the store has of it; return the exit code."""
        code, recorded = self._record(client, grant, result, code)
        tell("settled", name=self._options.name, outcome=grant.outcome if recorded else "unrecorded")
        return code

    def _record(self, client: Client, grant: Grant, result: str, code: int) -> tuple[int, bool]:
        """Say to the store how it ended; return the exit code, and whether the store has answered."""
        options = self._options
        try:
            if result == UNUSED:
                grant.unused()
            elif options.kind == "l":
                grant.release()
            elif result == HANDLED:
                grant.handled()
            else:
                grant.failed()
        except LeaseLost as error:
            say(options.by_name(str(error)))
            return code or _codes.LOST, True
        except Unrecorded as error:
            say(options.by_name(str(error)))
            if not self._recorded_later(client, grant):
                say(f"{options.name}: given up: the store did not confirm the outcome")
                return code or _codes.UNRECORDED, False
            say(f"{options.name}: it is recorded now: {grant.outcome}")
        except RotaError as error:
            say(f"{options.name}: the outcome could not be recorded: {error}")
            return code or _codes.UNRECORDED, False
        if grant.degraded:
            return code, self._written_back(client, grant)
        if grant.outcome == GAVE_UP:
            say(f"{options.name}: gave up: attempt {grant.attempt} failed too, and the slot is closed")
        return code, not client._engine.keeper.keeps(grant._owner)

    def _written_back(self, client: Client, grant: Grant) -> bool:
        """F3: say to the store, if it is back, that a run without it was a success; return whether the store took it."""
        if grant.outcome != HANDLED:
            return False  # it is told of successes only
        if not client.flush(self._options.timeout):
            say(f"{self._options.name}: the store is still away, so nobody else knows that it is done")  # it was told to run nevertheless
            client._engine.keeper.reset()  # it has had its time: the end of the client would give it as much once more
            return False
        return grant.outcome == HANDLED and "record" in client.driver.capabilities.verbs

    def _recorded_later(self, client: Client, grant: Grant) -> bool:
        """F5: stay up while the lease lives, and a little longer for the write-back; a signal that asks for the end ends it."""
        until = time.monotonic() + grant.remaining() + WRITE_BACK_CALLS * self._options.timeout
        while not client.flush(SLICE):
            if time.monotonic() >= until or self._signals.ending():
                return False
        return grant.outcome in (HANDLED, GAVE_UP)

    # -- words

    def _say_lost(self, client: Client, grant: Grant) -> None:
        name, why = self._options.name, grant._lost or client._engine.heartbeat.trouble or "no renewal was confirmed in time"
        say(f"{name}: the lease could not be kept, so the command is stopped: {why}", "lost", name=name)

    def _say_who(self, client: Client, grant: Grant) -> None:
        """Say what the store tells of who took it; the command is gone, so that this may take its time."""
        with suppress(RotaError):
            record, _ = client.driver.read(grant._ask.name, self._options.timeout)
            if record is None or record.token != grant.token:
                say(f"{self._options.name}: {gone(record, grant.token)}")

    def _note(self, line: str) -> None:
        if not self._options.quiet:
            say(line)

    def _say_held_back(self) -> None:
        for line in self._held_back:
            say(line)

    def _warn(self, name: str, message: str) -> None:
        line = self._options.by_name(f"{name}: {message}")
        if line not in self._said:
            self._said.add(line)
            if self._holds_back:
                self._held_back.append(line)
            else:
                say(line)


def _environment(name: str, grant: Grant) -> dict[str, str | None]:
    """Return the variables that the command gets; None takes one out that an outer `rota run` may have set."""
    slot = grant.slot
    return {
        "ROTA_NAME": name,
        "ROTA_TOKEN": None if grant.token is None else str(grant.token),
        "ROTA_SLOT_START": None if slot is None else _iso(slot.start),
        "ROTA_SLOT_END": None if slot is None or slot.end is None else _iso(slot.end),
        "ROTA_ATTEMPT": str(grant.attempt),
    }


def _iso(instant: int) -> str:
    """As `rota.schedule.iso`, without the import of datetime, which not every store's driver needs."""
    seconds, rest = divmod(instant, 1_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + (f".{rest:06d}Z" if rest else "Z")


def _let_go_of_standard_files() -> None:
    """Let whoever reads the command's output see its end when the command closes it, and not when we end."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
