# SPDX-License-Identifier: MIT
"""Calls to etcd over gRPC: bounded, tried on one endpoint after the other, logged in again once, and honest about what may be applied.

The rules: an error of which etcd or gRPC says that nothing was applied, and any error of a call that may be repeated, is tried again on the
next endpoint while there is time. Any other error of a call that writes is `OutcomeUnknown`, at once.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import Any, Protocol

import grpc
from rota.errors import ConfigurationError, OutcomeUnknown, RotaError, Unavailable

from . import _wire
from ._clock import monotonic
from ._files import files
from ._fork_gate import gate
from ._stream import Broken, Round, Stream
from ._url import Settings

Metadata = tuple[tuple[str, str], ...]

#: etcd's "no leader" at once, instead of a wait for one until the deadline.
HAS_LEADER: Metadata = (("hasleader", "true"),)
#: The least time for one try, and the pause before the endpoints are tried once more, seconds.
LEAST, ROUND = 0.05, 0.05
#: A channel on which a call was not answered is left for a new one if it had been open for so long, seconds: longer than connecting takes.
SETTLED = 2.0
#: How often all endpoints are tried at the most when none can be reached. One that answers "no leader", or that hangs while it is connected
#: to, as it does while its machine stands still, may be back in a moment, and is asked until the deadline.
ROUNDS = 2
CHANNEL = (
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection: after a fork, too
    ("grpc.min_reconnect_backoff_ms", 1000),  # how long one attempt to connect may take
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),  # etcd forbids pings more often than each 5 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_receive_message_length", -1),
)

_Code = grpc.StatusCode
#: Errors with which etcd refuses a call before it does anything. "server stopped" is none: what was proposed may be agreed on without it.
_NOT_APPLIED = ("failed to connect", "no leader", "too many requests", "database space exceeded", "connection refused")
#: As gRPC tells that connecting took too long: nothing came back of etcd, nothing of TCP, nothing of TLS.
_HANGS = ("connection attempt timed out", "connect() timed out", "handshaker shutdown", "endpoint closing")
_WRONG_TLS = ("certificate_verify_failed", "certificate required", "bad certificate", "wrong_version_number", "unknown ca", "unknown_ca")
#: As gRPC tells of an alert that comes after a handshake of TLS 1.3, which is when a member refuses the client's certificate.
_ALERT = "tsi_data_corrupted"

# Channels and streams that a fork copied: neither used nor closed, since gRPC's threads are not here to do it.
_of_the_parent: list[object] = []


class Refusal(Exception):
    """etcd's own refusal, which the caller decides about; nothing was applied."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


class Endpoints(Protocol):
    """Where channels come from.

    Attributes:
        count: How many there are.
        credentials: Those of a call, as far as they are known; None: `metadata` is to be asked.
        keeps_channels: Whether a channel stays the same until it is left, or a fork.
    """

    count: int
    credentials: Metadata | None
    keeps_channels: bool

    @property
    def unchecked(self) -> bool:
        """Whether a call found that the members check no user and no password, though they were given."""

    def channel(self, index: int) -> grpc.Channel:
        """Return the open channel to an endpoint."""

    def leave(self, index: int, since: float) -> bool:
        """Open another channel at the next call if this one was open long before an instant (`monotonic`); return whether."""

    def metadata(self, fresh: bool, login: Callable[[Any], Any]) -> Metadata:
        """Return the credentials of a call; with ``fresh`` the old ones were refused."""

    def after_fork(self) -> None:
        """In a forked child: forget the channels."""

    def close(self) -> None:
        """Close the channels."""


