# SPDX-License-Identifier: MIT
"""Apache ZooKeeper as rota's store: ``zookeeper://[user:password@]host:2181,host:2181/chroot``."""

from __future__ import annotations

from rota.backend import AsyncDriver, Backend, Driver
from rota.url import Url

from ._url import OPTIONS, place
from .driver import AsyncZookeeperDriver, ZookeeperDriver


class ZookeeperBackend(Backend):
    """The backend of ``zookeeper://``."""

    contract = 1
    options = OPTIONS

    def driver(self, url: Url) -> ZookeeperDriver:
        return ZookeeperDriver(place(url))

    def async_driver(self, driver: Driver) -> AsyncDriver | None:
        return AsyncZookeeperDriver(driver) if isinstance(driver, ZookeeperDriver) else None


__all__ = ["AsyncZookeeperDriver", "ZookeeperBackend", "ZookeeperDriver"]
