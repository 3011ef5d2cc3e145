# SPDX-License-Identifier: MIT
"""What ``import rota`` costs: `rota run` starts once a minute from a crontab, and scripts import it to take one lease."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SLOW = "argparse asyncio croniter dateutil importlib.metadata logging pluggy sqlite3 ssl"

PROBE = """
import sys
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
import rota
assert rota.__file__.startswith(sys.argv[1]), rota.__file__
print(*sorted((set(sys.modules) - before) & set(sys.argv[2].split())))
"""


def test_importing_rota_loads_nothing_slow(built: tuple[Path, Path], base_python: str, tmp_path: Path) -> None:
    pip = [sys.executable, "-I", "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", tmp_path, built[0]], check=True, capture_output=True)
    loaded = subprocess.run([base_python, "-c", PROBE, tmp_path, SLOW], check=True, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert loaded.stdout.split() == []
