# SPDX-License-Identifier: MIT
"""What goes wrong with one etcd: restarts, lost data, tokens and certificates, requests that are stuck, a full database."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
import rota
from rota.backend import BUSY, FINISHED, RELEASED, UNUSED, WON, Claim, Override, Renewal, Settlement
from rota.duration import DAY, SECOND
from rota.errors import ConfigurationError, OutcomeUnknown, Unavailable
from rota_etcd import EtcdDriver, _wire
from rota_etcd._clock import monotonic
from rota_etcd._link import Refusal
from rota_etcd._stream import Broken
from servers import HOST, Etcd, EtcdError, wait_until

Drivers = Callable[[str], EtcdDriver]
Connect = Callable[..., rota.Client]
Claims = Callable[..., Claim]


# -- the server goes and comes


def test_a_lease_and_a_watch_outlive_a_restart(name: str, connect: Connect, driver_for: Drivers) -> None:
    """However long that takes on a busy machine: the ttl leaves room, and only a renewal sent after it counts."""
    with Etcd() as server:
        holder, waiter = connect(server.url()), driver_for(server.url())
        grant = holder.try_lease(name, ttl="90s", heartbeat="1s")
        woken: list[bool] = []
        thread = threading.Thread(target=lambda: woken.append(waiter.watch(name, grant._owner, 120.0)))
        thread.start()
        wait_until(lambda: server.metric("etcd_debugging_mvcc_watcher_total") == 1, what="a watch")
        server.restart()
        restarted = monotonic()
        wait_until(lambda: grant._deadline >= restarted + 90 * 0.9, what="a renewal after the restart")
        assert not woken
        grant.release()
        thread.join(30)
        assert woken == [True]


def test_tokens_grow_over_a_restored_snapshot_and_over_wiped_data(name: str, connect: Connect) -> None:
    """L2: whatever became of the data and of etcd's revisions, a token is at least the store's time. Clients need no restart."""
    with Etcd() as server:
        client, tokens = connect(server.url(), timeout=5), []

        def take(by: rota.Client) -> None:
            with by.lease(name) as grant:
                tokens.append(grant.token)

        def revision() -> int:
            return int(server.do("kv/range", key=b"x")["header"]["revision"])

        for then in (server.snapshot(), None):
            for _ in range(3):
                take(client)
            before = revision()
            server.restore(then)
            assert revision() < before
            take(client)
            take(connect(server.url(), timeout=5))
        assert tokens == sorted(set(tokens))


def test_a_grant_that_a_restored_snapshot_does_not_know_is_lost(name: str, connect: Connect) -> None:
    """Its etcd lease is in the snapshot: there it holds the name that this client had before."""
    with Etcd() as server:
        client = connect(server.url(), timeout=5)
        earlier = client.try_lease(f"{name}-earlier", ttl="2s")
        kept = client.try_lease(f"{name}-kept", ttl="30s", heartbeat="500ms")
        snapshot = server.snapshot()
        earlier.release()
        grant = client.try_lease(name, ttl="2s")
        assert client.driver._leases.of(grant._owner).id == int(_lease_of(server, name))
        assert not kept.lost
        server.restore(snapshot)
        wait_until(lambda: grant.lost, 10, "the holder is told")
        won = connect(server.url(), timeout=5).try_lease(name)
        assert won.token > grant.token
        # what the snapshot holds of a holder that had left ends by expiry
        wait_until(lambda: server.get(f"rota/leases/{earlier.name}") is None, 10, "the end of the old lease")


def _lease_of(server: Etcd, name: str) -> str:
    return server.do("kv/range", key=f"rota/leases/{name}".encode())["kvs"][0]["lease"]


def test_a_server_that_is_down_is_unavailable_at_once_and_used_again_without_a_restart(name: str, connect: Connect, stopwatch: Any) -> None:
    with Etcd() as server:
        client = connect(server.url())
        assert client.try_lease(name)
        server.kill()
        began = stopwatch()
        with pytest.raises(Unavailable) as raised:
            client.try_lease(name)
        assert not isinstance(raised.value, OutcomeUnknown)
        assert began.seconds < 1.5
        assert isinstance(raised.value.__cause__, grpc.RpcError)
        server.start()
        wait_until(lambda: client.try_lease(name, on_unavailable="skip").verdict != "unavailable", what="an answer")


@pytest.mark.parametrize("tls", [False, True])
def test_a_server_that_stands_still_while_it_is_connected_to_is_waited_for_as_far_as_the_timeout_allows(
    name: str, driver_for: Drivers, lease: Claims, requests_of: Callable[[EtcdDriver], Counter[str]], tls: bool
) -> None:
    """F1: as one that stands still while it is asked. gRPC gives a connection up after a second, and says the same of it for a while."""
    with Etcd(tls=tls) as server:
        driver = driver_for(server.url())
        sent = requests_of(driver)
        server.pause()
        with ThreadPoolExecutor(1) as threads:
            try:
                claims = threads.submit(driver.claim, lease(name), 60.0)
                wait_until(lambda: sum(sent.values()) > 10 or claims.done(), what="tries")
                assert not claims.done(), "it gave up"
            finally:
                server.resume()
            assert claims.result(60).verdict == WON


def test_a_host_that_takes_no_connections_is_waited_for_as_well(
    driver_for: Drivers, requests_of: Callable[[EtcdDriver], Counter[str]]
) -> None:
    with socket.create_server((HOST, 0), backlog=0) as server, contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as threads:
        for _ in range(3):  # from here on the kernel drops what asks for another connection
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        driver = driver_for(f"etcd://{HOST}:{server.getsockname()[1]}")
        sent = requests_of(driver)
        reads = threads.submit(driver.read, "x", 60.0)
        wait_until(lambda: sum(sent.values()) > 10 or reads.done(), what="tries")
        assert not reads.done(), "it gave up"
        driver.close()
        with pytest.raises(Unavailable):
            reads.result(60)


def test_a_full_database_is_unavailable_and_nothing_else(name: str, driver_for: Drivers, lease: Claims) -> None:
    with Etcd(quota_backend_bytes=str(256 * 1024)) as server:
        driver, held = driver_for(server.url()), lease(name)
        assert driver.claim(held, 5.0).verdict == WON
        with pytest.raises(EtcdError, match="space"):
            for number in range(1000):
                server.do("kv/put", key=b"f%d" % number, value=b"x" * 50_000)
        with pytest.raises(Unavailable, match="space") as raised:
            driver.claim(lease(name + "2"), 5.0)
        assert not isinstance(raised.value, OutcomeUnknown)
        assert list(driver.renew([Renewal(name, held.owner, held.ttl, DAY)], 5.0).held) == [True]
        assert driver.claim(lease(name), 5.0).verdict == BUSY


# -- requests whose fate is unknown (L7)


class StuckTxn:
    """Lets writing transactions of a driver be sent later, or without an answer."""

    def __init__(self, driver: EtcdDriver, *, sends: bool) -> None:
        self.stuck: list[Any] = []
        self.call = driver.link.call

        def call(request: Any, deadline: float, *, writes: bool = False) -> Any:
            if not writes:
                return self.call(request, deadline)
            self.stuck.append(request)
            if sends:
                self.call(request, deadline)
            raise OutcomeUnknown("no answer")

        self.driver = driver
        driver.link.call = call  # type: ignore[method-assign]

    def end(self) -> None:
        self.driver.link.call = self.call  # type: ignore[method-assign]


def test_a_claim_that_is_stuck_can_not_win_once_its_owner_was_finished(
    etcd: Etcd, name: str, driver_for: Drivers, lease: Claims, slot: Claims
) -> None:
    driver = driver_for(etcd.url())
    now = driver.now(5.0)
    assert now is not None
    for claim in (lease(name), slot(name + "s", now[0]), slot(name + "o", now[0], seal=True, overlap=True)):
        stuck = StuckTxn(driver, sends=False)
        with pytest.raises(OutcomeUnknown):
            driver.claim(claim, 5.0)
        stuck.end()
        assert not driver.settle(Settlement(claim.name, claim.owner, UNUSED, DAY), 5.0).applied
        with pytest.raises(Refusal, match="lease not found"):
            driver.link.call(stuck.stuck[0], monotonic() + 5.0)
        assert driver.read(claim.name, 5.0)[0] is None


def test_a_claim_that_was_applied_without_an_answer_is_found_or_finished(etcd: Etcd, name: str, driver_for: Drivers, lease: Claims) -> None:
    driver = driver_for(etcd.url())
    for finish in (False, True):
        claim = lease(f"{name}{finish}")
        stuck = StuckTxn(driver, sends=True)
        with pytest.raises(OutcomeUnknown):
            driver.claim(claim, 5.0)
        stuck.end()
        if finish:
            settled = driver.settle(Settlement(claim.name, claim.owner, UNUSED, DAY), 5.0)
            assert (settled.applied, settled.result) == (True, UNUSED)
            assert driver.claim(claim, 5.0).verdict == FINISHED
        else:
            again = driver.claim(claim, 5.0)
            assert (again.verdict, again.before) == (WON, None)
            assert list(driver.renew([Renewal(claim.name, claim.owner, claim.ttl, DAY)], 5.0).held) == [True]


def test_a_claim_asked_again_before_it_was_applied_counts_its_ttl_anew(etcd: Etcd, name: str, driver_for: Drivers, lease: Claims) -> None:
    """L5: the etcd lease that an earlier try has made is renewed, so the deadline that counts from the second try is right."""
    driver, claim = driver_for(etcd.url()), lease(name, 2)
    stuck = StuckTxn(driver, sends=False)
    with pytest.raises(OutcomeUnknown):
        driver.claim(claim, 5.0)
    stuck.end()
    time.sleep(1.3)
    again = time.monotonic()
    assert driver.claim(claim, 5.0).verdict == WON
    wait_until(lambda: etcd.get(f"rota/leases/{name}") is None, 10, "the end of the lease", every=0.01)
    assert time.monotonic() - again >= 2.0


def test_claims_that_were_not_won_leave_no_etcd_lease(etcd: Etcd, name: str, driver_for: Drivers, lease: Claims) -> None:
    driver, other, made = driver_for(etcd.url()), driver_for(etcd.url()), set[str]()
    for each in (driver, other):
        make = each._leases.make
        each._leases.make = lambda *a, make=make: made.add(str((lease := make(*a)).id)) or lease  # type: ignore[method-assign]
    first = lease(name)
    driver.claim(first, 5.0)
    driver.settle(Settlement(name, first.owner, RELEASED, DAY), 5.0)  # from here on this driver believes the name to be free
    held = lease(name)
    assert other.claim(held, 5.0).verdict == WON
    beaten = lease(name)
    assert driver.claim(beaten, 5.0).verdict == BUSY
    driver.close()
    alive = {each["ID"] for each in etcd.do("lease/leases").get("leases", [])}
    assert alive & made == {str(other._leases.of(held.owner).id)}, "a driver that was closed left an etcd lease"


def test_an_owner_that_is_granted_again_keeps_its_etcd_lease(etcd: Etcd, name: str, driver_for: Drivers, lease: Claims) -> None:
    """L4: once a tombstone has made the store forget the owner, it may be granted again; what was to be revoked is so no more."""
    driver, claim = driver_for(etcd.url()), lease(name)
    for _ in range(3):
        assert driver.claim(claim, 5.0).verdict == WON
        assert driver.settle(Settlement(name, claim.owner, RELEASED, DAY), 5.0).applied
        assert driver.forget(name, 5.0)
    assert driver.claim(claim, 5.0).verdict == WON
    other = lease(name + "o")
    driver.claim(other, 5.0)
    driver.settle(Settlement(other.name, other.owner, RELEASED, DAY), 5.0)
    assert list(driver.renew([Renewal(name, claim.owner, claim.ttl, DAY)], 5.0).held) == [True]
    assert driver.claim(lease(name), 5.0).verdict == BUSY


def test_a_transaction_of_ones_own_can_compare_the_token(etcd: Etcd, name: str, connect: Connect) -> None:
    """The README's fenced write."""
    client = connect(etcd.url())
    grant = client.try_lease(name)

    def write() -> bool:
        key = f"rota/leases/{name}".encode()
        compare = _wire.Compare(target=_wire.Compare.Target.Value("VALUE"), key=key, value=b"%d" % grant.token)
        request = _wire.Txn(compare=[compare], success=[_wire.RequestOp(request_put=_wire.Put(key=b"mine", value=b"x"))])
        return bool(client.driver.link.call(request, monotonic() + 5).succeeded)

    assert write()
    grant.release()
    assert not write()
    assert client.try_lease(name)
    assert not write()


