# SPDX-License-Identifier: MIT
"""`rota bench`: every operation is measured on every store, beside what the driver can do at the least, and nothing is left behind."""

from __future__ import annotations

import json
import re
import signal

import pytest
import rota
from jsonschema import Draft202012Validator
from rota.cli import _bench, _codes, main
from rota.cli._topics import schema
from rota.duration import SECOND
from rota.memory import MemoryDriver

OPERATIONS = ["acquire and release", "claim refused", "slot won and handled", "slot lost", "renewal", "renewal of 20 leases"]
BARE = ["bare read", "bare write"]
SHORT = ("--duration", "100ms")


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres", "zookeeper", "etcd"])
def url(request: pytest.FixtureRequest, cli, on_server) -> str:
    """A store of each kind, below a prefix of its own."""
    if request.param == "sqlite":
        cli.make()
    if request.param in ("memory", "sqlite"):
        return f"{'memory://' if request.param == 'memory' else cli.url}?prefix=bench"
    return on_server(request.param, "bench")


def test_every_operation_is_measured_and_nothing_is_left(capfd, url):
    assert main(["bench", url, "--json", *SHORT]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    validator = Draft202012Validator(json.loads(schema("bench")))
    for row in rows:
        validator.validate(row)
        assert list(row) == validator.schema["required"]
        assert 0 < row["least_us"] <= row["median_us"] <= row["most_us"]
        assert row["calls"] >= _bench.ROUNDS - 1
    compares = not url.startswith("memory")
    assert [row["operation"] for row in rows] == OPERATIONS + (BARE if compares else [])
    for row in rows[: len(OPERATIONS)]:
        assert (row["beside"] is not None) is compares
        assert not compares or 0 < row["least_ratio"] <= row["ratio"] <= row["most_ratio"]
    with rota.connect(url, timeout=10) as client:
        assert [record.name for record in client.driver.list(client._prefix, 10.0) if record.kind] == []


def test_two_benches_do_not_meet(cli, capfd):
    with cli.client() as client, client.lease("rota-bench"):
        assert main(["bench", cli.url, *SHORT]) == _bench.BUSY
        assert "another rota bench" in capfd.readouterr().err
    with cli.client() as client:
        assert [record.name for record in client.driver.list("", 5.0) if record.kind] == ["rota-bench"]


@pytest.mark.parametrize("named", [True, False])
def test_a_store_that_is_not_there_may_be_another_one_than_was_meant_and_is_not_made(cli, named):
    env = {} if named else {"ROTA_URL": None, "XDG_STATE_HOME": str(cli.folder / "state")}
    ended = cli("bench", *SHORT, env=env)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "there is no store at" in ended.stderr
    assert list(cli.folder.iterdir()) == []


def test_what_a_killed_bench_left_is_no_hindrance(cli, capfd):
    with cli.client() as client:
        client.try_lease("rota-bench/held", ttl="1h")
        client.try_lease("rota-bench/slots").release()
        client.try_window("rota-bench/bare", rota.Every("1h")).handled()
    assert main(["bench", cli.url, *SHORT]) == 0


def test_a_figure_of_something_else_is_refused(monkeypatch, capfd):
    right = MemoryDriver.claim

    def claim(self, claim, timeout):
        answer = right(self, claim, timeout)
        return answer._replace(verdict="busy") if claim.name.endswith("/pair") else answer

    monkeypatch.setattr(MemoryDriver, "claim", claim)
    assert main(["bench", "memory://", *SHORT]) == 2
    shown = capfd.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert "somebody else uses" in shown.err


@pytest.mark.parametrize(
    ("given", "code", "word"),
    [
        (("redis://:secret-word@127.0.0.1:1",), _codes.UNAVAILABLE, "can't be reached"),
        (("memory://", "--duration", "11m"), 2, "at most 10m"),
        (("memory://", "--duration", "0"), 2, "--duration"),
        (("",), 2, "is empty"),
        (("nosuch://x",), 2, "nosuch"),
    ],
)
def test_what_cannot_be_measured_is_told_in_a_line(capfd, given, code, word):
    assert main(["bench", *given]) == code
    shown = capfd.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert word in shown.err
    assert "secret-word" not in shown.err


def test_off_a_terminal_there_are_seven_columns(cli):
    cli.make()
    rows = [line.split("\t") for line in cli("bench", *SHORT).stdout.splitlines()]
    assert [row[0] for row in rows] == OPERATIONS + BARE
    assert {len(row) for row in rows} == {7}
    assert rows[0][4] == "2 bare writes"
    assert rows[-1][4:] == ["-", "-", "-"]


def test_people_see_a_table(monkeypatch, capfd):
    monkeypatch.setattr(_bench, "is_terminal", lambda: True)
    assert main(["bench", "memory://", *SHORT]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "memory://: medians of 7 rounds"
    assert lines[1].split() == ["OPERATION", "MEDIAN", "ROUNDS", "BESIDE", "ITS", "MEDIAN", "RATIO"]
    assert re.match(r"acquire and release +\d+us +\d+us\.\.\d", lines[2])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_ends_it_and_nothing_is_left(cli, number):
    cli.make()
    process = cli.start("bench", "--duration", "30s")
    cli.until(lambda: (record := cli.record("rota-bench/slots")) and record.kind)
    process.send_signal(number)
    process.send_signal(number)  # as a terminal that goes away may do
    ended = cli.end(process)
    assert (ended.returncode, ended.stdout, ended.stderr) == (128 + number, "", "")
    with cli.client() as client:
        assert [record.name for record in client.driver.list("", 5.0) if record.kind] == []


def test_what_cannot_be_forgotten_after_a_signal_is_told_in_bounded_time(cli):
    cli.make()
    process = cli.start("bench", "--duration", "30s")
    cli.until(lambda: (record := cli.record("rota-bench/slots")) and record.kind)
    with cli.locked():
        process.send_signal(signal.SIGTERM)
        ended = cli.end(process)
    assert ended.returncode == 128 + signal.SIGTERM
    assert "held for 30s at the most" in ended.stderr


def test_one_that_is_killed_stands_in_the_way_for_half_a_minute_at_most(cli):
    cli.make()
    process = cli.start("bench", "--duration", "30s")
    cli.until(lambda: (record := cli.record("rota-bench/slots")) and record.kind)
    process.kill()
    process.wait()
    with cli.client() as client:
        now = client.driver.now(5.0)[1]
        left = [record.expires_at - now for record in client.driver.list("rota-bench", 5.0) if record.owner]
    assert len(left) > _bench.LEASES
    assert max(left) <= 30 * SECOND
    ended = cli("bench", *SHORT)
    assert ended.returncode == _bench.BUSY
    assert "for 30s at the most by one that was killed" in ended.stderr


def test_what_it_holds_is_renewed(monkeypatch, capfd):
    """So that a long bench measures to its end, though each lease is a short one."""
    monkeypatch.setattr(_bench, "TTL", SECOND)
    monkeypatch.setattr(_bench, "RENEW", 0.2)
    assert main(["bench", "memory://", "--duration", "3s"]) == 0
    assert capfd.readouterr().err == ""
