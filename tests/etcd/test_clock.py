# SPDX-License-Identifier: MIT
"""The members' clock: an interval that holds it, whatever this host takes for the time of day; and life without it (L12, W5, DV-10)."""

from __future__ import annotations

import http.server
import itertools
import json
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import rota
from rota import Every
from rota.backend import BUSY, EARLY, HANDLED, LATE, WON, Claim, Renewal, Settlement
from rota.duration import DAY, HOUR, SECOND
from rota.errors import ConfigurationError, Unavailable
from rota_etcd import EtcdDriver, _clock
from rota_etcd._clock import BOUND, FRESH, MemberClock, monotonic
from servers import HOST, Etcd, free_port, skew_program, wait_until

Drivers = Callable[[str], EtcdDriver]
Clocks = Callable[[int], MemberClock]


@pytest.fixture
def clock_at() -> Iterator[Clocks]:
    """Make the clock of a member that has asked nobody yet, by its port; its connection is closed with the test."""
    made: list[MemberClock] = []

    def make(port: int) -> MemberClock:
        made.append(MemberClock(HOST, port, None))
        made[-1]._round_trip = 0.02  # a slow first answer would be enough else to be content with little
        return made[-1]

    yield make
    for clock in made:
        for connection in clock._idle:
            connection.close()


@pytest.fixture(scope="module")
def skewed() -> Iterator[Etcd]:
    with Etcd(skewed=True) as server:
        yield server


@pytest.mark.by_the_clock
def test_the_interval_holds_the_members_time_also_after_steps(skewed: Etcd, monkeypatch: pytest.MonkeyPatch, clock_at: Clocks) -> None:
    monkeypatch.setattr(_clock, "PATIENCE", 5.0)  # a member that is busy for half a second need not be noticed to have stepped
    clock = clock_at(skewed.port)
    for offset in (0, -7, 3600):
        skewed.skew(offset)
        for again in range(30):
            if again == 0:
                time.sleep(FRESH)  # within it a step need not be noticed
            before = time.time_ns() // 1000 + offset * SECOND
            low, high = clock.interval(monotonic() + 20, sharp=again % 10 == 0) or (0, 0)
            after = time.time_ns() // 1000 + offset * SECOND
            assert low <= after, "the interval is ahead of the member's clock"
            assert before <= high, "the interval is behind the member's clock"
            assert high - low <= BOUND * SECOND
    skewed.skew(0)


