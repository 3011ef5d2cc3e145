# SPDX-License-Identifier: MIT
"""Waiters stand in line, and one of them is woken by each release; nothing of them is left behind (L8)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import rota
from redis.crc import key_slot
from rota import _engine
from rota.backend import Claim, Override, Settlement
from rota.duration import DAY, SECOND
from rota.errors import Unavailable

OWNER = "1" * 32
DAILY = rota.Every("1d")


def held(name: str, seconds: int = 60) -> Claim:
    return Claim(name, OWNER, "", "lease", seconds * SECOND, 2**60, DAY)


def calls(server: Any, command: str) -> int:
    return int(server.info("commandstats").get(f"cmdstat_{command}", "calls=0,").split("calls=")[1].split(",")[0])


def in_line(server: Any) -> int:
    return int(server.info("clients")["blocked_clients"])


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


def test_a_name_that_looks_like_the_key_of_another_has_a_line_of_its_own(
    conforming_cluster: Any, connect: Any, until: Any, only_woken: None, name: str
) -> None:
    """On a cluster the keys of those who wait for a name without a hash tag have a tag made of its key."""
    url = conforming_cluster.url()
    holder, got = connect(url), {}
    alike = f"{{rota:{name}}}"
    grants = {each: holder.try_lease(each, ttl="1m") for each in (name, alike)}
    threads = []

    def take(each: str, client: Any) -> None:
        got[each] = client.try_lease(each, ttl="1m", wait="40s")

    for number, each in enumerate((alike, name)):
        threads.append(threading.Thread(target=take, args=(each, connect(url))))
        threads[-1].start()
        until(lambda number=number: sum(map(in_line, conforming_cluster.primaries())) == number + 1)
    for each in (name, alike):
        grants[each].release()
        until(lambda each=each: each in got, 20)
    for thread in threads:
        thread.join()


def test_names_whose_keys_share_a_slot_by_chance_can_be_held_and_ended(conforming_cluster: Any, connect: Any, name: str) -> None:
    """One name in some thousands: its key with a line break behind it, or with the end of a waiters' key, hashes to the slot of its own."""
    client = connect(conforming_cluster.url())
    for behind in ("\n", "\nwaited", "\nwake"):
        for opened in ("", "{", "}"):
            keys = ((each, f"rota:{each}") for number in itertools.count() for each in [f"{name}{opened}{number}"])
            found = next(each for each, key in keys if key_slot(key.encode()) == key_slot((key + behind).encode()))
            client.try_lease(found).release()
            assert client.try_lease(found)


@pytest.mark.parametrize("way", ["settle", "override", "forget"])
def test_every_end_of_a_grant_wakes(driver_for: Any, redis_url: str, name: str, way: str) -> None:
    driver, other = driver_for(redis_url), driver_for(redis_url)
    assert driver.claim(held(name), 1.5).verdict == "won"
    ends = {
        "settle": lambda: other.settle(Settlement(name, OWNER, "released", DAY), 1.5),
        "override": lambda: other.override(Override(name, "released", "op", DAY), 1.5),
        "forget": lambda: other.forget(name, 1.5),
    }
    threading.Timer(0.2, ends[way]).start()
    assert driver.watch(name, OWNER, 30.0) is True, "False: it waited to the end"


@pytest.mark.by_the_clock
def test_waiting_asks_nothing(start: Any, driver_for: Any, name: str) -> None:
    server = start()
    driver = driver_for(server.url())
    driver.claim(held(name), 1.5)
    server.do("CONFIG", "RESETSTAT")
    started = time.monotonic()
    assert driver.claim_when_free(held(name)._replace(owner="2" * 32), OWNER, 1.0, 1.5).verdict == "busy"
    assert time.monotonic() - started > 0.9
    asked = [calls(server, command) for command in ("eval", "blpop", "evalsha")]
    assert asked == [1, 1, 1], "one look, and the claim when the time is over"
    keys = set(server.do("KEYS", "*"))
    assert keys == {f"rota:{name}", f"rota:{name}\nwaited"}
    assert 0 < server.do("PTTL", f"rota:{name}\nwaited") <= 2000, "it goes by itself"
    assert [record.name for record in driver.list("", 1.5)] == [name]


