# SPDX-License-Identifier: MIT
"""`rota doctor` as an operator has it: on stores without a server, on servers that never answer, on a terminal and off it."""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import rota
from jsonschema import Draft202012Validator
from rota.backend import Claim, Driver, Record
from rota.cli import _doctor, _doctor_look, _progress, main
from rota.cli._topics import schema
from rota.duration import DAY, HOUR, SECOND
from rota.finding import BAD, LEVELS, OK, WARN, Finding
from rota.memory import MemoryDriver
from rota.sqlite import _WRITE, SqliteDriver, _file_system

ROOT = Path(__file__).parents[2]
CORE = {"reach", "latency", "clock", "versions", "scope", "durability", "claim", "records", "ttl"}


def a_job(cli) -> None:
    """Have a slot handled."""
    with cli.client() as client, client.window("job", rota.Every("1d")):
        pass


def levels(found) -> set[str]:
    return {one["level"] for one in found.values()}


# -- a sound store


def test_it_is_silent_on_memory(examined):
    code, found = examined("memory://")
    assert (code, levels(found)) == (0, {"ok"})
    assert found.keys() == CORE


def test_it_is_silent_on_a_file_and_leaves_no_name(cli, examined):
    a_job(cli)
    code, found = examined(cli.url)
    in_memory = {"file system"} if _file_system(str(cli.path)) == "tmpfs" else set()
    assert code == 0
    assert {subject for subject, one in found.items() if one["level"] != "ok"} == in_memory
    assert found.keys() == {*CORE, "file system", "journal", "permissions", "disk"}
    with cli.client() as client:
        assert [record.name for record in client.driver.list("", 5.0) if record.kind] == ["job"]
    assert found["records"]["facts"] == {"names": 1, "held": 0, "complete": True, "marks_ahead": 0, "grants_ahead": 0}
    assert found["clock"]["facts"]["ahead_least_s"] <= 0 <= found["clock"]["facts"]["ahead_most_s"]  # they are one clock


def test_the_store_is_named_by_the_url_or_by_the_environment(cli, capfd, monkeypatch):
    a_job(cli)
    other = cli.folder / "other.db"
    cli.make(f"sqlite://{other}")
    named, given = cli.start("doctor"), cli.start("doctor", f"sqlite://{other}")
    assert f"ok\treach\tsqlite://{cli.path} answers" in cli.end(named).stdout
    assert f"ok\treach\tsqlite://{other} answers" in cli.end(given).stdout
    monkeypatch.setenv("ROTA_URL", "")
    for given in (["doctor", ""], ["doctor"]):
        assert main(given) == 2
        assert "is empty" in capfd.readouterr().err


@pytest.mark.parametrize("url", ["nonsense", "sqlite://relative.db", "nosuch://host/x", "sqlite:///x?wrong=1"])
def test_a_url_that_cannot_be_is_refused_before_anything_is_looked_at(capfd, url):
    assert main(["doctor", url]) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1


# -- what may be wrong with a file


def test_a_file_that_is_not_there_may_be_another_one_than_was_meant_and_is_not_made(cli, examined):
    code, found = examined(f"sqlite://{cli.folder}/new/typo.db")
    assert (code, found.keys(), found["store"]["level"]) == (1, {"store"}, "bad")
    assert f"{cli.folder}/new/typo.db" in found["store"]["finding"]
    assert "correct the URL" in found["store"]["cure"]
    assert not (cli.folder / "new").exists()
    ended = cli("doctor", env={"ROTA_URL": None, "XDG_STATE_HOME": str(cli.folder / "state")})
    assert (ended.returncode, ended.stdout.startswith("bad\tstore\t")) == (1, True)
    assert not (cli.folder / "state").exists()


def test_a_folder_in_which_no_store_can_be_made_is_told(cli):
    if os.geteuid() != 0:
        pytest.skip("not run: only root can become another user")
    for path in cli.folder.parents:
        if path.stat().st_mode & 0o777 == 0o700 and path.is_relative_to(tempfile.gettempdir()):
            path.chmod(0o711)
    cli.folder.chmod(0o755)
    code, found = as_nobody(f"sqlite://{cli.folder}/new.db")
    assert (code, found["store"]["level"], found["permissions"]["level"]) == (1, "bad", "bad")


