# SPDX-License-Identifier: MIT
"""``?leases=shared``: up to 60 grants of a client are on one etcd lease, and each still ends by itself alone (L1, L3, L4, L5, L7)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import rota
from rota.backend import BUSY, FINISHED, HANDLED, RELEASED, UNUSED, WON, Claim, Override, Renewal, Settlement
from rota.duration import DAY, SECOND
from rota.errors import OutcomeUnknown, Unavailable
from rota_etcd import EtcdDriver, _leases, _shared, _wire
from rota_etcd._leases import Lease, is_shared
from rota_etcd._link import Refusal
from rota_etcd._shared import GIVEN_UP_PART, ROOM
from servers import Etcd, wait_until

Drivers = Callable[[str], EtcdDriver]
Claims = Callable[..., Claim]
Requests = Callable[[EtcdDriver], Counter[str]]
SHARED = "leases=shared"


@pytest.fixture
def driver(etcd: Etcd, driver_for: Drivers, monkeypatch: pytest.MonkeyPatch) -> EtcdDriver:
    """One whose claims share an etcd lease however long the machine stands still between them: no test here is about that but two."""
    for module in (_leases, _shared):
        monkeypatch.setattr(module, "FRESH", 60.0)
        monkeypatch.setattr(module, "FRESH_PART", 1.0)
    return driver_for(etcd.url(SHARED))


def won(driver: EtcdDriver, claim: Claim) -> Lease:
    """Win it; return its etcd lease."""
    assert driver.claim(claim, 5.0).verdict == WON
    found = driver._leases.of(claim.owner)
    assert found is not None
    return found


def win(driver: EtcdDriver, claims: list[Claim]) -> set[int]:
    return {won(driver, claim).id for claim in claims}


def end(driver: EtcdDriver, claim: Claim, result: str = RELEASED) -> bool:
    return driver.settle(Settlement(claim.name, claim.owner, result, DAY), 5.0).applied


def renew(driver: EtcdDriver, *claims: Claim) -> list[bool | None]:
    return list(driver.renew([Renewal(claim.name, claim.owner, claim.ttl, DAY) for claim in claims], 5.0).held)


def leave(driver: EtcdDriver, claim: Claim) -> None:
    """Have all grants that share the etcd lease of this one move away from it at their next renewal."""
    driver._leases.of(claim.owner).doubtful = True


def lease_of(etcd: Etcd, claim: Claim) -> int:
    """Return the etcd lease that the key of a name is bound to; 0 without a key."""
    found: Any = etcd.do("kv/range", key=f"rota/leases/{claim.name}".encode())
    return int(found["kvs"][0]["lease"]) if "kvs" in found else 0


def test_grants_share_an_etcd_lease_until_it_is_full(etcd: Etcd, name: str, driver: EtcdDriver, lease: Claims) -> None:
    claims = [lease(f"{name}-{number}") for number in range(ROOM + 5)]
    ids = win(driver, claims)
    assert len(ids) == 2
    assert all(is_shared(each) for each in ids)
    assert {lease_of(etcd, claim) for claim in claims} == ids
    assert max(Counter(driver._leases.of(claim.owner) for claim in claims).values()) <= ROOM


def test_a_claim_and_a_release_are_one_request_each(name: str, driver: EtcdDriver, lease: Claims, requests_of: Requests) -> None:
    for each in (name, f"{name}-2"):  # from now on this driver knows both records, and has made an etcd lease
        claim = lease(each)
        won(driver, claim)
        assert end(driver, claim)
    sent = requests_of(driver)
    for _ in range(10):
        first, second = lease(name), lease(f"{name}-2")
        assert won(driver, first) is won(driver, second)
        assert end(driver, first)
        assert end(driver, second)
    assert sent == {"TxnRequest": 40}


def test_renewals_are_one_transaction_for_each_etcd_lease(name: str, driver: EtcdDriver, lease: Claims, requests_of: Requests) -> None:
    claims = [lease(f"{name}-{number}") for number in range(2 * ROOM)]
    ids = win(driver, claims)
    sent = requests_of(driver)
    assert renew(driver, *claims) == [True] * len(claims)
    assert sent == {"TxnRequest": len(ids)}, "and the keepalives, on the stream that was open"


def test_two_clients_share_nothing(etcd: Etcd, name: str, driver_for: Drivers, lease: Claims) -> None:
    first, second = driver_for(etcd.url(SHARED)), driver_for(etcd.url(SHARED))
    assert won(first, lease(name)).id != won(second, lease(f"{name}-2")).id


def test_own_and_shared_leases_are_told_apart_by_their_ids() -> None:
    for _ in range(100):
        assert is_shared(Lease(5, shared=True).id)
        assert not is_shared(Lease(5).id)
        assert 0 < Lease(5, shared=True).id < 2**63


@pytest.mark.parametrize("operator_shares", [False, True])
@pytest.mark.parametrize("verb", ["override", "forget", "settle"])
def test_whoever_ends_one_grant_leaves_its_neighbours(
    etcd: Etcd, name: str, driver: EtcdDriver, driver_for: Drivers, lease: Claims, verb: str, operator_shares: bool
) -> None:
    operator = driver_for(etcd.url(SHARED if operator_shares else ""))
    ended, neighbour = lease(name), lease(f"{name}-2")
    assert won(driver, ended) is won(driver, neighbour)
    if verb == "override":
        assert operator.override(Override(name, RELEASED, "operator", DAY), 5.0).applied
    elif verb == "forget":
        assert operator.forget(name, 5.0)
    else:
        assert end(operator, ended)
    assert operator.claim(lease(name), 5.0).verdict == WON
    assert operator.claim(lease(neighbour.name), 5.0).verdict == BUSY
    assert renew(driver, ended, neighbour) == [False, True]
    assert renew(driver, neighbour) == [True]


def test_a_grant_whose_record_was_taken_away_by_hand_is_lost_alone(etcd: Etcd, name: str, driver: EtcdDriver, lease: Claims) -> None:
    """L1: the holder has its key still; the next claim takes it over, and the holder is told."""
    held, neighbour = lease(name), lease(f"{name}-2")
    assert won(driver, held) is won(driver, neighbour)
    etcd.do("kv/deleterange", key=f"rota/records/{name}".encode())
    driver.names._seen.clear()
    later = lease(name)
    won(driver, later)
    assert renew(driver, held, neighbour, later) == [False, True, True]


@pytest.mark.by_the_clock
def test_grants_that_are_all_renewed_stay_where_they_are(
    etcd: Etcd, name: str, driver: EtcdDriver, lease: Claims, requests_of: Requests
) -> None:
    """For longer than a grant may go without being asked for."""
    claims = [lease(f"{name}-{number}", 3) for number in range(3)]
    before, sent, until = win(driver, claims), requests_of(driver), time.monotonic() + 3 * GIVEN_UP_PART + 1
    while time.monotonic() < until:
        assert renew(driver, *claims) == [True] * 3
        time.sleep(0.2)  # a heartbeat
    assert {lease_of(etcd, claim) for claim in claims} == before
    assert sent["LeaseGrantRequest"] == 0


@pytest.mark.by_the_clock
def test_a_grant_that_is_not_renewed_any_more_ends_while_its_neighbours_go_on(
    etcd: Etcd, name: str, driver: EtcdDriver, lease: Claims
) -> None:
    """L3: its neighbours leave it, without an instant at which they are not held."""
    given_up, neighbours = lease(name, 3), [lease(f"{name}-{number}", 3) for number in range(3)]
    started = time.monotonic()
    shared = won(driver, given_up).id
    assert win(driver, neighbours) == {shared}
    ends: list[float] = []

    def goes_on() -> bool:
        assert renew(driver, *neighbours) == [True] * 3
        assert all(lease_of(etcd, claim) for claim in neighbours)
        if not lease_of(etcd, given_up):
            ends.append(time.monotonic())
        return bool(ends)

    wait_until(goes_on, 20, "the end of the one that is given up", every=0.3)
    assert ends[0] - started >= 3.0
    assert shared not in {lease_of(etcd, claim) for claim in neighbours}
    # a heartbeat of this test and a sweep of etcd's on top
    assert ends[0] - started <= 3.0 * (1 + GIVEN_UP_PART) + 1.5
    assert driver.claim(given_up, 5.0).verdict == FINISHED


def test_a_claim_does_not_lengthen_what_others_have(
    etcd: Etcd, name: str, driver_for: Drivers, lease: Claims, requests_of: Requests
) -> None:
    """L3: one that comes later than half a second after the last renewal begins another etcd lease, and renews none."""
    driver = driver_for(etcd.url(SHARED))
    first = won(driver, lease(name))
    first.renewed_at -= 1.0
    renewed_at, sent = first.renewed_at, requests_of(driver)
    assert won(driver, lease(f"{name}-2")) is not first
    assert first.renewed_at == renewed_at
    assert sent["LeaseGrantRequest"] == 1


@pytest.mark.by_the_clock
def test_what_a_shared_lease_has_counted_already_is_told(etcd: Etcd, name: str, driver_for: Drivers, lease: Claims) -> None:
    """L5: the second grant on it has less than a whole ttl."""
    driver = driver_for(etcd.url(SHARED))
    first = won(driver, lease(name))
    first.renewed_at -= 0.2
    second = lease(f"{name}-2")
    answer = driver.claim(second, 5.0)
    assert driver._leases.of(second.owner) is first
    assert 0.2 * SECOND <= answer.age <= 0.5 * SECOND


class Held:
    """Holds a driver's next transaction back, as a network does, and lets it go later; the driver is told that nothing is known."""

    def __init__(self, driver: EtcdDriver, is_meant: Callable[[Any], bool], applies: bool = False) -> None:
        self._call = driver.link.call
        self._is_meant = is_meant
        self._applies = applies
        self.requests: list[Any] = []
        driver.link.call = self.call

    def call(self, request: Any, deadline: float, *, writes: bool = False) -> Any:
        if not self.requests and writes and self._is_meant(request):
            self.requests.append(request)
            if self._applies:
                self._call(request, deadline, writes=writes)
            raise OutcomeUnknown("no answer")
        return self._call(request, deadline, writes=writes)

    def send(self) -> Any:
        """Let it arrive now."""
        return self._call(self.requests[0], time.clock_gettime(time.CLOCK_BOOTTIME) + 5.0, writes=True)


