# SPDX-License-Identifier: MIT
"""Wrong command lines: exit 2, one line that names the culprit, no traceback, no secret, nothing run and nothing written."""

from __future__ import annotations

import pytest
from rota.cli._options import plain
from rota.cli._parser import read

# a word of the message, the environment, and the command line without its `-- touch ran`; * stands for what has no --
BAD = [
    ("NAME", {}, []),
    ("-- is missing", {}, ["*", "job"]),
    ("-- is missing", {}, ["*", "job", "touch", "ran"]),
    ("-- is missing", {}, ["*", "job", "--every", "1h", "touch", "ran"]),
    ("the command is missing", {}, ["*", "job", "--"]),
    ("'extra' is one word too many", {}, ["job", "extra"]),
    ("--evry: did you mean '--every'?", {}, ["job", "--evry", "1h"]),
    ("no option -x", {}, ["job", "-x"]),
    ("--every: expected one argument", {}, ["job", "--every"]),
    ("--strict takes no value", {}, ["job", "--strict=secret"]),
    ("--cron and --every are two schedules", {}, ["job", "--cron", "@daily", "--every", "1h"]),
    ("--every and --once-per are two schedules", {}, ["job", "--every", "1h", "--once-per", "1h"]),
    ("--tz goes with --cron", {}, ["job", "--every", "1h", "--tz", "UTC"]),
    ("--tz goes with --cron", {}, ["job", "--tz", "UTC"]),
    ("--planned goes with", {}, ["job", "--once-per", "1h", "--planned", "2026-01-01T00:00:00Z"]),
    ("--early goes with --planned", {}, ["job", "--every", "1h", "--early", "1s"]),
    ("--catch-up goes with --cron or --every, without --planned", {}, ["job", "--every", "1h", "--planned", "1767225600", "--catch-up"]),
    ("--max-late goes with", {}, ["job", "--once-per", "1h", "--max-late", "1m"]),
    ("--attempts goes with", {}, ["job", "--attempts", "2"]),
    ("--at-most-once goes with", {}, ["job", "--at-most-once"]),
    ("--attempts='0'", {}, ["job", "--every", "1h", "--attempts", "0"]),
    ("--attempts='1.5'", {}, ["job", "--every", "1h", "--attempts", "1.5"]),
    ("every='10' has no unit", {}, ["job", "--every", "10"]),
    ("every='0s'", {}, ["job", "--every", "0s"]),
    ("per='nan'", {}, ["job", "--once-per", "nan"]),
    ("once_per is empty|per is empty", {}, ["job", "--once-per", ""]),
    ("--ttl='30'", {}, ["job", "--ttl", "30"]),
    ("--ttl='-5s'|--ttl: expected one argument", {}, ["job", "--ttl", "-5s"]),
    ("--ttl='-5s'", {}, ["job", "--ttl=-5s"]),
    ("ttl='0s'", {}, ["job", "--ttl", "0s"]),
    ("ttl='1ms'", {}, ["job", "--ttl", "1ms"]),
    ("grace 29s", {}, ["job", "--ttl", "30s", "--grace", "29s"]),
    ("--wait='whenever'", {}, ["job", "--wait", "whenever"]),
    ("--timeout='inf'", {}, ["job", "--timeout", "inf"]),
    ("on_unavailable='stop'", {}, ["job", "--on-unavailable", "stop"]),
    ("0 0 31 2 *", {}, ["job", "--cron", "0 0 31 2 *"]),
    ("0 0 * * * *", {}, ["job", "--cron", "0 0 * * * *"]),
    ("@reboot", {}, ["job", "--cron", "@reboot"]),
    ("R", {}, ["job", "--cron", "R 0 * * *"]),
    ("Europe/Berln", {}, ["job", "--cron", "@daily", "--tz", "Europe/Berln"]),
    ("Europe/Berlin", {}, ["job", "--cron", "@daily", "--tz", '"Europe/Berlin"']),
    ("planned='2026-01-01T00:00:00' has no time zone", {}, ["job", "--planned", "2026-01-01T00:00:00"]),
    ("planned='tomorrow'", {}, ["job", "--planned", "tomorrow"]),
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


GOOD = [
    ["job"],
    ["job", "--every", "1h", "--ttl=5s"],
    ["--cron", "0 2 * * *", "--tz", "UTC", "job", "--strict", "--quiet"],
    ["--url=sqlite:///x?a=b", "--once-per", "1d", "job", "--at-most-once", "--attempts", "3"],
    ["job", "--planned=1767225600", "--max-late", "1h", "--catch-up", "--on-unavailable", "run"],
    ["job", "--strict", "--strict"],
]
READ_BY_ARGPARSE = [
    [],
    ["job", "--ttl", "1s", "--ttl", "2s"],
    ["job", "--wait", "-5s"],
    ["job", "--wait"],
    ["job", "-h"],
    ["job", "--str"],
    ["job", "--strict=yes"],
    ["job", "--url="],
    ["job", "two"],
]


@pytest.mark.parametrize("line", GOOD, ids=" ".join)
def test_the_quick_reader_reads_what_argparse_reads(line):
    found = read(line)
    del found["help"]
    assert plain(line) == found


@pytest.mark.parametrize("line", READ_BY_ARGPARSE, ids=" ".join)
def test_the_quick_reader_leaves_all_else_to_argparse(line):
    assert plain(line) is None


def test_help_is_enough_to_protect_a_job_and_names_every_code_variable_and_option(cli):
    from rota.cli._codes import TABLE
    from rota.cli._options import OPTIONS, WHEN, variable

    for given in (("run", "--help"), ("run", "job", "-h", "--", "x"), ("run", "-h")):
        ended = cli(*given)
        assert ended.returncode == 0
        assert ended.stderr == ""
        for code, word, _ in TABLE:
            assert f"  {code:3}  {word}" in ended.stdout
        for option in (*WHEN, *OPTIONS):
            assert option.flag in ended.stdout
        for option in OPTIONS:
            assert variable(option) in ended.stdout
        for variable_name in ("ROTA_NAME", "ROTA_TOKEN", "ROTA_SLOT_START", "ROTA_SLOT_END", "ROTA_ATTEMPT"):
            assert f"  {variable_name} " in ended.stdout
        assert max(map(len, ended.stdout.splitlines())) <= 128
    assert "rota run NAME" in cli("--help").stdout
    assert cli("backends", "--help").returncode == 0


def test_the_version_is_the_packages(cli):
    import rota

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
    import os
    import subprocess

    for streams in ({"stdout"}, {"stderr"}, {"stdout", "stderr"}):
        reading, writing = os.pipe()
        os.close(reading)
        process = cli.start(*given, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **dict.fromkeys(streams, writing)})
        os.close(writing)
        assert cli.end(process).returncode == (2 if given == ("run",) else 0)


def test_closed_standard_files_are_no_error_and_reach_no_other_file(cli):
    import subprocess
    import sys

    look = "for f in 0 1 2; do test -e /proc/$$/fd/$f && echo $f; done > open"
    command = f"exec '{sys.executable}' -m rota run job --every 300d -- sh -c '{look}' <&- >&- 2>&-"
    for _ in range(2):  # the second has something to say
        assert subprocess.run(["sh", "-c", command], env=cli.environment, cwd=cli.folder, check=False, timeout=30).returncode == 0
    assert cli.said("open") == ["0", "1", "2"]
    with cli.client() as client:
        assert client.driver.facts(5.0)["records"] == 1  # the file is whole
