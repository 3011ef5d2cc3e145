# SPDX-License-Identifier: MIT
"""Holds etcd to every clause, for tests/conformance/test_etcd.py.

Usage: etcd_clauses.py FOLDER TESTS. An etcd lease lasts a second at the least, so these clauses wait most of the time: in processes, each
with servers of its own. What each came to is in FOLDER.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

VARIANTS = ("TestEtcd", "TestEtcdShared", "TestEtcdEnsemble")
#: Parts that together hold every test, whatever it is called.
PARTS = {"L": "test_L", "W": "test_W", "F": "test_F", "all else": "not test_L and not test_W and not test_F"}
#: As many as are not in the way of the tests beside them.
AT_ONCE = 2


def main(folder: Path, tests: int) -> None:
    waiting = [(variant, part) for variant in reversed(VARIANTS) for part in PARTS]
    running: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
    try:
        while (waiting or running) and os.path.exists(f"/proc/{tests}"):
            while waiting and len(running) < AT_ONCE:
                variant, part = waiting.pop(0)
                running[variant, part] = start(variant, part, output(folder, variant, part))
            for (variant, part), process in list(running.items()):
                if process.poll() is not None:
                    del running[variant, part]
                    new = output(folder, variant, part).with_suffix(".new")
                    new.write_text(json.dumps(process.returncode))
                    new.rename(ended(folder, variant, part))
            time.sleep(0.2)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def start(variant: str, part: str, output: Path) -> subprocess.Popen[bytes]:
    here = Path(__file__).parents[1] / "conformance" / "etcd_variants.py"
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{here}::{variant}", "-k", PARTS[part]]
    with output.open("wb") as file:
        return subprocess.Popen(command, cwd=here.parents[2], stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def output(folder: Path, variant: str, part: str) -> Path:
    """Where the pytest of a part says what it found."""
    return folder / f"{variant}-{list(PARTS).index(part)}.txt"


def ended(folder: Path, variant: str, part: str) -> Path:
    """Where its exit code is, once it has ended."""
    return folder / f"{variant}-{list(PARTS).index(part)}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
