# SPDX-License-Identifier: MIT
"""A process of test_interrupts.py, started by path: an exception is raised in the main thread at each line, in turn, of what a body calls.

The argument says which body. Says ``N points`` at the
end. A deadlock ends the process with a traceback after a minute.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import sys
import time
from linecache import getline
from types import FrameType
from typing import Any

import rota
from rota import _keeper
from rota.memory import MemoryStore

faulthandler.dump_traceback_later(100, exit=True)
logging.disable(logging.CRITICAL)
BODY = sys.argv[1]
TTL = 500.0
_keeper.FIRST_PAUSE = 0.002  # what is unsaid of a claim stays so until no claim can be applied any more, which is soon by this clock
where: list[str] = []


class Interrupt(BaseException):
    """As KeyboardInterrupt, and nobody else's."""


def body(client: Any) -> None:
    if BODY == "with":
        with client.lease("x", ttl=TTL):
            pass
    elif BODY == "try":
        grant = client.try_lease("x", ttl=TTL)
        grant.release()
    elif BODY == "window":
        with client.window("x", rota.Every("1h"), ttl=TTL):
            pass
    elif BODY == "decorated":
        client.window("x", rota.Every("1h"), ttl=TTL)(lambda: None)()


def at(point: int, client: Any) -> bool:
    """Run the body, and let it happen at the so manieth line; return whether there are so many."""
    passed = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal passed
        if "/rota/" not in frame.f_code.co_filename:
            return None
        # not where a with block is left: no signal handler runs between its end and the release of its lock
        if event in ("line", "return") and not getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with "):
            passed += 1
            if passed == point:
                sys.settrace(None)
                where.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
                raise Interrupt
        return trace

    sys.settrace(trace)
    try:
        body(client)
    except Interrupt:
        pass
    finally:
        sys.settrace(None)
    return passed >= point


def check(client: Any, point: int, store: MemoryStore) -> None:
    """Nothing is locked, and nothing of the body is renewed or will be granted."""
    gc.collect()
    engine = client._engine
    assert client.flush(5), f"{where[-1:]}: unsaid"
    after = client.try_lease("after", ttl=TTL)
    assert [grant.name for grant in engine.heartbeat.held()] == ["after"], f"{where[-1:]}: still renewed: {engine.heartbeat.held()}"
    assert not engine.watchdog._watched, f"{where[-1:]}: still watched"
    after.release()
    x = store.records.get("x")
    assert x is None or x.outcome in ("", "pending", "handled", "released", "unused", "failed"), f"{where[-1:]}: {x}"


for warm in (True, False):
    point, more, slow = 0, True, False
    while more:
        point += 0 if slow else 1
        store = MemoryStore(clock=lambda: time.time_ns() // 20)  # fifty times as fast
        client = rota.connect("memory://", timeout=0.1)
        client.driver.store = store
        try:
            if warm:
                client.try_lease("warm", ttl=TTL).release()
            more = at(point, client)
            check(client, point, store)
            slow = False
        except rota.Unavailable:  # by this clock a claim counts for 2 ms; a machine that is slower tries this point again
            slow = True
        client.close()
    print(f"{point} points", flush=True)