def test_a_folder_that_anybody_may_change_is_told(cli, examined):
    (cli.folder / "open").mkdir()
    cli.make(f"sqlite://{cli.folder}/open/store.db")
    (cli.folder / "open").chmod(0o777)
    found = examined(f"sqlite://{cli.folder}/open/store.db")[1]
    assert (found["permissions"]["level"], found["permissions"]["cure"]) == ("warn", f"chmod o-w {cli.folder}/open")


def test_a_file_that_anybody_may_write_is_told(cli, examined):
    a_job(cli)
    cli.path.chmod(0o666)
    found = examined(cli.url)[1]
    assert (found["permissions"]["level"], found["permissions"]["cure"]) == ("warn", f"chmod o-w {cli.path}")


def as_nobody(url: str) -> tuple[int, dict[str, dict[str, str]]]:
    """What the doctor says to a user who owns nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.dup2(writing, 1)
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os._exit(main(["doctor", url, "--json"]))
        finally:
            os._exit(70)
    os.close(writing)
    with open(reading) as shown:
        found = {one["subject"]: one for one in map(json.loads, shown)}
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), found


@pytest.mark.parametrize("writable", ["nothing", "the folder"])
def test_another_users_file_is_told_with_whose_it_is(cli, examined, writable):
    if os.geteuid() != 0:
        pytest.skip("not run: only root can become another user")
    a_job(cli)
    for path in cli.folder.parents:
        if path.stat().st_mode & 0o777 == 0o700 and path.is_relative_to(tempfile.gettempdir()):
            path.chmod(0o711)
    cli.folder.chmod(0o755 if writable == "nothing" else 0o777)
    assert examined(cli.url)[0] == 0  # as root; whatever is needed is imported by now: another user may not read this checkout
    code, found = as_nobody(cli.url)
    assert code == 1
    assert found["permissions"]["level"] == "bad"
    assert "of root is not to be written" in found["permissions"]["finding"]
    assert "chmod" in found["permissions"]["cure"]


def test_a_file_on_a_network_file_system_is_told(cli, examined, monkeypatch):
    import rota.sqlite

    cli.make()
    # no test can mount one: this is what Linux would say of it
    monkeypatch.setattr(rota.sqlite, "_file_system", lambda path: "nfs4")
    code, found = examined(cli.url)
    assert (code, found["file system"]["level"]) == (1, "bad")
    assert "PostgreSQL, Redis" in found["file system"]["cure"]


def test_a_file_system_in_memory_and_a_full_one_are_told(cli, examined, monkeypatch):
    folder = Path("/dev/shm")
    if _file_system(str(folder)) != "tmpfs":
        pytest.skip("not run: there is no /dev/shm")
    path = folder / f"rota-doctor-{os.getpid()}.db"
    try:
        cli.make(f"sqlite://{path}")
        found = examined(f"sqlite://{path}")[1]
        assert found["file system"]["level"] == "warn"
        assert "/var/lib" in found["file system"]["cure"]
        import rota._sqlite_findings

        monkeypatch.setattr(rota._sqlite_findings, "LITTLE", 2**62)  # more than any disk has
        assert examined(f"sqlite://{path}")[1]["disk"]["cure"] == "Make room, or move the file."
    finally:
        for file in folder.glob(f"{path.name}*"):
            file.unlink()


def test_a_file_that_is_no_store_is_told(cli, examined):
    cli.path.write_text("not a database, and long enough to be taken for one" * 50)
    code, found = examined(cli.url)
    assert (code, found["access"]["level"]) == (1, "bad")
    assert "not an SQLite file" in found["access"]["finding"]


def test_in_a_pod_a_file_coordinates_nothing(cli, examined, monkeypatch):
    cli.make()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    code, found = examined(cli.url)
    assert (code, found["scope"]["level"]) == (1, "bad")
    assert "ROTA_URL" in found["scope"]["cure"]


# -- records


def test_a_mark_ahead_of_the_clock_is_bad(cli, examined):
    """W7: a store whose clock once ran fast."""
    a_job(cli)
    later = time.time_ns() // 1000 + 86_400_000_000
    with sqlite3.connect(cli.path) as connection:
        record = Record("ahead", "window", token=7, mark=later, slot_start=later, slot_end=later + 1, keep_until=2 * later)
        connection.execute(_WRITE, record)
    connection.close()
    code, found = examined(cli.url)
    assert (code, found["records"]["level"]) == (1, "bad")
    assert "'ahead'" in found["records"]["finding"]
    assert "rota settle NAME --mark T" in found["records"]["cure"]
    assert found["records"]["facts"]["marks_ahead"] == 1
    assert main(["settle", "ahead", "--mark", "none", "--yes", "--url", cli.url]) == 0
    assert examined(cli.url)[0] == 0


def test_a_lease_that_a_fast_clock_left_in_the_future_is_bad(cli, examined, capfd):
    """W7: its holder died, and by the clock as it is now the lease ends in ten days."""
    a_job(cli)
    driver = SqliteDriver(str(cli.path), lambda: time.time_ns() // 1000 + 10 * DAY)
    ahead = driver.now(5.0)[0]
    claim = Claim("future", "a" * 32, "there:1", "window", 30 * SECOND, ahead + DAY, 30 * DAY, schedule="every 1h")
    assert driver.claim(claim._replace(slot_start=ahead, slot_end=ahead + HOUR), 5.0).verdict == "won"
    driver.close()
    code, found = examined(cli.url)
    assert (code, found["records"]["level"], found["records"]["facts"]["grants_ahead"]) == (1, "bad", 1)
    assert "'future'" in found["records"]["finding"]
    assert "rota release NAME" in found["records"]["cure"]
    assert found["records"]["facts"]["marks_ahead"] == 0
    for command in (["ls"], ["show", "future"]):
        assert main([*command, "--json", "--url", cli.url]) == 0
        rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        shown = next(row for row in rows if row["name"] == "future")
        assert -10 * 86400 <= shown["age"] < -9 * 86400
    assert shown["reason"].endswith(", which lies ahead of the store's time: a clock once ran fast, and rota release future frees it")
    assert main(["release", "future", "--yes", "--url", cli.url]) == 0
    assert examined(cli.url)[0] == 0
    assert cli.shell("future", "--every", "1h", "--wait", "0s", script="true").returncode == 0


def test_only_names_below_the_prefix_are_looked_at(cli, examined):
    a_job(cli)
    with rota.connect(f"{cli.url}?prefix=other") as client:
        client.try_lease("mine").release()
    assert examined(f"{cli.url}?prefix=other")[1]["records"]["facts"]["names"] == 1


# -- any backend


class Odd(MemoryDriver):
    """A driver of somebody else's, that a test makes worse."""


