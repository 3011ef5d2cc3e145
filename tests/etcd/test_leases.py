# SPDX-License-Identifier: MIT
"""etcd leases are handed on from one grant to the next of a client, and what must never go along with them (L3, L5, L7)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import rota
from rota.backend import BUSY, FINISHED, RELEASED, STALE, UNUSED, WON, Claim, Override, Renewal, Settlement
from rota.duration import DAY, SECOND
from rota.errors import OutcomeUnknown, Unavailable
from rota_etcd import EtcdDriver, _leases, _wire
from rota_etcd._leases import FRESH_PART
from servers import Etcd, wait_until

Drivers = Callable[[str], EtcdDriver]
Claims = Callable[..., Claim]
Requests = Callable[[EtcdDriver], Counter[str]]


def won(driver: EtcdDriver, claim: Claim) -> int:
    """Win it; return the id of its etcd lease."""
    assert driver.claim(claim, 5.0).verdict == WON
    lease = driver._leases.of(claim.owner)
    assert lease is not None
    return lease.id


def end(driver: EtcdDriver, claim: Claim, result: str = RELEASED) -> bool:
    return driver.settle(Settlement(claim.name, claim.owner, result, DAY), 5.0).applied


def test_a_claim_takes_over_the_lease_of_the_grant_before_and_costs_one_request(
    etcd: Etcd, name: str, driver_for: Drivers, lease: Claims, requests_of: Requests
) -> None:
    driver = driver_for(etcd.url())
    for each in (name, f"{name}-2"):  # from now on this driver knows both records
        assert end(driver, claim) if won(driver, claim := lease(each)) else False
    sent, ids = requests_of(driver), set()
    for number in range(20):
        claim = lease(name if number % 2 else f"{name}-2")
        ids.add(won(driver, claim))
        assert end(driver, claim)
    assert len(ids) == 1
    assert sent == {"TxnRequest": 40}, "a claim and a release are one request each"
    first, second = lease(name), lease(f"{name}-2")
    assert won(driver, first) != won(driver, second), "two grants at a time share an etcd lease"


@pytest.mark.by_the_clock
def test_a_lease_that_was_taken_over_lasts_for_a_whole_ttl_and_no_longer(etcd: Etcd, name: str, driver_for: Drivers, lease: Claims) -> None:
    """L5: it is renewed beside the claim; the little that it may have counted before is told."""
    driver = driver_for(etcd.url())
    for wait in (0.3, 0.0):  # it is not taken over once half of it is over
        before = lease(name, 2)
        number = won(driver, before)
        assert end(driver, before)
        time.sleep(wait)
        claim, asked = lease(name, 2), time.monotonic()
        answer = driver.claim(claim, 5.0)
        assert answer.verdict == WON
        assert driver._leases.of(claim.owner).id == number, "it was not taken over"
        if wait:
            assert answer.age == 0
        assert 0 <= answer.age <= 2 * SECOND * FRESH_PART
        wait_until(lambda: etcd.get(f"rota/leases/{name}") is None, 10, "the end of the lease", every=0.01)
        assert time.monotonic() - asked >= 2.0 - answer.age / SECOND
        assert driver.claim(claim, 5.0).verdict == FINISHED


def test_the_holder_counts_from_the_last_renewal_of_its_lease(etcd: Etcd, name: str, connect: Callable[..., rota.Client]) -> None:
    """L5, for a grant whose etcd lease had been counting for a moment."""
    client = connect(etcd.url())

    def was_counting() -> bool:
        client.try_lease(name, ttl="30s").release()
        asked = client._engine.clock()
        with client.lease(name, ttl="30s") as grant:
            lease = client.driver._leases.of(grant._owner)
            assert grant._deadline <= lease.renewed_at + 27
            return lease.renewed_at < asked

    wait_until(was_counting, what="a lease that was not renewed for the claim")


@pytest.mark.parametrize("options", ["", "leases=shared"])
def test_a_claim_that_stood_still_past_its_time_wins_nothing(
    options: str, etcd: Etcd, name: str, driver_for: Drivers, lease: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L7, L8: whoever finishes its owner finds no etcd lease of it yet, and then hears that no claim of that owner can come any more."""
    driver, other = driver_for(etcd.url(options=options)), driver_for(etcd.url())
    for each in (driver, other):
        each.claim(lease(f"{name}-first"), 5.0)  # a connection, and the time
    now = driver.now(5.0)
    assert now is not None
    claim = lease(name, apply_until=now[1] + SECOND)
    take = driver._leases.take

    def is_over() -> bool:
        settled = driver.settle(Settlement(name, claim.owner, UNUSED, DAY), 5.0)
        assert not settled.applied
        return settled.now is not None and settled.now[0] > claim.apply_until

    def take_too_late(claim: Claim, deadline: float) -> Any:
        wait_until(is_over, 10, "a time at which it can't be applied any more")
        return take(claim, deadline)

    monkeypatch.setattr(driver._leases, "take", take_too_late)
    answer = driver.claim(claim, 30.0)
    assert answer.verdict == STALE
    assert answer.now is not None
    assert answer.now[0] > claim.apply_until, "it says what time it is"
    assert other.claim(lease(name), 5.0).verdict == WON