def is_move(request: Any) -> bool:
    return isinstance(request, _wire.Txn) and any(compare.target == _wire.VALUE for compare in request.compare)


def test_a_stuck_claim_is_finished_for_good_and_its_neighbours_stay_held(etcd: Etcd, name: str, driver: EtcdDriver, lease: Claims) -> None:
    """L7: the transaction of a claim that was given up arrives after all."""
    neighbours = [lease(f"{name}-{number}") for number in range(3)]
    win(driver, neighbours)
    stuck = lease(name)
    held = Held(driver, lambda request: isinstance(request, _wire.Txn))
    with pytest.raises(OutcomeUnknown):
        driver.claim(stuck, 5.0)
    assert not end(driver, stuck, UNUSED)
    with pytest.raises(Refusal, match="lease not found"):
        held.send()
    assert lease_of(etcd, stuck) == 0
    assert all(lease_of(etcd, claim) for claim in neighbours)
    assert renew(driver, *neighbours) == [True] * 3


def test_a_claim_that_is_applied_while_its_lease_is_left_moves_too(etcd: Etcd, name: str, driver: EtcdDriver, lease: Claims) -> None:
    """A neighbour's claim is finished between the other's transaction and what its thread does next."""
    stuck, other = lease(name), lease(f"{name}-2")
    Held(driver, lambda request: isinstance(request, _wire.Txn))
    with pytest.raises(OutcomeUnknown):
        driver.claim(stuck, 5.0)
    doubtful = driver._leases.of(stuck.owner)
    assert doubtful is not None
    doubtful.doubtful = False  # as if the answer was lost only after the other has taken this lease
    write, finished = driver.names.write, []

    def write_and_finish(written: str, *args: Any, **more: Any) -> Any:
        answer = write(written, *args, **more)
        if written == other.name and not finished:
            finished.append(True)
            doubtful.doubtful = True
        return answer

    driver.names.write = write_and_finish
    assert won(driver, other) is not doubtful
    assert not end(driver, stuck, UNUSED)
    assert lease_of(etcd, other) not in (0, doubtful.id)
    assert renew(driver, other) == [True]


