# SPDX-License-Identifier: MIT
"""A process of test_races_sqlite.py, started by path: for each path that it reads, opens the store there and takes a lease."""

from __future__ import annotations

import os
import sys

import rota

print("ready", flush=True)
for line in sys.stdin:
    path, start = line.split()
    while not os.path.exists(start):  # all begin when this file appears
        pass
    try:
        with rota.connect(f"sqlite://{path}", timeout=20) as client, client.lease(f"of-{os.getpid()}") as grant:
            print("ok", grant.token, flush=True)
    except Exception as error:
        print("failed", repr(error), flush=True)
