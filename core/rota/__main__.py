# SPDX-License-Identifier: MIT
"""``python -m rota``, and the installed script: the command line."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the program's command line and end the process."""
    # First of all, and without the imports of `signal`: until a command deals with Ctrl-C itself, it ends the process without a word.
    import _signal  # type: ignore[import-not-found]

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from .cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
