# SPDX-License-Identifier: MIT
"""Which tests of the suite a class repeats."""

from __future__ import annotations

import inspect

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out of a class that asks for it what its sister classes run by the server's own clock."""
    out = [item for item in items if isinstance(item, pytest.Function) and _is_repeated(item)]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]


def _is_repeated(item: pytest.Function) -> bool:
    if not getattr(item.cls, "only_what_needs_a_clock", False):
        return False
    source = inspect.getsource(inspect.unwrap(item.function))
    return "need_clock" not in source and "model" not in item.name
