# SPDX-License-Identifier: MIT
"""Clients: what `connect` and `connect_async` return."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import wraps
from sys import _getframe
from threading import get_ident

from . import _ask, policy
from ._clock import monotonic
from ._engine import Engine
from ._io import BlockingIo, Io, NativeIo, ThreadedIo
from ._local import LocalRuns, local_runs
from ._observers import observers
from ._registry import backend
from .backend import Driver
from .duration import DAY, SECOND, duration
from .errors import ConfigurationError, Unavailable
from .grant import AsyncGrant, BaseGrant, Grant, S_co
from .schedule import Schedule, Slot, instant
from .url import Url, check_text
from .verdict import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Generic, Self, TypeVar, Unpack, cast

    from .backend import AsyncDriver, Backend
else:
    from ._value import Generic, TypeVar, cast

F = TypeVar("F", bound="Callable[..., Any]")
G = TypeVar("G", bound=BaseGrant)
A = TypeVar("A", bound=_ask.Ask)

# engines, not clients: a grant keeps its engine alive when nobody has the client any more
_engines: weakref.WeakSet[Engine[Any]] = weakref.WeakSet()


def _after_fork() -> None:
    observers.reset()
    for engine in list(_engines):
        engine.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def label(site: str) -> str:
    """Return who this process is, for people: ``site host:pid``."""
    try:
        host = os.uname().nodename
    except AttributeError:  # Windows
        host = os.environ.get("COMPUTERNAME", "localhost")
    return f"{site + ' ' if site else ''}{host}:{os.getpid()}"


class _Base(Generic[G]):
    """What both faces share: the checked options, and the engine."""

    def __init__(
        self,
        driver: Driver,
        io: Io,
        grant_type: type[G],
        *,
        prefix: str,
        site: str,
        timeout: policy.Duration,
        retention: policy.Duration,
        clock: Callable[[], float],
    ) -> None:
        self._prefix = prefix + "/" if prefix else ""
        self._timeout = duration(timeout, "timeout") / SECOND
        self._retention = duration(retention, "retention", most=None)
        if self._retention < DAY:
            raise ConfigurationError(f"retention={retention!r} is under a day: a token must outlive its record's name (R1)")
        site = site or os.environ.get("ROTA_SITE", "")
        if site:
            check_text(site, "site", 64)
        self.driver = driver
        self._engine: Engine[G] = Engine(driver, io, grant_type, lambda: label(site), clock, self._timeout, self._prefix)
        self._asks: dict[Any, Any] = {}
        _engines.add(self._engine)

    def _full(self, name: str) -> str:
        check_text(name, "name", _ask.NAME_LIMIT)  # before the prefix could hide what is wrong with it
        return self._prefix + name if self._prefix else name

    def _cached(self, key: Any, make: Callable[[], A]) -> A:
        # options are the same call after call: checking them once is most of a claim's cost on a fast store
        try:
            ask = self._asks.get(key)
        except TypeError:  # an option that can't be hashed is most likely wrong, which making the ask tells
            return make()
        if ask is None:
            if len(self._asks) >= 1024:
                self._asks.clear()
            ask = self._asks[key] = make()
        return ask

    def _lease(self, name: str, options: Any) -> _ask.Ask:
        ask: _ask.Ask | None = self._asks.get(name) if not options and type(name) is str else None
        if ask is not None:
            return ask
        # the types, too: 1 and True are equal keys and not the same option
        return self._cached(
            (name, *options.items(), *map(type, options.values())) if options else name,
            lambda: _ask.lease(self._full(name), options, self.driver.capabilities, self._timeout, self._retention),
        )

    def _window(self, name: str, schedule: Schedule | None, options: Any) -> _ask.Ask:
        # another one each time (and the two 02:30 of a night that has two are equal keys): all else is checked once
        planned = options.get("planned")
        at = None if planned is None else instant(planned, "planned")
        others = {**options, "planned": None} if options else options
        ask = self._cached(
            ("window", at is None, name, schedule, *others.items(), *map(type, others.values())),
            lambda: _ask.window(self._full(name), schedule, options, self.driver.capabilities, self._timeout, self._retention),
        )
        return ask if at is None else ask.at(at)

    def _once(self, name: str, per: Any, options: Any) -> _ask.Ask:
        return self._cached(
            ("once", name, per, type(per), *options.items(), *map(type, options.values())),
            lambda: _ask.once(self._full(name), per, options, self.driver.capabilities, self._timeout, self._retention),
        )


class _Entered(Generic[G]):
    """The grants of one guard's open blocks, by who opened them: in threads, tasks and generators they end in any order (L4)."""

    def __init__(self) -> None:
        self._open: list[tuple[int, object, G]] = []

    def push(self, frame: int, who: object, grant: G) -> None:
        self._open.append((frame, who, grant))

    def pop(self, frame: int, who: object) -> G:
        """Return the newest grant of the same frame; else (it was entered by way of an ExitStack) of the same thread or task; else any."""
        entries = self._open[::-1]
        found = next((entry for entry in entries if entry[0] == frame), None) or next(
            (entry for entry in entries if entry[1] == who), entries[0]
        )
        self._open.remove(found)
        return found[2]

    def drop(self, grant: G) -> None:
        self._open = [entry for entry in self._open if entry[2] is not grant]


