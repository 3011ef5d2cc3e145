# SPDX-License-Identifier: MIT
"""DV-22, line by line: signals in, exit codes out, nothing left behind. Started normally, and as PID 1 of a PID namespace."""

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
UNTIL_GO = "until test -e go; do sleep 0.02; done"
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="PID namespaces, the parent-death signal and /proc are Linux's"
)


def namespace() -> tuple[str, ...]:
    """The words that make what follows PID 1 of a PID namespace of its own; none where that is not allowed."""
    words = ("unshare", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")), "--pid", "--fork", "--mount-proc", "--kill-child")
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        return ()
    return words


@pytest.fixture(params=["normally", "as PID 1"], autouse=True)
def start(request, cli):
    """How each test's `rota run` is started."""
    if request.param == "as PID 1":
        cli.before = namespace()
        if not cli.before:
            pytest.skip("unshare may not make a PID namespace here")
    return request.param


def living(process, namespace_of: str) -> list[int]:
    """All processes of a PID namespace, by the ids they have here."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.readlink(f"/proc/{name}/ns/pid") == namespace_of:
                found.append(int(name))
    return found


def readable(file: int) -> bool:
    return bool(select.select([file], [], [], 20)[0])


def started(cli, *options, script):
    """Start a script that touches ``started`` when it is ready; return the process, and the id of its `rota`."""
    process = cli.start_shell("job", *options, script=script)
    cli.until(cli.file("started").exists)
    return process, cli.pid(process)


def test_in_this_way_it_is_pid_1_or_not(cli, start):
    assert (cli.shell("job", script="echo $PPID").stdout == "1\n") == (start == "as PID 1")


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "WINCH"])
def test_a_signal_reaches_the_command_once_and_its_code_is_kept(cli, name):
    script = f'trap "echo got >> log; exit 7" {name}; touch started; while :; do sleep 0.02; done'
    process, rota = started(cli, *ONCE_A_YEAR, script=script)
    os.kill(rota, getattr(signal, f"SIG{name}"))
    assert cli.end(process).returncode == 7
    assert cli.said("log") == ["got"]
    assert cli.record("job").owner == ""  # released, not left to expire
    assert cli.record("job").outcome == "failed"


def test_an_interrupt_from_the_terminal_reaches_the_command_once(cli):
    """The terminal sends it to the whole foreground group, and `rota run` passes it on: together that is once."""
    pid, terminal = os.forkpty()
    if not pid:
        try:
            os.chdir(cli.folder)
            script = 'trap "echo INT >> log; exit 7" INT; echo ready; while :; do sleep 0.02; done'
            words = [*cli.command, "run", "job", "--", "sh", "-c", script]
            os.execvpe(words[0], words, cli.environment)
        finally:
            os._exit(125)
    seen = b""
    while b"ready" not in seen:
        assert readable(terminal), seen
        seen += os.read(terminal, 4096)
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    os.close(terminal)
    assert cli.said("log") == ["INT"]


@pytest.mark.parametrize("code", [0, 3, 75])
def test_the_commands_code_is_kept(cli, code):
    assert cli.shell("job", script=f"exit {code}").returncode == code


@pytest.mark.parametrize(("name", "code"), [("TERM", 143), ("KILL", 137)])
def test_a_command_that_a_signal_ended_gives_128_and_its_number(cli, name, code):
    assert cli.shell("job", script=f"kill -{name} $$").returncode == code


def test_what_is_not_found_or_cannot_be_executed_is_not_handled(cli):
    cli.file("script").write_text("#!/bin/sh\n")
    assert cli("run", "job", *ONCE_A_YEAR, "--", "no-such-command").returncode == 127
    assert cli("run", "job", *ONCE_A_YEAR, "--", "./script").returncode == 126
    assert cli.record("job").mark is None
    assert cli.shell("job", *ONCE_A_YEAR, script="echo ran").stdout == "ran\n"


@pytest.mark.by_the_clock
def test_a_command_that_ignores_term_is_killed_after_its_grace_and_the_lease_kept_until_then(cli):
    script = 'trap "" TERM; touch started; while :; do date +%s%N >> steps; sleep 0.02; done'
    process, rota = started(cli, "--grace", "1s", "--ttl", "10s", script=script)
    told_at = time.time()
    os.kill(rota, signal.SIGTERM)
    with cli.client() as client:
        assert client.try_lease("job").verdict == "busy"
    assert cli.end(process).returncode == 137
    last = int(cli.said("steps")[-1] or cli.said("steps")[-2]) / 1e9
    record = cli.record("job")
    assert last >= told_at + 0.9
    assert record.owner == ""
    assert last <= record.settled_at / 1e6  # released when all was dead, and then at once


def test_a_command_that_ends_at_term_leaves_the_lease_free_for_others(cli):
    """Released before the wrapper has exited, and not left to expire."""
    process, rota = started(cli, "--ttl", "60s", script='trap "exit 0" TERM; touch started; while :; do sleep 0.02; done')
    os.kill(rota, signal.SIGTERM)
    assert cli.end(process).returncode == 0
    with cli.client() as client:
        grant = client.try_lease("job")
        assert grant
        grant.release()


def test_handled_busy_and_unavailable_are_told_apart(cli):
    process, _ = started(cli, *ONCE_A_YEAR, script="touch started; " + UNTIL_GO)
    busy = cli.shell("job", *ONCE_A_YEAR, "--wait", "0s", script="echo ran")
    with cli.locked():
        away = cli.shell("job", *ONCE_A_YEAR, "--timeout", "100ms", script="echo ran")
    cli.file("go").touch()
    assert cli.end(process).returncode == 0
    handled = cli.shell("job", *ONCE_A_YEAR, script="echo ran")
    assert [busy.returncode, away.returncode, handled.returncode] == [_codes.BUSY, _codes.UNAVAILABLE, 0]
    assert [ended.stdout for ended in (busy, away, handled)] == ["", "", ""]
    assert ["has held" in busy.stderr, "can't be asked" in away.stderr, "was handled" in handled.stderr] == [True] * 3


@pytest.mark.parametrize("daemon", ["sleep 60 &", "setsid sh -c '(sleep 60 &)' &"])
@pytest.mark.by_the_clock
def test_what_the_command_leaves_behind_with_its_output_does_not_hold_the_wrapper_up(cli, daemon, start):
    """Background processes, and daemons that forked twice."""
    process = cli.start_shell("job", script=f"{daemon} date +%s%N > done")
    inside = os.readlink(f"/proc/{cli.pid(process)}/ns/pid")
    assert process.wait(20) == 0
    assert time.time() - int(cli.said("done")[0]) / 1e9 < 1
    if start == "as PID 1":
        cli.until(lambda: not living(process, inside))  # the kernel ends a namespace with its PID 1
    else:
        sleeping = [pid for pid in living(process, inside) if command_line(pid) == ["sleep", "60"] and environ(pid) == str(cli.folder)]
        assert len(sleeping) == 1
        os.kill(sleeping[0], signal.SIGKILL)


def command_line(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    return []


def environ(pid: int) -> str:
    with contextlib.suppress(OSError):
        return dict(line.partition("=")[::2] for line in Path(f"/proc/{pid}/environ").read_text().split("\0")).get("HOME", "")
    return ""


def test_each_write_to_a_pipe_appears_at_once(cli):
    process = cli.start_shell("job", script="printf one; until test -e go; do sleep 0.02; done; printf two")
    output = process.stdout.fileno()
    assert readable(output)
    assert os.read(output, 100) == b"one"
    assert process.poll() is None
    cli.file("go").touch()
    assert cli.end(process).stdout == "two"


def test_input_is_passed_in_and_ten_megabytes_of_output_out(cli):
    text = "0123456789abcde\n" * 655_360
    process = cli.start("run", "job", "--", "cat", stdin=subprocess.PIPE)
    assert process.communicate(text, timeout=60)[0] == text
    assert process.returncode == 0


def test_a_reader_that_goes_away_ends_the_command_as_without_a_wrapper(cli):
    process = cli.start("run", "job", *ONCE_A_YEAR, "--", "yes")
    assert read_line(process.stdout) == "y\n"
    process.stdout.close()
    assert process.wait(20) == 128 + signal.SIGPIPE
    assert cli.record("job").outcome == "failed"


def test_a_killed_wrapper_leaves_no_process_and_the_lease_is_free_after_the_ttl(cli):
    script = "(while :; do sleep 0.02; done) & setsid sleep 60 & touch started; sleep 60"
    process, rota = started(cli, *ONCE_A_YEAR, "--ttl", "2s", script=script)
    inside = os.readlink(f"/proc/{rota}/ns/pid")

    def all_of_it() -> list[int]:
        return [pid for pid in living(process, inside) if environ(pid) == str(cli.folder) and pid != process.pid]

    def is_in_group(pid: int) -> bool:
        return command_line(pid) != ["sleep", "60"] or os.getsid(pid) == os.getsid(rota)

    # the guard, the command, its two children (and rota, where it is not the process itself); and what left the group
    cli.until(lambda: [command_line(pid) for pid in all_of_it()].count(["sleep", "60"]) == 2)
    mine = all_of_it()
    in_group = [pid for pid in mine if is_in_group(pid)]
    assert len(in_group) >= 4
    os.kill(rota, signal.SIGKILL)
    cli.until(lambda: not any(map(cli.is_alive, in_group)))
    for pid in set(mine) - set(in_group):  # what left the group, by a session of its own, is not promised
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    after = cli.shell("job", *ONCE_A_YEAR, script="echo $ROTA_ATTEMPT")
    assert (after.returncode, after.stdout) == (0, "2\n")


def test_orphans_are_reaped(cli, start):
    """As PID 1 by the wrapper; else by whoever is init."""
    whose = "1" if start == "as PID 1" else "$5 == '$$'"  # else those of the command's group: others have zombies, too
    script = """
    i=0
    while test $i -lt 20; do (sh -c : &) ; i=$((i + 1)); done
    (setsid sh -c 'sleep 0.1' &)
    i=0
    while test $i -lt 500; do
        zombies=$(cat /proc/[0-9]*/stat 2>/dev/null | awk '$3 == "Z" && WHOSE' | wc -l)
        test $zombies -eq 0 && test $i -gt 20 && exit 0
        sleep 0.02
        i=$((i + 1))
    done
    exit 9
    """
    assert cli.shell("job", script=script.replace("WHOSE", whose)).returncode == 0


def test_a_signal_while_waiting_never_starts_the_command(cli):
    process, _ = started(cli, *ONCE_A_YEAR, script=f"touch started; {UNTIL_GO}; exit 1")
    standby = cli.start_shell("job", *ONCE_A_YEAR, script="echo ran >> log")
    assert "standing by" in read_line(standby.stderr)
    os.kill(cli.pid(standby), signal.SIGTERM)
    assert cli.end(standby).returncode == 143
    cli.file("go").touch()
    assert cli.end(process).returncode == 1
    assert cli.said("log") == []


def test_a_lost_lease_ends_all_of_it(cli):
    process, rota = started(cli, "--ttl", "1s", script='trap "" TERM; touch started; sh -c "while :; do sleep 0.02; done"')
    inside = os.readlink(f"/proc/{rota}/ns/pid")
    mine = [pid for pid in living(process, inside) if environ(pid) == str(cli.folder) and pid != process.pid]
    with cli.locked():
        assert cli.end(process).returncode == _codes.LOST
    assert not any(map(cli.is_alive, mine))
