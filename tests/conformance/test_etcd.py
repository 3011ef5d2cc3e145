# SPDX-License-Identifier: MIT
"""etcd:// is held to every clause: one member, and three with a user and TLS.

An etcd lease lasts a second at the least, so these clauses wait most of the time. They wait beside each other: in processes, each with
servers of its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import program

VARIANTS = ("TestEtcd", "TestEtcdEnsemble")
#: Parts that together hold every test, whatever it is called.
PARTS = {"L": "test_L", "W": "test_W", "F": "test_F", "all else": "not test_L and not test_W and not test_F"}

Run = subprocess.Popen[str]


@pytest.fixture(scope="module")
def runs() -> Iterator[dict[tuple[str, str], Run]]:
    """All of them, started at once."""
    program("etcd")
    here = Path(__file__).with_name("etcd_variants.py")
    started: dict[tuple[str, str], Run] = {}
    try:
        for variant in VARIANTS:
            for part, names in PARTS.items():
                command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{here}::{variant}", "-k", names]
                started[variant, part] = subprocess.Popen(
                    command, cwd=here.parents[2], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
        yield started
    finally:
        for run in started.values():
            run.terminate()
            run.communicate()


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_clause_holds(runs: dict[tuple[str, str], Run], variant: str, part: str) -> None:
    output, _ = runs[variant, part].communicate(timeout=600)
    if runs[variant, part].returncode:
        pytest.fail(output, pytrace=False)
    assert " passed" in output
