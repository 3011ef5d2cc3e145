# SPDX-License-Identifier: MIT
"""`rota release`, `settle` and `forget`: an operator's change fences the holder, asks first, and leaves who did it and why (L2, W7, R2)."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import sqlite3
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import rota
from rota import sqlite
from rota.backend import Record
from rota.cli import _codes
from rota.history import runs
from rota.schedule import iso
from rota.verdict import text

ONCE_A_YEAR = ("--cron", "0 0 1 1 *")
HOLD = "echo $ROTA_TOKEN > token; touch started; until test -e go; do sleep 0.02; done"


def held(cli, *options: str):
    """Start a run that holds its name until a file `go` is there."""
    process = cli.start_shell(*options, script=HOLD)
    cli.until(cli.file("started").exists)
    return process


def verdict(cli, name: str) -> tuple[str, str | None]:
    one = json.loads(cli("show", name, "--json").stdout)
    return one["verdict"], one["how"]


def changed(ended) -> None:
    assert (ended.returncode, ended.stderr) == (0, "")


def answer(cli, text: str, *arguments: str):
    """Run it on a terminal and answer its question."""
    main, other = pty.openpty()
    process = cli.start(*arguments, stdin=other, stderr=other)
    os.close(other)
    asked = b""
    while b"[y/N]" not in asked:
        asked += os.read(main, 4096)
    os.write(main, text.encode())
    output = process.stdout.read()
    code = process.wait(30)
    os.close(main)
    return code, asked.decode(), output


@pytest.mark.parametrize("options", [("--ttl", "3s"), ("--ttl", "3s", *ONCE_A_YEAR)], ids=["lease", "window"])
@pytest.mark.by_the_clock
def test_release_under_a_live_holder_of_another_process(cli, options):
    holder = held(cli, "job", "--site", "dc1", *options)
    before = cli.record("job")
    ended = cli("release", "job", "--yes", "--why", "node 7 is stuck")
    changed(ended)
    after = cli.record("job")
    assert after.token > before.token
    assert (after.owner, after.last_owner, after.last_result) == ("", "operator", "released")
    assert after.label.endswith(": node 7 is stuck")
    assert "@" in after.label
    assert f"the token is {after.token}" in ended.stdout
    assert f"{before.label} is fenced" in ended.stdout
    assert "a claim now would be won: " in ended.stdout
    (run,) = runs(after.history)
    assert (run.token, run.outcome, run.started_at) == (before.token, "released", before.granted_at)
    assert run.label == f"{before.label} ({after.label})"
    # the holder's next renewal tells it, and its command is ended
    lost = cli.end(holder)
    assert lost.returncode == _codes.LOST
    assert "the lease could not be kept" in lost.stderr
    # and a sink that compares tokens takes the next holder's write, and refuses what the old one writes late
    assert cli.shell("job", *options, script="echo $ROTA_TOKEN > new").returncode == 0
    old, new = (int(cli.said(name)[0]) for name in ("token", "new"))
    assert old == before.token
    assert new > after.token
    sink = sqlite3.connect(":memory:", isolation_level=None)
    sink.execute("CREATE TABLE report (day TEXT PRIMARY KEY, token INTEGER NOT NULL, text TEXT)")
    written = [
        sink.execute(
            "INSERT INTO report VALUES ('today', ?, ?) ON CONFLICT (day) DO UPDATE SET token = excluded.token, text = excluded.text"
            " WHERE report.token <= excluded.token",
            (token, text),
        ).rowcount
        for token, text in ((new, "right"), (old, "stale"))
    ]
    sink.close()
    assert written == [1, 0]


def test_a_holders_check_says_lost_after_a_release(cli):
    with cli.client() as client:
        grant = client.try_lease("job", ttl="1s")
        assert grant
        changed(cli("release", "job", "--yes"))
        cli.until(lambda: grant.lost)
        with pytest.raises(rota.LeaseLost):
            grant.check()
    assert cli.record("job").label.endswith(": no reason given")


@pytest.mark.by_the_clock
def test_release_asks_on_a_terminal(cli):
    holder = held(cli, "job", "--ttl", "3s")
    before = cli.record("job")
    for no in ("\n", "n\n", "yess\n"):
        code, asked, output = answer(cli, no, "release", "job")
        assert (code, output) == (1, "")
        assert f"{before.label} has held it since" in asked
    assert cli.record("job").token == before.token
    code, _, output = answer(cli, "y\n", "release", "job", "--why", "a test")
    assert code == 0
    assert "job: released" in output
    assert cli.record("job").token > before.token
    assert cli.end(holder).returncode == _codes.LOST


def test_the_question_tells_of_a_name_that_nobody_holds_who_held_or_changed_it_last(cli):
    """The words are those of a sentence, and a reason can't be taken for one of them."""
    assert cli.shell("job", *ONCE_A_YEAR, "--site", "dc1", script=":").returncode == 0
    record = cli.record("job")
    slot, settled = iso(record.slot_start), text(record.settled_at)
    _, asked, _ = answer(cli, "n\n", "forget", "job")
    assert asked.strip() == (
        f"rota: job: nobody holds it; {record.label} held it last, until {settled}, and the slot of {slot} is handled: forget it? [y/N]"
    )
    assert cli.shell("lease", script=":").returncode == 0
    record = cli.record("lease")
    _, asked, _ = answer(cli, "n\n", "forget", "lease")
    assert asked.strip() == f"rota: lease: nobody holds it; {record.label} held it last, until {text(record.settled_at)}: forget it? [y/N]"
    for options, did in (
        (("settle", "job", "--mark", "none"), "mark set"),
        (("settle", "job", "--failed"), "settled as failed"),
        (("settle", "job", "--handled"), "settled as handled"),
    ):
        changed(cli(*options, "--yes", "--why", "asked"))
        record = cli.record("job")
        who = record.label.partition(": ")[0]
        _, asked, _ = answer(cli, "n\n", "forget", "job")
        assert f"nobody holds it; {did} at {text(record.settled_at)} by {who}, who said 'asked': forget it? [y/N]" in asked


