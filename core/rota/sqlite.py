# SPDX-License-Identifier: MIT
"""``sqlite:///absolute/path``: many processes on one host, through one file. The store's clock is the host's.

Every verb is one ``BEGIN IMMEDIATE`` transaction, and the clock is read after it has begun, so that a wait for the lock makes no
decision old. WAL with ``synchronous=FULL``: a slot that was said to be handled survives a power cut.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import get_ident

from . import rules
from ._clock import wall_clock
from ._fork_gate import Line, gate
from .backend import (
    Answer,
    Backend,
    Claim,
    Driver,
    Now,
    Override,
    Record,
    Renewal,
    Renewed,
    Settled,
    Settlement,
    WriteBack,
)
from .capabilities import Capabilities
from .errors import ConfigurationError, OutcomeUnknown, Unavailable
from .url import Url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    from .errors import RotaError
    from .finding import Finding

    T = TypeVar("T")

#: The number of the table's layout, kept as the file's ``user_version``.
LAYOUT = 1
#: Connections kept open between calls.
IDLE = 4

_COLUMNS = (
    "name TEXT PRIMARY KEY, kind TEXT, schedule TEXT, zone_data TEXT, token INTEGER, owner TEXT, label TEXT, granted_at INTEGER,"
    " expires_at INTEGER, last_owner TEXT, last_result TEXT, last_expired INTEGER, mark INTEGER, prior_mark INTEGER, slot_start INTEGER,"
    " slot_end INTEGER, attempts INTEGER, outcome TEXT, settled_at INTEGER, keep_until INTEGER, history BLOB, format INTEGER"
)
_SCHEMA = (
    f"CREATE TABLE IF NOT EXISTS rota_record ({_COLUMNS}) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS rota_record_keep_until ON rota_record (keep_until)",  # R3: the sweep
    f"PRAGMA user_version = {LAYOUT}",
)
_SELECT = f"SELECT {', '.join(Record._fields)} FROM rota_record"
_READ = f"{_SELECT} WHERE name = ?"
_WRITE = f"INSERT OR REPLACE INTO rota_record VALUES ({', '.join('?' * len(Record._fields))})"

#: Result codes that mean that the file is in use or away now, not that we are wrong.
_AWAY = {
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_IOERR",
    "SQLITE_FULL",
    "SQLITE_READONLY",
    "SQLITE_CANTOPEN",
    "SQLITE_PROTOCOL",
    "SQLITE_CORRUPT",
}

#: Reasons for which a file can't be opened that may pass by themselves.
_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EINTR, errno.EAGAIN}

#: File systems on which SQLite's locks are known to be unsafe between hosts.
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "glusterfs", "beegfs", "ocfs2", "gfs2"}


class SqliteDriver(Driver):
    """Blocking verbs on one file; each call takes a connection of its own from a small pool."""

    capabilities = Capabilities(
        verbs=frozenset({"override", "record", "facts", "schema", "sweep"}),
        min_ttl=10_000,
        scope="host",
        durability="disk",
    )

    def __init__(self, path: str, clock: Callable[[], int] = wall_clock) -> None:
        self.path = path
        self.clock = clock
        self._idle: list[Line] = []
        weakref.finalize(self, gate.close_pool, self._idle).atexit = False
        self._closed = False
        self._worked = False  # once it has, a file that can't be opened is away, and no longer a mistake of ours

    # -- connections

    def _open(self, deadline: float) -> Line:
        line = Line(self._idle)
        try:
            gate.admit(line, deadline)
            self._make()
            line.file = _identity(self.path)
            line.connection = sqlite3.connect(self.path, timeout=_left(deadline), isolation_level=None, check_same_thread=False)
            self._prepare(line.connection, deadline)
        except BaseException:
            gate.close(line)
            raise
        return line

    def _make(self) -> None:
        try:
            if not self._worked:
                _refuse_network(self.path)
                # later on the folder is not made: one that was unmounted would come back as another, empty store
                os.makedirs(os.path.dirname(self.path), 0o700, exist_ok=True)
            # The file is made here so that it is never, not even for a moment, readable by others. O_EXCL is vital: to close any descriptor
            # of a file that is in use drops all locks that this process has on it, and then another process deletes the WAL under us.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600))
        except FileExistsError:
            pass
        except OSError as error:
            away = self._worked or error.errno in _PASSING
            raise self._cannot_open(error.strerror or str(error), away) from error

    def _take(self, deadline: float) -> Line:
        """Return a connection to the file that has the path now: one that was moved or deleted is seen by nobody else."""
        while self._idle:
            try:
                line = self._idle.pop()
            except IndexError:
                break  # another thread took it
            try:
                line.thread = get_ident()
                if line.file == _identity(self.path):
                    return line
            except BaseException:  # the handler of a signal raised: what is neither in use nor in the pool would hold up every fork
                gate.close(line)
                raise
            gate.close(line)
        while True:
            line = self._open(deadline)
            if line.file == _identity(self.path):
                return line
            gate.close(line)  # the file was replaced meanwhile: which of the two this has open can't be told
            if time.monotonic() >= deadline:
                raise Unavailable(f"{self.path} is being replaced all the time")

    def _prepare(self, connection: sqlite3.Connection, deadline: float) -> None:
        while True:
            try:
                if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                    connection.execute("PRAGMA journal_mode = wal")
                connection.execute("PRAGMA synchronous = FULL")
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                if version == 0:
                    with _transaction(connection):
                        columns = tuple(row[1] for row in connection.execute("PRAGMA table_info(rota_record)"))
                        if columns not in ((), Record._fields):
                            raise ConfigurationError(f"{self.path} holds a table rota_record that is not rota's: name another file")
                        for statement in _SCHEMA:
                            connection.execute(statement)
                elif version != LAYOUT:
                    raise ConfigurationError(f"{self.path} has layout {version}, this rota knows {LAYOUT}: use the rota that wrote it")
                return
            except sqlite3.OperationalError as error:
                # racing first opens fail with "locked" at once: the busy timeout does not hold for the switch to WAL
                if "locked" not in str(error) or time.monotonic() >= deadline:
                    raise
                time.sleep(0.01)

    @contextlib.contextmanager
    def _connection(self, timeout: float) -> Iterator[sqlite3.Connection]:
        if self._closed:
            raise Unavailable("the client is closed")
        deadline = time.monotonic() + timeout
        line, usable = None, True
        try:
            line = self._take(deadline)
            connection: sqlite3.Connection = line.connection
            connection.execute(f"PRAGMA busy_timeout = {min(int(_left(deadline) * 1000), 2**31 - 1)}")
            yield connection
        except sqlite3.Error as error:
            usable = False
            raise self._translated(error) from error
        except BaseException:
            usable = line is not None and not line.connection.in_transaction
            raise
        finally:
            if line is not None:
                if usable and len(self._idle) < IDLE:
                    gate.put_back(line)
                else:
                    gate.close(line)
                if self._closed:  # meanwhile
                    gate.close_pool(self._idle)

    def _cannot_open(self, why: str, away: bool) -> Unavailable | ConfigurationError:
        message = f"{self.path} can't be opened ({why}): {_owned_by_another(self.path)}name another store with --url or connect()"
        return Unavailable(message) if away else ConfigurationError(message)

    def _translated(self, error: sqlite3.Error) -> Exception:
        code = getattr(error, "sqlite_errorname", "") or ""
        if code == "SQLITE_NOTADB":
            return ConfigurationError(f"{self.path} is not an SQLite file")
        if code.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")) and not self._worked:
            return self._cannot_open(str(error), away=False)
        if any(code.startswith(away) for away in _AWAY):
            # a transaction that did not commit is rolled back: nothing was applied
            return Unavailable(f"{self.path}: {error}")
        return ConfigurationError(f"{self.path}: {error}")

    def _decide(self, name: str, timeout: float, decide: Callable[[Record | None, int], tuple[T, Record | None]]) -> T:
        """Read a record, let the rules decide, write it: one transaction."""
        with self._connection(timeout) as connection, _transaction(connection):
            now = self.clock()
            row = connection.execute(_READ, (name,)).fetchone()
            answer, changed = decide(None if row is None else _record(row), now)
            if changed is not None:
                connection.execute(_WRITE, changed)
        self._worked = True  # a file that may be read and not be written opens well, too
        return answer

    # -- verbs

    def claim(self, claim: Claim, timeout: float) -> Answer:
        return self._decide(claim.name, timeout, lambda record, now: rules.claim(record, claim, now))

    def renew(self, renewals: Sequence[Renewal], timeout: float) -> Renewed:
        held = []
        with self._connection(timeout) as connection, _transaction(connection):
            now = self.clock()
            for renewal in renewals:
                row = connection.execute(_READ, (renewal.name,)).fetchone()
                renewed = None if row is None else rules.renew(_record(row), renewal, now)
                if renewed is not None:
                    connection.execute(
                        "UPDATE rota_record SET expires_at = ?, keep_until = ? WHERE name = ?",
                        (renewed.expires_at, renewed.keep_until, renewal.name),
                    )
                held.append(renewed is not None)
        return Renewed(held, (now, now))

    def settle(self, settlement: Settlement, timeout: float) -> Settled:
        return self._decide(settlement.name, timeout, lambda record, now: rules.settle(record, settlement, now))

    def read(self, name: str, timeout: float) -> tuple[Record | None, Now | None]:
        with self._connection(timeout) as connection:
            row = connection.execute(_READ, (name,)).fetchone()
            now = self.clock()
        return None if row is None else _record(row), (now, now)

    def list(self, prefix: str, timeout: float, *, after: str = "", limit: int = 1000) -> list[Record]:
        with self._connection(timeout) as connection:
            rows = connection.execute(
                f"{_SELECT} WHERE name >= ? AND name > ? AND substr(name, 1, ?) = ? ORDER BY name LIMIT ?",
                (prefix, after, len(prefix), prefix, limit),
            ).fetchall()
        return [_record(row) for row in rows]

    def forget(self, name: str, timeout: float) -> bool:
        def decide(record: Record | None, now: int) -> tuple[bool, Record | None]:
            tombstone = rules.forget(record, now)
            return tombstone is not None, tombstone

        return self._decide(name, timeout, decide)

    def now(self, timeout: float) -> Now | None:
        # the file's clock is this host's: nothing has to be asked
        if self._closed:
            raise Unavailable("the client is closed")
        now = self.clock()
        return now, now

    def override(self, override: Override, timeout: float) -> Settled:
        return self._decide(override.name, timeout, lambda record, now: rules.override(record, override, now))

    def record(self, write_back: WriteBack, timeout: float) -> Settled:
        return self._decide(write_back.name, timeout, lambda record, now: rules.write_back(record, write_back, now))

    def facts(self, timeout: float) -> dict[str, str | int | float | bool | None]:
        with self._connection(timeout) as connection:
            return {
                "version": sqlite3.sqlite_version,
                "path": self.path,
                "records": connection.execute("SELECT count(*) FROM rota_record").fetchone()[0],
                "journal_mode": connection.execute("PRAGMA journal_mode").fetchone()[0],
                "synchronous": connection.execute("PRAGMA synchronous").fetchone()[0],
                "file_system": _file_system(self.path),
            }

    def examine(self, facts: Mapping[str, str | int | float | bool | None] | RotaError, timeout: float) -> Sequence[Finding]:
        from ._sqlite_findings import examine

        return examine(self.path, facts)

    def unmade(self) -> str:
        try:
            os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return self.path
        except OSError:
            pass  # opening it will say what is wrong
        return ""

    def bare(self, name: str, writes: bool, timeout: float) -> None:
        with self._connection(timeout) as connection:
            if not writes:
                connection.execute("SELECT token FROM rota_record WHERE name = ?", (name,)).fetchone()
                return
            with _transaction(connection):
                for _ in range(2):  # there and back: SQLite writes no page that did not change
                    connection.execute("UPDATE rota_record SET token = -token WHERE name = ?", (name,))

    def schema(self, **options: str) -> str:
        return ";\n".join(_SCHEMA) + ";\n"

    def sweep(self, limit: int, timeout: float) -> int:
        with self._connection(timeout) as connection, _transaction(connection):
            now = self.clock()
            rows = connection.execute(f"{_SELECT} WHERE keep_until < ? ORDER BY keep_until LIMIT ?", (now, limit)).fetchall()
            names = [(row[0],) for row in rows if rules.may_remove(_record(row), now)]
            connection.executemany("DELETE FROM rota_record WHERE name = ?", names)
        return len(names)

    def close(self) -> None:
        self._closed = True
        gate.close_pool(self._idle)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction and not gate.tainted:
            connection.execute("ROLLBACK")
        raise
    gate.check()  # the clock, or the handler of a signal, may have forked, and this be the child on its parent's connection
    try:
        connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        if str(getattr(error, "sqlite_errorname", "")).startswith("SQLITE_IOERR"):
            # what was written before the disk failed may still be found and kept by the next one who opens the file
            raise OutcomeUnknown(f"the commit failed: {error}") from error
        raise


def _record(row: tuple[object, ...]) -> Record:
    record = Record._make(row)
    return rules.checked(record._replace(last_expired=bool(record.last_expired)))  # a column holds values of any type


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def _identity(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def _owned_by_another(path: str) -> str:
    """Return what to do where the file, or else its folder, belongs to another user; empty where that is not what is wrong."""
    if os.name != "posix":
        return ""
    for place in (path, os.path.dirname(path)):
        try:
            owner = os.stat(place).st_uid
        except OSError:
            continue
        if owner == os.geteuid() or os.access(place, os.R_OK | os.W_OK):
            continue
        import pwd

        try:
            name = pwd.getpwuid(owner).pw_name
        except KeyError:
            name = f"uid {owner}"
        return f"{place} belongs to {name}: run it as that user, make file and folder writable for a group of both, or "
    return ""


def _refuse_network(path: str) -> None:
    kind = _file_system(path)
    if kind in _NETWORK or (kind.startswith("fuse.") and kind[5:] in (*_NETWORK, "sshfs")):
        raise ConfigurationError(
            f"{path} lies on a network file system ({kind}), where SQLite's locks don't hold: use a local one, or another store"
        )


def _file_system(path: str) -> str:
    """Return the file system's type where Linux tells it, else an empty text."""
    if not sys.platform.startswith("linux"):
        return ""
    try:
        device = None
        here = path
        while device is None:
            try:
                device = os.stat(here).st_dev
            except FileNotFoundError:
                here = os.path.dirname(here)
        wanted = f"{os.major(device)}:{os.minor(device)}"
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
            for line in mounts:
                fields = line.split()
                if fields[2] == wanted:
                    return fields[fields.index("-") + 1]
    except (OSError, ValueError, IndexError):
        pass
    return ""


class SqliteBackend(Backend):
    """The backend of ``sqlite:///path``."""

    contract = 1

    def driver(self, url: Url) -> SqliteDriver:
        if not url.rest.startswith("/"):
            raise ConfigurationError("write sqlite:///absolute/path, as in sqlite:///var/lib/rota.db")
        path = url.rest
        if "%" in path:
            from urllib.parse import unquote

            path = unquote(path)
        if path.startswith(("/~", "/:memory:")):
            raise ConfigurationError(f"sqlite://{path} means a file of that name in /: give the whole path, or memory:// for no file")
        if "\0" in path or path.endswith("/"):
            raise ConfigurationError("the path of the sqlite:// URL must name a file")
        path = os.path.normpath("/" + path.lstrip("/"))
        try:
            mode = os.stat(path).st_mode
            if stat.S_ISDIR(mode):
                raise ConfigurationError(f"{path} is a folder: sqlite:// needs a file")
            if not stat.S_ISREG(mode):  # SQLite would open a device or a pipe, and what follows look like an outage
                raise ConfigurationError(f"{path} is no regular file: sqlite:// needs one")
        except OSError:
            pass
        return SqliteDriver(path)
