# SPDX-License-Identifier: MIT
"""What ``rota doctor`` finds: a `Finding` for each thing that it looked at, by the core or by `rota.backend.Driver.examine`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from ._value import NamedTuple

#: Levels. ``bad``: something that rota promises, or a job, fails by it. ``warn``: it will under conditions that the finding names.
OK, WARN, BAD = "ok", "warn", "bad"
LEVELS = (OK, WARN, BAD)


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes:
        level: `OK`, `WARN` or `BAD`.
        subject: What it is about, in a word or two. What the backend says of a subject the core does not say again, unless it is worse.
        text: What was found, in one line without a secret.
        why: Why it matters; empty where all is well.
        cure: What to do; empty where all is well.
        facts: Numbers and words for programs.
    """

    level: str
    subject: str
    text: str
    why: str = ""
    cure: str = ""
    facts: Mapping[str, str | int | float | bool | None] = {}


def tls_mismatch(host: str, port: int, wanted: bool, plain: bytes, seconds: float, cure: str) -> list[Finding]:
    """Return a finding if a server speaks TLS and the URL does not ask for it, or the other way round; for a connection that fails.

    Args:
        host: The server.
        port: Its port.
        wanted: Whether the URL asks for TLS.
        plain: What any server of the kind that speaks no TLS answers to, whoever asks.
        seconds: The longest that it may take.
        cure: What to do about it.
    """
    if wanted:
        answer = _answer(host, port, plain, seconds)
        if not answer or _is_tls(answer):
            return []
        text = f"{host}:{port} does not speak TLS, and the URL asks for it"
    else:
        if not _is_tls(_answer(host, port, _hello(), seconds)):
            return []
        text = f"{host}:{port} speaks TLS, and the URL does not ask for it"
    return [Finding(BAD, "tls", text, "The two never understand each other: no claim can be made.", cure)]


def _is_tls(answer: bytes) -> bool:
    return answer[:1] in (b"\x15", b"\x16") and answer[1:2] in (b"", b"\x03")  # an alert or a handshake (RFC 8446, 5.1)


def _hello() -> bytes:
    """Return a client's first message of TLS."""
    import ssl  # here, not above: who only knows what a finding is needs none of it

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is told to it, whoever it is
    said = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), said).do_handshake()
    return said.read()


def _answer(host: str, port: int, greeting: bytes, seconds: float) -> bytes:
    """Return how the answer to a greeting begins; nothing where none comes in time."""
    import socket

    try:
        with socket.create_connection((host, port), max(0.01, seconds / 2)) as connection:
            connection.settimeout(max(0.01, seconds / 2))
            connection.sendall(greeting)
            return connection.recv(16)
    except OSError:
        return b""
