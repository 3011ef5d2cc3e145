# SPDX-License-Identifier: MIT
"""What an author of a backend can do wrong with locks and clocks: the guide's backend with one line changed, and the test that finds it.

These need a store that several processes reach; the other mutants are in test_suite_catches.py.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "writing-a-backend.md"

LOCK = "fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)"
EARLY = [
    ("        deadline = time.monotonic() + timeout\n", "        deadline = time.monotonic() + timeout\n        early = self.clock()\n"),
    ("yield self.clock()", "yield early"),
]
#: What goes wrong, the changes, the test that finds it, and whether the class has the hook `hang`.
WRONG_TURNS = {
    "the clock is read before the wait for the lock": (EARLY, "test_capability_clock_is_read_in_the_step_that_decides", False),
    "and a claim that waited is not stale": (EARLY, "test_L7_a_claim_that_waited_too_long_for_the_store_is_stale", True),
    "it waits for ever": ([("if time.monotonic() >= deadline:", "if False:")], "test_F1_a_process_that_was_stopped", False),
    "it waits for ever for a store that hangs": (
        [("if time.monotonic() >= deadline:", "if False:")],
        "test_F1_every_verb_is_bounded",
        True,
    ),
    "its lock is none": ([(LOCK, "pass")], "test_L1_of_many_processes_one_wins", False),
    "its lock is one between threads": (
        [
            (LOCK, "if not THREADS.acquire(blocking=False):\n                        raise BlockingIOError"),
            ("fcntl.flock(lock, fcntl.LOCK_UN)", "THREADS.release()"),
            ("def clock():", "import threading\nTHREADS = threading.Lock()\n\n\ndef clock():"),
        ],
        "test_L1_of_many_processes_one_wins",
        False,
    ),
    "it unlocks by closing, and forks keep the lock": (
        [("fcntl.flock(lock, fcntl.LOCK_UN)", "pass")],
        "test_L10_a_child_forked_in_the",
        False,
    ),
}


@pytest.fixture
def author(run_changed: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run tests of the suite on the guide's backend with changes."""
    code, conftest, test = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[:3]

    def run(changes: list[tuple[str, str]], tests: str, hang: bool) -> subprocess.CompletedProcess[str]:
        without = "" if hang else "import test_folder\ndel test_folder.TestFolder.hang\n"
        files = {"conftest.py": conftest + without, "test_folder.py": test}
        return run_changed("folder = rota_folder:FolderBackend", code, changes, files, tests)

    return run


@pytest.mark.parametrize("turn", WRONG_TURNS)
def test_a_wrong_turn_is_found(turn: str, author: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    changes, test, hang = WRONG_TURNS[turn]
    done = author(changes, test, hang)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(rf"FAILED.*{test}", done.stdout), done.stdout


def test_the_right_way_fails_none_of_them(author: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    for hang in (False, True):
        tests = dict.fromkeys(test for _, test, hook in WRONG_TURNS.values() if hook is hang)
        done = author([], " or ".join(tests), hang)
        assert done.returncode == 0, done.stdout
        assert "not run" not in done.stdout, done.stdout
