# SPDX-License-Identifier: MIT
"""Variables of the environment that look like one of rota's and are none: a misspelt one would count for nothing, without a word."""

from __future__ import annotations

import os

from rota.errors import ConfigurationError

from ._options import OPTIONS, WHEN, variable

#: Those that are no option's default: where ``--planned auto`` looks, what a command finds, and what the conformance suite is told by.
_OTHERS = ("PLANNED_FILE", "JOB_NAME", "POD_NAME", "NAME", "TOKEN", "SLOT_START", "SLOT_END", "ATTEMPT", "CONFORM_NAMES", "CONFORM_URL")
#: Those of `rota run`'s options, and which of them the other commands read that ask a store.
OF_RUN = frozenset(map(variable, (*WHEN, *OPTIONS)))
OF_OTHERS = frozenset({"ROTA_URL", "ROTA_TIMEOUT"})
KNOWN = OF_RUN | {"ROTA_" + name for name in _OTHERS}
#: How near a name must come, of which the part that all share says nothing. Two letters of ``URL`` that changed places do; what Kubernetes
#: tells of a service called rota (``ROTA_PORT``, ``ROTA_SERVICE_HOST``) does not.
_NEAR = 0.66


def misspelt(read: frozenset[str]) -> list[str]:
    """Return a line for each variable that was most likely meant to be one of rota's; others may be another program's.

    Args:
        read: Those that the command reads.

    Raises:
        ConfigurationError: One is a letter off one that the command reads: it would do something else than it was told to.
    """
    lines = []
    for name in sorted(os.environ):
        if name.startswith("ROTA_") and name not in KNOWN:
            import difflib

            near = difflib.get_close_matches(name[5:], [known[5:] for known in KNOWN], n=1, cutoff=_NEAR)
            if near:
                lines.append(f"{name} is no variable that rota reads: did you mean ROTA_{near[0]}?")
                if "ROTA_" + near[0] in read and _is_one_off(name[5:], near[0]):
                    raise ConfigurationError(f"{lines[-1]} One of another program is kept from rota by env -u {name}")
    return lines


def _is_one_off(word: str, known: str) -> bool:
    """Whether a letter is wrong, missing or one too many, or two have changed places, of words that differ."""
    while word[:1] == known[:1] != "":
        word, known = word[1:], known[1:]
    return word[1:] in (known, known[1:]) or word == known[1:] or (word[1::-1] == known[:2] and word[2:] == known[2:])
