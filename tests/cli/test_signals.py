# SPDX-License-Identifier: MIT
"""Signals, terminals, and no process left behind, beyond the lines of DV-22 (test_wrapper.py)."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rota.cli import _codes
from servers import read_line

ONCE_A_YEAR = ("--cron", "0 0 1 1 *")

#: A command that exits 9 at a TERM, whenever that comes: a shell's trap does not run for one between its last look and its `read`.
WAITS_FOR_TERM = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
with open("pid.new", "w") as file:
    print(os.getpid(), file=file)
os.rename("pid.new", "pid")
signal.sigwait({signal.SIGTERM})
sys.exit(9)
"""


def readable(file: int) -> bool:
    return bool(select.select([file], [], [], 20)[0])


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_command_that_a_passed_on_signal_ends_gives_128_and_its_number(cli, number):
    process = cli.start_shell("job", script="touch started; exec sleep 60")
    cli.until(cli.file("started").exists)
    process.send_signal(number)
    assert cli.end(process).returncode == 128 + number


def test_a_stopped_command_ends_at_a_term(cli):
    process = cli.start("run", "job", "--grace", "5s", "--", sys.executable, "-c", WAITS_FOR_TERM)
    pid = int(cli.until(lambda: cli.said("pid"))[0])
    os.killpg(pid, signal.SIGSTOP)
    cli.until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    process.terminate()
    assert cli.end(process).returncode == 9


def test_what_a_command_left_running_is_ended_with_it_after_a_term(cli):
    script = '(trap "" TERM; echo $(exec sh -c "echo \\$PPID") > pid; while :; do sleep 0.02; done) & touch started; wait'
    process = cli.start_shell("job", "--grace", "300ms", script=script)
    left = int(cli.until(lambda: cli.said("pid"))[0])
    process.terminate()
    assert cli.end(process).returncode == 143
    assert not cli.is_alive(left)


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


def test_a_signal_while_waiting_in_line_never_starts_the_command_and_holds_nothing(cli):
    """L8."""
    holder = cli.start_shell("job", script="touch started; until test -e go; do sleep 0.02; done")
    cli.until(cli.file("started").exists)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        waiter = cli.start_shell("job", "--wait", "inf", script="echo ran >> log")
        cli.until(lambda: children(waiter.pid))
        cli.until(lambda: number in cli.caught(waiter))
        waiter.send_signal(number)
        assert cli.end(waiter).returncode == 128 + number
    cli.file("go").touch()
    assert cli.end(holder).returncode == 0
    assert cli.said("log") == []
    assert cli.shell("job", script=":").returncode == 0


#: `rota run` that gets a TERM as it clears up what it has begun; and one in which Python makes another error of it.
AS_IT_ENDS = """
import os, signal, sys
from rota.cli import _child, main

def close(child, close=_child.Child.close):
    os.kill(os.getpid(), signal.SIGTERM)
    close(child)

_child.Child.close = close
main()
"""
AS_ANOTHER_ERROR = """
import os, signal, sys
import rota.client
from rota.cli import main

def connect(*_, **__):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except BaseException:
        raise rota.ConfigurationError("a module can't be imported")

rota.client.connect = connect
main()
"""


@pytest.mark.parametrize(("script", "code", "lines"), [(AS_IT_ENDS, _codes.USAGE, 1), (AS_ANOTHER_ERROR, 143, 0)])
def test_a_term_to_one_that_fails_before_the_command_runs(cli, script, code, lines):
    cli.file("folder").mkdir()
    words = ["run", "job", "--url", f"sqlite://{cli.file('folder')}", "--", "true"]
    ended = subprocess.run(
        [sys.executable, "-c", script, *words], env=cli.environment, capture_output=True, text=True, timeout=30, check=False
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (code, lines), ended.stderr


def test_signals_that_the_caller_ignores_stay_ignored_here_and_in_the_command(cli):
    """As with nohup(1)."""
    command = f'trap "" HUP; exec "{sys.executable}" -m rota run job -- sh -c "kill -HUP \\$\\$; kill -HUP \\$PPID; echo went on"'
    ended = subprocess.run(["sh", "-c", command], env=cli.environment, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (0, "went on\n")


def test_the_command_has_no_signals_ignored_that_python_ignores(cli):
    ignored = int(cli.shell("job", script="grep SigIgn /proc/self/status").stdout.split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1))
    assert not ignored & (1 << (signal.SIGXFSZ - 1))


def test_a_wrapper_killed_while_waiting_in_line_leaves_nothing_that_could_run_the_command(cli):
    holder = cli.start_shell("job", script="touch started; until test -e go; do sleep 0.02; done")
    cli.until(cli.file("started").exists)
    waiter = cli.start_shell("job", "--wait", "inf", script="echo ran >> log")
    started = cli.until(lambda: len(children(waiter.pid)) == 2 and children(waiter.pid))  # the command's process, and the guard
    assert "waiting in line" in read_line(waiter.stderr)
    waiter.kill()
    waiter.wait(10)
    cli.until(lambda: not any(map(cli.is_alive, started)))
    cli.file("go").touch()
    assert cli.end(holder).returncode == 0
    assert cli.said("log") == []


def test_a_refused_run_leaves_no_process(cli):
    holder = cli.start_shell("job", script="touch started; until test -e go; do sleep 0.02; done")
    cli.until(cli.file("started").exists)
    loser = cli.start_shell("job", script="echo ran >> log", start_new_session=True)
    assert cli.end(loser).returncode == _codes.BUSY
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and session(int(pid)) == loser.pid]
    assert cli.said("log") == []
    cli.file("go").touch()
    assert cli.end(holder).returncode == 0


