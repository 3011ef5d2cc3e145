# SPDX-License-Identifier: MIT
"""What the tutorial shows in Python, and how records are swept, with the URL of a server instead: it prints what it says there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
#: A block of Python, and what it prints, with ... for what differs from run to run.
SHOWN = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = [
    *SHOWN.findall((DOCS / "tutorial.md").read_text(encoding="utf-8")),
    *[block for block in SHOWN.findall((DOCS / "operations.md").read_text(encoding="utf-8")) if ".sweep(" in block[0]],
]
STORE = re.compile(r'"(?:sqlite:///tmp/rota\.db|memory://)"')
#: It has nothing to sweep: a key expires by itself.
WITHOUT_SWEEP = ("redis",)


@pytest.mark.parametrize("kind", ["redis", "etcd", "zookeeper", "postgres"])
def test_only_the_url_is_another_one(kind: str, on_server, cli) -> None:
    assert len(BLOCKS) == 7
    script, printed = "", ""
    for code, prints in BLOCKS:
        url = re.sub(r"&min_ttl=\d+|(?<=\?)min_ttl=\d+&", "", on_server(kind, "tutorial"))  # which the tests have shorter
        given, stores = STORE.subn(f'"{url}"', code.replace("/tmp/reports.db", f"{cli.folder}/reports.db"))
        assert stores == 1
        script += given
        if not (".sweep(" in code and kind in WITHOUT_SWEEP):
            printed += ".*".join(map(re.escape, prints.split("...")))
    ended = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env={**cli.environment, "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert re.fullmatch(printed, re.sub(r"\btutorial-[0-9a-f]+/", "", ended.stdout)), ended.stdout
