# SPDX-License-Identifier: MIT
"""Answers of Redis, RESP2 and RESP3, as bytes, integers, None, lists (maps too: name, value, name, value …) and errors."""

from __future__ import annotations

from typing import Any

from redis.exceptions import InvalidResponse, ResponseError

#: A reply, or the error that came in its place.
Reply = Any

#: How what RESP3 may send at any time begins, which is the answer to nothing.
PUSH = ord(">")


class Taker:
    """Takes whole replies out of what was received so far."""

    __slots__ = ("_at", "_data")

    def __init__(self) -> None:
        self._data = b""
        self._at = 0

    def more(self, data: bytes) -> None:
        """Add what was received.

        Raises:
            ConnectionError: Nothing was: the server has closed the connection.
        """
        if not data:
            raise ConnectionError("the server closed the connection")
        self._data = self._data[self._at :] + data if self._at < len(self._data) else data
        self._at = 0

    def __call__(self) -> tuple[Reply] | None:
        """Take the next reply; None if it is not whole yet."""
        while self._at < len(self._data):
            try:
                found = _parse(self._data, self._at)
            except (ValueError, RecursionError) as error:
                raise InvalidResponse(f"not an answer of Redis: {self._data[self._at : self._at + 40]!r}") from error
            if found is None:
                return None
            is_push, self._at = self._data[self._at] == PUSH, found[1]
            if not is_push:
                return (found[0],)
        return None

    @property
    def is_empty(self) -> bool:
        """Whether all that was received is taken."""
        return self._at >= len(self._data)


def _parse(data: bytes, at: int) -> tuple[Reply, int] | None:
    """Return the reply that begins at ``at``, and where it ends; None if it is not whole yet."""
    end = data.find(b"\r\n", at)
    if end < 0:
        return None
    kind, text = data[at], data[at + 1 : end]
    at = end + 2
    if kind in b"$=":
        size = int(text)
        if size < 0:
            return None, at
        stop = at + size
        if len(data) < stop + 2:
            return None
        return data[at:stop] if kind == 36 else data[at + 4 : stop], stop + 2  # "=" begins with "txt:"
    if kind in b"*~>%":
        items: list[Reply] = []
        for _ in range(int(text) * (2 if kind == 37 else 1)):
            found = _parse(data, at)
            if found is None:
                return None
            item, at = found
            items.append(item)
        return (None if text == b"-1" else items), at
    if kind == 45:  # "-"
        return ResponseError(text.decode(errors="replace")), at
    if kind == 58:  # ":"
        return int(text), at
    if kind in b"+#,(":
        return text, at
    if kind == 95:  # "_"
        return None, at
    raise InvalidResponse(f"not an answer of Redis: {data[at - 2 - len(text) - 1 : end][:40]!r}")
