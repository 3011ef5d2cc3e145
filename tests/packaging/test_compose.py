# SPDX-License-Identifier: MIT
"""docker-compose.yml: one service for each server that tests may use running, and the variables that lead there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml


@pytest.fixture
def text(root: Path) -> str:
    return (root / "docker-compose.yml").read_text(encoding="utf-8")


@pytest.fixture
def services(text: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text)["services"]
    assert found
    return found


def test_each_service_is_pinned_checked_and_on_loopback(services: dict[str, Any]) -> None:
    for name, service in services.items():
        tag = service["image"].rpartition(":")[2]
        assert re.search(r"\d+\.\d+", tag), f"{name}: {service['image']} is not pinned to a version"
        assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL"), name
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:"), f"{name} listens for everybody"
        for other in service.get("depends_on", {}):
            assert other in services


def test_each_variable_leads_to_a_service_and_is_one_that_the_tests_read(root: Path, text: str, services: dict[str, Any]) -> None:
    named = dict(re.findall(r"^#   export (ROTA_TEST_\w+)=(\S+)$", text, re.MULTILINE))
    published = {port.split(":")[1] for service in services.values() for port in service["ports"]}
    for url in named.values():
        for host in urlsplit(url).netloc.rpartition("@")[2].split(","):
            address, _, port = host.rpartition(":")
            assert address == "127.0.0.1"
            assert port in published
    spec = importlib.util.spec_from_file_location("server_packages", root / "tests/server_packages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert {server.variable for server in module.SERVERS} - {""} <= named.keys()
    read = "".join(path.read_text(encoding="utf-8") for path in (root / "tests/servers").glob("*.py"))
    assert all(f'"{variable}"' in read for variable in named)
