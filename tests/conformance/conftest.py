# SPDX-License-Identifier: MIT
"""Which tests of the suite a class repeats; and that none is left out for want of a server that is there."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import beside
import pytest
from rota.testing.base import NotRun
from servers import NotInstalled, program


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out of a class that asks for it what its sister classes run by the server's own clock."""
    out = [item for item in items if isinstance(item, pytest.Function) and _is_repeated(item)]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]


def _is_repeated(item: pytest.Function) -> bool:
    if not getattr(item.cls, "only_what_needs_a_clock", False):
        return False
    source = inspect.getsource(inspect.unwrap(item.function))
    return "need_clock" not in source and "model" not in item.name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """In CI all servers are there: one that did not answer in time is a failure, where an author's run says that nothing could be told."""
    try:
        return (yield)
    except NotRun as error:
        if os.environ.get("CI") and "no server" in str(error):
            pytest.fail(str(error), pytrace=False)
        raise


@pytest.fixture(scope="session", autouse=True)
def etcd_clauses(request: pytest.FixtureRequest) -> Path | None:
    """Begun with the first test of this folder; None where nobody looks at the outcome, or without etcd."""
    try:
        program("etcd")
    except NotInstalled:
        return None
    return beside.begin("etcd_clauses", request)


@pytest.fixture
def run_changed(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run tests of the suite on a backend of one module, with changes, as in its author's folder.

    Arguments: the backend's entry point, the module's code, the changes as ``(right, instead)``, the other files by name, which tests.
    """

    def run(
        entry_point: str, code: str, changes: list[tuple[str, str]], files: dict[str, str], tests: str
    ) -> subprocess.CompletedProcess[str]:
        info = tmp_path / "rota_changed-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rota-changed\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[rota.backends]\n{entry_point}\n")
        for right, instead in changes:
            assert code.count(right) == 1, right
            code = code.replace(right, instead)
        module = entry_point.partition("=")[2].partition(":")[0].strip()
        for name, text in {**files, f"{module}.py": code}.items():
            (tmp_path / name).write_text(text)
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", "-k", tests, "-rA"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "PYTHONPATH": ":".join([str(tmp_path), *sys.path])},
        )

    return run
