# SPDX-License-Identifier: MIT
"""Two sites whose clocks differ from the store's and from each other's mean the same slots: each runs once, and none is lost."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import rota
from rota.backend import HANDLED
from rota.cli import _codes
from servers import NotInstalled, read_line


@pytest.mark.beside("sites")
@pytest.mark.parametrize("name", ["skewed", "late"])
def test_two_sites_on_skewed_clocks_run_each_slot_once_and_lose_none(sites, name: str) -> None:
    """W2, W5, W6: ±1.5 s against the store, and the second site 10 s behind, which names slots that have ended."""
    if sites is None:
        raise NotInstalled("libfaketime is not installed: python3 tests installs it")
    assert sites.told("ended", sites.slots * sites.period + 300) == [0] * 4
    begun = sites.told("begun", 0)
    found = [line.split() for line in (sites.folder / name).read_text().splitlines()]
    expected = [datetime.fromtimestamp(planned, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for planned in begun["planned"]]
    assert sorted(slot for slot, _ in found) == expected
    for site in sites.skews[name]:
        outcome = json.loads((sites.folder / f"{name}-{site}.json").read_text())
        assert outcome["codes"] == [0] * sites.slots, outcome["said"]
    with rota.connect(begun["url"]) as client:
        record, _ = client.driver.read(client._full(name), 10.0)
    assert record is not None
    assert record.mark == begun["planned"][-1] * 1_000_000
    assert record.outcome == HANDLED


@pytest.mark.beside("sites")
def test_the_clocks_of_the_sites_and_of_all_that_they_start_are_wrong(sites, cli) -> None:
    """Else the test above would show nothing."""
    if sites is None:
        raise NotInstalled("libfaketime is not installed: python3 tests installs it")
    for skew in {skew for skews in sites.skews.values() for skew in skews.values()}:
        before = time.time()
        shown = cli.shell("job", script="date +%s.%N", env=sites.environment(skew))
        assert before + skew <= float(shown.stdout) <= time.time() + skew


# -- minutes, and a store whose clock the test sets

CLOCKED = '''
import time
from rota.sqlite import SqliteBackend, SqliteDriver

class Backend(SqliteBackend):
    """A store whose clock is ahead of the host's by what a file says, in seconds."""

    def driver(self, url):
        path = super().driver(url).path
        return SqliteDriver(path, lambda: time.time_ns() // 1000 + int(float(open(path + ".ahead").read()) * 1e6))
'''


@pytest.fixture
def clocked(cli, tmp_path):
    """A store like SQLite's with a clock of its own, installed for what `cli` starts; returns how to set it, in epoch seconds."""
    folder = tmp_path / "installed"
    info = folder / "rota_clocked-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "rota_clocked.py").write_text(CLOCKED)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rota-clocked\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rota.backends]\nclocked = rota_clocked:Backend\n")
    cli.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    cli.environment["ROTA_URL"] = f"clocked://{cli.path}"

    def set_clock(at: float) -> None:
        new = Path(f"{cli.path}.new")
        new.write_text(repr(at - time.time()))
        new.rename(f"{cli.path}.ahead")

    return set_clock


@pytest.mark.parametrize("told", ["job name", "annotation"])
def test_clocks_that_are_90_seconds_off_mean_the_slots_of_minutes_by_the_stores_clock(cli, clocked, told):
    """W5, W6: a CronJob of every minute, in a cluster whose clock is ahead and in one whose clock is behind."""
    first = int(time.time()) // 60 + 1

    def job(site: str, minute: int, *options: str):
        if told == "job name":
            env = {"ROTA_JOB_NAME": f"nightly-{minute}"}
        else:
            at = datetime.fromtimestamp(minute * 60, UTC).isoformat()
            cli.file(f"annotations-{minute}").write_text(f'batch.kubernetes.io/cronjob-scheduled-timestamp="{at}"\n')
            env = {"ROTA_PLANNED_FILE": str(cli.file(f"annotations-{minute}"))}
        words = ("job", "--cron", "* * * * *", "--planned", "auto", "--site", site, *options)
        return cli.start_shell(*words, script=f"echo $ROTA_SLOT_START {site} >> log", env=env)

    def iso(minute: int) -> str:
        return datetime.fromtimestamp(minute * 60, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    minute, missed = first, first + 1
    clocked(minute * 60 - 90)  # the cluster that is ahead thinks that it is time
    assert cli.end(job("ahead", minute, "--wait-early", "60s")).returncode == _codes.EARLY
    ahead = job("ahead", minute)
    assert "waiting for its start" in read_line(ahead.stderr)
    clocked(minute * 60 - 1)
    assert cli.end(ahead).returncode == 0
    clocked(minute * 60 + 90)  # and now the one that is behind: the slot ended half a minute ago
    behind = cli.end(job("behind", minute))
    assert behind.returncode == 0
    assert f"the slot of {iso(minute)} was handled by ahead" in behind.stderr
    # the cluster that is ahead is down: the other one is late, and runs what it was meant for
    clocked(missed * 60 + 90)
    assert cli.end(job("behind", missed)).returncode == 0
    assert cli.said("log") == [f"{iso(minute)} ahead", f"{iso(missed)} behind"]
