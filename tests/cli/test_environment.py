# SPDX-License-Identifier: MIT
"""What `rota run` takes from its environment: the schedule too, and never an empty store."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    "schedule", [{"ROTA_EVERY": "1h"}, {"ROTA_CRON": "0 0 1 1 *", "ROTA_TZ": "Europe/Berlin"}, {"ROTA_ONCE_PER": "1h"}], ids=str
)
def test_a_schedule_in_the_environment_counts(cli: Any, schedule: dict[str, str]) -> None:
    for ran in ("ran\n", ""):
        ended = cli("run", "job", "--", "echo", "ran", env=schedule)
        assert (ended.returncode, ended.stdout) == (0, ran), ended.stderr


def test_the_command_line_comes_before_the_environment(cli: Any) -> None:
    """A schedule of another kind is no contradiction, and a zone without an expression is none."""
    for ran in ("ran\n", ""):
        ended = cli("run", "job", "--every", "1h", "--", "echo", "ran", env={"ROTA_CRON": "nonsense", "ROTA_TZ": "Nowhere"})
        assert (ended.returncode, ended.stdout) == (0, ran), ended.stderr


def test_an_empty_store_in_the_environment_is_refused(cli: Any) -> None:
    """An unset variable of a crontab must not make a job run uncoordinated."""
    ended = cli("run", "job", "--every", "1h", "--", "echo", "ran", env={"ROTA_URL": ""})
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "ROTA_URL is empty" in ended.stderr
