# SPDX-License-Identifier: MIT
"""`--json`: one event a line, from which a program can tell what happened and whose the exit code is."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from jsonschema import Draft202012Validator
from rota.cli import _codes
from rota.cli._topics import schema
from servers import read_line

ONCE_A_YEAR = ("--cron", "0 0 1 1 *")
HOLD = "touch started; until test -e go; do sleep 0.02; done"
SCHEMA = Draft202012Validator(json.loads(schema("run")))
KEYS = {event["properties"]["event"]["const"]: event["properties"].keys() for event in SCHEMA.schema["oneOf"]}


def events(ended) -> list[dict]:
    found = [json.loads(line) for line in ended.stderr.splitlines()]
    for event in found:
        SCHEMA.validate(event)
        assert event.keys() <= KEYS[event["event"]] | {"at"}
        assert datetime.fromisoformat(event.pop("at")).tzinfo is not None
    return found


def test_a_run_is_told_from_the_grant_to_the_exit(cli):
    ended = cli.shell("job", *ONCE_A_YEAR, "--json", script="echo out; exit 116")
    assert (ended.returncode, ended.stdout) == (116, "out\n")
    granted, settled, over = events(ended)
    record = cli.record("job")
    assert granted["event"] == "granted"
    assert (granted["name"], granted["token"], granted["attempt"]) == ("job", record.token, 1)
    assert datetime.fromisoformat(granted["slot_start"]).timestamp() == record.slot_start / 1e6
    assert datetime.fromisoformat(granted["slot_end"]).timestamp() == record.slot_end / 1e6
    assert settled == {"event": "settled", "name": "job", "outcome": "failed"}
    assert over == {"event": "exit", "name": "job", "code": 116, "by": "command"}


def test_a_code_of_rota_is_told_from_the_same_number_of_a_command(cli):
    holder = cli.start_shell("job", "--json", script=HOLD)
    cli.until(cli.file("started").exists)
    busy = events(cli.shell("job", "--json", "--quiet", script=":"))
    assert [event["event"] for event in busy] == ["skipped", "exit"]
    assert busy[0]["verdict"] == "busy"
    assert "has held it since" in busy[0]["message"]
    assert busy[1] == {"event": "exit", "name": "job", "code": _codes.BUSY, "by": "rota", "word": "busy"}
    cli.file("go").touch()
    assert cli.end(holder).returncode == 0
    own = events(cli.shell("job", "--json", script=f"exit {_codes.BUSY}"))
    assert own[-1] == {"event": "exit", "name": "job", "code": _codes.BUSY, "by": "command"}


@pytest.mark.by_the_clock
def test_waiting_skipping_and_losing_are_events(cli):
    holder = cli.start_shell("job", *ONCE_A_YEAR, "--json", script=HOLD)
    cli.until(cli.file("started").exists)
    standby = cli.start_shell("job", *ONCE_A_YEAR, script=":", env={"ROTA_JSON": "true"})
    first = json.loads(read_line(standby.stderr))
    assert (first["event"], first["verdict"]) == ("waiting", "busy")
    cli.file("go").touch()
    assert events(cli.end(holder))[-1]["by"] == "command"
    skipped, over = events(cli.end(standby))
    assert (skipped["event"], skipped["verdict"], skipped["how"]) == ("skipped", "handled", "done")
    assert over == {"event": "exit", "name": "job", "code": 0, "by": "rota"}
    lost = cli.start_shell("lease", "--json", "--ttl", "600ms", script="touch again; sleep 60")
    cli.until(cli.file("again").exists)
    with cli.locked():
        found = events(cli.end(lost))
    assert [event["event"] for event in found] == ["granted", "lost", "exit"]
    assert (found[-1]["code"], found[-1]["word"]) == (_codes.LOST, "lost")


@pytest.mark.parametrize(
    ("options", "code", "word"),
    [
        (("job", "--evry", "1h"), 2, "usage"),
        (("job", "--ttl", "soon"), 2, "usage"),
        (("job", "--url", "nosuch://user:secret@host"), 2, "usage"),
        (("job", "--every", "1s", "--planned", "1767225600"), _codes.LATE, "late"),
        (("job", "--planned", "4102444800"), _codes.EARLY, "early"),
    ],
)
def test_each_line_is_json_whatever_goes_wrong(cli, options, code, word):
    ended = cli.shell(*options, "--json", script=":")
    found = events(ended)
    assert ended.returncode == code
    assert {key: found[-1][key] for key in ("event", "code", "by", "word")} == {"event": "exit", "code": code, "by": "rota", "word": word}
    assert all(event["message"] for event in found[:-1])
    assert "secret" not in ended.stderr


def test_a_command_that_cannot_be_run_and_a_signal_before_it_are_rotas(cli):
    found = events(cli("run", "job", "--json", "--", "no-such-command"))
    assert [event["event"] for event in found] == ["granted", "note", "settled", "exit"]
    assert found[2]["outcome"] == "unused"
    assert (found[-1]["code"], found[-1]["by"], found[-1]["word"]) == (127, "rota", "not found")
    waiter = cli.start_shell("job", "--json", "--standby", "60s", script=":")
    assert json.loads(read_line(waiter.stderr))["event"] == "waiting"
    waiter.terminate()
    (over,) = events(cli.end(waiter))
    assert (over["code"], over["by"]) == (143, "rota")


def test_a_success_that_is_not_recorded_is_rotas_word(cli):
    process = cli.start_shell("job", *ONCE_A_YEAR, "--json", "--ttl", "1s", "--timeout", "200ms", script=HOLD)
    cli.until(cli.file("started").exists)
    with cli.locked():
        cli.file("go").touch()
        found = events(cli.end(process))
    assert (found[-1]["code"], found[-1]["by"], found[-1]["word"]) == (_codes.UNRECORDED, "rota", "unrecorded")
    assert outcome(found) == "unrecorded"


# -- what the store has of it


def outcome(found: list[dict]) -> str:
    (settled,) = [event for event in found if event["event"] == "settled"]
    return settled["outcome"]


@pytest.mark.parametrize("kind", [ONCE_A_YEAR, ("--once-per", "300d"), ()])
def test_what_the_store_was_not_told_of_is_unrecorded(cli, kind):
    """F3: a run without a store that stays away, whatever it comes to."""
    for script, code in (("exit 7", 7), (":", 0)):
        with cli.locked():
            ended = cli.shell("job", *kind, "--on-unavailable", "run", "--timeout", "200ms", "--json", script=script)
        found = events(ended)
        assert (ended.returncode, found[-1]["by"]) == (code, "command")
        assert outcome(found) == "unrecorded"
        assert cli.record("job") is None


@pytest.mark.parametrize("kind", [ONCE_A_YEAR, ("--once-per", "300d")])
def test_what_the_store_was_told_of_when_it_was_back_is_handled(cli, kind):
    """F3: and `rota show` knows why the next one is not run."""
    with cli.locked():
        process = cli.start_shell(
            "job",
            *kind,
            "--on-unavailable",
            "run",
            "--timeout",
            "2s",
            "--json",
            script=HOLD,
        )
        cli.until(cli.file("started").exists)
    cli.file("go").touch()
    assert outcome(events(cli.end(process))) == "handled"
    assert cli.record("job").outcome == "degraded"
    shown = json.loads(cli("show", "job", "--json").stdout)
    assert (shown["verdict"], shown["how"]) == ("handled", "done")


def test_a_failure_that_is_not_confirmed_is_not_said_to_be_in_the_store(cli):
    process = cli.start_shell("job", *ONCE_A_YEAR, "--timeout", "200ms", "--json", script=HOLD + "; exit 9")
    cli.until(cli.file("started").exists)
    with cli.locked():
        cli.file("go").touch()
        ended = cli.end(process)
    assert (ended.returncode, outcome(events(ended))) == (9, "unrecorded")


@pytest.mark.parametrize("kind", [ONCE_A_YEAR, ()])
def test_a_grant_that_an_operator_took_away_meanwhile_is_lost(cli, kind):
    """L4: before a renewal could tell."""
    process = cli.start_shell("job", *kind, "--ttl", "60s", "--json", script=HOLD)
    cli.until(cli.file("started").exists)
    assert cli("release", "job", "--yes", "--why", "node 7 is gone").returncode == 0
    cli.file("go").touch()
    found = events(cli.end(process))
    assert outcome(found) == "lost"
    assert "it was taken away by an operator, " in found[1]["message"]
    assert found[1]["message"].endswith(": node 7 is gone")
    assert (found[-1]["code"], found[-1]["word"]) == (_codes.LOST, "lost")
