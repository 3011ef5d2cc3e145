# SPDX-License-Identifier: MIT
"""Every operator's command on every store: on no name, a few and 500, odd ones included, for programs, people, and readers that go away.

The commands are carried out by `rota.cli.main` in this process, since memory:// lives in one: there `_store.store`, which refuses it, gives
the tests' store instead. That a process of its own does the same is in test_operator.py, on SQLite, and below where a pipe is closed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pty
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import jsonschema
import pytest
import redis
import rota
from rota.backend import Backend, Driver, Override, Record, WriteBack
from rota.cli import _codes, main
from rota.cli._topics import SCHEMAS, schema
from rota.memory import MemoryDriver, MemoryStore
from rota.schedule import iso
from rota.url import Url

SECOND, HOUR, DAY = 1_000_000, 3_600_000_000, 86_400_000_000
RETENTION = 30 * DAY
YEAR = rota.Every("300d")
SLOW = ("--timeout", "20s")
MANY = [f"job-{number:03}" for number in range(500)]
#: Odd names, and those beside which they lie.
ODD = [
    "a",
    "a/b",
    "a/b/c",
    "ab",
    "a b",
    "a  b",
    "-x",
    "--json",
    "--",
    "naïve/ключ/日本語",
    "e\u0301",
    "é",
    "100%",
    "quote'\"\\",
    "\u202egnp",
]
ODD += ["*", "[a]", "$HOME", "..", "a:b", "{a}", "#", "\\x00", "x" * 240, "日" * 80]
FORMATS = jsonschema.FormatChecker(())


@FORMATS.checks("date-time", ValueError)
def is_utc(value: object) -> bool:
    return not isinstance(value, str) or (value.endswith("Z") and datetime.fromisoformat(value).utcoffset() == timedelta(0))


VALIDATORS = {command: jsonschema.Draft202012Validator(json.loads(schema(command)), format_checker=FORMATS) for command in SCHEMAS}


class Given(Backend):
    """memory:// with a store that outlives a client."""

    contract = 1
    safe = "memory://"

    def __init__(self, store: MemoryStore, prefix: str) -> None:
        self._store = store
        self.url = Url("memory", "", {}, prefix)

    def driver(self, url: Url) -> Driver:
        return MemoryDriver(self._store)


class Ended(NamedTuple):
    code: int
    out: str
    err: str


class Desk:
    """An operator's desk: a store below a prefix, and the commands on it."""

    def __init__(self, target: str | Given, capture: pytest.CaptureFixture[str]) -> None:
        self.target = target
        self._capture = capture

    def client(self) -> rota.Client:
        return rota.connect(self.target, timeout=20)

    def __call__(self, command: str, *arguments: str) -> Ended:
        self._capture.readouterr()
        code = main([command, *SLOW, *arguments])
        ended = Ended(code, *self._capture.readouterr())
        assert "Traceback" not in ended.err
        return ended

    def objects(self, command: str, *arguments: str) -> list[dict[str, Any]]:
        """What a command prints with --json; held to its schema, which names each key in its order."""
        ended = self(command, "--json", *arguments)
        assert (ended.code, ended.out.isascii()) == (0, True), ended.err
        found = [json.loads(line) for line in ended.out.splitlines()]
        for one in found:
            VALIDATORS[command].validate(one)
            assert list(one) == list(VALIDATORS[command].schema["properties"])
        return found

    def one(self, command: str, *arguments: str) -> dict[str, Any]:
        (found,) = self.objects(command, *arguments)
        return found

    def record(self, name: str) -> Record:
        with self.client() as client:
            found, _ = client.driver.read(client._full(name), 20.0)
        assert found is not None
        return found

    def output_to(self, number: int, *arguments: str) -> int:
        """Carry out a command whose standard output is that file."""
        kept = os.dup(1)
        try:
            os.dup2(number, 1)
            return main(list(arguments))
        finally:
            os.dup2(kept, 1)
            os.close(kept)

    def on_terminal(self, command: str, *arguments: str) -> str:
        mine, other = pty.openpty()
        shown: list[bytes] = []

        def read() -> None:
            try:
                while part := os.read(mine, 65536):
                    shown.append(part)
            except OSError:  # Linux: the other side is closed
                pass

        reader = threading.Thread(target=read)
        reader.start()
        try:
            assert self.output_to(other, command, *SLOW, *arguments) == 0
        finally:
            os.close(other)
            reader.join()
            os.close(mine)
        return b"".join(shown).decode().replace("\r\n", "\n")


