# SPDX-License-Identifier: MIT
# ruff: noqa: D102, N802 - a test's name says which clause it is about, and what that demands
"""What only shows when threads and processes use the store at once: L1, L7, L10 and F1 in a crowd.

Other processes reach the store by the class's `url`. They are the same on both faces, so that one face asks them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from rota.backend import BUSY, RELEASED, STALE, WON, Answer, Driver, Renewal, Settlement
from rota.duration import SECOND
from rota.errors import Unavailable

from .base import LONG, RETENTION, Clauses, new_owner, not_run
from .faces import PATIENCE, Face
from .stopwatch import Stopwatch

#: How much longer than its timeout a call may take on a loaded machine, seconds.
LATE_BY = 1.0
#: How many reads a process makes while its children make some, too: far more than it takes to mix up answers on one connection.
READS = 200


class Crowds(Clauses):
    """Clauses L1, L7, L10, F1 and the capability clock, in a crowd."""

    # -- threads

    async def test_capability_clock_is_read_in_the_step_that_decides(self, face: Face) -> None:
        if face.is_async:
            return
        if face.capabilities.clock != "exact":
            return  # it declares no more than an interval
        driver, name, problems = face.driver_of_url(), self.fresh(), list[str]()

        def work() -> None:
            try:
                for _ in range(25):
                    claim = self.lease(face, name)
                    answer = driver.claim(claim, PATIENCE)
                    before, record = answer.before, answer.record
                    if answer.verdict == WON and before is not None and record is not None and before.settled_at > record.granted_at:
                        problems.append(f"a grant of {record.granted_at} replaced one that was settled at {before.settled_at}")
                    driver.settle(_release(claim.name, claim.owner), PATIENCE)
            except Exception as error:
                problems.append(repr(error))

        await face.call(_all_at_once, [work] * 5)
        assert not problems, f"the clock is to be read after any wait for a lock, in the step that decides: {problems[0]}"

    async def test_L7_a_claim_that_waited_too_long_for_the_store_is_stale(self, face: Face) -> None:
        if face.is_async:
            return
        driver = face.driver_of_url()
        now = await face.call(driver.now, PATIENCE)
        if now is None:
            not_run("the store's time can't be known, so nothing can be stale")
        claim = self.lease(face, self.fresh())._replace(apply_until=now[1] + SECOND // 4)
        came: list[Any] = []

        def ask() -> None:
            try:
                came.append(driver.claim(claim, PATIENCE))
            except Exception as error:
                came.append(error)

        with self.hang():
            thread = threading.Thread(target=ask)
            thread.start()
            await face.sleep(0.6 + self.slack(face) / SECOND)
        await face.call(thread.join, 2 * PATIENCE)
        assert came, "the claim has not returned"
        if isinstance(came[0], Answer):
            assert came[0].verdict == STALE, f"a claim that waited past its apply_until was {came[0].verdict}"
        else:
            assert isinstance(came[0], Unavailable), came[0]
        await face.until(lambda: self._is_free_again(face, claim.name), 30, what="an answer that nobody has the name")

    async def _is_free_again(self, face: Face, name: str) -> bool:
        with contextlib.suppress(Unavailable):
            return not await self.is_live(face, name)
        return False

    # -- a server that hangs, or a process that was stopped

    def _every_verb(self, face: Face, driver: Driver, limit: float) -> dict[str, Callable[[], Any]]:
        claim = self.lease(face, self.fresh())
        return {
            "claim": lambda: driver.claim(claim, limit),
            "renew": lambda: driver.renew([Renewal(claim.name, claim.owner, LONG, RETENTION)], limit),
            "settle": lambda: driver.settle(_release(claim.name, new_owner()), limit),
            "read": lambda: driver.read(claim.name, limit),
            "list": lambda: driver.list(claim.name, limit),
            "forget": lambda: driver.forget(self.fresh(), limit),
        }

    async def test_F1_a_timeout_may_be_tiny(self, face: Face) -> None:
        wrong = []
        for limit in (0.001, 1e-6):
            for verb, call in self._every_verb(face, face.another_driver(), limit).items():
                came = await face.call(_bounded, call, limit)
                if came is not None and not isinstance(came, Unavailable):
                    wrong.append(f"{verb} with a timeout of {limit}: {came!r}, neither an answer nor Unavailable")
        assert not wrong, "\n".join(wrong)
        await self.win(face, self.lease(face, self.fresh()))

    async def test_F1_every_verb_is_bounded_by_its_timeout_on_a_hung_server(self, face: Face) -> None:
        held = self.lease(face, self.fresh())
        await self.win(face, held)
        limit = self.soon()
        wrong = []
        with self.hang():
            came = await face.call(_bounded, self._every_verb(face, face.driver, 1e-6)["claim"], 1e-6)
            if not isinstance(came, Unavailable):
                wrong.append(f"claim with a timeout of a microsecond: {came!r}, not Unavailable")
            # beside each other, on connections that it has; and again, when those have been given up
            for _ in range(2):
                for verb, came in (await self._all_asked(face, limit)).items():
                    if came is None and verb in ("read", "list"):
                        continue  # a copy that is only read may still be at hand
                    if came is None:
                        wrong.append(f"{verb}: answered by a server that hangs")
                    elif not isinstance(came, Unavailable):
                        wrong.append(f"{verb}: {came!r}, not Unavailable")
                if wrong:
                    break  # what waits for ever may need all that is left
        assert not wrong, "\n".join(wrong)
        await face.until(lambda: self._answers(face, held.name), 30, what="an answer once the server goes on")

    async def _all_asked(self, face: Face, limit: float) -> dict[str, BaseException | None]:
        """Return what each verb raised: those of the face that the server is reached by, and a client's claim."""
        client = face.connect(timeout=limit)
        if not face.is_async:
            calls = {**self._every_verb(face, face.driver, limit), "try_lease": lambda: client.try_lease(self.fresh())}
            with ThreadPoolExecutor(len(calls)) as pool:
                asked = {verb: pool.submit(_bounded, call, limit) for verb, call in calls.items()}
            return {verb: came.result() for verb, came in asked.items()}
        claim = self.lease(face, self.fresh())
        verbs = {
            "claim": face.claim(claim, limit),
            "settle": face.settle(_release(claim.name, new_owner()), limit),
            "try_lease": client.try_lease(self.fresh()),
        }
        came = await asyncio.gather(*(_awaited(verb, limit) for verb in verbs.values()), return_exceptions=True)
        return {verb: one if isinstance(one, BaseException) else None for verb, one in zip(verbs, came, strict=True)}

    async def _answers(self, face: Face, name: str) -> bool:
        with contextlib.suppress(Unavailable):
            return await self.is_live(face, name)
        return False

    async def test_F1_a_process_that_was_stopped_in_a_verb_holds_up_nobody_for_ever(self, face: Face) -> None:
        if face.is_async or face.capabilities.scope == "process":
            return
        if not hasattr(signal, "SIGSTOP"):
            not_run("this system stops no processes")
        limit, wrong = 0.2, []
        name = self.fresh()
        with self._others(1) as (other,):
            other.tell({"hammer": self.lease(face, name)})
            await face.until(lambda: face.driver.read(name, PATIENCE)[0], what="a claim of the other process")
            for verb, call in [*self._every_verb(face, face.driver, limit).items()] * 3:
                time.sleep(0.01 + os.urandom(1)[0] / 5000)  # noqa: ASYNC251 - somewhere in its work
                with other.stopped():
                    came = _bounded(call, limit)
                    if came is not None and not isinstance(came, Unavailable):
                        wrong.append(f"{verb}: {came!r}, not Unavailable")
                if wrong:
                    break  # what waits for ever may need all that is left
        assert not wrong, f"while another process is stopped in the middle of a verb: {wrong[0]}"
        await self.win(face, self.lease(face, self.fresh()))

    # -- other processes

    async def test_L1_of_many_processes_one_wins(self, face: Face) -> None:
        if face.is_async or face.capabilities.scope == "process":
            return
        names = [self.fresh() for _ in range(60)]
        with self._others(4) as others:
            at = time.monotonic() + 0.2
            for other in others:
                other.tell({"claims": [self.lease(face, name) for name in names], "at": at, "gap": 0.005})
            heard = [other.hear() for other in others]
        for name, verdicts in zip(names, zip(*heard, strict=True), strict=True):
            assert sorted(verdicts) == [BUSY] * 3 + [WON], f"four processes claimed {name!r} at once: {verdicts}"

    async def test_capability_clock_is_the_stores_whatever_time_a_client_has(self, face: Face) -> None:
        if face.is_async or face.capabilities.scope != "network":
            return  # the store's clock is the host's
        driver = face.driver_of_url()
        held, free = self.lease(face, self.fresh()), self.lease(face, self.fresh())
        assert driver.claim(held, PATIENCE).verdict == WON
        with self._others(1, "skewed.py") as (other,):
            before = driver.now(PATIENCE)
            other.tell({"claims": [self.lease(face, held.name), free], "at": 0, "gap": 0})
            verdicts = other.hear()
            after = driver.now(PATIENCE)
        assert verdicts == [BUSY, WON], f"a client whose clock is a day ahead claimed a name that is held, and a free one: {verdicts}"
        record, _ = driver.read(free.name, PATIENCE)
        assert record is not None
        if before is not None and after is not None:
            early, late = before[0] - self.slack(face), after[1] + self.slack(face)
            assert early <= record.granted_at <= late, "granted at the time of the client's clock, which is a day ahead of the store's"

    @contextlib.contextmanager
    def _others(self, count: int, script: str = "racer.py") -> Iterator[list[_Other]]:
        if not self.url:
            not_run("no url for another process")
        with contextlib.ExitStack() as stack:
            others = [stack.enter_context(_Other(script)) for _ in range(count)]
            for other in others:
                other.tell({"url": self.url, "name": self.fresh()})
            for other in others:
                other.hear()
            yield others

    # -- forks

    async def test_L10_a_child_forked_in_the_middle_of_a_verb_holds_up_nobody(self, face: Face) -> None:
        if face.is_async:
            return
        if not hasattr(os, "fork"):
            not_run("this system does not fork")
        driver, stop, problems = face.connect().driver.inner, threading.Event(), list[str]()

        def work() -> None:
            name = self.fresh()
            while not stop.is_set():
                claim = self.lease(face, name)
                try:
                    driver.claim(claim, PATIENCE)
                    driver.settle(_release(name, claim.owner), PATIENCE)
                except Exception as error:
                    problems.append(repr(error))
                    return

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        with contextlib.ExitStack() as children:
            for thread in threads:
                children.callback(thread.join, 2 * PATIENCE)
            children.callback(stop.set)
            for _ in range(12):
                time.sleep(0.002 + os.urandom(1)[0] / 50_000)  # noqa: ASYNC251 - somewhere in their work
                children.enter_context(_idle_child())
                came = _bounded(lambda: driver.claim(self.lease(face, self.fresh()), PATIENCE), PATIENCE)
                assert came is None, f"a forked child that does nothing keeps its parent from the store: {came!r}"
        assert not problems, problems[0]

    async def test_L10_a_forked_child_and_its_parent_get_their_own_answers(self, face: Face) -> None:
        if face.is_async:
            return
        if not hasattr(os, "fork"):
            not_run("this system does not fork")
        driver = face.connect().driver.inner
        names = [self.fresh() for _ in range(3)]
        for name in names:
            driver.claim(self.lease(face, name), PATIENCE)
        with ThreadPoolExecutor(2) as pool:  # so that it has connections that are idle, and are the ones that it takes next
            list(pool.map(lambda name: driver.read(name, PATIENCE), names * 2))

        def wrong(name: str) -> str:
            try:
                record, _ = driver.read(name, PATIENCE)
            except Exception as error:
                return f"asked for {name!r}, and got {error!r}"
            return "" if record is not None and record.name == name else f"asked for {name!r}, and got {record!r}"

        with contextlib.ExitStack() as stack:
            children = [stack.enter_context(_Child(partial(wrong, name))) for name in names[1:]]
            for child in children:
                child.begin()
            found = next(filter(None, (wrong(names[0]) for _ in range(READS))), "")
            problems = [found] if found else [said for child in children if (said := child.end())]
        assert not problems, f"a forked child and its parent read each other's answers: {problems[0]}"