@pytest.mark.parametrize("tried", [False, True])
def test_a_slot_that_was_handled_while_a_claim_looked_is_not_called_late(
    tried: bool, etcd: Etcd, name: str, driver_for: Drivers, slot: Callable[..., Claim], monkeypatch: pytest.MonkeyPatch
) -> None:
    """W2: handled comes before late, and it was handled before it was late; the claim stood still behind its look at the record."""
    driver, other = driver_for(etcd.url()), driver_for(etcd.url())

    def now() -> int:
        known = driver.now(5.0)
        assert known is not None
        return known[0]

    start = now() - 60 * SECOND

    def settle(result: str) -> None:
        held = slot(name, start)
        assert other.claim(held, 5.0).verdict == WON
        assert other.settle(Settlement(name, held.owner, result, DAY), 5.0).applied

    if tried:
        settle("failed")
    asked = slot(name, start, late_from=now() + SECOND // 4)
    look = driver.names.look

    def look_long_ago(*arguments: Any) -> Any:
        looked = look(*arguments)
        settle("handled")
        wait_until(lambda: now() >= asked.late_from, 10, "the end of the slot")
        return looked

    monkeypatch.setattr(driver.names, "look", look_long_ago)
    assert driver.claim(asked, 20.0).verdict == HANDLED
    assert other.claim(slot(f"{name}-late", start, late_from=asked.late_from), 5.0).verdict == LATE


@pytest.mark.by_the_clock
def test_a_wait_for_the_turn_of_a_second_keeps_to_the_deadline(skewed: Etcd, clock_at: Clocks) -> None:
    clock = clock_at(skewed.port)
    time.sleep(-time.time() % 1)  # until the next turn is a second ahead
    wait_until(lambda: clock.interval(monotonic() + 5, sharp=False), what="the time, to within a second")
    began = monotonic()
    low, high = clock.interval(began + 0.05, sharp=True) or (0, 0)
    assert monotonic() - began < 0.5
    assert low <= time.time_ns() // 1000 <= high


@pytest.mark.parametrize("sharp", [False, True])
def test_who_knows_no_time_waits_for_the_thread_that_asks(
    skewed: Etcd, sharp: bool, monkeypatch: pytest.MonkeyPatch, clock_at: Clocks
) -> None:
    """A process whose threads begin with windows: `None` would say that none can be decided here."""
    monkeypatch.setattr(_clock, "PATIENCE", 20.0)  # however busy this machine is
    clock = clock_at(skewed.port)
    begin = threading.Barrier(20)

    def ask(_: int) -> object:
        begin.wait(20)
        return clock.interval(monotonic() + 20, sharp=sharp)

    with ThreadPoolExecutor(20) as threads:
        assert None not in threads.map(ask, range(20))


def test_the_first_windows_of_a_process_may_be_claimed_by_many_threads_at_once(etcd: Etcd) -> None:
    _clock._known.clear()  # as in a process that has just begun
    begin, name = threading.Barrier(20), f"first-{uuid.uuid4().hex}"
    with rota.connect(etcd.url(), timeout=20) as client, ThreadPoolExecutor(20) as threads:

        def claim(_: int) -> rota.Grant | rota.Refused:
            begin.wait(20)
            return client.try_window(name, Every("1d"))

        verdicts = list(threads.map(claim, range(20)))
        assert sorted(verdict.verdict for verdict in verdicts) == [BUSY] * 19 + [WON]


CHILD = """
import json, sys, time
import rota
from rota import Every
from rota.backend import Claim
from rota_etcd import EtcdBackend

url, claims = sys.argv[1], json.loads(sys.argv[2])
driver = EtcdBackend().driver(rota.url.parse(url))
answers = [driver.claim(Claim(*claim), 10.0) for claim in claims]
print(json.dumps([time.time(), driver.now(10.0)[0], [answer.verdict for answer in answers]]))
"""


@pytest.mark.parametrize("off", [180, -86400])
def test_dv10_the_local_time_of_day_enters_no_decision(
    etcd: Etcd, name: str, driver_for: Drivers, slot: Callable[..., Claim], tmp_path: Path, off: int
) -> None:
    """DV-10: a client whose clock is off by minutes or days sees what all others see."""
    driver = driver_for(etcd.url())
    now = driver.now(10.0)
    assert now is not None
    begun = now[0] - now[0] % HOUR
    held = slot(name, begun)
    assert driver.claim(held, 10.0).verdict == WON
    done = slot(f"{name}-done", begun)
    assert driver.claim(done, 10.0).verdict == WON
    assert driver.settle(Settlement(done.name, done.owner, HANDLED, DAY), 10.0).applied
    claims = [slot(name, begun), slot(name, begun + 2 * HOUR), slot(done.name, begun), slot(f"{name}-new", begun)]
    (tmp_path / "off").write_text(str(off))
    command = [str(skew_program()), str(tmp_path / "off"), sys.executable, "-c", CHILD, etcd.url(), json.dumps(claims)]
    told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=60).stdout)
    assert abs(told[0] - time.time() - off) < 60, "the child's clock was not off"
    assert 0 <= told[1] - now[0] < 60 * SECOND
    assert told[2] == [BUSY, EARLY, HANDLED, WON]
    record, _ = driver.read(f"{name}-new", 10.0)
    assert record is not None
    assert 0 <= record.granted_at - now[0] < 60 * SECOND


def test_without_http_leases_work_and_windows_say_why_not(
    etcd: Etcd, name: str, driver_for: Drivers, connect: Callable[..., rota.Client], lease: Callable[..., Claim]
) -> None:
    url = etcd.url(f"http_port={free_port()}")
    driver = driver_for(url)
    assert driver.now(5.0) is None
    first = lease(name)
    won = driver.claim(first, 5.0)
    assert (won.verdict, won.now) == (WON, None)
    assert driver.claim(lease(name), 5.0).verdict == BUSY
    assert list(driver.renew([Renewal(name, first.owner, first.ttl, DAY)], 5.0).held) == [True]
    assert driver.settle(Settlement(name, first.owner, "released", DAY), 5.0).applied
    second = driver.claim(lease(name), 5.0)
    assert second.record is not None
    assert won.record is not None
    assert second.record.token > won.record.token
    client = connect(url)
    with client.lease(f"{name}-client") as grant:
        grant.check()
    with pytest.raises(ConfigurationError, match="time"):
        client.try_window(name + "w", rota.Every("1h"))
    with pytest.raises(ConfigurationError, match="http_port=.*clock=local"):
        driver.claim(lease(name + "w", kind="window", slot_start=0, slot_end=None), 5.0)
    assert driver.sweep(100, 5.0) == 0, "nothing may be removed by a clock that nobody knows"


