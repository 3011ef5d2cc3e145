# SPDX-License-Identifier: MIT
"""Redis and Valkey as rota's store: ``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://``, ``redis+cluster://``."""

from ._client import backend_for
from .driver import AsyncRedisDriver, RedisBackend, RedisDriver

__version__ = "0.1.0"
__all__ = ["AsyncRedisDriver", "RedisBackend", "RedisDriver", "backend_for"]
