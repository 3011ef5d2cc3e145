# SPDX-License-Identifier: MIT
"""Wrong command lines: exit 2, one line that names the culprit, no traceback, no secret, nothing run and nothing written."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys

import pytest
import rota
from rota.cli import _HELP
from rota.cli._options import OPTIONS, WHEN, read, variable

# a word of the message, the environment, and the command line without its `-- touch ran`; * stands for what has no --
BAD = [
    ("NAME", {}, []),
    ("takes no NAME that begins with a dash", {}, ["*", "--", "-job", "--every", "1h", "--", "touch", "ran"]),
    ("-- is missing", {}, ["*", "job"]),
    ("-- is missing", {}, ["*", "job", "touch", "ran"]),
    ("-- is missing", {}, ["*", "job", "--every", "1h", "touch", "ran"]),
    ("the command is missing", {}, ["*", "job", "--"]),
    ("'extra' is one word too many", {}, ["job", "extra"]),
    ("--evry: did you mean '--every'?", {}, ["job", "--evry", "1h"]),
    ("no option -x", {}, ["job", "-x"]),
    ("--every needs a value", {}, ["job", "--every"]),
    ("--every needs a value", {}, ["job", "--every", "--strict"]),
    ("--url is given twice", {}, ["job", "--url", "sqlite:///a.db", "--url", "sqlite:///b.db"]),
    ("--ttl is given twice", {}, ["job", "--ttl=1s", "--ttl", "2s"]),
    ("--strict takes no value", {}, ["job", "--strict=secret"]),
    ("--cron and --every are two schedules", {}, ["job", "--cron", "@daily", "--every", "1h"]),
    ("--every and --once-per are two schedules", {}, ["job", "--every", "1h", "--once-per", "1h"]),
    ("--tz goes with --cron", {}, ["job", "--every", "1h", "--tz", "UTC"]),
    ("--tz goes with --cron", {}, ["job", "--tz", "UTC"]),
    ("--tz goes with --cron", {"ROTA_TZ": "UTC"}, ["job", "--every", "1h", "--tz", "UTC"]),
    ("--anchor goes with --every", {}, ["job", "--anchor", "2026-01-05T06:00:00Z"]),
    ("--anchor goes with --every", {}, ["job", "--cron", "@daily", "--anchor", "2026-01-05T06:00:00Z"]),
    ("--anchor goes with --every", {"ROTA_EVERY": "7d"}, ["job", "--once-per", "1h", "--anchor", "2026-01-05T06:00:00Z"]),
    ("--anchor goes with --every", {}, ["job", "--planned", "1767225600", "--anchor", "0"]),
    ("--anchor needs a value, as in --anchor T", {}, ["job", "--every", "7d", "--anchor"]),
    ("--anchor='2026-01-05' has no time zone", {}, ["job", "--every", "7d", "--anchor", "2026-01-05"]),
    ("--anchor='20260105' may be a date", {}, ["job", "--every", "7d", "--anchor", "20260105"]),
    ("--anchor='soon' is no instant: give 2026-02-26T00:07:00Z or seconds", {}, ["job", "--every", "7d", "--anchor", "soon"]),
    ("--anchor='-5' is no instant", {}, ["job", "--every", "7d", "--anchor", "-5"]),
    ("--anchor='' is no instant", {}, ["job", "--every", "7d", "--anchor", ""]),
    ("--anchor='1969-12-31T00:00:00Z' is not between", {}, ["job", "--every", "7d", "--anchor", "1969-12-31T00:00:00Z"]),
    ("ROTA_ANCHOR='soon' is no instant", {"ROTA_ANCHOR": "soon"}, ["job", "--every", "7d"]),
    ("--planned goes with", {}, ["job", "--once-per", "1h", "--planned", "2026-01-01T00:00:00Z"]),
    ("--early goes with", {}, ["job", "--early", "1s"]),
    ("early='61s' is more", {}, ["job", "--every", "1h", "--early", "61s"]),
    ("--wait-early goes with --planned", {}, ["job", "--every", "1h", "--wait-early", "1s"]),
    ("--overlap needs --at-most-once", {}, ["job", "--every", "1h", "--overlap"]),
    ("--catch-up goes with --cron or --every", {}, ["job", "--once-per", "1h", "--catch-up"]),
    ("--overlap goes with", {}, ["job", "--once-per", "1h", "--overlap", "--at-most-once"]),
    ("--attempts counts retries", {}, ["job", "--every", "1h", "--at-most-once", "--attempts", "2"]),
    ("--standby='soon'", {}, ["job", "--standby", "soon"]),
    ("--jitter='-1s'", {}, ["job", "--jitter=-1s"]),
    ("--catch-up goes with --cron or --every, without --planned", {}, ["job", "--every", "1h", "--planned", "1767225600", "--catch-up"]),
    ("--max-late goes with", {}, ["job", "--once-per", "1h", "--max-late", "1m"]),
    ("--attempts goes with", {}, ["job", "--attempts", "2"]),
    ("--at-most-once goes with", {}, ["job", "--at-most-once"]),
    ("--attempts='0'", {}, ["job", "--every", "1h", "--attempts", "0"]),
    ("--attempts='1.5'", {}, ["job", "--every", "1h", "--attempts", "1.5"]),
    ("--every='10' has no unit", {}, ["job", "--every", "10"]),
    ("ROTA_EVERY='10' has no unit", {"ROTA_EVERY": "10"}, ["job"]),
    ("--every='abc' is not a duration: write it with units, such as", {}, ["job", "--every", "abc"]),
    ("--once-per='abc' is not a duration: write it with units, such as", {}, ["job", "--once-per", "abc"]),
    ("--every='1us' is less", {}, ["job", "--every", "1us"]),
    ("--every='-1h' must be more than zero", {}, ["job", "--every", "-1h"]),
    ("--wait='-5s' must be zero or more", {}, ["job", "--wait", "-5s"]),
    ("--ttl='0s' must be more than zero", {}, ["job", "--ttl", "0s"]),
    ("--timeout='0s' must be more than zero", {}, ["job", "--timeout", "0s"]),
    ("--attempts='-1' must be a whole number from 1 up", {}, ["job", "--every", "1h", "--attempts", "-1"]),
    ("--ttl='1ms' is under", {}, ["job", "--ttl", "1ms"]),
    ("--on-unavailable='wait' must be raise, skip or run", {}, ["job", "--on-unavailable", "wait"]),
    ("--planned='2026-03-27' has no time zone: end it in Z or +01:00, as in 2026-03-27T00:00:00Z", {}, ["job", "--planned", "2026-03-27"]),
    ("--planned='soon' is no instant: give 2026-02-26T00:07:00Z or seconds", {}, ["job", "--planned", "soon"]),
    ("did you mean '--every'? (see rota run --help)", {}, ["job", "--evry", "1h"]),
    ("every='0s'", {}, ["job", "--every", "0s"]),
    ("per='nan'", {}, ["job", "--once-per", "nan"]),
    ("once_per is empty|per is empty", {}, ["job", "--once-per", ""]),
    ("--ttl='30'", {}, ["job", "--ttl", "30"]),
    ("--ttl='-5s' must be more than zero", {}, ["job", "--ttl", "-5s"]),
    ("--ttl='-5s'", {}, ["job", "--ttl=-5s"]),
    ("ttl='0s'", {}, ["job", "--ttl", "0s"]),
    ("ttl='1ms'", {}, ["job", "--ttl", "1ms"]),
    ("grace 29s", {}, ["job", "--ttl", "30s", "--grace", "29s"]),
    ("--wait='whenever'", {}, ["job", "--wait", "whenever"]),
    ("--timeout='inf'", {}, ["job", "--timeout", "inf"]),
    ("--on-unavailable='stop' must be raise, skip or run", {}, ["job", "--on-unavailable", "stop"]),
    ("0 0 31 2 *", {}, ["job", "--cron", "0 0 31 2 *"]),
    ("0 0 * * * *", {}, ["job", "--cron", "0 0 * * * *"]),
    ("@reboot", {}, ["job", "--cron", "@reboot"]),
    ("R", {}, ["job", "--cron", "R 0 * * *"]),
    ("Europe/Berln", {}, ["job", "--cron", "@daily", "--tz", "Europe/Berln"]),
    ("Europe/Berlin", {}, ["job", "--cron", "@daily", "--tz", '"Europe/Berlin"']),
    ("planned='2026-01-01T00:00:00' has no time zone", {}, ["job", "--planned", "2026-01-01T00:00:00"]),
    ("planned='tomorrow'", {}, ["job", "--planned", "tomorrow"]),
    ("planned=''", {}, ["job", "--planned", ""]),
    ("ROTA_PLANNED='tomorrow'", {"ROTA_PLANNED": "tomorrow"}, ["job", "--planned", "auto"]),
    ("ROTA_PLANNED=auto", {"ROTA_PLANNED": "auto"}, ["job", "--planned", "auto"]),
    ("ROTA_PLANNED_FILE=/nowhere can't be read", {"ROTA_PLANNED_FILE": "/nowhere"}, ["job", "--planned", "auto"]),
    ("found no planned instant", {}, ["job", "--planned", "auto"]),
    ("name is empty", {}, [""]),
    ("name", {}, ["x" * 300]),
    ("name 'a\\tb' holds a control character", {}, ["a\tb"]),
    ("site", {}, ["job", "--site", "s" * 65]),
    ("--url is empty", {}, ["job", "--url", ""]),
    ("starts with a scheme", {}, ["job", "--url", "user:secret@host"]),
    ("no backend is called nosuch", {}, ["job", "--url", "nosuch://user:secret@host/db"]),
    ("no option 'pasword'", {}, ["job", "--url", "sqlite:///tmp/x.db?pasword=secret"]),
    ("--ulr: did you mean '--url'?", {}, ["job", "--ulr", "postgresql://user:secret@host/db"]),
    ("--ulr: did you mean '--url'?", {}, ["job", "--ulr=postgresql://user:secret@host/db"]),
    ("one word too many", {}, ["job", "postgresql://user:secret@host/db"]),
    ("sqlite:///absolute/path", {}, ["job", "--url", "sqlite://relative.db"]),
    ("'true' is one word too many: --busy-ok takes no value; see", {}, ["job", "--busy-ok", "true"]),
    (
        "'latest' is one word too many: --catch-up takes no value, and is what catch_up=\"latest\" is in Python;",
        {},
        ["job", "--catch-up", "latest"],
    ),
    ('--catch-up takes no value, and is what catch_up="latest" is in Python;', {}, ["job", "--every", "1h", "--catch-up=latest"]),
    ("ROTA_CATCH_UP='latest' must be true or false: true is what", {"ROTA_CATCH_UP": "latest"}, ["job", "--every", "1h"]),
    ("ROTA_STRICT='maybe'", {"ROTA_STRICT": "maybe"}, ["job"]),
    ("ROTA_WAIT='5'", {"ROTA_WAIT": "5"}, ["job"]),
    ("starts with a scheme", {"ROTA_URL": "secret"}, ["job"]),
]


@pytest.mark.parametrize(("word", "env", "line"), BAD, ids=[" ".join(line).replace("/", "|")[:60] or "nothing" for _, _, line in BAD])
def test_a_wrong_command_line_is_refused_before_anything_is_done(cli, word, env, line):
    given = line[1:] if line[:1] == ["*"] else [*line, "--", "touch", "ran"]
    ended = cli("run", *given, env=env)
    assert ended.returncode == 2
    assert any(part in ended.stderr for part in word.split("|")), ended.stderr
    assert ended.stderr.startswith("rota: ")
    assert ended.stderr.count("\n") == 1
    assert "secret" not in ended.stderr
    assert ended.stdout == ""
    assert not cli.file("ran").exists()
    assert not cli.path.exists()


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ([], "a command is needed"),
        (["rnu"], "did you mean 'run'?"),
        (["--nonsense"], "no command '--nonsense'"),
        (["backends", "x"], "one word too many"),
    ],
)
def test_a_wrong_subcommand_is_refused(cli, given, word):
    ended = cli(*given)
    assert ended.returncode == 2
    assert word in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_options_may_stand_anywhere_before_the_double_dash_and_have_their_value_either_way():
    for line in (
        ["--cron", "0 2 * * *", "job", "--strict", "--url=sqlite:///x?a=b", "--strict"],
        ["job", "--url", "sqlite:///x?a=b", "--cron=0 2 * * *", "--strict"],
    ):
        given = {name: value for name, value in read(line).items() if value is not None}
        assert given == {"name": "job", "cron": "0 2 * * *", "url": "sqlite:///x?a=b", "strict": True}


COMMANDS = ["", *re.findall(r"^  rota (\w+)", _HELP, re.MULTILINE)]


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "help"])
def test_the_help_of_each_command_fits_a_screen_and_gives_an_example(cli, command):
    ended = cli(*filter(None, [command]), "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert "docs/" not in ended.stdout  # which whoever has the package alone has not
    assert not re.search(r"\((?:\d+\w*|UTC|default.*)\)", ended.stdout)  # defaults stand in [...]
    if command:
        assert re.search(rf"^  .*\brota {command}\b", ended.stdout, re.MULTILINE)
        assert "Exit codes: " in ended.stdout
        assert f"\n  rota {command} " in cli("--help").stdout


def test_an_example_of_each_help_works_when_it_is_pasted(cli):
    """Those that a shell takes as they are, on a store that has what they name."""
    script = cli.file("rota")
    script.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m rota \"$@\"\n")
    script.chmod(0o755)
    with cli.client() as client:
        client.try_lease("billing/a").release()
    pasted = 0
    for command in ("ls", "show", "history", "settle", "release", "next", "backends", "completion", "forget"):
        examples = re.findall(
            rf"^  (?:eval \"\$\()?(rota {command}\b[^(>)]*?)(?:  .*|\)\".*|>.*)?$", cli(command, "--help").stdout, re.MULTILINE
        )
        assert examples, command
        for example in examples:
            with cli.client() as client:
                held = client.try_window("nightly", rota.Every("1d"))
                yes = " --yes" if command in ("release", "settle", "forget") else ""
                ended = subprocess.run(
                    ["bash", "-c", example + yes],
                    env={**cli.environment, "PATH": f"{cli.folder}:{os.environ['PATH']}"},
                    cwd=cli.folder,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=60,
                )
                assert (ended.returncode, ended.stderr) == (0, ""), example
                assert ended.stdout
                if held and not held.lost:
                    with contextlib.suppress(rota.LeaseLost):
                        held.failed()
            pasted += 1
    assert pasted >= 12


def test_all_of_run_is_said_by_its_help(cli):
    from rota.cli._codes import TABLE

    for given in (("run", "job", "-h", "--", "x"), ("run", "-h"), ("run", "job", "--every", "1h", "--help")):
        assert cli(*given).stdout == cli("run", "--help").stdout
    ended = cli("help", "run")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert max(map(len, ended.stdout.splitlines())) <= 80
    flat = " ".join(ended.stdout.split())
    for code, word, _ in TABLE:
        assert f"{code} {word}" in flat
    for option in (*WHEN, *OPTIONS):
        assert f"\n  {option.flag} " in ended.stdout
    for name in ("ROTA_NAME", "ROTA_TOKEN", "ROTA_SLOT_START", "ROTA_SLOT_END", "ROTA_ATTEMPT"):
        assert name in flat


def test_a_job_is_protected_by_what_the_help_shows(cli):
    """Its one example, with another command."""
    (line,) = [line for line in cli("run", "--help").stdout.splitlines() if "rota run nightly" in line]
    schedule, command = line.split("  rota ")
    words = shlex.split(command.replace("/srv/backup", "sh -c 'echo ran >> log'"))
    assert words[words.index("--cron") + 1] == schedule.strip()
    assert [cli(*words).returncode for _ in range(2)] == [0, 0]
    assert cli.said("log") == ["ran"]


def test_every_option_has_a_variable(cli):
    """A chart sets them; a wrong one is refused in the variable's name."""
    for option in OPTIONS:
        wrong = "maybe" if option.metavar is None else {"DUR": "soon", "N": "none", "NAME": "n" * 65}.get(option.metavar, "wrong")
        when = ("--every", "1h") if "s" in option.kinds else ("--planned", "1767225600")
        ended = cli("run", "job", *when, "--", "touch", "ran", env={variable(option): wrong})
        assert ended.returncode == 2, option.flag
        assert wrong[:20] in ended.stderr or option.name == "url", ended.stderr
    assert not cli.file("ran").exists()


