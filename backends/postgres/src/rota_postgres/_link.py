# SPDX-License-Identifier: MIT
"""Connections: one conversation at a time, every wait bounded, and a small pool of them for both faces.

`psycopg.pq` is used rather than `psycopg.Connection`: its waits have no deadline, and it may prepare statements and open transactions,
which a pooler in transaction mode mixes up between clients. Here each statement is sent alone, unnamed, in autocommit.

`psycopg_pool` (3.3.3) was tried in the place of `Pool`, and can't keep what is promised:

- A server that refuses us (wrong password, no such role) is a ``PoolTimeout`` without a cause, after the whole timeout: as if it were down.
- A ``Connection`` of it that is executing waits for a stopped server without end, so all of `Link` is needed all the same.
- Whether a connection is still good it finds out by a round trip (66 µs), or not at all, and then the call fails. Here one `poll` tells;
  taking and giving back costs 2 µs with it, there 4 µs without.
- Blocking and async pools are two classes and can't share connections; each starts 4 threads (1 here, while it connects), costs 12 ms of
  import, and can't be forked (L10).
- Nobody passes those who wait, and the limit: renewals must.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from psycopg import OperationalError, pq
from psycopg.conninfo import make_conninfo
from psycopg.pq.abc import PGconn, PGresult
from rota.errors import ConfigurationError, Unavailable

from ._wire import Statement

#: Connections of one driver at the most, and of them the ones kept while idle.
SIZE, IDLE = 10, 4
#: How long one address is tried, seconds, unless the URL's ``connect_timeout`` says otherwise. A call that can't wait so long leaves; the
#: connection then serves the next one.
DIAL = 3.0
#: How long those of several addresses that come before the one that serves may keep silent, seconds: a call has time left for that one.
HURRY = 0.8

#: What the server says in text only, since a connection that failed has no SQLSTATE: wrong credentials are no outage (F2).
_REFUSED = re.compile(
    rb"authentication failed|no password supplied|does not exist|pg_hba\.conf|permission denied|not permitted to log in|SCRAM|"
    rb"certificate|does not support SSL|unsupported startup parameter|no such user|no such database|auth failed|SSL required|"
    rb"requires? SSL|invalid (?:connection option|\w+ value)|root\.crt|private key|could not read"
)

#: Connections that a fork copied; never collected, since that would speak to the parent's server.
_of_the_parent: list[PGconn] = []


class Late(Exception):
    """No answer by the deadline."""


class Silent(OperationalError):
    """A server did not answer in its time."""


class Link:
    """One connection. `writing`: not all of the statement is sent yet, so that writing would be welcome too."""

    def __init__(self, pgconn: PGconn) -> None:
        self.pgconn = pgconn
        self.fd = pgconn.socket
        self.has_come = _reading(self.fd)
        self.writing = False
        self._last: PGresult | None = None

    def ask(self, statement: Statement, values: Sequence[Any]) -> None:
        """Send a statement, or as much of it as the socket takes.

        Raises:
            OperationalError: The connection is gone.
        """
        self.pgconn.send_query_params(statement.text, statement.encode(values), statement.oids, statement.formats, 1)
        self.writing = bool(self.pgconn.flush())

    def answer(self) -> PGresult | None:
        """Return the answer as soon as all of it has come; to be called whenever the socket is ready.

        Raises:
            OperationalError: The connection is gone.
        """
        pgconn = self.pgconn
        pgconn.consume_input()
        if self.writing:
            self.writing = bool(pgconn.flush())
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is not None:
                self._last = result
                continue
            last, self._last = self._last, None
            if last is None or pgconn.status == pq.ConnStatus.BAD:
                raise OperationalError(pgconn.get_error_message())
            return last
        return None

    def notified(self) -> list[str]:
        """Return the payloads of the notifications that have come."""
        self.pgconn.consume_input()
        found = []
        while (notification := self.pgconn.notifies()) is not None:
            found.append(notification.extra.decode())
        return found

    def close(self) -> None:
        """Close it; never waits, since the socket is non-blocking."""
        self.pgconn.finish()


def _reading(fd: int) -> Callable[[float], bool]:
    """Return what waits, for at most so many seconds, until there is something to read."""
    if not hasattr(select, "poll"):  # on Windows
        return partial(ready, fd, False)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return lambda seconds: seconds >= 0 and bool(poll.poll(seconds * 1000 + 0.5 if seconds else 0))


def ready(fd: int, writing: bool, seconds: float, reading: bool = True) -> bool:
    """Wait for a socket; return False when so many seconds went by."""
    if seconds < 0:
        return False
    if hasattr(select, "poll"):  # not on Windows
        poll = select.poll()
        poll.register(fd, (select.POLLIN if reading else 0) | (select.POLLOUT if writing else 0))
        return bool(poll.poll(seconds * 1000 + 0.5 if seconds else 0))
    return any(select.select([fd] if reading else [], [fd] if writing else [], [], seconds)[:2])


# -- connecting


def dial(options: Mapping[str, str]) -> Link:
    """Connect to the first address that serves, as libpq does.

    Unlike libpq every address is bounded, and names are resolved here: libpq would stop all threads of Python meanwhile.

    Raises:
        ConfigurationError: The server won't have us.
        Unavailable: Nobody answers.
    """
    try:
        seconds = float(options.get("connect_timeout") or 0) or DIAL
    except ValueError:
        raise ConfigurationError("connect_timeout is a number of seconds") from None
    error: OperationalError | OSError | None = None
    refusal: Exception | None = None
    addresses = _addresses(options)
    if len(addresses) > 1 and not options.get("connect_timeout"):
        rounds = [HURRY / (len(addresses) - 1), seconds]  # who keeps silent in the first has all the time in the second, if nobody serves
    else:
        rounds = [seconds]
    for share in rounds:
        silent = []
        for address in addresses:
            try:
                return Link(_dial(make_conninfo(**{**options, **address}), time.monotonic() + share))
            except (OperationalError, OSError) as failed:
                error = failed
                if isinstance(failed, Silent):
                    silent.append(address)
                elif _REFUSED.search(str(failed).encode()):
                    refusal = failed
        addresses = silent
    if refusal is not None:
        raise ConfigurationError(f"the server refuses us: {in_line(refusal)}") from refusal
    raise Unavailable(f"no connection: {in_line(error)}") from error


def in_line(error: object) -> str:
    """Return libpq's message, which has a line for each attempt, as one line."""
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())


