# SPDX-License-Identifier: MIT
"""Which store a command is about: the one that was named, else a file for this host alone."""

from __future__ import annotations

import errno
import os

from rota.errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rota.url import Url


def store(given: str, site: str = "", *, make: bool = True) -> Url:
    """Return the store's URL: the one given, else that of the file for this host, whose folder is made unless ``make`` is false."""
    from rota.url import Url, parse

    if given:
        url = parse(given)
        if url.scheme == "memory":
            raise ConfigurationError("memory:// lives and ends with this one command: name a store that others see, or leave --url out")
        return url._replace(site=site) if site else url
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        raise ConfigurationError("in Kubernetes pods share no file: name a store with --url or ROTA_URL")
    if os.environ.get("HOME") == "":
        del os.environ["HOME"]  # or it would stand for the root folder
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # the XDG base directory specification: a relative path is invalid, and ignored
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    folder = os.path.join(state, "rota")
    try:
        if not os.path.isabs(folder):
            raise FileNotFoundError(errno.ENOENT, "there is no home folder")
        if make:
            os.makedirs(folder, 0o700, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"the folder {folder} can't be made ({error.strerror}): name a store with --url or ROTA_URL") from error
    return Url("sqlite", os.path.join(folder, "rota.db").replace("%", "%25"), {}, "", site)
