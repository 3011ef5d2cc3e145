# SPDX-License-Identifier: MIT
"""A member's wall clock, as an interval: etcd's gRPC API tells no time, but every HTTP answer of a member has a ``Date`` of whole seconds.

A second S that was read between the local instants t0 and t1 says that the member's clock is ahead of ours by more than S - t1 and less
than S + 1 - t0. Intersected over answers, the interval shrinks to about the time between two answers around the turn of a second. An
interval that is empty says that the clock was set: the newest answer alone counts then. The local clock is monotonic: what this host
takes for the time of day never enters.
"""

from __future__ import annotations

import http.client
import math
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from email.utils import mktime_tz, parsedate_tz
from functools import partial
from typing import Any, Protocol

from rota.backend import Now

from ._url import Settings

#: The widest interval that decides a window, and what it is narrowed to once it is wider, seconds. A slower network adds its round trip.
BOUND, GOAL = 0.1, 0.02
#: How often the member is asked while the turn of a second is awaited, seconds.
STEP = 0.005
#: An answer counts as new for so long, seconds: a clock that was set is noticed within it.
FRESH = 1.0
#: After the member could not be asked, it is left alone for so long, seconds; and one try takes this long at most, unless it is made by
#: whom nothing else helps.
PAUSE, PATIENCE = 5.0, 0.5
#: Less time than this is not worth a try, seconds.
LEAST = 0.02
#: Which part of the time one try takes at the most, unless that is less than so many seconds.
SHARES, SHARE = 3, 0.1
#: By how much two clocks may drift apart.
DRIFT = 200e-6

if hasattr(time, "CLOCK_BOOTTIME"):
    #: Seconds on a clock that runs through suspend.
    monotonic: Callable[[], float] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
else:
    monotonic = time.monotonic


class Clock(Protocol):
    """What tells the store's time."""

    def interval(self, deadline: float, sharp: bool) -> Now | None:
        """Return an interval that holds it, no wider than `BOUND` if ``sharp`` and half the time allows it; None if nothing is known."""

    def after_fork(self) -> None:
        """In a forked child: forget the connection and the lock."""


class LocalClock:
    """This host's clock, where the user asks for it by name (``?clock=local``)."""

    def interval(self, deadline: float, sharp: bool) -> Now | None:
        """As `Clock.interval`."""
        now = time.time_ns() // 1000
        return now, now

    def after_fork(self) -> None:
        """As `Clock.after_fork`."""


