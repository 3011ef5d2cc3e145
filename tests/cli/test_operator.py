# SPDX-License-Identifier: MIT
"""`rota ls`, `show`, `history` and `next` as an operator has them: on SQLite, by a real process, on a terminal and off it."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from jsonschema import Draft202012Validator
from rota import Cron, Every, sqlite
from rota.backend import Record
from rota.capabilities import Capabilities
from rota.cli import _codes, main
from rota.cli._operator_next import clock_change
from rota.cli._topics import SCHEMAS
from rota.duration import HOUR
from rota.errors import ConfigurationError
from rota.history import add, runs
from rota.schedule import instant

ROOT = Path(__file__).parents[2]
ODD = ["a b", "  ".join("ab"), "-x", "--json", "naïve/ключ/日本語", "e\u0301", "100%", "quote'\"\\", "\u202egnp", "x" * 255, "*", "$HOME"]
ONCE_A_YEAR = ("--cron", "0 0 1 1 *")
COLUMNS = {"ls": 11, "history": 9, "next": 3, "show": 2}


def plant(cli, names, **fields) -> None:
    """Write records as they may lie in a store: quicker than so many claims. They are kept: any client may sweep others away (R3)."""
    fields = {"keep_until": time.time_ns() // 1000 + 86_400_000_000, **fields}
    driver = sqlite.SqliteDriver(str(cli.path))
    driver.read("made", 5.0)
    driver.close()
    with sqlite3.connect(cli.path) as connection:
        records = [Record(name, "lease", token=number + 1)._replace(**fields) for number, name in enumerate(names)]
        connection.executemany(sqlite._WRITE, records)
    connection.close()


def objects(ended) -> list[dict]:
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def held(cli, *options: str):
    """Start a run that holds its name until a file `go` is there."""
    process = cli.start_shell(*options, script="touch started; until test -e go; do sleep 0.02; done")
    cli.until(cli.file("started").exists)
    return process


# -- ls


@pytest.mark.parametrize("count", [0, 5, 500, 1203])
def test_ls_lists_every_name_once_in_order(cli, count):
    names = [f"job-{number:04}" for number in range(count)]
    plant(cli, names)
    ended = cli("ls")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [line.split("\t")[0] for line in ended.stdout.splitlines()] == names
    assert [one["name"] for one in objects(cli("ls", "--json"))] == names
    shown = cli.on_terminal("ls").splitlines()
    assert shown[0].split()[:3] == ["NAME", "STATE", "HOLDER"]
    assert [line.split()[0] for line in shown[1:]] == names


def test_odd_names_are_listed_and_shown(cli):
    plant(cli, ODD)
    listed = [one["name"] for one in objects(cli("ls", "--json"))]
    assert listed == sorted(ODD, key=str.encode)
    for line in cli("ls").stdout.splitlines():
        assert len(line.split("\t")) == COLUMNS["ls"]
        assert line.isprintable() or line.replace("\t", "").isprintable()
    for name in ODD:
        (one,) = objects(cli("show", "--json", "--", name))
        assert one["name"] == name
    assert [cli("history", "--", name).returncode for name in ODD[:3]] == [0, 0, 0]
    assert "\u202e" not in cli.on_terminal("ls")


def test_ls_keeps_to_a_prefix_and_to_the_urls(cli):
    plant(cli, ["a/one", "a/two", "ab", "team/a/one", "team/b"])
    assert [one["name"] for one in objects(cli("ls", "a/", "--json"))] == ["a/one", "a/two"]
    team = f"{cli.url}?prefix=team"
    assert [one["name"] for one in objects(cli("ls", "--json", "--url", team))] == ["a/one", "b"]
    assert [one["name"] for one in objects(cli("ls", "a", "--json", "--url", team))] == ["a/one"]
    assert objects(cli("show", "b", "--json", "--url", team))[0]["name"] == "b"


def test_ls_tells_held_from_free_run_out_and_forgotten(cli):
    holder = held(cli, "held", "--site", "dc 1", "--ttl", "60s")
    assert cli.shell("free", *ONCE_A_YEAR, script=":").returncode == 0
    plant(cli, ["dead"], owner="f" * 32, label="dc2 host:7", granted_at=1, expires_at=2)
    with cli.client() as client:
        client.try_lease("gone").release()
        assert client.driver.forget("gone", 5.0)
    found = {one["name"]: one for one in objects(cli("ls", "--json"))}
    assert {name: one["state"] for name, one in found.items()} == {"dead": "ran out", "free": "free", "held": "held"}
    assert (found["held"]["site"], found["held"]["holder"]) == ("dc 1", f"{os.uname().nodename}:{holder.pid}")
    assert 0 < found["held"]["remaining"] <= 60
    assert found["held"]["age"] >= 0
    assert found["held"]["token"] == cli.record("held").token
    assert (found["free"]["outcome"], found["free"]["remaining"], found["free"]["attempts"]) == ("handled", None, 1)
    assert {one["name"]: one["state"] for one in objects(cli("ls", "--all", "--json"))}["gone"] == "forgotten"
    cli.file("go").touch()
    cli.end(holder)


def test_ls_can_be_watched_until_interrupted(cli):
    plant(cli, ["job"])
    main, other = pty.openpty()
    process = cli.start("ls", "--watch", stdout=other)
    os.close(other)

    def sees(word: bytes) -> None:
        shown = b""
        while word not in shown:
            shown += os.read(main, 65536)

    sees(b"free")
    with cli.client() as client:
        grant = client.try_lease("job")
        sees(b"held")
        grant.release()
        sees(b"free")
    process.send_signal(signal.SIGINT)
    ended = cli.end(process)
    os.close(main)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_one_record_of_a_clock_that_ran_wild_spoils_nothing(cli):
    plant(cli, ["wild"], kind="window", schedule="every 1h", mark=2**62, slot_start=2**62, slot_end=2**63 - 1, keep_until=2**63 - 1)
    plant(cli, ["sane"])
    assert [one["name"] for one in objects(cli("ls", "--json"))] == ["sane", "wild"]
    assert len(cli.on_terminal("ls").splitlines()) == 3
    assert objects(cli("show", "wild", "--json"))[0]["how"] == "mark-ahead"
    assert "a clock once ran fast" in cli.on_terminal("show", "wild")


def test_ls_gives_the_names_alone_as_they_are(cli):
    """As `rota show` takes them; what no claim can have made is escaped, and so is all on a terminal."""
    plant(cli, [*ODD, "two\nlines"])
    named = sorted([*ODD, "two\\nlines"], key=lambda name: name.replace("\\n", "\n").encode())
    assert cli("ls", "--names").stdout == "".join(f"{name}\n" for name in named)
    assert cli("ls", "--names", "na").stdout == "naïve/ключ/日本語\n"
    assert "\u202e" not in cli.on_terminal("ls", "--names")
    ended = cli("ls", "--names", "--json")
    assert (ended.returncode, ended.stderr) == (2, "rota: --names and --json are two forms of one list: give one\n")


def test_ls_leaves_out_columns_where_the_terminal_is_narrow_and_never_a_name(cli):
    at = instant("2026-11-30T04:56:07Z", "at")
    fields = {"kind": "window", "schedule": "every 1h", "granted_at": at, "settled_at": at, "slot_start": at, "slot_end": at + 1}
    plant(cli, ["nightly", "report/of-the-day"], **fields, label="node-17.example:31415", attempts=1, outcome="handled", mark=at)
    whole = "NAME STATE HOLDER SITE AGE REMAINING TOKEN SLOT OUTCOME ATTEMPTS OPERATOR".split()
    for columns, left_out in (
        (0, set()),  # it does not tell
        (200, set()),
        (80, {"SITE", "REMAINING", "OPERATOR", "TOKEN", "ATTEMPTS", "AGE"}),
        (100, {"SITE", "REMAINING", "OPERATOR", "TOKEN"}),  # first what says nothing
        (20, set()),  # no column that could be spared would help
    ):
        heading, *rows = cli.on_terminal("ls", columns=columns).splitlines()
        assert heading.split() == [word for word in whole if word not in left_out], columns
        assert [row.split()[0] for row in rows] == ["nightly", "report/of-the-day"]
        assert columns in (0, 20) or max(map(len, [heading, *rows])) <= columns
    plant(cli, ["x" * 150], **fields)
    assert cli.on_terminal("ls", columns=80).splitlines()[0].split() == whole


def test_no_table_has_two_columns_of_one_name(cli):
    assert cli.shell("job", *ONCE_A_YEAR, script=":").returncode == 0
    for given in (
        ("ls",),
        ("history", "job"),
        ("next", "--every", "1d"),
        ("next", "--cron", "@daily"),
        ("next", "--cron", "@daily", "--tz", "Asia/Tokyo"),
    ):
        heading = re.split("  +", cli.on_terminal(*given).splitlines()[0])
        assert len(set(heading)) == len(heading), heading
    assert cli.on_terminal("next", "--every", "1d", "-n", "1", "--after", "2026-01-01T00:00:00Z") == "START (UTC)\n2026-01-02T00:00:00Z\n"
    assert len(cli("next", "--every", "1d", "-n", "1").stdout.split("\t")) == COLUMNS["next"]


# -- show


def test_show_says_each_verdict(cli):
    """A newcomer's way: run it, see it, find out why the second run was skipped."""
    assert cli.shell("job", *ONCE_A_YEAR, script=":").returncode == 0

    def why(name: str, *options: str) -> tuple[str, str | None]:
        (one,) = objects(cli("show", name, "--json", *options))
        assert one["reason"]
        return one["verdict"], one["how"]

    assert why("job") == ("handled", "done")
    assert why("job", "--planned", "2020-01-01T00:00:00Z") == ("handled", "passed")
    assert why("job", "--planned", "2100-01-01T00:00:00Z") == ("early", None)
    assert cli.shell("failing", *ONCE_A_YEAR, script="exit 1").returncode == 1
    assert why("failing") == ("won", None)
    assert why("failing", "--planned", "2020-01-01T00:00:00Z") == ("late", None)
    assert why("failing", "--max-late", "1us") == ("late", None)
    holder = held(cli, "busy", *ONCE_A_YEAR)
    assert why("busy") == ("busy", None)
    skipped = cli.shell("busy", *ONCE_A_YEAR, "--wait", "0s", script=":")
    assert objects(cli("show", "busy", "--json"))[0]["reason"] in skipped.stderr
    cli.file("go").touch()
    cli.end(holder)


