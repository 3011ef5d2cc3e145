# SPDX-License-Identifier: MIT
"""Which tests of the suite a class repeats; and that none is left out for want of a server that is there."""

from __future__ import annotations

import inspect
import os
from collections.abc import Generator
from pathlib import Path

import beside
import pytest
from rota.testing.base import NotRun
from servers import NotInstalled, program


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """In CI all servers are there: one that did not answer in time is a failure, where an author's run says that nothing could be told."""
    try:
        return (yield)
    except NotRun as error:
        if os.environ.get("CI") and "no server" in str(error):
            pytest.fail(str(error), pytrace=False)
        raise


@pytest.fixture(scope="session", autouse=True)
def etcd_clauses(request: pytest.FixtureRequest) -> Path | None:
    """Begun with the first test of this folder; None where nobody looks at the outcome, or without etcd."""
    try:
        program("etcd")
    except NotInstalled:
        return None
    return beside.begin("etcd_clauses", request)
