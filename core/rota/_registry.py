# SPDX-License-Identifier: MIT
"""From a URL's scheme to its backend: embedded ones from a table, others by entry point, loaded one by name, never the whole group."""

from __future__ import annotations

import os
import sys
import threading
from functools import reduce
from importlib import import_module

from .backend import CONTRACT, Backend
from .errors import BackendNotFound, ConfigurationError
from .url import Url, check_options, did_you_mean, parse

#: The entry-point group; an entry point's name is the URL's scheme.
GROUP = "rota.backends"

#: Embedded backends. Reading entry points costs more than a whole `rota run` may, and these never need it.
EMBEDDED = {"memory": ("rota.memory", "MemoryBackend"), "sqlite": ("rota.sqlite", "SqliteBackend")}

#: Schemes of our own distributions, for the install line, which names a folder of a checkout until the names are published.
KNOWN = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "redis": "redis",
    "rediss": "redis",
    "unix": "redis",
    "redis+sentinel": "redis",
    "redis+cluster": "redis",
    "zookeeper": "zookeeper",
    "etcd": "etcd",
    "etcds": "etcd",
}

_loaded: dict[str, Backend] = {}
_lock = threading.Lock()


def backend(url: str | Url | Backend) -> tuple[Backend, Url]:
    """Return the backend for a URL, and the URL taken apart, its options checked. A backend made by hand stands for itself.

    Raises:
        BackendNotFound: No backend has the scheme.
        ConfigurationError: The URL is malformed, an option is unknown, two distributions claim the scheme, or the plug-in is broken.
    """
    if isinstance(url, Backend):
        if url.contract != CONTRACT:
            raise ConfigurationError(f"{type(url).__name__} is written for contract {url.contract}, this rota has {CONTRACT}")
        return url, url.url or Url("", "", {})
    parsed = parse(url) if isinstance(url, str) or not isinstance(url, Url) else url
    found = _loaded.get(parsed.scheme)
    if found is None:
        with _lock:
            found = _loaded.setdefault(parsed.scheme, _load(parsed.scheme))
    check_options(parsed, found.options)
    return found, parsed


def _load(scheme: str) -> Backend:
    if scheme in EMBEDDED:
        module, name = EMBEDDED[scheme]
        embedded: Backend = getattr(import_module(module), name)()
        return embedded
    found = _declared(scheme) or _listed(scheme)
    owners = sorted(found)
    if len(owners) > 1:
        raise ConfigurationError(f"{scheme}:// is claimed by {' and '.join(owners)}: uninstall all but one")
    if not found:
        raise BackendNotFound(_not_found(scheme))
    owner = owners[0]
    value = found[owner]
    module, _, names = value.partition("[")[0].partition(":")
    try:
        loaded = reduce(getattr, names.strip().split("."), import_module(module.strip()))
        made = loaded() if isinstance(loaded, type) else loaded
    except Exception as error:
        raise ConfigurationError(f"the backend for {scheme}:// ({owner}) can't be loaded: {type(error).__name__}: {error}") from error
    contract = getattr(made, "contract", None)
    if not isinstance(made, Backend):
        raise ConfigurationError(f"{value} of {owner} is not a rota.backend.Backend, so it can't serve {scheme}://")
    if contract != CONTRACT:
        raise ConfigurationError(f"{owner} is written for contract {contract}, this rota has {CONTRACT}: install versions that go together")
    if "pluggy" in sys.modules:  # without it none of its methods is marked as a hook
        from ._observers import observers

        if observers.manager.get_plugin(value) is None:
            observers.register(made, value)
    return made


def _declared(scheme: str) -> dict[str, str]:
    """Return the distributions with a backend for a scheme and where theirs is, as the metadata folders on the path tell.

    That is where installers write it. The import of `importlib.metadata`, which knows of other places too, costs twice the start of Python.
    """
    found: dict[str, str] = {}
    for place in sys.path:
        try:
            folders = [name for name in os.listdir(place or ".") if name.endswith(".dist-info")]
        except OSError:
            continue
        for folder in folders:
            try:
                with open(os.path.join(place, folder, "entry_points.txt"), encoding="utf-8") as file:
                    text = file.read()
            except (OSError, ValueError):
                continue
            section = ""
            for line in text.splitlines() if GROUP in text else ():
                name, _, value = map(str.strip, line.partition("="))
                if name.startswith("["):
                    section = name
                elif section == f"[{GROUP}]" and name == scheme:
                    found.setdefault(folder.partition("-")[0].replace("_", "-"), value)
    return found


def _listed(scheme: str) -> dict[str, str]:
    from importlib.metadata import entry_points

    return {entry.dist.name if entry.dist else entry.value: entry.value for entry in entry_points(group=GROUP, name=scheme)}


def _not_found(scheme: str) -> str:
    if scheme in KNOWN:
        return f"no backend for {scheme}:// is installed: pip install ./backends/{KNOWN[scheme]}  (in a checkout)"
    known = sorted({*EMBEDDED, *KNOWN, *installed()})
    return f"no backend is called {scheme}://{did_you_mean(scheme, known)} (there are {', '.join(known)})"


def installed() -> dict[str, str]:
    """Return the schemes of all installed backends and the distribution of each, without loading any."""
    from importlib.metadata import entry_points

    schemes = dict.fromkeys(EMBEDDED, "rota")
    for entry in entry_points(group=GROUP):
        schemes[entry.name] = entry.dist.name if entry.dist else entry.value
    return schemes