def test_show_is_lines_of_key_and_value_and_a_page_for_people(cli):
    assert cli.shell("job", *ONCE_A_YEAR, "--site", "dc1", script=":").returncode == 0
    (one,) = objects(cli("show", "job", "--json"))
    plain = dict(line.split("\t") for line in cli("show", "job").stdout.splitlines())
    assert list(plain) == list(one)
    assert plain["reason"] == one["reason"]
    assert plain["current_start"] == one["slot_start"] == one["asked_start"]
    shown = cli.on_terminal("show", "job")
    assert re.search(r"^a claim now +handled \(done\): the slot of \S+ was handled by dc1 \S+ at \S+$", shown, re.MULTILINE)
    assert re.search(r"^schedule +cron 0 0 1 1 \* tz=UTC$", shown, re.MULTILINE)


@pytest.mark.parametrize("command", ["show", "history"])
def test_a_name_that_is_not_there_is_1_and_said(cli, command):
    plant(cli, ["other"])
    ended = cli(command, "nightly")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "rota: nightly: the store has no record of it, so a claim would be won (rota ls lists the names)\n"


@pytest.mark.parametrize(
    "given", [("show",), ("history",), ("release", "--yes"), ("settle", "--failed", "--yes"), ("forget", "--yes")], ids=" ".join
)
def test_a_name_that_is_nearly_there_is_named(cli, given):
    plant(cli, ["team/nightly", "team/hourly"])
    for prefix, near in (("", "team/nightly"), ("?prefix=team", "nightly")):
        ended = cli(given[0], near.replace("nightly", "nighly"), *given[1:], "--url", f"{cli.url}{prefix}")
        assert (ended.returncode, ended.stdout) == (1, "")
        assert ended.stderr.endswith(
            f"nighly: the store has no record of it, so a claim would be won (rota ls lists the names): did you mean '{near}'?\n"
        )
    plant(cli, ["forgotten"], kind="")
    assert "did you mean" not in cli(given[0], "forgoten", *given[1:]).stderr


