# SPDX-License-Identifier: MIT
"""What happens to the file of a SQLite store happens to its clients: moved, deleted, put back, not ours, not to be read by others."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import stat
import subprocess
import sys

import pytest
import rota


def test_a_client_follows_the_path_and_not_the_file_that_was_moved_away(tmp_path):
    url = f"sqlite://{tmp_path}/rota.db"
    with rota.connect(url) as old, rota.connect(url) as new:
        assert old.try_lease("job")
        (tmp_path / "rota.db").rename(tmp_path / "backup.db")
        # a client that comes now makes a new file: the one that was there before must see the same store, or both would hold
        assert new.try_lease("job")
        assert not old.try_lease("job")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_file_that_is_replaced_while_it_is_opened_is_followed_too(tmp_path, monkeypatch, when):
    url, real, swaps = f"sqlite://{tmp_path}/rota.db", sqlite3.connect, []

    def connect(path, **options):
        swap = not swaps
        if swap and when == "before":
            swaps.append((tmp_path / "rota.db").rename(tmp_path / "old.db"))
            real(path).close()
        connection = real(path, **options)
        if swap and when == "after":
            connection.execute("PRAGMA user_version")
            swaps.append((tmp_path / "rota.db").rename(tmp_path / "old.db"))
            (tmp_path / "rota.db").touch()
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect)
    with rota.connect(url) as first, rota.connect(url) as second:
        assert first.try_lease("job")
        assert swaps
        assert not second.try_lease("job")
        first.try_lease("other").release()
        assert not second.try_lease("job")


def test_a_folder_that_vanishes_is_an_outage_and_not_a_fresh_store(tmp_path):
    folder = tmp_path / "state"
    with rota.connect(f"sqlite://{folder}/rota.db") as client:
        client.try_lease("job").release()
        folder.rename(tmp_path / "unmounted")
        with pytest.raises(rota.Unavailable, match="rota.db"):
            client.try_lease("job")
        assert not folder.exists()
        (tmp_path / "unmounted").rename(folder)
        assert client.try_lease("other", on_unavailable="skip") is not None


def test_W6_a_slot_longer_than_the_retention_can_be_won_until_it_ends(tmp_path):
    now = [1_790_000_000_000_000]
    client = rota.connect(f"sqlite://{tmp_path}/rota.db", retention="1d")
    client.driver.clock = lambda: now[0]
    schedule = rota.Every("300d")
    now[0] = schedule.slot(now[0]).end - 3_600_000_000
    with client, client.window("yearly", schedule) as grant:
        assert grant.slot.end == now[0] + 3_600_000_000


def test_recovery_after_the_file_came_back_needs_no_restart(tmp_path):
    folder = tmp_path / "state"
    with rota.connect(f"sqlite://{folder}/rota.db") as client:
        with client.window("report", rota.Every("300d")):
            pass
        folder.rename(tmp_path / "unmounted")
        refused = client.try_window("report", rota.Every("300d"), on_unavailable="skip")
        assert refused.verdict == "unavailable"
        (tmp_path / "unmounted").rename(folder)
        assert client.driver.read("report", 5)[0].outcome == "handled"


def test_the_file_is_made_for_its_owner_alone(tmp_path):
    before = os.umask(0)
    try:
        with rota.connect(f"sqlite://{tmp_path}/new/rota.db") as client:
            client.try_lease("job").release()
            for path in (tmp_path / "new").iterdir():
                assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_a_file_that_is_no_database_is_named_and_left_as_it_is(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, and long enough to have the place of a header in it " * 20)
    with rota.connect(f"sqlite://{path}") as client, pytest.raises(rota.ConfigurationError, match=r"notes\.txt"):
        client.try_lease("job")
    assert path.read_text().startswith("not a database")


def test_a_file_of_a_later_layout_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "rota.db"
    sqlite3.connect(path).execute("PRAGMA user_version = 99").connection.close()
    with rota.connect(f"sqlite://{path}") as client, pytest.raises(rota.ConfigurationError, match="layout 99"):
        client.try_lease("job")


@pytest.mark.parametrize("columns", ["id INTEGER", "name TEXT, keep_until INTEGER"])
def test_a_table_of_somebody_else_with_our_name_is_refused_and_left_as_it_is(tmp_path, columns):
    path = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute(f"CREATE TABLE rota_record ({columns})")
    said = f"{path} holds a table rota_record that is not rota's: name another file"
    with rota.connect(f"sqlite://{path}") as client, pytest.raises(rota.ConfigurationError, match=re.escape(said)):
        client.try_lease("job")
    with contextlib.closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA user_version").fetchone() == (0,)
        assert [kind for (kind,) in other.execute("SELECT type FROM sqlite_master")] == ["table"]


def test_other_tables_in_the_file_are_left_alone(tmp_path):
    path = tmp_path / "app.db"
    with sqlite3.connect(path) as app:
        app.execute("CREATE TABLE record (name TEXT)")
        app.execute("INSERT INTO record VALUES ('of the application')")
    with rota.connect(f"sqlite://{path}") as client:
        assert client.try_lease("job")
    assert sqlite3.connect(path).execute("SELECT name FROM record").fetchall() == [("of the application",)]


def test_a_second_connection_costs_the_first_none_of_its_locks(tmp_path):
    """POSIX drops all locks of a process on a file when any descriptor of it is closed; the next one to close would then delete the WAL."""
    url = f"sqlite://{tmp_path}/rota.db"
    with rota.connect(url) as first:
        assert first.try_lease("kept")
        with rota.connect(url) as second:
            assert second.try_lease("other")
            code = "import rota, sys\nwith rota.connect(sys.argv[1]) as client: print(bool(client.try_lease('third')))"
            done = subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True, check=True)
            assert done.stdout.strip() == "True"
            assert (tmp_path / "rota.db-wal").exists()
            assert not second.try_lease("third")
            assert not second.try_lease("kept")


@pytest.mark.parametrize(
    ("column", "value"), [("token", "many"), ("expires_at", None), ("label", b"x"), ("mark", 1.5), ("history", "text")]
)
def test_a_record_that_somebody_else_has_written_is_told_as_such(tmp_path, column, value):
    """A column of SQLite holds values of any type: no fault of ours."""
    with rota.connect(f"sqlite://{tmp_path}/rota.db") as client:
        client.try_lease("job").release()
        with sqlite3.connect(tmp_path / "rota.db") as connection:
            connection.execute(f"UPDATE rota_record SET {column} = ?", (value,))
        for ask in (lambda: client.try_lease("job"), lambda: client.driver.list("", 1.5), lambda: client.driver.forget("job", 1.5)):
            with pytest.raises(rota.ConfigurationError, match=f"'job' is none that rota wrote: its {column} is a"):
                ask()
