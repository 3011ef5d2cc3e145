# SPDX-License-Identifier: MIT
"""Waiting before the command: for those who work on the slot, in line for a lease, for a slot to begin, for others to go first."""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rota.cli import _codes
from servers import read_line

ONCE_A_YEAR = ("--cron", "0 0 1 1 *")
UNTIL_GO = "touch started; until test -e go; do sleep 0.02; done"
RUN = "echo ran >> log"


def hold(cli, *options, script=UNTIL_GO):
    """Start a run that works until there is a file ``go``."""
    process = cli.start_shell("job", *options, script=script)
    cli.until(cli.file("started").exists)
    return process


def next_slot(seconds: int, least: float) -> float:
    """Wait until a slot of so many seconds has at least so much left; return when the next one starts (epoch seconds)."""
    while (end := (time.time() // seconds + 1) * seconds) - time.time() < least:
        time.sleep(0.01)
    return end


# -- standing by


@pytest.mark.parametrize("schedule", [ONCE_A_YEAR, ("--once-per", "300d"), ("--planned", "NOW"), ("--every", "300d", "--planned", "NOW")])
def test_a_run_stands_by_while_others_work_on_its_slot_and_ends_well_when_they_do(cli, schedule):
    """W4."""
    schedule = [word.replace("NOW", datetime.now(UTC).isoformat()) for word in schedule]
    holder = hold(cli, *schedule, "--site", "dc1")
    standby = cli.start_shell("job", *schedule, script=RUN)
    line = read_line(standby.stderr)
    assert line.startswith("rota: standing by: job: dc1 ")
    assert standby.poll() is None
    cli.file("go").touch()
    assert cli.end(holder).returncode == 0
    ended = cli.end(standby)
    assert ended.returncode == 0
    assert ended.stderr.startswith("rota: skipped: job: the slot of ")
    assert "was handled by dc1" in ended.stderr
    assert cli.said("log") == []


def test_a_run_that_stands_by_takes_over_when_the_other_fails(cli):
    """W3."""
    holder = hold(cli, *ONCE_A_YEAR, script=UNTIL_GO + "; exit 4")
    standby = cli.start_shell("job", *ONCE_A_YEAR, script="echo $ROTA_ATTEMPT")
    assert "standing by" in read_line(standby.stderr)
    cli.file("go").touch()
    assert cli.end(holder).returncode == 4
    ended = cli.end(standby)
    assert (ended.returncode, ended.stdout) == (0, "2\n")


def test_a_run_that_stands_by_takes_over_when_the_others_host_dies(cli):
    holder = hold(cli, *ONCE_A_YEAR, "--ttl", "1s", script="touch started; sleep 60")
    standby = cli.start_shell("job", *ONCE_A_YEAR, script="echo $ROTA_ATTEMPT")
    assert "standing by" in read_line(standby.stderr)
    holder.kill()
    ended = cli.end(standby)
    assert (ended.returncode, ended.stdout) == (0, "2\n")


def test_of_several_that_stand_by_one_takes_over_at_a_time(cli):
    """L1, W3: three fail one after the other, the fourth succeeds, the fifth finds it handled."""
    script = 'echo start $ROTA_ATTEMPT >> log; sleep 0.1; echo end $ROTA_ATTEMPT >> log; test "$ROTA_ATTEMPT" -ge 4'
    racing = [cli.start_shell("job", *ONCE_A_YEAR, script=script) for _ in range(5)]
    codes = [cli.end(process).returncode for process in racing]
    assert sorted(codes) == [0, 0, 1, 1, 1]
    assert cli.said("log") == [f"{what} {attempt}" for attempt in range(1, 5) for what in ("start", "end")]


def test_told_not_to_wait_it_is_busy_at_once_and_says_with_whom(cli):
    holder = hold(cli, *ONCE_A_YEAR, "--site", "dc1")
    busy = cli.shell("job", *ONCE_A_YEAR, "--wait", "0s", script=RUN)
    assert busy.returncode == _codes.BUSY
    assert busy.stderr.startswith("rota: skipped: job: dc1 ")
    assert busy.stderr.count("\n") == 1
    waited = cli.shell("job", *ONCE_A_YEAR, "--wait", "300ms", "--quiet", script=RUN)
    assert waited.returncode == _codes.BUSY
    assert waited.stderr.count("\n") == 1  # what is no success is said, however quiet
    for options in (("--busy-ok",), ("--busy-ok", "--quiet")):
        fine = cli.shell("job", *ONCE_A_YEAR, "--wait", "0s", *options, script=RUN)
        assert fine.returncode == 0
        assert ("dc1" in fine.stderr) == (len(options) == 1)
    assert cli.shell("job", *ONCE_A_YEAR, script=RUN, env={"ROTA_WAIT": "0s", "ROTA_BUSY_OK": "true"}).returncode == 0
    cli.file("go").touch()
    assert cli.end(holder).returncode == 0
    assert cli.said("log") == []


@pytest.mark.by_the_clock
def test_it_stands_by_until_the_slot_ends_and_not_for_the_next_one(cli):
    end = next_slot(6, least=5)
    holder = hold(cli, "--every", "6s", "--ttl", "60s")
    standby = cli.start_shell("job", "--every", "6s", "--early", "0s", script=RUN)
    assert "standing by" in read_line(standby.stderr)
    ended = cli.end(standby)
    assert ended.returncode == _codes.BUSY
    assert "an older slot" not in ended.stderr
    assert time.time() > end - 0.05
    cli.file("go").touch()
    assert cli.end(holder).returncode == 0
    assert cli.said("log") == []


@pytest.mark.by_the_clock
def test_a_slot_that_waits_for_an_older_one_is_waited_for_only_when_told_to(cli):
    """W4."""
    holder = hold(cli, "--every", "2s")
    cli.until(lambda: time.time() > cli.record("job").slot_end / 1e6)
    busy = cli.shell("job", "--every", "2s", "--early", "0s", script=RUN)
    assert busy.returncode == _codes.BUSY
    assert "an older slot" in busy.stderr
    waiter = cli.start_shell("job", "--every", "2s", "--wait", "30s", script=RUN)
    assert "waiting in line" in read_line(waiter.stderr)
    cli.file("go").touch()
    assert cli.end(holder).returncode == 0
    assert cli.end(waiter).returncode == 0
    assert cli.said("log") == ["ran"]


def test_a_named_slot_that_has_ended_is_stood_by_for_as_long_as_it_can_be_won(cli):
    """W6: the second site may be so late that its slot is over, and still be the one that takes over."""
    planned = ("--every", "1s", "--planned", (datetime.now(UTC) - timedelta(seconds=5)).isoformat())
    holder = hold(cli, *planned, script=UNTIL_GO + "; exit 1")
    standby = cli.start_shell("job", *planned, script=RUN)
    assert "standing by" in read_line(standby.stderr)
    cli.file("go").touch()
    assert cli.end(holder).returncode == 1
    assert cli.end(standby).returncode == 0
    assert cli.said("log") == ["ran"]


def test_standing_by_outlasts_a_store_that_is_away_for_a_while_and_runs_nothing_meanwhile(cli):
    """F2 is for when it is not known whether somebody else runs it."""
    holder = hold(cli, *ONCE_A_YEAR, "--ttl", "60s")
    standby = cli.start_shell("job", *ONCE_A_YEAR, "--timeout", "100ms", "--on-unavailable", "run", script=RUN)
    assert "standing by" in read_line(standby.stderr)
    with cli.locked():
        time.sleep(1.0)  # several of its calls' timeouts
        assert standby.poll() is None
    assert cli.said("log") == []
    cli.file("go").touch()
    assert cli.end(holder).returncode == 0
    assert cli.end(standby).returncode == 0
    assert cli.said("log") == []


@pytest.mark.by_the_clock
def test_a_wait_that_is_over_ends_while_the_store_is_away(cli):
    holder = hold(cli, *ONCE_A_YEAR, "--ttl", "60s")
    standby = cli.start_shell("job", *ONCE_A_YEAR, "--timeout", "100ms", "--wait", "3s", script=RUN)
    assert "standing by" in read_line(standby.stderr)
    with cli.locked():
        ended = cli.end(standby)
    assert (ended.returncode, "has held" in ended.stderr) == (_codes.BUSY, True)
    cli.file("go").touch()
    assert cli.end(holder).returncode == 0
    assert cli.said("log") == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_while_standing_by_never_starts_the_command_and_holds_nothing(cli, number):
    """L8."""
    holder = hold(cli, *ONCE_A_YEAR, script=UNTIL_GO + "; exit 1")
    standby = cli.start_shell("job", *ONCE_A_YEAR, script=RUN)
    assert "standing by" in read_line(standby.stderr)
    standby.send_signal(number)
    assert cli.end(standby).returncode == 128 + number
    cli.file("go").touch()
    assert cli.end(holder).returncode == 1
    assert cli.said("log") == []
    assert cli.record("job").owner == ""


BACKEND = """
import os, signal
from rota.sqlite import SqliteBackend, SqliteDriver

class Driver(SqliteDriver):
    def claim(self, claim, timeout):
        answer = super().claim(claim, timeout)
        os.kill(os.getpid(), signal.SIGTERM)
        return answer

class Backend(SqliteBackend):
    def driver(self, url):
        return Driver(super().driver(url).path)
"""


def test_a_signal_at_the_moment_of_the_win_gives_the_slot_back(cli):
    """L8, W3b: the command never began, so even a slot that is run at most once is open again."""
    info = cli.file("installed") / "rota_hasty-1.0.dist-info"
    info.mkdir(parents=True)
    (info.parent / "rota_hasty.py").write_text(BACKEND)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rota-hasty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rota.backends]\nhasty = rota_hasty:Backend\n")
    path = os.pathsep.join(filter(None, [str(info.parent), os.environ.get("PYTHONPATH", "")]))
    ended = cli.shell("job", *ONCE_A_YEAR, "--at-most-once", script=RUN, env={"PYTHONPATH": path, "ROTA_URL": f"hasty://{cli.path}"})
    assert ended.returncode == 143
    assert (cli.record("job").owner, cli.record("job").mark) == ("", None)
    assert cli.shell("job", *ONCE_A_YEAR, "--at-most-once", script=RUN).returncode == 0
    assert cli.said("log") == ["ran"]


def test_standing_by_costs_next_to_nothing(cli):
    holder = hold(cli, *ONCE_A_YEAR)
    standby = cli.start_shell("job", *ONCE_A_YEAR, script=RUN)
    assert "standing by" in read_line(standby.stderr)

    def used():
        fields = Path(f"/proc/{standby.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = used()
    time.sleep(2.0)
    assert used() - before <= 10  # ticks of 10 ms
    cli.file("go").touch()
    assert cli.end(holder).returncode == 0
    assert cli.end(standby).returncode == 0


# -- coming early


@pytest.mark.by_the_clock
def test_an_early_arrival_waits_for_its_slot_by_the_stores_clock(cli):
    """W5: for the planned instant itself, not for when an arrival would have been let in at once."""
    planned = round(time.time() + 7, 3)
    waiter = cli.start_shell("job", "--planned", str(planned), "--early", "2s", script="date +%s%N > ran")
    line = read_line(waiter.stderr)
    assert "waiting for its start: job: the slot of" in line
    assert float(line.rpartition(" in ")[2].split("s")[0]) > 2  # until then, too
    assert cli.end(waiter).returncode == 0
    assert planned <= int(cli.said("ran")[0]) / 1e9 < planned + 2


def test_who_comes_too_early_is_told_so_at_once(cli):
    planned = (datetime.now(UTC) + timedelta(seconds=100)).isoformat()
    for options in (("--wait-early", "0s"), ("--wait-early", "50s"), ("--wait", "0s", "--wait-early", "1s")):
        early = cli.shell("job", "--planned", planned, *options, script=RUN)
        assert (early.returncode, "can be won in" in early.stderr) == (_codes.EARLY, True)
    assert cli.said("log") == []


def test_a_signal_while_waiting_for_the_slot_never_starts_the_command(cli):
    waiter = cli.start_shell("job", "--planned", f"{time.time() + 100:.0f}", script=RUN)
    assert "waiting for its start" in read_line(waiter.stderr)
    waiter.terminate()
    assert cli.end(waiter).returncode == 143
    assert cli.record("job") is None


@pytest.mark.parametrize("schedule", ["--every", "--once-per"])
@pytest.mark.by_the_clock
def test_a_start_shortly_before_the_next_slot_is_meant_for_that_one_and_asks_once_more(cli, schedule):
    """A host whose clock is a little ahead starts its cron jobs a little early: at most half a slot, here 4 s."""
    if schedule == "--every":
        next_slot(8, least=6)
    assert cli.shell("job", schedule, "8s", script=RUN).returncode == 0
    end = cli.record("job").slot_end / 1e6
    assert cli.shell("job", schedule, "8s", "--early", "0s", script=RUN).returncode == 0
    cli.until(lambda: time.time() > end - 3.8)
    again = cli.shell("job", schedule, "8s", script=RUN)
    assert again.returncode == 0
    assert "waiting for the next one: job: the slot of" in again.stderr
    assert cli.said("log") == ["ran", "ran"]
    assert time.time() > end
    assert cli.record("job").slot_start >= end * 1e6


# -- letting others go first


@pytest.mark.by_the_clock
def test_a_standby_site_comes_after_the_others_and_finds_the_slot_handled(cli):
    planned = ("--planned", f"{time.time():.3f}")
    standby = cli.start_shell("job", *planned, "--standby", "1500ms", script="echo standby >> log")
    assert "letting others go first" in read_line(standby.stderr)
    standby.send_signal(signal.SIGSTOP)  # however long the other one takes to start
    assert cli.shell("job", *planned, script="echo first >> log").returncode == 0
    standby.send_signal(signal.SIGCONT)
    assert cli.end(standby).returncode == 0
    assert cli.said("log") == ["first"]


def test_a_standby_site_runs_what_nobody_else_did(cli):
    planned = time.time()
    assert cli.shell("job", "--planned", f"{planned:.3f}", "--standby", "1s", script=RUN).returncode == 0
    assert time.time() >= planned + 1
    assert cli.said("log") == ["ran"]
    late = cli.shell("job2", "--planned", f"{planned:.3f}", "--standby", "1s", script=RUN)
    assert (late.returncode, late.stderr) == (0, "")  # a retry has let them go first already


@pytest.mark.by_the_clock
def test_a_standby_never_waits_into_the_next_slot(cli):
    end = next_slot(6, least=5)
    assert cli.shell("job", "--every", "6s", "--standby", "10s", script=RUN).returncode == 0
    assert cli.record("job").slot_end == round(end * 1e6)


def test_a_signal_while_letting_others_go_first_never_starts_the_command(cli):
    standby = cli.start_shell("job", "--standby", "60s", script=RUN)
    assert "letting others go first, for 60s" in read_line(standby.stderr)
    standby.terminate()
    assert cli.end(standby).returncode == 143
    assert cli.said("log") == []


def test_a_jitter_starts_within_it(cli):
    assert cli.shell("job", "--jitter", "500ms", script=RUN).returncode == 0
    waiter = cli.start_shell("job2", "--jitter", "366d", script=RUN)
    assert cli.shell("job3", script=RUN).returncode == 0  # begun later, and ended
    cli.until(lambda: signal.SIGTERM in cli.caught(waiter))
    waiter.terminate()
    assert cli.end(waiter).returncode == 143
    assert cli.said("log") == ["ran", "ran"]
