# SPDX-License-Identifier: MIT
"""The guard: what becomes of the command, and of all that it started, when `rota run` is killed, stopped, or can't be woken."""

from __future__ import annotations

import array
import fcntl
import json
import os
import select
import signal
import subprocess
import termios
import time
from pathlib import Path

import pytest
from rota._clock import monotonic
from rota.cli import _codes
from rota.cli._guard import Guard
from servers import read_line

ONCE_A_YEAR = ("--cron", "0 0 1 1 *")
#: Three processes that TERM does not end, which write down what they do; the third is a grandchild without a parent.
FAMILY = """
trap "" TERM
work() { while :; do echo $1 $(date +%s%N) >> steps; sleep 0.02; done; }
(echo $(exec sh -c 'echo $PPID') >> pids; work child) &
( (echo $(exec sh -c 'echo $PPID') >> pids; work orphan) & )
echo $$ >> pids
work command
"""


def start_family(cli, *options):
    process = cli.start_shell("job", *options, script=FAMILY)
    cli.until(lambda: {"child", "orphan", "command"} <= {line.split()[0] for line in cli.said("steps")})
    return process, [int(line) for line in cli.said("pids")]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def guard_of(cli, process) -> int:
    """The child that has a session of its own."""

    def found():
        return [child for child in children(process.pid) if os.getsid(child) == child]

    (guard,) = cli.until(found)
    return guard


def last_step(cli) -> int:
    return max(int(line.split()[1]) for line in cli.said("steps") if line.count(" ") == 1) // 1000


@pytest.mark.by_the_clock
def test_a_killed_wrapper_takes_all_that_its_command_started_with_it(cli):
    process, pids = start_family(cli, *ONCE_A_YEAR, "--ttl", "60s")
    guard = guard_of(cli, process)
    killed_at = time.time_ns() // 1000
    process.kill()
    cli.until(lambda: not any(map(cli.is_alive, [*pids, guard])))
    assert last_step(cli) - killed_at < 5_000_000  # long before the lease is over


