# SPDX-License-Identifier: MIT
"""The verbs, written once for both faces: coroutines that await nothing but the network.

The functions in the database decide; they return the record that they found and the time, of which `rota.rules` says here what was
answered and written (tests compare the two).
"""

from __future__ import annotations

import contextlib
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from psycopg import OperationalError, errors, pq
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGresult
from rota import rules
from rota.backend import LEASE, WINDOW, Answer, Claim, Now, Override, Record, Renewal, Renewed, Settled, Settlement, WriteBack
from rota.errors import ConfigurationError, OutcomeUnknown, Unavailable

from ._link import Late, Link, Pool, Promise, in_line
from ._sql import Statements
from ._wire import Statement, answer, decode, record, settled, texts

T = TypeVar("T")
Row = tuple[bytes | None, ...]

#: Not applied, and asked again at once: serialization failure (whatever the isolation level by default), deadlock, lock not available.
_AGAIN = {"40001", "40P01", "55P03"}
_DONE = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
#: The connection or the server went while the statement ran: it may have been carried out.
_PERHAPS = ("08", "57P01", "57P02", "57P05")
#: The server is there and can't serve now: limits, disk full, starting up, cancelled by statement_timeout, read only (a standby now).
_AWAY = ("53", "54", "57", "58", "25006", "XX", "25P", "08")

#: How long a waiter waits until it listens, seconds: while nobody answers there it might miss the end, so from then on it looks for itself.
SOON = 0.5


