# SPDX-License-Identifier: MIT
"""What the command line writes: whole lines, unbuffered, and never an error of its own because nobody reads them."""

from __future__ import annotations

import os
import sys


def say(line: str) -> None:
    """Write one line to standard error."""
    _write(2, f"rota: {' '.join(line.split())}\n")


def show(text: str) -> None:
    """Write text to standard output."""
    _write(1, text)


def hide(text: str) -> str:
    """Return a part of the command line for a message: what may be a URL's secret is left out."""
    scheme, colon, _ = text.partition("://")
    if colon:
        return f"{scheme}://***"
    return "***" if "@" in text else text


def _write(number: int, text: str) -> None:
    data = text.encode(sys.getfilesystemencoding(), "backslashreplace")
    try:
        while data:
            data = data[os.write(number, data) :]
    except OSError:
        pass  # closed, or a broken pipe: what is said is not what counts
