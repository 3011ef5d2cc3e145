# SPDX-License-Identifier: MIT
"""The one kazoo client of a driver: made at the first verb, made anew after a fork or when it has given up, ended in bounded time."""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from kazoo.exceptions import (
    AuthFailedError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionClosedRequireSaslError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import Permissions
from rota.errors import ConfigurationError, RotaError, Unavailable

from ._files import WrongFile, check_files
from ._handler import CONNECT, Client, Handler
from ._record import SHARDS
from ._step import Reply, TimedOut
from ._url import Place


class Emptied(KazooException):  # type: ignore[misc]  # kazoo has no types
    """Raised where the nodes that all need are gone: somebody has removed them under us."""


#: What leaves open whether a request was carried out, since the connection broke, or the store: it is looked at again.
BROKEN = (ConnectionLoss, SessionExpiredError, SessionMovedError, OperationTimeoutError, Emptied)
#: How long an end waits for the server's goodbye, seconds.
GOODBYE = 1.0

# kazoo logs a line for each vain attempt to connect: not for people who have no logging set up. At DEBUG it logs the credentials: not for
# anybody. A level of our own would stand in the place of the application's.
_log = logging.getLogger("rota_zookeeper.kazoo")
_log.addHandler(logging.NullHandler())
_log.addFilter(lambda record: record.levelno >= logging.INFO)


class Link:
    """The connection to the ensemble.

    Args:
        place: Where it is.
        forget: Called when the connection is lost, and the server may be another one: what was seen through it may be old. Whether the
            session is lost with it is its argument.
        on_connect: Called with the client whenever it is connected.

    Attributes:
        root: The folder of all that is ours.
        records: The folder of all records' folders.
        clock: The node that is touched to read the leader's time.
        ensemble: Whether there are several servers, so that what one says may be behind what another one has confirmed.
        absent: Whether a reader found that there is no store; false while that is not known.
    """

    def __init__(self, place: Place, forget: Callable[[bool], None], on_connect: Callable[[Any], None]) -> None:
        self.place = place
        self.root = f"{place.chroot}/rota"
        self.records = f"{self.root}/records"
        self.clock = f"{self.root}/clock"
        # who may read records has to learn the time, too, by a write; there is nothing in that node
        self._acls = {self.clock: [rule._replace(perms=rule.perms | Permissions.WRITE) for rule in place.acl]}
        self.ensemble = True
        self._forget = forget
        self._on_connect = on_connect
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        # The handler of a signal may come while it is held, and ask for the client: so kazoo's threads, on which that waits, don't take it.
        self._lock = threading.RLock()
        self._clients: list[Any] = []  # the first is the one
        self._prepared: Any = None
        self.absent = False
        self._refused: Exception | None = None
        self._arrivals: deque[Any] = deque()
        self._gone_at = 0.0  # when the client was connected last

    # -- its life

    @property
    def _client(self) -> Any:
        return next(iter(self._clients), None)

    @property
    def ready(self) -> Any:
        """The client, if it is connected and the store is prepared; else None."""
        client = self._prepared
        return client if client is not None and client is self._client and client.connected else None

    async def client(self) -> Any:
        """Return the client, once it is connected and the store is prepared.

        Raises:
            ConfigurationError: The credentials, the certificate, or the rights are wrong.
            Unavailable: It is closed.
        """
        while True:
            client = await self.connected()
            if self.ready is None:
                if not await self._is_made(client):
                    await self._make(client)
                self._prepared, self.absent = client, False
            ready = self.ready  # once, as below
            if ready is not None:
                return ready

    async def reader(self) -> Any:
        """Return the same for who only reads; None where there is no store, which is not made."""
        client = self.ready  # once: with the session it is gone at any moment, which says nothing of the store
        if client is None:
            client = await self.connected()
            if not await self._is_made(client):
                self.absent = True
                return None
            self._prepared, self.absent = client, False
        return client

    def emptied(self) -> Emptied:
        """Return what to raise where the nodes that all need are gone; who is next looks for them, and makes them if he writes."""
        self._prepared = None
        return Emptied()

    async def connected(self) -> Any:
        """Return the client, once it is connected, whatever the store holds; see `client`."""
        while True:
            if self._closed:
                raise Unavailable("the client is closed")
            client = self._client
            if client is not None and client.connected:
                return client
            arrival = self._await_arrival()
            if self._refused is not None:
                refused, self._refused = self._refused, None
                raise ConfigurationError(f"{self.place.shown}: the user is not known there, or the password is wrong") from refused
            await Reply(arrival)

    def _await_arrival(self) -> Any:
        """Return a result that is set when the client is connected, or can't be."""
        with self._lock:
            client = self._client
            if client is not None and self._is_hopeless(client):
                self._forget(True)
                self._let_go(client)
                client = None
            if client is None:
                client = self._start()
            arrival = client.handler.async_result()
            self._arrivals.append(arrival)
        client = self._client  # by now perhaps another one
        if self._closed or (client is not None and (client.connected or client.handler.is_over)):
            self._tell()
        return arrival

    def _is_hopeless(self, client: Any) -> bool:
        """Say whether it gave up, after a wrong password, say; or was away so long that its session is over.

        The latter matters where servers were wiped, or restored from an older copy: they refuse a client that has seen a later transaction
        than they have, for as long as it says so.
        """
        if client.handler.is_over:
            return True
        away = time.monotonic() - self._gone_at
        return bool(client.last_zxid) and not client.connected and away > 1.5 * self.place.options["timeout"]

    def _start(self) -> Any:
        """Make the client, and begin to connect; or return the one that the handler of a signal has made meanwhile."""
        try:
            check_files(self.place.options)
        except WrongFile as error:
            raise self._wrong_tls(error) from error
        handler = Handler(_log)
        retry = KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0, sleep_func=handler.sleep_func)
        client = Client(handler=handler, connection_retry=retry, logger=_log, **self.place.options)
        handler.servers = len(client.hosts)
        handler.are_requests = lambda: client._queue
        handler.are_unanswered = lambda: client._pending
        handler.patience = self.place.options["timeout"] * 2 / 3  # as kazoo's own; the rest of the session's time is for the next server

        def listen(state: str) -> None:
            if state == KazooState.CONNECTED:
                handler.attempts = 0
            if self._client is not client:
                return
            if state == KazooState.CONNECTED:
                self._on_connect(client)
            else:
                self._gone_at = time.monotonic()
                self._forget(state == KazooState.LOST)
                if state == KazooState.LOST:
                    self._prepared = None
                    if client.client_state == KeeperState.AUTH_FAILED:
                        self._refused = AuthFailedError()
            if state != KazooState.SUSPENDED:
                self._tell()

        # of the last state, which is as good as the one before, kazoo says nothing: who comes between them would wait in vain
        handler.at_end = lambda: self._tell() if self._client is client else None
        client.add_listener(listen)
        try:
            client.start_async()
            self._clients.append(client)  # once it is started: a handler would wait in vain for one that is about to be
            first = self._client or client
            if first is not client or self._closed:
                self._let_go(client)
            elif client.connected or client.client_state == KeeperState.AUTH_FAILED:
                listen(client.state)  # it came before the client was known
        except BaseException:  # interrupted: half of its threads run
            with contextlib.suppress(RuntimeError):  # or there is no thread to be had
                self._let_go(client)
            raise
        return first

    def _tell(self) -> None:
        while self._arrivals:
            with contextlib.suppress(IndexError):  # another thread took it
                self._arrivals.popleft().set()

    def close(self) -> None:
        """End the session; wait for the goodbye at most for a moment."""
        self._closed = True
        with self._lock:
            endings = [self._let_go(client) for client in self._clients.copy()]
        self._tell()
        for ending in endings:
            ending.join(GOODBYE)

    def _let_go(self, client: Any) -> threading.Thread:
        """Have a client no longer, and let it end by itself."""
        with contextlib.suppress(ValueError):
            self._clients.remove(client)
        ending = threading.Thread(target=self._end, args=(client,), name="rota-zookeeper-close", daemon=True)
        ending.start()
        return ending

    def _end(self, client: Any) -> None:
        with contextlib.suppress(Exception):  # nothing that kazoo may say is of use to anybody now
            client.stop()
            client.close()
        client.handler.end()
        if self._closed:
            # of an answer that comes while it stops kazoo (2.11) keeps no watch: who waits for that looks again, and is told
            self._forget(True)

    def after_fork(self) -> None:
        """Forget the parent's client without a word; a client of kazoo's hangs in a forked child."""
        client = self._client
        self._reset()
        self._forget(True)
        if client is None:
            return
        atexit.unregister(client.handler.stop)
        connection = client._connection
        for held in (connection._socket, connection._read_sock):
            if held is not None:
                with contextlib.suppress(OSError):
                    held.close()  # else the server would not notice the parent's end

    def ask(self, word: str) -> dict[str, str]:
        """Return what the server at hand says to a four-letter word; nothing where they are switched off."""
        client, options = self._client, self.place.options
        tls = {
            name: options[name] for name in ("use_ssl", "verify_certs", "ca", "certfile", "keyfile", "keyfile_password") if name in options
        }
        try:
            peer = client._connection._socket.getpeername()[:2]
            with client.handler.create_connection(peer, hostname=peer[0], timeout=CONNECT, **tls) as connection:
                connection.sendall(word.encode())
                said = b""
                while part := connection.recv(8192):
                    said += part
        except (OSError, AttributeError):  # also: not connected any more
            return {}
        return dict(line.split(": ", 1) for line in said.decode(errors="replace").splitlines() if ": " in line)

    # -- the store's nodes

    async def _is_made(self, client: Any) -> bool:
        """Say whether the folders that all need are there, and learn what kind of store it is."""
        asking, looking = client.get_async("/zookeeper/config"), client.exists_async(self.clock)
        try:
            config, _ = await Reply(asking)
            self.ensemble = config.count(b"server.") > 1
        except (NoNodeError, NoAuthError):
            self.ensemble = True
        return await Reply(looking) is not None

    async def _make(self, client: Any) -> None:
        """Make those folders."""
        await self.ensure(client, self.records)
        for making in [client.create_async(f"{self.records}/{shard:02x}", acl=self.place.acl) for shard in range(SHARDS)]:
            with contextlib.suppress(NodeExistsError):
                await Reply(making)
        await self.ensure(client, self.clock)  # last: it says that the others are there

    async def ensure(self, client: Any, path: str) -> None:
        """Make a node, and those above it that are missing: the chroot, too (DV-20)."""
        while True:
            try:
                await Reply(client.create_async(path, acl=self._acls.get(path, self.place.acl)))
            except NodeExistsError:
                pass
            except NoNodeError as error:
                above = path.rpartition("/")[0]
                if not above:
                    raise ConfigurationError(f"{self.place.shown}: the servers have a chroot of their own that does not exist") from error
                await self.ensure(client, above)
                continue
            except NoAuthError as error:
                # that is said of a node that exists, too
                if await Reply(client.exists_async(path)) is None:
                    raise ConfigurationError(
                        f"{path} does not exist, and the user may not create it: make it, with rights for it"
                    ) from error
            return

    def _wrong_tls(self, refusal: Exception) -> ConfigurationError:
        return ConfigurationError(f"{self.place.shown}: no connection by TLS: {refusal}")

    def translated(self, error: Exception) -> RotaError:
        """Return what an error of kazoo's means to a caller of whom nothing was applied."""
        shown = self.place.shown
        if isinstance(error, TimedOut):
            client = self._client
            refusal = None if client is None or client.connected else client.handler.refusal
            if refusal is not None:
                wrong = self._wrong_tls(refusal)
                wrong.__cause__ = refusal
                return wrong
            if client is None or not client.connected:
                failure = None if client is None else client.handler.failure
                return Unavailable(f"{shown}: no connection" + (f" ({failure.strerror or failure})" if failure is not None else ""))
            return Unavailable(f"{shown}: no answer in time")
        if isinstance(error, NoAuthError):
            return ConfigurationError(f"{shown}: the user has no rights for what lies in {self.root}, or the password is wrong")
        if isinstance(error, AuthFailedError):
            return ConfigurationError(f"{shown}: the user is not known there, or the password is wrong")
        if isinstance(error, SessionClosedRequireSaslError):
            return ConfigurationError(f"{shown}: the servers let in only who shows a user and password by SASL (auth=sasl)")
        if isinstance(error, InvalidACLError):
            return ConfigurationError(f"{shown}: the servers don't take the ACL: nobody is logged in for acl=creator")
        if self._closed:
            return Unavailable("the client is closed")
        return Unavailable(f"{shown}: {type(error).__name__} {error}".rstrip())


__all__ = ["BROKEN", "Link"]