def session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


# -- terminals


class Terminal:
    """A program as the leader of a terminal's session."""

    def __init__(self, cli, *arguments):
        self.seen = ""
        self.pid, self._file = os.forkpty()
        if not self.pid:
            try:
                os.chdir(cli.folder)
                os.execve(arguments[0], arguments, cli.environment)
            finally:
                os._exit(125)

    def write(self, text):
        os.write(self._file, text.encode())

    def read_until(self, word):
        while word not in self.seen:
            assert readable(self._file), self.seen
            self.seen += os.read(self._file, 4096).decode()

    def end(self):
        with contextlib.suppress(OSError):  # how a terminal without users ends
            while readable(self._file) and (part := os.read(self._file, 4096).decode()):
                self.seen += part
        os.close(self._file)  # which hangs up on what is still there
        deadline = time.monotonic() + 10
        while not (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.01)
        return os.waitstatus_to_exitcode(ended[1])


ROTA = (sys.executable, "-m", "rota")


def test_a_command_sees_the_terminal_and_can_read_from_it(cli):
    terminal = Terminal(cli, *ROTA, "run", "job", "--", "sh", "-c", "test -t 0 && test -t 1 && test -t 2 && read line && echo got=$line")
    terminal.write("hello\n")
    assert terminal.end() == 0
    assert "got=hello" in terminal.seen


@pytest.mark.parametrize("reads_first", [False, True])
def test_an_interrupt_from_the_terminal_reaches_the_command_once(cli, reads_first):
    """Whether or not the command's group has been given the terminal."""
    script = f'trap "echo INT >> log; exit 7" INT; {"read line; " if reads_first else ""}echo ready; while :; do sleep 0.02; done'
    terminal = Terminal(cli, *ROTA, "run", "job", "--", "sh", "-c", script)
    if reads_first:
        terminal.write("hello\n")
    terminal.read_until("ready")
    terminal.write("\x03")
    assert terminal.end() == 7
    assert cli.said("log") == ["INT"]


def test_a_job_stopped_from_the_terminal_stops_with_its_command_and_goes_on_with_it(cli):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    script = cli.file("script")
    # no other process is on its way, as in test_a_stopped_command_ends_at_a_term
    job = f"'{sys.executable}' -m rota run job -- sh -c 'mkfifo f; exec 3<>f; echo $$ > pid; read x <&3; echo went on'"
    script.write_text(f"set -m\n{job}\necho stopped\nuntil test -e go; do sleep 0.02; done\nfg\necho over\n")
    terminal = Terminal(cli, bash, "--norc", "--noprofile", "-i", str(script))
    pid = int(cli.until(lambda: cli.said("pid"))[0])
    terminal.write("\x1a")
    terminal.read_until("stopped")
    assert cli.is_alive(pid)
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    cli.file("go").touch()
    cli.file("f").write_text("go\n")
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


@pytest.mark.by_the_clock
def test_without_a_terminal_a_command_is_stopped_and_goes_on_alone(cli):
    """Nobody would let `rota run` go on under cron: stopped with its command, it would stay so, and the guard would end the command."""
    process = cli.start_shell(
        "job", "--ttl", "3s", script="echo $$ > pid; trap 'exit 7' USR1; while :; do sleep 0.05; done", start_new_session=True
    )
    (pid,) = map(int, cli.until(lambda: cli.said("pid")))
    os.killpg(pid, signal.SIGTSTP)
    cli.until(lambda: state(pid) == "T")
    os.killpg(pid, signal.SIGCONT)
    cli.until(lambda: state(pid) != "T")
    first = cli.record("job").expires_at
    cli.until(lambda: cli.record("job").expires_at > first)  # it renews, so it is not stopped
    assert state(process.pid) != "T"
    os.kill(process.pid, signal.SIGUSR1)
    assert cli.end(process).returncode == 7


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
