# SPDX-License-Identifier: MIT
"""What kazoo takes from its handler: threads, sockets, and results. Here they are made so that an answer has a short way.

kazoo's own handler makes an epoll for each look at a socket, of which a request takes five; a condition for each result; and lets two more
threads carry answers and events to whoever waits. Here an answer, or an event, is handed on by the thread that reads it, so what is called
then must not wait; it may send.
"""

from __future__ import annotations

import select
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from kazoo.client import CLOSED_STATES, KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionClosedError, SessionClosedRequireSaslError
from kazoo.handlers.threading import _STOP, KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from rota.errors import Unavailable

from ._files import WrongFile, check_files

#: TLS that the other side ended, which says nothing of a certificate.
ENDED = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
#: How long one server has to take a connection, seconds, before the next one is tried; kazoo would wait as long as the session lasts.
CONNECT = 1.0
#: How long those of several servers that come before the one that answers may keep silent in the first round, seconds: a call then has time
#: left for that one. In later rounds each has as long as kazoo gives it: a part of the session's timeout.
HURRY = 1.0


class Queue(SimpleQueue[Any]):
    """What kazoo's threads have to do. The handler of a signal may put something in while the thread that it interrupts does."""

    def task_done(self) -> None:
        """Nobody waits for that."""


class Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's connection, which takes it for a refusal of its user when a server that wants SASL lets it in no further."""

    def _authenticate_with_sasl(self, host: str, timeout: float) -> None:
        try:
            super()._authenticate_with_sasl(host, timeout)
        except SessionClosedRequireSaslError as error:  # of which kazoo (2.11) lets its thread die
            raise AuthFailedError from error


