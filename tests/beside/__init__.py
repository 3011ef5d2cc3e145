# SPDX-License-Identifier: MIT
"""What is at work beside the tests, from the first of a folder on: the tests marked ``beside`` look at the outcome, after all others.

Each is a script of this folder, ``SCRIPT FOLDER TESTS ARGUMENTS…``, that works in FOLDER and ends with the process TESTS: once for a test
run, however many processes that has.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

_begun: list[subprocess.Popen[bytes]] = []


def begin(script: str, request: pytest.FixtureRequest, *arguments: str) -> Path | None:
    """Start a script, unless another process of this test run has; return its folder. None: no test that would look at it is run."""
    looks = any(script in mark.args for item in request.session.items for mark in item.iter_markers("beside"))
    if not looks:
        return None
    base: Path = request.getfixturevalue("tmp_path_factory").getbasetemp()
    tests = os.getpid()
    if os.environ.get("PYTEST_XDIST_WORKER"):  # what all processes have: the folder above, and the process that started them
        base, tests = base.parent, os.getppid()
    folder = base / script
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
        with (folder / "log").open("w") as log:
            words = [str(Path(__file__).with_name(f"{script}.py")), str(folder), str(tests), *arguments]
            _begun.append(subprocess.Popen([sys.executable, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log))
    return folder
