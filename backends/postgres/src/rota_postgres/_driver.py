# SPDX-License-Identifier: MIT
"""The blocking face: how the network is waited for, and how a waiter is woken."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from queue import Empty
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from psycopg import OperationalError
from psycopg.pq.abc import PGresult
from rota.backend import Answer, Claim, Driver, Now, Override, Record, Renewal, Renewed, Settled, Settlement, WriteBack
from rota.capabilities import Capabilities
from rota.errors import ConfigurationError, NotSupported, RotaError, Unavailable

from ._link import Late, Link, Pool, Promise, ready
from ._sql import Statements
from ._verbs import SOON, Verbs
from ._wire import COLUMNS, OTHER_COLUMNS, decode, record, statement, texts

if TYPE_CHECKING:
    from rota.finding import Finding

T = TypeVar("T")

_VERBS = frozenset({"watch", "override", "record", "facts", "schema", "sweep"})
#: What the statement `facts` answers, in its order.
_FACTS = (
    ("version", "text"),
    ("standby", "bool"),
    ("fsync", "text"),
    ("full_page_writes", "text"),
    ("synchronous_commit", "text"),
    ("synchronous_standby_names", "text"),
    ("default_isolation", "text"),
    ("encoding", "text"),
    ("statement_timeout", "text"),
    ("max_connections", "text"),
    ("role", "text"),
    ("table", "text"),
    ("missing_permissions", "text"),
    ("standbys_attached", "int8"),
    ("records_estimate", "int8"),
)


def step(coroutine: Coroutine[Any, Any, T]) -> T:
    """Carry out a verb whose statements don't suspend."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise RuntimeError("a blocking verb suspended")


class _Blocking(Verbs):
    suspends = False

    async def come(self, pool: Pool, promise: Promise, deadline: float) -> Link:
        try:
            return promise.result(max(0.0, deadline - time.monotonic()))
        except Empty:
            pool.leave(promise)
            raise Unavailable("no connection in time") from None
        except BaseException:
            pool.leave(promise)
            raise

    def answer(self, link: Link, deadline: float) -> PGresult:
        while True:
            left = deadline - time.monotonic()
            if not (ready(link.fd, True, left) if link.writing else link.has_come(left)):
                raise Late
            result = link.answer()
            if result is not None:
                return result

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this face has no loop


