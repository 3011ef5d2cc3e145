# SPDX-License-Identifier: MIT
"""ZooKeeper: a single server (also with TLS, SASL, a clock that is ahead), and an ensemble of three."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Self

from ._process import HOST, NotInstalled, Process, free_port, program, wait_until

#: Small and soon up: a test's server lives for seconds.
JAVA = ("-Xmx128m", "-Xms32m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xshare:auto")
PASSWORD = "p-w-of-test"  # of key stores, and of the SASL user ``rota``


class ZooKeeper(Process):
    """One server. Settings are lines of zoo.cfg; ``_`` stands for ``.`` in names.

    Args:
        tls: Whether clients speak TLS alone, with a certificate of its own for ``localhost`` and 127.0.0.1 (``tls.crt`` in its folder).
        sasl: Whether it knows the user ``rota`` by DIGEST-MD5.
        ahead: How many seconds its clock is ahead of this host's, by libfaketime; None: without.
        settings: More of zoo.cfg.
    """

    name = "ZooKeeper"

    def __init__(self, *, tls: bool = False, sasl: bool = False, ahead: int | None = None, **settings: str) -> None:
        super().__init__()
        self.tls = tls
        self.sasl = sasl
        self.ahead = ahead
        # a tick of 0.5 s: sessions from 1 to 10 s, and a lost leader is noticed within 2 s
        # without waiting for the disk: no test cuts the power, and many servers share one disk
        self.settings = {"tickTime": "500", "initLimit": "20", "syncLimit": "4", "forceSync": "no", **settings}
        self.number = 0
        self.members: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return its configuration."""
        lines = [f"dataDir={self.folder}/data", f"clientPortAddress={HOST}", "admin.enableServer=false", "maxClientCnxns=0"]
        lines += ["4lw.commands.whitelist=*", "globalOutstandingLimit=100000"]
        if self.tls:
            lines[1:2] = [f"secureClientPortAddress={HOST}", f"secureClientPort={self.port}"]
            lines += ["serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory", "ssl.clientAuth=none"]
            lines += [f"ssl.keyStore.location={self.folder}/tls.p12", f"ssl.keyStore.password={PASSWORD}", "ssl.keyStore.type=PKCS12"]
            lines += [f"ssl.trustStore.location={self.folder}/tls.crt", "ssl.trustStore.type=PEM"]
        else:
            lines += [f"clientPort={self.port}"]
        if self.sasl:
            lines += ["authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"]
        return [*lines, *(f"{name.replace('_', '.')}={value}" for name, value in self.settings.items()), *self.members]

    def prepare(self) -> None:
        (self.folder / "data").mkdir()
        if self.number:
            self.write("data/myid", str(self.number))
        if self.tls:
            openssl = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout tls.key -out tls.crt"
            self.run(*openssl.split(), "-addext", f"subjectAltName=DNS:localhost,IP:{HOST}")
            self.run(*f"openssl pkcs12 -export -in tls.crt -inkey tls.key -out tls.p12 -passout pass:{PASSWORD}".split())
        if self.sasl:
            login = "org.apache.zookeeper.server.auth.DigestLoginModule"
            self.write("jaas.conf", f'Server {{ {login} required user_rota="{PASSWORD}"; }};\n')
        self.write("log4j.properties", LOG)
        self.write("zoo.cfg", "\n".join(self.lines()) + "\n")

    def command(self) -> list[str]:
        java = shutil.which("java")
        if java is None:
            raise NotInstalled("java is not installed: apt-get install --no-install-recommends default-jre-headless")
        jar = Path(program("ZooKeeper"))
        # Debian's jar names all that it needs but this one, for TLS
        command = [java, *JAVA, "-cp", f"{self.folder}:{jar}:{jar.parent}/netty-codec.jar", f"-Dzookeeper.log.dir={self.folder}"]
        if self.sasl:
            command.append(f"-Djava.security.auth.login.config={self.folder}/jaas.conf")
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self.folder / "zoo.cfg")]
        if self.ahead is None:
            return command
        threads = Path(program("libfaketime")).with_name("libfaketimeMT.so.1")
        return ["env", f"LD_PRELOAD={threads}", f"FAKETIME={self.ahead:+d}s", *command]

    def is_ready(self) -> bool:
        return self.mode() != ""

    def mode(self) -> str:
        """Return ``standalone``, ``leader`` or ``follower``; empty while it does not serve."""
        if self.tls:
            return "standalone" if super().is_ready() else ""
        for line in self.ask("srvr").splitlines():
            if line.startswith("Mode: "):
                return line[6:].strip()
        return ""

    def ask(self, word: str) -> str:
        """Return what it answers to one of its four-letter words; empty where it does not answer."""
        try:
            with socket.create_connection((HOST, self.port), 2.0) as connection:
                connection.settimeout(2.0)
                connection.sendall(word.encode())
                parts = []
                while part := connection.recv(65536):
                    parts.append(part)
        except OSError:
            return ""
        return b"".join(parts).decode(errors="replace")

    def wipe(self) -> None:
        """Lose all data, as when the disk was replaced: stop, forget, start."""
        self.stop()
        shutil.rmtree(self.folder / "data")
        (self.folder / "data").mkdir()
        if self.number:
            self.write("data/myid", str(self.number))
        self.start()

    @property
    def hosts(self) -> str:
        """Where it listens, as kazoo takes it."""
        return f"{HOST}:{self.port}"

    def url(self, chroot: str = "", *, user: str = "", options: str = "") -> str:
        """Return its URL."""
        if self.tls:
            options = f"tls=true&ca={self.folder}/tls.crt{'&' + options if options else ''}"
        return f"zookeeper://{user and user + '@'}{HOST}:{self.port}{chroot}{'?' + options if options else ''}"


