# SPDX-License-Identifier: MIT
"""What surprised the first strangers who used rota, and may surprise nobody again."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import uuid
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import rota


@pytest.fixture
def name() -> str:
    return f"job-{uuid.uuid4().hex}"


def test_a_settled_grant_is_not_entered_again(name):
    """A second body would run without a lease."""
    with rota.connect("memory://") as client:
        verdict = client.try_window(name, rota.Every("1h"))
        with verdict:
            pass
        with pytest.raises(rota.LeaseLost, match="ask again"), verdict:
            raise AssertionError("the body of a settled grant")


def test_a_coroutine_function_is_no_on_lost(name):
    async def on_lost(grant: object) -> None: ...

    with rota.connect("memory://") as client, pytest.raises(rota.ConfigurationError, match="on_lost"):
        client.try_lease(name, on_lost=on_lost)


def test_another_schedule_misses_nothing_of_the_time_that_the_handled_slot_covered(name):
    now = [1_790_000_000_000_000]
    client = rota.connect("memory://")
    client.driver.store.clock = lambda: now[0]
    hour = rota.Every("1h")
    now[0] = hour.slot(now[0]).start
    with client, client.window(name, hour):
        now[0] += 10_000_000
    now[0] = hour.slot(now[0]).end + 3_000_000
    with rota.connect("memory://") as other:
        other.driver.store = client.driver.store
        grant = other.try_window(name, rota.Every("1s"))
        assert grant.missed == (3, True)


def test_F3_the_process_remembers_what_it_did_whichever_client_it_used(name, tmp_path):
    url = f"sqlite://{tmp_path}/rota.db"
    with rota.connect(url) as client:
        client.try_lease("anything").release()
    holder = sqlite3.connect(tmp_path / "rota.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    sent = 0
    for _ in range(3):
        with rota.connect(url, timeout="50ms") as client:
            verdict = client.try_once(name, "1h", on_unavailable="run")
            if verdict:
                with verdict:
                    sent += 1
    holder.close()
    assert sent == 1
    assert verdict.verdict == "handled"
    assert "by this process" in verdict.reason


def test_F3_a_slot_that_was_written_back_says_when(name, tmp_path):
    url = f"sqlite://{tmp_path}/rota.db"
    with rota.connect(url) as client:
        client.try_lease("anything").release()
        holder = sqlite3.connect(tmp_path / "rota.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        client.try_once(name, "1h", on_unavailable="run", timeout="50ms").handled()
        holder.close()
        assert client.flush(10)
        refused = client.try_once(name, "1h")
        assert refused.verdict == "handled"
        assert "1970" not in refused.reason


@pytest.mark.parametrize("path", ["/~/rota.db", "/:memory:"])
def test_a_path_that_means_something_else_elsewhere_is_refused(path):
    with pytest.raises(rota.ConfigurationError, match="whole path"):
        rota.connect(f"sqlite://{path}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("file", "folder"), [(0o444, 0o777), (0o644, 0o755)])
def test_F2_a_file_without_permission_to_write_is_no_outage(tmp_path_factory, file, folder):
    place = tmp_path_factory.mktemp("readable")
    with rota.connect(f"sqlite://{place}/rota.db") as client:
        client.try_lease("job").release()
    for parent in [place, *place.parents][:-2]:
        parent.chmod(parent.stat().st_mode | 0o055)
    (place / "rota.db").chmod(file)
    place.chmod(folder)
    # the library and a Python that another user may read: a root's own may lie in its home
    shutil.copytree(Path(rota.__file__).parent, place / "library" / "rota")
    python = next(path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if os.path.exists(path))
    code = (
        "import os, sys\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "import rota.client, rota.sqlite\n"
        "os.setuid(65534)\n"
        "with rota.connect(sys.argv[1]) as client:\n"
        "    try:\n"
        "        client.try_lease('other', on_unavailable='run')\n"
        "    except rota.ConfigurationError as error:\n"
        "        print('refused:', error)\n"
    )
    command = [python, "-c", code, f"sqlite://{place}/rota.db", str(place / "library")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("refused:"), done.stderr
    assert "--url" in done.stdout


def test_the_two_half_past_two_of_one_night_are_two_planned_instants(name):
    berlin = ZoneInfo("Europe/Berlin")
    night = datetime(2026, 10, 25, 2, 30, tzinfo=berlin)
    with rota.connect("memory://") as client:
        client.driver.store.clock = lambda: 1_792_890_000_000_000  # 01:40 UTC, after both
        first = client.try_window(name, rota.Every("1h"), planned=night)
        first.handled()
        second = client.try_window(name, rota.Every("1h"), planned=night.replace(fold=1))
        assert second.slot.start - first.slot.start == 3600 * 1_000_000


def test_L10_a_grant_whose_client_nobody_has_any_more_is_not_held_in_a_child(name):
    grant = rota.connect("memory://").try_lease(name)
    gc.collect()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, b"lost" if grant.lost else b"held")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 10) == b"lost"
    assert not grant.lost
    grant.release()


def test_an_on_lost_that_exits_takes_no_other_with_it(name):
    now, told = [1000.0], threading.Event()
    with rota.connect("memory://", clock=lambda: now[0]) as client:
        client.try_lease(name, on_lost=lambda grant: sys.exit(1))
        client.try_lease(name + "2", on_lost=lambda grant: told.set())
        now[0] += 60
        assert told.wait(10)
