# SPDX-License-Identifier: MIT
"""Case DV-23: after the fork, across threads, through an outage, and with a blocked event loop (L4, L6, L10, L11).

Durations are the case's, shortened in proportion.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from rota import LeaseLost

blocking = pytest.mark.parametrize("face", ["blocking"], indirect=True)
on_loop = pytest.mark.parametrize("face", ["async"], indirect=True)

FORK = """
import multiprocessing, os, sys, time, traceback
import rota

url, how = sys.argv[1:3]

def run_in_child(body):
    if how == "multiprocessing":
        child = multiprocessing.get_context("fork").Process(target=body)
        child.start()
        child.join()
        return child.exitcode
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except SystemExit as exit:
            os._exit(exit.code or 0)
        except BaseException:
            traceback.print_exc()
            os._exit(70)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def record(name):
    return watcher.driver.read(name, 5.0)[0]

client = rota.connect(url)
watcher = rota.connect(url)
"""

CHILD_HOLDS = (
    FORK
    + """
with client.lease("before", ttl=0.6):
    pass  # the heartbeat thread of this client runs

def body():
    grant = client.try_lease("job", ttl=0.6)
    assert grant
    end = time.monotonic() + 1.8
    while time.monotonic() < end:
        grant.check()
        time.sleep(0.02)
    assert watcher.try_lease("job", ttl=0.6).verdict == "busy"
    assert f":{os.getpid()}" in record("job").label
    grant.release()

assert run_in_child(body) == 0
assert client.try_lease("job", ttl=0.6)
"""
)


@pytest.mark.parametrize(("url", "how"), [("sqlite", "fork"), ("sqlite", "multiprocessing"), ("memory", "fork")])
@pytest.mark.by_the_clock
def test_dv23_a_forked_child_acquires_and_holds_for_three_ttls(program: Any, tmp_path: Any, url: str, how: str) -> None:
    """L10: by the client that it inherited, whose heartbeat thread stayed with the parent."""
    program(CHILD_HOLDS, f"sqlite://{tmp_path}/rota.db" if url == "sqlite" else "memory://shared", how).end()


PARENT_HOLDS = (
    FORK
    + """
def tries_everything():
    assert grant.lost
    assert grant.remaining() == 0
    for forbidden in (grant.check, grant.release, grant.handled, grant.unused):
        try:
            forbidden()
        except rota.LeaseLost:
            continue
        raise AssertionError(f"the child believes it holds: {forbidden}")
    if url.startswith("sqlite"):
        assert client.try_lease("job", ttl=0.6).verdict == "busy"

with client.lease("job", ttl=0.6) as grant:
    before = record("job")
    if sys.argv[3] == "leaves-the-body":
        # the child's way out leads through the parent's with block
        pid = os.fork()
        if pid == 0:
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    elif sys.argv[3] == "closes":
        assert run_in_child(client.close) == 0
    else:
        assert run_in_child(tries_everything) == 0
    after = record("job")
    assert (after.token, after.owner) == (before.token, before.owner), after
    assert after.expires_at >= before.expires_at
    end = time.monotonic() + 10
    while record("job").expires_at <= after.expires_at + 300_000:  # nor did the fork cost the parent its heartbeat
        grant.check()
        assert time.monotonic() < end
        time.sleep(0.02)
assert record("job").owner == ""
"""
)


@pytest.mark.parametrize(
    ("url", "what", "how"),
    [
        ("sqlite", "leaves-the-body", "fork"),
        ("sqlite", "closes", "fork"),
        ("sqlite", "tries-everything", "fork"),
        ("sqlite", "tries-everything", "multiprocessing"),
        ("memory", "leaves-the-body", "fork"),
        ("memory", "tries-everything", "fork"),
    ],
)
@pytest.mark.by_the_clock
def test_dv23_a_child_does_nothing_to_its_parents_lease(program: Any, tmp_path: Any, url: str, what: str, how: str) -> None:
    """L10: it doesn't believe that it holds it, and neither its exit nor its `close` releases it."""
    program(PARENT_HOLDS, f"sqlite://{tmp_path}/rota.db" if url == "sqlite" else "memory://shared", how, what).end()


CHILD_SETTLES = (
    FORK
    + """
options = {"at_most_once": True, "overlap": True} if sys.argv[3] == "overlap" else {"max_hold": 0.05, "ttl": 0.6}
grant = client.try_window("job", rota.Every("1h"), **options)
assert grant
if sys.argv[3] == "lost":
    while not grant.lost:
        time.sleep(0.01)
before = record("job")

def body():
    try:
        grant.failed()
    except rota.LeaseLost:
        return
    raise AssertionError("the child settled")

assert run_in_child(body) == 0
assert record("job") == before, record("job")
"""
)


@pytest.mark.parametrize("state", ["overlap", "lost"])
def test_dv23_a_child_settles_no_grant_of_its_parent(program: Any, tmp_path: Any, state: str) -> None:
    """L10: not even one that is not renewed: granted without a lease (W4), or past its max_hold."""
    program(CHILD_SETTLES, f"sqlite://{tmp_path}/rota.db", "fork", state).end()