# -- history


def test_history_shows_runs_newest_first_and_what_is_at_work(cli):
    for code in (1, 0):
        cli.shell("job", *ONCE_A_YEAR, "--site", "dc1", script=f"exit {code}")
    holder = held(cli, "lease")
    rows = objects(cli("history", "job", "--json"))
    assert [row["outcome"] for row in rows] == ["handled", "failed"]
    assert all(row["site"] == "dc1" and row["started_at"] <= row["ended_at"] and not row["degraded"] for row in rows)
    assert rows[0]["token"] == cli.record("job").token > rows[1]["token"]
    (row,) = objects(cli("history", "lease", "--json"))
    assert (row["outcome"], row["ended_at"], row["slot_start"]) == ("running", None, None)
    for line in cli("history", "job").stdout.splitlines():
        assert len(line.split("\t")) == COLUMNS["history"]
    heading, first, second = cli.on_terminal("history", "job").splitlines()
    assert heading.split()[:3] == ["STARTED", "TOOK", "OUTCOME"]
    assert re.search(r"TIMELINE: \S+ UNTIL NOW$", heading), "what the bars mean"
    assert ("handled" in first, "failed" in second) == (True, True)
    assert re.search(r" #+\.+$", second), "the timeline: the older run lies on the left"
    cli.file("go").touch()
    cli.end(holder)


