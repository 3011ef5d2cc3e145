# SPDX-License-Identifier: MIT
"""Keepalives on one stream, which stays open: any number of threads ask over it, and a claim can ask beside its transaction."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import grpc
from rota.errors import Unavailable

from . import _wire
from ._fork_gate import gate


class Broken(grpc.RpcError):  # type: ignore[misc]  # grpc has no types
    """The stream ended without an error of its own, or did not answer in time."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        """As a call's."""
        return self._code

    def details(self) -> str:
        """As a call's."""
        return self._details


class Round:
    """Leases that are being renewed.

    Attributes:
        answers: The granted seconds of each lease that was answered; 0 where it is gone.
    """

    def __init__(self, count: int) -> None:
        self.answers: dict[int, int] = {}
        self._missing = count
        self._error: grpc.RpcError | None = None
        self._is_over = threading.Lock()
        self._is_over.acquire()

    def answer(self, lease: int, seconds: int) -> None:
        """Take an answer in."""
        self.answers[lease] = seconds
        self._missing -= 1
        if not self._missing:
            self._is_over.release()

    def fail(self, error: grpc.RpcError) -> None:
        """There are no more."""
        self._error = error
        self._is_over.release()

    def wait(self, seconds: float) -> bool:
        """Return whether all were answered within so long.

        Raises:
            grpc.RpcError: The stream broke.
        """
        if not self._is_over.acquire(timeout=max(0.0, seconds)):
            return False
        self._is_over.release()
        if self._error is not None:
            raise self._error
        return True


class Stream:
    """One stream over one channel, and the thread that reads it for as long as it lives."""

    def __init__(self, stub: Callable[..., Any], metadata: object) -> None:
        self._requests: SimpleQueue[Any] = SimpleQueue()
        self._asked: deque[tuple[int, Round]] = deque()
        self._lock = threading.RLock()  # the handler of a signal may come while it is held, and ask too
        self.error: grpc.RpcError | None = None
        try:
            self._call = stub(iter(self._requests.get, None), None, metadata)
            try:
                threading.Thread(target=self._read, name="rota-etcd-keepalive", daemon=True).start()
            except BaseException:
                self._call.cancel()
                gate.streams.pop(self._call, None)
                raise
        except RuntimeError as error:
            raise Unavailable(f"leases can't be renewed: {error}") from error  # no thread can be started now

    def ask(self, leases: Sequence[int]) -> Round:
        """Begin to renew some leases.

        Raises:
            grpc.RpcError: The stream is broken.
        """
        made = Round(len(leases))
        with self._lock:
            if self.error is not None:
                raise self.error
            for lease in leases:
                self._asked.append((lease, made))
                self._requests.put(_wire.KeepAlive(ID=lease))
        return made

    def end(self) -> None:
        """Let go of it."""
        self._call.cancel()

    def _read(self) -> None:
        error: grpc.RpcError = Broken(grpc.StatusCode.UNAVAILABLE, "the stream of keepalives ended")
        try:
            for response in self._call:
                self._answer(response.ID, response.TTL)
        except grpc.RpcError as broken:
            error = broken
        gate.streams.pop(self._call, None)
        with self._lock:
            self.error = error
            left = dict.fromkeys(made for _, made in self._asked)
            self._asked.clear()
        self._requests.put(None)  # the thread that sends ends with it
        for made in left:
            made.fail(error)

    def _answer(self, lease: int, seconds: int) -> None:
        # etcd answers in the order of the requests, so it is the first; but for those of whom was interrupted between the lines of `ask`
        for at in range(len(self._asked)):
            asked, made = self._asked[at]
            if asked == lease:
                del self._asked[at]
                made.answer(lease, seconds)
                return
