# SPDX-License-Identifier: MIT
"""What `rota run` does when the store goes away while the command runs, or when it has ended."""

from __future__ import annotations

import time

import pytest
from rota.cli import _codes
from servers import read_line

ONCE_A_YEAR = ("--cron", "0 0 1 1 *")
#: A command that won't end, and writes down each step it makes and each TERM it gets.
STUBBORN = 'echo $$ > pid; trap "date +%s%N >> term" TERM; touch started; while :; do date +%s%N >> steps; sleep 0.02; done'


@pytest.mark.by_the_clock
def test_a_lost_lease_ends_the_command_before_anybody_else_can_start_it(cli):
    """L6, L9: TERM while KILL still fits, and no step after the lease's end by the store's clock."""
    holder = cli.start_shell("job", *ONCE_A_YEAR, "--ttl", "1500ms", script=STUBBORN)
    cli.until(lambda: cli.said("steps"))
    with cli.locked():
        ended = cli.end(holder)
        expires_at = cli.record("job").expires_at
        still_locked = time.time_ns() // 1000
    assert ended.returncode == _codes.LOST
    assert "the lease could not be kept" in ended.stderr
    assert not cli.is_alive(int(cli.said("pid")[0]))
    steps, terms = [[int(line) // 1000 for line in cli.said(name)] for name in ("steps", "term")]
    assert len(terms) == 1
    assert terms[0] <= steps[-1] < expires_at  # it went on after the TERM, and was dead before the lease's end
    assert still_locked > terms[0]
    after = cli.shell("job", *ONCE_A_YEAR, "--wait", "10s", script="echo $ROTA_ATTEMPT")
    assert (after.returncode, after.stdout) == (0, "2\n")


def test_a_command_that_ends_at_the_term_of_a_lost_lease_is_no_success(cli):
    """W0: what it did is not known."""
    holder = cli.start_shell(
        "job", *ONCE_A_YEAR, "--ttl", "1500ms", script='trap "exit 0" TERM; touch started; while :; do sleep 0.02; done'
    )
    cli.until(cli.file("started").exists)
    with cli.locked():
        assert cli.end(holder).returncode == _codes.LOST
    assert cli.record("job").mark is None


def test_all_that_a_command_started_ends_with_it_when_the_lease_is_lost(cli):
    script = '(trap "" TERM; echo $(exec sh -c "echo \\$PPID") > pid; while :; do sleep 0.02; done) & touch started; sleep 60'
    holder = cli.start_shell("job", "--ttl", "1s", script=script)
    child = int(cli.until(lambda: cli.said("pid"))[0])
    assert cli.is_alive(child)
    with cli.locked():
        assert cli.end(holder).returncode == _codes.LOST
    assert not cli.is_alive(child)


def test_an_operator_who_releases_the_lease_ends_the_command(cli):
    from rota.backend import Override

    holder = cli.start_shell("job", "--ttl", "600ms", script="touch started; sleep 60")
    cli.until(cli.file("started").exists)
    with cli.client() as client:
        assert client.driver.override(Override("job", "released", "a test", 10**12), 5.0).applied
    assert cli.end(holder).returncode == _codes.LOST


@pytest.mark.by_the_clock
def test_a_short_outage_is_survived(cli):
    """L5: renewals go on trying until the deadline."""
    holder = cli.start_shell("job", *ONCE_A_YEAR, "--ttl", "3s", script="touch started; until test -e go; do sleep 0.02; done")
    cli.until(cli.file("started").exists)
    granted = cli.record("job").expires_at
    with cli.locked():
        time.sleep(1.2)  # longer than the heartbeat
    cli.until(lambda: cli.record("job").expires_at > granted)
    cli.file("go").touch()
    ended = cli.end(holder)
    assert (ended.returncode, ended.stderr) == (0, "")


# -- F5


def locked_at_the_end(cli, *options):
    """Start a run, and lock the store while it works; return it with the command about to succeed."""
    process = cli.start_shell("job", *options, script="touch started; until test -e go; do sleep 0.02; done")
    cli.until(cli.file("started").exists)
    return process


@pytest.mark.by_the_clock
def test_a_success_that_can_be_recorded_late_is_recorded(cli):
    """F5: it stays up and keeps trying while the lease lives."""
    process = locked_at_the_end(cli, *ONCE_A_YEAR, "--ttl", "6s", "--timeout", "300ms")
    with cli.locked():
        cli.file("go").touch()
        line = read_line(process.stderr)
        assert "not confirmed yet" in line
    ended = cli.end(process)
    assert ended.returncode == 0
    assert "it is recorded now: handled" in ended.stderr
    record = cli.record("job")
    assert record.outcome == "handled"
    assert record.mark == record.slot_start


def test_a_success_is_written_back_after_the_lease_ran_out(cli):
    """F5, W3a: nobody followed, so the mark moves."""
    process = locked_at_the_end(cli, *ONCE_A_YEAR, "--ttl", "1s", "--timeout", "2s")
    with cli.locked():
        cli.file("go").touch()
        cli.until(lambda: cli.record("job").expires_at < time.time_ns() // 1000)
        assert "not confirmed yet" in read_line(process.stderr)
    assert cli.end(process).returncode == 0
    assert cli.record("job").outcome == "handled"


def test_a_success_that_is_never_recorded_has_its_own_code(cli):
    """F5."""
    process = locked_at_the_end(cli, *ONCE_A_YEAR, "--ttl", "1s", "--timeout", "200ms")
    with cli.locked():
        cli.file("go").touch()
        ended = cli.end(process)
    assert ended.returncode == _codes.UNRECORDED
    assert "did not confirm" in ended.stderr
    assert cli.record("job").mark is None


def test_a_signal_ends_the_wait_for_the_record(cli):
    process = locked_at_the_end(cli, *ONCE_A_YEAR, "--ttl", "60s", "--timeout", "200ms")
    with cli.locked():
        cli.file("go").touch()
        assert "not confirmed yet" in read_line(process.stderr)
        process.terminate()
        assert cli.end(process).returncode == _codes.UNRECORDED


def test_a_failure_that_cannot_be_recorded_keeps_the_commands_code(cli):
    """Expiry gives the slot back."""
    process = cli.start_shell(
        "job", *ONCE_A_YEAR, "--timeout", "200ms", script="touch started; until test -e go; do sleep 0.02; done; exit 9"
    )
    cli.until(cli.file("started").exists)
    with cli.locked():
        cli.file("go").touch()
        assert cli.end(process).returncode == 9
