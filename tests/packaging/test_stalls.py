# SPDX-License-Identifier: MIT
"""The tests' own retry: only with a stall as its evidence, only where a test asks for it, and never for good."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import rota

TESTS = """
import os, pathlib, pytest, time
import stalls

class Stood:
    def __init__(self):
        self.late = float(pathlib.Path("late").read_text())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

stalls.Stopwatch = Stood

@pytest.fixture
def fresh():
    return []

def fails_until(run, fresh):
    assert fresh == []
    fresh.append(run)
    with open("runs", "a") as runs:
        runs.write("x")
    assert os.path.getsize("runs") == run

@pytest.mark.by_the_clock
def test_marked(fresh):
    fails_until(2, fresh)

def test_bare(fresh):
    fails_until(2, fresh)

@pytest.mark.by_the_clock
def test_hopeless(fresh):
    fails_until(9, fresh)
"""


@pytest.mark.parametrize(
    ("test", "late", "runs", "passes"),
    [
        ("test_marked", 2.5, 2, True),
        ("test_marked", 0.0, 1, False),
        ("test_bare", 2.5, 1, False),
        ("test_hopeless", 2.5, 3, False),
    ],
)
def test_a_test_is_run_again_only_after_a_stall(tmp_path: Path, test: str, late: float, runs: int, passes: bool) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "late").write_text(str(late))
    path = [str(Path(__file__).parents[1]), str(Path(rota.__file__).parents[1])]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "stalls", "-p", "no:cacheprovider", "-c", os.devnull, "-k", test, "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ended.returncode == 0) is passes, ended.stdout
    assert (tmp_path / "runs").stat().st_size == runs
    assert ended.stdout.count("run again, for the machine kept it waiting for 2.5s") == runs - 1
    assert f"1 {'passed' if passes else 'failed'}" in ended.stdout
