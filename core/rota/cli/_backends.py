# SPDX-License-Identifier: MIT
"""``rota backends``: which stores there are, whose they are, and how to install the others."""

from __future__ import annotations

from ._output import show
from ._parser import Parser

_AFTER = """\
  rota backends

Exit codes: 0; 2 the command line is wrong."""


def backends(given: list[str]) -> int:
    """List the URL schemes of all backends, installed or known."""
    parser = Parser("backends", "rota backends [--json]", "List the stores that a URL can name.", _AFTER)
    parser.add_argument("--json", action="store_true", help="one JSON array: see rota help json backends")
    as_json = parser.read(given).json
    from rota._registry import KNOWN, installed

    there = installed()
    rows: list[dict[str, str | bool | None]] = [
        {
            "scheme": scheme,
            "distribution": there.get(scheme) or f"rota-{KNOWN[scheme]}",
            "installed": scheme in there,
            "install": None if scheme in there else f"pip install ./backends/{KNOWN[scheme]}",
        }
        for scheme in sorted({*there, *KNOWN})
    ]
    if as_json:
        import json

        show(json.dumps(rows, indent=2) + "\n")
        return 0
    for row in rows:
        state = "installed" if row["installed"] else f"not installed: {row['install']}  (in a checkout)"
        show(f"{str(row['scheme']) + '://':20} {row['distribution']:20} {state}\n")
    return 0
