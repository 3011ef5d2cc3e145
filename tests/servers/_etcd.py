# SPDX-License-Identifier: MIT
"""etcd: a single member, also with users, TLS and a clock of its own; an ensemble of three."""

from __future__ import annotations

import atexit
import contextlib
import functools
import http.client
import json
import platform
import shutil
import ssl
import subprocess
import tempfile
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Self
from urllib.parse import quote

from ._process import HOST, NotInstalled, Process, free_port, program, wait_until


@functools.cache
def skew_program() -> Path:
    """Return ``skew``, compiled from skew.c for as long as the tests run."""
    if platform.machine() != "x86_64":
        raise NotInstalled("a clock that the tests set needs an x86-64 machine")
    folder = Path(tempfile.mkdtemp(prefix="rota-skew-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source = Path(__file__).with_name("skew.c")
    subprocess.run([program("C compiler"), "-O2", "-Wall", "-o", folder / "skew", source], check=True)
    return folder / "skew"


class EtcdError(Exception):
    """The server answered with an error."""


class Etcd(Process):
    """One member.

    Args:
        tls: Whether it speaks TLS alone, with a certificate of its own for ``localhost`` and 127.0.0.1 (``tls.crt`` in its folder).
        client_certificates: Whether it wants one of its clients, too; its own will do.
        password: Of ``root``; with one, authentication is on.
        cluster: The members that it forms an ensemble with, itself among them.
        skewed: Whether its clock can be set by `skew`.
        flags: More of etcd's flags; ``_`` stands for ``-`` in names.
    """

    name = "etcd"

    def __init__(
        self,
        port: int | None = None,
        *,
        tls: bool = False,
        client_certificates: bool = False,
        password: str = "",
        cluster: list[Etcd] | None = None,
        certificate: Path | None = None,
        skewed: bool = False,
        **flags: str,
    ) -> None:
        super().__init__(port)
        self.peer_port = free_port()
        self.tls = tls
        self.client_certificates = client_certificates
        self.password = password
        self.cluster = cluster if cluster is not None else [self]
        self.certificate = certificate or self.folder / "tls"
        self.skewed = skewed
        # a fast ensemble: leases from 1 s, elections within half a second; no power cut is part of any test
        self.flags = {
            "heartbeat_interval": "50",
            "election_timeout": "500",
            "log_level": "error",
            "logger": "zap",
            "bcrypt_cost": "4",
            **flags,
        }
        self._token = ""

    @property
    def client_url(self) -> str:
        """Where clients find it."""
        return f"{'https' if self.tls else 'http'}://{HOST}:{self.port}"

    def prepare(self) -> None:
        if self.tls and not Path(f"{self.certificate}.crt").exists():
            openssl = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
            files = ["-keyout", f"{self.certificate}.key", "-out", f"{self.certificate}.crt"]
            self.run(*openssl.split(), *files, "-addext", f"subjectAltName=DNS:localhost,IP:{HOST}")
        self.skew(0)

    def command(self) -> list[str]:
        peers = [f"m{member.port}=http://{HOST}:{member.peer_port}" for member in self.cluster]
        values = {
            "name": f"m{self.port}",
            "data_dir": f"{self.folder}/data",
            "listen_client_urls": self.client_url,
            "advertise_client_urls": self.client_url,
            "listen_peer_urls": f"http://{HOST}:{self.peer_port}",
            "initial_advertise_peer_urls": f"http://{HOST}:{self.peer_port}",
            "initial_cluster": ",".join(peers),
            "initial_cluster_token": f"t{self.cluster[0].port}",
            **self.flags,
        }
        if self.tls:
            values |= {"cert_file": f"{self.certificate}.crt", "key_file": f"{self.certificate}.key"}
        if self.client_certificates:
            values |= {"client_cert_auth": "true", "trusted_ca_file": f"{self.certificate}.crt"}
        command = [program("etcd"), *(f"--{name.replace('_', '-')}={value}" for name, value in values.items())]
        return [str(skew_program()), str(self.folder / "skew"), *command] if self.skewed else command

    def skew(self, seconds: int) -> None:
        """Set its clock ahead by so much, now, if it is a `skewed` one."""
        self.write("skew", f"{seconds}\n")

    def is_ready(self) -> bool:
        if len(self.cluster) > 1:
            return super().is_ready()  # one alone has no quorum: `EtcdEnsemble.start` looks for that
        try:
            self.do("kv/range", key=b"probe")
        except (OSError, http.client.HTTPException, EtcdError) as error:
            return isinstance(error, EtcdError) and "user name is empty" in str(error)
        return True

    def start(self, seconds: float = 30.0, *, wait: bool = True) -> Self:
        first = self._process is None
        super().start(seconds, wait=wait)
        if first and self.password and len(self.cluster) == 1:
            self.turn_auth_on()
        return self

    def turn_auth_on(self) -> None:
        """Make ``root`` with the password, and ask everybody for theirs."""
        self.do("auth/user/add", name="root", password=self.password)
        self.do("auth/user/grant", user="root", role="root")
        self.do("auth/enable")

    def snapshot(self) -> Path:
        """Save all it holds, as operators do."""
        path = self.folder / "snapshot"
        path.unlink(missing_ok=True)
        self.run(program("etcdctl"), f"--endpoints={self.client_url}", "snapshot", "save", str(path))
        return path

    def restore(self, snapshot: Path | None) -> None:
        """Let it go on with what a snapshot holds, or with nothing."""
        self.stop()
        shutil.rmtree(self.folder / "data")
        if snapshot is not None:
            peer = f"http://{HOST}:{self.peer_port}"
            options = [f"--name=m{self.port}", f"--initial-cluster=m{self.port}={peer}", f"--initial-advertise-peer-urls={peer}"]
            options += [f"--initial-cluster-token=t{self.port}", f"--data-dir={self.folder}/data"]
            self.run(program("etcdctl"), "snapshot", "restore", str(snapshot), *options)
        self.start()

    def url(self, options: str = "", prefix: str = "", user: str = "") -> str:
        """Return its URL."""
        return url([self], options, prefix, user)

    def do(self, path: str, seconds: float = 10.0, **body: object) -> dict[str, object]:
        """Ask by HTTP and JSON, etcd's gateway; the tests' own way, so that what is tested does not test itself. Bytes go as base64."""
        headers = {}
        if self.password and path != "auth/authenticate":
            if not self._token:
                with contextlib.suppress(EtcdError):
                    self._token = str(self.do("auth/authenticate", name="root", password=self.password)["token"])
            headers = {"Authorization": self._token} if self._token else {}
        sent = {name: b64encode(value).decode() if isinstance(value, bytes) else value for name, value in body.items()}
        if self.tls:
            context = ssl.create_default_context(cafile=f"{self.certificate}.crt")
            if self.client_certificates:
                context.load_cert_chain(f"{self.certificate}.crt", f"{self.certificate}.key")
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(HOST, self.port, timeout=seconds, context=context)
        else:
            connection = http.client.HTTPConnection(HOST, self.port, timeout=seconds)
        with contextlib.closing(connection):
            connection.request("POST", f"/v3/{path}", json.dumps(sent), headers)
            response = connection.getresponse()
            answer = json.loads(response.read() or b"{}")
        if response.status != 200:
            if "invalid auth token" in str(answer):
                self._token = ""
            raise EtcdError(str(answer.get("message", answer)))
        return answer

    def get(self, key: str) -> bytes | None:
        """Return a key's value."""
        kvs = self.do("kv/range", key=key.encode()).get("kvs")
        return b64decode(kvs[0].get("value", "")) if isinstance(kvs, list) else None

    def metric(self, name: str) -> float:
        """Return one of the numbers that it tells for monitoring, by plain HTTP."""
        with contextlib.closing(http.client.HTTPConnection(HOST, self.port, timeout=10.0)) as connection:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def leader(self) -> str:
        """Return the id of its leader as it sees it; empty without one."""
        with contextlib.suppress(OSError, EtcdError, http.client.HTTPException):
            status = self.do("maintenance/status", 1.0)
            return str(status.get("leader", ""))
        return ""

    @property
    def is_leader(self) -> bool:
        """Whether it leads."""
        with contextlib.suppress(OSError, EtcdError, http.client.HTTPException):
            status = self.do("maintenance/status", 1.0)
            header = status["header"]
            return isinstance(header, dict) and status.get("leader") == header["member_id"]
        return False


class EtcdEnsemble:
    """Three members."""

    def __init__(self, *, password: str = "", tls: bool = False, skewed: bool = False, **flags: str) -> None:
        self.members: list[Etcd] = []
        for _ in range(3):
            certificate = self.members[0].certificate if self.members else None
            self.members.append(Etcd(cluster=self.members, password=password, tls=tls, certificate=certificate, skewed=skewed, **flags))

    def start(self) -> Self:
        """Start all, and wait until every member has the same leader."""
        self.members[0].prepare()
        for member in self.members:
            member.start(wait=False)
        self.wait_whole()
        if self.members[0].password:
            self.members[0].turn_auth_on()
        return self

    def wait_whole(self) -> None:
        """Wait until every member runs and has the same leader."""
        wait_until(lambda: len({member.leader() for member in self.members} - {""}) == 1 and self.leader() is not None, what="a leader")

    def leader(self) -> Etcd | None:
        """Return the member that leads."""
        return next((member for member in self.members if member.is_running and member.is_leader), None)

    def url(self, options: str = "", prefix: str = "", user: str = "") -> str:
        """Return the URL of all members."""
        return url(self.members, options, prefix, user)

    def remove(self) -> None:
        """End and remove all."""
        for member in self.members:
            member.remove()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.remove()


def url(members: list[Etcd], options: str = "", prefix: str = "", user: str = "") -> str:
    """Return the URL of some members."""
    first = members[0]
    options = f"{options}&min_ttl=1" if options else "min_ttl=1"
    if first.tls:
        options = f"cacert={first.certificate}.crt{'&' + options if options else ''}"
    if first.client_certificates:
        options += f"&cert={first.certificate}.crt&key={first.certificate}.key"
    user = user or (f"root:{quote(first.password, safe='')}" if first.password else "")
    hosts = ",".join(f"{HOST}:{member.port}" for member in members)
    return f"etcd{'s' if first.tls else ''}://{user + '@' if user else ''}{hosts}/{prefix}{'?' + options if options else ''}"


__all__ = ["Etcd", "EtcdEnsemble", "EtcdError"]
