# SPDX-License-Identifier: MIT
"""Signals in, and no process left behind."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

ONCE_A_YEAR = ("--cron", "0 0 1 1 *")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs the parent-death signal of Linux")


def readable(file: int) -> bool:
    return bool(select.select([file], [], [], 20)[0])


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "WINCH"])
def test_a_signal_is_passed_on_once_and_the_commands_code_is_kept(cli, name):
    script = f'trap "echo got >> log; exit 7" {name}; touch started; while :; do sleep 0.02; done'
    process = cli.start_shell("job", *ONCE_A_YEAR, script=script)
    cli.until(cli.file("started").exists)
    process.send_signal(getattr(signal, f"SIG{name}"))
    assert cli.end(process).returncode == 7
    assert cli.said("log") == ["got"]
    assert cli.record("job").owner == ""  # released, not left to expire
    assert cli.record("job").outcome == "failed"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_command_that_a_passed_on_signal_ends_gives_128_and_its_number(cli, number):
    process = cli.start_shell("job", script="touch started; exec sleep 60")
    cli.until(cli.file("started").exists)
    process.send_signal(number)
    assert cli.end(process).returncode == 128 + number


def test_a_command_that_ignores_term_is_killed_after_the_grace_time_and_then_the_lease_is_released(cli):
    """The lease is kept until it is dead, and released at once."""
    process = cli.start_shell("job", "--grace", "300ms", script='echo $$ > pid; trap "" TERM; touch started; while :; do sleep 0.02; done')
    cli.until(cli.file("started").exists)
    process.terminate()
    assert cli.end(process).returncode == 137
    assert not cli.is_alive(int(cli.said("pid")[0]))
    assert cli.record("job").owner == ""


def test_what_a_command_left_running_is_ended_with_it_after_a_term(cli):
    script = '(trap "" TERM; echo $(exec sh -c "echo \\$PPID") > pid; while :; do sleep 0.02; done) & touch started; wait'
    process = cli.start_shell("job", "--grace", "300ms", script=script)
    left = int(cli.until(lambda: cli.said("pid"))[0])
    process.terminate()
    assert cli.end(process).returncode == 143
    assert not cli.is_alive(left)


def test_a_command_that_leaves_something_running_with_its_output_does_not_hold_us_up(cli):
    process = cli.start_shell("job", script="sleep 30 & echo $! > pid")
    assert process.wait(10) == 0
    os.kill(int(cli.said("pid")[0]), signal.SIGKILL)


def test_the_commands_output_ends_when_the_command_closes_it(cli):
    process = cli.start_shell("job", script="echo done; exec >&-; until test -e go; do sleep 0.02; done")
    output = process.stdout.fileno()
    assert readable(output)
    assert os.read(output, 100) == b"done\n"
    assert readable(output)
    assert os.read(output, 100) == b""  # the end of the pipe, with the command still at work
    assert process.poll() is None
    cli.file("go").touch()
    assert cli.end(process).returncode == 0


def test_input_and_output_pass_through(cli):
    import subprocess

    process = cli.start("run", "job", "--", "cat", stdin=subprocess.PIPE)
    text = "line\n" * 200_000
    assert process.communicate(text, timeout=30)[0] == text
    assert process.returncode == 0


def test_a_signal_while_waiting_in_line_never_starts_the_command_and_holds_nothing(cli):
    """L8."""
    holder = cli.start_shell("job", script="touch started; until test -e go; do sleep 0.02; done")
    cli.until(cli.file("started").exists)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        waiter = cli.start_shell("job", "--wait", "inf", script="echo ran >> log")
        cli.until(lambda: children(waiter.pid))
        cli.until(lambda: number in caught(waiter.pid))
        waiter.send_signal(number)
        assert cli.end(waiter).returncode == 128 + number
    cli.file("go").touch()
    assert cli.end(holder).returncode == 0
    assert cli.said("log") == []
    assert cli.shell("job", script=":").returncode == 0


def caught(pid: int) -> set[int]:
    """The signals that a process has a handler for."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = int(next(line for line in lines if line.startswith("SigCgt:")).split()[1], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def test_signals_that_the_caller_ignores_stay_ignored_here_and_in_the_command(cli):
    """As with nohup(1)."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    script = cli.file("script")
    job = f"'{sys.executable}' -m rota run job -- sh -c 'echo $$ > pid; while ! test -e go; do sleep 0.02; done; echo went on'"
    script.write_text(f"set -m\n{job}\necho stopped\nuntil test -e go; do sleep 0.02; done\nfg\necho over\n")
    terminal = Terminal(cli, bash, "--norc", "--noprofile", "-i", str(script))
    pid = int(cli.until(lambda: cli.said("pid"))[0])
    terminal.write("\x1a")
    terminal.read_until("stopped")
    assert cli.is_alive(pid)
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    cli.file("go").touch()
    terminal.read_until("over")
    assert "went on" in terminal.seen
    assert terminal.end() == 0


def test_a_command_at_work_costs_next_to_nothing(cli):
    process = cli.start_shell("job", script="touch started; until test -e go; do sleep 0.1; done")
    cli.until(cli.file("started").exists)

    def used():
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = used()
    time.sleep(1.0)
    assert used() - before <= 0.05
    cli.file("go").touch()
    assert cli.end(process).returncode == 0