@pytest.mark.by_the_clock
def test_a_wrapper_stopped_for_longer_than_its_ttl_has_no_command_left_when_the_next_one_starts(cli):
    """L6, L9: the guard kills the group before the holder's deadline, a tenth of the ttl before the store gives the slot away."""
    process, pids = start_family(cli, *ONCE_A_YEAR, "--ttl", "2s")
    os.kill(process.pid, signal.SIGSTOP)
    expires_at = cli.record("job").expires_at
    after = cli.shell("job", *ONCE_A_YEAR, script="cat pids; date +%s%N > second; echo $ROTA_ATTEMPT")
    assert after.returncode == 0
    assert after.stdout.splitlines()[-1] == "2"
    assert not any(map(cli.is_alive, pids))
    assert last_step(cli) < expires_at <= int(cli.said("second")[0]) // 1000
    stopped_for = 2 * 2 - (time.time_ns() // 1000 - expires_at + 2_000_000) / 1e6
    time.sleep(max(0.0, stopped_for))
    os.kill(process.pid, signal.SIGCONT)
    ended = cli.end(process)
    assert ended.returncode == _codes.LOST
    assert "the lease could not be kept" in ended.stderr
    assert cli.record("job").outcome == "handled"  # by the second, and not by the one that woke up


def test_a_wrapper_that_goes_on_as_the_guard_has_ended_the_command_says_that_it_did(cli):
    """L6: a moment before its own deadline, at which it would do the same. It is no exit 137 of a command that nobody killed."""
    process = cli.start_shell("job", "--ttl", "2s", script="echo $$ > new; mv new pid; exec sleep 60")
    pid = int(cli.until(lambda: cli.said("pid"))[0])
    os.kill(process.pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGCONT)
    ended = cli.end(process)
    assert ended.returncode == _codes.LOST
    assert "the lease could not be kept" in ended.stderr


def test_a_wrapper_stopped_while_it_waits_in_line_goes_on_waiting(cli):
    """It holds nothing yet, so there is nothing to guard."""
    holder = cli.start_shell("job", "--ttl", "60s", script="touch started; until test -e go; do sleep 0.02; done")
    cli.until(cli.file("started").exists)
    waiter = cli.start_shell("job", "--wait", "inf", script="echo ran >> log")
    assert "waiting in line" in read_line(waiter.stderr)
    waiting = children(waiter.pid)
    os.kill(waiter.pid, signal.SIGSTOP)
    cli.file("go").touch()
    assert cli.end(holder).returncode == 0
    assert all(map(cli.is_alive, waiting))
    os.kill(waiter.pid, signal.SIGCONT)
    assert cli.end(waiter).returncode == 0
    assert cli.said("log") == ["ran"]


def test_without_a_lease_that_ends_a_stopped_wrapper_keeps_its_command(cli):
    """W4: the slot was taken for good, and nobody waits for a lease of it."""
    process = cli.start_shell("job", *ONCE_A_YEAR, "--at-most-once", "--overlap", "--ttl", "300ms", script="echo $$ > pid; exec sleep 60")
    pid = int(cli.until(lambda: cli.said("pid"))[0])
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(0.6)
    assert cli.is_alive(pid)
    process.kill()
    cli.until(lambda: not cli.is_alive(pid))


def test_the_guard_is_gone_when_the_run_is_over_and_leaves_alone_what_the_command_left(cli):
    process = cli.start_shell("job", script="sleep 60 & echo $! > pid; until test -e go; do sleep 0.02; done")
    left = int(cli.until(lambda: cli.said("pid"))[0])
    guard = guard_of(cli, process)
    cli.file("go").touch()
    assert process.wait(10) == 0
    try:
        assert not Path(f"/proc/{guard}").exists()
        assert cli.is_alive(left)
    finally:
        os.kill(left, signal.SIGKILL)


def test_the_guard_keeps_nothing_of_the_callers_open(cli):
    """Else a pipe would not end, a lock not be released and a terminal not hang up before it does."""
    reading, writing = os.pipe()
    kept = os.open(cli.file("kept"), os.O_CREAT | os.O_RDWR)
    process = cli.start_shell("job", script="touch started; sleep 60", pass_fds=[writing, kept])
    os.close(writing)
    cli.until(cli.file("started").exists)
    guard = guard_of(cli, process)
    links = {os.readlink(f"/proc/{guard}/fd/{number}") for number in os.listdir(f"/proc/{guard}/fd")}
    assert len(links) == 1
    assert next(iter(links)).startswith("pipe:")
    assert os.stat(f"/proc/{guard}/fd").st_mode
    process.kill()
    assert select.select([reading], [], [], 20)[0]
    assert os.read(reading, 1) == b""
    os.close(reading)
    os.close(kept)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_to_the_guard_change_nothing(cli, number):
    process = cli.start_shell("job", script="touch started; until test -e go; do sleep 0.02; done; exit 3")
    cli.until(cli.file("started").exists)
    guard = guard_of(cli, process)
    os.kill(guard, number)
    cli.file("go").touch()
    assert cli.end(process).returncode == 3


def test_a_guard_that_was_stopped_holds_nobody_up(cli):
    process = cli.start_shell("job", script="touch started; until test -e go; do sleep 0.02; done; exit 3")
    cli.until(cli.file("started").exists)
    guard = guard_of(cli, process)
    os.kill(guard, signal.SIGSTOP)
    cli.file("go").touch()
    assert cli.end(process).returncode == 3
    assert not Path(f"/proc/{guard}").exists()


@pytest.mark.by_the_clock
def test_a_run_goes_on_without_a_guard_that_was_killed(cli):
    process = cli.start_shell("job", "--ttl", "4s", script="touch started; until test -e go; do sleep 0.02; done; exit 3")
    cli.until(cli.file("started").exists)
    guard = guard_of(cli, process)
    os.kill(guard, signal.SIGKILL)
    granted = cli.record("job").expires_at
    cli.until(lambda: cli.record("job").expires_at > granted)
    cli.file("go").touch()
    assert cli.end(process).returncode == 3


def test_the_guard_sleeps(cli):
    process = cli.start_shell("job", script="touch started; until test -e go; do sleep 0.1; done")
    cli.until(cli.file("started").exists)
    guard = guard_of(cli, process)

    def used():
        fields = Path(f"/proc/{guard}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = used()
    time.sleep(1.0)
    assert used() - before <= 1  # ticks of 10 ms
    cli.file("go").touch()
    assert cli.end(process).returncode == 0


@pytest.mark.by_the_clock
def test_a_reader_of_standard_error_that_is_stuck_costs_nobody_the_lease(cli):
    """What is said must not keep the command from being ended in time."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 65536)
    except BlockingIOError:
        os.set_blocking(writing, True)
    process = cli.start_shell("job", "--ttl", "1500ms", script="echo $$ > pid; exec sleep 60 2>&-", stderr=writing)
    pid = int(cli.until(lambda: cli.said("pid"))[0])
    with cli.locked():
        assert process.wait(20) == _codes.LOST
        assert cli.record("job").expires_at > time.time_ns() // 1000 - 2_000_000
    assert not cli.is_alive(pid)
    os.close(reading)
    os.close(writing)


def test_a_host_without_room_for_its_files_is_told_from_a_wrong_command_line(cli):
    """No slot is touched: the next start may have better luck."""
    codes = set()
    for number in (6, 8, 9, 10, 14):
        command = f'ulimit -n {number}; exec "$0" -m rota run job -- touch ran'
        ended = subprocess.run(
            ["sh", "-c", command, os.sys.executable], env=cli.environment, cwd=cli.folder, capture_output=True, text=True, check=False
        )
        assert "Traceback" not in ended.stderr
        assert ended.stderr.count("\n") == 1
        codes.add(ended.returncode)
    assert codes == {_codes.HOST}
    assert not cli.file("ran").exists()


#: A user who has no other process, and may read all files, Python's too.
NOBODY = ["setpriv", f"--reuid={100_000 + os.getpid()}", "--clear-groups", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]


@pytest.mark.parametrize("processes", [1, 2, 3], ids=["no command", "no guard", "no heartbeat"])
def test_a_host_without_room_for_another_process_is_told_too(cli, processes):
    """EAGAIN at the fork of the command, at that of the guard, and for the thread; 4 are enough."""
    if os.geteuid() == 0:
        cli.before = ("prlimit", f"--nproc={processes}", *NOBODY)
    elif processes > 1:
        pytest.skip("not run: how many processes this user has is not known; root can be somebody who has none")
    else:
        cli.before = ("prlimit", "--nproc=1")
    job = ("job", "--every", "300d")
    ended = cli.shell(*job, script="touch ran")
    assert ended.returncode == _codes.HOST
    assert ended.stderr.startswith("rota: job: not run: this host has no room for it: ")
    assert ended.stderr.count("\n") == 1
    assert json.loads(cli.shell(*job, "--json", script=":").stderr.splitlines()[-1])["word"] == "host"
    if os.geteuid() == 0:
        cli.before = ("prlimit", "--nproc=4", *NOBODY)
        assert cli.shell(*job, script=": > ran").returncode == 0
        assert cli.file("ran").exists()


def test_a_guard_that_was_stopped_for_long_acts_on_the_newest_word(cli):
    """It finds more in its pipe than it used to read at once; what was said first is long over by then."""
    command = subprocess.Popen(["sleep", "60"], start_new_session=True)
    guard = Guard(command.pid)
    try:
        os.kill(guard._pid, signal.SIGSTOP)
        cli.until(lambda: Path(f"/proc/{guard._pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        now = monotonic()
        for number in range(1000):
            guard.feed(now - 10 + number * 0.005)
        guard.feed(now + 60)
        os.kill(guard._pid, signal.SIGCONT)
        guard.feed(now + 61)
        cli.until(lambda: unread(guard._feed) == 0)
        assert command.poll() is None
        guard.feed(monotonic())
        assert command.wait(10) == -signal.SIGKILL
    finally:
        command.kill()
        command.wait()
        guard.close()


def unread(pipe: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def test_a_host_that_has_not_even_dev_null(cli):
    code = "import os; os.devnull = '/nowhere'; from rota.cli import main; main()"
    words = [os.sys.executable, "-c", code, "run", "job", "--", "true"]
    ended = subprocess.run(words, env=cli.environment, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == _codes.HOST
    assert ended.stderr == "rota: job: not run: this host has no room for it: No such file or directory\n"