def test_an_override_tells_the_holder_at_once(etcd: Etcd, name: str, connect: Connect) -> None:
    client = connect(etcd.url())
    grant = client.try_lease(name, ttl="1s")
    assert connect(etcd.url()).driver.override(Override(name, RELEASED, "operator", DAY), 5.0).applied
    wait_until(lambda: grant.lost, 2.0, "the holder is told")
    assert etcd.get(f"rota/leases/{name}") is None


def test_a_record_deleted_by_hand_makes_no_two_holders(etcd: Etcd, name: str, connect: Connect) -> None:
    client = connect(etcd.url())
    grant = client.try_lease(name, ttl="1s")
    etcd.do("kv/deleterange", key=f"rota/records/{name}".encode())
    other = connect(etcd.url()).try_lease(name)
    assert other
    assert other.token > grant.token
    wait_until(lambda: grant.lost, 2.0, "the holder is told")


# -- lengths


def test_a_record_that_somebody_else_has_written_is_told_as_such(etcd: Etcd, name: str, connect: Connect) -> None:
    """Also where it looks like ours: no fault of rota's."""
    client = connect(etcd.url(prefix=name))
    for value in (b"theirs", b'{"format": 1, "token": "many"}', b'{"format": 1, "label": true}', b'{"format": 1, "mark": [1]}'):
        etcd.do("kv/put", key=f"{name}/records/{name}".encode(), value=value)
        for ask in (lambda: client.try_lease(name), lambda: client.driver.list("", 5.0), lambda: client.driver.forget(name, 5.0)):
            with pytest.raises(ConfigurationError, match=f"{name}.* (holds no record|is none that rota wrote)"):
                ask()


