# SPDX-License-Identifier: MIT
"""Redis: a single server (also with password and TLS), a primary with a replica and three sentinels, a cluster of six nodes."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Self

from ._process import HOST, Process, free_port, program, wait_until

Answer = str | int | None | list["Answer"]


class RedisError(Exception):
    """The server answered with an error."""


class Redis(Process):
    """One server. Settings are lines of redis.conf; nothing is kept over a restart unless they say so.

    Args:
        password: Of the default user.
        tls: Whether it speaks TLS alone, with a certificate of its own for ``localhost`` and 127.0.0.1 (``tls.crt`` in its folder).
        replica_of: The primary to follow.
        settings: More of redis.conf; ``_`` stands for ``-`` in names.
    """

    name = "Redis"

    def __init__(
        self,
        port: int | None = None,
        *,
        password: str = "",
        tls: bool = False,
        replica_of: Redis | None = None,
        certificate: Path | None = None,
        **settings: str,
    ) -> None:
        super().__init__(port)
        self.password = password
        self.tls = tls
        self.certificate = certificate or self.folder / "tls"
        self.primary = replica_of
        self.settings = settings

    def lines(self) -> list[str]:
        """Return its configuration."""
        lines = [f"bind {HOST}", f"dir {self.folder}", 'save ""', "daemonize no", f"port {0 if self.tls else self.port}", "databases 16"]
        lines += ["repl-diskless-sync-delay 0"]  # else a replica waits for 5 s whether others come
        lines += [f"unixsocket {self.folder}/redis.sock", "unixsocketperm 700"]
        if self.password:
            lines += [f'requirepass "{self.password}"', f'masterauth "{self.password}"']
        if self.tls:
            crt, key = f"{self.certificate}.crt", f"{self.certificate}.key"
            lines += [
                f"tls-port {self.port}",
                f"tls-cert-file {crt}",
                f"tls-key-file {key}",
                f"tls-ca-cert-file {crt}",
                "tls-auth-clients no",
            ]
            lines += ["tls-replication yes", "tls-cluster yes"]
        if self.primary is not None:
            lines += [f"replicaof {HOST} {self.primary.port}"]
        return lines + [f"{name.replace('_', '-')} {value}" for name, value in self.settings.items()]

    def prepare(self) -> None:
        if self.tls and not Path(f"{self.certificate}.crt").exists():
            openssl = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
            files = ["-keyout", f"{self.certificate}.key", "-out", f"{self.certificate}.crt"]
            self.run(*openssl.split(), *files, "-addext", f"subjectAltName=DNS:localhost,IP:{HOST}")
        self.write("redis.conf", "\n".join(self.lines()) + "\n")

    def command(self) -> list[str]:
        return [program("Redis"), str(self.folder / "redis.conf")]

    def is_ready(self) -> bool:
        try:
            return self.do("PING") == "PONG"
        except (OSError, RedisError):
            return False

    def url(self, *, scheme: str = "", options: str = "", db: int = 0) -> str:
        """Return its URL."""
        scheme = scheme or ("rediss" if self.tls else "redis")
        if scheme == "unix":
            return f"unix://{self.folder}/redis.sock?db={db}{'&' + options if options else ''}"
        if self.tls:
            options = f"ssl_ca_certs={self.certificate}.crt{'&' + options if options else ''}"
        user = f":{self.password}@" if self.password else ""
        return f"{scheme}://{user}{HOST}:{self.port}/{db}{'?' + options if options else ''}"

    def do(self, *command: object, seconds: float = 10.0) -> Answer:
        """Run one command on a connection of its own; the tests' own client, so that what is tested does not test itself."""
        connection = socket.create_connection((HOST, self.port), seconds)
        if self.tls:
            context = ssl.create_default_context(cafile=f"{self.certificate}.crt")
            connection = context.wrap_socket(connection, server_hostname=HOST)
        with connection, connection.makefile("rwb") as stream:
            if self.password:
                self._say(stream, "AUTH", self.password)
            return self._say(stream, *command)

    @classmethod
    def _say(cls, stream: object, *command: object) -> Answer:
        parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
        stream.write(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts))
        stream.flush()
        answer = cls._read(stream)
        if isinstance(answer, RedisError):
            raise answer
        return answer

    @classmethod
    def _read(cls, stream: object) -> Answer | RedisError:
        line = stream.readline()
        if not line:
            raise ConnectionError("closed by the server")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            return RedisError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"*":
            return [cls._read(stream) for _ in range(int(rest))]
        if kind == b"$":
            size = int(rest)
            return None if size < 0 else stream.read(size + 2)[:-2].decode("utf-8", "backslashreplace")
        return rest.decode()

    def follows(self) -> bool:
        """Whether it is a replica that has all data, and that its primary counts as one: up to a second later."""
        link = self.info("replication")
        if link.get("master_link_status") != "up":
            return False
        assert self.primary is not None
        return f"port={self.port},state=online" in self.primary.do("INFO", "replication")

    def info(self, section: str) -> dict[str, str]:
        """Return a section of INFO."""
        text = self.do("INFO", section)
        assert isinstance(text, str)
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