class MemberClock:
    """The clock of one member, asked at ``/version``, which needs neither credentials nor a quorum."""

    def __init__(self, host: str, port: int, context: Callable[[], ssl.SSLContext] | None) -> None:
        self._address = host, port
        self._context = context
        self._known = -math.inf, math.inf, 0.0  # the member's time less ours: at least, at most, and when
        self._asked_at = -math.inf
        self._retry_at = 0.0
        self._round_trip = math.inf
        self.after_fork()

    def after_fork(self) -> None:
        """As `Clock.after_fork`: the parent's socket is left to it, what is known stays known."""
        # one thread at a time asks anew, and one narrows; the handler of a signal may come meanwhile, and do the same
        self._asking, self._narrowing = threading.RLock(), threading.RLock()
        self._idle: deque[http.client.HTTPConnection] = deque()  # one, mostly; whoever uses it takes it out

    def interval(self, deadline: float, sharp: bool) -> Now | None:
        """As `Clock.interval`."""
        now = monotonic()
        if now - self._asked_at > FRESH:
            is_known = self._is_known()
            # where nothing comes back, there is time left to find out that all but HTTP answers
            share = max(SHARE, (deadline - now) / SHARES)
            until = min(deadline, now + (share if sharp and not is_known else min(PATIENCE, share)))
            # whoever knows something goes on with that while another one asks
            self._alone(self._asking, 0.0 if is_known else until - now, lambda: self._refresh(until, sharp))
            now = monotonic()
        if sharp:
            half = now + (deadline - now) / 2  # the rest is for what the time is wanted for
            self._alone(self._narrowing, half - now, lambda: self._narrow(half))
            now = monotonic()
        low, high = self._bounds(now)
        return None if math.isinf(low) else (int((now + low) * 1e6), int((now + high) * 1e6) + 1)

    @staticmethod
    def _alone(lock: Any, seconds: float, what: Callable[[], None]) -> None:
        if lock.acquire(timeout=max(0.0, seconds)):
            try:
                what()
            finally:
                lock.release()

    def _is_known(self) -> bool:
        return not math.isinf(self._known[0])

    def _bounds(self, now: float) -> tuple[float, float]:
        low, high, at = self._known  # in one piece: another thread may be at it
        drift = DRIFT * max(0.0, now - at)
        return low - drift, high + drift

    def _width(self) -> float:
        low, high = self._bounds(monotonic())
        return high - low

    def _refresh(self, deadline: float, sharp: bool) -> None:
        now = monotonic()
        # who depends on the time, of which nothing is known, asks whatever befell the others: the member may be back
        if now - self._asked_at > FRESH and (now >= self._retry_at or (sharp and not self._is_known())):
            self._ask(deadline)

    def _narrow(self, deadline: float) -> None:
        """Look out for the turn of a second: at most one second, unless the member answers too late to tell it well."""
        bound, goal = max(BOUND, 3 * self._round_trip), max(GOAL, 2 * self._round_trip)
        width = self._width()
        if width <= bound or math.isinf(width):
            return
        soon = min(deadline, monotonic() + 1.5)
        while (width := self._width()) > goal:
            now = monotonic()
            if now >= (deadline if width > bound else soon) or now < self._retry_at:
                break
            low, high = self._bounds(now)
            turn = math.floor(now + low) + 1 - high  # when the member's next second can begin at the earliest
            time.sleep(max(0.0, min(turn, deadline) - now))
            now = monotonic()
            self._ask(min(deadline, now + max(PATIENCE, (deadline - now) / SHARES)))
            if self._width() > goal:
                time.sleep(STEP)

    def _ask(self, deadline: float) -> None:
        """Take one answer in; whatever goes wrong is left for later."""
        sent = monotonic()
        if deadline - sent < LEAST:
            return  # no answer in so short a time says nothing of the member
        try:
            second = self._date(deadline - sent)
            received = monotonic()
        except (OSError, ValueError, http.client.HTTPException):
            self._retry_at = monotonic() + PAUSE
            return
        low, high = second - received, second + 1 - sent
        known_low, known_high = self._bounds(received)
        if max(low, known_low) < min(high, known_high):
            low, high = max(low, known_low), min(high, known_high)
        self._known = low, high, received
        self._asked_at, self._retry_at = received, 0.0
        self._round_trip = min(self._round_trip, received - sent)

    def _date(self, timeout: float) -> int:
        connection, response = None, None
        with suppress(IndexError):
            connection = self._idle.pop()
        if connection is not None:
            with suppress(ConnectionError, http.client.HTTPException):  # the server has closed an idle one
                response = _get(connection, timeout)
        if connection is None or response is None:
            connection = self._connect(timeout)
            response = _get(connection, timeout)
        self._idle.append(connection)
        while len(self._idle) > 1:
            with suppress(IndexError):
                self._idle.popleft().close()
        parsed = parsedate_tz(response.getheader("Date") or "")
        if parsed is None:
            raise ValueError("an answer without a date")
        return mktime_tz(parsed)

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        host, port = self._address
        if self._context is None:
            return http.client.HTTPConnection(host, port, timeout=timeout)
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._context())


def _get(connection: http.client.HTTPConnection, timeout: float) -> http.client.HTTPResponse:
    try:
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        connection.request("GET", "/version")
        response = connection.getresponse()
        response.read()
    except BaseException:
        connection.close()
        raise
    return response


#: The members' clocks that this process knows: what one driver has learned, the next one need not.
_known: dict[tuple[object, ...], MemberClock] = {}


def members(settings: Settings) -> list[Clock]:
    """Return the clock of each endpoint."""
    if settings.clock == "local":
        return [LocalClock()] * len(settings.addresses)

    def context() -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=settings.cacert or None)
        if settings.cert:
            made.load_cert_chain(settings.cert, settings.key)
        return made

    found: list[Clock] = []
    for host, port in settings.addresses:
        key = (host, settings.http_port or port, settings.tls, settings.cacert, settings.cert, settings.key)
        found.append(_known.setdefault(key, MemberClock(host, settings.http_port or port, context if settings.tls else None)))
    return found
