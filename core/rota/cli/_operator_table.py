# SPDX-License-Identifier: MIT
"""What the operator's commands print: a table for people on a terminal, else tabs between stable columns, or JSON, one object a line."""

from __future__ import annotations

import os
import unicodedata

from rota.duration import DAY, HOUR, MINUTE, SECOND, describe
from rota.schedule import iso
from rota.verdict import text

from ._output import clean, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

#: What the help says of ``--json``.
JSON = "one JSON object a line: see rota help json"
#: What stands where there is nothing.
NOTHING = "-"
#: More columns than any terminal has.
NO_LIMIT = 1 << 30


def is_terminal() -> bool:
    """Whether people read the output."""
    try:
        return os.isatty(1)
    except OSError:
        return False


def show_json(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print one object a line, in ASCII, so that no terminal or locale spoils it."""
    import json

    show("".join(json.dumps(row) + "\n" for row in rows))


def show_names(names: Iterable[str]) -> None:
    """Print names alone, a line each, as the commands take them; escaped on a terminal, and where no claim can have made them."""
    as_is = not is_terminal()
    shown = (name if as_is and all(unicodedata.category(c) != "Cc" for c in name) else clean(name) for name in names)
    show("".join(f"{name}\n" for name in shown))


def show_columns(rows: Iterable[Sequence[str]]) -> None:
    """Print rows for programs: no heading, one tab between columns, `NOTHING` for an empty one."""
    show("".join("\t".join(clean(cell) or NOTHING for cell in row) + "\n" for row in rows))


def show_table(heading: Sequence[str], rows: Iterable[Sequence[str]], spare: Sequence[str] = ()) -> None:
    """Print rows for people: aligned, below a heading.

    Args:
        heading: The heading of each column.
        rows: The cells of each row.
        spare: Columns to leave out until the terminal is wide enough, if that helps: what says nothing first, then in this order.
    """
    columns = [[clean(cell) or NOTHING for cell in column] for column in zip(heading, *rows, strict=True)]
    columns = _narrowed(columns, [heading.index(name) for name in spare])
    widths = [max(map(_width, column)) for column in columns]
    shown = (
        "  ".join(cell + " " * (wide - _width(cell)) for cell, wide in zip(line, widths, strict=True)).rstrip()
        for line in zip(*columns, strict=True)
    )
    show("".join(line + "\n" for line in shown))


def _narrowed(columns: list[list[str]], spare: list[int]) -> list[list[str]]:
    try:
        room = os.get_terminal_size(1).columns or NO_LIMIT  # one that does not tell
    except OSError:
        room = NO_LIMIT
    kept = {number: max(map(_width, column)) for number, column in enumerate(columns)}
    for number in sorted(spare, key=lambda number: any(cell != NOTHING for cell in columns[number][1:])):
        if sum(kept.values()) + 2 * (len(kept) - 1) <= room:
            break
        del kept[number]
    fits = sum(kept.values()) + 2 * (len(kept) - 1) <= room
    return [columns[number] for number in kept] if fits else columns


def _width(cell: str) -> int:
    if cell.isascii():
        return len(cell)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in cell)


def span(microseconds: int | None) -> str:
    """Return a duration for people, to two units: ``3d4h``, ``12m5s``, ``1.2s``; empty for None."""
    if microseconds is None:
        return ""
    if microseconds < 0:
        return f"-{span(-microseconds)}"
    for least, step in ((DAY, HOUR), (HOUR, MINUTE), (10 * SECOND, SECOND)):
        if microseconds >= least:
            return describe(microseconds - microseconds % step)
    return f"{microseconds / SECOND:.1f}s"


def seconds(microseconds: int | None) -> float | None:
    """Return a duration for programs."""
    return None if microseconds is None else microseconds / SECOND


def when(microseconds: int | None) -> str:
    """Return an instant for people; empty where there is none."""
    return "" if microseconds is None else text(microseconds)


def exact(microseconds: int | None) -> str | None:
    """Return an instant for programs, to the microsecond; None where there is none."""
    if microseconds is None:
        return None
    try:
        return iso(microseconds)
    except OverflowError:  # beyond the year 9999, from a clock that ran wild: the other names are to be shown all the same
        return text(microseconds)
