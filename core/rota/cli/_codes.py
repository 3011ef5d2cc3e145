# SPDX-License-Identifier: MIT
"""The exit codes of ``rota run`` that are its own. A command that ran gives its own code, or 128+n when signal n ended it."""

from __future__ import annotations

USAGE = 2
INTERNAL = 70  # EX_SOFTWARE of sysexits.h
HOST = 71  # EX_OSERR
UNWRITTEN = 74  # EX_IOERR: of the commands that print, which `rota run` is not
CANNOT_RUN, NOT_FOUND = 126, 127  # as the shell
HANDLED, PASSED, BUSY, LATE, EARLY, UNAVAILABLE, LOST, UNRECORDED, MARK_AHEAD, GAVE_UP = range(110, 120)

#: Each code with its word and what it says; those that ``--strict`` turns on are 0 without it.
TABLE = (
    (USAGE, "usage", "the command line, the environment or the store's URL is wrong; nothing was run"),
    (INTERNAL, "internal", "a fault in rota or in a backend"),
    (HOST, "host", "this host has no process, file or memory left to run it with"),
    (HANDLED, "handled", "with --strict: the slot was handled already; else 0"),
    (PASSED, "passed", "with --strict: a newer slot was handled; else 0"),
    (BUSY, "busy", "somebody else runs it, and still did when the waiting was over; with --busy-ok 0"),
    (LATE, "late", "the slot has ended, or --max-late is over"),
    (EARLY, "early", "the planned slot begins in more than --wait-early"),
    (UNAVAILABLE, "unavailable", "the store did not answer"),
    (LOST, "lost", "the lease was lost, and the command stopped"),
    (UNRECORDED, "unrecorded", "the command succeeded, but the store did not confirm the record of it"),
    (MARK_AHEAD, "mark-ahead", "the record lies ahead of the store's clock: an operator must look"),
    (GAVE_UP, "gave up", "with --strict: the slot was closed after --attempts failures; else 0"),
    (CANNOT_RUN, "cannot run", "the command can't be executed; the slot is not handled"),
    (NOT_FOUND, "not found", "there is no such command; the slot is not handled"),
)


def word(code: int) -> str:
    """Return the word of a code; empty where it is not one of ours."""
    return next((word for number, word, _ in TABLE if number == code), "")
