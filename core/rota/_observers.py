# SPDX-License-Identifier: MIT
"""Observers: plug-ins that are told what happens, and can neither break nor slow the caller.

Nothing is imported, called or queued while nobody listens. With a listener, events go through a bounded queue to one thread.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from ._worker import Worker
from .errors import ConfigurationError, RotaError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import pluggy

#: Events that may wait; beyond that the newest are dropped and counted.
QUEUE = 10_000


class Observers:
    """The one pluggy manager of the process, made when it is first needed."""

    def __init__(self) -> None:
        self.listening = False
        self.dropped = 0
        self._manager: pluggy.PluginManager | None = None
        self._begin()

    def reset(self) -> None:
        """Start with an empty queue in a forked child."""
        self._worker.forsake()
        self._begin()

    def _begin(self) -> None:
        self._events: deque[tuple[str, dict[str, Any]]] = deque()
        self._worker = Worker("rota-observers", self._turn)

    @property
    def manager(self) -> pluggy.PluginManager:
        """The plug-in manager; imports pluggy."""
        if self._manager is None:
            import pluggy

            from . import hookspecs

            self._manager = pluggy.PluginManager("rota")
            self._manager.add_hookspecs(hookspecs)
        return self._manager

    def register(self, plugin: object, name: str | None = None) -> None:
        """Register a plug-in; if it has hooks of ours, they are called from now on."""
        import pluggy

        try:
            self.manager.register(plugin, name)
            self.manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            self._drop(plugin)
            raise ConfigurationError(f"the observer can't be registered: {error}") from error
        self.listening = any(self.manager.hook.__dict__[hook].get_hookimpls() for hook in self._hooks())

    def unregister(self, plugin: object) -> None:
        """Take it out again; nothing happens if it is not in."""
        self._drop(plugin)
        self.listening = any(self.manager.hook.__dict__[hook].get_hookimpls() for hook in self._hooks())

    def _drop(self, plugin: object) -> None:
        if self.manager.is_registered(plugin):
            self.manager.unregister(plugin)

    def _hooks(self) -> list[str]:
        return [name for name in vars(self.manager.hook) if name.startswith("rota_")]

    def tell(self, hook: str, **arguments: Any) -> None:
        """Queue one event. Call it only while `listening`."""
        if len(self._events) >= QUEUE:
            self.dropped += 1
            return
        self._events.append((hook, arguments))
        with suppress(RotaError):  # no thread can be started now: they wait for the one that the next event starts
            self._worker.wake()

    def flush(self, seconds: float) -> bool:
        """Wait until every event queued so far was handed on, at most so long; return whether it was."""
        return self._worker.wait_idle(seconds) and not self._events

    def _turn(self) -> float | None:
        try:
            hook, arguments = self._events.popleft()
        except IndexError:
            return None
        # one by one, so that a hook that raises keeps no other from being called
        for implementation in getattr(self.manager.hook, hook).get_hookimpls():
            try:
                implementation.function(*(arguments[name] for name in implementation.argnames))
            except BaseException:  # SystemExit, too, would end the thread that all observers share
                import logging

                logging.getLogger("rota").exception("the observer %r failed in %s", implementation.plugin_name, hook)
        return 0.0


observers = Observers()
