# SPDX-License-Identifier: MIT
"""`rota run` on every server: a slot that is handled, a standby that takes over, a server that stops answering."""

from __future__ import annotations

import os
import time

import pytest
import rota
import servers
from rota.cli import _codes
from servers import read_line

ONCE_A_YEAR = ("--cron", "0 0 1 1 *")
#: A command that won't end, and writes down each step that it makes.
STUBBORN = 'echo $$ > pid; trap "touch told" TERM; while :; do date +%s%N >> steps; sleep 0.02; done'
#: Seconds; etcd's shortest is 2.
TTL = 3


@pytest.fixture(params=["postgres", "conforming_redis", "conforming_zookeeper", "conforming_etcd"], ids=lambda name: name.split("_")[-1])
def server(request: pytest.FixtureRequest, cli):
    """A server that may be frozen, which `cli` uses under a prefix of its own."""
    made = request.getfixturevalue(request.param)
    prefix = f"prefix=run-{os.urandom(4).hex()}"
    if isinstance(made, servers.ZooKeeper | servers.RunningZooKeeper):
        cli.environment["ROTA_URL"] = f"{made.url('/run')}?{prefix}"
    else:
        cli.environment["ROTA_URL"] = made.url(options=prefix)
    if request.param == "postgres":
        with rota.connect(cli.environment["ROTA_URL"]) as client:
            client.driver.init(30.0)
    cli.environment["ROTA_TIMEOUT"] = "10s"  # machines are slow; tests of what doesn't answer say otherwise
    return made


def test_a_slot_is_handled_once_and_a_standby_takes_over_what_failed(cli, server):
    """W2, W3."""
    first = cli.start_shell("job", *ONCE_A_YEAR, "--site", "a", script="touch began; until test -e fail; do sleep 0.02; done; exit 3")
    cli.until(cli.file("began").exists)
    standby = cli.start_shell("job", *ONCE_A_YEAR, "--site", "b", script="echo $ROTA_ATTEMPT >> ran")
    assert "standing by" in read_line(standby.stderr)
    busy = cli.shell("job", *ONCE_A_YEAR, "--wait", "0s", script="touch never")
    assert busy.returncode == _codes.BUSY
    assert "a " in busy.stderr
    assert cli.said("ran") == []
    cli.file("fail").touch()
    assert cli.end(first).returncode == 3
    assert cli.end(standby).returncode == 0
    assert cli.said("ran") == ["2"]
    handled = cli.shell("job", *ONCE_A_YEAR, script="touch never")
    assert handled.returncode == 0
    assert "was handled by b " in handled.stderr
    assert not cli.file("never").exists()


@pytest.mark.by_the_clock
def test_a_server_that_hangs_costs_the_lease_and_the_command_is_gone_before_it_ends(cli, server):
    """L6, F2; and the server needs no more than to answer again."""
    if not hasattr(server, "pause"):
        pytest.skip("not run: this server is not ours to freeze")
    quick = {"ROTA_TIMEOUT": "500ms"}
    job = ("job", *ONCE_A_YEAR, "--ttl", f"{TTL}s", "--grace", "500ms")
    holder = cli.start_shell(*job, script=STUBBORN, env=quick)
    cli.until(lambda: cli.said("steps"))
    server.pause()
    frozen = time.time_ns()
    try:
        assert cli.shell("other", *ONCE_A_YEAR, script="touch never", env=quick).returncode == _codes.UNAVAILABLE
        ended = cli.end(holder)
    finally:
        server.resume()
    assert ended.returncode == _codes.LOST
    assert "the lease could not be kept" in ended.stderr
    assert not cli.is_alive(int(cli.said("pid")[0]))
    assert cli.file("told").exists()
    assert int(cli.said("steps")[-1]) < frozen + TTL * 10**9  # no renewal was confirmed after that
    after = cli.shell(*job, "--wait", "20s", script="echo $ROTA_ATTEMPT")
    assert (after.returncode, after.stdout) == (0, "2\n")
    assert not cli.file("never").exists()
