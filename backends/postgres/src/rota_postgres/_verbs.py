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
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from psycopg import OperationalError, errors, pq
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGresult
from rota import rules
from rota.backend import Answer, Claim, Now, Override, Record, Renewal, Renewed, Settled, Settlement, WriteBack
from rota.errors import ConfigurationError, OutcomeUnknown, Unavailable

from ._link import Late, Link, Pool, in_line
from ._sql import Statements
from ._wire import Statement, answer, decode, record, texts

T = TypeVar("T")
Row = tuple[bytes | None, ...]

#: Not applied, and asked again at once: serialization failure (whatever the isolation level by default), deadlock, lock not available.
_AGAIN = {"40001", "40P01", "55P03"}
#: The connection or the server went while the statement ran: it may have been carried out.
_PERHAPS = ("08", "57P01", "57P02", "57P05")
#: The server is there and can't serve now: limits, disk full, starting up, cancelled by statement_timeout, read only (a standby now).
_AWAY = ("53", "54", "57", "58", "25006", "XX", "25P", "08")


class Verbs(ABC):
    """See `rota.backend.Driver`. The faces differ in how they wait."""

    def __init__(self, statements: Statements, pool: Pool, prepared_by: str) -> None:
        self.statements = statements
        self.pool = pool
        self.prepared_by = prepared_by

    @abstractmethod
    async def take(self, pool: Pool, deadline: float, urgent: bool = False) -> Link:
        """Return a connection, or raise `Unavailable` at the deadline."""

    @abstractmethod
    async def answer(self, link: Link, conversation: Generator[bool, None, PGresult], deadline: float) -> PGresult:
        """Go through a conversation, or raise `Late` at the deadline."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Pause."""

    # -- the verbs

    async def claim(self, claim: Claim, timeout: float) -> Answer:
        return await self._change("claim", claim, rules.claim, timeout)

    async def settle(self, settlement: Settlement, timeout: float) -> Settled:
        return await self._change("settle", settlement, rules.settle, timeout)

    async def forget(self, name: str, timeout: float) -> bool:
        def forget(found: Record | None, _: object, now: int) -> tuple[bool, Record | None]:
            tombstone = rules.forget(found, now)
            return tombstone is not None, tombstone

        return await self._change("forget", (name,), forget, timeout)

    async def override(self, override: Override, timeout: float) -> Settled:
        return await self._change("override", override, rules.override, timeout)

    async def record(self, write_back: WriteBack, timeout: float) -> Settled:
        return await self._change("record", write_back, rules.write_back, timeout)

    async def _change(
        self, verb: str, request: Any, rule: Callable[[Record | None, Any, int], tuple[T, Record | None]], timeout: float
    ) -> T:
        """Call a function; return what the rule answers to what it found."""
        (row,) = await self.row(self.statements.verbs[verb], request, timeout)
        assert row is not None
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
        while True:
            found = (await self.read(name, deadline - time.monotonic()))[0]
            if found is None or found.owner != owner:
                return True
            left = deadline - time.monotonic()
            if left <= 0.01:
                return False
            await self.sleep(min(left - 0.005, pause * random.uniform(0.7, 1.0)))
            pause = min(pause * 1.5, 1.0)

    async def listen(self, pool: Pool, deadline: float) -> Link | None:
        """Return a connection that hears of every end that somebody noted; None where a pooler is in the way, which passes nothing on."""
        link = await self.take(pool, deadline)
        result = await self.on(link, pool, self.statements.pid, (), deadline)
        if result is not None and decode("int4", result.get_value(0, 0)) != link.pgconn.backend_pid:  # a pooler makes that number up
            pool.give(link)
            return None
        if result is None or await self.on(link, pool, self.statements.listen, (), deadline) is None:
            raise Unavailable("the server can't listen now")
        return link

    async def unlisten(self, link: Link, pool: Pool) -> None:
        """Give such a connection back."""
        with contextlib.suppress(Unavailable, OperationalError):
            if await self.on(link, pool, self.statements.unlisten, (), time.monotonic() + 0.5) is not None:
                link.notified()
                pool.give(link)

    # -- statements

    async def row(self, statement: Statement, values: Sequence[Any], timeout: float, *, writes: bool = True, urgent: bool = False) -> Row:
        """Carry out a statement; return its first row's fields."""
        result = await self.result(statement, values, timeout, writes=writes, urgent=urgent)
        return tuple(result.get_value(0, column) for column in range(result.nfields))

    async def result(
        self, statement: Statement, values: Sequence[Any], timeout: float, *, writes: bool = True, urgent: bool = False
    ) -> PGresult:
        """Carry out a statement on any connection, again where the server asks for that."""
        deadline = time.monotonic() + timeout
        while True:
            link = await self.take(self.pool, deadline, urgent)
            result = await self.on(link, self.pool, statement, values, deadline, writes=writes)
            if result is not None:
                self.pool.give(link)
                return result
            await self.sleep(random.uniform(0.0, 0.005))

    async def on(
        self, link: Link, pool: Pool, statement: Statement, values: Sequence[Any], deadline: float, *, writes: bool = False
    ) -> PGresult | None:
        """Carry out a statement on one connection, which is thrown away where that fails; return None where it is to be repeated."""
        try:
            result = await self.answer(link, link.ask(statement, values), deadline)
            if result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
                return result
            error = self._failure(result, writes)
            if error is None:
                pool.give(link)
                return None
            raise error
        except BaseException as error:
            pool.drop(link)  # what is still to come is nobody's answer; and a server that can't serve may be another one next time
            if not isinstance(error, (Late, OperationalError)):
                raise
            why = "in time" if isinstance(error, Late) else f"({in_line(error)})"
            raise (OutcomeUnknown(f"sent, and no answer {why}") if writes else Unavailable(f"no answer {why}")) from error

    def _failure(self, result: PGresult, writes: bool) -> Exception | None:
        """Return what a failed statement means: None to ask again; else what to raise. See `rota.backend` on the three kinds."""
        error = error_from_result(result, encoding="utf-8")
        code = error.sqlstate or ""
        said = error.diag.message_primary or in_line(error)  # without the lines of where in a function it happened
        if code in _AGAIN:
            return None
        failure: Exception
        if isinstance(error, (errors.UndefinedTable, errors.UndefinedFunction, errors.InvalidSchemaName, errors.UndefinedColumn)):
            failure = ConfigurationError(
                f"the table {self.statements.table} is not there as this rota knows it ({said}): {self.prepared_by} ROLE makes it and its"
                " functions, where OWNER may create tables and ROLE is the user of this URL; rota schema prints the SQL"
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
