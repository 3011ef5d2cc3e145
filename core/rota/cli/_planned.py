# SPDX-License-Identifier: MIT
"""``--planned auto``: the instant for which this run was planned, as whoever started it tells.

Kubernetes names a CronJob's Jobs ``NAME-MINUTES``, minutes since the epoch of the planned instant, and their pods after the Job. It also
writes the instant into the Job's annotation ``batch.kubernetes.io/cronjob-scheduled-timestamp`` (since 1.28), which a pod sees only where
something copies it into the pod's own annotations.
"""

from __future__ import annotations

import os
import re
import time

from rota.errors import ConfigurationError

#: Where the downward API's volume is mounted by convention, and the annotation that counts.
_FILE, _ANNOTATION = "/etc/podinfo/annotations", "batch.kubernetes.io/cronjob-scheduled-timestamp"
#: Eight digits are minutes of the years 1989 to 2160. Of a name made by hand they may be a date, which is read as a year around 2008.
_IN_JOB_NAME = re.compile(r"-([0-9]{8})$")
#: Behind them in a pod's name: the index, in an indexed Job, and five random letters of those that Kubernetes uses.
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_IN_POD_NAME = re.compile(rf"-([0-9]{{8}})(?:-[0-9]+)?-[{_LETTERS}]{{5}}$")
_JOB = "a CronJob's Job does, with -MINUTES (eight digits, since 1970)"
_POD = f"a pod of a CronJob's Job does, with -MINUTES-XXXXX (eight digits, since 1970, and five of {_LETTERS})"
_MINUTE = 60
#: How far from this host's time minutes in a name may lie to be taken for that: a year back, a day ahead (minutes).
_BACK, _AHEAD = 366 * 24 * 60, 24 * 60


def find() -> tuple[str, str]:
    """Return the instant as text, and where it was found; where nothing tells it, an empty text, and why what is there does not.

    Raises:
        ConfigurationError: A file or variable is there, and can't be read or holds something else.
    """
    planned = os.environ.get("ROTA_PLANNED", "").strip()
    if planned:
        if planned.lower() == "auto":
            raise ConfigurationError("ROTA_PLANNED=auto: it is --planned that may be auto; ROTA_PLANNED is where it looks for the instant")
        return planned, "ROTA_PLANNED"
    path = os.environ.get("ROTA_PLANNED_FILE", "")
    annotation = _from_file(path or _FILE, must=bool(path))
    if annotation:
        return annotation, path or _FILE
    job = os.environ.get("ROTA_JOB_NAME", "").strip()
    if job:
        return _from_name(_IN_JOB_NAME, job, "ROTA_JOB_NAME", f"ROTA_JOB_NAME={job}", _JOB)
    pod = os.environ.get("ROTA_POD_NAME", "").strip()
    if pod:
        return _from_name(_IN_POD_NAME, pod, "ROTA_POD_NAME", f"ROTA_POD_NAME={pod}", _POD)
    host = os.uname().nodename
    unset = "ROTA_PLANNED, ROTA_JOB_NAME and ROTA_POD_NAME are not set, and this host's name"
    return _from_name(_IN_POD_NAME, host, "the host's name", f"{unset} {host}", _POD)


def _from_name(pattern: re.Pattern[str], name: str, where: str, shown: str, form: str) -> tuple[str, str]:
    found = pattern.search(name)
    if found is None:
        return "", f"{shown} does not end as {form}"
    minutes, now = int(found[1]), int(time.time()) // _MINUTE
    if not now - _BACK <= minutes <= now + _AHEAD:
        return "", f"{shown}: minute {found[1]} since 1970 does not lie between a year ago and tomorrow"
    return str(minutes * _MINUTE), where


def _from_file(path: str, *, must: bool) -> str:
    """Return the annotation of a downward-API file: one annotation's value, or all of them, a line each, as ``key="value"``."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(1 << 20).splitlines()
    except OSError as error:
        if must:
            raise ConfigurationError(f"ROTA_PLANNED_FILE={path} can't be read: {error.strerror}") from error
        return ""
    for line in lines:
        key, equals, value = line.partition("=")
        if equals and key.strip() == _ANNOTATION:
            return value.strip().strip('"')
    values = [line.strip() for line in lines if line.strip()]
    if len(values) == 1 and "=" not in values[0]:
        return values[0]
    if must and values and all("=" not in line for line in values):
        raise ConfigurationError(f"ROTA_PLANNED_FILE={path} holds neither an instant nor annotations")
    return ""
