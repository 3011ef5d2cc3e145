# SPDX-License-Identifier: MIT
"""`rota run` with ``?prefix=``: whatever it says, it says of the name as it was typed, which the operator's commands take, too."""

from __future__ import annotations

import json
import re
import time

import pytest
import rota
from rota.cli import _codes
from servers import read_line

ONCE_A_YEAR = ("--cron", "0 0 1 1 *")
HOLD = "touch started; until test -e go; do sleep 0.02; done"
PREFIX = "billing"


@pytest.fixture(autouse=True)
def url(cli) -> str:
    cli.environment["ROTA_URL"] = f"{cli.url}?prefix={PREFIX}"
    return cli.environment["ROTA_URL"]


def said(ended, *beginnings: str) -> list[dict]:
    """Return what it said, in JSON its events: each line begins as it should, and all of them speak of the name that was typed."""
    assert PREFIX not in ended.stderr
    lines = ended.stderr.splitlines()
    if ended.stderr[:1] == "{":
        events = [json.loads(line) for line in lines]
        assert {event["name"] for event in events if event["event"] != "note"} == {"inv"}
        lines = [f"rota: {event['message']}" for event in events if "message" in event]
    else:
        events = []
    assert len(lines) == len(beginnings), lines
    for line, beginning in zip(lines, beginnings, strict=True):
        assert line.startswith(f"rota: {beginning}"), line
    return events


@pytest.mark.parametrize("json", [(), ("--json",)], ids=["text", "json"])
def test_one_that_works_one_that_stands_by_and_one_that_is_skipped(cli, json):
    options = ("inv", *ONCE_A_YEAR, *json)
    holder = cli.start_shell(*options, script=f"echo $ROTA_NAME; {HOLD}")
    cli.until(cli.file("started").exists)
    standby = cli.start_shell(*options, script=":")
    first = read_line(standby.stderr)
    assert ("standing by: inv: " in first, PREFIX in first) == (True, False)
    assert not json or '"name": "inv"' in first
    said(cli.shell(*options, "--wait", "0s", script=":"), "skipped: inv: ")
    cli.file("go").touch()
    ended = cli.end(holder)
    said(ended)
    assert ended.stdout == "inv\n"
    said(cli.end(standby), "skipped: inv: ")


def test_another_kind_under_the_name_is_refused_with_a_hint_that_the_operators_commands_take(cli):
    assert cli.shell("inv", *ONCE_A_YEAR, script=":").returncode == 0
    ended = cli.shell("inv", script=":")
    assert ended.returncode == 2
    assert PREFIX not in ended.stderr
    assert "'inv' is kept as a window" in ended.stderr
    hint = re.search(r"rota (forget \S+)", ended.stderr)[1]
    assert cli(*hint.split(), "--yes").returncode == 0
    assert cli.shell("inv", script=":").returncode == 0


def test_in_python_the_hint_is_right_too_and_names_stay_whole(url):
    """Of two clients with prefixes of their own a refusal says whose name it is."""
    with rota.connect(url) as client:
        with client.window("inv", rota.Every("300d")) as grant:
            refused = client.try_window("inv", rota.Every("300d"))
        with pytest.raises(rota.ConfigurationError, match=r"'inv' is kept as a window, .* rota forget inv "):
            client.try_lease("inv")
    assert (grant.name, refused.name) == ("billing/inv", "billing/inv")
    assert refused.reason.startswith("billing/inv: ")


@pytest.mark.parametrize("json", [(), ("--json",)], ids=["text", "json"])
def test_a_lease_that_an_operator_took_away(cli, json):
    holder = cli.start_shell("inv", "--ttl", "60s", *json, script=HOLD)
    cli.until(cli.file("started").exists)
    assert cli("release", "inv", "--yes").returncode == 0
    cli.file("go").touch()
    ended = cli.end(holder)
    assert ended.returncode == _codes.LOST
    said(ended, "inv: 'released' was not recorded: ")


@pytest.mark.parametrize("json", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.by_the_clock
def test_a_lease_that_is_found_lost_at_a_renewal(cli, json):
    holder = cli.start_shell("inv", "--ttl", "1s", *json, script=HOLD)
    cli.until(cli.file("started").exists)
    assert cli("release", "inv", "--yes").returncode == 0
    said(cli.end(holder), "inv: the lease could not be kept", "inv: it was taken away")


@pytest.mark.parametrize("json", [(), ("--json",)], ids=["text", "json"])
def test_a_success_that_can_not_be_recorded_and_is_given_up(cli, json):
    process = cli.start_shell("inv", *ONCE_A_YEAR, "--ttl", "1s", "--timeout", "200ms", *json, script=HOLD)
    cli.until(cli.file("started").exists)
    with cli.locked():
        cli.file("go").touch()
        ended = cli.end(process)
    assert ended.returncode == _codes.UNRECORDED
    said(ended, "inv: the work is done", "inv: given up")


@pytest.mark.parametrize("json", [(), ("--json",)], ids=["text", "json"])
def test_a_run_without_the_store_and_a_store_that_can_not_be_asked(cli, json):
    options = ("inv", *ONCE_A_YEAR, "--timeout", "200ms", *json)
    with cli.locked():
        said(cli.shell(*options, "--on-unavailable", "run", script=":"), "inv: going ahead", "inv: the store is still away")
        said(cli.shell(*options, script=":"), "inv: not run")
        said(cli.shell(*options, "--on-unavailable", "skip", script=":"), "skipped: inv: the store can't be asked")


@pytest.mark.parametrize("json", [(), ("--json",)], ids=["text", "json"])
def test_what_a_winner_is_told(cli, json):
    """A command that is not there; then another schedule, slots that were missed, and that the slot is given up."""
    said(cli("run", "inv", *ONCE_A_YEAR, *json, "--", "no-such-command"), "inv: 'no-such-command' can't be run")
    assert cli.shell("inv", *ONCE_A_YEAR, script=":").returncode == 0
    ended = cli.shell("inv", "--every", "1h", "--attempts", "1", *json, script="exit 3")
    said(ended, "inv: the schedule was", "inv: gave up")
    assert cli("settle", "inv", "--mark", str(int(time.time()) - 3 * 3600), "--yes").returncode == 0
    ended = cli.shell("inv", "--every", "1h", *json, script=":")
    said(ended, "inv: ")
    assert "slots before this one were not handled" in ended.stderr


@pytest.mark.parametrize("name", ["ttl=soon", "every=5"])
def test_a_name_that_looks_like_an_option_stays_one(cli, name):
    assert cli.shell(name, *ONCE_A_YEAR, script=":").returncode == 0
    assert cli.shell(name, *ONCE_A_YEAR, script=":").stderr.startswith(f"rota: skipped: {name}: the slot")
