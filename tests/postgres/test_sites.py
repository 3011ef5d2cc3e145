# SPDX-License-Identifier: MIT
"""Two sites whose clocks are an hour apart race for every slot: each is handled exactly once."""

from __future__ import annotations

import collections
import os
import subprocess
import sys

from servers import PgBouncer, Postgres, RunningPostgres, program

Server = Postgres | PgBouncer | RunningPostgres

SLOTS = 300
CLIENT = f"""
import sys, rota
url, name, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
with rota.connect(url, timeout=30) as client:
    input()
    for number in range({SLOTS}):
        grant = client.try_window(name, rota.Every("1m"), planned=first + 60 * number, max_late="29d", wait=60)
        if grant:
            grant.handled()
            print(number, grant.token, flush=True)
        else:
            assert grant.verdict == "handled", grant
"""


def test_each_slot_is_handled_once_by_two_sites_an_hour_apart(server: Server, prepared: Server, name: str) -> None:
    """W1 to W5: 2 x 8 processes, 300 slots of one minute; who finds a slot busy waits for its end."""
    first = int(prepared.sql("SELECT (extract(epoch FROM now())::bigint / 60 - 310) * 60"))
    processes = []
    for number in range(16):
        fake = {"LD_PRELOAD": program("libfaketime"), "FAKETIME": "+30m" if number % 2 else "-30m"}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", CLIENT, server.url("app"), name, str(first)],
                env={**os.environ, **fake, "ROTA_SITE": f"dc{number % 2}"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 16
    handled = [tuple(map(int, line.split())) for text in said for line in text.splitlines()]
    counted = collections.Counter(slot for slot, _ in handled)
    assert counted == dict.fromkeys(range(SLOTS), 1)
    in_order = [token for _, token in sorted(handled)]
    assert in_order == sorted(in_order)
    record = prepared.sql(f"SELECT extract(epoch FROM mark)::bigint, owner = '' FROM rota WHERE name = '{name}'")
    assert record == f"{first + 60 * max(counted)}|t"