class Guard(Generic[S_co]):
    """A claim that is made when a ``with`` block or a decorated function is entered; refused, it raises. May be used again and again."""

    def __init__(self, engine: Engine[Grant[Any]], ask: _ask.Ask, skip: bool = False) -> None:
        self._engine = engine
        self._ask = ask
        self._skip = skip
        self._entered: _Entered[Grant[Any]] = _Entered()

    @property
    def or_skip(self) -> Guard[S_co]:
        """As a decorator: a refused call returns the falsy `Refused` instead of raising."""
        return Guard(self._engine, self._ask, skip=True)

    def _acquire(self) -> Grant[S_co] | Refused:
        return self._engine.acquire_at_once(self._ask)

    def __enter__(self) -> Grant[S_co]:
        if self._skip:
            raise ConfigurationError("or_skip is for decorated functions: a with block can't be skipped, use the try_ form")
        verdict = self._acquire()
        if isinstance(verdict, Refused):
            verdict.raise_()
        try:
            self._entered.push(id(_getframe(1)), get_ident(), verdict)
            return verdict.__enter__()
        except BaseException:  # interrupted: the block will not be left, so nobody else would
            self._engine.watchdog.remove(verdict)
            self._entered.drop(verdict)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._entered.pop(id(_getframe(1)), get_ident()).__exit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        """Guard every call of a function. A generator or coroutine function is refused: its body would run outside."""
        code = getattr(function, "__code__", None)
        if code is None or code.co_flags & 0x2A0:  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR
            raise ConfigurationError(f"{function!r} is no plain function; for a coroutine function use connect_async")

        @wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            verdict = self._acquire()
            if isinstance(verdict, Refused):
                if self._skip and not isinstance(verdict.error(), Unavailable):
                    return verdict
                verdict.raise_()
            with verdict:
                result = function(*args, **kwargs)
                if hasattr(result, "cr_frame"):
                    result.close()
                    raise ConfigurationError(f"{function!r} returned a coroutine, which would run outside; use connect_async")
                return result

        return cast("F", guarded)


class AsyncGuard(Generic[S_co]):
    """As `Guard`, for ``async with`` and coroutine functions."""

    def __init__(self, engine: Engine[AsyncGrant[Any]], ask: _ask.Ask, skip: bool = False) -> None:
        self._engine = engine
        self._ask = ask
        self._skip = skip
        self._entered: _Entered[AsyncGrant[Any]] = _Entered()

    @property
    def or_skip(self) -> AsyncGuard[S_co]:
        """As `Guard.or_skip`."""
        return AsyncGuard(self._engine, self._ask, skip=True)

    async def _acquire(self) -> AsyncGrant[S_co] | Refused:
        return await self._engine.acquire(self._ask)

    async def __aenter__(self) -> AsyncGrant[S_co]:
        if self._skip:
            raise ConfigurationError("or_skip is for decorated functions: a with block can't be skipped, use the try_ form")
        verdict = await self._acquire()
        if isinstance(verdict, Refused):
            verdict.raise_()
        import asyncio

        try:
            self._entered.push(id(_getframe(1)), asyncio.current_task(), verdict)
            return await verdict.__aenter__()
        except BaseException:
            self._entered.drop(verdict)
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        import asyncio

        await self._entered.pop(id(_getframe(1)), asyncio.current_task()).__aexit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        """Guard every call of a coroutine function."""
        code = getattr(function, "__code__", None)
        if code is None or not code.co_flags & 0x80:  # CO_COROUTINE
            raise ConfigurationError(f"{function!r} is no coroutine function; for a plain function use connect")

        @wraps(function)
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            verdict = await self._acquire()
            if isinstance(verdict, Refused):
                if self._skip and not isinstance(verdict.error(), Unavailable):
                    return verdict
                verdict.raise_()
            async with verdict:
                return await function(*args, **kwargs)

        return cast("F", guarded)


