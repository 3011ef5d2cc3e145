# SPDX-License-Identifier: MIT
"""Connections: redis-py opens them (TLS, AUTH, HELLO, SELECT); from then on rota sends and reads by itself.

So a call ends when its timeout does, nothing is repeated by a policy of another, and answers are bytes whatever the protocol. It costs
less than redis-py's own reading, too, by about 20 µs a call. Both faces have the same coroutines, which the blocking one never suspends.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry
from rota.errors import ConfigurationError, Unavailable

from ._resp import Reply, Taker
from ._url import Address
from ._wire import DENIED, TROUBLE, code_of, lost, translated

#: Connections kept open between calls, per server.
IDLE = 32

#: What redis-py says of a server that hung up on its first words, as one does that wants TLS.
HUNG_UP = ("reset by peer", "closed by server", "Connection lost", "Protocol Error", "Broken pipe")

#: Bytes read at once.
RECEIVE = 65536

# Connections that a fork copied: neither used nor closed, as either would be seen by the server (L10).
_of_the_parent: list[object] = []

monotonic = time.monotonic


def left(deadline: float) -> float:
    """Return the seconds until a deadline, as a socket takes them: zero would mean not to wait."""
    return max(0.001, deadline - monotonic())


class Maker:
    """Makes connections of one kind, from the keyword arguments of redis-py's connection classes."""

    def __init__(self, arguments: Mapping[str, Any], tls: bool) -> None:
        self._arguments = {**arguments, "decode_responses": False, "health_check_interval": 0}
        self.tls = tls

    def blocking(self, address: Address, timeout: float) -> Any:
        kinds = (redis.UnixDomainSocketConnection, redis.SSLConnection if self.tls else redis.Connection)
        # redis-py tries a call again by itself, three times, with pauses: here a call ends when its timeout does
        return self._make(kinds, address, socket_timeout=timeout, socket_connect_timeout=timeout, retry=Retry(NoBackoff(), 0))

    def asynchronous(self, address: Address) -> Any:
        """Make a connection of redis.asyncio; its timeouts are those of whoever awaits it."""
        kinds = (redis.asyncio.UnixDomainSocketConnection, redis.asyncio.SSLConnection if self.tls else redis.asyncio.Connection)
        return self._make(kinds, address, socket_timeout=None, socket_connect_timeout=None, retry=AsyncRetry(NoBackoff(), 0))

    def _make(self, kinds: tuple[type, type], address: Address, **limits: Any) -> Any:
        try:
            if isinstance(address, str):
                return kinds[0](path=address, **self._arguments, **limits)
            return kinds[1](host=address[0], port=address[1], **self._arguments, **limits)
        except (TypeError, ValueError, RedisError) as error:
            raise ConfigurationError(f"redis-py refuses these settings: {error}") from error


