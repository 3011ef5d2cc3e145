# SPDX-License-Identifier: MIT
"""Wrappers killed at random, with the retries of a Job controller: each slot ends handled, and never are two children at work."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
from datetime import UTC, datetime, timedelta

from rota.cli import _codes

SLOTS, SITES = 5, ("a", "b")
#: A child and a grandchild that both hold a lock while they work: whoever comes while one of them is still there says so. The grandchild
#: ends when it is told to by the child, and left alone it never does.
WORK = """
exec 9> lock
flock -n 9 || echo overlap >> overlaps
echo $ROTA_SLOT_START >> began
touch at-work.$$
(while test -e at-work.$$; do sleep 0.02; done) &
sleep 0.15
rm at-work.$$
wait
echo $ROTA_SLOT_START >> done
"""


def test_each_slot_ends_handled_and_never_two_children_are_at_work(cli):
    """W0, W3, L1."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    kills: list[str] = []
    failures: list[str] = []
    first = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=30)

    def control(site: str, planned: str, chance: random.Random) -> None:
        """A Job controller: start the pod again until one ends with 0; some die before they are done."""
        for attempt in range(40):
            process = cli.start_shell(
                "job", "--every", "1s", "--planned", "auto", "--ttl", "1500ms", "--site", site, script=WORK, env={"ROTA_PLANNED": planned}
            )
            if attempt < 3 and chance.random() < 0.9:
                if chance.random() < 0.5:  # at work, if it is this one that gets to
                    before = len(cli.said("began"))
                    cli.until(lambda: process.poll() is not None or len(cli.said("began")) > before)
                try:
                    process.wait(chance.uniform(0.0, 0.25))
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    kills.append(site)
            ended = cli.end(process)
            if ended.returncode == 0:
                return
            if ended.returncode not in (-signal.SIGKILL, _codes.LOST):  # a busy machine may lose a lease as short as this
                failures.append(ended.stderr)
        failures.append(f"{site} never ended {planned}")

    for number in range(SLOTS):
        planned = (first + timedelta(seconds=number)).isoformat()
        controllers = [threading.Thread(target=control, args=(site, planned, random.Random(f"{seed} {number} {site}"))) for site in SITES]
        for controller in controllers:
            controller.start()
        for controller in controllers:
            controller.join()
        record = cli.record("job")
        assert record.mark == round((first + timedelta(seconds=number)).timestamp()) * 1_000_000
        assert record.outcome == "handled"
    assert failures == []
    assert cli.said("overlaps") == []
    assert len(set(cli.said("done"))) == SLOTS
    print(f"{len(kills)} were killed")
    assert kills