def test_http_that_is_black_holed_is_told_as_such_within_the_timeout(
    etcd: Etcd, name: str, connect: Callable[..., rota.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2: as by a firewall. It is a wrong configuration and no outage, also to a process that has asked nobody yet, as `rota run`."""
    monkeypatch.setattr(_clock, "PATIENCE", 60.0)  # as little of the timeout as the default is of the default one
    with socket.create_server((HOST, 0)) as silent:
        url = etcd.url(f"http_port={silent.getsockname()[1]}")
        with pytest.raises(ConfigurationError, match="time"):
            connect(url, timeout=6.0).try_window(name, rota.Every("1h"))


def test_the_local_clock_is_taken_if_it_is_asked_for_by_name(etcd: Etcd, name: str, connect: Callable[..., rota.Client]) -> None:
    client = connect(etcd.url(f"clock=local&http_port={free_port()}"))
    with client.window(name, rota.Every("1h")) as grant:
        assert abs(grant.record.granted_at - time.time_ns() // 1000) < 10 * SECOND
    assert client.try_window(name, rota.Every("1h")).verdict == HANDLED


def test_a_server_that_is_down_is_unavailable_and_not_without_a_clock(driver_for: Drivers) -> None:
    with pytest.raises(Unavailable):
        driver_for(f"etcd://{HOST}:{free_port()}").now(1.0)


@pytest.fixture
def fresh(etcd: Etcd, clock_at: Clocks, monkeypatch: pytest.MonkeyPatch) -> Callable[[EtcdDriver], MemberClock]:
    """Give a driver a clock that has asked nobody yet, as each `rota run` has; a member that is busy for a while is waited for."""
    monkeypatch.setattr(_clock, "PATIENCE", 5.0)

    def give(driver: EtcdDriver) -> MemberClock:
        clock = clock_at(etcd.port)
        driver._clocks = [clock]
        return clock

    return give


@pytest.mark.by_the_clock
def test_only_a_claim_near_an_edge_of_its_slot_waits_until_the_time_is_known_well(
    etcd: Etcd, name: str, driver_for: Drivers, slot: Callable[..., Claim], fresh: Callable[[EtcdDriver], MemberClock]
) -> None:
    """W2: well inside a slot every instant of the one second that a fresh clock has read decides alike."""
    driver = driver_for(etcd.url())

    def waits(claim: Claim, *verdicts: str) -> bool:
        fresh(driver)
        answer = driver.claim(claim, 20.0)
        assert answer.verdict in verdicts
        assert answer.now is not None
        width = (answer.now[1] - answer.now[0]) / SECOND
        assert width >= 1.0 or width <= BOUND
        return width < 1.0

    now = time.time_ns() // 1000
    inside = slot(name, now - HOUR // 2)
    assert not waits(inside, WON)
    assert waits(slot(f"{name}-begins", now), WON, EARLY)
    assert waits(slot(f"{name}-ends", now - HOUR + 5 * SECOND), WON)
    assert waits(slot(f"{name}-late", now - HOUR // 2, late_from=now - 5 * SECOND), LATE)
    assert waits(slot(f"{name}-early", now + HOUR // 2), EARLY)
    assert driver.settle(Settlement(name, inside.owner, HANDLED, DAY), 10.0).applied
    assert not waits(slot(name, inside.slot_start), HANDLED)


@pytest.mark.by_the_clock
def test_a_fresh_clients_first_claims_do_not_wait_for_it_either(
    etcd: Etcd, name: str, connect: Callable[..., rota.Client], fresh: Callable[[EtcdDriver], MemberClock]
) -> None:
    for number in range(2):
        client = connect(etcd.url())
        clock = fresh(client.driver)
        with client.lease(f"{name}-{number}"), client.window(f"{name}-w{number}", rota.Every("365d")):
            low, high = clock._bounds(monotonic())
        assert high - low >= 1.0


def test_f2_a_member_that_was_away_when_it_was_asked_for_the_time_is_asked_again_as_soon_as_it_is_back(
    name: str, driver_for: Drivers, connect: Callable[..., rota.Client]
) -> None:
    """That windows are decided by its time is a mistake of the user's where it never tells it, and no outage."""
    with Etcd() as etcd:
        driver = driver_for(etcd.url())
        clock = driver._clocks[0]

        def was_asked() -> bool:
            with pytest.raises(Unavailable):
                driver.now(0.6)
            return clock._retry_at > 0  # a thread that stood still may have had no time left to ask

        etcd.pause()
        try:
            wait_until(was_asked)
        finally:
            etcd.resume()
        clock._retry_at = monotonic() + 3600  # however soon that is
        assert connect(etcd.url()).try_window(name, Every("1h"))


def test_a_member_that_answers_again_is_asked_as_ever(etcd: Etcd, monkeypatch: pytest.MonkeyPatch, clock_at: Clocks) -> None:
    """W2: nothing is left of the pause in which it was let alone, or slots would begin a second late as long as that lasts."""
    monkeypatch.setattr(_clock, "PATIENCE", 20.0)  # however busy this machine is
    clock = clock_at(etcd.port)
    clock._retry_at = monotonic() + 3600
    low, high = clock.interval(monotonic() + 20, sharp=True) or (0, 0)
    assert high - low < SECOND, "the turn of a second was not waited for"
    clock._asked_at -= 3600
    before = clock._asked_at
    assert clock.interval(monotonic() + 20, sharp=False)
    assert clock._asked_at > before


@pytest.fixture
def slow_http() -> Iterator[Callable[[Callable[[int], float]], int]]:
    """Tell the time by HTTP, the first, second, … answer so many seconds late; return the port."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def serve(late: Callable[[int], float]) -> int:
        numbers = itertools.count(1)

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                time.sleep(late(next(numbers)))
                self.send_response(200)  # which tells the date
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        servers.append(http.server.ThreadingHTTPServer((HOST, 0), Handler))
        threading.Thread(target=servers[-1].serve_forever).start()
        return servers[-1].server_port

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_f2_http_that_is_slow_is_waited_for_as_far_as_the_timeout_allows(
    etcd: Etcd, name: str, connect: Callable[..., rota.Client], slow_http: Callable[[Callable[[int], float]], int]
) -> None:
    """As where the machine of a member is busy: no mistake of the user's."""
    client = connect(etcd.url(f"http_port={slow_http(lambda number: 1.0)}"), timeout=30)
    assert client.try_window(name, Every("365d"))


def test_one_slow_answer_does_not_end_the_wait_for_the_turn_of_a_second(
    slow_http: Callable[[Callable[[int], float]], int], clock_at: Clocks
) -> None:
    """W2: slots would begin up to a second late, though the timeout leaves time to know it better."""
    clock = clock_at(slow_http(lambda number: 1.6 if number == 2 else 0.0))
    low, high = clock.interval(monotonic() + 20, sharp=True) or (0, 0)
    assert 0 < high - low <= BOUND * SECOND


@pytest.mark.parametrize(("kind", "lock"), [("lease", "_asking"), ("window", "_asking"), ("window", "_narrowing")])
def test_who_waits_for_a_thread_that_asks_for_long_has_time_left_for_the_claim(
    etcd: Etcd,
    name: str,
    driver_for: Drivers,
    lease: Callable[..., Claim],
    slot: Callable[..., Claim],
    fresh: Callable[[EtcdDriver], MemberClock],
    kind: str,
    lock: str,
) -> None:
    """F1: that thread may have more time than this one."""
    driver, begun, over = driver_for(etcd.url()), threading.Event(), threading.Event()
    clock = fresh(driver)
    if lock == "_narrowing":
        wait_until(lambda: driver.read(name, 10.0)[1], what="the time, to within a second")
    now = time.time_ns() // 1000
    claim = lease(name) if kind == "lease" else slot(name, now - HOUR + 5 * SECOND)  # near its end: the time is to be known well

    def ask() -> None:
        with getattr(clock, lock):
            begun.set()
            over.wait(60)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(ask)
        assert begun.wait(20)
        try:
            if (lock, kind) == ("_asking", "window"):
                with pytest.raises(ConfigurationError, match="time"):  # for all that is known here, nobody tells it
                    driver.claim(claim, 4.0)
            else:
                assert driver.claim(claim, 4.0).verdict == WON
        finally:
            over.set()