def test_who_is_gone_already_is_not_waited_for(driver_for: Any, redis_url: str, name: str) -> None:
    driver = driver_for(redis_url)
    assert driver.watch(name, OWNER, 5.0) is True
    driver.claim(held(name), 1.5)
    assert driver.watch(name, "2" * 32, 5.0) is True


def test_a_release_wakes_one_waiter_who_has_it_by_then(start: Any, connect: Any, until: Any, only_woken: None, name: str) -> None:
    """No thundering herd: the others are neither woken nor do they ask; they come one after the other, as they stood in line."""
    server = start()
    holder = connect(server.url())
    holder.try_lease(name).release()  # the scripts are there
    grant = holder.try_lease(name, ttl="1m")
    got: list[tuple[int, Any]] = []
    threads = []
    for number in range(3):
        client = connect(server.url())
        take = lambda number=number, client=client: got.append((number, client.try_lease(name, ttl="1m", wait="1m")))  # noqa: E731
        threads.append(threading.Thread(target=take))
        threads[-1].start()
        until(lambda number=number: in_line(server) == number + 1)
    server.do("CONFIG", "RESETSTAT")
    for number in range(3):
        grant.release()
        until(lambda number=number: len(got) == number + 1)
        assert in_line(server) == 2 - number
        assert got[-1][0] == number
        grant = got[-1][1]
        # each release, and the claim of the one who was woken
        assert calls(server, "evalsha") == 2 * (number + 1)
        assert calls(server, "eval") == 0, "nobody went to the end of the line"
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("flushed", [False, True])
def test_a_slot_that_was_handled_is_told_to_all_in_line(
    start: Any, connect: Any, until: Any, only_woken: None, name: str, flushed: bool
) -> None:
    """Who is woken and needs nothing wakes the next one, also where the server has forgotten the script of the claim in line."""
    server = start()
    window = connect(server.url()).try_window(name, DAILY, ttl="1m")
    verdicts: list[str] = []

    def wait(client: Any) -> None:
        verdicts.append(client.try_window(name, DAILY, wait="1m").verdict)

    threads = [threading.Thread(target=wait, args=(connect(server.url()),)) for _ in range(5)]
    for thread in threads:
        thread.start()
    until(lambda: in_line(server) == 5)
    if flushed:
        server.do("SCRIPT", "FLUSH")
    window.handled()
    until(lambda: len(verdicts) == 5)
    assert set(verdicts) == {"handled"}


@pytest.mark.parametrize("end", ["release", "expiry"])
@pytest.mark.by_the_clock
def test_a_deadline_counts_from_the_grant_and_not_from_the_wait(face: Any, connect: Any, redis_url: str, name: str, end: str) -> None:
    """L5: a claim in line is sent long before it is applied."""
    holder, client = connect(redis_url), face.connect(redis_url)
    assert holder.driver.claim(held(name)._replace(ttl=1_200_000), 1.5).verdict == "won"
    if end == "release":
        threading.Timer(1.0, lambda: holder.driver.settle(Settlement(name, OWNER, "released", DAY), 1.5)).start()
    grant = face.do(client.try_lease(name, ttl="900ms", heartbeat="250ms", wait="30s"))
    now = holder.driver.now(1.5)[0]
    remaining = grant.remaining()
    assert not grant.lost
    assert remaining > 0.4, "it waited for longer than its ttl, which counts from now on"
    record = holder.driver.read(name, 1.5)[0]
    assert remaining <= (record.expires_at - now) / SECOND - 0.09, "less the margin, it never lasts longer than the store's"


