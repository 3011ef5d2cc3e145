# SPDX-License-Identifier: MIT
"""What a command prints is written, or it is said that it was not."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest
from rota.cli import _codes
from rota.cli._output import show

PRINTING = [
    ("ls",),
    ("ls", "--json"),
    ("show", "job"),
    ("history", "job"),
    ("doctor",),
    ("next", "--every", "1h"),
    ("bench", "--duration", "100ms"),
    ("backends",),
    ("schema", "sqlite:///x.db"),
    ("completion", "bash"),
    ("help", "json", "ls"),
    ("run", "--help"),
    ("ls", "--help"),
    ("--help",),
    ("--version",),
]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("words", PRINTING, ids=" ".join)
def test_output_that_there_is_no_room_for_is_a_failure(cli, words):
    assert cli.shell("job", "--every", "1h", script=":").returncode == 0
    with open("/dev/full", "w") as full:
        ended = cli(*words, stdout=full)
    assert ended.returncode == _codes.UNWRITTEN
    assert ended.stderr == "rota: standard output can't be written (No space left on device); all else was done\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_a_forgetting_that_left_no_trace_is_told(cli, options):
    """The output is all that tells of it."""
    cli.shell("job", "--every", "1h", script=":")
    with open("/dev/full", "w") as full:
        ended = cli("forget", "job", "--yes", "--why", "audit", *options, stdout=full)
    assert ended.returncode == _codes.UNWRITTEN
    assert "No space left on device" in ended.stderr
    assert not cli.record("job").kind


CLOSED = [("ls",), ("show", "job"), ("forget", "job", "--yes"), ("next", "--every", "1h"), ("schema", "sqlite:///x.db"), ("run", "--help")]


@pytest.mark.parametrize("words", [*CLOSED, ("--version",)], ids=" ".join)
def test_output_that_is_closed_is_a_failure(cli, words):
    """Nor does any of it land in a file that was given the number."""
    assert cli.shell("job", "--every", "1h", script=":").returncode == 0
    ended = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *cli.command, *words],
        env=cli.environment,
        cwd=cli.folder,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == _codes.UNWRITTEN
    assert ended.stderr == "rota: standard output can't be written (it is closed); all else was done\n"
    with cli.client() as client:
        assert client.driver.read("job", 5.0)[0] is not None  # the store is whole


def test_a_command_runs_without_a_standard_output(cli):
    script = 'exec "$@" >&-'
    words = ["run", "job", "--every", "1h", "--", "sh", "-c", "echo lost; echo ran > log"]
    ended = subprocess.run(["sh", "-c", script, "sh", *cli.command, *words], env=cli.environment, cwd=cli.folder, check=False, timeout=60)
    assert (ended.returncode, cli.said("log")) == (0, ["ran"])


@pytest.mark.parametrize("words", PRINTING[:4], ids=" ".join)
def test_a_reader_that_has_seen_enough_is_no_failure(cli, words):
    cli.shell("job", "--every", "1h", script=":")
    reading, writing = os.pipe()
    os.close(reading)
    ended = cli(*words, stdout=writing)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_full_pipe_that_does_not_block_loses_nothing(monkeypatch):
    """Whoever else holds the pipe may have set O_NONBLOCK."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    text = "x" * 1_000_000
    kept = os.dup(1)
    got: list[bytes] = []

    def read() -> None:
        with open(reading, "rb") as file:
            got.append(file.read())

    reader = threading.Thread(target=read)
    os.dup2(writing, 1)
    os.close(writing)
    try:
        reader.start()
        show(text)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    reader.join(20)
    assert got == [text.encode()]
