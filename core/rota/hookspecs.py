# SPDX-License-Identifier: MIT
"""What observers can be told. Implement any of these with ``rota.hookimpl`` and hand the plug-in to `rota.register`.

Hooks run on a thread of their own, in order; what they raise is logged, how long they take delays nobody but other hooks.
"""

from __future__ import annotations

import pluggy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .errors import Unavailable
    from .grant import BaseGrant
    from .verdict import Refused

hookspec = pluggy.HookspecMarker("rota")
hookimpl = pluggy.HookimplMarker("rota")


@hookspec
def rota_granted(grant: BaseGrant) -> None:
    """A claim was won; ``grant.degraded`` tells whether without the store."""


@hookspec
def rota_refused(refused: Refused) -> None:
    """A claim was refused."""


@hookspec
def rota_settled(grant: BaseGrant, outcome: str, expired: bool) -> None:
    """A grant was settled; ``outcome`` says how, ``lost`` if a later grant was made, ``unrecorded`` if the store did not confirm (F5).

    ``expired`` tells whether its lease had been lost by then (W3a). What was not confirmed is told of again when it is.
    """


@hookspec
def rota_lost(grant: BaseGrant, reason: str) -> None:
    """A lease was lost."""


@hookspec
def rota_unavailable(name: str, error: Unavailable) -> None:
    """The store could not be asked; once per claim."""


@hookspec
def rota_warning(name: str, message: str) -> None:
    """Something an operator should see: another schedule under a name, a step of the store's clock, a mark ahead of it."""
