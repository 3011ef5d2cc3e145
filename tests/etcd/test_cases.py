# SPDX-License-Identifier: MIT
"""Cases from other projects' trackers, on etcd: DV-11, DV-20, DV-21, DV-23."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest
import rota
from rota.backend import BUSY, RELEASED, WON, Claim, Renewal, Settlement
from rota.duration import DAY, SECOND
from rota.errors import ConfigurationError, LeaseLost, Unavailable
from rota_etcd import EtcdDriver
from rota_etcd._fork_gate import ForkGate, gate
from servers import HOST, Etcd, EtcdEnsemble, EtcdError, free_port, wait_until

Drivers = Callable[[str], EtcdDriver]


def test_dv20_each_name_is_its_own_or_refused_at_once(etcd: Etcd, name: str, connect: Callable[..., rota.Client]) -> None:
    client = connect(etcd.url(prefix=name))
    names = ["job", "/job", "job/", "a", "a/b", "a//b", "..", ".", "é", "e\u0301", "x" * 255]
    grants = {}
    for each in names:
        grants[each] = client.try_lease(each)
        assert grants[each], f"{each!r} is another name's"
    assert len({grant.record.token for grant in grants.values()}) == len(names)
    for refused in ("", "a\0b", "x" * 300):
        with pytest.raises(ConfigurationError):
            client.try_lease(refused)
    assert sorted(record.name for record in client.driver.list("", 5.0)) == sorted(names, key=str.encode)
    assert client.driver.forget("a", 5.0)
    assert client.driver.read("a/b", 5.0)[0].owner, "a/b lives inside a"
    assert etcd.get(f"{name}/leases/a") is None
    assert etcd.get(f"{name}/leases/a/b") is not None


def test_dv20_a_user_needs_rights_below_the_prefix_only(name: str, connect: Callable[..., rota.Client]) -> None:
    with Etcd(password="root") as server:
        server.do("auth/role/add", name="coord")
        end = b"apps/coord0"
        permission = {"permType": 2, "key": b64encode(b"apps/coord/").decode(), "range_end": b64encode(end).decode()}
        server.do("auth/role/grant", name="coord", perm=permission)
        server.do("auth/user/add", name="app", password="s3cr/et")
        server.do("auth/user/grant", user="app", role="coord")
        user = "app:s3cr%2Fet"
        client = connect(server.url(prefix="apps/coord", user=user))
        with client.lease(name), client.window(name + "w", rota.Every("1h")):
            pass
        assert client.driver.facts(5.0)["version"]
        with pytest.raises(ConfigurationError, match="permission denied.*prefix") as raised:
            connect(server.url(prefix="other", user=user)).try_lease(name)
        with pytest.raises(ConfigurationError, match="authentication failed") as wrong:
            connect(server.url(prefix="apps/coord", user="app:guess")).try_lease(name)
        with pytest.raises(ConfigurationError, match="wants a user"):
            connect(f"etcd://{HOST}:{server.port}").try_lease(name)
        assert "s3cr" not in str(raised.value)
        assert "guess" not in str(wrong.value)


def test_dv21_a_keepalive_without_a_ttl_means_lost(etcd: Etcd, name: str, driver_for: Drivers, lease: Callable[..., Claim]) -> None:
    """DV-21 a: etcd answers a late keepalive with an id and no TTL, and refuses writes on such a lease."""
    driver, claim = driver_for(etcd.url()), lease(name, 2)
    assert driver.claim(claim, 5.0).verdict == WON
    number = driver._leases.of(claim.owner).id
    wait_until(lambda: etcd.do("lease/timetolive", ID=number).get("TTL") == "-1", what="the lease is gone")
    assert "TTL" not in etcd.do("lease/keepalive", ID=number)["result"]
    never = lease(name)
    renewals = [Renewal(name, each.owner, each.ttl, DAY) for each in (claim, never)]
    assert list(driver.renew(renewals, 5.0).held) == [False, False]
    with pytest.raises(EtcdError, match="lease not found"):
        etcd.do("kv/put", key=b"x", value=b"", lease=number)


@pytest.mark.by_the_clock
def test_dv21_a_lease_outlives_two_restarts_of_the_leader(name: str, connect: Callable[..., rota.Client]) -> None:
    """DV-21 b."""
    with EtcdEnsemble() as ensemble:
        client = connect(ensemble.url())
        with client.lease(name, ttl="3s") as grant:
            renewed = grant._deadline
            for _ in range(2):
                leader = ensemble.leader()
                assert leader is not None
                leader.stop()
                leader.start()
                ensemble.wait_whole()
                since = grant._deadline
                wait_until(lambda since=since: grant._deadline > since, what="a renewal after the restart")
                grant.check()
            assert grant._deadline > renewed
            assert ensemble.members[0].get(f"rota/leases/{name}") == b"%d" % grant.token


@pytest.mark.parametrize("how", ["drops packets", "takes connections and is silent", "is closed"])
@pytest.mark.by_the_clock
def test_dv21_an_endpoint_that_is_not_there_costs_a_part_of_the_timeout(
    etcd: Etcd, name: str, connect: Callable[..., rota.Client], how: str, stopwatch: Any
) -> None:
    """DV-21 c: acquired within the timeout, through the second endpoint."""
    port, sockets = free_port(), [socket.socket() for _ in range(3)]
    if how != "is closed":
        sockets[0].bind((HOST, port))
        sockets[0].listen(0)
    if how == "drops packets":
        for filler in sockets[1:]:  # with its queue full, Linux drops what comes
            filler.setblocking(False)
            filler.connect_ex((HOST, port))
    client = connect(f"etcd://{HOST}:{port},{HOST}:{etcd.port}", timeout=1.5)
    first = stopwatch()
    with client.lease(name):
        assert first.seconds < 1.5 + 1.0
    second = stopwatch()
    with client.lease(name):
        assert second.seconds < 0.7, "the endpoint that works is not kept"
    for each in sockets:
        each.close()


@pytest.mark.by_the_clock
def test_dv11_work_that_takes_longer_than_its_interval_and_its_ttl(etcd: Etcd, name: str, connect: Callable[..., rota.Client]) -> None:
    """DV-11, a minute made a second and a half: the others are refused as busy, and touch nothing of the holder's."""
    schedule = rota.Every("1500ms")
    holder, others = connect(etcd.url()), [connect(etcd.url()) for _ in range(2)]
    grant = holder.try_window(name, schedule, ttl="1s")
    first = grant.slot.start
    verdicts = []
    while (now := holder.driver.now(5.0)[0]) < first + 3 * 1_500_000:
        for other in others:
            refused = other.try_window(name, schedule, ttl="1s")
            verdicts.append(refused.verdict)
            assert refused.record.token == grant.token
        grant.check()
        time.sleep(0.2)
    assert set(verdicts) == {BUSY}
    grant.handled()
    later = others[0].try_window(name, schedule, ttl="1s")
    assert later
    assert later.missed.count == (later.slot.start - first) // 1_500_000 - 1
    assert later.token > grant.token
    assert now