def test_a_name_that_was_granted_anew_while_the_question_stood_is_left_alone(cli):
    with cli.client() as client:
        first = client.try_lease("job")
        main, other = pty.openpty()
        process = cli.start("release", "job", stdin=other, stderr=other)
        os.close(other)
        asked = b""
        while b"[y/N]" not in asked:
            asked += os.read(main, 4096)
        first.release()
        second = client.try_lease("job")
        os.write(main, b"y\n")
        assert process.wait(30) == 1
        os.close(main)
        record = cli.record("job")
        assert (record.token, bool(record.owner)) == (second.token, True)
        second.release()


@pytest.mark.parametrize("command", ["release", "settle", "forget", "show", "ls"])
def test_an_option_behind_the_dashes_is_said_to_be_a_word_there(cli, command):
    known = "--json"
    ended = cli(command, "--", "-x", known)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert f"'{known}' is one word too many: what follows -- is no option, so write {known} before it" in ended.stderr
    assert "did you mean" not in ended.stderr


@pytest.mark.parametrize("words", [("release",), ("settle", "--handled"), ("forget",)], ids=lambda words: words[0])
def test_of_a_name_that_was_forgotten_the_store_has_a_record_and_it_is_left_alone(cli, words):
    """R2: `rota show` and `rota ls --all` have it, too."""
    assert cli.shell("job", *ONCE_A_YEAR, script=":").returncode == 0
    changed(cli("forget", "job", "--yes"))
    before = cli.record("job")
    ended = cli(words[0], "job", *words[1:], "--yes")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "rota: job: it was forgotten, so there is nothing to change, and a claim would be won (rota ls --all lists it)\n"
    assert cli.record("job") == before


def test_without_a_holder_there_is_nothing_to_release(cli):
    assert cli.shell("job", script=":").returncode == 0
    before = cli.record("job")
    ended = cli("release", "job", "--yes")
    assert ended.returncode == 1
    assert "nobody holds it" in ended.stderr
    assert "nothing was changed" in ended.stderr
    assert cli.record("job") == before