def test_a_claim_whose_lease_is_finished_with_its_neighbour_is_made_again(
    etcd: Etcd, name: str, driver: EtcdDriver, connect: Callable[..., rota.Client], lease: Claims
) -> None:
    """The revocation comes right after the other's transaction: that grant has ended, and says so."""
    other, write = lease(name), driver.names.write

    def write_and_revoke(*args: Any, **more: Any) -> Any:
        answer = write(*args, **more)
        driver.names.write = write
        mine = driver._leases.of(other.owner)
        assert mine is not None
        driver._leases.finish(mine, time.clock_gettime(time.CLOCK_BOOTTIME) + 5.0)
        return answer

    driver.names.write = write_and_revoke
    assert driver.claim(other, 5.0).verdict == FINISHED
    won(driver, lease(name))


def test_neighbours_move_away_from_a_claim_of_which_nothing_is_known(etcd: Etcd, name: str, driver: EtcdDriver, lease: Claims) -> None:
    """L7, L8: what it may have left ends by itself, though they go on."""
    neighbours, stuck = [lease(f"{name}-{number}") for number in range(3)], lease(name)
    before = win(driver, neighbours)
    held = Held(driver, lambda request: isinstance(request, _wire.Txn))
    with pytest.raises(OutcomeUnknown):
        driver.claim(stuck, 5.0)
    assert won(driver, lease(f"{name}-later")).id not in before, "it is taken by nobody any more"
    assert renew(driver, *neighbours) == [True] * 3
    assert not before & {lease_of(etcd, claim) for claim in neighbours}
    assert held.send().succeeded, "it arrives after all, on a lease that nobody renews"
    assert driver.claim(stuck, 5.0).verdict == WON
    assert lease_of(etcd, stuck) not in before, "it has a whole ttl, though the lease of its claim is not renewed"
    assert renew(driver, stuck) == [True]


