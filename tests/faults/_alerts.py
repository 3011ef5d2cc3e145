# SPDX-License-Identifier: MIT
"""A replica of a service that sends alerts once a day each: reads a line of JSON per command on stdin, answers with one on stdout."""

from __future__ import annotations

import json
import sys
import time

import rota

url, sent_path = sys.argv[1:3]
client = rota.connect(url, timeout="300ms")


def send(name: str) -> None:
    """Send the alert: what everybody on call sees."""
    with open(sent_path, "a", encoding="utf-8") as sent:
        sent.write(name + "\n")


def alert(name: str, severity: str) -> str:
    if severity == "page":  # bypasses: everybody who sees it sends it
        send(name)
        return "sent"
    verdict = client.try_once(name, "24h", on_unavailable="run")
    if not verdict:
        return verdict.verdict
    with verdict as grant:
        send(name)
    return "degraded" if grant.degraded else "sent"


for line in sys.stdin:
    command = json.loads(line)
    started = time.monotonic()
    if command["do"] == "alert":
        answer = [alert(name, command.get("severity", "warning")) for name in command["names"]]
    elif command["do"] == "flush":
        answer = [client.flush(command["seconds"])]
    print(json.dumps({"answer": answer, "took": time.monotonic() - started}), flush=True)
