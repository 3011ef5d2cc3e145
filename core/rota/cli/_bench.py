# SPDX-License-Identifier: MIT
"""``rota bench``: what rota's operations cost on a store, beside the cheapest request that the same driver can make of it.

A figure from a busy machine or network says little; its ratio to a bare request of the same seconds does. So operations and bare requests
(`rota.backend.Driver.bare`) are measured in turn, in rounds, and the medians are shown with the least and the most of the rounds.

All names lie below `NAME`, which is held meanwhile, so that two benches don't meet; all are forgotten before and afterwards, also when
a signal ends it. What one that was killed holds runs out soon (`TTL`).
"""

from __future__ import annotations

import gc
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from statistics import median

from rota.backend import LEASE, RELEASED, Claim, Renewal, Settlement
from rota.duration import DAY, SECOND, describe, duration
from rota.errors import ConfigurationError, NotSupported, RotaError, Unavailable

from ._operator_table import JSON, is_terminal, show_columns, show_json, show_table
from ._output import say, show
from ._parser import Parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rota.client import Client

    from ._progress import Progress

#: The lease that is held meanwhile, and what all names begin with.
NAME = "rota-bench"
#: Rounds, of which the first warms up and is not counted; and leases that are renewed at once.
ROUNDS, LEASES = 8, 20
#: Their ttl: how long one that was killed stands in another's way. They are renewed when so many seconds have gone by since the last time;
#: of one measure, no round takes longer than what is left of the ttl then.
TTL, RENEW = 30 * SECOND, 5.0
#: How long it may take to forget the names when a signal ends it, seconds.
TIDYING = 5.0
#: How long one call may take, seconds, and how much longer than asked all of it.
CALL, LONGER = 5.0, 30.0
#: The exit code when another bench is at work.
BUSY = 1

_DESCRIPTION = """\
Measure what rota costs on a store: the time of each operation, and its ratio to
the cheapest request that the driver can make, as medians of interleaved rounds.
It claims names below rota-bench, and forgets them."""
_AFTER = """\
  rota bench redis://localhost --duration 10s

Not on a terminal, a tab between columns and - for nothing: operation, median,
least and most of the rounds (microseconds), what it is beside, the median of
that, ratio. The keys of --json: rota help json bench.

Exit codes: 0; 1 another rota bench is at work there, or there is no store yet;
2 the command line or the URL is wrong; 115 the store did not answer."""
#: Beside what each operation is put: how many bare reads and writes.
_BESIDE = {
    "acquire and release": (0, 2),
    "claim refused": (1, 0),
    "slot won and handled": (0, 2),
    "slot lost": (1, 0),
    "renewal": (0, 1),
    f"renewal of {LEASES} leases": (0, 1),
}
_READ, _WRITE = "bare read", "bare write"


def bench(given: list[str]) -> int:
    """Measure a store."""
    parser = Parser("bench", "rota bench [URL] [--duration DUR] [--json]", _DESCRIPTION, _AFTER)
    parser.add_url("the store [ROTA_URL, else this host's file]")
    parser.add_argument("--duration", metavar="DUR", default="3s", help="how long to measure [3s]")
    parser.add_argument("--json", action="store_true", help=JSON)
    found = parser.read(given)
    seconds = duration(found.duration, "--duration") / SECOND
    if seconds > 600:
        raise ConfigurationError("--duration is at most 10m")
    from rota.client import connect

    from ._doctor import goodbye, named
    from ._operator_store import check_made
    from ._progress import Ended, Progress, carry_out, ending

    url = named(found.url)
    client, progress = connect(url, timeout=CALL), Progress()
    client._engine.warn = lambda name, message: None  # type: ignore[method-assign]  # what wins and loses here is nobody's business
    measuring = Bench(client, seconds, progress)
    with ending():
        try:
            check_made(client)
            if not carry_out(measuring.run, progress, seconds + LONGER):
                raise Unavailable(f"nothing came within {seconds + LONGER:g}s while {progress.doing}")
        except Ended:
            if not measuring.stop(TIDYING):
                say(f"not all below {NAME!r} could be forgotten: it is held for {describe(TTL)} at the most, and the next bench forgets it")
            raise
        finally:
            goodbye(client.close)
    if measuring.is_elsewhere:
        say(f"another rota bench is at work on {url.safe}: {NAME!r} is held, for {describe(TTL)} at the most by one that was killed")
        return BUSY
    rows = measuring.rows()
    if found.json:
        show_json(rows)
    elif is_terminal():
        show(f"{url.safe}: medians of {ROUNDS - 1} rounds\n")
        show_table(("OPERATION", "MEDIAN", "ROUNDS", "BESIDE", "ITS MEDIAN", "RATIO"), map(_for_people, rows))
    else:
        show_columns([_plain(value) for name, value in row.items() if name in _COLUMNS] for row in rows)
    return 0


