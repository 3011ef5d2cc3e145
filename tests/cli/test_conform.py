# SPDX-License-Identifier: MIT
"""`rota conform` leaves the store as it was."""

from __future__ import annotations

import signal

import pytest
import rota
from rota.cli import _conform, main
from rota.testing import base


def kept(cli) -> list[str]:
    with cli.client() as client:
        return [record.name for record in client.driver.list("", 5.0, limit=3000) if record.kind]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_ends_it_and_its_names_are_forgotten(cli, number):
    with cli.client() as client:
        client.try_lease("conform-mine", ttl="1h")
        process = cli.start("conform", cli.url)
        cli.until(lambda: len(kept(cli)) > 10)
        process.send_signal(number)
        ended = cli.end(process)
        assert (ended.returncode, ended.stdout, ended.stderr) == (128 + number, "", "")
        assert kept(cli) == ["conform-mine"]


def test_at_its_end_it_forgets_its_names_and_no_others(monkeypatch, capfd, cli):
    url = f"{cli.url}?prefix=team"
    others = ["conform-mine", "team/conform-mine", "team/other"]

    def run(given: str, names: str) -> object:
        monkeypatch.setattr(base, "_NAMES", names)
        suite = base.Clauses()
        suite.url = given
        with rota.connect(cli.url) as client:
            for name in [*others, *(suite.fresh() for _ in range(1200)), f"x{suite.fresh()}", f"{suite.fresh().upper()}A"]:
                assert client.try_lease(name, ttl="1h")
            assert len([record for record in client.driver.list("team/", 5.0, limit=2000) if record.kind]) == 1202
        totals = {"passed": 1, "passed in part": 0, "refused": 0, "failed": 0}
        one = {"url": given, "server": "", "capabilities": {}, "clauses": {"L1": {"result": "passed", "tests": {}}}, "totals": totals}
        return {"rota": "1", "contract": 1, "python": "3", "runs": [one]}

    monkeypatch.setattr(_conform, "_run", run)
    assert main(["conform", url]) == 0
    assert capfd.readouterr().err == ""
    assert kept(cli) == others


def test_what_cannot_be_forgotten_is_told(monkeypatch, capfd, cli):
    monkeypatch.setattr(_conform, "CALL", 0.1)
    with cli.client() as client, client.lease("conform-1"), cli.locked():
        _conform._tidy(cli.url, "conform-1")
    shown = capfd.readouterr().err
    assert shown.startswith("rota: names that start with conform-1 stay, some held for an hour")
    assert shown.count("\n") == 1
