# SPDX-License-Identifier: MIT
"""What `rota run` runs, skips and says, and its exit codes."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from rota.backend import Claim, Override
from rota.cli import _codes
from rota.duration import DAY, SECOND

ONCE_A_YEAR = ("--cron", "0 0 1 1 *")  # a slot that does not end while a test runs


def at(text):
    return datetime.fromisoformat(text).astimezone(UTC)


# -- the child's own code


@pytest.mark.parametrize("code", [0, 1, 3, 75, 116, 255])
def test_the_commands_own_exit_code_is_returned(cli, code):
    assert cli.shell("job", script=f"exit {code}").returncode == code


def test_what_is_not_found_is_127_and_what_cannot_be_executed_126_and_the_slot_stays_open(cli):
    """W3b: the body never began, so the slot is as if it had not been granted."""
    script = cli.file("script")
    script.write_text("#!/bin/sh\nexit 0\n")
    for command, code in (("no-such-command", 127), ("./no-such-file", 127), ("", 127), ("./script", 126), ("/", 126)):
        ended = cli("run", "job", *ONCE_A_YEAR, "--at-most-once", "--", command)
        assert ended.returncode == code, ended
        assert "can't be run" in ended.stderr
    record = cli.record("job")
    assert (record.mark, record.outcome, record.attempts) == (None, "", 0)
    script.chmod(0o755)
    assert cli("run", "job", *ONCE_A_YEAR, "--", "./script").returncode == 0
    assert cli.record("job").outcome == "handled"


def test_a_script_without_an_interpreter_line_is_run_by_the_shell_as_everywhere(cli):
    script = cli.file("script")
    script.write_text("echo $# $1\n")
    script.chmod(0o755)
    assert cli("run", "job", "--", "./script", "a b").stdout == "1 a b\n"


def test_everything_after_the_first_double_dash_is_the_command_untouched(cli):
    ended = cli("run", "job", "--", "printf", "%s|", "--", "--ttl", "-h", "a b", "", "$HOME", "--strict")
    assert ended.stdout == "--|--ttl|-h|a b||$HOME|--strict|"


def test_what_others_wrote_into_the_store_moves_no_cursor(cli):
    """A line names who holds it, by the label that those wrote."""
    with cli.client() as client:
        now = client.driver.now(20.0)[0]
        claim = Claim("job", "1" * 32, "\x1b]0;pwned\x07\x1b[2Jsite\u202e host:1", "lease", 60 * SECOND, now + 60 * SECOND, DAY)
        assert client.driver.claim(claim, 20.0).verdict == "won"
    ended = cli.shell("job", script="")
    assert ended.returncode == _codes.BUSY
    assert r"\x1b]0;pwned\x07\x1b[2Jsite\u202e host:1 has held it since" in ended.stderr
    assert ended.stderr.rstrip("\n").isprintable()


# -- once per slot


@pytest.mark.parametrize("schedule", [ONCE_A_YEAR, ("--every", "300d"), ("--once-per", "300d"), ("--planned",)])
def test_the_second_call_in_a_slot_runs_nothing_and_says_who_handled_it_and_when(cli, schedule):
    """W2, W3."""
    if schedule[0] == "--planned":
        schedule = (*schedule, datetime.now(UTC).isoformat())
    first = cli.shell("job", *schedule, "--site", "dc1", script="echo ran >> log")
    assert (first.returncode, first.stderr) == (0, "")
    second = cli.shell("job", *schedule, script="echo ran >> log")
    assert second.returncode == 0
    assert cli.said("log") == ["ran"]
    assert second.stderr.count("\n") == 1
    record = cli.record("job")
    assert "was handled by dc1 " in second.stderr
    assert record.label in second.stderr
    assert datetime.fromtimestamp(record.settled_at / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S") in second.stderr


def test_a_failed_run_gives_the_slot_back_and_the_retry_knows_that_it_is_one(cli):
    """W3."""
    assert cli.shell("job", *ONCE_A_YEAR, script="exit 4").returncode == 4
    retry = cli.shell("job", *ONCE_A_YEAR, script="echo $ROTA_ATTEMPT")
    assert (retry.returncode, retry.stdout) == (0, "2\n")


def test_the_last_of_the_attempts_closes_the_slot_and_says_so(cli):
    """W3c."""
    options = ("job", *ONCE_A_YEAR, "--attempts", "2")
    assert "gave up" not in cli.shell(*options, script="exit 4").stderr
    last = cli.shell(*options, script="exit 5")
    assert last.returncode == 5
    assert "gave up" in last.stderr
    after = cli.shell(*options, script="echo ran >> log")
    assert after.returncode == 0
    assert "was given up" in after.stderr
    assert cli.shell(*options, "--strict", script="echo ran >> log").returncode == _codes.GAVE_UP
    assert cli.said("log") == []


def test_strict_tells_a_handled_slot_from_one_that_was_passed_over(cli):
    """W2."""
    now = datetime.now(UTC).replace(microsecond=0)
    older, newer = (now - timedelta(seconds=s) for s in (40, 20))
    options = ("job", "--every", "10s", "--strict")
    assert cli.shell(*options, "--planned", newer.isoformat(), script=":").returncode == 0
    assert cli.shell(*options, "--planned", newer.isoformat(), script=":").returncode == _codes.HANDLED
    passed = cli.shell(*options, "--planned", older.isoformat(), script=":")
    assert passed.returncode == _codes.PASSED
    assert "was passed over" in passed.stderr
    assert cli.shell("job", "--every", "10s", "--planned", older.isoformat(), script=":").returncode == 0


def test_two_that_start_at_once_run_the_job_once(cli):
    """W1, W2: whoever loses is busy, or comes after it and is told that it is handled."""
    options = ("job", *ONCE_A_YEAR)
    racing = [cli.start_shell(*options, script="echo ran >> log; sleep 0.2") for _ in range(6)]
    codes = sorted(cli.end(process).returncode for process in racing)
    assert cli.said("log") == ["ran"]
    assert set(codes) <= {0, _codes.BUSY}
    assert codes.count(0) >= 1


def test_a_lease_is_busy_unless_it_is_told_to_wait(cli):
    """L1."""
    holder = cli.start_shell("job", script="touch started; until test -e go; do sleep 0.02; done; echo first >> log")
    cli.until(cli.file("started").exists)
    assert cli.shell("job", script=":").returncode == _codes.BUSY
    assert cli.shell("job", "--wait", "100ms", script=":").returncode == _codes.BUSY
    waiter = cli.start_shell("job", "--wait", "30s", script="echo second >> log")
    cli.file("go").touch()
    assert cli.end(holder).returncode == 0
    assert cli.end(waiter).returncode == 0
    assert cli.said("log") == ["first", "second"]


def test_too_late_and_too_early_have_their_own_codes(cli):
    """W5, W6."""
    now = datetime.now(UTC)
    late = cli.shell("job", "--every", "1s", "--planned", (now - timedelta(days=1)).isoformat(), script="echo ran >> log")
    assert (late.returncode, "too late" in late.stderr) == (_codes.LATE, True)
    limited = cli.shell("job", "--planned", (now - timedelta(minutes=5)).isoformat(), "--max-late", "1m", script="echo ran >> log")
    assert (limited.returncode, "by a max-late of 1m" in limited.stderr) == (_codes.LATE, True)
    early = cli.shell("job", "--planned", (now + timedelta(hours=1)).isoformat(), script="echo ran >> log")
    assert (early.returncode, "can be won in" in early.stderr) == (_codes.EARLY, True)
    accepted = cli.shell("job", "--planned", (now + timedelta(seconds=40)).isoformat(), "--early", "60s", script="echo ran >> log")
    assert accepted.returncode == 0
    assert cli.said("log") == ["ran"]


def test_slots_that_nobody_handled_are_reported_by_the_next_winner(cli):
    """W3d, W9."""
    now = datetime.now(UTC).replace(microsecond=0)

    def ran(seconds_ago, *options):
        planned = (now - timedelta(seconds=seconds_ago)).isoformat()
        ended = cli.shell("job", "--every", "10s", "--planned", planned, *options, script=":")
        assert ended.returncode == 0
        return ended.stderr

    assert ran(120) == ""  # the first of all
    assert ran(110) == ""
    assert ran(90) == "rota: job: 1 slot before this one was not handled\n"
    assert ran(50) == "rota: job: 3 slots before this one were not handled\n"
    assert ran(20, "--quiet") == ""


@pytest.mark.parametrize("schedule", [("--cron", "0 0 * * 0"), ("--every", "7d")])
def test_a_missed_slot_is_caught_up_when_asked_to(cli, schedule):
    """W6: the ended slot, at the next start the current one, and then nothing more; none that ended too long ago."""
    caught_up = cli.shell("job", *schedule, "--catch-up", script="echo $ROTA_SLOT_END")
    failed = cli.shell("job", *schedule, "--catch-up", script="echo $ROTA_SLOT_START; exit 3")
    current = cli.shell("job", *schedule, "--catch-up", script="echo $ROTA_SLOT_START")
    again = cli.shell("job", *schedule, "--catch-up", script="echo $ROTA_SLOT_START")
    assert [ended.returncode for ended in (caught_up, failed, current, again)] == [0, 3, 0, 0]
    assert caught_up.stdout == failed.stdout == current.stdout
    assert again.stdout == ""
    assert "handled" in again.stderr
    assert cli.shell("other", *schedule, script="echo $ROTA_SLOT_START").stdout == current.stdout
    too_late = cli.shell("another", *schedule, "--catch-up", "--max-late", "7d", script="echo $ROTA_SLOT_START")
    assert too_late.stdout == current.stdout


def test_a_mark_ahead_of_the_clock_is_never_a_success(cli):
    """W7."""
    assert cli.shell("job", "--every", "1h", script=":").returncode == 0
    with cli.client() as client:
        ahead = (time.time_ns() // 1000) + 50 * 86_400_000_000
        client.driver.override(Override("job", "mark", "a test", 10**12, ahead), 5.0)
    ended = cli.shell("job", "--every", "1h", "--quiet", script="echo ran >> log")
    assert ended.returncode == _codes.MARK_AHEAD
    assert "ahead of the store's time" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert cli.said("log") == []


def test_another_schedule_under_the_name_is_warned_of(cli):
    """W8."""
    assert cli.shell("job", "--every", "100d", script=":").returncode == 0
    changed = cli.shell("job", "--cron", "* * * * *", script=":")
    assert changed.returncode == 0
    assert "the schedule was 'every 100d'" in changed.stderr


def test_another_kind_under_the_name_is_a_usage_error(cli):
    """W8."""
    assert cli.shell("job", script=":").returncode == 0
    refused = cli.shell("job", "--every", "1h", script=":")
    assert (refused.returncode, "is kept as a lease, not as a window: give no schedule, use another name" in refused.stderr) == (2, True)
    assert cli.shell("nightly", "--every", "1h", script=":").returncode == 0
    assert (
        "is kept as a window, not as a lease: give its schedule (every 1h), use another name, or forget it"
        in cli("run", "nightly", "--", "true").stderr
    )
    assert cli.shell("once", "--once-per", "1h", script=":").returncode == 0
    assert "is kept as a rolling window, not as a lease: give its schedule (per 1h)" in cli("run", "once", "--", "true").stderr


def test_at_most_once_never_runs_a_slot_again_whatever_became_of_it(cli):
    """W3b: a kill of the wrapper is a crash; the slot stays closed after its lease has run out."""
    options = ("job", *ONCE_A_YEAR, "--ttl", "300ms")
    crashed = cli.start_shell(*options, "--at-most-once", script="touch started; sleep 60")
    cli.until(cli.file("started").exists)
    crashed.kill()
    cli.until(lambda: cli.record("job").expires_at < time.time_ns() // 1000)
    assert cli.shell(*options, "--strict", script="echo ran >> log").returncode == _codes.HANDLED
    assert cli.said("log") == []


# -- what the command finds


def test_the_commands_environment_names_the_run(cli):
    script = 'env | grep -E "^ROTA_(NAME|TOKEN|SLOT|ATTEMPT)" | sort'
    stale = {"ROTA_SLOT_START": "stale", "ROTA_SLOT_END": "stale", "ROTA_TOKEN": "stale", "ROTA_NAME": "stale", "ROTA_ATTEMPT": "stale"}
    url = {"ROTA_URL": cli.url + "?prefix=billing"}

    def found(*options):
        ended = cli.shell("job", *options, script=script, env={**stale, **url})
        assert ended.returncode == 0, ended
        return dict(line.split("=", 1) for line in ended.stdout.splitlines())

    lease = found()
    assert lease == {"ROTA_NAME": "job", "ROTA_TOKEN": str(cli.record("billing/job").token), "ROTA_ATTEMPT": "1"}
    with cli.client() as client:
        client.driver.forget("billing/job", 5.0)
    window = found("--cron", "30 2 1 1 *", "--tz", "Asia/Kolkata")
    year = at(window["ROTA_SLOT_START"]).astimezone(UTC).year
    assert window["ROTA_SLOT_START"] == f"{year}-12-31T21:00:00Z"
    assert window["ROTA_SLOT_END"] == f"{year + 1}-12-31T21:00:00Z"
    assert int(window["ROTA_TOKEN"]) > int(lease["ROTA_TOKEN"])
    with cli.client() as client:
        client.driver.forget("billing/job", 5.0)
    planned = found("--planned", datetime.now(UTC).isoformat())
    assert "ROTA_SLOT_END" not in planned
    assert at(planned["ROTA_SLOT_START"])


def test_environment_variables_are_defaults_that_the_command_line_overrides(cli):
    variables = {"ROTA_STRICT": "yes", "ROTA_SITE": "dc7", "ROTA_ATTEMPTS": "1", "ROTA_EARLY": "1s", "ROTA_ON_UNAVAILABLE": "skip"}
    assert cli.shell("job", *ONCE_A_YEAR, "--attempts", "2", script="exit 1", env=variables).returncode == 1
    assert cli.record("job").outcome == "failed"
    assert cli.shell("job", *ONCE_A_YEAR, script=":", env=variables).returncode == _codes.GAVE_UP
    assert cli.record("job").label.startswith("dc7 ")
    assert cli.shell("lease", script=":", env=variables).returncode == 0  # those that don't go with a lease are no error
    wrong = cli.shell("job", script=":", env={"ROTA_TTL": "soon"})
    assert (wrong.returncode, "ROTA_TTL='soon'" in wrong.stderr) == (2, True)


def test_quiet_says_nothing_of_a_skip_and_everything_of_a_failure(cli):
    assert cli.shell("job", *ONCE_A_YEAR, script=":").returncode == 0
    assert cli.shell("job", *ONCE_A_YEAR, "--quiet", script=":").stderr == ""
    assert cli("run", "job2", "--quiet", "--", "no-such-command").stderr != ""


# -- the store is away


def test_a_store_that_does_not_answer_is_unavailable_within_the_timeout(cli):
    """F1, F2: never a success, and never run unless told to."""
    assert cli.shell("job", *ONCE_A_YEAR, script="exit 1").returncode == 1
    with cli.locked():
        for options in ((), ("--on-unavailable", "raise"), ("--on-unavailable", "skip")):
            away = cli.shell("job", *ONCE_A_YEAR, *options, "--timeout", "200ms", script="echo ran >> log")
            assert away.returncode == _codes.UNAVAILABLE
            assert away.stderr.count("\n") == 1
            assert "job: " in away.stderr
            assert "locked" in away.stderr
        assert cli.said("log") == []


def test_a_run_without_the_store_is_said_loudly_and_written_back(cli):
    """F2, F3."""
    assert cli.shell("job", *ONCE_A_YEAR, script="exit 1").returncode == 1
    options = ("job", *ONCE_A_YEAR, "--on-unavailable", "run", "--timeout", "200ms")
    with cli.locked():
        ran = cli.start_shell(*options, script="env | grep ROTA_TOKEN; touch started; until test -e go; do sleep 0.02; done")
        cli.until(cli.file("started").exists)
    cli.file("go").touch()
    ended = cli.end(ran)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "without the store" in ended.stderr
    assert cli.record("job").mark is not None
    assert cli.shell(*options, "--strict", script=":").returncode == _codes.HANDLED


def test_a_run_without_the_store_that_stays_away_keeps_its_code_and_says_that_nobody_knows(cli):
    """F3: it was told to run nevertheless, so a retry would only run it again."""
    assert cli.shell("job", *ONCE_A_YEAR, script="exit 1").returncode == 1
    with cli.locked():
        ended = cli.shell("job", *ONCE_A_YEAR, "--on-unavailable", "run", "--timeout", "100ms", script="echo ran >> log")
    assert ended.returncode == 0
    assert cli.said("log") == ["ran"]
    assert "nobody else knows" in ended.stderr
