# SPDX-License-Identifier: MIT
"""Lint and types are tests, so that one command tells whether a change may land."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = {
    "ruff check": ["ruff", "check", "--quiet"],
    "ruff format": ["ruff", "format", "--check", "--diff", "--quiet"],
    "mypy": ["mypy", "--strict", "core", "backends"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_the_linter_has_nothing_to_say(command: list[str], root: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-P", "-m", *command], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if result.returncode:
        pytest.fail(result.stdout, pytrace=False)
