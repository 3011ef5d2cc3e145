# SPDX-License-Identifier: MIT
"""etcd:// is held to every clause: one member, and three with a user and TLS.

An etcd lease lasts a second at the least, so these clauses wait most of the time. They wait beside each other: in processes, each with
servers of its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from servers import program

pytestmark = pytest.mark.begin_with

VARIANTS = ("TestEtcd", "TestEtcdEnsemble")
#: Parts that together hold every test, whatever it is called.
PARTS = {"L": "test_L", "W": "test_W", "F": "test_F", "all else": "not test_L and not test_W and not test_F"}
#: As many as keep two cores busy and are not in each other's way.
AT_ONCE = 4

Runs = dict[tuple[str, str], Future[tuple[int, str]]]


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    """All of them, begun at once."""
    program("etcd")
    here = Path(__file__).with_name("etcd_variants.py")
    running: list[subprocess.Popen[str]] = []

    def run(variant: str, part: str) -> tuple[int, str]:
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{here}::{variant}", "-k", PARTS[part]]
        with subprocess.Popen(
            command, cwd=here.parents[2], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            running.append(process)
            output, _ = process.communicate()
            return process.returncode, output

    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        yield {(variant, part): pool.submit(run, variant, part) for variant in reversed(VARIANTS) for part in PARTS}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.terminate()
        pool.shutdown()


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_clause_holds(runs: Runs, variant: str, part: str) -> None:
    code, output = runs[variant, part].result(timeout=600)
    if code:
        pytest.fail(output, pytrace=False)
    assert " passed" in output
