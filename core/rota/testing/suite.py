# SPDX-License-Identifier: MIT
"""The suite for a store that is named on the command line; ``rota conform URL`` runs it.

python -m pytest --pyargs rota.testing.suite -p rota.testing.plugin --rota-url URL [--rota-report FILE]
"""

from __future__ import annotations

import pytest

from . import Conformance


class TestConformance(Conformance):
    """All clauses, on the store of ``--rota-url``."""

    @pytest.fixture(autouse=True)
    def _named(self, request: pytest.FixtureRequest) -> None:
        self.url = request.config.getoption("--rota-url")
        if self.url == "memory://":
            self.url = "memory://conformance"  # without a name each driver would have a store of its own
        if not self.url:
            raise pytest.UsageError("name the store: --rota-url URL")