@pytest.mark.by_the_clock
def test_dv23_the_heartbeat_survives_an_outage_of_a_fifth_of_the_ttl(live: Any) -> None:
    """L6, F1: the store is away for several renewals; they go on when it is back, without a word to the holder."""
    client = live.client()
    grant = client.try_lease(live.name, ttl=2, heartbeat=0.2, timeout=0.2)
    client.driver.away(verbs="renew")
    failed = client.driver.count("renew")
    live.until(lambda: client.driver.count("renew") >= failed + 3)
    before = live.read().expires_at
    client.driver.back()
    live.until(lambda: live.read().expires_at > before)
    grant.check()
    grant.release()


@blocking
@pytest.mark.by_the_clock
def test_dv23_acquired_in_one_thread_released_in_another(live: Any) -> None:
    """L11: nothing of a grant is bound to the thread that won it."""
    client, grants = live.client(), []
    thread = threading.Thread(target=lambda: grants.append(client.try_lease(live.name, ttl=0.6)))
    thread.start()
    thread.join()
    (grant,) = grants
    before = live.read().expires_at
    live.until(lambda: live.read().expires_at > before)
    grant.check()
    other = threading.Thread(target=grant.release)
    other.start()
    other.join()
    assert live.read().owner == ""


@blocking
def test_dv23_one_guard_shared_by_two_threads(world: Any) -> None:
    """L4: thread 1's tenure expires, thread 2 acquires by the same object; thread 1's release is lost, thread 2 still holds."""
    guard = world.client().lease(world.name, ttl=10)
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()
    seen: dict[str, Any] = {}

    def first() -> None:
        try:
            with guard as grant:
                seen["first"] = grant.token
                first_in.set()
                second_in.wait(10)
        except LeaseLost as error:
            seen["lost"] = error
        finally:
            first_out.set()

    def second() -> None:
        first_in.wait(10)
        world.clock.advance(11)
        with guard as grant:
            seen["second"] = grant.token
            second_in.set()
            first_out.wait(10)
            seen["held"], seen["record"] = not grant.lost, world.read()

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert seen["second"] > seen["first"]
    assert "lost" in seen
    assert seen["held"]
    assert (seen["record"].token, seen["record"].owner != "") == (seen["second"], True)
    assert world.read().owner == ""


async def _shared_by_tasks(world: Any) -> None:
    client = world.async_client()
    guard = client.lease(world.name, ttl=10, on_lost="stop")
    first_in, second_in, first_out = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def first() -> int:
        try:
            async with guard as grant:
                first_in.set()
                try:
                    await second_in.wait()
                except asyncio.CancelledError:  # it is told; it lingers all the same
                    await second_in.wait()
        finally:
            first_out.set()
        return grant.token

    async def second() -> int:
        await first_in.wait()
        world.clock.advance(11)
        async with guard as grant:
            second_in.set()
            await first_out.wait()
            grant.check()
            assert world.read().owner != ""
            return grant.token

    results = await asyncio.gather(first(), second(), return_exceptions=True)
    assert isinstance(results[0], LeaseLost), results
    assert isinstance(results[1], int), results
    assert world.read().owner == ""
    await client.close()


@on_loop
def test_dv23_one_guard_shared_by_two_tasks(world: Any) -> None:
    """L4: the same on one event loop."""
    asyncio.run(_shared_by_tasks(world))


@on_loop
@pytest.mark.parametrize(("kind", "computes"), [("memory", False), ("sqlite", True)], indirect=["kind"], ids=["sleeps", "computes"])
@pytest.mark.by_the_clock
def test_dv23_a_blocked_loop_does_not_stop_the_heartbeat(live: Any, computes: bool) -> None:
    """L6, L11: a loop that does nothing else for 1.5 ttl; renewals come from a thread."""

    async def main() -> None:
        client = live.async_client()
        async with client.lease(live.name, ttl=0.8) as grant:
            before = live.read()
            end = time.monotonic() + 1.2
            if computes:
                number = 0
                while time.monotonic() < end:
                    number += 1
            else:
                time.sleep(1.2)  # noqa: ASYNC251 - it blocks the loop, which is the case
            grant.check()
            after = live.read()
            assert after.token == before.token
            assert after.expires_at > before.expires_at
        await client.close()

    asyncio.run(main())


@on_loop
def test_dv23_after_a_blocked_loop_without_renewals_the_lease_says_so_at_once(live: Any) -> None:
    """L6: the store was away while the loop was blocked: the first check afterwards raises, before the loop has run."""

    async def main() -> None:
        client = live.async_client(timeout=0.2)
        steps = []
        with pytest.raises(LeaseLost):
            async with client.lease(live.name, ttl=0.6) as grant:
                client.driver.away(live.HUNG)
                time.sleep(0.9)  # noqa: ASYNC251 - see above
                with pytest.raises(LeaseLost):
                    grant.check()
                assert grant.lost
                assert grant.remaining() == 0
                await asyncio.sleep(5)  # and the cancellation follows
                steps.append("went on")
        assert steps == []
        client.driver.back()
        await client.close()

    asyncio.run(main())