def test_the_version_is_the_packages(cli):
    assert cli("--version").stdout == f"rota {rota.__version__}\n"


def test_backends_lists_what_is_there_and_how_to_get_the_rest(cli):
    import json

    shown = cli("backends")
    assert shown.returncode == 0
    rows = {row["scheme"]: row for row in json.loads(cli("backends", "--json").stdout)}
    assert rows["sqlite"] == {"scheme": "sqlite", "distribution": "rota", "installed": True, "install": None}
    for scheme, row in rows.items():
        assert scheme + "://" in shown.stdout
        assert row["installed"] or row["install"].startswith("pip install ")
    assert {"memory", "sqlite", "postgresql", "redis", "zookeeper", "etcd"} <= rows.keys()


@pytest.mark.parametrize("given", [("run", "--help"), ("--version",), ("backends",), ("run", "job", "--", "true"), ("run",)])
def test_output_that_nobody_reads_is_no_error(cli, given):
    for streams in ({"stdout"}, {"stderr"}, {"stdout", "stderr"}):
        reading, writing = os.pipe()
        os.close(reading)
        process = cli.start(*given, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **dict.fromkeys(streams, writing)})
        os.close(writing)
        assert cli.end(process).returncode == (2 if given == ("run",) else 0)


def test_closed_standard_files_are_no_error_and_reach_no_other_file(cli):
    look = "for f in 0 1 2; do test -e /proc/$$/fd/$f && echo $f; done > open"
    command = f"exec '{sys.executable}' -m rota run job --every 300d -- sh -c '{look}' <&- >&- 2>&-"
    for _ in range(2):  # the second has something to say
        assert subprocess.run(["sh", "-c", command], env=cli.environment, cwd=cli.folder, check=False, timeout=30).returncode == 0
    assert cli.said("open") == ["0", "1", "2"]
    with cli.client() as client:
        assert client.driver.facts(5.0)["records"] == 1  # the file is whole


