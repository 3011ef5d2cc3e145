# SPDX-License-Identifier: MIT
"""`--planned auto`: the planned instant as whoever started the run tells it."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from rota.cli import _planned

MINUTE = int(time.time()) // 60 - 3  # three minutes ago: a slot that has ended, which only a planned instant can name
AT = datetime.fromtimestamp(MINUTE * 60, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
ANNOTATION = "batch.kubernetes.io/cronjob-scheduled-timestamp"
#: With a limit that no test run reaches: a test may begin long after this file was read, and the usual one is ten minutes (W6).
AUTO = ("job", "--cron", "* * * * *", "--planned", "auto", "--max-late", "1d")
SLOT = "echo $ROTA_SLOT_START"


def found(cli, env, *options):
    return cli.shell(*AUTO, *options, script=SLOT, env=env)


@pytest.mark.parametrize(
    "env",
    [
        {"ROTA_PLANNED": AT},
        {"ROTA_PLANNED": str(MINUTE * 60)},
        {"ROTA_PLANNED": f" {MINUTE * 60}.5 "},
        {"ROTA_PLANNED": AT, "ROTA_JOB_NAME": "nightly-12345678"},
        {"ROTA_JOB_NAME": f"nightly-{MINUTE}"},
        {"ROTA_JOB_NAME": f"a-12345678-b-{MINUTE}"},
        {"ROTA_POD_NAME": f"nightly-{MINUTE}-x7k2p"},
        {"ROTA_POD_NAME": f"nightly-{MINUTE}-0-x7k2p"},  # an indexed Job's
        {"ROTA_POD_NAME": f"nightly-{MINUTE}-24567"},
    ],
    ids=lambda env: " ".join(env.values()).replace(str(MINUTE), "MINUTE").replace(AT, "AT"),
)
def test_the_instant_is_found_where_the_starter_put_it(cli, env):
    ended = found(cli, env)
    assert (ended.returncode, ended.stderr, ended.stdout) == (0, "", AT + "\n")


@pytest.mark.parametrize(
    "content",
    [
        f"{AT}\n",
        datetime.fromtimestamp(MINUTE * 60, UTC).isoformat(),
        f'{ANNOTATION}="{AT}"\n',
        f'checksum/config="a=b"\n{ANNOTATION}="{AT}"\nkubernetes.io/config.seen="2026-01-01T00:00:00.0Z"\n',
    ],
    ids=["instant", "offset", "annotation", "annotations"],
)
def test_the_instant_is_found_in_the_annotation_of_a_downward_api_file(cli, content):
    cli.file("annotations").write_text(content)
    ended = found(cli, {"ROTA_PLANNED_FILE": str(cli.file("annotations")), "ROTA_JOB_NAME": "nightly-manual"})
    assert (ended.returncode, ended.stderr, ended.stdout) == (0, "", AT + "\n")


@pytest.mark.parametrize(
    "env",
    [
        {"ROTA_JOB_NAME": "nightly-manual"},
        {"ROTA_JOB_NAME": "nightly"},
        {"ROTA_JOB_NAME": "nightly-20260226"},  # a date, made by hand: as minutes it is of 2008
        {"ROTA_JOB_NAME": f"nightly-{MINUTE}-again"},
        {"ROTA_JOB_NAME": f"nightly{MINUTE}"},
        {"ROTA_POD_NAME": "nightly-manual-x7k2p"},
        {"ROTA_POD_NAME": f"nightly-{MINUTE}"},
        {"ROTA_POD_NAME": f"nightly-{str(MINUTE)[:5]}24567"},  # cut off, as Kubernetes does with long names
        {"ROTA_JOB_NAME": "nightly-manual", "ROTA_POD_NAME": f"nightly-{MINUTE}-x7k2p"},  # what is said exactly counts
        {"ROTA_PLANNED": " "},
    ],
    ids=lambda env: " ".join(env.values()).replace(str(MINUTE), "MINUTE"),
)
def test_a_job_started_by_hand_has_no_planned_instant_and_runs_the_slot_of_the_stores_time(cli, env):
    before = int(time.time()) // 60 * 60
    ended = found(cli, env)
    assert ended.returncode == 0
    assert "no planned instant was found" in ended.stderr
    assert datetime.fromisoformat(ended.stdout.strip()).timestamp() in (before, before + 60)


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"ROTA_JOB_NAME": "nightly-manual"}, "ROTA_JOB_NAME=nightly-manual does not end as a CronJob's Job does, with -MINUTES"),
        (
            {"ROTA_POD_NAME": f"nightly-{MINUTE}-abcde"},
            f"ROTA_POD_NAME=nightly-{MINUTE}-abcde does not end as a pod of a CronJob's Job does, with -MINUTES-XXXXX",
        ),
        (
            {"ROTA_JOB_NAME": "nightly-20260226"},
            "ROTA_JOB_NAME=nightly-20260226: minute 20260226 since 1970 does not lie",
        ),
        ({}, "ROTA_PLANNED, ROTA_JOB_NAME and ROTA_POD_NAME are not set, and this host's name "),
    ],
    ids=["job", "pod", "date", "none"],
)
def test_what_was_passed_over_is_named_and_why(cli, env, why):
    for options, code in ((AUTO, 0), (("other", "--planned", "auto"), 2)):
        ended = cli.shell(*options, script=":", env=env)
        assert (ended.returncode, ended.stderr.count("\n")) == (code, 1)
        assert why in ended.stderr
        if "POD" in why:
            assert "of bcdfghjklmnpqrstvwxz2456789" in ended.stderr


def test_the_host_is_called_like_its_pod(monkeypatch):
    """Kubernetes gives a pod's containers its name as their host's."""
    for name in ("ROTA_PLANNED", "ROTA_PLANNED_FILE", "ROTA_JOB_NAME", "ROTA_POD_NAME"):
        monkeypatch.delenv(name, raising=False)
    for host, expected in (
        (f"nightly-{MINUTE}-x7k2p", str(MINUTE * 60)),
        ("web-7d4b9c6f5-x7k2p", None),
        (f"node-{MINUTE}", None),
        ("localhost", None),
    ):
        monkeypatch.setattr(_planned.os, "uname", lambda host=host: type("Uname", (), {"nodename": host}))
        instant, where = _planned.find()
        assert (instant, where == "the host's name") == (expected or "", expected is not None)


def test_minutes_far_from_now_are_a_number_in_a_name(monkeypatch):
    monkeypatch.delenv("ROTA_PLANNED", raising=False)
    now = int(time.time()) // 60
    for minute, counts in ((now, True), (now - 366 * 1440 - 3, False), (now - 365 * 1440, True), (now + 1500, False)):
        monkeypatch.setenv("ROTA_JOB_NAME", f"nightly-{minute}")
        assert bool(_planned.find()[0]) == counts


def test_options_of_either_case_may_be_given(cli):
    """Whether an instant is found is not known when the manifest is written."""
    options = ("--wait-early", "1m", "--early", "2s")
    assert found(cli, {"ROTA_JOB_NAME": f"nightly-{MINUTE}"}, *options).stdout == AT + "\n"
    assert found(cli, {"ROTA_JOB_NAME": "nightly-manual"}, *options).returncode == 0


def test_without_a_schedule_a_run_that_finds_no_instant_has_no_slot(cli):
    ended = cli.shell("job", "--planned", "auto", script=SLOT, env={"ROTA_JOB_NAME": "nightly-manual"})
    assert (ended.returncode, "found no planned instant" in ended.stderr) == (2, True)
    alone = cli.shell("job", "--planned", "auto", script=SLOT, env={"ROTA_JOB_NAME": f"nightly-{MINUTE}"})
    assert (alone.returncode, alone.stdout) == (0, AT + "\n")


def test_two_clusters_whose_clocks_differ_mean_the_same_slot(cli):
    """W5, W6: both Jobs were made for one instant, minutes apart."""
    env = {"ROTA_JOB_NAME": f"nightly-{MINUTE}"}
    first = cli.shell(*AUTO, "--site", "a", script="echo ran >> log", env=env)
    second = cli.shell(*AUTO, "--site", "b", script="echo ran >> log", env=env)
    assert (first.returncode, second.returncode) == (0, 0)
    assert "was handled by a " in second.stderr
    assert cli.said("log") == ["ran"]


def test_what_the_file_holds_must_be_an_instant(cli):
    cli.file("annotations").write_text("soon\n")
    ended = found(cli, {"ROTA_PLANNED_FILE": str(cli.file("annotations"))})
    assert ended.returncode == 2
    assert "'soon' is no instant" in ended.stderr
