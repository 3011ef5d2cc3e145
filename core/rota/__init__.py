# SPDX-License-Identifier: MIT
"""rota: who runs this now (lease), and has this slot of the schedule been handled (window)?

    import rota

    with rota.connect("sqlite:///var/lib/rota.db") as client:
        verdict = client.try_window("nightly-report", rota.Cron("0 2 * * *", tz="Europe/Berlin"))
        if verdict:
            with verdict as grant:
                make_report(grant.slot, grant.token)
        else:
            print(verdict.reason)

Names are loaded when they are first used, so that importing rota costs next to nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .backend import CONTRACT as CONTRACT
    from .capabilities import Capabilities as Capabilities
    from .client import AsyncClient as AsyncClient
    from .client import Client as Client
    from .client import connect as connect
    from .client import connect_async as connect_async
    from .errors import BackendNotFound as BackendNotFound
    from .errors import Busy as Busy
    from .errors import ConfigurationError as ConfigurationError
    from .errors import Early as Early
    from .errors import Handled as Handled
    from .errors import Late as Late
    from .errors import LeaseLost as LeaseLost
    from .errors import NotAcquired as NotAcquired
    from .errors import NotSupported as NotSupported
    from .errors import OutcomeUnknown as OutcomeUnknown
    from .errors import RotaError as RotaError
    from .errors import Unavailable as Unavailable
    from .errors import Unrecorded as Unrecorded
    from .grant import AsyncGrant as AsyncGrant
    from .grant import Grant as Grant
    from .hookspecs import hookimpl as hookimpl
    from .policy import LeaseOptions as LeaseOptions
    from .policy import OnceOptions as OnceOptions
    from .policy import WindowOptions as WindowOptions
    from .schedule import Cron as Cron
    from .schedule import Every as Every
    from .schedule import Missed as Missed
    from .schedule import Schedule as Schedule
    from .schedule import Slot as Slot
    from .verdict import Refused as Refused

_HOMES = {
    "backend": ("CONTRACT",),
    "capabilities": ("Capabilities",),
    "client": ("AsyncClient", "Client", "connect", "connect_async"),
    "errors": (
        "BackendNotFound",
        "Busy",
        "ConfigurationError",
        "Early",
        "Handled",
        "Late",
        "LeaseLost",
        "NotAcquired",
        "NotSupported",
        "OutcomeUnknown",
        "RotaError",
        "Unavailable",
        "Unrecorded",
    ),
    "grant": ("AsyncGrant", "Grant"),
    "hookspecs": ("hookimpl",),
    "policy": ("LeaseOptions", "OnceOptions", "WindowOptions"),
    "schedule": ("Cron", "Every", "Missed", "Schedule", "Slot"),
    "verdict": ("Refused",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [*_HOME, "register", "unregister"]  # noqa: PLE0604, RUF100 - names, all of them


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'rota' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module("." + home, __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def register(observer: object) -> None:
    """Register an observer: an object with any of the hooks of `rota.hookspecs`, marked with ``rota.hookimpl``."""
    from ._observers import observers

    observers.register(observer)


def unregister(observer: object) -> None:
    """Take an observer out again."""
    from ._observers import observers

    observers.unregister(observer)
