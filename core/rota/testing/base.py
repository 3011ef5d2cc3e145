# SPDX-License-Identifier: MIT
"""What every conformance class has: the hooks that say what is tested, and the requests that tests make."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NoReturn

import pytest

from rota import _registry
from rota.backend import (
    BUSY,
    HANDLED,
    LEASE,
    ROLLING,
    WINDOW,
    WON,
    Answer,
    AsyncDriver,
    Backend,
    Claim,
    Driver,
    Override,
    Record,
    Renewal,
    Settled,
    Settlement,
    WriteBack,
)
from rota.duration import DAY, HOUR, MINUTE, SECOND
from rota.errors import ConfigurationError, NotSupported, Unavailable
from rota.schedule import Every
from rota.url import Url

from .clock import Clock
from .faces import ASYNC, BLOCKING, Face
from .faulty import Fault

#: What the names of all tests begin with: rota conform says one of its own, by which it forgets them.
_NAMES = os.environ.get("ROTA_CONFORM_NAMES", "conform-")
#: A ttl that no test outlives.
LONG = HOUR
RETENTION = 30 * DAY
#: The attributes that a conformance class may set or override.
HOOKS = ("async_driver", "clock", "driver", "hang", "pass_time", "raw", "spoil", "url")


class NotRun(pytest.skip.Exception):  # type: ignore[name-defined,misc]  # pytest sets it at run time
    """The test could not be run here: no server, or a hook that the class does not give."""


class RefusedHere(pytest.skip.Exception):  # type: ignore[name-defined,misc]  # as above
    """The backend does not offer what the clause is about, and says so with `NotSupported`."""


def not_run(reason: str) -> NoReturn:
    """End the test as *not run*."""
    raise NotRun(f"not run: {reason}")


def new_owner() -> str:
    """Return a fresh owner id."""
    return os.urandom(16).hex()


def in_seconds(microseconds: int) -> float:
    """Return an instant as a client takes it."""
    return microseconds / SECOND


class Clauses:
    """The base of the mixin classes: hooks to set or override, and helpers for the tests.

    Attributes:
        url: The store's URL, as for `rota.connect`.
        clock: The clock of the store and its clients, where it can be given; else None, and tests wait in reality.
    """

    url: str = ""
    clock: Clock | None = None
    _away: ClassVar[str] = ""

    # -- hooks

    def driver(self) -> Driver:
        """Return a new driver. Default: the one that `url` names."""
        found, parsed = self._backend()
        return found.driver(parsed)

    def async_driver(self, driver: Driver) -> AsyncDriver | None:
        """Return the async twin of a driver. Default: as the backend of `url` says."""
        return self._backend()[0].async_driver(driver)

    async def pass_time(self, face: Face, seconds: float) -> None:
        """Let so much time pass by the store's clock, and at least as much by the clients'.

        Default: `clock` leaps, where there is one; else it waits until the driver's ``now`` has advanced so far.
        """
        if self.clock is not None:
            self.clock.leap(round(seconds * SECOND))
            return
        now = await face.interval()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline or (now is not None and (await face.now()) < now[1] + seconds * SECOND):
            assert time.monotonic() < deadline + 60, "the store's clock stands still"
            await face.sleep(0.01)

    def raw(self, name: str) -> Mapping[str, object] | None:
        """Return what the store itself holds for a name, read past the code under test, or None where it holds nothing.

        Keys: any of ``token``, ``owner``, ``mark``, ``expires_at`` that can be read; the values as in `Record`.
        Default: there is no such way, and what needs it is not run.
        """
        not_run("no raw() hook: give one to look past the driver")

    def hang(self) -> AbstractContextManager[object]:
        """Return a context manager in which the server takes connections and answers nothing (SIGSTOP, a paused container).

        Default: there is no such way, and what needs it is not run.
        """
        not_run("no hang() hook: give one to try what becomes of requests that are not answered")

    def spoil(self, name: str) -> AbstractContextManager[object]:
        """Return a context manager in which the store holds something that can't be read in the place of the name's record.

        It is written past the code under test; afterwards the store has the record again, or none. Default: there is no such way, and what
        needs it is not run.
        """
        not_run("no spoil() hook: give one to try what becomes of a record that can't be read")

    # -- running

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls._away = ""
        for name, test in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(test):
                setattr(cls, name, _on_a_face(test, name.startswith("test_W")))

    @pytest.fixture(params=[BLOCKING, ASYNC])
    def face(self, request: pytest.FixtureRequest) -> Iterator[Face]:
        """The face on which the test runs."""
        with self.opened(request.param) as face:
            yield face

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Face]:
        """Open a face by its name; end the test as not run when no server answers."""
        if type(self)._away:
            not_run(type(self)._away)
        face = Face(self, name)
        try:
            face.probe()
        except Unavailable as error:
            self.stop(f"no server: {error}")
            not_run(type(self)._away)
        yield face

    @classmethod
    def stop(cls, why: str) -> None:
        """Run no further test of the class: none can tell more than the one that found this."""
        cls._away = why

    def _backend(self) -> tuple[Backend, Url]:
        if not self.url:
            raise ConfigurationError(f"{type(self).__name__} names no store: set its url")
        return _registry.backend(self.url)

    def need_clock(self) -> Clock:
        """Return the clock, for a test of a very instant; without one it is not run."""
        if self.clock is None:
            not_run("the store's clock can't be set")
        return self.clock

    async def needs(self, face: Face, verb: str) -> None:
        """Go on if the optional verb is declared; else end the test as refused, once it has said so itself."""
        if verb not in face.capabilities.verbs:
            assert await self.refuses(face, verb), f"{verb} is not declared, and works"
            raise RefusedHere(f"refused: no {verb}")

    async def refuses(self, face: Face, verb: str) -> bool:
        """Say whether the driver refuses the optional verb with `NotSupported`, asked for what any backend could do."""
        name = self.fresh()
        arguments: dict[str, tuple[Any, ...]] = {
            "watch": (name, new_owner(), 5.0),  # which nobody holds
            "claim_when_free": (self.lease(face, name), new_owner(), 5.0, 5.0),
            "override": (Override(name, "released", "test", RETENTION), 5.0),
            "record": (WriteBack(name, "test", WINDOW, RETENTION, "0 * * * *", "", face.began - HOUR, face.began), 5.0),
            "facts": (5.0,),
            "schema": (),
            "sweep": (1, 5.0),
        }
        try:
            await face.call(getattr(face.driver, verb), *arguments[verb])
        except NotSupported:
            return True
        return False

    async def check_windows(self, face: Face) -> None:
        """Go on if windows are declared; else end the test as refused, once a claim has been."""
        if not face.capabilities.windows:
            with pytest.raises(NotSupported):
                await face.claim(self.window(face, self.fresh()))
            raise RefusedHere("refused: no windows")

    # -- requests

    def fresh(self, end: str = "") -> str:
        """Return a name that nobody has used."""
        prefix = self._backend()[1].prefix if self.url else ""
        return f"{prefix + '/' if prefix else ''}{_NAMES}{os.urandom(6).hex()}{end}"

    def short(self, face: Face) -> int:
        """Return a ttl to be outlived."""
        ttl = max(300_000, face.capabilities.min_ttl)
        return ttl + -ttl % face.capabilities.ttl_step

    def brief(self, face: Face) -> int:
        """Return a ttl to be outlived that nobody has to do anything in."""
        ttl = max(50_000, face.capabilities.min_ttl)
        return ttl + -ttl % face.capabilities.ttl_step

    def soon(self) -> float:
        """Return a timeout, in seconds, that a test waits for to be over: short, and enough for a store that answers."""
        return 0.15 if self.clock is not None else 0.4

    def ample(self) -> float:
        """Return a timeout, in seconds, within which a store that answers does so on the busiest machine; `costly` faults end it soon."""
        return 8.0

    def costly(self, face: Face, fault: Fault, seconds: float = 1.0) -> Fault:
        """Return the fault, which takes so long by the clients' clock, so that a timeout is over after few of them."""
        return fault._replace(then=lambda: face.clock.leap(round(seconds * SECOND)))

    async def work(self, face: Face, client: Any, seconds: float, step: float) -> None:
        """Let so much time pass by the clock while the client's heartbeat goes on, which has something to do every ``step`` seconds."""
        assert self.clock is not None
        heartbeat = client._engine.heartbeat
        for _ in range(round(seconds / step)):
            self.clock.leap(round(step * SECOND))
            heartbeat.wake()  # its thread waits in real time
            await face.until(lambda: all(grant._due > client._engine.clock() for grant in heartbeat.held()), what="renewals")

    def lease(self, face: Face, name: str, **changes: Any) -> Claim:
        """Return a claim for a lease, by a fresh owner."""
        return Claim(name, new_owner(), "site host:1", LEASE, LONG, face.began + 366 * DAY, RETENTION)._replace(**changes)

    def slot(self, face: Face, number: int) -> tuple[int, int]:
        """Return a slot of an hour; number 0 began ten minutes before the test."""
        start = face.began - face.began % SECOND + number * HOUR - 10 * MINUTE
        return start, start + HOUR

    def hourly(self, face: Face) -> Every:
        """Return the schedule of these slots, so that none ends while a test runs."""
        return Every("1h", anchor=in_seconds(self.slot(face, 0)[0]))

    def window(self, face: Face, name: str, number: int = 0, **changes: Any) -> Claim:
        """Return a claim for a slot (see `slot`), neither early nor late, by a fresh owner."""
        start, end = self.slot(face, number)
        return self.lease(face, name, kind=WINDOW, schedule="every 1h", slot_start=start, slot_end=end)._replace(**changes)

    def rolling(self, face: Face, name: str, period: int = DAY, **changes: Any) -> Claim:
        """Return a claim for a rolling window, by a fresh owner."""
        return self.lease(face, name, kind=ROLLING, schedule="per 1d", period=period)._replace(**changes)

    async def win(self, face: Face, claim: Claim) -> Record:
        """Claim, which must be won; return the record."""
        answer = await face.claim(claim)
        assert answer.verdict == WON, f"{claim.kind} {claim.name!r}: {answer.verdict}, not won: {answer.record}"
        assert answer.record is not None
        return answer.record

    async def take(self, face: Face, claim: Claim) -> Record:
        """Claim what has surely expired; a store whose expiry lags behind its clock is given time."""
        if face.capabilities.clock != "exact":
            deadline = time.monotonic() + 5 + face.capabilities.ttl_step / SECOND
            while (await face.claim(claim)).verdict == BUSY and time.monotonic() < deadline:
                await face.sleep(0.05)
        return await self.win(face, claim)

    async def end(self, face: Face, claim: Claim, result: str = HANDLED, history: bytes | None = None) -> Settled:
        """Settle a claim's grant."""
        return await face.settle(Settlement(claim.name, claim.owner, result, RETENTION, history))

    async def handle(self, face: Face, claim: Claim, history: bytes | None = None) -> Settled:
        """Win by a claim, and settle it as handled."""
        await self.take(face, claim)
        settled = await self.end(face, claim, HANDLED, history)
        assert settled.applied
        return settled

    async def refused(self, face: Face, claim: Claim, verdict: str) -> Answer:
        """Claim, which must be refused like this and change nothing."""
        before = await face.read(claim.name)
        answer = await face.claim(claim)
        assert answer.verdict == verdict, f"{claim.kind} {claim.name!r}: {answer.verdict}, not {verdict}: {answer.record}"
        assert await face.read(claim.name) == before, f"a claim that was refused ({verdict}) changed the record"
        return answer

    async def renewed(self, face: Face, claim: Claim, ttl: int = 0) -> bool:
        """Renew a claim's grant; return whether it is held."""
        renewed = await face.renew(Renewal(claim.name, claim.owner, ttl or claim.ttl, RETENTION))
        return bool(renewed.held[0])

    async def known(self, face: Face, name: str) -> Record:
        """Return the record of a name, which must have one."""
        record = await face.read(name)
        assert record is not None, f"there is no record of {name!r}"
        return record

    async def is_live(self, face: Face, name: str) -> bool:
        """Say whether somebody holds the name by its record."""
        await face.now()  # where it has to be waited for, not between the record and the time that it is compared with
        record = await face.read(name)
        return record is not None and record.owner != "" and record.expires_at > await face.now()

    def slack(self, face: Face) -> int:
        """Return how far an instant by the store's clock may be off in a record, microseconds."""
        capabilities = face.capabilities
        return 0 if capabilities.clock == "exact" else 2 * capabilities.clock_bound + capabilities.ttl_step

    async def outlive(self, face: Face, record: Record) -> None:
        """Wait until the record's lease has surely run out, unless it was renewed."""
        left = max(0, record.expires_at - await face.now())
        await self.pass_time(face, (left + 2 * face.capabilities.clock_bound) / SECOND + 0.002)
        if face.capabilities.clock != "exact":  # it may end later than the record says, by the ttl's step
            name = record.name
            await face.until(lambda: self._is_over(face, name), what=f"an end of the lease of {name!r}")

    async def _is_over(self, face: Face, name: str) -> bool:
        return not await self.is_live(face, name)

    async def crash(self, face: Face, claim: Claim) -> Record:
        """Win by a claim, and let the grant run out; return the record it had."""
        record = await self.win(face, claim._replace(ttl=self.brief(face)))
        await self.outlive(face, record)
        return record


def _on_a_face(test: Callable[..., Coroutine[Any, Any, None]], needs_windows: bool) -> Callable[..., None]:
    """Make of a test's coroutine function a function that runs it on the face it gets."""

    @functools.wraps(test)
    def run(self: Clauses, face: Face, **fixtures: Any) -> None:
        async def all_of_it() -> None:
            if needs_windows:
                await self.check_windows(face)
            await test(self, face, **fixtures)

        face.run(all_of_it)

    return run