def test_a_grant_that_moves_by_itself_to_a_lease_that_is_left_moves_on(
    etcd: Etcd, name: str, driver: EtcdDriver, driver_for: Drivers, lease: Claims
) -> None:
    """L1, L5: a claim on that etcd lease is finished before the answer to the move is there."""
    claim, stuck = lease(name), lease(f"{name}-stuck")
    won(driver_for(etcd.url(SHARED)), claim)
    write = driver.names.write

    def write_and_finish(*args: Any, **more: Any) -> Any:
        driver.names.write = write
        Held(driver, lambda request: isinstance(request, _wire.Txn))
        with pytest.raises(OutcomeUnknown):
            driver.claim(stuck, 5.0)
        answer = write(*args, **more)
        assert not end(driver, stuck, UNUSED)
        return answer

    driver.names.write = write_and_finish
    held = renew(driver, claim)
    assert held == [bool(lease_of(etcd, claim))]


def test_a_refused_claim_leaves_nothing_behind_on_a_lease_that_others_leave(
    etcd: Etcd, name: str, driver: EtcdDriver, driver_for: Drivers, lease: Claims
) -> None:
    """L8: it was answered, whatever is unknown of its neighbours."""
    won(driver_for(etcd.url()), lease(name))
    won(driver, lease(f"{name}-2"))
    refused, write, left = lease(name), driver.names.write, []

    def write_late(written: str, before: Any, *args: Any, **more: Any) -> Any:
        driver.names.write = write
        left.append(driver._leases.of(refused.owner))
        left[0].doubtful = True
        return write(written, before, *args, **more)

    driver.names.write = write_late
    find = driver.names.find
    driver.names.look = lambda *_: find(f"{name}-nobody", time.clock_gettime(time.CLOCK_BOOTTIME) + 5.0)
    assert driver.claim(refused, 5.0).verdict == BUSY
    assert driver._leases.of(refused.owner) is None
    assert refused.owner not in left[0].grants


def test_an_etcd_that_takes_few_operations_at_once_is_asked_for_fewer_names_at_once(name: str, driver_for: Drivers, lease: Claims) -> None:
    """L3: a server that was started with --max-txn-ops below its default."""
    with Etcd(max_txn_ops="16") as server:
        driver, claims = driver_for(server.url(SHARED)), [lease(f"{name}-{number}") for number in range(20)]
        before = win(driver, claims)
        assert renew(driver, *claims) == [True] * 20
        for claim in claims:
            leave(driver, claim)
        assert renew(driver, *claims) == [True] * 20
        assert not before & {lease_of(server, claim) for claim in claims}
        assert renew(driver, *claims) == [True] * 20


