# SPDX-License-Identifier: MIT
"""A backend on a store that can't decide by itself: it reads in one request and writes in another, by compare-and-set, over sockets.

The store takes requests and gives answers, a line of JSON each: ``get``, ``put`` (if the version is still that one, and it is not later
than ``not_after`` by the store's clock), ``list`` and ``now``. ``python two_requests.py`` is its server, which says on which port it
listens. The driver is right; ``conformance/test_two_requests.py`` changes a line of it at a time, so it imports nothing of the tests.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from rota import rules
from rota.backend import Answer, Backend, Claim, Driver, Now, Override, Record, Renewal, Renewed, Settled, Settlement, WriteBack
from rota.capabilities import Capabilities
from rota.errors import ConfigurationError, OutcomeUnknown, Unavailable
from rota.url import Url

EVER = 2**62


def clock() -> int:
    return time.time_ns() // 1000


def pack(record: Record) -> list[Any]:
    return list(record._replace(history=base64.b64encode(record.history).decode()))  # type: ignore[arg-type]


def unpack(value: Any) -> Record | None:
    if value is None:
        return None
    try:
        record = Record._make(value)
        return rules.checked(record._replace(history=base64.b64decode(record.history)))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the store holds a record that is none: {error}") from error


class TwoRequestsDriver(Driver):
    capabilities = Capabilities(verbs=frozenset({"override", "record"}), durability="process")

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[socket.socket] = []
        self._closed = False

    def _ask(self, request: dict[str, Any], deadline: float) -> Any:
        """Send a request and return its answer. One that writes may have been applied, from when it was sent until it is answered."""
        if self._closed:
            raise Unavailable("the client is closed")
        lost = OutcomeUnknown if "put" in request else Unavailable
        try:
            try:
                line = self._idle.pop()
            except IndexError:
                line = socket.create_connection(("127.0.0.1", self._port), max(0.001, deadline - time.monotonic()))
        except OSError as error:
            raise Unavailable(f"no connection: {error}") from error
        if time.monotonic() >= deadline:
            self._idle.append(line)
            raise Unavailable("no time is left")
        try:
            line.settimeout(max(0.001, deadline - time.monotonic()))
            line.sendall(json.dumps(request).encode() + b"\n")
            said = b""
            while not said.endswith(b"\n"):
                line.settimeout(max(0.001, deadline - time.monotonic()))
                part = line.recv(65536)
                if not part:
                    raise ConnectionError("the server closed the connection")
                said += part
        except BaseException as error:
            line.close()
            if isinstance(error, OSError):
                raise lost(f"sent, and not answered: {error}") from error
            raise
        self._idle.append(line)
        return json.loads(said)

    def _decide(
        self, name: str, timeout: float, rule: Callable[[Record | None, int], Any], until: Callable[[Record], int] = lambda record: EVER
    ) -> tuple[Any, int]:
        """Read, let the rule decide, and write what it changed, at that time at the latest; where the store refuses, again."""
        deadline = time.monotonic() + timeout
        while True:
            found = self._ask({"get": name}, deadline)
            record, now = unpack(found["value"]), found["now"]
            answer, changed = rule(record, now)
            if changed is None:
                return answer, now
            request = {"put": name, "value": pack(changed), "version": found["version"], "not_after": until(record or changed)}
            if self._ask(request, deadline)["done"]:
                return answer, now

    def claim(self, claim: Claim, timeout: float) -> Answer:
        rule = lambda record, now: rules.claim(record, claim, now)  # noqa: E731
        answer: Answer = self._decide(claim.name, timeout, rule, lambda record: claim.apply_until)[0]
        return answer

    def renew(self, renewals: Sequence[Renewal], timeout: float) -> Renewed:
        deadline, held, times = time.monotonic() + timeout, [], []

        def rule(record: Record | None, now: int, renewal: Renewal) -> tuple[bool, Record | None]:
            renewed = rules.renew(record, renewal, now)
            return renewed is not None, renewed

        for renewal in renewals:
            decide = lambda record, now, renewal=renewal: rule(record, now, renewal)  # noqa: E731
            is_held, now = self._decide(renewal.name, deadline - time.monotonic(), decide, lambda record: record.expires_at - 1)
            held.append(is_held)
            times.append(now)
        if not times:
            return Renewed([], self.now(timeout))
        return Renewed(held, (times[0], times[-1]))

    def settle(self, settlement: Settlement, timeout: float) -> Settled:
        answer: Settled = self._decide(settlement.name, timeout, lambda record, now: rules.settle(record, settlement, now))[0]
        return answer

    def override(self, override: Override, timeout: float) -> Settled:
        answer: Settled = self._decide(override.name, timeout, lambda record, now: rules.override(record, override, now))[0]
        return answer

    def record(self, write_back: WriteBack, timeout: float) -> Settled:
        answer: Settled = self._decide(write_back.name, timeout, lambda record, now: rules.write_back(record, write_back, now))[0]
        return answer

    def forget(self, name: str, timeout: float) -> bool:
        def rule(record: Record | None, now: int) -> tuple[bool, Record | None]:
            tombstone = rules.forget(record, now)
            return tombstone is not None, tombstone

        return bool(self._decide(name, timeout, rule)[0])

    def read(self, name: str, timeout: float) -> tuple[Record | None, Now | None]:
        found = self._ask({"get": name}, time.monotonic() + timeout)
        return unpack(found["value"]), (found["now"], found["now"])

    def list(self, prefix: str, timeout: float, *, after: str = "", limit: int = 1000) -> list[Record]:
        found = self._ask({"list": prefix, "after": after, "limit": limit}, time.monotonic() + timeout)
        return [record for record in map(unpack, found["values"]) if record is not None]

    def now(self, timeout: float) -> Now:
        now = self._ask({"now": True}, time.monotonic() + timeout)["now"]
        return now, now

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def after_fork(self) -> None:
        self._idle = []


class TwoRequestsBackend(Backend):
    contract = 1
    options: dict[str, str] = {}

    def driver(self, url: Url) -> Driver:
        return TwoRequestsDriver(int(url.rest))


class Store:
    """The server: it runs on a thread of one's own or as a program."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[Any, int]] = {}

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        now = clock()
        if "get" in asked:
            value, version = self.kept.get(asked["get"], (None, 0))
            return {"value": value, "version": version, "now": now}
        if "put" in asked:
            version = self.kept.get(asked["put"], (None, 0))[1]
            done = asked["version"] in (version, None) and now <= asked["not_after"]
            if done:
                self.kept[asked["put"]] = asked["value"], version + 1
            return {"done": done, "now": now}
        if "list" in asked:
            after, prefix = asked["after"].encode(), asked["list"]
            names = sorted((name for name in self.kept if name.startswith(prefix) and name.encode() > after), key=str.encode)
            return {"values": [self.kept[name][0] for name in names[: asked["limit"]]], "now": now}
        return {"now": now}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(self.answer(json.loads(line))).encode() + b"\n")
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def run(self) -> None:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0, backlog=1000)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(Store().run())
