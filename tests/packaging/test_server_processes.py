# SPDX-License-Identifier: MIT
"""The tests' own processes lose nothing of what they are told."""

from __future__ import annotations

import subprocess
import sys

from servers import read_line


def test_what_a_fast_process_says_after_a_line_that_was_read_is_not_lost() -> None:
    process = subprocess.Popen([sys.executable, "-c", "print('ready\\ndone')"], stdout=subprocess.PIPE, text=True)
    process.wait(30)
    assert process.stdout is not None
    assert read_line(process.stdout) == "ready\n"
    assert process.communicate() == ("done\n", None)
    assert process.returncode == 0
