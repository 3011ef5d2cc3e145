# SPDX-License-Identifier: MIT
"""Servers for a whole test run, as fixtures. One that a variable names is used as it is, instead of one of our own."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator

import pytest

from ._postgres import PgBouncer, Postgres, RunningPostgres
from ._process import NotInstalled, running


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres | RunningPostgres]:
    """A PostgreSQL server: ``ROTA_TEST_POSTGRES_URL`` (a superuser's, with its database), or one of our own."""
    url = os.environ.get("ROTA_TEST_POSTGRES_URL")
    if url:
        yield RunningPostgres(url)
        return
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def pgbouncer(postgres: Postgres | RunningPostgres) -> Iterator[PgBouncer | RunningPostgres]:
    """PgBouncer in transaction mode with a pool of 3 in front of it: ``ROTA_TEST_PGBOUNCER_URL``, or one of our own."""
    url = os.environ.get("ROTA_TEST_PGBOUNCER_URL")
    if url:
        yield RunningPostgres(url)
        return
    if not isinstance(postgres, Postgres):
        pytest.skip("not run: ROTA_TEST_PGBOUNCER_URL is to name the pooler of the running server")
    with PgBouncer(postgres, pool=3, users=("postgres", "app")) as pooler:
        yield pooler


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """A test whose server is not installed is not run. ``python3 tests`` installs them, or stops; in CI it has failed."""
    return (yield from _if_installed())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """As `pytest_runtest_setup`, for servers that tests start themselves."""
    return (yield from _if_installed())


def _if_installed() -> Generator[None, object, object]:
    try:
        return (yield)
    except NotInstalled as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"not run: {error}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show what the servers said when a test fails."""
    report = yield
    if report.failed:
        for server in running():
            report.sections.append((f"{server.name} on port {server.port}", server.log()))
    return report