class PostgresDriver(Driver):
    """Verbs on one table; see `rota.backend.Driver`.

    Args:
        options: What libpq is told.
        listen: What libpq is told for LISTEN, which needs a connection of its own; None: nobody listens, waiters poll.
        statements: The statements, for its table.
        prepared_by: The command that prepares the store, for messages.
    """

    def __init__(self, options: Mapping[str, str], listen: Mapping[str, str] | None, statements: Statements, prepared_by: str) -> None:
        self.capabilities = Capabilities(
            verbs=_VERBS if listen is not None else _VERBS - {"watch"}, waiting="poll" if listen is None else "watch", native_async=True
        )
        self.pool = Pool(options)
        self.listen_pool = self.pool if listen is None or listen == options else Pool(listen)
        self.verbs = _Blocking(statements, self.pool, prepared_by)
        #: Whether a pooler stands between us and the server, which passes no notifications on.
        self.pooled = False
        self._reset()

    # -- verbs

    def claim(self, claim: Claim, timeout: float) -> Answer:
        return step(self.verbs.claim(claim, timeout))

    def renew(self, renewals: Sequence[Renewal], timeout: float) -> Renewed:
        return step(self.verbs.renew(renewals, timeout))

    def settle(self, settlement: Settlement, timeout: float) -> Settled:
        return step(self.verbs.settle(settlement, timeout))

    def read(self, name: str, timeout: float) -> tuple[Record | None, Now | None]:
        return step(self.verbs.read(name, timeout))

    def list(self, prefix: str, timeout: float, *, after: str = "", limit: int = 1000) -> list[Record]:
        result = step(self.verbs.result(self.verbs.statements.list, (prefix, after, limit), timeout, writes=False))
        found = (record(result.get_value(row, 0)) for row in range(result.ntuples))
        return [each for each in found if each is not None]

    def forget(self, name: str, timeout: float) -> bool:
        return step(self.verbs.forget(name, timeout))

    def now(self, timeout: float) -> Now | None:
        return step(self.verbs.now(timeout))

    def override(self, override: Override, timeout: float) -> Settled:
        return step(self.verbs.override(override, timeout))

    def record(self, write_back: WriteBack, timeout: float) -> Settled:
        return step(self.verbs.record(write_back, timeout))

    def sweep(self, limit: int, timeout: float) -> int:
        statements = self.verbs.statements
        return step(self.verbs.result(statements.sweep, (statements.table, limit), timeout, writes=False)).command_tuples or 0

    def schema(self, **options: str) -> str:
        unknown = set(options) - {"role", "unlogged"}
        if unknown:
            raise ConfigurationError(f"schema has the options role and unlogged, not {', '.join(sorted(unknown))}")
        statements = "".join(f"\n{each};\n" for each in self.verbs.statements.schema(**options))
        return f"-- rota: one row per name, and the functions that change it. Safe to run twice, by whoever owns the schema.\n{statements}"

    def init(self, timeout: float, **options: str) -> None:
        """Carry out what `schema` prints."""
        self.schema(**options)
        role = options.get("role")
        if role is not None:
            known = step(self.verbs.result(statement("SELECT 1 FROM pg_roles WHERE rolname = $1", "text"), (role,), timeout))
            if not known.ntuples:  # asked first, since each statement below is a transaction of its own
                raise ConfigurationError(f"the role {role!r} does not exist, so nothing was made: create it first")
        statements = self.verbs.statements
        there = texts(step(self.verbs.row(statements.columns, (statements.table,), timeout, writes=False))[0] or b"")
        found, ours = ([column for column in columns if column != "waited"] for columns in (there, COLUMNS))
        if there and found[: len(ours)] != ours:  # CREATE TABLE IF NOT EXISTS would leave it so
            raise ConfigurationError(f"{statements.table} was made by another version, so nothing was changed: {OTHER_COLUMNS}")
        for each in self.verbs.statements.schema(**options):
            step(self.verbs.result(statement(each), (), timeout))

    def facts(self, timeout: float) -> dict[str, str | int | float | bool | None]:
        sent, statements, deadline = time.time(), self.verbs.statements, time.monotonic() + timeout
        link = step(self.verbs.take(self.pool, deadline))
        result = step(self.verbs.result(statements.facts, (statements.table,), deadline - time.monotonic(), writes=False, on=link))
        received = time.time()
        row = [result.get_value(0, column) for column in range(result.nfields)]
        facts: dict[str, str | int | float | bool | None] = {
            name: decode(kind, value) for (name, kind), value in zip(_FACTS, row, strict=False)
        }
        facts["table"] = {"p": "logged", "u": "unlogged", "t": "temporary", None: "missing"}.get(facts["table"])  # type: ignore[arg-type]
        facts["version"] = str(facts["version"]).partition(" ")[0]  # without what a distribution calls it
        facts["missing_permissions"] = facts["missing_permissions"] or ""
        facts["clock_ahead_of_this_host_s"] = round(decode("time", row[-2]) / 1e6 - (sent + received) / 2, 4)
        facts["pooler"] = decode("int4", row[-1]) != link.pgconn.backend_pid
        facts["tls"] = link.pgconn.ssl_in_use
        facts["password_unchecked"] = bool(link.pgconn.password) and not link.pgconn.used_password
        self.pool.give(link)
        return facts

    def examine(self, facts: Mapping[str, str | int | float | bool | None] | RotaError, timeout: float) -> Sequence[Finding]:
        from ._findings import examine, failed

        if isinstance(facts, RotaError):
            return failed(facts, self.verbs.prepared_by)
        listens: bool | RotaError | None = None
        if "watch" in self.capabilities.verbs and not facts["standby"]:  # on a standby nobody can LISTEN
            try:
                link = step(self.verbs.listen(self.listen_pool, time.monotonic() + timeout))
                listens = link is not None
                if link is not None:
                    step(self.verbs.unlisten(link, self.listen_pool))
            except RotaError as error:
                listens = error
        return examine(facts, self.verbs.prepared_by, self.verbs.statements.table, listens)

    def bare(self, name: str, writes: bool, timeout: float) -> None:
        asked = self.verbs.statements.bare_write if writes else self.verbs.statements.bare_read
        step(self.verbs.result(asked, (name,), timeout, writes=writes))

    def close(self) -> None:
        self.pool.close()
        self.listen_pool.close()
        for link in self._listeners.copy():
            link.break_off()  # whoever reads it is told at once, not when there is news

    def after_fork(self) -> None:
        self.pool.reset()
        if self.listen_pool is not self.pool:
            self.listen_pool.reset()
        self._reset()

    # -- waiting: whoever finds nobody reading the listening connection reads it for all until its own wait is over; no thread is needed

    def _reset(self) -> None:
        # A handler of a signal may use this, or raise, as with the pool: a `threading.Condition` allows neither. With it nobody waits.
        self._lock = threading.RLock()
        self._watchers: set[ref[_Watcher]] = set()
        self._line: deque[ref[_Watcher]] = deque()  # those who wait for something to be read; the first reads
        self._listeners: list[Link] = []  # one, or none
        self._heard: dict[str, int] = {}

    @property
    def _listening(self) -> Link | None:
        return next(iter(self._listeners[:]), None)

    def watch(self, name: str, owner: str, timeout: float) -> bool:
        if "watch" not in self.capabilities.verbs:
            raise NotSupported("listen=off: waiters poll")
        deadline = time.monotonic() + timeout
        me = _Watcher()
        try:
            with self._lock:
                self._watchers.add(ref(me, self._watchers.discard))
            while (link := self._listens(me, deadline)) is not None:
                count = self._heard.get(name, 0)
                if not step(self.verbs.is_held(name, owner, max(deadline - time.monotonic(), 0.05))):
                    return True
                if not self._read(me, deadline, partial(self._has_news, name, count, link)):
                    return False
                if self._listening is link:  # it was told: the grant that the note names has ended
                    return True
        finally:
            last = None
            with self._lock:
                self._watchers.discard(ref(me))
                if not self._watchers and self._listeners:
                    last, self._heard = self._listeners.pop(), {}
            if last is not None:
                step(self.verbs.unlisten(last, self.listen_pool))
        return step(self.verbs.poll(name, owner, deadline))

    def _listens(self, me: _Watcher, deadline: float) -> Link | None:
        """Listen, if nobody does yet; return on which connection, or None if that isn't to be had: the waiter has to look for itself."""
        if not self.pooled:
            with contextlib.suppress(Unavailable):
                self._read(me, min(deadline, time.monotonic() + SOON), lambda: self._listening is not None or self.pooled)
        return self._listening

    def _has_news(self, name: str, count: int, link: Link) -> bool:
        return self._heard.get(name, 0) != count or self._listening is not link

    def _read(self, me: _Watcher, deadline: float, come: Callable[[], object]) -> bool:
        """Wait until something has come; return False at the deadline."""
        try:
            self._line.append(ref(me))
            while not come():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                if next(self._in_line(), None) is me:
                    self._read_for_all(deadline)
                else:
                    me.bell.acquire(timeout=min(left, threading.TIMEOUT_MAX))
            return True
        finally:
            with contextlib.suppress(ValueError):
                self._line.remove(ref(me))
            self._ring()

    def _in_line(self) -> Iterator[_Watcher]:
        # one that was interrupted is in it no more
        return (watcher for known in self._line.copy() if (watcher := known()) is not None)

    def _ring(self) -> None:
        """Let those in line look what has come, and who is the first."""
        for watcher in self._in_line():
            with contextlib.suppress(RuntimeError):  # it rings already
                watcher.bell.release()

    def _read_for_all(self, deadline: float) -> None:
        link = self._listening
        try:
            if link is None:
                link = step(self.verbs.listen(self.listen_pool, deadline))
                self.pooled = link is None
            elif link.has_come(max(0.0, deadline - time.monotonic())):
                for payload in link.notified():
                    self._heard[payload] = self._heard.get(payload, 0) + 1
        except OperationalError:  # gone: listen anew, and look again at everything
            if link is not None:
                self.listen_pool.drop(link)
            link = None
        self._listeners[:] = [] if link is None else [link]
        self._ring()


class _Watcher:
    """Somebody who waits, and a lock that wakes it: given back by whoever rings, and taken by it."""

    __slots__ = ("__weakref__", "bell")

    def __init__(self) -> None:
        self.bell = threading.Lock()
        self.bell.acquire()
