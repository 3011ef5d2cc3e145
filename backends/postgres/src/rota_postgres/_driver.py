# SPDX-License-Identifier: MIT
"""The blocking face: how a statement is carried out, and how a waiter is woken."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent import futures
from functools import partial
from typing import Any, TypeVar

from psycopg import OperationalError, pq
from psycopg.pq.abc import PGresult
from rota.backend import Answer, Claim, Driver, Now, Override, Record, Renewal, Renewed, Settled, Settlement, WriteBack
from rota.capabilities import Capabilities
from rota.errors import ConfigurationError, NotSupported, OutcomeUnknown, Unavailable

from ._link import Late, Link, Pool, answer, wait_readable
from ._sql import Statement, Statements, decode, quoted, record
from ._verbs import TooLate, Verbs, rows

T = TypeVar("T")
Row = tuple[bytes | None, ...] | None

_VERBS = frozenset({"watch", "override", "record", "facts", "schema", "sweep"})


def step(coroutine: Coroutine[Any, Any, T]) -> T:
    """Carry out a verb whose statements don't suspend."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise RuntimeError("a blocking verb suspended")


def late(writes: bool, seconds: str = "in time") -> Unavailable:
    """Return what a missing answer means."""
    return OutcomeUnknown(f"sent, and no answer {seconds}") if writes else Unavailable(f"no answer {seconds}")


def judge(pool: Pool, link: Link, verbs: Verbs, result: PGresult, writes: bool) -> tuple[bool, Row]:
    """Give or throw the connection back, and return whether the statement is done, and its first row; raise what went wrong."""
    if result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        pool.give(link)
        return True, rows(result)
    error = verbs.sift(result, writes)
    if error is None or isinstance(error, TooLate):
        pool.give(link)
    else:
        pool.drop(link)  # a server that can't serve now may be another one next time
    if error is not None:
        raise error
    return False, None


class _Blocking(Verbs):
    pool: Pool

    async def run(
        self, statement: Statement, values: Mapping[str, Any], deadline: float, *, writes: bool = True, urgent: bool = False
    ) -> Row:
        while True:
            link = take(self.pool, deadline, urgent)
            try:
                result = answer(link, link.ask(statement, values), deadline)
            except Late:
                self.pool.drop(link)
                raise late(writes) from None
            except OperationalError as error:
                self.pool.drop(link)
                raise late(writes, f"({str(error).strip()})") from error
            except BaseException:
                self.pool.drop(link)
                raise
            done, row = judge(self.pool, link, self, result, writes)
            if done:
                return row
            await self.sleep(random.uniform(0.0, 0.005))

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this face has no loop


def take(pool: Pool, deadline: float, urgent: bool = False) -> Link:
    """Return a connection.

    Raises:
        Unavailable: There is none by the deadline.
    """
    found = pool.take(urgent) if deadline > time.monotonic() else None
    if isinstance(found, Link):
        return found
    if found is not None:
        try:
            return found.result(max(0.0, deadline - time.monotonic()))
        except futures.TimeoutError:
            pool.leave(found)
        except BaseException:
            pool.leave(found)
            raise
    raise Unavailable("no connection in time")