class Client(_Base["Grant[Any]"]):
    """The blocking face; see `connect`. Safe to use from several threads, and after a fork."""

    def lease(self, name: str, **options: Unpack[policy.LeaseOptions]) -> Guard[None]:
        """Guard a body by a lease: one holder at a time, for as long as it is renewed.

        One round trip to take it, one to release it; renewals come from the heartbeat thread. When the lease runs out the grant's `check`
        raises `LeaseLost`; so does leaving the body if somebody else was granted the name since, or an operator took it away. The message
        says who.

        Args:
            name: The lease's name; all that want it use the same.
            **options: See `rota.LeaseOptions`: ``ttl``, ``heartbeat``, ``margin``, ``grace``, ``timeout``, ``wait``, ``max_hold``,
                ``on_lost``, ``on_unavailable``.

        Raises:
            ConfigurationError: A wrong name or option (before any I/O).
            Busy: Entering: somebody else holds it, and still did when ``wait`` was over.
            Unavailable: Entering: the store did not answer within ``timeout``, and ``on_unavailable`` is ``raise``.
        """
        return Guard(self._engine, self._lease(name, options))

    def try_lease(self, name: str, **options: Unpack[policy.LeaseOptions]) -> Grant[None] | Refused:
        """As `lease`, at once: return the `Grant`, or the falsy `Refused` that says why not."""
        return self._engine.acquire_at_once(self._lease(name, options))

    def window(self, name: str, schedule: Schedule | None = None, **options: Unpack[policy.WindowOptions]) -> Guard[Slot]:
        """Guard a body by a slot of a schedule: one success per slot, whoever comes and however late (W0 to W11).

        The slot is the one that holds the store's time, or ``planned``. One round trip to claim it and one to settle it: leaving the body
        normally records the slot as handled, an exception gives it back for a retry. A holder that crashes gives it back by expiry.

        Args:
            name: The window's name; all that run it use the same.
            schedule: `Cron` or `Every`; None for windows that are named by ``planned`` alone.
            **options: See `rota.WindowOptions`: those of a lease, and ``planned``, ``early``, ``max_late``, ``catch_up``,
                ``at_most_once``, ``overlap``, ``attempts``.

        Raises:
            ConfigurationError: A wrong name, schedule or option (before any I/O); or the name is kept as something else (W8).
            Handled: Entering: the slot or a newer one has been handled.
            Busy: Entering: somebody works on it, or on an older slot.
            Late: Entering: the slot has ended, or ``max_late`` is over.
            Early: Entering: the planned slot has not begun.
            Unavailable: Entering: the store did not answer, and ``on_unavailable`` is ``raise``.
            Unrecorded: Leaving: the work is done, its success not yet confirmed (F5).
            LeaseLost: Leaving: a later grant was made, or an operator took it away, so this one's success was not recorded.
        """
        return Guard(self._engine, self._window(name, schedule, options))

    def try_window(self, name: str, schedule: Schedule | None = None, **options: Unpack[policy.WindowOptions]) -> Grant[Slot] | Refused:
        """As `window`, at once: return the `Grant`, or the falsy `Refused` that says why not."""
        return self._engine.acquire_at_once(self._window(name, schedule, options))

    def once(self, name: str, per: policy.Duration, **options: Unpack[policy.OnceOptions]) -> Guard[Slot]:
        """Guard a body by a rolling window: one success per period, which starts at the winning claim by the store's clock (W12).

        Args:
            name: The name; all that run it use the same.
            per: The period.
            **options: See `rota.OnceOptions`: those of a lease, and ``at_most_once``, ``attempts``.

        Raises:
            As `window`; never `Late` or `Early`.
        """
        return Guard(self._engine, self._once(name, per, options))

    def try_once(self, name: str, per: policy.Duration, **options: Unpack[policy.OnceOptions]) -> Grant[Slot] | Refused:
        """As `once`, at once: return the `Grant`, or the falsy `Refused` that says why not."""
        return self._engine.acquire_at_once(self._once(name, per, options))

    def flush(self, seconds: float) -> bool:
        """Wait until everything unconfirmed is recorded (F3, F5), at most so many seconds; return whether it is."""
        return self._engine.keeper.flush(seconds)

    def close(self) -> None:
        """Stop renewals and let go of connections. What is unrecorded is tried once more, then given up. A lease still held expires."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_Base["AsyncGrant[Any]"]):
    """The async face; see `connect_async`. Renewals come from a thread, off the event loop."""

    def lease(self, name: str, **options: Unpack[policy.LeaseOptions]) -> AsyncGuard[None]:
        """As `Client.lease`, for ``async with``; when the lease is lost the body is cancelled, and the block raises `LeaseLost`."""
        return AsyncGuard(self._engine, self._lease(name, options))

    async def try_lease(self, name: str, **options: Unpack[policy.LeaseOptions]) -> AsyncGrant[None] | Refused:
        """As `Client.try_lease`."""
        return await self._engine.acquire(self._lease(name, options))

    def window(self, name: str, schedule: Schedule | None = None, **options: Unpack[policy.WindowOptions]) -> AsyncGuard[Slot]:
        """As `Client.window`, for ``async with``; when the lease is lost the body is cancelled, and the block raises `LeaseLost`."""
        return AsyncGuard(self._engine, self._window(name, schedule, options))

    async def try_window(
        self, name: str, schedule: Schedule | None = None, **options: Unpack[policy.WindowOptions]
    ) -> AsyncGrant[Slot] | Refused:
        """As `Client.try_window`."""
        return await self._engine.acquire(self._window(name, schedule, options))

    def once(self, name: str, per: policy.Duration, **options: Unpack[policy.OnceOptions]) -> AsyncGuard[Slot]:
        """As `Client.once`, for ``async with``."""
        return AsyncGuard(self._engine, self._once(name, per, options))

    async def try_once(self, name: str, per: policy.Duration, **options: Unpack[policy.OnceOptions]) -> AsyncGrant[Slot] | Refused:
        """As `Client.try_once`."""
        return await self._engine.acquire(self._once(name, per, options))

    async def flush(self, seconds: float) -> bool:
        """As `Client.flush`."""
        import asyncio

        return await asyncio.to_thread(self._engine.keeper.flush, seconds)

    async def close(self) -> None:
        """As `Client.close`."""
        import asyncio

        await asyncio.to_thread(self._engine.close)  # first: it still says what is unsaid
        if self._twin is not None:
            await self._twin.close()
        if isinstance(self._engine.io, ThreadedIo):
            self._engine.io.close()

    _twin: AsyncDriver | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def connect(
    url: str | Url | Backend,
    *,
    timeout: policy.Duration = policy.TIMEOUT,
    retention: policy.Duration = "30d",
    clock: Callable[[], float] = monotonic,
) -> Client:
    """Return a client for the store that the URL names. No I/O: the store is reached at the first claim.

    Args:
        url: As in ``sqlite:///var/lib/rota.db`` or ``memory://``; every backend takes ``?prefix=`` and ``?site=``. Or a backend that was
            made by hand, around a client that is there already.
        timeout: The longest that one call may take (F1), unless a claim says otherwise.
        retention: How long records are kept beyond their slot (R1); at least a day.
        clock: The local clock, seconds, which must run through suspend; for tests.

    Raises:
        BackendNotFound: No installed backend has the URL's scheme.
        ConfigurationError: A wrong URL or option.
    """
    found, parsed = backend(url)
    driver = found.driver(parsed)
    client = Client(
        driver, BlockingIo(driver), Grant, prefix=parsed.prefix, site=parsed.site, timeout=timeout, retention=retention, clock=clock
    )
    client._engine.local = _local_runs_of(parsed)
    return client


def _local_runs_of(url: Url) -> LocalRuns:
    """F3: what the *process* did on a store, whichever client it used."""
    return local_runs((url.scheme, url.rest) if url.rest else None)


def connect_async(
    url: str | Url | Backend,
    *,
    timeout: policy.Duration = policy.TIMEOUT,
    retention: policy.Duration = "30d",
    clock: Callable[[], float] = monotonic,
) -> AsyncClient:
    """As `connect`, for asyncio.

    May be called outside a loop. The client may be used in any number of loops, one after the other or in several threads at once, and
    closed in any of them; a grant, too, may be given back in another one. An ``on_lost`` function is called in the loop that asked for its
    grant, and not at all once that is closed.
    """
    found, parsed = backend(url)
    driver = found.driver(parsed)
    twin = found.async_driver(driver)
    io: Io = ThreadedIo(driver) if twin is None else NativeIo(twin)
    client = AsyncClient(driver, io, AsyncGrant, prefix=parsed.prefix, site=parsed.site, timeout=timeout, retention=retention, clock=clock)
    client._engine.local = _local_runs_of(parsed)
    client._twin = twin
    client._engine.wraps = _on_loop
    return client


def _on_loop(function: Callable[[], object]) -> Callable[[], object]:
    import asyncio

    loop = asyncio.get_running_loop()
    return lambda: loop.call_soon_threadsafe(function)


__all__ = ["AsyncClient", "AsyncGuard", "Client", "Guard", "connect", "connect_async"]