class Bench:
    """The measures of one store.

    Attributes:
        is_elsewhere: Another one is at work.
    """

    def __init__(self, client: Client, seconds: float, progress: Progress) -> None:
        self.client = client
        self.driver = client.driver
        self.progress = progress
        self.is_elsewhere = False
        self._seconds = seconds
        self._owners = {part: os.urandom(16).hex() for part in ("held", "bare", *map(str, range(LEASES)))}
        self._values: dict[str, list[float]] = {}
        self._counts: dict[str, int] = {}
        self._planned = datetime.now(UTC)
        self._renewed = 0.0
        self._stopping = False
        self._is_tidy = True
        self._over = threading.Event()
        self._over.set()

    def stop(self, seconds: float) -> bool:
        """Let another thread's `run` end before its time; return whether all was forgotten within so many seconds."""
        self._stopping = True
        return self._over.wait(seconds) and self._is_tidy

    def run(self) -> None:
        """Measure."""
        self._over.clear()
        try:
            if not self._stopping:
                self._run()
        finally:
            self._over.set()

    def _run(self) -> None:
        self.progress.doing = "asking for the store"
        self._is_tidy = False
        ours: Any = self.client.try_lease(NAME, ttl=TTL / SECOND)
        if not ours:
            self.is_elsewhere = self._is_tidy = True
            return
        names = [self._full(part) for part in ("pair", "held", "slots", "bare", *map(str, range(LEASES)))]
        try:
            self._forget(names)  # what one that was killed has left
            self._prepare()
            self._measure()
        finally:
            self._forget(names)
            ours.release()
            self._forget([self.client._full(NAME)])
            self._is_tidy = True

    def _full(self, part: str) -> str:
        return self.client._full(f"{NAME}/{part}")

    def _forget(self, names: list[str]) -> None:
        for name in names:
            self.driver.forget(name, CALL)

    def _prepare(self) -> None:
        """Take what others are refused, what is renewed, and a slot that is handled."""
        now = self.driver.now(CALL)
        at = time.time_ns() // 1000 if now is None else now[0]
        # below the mark of none before, as those are forgotten; and far enough back that no slot lies ahead, however many are won
        self._planned = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at) - timedelta(minutes=5)
        for part, owner in self._owners.items():
            self.driver.claim(Claim(self._full(part), owner, "rota bench", LEASE, TTL, at + DAY, DAY), CALL)
        self.driver.settle(Settlement(self._full("bare"), self._owners["bare"], RELEASED, DAY), CALL)
        self._won()

    def _measure(self) -> None:
        measures = self._measures()
        share = self._seconds / ROUNDS / len(measures)
        for number in range(ROUNDS):
            for at, (name, measure) in enumerate(measures.items() if number % 2 else reversed(measures.items())):
                self.progress.doing = f"measuring: {name}"
                self.progress.done = (number + at / len(measures)) / ROUNDS
                self._renew()
                took, count = _timed(measure, share, lambda: self._stopping)
                if self._stopping:
                    return
                if number:
                    self._values.setdefault(name, []).append(took)
                    self._counts[name] = self._counts.get(name, 0) + count

    def _renew(self) -> None:
        if time.monotonic() - self._renewed >= RENEW:
            self._renewed = time.monotonic()
            self.driver.renew([Renewal(self._full(part), owner, TTL, DAY) for part, owner in self._owners.items() if part != "bare"], CALL)

    def _measures(self) -> dict[str, Callable[[], object]]:
        driver, bare = self.driver, self._full("bare")
        renewals = [Renewal(self._full(part), self._owners[part], TTL, DAY) for part in map(str, range(LEASES))]
        own: dict[str, Callable[[], object]] = {"acquire and release": self._pair, "claim refused": self._refused}
        if driver.capabilities.windows:
            own |= {"slot won and handled": self._won, "slot lost": self._lost}
        own |= {"renewal": lambda: driver.renew(renewals[:1], CALL), f"renewal of {LEASES} leases": lambda: driver.renew(renewals, CALL)}
        try:
            driver.bare(bare, False, CALL)
        except NotSupported:
            return own
        return own | {_READ: lambda: driver.bare(bare, False, CALL), _WRITE: lambda: driver.bare(bare, True, CALL)}

    def _pair(self) -> None:
        grant: Any = self.client.try_lease(f"{NAME}/pair")
        _expect(grant, True)
        grant.release()

    def _refused(self) -> None:
        _expect(self.client.try_lease(f"{NAME}/held"), False)

    def _won(self) -> None:
        self._planned += timedelta(milliseconds=1)
        grant: Any = self.client.try_window(f"{NAME}/slots", planned=self._planned)
        _expect(grant, True)
        grant.handled()

    def _lost(self) -> None:
        _expect(self.client.try_window(f"{NAME}/slots", planned=self._planned), False)

    def rows(self) -> list[dict[str, Any]]:
        """Return the figures for programs; `docs/operations.md` describes them."""
        found = []
        for name, rounds in self._values.items():
            reads, writes = _BESIDE.get(name, (0, 0)) if _READ in self._values else (0, 0)
            beside = (
                [reads * r + writes * w for r, w in zip(self._values[_READ], self._values[_WRITE], strict=True)] if reads + writes else []
            )
            ratios = [ours / theirs for ours, theirs in zip(rounds, beside, strict=True)] if beside else []
            what = f"{reads} {_READ}" if reads else f"{writes} {_WRITE}{'s' if writes > 1 else ''}"
            found.append(
                {
                    "operation": name,
                    "median_us": round(median(rounds)),
                    "least_us": round(min(rounds)),
                    "most_us": round(max(rounds)),
                    "beside": what if beside else None,
                    "beside_us": round(median(beside)) if beside else None,
                    "ratio": round(median(ratios), 3) if ratios else None,
                    "least_ratio": round(min(ratios), 3) if ratios else None,
                    "most_ratio": round(max(ratios), 3) if ratios else None,
                    "calls": self._counts[name],
                }
            )
        order = [*_BESIDE, _READ, _WRITE]
        return sorted(found, key=lambda row: order.index(row["operation"]))


