# SPDX-License-Identifier: MIT
"""Three members: the leader killed, the quorum lost, one clock an hour ahead."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import rota
from rota.backend import BUSY, HANDLED, Override
from rota.duration import DAY, HOUR, SECOND
from rota.errors import Unavailable, Unrecorded
from servers import EtcdEnsemble, wait_until

Connect = Callable[..., rota.Client]

LEASES, TTL = 100, 4.0


@pytest.fixture(scope="module")
def ensemble() -> Iterator[EtcdEnsemble]:
    with EtcdEnsemble() as members:
        yield members


@pytest.fixture(scope="module")
def skewed() -> Iterator[EtcdEnsemble]:
    with EtcdEnsemble(skewed=True) as members:
        yield members


class Resource:
    """What is written to: it takes no token that is smaller than one it has seen."""

    def __init__(self) -> None:
        self.seen = 0
        self.lock = threading.Lock()
        self.runs: Counter[int] = Counter()

    def write(self, token: int, slot: int) -> None:
        with self.lock:
            assert token > self.seen, "a token that is too old was written with"
            self.seen = token
            self.runs[slot] += 1


class Racer(threading.Thread):
    """Takes part in a race for slots until all of them have begun and are handled."""

    def __init__(self, client: Any, name: str, schedule: rota.Every, slots: list[int], resource: Resource, **options: Any) -> None:
        super().__init__()
        self.client, self.job, self.schedule, self.slots, self.resource = client, name, schedule, slots, resource
        self.options = options
        self.won: dict[int, Any] = {}
        self.problem: BaseException | None = None
        self.unanswered = 0

    def run(self) -> None:
        try:
            for slot in self.slots:
                while not self.is_over(slot):
                    time.sleep(0.02)
        except BaseException as problem:
            self.problem = problem

    def is_over(self, slot: int) -> bool:
        verdict = self.client.try_window(
            self.job, self.schedule, planned=slot / SECOND, early=0, ttl=TTL, on_unavailable="skip", **self.options
        )
        if verdict:
            self.won[slot] = (verdict.record, time.time_ns() // 1000)
            self.resource.write(verdict.token, slot)
            try:
                verdict.handled()
            except Unrecorded:  # kept, and recorded as soon as there is a leader again
                assert self.client.flush(15)
            return True
        self.unanswered += verdict.verdict == "unavailable"
        assert verdict.verdict in (HANDLED, BUSY, "early", "unavailable"), verdict
        return verdict.verdict == HANDLED


@pytest.mark.parametrize("options", ["", "leases=shared"])
def test_the_leader_is_killed_while_leases_are_held_and_slots_raced_for(
    ensemble: EtcdEnsemble, name: str, connect: Connect, stopwatch: Any, options: str
) -> None:
    whole, url = stopwatch(), ensemble.url(options)
    holder, rival = connect(url, timeout=1.5), connect(url, timeout=1.5)
    grants = [holder.try_lease(f"{name}-{number}", ttl=TTL) for number in range(LEASES)]
    assert all(grants)
    schedule, resource = rota.Every("250ms"), Resource()
    base = schedule.slot(holder.driver.now(5.0)[1]).end
    slots = [base + number * 250_000 for number in range(12)]
    racers = [Racer(connect(url, timeout=1.5), f"{name}-slots", schedule, slots, resource) for _ in range(3)]
    stolen = []
    ended = threading.Event()

    def rob() -> None:
        while not ended.is_set():
            for grant in grants[::7]:
                if rival.try_lease(grant.name, on_unavailable="skip") and not grant.lost:
                    stolen.append(grant.name)

    robber = threading.Thread(target=rob, daemon=True)
    robber.start()
    for racer in racers:
        racer.start()
    wait_until(lambda: len(resource.runs) >= 3, what="three slots handled")
    leader = ensemble.leader()
    assert leader is not None
    leader.kill()
    killed = stopwatch()
    deadlines = [grant._deadline for grant in grants]
    wait_until(
        lambda: all(grant.lost or grant._deadline > before for grant, before in zip(grants, deadlines, strict=True)),
        TTL + 5,
        "all leases are renewed or known to be lost",
    )
    # a machine that stands still loses them by itself
    assert whole.late > 0.5 or [grant.name for grant in grants if grant.lost] == [], "an election that was shorter than the ttl cost leases"
    for racer in racers:
        racer.join(30)
    ended.set()
    robber.join(30)
    for client in (holder, rival, *(racer.client for racer in racers)):
        wait_until(
            lambda client=client: client.try_lease(f"{name}-after-{id(client)}", on_unavailable="skip"), TTL + 5, "every client works"
        )
    assert killed.seconds < TTL + 5 + 10
    assert [racer.problem for racer in racers] == [None] * 3
    assert resource.runs == dict.fromkeys(slots, 1)
    assert stolen == []
    leader.start()
    ensemble.wait_whole()
    for grant in grants:
        grant.release()


def test_without_a_quorum_all_is_unavailable_within_the_timeout_and_then_works_again(
    ensemble: EtcdEnsemble, name: str, connect: Connect, stopwatch: Any
) -> None:
    client = connect(ensemble.url(), timeout=1.5)
    kept, lost = client.try_lease(name, ttl=20), client.try_lease(f"{name}-short", ttl=TTL)
    since = kept._deadline
    down = [ensemble.leader(), next(member for member in ensemble.members if not member.is_leader)]
    for member in down:
        member.kill()
    began = stopwatch()
    while began.seconds < 8:  # two ttls of the short one
        asked = stopwatch()
        with pytest.raises(Unavailable):
            client.try_lease(f"{name}-other")
        assert asked.seconds < 1.5 + 1.0
        asked.close()
        time.sleep(0.2)
    assert lost.lost
    kept.check()
    for member in down:
        member.start(wait=False)
    wait_until(lambda: client.try_lease(f"{name}-other", on_unavailable="skip"), TTL + 5, "the client works again")
    wait_until(lambda: kept._deadline > since, 20, "the lease is renewed again")
    kept.release()
    ensemble.wait_whole()


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_one_clock_an_hour_ahead(skewed: EtcdEnsemble, name: str, connect: Connect, role: str) -> None:
    """W7: a slot is handled once, and never won before its start by the clock of the member that answered."""
    fast = next(member for member in skewed.members if member.is_leader is (role == "leader"))
    fast.skew(3600)
    clients = {member: connect(member.url()) for member in skewed.members}
    schedule, resource = rota.Every("250ms"), Resource()
    right = next(client for member, client in clients.items() if member is not fast)
    wait_until(lambda: clients[fast].driver.now(5.0)[0] > right.driver.now(5.0)[0] + HOUR - SECOND, what="the clock is ahead")
    base = schedule.slot(right.driver.now(5.0)[1]).end
    slots = [base + number * 250_000 for number in range(8)]
    racers = {member: Racer(client, name, schedule, slots, resource, max_late="2h") for member, client in clients.items()}
    for racer in racers.values():
        racer.start()
    for racer in racers.values():
        racer.join(30)
    assert [racer.problem for racer in racers.values()] == [None] * 3
    assert resource.runs == dict.fromkeys(slots, 1)
    for member, racer in racers.items():
        for slot, (record, at) in racer.won.items():
            assert record.granted_at >= slot, "won before its start by the answering member's clock"
            if member is not fast:
                assert at >= slot, "won before its start"

    # a mark that the fast clock has left ahead is reported, and can be set back
    hourly, ahead = rota.Every("10m"), f"{name}-ahead"
    clients[fast].try_window(ahead, hourly).handled()
    refused = right.try_window(ahead, hourly)
    assert (refused.verdict, refused.mark_ahead) == (HANDLED, True)
    back = hourly.slot(right.driver.now(5.0)[0]).start - 1
    assert right.driver.override(Override(ahead, "mark", "operator: a clock was fast", DAY, back), 5.0).applied
    grant = right.try_window(ahead, hourly)
    assert grant
    assert grant.token > refused.record.token
    grant.handled()

    facts = connect(skewed.url()).driver.facts(5.0)
    assert abs(float(facts["clock_spread_ms"] or 0) / 1000 - 3600) < 2
    fast.skew(0)


def test_the_doctor_tells_of_versions_whose_former_leader_revokes_leases_that_are_renewed(ensemble: EtcdEnsemble, connect: Connect) -> None:
    """L1: no client can help it. With one member there is no successor."""
    driver = connect(ensemble.url()).driver
    facts = driver.facts(5.0)
    told = {"3.3.27": "warn", "3.4.23": "warn", "3.4.31": "ok", "3.5.0-rc.1": "warn", "3.5.12": "warn", "3.5.13": "ok", "3.6.0": "ok"}
    found = {version: next(f for f in driver.examine({**facts, "version": version}, 5.0) if f.subject == "members") for version in told}
    assert {version: each.level for version, each in found.items()} == told
    (alone,) = (f for f in driver.examine({**facts, "version": "3.4.23", "endpoints": 1}, 5.0) if f.subject == "members")
    assert alone.level == "ok"
