# SPDX-License-Identifier: MIT
"""Which threads carry the calls of a blocking driver on the async face."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import rota
from rota._io import THREADS, ThreadedIo
from rota.backend import Now
from rota.memory import MemoryBackend, MemoryDriver


class Slow(MemoryDriver):
    """Tells on which threads it was asked, and answers those that wait when it may."""

    def __init__(self, driver: MemoryDriver) -> None:
        self.__dict__ = driver.__dict__
        self.asked: list[int] = []
        self.begun = threading.Semaphore(0)
        self.may_answer = threading.Event()
        self.may_answer.set()

    def now(self, timeout: float) -> Now | None:
        self.asked.append(threading.get_ident())
        self.begun.release()
        assert self.may_answer.wait(10)
        return super().now(timeout)


@pytest.fixture
def driver() -> Slow:
    return Slow(MemoryBackend().driver(rota.url.parse("memory://")))


@pytest.fixture
def io(driver: Slow) -> Iterator[ThreadedIo]:
    io = ThreadedIo(driver)
    yield io
    driver.may_answer.set()
    io.close()


def test_calls_that_come_one_at_a_time_go_by_one_thread(driver: Slow, io: ThreadedIo) -> None:
    async def calls() -> None:
        await asyncio.gather(*(io.now(10) for _ in range(THREADS)))
        driver.asked.clear()
        for _ in range(2 * THREADS):
            await io.now(10)

    asyncio.run(calls())
    assert len(driver.asked) == 2 * THREADS
    assert len(set(driver.asked)) == 1


def test_a_call_that_hangs_holds_up_no_other_even_when_its_caller_has_left(driver: Slow, io: ThreadedIo) -> None:
    async def calls() -> None:
        driver.may_answer.clear()
        hanging = asyncio.create_task(io.now(10))
        await asyncio.to_thread(driver.begun.acquire)
        driver.now = lambda timeout: (threading.get_ident(), 0)  # type: ignore[method-assign]
        assert (await io.now(10))[0] not in driver.asked
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        assert (await io.now(10))[0] not in driver.asked
        driver.may_answer.set()
        while (await io.now(10))[0] not in driver.asked:
            pass  # until its thread is free again

    asyncio.run(asyncio.wait_for(calls(), 20))


def test_as_many_calls_run_beside_each_other_as_there_are_threads(driver: Slow, io: ThreadedIo) -> None:
    async def calls() -> None:
        driver.may_answer.clear()
        tasks = [asyncio.create_task(io.now(10)) for _ in range(THREADS + 1)]
        for _ in range(THREADS):
            await asyncio.to_thread(driver.begun.acquire)
        driver.may_answer.set()
        assert all(await asyncio.gather(*tasks))

    asyncio.run(asyncio.wait_for(calls(), 20))
    assert len(set(driver.asked)) == THREADS
