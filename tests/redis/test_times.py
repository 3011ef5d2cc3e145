# SPDX-License-Identifier: MIT
"""DV-10, DV-11, DV-15, DV-23 on Redis: whose clock counts, how long is long, and what a fork may do."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import rota
import servers
from rota.backend import Claim, Renewal
from rota.duration import DAY, SECOND
from servers import read_line

# -- DV-10

NODE = """
import sys, time, rota
url, name, anchor = sys.argv[1:]
client = rota.connect(url)
print(time.time(), flush=True)
for line in sys.stdin:
    grant = client.try_lease(name, ttl="2s")
    window = client.try_window(name + "/w", rota.Every("2m", anchor=anchor))
    print("won" if grant else grant.verdict, window.slot.start, flush=True)
    if grant:
        grant.release()
"""


@pytest.mark.by_the_clock
def test_wall_clocks_that_are_off_decide_nothing(connect: Any, redis_url: str, name: str) -> None:
    """Held by the store's time until the very end of the ttl, and free right after it; the slot is the store's."""
    driver = connect(redis_url).driver
    now = driver.now(1.5)[0]
    anchor = now // SECOND * SECOND - 60 * SECOND  # the middle of a slot: three minutes more or less is another one
    fake, nodes = servers.program("libfaketime"), []
    for offset in (180, -180, 86_400, -86_400):
        command = [sys.executable, "-c", NODE, redis_url, name, str(anchor // SECOND)]
        environment = {**os.environ, "LD_PRELOAD": fake, "FAKETIME": f"{offset:+d}s"}
        nodes.append((offset, subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)))

    def ask() -> list[list[str]]:
        for _, node in nodes:
            node.stdin.write("\n")
            node.stdin.flush()
        return [read_line(node.stdout).split() for _, node in nodes]

    try:
        for offset, node in nodes:
            assert abs(float(read_line(node.stdout)) - time.time() - offset) < 30
        assert driver.claim(Claim(name, "1" * 32, "", "lease", 2 * SECOND, 2**60, DAY), 1.5).verdict == "won"
        record, _ = driver.read(name, 1.5)
        while driver.now(1.5)[0] < record.expires_at - 200_000:
            assert {verdict for verdict, _ in ask()} == {"busy"}
        while driver.now(1.5)[0] < record.expires_at:
            time.sleep(0.001)
        answers = ask()
        assert "won" in [verdict for verdict, _ in answers]
        assert {int(start) for _, start in answers} == {anchor}
    finally:
        for _, node in nodes:
            node.kill()
            node.communicate()


# -- DV-11


@pytest.mark.by_the_clock
def test_a_body_longer_than_its_interval_keeps_the_others_out(connect: Any, redis_url: str, name: str) -> None:
    """Slots of 1 s, ttl 0.9 s with heartbeat, body 4.2 s: busy, not handled, and the losers' clean-up touches nothing."""
    every = rota.Every("1s")
    clients = [connect(redis_url) for _ in range(3)]
    window = None
    while not window:
        window = clients[0].try_window(name, every, ttl="900ms", heartbeat="250ms")
    token, ends, seen = window.token, [], []
    until = time.monotonic() + 4.2
    while time.monotonic() < until:
        for client in clients[1:]:
            refused = client.try_window(name, every, ttl="900ms", heartbeat="250ms")
            seen.append(refused.verdict)
            assert refused.record.token == token
        ends.append(clients[0].driver.read(name, 1.5)[0].expires_at)
        time.sleep(0.2)
    assert set(seen) == {"busy"}
    assert ends == sorted(ends), "nobody else shortens it"
    assert ends[-1] > ends[0] + 3 * SECOND, "renewed throughout"
    assert not window.lost
    window.handled()
    following = None
    while not following:
        following = clients[2].try_window(name, every, ttl="900ms")
    assert following.token > token
    assert following.missed.count >= 3


# -- DV-15


@pytest.mark.by_the_clock
def test_renewing_sets_the_remaining_time_and_never_adds(driver_for: Any, redis_url: str, name: str) -> None:
    """L3: a hundred times."""
    driver = driver_for(redis_url)
    driver.claim(Claim(name, "1" * 32, "", "lease", 10 * SECOND, 2**60, DAY), 1.5)
    for _ in range(100):
        assert driver.renew([Renewal(name, "1" * 32, 10 * SECOND, DAY)], 1.5).held == [True]
        record, now = driver.read(name, 1.5)
        assert 9 * SECOND < record.expires_at - now[0] <= 10 * SECOND


HOLDS = """
import sys, time, rota
client = rota.connect(sys.argv[1])
grant = client.try_lease(sys.argv[2], ttl="2s", heartbeat="500ms")
print(grant.token, flush=True)
time.sleep(60)
"""


@pytest.mark.by_the_clock
def test_a_holder_that_is_killed_is_followed_within_its_ttl(connect: Any, redis_url: str, name: str, stopwatch: Any) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, redis_url, name], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    token = int(read_line(holder.stdout))
    time.sleep(2.5)  # over its first ttl: it renews
    client = connect(redis_url)
    assert client.try_lease(name).verdict == "busy"
    holder.kill()
    holder.wait()
    killed = stopwatch()
    grant = client.try_lease(name, wait="10s")
    assert grant.token > token
    assert killed.seconds < 2.0 + 0.5


