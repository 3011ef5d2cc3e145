# SPDX-License-Identifier: MIT
"""Who is refused comes again: then etcd says whether all is as it was, and sends the record only if it is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rota.backend import BUSY, RELEASED, WON, Answer, Claim, Renewal, Settlement
from rota.duration import DAY, SECOND
from rota_etcd import EtcdDriver
from rota_etcd._clock import monotonic
from servers import Etcd

Drivers = Callable[[str], EtcdDriver]
Claims = Callable[..., Claim]
#: As much as a record's history may take.
HISTORY = b"x" * 2000


@pytest.fixture
def holder(etcd: Etcd, driver_for: Drivers) -> EtcdDriver:
    return driver_for(etcd.url())


@pytest.fixture
def refused(etcd: Etcd, name: str, driver_for: Drivers, lease: Claims) -> Callable[[], Answer]:
    """Let another driver, the same each time, be refused."""
    driver = driver_for(etcd.url())

    def claim() -> Answer:
        answer = driver.claim(lease(name), 5.0)
        assert answer.verdict == BUSY
        assert answer.record is not None
        return answer

    return claim


def won(driver: EtcdDriver, claim: Claim) -> Claim:
    assert driver.claim(claim, 5.0).verdict == WON
    return claim


def end(driver: EtcdDriver, claim: Claim, history: bytes | None = None) -> None:
    assert driver.settle(Settlement(claim.name, claim.owner, RELEASED, DAY, history), 5.0).applied


def test_the_record_is_sent_once(etcd: Etcd, name: str, holder: EtcdDriver, lease: Claims, refused: Callable[[], Answer]) -> None:
    def sent() -> float:
        return etcd.metric("etcd_network_client_grpc_sent_bytes_total")

    end(holder, won(holder, lease(name)), HISTORY)
    won(holder, lease(name))
    before = sent()
    first = refused()
    between = sent()
    again = refused()
    assert between - before > len(HISTORY)
    assert sent() - between < len(HISTORY) / 4
    assert first.record == again.record


def test_a_later_holder_is_seen(name: str, holder: EtcdDriver, lease: Claims, refused: Callable[[], Answer]) -> None:
    for _ in range(2):
        held = won(holder, lease(name))
        for _ in range(2):
            record = refused().record
            assert record is not None
            assert record.owner == held.owner
        end(holder, held)


def test_a_record_that_was_written_while_it_is_held_is_seen(
    name: str, holder: EtcdDriver, lease: Claims, refused: Callable[[], Answer]
) -> None:
    held = won(holder, lease(name))
    first = refused().record
    holder._keep_record(Renewal(name, held.owner, 60 * SECOND, 90 * DAY), monotonic() + 5.0)
    again = refused().record
    assert first is not None
    assert again is not None
    assert again.keep_until > first.keep_until


def test_a_lease_that_ended_without_a_word_is_seen(
    etcd: Etcd, name: str, holder: EtcdDriver, driver_for: Drivers, lease: Claims, refused: Callable[[], Answer]
) -> None:
    other, held = driver_for(etcd.url()), won(holder, lease(name))
    assert other.claim(lease(name), 5.0).verdict == BUSY
    its_lease = holder._leases.of(held.owner)
    assert its_lease is not None
    holder._leases.revoke(its_lease.id, holder._deadline(5.0))
    won(other, lease(name))
    refused()


def test_a_claim_is_found_again_by_a_driver_that_was_refused(etcd: Etcd, name: str, driver_for: Drivers, lease: Claims) -> None:
    """L7: asked with the same owner id, whoever asks."""
    driver, other = driver_for(etcd.url()), driver_for(etcd.url())
    held = won(driver, lease(name))
    for _ in range(2):
        assert other.claim(lease(name), 5.0).verdict == BUSY
        won(other, held)
