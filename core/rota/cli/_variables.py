# SPDX-License-Identifier: MIT
"""Variables of the environment that look like one of rota's and are none: a misspelt one would count for nothing, without a word."""

from __future__ import annotations

import os

from ._options import OPTIONS, WHEN, variable

#: Those that are no option's default: where ``--planned auto`` looks, what a command finds, and what the conformance suite is told by.
_OTHERS = ("PLANNED_FILE", "JOB_NAME", "POD_NAME", "NAME", "TOKEN", "SLOT_START", "SLOT_END", "ATTEMPT", "CONFORM_NAMES", "CONFORM_URL")
KNOWN = frozenset([*map(variable, (*WHEN, *OPTIONS)), *("ROTA_" + name for name in _OTHERS)])
#: How near a name must come, of which the part that all share says nothing. Two letters of ``URL`` that changed places do; what Kubernetes
#: tells of a service called rota (``ROTA_PORT``, ``ROTA_SERVICE_HOST``) does not.
_NEAR = 0.66


def misspelt() -> list[str]:
    """Return a line for each variable that was most likely meant to be one of rota's; others may be another program's."""
    lines = []
    for name in sorted(os.environ):
        if name.startswith("ROTA_") and name not in KNOWN:
            import difflib

            near = difflib.get_close_matches(name[5:], [known[5:] for known in KNOWN], n=1, cutoff=_NEAR)
            if near:
                lines.append(f"{name} is no variable that rota reads: did you mean ROTA_{near[0]}?")
    return lines