class RedisSentinel(Redis):
    """One sentinel that watches a primary under the name ``rota``."""

    name = "Redis Sentinel"

    def __init__(self, of: Redis, *, quorum: int = 2, patience: int = 1000) -> None:
        super().__init__()
        self.watched = of
        self.quorum = quorum
        self.patience = patience

    def lines(self) -> list[str]:
        lines = [
            f"bind {HOST}",
            f"dir {self.folder}",
            f"port {self.port}",
            f"sentinel monitor rota {HOST} {self.watched.port} {self.quorum}",
        ]
        if self.watched.password:
            lines += [f"sentinel auth-pass rota {self.watched.password}"]
        return [*lines, f"sentinel down-after-milliseconds rota {self.patience}", "sentinel failover-timeout rota 2000"]

    def start(self, seconds: float = 30.0, *, wait: bool = True) -> Self:
        """Start it, in a hurry: as it is, sentinels take two seconds to find each other and up to ten to look at a replica."""
        super().start(seconds, wait=wait)
        periods = {"info-period": 200, "ask-period": 100, "publish-period": 200}
        self.do("SENTINEL", "DEBUG", *(part for period in periods.items() for part in period))
        return self

    def command(self) -> list[str]:
        return [*super().command(), "--sentinel"]


class RedisFailover:
    """A primary, a replica and three sentinels, which fail over when the primary was silent for so many milliseconds."""

    def __init__(self, password: str = "", patience: int = 1000, **settings: str) -> None:
        self.primary = Redis(password=password, **settings)
        self.replica = Redis(password=password, replica_of=self.primary, **settings)
        self.sentinels = [RedisSentinel(self.primary, patience=patience) for _ in range(3)]

    def start(self) -> Self:
        """Start all, and wait until the sentinels know each other and the replica."""
        self.primary.start()
        self.replica.start()
        wait_until(self.replica.follows, what="the replica follows")
        for sentinel in self.sentinels:
            sentinel.start()
        for sentinel in self.sentinels:
            wait_until(lambda sentinel=sentinel: self._knows_all(sentinel), what="the sentinels know each other")
        return self

    @staticmethod
    def _knows_all(sentinel: RedisSentinel) -> bool:
        answer = sentinel.do("SENTINEL", "MASTER", "rota")
        assert isinstance(answer, list)
        known = dict(zip(answer[::2], answer[1::2], strict=True))
        return known["num-other-sentinels"] == "2" and known["num-slaves"] == "1" and known["flags"] == "master"

    def url(self, options: str = "") -> str:
        """Return its URL: every sentinel, and the service's name."""
        password = self.primary.password
        hosts = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{f':{password}@' if password else ''}{hosts}/rota{'?' + options if options else ''}"

    def remove(self) -> None:
        """End and remove all."""
        for server in [*self.sentinels, self.replica, self.primary]:
            server.remove()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.remove()


class RedisCluster:
    """Six nodes: three primaries with a replica each."""

    def __init__(self, **settings: str) -> None:
        settings = {"cluster_enabled": "yes", "cluster_node_timeout": "1500", **settings}
        self.nodes = [Redis(**settings, cluster_port=str(free_port())) for _ in range(6)]

    def start(self) -> Self:
        """Start all, share the slots out, and wait until every node says that the cluster is whole."""
        for node in self.nodes:
            node.start()
        hosts = [f"{HOST}:{node.port}" for node in self.nodes]
        redis_cli = Path(program("Redis")).with_name("redis-cli")
        assert redis_cli.exists(), "redis-cli is not beside redis-server"
        create = ["--cluster", "create", *hosts, "--cluster-replicas", "1", "--cluster-yes"]
        self.nodes[0].run(str(redis_cli), *create)
        wait_until(lambda: all("cluster_state:ok" in str(node.do("CLUSTER", "INFO")) for node in self.nodes), what="the cluster is whole")
        wait_until(lambda: len(self.primaries()) == 3, what="three primaries")
        replicas = [node for node in self.nodes if node not in self.primaries()]
        wait_until(lambda: all(n.info("replication").get("master_link_status") == "up" for n in replicas), what="the replicas follow")
        return self

    def primaries(self) -> list[Redis]:
        """Return the running nodes that are primaries now."""
        return [node for node in self.nodes if node.is_running and node.info("replication").get("role") == "master"]

    def url(self, options: str = "", nodes: int = 3) -> str:
        """Return its URL: some of the nodes."""
        hosts = ",".join(f"{HOST}:{node.port}" for node in self.nodes[:nodes])
        return f"redis+cluster://{hosts}{'?' + options if options else ''}"

    def remove(self) -> None:
        """End and remove all."""
        for node in self.nodes:
            node.remove()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.remove()


__all__ = ["Redis", "RedisCluster", "RedisError", "RedisFailover", "RedisSentinel"]
