# SPDX-License-Identifier: MIT
"""What goes wrong with one server and its clients: answers lost or late, foreign changes, wiped data, forks."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import rota
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.connection import _SESSION_EXPIRED
from rota.backend import BUSY, FINISHED, HANDLED, RELEASED, STALE, WON, Renewal, Settlement, WriteBack
from rota.duration import DAY, SECOND
from rota.errors import ConfigurationError, LeaseLost, OutcomeUnknown, Unavailable
from rota_zookeeper import ZookeeperDriver
from rota_zookeeper._link import Link
from rota_zookeeper._record import pack
from servers import HOST, ZooKeeper

RETENTION = 30 * DAY


# -- one step by the leader's clock


def test_l3_a_renewal_that_arrives_late_changes_nothing_for_any_reader(driver: Any, other: Any, name: str, claim_of: Any, win: Any) -> None:
    """As judged before it is sent, the lease is live; the leader's time when it is applied says otherwise."""
    claim = claim_of(driver, name, ttl=300_000)
    before = win(driver, claim)
    while driver.now(5.0)[0] < before.expires_at:
        time.sleep(0.01)
    assert list(driver.renew([Renewal(name, claim.owner, DAY, RETENTION)], 5.0).held) == [False]
    assert other.read(name, 5.0)[0] == before
    assert other.claim(claim_of(driver, name), 5.0).verdict == WON


def test_l7_a_claim_that_is_applied_too_late_wins_nothing_though_its_sender_is_gone(
    driver: Any, other: Any, server: ZooKeeper, kazoo: Any, name: str, claim_of: Any, win: Any
) -> None:
    """A request that was stuck: it is sent as it was packed, after its latest time, by somebody who looks at no answer."""
    stale = claim_of(driver, name, apply_until=driver.now(5.0)[0] - 1)
    won = win(driver, claim_of(driver, name, ttl=300_000))
    path = driver.verbs.path(name)
    raw = kazoo(server)
    while driver.now(5.0)[0] < won.expires_at:
        time.sleep(0.01)
    raw.set(path, pack("claim", won, stale), version=0)
    assert other.read(name, 5.0)[0] == won
    assert other.claim(stale, 5.0).verdict == STALE


def test_w7_a_slot_that_is_applied_before_its_start_is_not_won(driver: Any, other: Any, name: str, claim_of: Any) -> None:
    """The claimant believes that the leader's clock is an hour ahead of what it says when the claim is applied."""
    claim = claim_of(driver, name)
    now = driver.now(5.0)[0]
    early = claim._replace(kind="window", slot_start=now + 1800 * SECOND, slot_end=now + 5400 * SECOND, not_before=now + 1800 * SECOND)
    driver.verbs._clock = (now + 3600 * SECOND, time.monotonic(), time.monotonic())
    answer = driver.claim(early._replace(apply_until=now + DAY), 5.0)
    assert answer.verdict == "early"
    assert answer.now[1] < now + 60 * SECOND, "it says the leader's own time"
    assert other.read(name, 5.0)[0] is None


def test_dv10_a_claimants_wrong_idea_of_the_time_takes_nothing(driver: Any, other: Any, name: str, claim_of: Any, win: Any) -> None:
    win(other, claim_of(other, name, ttl=60 * SECOND))
    for wrong in (-DAY, -180 * SECOND, 180 * SECOND, DAY):
        driver.verbs._clock = (other.now(5.0)[0] + wrong, time.monotonic(), time.monotonic())
        claim = claim_of(other, name)._replace(apply_until=2**60)
        assert driver.claim(claim, 5.0).verdict == BUSY


@pytest.fixture
def stands_still(driver: Any, monkeypatch: Any) -> Callable[[Callable[[], object]], None]:
    """Let the driver stand still once, when it has seen a node and not decided yet, while something else is done."""
    seen = driver.verbs.seen

    def stand_still(meanwhile: Callable[[], object]) -> None:
        async def seen_long_ago(name: str, later: Any) -> Any:
            known = await seen(name, later)
            driver.verbs.seen = seen
            meanwhile()
            return known

        monkeypatch.setattr(driver.verbs, "seen", seen_long_ago)

    return stand_still


