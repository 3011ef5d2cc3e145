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
from rota.backend import Renewal
from rota.duration import DAY, SECOND

# -- DV-10

# a host whose wall clock is off: every way in which Python tells it, before rota is imported
SKEWED = """
import sys, time, datetime
offset = float(sys.argv[1])
real, real_ns, Real = time.time, time.time_ns, datetime.datetime
time.time = lambda: real() + offset
time.time_ns = lambda: real_ns() + int(offset * 1e9)
class Skewed(Real):
    @classmethod
    def now(cls, tz=None): return Real.fromtimestamp(time.time(), tz)
datetime.datetime = Skewed
import rota
client = rota.connect(sys.argv[2])
window = client.try_window(sys.argv[3] + "/w", rota.Every("5m"))
slot = window.slot
if window: window.handled()
def says(name):
    verdict = client.try_lease(name, ttl="2s")
    return "won" if verdict else verdict.verdict
print(says(sys.argv[3]), "won" if window else window.verdict, slot.start, flush=True)
input()
print(says(sys.argv[3]), flush=True)
"""


@pytest.mark.parametrize("offset", [180, -180, 86_400, -86_400])
def test_a_wall_clock_that_is_off_decides_nothing(connect: Any, redis_url: str, name: str, offset: int) -> None:
    """Held by the store's time until the very end of the ttl, and free right after it; the slot is the store's."""
    client = connect(redis_url)
    driver = client.driver
    from rota.backend import Claim

    claim = Claim(name, "1" * 32, "", "lease", 2 * SECOND, 2**60, DAY)
    slot = rota.Every("5m").slot(driver.now(1.5)[0])
    node = subprocess.Popen(
        [sys.executable, "-c", SKEWED, str(offset), redis_url, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    driver.claim(claim, 1.5)
    assert node.stdout is not None
    lease, window, start = node.stdout.readline().split()
    if lease == "won":  # it was slow to start: hold anew and ask again is not needed, the slot is what matters then
        pytest.fail("the process took longer than the ttl to start")
    assert (lease, window) == ("busy", "won")
    assert int(start) in (slot.start, slot.end), "a boundary may have passed meanwhile"
    expires_at = driver.read(name, 1.5)[0].expires_at
    while driver.now(1.5)[0] < expires_at - 50_000:
        time.sleep(0.005)
    assert client.try_lease(name).verdict == "busy"
    while driver.now(1.5)[0] < expires_at:
        time.sleep(0.001)
    out, _ = node.communicate("\n", timeout=20)
    assert out.strip() == "won"
    assert client.try_window(name + "/w", rota.Every("5m")).verdict in ("handled", "won")


# -- DV-11


def test_a_body_longer_than_its_interval_keeps_the_others_out(connect: Any, redis_url: str, name: str) -> None:
    """Slots of 1 s, ttl 0.9 s with heartbeat, body 4.2 s: busy, not handled, and the losers' clean-up touches nothing."""
    every = rota.Every("1s")
    clients = [connect(redis_url) for _ in range(3)]
    window = None
    while not window:
        window = clients[0].try_window(name, every, ttl="900ms", heartbeat="250ms")
    token, remaining, seen = window.token, [], []
    until = time.monotonic() + 4.2
    while time.monotonic() < until:
        for client in clients[1:]:
            refused = client.try_window(name, every, ttl="900ms", heartbeat="250ms")
            seen.append(refused.verdict)
            assert refused.record.token == token
        record, now = clients[0].driver.read(name, 1.5)
        remaining.append(record.expires_at - now[0])
        time.sleep(0.2)
    assert set(seen) == {"busy"}
    assert min(remaining) > 400_000, "renewed in time throughout"
    assert not window.lost
    window.handled()
    following = None
    while not following:
        following = clients[2].try_window(name, every, ttl="900ms")
    assert following.token > token
    assert following.missed.count >= 3


# -- DV-15


def test_renewing_sets_the_remaining_time_and_never_adds(driver_for: Any, redis_url: str, name: str) -> None:
    """L3: a hundred times."""
    from rota.backend import Claim

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


def test_a_holder_that_is_killed_is_followed_within_its_ttl(connect: Any, redis_url: str, name: str) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, redis_url, name], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    token = int(holder.stdout.readline())
    time.sleep(2.5)  # over its first ttl: it renews
    client = connect(redis_url)
    assert client.try_lease(name).verdict == "busy"
    holder.kill()
    holder.wait()
    killed = time.monotonic()
    grant = client.try_lease(name, wait="10s")
    assert grant.token > token
    assert time.monotonic() - killed < 2.0 + 0.5


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


def test_a_fork_while_somebody_waits_leaves_the_child_free_to_wait(connect: Any, redis_url: str, name: str) -> None:
    client = connect(redis_url)
    grant = client.try_lease(name, ttl="1m")
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(client.try_lease(name, wait="20s")))
    thread.start()
    time.sleep(0.3)

    def child() -> int:
        return 0 if client.try_lease(name, wait="1s").verdict == "busy" else 1

    assert in_child(child) == 0
    grant.release()
    thread.join(10)
    assert got
    assert got[0]


def test_a_store_that_is_down_for_a_second_loses_nothing(start: Any, connect: Any, name: str) -> None:
    server = start(appendonly="yes", appendfsync="always")
    client = connect(server.url())
    grant = client.try_lease(name, ttl="5s", heartbeat="1s")
    server.kill()
    time.sleep(1)
    server.start()
    until = time.monotonic() + 7
    while time.monotonic() < until:
        assert not grant.lost
        time.sleep(0.05)
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
