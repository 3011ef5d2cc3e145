# SPDX-License-Identifier: MIT
"""Two sites whose wall clocks are an hour apart race for every slot: each is handled exactly once (W2, DV-10)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
import rota
import servers
from servers import read_line

#: The length of a slot, microseconds.
SLOT = 10_000
#: So many slots after now the first one starts: all are there, so that it is a race from the start.
AHEAD = 50

# Every process goes through the same slots in order, each named by its planned start, and leaves one only when the store calls it handled.
# So no slot can be missed, however slow the machine is (W6), and none can be passed over: the next one is asked for after it alone.
WORKER = """
import json, sys, time, rota
from datetime import UTC, datetime, timedelta
url, name, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
client = rota.connect(url, timeout="30s")
schedule = rota.Every(f"{length // 1000}ms")
client.driver.now(30.0)  # connected
print(json.dumps(time.time()), flush=True)
for line in sys.stdin:
    first, count = json.loads(line)
    won = []
    for number in range(count):
        planned = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=first + number * length)
        while True:
            window = client.try_window(name, schedule, planned=planned, early=0, ttl="10m")
            if window:
                won.append([window.slot.start, window.record.granted_at, window.token])
                window.handled()
            elif window.verdict == "handled":
                break
            else:
                assert window.verdict in ("busy", "early"), window
                time.sleep(window.starts_in or 0.001)  # all are there when the slot begins
    print(json.dumps(won), flush=True)
client.close()
"""


def race(client: rota.Client, url: str, name: str, slots: int, processes: int) -> None:
    """Two sites of so many processes each; the client tells the store's time."""
    arguments = [sys.executable, "-c", WORKER, url, name, str(SLOT)]
    fake = {"LD_PRELOAD": servers.program("libfaketime")}
    workers = [
        subprocess.Popen(
            arguments, env={**os.environ, **fake, "FAKETIME": offset}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for offset in ("-1800s", "+1800s")
        for _ in range(processes)
    ]
    try:
        clocks = [json.loads(read_line(worker.stdout)) for worker in workers]
        real = datetime.now(UTC).timestamp()
        assert max(clocks[:processes]) < real - 1700
        assert min(clocks[processes:]) > real + 1700, "the sites are an hour apart"
        for _ in range(5):
            won = heat(client, workers, slots)
            if any(won[:processes]) and any(won[processes:]):
                break  # else one site was too slow for this time to take part
        assert any(won[:processes])
        assert any(won[processes:]), "both sites took part"
        for worker in workers:
            worker.stdin.close()
        assert [worker.wait(30) for worker in workers] == [0] * len(workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
            worker.stdin.close()
            worker.stdout.close()


def heat(client: rota.Client, workers: list[Any], slots: int) -> list[list[list[int]]]:
    """Let all go through so many slots; check that each was won once, and return which by whom."""
    first = (client.driver.now(5.0)[0] // SLOT + AHEAD) * SLOT
    for worker in workers:
        worker.stdin.write(json.dumps([first, slots]) + "\n")
        worker.stdin.flush()
    won = [json.loads(read_line(worker.stdout)) for worker in workers]
    handled = sorted(grant for grants in won for grant in grants)
    assert [start for start, _, _ in handled] == [first + number * SLOT for number in range(slots)], "each exactly once, all of them"
    assert all(granted_at >= start for start, granted_at, _ in handled), "none before its time by the store's clock (W5)"
    tokens = [token for _, _, token in handled]
    assert tokens == sorted(set(tokens))
    return won


def test_two_sites_of_eight_processes_an_hour_apart_handle_three_hundred_slots_once(connect: Any, redis_url: str, name: str) -> None:
    race(connect(redis_url), redis_url, name, slots=300, processes=8)


@pytest.mark.parametrize("store", ["sentinel_url", "cluster_url"])
def test_two_sites_an_hour_apart_handle_each_slot_once(request: pytest.FixtureRequest, connect: Any, store: str, name: str) -> None:
    url = request.getfixturevalue(store)
    race(connect(url), url, name, slots=50, processes=3)
