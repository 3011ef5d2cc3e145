# SPDX-License-Identifier: MIT
"""A process of test_races_sqlite.py, started by path: takes the write lock of an SQLite file, says so, and keeps it until told to go on."""

from __future__ import annotations

import sqlite3
import sys

connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
