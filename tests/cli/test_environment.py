# SPDX-License-Identifier: MIT
"""What `rota run` takes from its environment: the schedule too, and never an empty store."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import rota
from rota.cli._variables import KNOWN
from rota.schedule import iso


@pytest.mark.parametrize(
    "schedule", [{"ROTA_EVERY": "1h"}, {"ROTA_CRON": "0 0 1 1 *", "ROTA_TZ": "Europe/Berlin"}, {"ROTA_ONCE_PER": "1h"}], ids=str
)
def test_a_schedule_in_the_environment_counts(cli: Any, schedule: dict[str, str]) -> None:
    for ran in ("ran\n", ""):
        ended = cli("run", "job", "--", "echo", "ran", env=schedule)
        assert (ended.returncode, ended.stdout) == (0, ran), ended.stderr


def test_the_command_line_comes_before_the_environment(cli: Any) -> None:
    """A schedule of another kind is no contradiction, and a zone without an expression is none."""
    for ran in ("ran\n", ""):
        ended = cli("run", "job", "--every", "1h", "--", "echo", "ran", env={"ROTA_CRON": "nonsense", "ROTA_TZ": "Nowhere"})
        assert (ended.returncode, ended.stdout) == (0, ran), ended.stderr


def test_an_anchor_is_pythons_wherever_it_is_said(cli: Any) -> None:
    """The slot, the schedule in the record, and what is handled are those of `rota.Every` (W11)."""
    monday = rota.Every("7d", anchor="2026-01-05T06:00:00Z")
    said = [
        (("--every", "7d", "--anchor", "2026-01-05T06:00:00Z"), {}),
        (("--every", "7d"), {"ROTA_ANCHOR": "2026-01-05T07:00:00+01:00"}),
        (("--anchor", "1767592800"), {"ROTA_EVERY": "7d", "ROTA_ANCHOR": "nonsense"}),
        ((), {"ROTA_EVERY": "168h", "ROTA_ANCHOR": "2030-01-07T06:00:00Z"}),
    ]
    for number, (options, environment) in enumerate(said):
        name = f"job-{number}"
        slot = monday.slot(datetime.now(UTC))
        ended = cli("run", name, *options, "--", "sh", "-c", "echo $ROTA_SLOT_START $ROTA_SLOT_END", env=environment)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout.split() == [iso(slot.start), iso(slot.end)]
        (shown,) = [json.loads(line) for line in cli("show", name, "--json").stdout.splitlines()]
        assert (shown["schedule"], shown["verdict"]) == (monday.canonical, "handled")
        assert [shown[key] for key in ("current_start", "asked_start", "asked_end")] == [iso(slot.start), iso(slot.start), iso(slot.end)]
        with cli.client() as client:
            refused = client.try_window(name, monday)
            assert (refused.verdict, refused.how, refused.slot) == ("handled", "done", slot)


def test_an_anchor_in_the_environment_leaves_other_schedules_alone(cli: Any) -> None:
    """One set of variables may serve many jobs."""
    for name, options in (("lease", ()), ("once", ("--once-per", "1h")), ("cron", ("--cron", "@daily"))):
        ended = cli("run", name, *options, "--", "echo", "ran", env={"ROTA_ANCHOR": "nonsense"})
        assert (ended.returncode, ended.stdout) == (0, "ran\n"), ended.stderr


def test_an_empty_store_in_the_environment_is_refused(cli: Any) -> None:
    """An unset variable of a crontab must not make a job run uncoordinated."""
    ended = cli("run", "job", "--every", "1h", "--", "echo", "ran", env={"ROTA_URL": ""})
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "ROTA_URL is empty" in ended.stderr


ONE_OFF = [("EVERYY", "EVERY"), ("EVRY", "EVERY"), ("URI", "URL"), ("ULR", "URL"), ("ON_UNAVAILBLE", "ON_UNAVAILABLE"), ("TZZ", "TZ")]


@pytest.mark.parametrize(("wrong", "right"), ONE_OFF)
def test_a_variable_that_is_one_letter_off_is_refused_as_an_option_is(cli: Any, wrong: str, right: str) -> None:
    """Else a job would run as something else: without a schedule, at each start; without its store, uncoordinated."""
    told = f"rota: ROTA_{wrong} is no variable that rota reads: did you mean ROTA_{right}?"
    ended = cli("run", "job", "--quiet", "--", "echo", "ran", env={f"ROTA_{wrong}": "1h"})
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"{told} One of another program is kept from rota by env -u ROTA_{wrong}\n"
    assert not cli.path.exists()
    cli.make()
    looked = cli("ls", env={f"ROTA_{wrong}": "1h"})
    assert looked.returncode == (2 if right == "URL" else 0)  # the only one of them that it reads
    assert looked.stderr.startswith(told)


@pytest.mark.parametrize(("wrong", "right"), [("EVERYDAY", "EVERY"), ("ONCEPR", "ONCE_PER"), ("NAMES", "NAME"), ("TOKEN2", "TOKEN")])
def test_a_variable_that_is_further_off_or_near_one_that_a_command_is_given_is_told(cli: Any, wrong: str, right: str) -> None:
    """It may be another program's."""
    told = f"rota: ROTA_{wrong} is no variable that rota reads: did you mean ROTA_{right}?\n"
    ended = cli("run", "job", "--", "echo", "ran", env={f"ROTA_{wrong}": "1h"})
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ran\n", told)
    assert cli("ls", env={f"ROTA_{wrong}": "1h"}).stderr == told


def test_the_variables_of_others_are_left_alone(cli: Any) -> None:
    """Kubernetes tells each pod of its services: of one called rota, too."""
    others = {
        "ROTA_PORT": "tcp://10.0.0.1:80",
        "ROTA_PORT_80_TCP": "tcp://10.0.0.1:80",
        "ROTA_PORT_80_TCP_ADDR": "10.0.0.1",
        "ROTA_PORT_80_TCP_PORT": "80",
        "ROTA_PORT_80_TCP_PROTO": "tcp",
        "ROTA_SERVICE_HOST": "10.0.0.1",
        "ROTA_SERVICE_PORT": "80",
        "ROTA_SERVICE_PORT_HTTP": "80",
        "ROTA_URL_PORT": "tcp://10.0.0.2:80",  # of one called rota-url
        "ROTA_URL_SERVICE_HOST": "10.0.0.2",
        "ROTA_URL_SERVICE_PORT": "80",
        "ROTA_HOME": "/srv/rota",
    }
    for words in (("run", "job", "--every", "1h", "--", "true"), ("ls",)):
        ended = cli(*words, env=others)
        assert (ended.returncode, ended.stderr) == (0, "")
    inner = cli(
        "run", "outer", "--ttl", "20s", "--", *cli.command, "run", "other", "--", "true", env=others
    )  # what a command finds is known
    assert (inner.returncode, inner.stderr) == (0, "")


def test_every_variable_that_is_read_is_known() -> None:
    read = {name for file in Path(rota.__file__).parent.rglob("*.py") for name in re.findall(r"ROTA_[A-Z]+(?:_[A-Z]+)*", file.read_text())}
    assert read - {"ROTA_PORT", "ROTA_SERVICE_HOST"} <= KNOWN
