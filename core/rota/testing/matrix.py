# SPDX-License-Identifier: MIT
"""Turn conformance reports into the table of guarantees: ``python -m rota.testing.matrix REPORT.json… > docs/guarantees.md``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rota.duration import describe

from .report import FORMAT, order

_SHOWN = {"passed": "✓", "passed in part": "in part", "refused": "refused", "failed": "**failed**", "not run": "-"}
_DEGREES = (
    "clock",
    "clock_bound",
    "min_ttl",
    "ttl_step",
    "waiting",
    "token_scope",
    "scope",
    "durability",
    "history",
    "native_async",
    "verbs",
)

_HEAD = """# Guarantees

Generated from reports of the conformance suite by `python -m rota.testing.matrix`; not written by hand. Clauses are those of
[semantics](semantics.md). ✓ every test of the clause passed on both faces; *in part*: what was run passed, and [why](#in-part) the rest was
not; *refused*: the backend says that it does not offer what the clause is about; -: not run, for want of a hook.
"""


def render(reports: list[dict[str, Any]]) -> str:
    """Return the page for some reports: a column per run, a row per clause and per capability.

    Raises:
        ValueError: A report is of another format.
    """
    runs = []
    for report in reports:
        if report.get("format") != FORMAT:
            raise ValueError(f"a report of format {report.get('format')!r}, not {FORMAT}")
        runs += report["runs"]
    columns = [_title(run) for run in runs]
    if len(set(columns)) < len(columns):  # one store held to the clauses in several ways, each by a class of its own
        columns = [
            f"{column}, {run['suite'].removeprefix('Test')}" if columns.count(column) > 1 else column
            for column, run in zip(columns, runs, strict=True)
        ]
    clauses = sorted({clause for run in runs for clause in run["clauses"]}, key=order)
    rows = [(clause, [_SHOWN[run["clauses"][clause]["result"]] if clause in run["clauses"] else "-" for run in runs]) for clause in clauses]
    degrees = [(degree.replace("_", " "), [_degree(degree, run["capabilities"].get(degree)) for run in runs]) for degree in _DEGREES]
    page = f"{_HEAD}\n{_table('clause', columns, rows)}\n## Capabilities\n\n{_table('degree', columns, degrees)}"
    parts = [line for run, column in zip(runs, columns, strict=True) for line in _in_part(run, column)]
    return page + ("\n## In part\n\n" + "".join(parts) if parts else "")


def _in_part(run: dict[str, Any], column: str) -> list[str]:
    """Return a line for each reason for which tests of a clause that passed were refused or not run."""
    by_reason: dict[str, list[str]] = {}
    for clause in sorted(run["clauses"], key=order):
        if run["clauses"][clause]["result"] == "passed in part":
            for reason in run["clauses"][clause].get("why", []):
                by_reason.setdefault(reason, []).append(clause)
    return [f"- {column}: {', '.join(clauses)}: {reason}\n" for reason, clauses in by_reason.items()]


def _title(run: dict[str, Any]) -> str:
    scheme = run["url"].partition(":")[0] or run["suite"].removeprefix("Test").lower()
    return f"{scheme} {run['server']}".strip()


def _degree(name: str, value: object) -> str:
    if name == "history" and value and not isinstance(value, bool):
        return f"{value} runs"
    if name in ("clock_bound", "min_ttl", "ttl_step") and isinstance(value, int):
        return describe(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else "-" if value is None else str(value)


def _table(head: str, columns: list[str], rows: list[tuple[str, list[str]]]) -> str:
    lines = [[head, *columns], ["---"] * (len(columns) + 1), *([name, *cells] for name, cells in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(files: list[str]) -> int:
    """Print the page; return the exit code."""
    if not files:
        print("usage: python -m rota.testing.matrix REPORT.json…", file=sys.stderr)
        return 2
    try:
        page = render([json.loads(Path(file).read_text(encoding="utf-8")) for file in files])
    except (OSError, ValueError, KeyError) as error:
        print(f"not a conformance report: {error}", file=sys.stderr)
        return 2
    print(page, end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
