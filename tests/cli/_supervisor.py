# SPDX-License-Identifier: MIT
"""A site: start `rota run --planned auto` for each slot on this process's own clock, which libfaketime has set, and wait for all of them.

Usage: _supervisor.py SITE NAME COUNT PERIOD FIRST URL FOLDER, where FIRST is the first planned instant, in epoch seconds. The runs get
the true clock, which is the SQLite store's: only who plans them is wrong.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    site, name, count, period, first, url, folder = sys.argv[1:]
    plain = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD" and not key.startswith("FAKETIME")}
    started = []
    for number in range(int(count)):
        planned = int(first) + number * int(period)
        while (left := planned - time.time()) > 0:
            select.select([], [], [], min(left, 1.0))  # libfaketime 0.9.10 breaks time.sleep, which sleeps until an instant
        environment = {**plain, "ROTA_PLANNED": str(planned), "ROTA_URL": url, "ROTA_SITE": site}
        words = ["run", name, "--every", f"{period}s", "--planned", "auto", "--", "sh", "-c", f"echo $ROTA_SLOT_START {site} >> {name}"]
        started.append(
            subprocess.Popen([sys.executable, "-m", "rota", *words], env=environment, cwd=folder, stderr=subprocess.PIPE, text=True)
        )
    ended = [process.communicate()[1] for process in started]
    outcome = {"codes": [process.returncode for process in started], "said": ended, "clock": time.time()}
    Path(folder, f"{name}-{site}.json").write_text(json.dumps(outcome))


main()
