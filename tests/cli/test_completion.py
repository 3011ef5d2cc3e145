# SPDX-License-Identifier: MIT
"""`rota completion`: what real shells complete with its scripts, of commands, options and the names in the store."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time

import pytest
from servers import program

ONCE_A_YEAR = ("--cron", "0 0 1 1 *")
COMMANDS = "run ls show history release settle forget next backends conform schema init completion help".split()
SHELLS = ["bash", "zsh", "fish"]


@pytest.fixture
def shell(cli):
    """What completes a line, in each shell, where `rota` is a command and has two names in its store."""
    script = cli.file("rota")
    script.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m rota \"$@\"\n")
    script.chmod(0o755)
    cli.environment["PATH"] = f"{cli.folder}:{os.environ['PATH']}"
    with cli.client() as client:
        for name in ("nightly", "night owl"):
            client.try_lease(name).release()

    def complete(kind: str, line: str) -> set[str]:
        source = cli.file(f"completion.{kind}")
        if not source.exists():
            ended = cli("completion", kind)
            assert (ended.returncode, ended.stderr) == (0, "")
            source.write_text(ended.stdout)
        return {"bash": in_bash, "fish": in_fish}[kind](cli, source, line)

    complete.cli = cli
    return complete


def in_bash(cli, source, line: str) -> set[str]:
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    given = f"COMP_WORDS=({' '.join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}"
    script = f"source {source}; complete -p rota >&2; {given}; _rota; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    ended = run(cli, "bash", "--norc", "-c", script)
    assert ended.stderr == "complete -F _rota rota\n"
    return set(ended.stdout.splitlines()) - {""}


def run(cli, *given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(given, env=cli.environment, cwd=cli.folder, capture_output=True, text=True, check=False, timeout=60)


def in_fish(cli, source, line: str) -> set[str]:
    ended = run(cli, program("fish"), "-N", "-c", f"source {source}; complete -C {shlex.quote(line)}")
    assert ended.stderr == ""
    return {found.partition("\t")[0] for found in ended.stdout.splitlines()}


@pytest.mark.parametrize("kind", ["bash", "fish"])
def test_commands_options_values_and_names_are_completed(shell, kind):
    assert shell(kind, "rota ") >= {*COMMANDS}
    assert shell(kind, "rota se") == {"settle"}
    for command in ("ls", "show", "history", "release", "settle", "forget", "next", "backends", "conform", "schema", "init", "completion"):
        help = shell.cli(command, "--help").stdout
        assert shell(kind, f"rota {command} --") == set(re.findall(r"^ +(?:-\w(?: \w+)?, )?(--[\w-]+)", help, re.MULTILINE)), command
    assert {"--cron", "--anchor", "--on-unavailable", "--quiet"} <= shell(kind, "rota run --")
    assert shell(kind, "rota run --on-unavailable ") == {"raise", "skip", "run"}
    assert shell(kind, "rota completion ") == {*SHELLS}
    assert shell(kind, "rota help ") == {*COMMANDS, "doctor", "bench", "json"} - {"help"}
    assert {"ls", "backends", "run"} <= shell(kind, "rota help json ")
    for command in ("run", "next"):
        assert "Europe/Berlin" in shell(kind, f"rota {command} --tz Europe/B")
    assert shell(kind, "rota show --timeout ") == shell(kind, "rota run --anchor ") == set()
    night = {"nightly", r"night\ owl"} if kind == "bash" else {"nightly", "night owl"}
    for command in ("show", "forget", "run", "ls"):
        assert shell(kind, f"rota {command} ni") == night
    assert shell(kind, "rota show --url sqlite:///nowhere.db ni") == set()


@pytest.mark.parametrize("kind", ["bash", "fish"])
def test_a_name_that_is_shown_escaped_is_completed_to_one_that_is_found(shell, kind):
    cli = shell.cli
    odd = ["rtl\u202eabc", "rtl\\u202eabc", "rtl quote'\"", "rtl$HOME", "rtl\u00a0nb"]
    with cli.client() as client:
        for name in odd:
            client.try_lease(name).release()
    offered = shell(kind, "rota show rtl")
    assert len(offered) == len(odd)
    found = []
    for word in offered:  # as the shell reads it; what fish offers it quotes itself
        ended = run(cli, "bash", "-c", f"rota show --json {word if kind == 'bash' else shlex.quote(word)}")
        assert ended.returncode == 0, ended.stderr
        found.append(json.loads(ended.stdout)["name"])
    assert sorted(found) == sorted(odd)


@pytest.mark.parametrize("kind", ["bash", "fish"])
def test_behind_the_dashes_of_run_it_is_the_commands_turn(shell, kind):
    assert "nightly" not in shell(kind, "rota run job -- ni")


def test_zsh_completes_them(shell):
    """In a terminal, as somebody types it."""
    cli = shell.cli
    zsh = program("zsh")
    source = cli.file("completion.zsh")
    source.write_text(cli("completion", "zsh").stdout)
    mine, other = pty.openpty()
    process = subprocess.Popen(
        [zsh, "-f", "-i"],
        env={**cli.environment, "TERM": "dumb", "PS1": "> "},
        cwd=cli.folder,
        stdin=other,
        stdout=other,
        stderr=other,
        start_new_session=True,
    )
    os.close(other)
    seen = b""

    def sees(word: bytes) -> None:
        nonlocal seen
        deadline = time.monotonic() + 60
        while word not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([mine], [], [], 0.2)[0]:
                seen += os.read(mine, 65536)

    def types(text: str, word: str) -> None:
        nonlocal seen
        seen = b""
        os.write(mine, text.encode())
        sees(word.encode())
        os.write(mine, b"\x15\n")  # take the line back

    try:
        os.write(mine, f"unsetopt zle_bracketed_paste; autoload -U compinit; compinit -u -D; source {source}; print rea''dy\n".encode())
        sees(b"ready")
        types("rota sho\t", "rota show ")
        types("rota history --js\t", "rota history --json")
        types("rota show nightl\t", "rota show nightly")
        types("rota run --on-unavailable ra\t", "--on-unavailable raise")
        types("rota completion fi\t", "rota completion fish")
    finally:
        process.kill()
        process.wait()
        os.close(mine)


@pytest.mark.parametrize("given", [(), ("tcsh",), ("bash", "zsh")])
def test_a_shell_without_one_is_2(cli, given):
    ended = cli("completion", *given)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("kind", ["zsh", "fish"])
def test_the_script_is_one_that_the_shell_reads(cli, kind):
    cli.file("script").write_text(cli("completion", kind).stdout)
    ended = run(cli, program(kind), "-n", "script")
    assert (ended.returncode, ended.stderr) == (0, "")
