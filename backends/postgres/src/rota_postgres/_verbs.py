# SPDX-License-Identifier: MIT
"""The verbs, written once for both faces: coroutines that await nothing but how a statement is carried out.

`rota.rules` says what a record that was read means; the statements write the same (tests compare the two). What this process saw of a name
last is remembered: where that looks free a claim is a short statement that wins only if it is still so, where it looks taken it is a
read, which locks and writes nothing; a name not seen lately is looked at and claimed in one statement.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, TypeVar

from psycopg import errors
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGresult
from rota import rules
from rota.backend import (
    HANDLED,
    LEASE,
    ROLLING,
    UNUSED,
    WON,
    Answer,
    Claim,
    Now,
    Override,
    Record,
    Renewal,
    Renewed,
    Settled,
    Settlement,
    WriteBack,
)
from rota.errors import ConfigurationError, OutcomeUnknown, Unavailable

from ._sql import Statement, Statements, decode, record, texts

T = TypeVar("T")

#: Names whose last sight is remembered.
KNOWN = 1024
#: Not applied, and asked again at once: serialization failure (whatever the isolation level by default), deadlock, lock not available.
_AGAIN = {"40001", "40P01", "55P03"}
#: What the statements raise themselves (L7).
_TOO_LATE = "22P02"
#: The connection or the server went while the statement ran: it may have been carried out.
_PERHAPS = ("08", "57P01", "57P02", "57P05")
#: The server is there and can't serve now: limits, disk full, starting up, cancelled by statement_timeout, read only (a standby now).
_AWAY = ("53", "54", "57", "58", "25006", "XX", "25P")


class TooLate(Exception):
    """The statement undid itself because it had to wait too long."""


class Verbs(ABC):
    """See `rota.backend.Driver`; `run` is what the faces differ in."""

    def __init__(self, statements: Statements, describe: Callable[[str], str], known: dict[str, tuple[bytes, Record]]) -> None:
        self.statements = statements
        self.describe = describe
        self.known = known
        self.channel = "rota_" + sha256(statements.table.encode()).hexdigest()[:32]

    @abstractmethod
    async def run(
        self, statement: Statement, values: Mapping[str, Any], deadline: float, *, writes: bool = True, urgent: bool = False
    ) -> Any:
        """Carry out a statement; return its first row's fields, or None."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Pause."""

    # -- claims

    async def claim(self, claim: Claim, timeout: float) -> Answer:
        deadline = time.monotonic() + timeout
        values = self._values(claim)
        seen = self.known.get(claim.name)
        if seen is not None and not _looks_free(seen[1], claim):
            now, seen, answer = await self._look(claim, deadline)
            if answer is not None:
                return answer
        while True:
            alike = seen is not None and _is_alike(seen[1], claim)
            statement = self.statements.claim(claim.kind, claim.seal and claim.kind != LEASE, claim.overlap, seen is not None, alike)
            try:
                if seen is not None:
                    row = await self.run(statement, {**values, "version": seen[0]}, deadline)
                    if row is not None:
                        return self._won(claim, seen[1], row[0], row[1])
                    seen = None
                    continue
                row = await self.run(statement, values, deadline)
            except TooLate:
                continue
            now, before = decode("time", row[0]), record(row[2])
            if row[3] is not None:
                return self._won(claim, before, row[3], row[4])
            if before is not None:
                self._remember(row[1], before)
            refused = await self._refuse(claim, row[1], before, now, deadline)
            if refused is not None:
                return refused

    async def _look(self, claim: Claim, deadline: float) -> tuple[int, tuple[bytes, Record] | None, Answer | None]:
        """Read first: a refused claim then costs no lock, no write and no wait for the disk."""
        now, version, found = await self._read(claim.name, deadline)
        answer = await self._refuse(claim, version, found, now, deadline)
        return now, None if found is None else (version, found), answer

    async def _refuse(self, claim: Claim, version: bytes, found: Record | None, now: int, deadline: float) -> Answer | None:
        """Return what the rules say to a record, unless it is to be claimed."""
        answer, changed = rules.claim(found, claim, now)
        if changed is None:
            return answer
        if answer.verdict == HANDLED and found is not None and await self._replace(version, found, changed, deadline):  # W3c
            return answer
        return None

    def _won(self, claim: Claim, before: Record | None, version: bytes, granted_at: bytes) -> Answer:
        now = decode("time", granted_at)
        answer, granted = rules.claim(before, claim, now)
        if answer.verdict != WON or granted is None:
            raise OutcomeUnknown(f"{claim.name}: the store granted what the rules refuse: do the versions of rota differ?")
        self._remember(version, granted)
        return answer

    def _remember(self, version: bytes, found: Record) -> None:
        if len(self.known) >= KNOWN:
            self.known.clear()
        self.known[found.name] = (version, found)

    def _values(self, claim: Claim) -> dict[str, Any]:
        latest = claim.apply_until if claim.late_from is None else min(claim.apply_until, claim.late_from - 1)
        return {
            "name": claim.name,
            "kind": claim.kind,
            "owner": claim.owner,
            "label": claim.label,
            "ttl": claim.ttl,
            "retention": claim.retention,
            "latest": latest,
            "schedule": claim.schedule,
            "zone_data": claim.zone_data,
            "start": claim.slot_start,
            "end": claim.slot_end,
            "earliest": claim.not_before,
            "period": claim.period,
            "most": claim.max_attempts or 2**31 - 1,
        }

    # -- the other verbs

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> Renewed:
        values = {
            "names": [renewal.name for renewal in renewals],
            "owners": [renewal.owner for renewal in renewals],
            "ttls": [renewal.ttl for renewal in renewals],
            "retentions": [renewal.retention for renewal in renewals],
        }
        row = await self.run(self.statements.renew, values, time.monotonic() + timeout, urgent=True)
        now, held = decode("time", row[0]), set(texts(row[1]))
        return Renewed([renewal.owner + renewal.name in held for renewal in renewals], (now, now))

    async def settle(self, settlement: Settlement, timeout: float) -> Settled:
        deadline = time.monotonic() + timeout
        name, owner, result = settlement.name, settlement.owner, settlement.result
        values = {**settlement._asdict(), "channel": self.channel}
        seen = self.known.pop(name, None)
        kind = seen[1].kind if seen is not None and seen[1].owner == owner else ""
        while True:
            try:
                row = await self.run(self.statements.settle(result, kind, settlement.history is not None), values, deadline)
            except TooLate:
                continue
            if row is not None:
                after = record(row[1])
                assert after is not None
                self._remember(row[0], after)
                return Settled(True, after, (after.settled_at, after.settled_at), result, after.last_expired)
            kind = ""
            # L7: whether an unused owner id has its grant is only certain behind whoever writes the row now
            now, _, found = await self._read(name, deadline, lock=result == UNUSED)
            settled, changed = rules.settle(found, settlement, now)
            if changed is None and (found is not None or result != UNUSED or await self._is_absent(name, deadline)):
                return settled

    async def _is_absent(self, name: str, deadline: float) -> bool:
        """Whether nobody is inserting the name just now, having waited for who did."""
        try:
            await self.run(self.statements.probe, {"name": name}, deadline)
        except TooLate:
            return True
        return False

    async def read(self, name: str, timeout: float) -> tuple[Record | None, Now | None]:
        now, _, found = await self._read(name, time.monotonic() + timeout)
        return found, (now, now)

    async def _read(self, name: str, deadline: float, lock: bool = False) -> tuple[int, bytes, Record | None]:
        row = await self.run(self.statements.lock if lock else self.statements.read, {"name": name}, deadline, writes=False)
        if row is None:
            self.known.pop(name, None)
            return (await self.now(deadline - time.monotonic()))[0], b"", None
        now, found = decode("time", row[0]), record(row[2])
        assert found is not None
        self._remember(row[1], found)
        return now, row[1], found

    async def now(self, timeout: float) -> Now:
        now = decode("time", (await self.run(self.statements.now, {}, time.monotonic() + timeout, writes=False))[0])
        return now, now

    async def change(self, name: str, decide: Callable[[Record | None, int], tuple[T, Record | None]], timeout: float) -> T:
        """Read, let the rules decide, and write unless somebody else did meanwhile: for what operators do, and degraded runs (F3)."""
        deadline = time.monotonic() + timeout
        while True:
            now, version, found = await self._read(name, deadline)
            answer, changed = decide(found, now)
            if changed is None or await self._replace(version, found, changed, deadline):
                return answer

    async def _replace(self, version: bytes, found: Record | None, changed: Record, deadline: float) -> bool:
        self.known.pop(changed.name, None)
        if found is None:
            return await self.run(self.statements.insert, changed._asdict(), deadline) is not None
        values = {**changed._asdict(), "version": version, "known_token": found.token, "channel": self.channel}
        return await self.run(self.statements.replace, values, deadline) is not None

    async def forget(self, name: str, timeout: float) -> bool:
        def decide(found: Record | None, now: int) -> tuple[bool, Record | None]:
            tombstone = rules.forget(found, now)
            return tombstone is not None, tombstone

        return await self.change(name, decide, timeout)

    async def override(self, override: Override, timeout: float) -> Settled:
        return await self.change(override.name, lambda found, now: rules.override(found, override, now), timeout)

    async def record(self, write_back: WriteBack, timeout: float) -> Settled:
        return await self.change(write_back.name, lambda found, now: rules.write_back(found, write_back, now), timeout)

    # -- waiting

    async def is_held(self, name: str, owner: str, deadline: float) -> bool:
        """Whether the owner has the name still; if so, whoever ends that will notify the channel."""
        self.known.pop(name, None)
        while True:
            row = await self.run(self.statements.note, {"name": name, "owner": owner}, deadline)
            if row is None or not decode("bool", row[0]):
                return False
            if decode("bool", row[1]):
                return True

    async def poll(self, name: str, owner: str, deadline: float) -> bool:
        """Wait for the end of the owner's grant without being told."""
        pause = 0.05
        while True:
            found = (await self._read(name, deadline))[2]
            if found is None or found.owner != owner:
                return True
            left = deadline - time.monotonic()
            if left <= 0.01:
                return False
            await self.sleep(min(left - 0.005, pause * random.uniform(0.7, 1.0)))
            pause = min(pause * 1.5, 1.0)

    # -- failures

    def sift(self, result: PGresult, writes: bool) -> Exception | None:
        """Return what a failed statement means: None to ask again; else what to raise. See `rota.backend` on the three kinds."""
        error = error_from_result(result, encoding="utf-8")
        code = error.sqlstate or ""
        if code in _AGAIN:
            return None
        if code == _TOO_LATE:
            return TooLate()
        translated: Exception
        if isinstance(error, (errors.UndefinedTable, errors.InvalidSchemaName, errors.UndefinedColumn)):
            translated = ConfigurationError(self.describe(str(error)))
        elif code.startswith(_PERHAPS) and writes:
            translated = OutcomeUnknown(f"the server went away: {error}")
        elif code.startswith((*_AWAY, "08")):
            translated = Unavailable(f"the server can't serve now: {error}")
        else:
            translated = ConfigurationError(f"the server refuses: {error}")
        translated.__cause__ = error
        return translated


def _looks_free(found: Record, claim: Claim) -> bool:
    """Whether a claim of a record seen earlier has a chance, the time left aside."""
    if found.owner or claim.owner == found.last_owner or found.kind not in ("", claim.kind):
        return False
    if claim.kind == ROLLING:
        return found.mark is None or found.mark != found.slot_start
    return claim.slot_start is None or found.mark is None or claim.slot_start > found.mark


def _is_alike(found: Record, claim: Claim) -> bool:
    same = (found.kind, found.label, found.schedule, found.zone_data) == (claim.kind, claim.label, claim.schedule, claim.zone_data)
    return same and (claim.kind != LEASE or found.attempts == 1)


def rows(result: PGresult) -> tuple[bytes | None, ...] | None:
    """Return the fields of the first row."""
    return tuple(result.get_value(0, column) for column in range(result.nfields)) if result.ntuples else None
