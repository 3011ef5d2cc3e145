# SPDX-License-Identifier: MIT
"""A process of the tests of backends, started by path: a signal comes at each line, in turn, of what the driver does for a body.

Arguments: the URL, the backend's package, and what the handler does: ``raise`` an exception, ``use`` the client, or ``use-new``, where the
client is a new one each time, which connects meanwhile. Says ``N points`` at the end. A deadlock ends the process with a traceback.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from inspect import getsource
from linecache import getline
from threading import Thread
from types import FrameType
from typing import Any

import rota

faulthandler.dump_traceback_later(100, exit=True)
logging.disable(logging.CRITICAL)
URL, PACKAGE, DOES = sys.argv[1:]
NAME = f"interrupts-{uuid.uuid4().hex}"
TIMEOUT = 10.0
held: list[rota.Grant] = []


class Interrupt(BaseException):
    """As KeyboardInterrupt, and nobody else's."""


def body(client: rota.Client, point: int) -> None:
    name = f"{NAME}-{point}"  # another each time: who is finishing the last one is not to be waited for
    with client.lease(name):
        pass
    if DOES == "use-new":
        client.try_window(f"{name}-window", rota.Every("1d"))  # by a time that it asks the store for
        return
    got = client.try_lease(f"{NAME}-held", wait=0.02)
    if got:  # the handler let it go
        got.release()
        hold_again()


def hold_again() -> None:
    """Let the other one hold the name that is waited for."""
    got = other.try_lease(f"{NAME}-held", ttl=200)
    if got:
        held[:] = [got]


def at(point: int, client: rota.Client) -> bool:
    """Run the body, and let it happen at the so manieth line; return whether there are so many."""
    passed = 0
    seen: Counter[object] = Counter()
    failed: list[Exception] = []

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal passed
        if PACKAGE not in frame.f_code.co_filename:
            return trace if "/rota/" in frame.f_code.co_filename else None
        # not where a with block is left: no signal handler runs between its end and the release of its lock
        if event in ("line", "return") and not getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with "):
            seen[frame.f_code, frame.f_lineno] += 1
            passed += seen[frame.f_code, frame.f_lineno] <= 2  # what is done over and over is the same
            if passed == point:
                sys.settrace(None)
                if DOES == "raise":
                    raise Interrupt
                try:
                    if held:  # news for who waits, on whatever thread brings them
                        held.pop().release()
                        hold_again()
                    client.try_lease(f"{NAME}-handler-{point}").release()
                    if DOES == "use-new":
                        client.try_window(f"{NAME}-handler-{point}-window", rota.Every("1d"))
                except Exception as error:  # told below, since who is interrupted may take it for its own
                    failed.append(error)
        return trace

    sys.settrace(trace)
    try:
        body(client, point)
    except Interrupt:
        pass
    finally:
        sys.settrace(None)
    if failed:
        raise failed[0]
    return passed >= point


def new(point: int) -> bool:
    """As `at`, with a client of its own, which knows nothing yet of the store's time."""
    if PACKAGE == "rota_etcd":
        _clock = __import__("rota_etcd._clock").__dict__["_clock"]
        _clock._known.clear()
    with rota.connect(URL, timeout=TIMEOUT) as client:
        return at(point, client)


def until(what: Callable[[], object]) -> None:
    """Wait for what other threads are about to finish."""
    deadline = time.monotonic() + TIMEOUT
    while not what():
        assert time.monotonic() < deadline, getsource(what)
        time.sleep(0.01)


point = 1
if DOES == "use-new":
    while new(point):
        point += 1
    print(f"{point} points")
    sys.exit()
with rota.connect(URL, timeout=TIMEOUT) as other, rota.connect(URL, timeout=TIMEOUT) as client:
    hold_again()
    while at(point, client):
        point += 1
    gc.collect()
    assert client.flush(20), "unsaid"
    client.try_lease(f"{NAME}-held", wait=0.02)  # the next one that waits cleans up what an interrupted one left
    driver: Any = client.driver
    if PACKAGE == "rota_postgres":
        assert (driver._watchers, driver._listeners) == (set(), [])

    def hold(number: int) -> None:
        with client.lease(f"{NAME}-after-{number}"):
            time.sleep(0.01)

    threads = [Thread(target=hold, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if PACKAGE == "rota_postgres":
        pool = driver.pool
        until(lambda: not pool._dialling)  # begun for one that found another, or was interrupted
        until(lambda: {id(link) for known in pool._open.copy() if (link := known())} == {id(link) for link in pool._idle.copy()})
print(f"{point} points")