@pytest.mark.by_the_clock
def test_a_ttl_under_the_servers_floor_is_raised_and_reported(name: str, driver_for: Drivers, connect: Connect, lease: Claims) -> None:
    """With etcd's defaults the shortest lease is 2 s. Less is refused; told to ask for 1 s, rota says what was granted and counts by it."""
    with Etcd(heartbeat_interval="100", election_timeout="1000") as server:
        driver, claim = driver_for(server.url()), lease(name, 1)
        answer = driver.claim(claim, 5.0)
        assert (answer.verdict, answer.ttl) == (WON, 2 * SECOND)
        assert answer.record is not None
        assert answer.record.expires_at - answer.record.granted_at == 2 * SECOND
        for each in (driver, driver_for(server.url())):
            for _ in range(2):
                assert list(each.renew([Renewal(name, claim.owner, claim.ttl, DAY)], 5.0).held) == [True]
        grant = connect(server.url()).try_lease(name + "c", ttl="1s")
        assert 1.5 < grant.remaining() <= 2.0
        assert driver.claim(lease(name + "2", 3), 5.0).ttl == 0
    for url, ttl in (("etcd://h1", "1999ms"), ("etcd://h1/?min_ttl=1", "999ms"), ("etcd://h1/?min_ttl=5", "4s")):
        with pytest.raises(ConfigurationError, match="floor"):
            connect(url).try_lease(name, ttl=ttl)