@pytest.fixture
def odd(monkeypatch):
    """`memory://`, carried by another driver."""
    import rota.memory

    monkeypatch.setattr(rota.memory, "MemoryDriver", Odd)
    return monkeypatch


def test_a_backend_that_has_nothing_but_facts_is_examined(odd, examined):
    odd.setattr(Odd, "examine", Driver.examine)
    assert examined("memory://")[0] == 0
    odd.setattr(Odd, "capabilities", Odd.capabilities._replace(verbs=frozenset()))
    assert examined("memory://")[1].keys() == CORE


def test_what_a_backend_says_of_a_subject_the_core_leaves_to_it(odd, examined):
    mine = Finding(WARN, "durability", "of its own", "A reason.", "A cure.", {"fact": 1})
    odd.setattr(Odd, "examine", lambda self, facts, timeout: [mine])
    code, found = examined("memory://")
    assert code == 0
    assert found["durability"] == {
        "level": "warn", "subject": "durability", "finding": "of its own", "why": "A reason.", "cure": "A cure.", "facts": {"fact": 1}
    }  # fmt: skip


def test_what_turns_out_worse_than_the_facts_said_is_told_worse(odd, examined):
    """The rights seemed well, until a claim was refused."""

    def examine(self, facts, timeout):
        if isinstance(facts, rota.RotaError):
            return [Finding(BAD, "permissions", str(facts), "A reason.", "A cure.")]
        return [Finding(OK, "permissions", "well")]

    def claim(self, claim, timeout):
        raise rota.ConfigurationError("no rights")

    odd.setattr(Odd, "examine", examine)
    odd.setattr(Odd, "claim", claim)
    code, found = examined("memory://")
    assert (code, found["permissions"]["finding"]) == (1, "no rights")
    assert "claim" not in found
    odd.setattr(Odd, "examine", Driver.examine)
    code, found = examined("memory://")
    assert (code, found["claim"]["finding"]) == (1, "no lease was granted: no rights")