class Place:
    """One store for all tests of this module. What a test makes lies below a prefix of its own."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url
        self._memory = MemoryStore()
        self._planted = False

    def below(self, prefix: str) -> str | Given:
        if self.kind == "memory":
            return Given(self._memory, prefix)
        return f"{self.url}{'&' if '?' in self.url else '?'}prefix={prefix}"

    @property
    def many(self) -> str | Given:
        """With 500 names, each written back as handled by a process of its own kind of site."""
        target = self.below("many")
        if not self._planted:
            with rota.connect(target, timeout=20) as client, ThreadPoolExecutor(8) as pool:
                end = time.time_ns() // 1000

                def plant(name: str) -> None:
                    back = WriteBack("many/" + name, "dc1 host:1", "window", RETENTION, "every 1h", "", end - HOUR, end)
                    assert client.driver.record(back, 20.0).applied

                list(pool.map(plant, MANY))
            self._planted = True
        return target


@pytest.fixture(scope="module", params=["memory", "sqlite", "postgres", "redis", "zookeeper", "etcd"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    if request.param == "memory":
        return Place("memory", "")
    if request.param == "sqlite":
        return Place("sqlite", f"sqlite://{tmp_path_factory.mktemp('operator')}/store.db")
    if request.param == "postgres":
        url: str = request.getfixturevalue("postgres").url(options=f"table=operator_{os.urandom(4).hex()}")
        with rota.connect(url) as client:
            client.driver.init(30.0)
        return Place("postgres", url)
    part = f"operator-{os.urandom(4).hex()}"
    if request.param == "redis":
        return Place("redis", request.getfixturevalue("redis_url"))
    if request.param == "etcd":
        return Place("etcd", str(request.getfixturevalue("etcd").url()))
    return Place("zookeeper", request.getfixturevalue("conforming_zookeeper").url(f"/{part}"))


@pytest.fixture
def desk(place: Place, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Below a prefix of the test's own."""
    return at(place.below(f"t{os.urandom(4).hex()}"), capfd, monkeypatch)


