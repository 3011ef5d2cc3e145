# SPDX-License-Identifier: MIT
"""Every error that rota raises. The driver's own error, where there is one, is always ``__cause__``."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .verdict import Refused


class RotaError(Exception):
    """The base of all of rota's errors."""


class ConfigurationError(RotaError, ValueError):
    """The call, name, option, URL or schedule is wrong. Raised before any I/O wherever that is possible."""


class BackendNotFound(ConfigurationError):
    """No installed backend answers for the URL's scheme; the message holds the install line."""


class NotSupported(RotaError):
    """The backend declares that it can't do this (see its capabilities)."""


class NotAcquired(RotaError):
    """The claim was refused; ``refused`` is the verdict that says why."""

    def __init__(self, message: str, refused: Refused) -> None:
        super().__init__(message)
        self.refused = refused


class Busy(NotAcquired):
    """Somebody else holds the name now."""


class Handled(NotAcquired):
    """The slot, or a newer one, has been handled."""


class Late(NotAcquired):
    """The slot has ended, or ``max_late`` is over."""


class Early(NotAcquired):
    """The slot has not begun by the store's clock."""


class LeaseLost(RotaError):
    """The lease ran out, was taken over, or was released by an operator: stop the guarded work."""


class Unavailable(RotaError):
    """The store did not answer in time, or can't serve now. Nothing was applied unless it is an `OutcomeUnknown`."""


class OutcomeUnknown(Unavailable):
    """The request may have been applied: it was sent, and no answer came."""


class Unrecorded(OutcomeUnknown):
    """The work was done, but its success is not confirmed by the store. rota goes on recording it until the client is closed (F5)."""