def test_a_lease_that_went_away_meanwhile_is_replaced(etcd: Etcd, name: str, driver_for: Drivers, lease: Claims) -> None:
    driver, before = driver_for(etcd.url()), lease(name)
    number = won(driver, before)
    assert end(driver, before)
    etcd.do("lease/revoke", ID=number)
    claim = lease(name)
    assert won(driver, claim) != number
    assert list(driver.renew([Renewal(name, claim.owner, claim.ttl, DAY)], 5.0).held) == [True]


def test_no_lease_is_taken_over_after_the_store_was_away(
    name: str, driver_for: Drivers, lease: Claims, is_answered: Callable[[EtcdDriver], bool]
) -> None:
    """It may have been restored from a snapshot in which that lease holds another name."""
    with Etcd() as server:
        driver, before = driver_for(server.url()), lease(name)
        number = won(driver, before)
        assert end(driver, before)
        server.restart()
        wait_until(lambda: driver.link.stream == 0, what="the end of the stream")
        wait_until(lambda: is_answered(driver), what="an answer")
        assert won(driver, lease(name)) != number


@pytest.mark.by_the_clock
def test_a_claim_whose_lease_could_not_be_renewed_is_unknown_and_then_found_for_a_whole_ttl(
    etcd: Etcd, name: str, driver_for: Drivers, lease: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L5, L7: applied, but nobody told for how long."""
    driver, before = driver_for(etcd.url()), lease(name, 2)
    number = won(driver, before)
    assert end(driver, before)
    time.sleep(0.3)  # older than what is handed on unrenewed, which is 5 % of its length; longer would do as well

    def unanswered(*_: object) -> None:
        raise Unavailable("no answer")

    claim = lease(name, 2)
    with monkeypatch.context() as patched:
        patched.setattr(driver.link, "begin_keep_alive", unanswered)
        patched.setattr(driver.link, "keep_alive", unanswered)
        with pytest.raises(OutcomeUnknown):
            driver.claim(claim, 5.0)
    assert driver._leases.of(claim.owner).id == number
    asked = time.monotonic()
    assert driver.claim(claim, 5.0).verdict == WON
    wait_until(lambda: etcd.get(f"rota/leases/{name}") is None, 10, "the end of the lease", every=0.01)
    assert time.monotonic() - asked >= 2.0


def test_a_lease_of_a_claim_that_may_be_on_its_way_is_not_handed_on(etcd: Etcd, name: str, driver_for: Drivers, lease: Claims) -> None:
    """L7: the stuck transaction puts a key on it."""
    driver, claim = driver_for(etcd.url()), lease(name)
    call = driver.link.call

    def stuck(request: Any, deadline: float, *, writes: bool = False) -> Any:
        if writes:
            raise OutcomeUnknown("no answer")
        return call(request, deadline)

    driver.link.call = stuck  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        driver.claim(claim, 5.0)
    driver.link.call = call  # type: ignore[method-assign]
    number = won(driver, claim)
    assert end(driver, claim, UNUSED)
    assert won(driver, lease(name)) != number


@pytest.mark.parametrize("verb", ["override", "forget"])
def test_an_operator_who_comes_between_ends_no_other_grant(etcd: Etcd, name: str, driver_for: Drivers, lease: Claims, verb: str) -> None:
    """The holder releases, and its next grant is made, after the operator has looked and before the old lease is revoked."""
    driver, operator = driver_for(etcd.url()), driver_for(etcd.url())
    held, later = lease(name), lease(f"{name}-later")
    number = won(driver, held)
    revoke, late = operator.link.call, []

    def call(request: Any, deadline: float, *, writes: bool = False) -> Any:
        if isinstance(request, _wire.Revoke) and not late:
            late.append(request.ID)
            assert end(driver, held)
            won(driver, later)
        return revoke(request, deadline, writes=writes)

    operator.link.call = call  # type: ignore[method-assign]
    if verb == "forget":
        operator.forget(name, 5.0)
    else:
        operator.override(Override(name, RELEASED, "operator", DAY), 5.0)
    assert late == [number]
    assert list(driver.renew([Renewal(later.name, later.owner, later.ttl, DAY)], 5.0).held) == [True]
    assert etcd.get(f"rota/leases/{later.name}") is not None


def test_a_grant_that_another_driver_settles_is_renewed_no_more(etcd: Etcd, name: str, driver_for: Drivers, lease: Claims) -> None:
    driver, other, claim = driver_for(etcd.url()), driver_for(etcd.url()), lease(name)
    won(driver, claim)
    assert end(other, claim)
    assert list(driver.renew([Renewal(name, claim.owner, claim.ttl, DAY)], 5.0).held) == [False]


def test_finishing_a_claim_that_ends_meanwhile_ends_no_other_grant(etcd: Etcd, name: str, driver_for: Drivers, lease: Claims) -> None:
    """L1: the keeper finishes a claim that was cancelled while its thread, which somebody was faster than, hands its lease on."""
    driver, other = driver_for(etcd.url()), driver_for(etcd.url())
    assert end(driver, claim) if won(driver, claim := lease(f"{name}-before")) else False  # a stream is open: leases are handed on
    cancelled, following = lease(name), lease(f"{name}-2")
    is_sent, may_end = threading.Event(), threading.Event()
    write, revoke = driver.names.write, driver._leases.revoke

    def write_slowly(written: str, *args: Any, **more: Any) -> Any:
        if written == name and not is_sent.is_set():
            assert other.claim(lease(name), 5.0).verdict == WON
            is_sent.set()
            may_end.wait(10)
        return write(written, *args, **more)

    def revoke_late(number: int, deadline: float) -> None:
        may_end.set()
        thread.join()
        won(driver, following)
        revoke(number, deadline)

    driver.names.write = write_slowly  # type: ignore[method-assign]
    driver._leases.revoke = revoke_late  # type: ignore[method-assign]
    thread = threading.Thread(target=driver.claim, args=(cancelled, 5.0))
    thread.start()
    assert is_sent.wait(10)
    assert not end(driver, cancelled, UNUSED)
    assert other.claim(lease(following.name), 5.0).verdict == BUSY
    assert driver.renew([Renewal(following.name, following.owner, following.ttl, DAY)], 5.0).held == [True]


def test_a_call_in_whose_middle_the_client_is_closed_leaves_no_stream_and_no_channel_open(
    etcd: Etcd, name: str, driver_for: Drivers, lease: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, before = driver_for(etcd.url()), set(threading.enumerate())
    won(driver, claim := lease(name))
    write = driver.names.write

    def write_and_close(*arguments: Any, **options: Any) -> Any:
        written = write(*arguments, **options)
        driver.close()
        return written

    monkeypatch.setattr(driver.names, "write", write_and_close)
    assert end(driver, claim)  # and hands its lease on, for which a stream is opened
    assert driver.link.endpoints._channels == {}
    wait_until(lambda: set(threading.enumerate()) <= before, what="its threads have ended")


@pytest.mark.parametrize("options", ["", "leases=shared"])
def test_a_client_is_closed_in_the_middle_of_claims_of_other_threads(
    etcd: Etcd, name: str, driver_for: Drivers, lease: Claims, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They leave an etcd lease of another length than any before, and take the last one that waits as it is about to be revoked."""
    driver, now, looks = driver_for(etcd.url(options)), _leases.monotonic, Counter[str]()
    for ttl in (30, 40):
        won(driver, claim := lease(f"{name}-{ttl}", ttl))
        assert end(driver, claim)

    def now_and_claim() -> float:
        looks["at the time"] += 1
        if looks["at the time"] == 2:  # the first is for the deadline
            monkeypatch.setattr(_leases, "monotonic", now)
            won(driver, claim := lease(f"{name}-20", 20))
            assert end(driver, claim)
            driver._leases._spare[30].clear()  # as a claim does that takes the last, or finds that those that wait are old
        return now()

    monkeypatch.setattr(_leases, "monotonic", now_and_claim)
    driver.close()
    assert driver.link.endpoints._channels == {}
    assert not driver._leases._spare[40], "what waited was not revoked"
