# SPDX-License-Identifier: MIT
"""``zookeeper://[user:password@]host[:port],host…/chroot?options``, strictly."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NamedTuple
from urllib.parse import unquote

from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE
from rota.errors import ConfigurationError
from rota.url import Url, check_host, check_userinfo

OPTIONS = {
    "acl": "who may read and change what is written: open, creator, or creator,read (default: creator with a user, else open)",
    "auth": "how the user is shown: digest (default), or sasl for SASL's DIGEST-MD5",
    "ca": "a file of the certificates that the servers' ones are checked by",
    "cert": "a file with the client's certificate",
    "check_hostname": "false: a server's certificate need not name its host",
    "key": "a file with the client's private key",
    "key_password": "its password",
    "session_timeout": "seconds without a word from a server after which another one is tried in earnest (default: 6)",
    "tls": "true: speak TLS",
    "verify": "false: take any certificate",
}

#: What each ``acl=`` gives to the nodes that are made.
ACLS: dict[str, list[ACL]] = {
    "open": OPEN_ACL_UNSAFE,
    "creator": CREATOR_ALL_ACL,
    "creator,read": [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE],
}
PORT = 2181


class Place(NamedTuple):
    """Where the store is, and how to get in.

    Attributes:
        chroot: The path below which everything lies; empty for ``/``.
        acl: What new nodes get.
        options: The arguments of a kazoo client. They may hold secrets.
        shown: The servers, for messages.
    """

    chroot: str
    acl: list[ACL]
    options: dict[str, Any]
    shown: str

    def __repr__(self) -> str:
        return f"Place({self.shown}{self.chroot})"


def place(url: Url) -> Place:
    """Take the URL apart.

    Raises:
        ConfigurationError: It is wrong; the message holds no secret.
    """
    check_userinfo(url)
    credentials, at, rest = url.rest.rpartition("@")
    hosts, slash, path = rest.partition("/")
    servers = [_server(host) for host in hosts.split(",")]
    options: dict[str, Any] = {"hosts": ",".join(servers), "timeout": _session_timeout(url)}
    user, colon, password = (_decoded(part) for part in credentials.partition(":"))
    if at and not (user and colon and password):
        raise ConfigurationError("the zookeeper:// URL needs both, user:password@, where it has one")
    auth = url.options.get("auth", "digest")
    if auth not in ("digest", "sasl"):
        raise ConfigurationError("auth= of zookeeper:// is digest or sasl")
    if "auth" in url.options and not at:
        raise ConfigurationError("auth= of zookeeper:// needs user:password@ before the hosts")
    if at and auth == "sasl":
        if find_spec("puresasl") is None:
            raise ConfigurationError("auth=sasl needs pure-sasl: pip install './backends/zookeeper[sasl]'  (in a checkout)")
        options["sasl_options"] = {"mechanism": "DIGEST-MD5", "username": user, "password": password}
    elif at:
        if ":" in user:
            raise ConfigurationError("a user of zookeeper:// holds no ':'")
        options["auth_data"] = [("digest", f"{user}:{password}")]
    acl = url.options.get("acl", "creator" if at else "open")
    if acl not in ACLS:
        raise ConfigurationError(f"acl= of zookeeper:// is one of: {'; '.join(ACLS)}")
    if acl != "open" and not (at or "cert" in url.options):
        raise ConfigurationError("acl=creator of zookeeper:// needs a creator: a user, or a certificate (cert=, key=)")
    options.update(_tls(url))
    return Place(_chroot(path if slash else ""), ACLS[acl], options, ", ".join(servers))


def _server(text: str) -> str:
    host, port = text, ""
    if text.startswith("["):
        host, bracket, port = text.partition("]")
        host += bracket
        if not bracket or (port and not port.startswith(":")):
            raise ConfigurationError("the zookeeper:// URL has a '[' that begins no [IPv6 address]")
        port = port[1:] if port else ""
    elif text.count(":") > 1:
        raise ConfigurationError("the zookeeper:// URL has an IPv6 address without [brackets], or a host with two ports")
    elif ":" in text:
        host, _, port = text.partition(":")
        if not port:
            raise ConfigurationError("the zookeeper:// URL has a ':' without a port")
    if host in ("", "[]") or "%" in host:
        raise ConfigurationError("write zookeeper://HOST[:PORT][,HOST[:PORT]…][/CHROOT]; a host is missing or has an escape in it")
    check_host(host, "zookeeper")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigurationError("the zookeeper:// URL has a port that is no number from 1 to 65535")
    return f"{host}:{port or PORT}"


def _chroot(path: str) -> str:
    if "," in path or ":" in path:
        # kazoo takes "h1:1/a,h2:2/b" for one host with the chroot "/a,h2:2/b"
        raise ConfigurationError("the chroot of zookeeper:// is written once, behind the last host; a ',' or ':' in it as %2C, %3A")
    path = path.removesuffix("/")
    if not path:
        return ""
    parts = [_decoded(part) for part in path.split("/")]
    # printable, and yet no letters to ZooKeeper: those beyond U+FFFF, since it looks at their UTF-16, and U+FFFC, U+FFFD
    if any(part in ("", ".", "..") or "/" in part or not part.isprintable() or max(part) >= "\ufff0" for part in parts):
        raise ConfigurationError("the chroot of zookeeper:// has an empty part, '.', '..', or what a node's name can't hold")
    if parts[0] == "zookeeper":
        raise ConfigurationError("the chroot of zookeeper:// can't be /zookeeper: that is the servers' own")
    return "/" + "/".join(parts)


def _session_timeout(url: Url) -> float:
    text = url.options.get("session_timeout", "6")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 600:
        raise ConfigurationError("session_timeout= of zookeeper:// is a number of seconds from 1 to 600")
    return seconds


def _tls(url: Url) -> dict[str, Any]:
    given = url.options
    if not _flag(url, "tls", False):
        wants = [name for name in ("ca", "cert", "key", "key_password", "check_hostname", "verify") if name in given]
        if wants:
            raise ConfigurationError(f"{wants[0]}= of zookeeper:// goes with tls=true")
        return {}
    if ("cert" in given) is not ("key" in given):
        raise ConfigurationError("cert= and key= of zookeeper:// go together")
    verify = _flag(url, "verify", True)
    return {
        "use_ssl": True,
        "verify_certs": verify,
        "check_hostname": _flag(url, "check_hostname", True) and verify,
        "ca": given.get("ca"),
        "certfile": given.get("cert"),
        "keyfile": given.get("key"),
        "keyfile_password": given.get("key_password"),
    }


def _flag(url: Url, name: str, default: bool) -> bool:
    text = url.options.get(name, "true" if default else "false")
    if text not in ("true", "false"):
        raise ConfigurationError(f"{name}= of zookeeper:// is true or false")
    return text == "true"


def _decoded(text: str) -> str:
    decoded = unquote(text, errors="surrogateescape")
    if any("\udc80" <= letter <= "\udcff" for letter in decoded):
        raise ConfigurationError("the zookeeper:// URL has escapes that are not UTF-8")
    return decoded
