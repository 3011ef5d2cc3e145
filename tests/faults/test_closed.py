# SPDX-License-Identifier: MIT
"""What the grants of a client come to that was closed before they ended, on every store (F5)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import rota
from rota import Every, LeaseLost, Unavailable, Unrecorded
from rota._observers import observers


@pytest.fixture
def run() -> Iterator[Any]:
    """Return a call's result, awaited where that must be."""
    with asyncio.Runner() as runner:

        async def awaited(result: Any) -> Any:
            return await result

        yield lambda result: runner.run(awaited(result)) if inspect.isawaitable(result) else result


@pytest.fixture
def told() -> Iterator[list[tuple[str, str]]]:
    """What observers are told of settlements."""
    found: list[tuple[str, str]] = []

    class Observer:
        @rota.hookimpl
        def rota_settled(self, grant: Any, outcome: str) -> None:
            found.append((grant.name, outcome))

    observer = Observer()
    rota.register(observer)
    yield found
    rota.unregister(observer)


GIVEN_UP = "given up: the client is closed"


@pytest.mark.parametrize("face", ["blocking", "async"])
def test_how_the_grants_of_a_closed_client_end(
    store_url: str, face: str, fresh_name: str, run: Any, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are told at once, without a try that can only be vain; what is lost by that is said."""
    client = (rota.connect if face == "blocking" else rota.connect_async)(store_url, timeout=10)
    lease, window, degraded, failed, body = (f"{fresh_name}/{each}" for each in ("lease", "window", "degraded", "failed", "body"))
    leased = run(client.try_lease(lease, ttl="1m"))
    done = run(client.try_window(window, Every("1h"), ttl="1m"))
    goes_on = run(client.try_window(degraded, Every("1h"), ttl="1m", on_lost="continue"))
    fails = run(client.try_window(failed, Every("1h"), ttl="1m"))
    assert all((leased, done, goes_on, fails))
    run(client.close())
    monkeypatch.setattr(client._engine.io, "sleep", lambda seconds: pytest.fail(f"it waits for {seconds} s"))

    assert leased.lost
    with pytest.raises(LeaseLost, match="the client was closed"):
        leased.check()
    for _ in range(2):
        run(leased.release())
        assert leased.outcome == "released"
        run(fails.failed())
        assert fails.outcome == "failed"
        for success in (done, goes_on):
            with pytest.raises(Unrecorded, match="the work is done, its outcome .*not recorded: .*the client is closed"):
                run(success.handled())
            assert success.outcome == GIVEN_UP
    assert client._engine.keeper.waiting() == 0
    with pytest.raises(Unavailable, match="closed"):
        run(client.try_lease(body))
    assert observers.flush(10)
    assert sorted(told) == sorted(
        [(lease, "released"), (lease, GIVEN_UP), (failed, "failed"), (failed, GIVEN_UP)]
        + [(name, outcome) for name in (window, degraded) for outcome in ("unrecorded", GIVEN_UP)]
    )