@pytest.mark.by_the_clock
def test_settle_as_handled_closes_the_slot_and_as_failed_gives_it_back(cli):
    assert cli.shell("job", *ONCE_A_YEAR, script="exit 1").returncode == 1
    changed(cli("settle", "job", "--handled", "--yes", "--why", "done by hand"))
    assert verdict(cli, "job") == ("handled", "done")
    assert "done by hand" in json.loads(cli("show", "job", "--json").stdout)["reason"]
    assert json.loads(cli("history", "job", "--json").stdout.splitlines()[0])["outcome"] == "handled"
    assert cli.shell("job", *ONCE_A_YEAR, script="touch ran").returncode == 0
    assert not cli.file("ran").exists()
    holder = held(cli, "sealed", *ONCE_A_YEAR, "--at-most-once", "--ttl", "3s")
    assert verdict(cli, "sealed") == ("handled", "done")
    changed(cli("settle", "sealed", "--failed", "--yes"))
    assert verdict(cli, "sealed") == ("won", None)
    assert cli.end(holder).returncode == _codes.LOST
    assert [run.outcome for run in runs(cli.record("sealed").history)] == ["failed"]


def test_the_mark_of_a_fast_clock_is_set_back(cli):
    assert cli.shell("job", "--every", "1h", script=":").returncode == 0
    record = cli.record("job")
    ahead = record.mark + 10 * 86_400_000_000
    with sqlite3.connect(cli.path) as connection:
        connection.executemany(sqlite._WRITE, [record._replace(mark=ahead, slot_start=ahead, slot_end=ahead + 3_600_000_000)])
    connection.close()
    assert verdict(cli, "job") == ("handled", "mark-ahead")
    assert cli.shell("job", "--every", "1h", script=":").returncode == _codes.MARK_AHEAD
    changed(cli("settle", "job", "--mark", str(int(time.time()) - 7200), "--yes", "--why", "the clock ran ahead"))
    after = cli.record("job")
    assert after.token > record.token
    assert after.mark % 3_600_000_000 == 0
    assert after.mark < time.time_ns() // 1000 - 3_600_000_000
    assert verdict(cli, "job") == ("won", None)
    assert cli.shell("job", "--every", "1h", script="touch ran").returncode == 0
    assert cli.file("ran").exists()
    changed(cli("settle", "job", "--mark", "none", "--yes"))
    ended = json.loads(cli("show", "job", "--json").stdout)
    assert (ended["mark"], ended["verdict"]) == (None, "won")
    assert "the mark was set in the holder's place" in ended["reason"]
    assert "which was handled by" in ended["reason"]
    assert "would run again" in ended["reason"]


def test_the_cure_for_a_mark_ahead_runs_no_handled_slot_again(cli):
    """Whoever does what rota show says, with the slot it names, gets a store on which today's slot is still handled."""
    assert cli.shell("job", *ONCE_A_YEAR, script=":").returncode == 0
    record = cli.record("job")
    with sqlite3.connect(cli.path) as connection:
        connection.executemany(sqlite._WRITE, [record._replace(mark=record.mark + 2 * 365 * 86_400_000_000)])
    connection.close()
    reason = json.loads(cli("show", "job", "--json").stdout)["reason"]
    named = reason.partition("rota settle job --mark ")[2].partition(",")[0]
    assert named == iso(record.mark)
    ended = cli.shell("job", *ONCE_A_YEAR, "--json", script=":")
    skipped = next(one for one in map(json.loads, ended.stderr.splitlines()) if one["event"] == "skipped")
    assert (ended.returncode, skipped["how"]) == (_codes.MARK_AHEAD, "mark-ahead")
    code, asked, _ = answer(cli, "n\n", "settle", "job", "--mark", "none")
    assert code == 1
    assert f"the slot of {named} was handled, and may run again" in asked
    changed(cli("settle", "job", "--mark", named, "--yes"))
    assert verdict(cli, "job") == ("handled", "done")
    assert cli.shell("job", *ONCE_A_YEAR, script="touch ran").returncode == 0
    assert not cli.file("ran").exists()


def test_a_slot_that_was_given_up_is_opened_again(cli):
    """W3c: by the way that `--failed` names, with all its attempts."""
    options = (*ONCE_A_YEAR, "--attempts", "2")
    for _ in range(2):
        assert cli.shell("job", *options, script="exit 1").returncode == 1
    assert verdict(cli, "job") == ("handled", "gave up")
    refused = cli("settle", "job", "--failed", "--yes")
    assert refused.returncode == _codes.USAGE
    named = refused.stderr.rpartition("--mark ")[2].strip()
    ended = cli("settle", "job", "--mark", named, "--yes", "--why", "mended")
    changed(ended)
    assert "which was given up by" in ended.stdout
    assert cli.shell("job", *options, script="echo $ROTA_ATTEMPT > attempt").returncode == 0
    assert cli.said("attempt") == ["1"]


