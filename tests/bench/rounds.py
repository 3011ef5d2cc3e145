# SPDX-License-Identifier: MIT
"""Interleaved rounds, their medians and spread, and the table that every benchmark here prints.

A figure is only worth what its baseline in the same run is worth: rounds of the measured thing and of its baseline alternate, so that
a busy machine slows both. Each benchmark is a script (``python tests/bench/NAME.py [--rounds N] [--json]``); it ends with code 1 when
a median is over its bound.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[[], Any])

ROUNDS = 7


class Figure(NamedTuple):
    """One measured value: what every round gave, in `unit`, and the bound that its median must keep."""

    what: str
    rounds: list[float]
    unit: str
    bound: float | None
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def kept(self) -> bool:
        return self.bound is None or self.median <= self.bound


def interleaved(measures: dict[str, Callable[[], float]], rounds: int, warm: bool = True) -> dict[str, list[float]]:
    """Measure each once per round, in turn, and return all rounds' values; the order is turned around in every other round."""
    if rounds < 5:
        raise SystemExit("fewer than 5 rounds say nothing")
    if warm:
        for measure in measures.values():
            measure()
    values: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(rounds):
        for name in list(measures) if number % 2 == 0 else reversed(list(measures)):
            values[name].append(measures[name]())
    return values


class Turns(Generic[F]):
    """Functions that take turns call by call, so that each call and its baseline's are neighbours and feel the same load.

    Iterate over it, time what it yields, and tell it by `took`. Garbage is collected between rounds alone.

    Attributes:
        values: Of each function, by its name: the median of microseconds per call, for every round but the first.
    """

    def __init__(self, functions: tuple[F, ...], rounds: int, calls: int) -> None:
        self.values: dict[str, list[float]] = {function.__name__: [] for function in functions}
        self._functions, self._rounds, self._calls = functions, rounds, calls
        self._took: dict[str, list[float]] = {}

    def took(self, function: F, seconds: float) -> None:
        """Note how long a call took."""
        self._took[function.__name__].append(seconds)

    def __iter__(self) -> Iterator[F]:
        for number in range(-1, self._rounds):
            self._took = {name: [] for name in self.values}
            gc.collect()
            gc.disable()
            for turn in range(self._calls):
                yield from self._functions if turn % 2 else reversed(self._functions)
            gc.enable()
            for name, some in self._took.items() if number >= 0 else ():
                self.values[name].append(statistics.median(some) * 1e6)


def alternating(functions: tuple[Callable[[], Callable[[], object] | None], ...], rounds: int, calls: int) -> dict[str, list[float]]:
    """Return `Turns.values`. What a function returns is called, too, and not timed."""
    turns = Turns(functions, rounds, calls)
    for function in turns:
        started = time.perf_counter()
        after = function()
        turns.took(function, time.perf_counter() - started)
        if after is not None:
            after()
    return turns.values


async def alternating_async(functions: tuple[Callable[[], Awaitable[None]], ...], rounds: int, calls: int) -> dict[str, list[float]]:
    """As `alternating`, on an event loop."""
    turns = Turns(functions, rounds, calls)
    for function in turns:
        started = time.perf_counter()
        await function()
        turns.took(function, time.perf_counter() - started)
    return turns.values


def seconds(function: Callable[[], object]) -> float:
    """Return how long one call takes."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def main(measure: Callable[[int], list[Figure]], about: str) -> None:
    """Run a benchmark as a script."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of the table")
    options = parser.parse_args()
    figures = measure(options.rounds)
    if options.json:
        for figure in figures:
            print(json.dumps(figure._asdict()))
    else:
        show(figures)
    sys.exit(0 if all(figure.kept for figure in figures) else 1)


def show(figures: list[Figure]) -> None:
    """Print figures as a table: median, spread, bound, and how much of the bound is used."""
    rows = [("what", "median", "min - max", "bound", "of bound", "")]
    for figure in figures:
        low, high = min(figure.rounds), max(figure.rounds)
        bound = "" if figure.bound is None else f"{figure.bound:g} {figure.unit}"
        used = "" if not figure.bound else f"{figure.median / figure.bound:.0%}"
        verdict = figure.note if figure.kept else f"OVER THE BOUND  {figure.note}".rstrip()
        rows.append((figure.what, f"{figure.median:.3g} {figure.unit}", f"{low:.3g} - {high:.3g}", bound, used, verdict))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        print("  ".join([*cells, row[-1]]).rstrip())