def test_history_says_how_many_runs_it_has(cli):
    """As many as the capability promises where site, host and process have 40 bytes together."""
    now = time.time_ns() // 1000

    def kept(label: str, start: int | None, end: int | None) -> set[int]:
        """How many there may be, once it is full."""
        history, counts = b"", []
        for _ in range(100):
            history = add(history, start, end, now, now, now, "degraded", label)
            counts.append(len(runs(history)))
        return set(counts[50:])

    assert min(kept("s" * 40, now, now + HOUR)) == Capabilities().history == 10
    assert min(kept("s" * 64 + " " + "h" * 64 + ":4711", now, now + HOUR)) < 10
    assert kept("node-1:4711", now, now + HOUR) == {*range(12, 17)}
    assert kept("node-1:4711", None, None) == {*range(18, 24)}
    shown = " ".join(cli("history", "--help").stdout.split())
    assert "the newest runs of a name, 10 or more (fewer where site and host have very long names)" in shown


def test_history_tells_a_holder_that_died(cli):
    plant(cli, ["dead"], owner="f" * 32, label="dc2 host:7", granted_at=1_000_000, expires_at=31_000_000)
    (row,) = objects(cli("history", "dead", "--json"))
    assert (row["outcome"], row["ended_at"], row["holder"], row["site"]) == ("crashed", "1970-01-01T00:00:31Z", "host:7", "dc2")


# -- next


def expressions() -> list[str]:
    found = []
    for line in (ROOT / "tests/unit/crontab_lines.txt").read_text(encoding="utf-8").splitlines():
        try:
            Cron(line)
        except ConfigurationError:
            continue
        found.append(line)
    return found


@pytest.mark.parametrize(
    ("option", "schedule"),
    [
        (("--every", "90m"), Every("90m")),
        (("--every", "7d", "--anchor", "2026-01-05T06:00:00Z"), Every("7d", anchor="2026-01-05T06:00:00Z")),
        (("--cron", "*/20 3 * * mon"), Cron("*/20 3 * * mon")),
    ],
)
def test_next_prints_the_slots_that_the_schedule_has(cli, option, schedule):
    after = "2026-03-27T12:00:00Z"
    rows = objects(cli("next", *option, "-n", "50", "--after", after, "--json"))
    expected = schedule.next(instant(after, "after"), 50)
    assert [(instant(row["start"], "start"), instant(row["end"], "end")) for row in rows] == expected
    plain = [line.split("\t") for line in cli("next", *option, "-n", "50", "--after", after).stdout.splitlines()]
    assert [line[0] for line in plain] == [row["start"] for row in rows]
    assert {len(line) for line in plain} == {COLUMNS["next"]}