def test_each_change_is_in_the_history_with_who_made_it_and_why(cli):
    with cli.client() as client:
        assert client.try_window("job", rota.Cron("0 0 1 1 *"))  # and nobody settles it
        for number, given in enumerate((("release",), ("settle", "--failed"), ("settle", "--handled"), ("settle", "--mark", "none"))):
            changed(cli(*given, "job", "--yes", "--why", f"see ticket:{number}"))
        mark = str(int(time.time()) - 3 * 366 * 86_400)
        changed(cli("settle", "job", "--mark", mark, "--yes"))
        rows = [json.loads(line) for line in cli("history", "job", "--json").stdout.splitlines()]
        assert [row["outcome"] for row in rows] == ["mark", "mark", "handled", "failed", "released"]
        whys = [row["operator"].partition(": ")[2] for row in rows]
        assert whys == ["no reason given", "see ticket:3", "see ticket:2", "see ticket:1", "see ticket:0"]
        assert [bool(row["holder"]) for row in rows] == [False, False, False, False, True]
        assert (rows[0]["slot_start"], rows[1]["slot_start"]) == (iso(cli.record("job").mark), None)
        assert client.try_window("held", rota.Cron("0 0 1 1 *"))
        changed(cli("settle", "held", "--mark", "none", "--yes", "--why", "a test"))
        assert [run.outcome for run in runs(cli.record("held").history)] == ["mark", "released"]


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.by_the_clock
def test_the_holder_who_was_released_is_shown_and_not_the_operator(cli, sealed):
    holder = held(cli, "job", *ONCE_A_YEAR, "--site", "dc2", "--ttl", "3s", *(("--at-most-once",) if sealed else ()))
    label = cli.record("job").label
    ended = cli("release", "job", "--yes", "--why", "dc2 died")
    changed(ended)
    operator = cli.record("job").label
    for command in (("show", "job"), ("ls",)):
        one = json.loads(cli(*command, "--json").stdout)
        assert (f"{one['site']} {one['holder']}", one["operator"], one["state"]) == (label, operator, "free")
        assert one["outcome"] == ("sealed" if sealed else "released")
    assert cli.end(holder).returncode == _codes.LOST
    if sealed:
        assert f"was taken (sealed) by {label} ({operator}) at " in ended.stdout
        changed(cli("settle", "job", "--failed", "--yes"))  # as the help of release says
        assert verdict(cli, "job") == ("won", None)
    assert cli.shell("job", *ONCE_A_YEAR, script=":").returncode == 0
    assert json.loads(cli("show", "job", "--json").stdout)["operator"] is None


@pytest.mark.by_the_clock
def test_forget_leaves_a_tombstone_whose_token_grows(cli):
    holder = held(cli, "job", *ONCE_A_YEAR, "--ttl", "3s")
    before = cli.record("job")
    changed(cli("forget", "job", "--yes"))
    after = cli.record("job")
    assert after == Record("job", token=after.token, keep_until=after.keep_until)
    assert after.token > before.token
    assert cli.end(holder).returncode == _codes.LOST
    assert cli("ls").stdout == ""
    again = cli("forget", "job", "--yes")
    assert (again.returncode, again.stdout) == (1, "")


WRONG = [
    (("release",), "NAME"),
    (("release", "job"), "give --yes"),
    (("forget", "job"), "give --yes"),
    (("release", "job", "--yes", "--why", "a\nb"), "control character"),
    (("release", "job", "--yes", "--why", "x" * 201), "at most 200"),
    (("release", "job", "--yes", "--url", "nosuch://user:secret@host"), "no backend is called nosuch"),
    (("settle", "job", "--yes"), "one of --handled, --failed and --mark"),
    (("settle", "job", "--handled", "--failed", "--yes"), "one of --handled, --failed and --mark"),
    (("settle", "lease", "--handled", "--yes"), "is kept as a lease"),
    (("settle", "job", "--failed", "--yes"), "counts as handled"),
    (("settle", "job", "--mark", "soon", "--yes"), "--mark='soon'"),
    (("settle", "job", "--mark", "2100-01-01T00:00:00Z", "--yes"), "no slot can be marked ahead of its time"),
    (("settle", "mail", "--mark", "0", "--yes"), "only --mark none works"),
]