@pytest.mark.parametrize("command", ["doctor", "bench", "conform", "schema", "init"])
def test_the_store_may_be_named_as_the_other_commands_name_it(cli, command):
    named = cli(command, "--url", "sqlte:///x.db", env={"ROTA_URL": None})
    assert (named.returncode, "did you mean 'sqlite'" in named.stderr) == (2, True)
    twice = cli(command, cli.url, "--url", cli.url)
    assert (twice.returncode, twice.stderr) == (2, f"rota: the URL is given twice; see rota {command} --help\n")


@pytest.mark.parametrize("command", ["conform", "schema", "init"])
def test_a_store_that_has_to_be_named_is_asked_for(cli, command):
    for given, missing in ((None, "URL is missing"), ("", "ROTA_URL is empty")):
        ended = cli(command, env={"ROTA_URL": given})
        told = f"rota: {missing}: name the store, by a word or by ROTA_URL; see rota {command} --help\n"
        assert (ended.returncode, ended.stderr) == (2, told)


@pytest.mark.parametrize("command", ["conform", "schema", "init"])
def test_a_store_that_has_to_be_named_may_be_named_by_the_variable(cli, command):
    """A password is then in no command line."""
    ended = cli(command, env={"ROTA_URL": "sqlte:///user:secret@x.db"})
    assert (ended.returncode, "did you mean 'sqlite'" in ended.stderr, "secret" in ended.stderr) == (2, True, False)


@pytest.mark.parametrize("command", ["ls", "show", "history", "release"])
def test_a_store_in_a_names_place_is_told_as_such(cli, command):
    more = ("--yes",) if command == "release" else ()
    ended = cli(command, "redis://user:secret@host", *more)
    told = f"rota: 'redis://***' is a store and no name: write --url before it; see rota {command} --help\n"
    assert (ended.returncode, ended.stderr) == (2, told)
    assert "is a store" not in cli(command, "redis://user@host", "--url", cli.url, *more).stderr


def test_a_variable_is_called_by_its_name(cli):
    ended = cli("ls", env={"ROTA_TIMEOUT": "5"})
    assert (ended.returncode, ended.stderr) == (2, "rota: ROTA_TIMEOUT='5' has no unit: write 5s, 5m or 5h\n")