class OwnEndpoints:
    """Channels to the members that a URL names, and the token of its user."""

    keeps_channels = True

    def __init__(self, settings: Settings) -> None:
        self.count = len(settings.addresses)
        self._settings = settings
        self._closed = False
        self.after_fork()

    def after_fork(self) -> None:
        """As `Endpoints.after_fork`."""
        _of_the_parent.extend(getattr(self, "_channels", {}).values())
        self._channels: dict[int, grpc.Channel] = {}
        self._opened_at: dict[int, float] = {}
        self.credentials: Metadata | None = None if self._settings.user else HAS_LEADER
        self._lock, self._login_lock = threading.RLock(), threading.RLock()  # as that of the stream

    @property
    def unchecked(self) -> bool:
        """As `Endpoints.unchecked`."""
        return bool(self._settings.user) and self.credentials is HAS_LEADER

    def channel(self, index: int) -> grpc.Channel:
        """As `Endpoints.channel`."""
        channel = self._channels.get(index)
        if channel is None:
            with self._lock:
                channel = self._channels.get(index) or self._channels.setdefault(index, self._open(index))
            if self._closed:  # perhaps meanwhile, so that it did not find this one
                self.close()
                raise ValueError("the channel was closed")  # as gRPC says it of one that it has
        return channel

    def leave(self, index: int, since: float) -> bool:
        """As `Endpoints.leave`. It is closed when nobody calls on it any more."""
        with self._lock:
            channel = self._channels.get(index)
            if channel is None or self._opened_at[index] + SETTLED > since:
                return False
            self._channels.pop(index, None)
            return True

    def _open(self, index: int) -> grpc.Channel:
        self._opened_at[index] = monotonic()
        host, port = self._settings.addresses[index]
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if not self._settings.tls:
            return grpc.insecure_channel(target, CHANNEL)
        return grpc.secure_channel(target, grpc.ssl_channel_credentials(*files(self._settings)), CHANNEL)

    def metadata(self, fresh: bool, login: Callable[[Any], Any]) -> Metadata:
        """As `Endpoints.metadata`."""
        if not self._settings.user:
            return HAS_LEADER
        credentials = self.credentials
        if fresh or credentials is None:
            with self._login_lock:
                if self.credentials is credentials:  # else another thread has just logged in
                    self.credentials = None
                    request = _wire.Authenticate(name=self._settings.user, password=self._settings.password)
                    try:
                        self.credentials = (*HAS_LEADER, ("token", login(request).token))
                    except Refusal as refusal:
                        if "not enabled" not in str(refusal):
                            raise
                        self.credentials = HAS_LEADER  # etcd has authentication turned off, and wants no token
                credentials = self.credentials
                assert credentials is not None
        return credentials

    def close(self) -> None:
        """As `Endpoints.close`."""
        self._closed = True
        while self._channels:
            with suppress(KeyError):
                self._channels.popitem()[1].close()


