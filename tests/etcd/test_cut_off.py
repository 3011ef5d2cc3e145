# SPDX-License-Identifier: MIT
"""A client whose packets go nowhere: its connections stay open, and nothing comes or goes (L6, F1)."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import rota
from rota.backend import RELEASED, WON, Claim, Renewal, Settlement
from rota.duration import DAY
from rota.errors import LeaseLost, Unavailable
from rota_etcd import EtcdDriver
from servers import HOST, Etcd, wait_until

PATIENCE = 10.0


class Wire(threading.Thread):
    """Passes bytes on to a port, until it is cut."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._to = port
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self.is_cut = False
        self.is_over = False
        self.forgets = False
        self.start()

    def run(self) -> None:
        pairs: dict[socket.socket, socket.socket] = {}
        forgotten: list[socket.socket] = []
        while not self.is_over:
            if self.forgets:
                forgotten += pairs
                pairs.clear()
                self.forgets = False
            watched = [] if self.is_cut else [self._listener, *pairs]
            ready = select.select(watched, [], [], 0.02)[0] if watched else time.sleep(0.02) or []
            for end in ready:
                if self.is_cut:
                    break
                if end is self._listener:
                    here = end.accept()[0]
                    there = socket.create_connection((HOST, self._to))
                    pairs |= {here: there, there: here}
                    continue
                with contextlib.suppress(OSError):
                    data = end.recv(65536)
                    if data:
                        pairs[end].sendall(data)
                        continue
                other = pairs.pop(end)
                pairs.pop(other, None)
                end.close()
                other.close()
        for end in [self._listener, *pairs, *forgotten]:
            end.close()

    def forget(self) -> None:
        """Pass nothing on of the connections that are open, without a word to either end; new ones are made as before."""
        self.forgets = True
        wait_until(lambda: not self.forgets)

    def end(self) -> None:
        self.is_over = True
        self.join()


@pytest.fixture
def wire(etcd: Etcd) -> Iterator[Wire]:
    made = Wire(etcd.port)
    yield made
    made.end()


@pytest.mark.by_the_clock
def test_a_holder_that_is_cut_off_knows_before_others_can_win(
    etcd: Etcd, wire: Wire, name: str, connect: Callable[..., rota.Client], stopwatch: Any
) -> None:
    told: list[float] = []
    cut_off, other = connect(f"etcd://{HOST}:{wire.port}", timeout=1.5), connect(etcd.url())
    grant = cut_off.try_lease(name, ttl="2s", on_lost=lambda grant: told.append(time.monotonic()))
    since = grant._deadline
    wait_until(lambda: grant._deadline > since, 5, "a renewal through the wire")
    wire.is_cut = True
    began = stopwatch()
    with pytest.raises(Unavailable):
        cut_off.try_lease(f"{name}-more")
    assert began.seconds < 1.5 + 1.0
    won = other.try_lease(name, wait=20)
    at = time.monotonic()
    assert won
    assert won.token > grant.token
    with pytest.raises(LeaseLost):
        grant.check()
    assert told, "the holder was not told"
    assert told[0] < at, "another one had won before the holder was told"
    wire.is_cut = False
    wait_until(lambda: cut_off.try_lease(f"{name}-more", on_unavailable="skip"), 10, "the client works again")
    with pytest.raises(LeaseLost):
        grant.release()
    won.check()


def test_f4_a_connection_that_is_dead_without_a_word_is_left_for_a_new_one(
    wire: Wire, name: str, driver_for: Callable[[str], EtcdDriver], lease: Callable[..., Claim], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a balancer whose member stands still: gRPC itself would take up to a minute."""
    monkeypatch.setattr("rota_etcd._link.SETTLED", 0.0)
    driver = driver_for(f"etcd://{HOST}:{wire.port}/?clock=local")
    held = lease(name)
    assert driver.claim(held, PATIENCE).verdict == WON
    renewal = Renewal(name, held.owner, held.ttl, held.retention)
    assert driver.renew([renewal], PATIENCE).held == [True]
    wire.forget()
    with pytest.raises(Unavailable):
        driver.renew([renewal], 0.3)
    assert driver.renew([renewal], PATIENCE).held == [True]
    assert driver.claim(lease(f"{name}-2"), PATIENCE).verdict == WON
    wire.forget()
    with pytest.raises(Unavailable):
        driver.read(name, 0.3)
    assert driver.settle(Settlement(name, held.owner, RELEASED, DAY), PATIENCE).applied
