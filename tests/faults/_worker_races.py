# SPDX-License-Identifier: MIT
"""One of the processes of test_races_sqlite.py, started by path: wins slots until all are handled, and logs what it did.

Its log and its sink are its own, so that they prove something about rota: the log is appended to in single writes, and the sink is a table
of its own file that refuses a token smaller than one it has seen for the name.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
import time

import rota


def main(url: str, folder: str, first: int, slots: int) -> None:
    log = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    sink = sqlite3.connect(os.path.join(folder, "sink.db"), timeout=30, isolation_level=None)

    def note(what: str, **more: object) -> None:
        # a newline before it, too: a process that is killed while it writes may leave a line cut off
        line = "\n" + json.dumps({"what": what, "pid": os.getpid(), "at": time.time_ns() // 1000, **more}) + "\n"
        assert os.write(log, line.encode()) == len(line)

    # even slots have a name each, odd ones share one name and are taken in order
    own = [number for number in range(slots) if number % 2 == 0]
    shared = [number for number in range(slots) if number % 2]
    random.shuffle(own)
    with rota.connect(url, timeout=10) as client:
        while own or shared:
            busy = True
            for queue in (own, shared):
                if queue:
                    number = queue[0]
                    verdict = work(client, sink, note, name_of(number), first + number * 1_000_000, number)
                    busy = busy and verdict == "busy"
                    if verdict == "handled":
                        queue.pop(0)
                    elif queue is own:
                        own.append(own.pop(0))
            if busy:
                time.sleep(random.uniform(0.005, 0.02))
    note("done")


def name_of(number: int) -> str:
    return "shared" if number % 2 else f"slot-{number}"


def work(client: rota.Client, sink: sqlite3.Connection, note, name: str, start: int, number: int) -> str:
    verdict = client.try_window(name, rota.Every("1s"), planned=start / 1_000_000, ttl=0.2)
    if isinstance(verdict, rota.Refused):
        if verdict.verdict not in ("busy", "handled"):
            note("unexpected", name=name, slot=start, verdict=verdict.verdict, reason=verdict.reason)
            raise SystemExit(3)
        return verdict.verdict
    token, record = verdict.token, verdict.record
    assert record is not None
    note("start", name=name, slot=verdict.slot.start, asked=start, token=token, granted=record.granted_at, expires=record.expires_at)
    if number % 5 == 0 and verdict.attempt == 1:
        note("doomed", name=name, slot=start, token=token)
        # at work until it is killed
        until = time.monotonic() + 60
        while time.monotonic() < until and held(verdict, note, name, start, token):
            time.sleep(0.01)
        note("spared", name=name, slot=start, token=token)  # its lease was lost before the kill came
        signal.pause()
    time.sleep(random.uniform(0, 0.01))
    if held(verdict, note, name, start, token):
        note("written" if write(sink, name, start, token) else "refused", name=name, slot=start, token=token)
    else:
        note("late", name=name, slot=start, token=token)
    held(verdict, note, name, start, token)
    try:
        verdict.handled()
    except rota.LeaseLost:
        note("lost", name=name, slot=start, token=token)
        return "lost"
    note("handled", name=name, slot=start, token=token)
    return "handled"


def held(grant: rota.Grant, note, name: str, start: int, token: int) -> bool:
    """Say whether the lease is held, and note an instant at which it surely was."""
    at = time.time_ns() // 1000
    if grant.lost:
        return False
    note("held", name=name, slot=start, token=token, held_at=at)
    return True


def write(sink: sqlite3.Connection, name: str, start: int, token: int) -> bool:
    sink.execute("BEGIN IMMEDIATE")
    newest = sink.execute("SELECT max(token) FROM written WHERE name = ?", (name,)).fetchone()[0]
    accepted = newest is None or token >= newest
    if accepted:
        sink.execute("INSERT INTO written VALUES (?, ?, ?)", (name, start, token))
    sink.execute("COMMIT")
    return accepted


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
