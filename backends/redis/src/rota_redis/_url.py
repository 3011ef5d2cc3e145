# SPDX-License-Identifier: MIT
"""URLs, strictly: what is not understood is refused, percent-encoding is decoded once, ``+`` is itself, and no secret is ever quoted."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from rota.errors import ConfigurationError
from rota.url import Url, check_host, check_userinfo

#: (host, port), or the path of a Unix socket.
Address = tuple[str, int] | str

_TLS = {
    "ssl_cert_reqs": "whether the server's certificate must be trusted: required (the default), optional or none",
    "ssl_ca_certs": "the file of the certificates to trust",
    "ssl_ca_path": "the folder of the certificates to trust",
    "ssl_certfile": "the file of the client's certificate",
    "ssl_keyfile": "the file of its key",
    "ssl_password": "the password of that file",
    "ssl_check_hostname": "whether the certificate must name the host: true (the default) or false",
}
OPTIONS: Mapping[str, str] = {
    "db": "the database's number (unix:// only; elsewhere it is the path)",
    "username": "the user (unix:// only)",
    "password": "the password (unix:// only)",
    "protocol": "2 (the default) or 3: the version of RESP",
    "client_name": "what CLIENT LIST shows",
    "wait_replicas": "how many replicas must have a grant or settlement before it counts",
    "ssl": "true: TLS (redis+sentinel:// and redis+cluster:// only; elsewhere write rediss://)",
    "sentinel_username": "the user at the sentinels",
    "sentinel_password": "the password at the sentinels",
    **_TLS,
}
_ONLY = {
    "db": ("unix",),
    "username": ("unix",),
    "password": ("unix",),
    "ssl": ("redis+sentinel", "redis+cluster"),
    "sentinel_username": ("redis+sentinel",),
    "sentinel_password": ("redis+sentinel",),
}
_DEFAULT_PORT = {"redis+sentinel": 26379}


class Settings(NamedTuple):
    """How to reach the servers. Never printed: it holds secrets.

    Attributes:
        kind: ``single``, ``sentinel`` or ``cluster``.
        addresses: The server; or the sentinels; or some nodes of the cluster.
        connection: Keyword arguments of redis-py's connections.
        tls: Whether to speak TLS.
        service: The name by which the sentinels know the primary.
        sentinel: As `connection`, for the sentinels.
        wait_replicas: How many replicas must confirm.
    """

    kind: str
    addresses: tuple[Address, ...]
    connection: dict[str, Any]
    tls: bool = False
    service: str = ""
    sentinel: dict[str, Any] = {}  # noqa: RUF012 - never changed
    wait_replicas: int = 0

    def __repr__(self) -> str:
        return f"Settings({self.kind}, {self.addresses})"


def settings(url: Url) -> Settings:
    """Read a URL.

    Raises:
        ConfigurationError: It is wrong; the message names the part, and quotes nothing that may be a secret.
    """
    scheme, options = url.scheme, url.options
    for name, schemes in _ONLY.items():
        if name in options and scheme not in schemes:
            raise ConfigurationError(f"{scheme}:// has no option {name!r}: it is for {' and '.join(s + '://' for s in schemes)}")
    tls = scheme == "rediss" or _flag(options, "ssl", False)
    connection = _tls(scheme, options, tls)
    if scheme == "unix":
        addresses, user, db, service = *_socket(url.rest), options.get("db", ""), ""
        user = {name: options[name] for name in ("username", "password") if name in options} or user
    else:
        check_userinfo(url)
        authority, _, path = url.rest.partition("/")
        userinfo, at, hosts = authority.rpartition("@")
        user = _user(scheme, userinfo) if at else {}
        addresses = tuple(_host(scheme, host) for host in hosts.split(","))
        if len(addresses) > 1 and scheme in ("redis", "rediss"):
            raise ConfigurationError(f"{scheme}:// takes one host: several are redis+sentinel:// or redis+cluster://")
        service, db = "", path
        if scheme == "redis+sentinel":
            service, _, db = path.partition("/")
            service = _decoded(scheme, service)
            if not service:
                raise ConfigurationError("write redis+sentinel://HOST,HOST/SERVICE: the name by which the sentinels know the primary")
    number = _number(scheme, "database", db or "0", 0)
    if number and scheme == "redis+cluster":
        raise ConfigurationError("a cluster has no database but 0")
    protocol = _number(scheme, "protocol", options.get("protocol", "2"), 2)
    if protocol > 3:
        raise ConfigurationError("protocol= is 2 or 3")
    base: dict[str, Any] = {**connection, "protocol": protocol}
    if options.get("client_name"):
        base["client_name"] = options["client_name"]
    names = (("username", "sentinel_username"), ("password", "sentinel_password"))
    sentinel_user = {name: options[option] for name, option in names if option in options}
    kind = {"redis+sentinel": "sentinel", "redis+cluster": "cluster"}.get(scheme, "single")
    wait = _number(scheme, "wait_replicas", options.get("wait_replicas", "0"), 0)
    return Settings(kind, addresses, {**base, **user, "db": number}, tls, service, {**base, **sentinel_user}, wait)


def _decoded(scheme: str, text: str) -> str:
    """Decode percent-encoding, strictly: ``+`` is itself (RFC 3986), and a lone ``%`` is a password that nobody encoded."""
    for part in text.split("%")[1:]:
        if len(part) < 2 or part[0] not in string.hexdigits or part[1] not in string.hexdigits:
            raise ConfigurationError(f"the {scheme}:// URL has a '%' that encodes nothing: percent-encode '%' as %25")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ConfigurationError(f"the {scheme}:// URL percent-encodes bytes that are not UTF-8") from None


def _user(scheme: str, userinfo: str) -> dict[str, str]:
    if "@" in userinfo:
        raise ConfigurationError(f"the {scheme}:// URL has more than one '@': in a user or password, percent-encode it as %40")
    name, colon, password = userinfo.partition(":")
    user = {"username": _decoded(scheme, name)} if name else {}
    return user | ({"password": _decoded(scheme, password)} if colon and password else {})


def _host(scheme: str, text: str) -> tuple[str, int]:
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise ConfigurationError(f"the {scheme}:// URL has an IPv6 address that is not written [ADDRESS]:PORT")
        port = port[1:] if port else ""
    else:
        host, colon, port = text.partition(":")
        if colon and not port:
            raise ConfigurationError(f"the {scheme}:// URL has no port behind the ':'")
    if not host:
        raise ConfigurationError(f"the {scheme}:// URL names no host")
    if any(c in "%[]<>\"'\\^`{|}" for c in host):
        raise ConfigurationError(f"the {scheme}:// URL has a host with a character that no host has: percent-encode users and passwords")
    check_host(host, scheme)
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        # it may be the begin of a password
        raise ConfigurationError(f"the {scheme}:// URL has a port that is no number from 1 to 65535: percent-encode ':', '/' in a password")
    return host, int(port) if port else _DEFAULT_PORT.get(scheme, 6379)


def _socket(rest: str) -> tuple[tuple[Address, ...], dict[str, str]]:
    userinfo, at, path = rest.rpartition("@")
    if not path.startswith("/") or len(path) < 2:
        raise ConfigurationError("write unix:///path/of/the/socket?db=0")
    return (_decoded("unix", path),), _user("unix", userinfo) if at else {}


def _number(scheme: str, what: str, text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):
        raise ConfigurationError(f"the {scheme}:// URL has a {what} that is no number from {least} on")
    return int(text)


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false", "1", "0", "yes", "no"):
        raise ConfigurationError(f"{name}= is true or false")
    return text.lower() in ("true", "1", "yes")


def _tls(scheme: str, options: Mapping[str, str], tls: bool) -> dict[str, Any]:
    given = [name for name in _TLS if name in options]
    if not tls:
        if given:
            raise ConfigurationError(f"{given[0]}= needs TLS: write {'ssl=true beside it' if '+' in scheme else 'rediss://'}")
        return {}
    connection: dict[str, Any] = {name: options[name] for name in given}
    requires = options.get("ssl_cert_reqs", "required").lower().removeprefix("cert_")
    if requires not in ("none", "optional", "required"):
        raise ConfigurationError(
            "ssl_cert_reqs= is one of none, optional, required, or as Python writes them: CERT_NONE, CERT_OPTIONAL, CERT_REQUIRED"
        )
    checks = _flag(options, "ssl_check_hostname", True)
    return connection | {"ssl_cert_reqs": requires, "ssl_check_hostname": checks and requires != "none"}