def test_next_agrees_with_the_schedule_on_every_expression_that_was_collected(capfd):
    """50 slots each, over a change of the clocks. (The schedule itself is held to a walk over minutes in tests/unit.)"""
    found = expressions()
    assert len(found) >= 200
    for expression in found:
        given = ["next", "--cron", expression, "--tz", "Europe/Berlin", "-n", "50", "--after", "2026-03-27T12:00:00Z", "--json"]
        assert main(given) == 0
        rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        slots = Cron(expression, tz="Europe/Berlin").next(instant("2026-03-27T12:00:00Z", "after"), 50)
        assert [(instant(row["start"], "start"), instant(row["end"], "end")) for row in rows] == slots
        assert all(datetime.fromisoformat(row["local"]) == datetime.fromisoformat(row["start"]) for row in rows)
        walls = [datetime.fromisoformat(row["start"]).astimezone(ZoneInfo("Europe/Berlin")).isoformat() for row in rows]
        assert [row["local"] for row in rows] == walls


def test_next_begins_now_and_gives_ten(cli):
    before = datetime.now(UTC)
    starts = [datetime.fromisoformat(row["start"]) for row in objects(cli("next", "--every", "1h", "--json"))]
    assert len(starts) == 10
    assert before < starts[0] <= datetime.now(UTC) + timedelta(hours=1)


def test_next_marks_the_days_on_which_clocks_change(cli):
    given = ("next", "--cron", "30 2 * * *", "--tz", "Europe/Berlin", "-n", "3")
    rows = objects(cli(*given, "--after", "2026-03-27T12:00:00Z", "--json"))
    assert [(row["start"], row["local"], row["clock_change"]) for row in rows] == [
        ("2026-03-28T01:30:00Z", "2026-03-28T02:30:00+01:00", None),
        ("2026-03-29T01:00:00Z", "2026-03-29T03:00:00+02:00", "02:00->03:00"),
        ("2026-03-30T00:30:00Z", "2026-03-30T02:30:00+02:00", None),
    ]
    shown = cli.on_terminal(*given, "--after", "2026-10-23T12:00:00Z").splitlines()
    assert [line for line in shown if "clocks change: 03:00->02:00" in line] == [
        "2026-10-25T00:30:00Z  2026-10-25T02:30:00+02:00  clocks change: 03:00->02:00"
    ]


@pytest.mark.parametrize("name", ["Europe/Berlin", "Australia/Lord_Howe", "Asia/Beirut", "America/Santiago", "Africa/Casablanca"])
def test_the_marked_days_are_those_that_have_no_24_hours(name):
    """Of every expression that was collected, against the standard library's zones."""
    zone = ZoneInfo(name)
    marked = 0
    for expression in expressions()[:: 5 if name != "Europe/Berlin" else 1]:
        schedule = Cron(expression, tz=name)
        for slot in schedule.next(instant("2026-02-01T00:00:00Z", "after"), 50):
            day = slot.start_at.astimezone(zone).date()
            midnight, following = (datetime(d.year, d.month, d.day, tzinfo=zone) for d in (day, day + timedelta(days=1)))
            unlike = following.astimezone(UTC) - midnight.astimezone(UTC) != timedelta(days=1)
            assert bool(clock_change(schedule, slot.start)) == unlike, (expression, slot)
            marked += unlike
    assert marked


# -- all of them

