# SPDX-License-Identifier: MIT
"""Waiters are woken, in turn, by one connection; nothing of them is left behind (L8)."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
import rota
from rota.backend import Claim, Override, Settlement
from rota.duration import DAY, SECOND
from rota.errors import Unavailable
from rota_redis import _watch

OWNER = "1" * 32


def held(name: str, seconds: int = 60) -> Claim:
    return Claim(name, OWNER, "", "lease", seconds * SECOND, 2**60, DAY)


def calls(server: Any, command: str) -> int:
    return int(server.info("commandstats").get(f"cmdstat_{command}", "calls=0,").split("calls=")[1].split(",")[0])


@pytest.mark.parametrize("url", ["redis_url", "sentinel_url", "cluster_url"])
def test_a_waiter_is_woken_by_the_release(
    face: Any, request: pytest.FixtureRequest, connect: Any, only_woken: None, url: str, name: str
) -> None:
    url = request.getfixturevalue(url)
    holder, client = connect(url), face.connect(url)
    for number in range(3):  # on a cluster: several slots
        grant = holder.try_lease(f"{name}/{number}", ttl="1m")
        threading.Timer(0.2, grant.release).start()
        started = time.monotonic()
        second = face.do(client.try_lease(f"{name}/{number}", wait="40s"))
        assert second.token > grant.token
        assert time.monotonic() - started < 20, "long before the end of the wait, when it asks once more"


@pytest.mark.parametrize("way", ["settle", "override", "forget", "expire"])
def test_every_end_of_a_grant_wakes(driver_for: Any, redis_url: str, name: str, way: str) -> None:
    driver, other = driver_for(redis_url), driver_for(redis_url)
    assert driver.claim(held(name, 1 if way == "expire" else 60), 1.5).verdict == "won"
    ends = {
        "settle": lambda: other.settle(Settlement(name, OWNER, "released", DAY), 1.5),
        "override": lambda: other.override(Override(name, "released", "op", DAY), 1.5),
        "forget": lambda: other.forget(name, 1.5),
        # nobody announces an expiry; whoever takes the name over does
        "expire": lambda: other.claim(held(name)._replace(owner="2" * 32), 1.5),
    }
    threading.Timer(1.2 if way == "expire" else 0.2, ends[way]).start()
    assert driver.watch(name, OWNER, 30.0) is True, "False: it waited to the end"


def test_waiting_asks_nothing(start: Any, driver_for: Any, name: str) -> None:
    server = start()
    driver = driver_for(server.url())
    driver.claim(held(name), 1.5)
    server.do("CONFIG", "RESETSTAT")
    started = time.monotonic()
    assert driver.watch(name, OWNER, 1.0) is False
    assert time.monotonic() - started > 0.9
    assert calls(server, "evalsha") <= 2, "one look (and the script loaded before it)"
    assert calls(server, "subscribe") == 1
    assert server.do("PUBSUB", "NUMSUB", f"rota:{name}")[1] == 0, "the subscription is gone"


def test_who_is_gone_already_is_not_waited_for(driver_for: Any, redis_url: str, name: str) -> None:
    driver = driver_for(redis_url)
    assert driver.watch(name, OWNER, 5.0) is True
    driver.claim(held(name), 1.5)
    assert driver.watch(name, "2" * 32, 5.0) is True


@pytest.mark.parametrize("waiters", [1, 3])
def test_each_waiter_is_held_back_by_a_part_of_a_time_that_grows_with_their_number(
    start: Any, driver_for: Any, until: Any, monkeypatch: pytest.MonkeyPatch, name: str, waiters: int
) -> None:
    """No thundering herd."""
    monkeypatch.setattr(_watch, "STEP", 0.2)
    monkeypatch.setattr(_watch, "MOST", 5.0)
    monkeypatch.setattr(_watch.random, "random", lambda: 1.0)
    server = start()
    driver = driver_for(server.url())
    driver.claim(held(name), 1.5)
    woken: list[float] = []
    threads = [threading.Thread(target=lambda: (driver.watch(name, OWNER, 20.0), woken.append(time.monotonic()))) for _ in range(waiters)]
    for thread in threads:
        thread.start()
    until(lambda: server.do("PUBSUB", "NUMSUB", f"rota:{name}")[1] == waiters)
    until(lambda: calls(server, "get") == waiters + 1)  # the claim, and each has looked
    settled = time.monotonic()
    driver.settle(Settlement(name, OWNER, "released", DAY), 1.5)
    for thread in threads:
        thread.join(10)
    assert min(woken) - settled >= 0.2 * (waiters - 1)


def test_many_waiters_are_all_woken(start: Any, driver_for: Any, until: Any, name: str) -> None:
    server = start()
    driver = driver_for(server.url())
    driver.claim(held(name), 1.5)
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(driver.watch(name, OWNER, 20.0))) for _ in range(30)]
    for thread in threads:
        thread.start()
    until(lambda: server.do("PUBSUB", "NUMSUB", f"rota:{name}")[1] == 30)
    until(lambda: calls(server, "get") == 31)  # the claim, and each has looked
    driver.settle(Settlement(name, OWNER, "released", DAY), 1.5)
    for thread in threads:
        thread.join(10)
    assert answers == [True] * 30
    # the next call over each connection ends its subscription
    until(lambda: driver.now(1.5) and server.do("PUBSUB", "CHANNELS") == [])


def test_twenty_clients_get_the_lease_one_after_the_other(connect: Any, redis_url: str, until: Any, waiters: Any, name: str) -> None:
    order: list[int] = []
    failures: list[object] = []

    def work() -> None:
        client = rota.connect(redis_url)
        grant = client.try_lease(name, ttl="20s", wait="30s")
        if grant:
            order.append(grant.token)
            grant.release()
        else:
            failures.append(grant)
        client.close()

    holder = connect(redis_url).try_lease(name, ttl="1m")
    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    until(lambda: waiters() == 20)
    started = time.monotonic()
    holder.release()
    for thread in threads:
        thread.join()
    assert not failures
    assert order == sorted(set(order))
    assert len(order) == 20
    assert time.monotonic() - started < 15


def test_a_waiter_that_dies_is_harmless(start: Any, driver_for: Any, connect: Any, until: Any, name: str) -> None:
    import os

    server = start()
    grant = connect(server.url()).try_lease(name, ttl="1m")
    pid = os.fork()
    if pid == 0:
        try:
            rota.connect(server.url()).try_lease(name, wait="30s")
        finally:
            os._exit(0)
    until(lambda: server.do("PUBSUB", "NUMSUB", f"rota:{name}")[1] == 1)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    until(lambda: server.do("PUBSUB", "NUMSUB", f"rota:{name}")[1] == 0)
    threading.Timer(0.2, grant.release).start()
    assert connect(server.url()).try_lease(name, wait="10s")


def test_a_wait_that_is_cancelled_leaves_nothing(start: Any, name: str, until: Any) -> None:
    server = start()
    with rota.connect(server.url()) as holder:
        assert holder.try_lease(name, ttl="1m")

        async def main() -> None:
            async with rota.connect_async(server.url()) as client:
                before = asyncio.all_tasks()
                task = asyncio.create_task(client.try_lease(name, wait="30s"))
                while server.do("PUBSUB", "NUMSUB", f"rota:{name}")[1] == 0:  # noqa: ASYNC110 - the server has no event
                    await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                for _ in range(200):
                    if asyncio.all_tasks() == before:
                        break
                    await asyncio.sleep(0.01)
                assert asyncio.all_tasks() == before

        asyncio.run(main())
        until(lambda: server.do("PUBSUB", "CHANNELS") == [])


def test_a_restart_while_somebody_waits_is_survived(start: Any, face: Any, connect: Any, until: Any, name: str) -> None:
    server = start(appendonly="yes", appendfsync="always")
    grant = connect(server.url()).try_lease(name, ttl="1m")
    client = face.connect(server.url())

    def restart() -> None:
        until(lambda: server.do("PUBSUB", "NUMSUB", f"rota:{name}")[1] == 1)
        server.kill()
        server.start()
        grant.release()

    thread = threading.Thread(target=restart)
    thread.start()
    # a claim while it is down is refused as unavailable, and the caller asks again
    assert until(lambda: face.attempt(lambda: client.try_lease(name, wait="10s")), 30)
    thread.join()


def test_closing_wakes_those_who_wait(driver_for: Any, redis_url: str, until: Any, waiters: Any, name: str) -> None:
    driver = driver_for(redis_url)
    driver.claim(held(name), 1.5)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            driver.watch(name, OWNER, 30.0)
        except Unavailable as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: waiters() == 3)
    driver.close()
    for thread in threads:
        thread.join(5)
    assert len(errors) == 3
