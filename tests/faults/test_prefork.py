# SPDX-License-Identifier: MIT
"""Case DV-23 in what forks: `multiprocessing`, gunicorn with --preload, Celery, gevent. The client is made before the fork (L10).

Each parent holds a lease of its own. Its child acquires another (ttl 2 s), by the client that it inherited, and holds it for 6 s. All of
them run at the same time; one whose child lost its lease while the machine stood still is started again.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rota
from rota.history import runs
from rota.testing.stopwatch import Stopwatch

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

HOLD, TTL = 6, 2
#: As late as this a machine that stands still wakes its processes, seconds: a child that lost its lease on it says nothing.
STALL = 0.3

APP = f"""
import json, os, time, traceback
import rota

folder = os.environ["FOLDER"]
client = rota.connect(f"sqlite://{{folder}}/rota.db")
client.try_lease("warm").release()
parents = client.try_lease("parents", ttl=60, heartbeat=0.6) if "PARENT" in os.environ else None

def refuses(verb):
    try:
        verb()
    except rota.LeaseLost:
        return
    raise AssertionError(f"the child believes it holds its parent's lease: {{verb}}")

def hold():
    result = {{"pid": os.getpid()}}
    try:
        assert parents.lost
        for verb in (parents.check, parents.handled, parents.release):
            refuses(verb)
        assert client.try_lease("parents").verdict == "busy"
        with client.lease("childs", ttl={TTL}) as grant:
            result["token"] = grant.token
            end = time.time() + {HOLD}  # the store's clock, which the monotonic one does not keep up with to the millisecond
            while time.time() < end:
                grant.check()
                time.sleep(0.05)
    except BaseException:
        result["error"] = traceback.format_exc()
    with open(f"{{folder}}/result.new", "w") as file:
        json.dump(result, file)
    os.rename(f"{{folder}}/result.new", f"{{folder}}/result")
"""

MULTIPROCESSING = """
import multiprocessing, time
import app

child = multiprocessing.get_context("fork").Process(target=app.hold)
child.start()
child.join()
time.sleep(60)
"""

GEVENT = """
from gevent import monkey
monkey.patch_all()
import os, time
import app

pid = os.fork()
if pid == 0:
    app.hold()
    os._exit(0)
os.waitpid(pid, 0)
time.sleep(60)
"""

WEB = """
import app

def web(environ, start_response):
    app.hold()
    start_response("200 OK", [])
    return []
"""

CELERY = """
import os
import celery
import app

queue = celery.Celery(broker="filesystem://")
queue.conf.update(
    broker_transport_options={key: app.folder for key in ("data_folder_in", "data_folder_out", "control_folder")},
    broker_connection_retry_on_startup=False,
    worker_max_tasks_per_child=1,  # its child ends after the task
)

@queue.task(name="hold")
def hold():
    app.hold()
"""

BLOCKED = f"""
from gevent import monkey
monkey.patch_all()
import os, time
import rota

client = rota.connect(f"sqlite://{{os.environ['FOLDER']}}/rota.db")
grant = client.try_lease("job", ttl={TTL})
end = time.monotonic() + 1.5 * {TTL}
while time.monotonic() < end:
    pass
try:
    grant.check()
except rota.LeaseLost:
    assert grant.lost
    print("lost")
"""


class Server:
    """A program that forks, with a store of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.watch = Stopwatch()
        folder.mkdir()
        for name, text in {"app": APP, "web": WEB, "tasks": CELERY}.items():
            (folder / f"{name}.py").write_text(text)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.request: socket.socket | None = None

    def start(self, *arguments: str, parent: bool = True, **options: Any) -> subprocess.Popen[bytes]:
        core = str(Path(rota.__file__).parents[1])
        environment = os.environ | {
            "FOLDER": str(self.folder),
            "HOME": str(self.folder),  # gunicorn writes there
            "PYTHONPATH": os.pathsep.join([core, str(self.folder)]),
        }
        if parent:
            environment["PARENT"] = "1"
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                **options,
            )
        self.processes.append(process)
        return process

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def until(self, condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + 60
        while not (value := condition()):
            ended = [process.args for process in self.processes if process.poll()]
            assert not ended, f"{ended}\n{self.log()}"
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.01)
        return value

    def result(self) -> dict[str, Any]:
        self.until((self.folder / "result").exists)
        return json.loads((self.folder / "result").read_text())

    def end(self) -> None:
        self.watch.close()
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=15)
            process.kill()
            process.communicate()
        if self.request is not None:
            self.request.close()


def multiprocessing(server: Server) -> None:
    server.start("-c", MULTIPROCESSING)


def gevent(server: Server) -> None:
    server.start("-c", GEVENT)


def gunicorn(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = ["-m", "gunicorn", "--preload", "--workers", "1", "--max-requests", "1"]
        server.start(*command, "--bind", f"fd://{listener.fileno()}", "web:web", pass_fds=[listener.fileno()])
        server.request = socket.create_connection(listener.getsockname())
        server.request.sendall(b"GET / HTTP/1.0\r\n\r\n")  # nobody reads the answer: what counts is in the file


def celery(server: Server) -> None:
    server.start("-m", "celery", "-A", "tasks", "worker", "--pool", "prefork", "-c", "1", "--without-gossip", "--without-mingle")
    server.start("-c", "import tasks; tasks.hold.delay()", parent=False)


def blocked(server: Server) -> None:
    server.start("-c", BLOCKED)


SERVERS = [multiprocessing, gunicorn, celery, gevent]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    folder = tmp_path_factory.mktemp("prefork")
    made = {}
    try:
        for begin in (*SERVERS, blocked):
            server = made[begin.__name__] = Server(folder / begin.__name__)
            begin(server)
        yield made
    finally:
        for server in made.values():
            for process in server.processes:
                process.terminate()
        for server in made.values():
            server.end()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("name", [begin.__name__ for begin in SERVERS])
def test_dv23_a_child_holds_for_three_ttls_and_its_end_takes_nothing_from_its_parent(servers: dict[str, Server], name: str) -> None:
    server, begin = servers[name], globals()[name]
    for number in range(2):
        result = server.result()
        if "LeaseLost" not in result.get("error", "") or server.watch.late < STALL:
            break
        server.end()
        servers[name] = server = Server(server.folder.with_name(f"{name}-{number}"))
        begin(server)
        result = server.result()
    assert "error" not in result, result["error"]
    with rota.connect(f"sqlite://{server.folder}/rota.db") as client:
        run = runs(client.driver.read("childs", 5.0)[0].history)[0]
        assert (run.token, run.outcome) == (result["token"], "released")
        assert run.ended_at - run.started_at >= HOLD * 1_000_000
        server.until(lambda: gone(result["pid"]))
        before = client.driver.read("parents", 5.0)[0]
        assert f":{server.processes[0].pid}" in before.label
        server.until(lambda: client.driver.read("parents", 5.0)[0].expires_at > before.expires_at)
        after = client.driver.read("parents", 5.0)[0]
        assert (after.token, after.owner) == (before.token, before.owner)
        assert (after.granted_at, len(runs(after.history))) == (before.granted_at, 0)  # the first that it won is the one it holds


def test_dv23_a_lease_whose_renewals_gevent_held_up_says_so_right_after(servers: dict[str, Server]) -> None:
    """L6: with threads that are greenlets, a computation stops the heartbeat, too."""
    server = servers["blocked"]
    server.until(lambda: server.processes[0].poll() == 0)
    assert "lost" in server.log()
