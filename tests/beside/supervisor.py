# SPDX-License-Identifier: MIT
"""A site: start `rota run --planned auto` for each slot on this process's own clock, which libfaketime has set.

Usage: supervisor.py SITE NAME COUNT PERIOD FIRST URL FOLDER, where FIRST is the first planned instant, in epoch seconds. The runs have
the same clock: all of the site is wrong, and only the store's server is right.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    site, name, count, period, first, url, folder = sys.argv[1:]
    codes, said = [], []
    for number in range(int(count)):
        planned = int(first) + number * int(period)
        while (left := planned - time.time()) > 0:
            time.sleep(min(left, 1.0))
        # a slow machine may neither fail a run nor let it come after the next one
        environment = {
            **os.environ,
            "ROTA_PLANNED": str(planned),
            "ROTA_URL": url,
            "ROTA_SITE": site,
            "ROTA_TIMEOUT": "20s",
            "ROTA_WAIT": "5m",
        }
        words = ["run", name, "--every", f"{period}s", "--planned", "auto", "--", "sh", "-c", f"echo $ROTA_SLOT_START {site} >> {name}"]
        ended = subprocess.run([sys.executable, "-m", "rota", *words], env=environment, cwd=folder, stderr=subprocess.PIPE, text=True)
        codes.append(ended.returncode)
        said.append(ended.stderr)
    outcome = {"codes": codes, "said": said}
    Path(folder, f"{name}-{site}.json").write_text(json.dumps(outcome))


main()
