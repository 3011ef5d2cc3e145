# SPDX-License-Identifier: MIT
"""An ensemble of three that loses its leader, its quorum, or has a member whose clock is an hour ahead."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import rota
from rota import LeaseLost, Unavailable
from rota.backend import Override
from rota.duration import DAY, SECOND
from servers import ZooKeeperEnsemble, read_line

#: The length of a raced slot, microseconds.
SLOT = 20_000

# Every process goes through the same slots in order, each named by its planned start, and leaves one only when the store calls it handled.
WORKER = """
import json, sys, time, rota
from datetime import UTC, datetime, timedelta
url, name, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
client = rota.connect(url, timeout="1s")
schedule = rota.Every(f"{length // 1000}ms")
print("ready", flush=True)
first, count = json.loads(sys.stdin.readline())
won = []
for number in range(count):
    planned = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=first + number * length)
    while True:
        try:
            window = client.try_window(name, schedule, planned=planned, early=0, ttl="10m", max_late="1h")
        except rota.Unavailable:
            continue
        if window:
            won.append([window.slot.start, window.record.granted_at, window.token])
            try:
                window.handled()
            except rota.Unrecorded:
                client.flush(30)
        elif window.verdict == "handled":
            break
        else:
            assert window.verdict in ("busy", "early"), window
            time.sleep(0.001)
    print(number, flush=True)
client.flush(30)
client.close()
print(json.dumps(won), flush=True)
"""


@contextlib.contextmanager
def racers(urls: list[str], name: str, first: int, slots: int) -> Iterator[Callable[[], list[list[int]]]]:
    """Race for slots in processes; what it gives returns all that were won, once all are done."""
    command = [sys.executable, "-c", WORKER]
    workers = [subprocess.Popen([*command, url, name, str(SLOT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for url in urls]
    try:
        for worker in workers:
            assert read_line(worker.stdout) == "ready\n"
        for worker in workers:
            worker.stdin.write(json.dumps([first, slots]) + "\n")
            worker.stdin.flush()
        for worker in workers:
            while int(read_line(worker.stdout)) < slots // 4:
                pass

        def finish() -> list[list[int]]:
            won = []
            for worker in workers:
                out, _ = worker.communicate(timeout=90)
                assert worker.returncode == 0
                won += json.loads(out.splitlines()[-1])
            return sorted(won)

        yield finish
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def check_each_once(won: list[list[int]], first: int, slots: int) -> None:
    assert [start for start, _, _ in won] == [first + number * SLOT for number in range(slots)], "each exactly once, all of them"
    assert all(granted_at >= start for start, granted_at, _ in won), "none before its start by the leader's clock"
    tokens = [token for _, _, token in won]
    assert tokens == sorted(set(tokens))


class Sink:
    """What is written to: it refuses a token smaller than one it has seen for the name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.seen: dict[str, int] = {}

    def write(self, name: str, token: int) -> bool:
        with self._lock:
            if token < self.seen.get(name, 0):
                return False
            self.seen[name] = token
            return True