class RunningZooKeeper:
    """One that runs already, and that nobody may stop or freeze."""

    def __init__(self, url: str) -> None:
        self.hosts = url.partition("://")[2].partition("/")[0]

    def url(self, chroot: str = "") -> str:
        """Return its URL."""
        return f"zookeeper://{self.hosts}{chroot}"


class ZooKeeperEnsemble:
    """Three members. The last leads at first: of those that know the same, the highest number is elected.

    Args:
        ahead: By how many seconds each member's clock is ahead of this host's; None: it is not touched.
    """

    def __init__(self, ahead: tuple[int | None, int | None, int | None] = (None, None, None), **settings: str) -> None:
        self.members = [ZooKeeper(ahead=seconds, **settings) for seconds in ahead]
        lines = tuple(f"server.{number}={HOST}:{free_port()}:{free_port()}" for number in (1, 2, 3))
        for number, member in enumerate(self.members, 1):
            member.number, member.members = number, lines

    def start(self) -> Self:
        """Start all, the first when the others have elected the last, and wait until all serve."""
        for member in self.members[1:]:
            member.start(wait=False)
        self.members[2].wait_ready()
        self.members[0].start(wait=False)
        for member in self.members:
            member.wait_ready()
        return self

    def leader(self) -> ZooKeeper:
        """Return the member that leads, once one does."""
        found: list[ZooKeeper] = []

        def leads() -> bool:
            found[:] = [member for member in self.members if member.is_running and member.mode() == "leader"]
            return bool(found)

        wait_until(leads, what="a member leads")
        return found[0]

    def followers(self) -> list[ZooKeeper]:
        """Return the others that run."""
        leader = self.leader()
        return [member for member in self.members if member is not leader and member.is_running]

    def url(self, chroot: str = "", *, options: str = "") -> str:
        """Return its URL: every member."""
        hosts = ",".join(f"{HOST}:{member.port}" for member in self.members)
        return f"zookeeper://{hosts}{chroot}{'?' + options if options else ''}"

    def remove(self) -> None:
        """End and remove all."""
        for member in self.members:
            member.remove()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.remove()


LOG = """\
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c{1}: %m%n
"""

__all__ = ["PASSWORD", "RunningZooKeeper", "ZooKeeper", "ZooKeeperEnsemble"]
