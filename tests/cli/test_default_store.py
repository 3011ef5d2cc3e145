# SPDX-License-Identifier: MIT
"""Where `rota run` keeps its records when no store is named."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest


def run(cli, **env):
    return cli("run", "job", "--every", "300d", "--", "true", env={"ROTA_URL": None, **env})


def test_the_default_is_a_file_in_the_state_folder_that_only_its_owner_can_read(cli):
    """The XDG base directory specification."""
    state = cli.folder / "state"
    old = os.umask(0)
    try:
        ended = run(cli, XDG_STATE_HOME=str(state))
    finally:
        os.umask(old)
    assert ended.returncode == 0
    assert ended.stderr.count("\n") == 1
    assert "only this host is coordinated" in ended.stderr
    assert str(state / "rota" / "rota.db") in ended.stderr
    assert stat.S_IMODE((state / "rota").stat().st_mode) == 0o700
    for file in (state / "rota").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = run(cli, XDG_STATE_HOME=str(state))
    assert again.returncode == 0
    assert "was handled by" in again.stderr
    assert "only this host" in again.stderr  # at each run


@pytest.mark.parametrize("state", [None, "", "relative/folder"])
def test_without_a_state_folder_it_is_in_the_home_folder(cli, state):
    assert run(cli, XDG_STATE_HOME=state).returncode == 0
    assert (cli.folder / ".local/state/rota/rota.db").is_file()
    assert not (cli.folder / "relative").exists()


@pytest.mark.parametrize("name", ["a b", "100%", "50%25", "a?b=c", "a#b", "ü", "a@b", "%2e"])
def test_any_folder_name_will_do(cli, name):
    assert run(cli, XDG_STATE_HOME=str(cli.folder / name)).returncode == 0
    assert (cli.folder / name / "rota/rota.db").is_file()
    assert "was handled by" in run(cli, XDG_STATE_HOME=str(cli.folder / name)).stderr


def test_a_url_is_not_commented_on_wherever_it_comes_from(cli):
    assert run(cli, ROTA_URL=cli.url).stderr == ""
    assert cli("run", "job2", "--url", cli.url, "--", "true", env={"ROTA_URL": None}).stderr == ""


def test_quiet_silences_it(cli):
    assert cli("run", "job", "--quiet", "--", "true", env={"ROTA_URL": None}).stderr == ""


def test_a_folder_that_cannot_be_made_is_a_usage_error_that_names_the_option(cli):
    blocked = cli.folder / "file"
    blocked.touch()
    for state in (str(blocked), "/proc/rota", "/dev/null"):
        ended = run(cli, XDG_STATE_HOME=state)
        assert ended.returncode == 2, ended
        assert "--url" in ended.stderr
    (cli.folder / "taken/rota/rota.db").mkdir(parents=True)
    ended = run(cli, XDG_STATE_HOME=str(cli.folder / "taken"))
    assert (ended.returncode, "--url" in ended.stderr or "is a folder" in ended.stderr) == (2, True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_is_a_usage_error_that_names_the_option(cli):
    folder = cli.folder / "state/rota"
    folder.mkdir(parents=True)
    folder.chmod(0o500)
    ended = run(cli, XDG_STATE_HOME=str(cli.folder / "state"))
    assert (ended.returncode, "--url" in ended.stderr) == (2, True)


def test_in_kubernetes_a_file_coordinates_nobody_and_is_refused(cli):
    ended = run(cli, KUBERNETES_SERVICE_HOST="10.0.0.1")
    assert ended.returncode == 2
    assert "--url" in ended.stderr
    assert not Path(cli.folder / ".local").exists()
    assert run(cli, KUBERNETES_SERVICE_HOST="10.0.0.1", ROTA_URL=cli.url).returncode == 0
