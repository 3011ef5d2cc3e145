# SPDX-License-Identifier: MIT
"""The checkout as git sees it, and the core's wheel and sdist built from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def files() -> list[Path]:
    """What a commit of everything here would hold: tracked, or new and not ignored. Relative to `root`."""
    # safe.directory: the checkout may belong to another user than the one who runs the tests.
    git = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted({Path(name) for name in names.split("\0") if name and (ROOT / name).is_file()})


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist. The wheel is built from the sdist, as an installer without wheels would."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", out, ROOT], check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="session")
def base_python() -> str:
    """The Python that the test environment was made from: nothing is installed there for the tests."""
    return getattr(sys, "_base_executable", sys.executable)
