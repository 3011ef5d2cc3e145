# SPDX-License-Identifier: MIT
"""python-etcd3 beside rota: its client as the connection, and its import with today's protobuf; in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import rota
from rota.errors import ConfigurationError
from rota_etcd.python_etcd3 import backend_for
from servers import Etcd, read_line

IMPORTS = """
import sys
try:
    import etcd3
except TypeError:
    print("refused by protobuf")
from rota_etcd.python_etcd3 import install
install()
import etcd3
install()  # again: nothing to do
"""

USES = """
import time
client = etcd3.client(port=int(sys.argv[1]), timeout=5)
name = sys.argv[2]
client.put(name, "one")
assert client.get(name)[0] == b"one"
with client.lock(name, ttl=5):
    pass
events = []
watch = client.add_watch_callback(name, lambda response: events.extend(response.events))
client.transaction(compare=[client.transactions.value(name) == "one"], success=[client.transactions.put(name, "two")], failure=[])
lease = client.lease(5)
lease.refresh()
lease.revoke()
deadline = time.monotonic() + 10
while not events:
    assert time.monotonic() < deadline
    time.sleep(0.01)
assert events[0].value == b"two"
client.cancel_watch(watch)
"""

CONNECTS = """
import rota
from rota_etcd.python_etcd3 import backend_for
for url in ("", f"etcd://127.0.0.1:{sys.argv[1]}/apps/coord?prefix=billing"):
    connected = rota.connect(backend_for(client, url))
    with connected.lease(name, ttl="2s") as grant, connected.window(name + "w", rota.Every("1h")):
        if url:
            time.sleep(2.2)
        grant.check()
    assert connected.try_window(name + "w", rota.Every("1h")).verdict == "handled"
    connected.close()
key = f"apps/coord/records/billing/{name}"
assert client.get(key)[0].startswith(b"{"), "the URL's prefixes are used"
"""


def run(code: str, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:rota", "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_it_can_be_imported_and_used_with_any_protobuf(etcd: Etcd, name: str) -> None:
    run(IMPORTS + USES, str(etcd.port), name)


def test_its_client_is_a_connection(etcd: Etcd, name: str) -> None:
    run(IMPORTS + USES + CONNECTS, str(etcd.port), name)


def test_a_client_whose_token_has_ended_is_told_of() -> None:
    with Etcd(password="root") as server:
        code = (
            IMPORTS
            + """
client = etcd3.client(port=int(sys.argv[1]), user="root", password="root", timeout=5)
import rota
from rota_etcd.python_etcd3 import backend_for
connected = rota.connect(backend_for(client))
with connected.lease("x"):
    print("held", flush=True)
sys.stdin.readline()
import time
for _ in range(100):
    try:
        connected.try_lease("x")
    except rota.Unavailable:
        time.sleep(0.1)  # its channel has not connected again yet
    except rota.ConfigurationError as error:
        assert "make a new client" in str(error), error
        break
    else:
        raise SystemExit("a token that has ended was taken")
else:
    raise SystemExit("never connected again")
"""
        )
        child = subprocess.Popen([sys.executable, "-c", code, str(server.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        while (line := read_line(child.stdout)) != "held\n":
            assert line, "the child ended"
        server.restart()
        child.communicate("\n", timeout=60)
        assert child.returncode == 0


@pytest.mark.parametrize("client", [object(), "etcd://h1"])
def test_what_is_no_client_is_refused(client: Any) -> None:
    with pytest.raises(ConfigurationError, match="no client of python-etcd3"):
        backend_for(client)


def test_a_wrong_url_beside_a_client_is_refused() -> None:
    class Client:
        channel = metadata = None

    with pytest.raises(ConfigurationError, match="address"):
        backend_for(Client())
    with pytest.raises(ConfigurationError, match="port"):
        rota.connect(backend_for(Client(), "etcd://h1:x"))
