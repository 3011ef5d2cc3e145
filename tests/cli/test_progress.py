# SPDX-License-Identifier: MIT
"""What takes longer than a second shows how far it is: on standard error, on a terminal, and leaves nothing there."""

from __future__ import annotations

import os
import pty
import re
import sqlite3
import subprocess
import sys
import threading

from rota.cli import _codes, _progress
from servers import free_port

#: `rota` that shows at once how far it is, however fast the machine.
EAGER = "from rota.cli import _progress, main; _progress.PATIENCE, _progress.LOOK = 0.0, 0.01; main()"


def watched(cli, *arguments: str, until: bytes = b"", then=lambda: None) -> tuple[int, str, str]:
    """Run it with standard error on a terminal, and do something once a word is shown; return exit code, output, and all that was shown."""
    mine, other = pty.openpty()
    command = [sys.executable, "-c", EAGER, *arguments]
    process = subprocess.Popen(command, env=cli.environment, cwd=cli.folder, stdout=subprocess.PIPE, stderr=other, text=True)
    os.close(other)
    shown, did = b"", False
    try:
        while part := os.read(mine, 65536):
            shown += part
            if not did and until in shown:
                did = True
                then()
    except OSError:  # Linux: the other side is closed
        pass
    output = process.stdout.read()
    code = process.wait(60)
    os.close(mine)
    return code, output, shown.decode()


def test_listing_names_that_are_long_in_coming(cli):
    with cli.client() as client:
        client.try_lease("job").release()
    connection = sqlite3.connect(cli.path, isolation_level=None, timeout=10)
    for statement in ("PRAGMA locking_mode = EXCLUSIVE", "PRAGMA journal_mode = DELETE", "BEGIN EXCLUSIVE"):
        connection.execute(statement)  # nobody else can read
    code, output, shown = watched(cli, "ls", "--timeout", "30s", until=b"asking the store", then=connection.close)
    assert (code, output.split("\t")[0]) == (0, "job")
    assert shown.startswith("\rasking the store ...")
    assert re.search(r"\r +\r$", shown)


def test_conformance_has_a_bar(cli):
    """Where no server answers it is quick, and the tests are counted all the same."""
    code, output, shown = watched(cli, "conform", f"redis://127.0.0.1:{free_port()}/0")
    assert code == _codes.UNAVAILABLE
    assert "\r" not in output
    steps = [int(done) for done in re.findall(r"\[#*\.*\] (\d+) of \d+ tests", shown)]
    assert steps
    assert steps == sorted(steps)
    assert re.search(r"\r +\rrota: nothing was run: ", shown)


def test_where_it_is_no_terminal_there_is_none(monkeypatch, capfd):
    monkeypatch.setattr(_progress, "PATIENCE", 0.0)
    monkeypatch.setattr(_progress, "LOOK", 0.01)
    looks = threading.Semaphore(0)
    real = _progress._is_watched
    monkeypatch.setattr(_progress, "_is_watched", lambda: (looks.release(), real())[1])
    assert _progress.carry_out(lambda: [looks.acquire() for _ in range(3)], _progress.Progress(), 60.0)
    assert capfd.readouterr() == ("", "")