WRONG = [
    (("ls", "a", "b"), "one word too many"),
    (("ls", "--watch"), "--watch is for people on a terminal"),
    (("ls", "--jsn"), "did you mean '--json'?"),
    (("ls", "a\tb"), "control character"),
    (("ls", b"\xff"), "not valid Unicode"),
    (("ls", "--url", ""), "--url is empty"),
    (("ls", "--url", "user:secret@host"), "starts with a scheme"),
    (("ls", "--url", "nosuch://user:secret@host"), "no backend is called nosuch"),
    (("ls", "--url", "memory://"), "memory:// lives and ends"),
    (("next", "--every", "abc"), "--every='abc' is not a duration: write it with units, such as"),
    (("next", "--every", "-1h"), "--every='-1h' must be more than zero"),
    (("next", "--every", "1h", "-n", "-1"), "--count='-1' must be a whole number"),
    (("next", "--every", "1h", "--after", "2026-03-27"), "as in 2026-03-27T00:00:00Z"),
    (("next", "--every", "1h", "--after", "soon"), "--after='soon' is no instant: give 2026-02-26T00:07:00Z or seconds"),
    (("next", "--cron", "@daily", "--tz", "Berlin"), "unknown, did you mean Europe/Berlin?"),
    (("settle", "window", "--handled", "--why"), "--why needs a value, as in --why TEXT; see rota settle --help"),
    (("next", "--every", "1h", "-n"), "-n needs a value, as in -n N"),
    (("ls", "--timeout", "5"), "--timeout='5' has no unit"),
    (("show",), "NAME"),
    (("show", ""), "name is empty"),
    (("show", "x" * 256), "at most 255"),
    (("show", "lease", "--planned", "0"), "is kept as a lease"),
    (("show", "window", "--planned", "tomorrow"), "--planned='tomorrow' is no instant: give 2026-02-26T00:07:00Z or seconds"),
    (("show", "window", "--max-late", "5"), "--max-late='5' has no unit"),
    (("history",), "NAME"),
    (("history", "a", "b"), "one word too many"),
    (("next",), "needs --cron or --every"),
    (("next", "--cron", "@daily", "--every", "1h"), "and not both"),
    (("next", "--every", "1h", "--tz", "UTC"), "--tz goes with --cron"),
    (("next", "--cron", "@daily", "--anchor", "0"), "--anchor goes with --every"),
    (("next", "--every", "7d", "--anchor", "2026-01-05"), "--anchor='2026-01-05' has no time zone"),
    (("next", "--every", "7d", "--anchor", "-5"), "--anchor='-5' is no instant: give 2026-02-26T00:07:00Z or seconds"),
    (("next", "--cron", "0 0 31 2 *"), "0 0 31 2 *"),
    (("next", "--cron", "@daily", "--tz", "Europe/Berln"), "Europe/Berln"),
    (("next", "--cron", "@daily", "-n", "0"), "--count='0'"),
    (("next", "--cron", "@daily", "-n", "200000"), "100000"),
    (("next", "--cron", "@daily", "--after", "soon"), "--after='soon'"),
    (("next", "--cron", "@daily", "--after", "8999-12-31T00:00:00Z"), "9000"),
    (("lss",), "did you mean 'ls'?"),
]


@pytest.mark.parametrize(("given", "word"), WRONG, ids=lambda value: repr(value)[:60].replace("/", "|"))
def test_a_wrong_command_line_is_2_and_one_line(cli, given, word):
    plant(cli, ["lease"])
    plant(cli, ["window"], kind="window", schedule="every 1h", slot_start=0, slot_end=3_600_000_000)
    ended = cli(*given)
    assert ended.returncode == _codes.USAGE
    assert word in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert ended.stdout == ""
    assert "secret" not in ended.stderr


def test_the_store_is_that_of_rota_run(cli):
    """Named by nobody it is this host's file; a variable that is empty is refused."""
    nobody = {"ROTA_URL": None}
    assert cli.shell("job", *ONCE_A_YEAR, script=":", env=nobody).returncode == 0
    assert [one["name"] for one in objects(cli("ls", "--json", env=nobody))] == ["job"]
    ended = cli("ls", env={"ROTA_URL": ""})
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "ROTA_URL is empty" in ended.stderr


