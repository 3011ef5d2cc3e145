# SPDX-License-Identifier: MIT
"""From a URL's scheme to its backend: embedded ones from a table, others by entry point, loaded one by name, never the whole group."""

from __future__ import annotations

import threading
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
    from importlib.metadata import entry_points

    found = list(entry_points(group=GROUP, name=scheme))
    owners = sorted({entry.dist.name if entry.dist else entry.value for entry in found})
    if len({entry.value for entry in found}) > 1 or len(owners) > 1:
        raise ConfigurationError(f"{scheme}:// is claimed by {' and '.join(owners)}: uninstall all but one")
    if not found:
        raise BackendNotFound(_not_found(scheme))
    owner = owners[0]
    try:
        loaded = found[0].load()
        made = loaded() if isinstance(loaded, type) else loaded
    except Exception as error:
        raise ConfigurationError(f"the backend for {scheme}:// ({owner}) can't be loaded: {type(error).__name__}: {error}") from error
    contract = getattr(made, "contract", None)
    if not isinstance(made, Backend):
        raise ConfigurationError(f"{found[0].value} of {owner} is not a rota.backend.Backend, so it can't serve {scheme}://")
    if contract != CONTRACT:
        raise ConfigurationError(f"{owner} is written for contract {contract}, this rota has {CONTRACT}: install versions that go together")
    from ._observers import observers

    if observers.manager.get_plugin(found[0].value) is None:
        observers.register(made, found[0].value)
    return made


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