def test_a_claim_that_is_overtaken_by_the_close_is_no_grant_without_a_key(etcd: Etcd, name: str, driver: EtcdDriver, lease: Claims) -> None:
    """L1: closing revokes what waits for the next claim, which has just taken it."""
    first, late = lease(name), lease(f"{name}-2")
    won(driver, first)
    assert end(driver, first)
    taken, revoke, write, written = driver._leases._with_room, driver._leases.revoke, driver.names.write, threading.Event()

    def revoke_late(*args: Any) -> None:
        assert written.wait(10)
        revoke(*args)

    closing = threading.Thread(target=driver._leases.close, args=(5.0,))

    def take_and_close(*args: Any) -> Any:
        driver._leases._with_room = taken
        lease = taken(*args)
        assert lease is not None
        closing.start()
        wait_until(lambda: not driver._leases._spare[lease.asked], what="the end of what waits")
        return lease

    def write_and_close(*args: Any, **more: Any) -> Any:
        driver.names.write = write
        answer = write(*args, **more)
        written.set()
        closing.join(10)
        return answer

    driver._leases.revoke, driver._leases._with_room = revoke_late, take_and_close
    driver.names.write = write_and_close
    verdict = driver.claim(late, 5.0).verdict
    assert (verdict == WON) is bool(lease_of(etcd, late))


@pytest.mark.parametrize("applied", [False, True])
def test_a_move_whose_answer_is_lost_is_made_again_and_the_stuck_one_moves_nothing_back(
    etcd: Etcd, name: str, driver: EtcdDriver, lease: Claims, applied: bool
) -> None:
    claims = [lease(f"{name}-{number}") for number in range(3)]
    win(driver, claims)
    leave(driver, claims[0])
    held = Held(driver, is_move, applied)
    with pytest.raises(OutcomeUnknown):
        renew(driver, *claims)
    assert renew(driver, *claims) == [True] * 3
    moved = {lease_of(etcd, claim) for claim in claims}
    assert moved == {driver._leases.of(claim.owner).id for claim in claims}
    assert not held.send().succeeded
    assert {lease_of(etcd, claim) for claim in claims} == moved
    assert renew(driver, *claims) == [True] * 3


@pytest.mark.parametrize("first_goes_on", ["first", "last"])
def test_of_two_moves_at_a_time_the_later_one_counts(etcd: Etcd, name: str, driver: EtcdDriver, lease: Claims, first_goes_on: str) -> None:
    """L5: neither thread may take an etcd lease for the one that holds the key when it is not, whichever goes on first."""
    claims = [lease(f"{name}-{number}") for number in range(3)]
    win(driver, claims)
    leave(driver, claims[0])
    call, applied, may_go_on = driver.link.call, [], threading.Event()
    is_first_applied = threading.Event()

    def in_turn(request: Any, deadline: float, *, writes: bool = False) -> Any:
        answer = call(request, deadline, writes=writes)
        if is_move(request) and answer.succeeded:
            applied.append(request)
            if len(applied) == 1:
                is_first_applied.set()
                may_go_on.wait(10)
            elif first_goes_on == "first":
                may_go_on.set()
                thread.join(10)
        return answer

    driver.link.call = in_turn
    thread = threading.Thread(target=renew, args=(driver, *claims))
    thread.start()
    assert is_first_applied.wait(10)
    renew(driver, *claims)
    may_go_on.set()
    thread.join(10)
    assert len(applied) == 2
    assert renew(driver, *claims) == [True] * 3
    for claim in claims:
        kept_alive = driver._leases.of(claim.owner)
        assert kept_alive is not None
        assert lease_of(etcd, claim) == kept_alive.id