@pytest.mark.parametrize("given", [("ls",), ("show", "job"), ("history", "job")])
def test_a_store_that_does_not_answer_is_115(cli, given):
    plant(cli, ["job"])
    connection = sqlite3.connect(cli.path, isolation_level=None)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("BEGIN EXCLUSIVE")
        ended = cli(*given, "--timeout", "200ms")
    finally:
        connection.close()
    assert ended.returncode == _codes.UNAVAILABLE
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "given", [("ls",), ("ls", "--json"), ("show", "job-1"), ("history", "job-1"), ("next", "--every", "1h", "-n", "9999")]
)
def test_output_that_nobody_reads_is_no_error(cli, given):
    plant(cli, [f"job-{number}" for number in range(500)])
    reading, writing = os.pipe()
    os.close(reading)
    process = cli.start(*given, stdout=writing)
    os.close(writing)
    ended = cli.end(process)
    assert (ended.returncode, ended.stderr) == (0, "")
    command = [sys.executable, "-m", "rota", *given]
    process = subprocess.Popen(command, env=cli.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(1)  # as head does
    process.stdout.close()
    assert process.wait(30) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


def test_closed_standard_files_harm_no_store(cli):
    plant(cli, [f"job-{number}" for number in range(500)])
    command = f"exec '{sys.executable}' -m rota ls <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], env=cli.environment, cwd=cli.folder, check=False, timeout=30).returncode == 74
    assert len(objects(cli("ls", "--json"))) == 500  # and the file is whole


def documented(command: str) -> list[tuple[str, str, str]]:
    """The keys of a command's JSON, their types and meaning, as the operator's page has them."""
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    table = re.search(rf"^JSON of .*`rota {command}`.*\n\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert table is not None
    return re.findall(r"^\| `(\w+)` \| ([\w ,]+?) \| (.*) \|$", table[1], re.MULTILINE)


WORDS = {"string": "text", "number": "seconds", "integer": "number", "boolean": "true or false", "object": "object", "null": "null"}


@pytest.mark.parametrize("command", sorted(set(SCHEMAS) - {"run"}))
def test_the_page_says_what_the_json_schema_says(cli, command):
    printed = json.loads(cli("help", "json", command).stdout)
    Draft202012Validator.check_schema(printed)
    said = []
    for key, what in printed.get("items", printed)["properties"].items():
        types = [what["type"]] if isinstance(what["type"], str) else what["type"]
        words = ["instant" if what.get("format") == "date-time" and kind == "string" else WORDS[kind] for kind in types]
        words = [what.get("$comment", word) if word == "seconds" else word for word in words]  # a number of another kind
        said.append((key, ", ".join(words), what["description"]))
    rows = (documented("ls") if command == "show" else []) + documented(command)
    table = [(key, types, meaning.replace("`", "")) for key, types, meaning in rows]
    assert said == table


def test_the_page_has_every_event_of_rota_run_and_which_of_its_keys_may_be_left_out(cli):
    events = json.loads(cli("help", "json", "run").stdout)["oneOf"]
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ((?:\[?`\w+`\]?(?:, )?)+) \| (.*) \|$", page, re.MULTILINE)
    said = []
    for event in events:
        keys = [f"`{key}`" if key in event["required"] else f"[`{key}`]" for key in event["properties"] if key != "event"]
        said.append((event["properties"]["event"]["const"], ", ".join(keys), event["title"]))
    assert said == [(event, keys, meaning.replace("`", "")) for event, keys, meaning in rows]


@pytest.mark.parametrize("given", [("json",), ("json", "doctr"), ("json", "ls", "show"), ("ls", "show"), ("nosuch",)])
def test_a_wrong_topic_is_2(cli, given):
    ended = cli("help", *given)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)


def test_help_of_a_command_is_its_help(cli):
    assert cli("help", "ls").stdout == cli("ls", "--help").stdout
    assert cli("help").stdout == cli("--help").stdout


# -- no store


ON_NOTHING = [
    ("ls",),
    ("ls", "--json"),
    ("show", "job"),
    ("history", "job"),
    ("release", "job", "--yes"),
    ("settle", "job", "--handled", "--yes"),
    ("forget", "job", "--yes"),
]


@pytest.mark.parametrize("given", ON_NOTHING, ids=" ".join)
def test_a_look_makes_no_store(cli, given):
    """A mistyped path must not look like a store in which all is free, nor a look by root keep out those who claim."""
    missing = cli.folder / "mistyped" / "store.db"
    for named in (f"sqlite://{missing}", None):
        path = missing if named else cli.folder / ".local/state/rota/rota.db"
        ended = cli(*given, env={"ROTA_URL": named})
        assert (ended.returncode, ended.stdout) == (1, "")
        hint = "" if named else ": another one is named with --url or ROTA_URL"
        assert ended.stderr == f"rota: there is no store at {path} yet: it is made at the first claim{hint}\n"
    assert list(cli.folder.iterdir()) == []


def test_an_empty_store_is_named_on_a_terminal(cli):
    plant(cli, [])
    main, other = pty.openpty()
    process = cli.start("ls", "team", stdout=other)
    os.close(other)
    ended = cli.end(process)
    os.close(main)
    assert (ended.returncode, ended.stderr) == (0, f"rota: no name in {cli.url} starts with 'team'\n")
