# SPDX-License-Identifier: MIT
"""What holds for every test, whatever it is about."""

from __future__ import annotations

import os
import signal

import hypothesis
import pytest

# Machines are slow and shared: how long an example took says nothing. CI tries the same examples each time, so that a red run means a
# change; a developer's runs look for new ones.
hypothesis.settings.register_profile("rota", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "rota")

# No ROTA_… variable of the shell reaches a test or what it starts, except those that are meant for the tests.
for name in [name for name in os.environ if name.startswith("ROTA_") and not name.startswith("ROTA_TEST")]:
    del os.environ[name]

# A runner that was started in the background, or with nohup, ignores some signals, and so would all that the tests start.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

# The conformance suite's own, for tests/conformance, and the real servers: pytest takes plug-ins from the top-level conftest only.
pytest_plugins = [
    "rota.testing.plugin",
    "stalls",
    "servers.fixtures",
    "servers.redis_fixtures",
    "servers.zookeeper_fixtures",
    "servers.etcd_fixtures",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put last the files that look at what is at work beside all the others."""
    last = {item.path for item in items if item.get_closest_marker("beside")}
    items.sort(key=lambda item: item.path in last)
