# SPDX-License-Identifier: MIT
"""Installing servers for the tests leaves the machine as it was, and says what to type where it may not install."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest


@pytest.fixture
def servers(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with a policy of its own."""
    spec = importlib.util.spec_from_file_location("server_packages", root / "tests/server_packages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "POLICY", tmp_path / "policy")
    monkeypatch.setattr(module, "KEPT_POLICY", tmp_path / "kept")
    return module


def fail(text: str) -> NoReturn:
    raise SystemExit(text)


@pytest.mark.parametrize("before", [None, "exit 0"])
def test_services_are_refused_only_while_packages_are_installed(servers: ModuleType, before: str | None) -> None:
    if before:
        servers.POLICY.write_text(before)
    with pytest.raises(KeyboardInterrupt), servers.no_service_starts():
        assert servers.POLICY.read_text().endswith("exit 101\n")
        assert servers.POLICY.stat().st_mode & 0o111
        raise KeyboardInterrupt
    assert (servers.POLICY.read_text() if servers.POLICY.exists() else None) == before


@pytest.mark.parametrize("before", [None, "exit 0"])
def test_a_killed_run_is_cleaned_up_by_the_next(servers: ModuleType, monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    servers.POLICY.write_text(servers.POLICY_TEXT)
    if before:
        servers.KEPT_POLICY.write_text(before)
    servers.provide(print, fail, ())
    assert (servers.POLICY.read_text() if servers.POLICY.exists() else None) == before
    assert not servers.KEPT_POLICY.exists()


def test_who_may_not_install_is_told_the_line_to_type(servers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    wanted = servers.Server("Sundial", ("no-such-program", "/no/such/*/sundial"), ("sundial-server", "sundial-tools"))
    with pytest.raises(SystemExit, match=r"need Sundial.* type, as root: apt-get install .*sundial-server sundial-tools$"):
        servers.provide(print, fail, (wanted,))


def test_what_is_there_is_not_installed_and_the_highest_version_is_found(servers: ModuleType, tmp_path: Path) -> None:
    for version in ("9", "15", "14"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "sundial").touch()
    wanted = servers.Server("Sundial", (f"{tmp_path}/*/sundial",), ("sundial-server",))
    assert servers.find(wanted) == f"{tmp_path}/15/sundial"
    servers.provide(fail, fail, (wanted,))


def test_a_server_that_runs_elsewhere_need_not_be_installed(servers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    wanted = servers.Server("Sundial", ("no-such-program",), ("sundial-server",), "ROTA_TEST_SUNDIAL_URL")
    with pytest.raises(SystemExit, match="docker compose up"):
        servers.provide(print, fail, (wanted,))
    monkeypatch.setenv("ROTA_TEST_SUNDIAL_URL", "sundial://here")
    servers.provide(fail, fail, (wanted,))
