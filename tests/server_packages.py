# SPDX-License-Identifier: MIT
"""The servers that the tests start for themselves: found here, or installed once. Part of ``python3 tests``: standard library only.

Only the programs are wanted. Tests start their own servers, on free ports and in temporary folders, so no service may start.

Redis is looked for in PATH, so another version is tried with a folder in front of it: one with links ``redis-server`` and ``redis-cli`` to
``valkey-server`` and ``valkey-cli`` runs all of its tests on Valkey.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn


class Server(NamedTuple):
    """A server program.

    Attributes:
        name: What it is called, in messages.
        programs: Where it is: names to look for in PATH, or patterns of paths. One that is found will do.
        packages: The Debian packages that bring it.
        variable: The environment variable that names one that runs already, as those of ``docker-compose.yml``; no program is needed then.
    """

    name: str
    programs: tuple[str, ...]
    packages: tuple[str, ...]
    variable: str = ""


#: Every server that the tests need. The embedded stores need none; each backend adds its own line here.
SERVERS: tuple[Server, ...] = (
    Server("PostgreSQL", ("/usr/lib/postgresql/*/bin/postgres", "postgres"), ("postgresql",), "ROTA_TEST_POSTGRES_URL"),
    Server("PgBouncer", ("pgbouncer",), ("pgbouncer",), "ROTA_TEST_PGBOUNCER_URL"),
    Server("Redis", ("redis-server",), ("redis-server",), "ROTA_TEST_REDIS_URL"),
    Server("etcd", ("etcd",), ("etcd-server",), "ROTA_TEST_ETCD_URL"),
    Server("etcdctl", ("etcdctl",), ("etcd-client",), "ROTA_TEST_ETCD_URL"),
    Server("C compiler", ("cc", "gcc"), ("gcc", "libc6-dev"), "ROTA_TEST_ETCD_URL"),
    # no server: a clock for the sites of several tests, which are left out where the servers run already and it is not there
    Server("libfaketime", ("/usr/lib/*/faketime/libfaketime.so.1",), ("libfaketime",), "ROTA_TEST_POSTGRES_URL"),
    # no servers either: shells that have a completion of rota
    Server("zsh", ("zsh",), ("zsh",), "ROTA_TEST_POSTGRES_URL"),
    Server("fish", ("fish",), ("fish",), "ROTA_TEST_POSTGRES_URL"),
    Server("ZooKeeper", ("/usr/share/java/zookeeper.jar",), ("zookeeper", "default-jre-headless"), "ROTA_TEST_ZOOKEEPER_URL"),
)

#: Debian keeps daemons out of a plain user's PATH.
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
POLICY = Path("/usr/sbin/policy-rc.d")
KEPT_POLICY = POLICY.with_name(POLICY.name + ".rota-kept")
POLICY_TEXT = "#!/bin/sh\n# Of rota's tests, for as long as they install packages: no service is started.\nexit 101\n"


def find(server: Server) -> str | None:
    """The path of its program (of the highest version where a pattern finds several), or None."""
    for program in server.programs:
        found = max(glob.glob(program), key=version_order, default=None) if "/" in program else shutil.which(program, path=PATH)
        if found:
            return found
    return None


def version_order(path: str) -> list[int]:
    return [int(part) for part in path.split("/") if part.isdigit()]


def provide(say: Callable[[str], None], fail: Callable[[str], NoReturn], servers: tuple[Server, ...] = SERVERS) -> None:
    """Install the servers that are missing, or stop with the line to type. Nothing is said when nothing is missing."""
    if os.geteuid() == 0:
        restore_policy()
    missing = [server for server in servers if find(server) is None and not os.environ.get(server.variable)]
    if not missing:
        return
    names = ", ".join(server.name for server in missing)
    packages = [package for server in missing for package in server.packages]
    if os.geteuid() != 0 or not shutil.which("apt-get", path=PATH):
        lines = [f"The tests need {names}."]
        if all(server.variable for server in missing):
            lines.append("With Docker: docker compose up -d --wait, and set the variables that docker-compose.yml names.")
        lines.append(f"On Debian and Ubuntu type, as root: apt-get install --no-install-recommends {' '.join(packages)}")
        fail(" ".join(lines))
    say(f"installing {names}: {' '.join(packages)}")
    with no_service_starts():
        output = apt_get("install", *packages)
        if output is not None:  # the package lists may be old, or not there at all
            apt_get("update")
            output = apt_get("install", *packages)
    if output is not None:
        fail(f"apt-get could not install {' '.join(packages)}:\n{output}")
    still_missing = ", ".join(server.name for server in missing if find(server) is None)
    if still_missing:
        fail(f"{' '.join(packages)} installed, but not found: {still_missing}. tests/server_packages.py looks in the wrong place.")


def apt_get(verb: str, *packages: str) -> str | None:
    """Run apt-get without questions. Returns what it said where it failed, else None."""
    options = ["-y", "--no-install-recommends"] if packages else []
    result = subprocess.run(
        ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=120", verb, *options, *packages],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return result.stdout if result.returncode else None


@contextlib.contextmanager
def no_service_starts() -> Iterator[None]:
    """Answer "no" to each package that asks whether to start its service (invoke-rc.d(8)); leave the machine's own answer as it was."""
    previous = signal.signal(signal.SIGTERM, exit_143)
    try:
        if POLICY.exists():
            POLICY.replace(KEPT_POLICY)
        POLICY.write_text(POLICY_TEXT)
        POLICY.chmod(0o755)
        yield
    finally:
        restore_policy()
        signal.signal(signal.SIGTERM, previous)


def restore_policy() -> None:
    """Undo `no_service_starts`, also of an earlier run that was killed."""
    if KEPT_POLICY.exists():
        KEPT_POLICY.replace(POLICY)
    elif POLICY.exists() and POLICY.read_text() == POLICY_TEXT:
        POLICY.unlink()


def exit_143(*_: object) -> NoReturn:
    raise SystemExit(143)