@pytest.mark.parametrize("tried", [False, True])
def test_w2_a_slot_that_was_handled_while_a_claim_looked_is_not_called_late(
    tried: bool, driver: Any, other: Any, name: str, claim_of: Any, win: Any, stands_still: Any, until: Any
) -> None:
    now = driver.now(5.0)[0]
    slot = {"kind": "window", "schedule": "every 1h", "slot_start": now - 60 * SECOND, "slot_end": now + 3540 * SECOND}

    def settle(result: str) -> None:
        held = claim_of(other, name)._replace(**slot)
        win(other, held)
        assert other.settle(Settlement(name, held.owner, result, RETENTION), 5.0).applied

    if tried:
        settle("failed")
    asked = claim_of(driver, name)._replace(**slot, late_from=driver.now(5.0)[0] + SECOND // 4)

    def handled_and_ended() -> None:
        settle("handled")
        until(lambda: other.now(5.0)[0] >= asked.late_from)

    stands_still(handled_and_ended)
    assert driver.claim(asked, 10.0).verdict == HANDLED


def test_l7_a_claim_that_comes_while_its_owner_is_finished_is_not_passed_over(
    driver: Any, other: Any, name: str, claim_of: Any, win: Any, stands_still: Any, until: Any
) -> None:
    """Whoever finishes an owner is done when a settlement is told a time at which no claim of that owner can come any more."""
    win(other, earlier := claim_of(other, name))
    assert other.settle(Settlement(name, earlier.owner, RELEASED, RETENTION), 5.0).applied
    asked = claim_of(other, name, apply_until=driver.now(5.0)[0] + SECOND // 2)

    def claimed_in_time() -> None:
        assert other.claim(asked, 5.0).verdict in (WON, STALE)
        until(lambda: other.now(5.0)[0] > asked.apply_until)

    stands_still(claimed_in_time)
    settled = driver.settle(Settlement(name, asked.owner, "unused", RETENTION), 10.0)
    assert settled.applied or settled.now[0] <= asked.apply_until or other.read(name, 5.0)[0].owner == ""


# -- answers that are lost


def test_l12_no_write_is_told_an_earlier_time_than_was_counted_on_before(driver: Any) -> None:
    driver.now(5.0)
    for _ in range(300):  # many a write comes in the millisecond in which the time was counted on
        counted = driver.verbs.interval()
        assert counted is not None
        assert counted[0] <= driver.now(5.0)[0]


def test_a_session_that_is_lost_as_a_reader_looks_does_not_hide_a_record(
    driver: Any, name: str, claim_of: Any, win: Any, monkeypatch: Any
) -> None:
    record = win(driver, claim_of(driver, name))
    look = Link.ready.fget

    def lost_after(link: Link) -> Any:
        ready = look(link)
        link._prepared = None  # as kazoo's thread does when it learns of the loss
        return ready

    monkeypatch.setattr(Link, "ready", property(lost_after))
    assert driver.read(name, 5.0)[0] == record


class Cut:
    """Drops the connection right after the next write was sent, so that its answer is lost."""

    def __init__(self, driver: ZookeeperDriver, monkeypatch: Any, server: ZooKeeper) -> None:
        driver.now(5.0)
        inner = driver.verbs._write_later
        self.left = 1

        def write_later(client: Any, *arguments: Any) -> Any:
            if not self.left:
                return inner(client, *arguments)
            self.left -= 1
            server.pause()
            inner(client, *arguments)
            deadline = time.monotonic() + 5
            while client._queue and time.monotonic() < deadline:
                time.sleep(0.001)  # kazoo has sent it
            lost = client.handler.async_result()
            lost.set_exception(ConnectionLoss())
            server.resume()
            return lost

        monkeypatch.setattr(driver.verbs, "_write_later", write_later)


def test_l7_a_write_whose_answer_was_lost_is_found_again(
    driver: Any, other: Any, server: ZooKeeper, name: str, monkeypatch: Any, claim_of: Any, win: Any
) -> None:
    claim = claim_of(driver, name)
    Cut(driver, monkeypatch, server)
    assert win(driver, claim).owner == claim.owner
    Cut(driver, monkeypatch, server)
    settled = driver.settle(Settlement(name, claim.owner, RELEASED, RETENTION), 5.0)
    assert (settled.applied, settled.result) == (True, RELEASED)
    Cut(driver, monkeypatch, server)
    assert driver.forget(name, 5.0) is True, "not asked twice"
    assert other.read(name, 5.0)[0].kind == ""


def test_f1_a_write_to_a_server_that_hangs_is_unknown_and_a_read_is_not(
    driver: Any, server: ZooKeeper, name: str, until: Any, claim_of: Any, win: Any, answers: Any, stopwatch: Any
) -> None:
    claim = claim_of(driver, name)
    win(driver, claim)
    server.pause()
    try:
        began = stopwatch()
        with pytest.raises(OutcomeUnknown):
            driver.settle(Settlement(name, claim.owner, RELEASED, RETENTION), 0.3)
        with pytest.raises(Unavailable) as raised:
            driver.read(name, 0.3)
        assert not isinstance(raised.value, OutcomeUnknown)
        assert began.seconds < 3
    finally:
        server.resume()
    until(lambda: answers(driver, name))
    assert driver.settle(Settlement(name, claim.owner, RELEASED, RETENTION), 5.0).applied
    assert driver.claim(claim, 5.0).verdict == FINISHED


def test_a_write_in_flight_when_the_client_is_closed_is_unknown(
    server: ZooKeeper, driver_for: Any, name: str, until: Any, claim_of: Any, win: Any
) -> None:
    driver = driver_for(server.url("/trouble"))
    claim = claim_of(driver, name)
    win(driver, claim)
    raised: list[Exception] = []

    def settle() -> None:
        try:
            driver.settle(Settlement(name, claim.owner, RELEASED, RETENTION), 30.0)
        except Unavailable as error:
            raised.append(error)

    client = driver.verbs.link._client
    server.pause()
    try:
        thread = threading.Thread(target=settle)
        thread.start()
        until(lambda: client._pending)
        driver.close()
        assert not driver.verbs.link._client
    finally:
        server.resume()
    thread.join(20)
    assert [type(error) for error in raised] in ([OutcomeUnknown], []), "never plain Unavailable"


def test_who_waits_is_told_of_a_close_that_overtook_the_answer_with_the_watch(
    server: ZooKeeper, driver: Any, driver_for: Any, name: str, until: Any, claim_of: Any, win: Any, monkeypatch: Any
) -> None:
    """L8: kazoo keeps no watch for an answer that comes while it stops, so no event would tell."""
    claim = claim_of(driver, name)
    win(driver, claim)
    waiting = driver_for(server.url("/drivers"))
    waiting.now(10.0)
    client = waiting.verbs.link._client
    get, asked = client.get_async, threading.Event()

    def get_async(path: str, watch: Any = None) -> Any:
        if watch is not None:
            server.pause()
            asked.set()
        return get(path, watch)

    monkeypatch.setattr(client, "get_async", get_async)
    with ThreadPoolExecutor() as pool:
        told = pool.submit(waiting.watch, name, claim.owner, 30.0)
        try:
            assert asked.wait(20)
            until(lambda: client._pending)
            waiting.close()
            assert client._stopped.is_set()
        finally:
            server.resume()
        with pytest.raises(Unavailable, match="the client is closed"):
            told.result(20)


@pytest.mark.parametrize("verb", ["now", "read", "list"])
def test_f1_a_connection_that_breaks_while_the_store_is_looked_for_is_made_anew_within_the_timeout(
    driver_for: Any, server: ZooKeeper, name: str, verb: str, monkeypatch: Any
) -> None:
    driver = driver_for(server.url("/drivers"))
    is_made, broken = driver.verbs.link._is_made, [ConnectionLoss()]

    async def looked_for(client: Any) -> bool:
        if broken:
            raise broken.pop()
        return await is_made(client)

    monkeypatch.setattr(driver.verbs.link, "_is_made", looked_for)
    arguments = {"now": (), "read": (name,), "list": (name,)}[verb]
    getattr(driver, verb)(*arguments, 5.0)
    assert not broken


def test_a_guess_that_is_old_is_no_loss(driver: Any, other: Any, name: str, claim_of: Any, win: Any) -> None:
    """BadVersion is never `lost` by itself: who wrote in between may have left the owner alone."""
    claim = claim_of(driver, name)._replace(kind="window", slot_start=1, slot_end=None)
    win(driver, claim)
    assert other.record(WriteBack(name, "x", "window", RETENTION, "", "", 0, None), 5.0).applied
    assert list(driver.renew([Renewal(name, claim.owner, DAY, RETENTION)], 5.0).held) == [True]
    assert other.record(WriteBack(name, "x", "window", RETENTION, "", "", 1, None), 5.0).applied
    assert driver.settle(Settlement(name, claim.owner, "handled", RETENTION), 5.0).applied


def test_a_node_that_is_no_record_is_told_as_such(driver: Any, server: ZooKeeper, kazoo: Any, name: str, claim_of: Any, win: Any) -> None:
    win(driver, claim_of(driver, name))
    raw = kazoo(server)
    for content in (b"", b"mine", b"[2]", b'[2,"claim",null,[]]', b'[1,"steal",null,[]]', b'[1,"claim",null,[]]'):
        raw.set(driver.verbs.path(name), content)
        with pytest.raises(ConfigurationError, match="no record"):
            driver.read(name, 5.0)


# -- servers that die, data that go


def test_servers_that_keep_silent_leave_the_first_call_time_for_the_one_that_answers(connect: Any, server: ZooKeeper, name: str) -> None:
    """F1: or a `rota run` would not get beyond them. They take connections, and say nothing; which one is tried first is left to chance."""
    with contextlib.ExitStack() as stack:
        holes = [stack.enter_context(socket.create_server((HOST, 0))).getsockname()[1] for _ in range(2)]
        silent = "".join(f"{HOST}:{port}," for port in holes)
        for number in range(5):
            client = connect(server.url().replace("://", f"://{silent}"))
            assert client.try_lease(f"{name}/{number}")
        assert client.driver.verbs.link._client.handler.attempts == 0, "from here on nobody hurries"


def test_a_lease_outlives_its_session_and_a_killed_server(connect: Any, name: str, until: Any, answers: Any, interrupt: Any) -> None:
    with ZooKeeper() as server:
        client = connect(server.url("/kill", options="session_timeout=1"), timeout=5)
        grant = client.try_lease(name, ttl=30, heartbeat=1)
        session = client.driver.verbs.link._client.client_id
        server.kill()
        server.start()
        # renewals go on, also on a new session
        assert until(lambda: answers(client.driver, name))
        interrupt(client.driver, _SESSION_EXPIRED)
        until(lambda: client.driver.verbs.link._client.client_id not in (None, session))
        before = client.driver.read(name, 5.0)[0]
        until(lambda: client.driver.read(name, 5.0)[0].expires_at > before.expires_at)
        grant.check()
        grant.release()


class Proxy:
    """A way to a server that can be cut: what comes in is taken, and goes nowhere."""

    def __init__(self, server: ZooKeeper) -> None:
        self._server = server
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self.is_cut = self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.create_connection((HOST, self._server.port))
                for ends in ((here, there), (there, here)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError), source, target:
            while data := source.recv(65536):
                if not self.is_cut:
                    target.sendall(data)
            while self.is_cut and not self._is_closed:  # nor does an end
                time.sleep(0.01)

    def close(self) -> None:
        self._listener.close()
        self._is_closed = True


@pytest.mark.by_the_clock
def test_l6_a_holder_that_is_cut_off_knows_before_anybody_can_win(server: ZooKeeper, connect: Any, name: str) -> None:
    proxy = Proxy(server)
    try:
        holder = connect(f"zookeeper://{HOST}:{proxy.port}/cut", timeout=1)
        rival = connect(server.url("/cut"), timeout=5)
        told: list[float] = []
        grant = holder.try_lease(name, ttl=2, on_lost=lambda _: told.append(time.monotonic()))
        proxy.is_cut = True
        taken = rival.try_lease(name, ttl=2, wait=20)
        assert taken
        assert grant.lost
        assert told
        assert told[0] < time.monotonic()
        assert taken.token > grant.token
        with pytest.raises(LeaseLost):
            grant.check()
    finally:
        proxy.close()


def test_a_store_that_is_removed_under_a_client_is_made_anew(
    server: ZooKeeper, driver_for: Any, kazoo: Any, name: str, claim_of: Any, win: Any
) -> None:
    """As by `deleteall` of zkCli.sh, while the session goes on."""
    driver, raw = driver_for(server.url("/removed")), kazoo(server)
    claim = claim_of(driver, name)
    first = win(driver, claim)

    def removed() -> ZookeeperDriver:
        raw.delete("/removed", recursive=True)
        driver.verbs._clock = None  # too old by now
        return driver

    assert removed().read(name, 5.0) == (None, None)
    assert driver.unmade()
    assert win(driver, claim_of(driver, name)).token > first.token
    assert removed().list("", 5.0) == []
    assert driver.settle(Settlement(name, claim.owner, RELEASED, RETENTION), 5.0).applied is False
    assert removed().settle(Settlement(name, claim.owner, RELEASED, RETENTION), 5.0).applied is False
    assert removed().now(5.0)
    assert removed().claim(claim._replace(owner="f" * 32), 5.0).verdict == WON


def test_a_server_that_hangs_is_left_by_those_who_ask_it_again_and_again(server: ZooKeeper, driver_for: Any, until: Any) -> None:
    """As a heartbeat does: what is sent is no sign that the other side lives."""
    ways = [Proxy(server), Proxy(server)]
    try:
        driver = driver_for(f"zookeeper://{','.join(f'{HOST}:{way.port}' for way in ways)}/hung?session_timeout=2")
        driver.now(10.0)
        _, at_hand = driver.verbs.link.ready._connection._socket.getpeername()
        for way in ways:
            way.is_cut = way.port == at_hand

        def answers_at_once() -> bool:
            with contextlib.suppress(Unavailable):
                return bool(driver.now(0.1))
            return False

        until(answers_at_once)
    finally:
        for way in ways:
            way.close()


def test_l2_tokens_grow_over_a_store_that_was_wiped(connect: Any, name: str, until: Any, answers: Any) -> None:
    with ZooKeeper() as server:
        client = connect(server.url("/wiped", options="session_timeout=1"), timeout=5)
        first = client.try_lease(name).token
        server.wipe()
        until(lambda: answers(client.driver, name))
        assert client.driver.read(name, 5.0)[0] is None
        second = client.try_lease(name)
        assert second, "the chroot is made anew"
        assert second.token > first


# -- forks and threads (DV-23)

FORK = """
import multiprocessing, os, sys, time, rota
url, name, how = sys.argv[1:]
client = rota.connect(url, timeout=5)
held = client.try_lease(name, ttl=2)
assert held

def body():
    try:
        held.check()
    except rota.LeaseLost:
        pass
    else:
        raise SystemExit("the child believes that it holds the parent's lease")
    own = client.try_lease(name + "/child", ttl=1)
    assert own, own
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        own.check()
        time.sleep(0.02)
    own.release()

if how == "fork":
    pid = os.fork()
    if not pid:
        try:
            body()
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
else:
    child = multiprocessing.get_context("fork").Process(target=body)
    child.start()
    child.join()
    assert child.exitcode == 0
held.check()
assert client.driver.read(name, 5.0)[0].owner == held._owner
held.release()
client.close()
"""


@pytest.mark.parametrize("how", ["fork", "multiprocessing"])
@pytest.mark.by_the_clock
def test_dv23_a_forked_child_holds_for_itself_and_leaves_the_parent_alone(server: ZooKeeper, program: Any, name: str, how: str) -> None:
    program(FORK, server.url("/fork"), name, how)


@pytest.mark.by_the_clock
def test_dv11_a_job_that_is_longer_than_its_interval_keeps_the_others_busy(connect: Any, server: ZooKeeper, name: str) -> None:
    """Interval 0.5 s, ttl 0.4 s, a body of 2.6 s; the losers touch nothing, and the slots it took are reported as missed."""
    clients = [connect(server.url("/dv11")) for _ in range(3)]
    schedule = rota.Every("500ms")
    held = clients[0].try_window(name, schedule, ttl=0.4)
    ends = time.monotonic() + 2.6
    remaining = []
    while time.monotonic() < ends:
        for client in clients[1:]:
            assert client.try_window(name, schedule, ttl=0.4).verdict == "busy"
        remaining.append(held.remaining())
        assert client.driver.read(name, 5.0)[0].token == held.token
        time.sleep(0.1)
    assert min(remaining) > 0
    held.handled()
    following = clients[1].try_window(name, schedule, ttl=0.4)
    assert following.token > held.token
    assert following.missed.count >= 3
    following.handled()