@pytest.fixture
def many(place: Place, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Desk:
    """With 500 names."""
    return at(place.many, capfd, monkeypatch)


def at(target: str | Given, capture: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Desk:
    if isinstance(target, str):
        monkeypatch.setenv("ROTA_URL", target)
    else:
        monkeypatch.setattr("rota.cli._store.store", lambda given, *, make: target)
    return Desk(target, capture)


def names(desk: Desk, *arguments: str) -> list[str]:
    return [one["name"] for one in desk.objects("ls", *arguments)]


ON_A_NAME = [("show",), ("history",), ("release", "--yes"), ("settle", "--handled", "--yes"), ("forget", "--yes")]


# -- how many names


def test_on_no_name_at_all(desk: Desk) -> None:
    with desk.client() as client:
        client.try_lease("none").release()  # there is a store
        client.driver.forget(client._full("none"), 20.0)
    assert desk("ls") == (0, "", "")
    assert desk.objects("ls") == []
    assert len(desk.on_terminal("ls").splitlines()) == 1
    for command in ON_A_NAME:
        ended = desk(*command, "job")
        assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
        assert "no record" in ended.err


def test_on_a_few_names_of_every_kind(desk: Desk) -> None:
    with desk.client() as client:
        held = client.try_lease("held", ttl="60s")
        client.try_window("handled", YEAR).handled()
        client.try_window("failed", YEAR).failed()
        client.try_once("mail", "24h").handled()
        client.try_lease("free").release()
        rows = {one["name"]: one for one in desk.objects("ls")}
        assert list(rows) == ["failed", "free", "handled", "held", "mail"]
        assert [row["state"] for row in rows.values()] == ["free", "free", "free", "held", "free"]
        assert [row["kind"] for row in rows.values()] == ["window", "lease", "window", "lease", "rolling"]
        assert [row["outcome"] for row in rows.values()] == ["failed", "released", "handled", "pending", "handled"]
        assert 0 < rows["held"]["remaining"] <= 61
        assert rows["held"]["token"] == held.token
        plain = [line.split("\t") for line in desk("ls").out.splitlines()]
        assert [line[0] for line in plain] == list(rows)
        assert {len(line) for line in plain} == {11}
        table = desk.on_terminal("ls").splitlines()
        assert table[0].split()[:3] == ["NAME", "STATE", "HOLDER"]
        assert [line.split()[0] for line in table[1:]] == list(rows)
        shown = {name: desk.one("show", name) for name in rows}
        assert [one["verdict"] for one in shown.values()] == ["won", "won", "handled", "busy", "handled"]
        outcomes = {name: [run["outcome"] for run in desk.objects("history", name)] for name in rows}
        ended = {"failed": ["failed"], "free": ["released"], "handled": ["handled"], "held": ["running"], "mail": ["handled"]}
        assert outcomes == ended
        assert desk.on_terminal("history", "held").splitlines()[1].endswith("#")
        released = desk.one("release", "held", "--yes", "--why", "a test")
        assert (released["change"], released["fenced"], released["verdict"]) == ("released", client._engine.label, "won")
        assert released["token"] > held.token
        nobody = desk("release", "--json", "free", "--yes")
        assert (nobody.code, json.loads(nobody.out)["change"]) == (1, None)
        settled = desk.one("settle", "failed", "--handled", "--yes", "--why", "by hand")
        assert (settled["change"], settled["why"], settled["verdict"]) == ("handled", "by hand", "handled")
        forgotten = desk.one("forget", "mail", "--yes", "--why", "no longer")
        assert (forgotten["change"], forgotten["why"], forgotten["verdict"]) == ("forgotten", "no longer", "won")
        assert forgotten["by"] == released["by"] == desk.record("held").label.partition(":")[0]
        assert names(desk) == ["failed", "free", "handled", "held"]
        assert [one["state"] for one in desk.objects("ls", "--all", "mail")] == ["forgotten"]


def test_on_500_names(many: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    with many.client() as client:
        kind = type(client.driver)
        asked: list[str] = []
        real = kind.list
        monkeypatch.setattr(kind, "list", lambda self, *given, **options: (asked.append(given[0]), real(self, *given, **options))[1])
        assert names(many) == MANY
        assert asked == ["many/"]  # one call, however many names
        assert [line.split("\t")[0] for line in many("ls").out.splitlines()] == MANY
        assert [line.split()[0] for line in many.on_terminal("ls").splitlines()[1:]] == MANY
        assert names(many, "job-25") == MANY[250:260]
        before = {one["name"]: one["token"] for one in many.objects("ls")}
        for name in (MANY[0], MANY[250], MANY[-1]):
            assert many.one("show", name)["how"] in ("passed", "done", None)
            assert [run["outcome"] for run in many.objects("history", name)] == ["degraded"]
        grant = client.try_window(MANY[250], rota.Every("1h"))
        assert many.one("release", MANY[250], "--yes")["token"] > grant.token
        many.one("settle", MANY[0], "--handled", "--yes")
        many.one("settle", MANY[-1], "--mark", "none", "--yes")
        many.one("forget", MANY[100], "--yes")
        after = {one["name"]: one["token"] for one in many.objects("ls", "--all")}
        assert list(after) == MANY
        changed = {MANY[0], MANY[100], MANY[250], MANY[-1]}
        assert {name for name in MANY if after[name] != before[name]} == changed
        client.try_window(MANY[100], rota.Every("1h")).handled()  # there again, for the other tests


# -- odd names


def test_each_command_takes_odd_names_and_touches_no_other(desk: Desk) -> None:
    in_order = sorted(ODD, key=str.encode)
    with desk.client() as client:
        for name in ODD:
            client.try_window(name, YEAR).handled()
        assert names(desk) == in_order
        plain = desk("ls").out
        assert plain.replace("\t", "").replace("\n", "").isprintable()
        assert [len(line.split("\t")) for line in plain.splitlines()] == [11] * len(ODD)
        assert "\u202e" not in desk.on_terminal("ls")
        assert names(desk, "a/") == ["a/b", "a/b/c"]
        assert names(desk, "--", "-") == ["--", "--json", "-x"]
        tokens = {one["name"]: one["token"] for one in desk.objects("ls")}
        for name in ODD:
            shown = desk.one("show", "--", name)
            assert (shown["name"], shown["how"]) == (name, "done")
            assert [run["outcome"] for run in desk.objects("history", "--", name)] == ["handled"]
            settled = desk.one("settle", "--mark", "none", "--yes", "--", name)
            assert (settled["name"], settled["change"], settled["verdict"]) == (name, "mark", "won")
            grant = client.try_window(name, YEAR)
            assert grant.token > settled["token"]
            released = desk.one("release", "--yes", "--", name)
            assert released["fenced"] == client._engine.label
            tokens[name] = released["token"]
            assert {one["name"]: one["token"] for one in desk.objects("ls", "--", name)} == {
                other: token for other, token in tokens.items() if other.startswith(name)
            }
        assert {one["name"]: one["token"] for one in desk.objects("ls")} == tokens
        for name in ODD[::2]:
            assert desk.one("forget", "--yes", "--", name)["token"] > tokens[name]
        assert names(desk) == [name for name in in_order if name not in ODD[::2]]


# -- who reads


@pytest.mark.parametrize(
    "given", [("ls",), ("ls", "--json"), ("show", MANY[7]), ("show", MANY[7], "--json"), ("history", MANY[7])], ids=" ".join
)
def test_nobody_reads(many: Desk, given: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert many.output_to(writing, *given, *SLOW) == 0
    finally:
        os.close(writing)


def test_nobody_reads_what_was_changed(desk: Desk) -> None:
    with desk.client() as client:
        client.try_window("job", YEAR).failed()
    for code, *given in ((0, "settle", "job", "--handled"), (1, "release", "job"), (0, "forget", "job")):
        reading, writing = os.pipe()
        os.close(reading)
        try:
            assert desk.output_to(writing, *given, "--yes", *SLOW) == code
        finally:
            os.close(writing)
    assert desk.record("job").kind == ""


def test_a_pipe_that_is_closed_after_a_line_is_no_error(place: Place, many: Desk, cli: Any) -> None:
    """``| head -1``, with a process of its own where the store outlives one."""
    if isinstance(many.target, Given):
        reading, writing = os.pipe()
        with open(reading, "rb", buffering=0) as read:
            lines: list[bytes] = []

            def head() -> None:
                lines.append(read.read(40))
                read.close()

            reader = threading.Thread(target=head)
            reader.start()
            assert many.output_to(writing, "ls") == 0
            os.close(writing)
            reader.join()
        assert lines[0].startswith(b"job-000\tfree\t")
        return
    line = f"'{sys.executable}' -m rota ls --timeout 20s | head -n 1; echo ${{PIPESTATUS[*]}}"
    ended = subprocess.run(
        ["bash", "-c", line], env={**cli.environment, "ROTA_URL": many.target}, capture_output=True, text=True, check=False, timeout=60
    )
    first, codes = ended.stdout.splitlines()
    assert first.startswith("job-000\tfree\t")
    assert (codes, ended.stderr) == ("0 0", "")


def test_what_is_no_terminal_gets_neither_colours_nor_tables(many: Desk) -> None:
    for given in (("ls",), ("show", MANY[7]), ("history", MANY[7]), ("next", "--every", "1h")):
        ended = many(*given) if given[0] != "next" else Ended(main(list(given)), *many._capture.readouterr())
        assert (ended.code, ended.err) == (0, "")
        assert "\x1b" not in ended.out
        assert all("\t" in line and "  " not in line for line in ended.out.splitlines())


# -- what show says


def test_show_says_of_each_verdict_why(desk: Desk) -> None:
    """Planted, asked for, and then claimed for real: the verdict is the same, and so is the sentence where it is refused."""
    now = time.time_ns() // 1000
    start = YEAR.slot(now).start
    with desk.client() as client:
        client.try_window("done", YEAR).handled()
        client.try_window("failed", YEAR).failed()
        client.try_window("given up", YEAR, attempts=1).failed()
        client.try_window("ahead", YEAR).handled()
        client.driver.override(Override(client._full("ahead"), "mark", "ada: a test", RETENTION, mark=now + 900 * DAY), 20.0)
        busy = client.try_window("busy", YEAR, ttl="60s")
        lease = client.try_lease("lease", ttl="60s")
        past, ahead = iso(start - 300 * DAY), iso(start + 300 * DAY)
        expected = [
            ("failed", {}, "won", "", "failed at"),
            ("done", {}, "handled", "done", "was handled by"),
            ("done", {"planned": past}, "handled", "passed", "was passed over"),
            ("given up", {}, "handled", "gave up", "was given up by"),
            ("ahead", {}, "handled", "mark-ahead", "a clock once ran fast"),
            ("busy", {}, "busy", "", "has held the slot of"),
            ("failed", {"planned": iso(start - 3000 * DAY)}, "late", "", "too late for the slot of"),
            ("failed", {"max_late": "1us"}, "late", "", "it could be won until"),
            ("failed", {"planned": ahead}, "early", "", "can be won in"),
        ]
        for name, options, verdict, how, words in expected:
            flags = [word for option, value in options.items() for word in ("--" + option.replace("_", "-"), value)]
            said = desk.one("show", name, *flags)
            assert (said["verdict"], said["how"] or "") == (verdict, how)
            assert words in said["reason"]
            assert "\n" not in said["reason"]
            if how != "mark-ahead" and verdict != "early":  # those tell the time
                assert said["reason"] in desk.on_terminal("show", name, *flags)
            claimed = client.try_window(name, YEAR, **options)
            assert (claimed.verdict if not claimed else "won") == verdict
            if claimed:
                claimed.unused()
            elif verdict != "early" and how != "mark-ahead":
                assert f"{client._prefix}{name}: {said['reason']}".startswith(claimed.reason)
        assert "has held it since" in desk.one("show", "lease")["reason"]
        busy.unused()
        lease.release()
        assert "nobody has held it since" in desk.one("show", "lease")["reason"]


# -- what changes


def test_a_live_holder_is_told_of_a_release_and_refused_by_what_checks_tokens(desk: Desk, cli: Any) -> None:
    """L2: its `check()` says lost, a sink that compares tokens refuses it, the record says who and why, and so does the history."""
    with desk.client() as client:
        grant = client.try_lease("job", ttl=max(1.0, client.driver.capabilities.min_ttl / SECOND))
        ended = desk("release", "job", "--yes", "--why", "node 7 is gone")
        assert (ended.code, ended.err) == (0, "")
        assert f"{client._engine.label} is fenced" in ended.out
        cli.until(lambda: grant.lost)
        with pytest.raises(rota.LeaseLost):
            grant.check()
        following = client.try_lease("job")
        following.release()
    sink = sqlite3.connect(":memory:", isolation_level=None)
    sink.execute("CREATE TABLE report (day TEXT PRIMARY KEY, token INTEGER NOT NULL)")
    write = (
        "INSERT INTO report VALUES ('today', ?) ON CONFLICT (day) DO UPDATE SET token = excluded.token WHERE report.token <= excluded.token"
    )
    assert [sink.execute(write, (token,)).rowcount for token in (following.token, grant.token)] == [1, 0]
    sink.close()
    runs = desk.objects("history", "job")
    assert [run["outcome"] for run in runs] == ["released", "released"]
    assert runs[1]["token"] == grant.token
    assert (runs[1]["holder"], runs[1]["operator"].partition(": ")[2]) == (client._engine.label, "node 7 is gone")


def test_the_record_says_who_released_it_and_why(desk: Desk) -> None:
    with desk.client() as client:
        grant = client.try_lease("job")
        by = desk.one("release", "job", "--yes", "--why", "node 7 is gone")["by"]
        record = desk.record("job")
        assert (record.owner, record.last_owner, record.last_result) == ("", "operator", "released")
        assert record.label == f"{by}: node 7 is gone"
        shown = desk.one("show", "job")
        assert (shown["holder"], shown["operator"]) == (client._engine.label, record.label)
        assert record.token > grant.token


def test_a_run_without_the_store_is_in_the_history_and_stays_there(desk: Desk) -> None:
    """F3: written back afterwards; the next settlement takes it into the history, in its own step."""
    with desk.client() as client:
        last = YEAR.slot(time.time_ns() // 1000 - 300 * DAY)
        back = WriteBack(client._full("job"), "dc1 host:1", "window", RETENTION, YEAR.canonical, "", *last)
        assert client.driver.record(back, 20.0).applied
        (run,) = desk.objects("history", "job")
        assert (run["outcome"], run["degraded"], run["token"]) == ("degraded", True, None)
        assert (run["slot_start"], run["holder"], run["site"]) == (iso(last.start), "host:1", "dc1")
        assert desk.one("show", "job", "--planned", iso(last.start))["how"] == "done"
        client.try_window("job", YEAR).failed()
        assert [run["outcome"] for run in desk.objects("history", "job")] == ["failed", "degraded"]
        client.try_window("job", YEAR).handled()
        assert desk.objects("history", "job")[2] == run
        assert desk.one("show", "job", "--planned", iso(last.start))["how"] == "done"


def test_a_period_without_the_store_is_shown_as_it_decides(desk: Desk) -> None:
    """F3, W12: also where whoever wrote it back left out the schedule, as may happen; the slot tells the period."""
    with desk.client() as client:
        start = time.time_ns() // 1000 - HOUR
        for name, schedule in (("job", ""), ("other", "per 1d")):
            back = WriteBack(client._full(name), "dc1 host:1", "rolling", RETENTION, schedule, "", start, start + DAY)
            assert client.driver.record(back, 20.0).applied
            shown = desk.one("show", name)
            assert (shown["verdict"], shown["how"], shown["schedule"]) == ("handled", "done", schedule or None)
            refused = client.try_once(name, "1d")
            assert f"{client._prefix}{name}: {shown['reason']}" == refused.reason
            assert "was taken (degraded) by dc1 host:1" in shown["reason"]


def test_as_many_runs_are_kept_as_the_capabilities_say(desk: Desk) -> None:
    with desk.client() as client:
        client._engine.label = "l" * 37 + ":42"
        for _ in range(client.driver.capabilities.history + 10):
            client.try_lease("job").release()
        runs = desk.objects("history", "job")
        assert client.driver.capabilities.history <= len(runs) < client.driver.capabilities.history + 10
        assert {run["holder"] for run in runs} == {client._engine.label}
        assert [run["token"] for run in runs] == sorted((run["token"] for run in runs), reverse=True)


def test_the_history_costs_a_claim_and_a_settlement_no_call(desk: Desk, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted at the driver; on Redis also by the server, as commands that name the key."""
    with desk.client() as client:
        kind = type(client.driver)
    calls: list[str] = []
    for verb in ("claim", "renew", "settle", "read", "list", "now", "override", "record"):
        real = getattr(kind, verb)
        monkeypatch.setattr(kind, verb, lambda *a, real=real, verb=verb, **k: (calls.append(verb), real(*a, **k))[1])
    with desk.client() as client:
        client.try_window("job", YEAR).failed()
        calls.clear()
        with contextlib.ExitStack() as stack:
            if place.kind == "redis":
                server = stack.enter_context(redis.Redis.from_url(place.url))
                monitor = stack.enter_context(server.monitor())
            client.try_window("job", YEAR).handled()
            if place.kind == "redis":
                server.echo("that is all")
                heard = itertools.takewhile(lambda told: "that is all" not in told["command"], monitor.listen())
                # scripts call the server by themselves, which is no round trip
                sent = [told["command"] for told in heard if told["client_type"] != "lua"]
                assert [command.split()[0] for command in sent if client._prefix + "job" in command] == ["EVALSHA"] * 2
        assert calls == ["claim", "settle"]
    assert [run["outcome"] for run in desk.objects("history", "job")] == ["handled", "failed"]


def test_the_mark_of_a_fast_clock_is_set_back(desk: Desk) -> None:
    hourly = rota.Every("1h")
    with desk.client() as client:
        client.try_window("job", hourly).handled()
        ahead = hourly.slot(time.time_ns() // 1000).start + 240 * HOUR
        planted = Override(client._full("job"), "mark", "ada: a test", RETENTION, mark=ahead)
        assert client.driver.override(planted, 20.0).applied
        assert client.try_window("job", hourly).mark_ahead
        back = desk.one("settle", "job", "--mark", str(int(time.time()) - 7200), "--yes", "--why", "the clock ran ahead")
        assert (back["change"], back["verdict"]) == ("mark", "won")
        assert datetime.fromisoformat(back["mark"]).timestamp() % 3600 == 0
        grant = client.try_window("job", hourly)
        assert grant.token > back["token"]
        grant.handled()
        assert desk("settle", "job", "--mark", iso(ahead), "--yes").code == _codes.USAGE


def test_forgetting_tells_what_nothing_keeps(desk: Desk) -> None:
    with desk.client() as client:
        client.try_window("job", YEAR).handled()
        ended = desk("forget", "job", "--yes", "--why", "renamed")
        assert (ended.code, ended.err) == (0, "")
        first, second, third = ended.out.splitlines()
        assert ": renamed; the token is " in first
        assert second == "job: a claim now would be won: it was forgotten, so nothing stands in the way"
        assert third.startswith("job: it was a window of every 300d")
        assert "neither that nor who forgot it" in third
        assert desk.record("job").label == ""