def test_many_leases_are_renewed_on_one_stream(etcd: Etcd, name: str, driver_for: Drivers, lease: Claims) -> None:
    driver = driver_for(etcd.url())
    claims = [lease(f"{name}{number}") for number in range(40)]
    assert {driver.claim(claim, 5.0).verdict for claim in claims} == {WON}
    streams = []
    stub = driver.link._stub
    driver.link._stub = lambda at, kind: streams.append(kind) or stub(at, kind)  # type: ignore[method-assign]
    lost = lease(name)
    renewals = [Renewal(claim.name, claim.owner, claim.ttl, DAY) for claim in [*claims, lost]]
    assert list(driver.renew(renewals, 5.0).held) == [True] * 40 + [False]
    assert streams.count(_wire.KeepAlive) == 1


def test_a_renewal_that_was_interrupted_takes_no_others_answer(etcd: Etcd, name: str, driver_for: Drivers, lease: Claims) -> None:
    """L3: by the handler of a signal, after it was noted and before it was sent. What is renewed later is not lost."""
    driver = driver_for(etcd.url())
    claims = [lease(f"{name}{number}") for number in range(3)]
    renewals = [Renewal(claim.name, claim.owner, claim.ttl, DAY) for claim in claims if driver.claim(claim, 5.0).verdict == WON]
    assert list(driver.renew(renewals, 5.0).held) == [True] * 3
    stream = driver.link._stream[1]

    class Interrupted:
        def put(self, request: object) -> None:
            stream._requests = requests
            raise KeyboardInterrupt

    requests, stream._requests = stream._requests, Interrupted()
    with pytest.raises(KeyboardInterrupt):
        stream.ask([1])
    for _ in range(3):
        assert list(driver.renew(renewals, 5.0).held) == [True] * 3
    assert driver.link._stream[1] is stream