def test_a_fault_of_a_backend_is_a_finding_without_a_traceback(odd, examined):
    odd.setattr(Odd, "read", lambda self, name, timeout: {}["x"])
    code, found = examined("memory://")
    assert (code, found["access"]["level"]) == (1, "bad")
    assert "KeyError" in found["access"]["finding"]


def test_a_store_without_a_known_time_and_a_slow_one_are_told(odd, examined):
    odd.setattr(Odd, "now", lambda self, timeout: None)
    odd.setattr(_doctor_look, "SLOW", 0.05)
    right = MemoryDriver.read

    def read(self, name, timeout):
        time.sleep(0.06)
        return right(self, name, timeout)

    odd.setattr(Odd, "read", read)
    code, found = examined("memory://")
    assert code == 0
    assert (found["clock"]["level"], found["latency"]["level"]) == ("warn", "warn")
    assert "longer ttl" in found["latency"]["cure"]
    assert found["ttl"]["facts"]["least_s"] >= 1


@pytest.mark.parametrize(("ahead", "level"), [(-7, BAD), (-2, WARN), (-0.5, OK), (0.5, OK), (2, WARN), (7, BAD)])
def test_how_far_clocks_may_be_apart(ahead, level):
    """W5: what a host plans may come 5 s early."""
    low, high = int(ahead * 1e6) - 1000, int(ahead * 1e6) + 1000
    found = _doctor_look._clocks(low, high, stepped=False)
    assert found.level == level
    assert ("ahead of" if ahead > 0 else "behind") in found.text
    assert found.facts == {"ahead_least_s": low / 1e6, "ahead_most_s": high / 1e6}
    assert ("NTP" in found.cure) is (level != OK)


def test_clocks_whose_difference_is_hardly_known_are_not_blamed():
    assert _doctor_look._clocks(-60_000_000, 60_000_000, stepped=False).level == OK


# -- secrets


def test_no_secret_is_ever_printed(odd, examined, capfd):
    secrets = ("p%40ss-word", "p@ss-word", "k3y-value", "inner-pw")
    url = "memory://user:p%40ss-word@host"
    bad = Finding(BAD, "store", "p@ss-word p%40ss-word", "k3y-value inner-pw", "p@ss-word\nk3y-value", {"dsn": "inner-pw"})
    from rota.url import Url

    hide = _doctor._hidden(Url("x", "user:p%40ss-word@host", {"api_key": "k3y-value", "listen": "postgresql://app:inner-pw@h/d"}))
    texts = [hide(text) for text in bad[1:5]] + [hide(str(bad.facts["dsn"]))]
    assert not any(secret in text for secret in secrets for text in texts)
    assert "\n" not in "".join(texts)
    odd.setattr(Odd, "examine", lambda self, facts, timeout: [bad])
    from rota.memory import MemoryBackend

    odd.setattr(MemoryBackend, "driver", lambda self, url: Odd(rota_store()))
    code, found = examined(url)
    assert code == 1
    assert "p@ss" not in json.dumps(found)
    assert "p%40ss" not in json.dumps(found)


def rota_store():
    from rota.memory import MemoryStore

    return MemoryStore()


# -- time