@pytest.mark.by_the_clock
def test_dv23_a_forked_child_holds_a_lease_of_its_own_for_longer_than_its_ttl(
    etcd: Etcd, name: str, connect: Callable[..., rota.Client]
) -> None:
    client = connect(etcd.url())
    with client.lease(name, ttl="1s") as grant:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            said = b"?"
            try:
                mine = client.try_lease(f"{name}-child", ttl="1s")
                time.sleep(2.5)
                mine.check()
                said = b"held" if grant.lost else b"holds its parent's lease"
            except BaseException as error:
                said = repr(error).encode()
            finally:
                os.write(writer, said)
                os._exit(0)
        os.close(writer)
        try:
            assert os.read(reader, 1000) == b"held"
        finally:
            os.close(reader)
            os.waitpid(child, 0)
        grant.check()
        assert etcd.get(f"rota/leases/{name}") == b"%d" % grant.token


@pytest.mark.by_the_clock
def test_a_fork_waits_for_the_call_under_way_and_lets_none_begin(name: str, driver_for: Drivers, lease: Callable[..., Claim]) -> None:
    """L10: gRPC begins anew in a child only where nothing is under way; else the child may read what its parent is told."""
    with Etcd() as server:
        driver, told = driver_for(server.url()), dict[str, Exception]()
        assert driver.claim(lease(name), 5.0).verdict == WON

        def claim(what: str, known: Callable[[], object], seconds: float) -> None:
            wait_until(known, what=what)
            try:
                driver.claim(lease(f"{name}-{what}"), seconds)
            except Unavailable as error:
                told[what] = error

        server.pause()
        began = time.monotonic()
        threads = [
            threading.Thread(target=claim, args=("under way", lambda: True, 1.5)),
            threading.Thread(target=claim, args=("begun meanwhile", lambda: gate.forks, 0.3)),
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: gate.others_call(threading.get_ident()), what="a call under way")
        child = os.fork()
        if not child:
            os._exit(bool(gate.forks or gate.others_call(threading.get_ident())))
        forked = time.monotonic()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for thread in threads:
            thread.join(20)
        server.resume()
        assert forked - began >= 1.45  # the call's own time, as exact as gRPC keeps it
        assert "Deadline Exceeded" in str(told["under way"])
        assert "about to fork" in str(told["begun meanwhile"])
        assert driver.claim(lease(f"{name}-later"), 10.0).verdict == WON