class Link:
    """Calls over one set of endpoints, from several threads at a time.

    Attributes:
        endpoints: Where they go.
        at: Which one is in use.
        closed: Whether it was closed.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints = endpoints
        self.at = 0
        self.closed = False
        self._stubs: dict[tuple[int, type[Any]], tuple[grpc.Channel, Callable[..., Any]]] = {}
        self._streams = 0
        self._forget_stream()

    def _forget_stream(self) -> None:
        self._stream: tuple[grpc.Channel, Stream] | None = None
        self._stream_lock = threading.RLock()  # the handler of a signal may come while it is held, and use this

    def after_fork(self) -> None:
        """In a forked child: have nothing to do with the parent's connections."""
        self._stubs.clear()
        _of_the_parent.append(self._stream)
        self._forget_stream()
        self.endpoints.after_fork()

    def close(self) -> None:
        """Let go of connections."""
        self.closed = True
        self._stubs.clear()
        self._end_stream()
        self.endpoints.close()

    # -- one request, one response

    def call(self, request: Any, deadline: float, *, writes: bool = False) -> Any:
        """Return the response.

        Args:
            request: Its type says which method is meant; bytes are a transaction.
            deadline: By `_clock.monotonic`.
            writes: Whether it must not be repeated when its fate is unknown.

        Raises:
            Refusal: etcd refused the request itself.
            Unavailable: Nothing was applied.
            OutcomeUnknown: ``writes``, and it may have been applied.
            ConfigurationError: Credentials, certificates, permissions.
        """
        return self._try(partial(self._ask, request), deadline, writes)

    # -- streams

    def keep_alive(self, ids: Sequence[int], deadline: float) -> dict[int, int]:
        """Renew leases; return the granted seconds of each that was answered, 0 where the lease is gone."""
        answers: dict[int, int] = {}

        def ask(at: int, left: float, metadata: Metadata) -> None:
            asked = self._open_stream(at, metadata, monotonic() + left).ask([each for each in ids if each not in answers])
            try:
                if not asked.wait(left):
                    self._end_stream()  # what hangs is not asked again
                    raise Broken(_Code.DEADLINE_EXCEEDED, "keepalives are not answered")
            finally:
                answers.update(asked.answers)

        try:
            self._try(ask, deadline, False)
        except Unavailable:
            if not answers:
                raise
        return answers

    def begin_keep_alive(self, ids: Sequence[int], deadline: float) -> Round:
        """Begin to renew leases on the endpoint in use; whatever goes wrong is told at once or by the `Round`."""
        return self.open_stream(deadline).ask(ids)

    def open_stream(self, deadline: float) -> Stream:
        """Return the stream of keepalives to the endpoint in use, made if there is none, without waiting for an answer."""
        opened = self._stream
        if opened is not None and opened[1].error is None and opened[0] is self.endpoints.channel(self.at):
            return opened[1]
        return self._open_stream(self.at, self._metadata(False, self.at, deadline - monotonic()), deadline)

    @property
    def stream(self) -> int:
        """The number of the stream of keepalives that is open, larger than that of any before; 0 without one."""
        stream = self._stream
        return self._streams if stream is not None and stream[1].error is None else 0

    def _open_stream(self, at: int, metadata: Metadata, deadline: float) -> Stream:
        channel = self.endpoints.channel(at)
        with self._stream_lock:
            if self._stream is not None:
                its_channel, stream = self._stream
                if its_channel is channel and stream.error is None:
                    return stream
                stream.end()
            stream = Stream(partial(self._begin, _wire.KeepAlive, at, deadline, 0), metadata)
            self._stream = channel, stream
            self._streams += 1
        if self.closed:  # perhaps meanwhile, so that it did not find this one
            self._end_stream()
            raise Unavailable("the client is closed")
        return stream

    def _end_stream(self) -> None:
        with self._stream_lock:
            if self._stream is not None:
                self._stream[1].end()
                self._stream = None

    def await_delete(self, key: bytes, revision: int, deadline: float) -> bool:
        """Wait until a key is deleted in this revision or a later one; after a break the watch goes on there. False: the time is over."""
        # it always begins at the same revision: what a member says of its own is no sign that all before it was told
        ended = threading.Event()

        def requests() -> Iterator[Any]:
            # only deletions, so that nothing is sent for what a holder writes
            yield _wire.Watch(create_request=_wire.WatchCreate(key=key, start_revision=revision, filters=[_wire.NOPUT]))
            ended.wait()  # the end of the requests would end the watch

        def watch(at: int, left: float, metadata: Metadata) -> bool:
            call = self._begin(_wire.Watch, at, deadline, get_ident(), requests(), max(0.001, deadline - monotonic()), metadata)
            try:
                for response in call:
                    if response.canceled or any(event.type == _wire.DELETE for event in response.events):
                        return True  # cancelled: the revision was compacted, or not permitted. Looking again tells
            except grpc.RpcError as error:
                if error.code() != _Code.DEADLINE_EXCEEDED:
                    raise
            finally:
                call.cancel()
                gate.streams.pop(call, None)
            return False

        try:
            while (left := deadline - monotonic()) > 0:
                try:
                    if self._try(watch, deadline, False):
                        return True
                except Unavailable:
                    if self.closed:
                        raise
                    time.sleep(min(ROUND, left))
        finally:
            ended.set()
        return False

    # -- inside

    def _stub(self, at: int, kind: type[Any]) -> Callable[..., Any]:
        known = self._stubs.get((at, kind))
        if known is not None and self.endpoints.keeps_channels:
            return known[1]
        channel = self.endpoints.channel(at)
        if known is not None and known[0] is channel:
            return known[1]
        path, response = _wire.METHODS[_wire.Txn if kind is bytes else kind]
        make = channel.stream_stream if kind in (_wire.KeepAlive, _wire.Watch) else channel.unary_unary
        stub: Callable[..., Any] = make(path, None if kind is bytes else kind.SerializeToString, response)
        self._stubs[at, kind] = channel, stub
        if self.endpoints.channel(at) is not channel:  # it was left meanwhile
            self._stubs.pop((at, kind), None)
        return stub

    def _leave(self, at: int, since: float) -> None:
        """Call on another channel, where one was not answered that was begun then.

        The connection may be dead without a word, as behind a balancer whose member stands still. gRPC looks whether it is only every 10 s,
        and only if it finds a call under way; calls that are refused at once for a while (F4) let it wait for a minute.
        """
        if self.endpoints.leave(at, since):
            for key in [key for key in self._stubs.copy() if key[0] == at]:
                self._stubs.pop(key, None)

    def _leave_interrupted(self, at: int) -> None:
        """Call on another channel after an interrupt: it may have left gRPC's lock of the channel taken, on which all later calls hang."""
        self._leave(at, math.inf)
        with self._stream_lock:
            opened, self._stream = self._stream, None
        if opened is not None:
            with suppress(RuntimeError):  # no thread can be started now
                threading.Thread(target=opened[1].end, name="rota-etcd-end", daemon=True).start()  # it takes that lock, too

    @gate.calls
    def _ask(self, request: Any, at: int, left: float, metadata: Metadata) -> Any:
        if gate.forks:
            deadline = monotonic() + left
            gate.enter(deadline)
            left = deadline - monotonic()
        return self._stub(at, type(request))(request, max(0.001, left), metadata)

    @gate.calls
    def _begin(self, kind: type[Any], at: int, deadline: float, reader: int, *call: Any) -> Any:
        """Begin a stream; whoever reads it to its end takes it out of the gate's."""
        gate.enter(deadline)
        stream: Any = self._stub(at, kind)(*call)
        gate.streams[stream] = reader
        return stream

    def _metadata(self, fresh: bool, at: int, left: float) -> Metadata:
        return self.endpoints.metadata(fresh, partial(self._login, at, left))

    def _login(self, at: int, left: float, request: Any) -> Any:
        """Authenticate (bcrypt: about 100 ms of the server's)."""
        try:
            return self._ask(request, at, left, HAS_LEADER)
        except grpc.RpcError as error:
            if error.code() == _Code.FAILED_PRECONDITION:
                raise Refusal(error.code(), error.details() or "") from error
            raise

    def _try(self, ask: Callable[[int, float, Metadata], Any], deadline: float, writes: bool) -> Any:
        """Ask one endpoint after the other; see the rules above."""
        count = self.endpoints.count
        tries, fresh, connects = 0, False, 0
        while True:
            if self.closed:
                raise Unavailable("the client is closed")
            left = deadline - monotonic()
            # one that hangs leaves the others their share of the time
            share = left if count == 1 else max(LEAST, left / max(2, count - tries))
            at, sent = self.at, False
            try:
                metadata = self.endpoints.credentials
                if fresh or metadata is None:
                    metadata = self._metadata(fresh, at, share)
                if left <= 0:
                    raise Unavailable("no time is left")
                sent = True
                return ask(at, min(share, left), metadata)
            except (RotaError, Refusal):
                raise
            except ValueError as error:  # gRPC: the channel was closed
                raise Unavailable("the client is closed") from error
            except grpc.RpcError as error:
                code, details = error.code(), error.details() or ""
                _check(code, details, error)
                lowered = details.lower()
                if code == _Code.UNAUTHENTICATED or "auth store is old" in lowered:
                    if fresh:
                        raise ConfigurationError(f"etcd refuses the credentials: {details}") from error
                    fresh = True
                    continue
                if code == _Code.CANCELLED and "locally" in lowered:
                    continue  # a stream was ended, for a fork or since it hung: the same again
                unapplied = not sent or not writes or any(sign in lowered for sign in _NOT_APPLIED)
                if code == _Code.DEADLINE_EXCEEDED:
                    self._leave(at, deadline - left)
                if self.at == at:
                    self.at = (at + 1) % count
                tries += 1
                if not unapplied:
                    raise OutcomeUnknown(f"etcd: {details or code}") from error
                patient = "leader" in lowered or code == _Code.DEADLINE_EXCEEDED or any(sign in lowered for sign in _HANGS)
                connects += not patient
                over = monotonic() + LEAST >= deadline
                if over or connects >= ROUNDS * count:
                    raise Unavailable(f"etcd: {details or code}") from error
                if tries % count == 0:
                    time.sleep(min(ROUND, max(0.0, deadline - monotonic())))
            except BaseException:
                self._leave_interrupted(at)
                raise


def _check(code: grpc.StatusCode, details: str, error: grpc.RpcError) -> None:
    """Raise what no other endpoint and no other time would answer otherwise."""
    lowered = details.lower()
    if any(sign in lowered for sign in _WRONG_TLS):
        raise ConfigurationError(f"TLS with etcd fails: {details}") from error
    if _ALERT in lowered:
        raise ConfigurationError(f"etcd ends TLS, as where it wants a client's certificate by cert= and key=: {details}") from error
    if code == _Code.PERMISSION_DENIED:
        raise ConfigurationError(f"etcd: {details}: the user needs a role that may read and write all keys under the prefix") from error
    if code == _Code.UNIMPLEMENTED:
        raise ConfigurationError(f"this is no etcd with the v3 API: {details}") from error
    if code == _Code.INVALID_ARGUMENT and "auth store is old" not in lowered:
        hint = ": it wants a user and a password" if "user name is empty" in lowered else ""
        raise ConfigurationError(f"etcd: {details}{hint}") from error
    if code in (_Code.NOT_FOUND, _Code.FAILED_PRECONDITION, _Code.ALREADY_EXISTS, _Code.OUT_OF_RANGE):
        raise Refusal(code, details) from error