@pytest.fixture
def black_hole():
    """A port that takes connections and bytes, and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


URLS = ("redis://:secret-word@127.0.0.1:{}", "postgresql://app:secret-word@127.0.0.1:{}/rota",
        "zookeeper://u:secret-word@127.0.0.1:{}/x", "etcd://u:secret-word@127.0.0.1:{}")  # fmt: skip


def test_it_ends_in_time_whatever_the_store_does(cli, black_hole):
    began = time.monotonic()
    started = [cli.start("doctor", url.format(black_hole), "--timeout", "1s") for url in URLS]
    for process in started:
        ended = cli.end(process)
        assert ended.returncode == 1
        level, subject, text, why, cure = ended.stdout.splitlines()[-1].split("\t")
        assert (level, subject) == ("bad", "reach"), ended.stdout
        assert "does not answer" in text
        assert why != "-"
        assert "host and port" in cure
        assert "secret-word" not in ended.stdout + ended.stderr
    assert time.monotonic() - began < 30  # all of them wait for ever unless they are ended; two cores start four interpreters first


def test_a_driver_that_never_returns_is_left_alone(odd, examined):
    import threading

    block = threading.Event()
    odd.setattr(Odd, "read", lambda self, name, timeout: block.wait(60))
    odd.setattr(Odd, "close", lambda self: block.wait(60))
    began = time.monotonic()
    code, found = examined("memory://", "--timeout", "700ms")
    assert time.monotonic() - began < 30
    block.set()
    assert (code, found["reach"]["level"]) == (1, "bad")
    assert "measuring the latency" in found["reach"]["finding"]


# -- what is printed


def test_off_a_terminal_there_are_five_columns_and_no_colour(cli):
    ended = cli("doctor")
    rows = [line.split("\t") for line in ended.stdout.splitlines()]
    assert {len(row) for row in rows} == {5}
    assert {row[0] for row in rows} <= set(LEVELS)
    assert "\x1b" not in ended.stdout
    assert ended.stderr == ""


def test_on_a_terminal_people_read_why_and_what_to_do(cli, black_hole):
    cli.make()
    shown = cli.on_terminal("doctor", streams=("stdout", "stderr"))
    assert re.search(r"^ok    claim         a lease was granted", shown, re.MULTILINE)
    assert shown.splitlines()[-1].startswith("rota: 0 bad, ")
    shown = cli.on_terminal("doctor", f"redis://127.0.0.1:{black_hole}", "--timeout", "3500ms", code=1, streams=("stdout", "stderr"))
    assert "[......" in shown  # it took longer than a second
    assert re.search(r"^      cure: See that the server runs", shown.rpartition("\r")[2], re.MULTILINE)
    assert max(map(len, shown.rpartition("\r")[2].splitlines())) <= 100


def test_what_takes_no_second_shows_no_progress(monkeypatch):
    drawn: list[str] = []
    monkeypatch.setattr(_progress, "_draw", drawn.append)
    monkeypatch.setattr(_progress, "_is_watched", lambda: True)
    assert _progress.carry_out(lambda: None, _progress.Progress(), 5.0)
    assert drawn == []


def test_the_json_is_as_its_schema_says(cli, examined, black_hole):
    validator = Draft202012Validator(json.loads(schema("doctor")))
    for url in (cli.url, "memory://", f"redis://127.0.0.1:{black_hole}"):
        for one in examined(url, "--timeout", "1500ms")[1].values():
            validator.validate(one)
            assert list(one) == validator.schema["required"]
            assert (one["why"] is None) is (one["cure"] is None) is (one["level"] == "ok")


def test_every_subject_is_in_the_operators_page():
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    section = page.partition("\n## The doctor\n")[2].partition("\n## ")[0]
    sources = [*ROOT.glob("core/rota/*_findings.py"), *ROOT.glob("core/rota/cli/_doctor*.py"), *ROOT.glob("backends/*/src/*/_findings.py")]
    sources.append(ROOT / "core/rota/finding.py")
    made = set()
    for source in sources:
        made |= set(re.findall(r"Finding\(\s*(?:[A-Z]+|BAD if [^,]+),\s*\"([^\"]+)\"", source.read_text(encoding="utf-8")))
    assert {"eviction", "reach", "members' clocks", "file system", "tls"} <= made
    rows = set(re.findall(r"^\| ([a-z' ]+) \|", section, re.MULTILINE))
    assert made <= rows, made - rows


def test_output_that_nobody_reads_is_no_error_and_one_that_is_closed_is_one(cli):
    cli.make()
    reading, writing = os.pipe()
    os.close(reading)
    process = cli.start("doctor", stdout=writing)
    os.close(writing)
    assert cli.end(process).returncode == 0
    command = f"exec '{sys.executable}' -m rota doctor <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], env=cli.environment, cwd=cli.folder, check=False, timeout=30).returncode == 74