@pytest.mark.parametrize(("given", "word"), WRONG, ids=lambda value: repr(value)[:60].replace("/", "|"))
def test_a_wrong_command_line_is_2_and_changes_nothing(cli, given, word):
    with cli.client() as client:
        client.try_window("job", rota.Every("300d")).handled()
        client.try_once("mail", "1h").handled()
        client.try_lease("lease").release()
    before = [cli.record(name) for name in ("job", "mail", "lease")]
    ended = cli(*given)
    assert ended.returncode == _codes.USAGE
    assert word in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert ended.stdout == ""
    assert "secret" not in ended.stderr
    assert [cli.record(name) for name in ("job", "mail", "lease")] == before


@pytest.mark.parametrize("given", [("release", "nightly"), ("settle", "nightly", "--handled"), ("forget", "nightly")])
def test_a_name_that_is_not_there_is_1(cli, given):
    with cli.client() as client:
        client.driver.read("job", 5.0)  # there is a store
    ended = cli(*given, "--yes")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "no record" in ended.stderr


@pytest.mark.parametrize("command", ["release", "settle", "forget"])
def test_a_store_that_does_not_answer_is_115_and_nobody_who_reads_is_no_error(cli, command):
    options = ("--handled",) if command == "settle" else ()
    assert cli.shell("job", *ONCE_A_YEAR, script="exit 1").returncode == 1
    with cli.client() as client:
        assert client.try_window("job", rota.Cron("0 0 1 1 *"))
        with cli.locked():
            ended = cli(command, "job", "--yes", "--timeout", "200ms", *options)
        assert ended.returncode == _codes.UNAVAILABLE
        assert ended.stderr.count("\n") == 1
        reading, writing = os.pipe()
        os.close(reading)
        process = cli.start(command, "job", "--yes", *options, stdout=writing)
        os.close(writing)
        changed(cli.end(process))


def test_the_recipe_for_a_slot_that_was_passed_over_runs_it_alone(cli):
    """As the page says it, but for the days: yesterday's slot once today's was handled; today's is handled before and after (W2)."""
    page = (Path(__file__).parents[2] / "docs/operations.md").read_text(encoding="utf-8").partition("## A slot that was not run")[2]
    block = re.search(r"^```console\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[1]
    nightly = rota.Cron("0 2 * * *", tz="Europe/Berlin")
    last = nightly.slot(datetime.now(UTC) + timedelta(seconds=5))
    while last.start > time.time() * 1_000_000:  # the night's slot begins right now
        time.sleep(0.1)
    wanted = nightly.slot(last.start_at - timedelta(seconds=1))
    before = nightly.slot(wanted.start_at - timedelta(seconds=1))
    for day, slot in ((24, before), (25, wanted), (26, last)):
        block = block.replace(f"2026-02-{day}T02:00:00+01:00", iso(slot.start))
    assert "+01:00" not in block
    settle, run, settle_again = (shlex.split(line)[1:] for line in block.splitlines())
    run[run.index("--") + 1 :] = ["sh", "-c", "echo $ROTA_SLOT_START"]
    schedule = ("--cron", nightly.expression, "--tz", nightly.tz)
    assert cli("run", "nightly", *schedule, "--", "true").returncode == 0
    refused = cli(*run)
    assert (refused.returncode, refused.stdout) == (0, "")
    assert "was passed over: the newer slot of" in refused.stderr
    changed(cli(*settle, "--yes"))
    assert cli(*run).stdout == f"{iso(wanted.start)}\n"
    assert verdict(cli, "nightly") == ("won", None)
    changed(cli(*settle_again, "--yes"))
    assert verdict(cli, "nightly") == ("handled", "done")
    assert cli(*run).stdout == cli("run", "nightly", *schedule, "--", "echo", "again").stdout == ""