def _dial(conninfo: str, deadline: float) -> PGconn:
    pgconn = pq.PGconn.connect_start(conninfo.encode())
    while True:
        status = pgconn.connect_poll() if pgconn.status != pq.ConnStatus.BAD else pq.PollingStatus.FAILED
        if status == pq.PollingStatus.OK:
            pgconn.nonblocking = 1
            pgconn.notice_handler = None
            return pgconn
        if status == pq.PollingStatus.FAILED:
            message = pgconn.get_error_message()
            pgconn.finish()
            raise OperationalError(message)
        reading = status == pq.PollingStatus.READING
        if not ready(pgconn.socket, not reading, deadline - time.monotonic(), reading):
            pgconn.finish()
            raise Silent("the server does not answer")


def _addresses(options: Mapping[str, str]) -> list[dict[str, str]]:
    """Return what to override for each address to try, in order; resolves names."""
    hosts, ports, given = (options.get(name, "").split(",") for name in ("host", "port", "hostaddr"))
    count = max(len(hosts), len(given))
    if not any(hosts) and not any(given):
        return [{}]  # the default socket, or a service
    found: list[dict[str, str]] = []
    failure: OSError | None = None
    for number in range(count):
        host = hosts[number] if number < len(hosts) else ""
        port = ports[number] if len(ports) > 1 and number < len(ports) else ports[0]
        address = given[number] if number < len(given) else ""
        if address or not host or host[0] in "/@" or _is_address(host):
            found.append({"host": host, "port": port, "hostaddr": address})
            continue
        try:
            resolved = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            failure = OSError(f"the name {host!r} can't be resolved: {error}")
            continue
        found += [{"host": host, "port": port, "hostaddr": str(entry[4][0])} for entry in resolved]
    if not found and failure is not None:
        raise Unavailable(f"no connection: {failure}") from failure
    if options.get("load_balance_hosts") == "random":
        import random

        random.shuffle(found)
    return found


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host.partition("%")[0])
            return True
    return False


class Pool:
    """Connections for both faces. They are made by a thread each, so that a caller leaves at its deadline whatever the network does."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        self._closed = False
        self._idle: list[Link] = []
        self._open: set[Link] = set()
        self.reset()

    def reset(self) -> None:
        """Forget all connections without a word to the server: for a forked child (L10), and to begin with."""
        for link in list(self._open):
            _of_the_parent.append(link.pgconn)
            with contextlib.suppress(OSError):
                os.close(link.fd)
        self._lock = threading.Lock()
        self._idle, self._open = [], set()
        self._waiting: deque[Future[Link]] = deque()
        self._dialling = 0

    def take(self, urgent: bool = False) -> Link | Future[Link]:
        """Return an idle connection, or a promise of one. Renewals are urgent: they pass those who wait, and the limit of connections."""
        with self._lock:
            if self._closed:
                raise Unavailable("the client is closed")
            while self._idle:
                link = self._idle.pop()
                if not link.has_come(0.0):  # the server's goodbye, the end, or a changed setting
                    return link
                self._open.discard(link)
                link.close()
            promise: Future[Link] = Future()
            (self._waiting.appendleft if urgent else self._waiting.append)(promise)
            if self._dialling < len(self._waiting) and (urgent or len(self._open) + self._dialling < SIZE):
                self._dial()
            return promise

    def _dial(self) -> None:
        self._dialling += 1
        threading.Thread(target=self._dialled, name="rota-postgres-connect", daemon=True).start()

    def _dialled(self) -> None:
        link = error = None
        try:
            link = dial(self._options)
        except Exception as failed:
            error = failed
        with self._lock:
            self._dialling -= 1
            if link is not None:
                self._open.add(link)
            elif self._waiting and error is not None:
                self._waiting.popleft().set_exception(error)
                if self._waiting and not self._dialling and not self._open:
                    self._dial()
        if link is not None:
            self.give(link)

    def give(self, link: Link) -> None:
        """Hand a connection to who waits for one, or keep it."""
        with self._lock:
            if link not in self._open:  # made before a fork
                return
            if self._waiting and not self._closed:
                self._waiting.popleft().set_result(link)
            elif len(self._idle) < IDLE and not self._closed:
                self._idle.append(link)
            else:
                self._open.discard(link)
                link.close()

    def drop(self, link: Link) -> None:
        """Throw a connection away."""
        with self._lock:
            if link in self._open:
                self._open.discard(link)
                link.close()
            if self._waiting and not self._dialling:
                self._dial()

    def leave(self, promise: Future[Link]) -> None:
        """Wait for a promise no longer."""
        with self._lock:
            if promise in self._waiting:
                self._waiting.remove(promise)
                return
        if promise.done() and promise.exception() is None:
            self.give(promise.result())

    def close(self) -> None:
        """Close the idle connections; those in use are closed when they are given back."""
        with self._lock:
            self._closed = True
            for link in self._idle:
                self._open.discard(link)
                link.close()
            self._idle = []
            while self._waiting:
                self._waiting.popleft().set_exception(Unavailable("the client is closed"))
