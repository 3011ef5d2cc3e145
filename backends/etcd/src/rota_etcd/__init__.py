# SPDX-License-Identifier: MIT
"""etcd as rota's store: ``etcd://`` and ``etcds://``."""

from .driver import EtcdBackend, EtcdDriver

__version__ = "0.1.0"
__all__ = ["EtcdBackend", "EtcdDriver"]
