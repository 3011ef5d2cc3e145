# SPDX-License-Identifier: MIT
"""PostgreSQL (a primary, and streaming replicas of it) and PgBouncer in transaction mode."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import Future
from pathlib import Path
from urllib.parse import urlsplit

from ._process import HOST, Process, accepts, program, wait_until

#: The database and the superuser of every server here; `trust` lets anybody in who reaches the loopback port.
DATABASE, ADMIN = "rota", "postgres"

#: Small, as many may run side by side; durable, as in production; and talkative enough to see statements when a role's setting asks.
SETTINGS = {
    "listen_addresses": f"'{HOST}'",
    "max_connections": "200",
    "shared_buffers": "'32MB'",
    "wal_level": "replica",
    "hot_standby": "on",
    "log_line_prefix": "'%m [%p] %u %a '",
    "log_min_messages": "warning",
    "timezone": "'Asia/Kathmandu'",  # no answer may depend on the server's zone
    "max_prepared_transactions": "0",
}


class Postgres(Process):
    """A primary; with ``of``, a streaming replica of that one.

    Args:
        of: The primary to follow.
        tls: Whether it offers TLS, with a certificate of its own for ``localhost`` and 127.0.0.1 (``server.crt`` in its folder).
        faketime: An offset for its clock as libfaketime writes it (``+3600``); None: the machine's clock.
        settings: More of postgresql.conf, values as written there.
    """

    name = "PostgreSQL"
    user = ADMIN  # the program refuses root; Debian's package makes this user
    stop_signal = signal.SIGINT  # "fast": don't wait for clients to leave

    def __init__(
        self, port: int | None = None, *, of: Postgres | None = None, tls: bool = False, faketime: str | None = None, **settings: str
    ) -> None:
        super().__init__(port)
        self.primary = of
        self.faketime = faketime
        self.tls = tls
        self.settings = settings
        self.bin = Path(program(self.name)).resolve().parent
        self.data = self.folder / "data"

    def prepare(self) -> None:
        if self.primary is None:
            self.run(str(self.bin / "initdb"), "-D", str(self.data), "-U", ADMIN, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
        else:
            source = f"host={HOST} port={self.primary.port} user={ADMIN} application_name=replica{self.port}"
            self.run(
                *(str(self.bin / "pg_basebackup"), "-d", source, "-D", str(self.data), "-R", "-X", "stream", "-c", "fast", "--no-sync")
            )
        settings = {**SETTINGS, "port": str(self.port), "unix_socket_directories": f"'{self.folder}'", **self.settings}
        if self.tls:
            openssl = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout server.key -out server.crt"
            self.run(*openssl.split(), "-addext", f"subjectAltName=DNS:localhost,IP:{HOST}")
            settings |= {"ssl": "on", "ssl_cert_file": f"'{self.folder}/server.crt'", "ssl_key_file": f"'{self.folder}/server.key'"}
        self.write("rota.conf", "".join(f"{name} = {value}\n" for name, value in settings.items()))
        with (self.data / "postgresql.conf").open("a") as main:
            main.write(f"include '{self.folder}/rota.conf'\n")

    def command(self) -> list[str]:
        command = [str(self.bin / "postgres"), "-D", str(self.data)]
        if self.faketime is not None:
            return ["faketime", "-f", self.faketime, *command]
        return command

    def is_ready(self) -> bool:
        # it accepts before it serves, and a port alone may be a stranger's
        try:
            self.run(str(self.bin / "pg_isready"), "-q", "-h", HOST, "-p", str(self.port))
        except Exception:
            return False
        return True

    def start(self, seconds: float = 30.0, *, wait: bool = True) -> Postgres:
        first = self._process is None
        super().start(seconds, wait=wait)
        if first and self.primary is None:
            self.sql(f'CREATE DATABASE "{DATABASE}"', database="postgres")
        return self

    def url(self, user: str = ADMIN, *, scheme: str = "postgresql", database: str = DATABASE, options: str = "") -> str:
        """Return its URL for a user."""
        return f"{scheme}://{user}@{HOST}:{self.port}/{database}{'?' + options if options else ''}"

    def sql(self, *statements: str, database: str = DATABASE) -> str:
        """Run statements as the superuser, each for itself; return what they answer as text, a line for each row, fields divided by |."""
        return sql(self.url(database=database), *statements)

    def sql_later(self, *statements: str, database: str = DATABASE) -> Future[str]:
        """As `sql`, in a thread."""
        answer: Future[str] = Future()

        def ask() -> None:
            try:
                answer.set_result(self.sql(*statements, database=database))
            except Exception as error:
                answer.set_exception(error)

        threading.Thread(target=ask, daemon=True).start()
        return answer

    def promote(self) -> None:
        """Make a replica the primary, and wait until it takes writes."""
        self.run(str(self.bin / "pg_ctl"), "promote", "-D", str(self.data), "-w", "-t", "30")

    def wait_for_replica(self, replica: Postgres) -> None:
        """Wait until a replica has replayed all that is written here."""
        position = self.sql("SELECT pg_current_wal_flush_lsn()")
        wait_until(lambda: replica.sql(f"SELECT pg_last_wal_replay_lsn() >= '{position}'") == "t", what="the replica has caught up")


class PgBouncer(Process):
    """A pooler in transaction mode in front of one server.

    Args:
        of: The server behind it.
        pool: Connections to the server, per user and database.
        users: Who may come; `trust`.
    """

    name = "PgBouncer"
    user = ADMIN  # it refuses root too

    def __init__(self, of: Postgres, *, pool: int = 3, users: tuple[str, ...] = (ADMIN,), port: int | None = None) -> None:
        super().__init__(port)
        self.server = of
        self.pool = pool
        self.users = users

    def prepare(self) -> None:
        users = self.write("users.txt", "".join(f'"{user}" ""\n' for user in self.users))
        self.write(
            "pgbouncer.ini",
            f"""[databases]
