# SPDX-License-Identifier: MIT
"""The operator's commands on every server: what they say of a job, odd names, and a live holder that is released (L2, R2)."""

from __future__ import annotations

import json

import pytest
import rota
from rota.cli import _codes

ODD = ["a b", "-x", "naïve/ключ/日本語", "100%", "quote'\"\\", "a/b/c", "\u202egnp", "*"]
ONCE_A_YEAR = ("--cron", "0 0 1 1 *")


@pytest.fixture(params=["redis", "etcd", "zookeeper", "postgres"])
def url(request: pytest.FixtureRequest, on_server) -> str:
    """A prefix of its own on a server."""
    return on_server(request.param, "operator")


def test_an_operator_sees_finds_out_and_frees(cli, url):
    cli.environment["ROTA_URL"] = url
    slow = ("--timeout", "10s")

    def objects(*arguments: str) -> list[dict]:
        ended = cli(*arguments, "--json", *slow)
        assert ended.returncode == 0, ended.stderr
        return [json.loads(line) for line in ended.stdout.splitlines()]

    ended = cli("ls", *slow)
    absent = "zookeeper" in url  # a chroot that nobody has used yet
    assert (ended.returncode, ended.stdout, "there is no store at" in ended.stderr) == (int(absent), "", absent)
    assert cli("show", "job", *slow).returncode == 1
    with rota.connect(url, timeout=10) as client:
        for name in ODD:
            client.try_lease(name).release()
    assert [one["name"] for one in objects("ls")] == sorted(ODD, key=str.encode)
    assert [one["name"] for one in objects("ls", "a")] == ["a b", "a/b/c"]
    assert cli.shell("job", *ONCE_A_YEAR, *slow, script=":").returncode == 0
    (one,) = objects("show", "job")
    assert (one["state"], one["verdict"], one["how"]) == ("free", "handled", "done")
    assert [row["outcome"] for row in objects("history", "job")] == ["handled"]
    holder = cli.start_shell("job", "--every", "300d", "--ttl", "6s", *slow, script="touch started; until test -e go; do sleep 0.02; done")
    cli.until(cli.file("started").exists)
    (held,) = objects("show", "job")
    assert (held["state"], held["verdict"]) == ("held", "busy")
    assert held["remaining"] > 0
    released = cli("release", "job", "--yes", "--why", "a test", *slow)
    assert (released.returncode, released.stderr) == (0, "")
    (freed,) = objects("show", "job")
    assert (freed["state"], freed["verdict"], freed["token"] > held["token"]) == ("free", "won", True)
    assert freed["operator"].endswith(": a test")
    assert [row["outcome"] for row in objects("history", "job")] == ["released", "handled"]
    assert cli.end(holder).returncode == _codes.LOST
    assert cli("settle", "job", "--handled", "--yes", *slow).returncode == 0
    assert objects("show", "job")[0]["how"] == "done"
    assert cli("forget", "job", "--yes", *slow).returncode == 0
    assert "job" not in [one["name"] for one in objects("ls")]
    assert {one["name"]: one["state"] for one in objects("ls", "--all")}["job"] == "forgotten"