def test_a_grant_that_is_settled_while_it_moves_stays_settled(etcd: Etcd, name: str, driver: EtcdDriver, lease: Claims) -> None:
    claims = [lease(f"{name}-{number}") for number in range(3)]
    win(driver, claims)
    leave(driver, claims[0])
    call, settled = driver.link.call, []

    def settle_first(request: Any, deadline: float, *, writes: bool = False) -> Any:
        if is_move(request) and not settled:
            settled.append(True)
            assert end(driver, claims[1])
        return call(request, deadline, writes=writes)

    driver.link.call = settle_first
    assert renew(driver, *claims) == [True, False, True]
    assert [bool(lease_of(etcd, claim)) for claim in claims] == [True, False, True]
    assert driver._leases.of(claims[1].owner) is None
    assert driver.claim(lease(claims[1].name), 5.0).verdict == WON


def test_a_grant_that_is_settled_right_after_its_move_is_nowhere(etcd: Etcd, name: str, driver: EtcdDriver, lease: Claims) -> None:
    claims = [lease(f"{name}-{number}") for number in range(3)]
    win(driver, claims)
    leave(driver, claims[0])
    call = driver.link.call

    def settle_after(request: Any, deadline: float, *, writes: bool = False) -> Any:
        answer = call(request, deadline, writes=writes)
        if is_move(request):
            assert end(driver, claims[1])
        return answer

    driver.link.call = settle_after
    renew(driver, *claims)
    assert [bool(lease_of(etcd, claim)) for claim in claims] == [True, False, True]
    shared = driver._leases.of(claims[0].owner)
    assert shared is not None
    assert shared.grants.keys() == {claims[0].owner, claims[2].owner}
    assert driver._leases.of(claims[1].owner) is None


def test_a_grant_that_may_have_moved_is_on_both_leases_until_it_is_known(name: str, driver: EtcdDriver, lease: Claims) -> None:
    """L3: else the one that it may be on could be renewed for ever, once it has others."""
    claim = lease(name)
    won(driver, claim).doubtful = True
    Held(driver, is_move, applies=True)
    with pytest.raises(OutcomeUnknown):
        renew(driver, claim)
    newest = driver._leases._spare[30][-1]
    assert claim.owner in newest.grants
    assert newest is not driver._leases.of(claim.owner)


def test_a_grant_that_moves_by_itself_takes_a_lease_that_was_renewed_since_it_was_asked(
    etcd: Etcd, name: str, driver: EtcdDriver, driver_for: Drivers, lease: Claims
) -> None:
    """L5: the holder counts from the request."""
    other = driver_for(etcd.url(SHARED))
    claims = [lease(f"{name}-{number}") for number in range(3)]
    for claim in claims:
        won(other, claim)
    already = won(driver, lease(name))
    for claim in claims[:2]:
        assert renew(driver, claim) == [True]
    assert renew(driver, *claims) == [True] * 3
    mine = [driver._leases.of(claim.owner) for claim in claims]
    assert already not in mine
    assert mine[0] is not mine[1], "the second was asked for when the first had its lease already"


def test_after_the_store_was_away_all_grants_are_moved_and_checked(
    name: str, driver_for: Drivers, lease: Claims, is_answered: Callable[[EtcdDriver], bool]
) -> None:
    """It may have been restored from a snapshot, in which older keys are bound to that etcd lease."""
    with Etcd() as server:
        driver = driver_for(server.url(SHARED))
        kept, taken_away = [lease(f"{name}-{number}") for number in range(3)], lease(name)
        before = win(driver, [*kept, taken_away])
        server.restart()
        wait_until(lambda: driver.link.stream == 0, what="the end of the stream")
        wait_until(lambda: is_answered(driver), what="an answer")
        server.do("kv/deleterange", key=f"rota/leases/{name}".encode())
        assert renew(driver, *kept, taken_away) == [True, True, True, False]
        assert not before & {lease_of(server, claim) for claim in kept}
        assert won(driver, lease(f"{name}-later")).id not in before


def test_grants_of_one_length_that_are_renewed_for_another_are_on_another_lease(
    etcd: Etcd, name: str, driver: EtcdDriver, lease: Claims
) -> None:
    claims = [lease(f"{name}-{number}", 30) for number in range(3)]
    before = win(driver, claims)
    longer = [claim._replace(ttl=60 * SECOND) for claim in claims]
    assert renew(driver, *longer) == [True] * 3
    found: Any = etcd.do("kv/lease/timetolive", ID=lease_of(etcd, claims[0]))
    assert int(found["grantedTTL"]) == 60
    assert not before & {lease_of(etcd, claim) for claim in claims}
    assert renew(driver, *longer) == [True] * 3