class Client(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """kazoo's client, which says of no request that it was not sent when it was."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._connection.__class__ = Connection  # kazoo takes none, and makes its own

    def _call(self, request: Any, async_object: Any) -> bool | None:
        if self._state in CLOSED_STATES:
            refused: bool = super()._call(request, async_object)
            return refused
        self._queue.append((request, async_object))
        # kazoo (2.11) takes here whatever the handler of a signal raises (Ctrl-C) for a closed connection, and the request is sent
        try:
            self._connection._write_sock.send(b"\0")
        except (AttributeError, OSError):
            async_object.set_exception(ConnectionClosedError("Connection has been closed"))
        return None


class Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threads, with a bound for connecting, and with a memory for what is wrong with a server's certificate.

    Attributes:
        attempts: How often it has tried to connect since it was connected last.
        are_requests: Says whether any wait to be sent.
        are_unanswered: Says whether any were sent that are not answered yet.
        patience: How long the server may leave them so without a word, seconds.
        is_over: Whether one of its threads has ended, or is about to.
        at_end: Called when that has come.
        failure: Why the last attempt to connect failed; None after one that did not.
        refusal: How TLS failed, unless a server was connected to since.
    """

    queue_impl = Queue

    def __init__(self, log: Any) -> None:
        super().__init__()
        self.servers = 1
        self.attempts = 0
        self.are_requests: Callable[[], object] = lambda: False
        self.are_unanswered: Callable[[], object] = lambda: False
        self.patience = float("inf")
        self.is_over = False
        self.at_end: Callable[[], object] = lambda: None
        self._silent_since: float | None = None
        self.failure: OSError | None = None
        self.refusal: Exception | None = None
        self._log = log

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> threading.Thread:
        def run() -> None:
            try:
                func(*args, **kwargs)
            finally:
                self.is_over = True
                self.at_end()

        try:
            thread: threading.Thread = super().spawn(run)
        except RuntimeError as error:
            if "new thread" in str(error):
                raise Unavailable(f"no connection: {error}") from error
            if error.__context__ is not None:
                # of an interrupt at one place in its wait for the thread `threading` makes "release unlocked lock"
                raise error.__context__ from None
            raise
        thread.name = f"kazoo-{thread.name}"
        return thread

    def end(self) -> None:
        """Let threads end that `stop` knows nothing of, since the handler of a signal raised while they were started."""
        for queue in (self.completion_queue, self.callback_queue):
            queue.put(_STOP)

    @property
    def share(self) -> float:
        """How long the server that is tried now may keep silent."""
        return HURRY / (self.servers - 1) if 0 < self.attempts <= self.servers > 1 else float("inf")

    def create_connection(self, *args: Any, timeout: float, **kwargs: Any) -> Any:
        self.attempts += 1
        try:
            check_files(kwargs)  # they may be others than at the start
            connection = super().create_connection(*args, timeout=min(timeout, CONNECT, self.share), **kwargs)
        except OSError as error:
            self.failure = error
            if isinstance(error, (ssl.SSLError, WrongFile)) and not isinstance(error, ENDED):
                self.refusal = error
            _close_tls(error)
            raise
        self.failure = self.refusal = None
        return connection

    def create_socket_pair(self) -> tuple[Bell, Bell]:
        ear, clapper = super().create_socket_pair()
        bell = Bell(ear, clapper, self.are_requests)
        return bell, bell

    def select(self, reading: list[Any], writing: list[Any], errors: list[Any], timeout: float | None = None) -> Any:
        if timeout is not None:
            timeout = min(timeout, self.share)
        if hasattr(select, "poll"):
            found = _poll(reading, writing, timeout)
        else:  # Windows
            found = super().select(reading, writing, errors, timeout)
        if len(reading) > 1:  # the connection and the bell: what a client that is connected waits for
            self._hear(reading[0] in found[0])
        return found

    def _hear(self, anything: bool) -> None:
        """Leave a server that owes an answer and says nothing.

        kazoo (2.11) asks for a sign of life only where nothing else was sent for a while: who asks for something again and again, as a
        heartbeat does, would never leave a server that hangs.
        """
        if anything or not self.are_unanswered():
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = time.monotonic()
        elif time.monotonic() - self._silent_since > self.patience:
            raise KazooTimeoutError("requests are not answered")

    def event_object(self) -> Flag:
        return Flag()

    def async_result(self) -> Result:
        return Result(self._log)

    def dispatch_callback(self, callback: Any) -> None:
        _call(self._log, callback.func, *callback.args)


def _poll(reading: list[Any], writing: list[Any], timeout: float | None) -> tuple[list[Any], list[Any], list[Any]]:
    poll = select.poll()
    for source in reading:
        poll.register(source, select.POLLIN)
    for source in writing:
        poll.register(source, select.POLLOUT)
    ready = [number for number, _ in poll.poll(None if timeout is None else timeout * 1000)]
    return [one for one in reading if one.fileno() in ready], [one for one in writing if one.fileno() in ready], []


def _close_tls(error: OSError) -> None:
    """Close the socket of a handshake that failed: kazoo (2.11) leaves it to the collector, and so open for as long as the error lives."""
    frame = error.__traceback__
    while frame is not None:
        for found in frame.tb_frame.f_locals.values():
            if isinstance(found, ssl.SSLSocket):
                found.close()
        frame = frame.tb_next


class Bell:
    """Both ends of the pair of sockets by which kazoo is woken to send: there is a byte in it while there are requests.

    With a byte for each, which is what kazoo reads and writes, some 300 of them fill it. Who sends more waits then, and the thread that
    reads would wait for itself. And one whom the handler of a signal interrupted before he rang would leave the last of all requests that
    follow without a byte. So here the requests themselves say whether there are any: nothing is counted, and nothing is locked.
    """

    def __init__(self, ear: Any, clapper: Any, are_any: Callable[[], object]) -> None:
        self._ear, self._clapper = ear, clapper
        self._are_any = are_any
        ear.setblocking(False)
        clapper.setblocking(False)

    def fileno(self) -> int:
        """What is ready to be read while there are requests."""
        number: int = self._ear.fileno()
        return number

    def send(self, data: bytes) -> int:
        """Ring for one more request."""
        with suppress(BlockingIOError):  # it is full: it rings
            self._clapper.send(data)
        return 1

    def recv(self, _: int) -> bytes:
        """Have it ring no longer, unless there are more requests."""
        if not self._are_any():
            with suppress(BlockingIOError):
                self._ear.recv(4096)
            if self._are_any():  # one came meanwhile, and its byte may be gone
                self.send(b"\0")
        return b"\0"

    def close(self) -> None:
        """Close both ends."""
        self._ear.close()
        self._clapper.close()


class Flag:
    """What a `threading.Event` does, without a lock that the handler of a signal may leave locked by an exception."""

    __slots__ = ("_bells", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._bells: deque[threading.Lock] = deque()

    def is_set(self) -> bool:
        """Say whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake who waits."""
        self._is_set = True
        while self._bells:
            with suppress(IndexError):  # another thread took it
                self._bells.popleft().release()

    def clear(self) -> None:
        """Have it not set."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; return whether it is."""
        bell = threading.Lock()
        bell.acquire()
        self._bells.append(bell)
        if not self._is_set:  # looked at behind that: who sets it looks the other way round
            bell.acquire(timeout=-1 if timeout is None else max(0.0, min(timeout, threading.TIMEOUT_MAX)))
        with suppress(ValueError):
            self._bells.remove(bell)
        return self._is_set


class Result:
    """A value or an exception that comes once (`kazoo.interfaces.IAsyncResult`).

    Callbacks are called by the thread that brings it. No lock is needed: each is run by whoever takes it from the list, and it is put
    there before looking whether the value has come.
    """

    __slots__ = ("_callbacks", "_come", "_error", "_log", "value")

    def __init__(self, log: Any) -> None:
        self.value: Any = None
        self._error: Exception | None = None
        self._come = False
        self._callbacks: list[Callable[[Result], object]] = []
        self._log = log

    def ready(self) -> bool:
        """Say whether it has come."""
        return self._come

    def successful(self) -> bool:
        """Say whether it is a value that has come."""
        return self._come and self._error is None

    @property
    def exception(self) -> Exception | None:
        """The exception that has come, if it is one."""
        return self._error

    def set(self, value: Any = None) -> None:
        """Bring the value."""
        self.value = value
        self._error = None
        self._come = True
        self._call()

    def set_exception(self, exception: Exception) -> None:
        """Bring an exception."""
        self._error = exception
        self._come = True
        self._call()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the value, or raise the exception; wait for it where that is asked for."""
        if not self._come and not (block and self.wait(timeout)):
            raise KazooTimeoutError
        if self._error is not None:
            raise self._error
        return self.value

    def get_nowait(self) -> Any:
        """Return the value, or raise the exception."""
        return self.get(block=False)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has come; return whether it has."""
        if self._come:
            return True
        bell = threading.Lock()
        bell.acquire()

        def ring(_: Result) -> None:
            bell.release()

        self.rawlink(ring)
        if not bell.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
            self.unlink(ring)
        return self._come

    def rawlink(self, callback: Callable[[Result], object]) -> None:
        """Have a function called when it comes, or now."""
        self._callbacks.append(callback)
        if self._come:
            self._call()

    def unlink(self, callback: Callable[[Result], object]) -> None:
        """Have it not called any more."""
        with suppress(ValueError):
            self._callbacks.remove(callback)

    def _call(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return  # somebody else took it
            _call(self._log, callback, self)


def _call(log: Any, function: Callable[..., object], *arguments: Any) -> None:
    try:
        function(*arguments)
    except Exception:  # it would end the thread that reads
        log.exception("a callback failed")


__all__ = ["CONNECT", "Bell", "Client", "Flag", "Handler", "Result"]