def test_dv23_no_stream_is_open_at_the_instant_of_a_fork_and_all_go_on_after_it(
    etcd: Etcd, name: str, driver_for: Drivers, lease: Callable[..., Claim]
) -> None:
    """L10: gRPC may abort the child of a process in which a stream is open; here of keepalives, and of somebody who waits for a name."""
    driver, claim, deleted = driver_for(etcd.url()), lease(name), list[bool]()
    renewal = Renewal(name, claim.owner, claim.ttl, DAY)
    waiter = threading.Thread(target=lambda: deleted.append(driver.watch(name, claim.owner, 20.0)))

    def renewed() -> bool:
        return list(driver.renew([renewal], 5.0).held) == [True]

    assert driver.claim(claim, 5.0).verdict == WON
    assert renewed()
    waiter.start()
    wait_until(lambda: len(gate.streams) >= 2, what="both streams")
    gate.before()
    try:
        assert not gate.streams
        renewer = threading.Thread(target=renewed)
        renewer.start()
        wait_until(lambda: _waits_for_a_fork(renewer), what="a renewal that waits")
        assert not gate.streams
    finally:
        gate.in_parent()
    renewer.join(10)
    assert renewed()
    wait_until(lambda: len(gate.streams) >= 2, what="both streams again")
    assert driver.settle(Settlement(name, claim.owner, RELEASED, DAY), 5.0).applied
    waiter.join(20)
    assert deleted == [True]


def _waits_for_a_fork(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    return any(frame.f_code is ForkGate.wait.__code__ for frame, _ in traceback.walk_stack(frame))


FORKS = """
import os, sys, threading, time
import rota

client, over, ended = rota.connect(sys.argv[1], timeout=10), threading.Event(), []

def hold(number):
    while not over.wait(0.02):
        with client.lease(f"{sys.argv[2]}-{number}"):
            pass

threads = [threading.Thread(target=hold, args=(number,)) for number in range(3)]
with client.lease(sys.argv[2]):
    for thread in threads:
        thread.start()
    for number in range(20):
        time.sleep(0.1)  # the streams that the last fork ended are open again
        child = os.fork()
        if not child:
            for _ in range(2):
                with client.lease(f"{sys.argv[2]}-child-{number}"):
                    pass
            os._exit(0)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
over.set()
for thread in threads:
    thread.join()
print(ended)
"""


def test_dv23_children_of_a_process_whose_threads_use_the_client_use_it_too(etcd: Etcd, name: str) -> None:
    """L10: a third of them was aborted inside gRPC, whose threads polled for the parent's streams."""
    ended = subprocess.run([sys.executable, "-c", FORKS, etcd.url(), name], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.strip() == str([0] * 20), ended.stderr[-3000:]


def test_dv23_a_call_that_has_waited_for_a_fork_waits_for_the_next_one_too(
    etcd: Etcd, name: str, driver_for: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L10: it begins when the call is about to go on, and still seems to wait."""
    driver, wait, reader = driver_for(etcd.url()), gate.wait, threading.Thread(target=lambda: driver.read(name, 10.0))
    waits, is_over, next_one = threading.Semaphore(0), threading.Event(), threading.Event()

    def waiting(deadline: float) -> bool:
        waits.release()
        again = wait(deadline)
        is_over.set()
        assert next_one.wait(10)
        return again

    monkeypatch.setattr("rota_etcd._fork_gate.LONGEST_WAIT", 0.0)  # of what this test puts in its place the gate knows nothing
    monkeypatch.setattr(gate, "wait", waiting)
    try:
        gate.before()
        reader.start()
        assert waits.acquire(timeout=10)
        gate.in_parent()
        assert is_over.wait(10)
        gate.before()
        next_one.set()
        assert waits.acquire(timeout=10)
    finally:
        gate.in_parent()
        next_one.set()
        reader.join(10)


def test_dv23_one_thread_acquires_another_renews_a_third_releases(
    etcd: Etcd, name: str, driver_for: Drivers, lease: Callable[..., Claim]
) -> None:
    driver, claim = driver_for(etcd.url()), lease(name)
    answers: list[object] = []

    def thread(what: Callable[[], object]) -> None:
        runner = threading.Thread(target=lambda: answers.append(what()))
        runner.start()
        runner.join()

    thread(lambda: driver.claim(claim, 5.0).verdict)
    thread(lambda: list(driver.renew([Renewal(name, claim.owner, 30 * SECOND, DAY)], 5.0).held))
    thread(lambda: driver.settle(Settlement(name, claim.owner, RELEASED, DAY), 5.0).applied)
    assert answers == [WON, [True], True]


def test_a_lease_that_an_operator_revokes_in_etcd_itself_is_lost(etcd: Etcd, name: str, connect: Callable[..., rota.Client]) -> None:
    client = connect(etcd.url())
    grant = client.try_lease(name, ttl="1s")
    etcd.do("lease/revoke", ID=client.driver._leases.of(grant._owner).id)
    wait_until(lambda: grant.lost, 5.0, "the holder is told")
    with pytest.raises(LeaseLost):
        grant.check()
    assert client.try_lease(name)