def test_another_client_that_renews_a_grant_takes_it_off_the_shared_lease(
    etcd: Etcd, name: str, driver: EtcdDriver, driver_for: Drivers, lease: Claims
) -> None:
    """L3: it must not keep what else is there alive."""
    claim, neighbour = lease(name), lease(f"{name}-2")
    shared = won(driver, claim).id
    assert won(driver, neighbour).id == shared
    other = driver_for(etcd.url())
    assert renew(other, claim) == [True]
    assert lease_of(etcd, claim) != shared
    assert lease_of(etcd, neighbour) == shared
    assert renew(driver, neighbour) == [True]


def test_windows_too_are_on_shared_leases(etcd: Etcd, name: str, connect: Callable[..., rota.Client]) -> None:
    client = connect(etcd.url(SHARED))
    windows = [client.try_window(f"{name}-{number}", rota.Every("1h")) for number in range(5)]
    assert all(windows)
    owners = [window._owner for window in windows]
    assert len({client.driver._leases.of(owner).id for owner in owners}) < 5
    for window in windows:
        window.handled()
    for number in range(5):
        refused = client.try_window(f"{name}-{number}", rota.Every("1h"))
        assert refused.verdict == HANDLED


def test_threads_that_share_leases_never_hold_a_name_twice(etcd: Etcd, name: str, driver_for: Drivers, lease: Claims) -> None:
    """L1, L2: while answers to claims and moves are lost, and etcd leases are left by all."""
    drivers, names = [driver_for(etcd.url(SHARED)) for _ in range(2)], [f"{name}-{number}" for number in range(6)]
    holders: dict[str, str] = {}
    tokens: dict[str, list[int]] = {each: [] for each in names}
    wrong: list[str] = []
    for driver in drivers:
        _lose_answers(driver)

    def work(driver: EtcdDriver, seed: int) -> None:
        try:
            for round_ in range(25):
                _hold_once(driver, lease(names[(seed + round_) % len(names)]), holders, tokens, wrong)
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(drivers[seed % 2], seed)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
    assert all(sorted(set(each)) == each for each in tokens.values()), "a token is smaller than an earlier one"
    assert sum(map(len, tokens.values())) > 20


def _lose_answers(driver: EtcdDriver) -> None:
    """Lose the answer to each tenth write, whatever became of it, and every other time the request itself."""
    call, count = driver.link.call, [0]

    def losing(request: Any, deadline: float, *, writes: bool = False) -> Any:
        count[0] += writes
        if writes and count[0] % 10 == 0:
            if count[0] % 20:
                call(request, deadline, writes=writes)
            raise OutcomeUnknown("no answer")
        return call(request, deadline, writes=writes)

    driver.link.call = losing


def _hold_once(driver: EtcdDriver, claim: Claim, holders: dict[str, str], tokens: dict[str, list[int]], wrong: list[str]) -> None:
    """Claim, renew and release as the engine does, which asks until it knows."""
    verdict = _known(lambda: driver.claim(claim, 5.0))
    if verdict.verdict != WON:
        return
    if holders.setdefault(claim.name, claim.owner) != claim.owner:
        wrong.append(f"{claim.name} is held twice")
    tokens[claim.name].append(verdict.record.token)
    held = _known(lambda: _all_known(renew(driver, claim)))
    if held != [True]:
        wrong.append(f"{claim.name}: {held}")
    if holders.get(claim.name) != claim.owner:
        wrong.append(f"{claim.name} was taken from its holder")
    del holders[claim.name]
    settled = _known(lambda: driver.settle(Settlement(claim.name, claim.owner, RELEASED, DAY), 5.0))
    if not settled.applied and settled.record.token <= verdict.record.token:  # L4: asked again after a later grant, it says so
        wrong.append(f"{claim.name}: its release was lost")


def _all_known(held: list[bool | None]) -> list[bool | None]:
    if None in held:
        raise Unavailable("no answer")
    return held


def _known(ask: Callable[[], Any]) -> Any:
    while True:
        try:
            return ask()
        except Unavailable:
            continue
