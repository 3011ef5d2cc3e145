# SPDX-License-Identifier: MIT
"""The members' clock: an interval that holds it, whatever this host takes for the time of day; and life without it (L12, W5, DV-10)."""

from __future__ import annotations

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

import pytest
import rota
from rota import Every
from rota.backend import BUSY, EARLY, HANDLED, LATE, WON, Claim, Renewal, Settlement
from rota.duration import DAY, HOUR, SECOND
from rota.errors import ConfigurationError, Unavailable
from rota_etcd import EtcdDriver, _clock
from rota_etcd._clock import BOUND, FRESH, MemberClock, monotonic
from servers import HOST, Etcd, free_port, skew_program

Drivers = Callable[[str], EtcdDriver]


@pytest.fixture(scope="module")
def skewed() -> Iterator[Etcd]:
    with Etcd(skewed=True) as server:
        yield server


@pytest.mark.by_the_clock
def test_the_interval_holds_the_members_time_also_after_steps(skewed: Etcd) -> None:
    clock = MemberClock(HOST, skewed.port, None)
    for offset in (0, -7, 3600):
        skewed.skew(offset)
        for again in range(30):
            if again == 0:
                time.sleep(FRESH)  # within it a step need not be noticed
            before = time.time_ns() // 1000 + offset * SECOND
            low, high = clock.interval(monotonic() + 5, sharp=again % 10 == 0) or (0, 0)
            after = time.time_ns() // 1000 + offset * SECOND
            assert low <= after, "the interval is ahead of the member's clock"
            assert before <= high, "the interval is behind the member's clock"
            assert high - low <= BOUND * SECOND
    skewed.skew(0)


@pytest.mark.by_the_clock
def test_a_wait_for_the_turn_of_a_second_keeps_to_the_deadline(skewed: Etcd) -> None:
    clock = MemberClock(HOST, skewed.port, None)
    began = monotonic()
    low, high = clock.interval(began + 0.05, sharp=True) or (0, 0)
    assert monotonic() - began < 0.5
    assert low <= time.time_ns() // 1000 <= high


@pytest.mark.parametrize("sharp", [False, True])
def test_who_knows_no_time_waits_for_the_thread_that_asks(skewed: Etcd, sharp: bool) -> None:
    """A process whose threads begin with windows: `None` would say that none can be decided here."""
    clock = MemberClock(HOST, skewed.port, None)
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
def fresh(etcd: Etcd) -> Iterator[Callable[[EtcdDriver], MemberClock]]:
    """Give a driver a clock that has asked nobody yet, as each `rota run` has."""
    made: list[MemberClock] = []

    def give(driver: EtcdDriver) -> MemberClock:
        made.append(MemberClock(HOST, etcd.port, None))
        driver._clocks = [made[-1]]
        return made[-1]

    yield give
    for clock in made:
        for connection in clock._idle:
            connection.close()


@pytest.mark.by_the_clock
def test_only_a_claim_near_an_edge_of_its_slot_waits_until_the_time_is_known_well(
    etcd: Etcd, name: str, driver_for: Drivers, slot: Callable[..., Claim], fresh: Callable[[EtcdDriver], MemberClock]
) -> None:
    """W2: well inside a slot every instant of the one second that a fresh clock has read decides alike."""
    driver = driver_for(etcd.url())

    def width(claim: Claim, *verdicts: str) -> float:
        fresh(driver)
        answer = driver.claim(claim, 10.0)
        assert answer.verdict in verdicts
        assert answer.now is not None
        return (answer.now[1] - answer.now[0]) / SECOND

    now = time.time_ns() // 1000
    inside = slot(name, now - HOUR // 2)
    assert width(inside, WON) >= 1.0
    assert width(slot(f"{name}-begins", now), WON, EARLY) <= BOUND
    assert width(slot(f"{name}-ends", now - HOUR + 5 * SECOND), WON) <= BOUND
    assert width(slot(f"{name}-late", now - HOUR // 2, late_from=now - 5 * SECOND), LATE) <= BOUND
    assert width(slot(f"{name}-early", now + HOUR // 2), EARLY) <= BOUND
    assert driver.settle(Settlement(name, inside.owner, HANDLED, DAY), 10.0).applied
    assert width(slot(name, inside.slot_start), HANDLED) >= 1.0


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
        etcd.pause()
        try:
            with pytest.raises(Unavailable):
                driver.now(0.6)
            clock = driver._clocks[0]
            assert clock._retry_at > 0
        finally:
            etcd.resume()
        clock._retry_at = monotonic() + 3600  # however soon that is
        assert connect(etcd.url()).try_window(name, Every("1h"))
