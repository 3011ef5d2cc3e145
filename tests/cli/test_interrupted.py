# SPDX-License-Identifier: MIT
"""Ctrl-C at any moment ends `rota` without a traceback, from its own first statement on: only Python's start before that is not ours."""

from __future__ import annotations

import os
import signal
import tomllib
from pathlib import Path

import pytest

#: Python imports it by itself. It sends the process SIGINT when the module of a number is about to be imported, counted from `rota.cli` on,
#: and says how many there were.
AT_AN_IMPORT = """
import atexit, os, signal, sys
at, count, begun = int(os.environ["AT"]), 0, False

def hook(event, arguments):
    global count, begun
    if event == "import" and os.getpid() == main:
        begun = begun or arguments[0] == "rota.cli"
        count += begun
        if begun and count == at + 1:
            os.kill(main, signal.SIGINT)

main = os.getpid()
sys.addaudithook(hook)
atexit.register(lambda: os.getpid() == main and open("imports", "w").write(str(count)))
"""


@pytest.fixture
def interrupted(cli, tmp_path):
    """Run `rota` and interrupt it at its n-th import."""
    folder = tmp_path / "customized"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(AT_AN_IMPORT)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))

    def run(at: int, *words: str):
        return cli(*words, env={"AT": str(at), "PYTHONPATH": path})

    return run


@pytest.mark.parametrize("words", [("run", "job", "--every", "300d", "--", "touch", "ran"), ("ls",), ("show", "job", "--json"), ("run",)])
def test_an_interrupt_at_any_import_ends_it_without_a_word(cli, interrupted, words):
    """Imports are most of its start, and all of it before there is anything to close."""
    cli.shell("job", script=":")
    whole = interrupted(-1, *words)
    imports = int(cli.file("imports").read_text())
    assert imports > 10
    ended = []
    last = imports - 1  # which may be Python's own, when all is done and said
    for at in sorted({*range(0, imports, max(1, imports // 12)), last}):
        cli.file("ran").unlink(missing_ok=True)
        done = interrupted(at, *words)  # which fails at a traceback
        assert "Exception ignored" not in done.stderr
        ended.append(done.returncode)
        if done.returncode in (-signal.SIGINT, 128 + signal.SIGINT):
            assert done.stdout == "" or at == last
            assert not cli.file("ran").exists()
        else:  # it was through with its work
            assert done.returncode == whole.returncode
    assert ended[0] == -signal.SIGINT
    assert ended.count(whole.returncode) <= 2


def test_the_installed_script_begins_with_the_same_statement():
    """It imports `rota.__main__`, and so nothing else before that is run."""
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"rota": "rota.__main__:main"}