def next_slot(now: int) -> int:
    return (now // SLOT + 1) * SLOT


def test_a_killed_leader_makes_no_two_owners_and_loses_no_slot(connect: Any, name: str, until: Any, stopwatch: Any) -> None:
    ttl = 6
    with ZooKeeperEnsemble() as ensemble:
        url = ensemble.url("/kill")
        holder, rival = connect(url, timeout=1), connect(url, timeout=1)
        until(lambda: works(holder, f"{name}/first"))

        def take(number: int) -> Any:
            return until(lambda: holder.try_lease(f"{name}/{number}", ttl=ttl, on_unavailable="skip"))

        grants = [take(number) for number in range(100)]
        sink, stop = Sink(), threading.Event()
        wrong: list[str] = []

        def work() -> None:
            while not stop.is_set():
                for grant in grants:
                    with contextlib.suppress(LeaseLost):
                        grant.check()
                        # refused although it is held: somebody else was granted the name while this grant was live
                        if not sink.write(grant.name, grant.token) and grant.remaining() > 0:
                            wrong.append(grant.name)
                time.sleep(0.01)

        def take_over() -> None:
            while not stop.is_set():
                for grant in grants:
                    with contextlib.suppress(Unavailable, LeaseLost):
                        taken = rival.try_lease(grant.name, ttl=ttl)
                        if taken:
                            sink.write(grant.name, taken.token)
                            taken.release()
                    if stop.is_set():
                        break

        threads = [threading.Thread(target=target, daemon=True) for target in (work, take_over)]
        first = next_slot(holder.driver.now(5.0)[0])
        with racers([url] * 3, f"{name}/slots", first, 120) as finish:
            for thread in threads:
                thread.start()
            ensemble.leader().kill()
            killed = stopwatch()
            for client in (holder, rival):
                until(lambda client=client: works(client, f"{name}/probe"), ttl + 5)
            assert killed.seconds < ttl + 5
            check_each_once(finish(), first, 120)
        held = [grant for grant in grants if not grant.lost]
        for grant in held:  # they go on being renewed
            until(lambda grant=grant: holder.driver.read(grant.name, 5.0)[0].expires_at > holder.driver.now(5.0)[0] + 2 * SECOND)
        stop.set()
        for thread in threads:
            thread.join(30)
        assert not wrong
        assert ensemble.leader()


def works(client: rota.Client, name: str) -> bool:
    try:
        grant = client.try_lease(name)
    except Unavailable:
        return False
    if grant:
        grant.release()
    return True


def test_a_lost_quorum_is_unavailable_in_time_and_comes_back_without_a_restart(connect: Any, name: str, until: Any, stopwatch: Any) -> None:
    with ZooKeeperEnsemble() as ensemble:
        client = connect(ensemble.url("/quorum"), timeout=1)
        grant = until(lambda: client.try_lease(name, ttl="1m", on_unavailable="skip"))
        followers = ensemble.followers()
        lost = stopwatch()
        for follower in followers:
            follower.kill()
        while lost.seconds < 8:
            began = stopwatch()
            with contextlib.suppress(Unavailable):
                verdict = client.try_lease(f"{name}/{lost.seconds}")
                assert lost.seconds < 3, f"{verdict} without a quorum"
            assert began.seconds < 2, "longer than its timeout"
            began.close()
            time.sleep(0.1)
        for follower in followers:
            follower.start(wait=False)
        until(lambda: works(client, f"{name}/after"))
        grant.check()
        grant.release()


def test_a_follower_whose_clock_is_ahead_changes_nothing(connect: Any, name: str) -> None:
    with ZooKeeperEnsemble(ahead=(3600, None, None)) as ensemble:
        ahead = ensemble.members[0]
        assert ensemble.leader() is not ahead
        client = connect(ahead.url("/skew"), timeout=5)
        assert client.driver.now(5.0)  # makes the chroot, which facts does not
        assert abs(client.driver.facts(5.0)["clock_difference"]) < 60
        first = next_slot(client.driver.now(5.0)[0])
        with racers([member.url("/skew") for member in ensemble.members], name, first, 40) as finish:
            check_each_once(finish(), first, 40)


def test_a_leader_whose_clock_is_ahead_is_told_and_its_mark_can_be_set_back(connect: Any, name: str, until: Any) -> None:
    with ZooKeeperEnsemble(ahead=(None, None, 3600)) as ensemble:
        ahead = ensemble.members[2]
        assert ensemble.leader() is ahead
        client = connect(ensemble.url("/skew"), timeout=5)
        assert client.driver.now(5.0)  # as above
        assert 3500 < client.driver.facts(5.0)["clock_difference"] < 3700
        first = next_slot(client.driver.now(5.0)[0])
        with racers([member.url("/skew") for member in ensemble.members], name, first, 40) as finish:
            check_each_once(finish(), first, 40)  # by the leader's clock

        schedule, window = rota.Every("10m"), f"{name}/window"
        with client.window(window, schedule) as grant:
            mark = grant.slot.start
        with client.lease(f"{name}/tokens") as before:
            pass
        lease = client.try_lease(f"{name}/lease", ttl=30, heartbeat=1)
        ahead.kill()
        until(lambda: works(client, f"{name}/probe"))
        assert abs(client.driver.facts(5.0)["clock_difference"]) < 60
        # the lease was to end an hour later by the new leader's clock; its next renewal sets that right
        until(lambda: client.driver.read(lease.name, 5.0)[0].expires_at < client.driver.now(5.0)[0] + 60 * SECOND)
        lease.check()
        with client.lease(f"{name}/tokens") as after:
            assert after.token > before.token  # L2
        refused = client.try_window(window, schedule)
        assert (refused.verdict, refused.mark_ahead) == ("handled", True)
        back = client.driver.now(5.0)[0] - 3600 * SECOND
        changed = client.driver.override(Override(window, "mark", "test: the clock ran ahead", 30 * DAY, back), 5.0)
        assert changed.applied
        with client.window(window, schedule) as again:
            assert again.slot.start < mark
            assert again.token > grant.token


@pytest.fixture(autouse=True)
def _quiet(caplog: Any) -> None:
    caplog.set_level("ERROR", "rota_zookeeper.kazoo")
