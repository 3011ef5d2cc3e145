# SPDX-License-Identifier: MIT
"""Processes that race on one SQLite file: one success per slot, never two owners at a time, whoever is killed (L1, L2, W2, W3, F1).

What the processes did is known from a log and a token-checking sink of their own (see ``_worker_races.py``), compared with the raw table.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rota
from servers import read_line

HERE = Path(__file__).parent
SLOTS, PROCESSES, TTL = 200, 8, 200_000
#: Within this long every slot must be handled.
LIMIT = 300.0


def start(script: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(rota.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen([sys.executable, str(HERE / script), *map(str, arguments)], env=environment, text=True, **options)


def test_L1_L2_W3_every_slot_is_handled_exactly_once_while_workers_are_killed(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    with contextlib.closing(sqlite3.connect(tmp_path / "sink.db")) as sink:
        sink.execute("PRAGMA journal_mode = wal")
        sink.execute("CREATE TABLE written (name TEXT, slot INTEGER, token INTEGER)")
    (tmp_path / "log").touch()
    # named slots that ended lately: each can be won for ten minutes after its end (W6)
    first = (int(time.time()) - SLOTS - 10) * 1_000_000

    entries = race(f"sqlite://{path}", tmp_path, first)

    of = by_kind(entries)
    kills = len(of["killed"])
    assert len(of["doomed"]) == SLOTS // 5
    # unless the machine is so slow that they lost their leases before
    assert kills >= SLOTS // 10
    assert_exclusive(entries)

    handled: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for entry in of["handled"]:
        handled[entry["name"], entry["slot"]].append(entry)
    slots = {(name_of(number), first + number * 1_000_000) for number in range(SLOTS)}
    assert handled.keys() == slots
    assert [key for key, entries_of in handled.items() if len(entries_of) != 1] == []

    table = raw(path)
    for name, slot in slots:
        record = table[name]
        newest = max(s for n, s in slots if n == name)
        assert (record["mark"], record["outcome"], record["owner"]) == (newest, "handled", "")
        runs = [line.split("\t") for line in record["history"].decode().splitlines()]
        done = [run for run in runs if run[5] == "handled" and int(run[0]) == slot]
        if name != "shared":  # the shared name's history is too short for all
            assert len(done) == 1
        assert len(done) <= 1
        if done:
            assert int(done[0][2]) == handled[name, slot][0]["token"]
    for name, record in table.items():
        assert record["token"] == max(entry["token"] for entry in of["start"] if entry["name"] == name)

    with contextlib.closing(sqlite3.connect(tmp_path / "sink.db")) as sink:
        written = {tuple(row) for row in sink.execute("SELECT name, slot, token FROM written")}
    # whoever was recorded had passed the sink, unless its lease ran out before it could write and nobody came after (W3a)
    late = {(entry["name"], entry["slot"], entry["token"]) for entry in of["late"]}
    assert {(entry["name"], entry["slot"], entry["token"]) for entry in of["handled"]} <= written | late
    assert written


def race(url: str, folder: Path, first: int) -> list[dict[str, Any]]:
    """Run the processes until all are done; kill those that say that they are doomed, and replace them."""

    def worker() -> subprocess.Popen[str]:
        return start("_worker_races.py", url, folder, first, SLOTS)

    running = {process.pid: process for process in (worker() for _ in range(PROCESSES))}
    entries: list[dict[str, Any]] = []
    deadline = time.monotonic() + LIMIT
    rest = b""
    try:
        with (folder / "log").open("rb") as log:
            while running:
                assert time.monotonic() < deadline, f"not done within {LIMIT:g} s: {by_kind(entries).keys()}"
                rest += log.read()
                *lines, rest = rest.split(b"\n")
                for entry in parsed(lines):
                    entries.append(entry)
                    if entry["what"] == "doomed" and entry["pid"] in running:
                        process = running.pop(entry["pid"])
                        process.kill()
                        process.wait()
                        record = raw(folder / "rota.db")[entry["name"]]
                        if record["token"] == entry["token"]:  # what the store promised to the dead, that nobody renews any more
                            entries.append({**entry, "what": "killed", "until": record["expires_at"] - 1})
                        replacement = worker()
                        running[replacement.pid] = replacement
                for process in list(running.values()):
                    if process.poll() is not None:
                        assert process.returncode == 0, f"a worker ended with {process.returncode}: {by_kind(entries)['unexpected']}"
                        del running[process.pid]
                time.sleep(0.005)
            rest += log.read()
            entries += parsed(rest.split(b"\n"))
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return entries


def parsed(lines: list[bytes]) -> list[dict[str, Any]]:
    entries = []
    for line in filter(None, lines):
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:  # a doomed worker was killed as it wrote that it still held: that adds nothing
            assert line[:15] == b'{"what": "held"'[: len(line)], line
    return entries


def by_kind(entries: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in entries:
        kinds[entry["what"]].append(entry)
    return kinds


def name_of(number: int) -> str:
    return "shared" if number % 2 else f"slot-{number}"


def raw(path: Path) -> dict[str, dict[str, Any]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return {row["name"]: dict(row) for row in connection.execute("SELECT * FROM rota_record")}


def assert_exclusive(entries: list[dict[str, Any]]) -> None:
    """L1, L2: by the one clock of this host, nobody was granted a name while another surely held it, and tokens grew."""
    grants: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for entry in entries:
        if entry["what"] == "start":
            assert entry["slot"] == entry["asked"]
            assert entry["token"] not in grants[entry["name"]], "one token was granted twice"
            # it held from its grant until the last instant at which it saw that it did; a killed one until its lease ran out
            grants[entry["name"]][entry["token"]] = {**entry, "until": entry["granted"]}
        elif entry["what"] == "held":
            grant = grants[entry["name"]][entry["token"]]
            grant["until"] = max(grant["until"], entry["held_at"])
        elif entry["what"] == "killed":
            grant = grants[entry["name"]][entry["token"]]
            grant["until"] = max(grant["until"], entry["until"])
    for of_name in grants.values():
        in_order = sorted(of_name.values(), key=lambda grant: (grant["granted"], grant["token"]))
        for before, after in itertools.pairwise(in_order):
            assert before["token"] < after["token"]
            assert before["until"] < after["granted"], f"two owners at a time: {before} and {after}"


def test_F1_racing_first_opens_of_a_fresh_file_all_succeed(tmp_path: Path) -> None:
    workers = [start("_worker_opens.py", stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(PROCESSES)]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert read_line(worker.stdout) == "ready\n"
        for number in range(6):
            path, begin = tmp_path / f"fresh-{number}" / "rota.db", tmp_path / f"begin-{number}"
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.write(f"{path} {begin}\n")
                worker.stdin.flush()
            begin.touch()
            answers = [read_line(worker.stdout) for worker in workers if worker.stdout is not None]
            assert [answer for answer in answers if not answer.startswith("ok")] == []
            assert len(raw(path)) == PROCESSES
            assert path.stat().st_mode & 0o777 == 0o600
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


@pytest.fixture
def stopped_writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is stopped (SIGSTOP) while it holds the file's write lock."""
    with rota.connect(f"sqlite://{tmp_path / 'rota.db'}") as client, client.lease("first"):
        pass
    writer = start("_worker_lock.py", tmp_path / "rota.db", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert read_line(writer.stdout) == "locked\n"
    os.kill(writer.pid, signal.SIGSTOP)
    try:
        yield writer
    finally:
        writer.kill()
        writer.communicate()


def go_on(writer: subprocess.Popen[str]) -> None:
    os.kill(writer.pid, signal.SIGCONT)
    writer.communicate("\n")
    assert writer.returncode == 0


@pytest.mark.parametrize("known", [True, False], ids=["an open client", "a fresh client"])
def test_F1_a_process_stopped_with_the_write_lock_costs_others_their_timeout_and_no_more(
    tmp_path: Path, stopped_writer: subprocess.Popen[str], known: bool, stopwatch: Any
) -> None:
    url = f"sqlite://{tmp_path / 'rota.db'}"
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(rota.connect(url)) for _ in range(4)]
        if known:
            for client in clients:
                client.driver.read("first", 1.0)
        taken: list[tuple[str, float, float]] = []

        def ask(client: rota.Client) -> None:
            started, watch = time.monotonic(), stopwatch()
            try:
                client.try_lease("job", timeout=0.4)
            except rota.Unavailable:
                taken.append(("unavailable", time.monotonic() - started, watch.seconds))
            else:
                taken.append(("answered", time.monotonic() - started, watch.seconds))

        threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert [answer for answer, *_ in taken] == ["unavailable"] * 4
        assert all(passed > 0.3 and seconds < 0.4 + 1.5 for _, passed, seconds in taken), (
            taken
        )  # a loaded machine may take a while to run a thread

        go_on(stopped_writer)
        for client in clients:
            with retried(client) as grant:
                grant.check()