@pytest.mark.parametrize(("heartbeat", "fine"), [("10s", False), ("12s", False), ("9s", False), ("3s", True)])
def test_a_heartbeat_that_is_too_slow_is_refused(connect: Any, redis_url: str, name: str, heartbeat: str, fine: bool) -> None:
    client = connect(redis_url)
    if fine:
        assert client.try_lease(name, ttl="10s", heartbeat=heartbeat)
    else:
        with pytest.raises(rota.ConfigurationError, match="heartbeat"):
            client.try_lease(name, ttl="10s", heartbeat=heartbeat)


# -- DV-23


def in_child(work: Any) -> int:
    """Run in a forked child; return its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = int(work() or 0)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.by_the_clock
def test_a_forked_child_holds_nothing_of_its_parent_and_can_hold_for_itself(connect: Any, redis_url: str, name: str) -> None:
    """L10, also while other threads are in the middle of calls."""
    client = connect(redis_url)
    parents = client.try_lease(name, ttl="2s", heartbeat="500ms")
    busy = threading.Event()
    thread = threading.Thread(target=lambda: [client.try_lease(name) for _ in iter(busy.is_set, True)])
    thread.start()

    def child() -> int:
        if not parents.lost:
            return 1
        grant = client.try_lease(name + "/child", ttl="2s", heartbeat="500ms")
        until = time.monotonic() + 4
        while time.monotonic() < until:
            if grant.lost:
                return 2
            time.sleep(0.05)
        if client.try_lease(name).verdict != "busy":
            return 3
        grant.release()
        return 0

    try:
        assert in_child(child) == 0
        assert in_child(lambda: 0) == 0, "a child that leaves at once"
    finally:
        busy.set()
        thread.join()
    assert not parents.lost
    record, _ = client.driver.read(name, 1.5)
    assert record.token == parents.token
    parents.release()


def test_a_pool_of_forked_workers_may_use_the_client_it_inherits(connect: Any, redis_url: str, name: str) -> None:
    client = connect(redis_url)
    client.try_lease(name)
    global work

    def work(number: int) -> bool:
        with client.lease(f"{name}/{number}", ttl="3s") as grant:
            return grant.token is not None

    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert all(pool.map(work, range(9)))


def test_a_fork_while_somebody_waits_leaves_the_child_free_to_wait(
    connect: Any, redis_url: str, until: Any, waiters: Any, name: str
) -> None:
    client = connect(redis_url)
    grant = client.try_lease(name, ttl="1m")
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(client.try_lease(name, wait="20s")))
    thread.start()
    until(lambda: waiters() == 1)

    def child() -> int:
        return 0 if client.try_lease(name, wait="1s").verdict == "busy" else 1

    assert in_child(child) == 0
    grant.release()
    thread.join(10)
    assert got
    assert got[0]


@pytest.mark.by_the_clock
def test_a_store_that_is_down_for_a_second_loses_nothing(start: Any, connect: Any, until: Any, name: str) -> None:
    server = start(appendonly="yes", appendfsync="always")
    client = connect(server.url())
    grant = client.try_lease(name, ttl="5s", heartbeat="1s")
    server.kill()
    time.sleep(1)
    server.start()
    expires_at = client.driver.read(name, 1.5)[0].expires_at
    until(lambda: client.driver.read(name, 1.5)[0].expires_at > expires_at)  # renewed since
    assert not grant.lost
    grant.release()


def test_threads_renew_and_release_each_others_leases_but_not_successors(connect: Any, redis_url: str, name: str) -> None:
    client = connect(redis_url)
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(client.try_lease(name, ttl="1s", heartbeat="200ms", max_hold="500ms")))
    thread.start()
    thread.join()
    (first,) = made
    second = client.try_lease(name, wait="10s")
    with pytest.raises(rota.LeaseLost):
        first.release()
    second.check()
    assert client.driver.read(name, 1.5)[0].owner == second._owner
    second.release()


GEVENT = """
from gevent import monkey
monkey.patch_all()
import sys, gevent, rota
client = rota.connect(sys.argv[1])
grant = client.try_lease(sys.argv[2], ttl="1s", heartbeat="300ms")
waiters = [gevent.spawn(client.try_lease, sys.argv[2], ttl="1s", heartbeat="300ms", wait=20, max_hold="500ms") for _ in range(2)]
gevent.sleep(2)
grant.check()  # renewed while others waited
grant.release()
for waiter in gevent.joinall(waiters):
    assert waiter.value.token > grant.token
client.close()
"""


@pytest.mark.by_the_clock
def test_greenlets_wait_and_renew_side_by_side(redis_url: str, name: str) -> None:
    pytest.importorskip("gevent", reason="not run: gevent is not installed")
    subprocess.run([sys.executable, "-c", GEVENT, redis_url, name], check=True, timeout=40)
