# SPDX-License-Identifier: MIT
"""`rota run` around `true` on each server that this starts, beside a script that does one acquire and one release with the bare driver.

Both are timed from start to end. The bound is the script's time and four times that of `python -c pass`. A script has at most ten lines,
and does what it would do in a job: connect, take what nobody else has, give it back, close. Run it by a Python in which the wheels of
rota and of every backend are installed, compiled.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rounds import Figure, interleaved, main
from startup import run

sys.path.append(str(Path(__file__).resolve().parents[1]))

import servers

#: Each takes where the server is, and a name that nobody has used.
SCRIPTS = {
    "postgresql": """
import psycopg, sys
with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    cursor = connection.execute("INSERT INTO bare VALUES (%s, clock_timestamp()) ON CONFLICT DO NOTHING", (sys.argv[2],))
    assert cursor.rowcount == 1
    connection.execute("DELETE FROM bare WHERE name = %s", (sys.argv[2],))
""",
    "redis": """
import redis, sys
client = redis.Redis.from_url(sys.argv[1])
lock = client.lock(sys.argv[2], timeout=30)
assert lock.acquire(blocking=False)
lock.release()
client.close()
""",
    "zookeeper": """
import sys
from kazoo.client import KazooClient
client = KazooClient(sys.argv[1])
client.start()
client.create(f"/{sys.argv[2]}", b"x", ephemeral=True)
client.delete(f"/{sys.argv[2]}")
client.stop()
client.close()
""",
    "etcd": """
import grpc, sys
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # which the stubs of every client import
name = sys.argv[2].encode()
put = b"\\x0a" + bytes([len(name)]) + name + b"\\x18\\x07"  # bound to lease 7
with grpc.insecure_channel(sys.argv[1]) as channel:
    channel.unary_unary("/etcdserverpb.Lease/LeaseGrant")(b"\\x08\\x1e\\x10\\x07")
    channel.unary_unary("/etcdserverpb.KV/Put")(put)
    channel.unary_unary("/etcdserverpb.Lease/LeaseRevoke")(b"\\x08\\x07")
""",
}


@contextmanager
def started() -> Iterator[dict[str, tuple[str, str]]]:
    """All servers, each as its URL for rota and where it is for a script."""
    with servers.Postgres() as postgres, servers.Redis() as redis, servers.ZooKeeper() as zookeeper, servers.Etcd() as etcd:
        postgres.sql("CREATE TABLE bare (name text PRIMARY KEY, since timestamptz)")
        yield {
            "postgresql": (postgres.url(), postgres.url()),
            "redis": (f"redis://{servers.HOST}:{redis.port}",) * 2,
            "zookeeper": (zookeeper.url("/bench"), f"{servers.HOST}:{zookeeper.port}"),
            "etcd": (etcd.url(), f"{servers.HOST}:{etcd.port}"),
        }


def figures(rounds: int) -> list[Figure]:
    python, true, numbers = sys.executable, shutil.which("true") or "true", itertools.count()
    schedules = {"a lease": [], "--every 1h": ["--every", "1h"], "--cron": ["--cron", "* * * * *"]}
    found = []
    with tempfile.TemporaryDirectory() as folder, started() as stores:
        measures = {"pass": lambda: run(python, "-c", "pass")}
        for scheme, (url, place) in stores.items():
            if scheme == "postgresql":
                run(python, "-m", "rota", "init", url)
            script = Path(folder, f"bare_{scheme}.py")
            script.write_text(SCRIPTS[scheme].lstrip())
            measures[scheme] = lambda script=script, place=place: run(python, str(script), place, f"bare-{next(numbers)}")
            for what, options in schedules.items():
                measures[f"{scheme}, {what}"] = lambda url=url, options=options: run(
                    python, "-m", "rota", "run", f"job-{next(numbers)}", "--url", url, *options, "--", true
                )
        values = interleaved(measures, rounds)
    found.append(Figure("python -c pass", values["pass"], "ms", None, "baseline"))
    for scheme in SCRIPTS:
        bound = statistics.median(values[scheme]) + 4 * statistics.median(values["pass"])
        found.append(Figure(f"the bare driver, {scheme}", values[scheme], "ms", None, "baseline"))
        found += [Figure(f"rota run, {scheme}, {what}", values[f"{scheme}, {what}"], "ms", bound) for what in schedules]
    return found


if __name__ == "__main__":
    main(figures, __doc__)