@contextlib.contextmanager
def retried(client: rota.Client) -> Iterator[rota.Grant]:
    """Take the lease as soon as the breaker lets a claim through (F4): no restart is needed."""
    deadline = time.monotonic() + 20
    while True:
        try:
            with client.lease("job", timeout=5, wait=5) as grant:
                yield grant
                return
        except rota.Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@pytest.mark.by_the_clock
def test_F1_the_async_face_is_bounded_too_and_its_loop_runs_on(tmp_path: Path, stopped_writer: subprocess.Popen[str]) -> None:
    import asyncio

    async def ask() -> tuple[float, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        async with rota.connect_async(f"sqlite://{tmp_path / 'rota.db'}") as client:
            ticking = asyncio.create_task(tick())
            started = time.monotonic()
            with pytest.raises(rota.Unavailable):
                await client.try_lease("job", timeout=0.5)
            seconds = time.monotonic() - started
            ticking.cancel()
            return seconds, ticks

    seconds, ticks = asyncio.run(ask())
    assert 0.4 < seconds < 0.5 + 1.5
    assert ticks > 5


@pytest.mark.by_the_clock
def test_L6_a_holder_whose_store_is_locked_longer_than_the_ttl_is_told_in_time(tmp_path: Path) -> None:
    """The renewal is bounded by the heartbeat, so a stopped process that holds the lock doesn't keep the holder from being told."""
    path = tmp_path / "rota.db"
    with rota.connect(f"sqlite://{path}") as client, contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        grant = client.try_lease("job", ttl=0.6)
        assert grant
        other.execute("BEGIN IMMEDIATE")
        until = time.monotonic() + 10
        while not grant.lost and time.monotonic() < until:
            at = time.time_ns() // 1000
            time.sleep(0.005)
        assert grant.lost
        with pytest.raises(rota.LeaseLost):
            grant.check()
        expires_at = other.execute("SELECT expires_at FROM rota_record WHERE name = 'job'").fetchone()[0]
        assert at < expires_at  # it was told before the store let it go
        other.execute("COMMIT")
