# SPDX-License-Identifier: MIT
"""Process groups: who of them lives."""

from __future__ import annotations

import os
from contextlib import suppress

#: How often a group is looked at that was told to end, first and at the least: nobody tells when its last process ends (seconds).
FIRST_LOOK, LONGEST_LOOK = 0.005, 0.25


def has_living(group: int) -> bool | None:
    """Say whether a group has more than zombies, which last for as long as their parent likes; None where that can't be told."""
    if not os.path.exists("/proc/self/stat"):
        return None
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:  # it may end while we look
                state, _, its_group = file.read().rpartition(b")")[2].split()[:3]  # proc_pid_stat(5): the name before may hold anything
                if int(its_group) == group and state not in (b"Z", b"X"):
                    return True
    return False
