# SPDX-License-Identifier: MIT
"""What a schedule's arithmetic costs: slot and next, cold (first use in a process) and warm, and missed slots over gaps of any length.

Cold runs are processes of their own, which measure the call and not their start; what they import before is what `rota` imports.
"""

from __future__ import annotations

import subprocess
import sys
import time

import rota
from rounds import Figure, interleaved, main, seconds

SECOND = 1_000_000
DAY = 86_400 * SECOND
NOW = 1_795_000_000 * SECOND
CRONS = {
    "every 15m": "rota.Every('15m')",
    "*/5 * * * * UTC": "rota.Cron('*/5 * * * *')",
    "30 2 * * * Berlin": "rota.Cron('30 2 * * *', tz='Europe/Berlin')",
    "0 9 * * mon-fri New_York": "rota.Cron('0 9 * * mon-fri', tz='America/New_York')",
    "0 0 29 2 * UTC": "rota.Cron('0 0 29 2 *')",
    # no rarer one: a leap day on a Monday takes 28 or 40 years to come back
    "0 0 * 2 1#5 UTC": "rota.Cron('0 0 * 2 1#5')",
    "0 0 * 2 1#5 St_Johns": "rota.Cron('0 0 * 2 1#5', tz='America/St_Johns')",
}
COLD = """
import time, rota
schedule = {schedule}
started = time.perf_counter()
{call}
print(time.perf_counter() - started)
"""
CALLS = {
    "slot": "schedule.slot({at})",
    "slot elsewhere": "schedule.slot({at} - {at} // 1_000_000 % 2 * 1_728_000_000_000_000)",  # every other one 55 years back
    "next": "list(schedule.next({at}, 1))",
}


def cold(schedule: str, call: str) -> float:
    """Return the milliseconds of the first call on a schedule in a process."""
    code = COLD.format(schedule=schedule, call=call.format(at=NOW))
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout) * 1e3


def warm(schedule: rota.Schedule, call: str) -> float:
    """Return the milliseconds of a call on a schedule in use, the instant moving on as in a loop of runs."""
    code = compile(call.format(at="at"), "warm", "eval")
    count = 200
    started = time.perf_counter()
    for number in range(count):
        eval(code, {"schedule": schedule, "at": NOW + number * 61 * SECOND})
    return (time.perf_counter() - started) / count * 1e3


def missed(schedule: rota.Schedule, gap: int) -> float:
    started = time.perf_counter()
    schedule.missed(NOW - gap, schedule.slot(NOW).start)
    return (time.perf_counter() - started) * 1e3


def figures(rounds: int) -> list[Figure]:
    found = []
    made = {name: eval(code, {"rota": rota}) for name, code in CRONS.items()}
    for what, call in CALLS.items():
        for name, code in CRONS.items():
            values = interleaved(
                {"cold": lambda code=code, call=call: cold(code, call), "warm": lambda name=name, call=call: warm(made[name], call)}, rounds
            )
            found.append(Figure(f"{what}, cold: {name}", values["cold"], "ms", 1.0))
            found.append(Figure(f"{what}, warm: {name}", values["warm"], "ms", 0.1))
    for name, schedule in made.items():
        for days in (1, 366, 367, 3650, 18_000):
            first = schedule.slot(NOW - days * DAY).start
            answer = schedule.missed(first, schedule.slot(NOW).start)
            assert answer.exact or schedule.slot(NOW).start - first > 366 * DAY, (name, days, answer)  # W9
            values = interleaved({"missed": lambda s=schedule, d=days: missed(s, d * DAY)}, rounds)["missed"]
            found.append(Figure(f"missed over {days} d: {name}", values, "ms", 1.0, str(answer)))
    nothing = [seconds(int) * 1e3 for _ in range(rounds)]
    found.append(Figure("baseline: the timer around int()", nothing, "ms", None))
    return found


if __name__ == "__main__":
    main(figures, __doc__)
