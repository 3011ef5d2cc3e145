# SPDX-License-Identifier: MIT
"""The guide for authors of backends, followed literally: its blocks are the files of a distribution that passes the suite."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "writing-a-backend.md"
FILES = ("pyproject.toml", "rota_folder.py", "conftest.py", "test_folder.py")


@pytest.fixture
def guide(tmp_path):
    """The folder of the guide's distribution, and the environment in which it is installed."""
    blocks = re.findall(r"^```(?:toml|python)\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == len(FILES)
    for name, text in zip(FILES, blocks, strict=True):
        (tmp_path / name).write_text(text, encoding="utf-8")
    # installed as far as Python looks: metadata with the entry points of the guide's own pyproject
    group, entry = re.search(r'^\[project\.entry-points\."(.+)"\]\n(.+)$', blocks[0], re.MULTILINE).groups()
    info = tmp_path / "rota_folder-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rota-folder\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry.replace(chr(34), '')}\n")
    return tmp_path, {**os.environ, "PYTHONPATH": ":".join([str(tmp_path), *sys.path])}


def test_who_only_looks_makes_no_store_of_the_guides_kind(guide):
    folder, environment = guide
    for command in (["ls"], ["show", "job"], ["history", "job"], ["release", "job", "--yes"]):
        words = [sys.executable, "-m", "rota", *command, "--url", f"folder://{folder}/store"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60, check=False, env=environment)
        assert (done.returncode, done.stderr) == (1, f"rota: there is no store at {folder}/store yet: it is made at the first claim\n")
        assert not (folder / "store").exists()


def test_the_guides_backend_passes_every_clause_that_it_does_not_refuse(guide):
    folder, environment = guide
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pyproject.toml", "--rootdir", ".", "test_folder.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 250
