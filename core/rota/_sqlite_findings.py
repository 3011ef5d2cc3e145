# SPDX-License-Identifier: MIT
"""What the doctor is told of an SQLite file: what lies under it, whose it is, and how much room it has."""

from __future__ import annotations

import os
import stat

from .errors import RotaError
from .finding import BAD, OK, WARN, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Free space below which it is worth a word, and below which a WAL has no room left, bytes.
LITTLE, NONE = 64 * 2**20, 4 * 2**20
#: File systems that live in memory.
_MEMORY = ("tmpfs", "ramfs")


def examine(path: str, facts: Mapping[str, str | int | float | bool | None] | RotaError) -> list[Finding]:
    """Return what is right or wrong with the file, or with its folder where it can't be opened."""
    found = [*_rights(path), *_space(path)]
    if not isinstance(facts, RotaError):
        found += _file(facts)
    elif "network file system" in str(facts):
        cure = "Put the file on a disk of this host; for several hosts take a server: PostgreSQL, Redis, ZooKeeper or etcd."
        found.append(Finding(BAD, "file system", str(facts), "Two hosts would both get a lock there, and both run the job.", cure))
    return found if not isinstance(facts, RotaError) else [finding for finding in found if finding.level != OK]


def _file(facts: Mapping[str, str | int | float | bool | None]) -> Iterator[Finding]:
    kind = str(facts["file_system"] or "of a type that this system does not tell")
    if kind in _MEMORY:
        why = "It is gone with the next restart of the host: every slot may then run once more."
        yield Finding(WARN, "file system", f"{kind}, in memory", why, "Put the file on a disk, as in /var/lib.")
    else:
        yield Finding(OK, "file system", kind)
    journal = facts["journal_mode"]
    if journal == "wal":
        yield Finding(OK, "journal", "wal, synchronised at each commit")
    else:
        why = "Readers and writers keep each other waiting, and calls end as unavailable."
        cure = "Put the file where SQLite can map memory (WAL needs it): a local disk, no folder that a virtual machine shares."
        yield Finding(WARN, "journal", f"{journal}, since the file system has no room for wal", why, cure)


def _rights(path: str) -> Iterator[Finding]:
    folder = os.path.dirname(path)
    try:
        its = os.stat(folder)
    except OSError:
        return  # not there yet; or the error says it
    open_to_all = stat.S_IMODE(its.st_mode) & 0o002 and not its.st_mode & stat.S_ISVTX
    if not os.access(folder, os.W_OK | os.X_OK):
        why = "SQLite keeps two files beside it, -wal and -shm, and can't make them."
        cure = f"chgrp OPS {folder} && chmod 2770 {folder}, with a group that all its users are in; or run as {_user(its.st_uid)}."
        yield Finding(BAD, "permissions", f"the folder {folder} of {_user(its.st_uid)} is not to be written by this user", why, cure)
        return
    try:
        file = os.stat(path)
    except OSError:
        file = None
    if file is not None and not os.access(path, os.R_OK | os.W_OK):
        owner = _user(file.st_uid)
        cure = f"chmod 0660 {path}, with a group that all its users are in; or run as {owner}; or name another file."
        yield Finding(BAD, "permissions", f"{path} of {owner} is not to be written by this user", "No claim can be made.", cure)
    elif open_to_all:
        why = "Any user can put another file in its place: then some coordinate by this one, and some by that."
        yield Finding(WARN, "permissions", f"anybody may change the folder {folder}", why, f"chmod o-w {folder}")
    elif file is None:
        return
    elif stat.S_IMODE(file.st_mode) & 0o002:
        why = "Any user can change who holds what, or lock it for ever."
        yield Finding(WARN, "permissions", f"anybody may write to {path}", why, f"chmod o-w {path}")
    else:
        mode = stat.S_IMODE(file.st_mode)
        yield Finding(OK, "permissions", f"{path} has mode {mode:04o} and is {_user(file.st_uid)}'s", facts={"mode": f"{mode:04o}"})


def _space(path: str) -> Iterator[Finding]:
    try:
        room = os.statvfs(os.path.dirname(path))
    except (OSError, AttributeError):  # no such folder yet; Windows
        return
    free = room.f_bavail * room.f_frsize
    shown, facts = f"{free // 2**20} MiB are free", {"free_bytes": free}
    if free < LITTLE:
        why = "On a full disk no claim can be made, and no success recorded."
        yield Finding(BAD if free < NONE else WARN, "disk", shown, why, "Make room, or move the file.", facts)
    else:
        yield Finding(OK, "disk", shown, facts=facts)


def _user(number: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return f"user {number}"