def test_a_lease_renewed_for_long_says_how_long_its_record_is_kept(
    etcd: Etcd, name: str, driver_for: Drivers, lease: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: renewals leave the record alone, except once a day; here each time."""
    monkeypatch.setattr("rota_etcd.driver.REWRITE", 0.0)
    driver, claim = driver_for(etcd.url()), lease(name)
    won = driver.claim(claim, 5.0).record
    for _ in range(2):
        assert list(driver.renew([Renewal(name, claim.owner, claim.ttl, 60 * DAY)], 5.0).held) == [True]
    kept, _ = driver.read(name, 5.0)
    assert won is not None
    assert kept is not None
    assert kept.keep_until >= won.keep_until + 30 * DAY
    assert (kept.owner, kept.token) == (won.owner, won.token)
    assert etcd.get(f"rota/leases/{name}") == b"%d" % won.token


# -- histories, of which most is in a key of its own


def test_a_history_is_read_as_it_was_written_whoever_wrote_which_part_of_it(
    etcd: Etcd, name: str, driver_for: Drivers, lease: Claims
) -> None:
    """And few settlements write most of it."""
    drivers, history = [driver_for(etcd.url(prefix=name)) for _ in range(3)], b""
    for number in range(60):
        driver, claim = drivers[number // 4 % 2], lease(name)
        answer = driver.claim(claim, 5.0)
        assert (answer.verdict, answer.record and answer.record.history) == (WON, history)
        # as a rule runs are put in front, and the oldest fall off; now and then it is another one, or there is none
        history = {25: b"another", 50: b""}.get(number, b"%d: a run of fifty bytes, or sixty with its number...\n" % number + history)
        history = history if len(history) < 1700 else history[: history.rfind(b"\n", 0, 1365) + 1]
        assert driver.settle(Settlement(name, claim.owner, RELEASED, DAY, history), 5.0).applied
        record, _ = drivers[2].read(name, 5.0)
        assert record is not None
        assert record.history == history
        assert [each.history for each in drivers[2].list("", 5.0)] == [history]
        if number == 24:
            kept = etcd.do("kv/range", key=f"{name}/history/{name}".encode())["kvs"]
            assert int(kept[0]["version"]) <= 6


@pytest.mark.parametrize("by_hand", [False, True])
def test_nothing_is_left_of_the_history_of_a_record_that_is_gone(
    etcd: Etcd, name: str, driver_for: Drivers, lease: Claims, by_hand: bool
) -> None:
    driver, claim = driver_for(etcd.url()), lease(name)
    driver.claim(claim, 5.0)
    driver.settle(Settlement(name, claim.owner, RELEASED, DAY, b"a run\n" * 200), 5.0)
    assert etcd.get(f"rota/history/{name}")
    if by_hand:
        etcd.do("kv/deleterange", key=f"rota/records/{name}".encode())
    else:
        assert driver.forget(name, 5.0)
    record, _ = driver.read(name, 5.0)
    assert record is None or not record.history
    other = driver_for(etcd.url())
    assert other.claim(lease(name), 5.0).verdict == WON
    assert etcd.get(f"rota/history/{name}") is None
    record, _ = driver.read(name, 5.0)
    assert record is not None
    assert record.history == b""


# -- keeping (R1, R3)


def test_a_sweep_looks_at_all_records_in_turn_and_removes_what_it_may(
    name: str, driver_for: Drivers, lease: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Etcd() as server:
        driver = driver_for(server.url())
        names = [f"{name}-{number}" for number in range(5)]
        for each in names:
            claim = lease(each, retention=DAY)
            driver.claim(claim, 5.0)
            if each != names[2]:
                driver.settle(Settlement(each, claim.owner, RELEASED, DAY, b"a run\n" * 200), 5.0)
        assert driver.sweep(100, 5.0) == 0
        # a month later, by the members' clock; the lease is still held
        clock, later = driver._clocks[0], 31 * DAY
        real = clock.interval
        monkeypatch.setattr(clock, "interval", lambda *a: tuple(at + later for at in real(*a)))
        assert [driver.sweep(2, 5.0) for _ in range(4)] == [2, 1, 1, 0]
        assert [record.name for record in driver.list("", 5.0)] == [names[2]]
        assert "kvs" not in server.do("kv/range", key=b"rota/history/", range_end=b"rota/history0")


@pytest.mark.parametrize("value", [b"", b"{}", b"[1]", b'{"format": 2}', b'{"format": 1, "colour": "red"}'])
def test_a_key_that_holds_no_record_is_named(etcd: Etcd, name: str, driver_for: Drivers, lease: Claims, value: bytes) -> None:
    driver = driver_for(etcd.url(prefix=name))
    etcd.do("kv/put", key=f"{name}/records/broken".encode(), value=value)
    for ask in (lambda: driver.read("broken", 5.0), lambda: driver.claim(lease("broken"), 5.0), lambda: driver.list("", 5.0)):
        with pytest.raises(ConfigurationError, match="broken"):
            ask()


# -- users and certificates


def test_a_token_older_than_its_life_is_renewed_at_release(name: str, connect: Connect) -> None:
    with Etcd(password="r/oot", auth_token_ttl="1") as server:
        client = connect(server.url(user="root:r%2Foot"))
        grant = client.try_lease(name, ttl="30s")
        window = client.try_window(name + "w", rota.Every("1h"))
        token = dict(client.driver.link.endpoints.credentials)["token"]

        def is_over() -> bool:
            server._token = token
            try:
                server.do("kv/range", key=b"x")
            except EtcdError as error:
                return "invalid auth token" in str(error)
            return False

        wait_until(is_over, every=3.0)  # its life is counted anew with each use, and looked after once a second
        grant.release()
        window.handled()
        assert dict(client.driver.link.endpoints.credentials)["token"] != token


def test_a_token_of_before_a_restart_is_renewed(name: str, connect: Connect) -> None:
    with Etcd(password="root") as server:
        client = connect(server.url())
        grant = client.try_lease(name)
        server.restart()
        grant.release()
        assert client.try_lease(name)


def test_a_user_where_etcd_asks_for_none_is_let_in(etcd: Etcd, name: str, connect: Connect) -> None:
    with connect(etcd.url(user="app:secret")).lease(name):
        pass


def test_tls_is_verified_and_client_certificates_are_shown(name: str, connect: Connect) -> None:
    with Etcd(tls=True, client_certificates=True) as server:
        client = connect(server.url())
        with client.lease(name), client.window(name + "w", rota.Every("1h")):
            pass
        without = server.url().partition("&cert")[0]

        def says_why() -> bool:
            try:
                connect(without).try_lease(name)
            except ConfigurationError as error:
                assert "cert=" in str(error)
                return True
            except Unavailable:  # the member closes behind its alert, which can overtake that
                return False
            raise AssertionError("it was let in")

        wait_until(says_why)
        with pytest.raises(ConfigurationError, match="TLS"):
            connect(f"etcds://{HOST}:{server.port}/").try_lease(name)


def test_files_that_hold_no_certificate_or_another_ones_key_are_no_outage(name: str, connect: Connect) -> None:
    """F2: nor does it depend on whether the server runs."""
    with Etcd(tls=True, client_certificates=True) as server, Etcd(tls=True) as other:
        url, right = server.url(), f"{server.certificate}"
        text = server.write("text", "no certificate\n")
        for wrong, named in (
            (url.replace(f"cacert={right}.crt", f"cacert={text}"), f"{text} holds"),
            (url.replace(f"&cert={right}.crt", f"&cert={text}"), f"{text} and"),
            (url.replace(f"key={right}.key", f"key={other.certificate}.key"), f"{other.certificate}.key are"),
        ):
            with pytest.raises(ConfigurationError, match=named):
                connect(wrong).try_lease(name)


def test_a_write_that_a_stopping_server_took_is_unknown(etcd: Etcd, name: str, driver_for: Drivers, lease: Callable[..., Claim]) -> None:
    """etcd says so also of what it has proposed: the other members may agree on it, or itself when it is started again."""
    driver = driver_for(etcd.url())
    stub = driver.link._stub

    def stopping(at: int, kind: type[Any]) -> Any:
        def call(request: Any, *more: Any) -> Any:
            response = stub(at, kind)(request, *more)
            if kind is _wire.Txn and request.compare:
                raise Broken(grpc.StatusCode.UNAVAILABLE, "etcdserver: server stopped")
            return response

        return call

    claim = lease(name)
    driver.link._stub = stopping  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        driver.claim(claim, 10.0)
    driver.link._stub = stub  # type: ignore[method-assign]
    assert driver.claim(claim, 10.0).verdict == WON
