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
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from weakref import ref

from psycopg import OperationalError, pq
from psycopg.conninfo import make_conninfo
from psycopg.pq.abc import PGconn, PGresult
from rota.errors import ConfigurationError, RotaError, Unavailable

from ._wire import Statement

T = TypeVar("T")

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

    def break_off(self) -> None:
        """Have whoever waits for something to read, perhaps on another thread, be told that it has ended."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.fd)) as copied:
            copied.shutdown(socket.SHUT_RDWR)

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


class Promise:
    """A connection that comes once, or why none does.

    Whoever waits for it may be left by the handler of a signal with an exception (Ctrl-C), at any instruction. A
    `concurrent.futures.Future` has a `threading.Condition`, which that can leave locked for good, and with it who brings the connection.
    """

    __slots__ = ("__weakref__", "_come", "tell")

    def __init__(self) -> None:
        self._come: SimpleQueue[Link | Exception] = SimpleQueue()
        #: Called, by whoever brings it, when it is there.
        self.tell: Callable[[], object] | None = None

    def bring(self, what: Link | Exception) -> None:
        """Hand over what has come."""
        self._come.put(what)
        if self.tell is not None:
            self.tell()

    def is_there(self) -> bool:
        """Say whether it has come."""
        return not self._come.empty()

    def result(self, seconds: float) -> Link:
        """Return the connection; wait for it at most so long.

        Raises:
            Empty: It has not come.
            RotaError: There is none.
        """
        what = self._come.get(timeout=seconds)
        if isinstance(what, Exception):
            raise what
        return what


class Pool:
    """Connections for both faces. They are made by a thread each, so that a caller leaves at its deadline whatever the network does.

    There is no lock: the handler of a signal may use the pool in the middle of any of this, and wait, or raise. Each step is one call of
    a container; connections and promises are known weakly, so that what an interrupted caller had is closed, and nobody waits in its name.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        self._closed = False
        self._open: set[ref[Link]] = set()
        self.reset()

    def reset(self) -> None:
        """Forget all connections without a word to the server: for a forked child (L10), and to begin with."""
        for known in self._open.copy():
            link = known()
            if link is not None:
                _of_the_parent.append(link.pgconn)
                with contextlib.suppress(OSError):
                    os.close(link.fd)
        self._open = set()
        self._idle: deque[Link] = deque()
        self._waiting: deque[ref[Promise]] = deque()
        self._dialling: set[threading.Thread] = set()

    def take(self, urgent: bool = False) -> Link | Promise:
        """Return an idle connection, or a promise of one. Renewals are urgent: they pass those who wait, and the limit of connections."""
        while (link := self._next(self._idle)) is not None and not self._closed:
            if not link.has_come(0.0):  # the server's goodbye, the end, or a changed setting
                return link
            self._end(link)
        promise = Promise()
        (self._waiting.appendleft if urgent else self._waiting.append)(ref(promise))
        self._hand_out()  # what was given back since we looked
        if self._closed:  # looked at behind that: whoever closes it looks the other way round
            raise Unavailable("the client is closed")
        # for each who waits: the first go to those before us, and one whom the handler of a signal interrupted here begins none for now
        while self._begun() < len(self._waiting) and self._dial(len(self._open) + SIZE if urgent else SIZE):
            pass
        return promise

    def _begun(self) -> int:
        """Return how many connections are on their way; not one whose maker was interrupted before it began."""
        return sum(thread.ident is not None for thread in self._dialling.copy())

    def _dial(self, most: int = SIZE) -> bool:
        """Begin to connect, if there are no more connections then than that; say whether."""
        thread = threading.Thread(target=self._dialled, name="rota-postgres-connect", daemon=True)
        try:
            self._dialling.add(thread)
            if len(self._open) + len(self._dialling) > most:
                self._dialling.discard(thread)
                return False
            thread.start()
        except BaseException as error:
            self._dialling.discard(thread)
            if isinstance(error, RuntimeError) and "new thread" in str(error):
                raise Unavailable(f"no connection: {error}") from error
            if isinstance(error, RuntimeError) and error.__context__ is not None:
                # of an interrupt at one place in its wait for the thread `threading` makes "release unlocked lock"
                raise error.__context__ from None
            raise
        return True

    def _dialled(self) -> None:
        link = error = None
        try:
            link = dial(self._options)
        except Exception as failed:
            error = failed
        if link is not None:
            self._open.add(ref(link, self._open.discard))
        self._dialling.discard(threading.current_thread())
        if link is not None:
            self.give(link)
        elif error is not None:
            promise = self._next_in_line()
            if promise is not None:
                promise.bring(error)
            if self._waiting and not self._dialling and not self._open:
                with contextlib.suppress(Unavailable):
                    self._dial()

    @staticmethod
    def _next(of: deque[T]) -> T | None:
        """Take the newest; None if there is none."""
        try:
            return of.pop()
        except IndexError:
            return None

    def _next_in_line(self) -> Promise | None:
        """Return who has waited longest, who waits no more; None if nobody waits."""
        while self._waiting:
            with contextlib.suppress(IndexError):  # another thread, or a handler, took it
                promise = self._waiting.popleft()()
                if promise is not None:
                    return promise
        return None

    def _hand_out(self) -> None:
        """Bring idle connections to those who wait."""
        while self._waiting and (link := self._next(self._idle)) is not None:
            promise = self._next_in_line()
            if promise is None:
                self._idle.append(link)
            else:
                promise.bring(link)

    def _end(self, link: Link) -> None:
        self._open.discard(ref(link))
        link.close()

    def give(self, link: Link) -> None:
        """Hand a connection to who waits for one, or keep it."""
        if ref(link) not in self._open:  # made before a fork
            return
        self._idle.append(link)
        if not self._closed:
            self._hand_out()
        while len(self._idle) > (0 if self._closed else IDLE) and (idle := self._next(self._idle)) is not None:
            self._end(idle)

    def drop(self, link: Link) -> None:
        """Throw a connection away."""
        if ref(link) in self._open:
            self._end(link)
        if self._waiting and not self._dialling:
            with contextlib.suppress(Unavailable):
                self._dial()

    def leave(self, promise: Promise) -> None:
        """Wait for a promise no longer."""
        with contextlib.suppress(ValueError):
            self._waiting.remove(ref(promise))
        with contextlib.suppress(Empty, RotaError):
            self.give(promise.result(0.0))

    def close(self) -> None:
        """Close the idle connections; those in use are closed when they are given back."""
        self._closed = True
        while (link := self._next(self._idle)) is not None:
            self._end(link)
        while (promise := self._next_in_line()) is not None:
            promise.bring(Unavailable("the client is closed"))