_COLUMNS = ("operation", "median_us", "least_us", "most_us", "beside", "beside_us", "ratio")


def _timed(measure: Callable[[], object], seconds: float, stops: Callable[[], bool]) -> tuple[float, int]:
    """Return the microseconds of a call, and how many were made in that time, or until it stops; no garbage is collected meanwhile."""
    gc.disable()
    try:
        count, began = 0, time.perf_counter()
        while True:
            measure()
            count += 1
            took = time.perf_counter() - began
            if took >= seconds or stops():
                return took / count * 1e6, count
    finally:
        gc.enable()


def _expect(answer: Any, won: bool) -> None:
    """A figure of something else than was meant to be measured is worse than none."""
    if bool(answer) is not won:
        raise RotaError(f"somebody else uses the names below {NAME!r}: {answer}")


def _plain(value: Any) -> str:
    return "" if value is None else str(value)


def _for_people(row: dict[str, Any]) -> list[str]:
    def shown(microseconds: float | None) -> str:
        return "" if microseconds is None else f"{microseconds:.0f}us" if microseconds < 10_000 else f"{microseconds / 1000:.1f}ms"

    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f} ({row['least_ratio']:.2f}..{row['most_ratio']:.2f})"
    spread = f"{shown(row['least_us'])}..{shown(row['most_us'])}"
    return [row["operation"], shown(row["median_us"]), spread, row["beside"] or "", shown(row["beside_us"]), ratio]