def test_a_waiter_that_hangs_costs_the_others_its_ttl_at_the_most(start: Any, connect: Any, until: Any, name: str, stopwatch: Any) -> None:
    """It is granted what it stands in line for, and does not renew it."""
    server = start()
    grant = connect(server.url()).try_lease(name, ttl="1m")
    code = "import rota, sys; rota.connect(sys.argv[1]).try_lease(sys.argv[2], ttl='1s', wait='1m')"
    hung = subprocess.Popen([sys.executable, "-c", code, server.url(), name])
    try:
        until(lambda: in_line(server) == 1)
        hung.send_signal(signal.SIGSTOP)
        got: list[Any] = []
        client = connect(server.url())
        thread = threading.Thread(target=lambda: got.append(client.try_lease(name, wait="30s")))
        thread.start()
        until(lambda: in_line(server) == 2)
        released = stopwatch()
        grant.release()
        thread.join(20)
        assert got[0]
        assert got[0].record.granted_at - grant.record.granted_at > 0
        assert released.seconds < 1.0 + _engine.LONGEST_WATCH + 1.0
    finally:
        hung.kill()
        hung.wait()


class Relay:
    """Passes a server's bytes on until it is told to be silent; whoever connects anew is heard."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._silent: set[int] = set()
        self._count = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def fall_silent(self) -> None:
        """Keep back what the server says from here on, on the connections that there are."""
        self._silent.update(range(self._count))

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._server.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._port))
                for ends in ((client, server, None), (server, client, self._count)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()
                self._count += 1

    def _pass(self, come: socket.socket, go: socket.socket, number: int | None) -> None:
        with contextlib.suppress(OSError):
            while data := come.recv(65536):
                if number not in self._silent:
                    go.sendall(data)
            go.shutdown(socket.SHUT_WR)


def test_a_waiter_whose_connection_falls_silent_gives_back_what_it_was_granted(start: Any, connect: Any, until: Any, name: str) -> None:
    """L8: long before its ttl; it looks now and then whether it still hears."""
    server = start()
    relay = Relay(server.port)
    holder, other = connect(server.url()), connect(server.url())
    grant = holder.try_lease(name, ttl="1m")
    cut_off = connect(f"redis://127.0.0.1:{relay.port}", timeout="500ms")
    refused: list[Exception] = []

    def wait() -> None:
        try:
            cut_off.try_lease(name, ttl="1m", wait="30s")
        except Unavailable as error:
            refused.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: in_line(server) == 1)
    relay.fall_silent()
    released = time.monotonic()
    grant.release()
    assert holder.driver.read(name, 1.5)[0].owner, "who stood in line has it"
    assert until(lambda: other.try_lease(name))
    assert time.monotonic() - released < _engine.LONGEST_IN_LINE + 0.5 + 1.5
    thread.join(20)
    assert refused
    relay.close()


def test_many_waiters_are_all_woken(start: Any, driver_for: Any, until: Any, name: str) -> None:
    server = start()
    driver = driver_for(server.url())
    driver.claim(held(name), 1.5)
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(driver.watch(name, OWNER, 20.0))) for _ in range(30)]
    for thread in threads:
        thread.start()
    until(lambda: in_line(server) == 30)
    driver.settle(Settlement(name, OWNER, "released", DAY), 1.5)
    for thread in threads:
        thread.join(10)
    assert answers == [True] * 30
    until(lambda: not server.do("EXISTS", f"rota:{name}\nwake"), 3)  # what the last one left for a next one goes by itself


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
    server = start()
    grant = connect(server.url()).try_lease(name, ttl="1m")
    pid = os.fork()
    if pid == 0:
        try:
            rota.connect(server.url()).try_lease(name, wait="30s")
        finally:
            os._exit(0)
    until(lambda: in_line(server) == 1)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    until(lambda: in_line(server) == 0)
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
                while in_line(server) == 0:  # noqa: ASYNC110 - the server has no event
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
        until(lambda: in_line(server) == 0)


def test_a_restart_while_somebody_waits_is_survived(start: Any, face: Any, connect: Any, until: Any, name: str) -> None:
    server = start(appendonly="yes", appendfsync="always")
    grant = connect(server.url()).try_lease(name, ttl="1m")
    client = face.connect(server.url())

    def restart() -> None:
        until(lambda: in_line(server) == 1)
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
        thread.join(20)
    assert len(errors) == 3