* = host={HOST} port={self.server.port}
[pgbouncer]
listen_addr = {HOST}
listen_port = {self.port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
admin_users = {ADMIN}
pool_mode = transaction
default_pool_size = {self.pool}
max_client_conn = 200
server_login_retry = 0.2
""",
        )

    def command(self) -> list[str]:
        return [program(self.name), str(self.folder / "pgbouncer.ini")]

    def is_ready(self) -> bool:
        return accepts(self.port)

    def url(self, user: str = ADMIN, *, scheme: str = "postgresql", database: str = DATABASE, options: str = "") -> str:
        """Return its URL for a user."""
        return f"{scheme}://{user}@{HOST}:{self.port}/{database}{'?' + options if options else ''}"


class RunningPostgres:
    """A server that somebody else runs; ``url`` is a superuser's, with its database."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)

    def url(self, user: str | None = None, *, scheme: str = "postgresql", database: str | None = None, options: str = "") -> str:
        """Return its URL for a user, who logs in without a password or with the superuser's."""
        found = self._url
        netloc = found.netloc
        if user is not None:
            password = f":{found.password}" if found.password else ""
            netloc = f"{user}{password}@{netloc.rpartition('@')[2]}"
        query = "&".join(part for part in (found.query, options) if part)
        return f"{scheme}://{netloc}{found.path if database is None else '/' + database}{'?' + query if query else ''}"

    def sql(self, *statements: str, database: str | None = None) -> str:
        """Run statements as the superuser; see `Postgres.sql`."""
        return sql(self.url(database=database), *statements)


def sql(url: str, *statements: str) -> str:
    """Run statements on a connection of their own; see `Postgres.sql`."""
    import psycopg  # by who has this server's tests; the other servers need no driver

    lines = []
    with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
        for statement in statements:
            result = connection.execute(statement).pgresult
            assert result is not None
            for row in range(result.ntuples):
                lines.append("|".join((result.get_value(row, column) or b"").decode() for column in range(result.nfields)))
    return "\n".join(lines)


def add_user(server: Postgres | RunningPostgres, name: str, *settings: str) -> None:
    """Make a login role; ``settings`` are what follows ``ALTER ROLE name SET``."""
    server.sql(f'CREATE ROLE "{name}" LOGIN', *(f'ALTER ROLE "{name}" SET {setting}' for setting in settings))


__all__ = ["ADMIN", "DATABASE", "PgBouncer", "Postgres", "RunningPostgres", "add_user"]
