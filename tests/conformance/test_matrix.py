# SPDX-License-Identifier: MIT
"""Reports of the suite become the page of guarantees by a command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import rota.testing
from rota.memory import MemoryDriver
from rota.sqlite import SqliteDriver
from rota.testing.matrix import _DEGREES, _degree
from rota.testing.report import clause_of, standard_tests

PAGE = Path(__file__).parents[2] / "docs" / "guarantees.md"

REPORT = {
    "format": 1,
    "runs": [
        {
            "suite": "TestMine",
            "url": "mine://***@host/x",
            "server": "9.1",
            "capabilities": {"min_ttl": 2_000_000, "verbs": ["facts", "sweep"], "history": 15},
            "clauses": {
                "W10": {"result": "failed", "tests": {}},
                "F1": {"result": "passed in part", "why": ["not run: no hang() hook"], "tests": {}},
                "L12": {"result": "passed in part", "why": ["not run: no hang() hook", "refused: no watch"], "tests": {}},
                "L2": {"result": "passed", "tests": {}},
                "R3": {"result": "refused", "tests": {}},
                "W2": {"result": "not run", "tests": {}},
            },
        }
    ],
}


def matrix(*files: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rota.testing.matrix", *map(str, files)], capture_output=True, text=True, check=False)


def test_clauses_stand_in_the_documents_order_with_what_they_came_to(tmp_path):
    file = tmp_path / "report.json"
    file.write_text(json.dumps(REPORT))
    page = matrix(file).stdout
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert rows[:2] == ["| clause | mine 9.1 |", "| --- | --- |"]
    assert rows[2:6] == ["| L2 | ✓ |", "| L12 | in part |", "| W2 | - |", "| W10 | **failed** |"]
    assert rows[6:8] == ["| R3 | refused |", "| F1 | in part |"]
    assert "| min ttl | 2s |" in rows
    assert "| history | 15 runs |" in rows
    assert "| verbs | facts, sweep |" in rows
    assert "***" not in page
    assert page.partition("## In part\n\n")[2] == "- mine 9.1: L12, F1: not run: no hang() hook\n- mine 9.1: L12: refused: no watch\n"


def test_several_ways_to_one_store_are_told_apart(tmp_path):
    other = {**REPORT["runs"][0], "suite": "TestPooled"}
    third = {**REPORT["runs"][0], "url": "yours://host/x"}
    file = tmp_path / "report.json"
    file.write_text(json.dumps({**REPORT, "runs": [REPORT["runs"][0], other, third]}))
    assert "| clause | mine 9.1, Mine | mine 9.1, Pooled | yours 9.1 |" in matrix(file).stdout.splitlines()


def test_what_is_no_report_is_refused_in_a_line(tmp_path):
    file = tmp_path / "report.json"
    for text in ("no json", "{}", '{"format": 99}', '{"format": 1}'):
        file.write_text(text)
        done = matrix(file)
        assert done.returncode == 2
        assert done.stderr.startswith("not a conformance report")
        assert len(done.stderr.splitlines()) == 1
    assert matrix(tmp_path / "absent").returncode == 2
    assert matrix().returncode == 2


def test_the_page_in_the_docs_is_made_of_reports_without_a_failure():
    text = PAGE.read_text(encoding="utf-8")
    assert "`python -m rota.testing.matrix`" in text
    assert "failed**" not in text
    for clause in ("L1", "L12", "W1", "W3a", "W12", "R1", "R3", "F2", "F5"):
        assert f"| {clause} | ✓ | ✓ |" in text, clause


def cells(text: str, first: str) -> list[str]:
    """Return the cells of the page's line that begins with this one."""
    return [cell.strip() for line in text.splitlines() if line.startswith(f"| {first} |") for cell in line.strip("| ").split(" | ")[1:]]


def test_the_page_in_the_docs_has_every_clause_and_every_store():
    text = PAGE.read_text(encoding="utf-8")
    clauses = {clause_of(name) for name in standard_tests(rota.testing.Conformance)}
    table = text.partition("## Capabilities")[0]
    assert {line.split(" | ")[0].strip("| ") for line in table.splitlines() if line.startswith("| ")} - {"clause", "---"} == clauses
    stores = {column.partition(" ")[0] for column in cells(table, "clause")}
    assert {"memory", "sqlite", "postgresql", "redis", "zookeeper", "etcd"} <= stores


def test_the_page_in_the_docs_says_what_the_embedded_stores_declare_today():
    text = PAGE.read_text(encoding="utf-8").partition("## Capabilities")[2]
    columns = [column.partition(" ")[0] for column in cells(text, "degree")]
    for store, driver in (("memory", MemoryDriver), ("sqlite", SqliteDriver)):
        for degree, value in driver.capabilities._asdict().items():
            if degree in _DEGREES:
                said = cells(text, degree.replace("_", " "))[columns.index(store)]
                assert said == _degree(degree, sorted(value) if isinstance(value, frozenset) else value), (store, degree)
