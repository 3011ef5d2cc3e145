# SPDX-License-Identifier: MIT
"""The sites of tests/cli/test_sites.py: a store, and the supervisors that work on it, each by a wrong clock.

Usage: sites.py FOLDER TESTS LIBRARY, which is libfaketime's. What it writes into FOLDER: ``begun``, the store's URL and the planned
instants; ``ended``, the supervisors' exit codes.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from servers import Redis

SLOTS, PERIOD = 30, 4
#: By how many seconds the clock of each site is ahead of the store's, for each name that they run.
SKEWS = {"skewed": {"ahead": 1.5, "behind": -1.5}, "late": {"ahead": 1.5, "behind": -10.0}}
#: libfaketime 0.9.10 breaks the system call under time.sleep, which sleeps until an instant of a clock that it should leave alone.
SLEEP = """
import select, time
time.sleep = lambda seconds: select.select([], [], [], seconds) and None
"""


def main(folder: Path, tests: int, library: str) -> None:
    (folder / "customized").mkdir()
    (folder / "customized" / "sitecustomize.py").write_text(SLEEP)
    with contextlib.ExitStack() as stack:
        url = os.environ.get("ROTA_TEST_REDIS_URL") or stack.enter_context(Redis()).url()
        url += f"{'&' if '?' in url else '?'}prefix=sites-{os.urandom(4).hex()}"
        first = (int(time.time()) // PERIOD + 2) * PERIOD
        sites = [(name, site, skew) for name, skews in SKEWS.items() for site, skew in skews.items()]
        supervisors = []
        for name, site, skew in sites:
            words = (site, name, SLOTS, PERIOD, first, url, folder)
            command = [sys.executable, str(Path(__file__).with_name("supervisor.py")), *map(str, words)]
            supervisors.append(subprocess.Popen(command, env=environment(folder, library, skew)))
            stack.callback(supervisors[-1].wait)
            stack.callback(supervisors[-1].kill)
        write(folder / "begun", {"url": url, "planned": [first + number * PERIOD for number in range(SLOTS)]})
        while os.path.exists(f"/proc/{tests}"):
            codes = [supervisor.poll() for supervisor in supervisors]
            if None not in codes and not (folder / "ended").exists():
                write(folder / "ended", codes)
            time.sleep(0.2)


def environment(folder: Path, library: str, skew: float) -> dict[str, str]:
    """Variables that give a process, and all that it starts, a clock that is ahead by so much."""
    path = os.pathsep.join(filter(None, [str(folder / "customized"), os.environ.get("PYTHONPATH", "")]))
    faked = {"LD_PRELOAD": library, "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME": f"{skew:+.1f}s", "PYTHONPATH": path}
    return {**os.environ, **faked}


def write(path: Path, what: object) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(what))
    new.rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
