# SPDX-License-Identifier: MIT
"""What starting costs: `import rota` beside `import asyncio`, and `rota run` around `true` beside `python -c pass`.

Both imports are counted net of `pass`. `rota run` works on an SQLite file of its own that exists, in the steady state of a cron job: each
run wins (a new name or slot) and settles. It is started by the console script and by ``python -m rota``.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from rounds import Figure, interleaved, main

_numbers = itertools.count()


def run(*command: str) -> float:
    """Return the milliseconds from start to end of a command."""
    started = time.perf_counter()
    ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    took = (time.perf_counter() - started) * 1e3
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {ended.returncode}: {ended.stderr}")
    return took


def figures(rounds: int) -> list[Figure]:
    python = sys.executable
    found = []
    values = interleaved(
        {
            code: lambda code=code: run(python, "-c", code)
            for code in ("pass", "import rota", "import rota; rota.connect", "import asyncio")
        },
        rounds,
    )
    base = statistics.median(values["pass"])
    net = {code: [value - base for value in values[code]] for code in values}
    found.append(Figure("python -c pass", values["pass"], "ms", None, "baseline"))
    found.append(Figure("import asyncio, net", net["import asyncio"], "ms", None, "baseline"))
    found.append(Figure("import rota, net", net["import rota"], "ms", None))
    found.append(Figure("import rota; rota.connect, net", net["import rota; rota.connect"], "ms", None, "the client and all it needs"))
    ratio = [value / statistics.median(net["import asyncio"]) for value in net["import rota"]]
    found.append(Figure("import rota / import asyncio", ratio, "x", 0.5))

    script = shutil.which("rota", path=os.path.dirname(python))
    starts = {"python -m rota": [python, "-m", "rota"], **({"rota": [script]} if script else {})}
    schedules = {
        "a lease": ([], 4.0),
        "--every 1h": (["--every", "1h"], 4.0),
        "--once-per 1h": (["--once-per", "1h"], 4.0),
        "--cron": (["--cron", "* * * * *"], 8.0),
    }
    true = shutil.which("true") or "true"
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite://{folder}/rota.db"
        run(python, "-m", "rota", "run", "first", "--url", url, "--", true)
        measures = {"pass": lambda: run(python, "-c", "pass"), "true": lambda: run(true)}
        for start, command in starts.items():
            for what, (options, _) in schedules.items():
                measures[f"{start} run, {what}"] = lambda command=command, options=options: run(
                    *command, "run", f"job-{next(_numbers)}", "--url", url, *options, "--", true
                )
        values = interleaved(measures, rounds)
    found.append(Figure("python -c pass", values["pass"], "ms", None, "baseline"))
    found.append(Figure("true", values["true"], "ms", None, "what every run starts"))
    for start in starts:
        for what, (_, bound) in schedules.items():
            name = f"{start} run, {what}"
            found.append(Figure(name, values[name], "ms", None))
            ratio = [value / statistics.median(values["pass"]) for value in values[name]]
            found.append(Figure(f"{name} / pass", ratio, "x", bound))
    return found


if __name__ == "__main__":
    main(figures, __doc__)
