# SPDX-License-Identifier: MIT
"""Real servers for tests: started from installed programs on loopback, or running ones that environment variables name."""

from ._etcd import Etcd, EtcdEnsemble, EtcdError, skew_program
from ._postgres import ADMIN, DATABASE, PgBouncer, Postgres, RunningPostgres, add_user
from ._process import HOST, NotInstalled, Process, ServerError, accepts, as_user, free_port, freeze, program, read_line, running, wait_until
from ._redis import Redis, RedisCluster, RedisError, RedisFailover, RedisSentinel
from ._zookeeper import PASSWORD, RunningZooKeeper, ZooKeeper, ZooKeeperEnsemble

__all__ = [
    "ADMIN",
    "DATABASE",
    "HOST",
    "PASSWORD",
    "Etcd",
    "EtcdEnsemble",
    "EtcdError",
    "NotInstalled",
    "PgBouncer",
    "Postgres",
    "Process",
    "Redis",
    "RedisCluster",
    "RedisError",
    "RedisFailover",
    "RedisSentinel",
    "RunningPostgres",
    "RunningZooKeeper",
    "ServerError",
    "ZooKeeper",
    "ZooKeeperEnsemble",
    "accepts",
    "add_user",
    "as_user",
    "free_port",
    "freeze",
    "program",
    "read_line",
    "running",
    "skew_program",
    "wait_until",
]