class Verbs(ABC):
    """See `rota.backend.Driver`. The faces differ in how they wait."""

    def __init__(self, statements: Statements, pool: Pool, prepared_by: str) -> None:
        self.statements = statements
        self.pool = pool
        self.prepared_by = prepared_by

    #: Whether `answer` is to be awaited: a coroutine around each wait of the blocking face would be felt.
    suspends: bool

    @abstractmethod
    async def come(self, pool: Pool, promise: Promise, deadline: float) -> Link:
        """Wait for a connection; give its promise back, and raise, at the deadline."""

    @abstractmethod
    def answer(self, link: Link, deadline: float) -> Any:
        """Return the answer to what was asked, or raise `Late` at the deadline."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Pause."""

    # -- the verbs

    def claim(self, claim: Claim, timeout: float) -> Coroutine[Any, Any, Answer]:
        kind = claim.kind  # most claims are one of the first two, whose last fields say nothing
        if kind == LEASE:
            return self._change("lease", claim, rules.claim, timeout, claim[:7])
        if kind == WINDOW and not (claim.seal or claim.max_attempts):
            return self._change("window", claim, rules.claim, timeout, claim[:13])
        return self._change("claim", claim, rules.claim, timeout, claim)

    async def settle(self, settlement: Settlement, timeout: float) -> Settled:
        row = (await self.result(self.statements.verbs["settle"], settlement, timeout)).get_value(0, 0)
        assert row is not None
        now, done, expired = settled(row)
        if done:
            return Settled(True, None, (now, now), settlement.result, expired)
        return self._said(rules.settle, settlement, row)

    async def forget(self, name: str, timeout: float) -> bool:
        def forget(found: Record | None, _: object, now: int) -> tuple[bool, Record | None]:
            tombstone = rules.forget(found, now)
            return tombstone is not None, tombstone

        return await self._change("forget", (name,), forget, timeout, (name,))

    def override(self, override: Override, timeout: float) -> Coroutine[Any, Any, Settled]:
        return self._change("override", override, rules.override, timeout, override)

    def record(self, write_back: WriteBack, timeout: float) -> Coroutine[Any, Any, Settled]:
        return self._change("record", write_back, rules.write_back, timeout, write_back)

    async def _change(
        self,
        verb: str,
        request: Any,
        rule: Callable[[Record | None, Any, int], tuple[T, Record | None]],
        timeout: float,
        values: Sequence[Any],
    ) -> T:
        """Call a function; return what the rule answers to what it found."""
        row = (await self.result(self.statements.verbs[verb], values, timeout)).get_value(0, 0)
        assert row is not None
        return self._said(rule, request, row)

    def _said(self, rule: Callable[[Record | None, Any, int], tuple[T, Record | None]], request: Any, row: bytes) -> T:
        now, before, done = answer(row)
        said, changed = rule(before, request, now)
        if (changed is not None) is not done:
            raise OutcomeUnknown(f"{request[0]}: the database decided otherwise than this rota would: run {self.prepared_by} ROLE")
        return said

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> Renewed:
        columns = [list(column) for column in zip(*renewals, strict=True)] or [[], [], [], []]
        row = await self.row(self.statements.renew, columns, timeout, urgent=True)
        now, held = decode("time", row[0]), set(texts(row[1] or b""))
        return Renewed([renewal.owner + renewal.name in held for renewal in renewals], (now, now))

    async def read(self, name: str, timeout: float) -> tuple[Record | None, Now | None]:
        row = await self.row(self.statements.read, (name,), timeout, writes=False)
        now = decode("time", row[0])
        return record(row[1]), (now, now)

    async def now(self, timeout: float) -> Now:
        now = decode("time", (await self.row(self.statements.now, (), timeout, writes=False))[0])
        return now, now

    # -- waiting

    async def is_held(self, name: str, owner: str, timeout: float) -> bool:
        """Whether the owner has the name still; if so, whoever ends that will notify the channel."""
        while True:
            result = await self.result(self.statements.note, (name, owner), timeout)
            if not result.ntuples or not decode("bool", result.get_value(0, 0)):
                return False
            if decode("bool", result.get_value(0, 1)):
                return True

    async def poll(self, name: str, owner: str, deadline: float) -> bool:
        """Wait for the end of the owner's grant without being told."""
        pause = 0.05
        while time.monotonic() < deadline:
            found = (await self.read(name, deadline - time.monotonic()))[0]
            if found is None or found.owner != owner:
                return True
            left = deadline - time.monotonic()
            if left <= 0.01:
                break
            await self.sleep(min(left - 0.005, pause * random.uniform(0.7, 1.0)))
            pause = min(pause * 1.5, 1.0)
        return False

    async def listen(self, pool: Pool, deadline: float) -> Link | None:
        """Return a connection that hears of every end that somebody noted; None where a pooler is in the way, which passes nothing on."""
        link = await self.take(pool, deadline)
        result = await self.result(self.statements.pid, (), deadline - time.monotonic(), writes=False, on=link, pool=pool)
        if decode("int4", result.get_value(0, 0)) != link.pgconn.backend_pid:  # a pooler makes that number up
            pool.give(link)
            return None
        await self.result(self.statements.listen, (), deadline - time.monotonic(), writes=False, on=link, pool=pool)
        return link

    async def unlisten(self, link: Link, pool: Pool) -> None:
        """Give such a connection back."""
        with contextlib.suppress(Unavailable, OperationalError):
            await self.result(self.statements.unlisten, (), 0.5, writes=False, on=link, pool=pool)
            link.notified()
            pool.give(link)

    # -- statements

    async def row(self, statement: Statement, values: Sequence[Any], timeout: float, *, writes: bool = True, urgent: bool = False) -> Row:
        """Carry out a statement; return its first row's fields."""
        result = await self.result(statement, values, timeout, writes=writes, urgent=urgent)
        return tuple(result.get_value(0, column) for column in range(result.nfields))

    async def result(
        self,
        statement: Statement,
        values: Sequence[Any],
        timeout: float,
        *,
        writes: bool = True,
        urgent: bool = False,
        on: Link | None = None,
        pool: Pool | None = None,
    ) -> PGresult:
        """Carry out a statement, again where the server asks for that, on this connection of this pool or on any.

        Where that fails the connection is thrown away: what is still to come is nobody's answer; and a server that can't serve may be
        another one next time.
        """
        pool = pool or self.pool
        deadline = time.monotonic() + timeout
        while True:
            if time.monotonic() >= deadline:
                if on is not None:
                    pool.drop(on)
                raise Unavailable("no connection in time")
            link = on or pool.take(urgent)
            if not isinstance(link, Link):
                link = await self.come(pool, link, deadline)
            try:
                link.ask(statement, values)
                answer = self.answer(link, deadline)
                result: PGresult = await answer if self.suspends else answer
                done = result.status in _DONE
                failure = None if done else self._failure(result, writes)
                if failure is not None:
                    raise failure
            except BaseException as error:
                pool.drop(link)
                if not isinstance(error, (Late, OperationalError)):
                    raise
                why = "in time" if isinstance(error, Late) else f"({in_line(error)})"
                raise (OutcomeUnknown(f"sent, and no answer {why}") if writes else Unavailable(f"no answer {why}")) from error
            if on is None:
                pool.give(link)
            if done:
                return result
            await self.sleep(random.uniform(0.0, 0.005))

    async def take(self, pool: Pool, deadline: float) -> Link:
        """Return a connection, or raise `Unavailable` at the deadline."""
        link = pool.take()
        return link if isinstance(link, Link) else await self.come(pool, link, deadline)

    def _failure(self, result: PGresult, writes: bool) -> Exception | None:
        """Return what a failed statement means: None to ask again; else what to raise. See `rota.backend` on the three kinds."""
        error = error_from_result(result, encoding="utf-8")
        code = error.sqlstate or ""
        said = error.diag.message_primary or in_line(error)  # without the lines of where in a function it happened
        if code in _AGAIN:
            return None
        failure: Exception
        if isinstance(error, (errors.UndefinedTable, errors.UndefinedFunction, errors.InvalidSchemaName, errors.UndefinedColumn)):
            if isinstance(error, errors.UndefinedFunction):  # without the types of its 13 arguments
                said = said.partition("(")[0] + said.rpartition(")")[2]
            failure = ConfigurationError(
                f"the table {self.statements.table} is not there as this rota knows it: {self.prepared_by} ROLE makes it and its functions,"
                f" where OWNER may create tables and ROLE is the user of this URL; rota schema prints the SQL (the server says: {said})"
            )
        elif isinstance(error, errors.InsufficientPrivilege):
            failure = ConfigurationError(f"the server refuses: {said}: run {self.prepared_by} ROLE, with the table's OWNER and this role")
        elif code.startswith(_PERHAPS) and writes:
            failure = OutcomeUnknown(f"the server went away: {said}")
        elif code.startswith(_AWAY):
            failure = Unavailable(f"the server can't serve now: {said}")
        else:
            failure = ConfigurationError(f"the server refuses: {said}")
        failure.__cause__ = error
        return failure
