# SPDX-License-Identifier: MIT
"""URLs, strictly: what is not understood is refused, and no secret is ever quoted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote

from rota.errors import ConfigurationError
from rota.url import Url, check_host, check_text, check_userinfo

OPTIONS: Mapping[str, str] = {
    "tls": "true: TLS, as etcds:// has it",
    "cacert": "the file of the certificates to trust (default: the system's)",
    "cert": "the file of the client's certificate",
    "key": "the file of its key",
    "clock": "http (the default): the members' clocks, by the Date of their HTTP answers; local: this host's",
    "http_port": "where the members answer HTTP, if not on the port of gRPC",
    "leases": "own (the default): each grant has an etcd lease of its own; shared: up to 60 of a client are on one",
    "min_ttl": "the shortest ttl that is taken, in whole seconds; default 2, as etcd's own",
}
PORT = 2379
PREFIX = "rota"
#: etcd's floor with its default election timeout of 1 s: 1.5 times that, in whole seconds.
MIN_TTL = 2


class Settings(NamedTuple):
    """How to reach the members. Never printed: it holds secrets.

    Attributes:
        addresses: Host and port of each endpoint.
        prefix: What every key begins with, without the slash behind it.
        user: The user, or empty.
        password: Its password.
        tls: Whether to speak TLS.
        cacert: See `OPTIONS`.
        cert: See `OPTIONS`.
        key: See `OPTIONS`.
        clock: ``http`` or ``local``.
        http_port: See `OPTIONS`; 0: as gRPC.
        min_ttl: See `OPTIONS`.
        leases: ``own`` or ``shared``.
    """

    addresses: tuple[tuple[str, int], ...]
    prefix: str = PREFIX
    user: str = ""
    password: str = ""
    tls: bool = False
    cacert: str = ""
    cert: str = ""
    key: str = ""
    clock: str = "http"
    http_port: int = 0
    min_ttl: int = MIN_TTL
    leases: str = "own"

    def __repr__(self) -> str:
        return f"Settings({self.addresses})"


def settings(url: Url) -> Settings:
    """Read a URL.

    Raises:
        ConfigurationError: It is wrong; the message names the part, and quotes nothing that may be a secret.
    """
    check_userinfo(url)
    authority, _, path = url.rest.partition("/")
    userinfo, at, hosts = authority.rpartition("@")
    user, colon, password = userinfo.partition(":")
    if at and not (user and colon and password):
        raise ConfigurationError("write etcd://USER:PASSWORD@HOST: etcd's users have a name and a password")
    options = url.options
    tls = {"": False, "false": False, "true": True}.get(options.get("tls", ""))
    if tls is None or (url.scheme == "etcds" and options.get("tls") == "false"):
        raise ConfigurationError("tls= is true or false, and etcds:// always means true")
    tls = tls or url.scheme == "etcds"
    cacert, cert, key = (options.get(name, "") for name in ("cacert", "cert", "key"))
    if (cacert or cert or key) and not tls:
        raise ConfigurationError("cacert=, cert= and key= go with TLS: write etcds://")
    if any("\0" in path for path in (cacert, cert, key)):
        raise ConfigurationError("cacert=, cert= and key= are paths, which hold no NUL")
    if bool(cert) is not bool(key):
        raise ConfigurationError("cert= and key= go together")
    clock = options.get("clock", "http")
    if clock not in ("http", "local"):
        raise ConfigurationError("clock= is http or local")
    leases = options.get("leases", "own")
    if leases not in ("own", "shared"):
        raise ConfigurationError("leases= is own or shared")
    http_port = _port(options["http_port"], "http_port=") if "http_port" in options else 0
    prefix = check_text(_decoded(path.strip("/"), "path"), "the URL's path", 200) if path.strip("/") else PREFIX
    min_ttl = options.get("min_ttl", str(MIN_TTL))
    if not (min_ttl.isascii() and min_ttl.isdigit()) or not 0 < int(min_ttl) < 86_400:
        raise ConfigurationError("min_ttl= is a whole number of seconds, from 1 up")
    addresses = tuple(_address(host) for host in hosts.split(","))
    credentials = _decoded(user, "user"), _decoded(password, "password")
    return Settings(addresses, prefix, *credentials, tls, cacert, cert, key, clock, http_port, int(min_ttl), leases)


def _decoded(text: str, what: str) -> str:
    decoded = unquote(text, errors="surrogateescape")
    if any("\udc80" <= letter <= "\udcff" for letter in decoded):
        raise ConfigurationError(f"the URL's {what} has escapes that are not UTF-8")
    return decoded


def _address(text: str) -> tuple[str, int]:
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ConfigurationError("write an IPv6 address as [2001:db8::10]:2379")
        port = rest[1:]
    else:
        host, colon, port = text.partition(":")
        if ":" in port:
            raise ConfigurationError("write an IPv6 address in brackets, as [2001:db8::10]:2379")
        rest = colon
    if not host or (rest and not port):
        raise ConfigurationError("write the members as etcd://HOST:PORT,HOST:PORT/PREFIX")
    host = _decoded(host, "host")
    check_host(host, "etcd")
    return host, _port(port, "a member's port") if port else PORT


def _port(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) < 65536:
        raise ConfigurationError(f"{what} is not a port from 1 to 65535")
    return int(text)