def _release(name: str, owner: str) -> Settlement:
    return Settlement(name, owner, RELEASED, RETENTION)


class _Other:
    """Another process (see `racer`)."""

    def __init__(self, script: str) -> None:
        self._script = Path(__file__).with_name(script)

    def __enter__(self) -> _Other:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(self._script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        return self

    def tell(self, what: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        said = json.loads(line) if line else {"error": "it ended"}
        assert not isinstance(said, dict), f"another process on the store: {said['error']}"
        return said

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            os.waitpid(self._process.pid, os.WUNTRACED)
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def _idle_child() -> Iterator[None]:
    """Fork a child that does nothing until the block ends."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of threads: that it works with them is what is tested
        child = os.fork()
    if not child:
        try:
            os.close(writer)
            os.read(reader, 1)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)


class _Child:
    """A forked child that looks for what is wrong again and again, until it has found something or is told to end."""

    def __init__(self, look: Callable[[], str]) -> None:
        self._look = look

    def __enter__(self) -> _Child:
        self._says, said = os.pipe()
        ends, self._end = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # as above
            self._process = os.fork()
        if not self._process:
            try:
                os.close(self._end)
                os.close(self._says)
                self._work(said, ends)
            finally:
                os._exit(0)
        os.close(said)
        os.close(ends)
        return self

    def _work(self, said: int, ends: int) -> None:
        try:
            found = self._look()
            os.write(said, b".")
            while not found and not select.select([ends], [], [], 0)[0]:
                found = self._look()
        except BaseException as error:
            found = repr(error)
        os.write(said, found.encode()[:4000])

    def begin(self) -> None:
        """Wait until it has looked once."""
        if select.select([self._says], [], [], 2 * PATIENCE)[0]:
            os.read(self._says, 1)

    def end(self) -> str:
        """Tell it to end; return what it has found."""
        with contextlib.suppress(BrokenPipeError):  # it has found something
            os.write(self._end, b".")
        said = b""
        while select.select([self._says], [], [], 2 * PATIENCE)[0] and (part := os.read(self._says, 65536)):
            said += part
        return said.decode().lstrip(".")

    def __exit__(self, *_: object) -> None:
        os.close(self._end)
        os.close(self._says)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)


def _all_at_once(functions: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def _awaited(verb: Awaitable[Any], limit: float) -> None:
    """Await a verb, or raise an error that says so if it is not over in time."""
    task = asyncio.ensure_future(verb)
    with Stopwatch() as watch:
        while not task.done():
            if watch.seconds > limit + LATE_BY:
                task.cancel()
                raise TimeoutError(f"it had not returned {LATE_BY:g}s after its timeout of {limit:g}s")
            await asyncio.wait([task], timeout=0.02)
    task.result()


def _bounded(call: Callable[[], Any], limit: float) -> BaseException | None:
    """Return what a call raised, None if it answered, or an error that says so if it is not over in time; its thread is left aside."""
    came: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            came.append(error)
        else:
            came.append(None)

    thread = threading.Thread(target=run, daemon=True)
    with Stopwatch() as watch:
        thread.start()
        while thread.is_alive() and watch.seconds < limit + LATE_BY:
            thread.join(0.02)
    return came[0] if came else TimeoutError(f"it had not returned {LATE_BY:g}s after its timeout of {limit:g}s")
