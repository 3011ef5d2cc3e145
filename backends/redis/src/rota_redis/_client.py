# SPDX-License-Identifier: MIT
"""A backend around a client that somebody has made already: its addresses, credentials and TLS, over connections of rota's own."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from rota.backend import Driver
from rota.errors import ConfigurationError
from rota.url import Url, check_text

from ._url import Address, Settings
from .driver import RedisBackend, RedisDriver

#: What is taken over of a client's connections, beside what begins with ``ssl_``. All else rota decides by itself.
_KEPT = frozenset("username password db protocol client_name credential_provider socket_keepalive socket_keepalive_options".split())


class ClientBackend(RedisBackend):
    """What `backend_for` returns."""

    def __init__(self, settings: Settings, url: Url) -> None:
        self._settings = settings
        self.url = url

    def driver(self, url: Url) -> Driver:
        return RedisDriver(self._settings)


def backend_for(client: Any, *, prefix: str = "", site: str = "", wait_replicas: int = 0) -> RedisBackend:
    """Return a backend for ``rota.connect`` or ``rota.connect_async`` that reaches the servers of a client of redis-py.

    The client's addresses, credentials, database and TLS are used; its sockets, pool limits, timeouts, retries and decoding are not, so
    neither disturbs the other, and the client may be closed or used on.

    Args:
        client: ``Redis`` (also one of ``Sentinel.master_for``) or ``RedisCluster``, of ``redis`` or ``redis.asyncio``.
        prefix: As ``?prefix=`` in a URL.
        site: As ``?site=`` in a URL.
        wait_replicas: As ``?wait_replicas=`` in a URL.

    Raises:
        ConfigurationError: It is no such client.
    """
    options = {"wait_replicas": wait_replicas}
    if isinstance(client, (redis.RedisCluster, AsyncRedisCluster)):
        settings = _of_cluster(client, options)
    elif isinstance(client, (redis.Redis, redis.asyncio.Redis)):
        settings = _of_pool(client.connection_pool, options)
    else:
        raise ConfigurationError(f"backend_for() takes a client of redis-py, not {type(client).__name__}")
    for what, text in (("prefix", prefix), ("site", site)):
        if text:
            check_text(text, what, 64)
    return ClientBackend(settings, Url("redis", "", {}, prefix, site))


def _of_pool(pool: Any, options: dict[str, int]) -> Settings:
    arguments = dict(pool.connection_kwargs)
    manager = getattr(pool, "sentinel_manager", None)
    if manager is not None:
        if not pool.is_master:
            raise ConfigurationError("this client reads from replicas: take one of Sentinel.master_for")
        sentinels = [_address(sentinel.connection_pool.connection_kwargs) for sentinel in manager.sentinels]
        theirs, _ = _kept(manager.sentinels[0].connection_pool.connection_kwargs)
        kept, tls = _kept(arguments, pool.connection_class)
        return Settings("sentinel", tuple(sentinels), kept, tls, pool.service_name, theirs, options["wait_replicas"])
    kept, tls = _kept(arguments, pool.connection_class)
    return Settings("single", (_address(arguments),), kept, tls, wait_replicas=options["wait_replicas"])


def _of_cluster(client: Any, options: dict[str, int]) -> Settings:
    nodes = [*client.nodes_manager.startup_nodes.values()]
    arguments = getattr(client, "connection_kwargs", None) or client.nodes_manager.connection_kwargs
    kept, tls = _kept(dict(arguments), arguments.get("connection_class"))
    addresses: tuple[Address, ...] = tuple((node.host, int(node.port)) for node in nodes)
    return Settings("cluster", addresses, {**kept, "db": 0}, tls, wait_replicas=options["wait_replicas"])


def _address(arguments: dict[str, Any]) -> Address:
    return arguments["path"] if arguments.get("path") else (arguments.get("host", "localhost"), int(arguments.get("port", 6379)))


def _kept(arguments: dict[str, Any], kind: Any = None) -> tuple[dict[str, Any], bool]:
    tls = any(name.startswith("ssl_") for name in arguments) or "SSL" in getattr(kind, "__name__", "")
    if tls and arguments.get("ssl_cert_reqs", "") is None:
        arguments = {**arguments, "ssl_cert_reqs": "none"}
    given = {name: value for name, value in arguments.items() if name in _KEPT or (tls and name.startswith("ssl_"))}
    # what was not given, so that options that one face's connections have and the other's have not don't matter
    return {name: value for name, value in given.items() if value is not None and not ("ocsp" in name and not value)}, tls