class PostgresDriver(Driver):
    """Verbs on one table; see `rota.backend.Driver`.

    Args:
        options: What libpq is told.
        listen: What libpq is told for LISTEN, which needs a connection of its own; None: nobody listens, waiters poll.
        statements: The statements, for its table.
        where: The table, for messages.
    """

    def __init__(self, options: Mapping[str, str], listen: Mapping[str, str] | None, statements: Statements, url: str) -> None:
        self.statements = statements
        self.url = url
        self.capabilities = Capabilities(
            verbs=_VERBS if listen is not None else _VERBS - {"watch"}, waiting="poll" if listen is None else "watch", native_async=True
        )
        self.pool = Pool(options)
        self.listen_pool = self.pool if listen is None or listen == options else Pool(listen)
        self.known: dict[str, tuple[bytes, Record]] = {}
        self._verbs = _Blocking(statements, self._missing, self.known)
        self._verbs.pool = self.pool
        #: Whether a pooler stands between us and the server, which passes no notifications on; None: not known yet.
        self.pooled: bool | None = None
        self._reset()

    def _missing(self, error: str) -> str:
        return (
            f"the table {self.statements.table} is not there as this rota knows it: `rota init {self.url}` makes it,"
            f" `rota schema {self.url}` prints the SQL ({error.splitlines()[0]})"
        )

    # -- verbs

    def claim(self, claim: Claim, timeout: float) -> Answer:
        return step(self._verbs.claim(claim, timeout))

    def renew(self, renewals: Sequence[Renewal], timeout: float) -> Renewed:
        return step(self._verbs.renew(renewals, timeout))

    def settle(self, settlement: Settlement, timeout: float) -> Settled:
        return step(self._verbs.settle(settlement, timeout))

    def read(self, name: str, timeout: float) -> tuple[Record | None, Now | None]:
        return step(self._verbs.read(name, timeout))

    def list(self, prefix: str, timeout: float, *, after: str = "", limit: int = 1000) -> list[Record]:
        result = self._result(self.statements.list, {"prefix": prefix, "after": after, "limit": limit}, timeout)
        found = (record(result.get_value(row, 0)) for row in range(result.ntuples))
        return [each for each in found if each is not None]

    def forget(self, name: str, timeout: float) -> bool:
        return step(self._verbs.forget(name, timeout))

    def now(self, timeout: float) -> Now | None:
        return step(self._verbs.now(timeout))

    def override(self, override: Override, timeout: float) -> Settled:
        return step(self._verbs.override(override, timeout))

    def record(self, write_back: WriteBack, timeout: float) -> Settled:
        return step(self._verbs.record(write_back, timeout))

    def sweep(self, limit: int, timeout: float) -> int:
        return self._result(self.statements.sweep, {"limit": limit, "table": self.statements.table}, timeout).command_tuples or 0

    def schema(self, **options: str) -> str:
        unknown = set(options) - {"role", "unlogged"}
        if unknown:
            raise ConfigurationError(f"schema has the options role and unlogged, not {', '.join(sorted(unknown))}")
        statements = self.statements.schema(**options)
        return "".join(
            ["-- rota: one row per name. Safe to run twice, by whoever owns the schema.\n", *(f"{each};\n" for each in statements)]
        )

    def init(self, timeout: float, **options: str) -> None:
        """Carry out what `schema` prints."""
        self.schema(**options)
        for statement in self.statements.schema(**options):
            self._result(Statement(statement.encode(), (), (), ()), {}, timeout)

    def facts(self, timeout: float) -> dict[str, str | int | float | bool | None]:
        sent = time.time()
        link, result = self._kept(self.statements.facts, {"table": self.statements.table}, timeout)
        received = time.time()
        row = rows(result) or ()
        text = [
            "version",
            "",
            "fsync",
            "full_page_writes",
            "synchronous_commit",
            "synchronous_standby_names",
            "default_isolation",
            "encoding",
        ]
        text += ["statement_timeout", "max_connections", "role"]
        facts: dict[str, str | int | float | bool | None] = {name: decode("text", row[at]) for at, name in enumerate(text) if name}
        facts["standby"] = decode("bool", row[1])
        facts["table"] = {"p": "logged", "u": "unlogged", "t": "temporary", None: "missing"}.get(decode("text", row[11]))
        facts["missing_permissions"] = decode("text", row[12]) or ""
        facts["standbys_attached"], facts["records_estimate"] = decode("int8", row[13]), decode("int8", row[14])
        clock = decode("time", row[15]) / 1e6
        facts["clock_ahead_of_this_host_s"] = round(clock - (sent + received) / 2, 4)
        facts["pooler"] = decode("int4", row[16]) != link.pgconn.backend_pid
        facts["tls"] = link.pgconn.ssl_in_use
        self.pool.give(link)
        return facts

    def _result(self, statement: Statement, values: Mapping[str, Any], timeout: float) -> PGresult:
        link, result = self._kept(statement, values, timeout)
        self.pool.give(link)
        return result

    def _kept(self, statement: Statement, values: Mapping[str, Any], timeout: float) -> tuple[Link, PGresult]:
        """Carry out a statement that only reads, or may be lost; return its connection too."""
        deadline = time.monotonic() + timeout
        while True:
            link = take(self.pool, deadline)
            result = on(link, self.pool, statement, values, deadline)
            if result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
                return link, result
            judge(self.pool, link, self._verbs, result, False)

    def close(self) -> None:
        self.pool.close()
        self.listen_pool.close()

    def after_fork(self) -> None:
        self.pool.reset()
        if self.listen_pool is not self.pool:
            self.listen_pool.reset()
        self.known.clear()
        self._reset()

    # -- waiting: whoever finds nobody reading the listening connection reads it for all until its own wait is over; no thread is needed

    def _reset(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._listening: Link | None = None
        self._watchers, self._reading = 0, False
        self._heard: dict[str, int] = {}

    def watch(self, name: str, owner: str, timeout: float) -> bool:
        if "watch" not in self.capabilities.verbs:
            raise NotSupported("listen=off: waiters poll")
        deadline = time.monotonic() + timeout
        with self._changed:
            self._watchers += 1
        try:
            while not self.pooled:
                if not self._read(deadline, lambda: self._listening is not None or self.pooled):
                    return False
                link, count = self._listening, self._heard.get(name, 0)
                if not step(self._verbs.is_held(name, owner, max(deadline, time.monotonic() + 0.05))):
                    return True
                if not self._read(deadline, partial(self._has_news, name, count, link)):
                    return False
                if self._listening is link:  # it was told: the grant that the note names has ended
                    return True
        finally:
            with self._changed:
                self._watchers -= 1
                last, idle = None, not self._watchers and not self._reading
                if idle:
                    last, self._listening, self._heard = self._listening, None, {}
            if last is not None:
                self._unlisten(last)
        return step(self._verbs.poll(name, owner, deadline))

    def _has_news(self, name: str, count: int, link: Link | None) -> bool:
        return self._heard.get(name, 0) != count or self._listening is not link

    def _read(self, deadline: float, come: Callable[[], object]) -> bool:
        """Wait until something has come; return False at the deadline."""
        while True:
            with self._changed:
                while self._reading and not come():
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return False
                    self._changed.wait(left)
                if come():
                    return True
                if time.monotonic() >= deadline:
                    return False
                self._reading = True
            payloads: Sequence[str] = ()
            link = self._listening
            try:
                if link is None:
                    link = self._listen(deadline)
                elif wait_readable(link, deadline):
                    payloads = link.notified()
            except OperationalError:  # gone: listen anew, and look again at everything
                if link is not None:
                    self.listen_pool.drop(link)
                link = None
            finally:
                with self._changed:
                    self._reading, self._listening = False, link
                    for payload in payloads:
                        self._heard[payload] = self._heard.get(payload, 0) + 1
                    self._changed.notify_all()

    def _listen(self, deadline: float) -> Link | None:
        link = take(self.listen_pool, deadline)
        result = on(link, self.listen_pool, self.statements.pid, {}, deadline)
        row = rows(result)
        if row is None or is_pooled(link, row):
            self.pooled = True
            self.listen_pool.give(link)
            return None
        judge_on(on(link, self.listen_pool, listen(self._verbs.channel), {}, deadline), link, self.listen_pool, self._verbs)
        return link

    def _unlisten(self, link: Link) -> None:
        try:
            on(link, self.listen_pool, UNLISTEN, {}, time.monotonic() + 0.5)
            link.notified()
        except (Unavailable, OperationalError):
            self.listen_pool.drop(link)
        else:
            self.listen_pool.give(link)


UNLISTEN = Statement(b"UNLISTEN *", (), (), ())


def listen(channel: str) -> Statement:
    """Return the statement that listens."""
    return Statement(f"LISTEN {quoted(channel)}".encode(), (), (), ())


def is_pooled(link: Link, row: tuple[bytes | None, ...]) -> bool:
    """Whether the server's process is not the one that the connection was told of: a pooler makes that number up."""
    return bool(decode("int4", row[0]) != link.pgconn.backend_pid)


def on(link: Link, pool: Pool, statement: Statement, values: Mapping[str, Any], deadline: float) -> PGresult:
    """Carry out a statement on one connection, which is thrown away when that fails."""
    try:
        return answer(link, link.ask(statement, values), deadline)
    except Late:
        pool.drop(link)
        raise Unavailable("no answer in time") from None
    except OperationalError as error:
        pool.drop(link)
        raise Unavailable(f"no answer ({str(error).strip()})") from error
    except BaseException:
        pool.drop(link)
        raise


def judge_on(result: PGresult, link: Link, pool: Pool, verbs: Verbs) -> None:
    """Raise what a statement's failure means; a connection that can't do it is thrown away."""
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        pool.drop(link)
        raise verbs.sift(result, False) or Unavailable("try again")