class Line(ABC):
    """One open connection."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.taker = Taker()

    @abstractmethod
    async def talk(self, packed: bytes, count: int, deadline: float, replies: list[Reply]) -> None:
        """Send ``packed``, ``count`` commands in it, and append the replies."""

    @abstractmethod
    def is_quiet(self) -> bool:
        """Whether there is nothing to read; else the server has closed it."""

    @abstractmethod
    def close(self) -> None:
        """Close it, without a word."""

    @abstractmethod
    def break_off(self) -> None:
        """Have whoever waits for a reply, perhaps on another thread, be told that it has ended."""

    def take(self, replies: list[Reply]) -> None:
        """Append what has come."""
        while (found := self.taker()) is not None:
            replies.append(found[0])


class BlockingLine(Line):
    """A connection of a thread."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._sock = connection._sock
        self._readable = _readability(self._sock)

    async def talk(self, packed: bytes, count: int, deadline: float, replies: list[Reply]) -> None:
        sock = self._sock
        sock.settimeout(left(deadline))
        sock.sendall(packed)
        while len(replies) < count:
            sock.settimeout(left(deadline))
            self.taker.more(sock.recv(RECEIVE))
            self.take(replies)

    def is_quiet(self) -> bool:
        return not self._readable(0)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.connection.disconnect()

    def break_off(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(2)


def _readability(sock: Any) -> Callable[[int], object]:
    """Return a function that waits so many milliseconds until there is something to read."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return poll.poll
    return lambda milliseconds: select.select([sock], [], [], milliseconds / 1000)[0]  # Windows


class AsyncLine(Line):
    """A connection of an event loop, which alone may use it; who is elsewhere can have it closed.

    Attributes:
        loop: Whose it is.
    """

    def __init__(self, connection: Any) -> None:
        self.loop = asyncio.get_running_loop()
        super().__init__(connection)
        self._reader, self._writer = connection._reader, connection._writer
        self._readable = _readability(self._writer.get_extra_info("socket"))

    async def talk(self, packed: bytes, count: int, deadline: float, replies: list[Reply]) -> None:
        async with asyncio.timeout(left(deadline)):
            self._writer.write(packed)
            await self._writer.drain()
            while len(replies) < count:
                self.taker.more(await self._reader.read(RECEIVE))
                self.take(replies)

    def is_quiet(self) -> bool:
        # the socket is asked too: a loop that was busy has not read yet that the server has closed it
        reader = self._reader
        return not reader.at_eof() and not reader._buffer and reader.exception() is None and not self._readable(0)

    def close(self) -> None:
        self.connection._reader = self.connection._writer = None  # else it would say that it was left open
        if _running() is self.loop:
            _End(self)()
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(_End(self))
        if self.loop.is_closed():  # perhaps meanwhile, so that it never makes the call
            self.bury()

    break_off = close

    def abort(self) -> None:
        """Close it, on its loop, whose next call lets go of the socket."""
        self._writer.transport.abort()

    def bury(self) -> None:
        """Close it without its loop, in which nobody is any more: let go of the socket, as asyncio does on the loop only."""
        transport = self._writer.transport
        below = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None) or transport
        for close in (transport.abort, lambda: below._call_connection_lost(None)):  # uvloop has no such call: it closes all with itself
            with contextlib.suppress(Exception):  # whoever would be told is not there either
                close()


class _End:
    """The call that closes a connection on its loop. A loop that is closed before it came to it forgets it, which closes the connection."""

    def __init__(self, line: AsyncLine) -> None:
        self._line = line

    def __call__(self) -> None:
        self._line.abort()
        self._line.loop.call_soon(id, self)  # behind the call that lets go of the socket: until then this one is not forgotten

    def __del__(self) -> None:
        if self._line.loop.is_closed():
            self._line.bury()


def _running() -> asyncio.AbstractEventLoop | None:
    """Return the loop that we are in."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


Idle = dict[Address, list[Line]]


class Link(ABC):
    """Connections to servers. Each call takes one of its own; idle ones are kept.

    Attributes:
        waiting: Those on which somebody waits in line.
    """

    def __init__(self, makers: Mapping[bool, Maker]) -> None:
        self.makers = makers
        self.closed = False
        self._idle: dict[asyncio.AbstractEventLoop | None, Idle] = {None: {}}  # of threads by None, which all share them
        self.waiting: set[Line] = set()

    @abstractmethod
    def idle(self) -> Idle:
        """Return the idle connections that whoever asks can use."""

    @abstractmethod
    async def connect(self, address: Address, seconds: float, sentinel: bool) -> Line:
        """Open a connection."""

    async def exchange(
        self,
        address: Address,
        packed: bytes,
        count: int,
        deadline: float,
        *,
        sentinel: bool = False,
        enough: int = 0,
        waits: bool = False,
    ) -> list[Reply]:
        """Send ``packed``, ``count`` commands in it, and return the replies; at the deadline, those that came if they are ``enough``.

        Where one of them ``waits``, `close` ends it.

        Raises:
            Unavailable: Nothing was sent, or the server said that it can't serve.
            OutcomeUnknown: Something was sent, and not everything answered in time.
        """
        line = await self.take(address, deadline, sentinel)
        replies: list[Reply] = []
        if waits:
            self.waiting.add(line)
        try:
            if waits and self.closed:  # meanwhile, so that it did not find this line
                raise Unavailable("the client is closed")
            await line.talk(packed, count, deadline, replies)
        except BaseException as error:
            line.close()
            if enough and len(replies) >= enough and isinstance(error, TimeoutError):
                return replies
            if isinstance(error, (RedisError, OSError)):
                self.drop(address)
                raise lost(error, sent=True, address=address) from error
            raise
        finally:
            if waits:
                self.waiting.discard(line)
        if len(replies) == count and line.taker.is_empty:
            self.give(address, line)
        else:
            line.close()  # whoever answers more than was asked: the rest would be taken for the answer to the next request
        return replies

    async def take(self, address: Address, deadline: float, sentinel: bool = False) -> Line:
        """Take an idle connection, or open one."""
        if self.closed:
            raise Unavailable("the client is closed")
        idle = self.idle().get(address)
        while idle:
            try:
                line = idle.pop()
            except IndexError:  # another thread took it
                break
            if line.is_quiet():
                return line
            line.close()
        seconds = deadline - monotonic()
        if seconds <= 0:
            raise Unavailable("no time was left to ask redis")
        try:
            return await self.connect(address, seconds, sentinel)
        except ConfigurationError:
            raise
        except (RedisError, OSError, ValueError, RecursionError) as error:  # the latter two by redis-py, of what is no answer of Redis
            self.drop(address)
            raise _unopened(error, self.makers[sentinel].tls, address) from error

    def give(self, address: Address, line: Line) -> None:
        """Keep a connection for the next call."""
        idle = self.idle().setdefault(address, [])
        if len(idle) < IDLE:
            idle.append(line)
            if self.closed:  # perhaps meanwhile, so that it did not find this line
                _close_all(idle)
        else:
            line.close()

    def drop(self, address: Address) -> None:
        """Close the idle connections to a server: where one failed the others are not to be trusted."""
        _close_all(self.idle().pop(address, []))

    def close(self) -> None:
        self.closed = True
        for found in list(self._idle.values()):
            for idle in list(found.values()):
                _close_all(idle)
        for line in list(self.waiting):
            line.break_off()

    def after_fork(self) -> None:
        _of_the_parent.append((self._idle, self.waiting))
        self._idle, self.waiting = {None: {}}, set()


def _close_all(idle: list[Line]) -> None:
    while idle:
        with contextlib.suppress(IndexError):  # another thread took it, and has it for itself
            idle.pop().close()


def _unopened(error: Exception, tls: bool, address: Address) -> Exception:
    """Return rota's error for a connection that could not be opened: the server said that it can't, or it said nothing."""
    if isinstance(error, ResponseError) or code_of(error) in (*TROUBLE, *DENIED) or "CERTIFICATE_VERIFY_FAILED" in str(error):
        return translated(error)
    found = lost(error, sent=False, address=address)
    if tls and isinstance(error, (redis.TimeoutError, redis.ConnectionError, TimeoutError)) and "refused" not in str(error):
        # a plain port keeps silent: it takes the handshake for the beginning of a command
        return Unavailable(f"{found} (TLS was spoken: if this port is plain, write redis:// or leave ssl=true out)")
    if not tls and any(said in str(error) for said in HUNG_UP):
        return Unavailable(f"{found} (TLS was not spoken: if this port wants it, write rediss:// or add ssl=true)")
    return found


class BlockingLink(Link):
    """For threads."""

    def idle(self) -> Idle:
        return self._idle[None]

    async def connect(self, address: Address, seconds: float, sentinel: bool) -> Line:
        connection = self.makers[sentinel].blocking(address, seconds)
        try:
            connection.connect()
        except BaseException:
            connection.disconnect()
            raise
        return BlockingLine(connection)


class AsyncLink(Link):
    """For event loops, each of which has connections of its own.

    Nobody is told when a loop ends: what it has left is closed when a new one begins, or with the client.
    """

    def idle(self) -> Idle:
        loop = asyncio.get_running_loop()
        found = self._idle.get(loop)
        if found is None:
            self._bury()
            found = self._idle[loop] = {}
        return found

    def _bury(self) -> None:
        """Close what closed loops have left, also those in line: nobody would hear what they are granted (L8)."""
        for loop in list(self._idle):
            if loop is not None and loop.is_closed():
                for idle in self._idle.pop(loop, {}).values():
                    _close_all(idle)
        for line in list(self.waiting):
            if isinstance(line, AsyncLine) and line.loop.is_closed():
                line.close()

    async def connect(self, address: Address, seconds: float, sentinel: bool) -> Line:
        connection = self.makers[sentinel].asynchronous(address)
        try:
            async with asyncio.timeout(seconds):
                await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return AsyncLine(connection)
