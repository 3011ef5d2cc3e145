# SPDX-License-Identifier: MIT
"""rota on PostgreSQL: ``postgresql://…`` as libpq reads it, and `?table=`, `?schema=`, `?listen=`. See README.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rota.backend import AsyncDriver, Backend, Driver
from rota.errors import ConfigurationError
from rota.url import Url, check_host, check_options, check_userinfo, parse

if TYPE_CHECKING:
    from ._driver import PostgresDriver

__all__ = ["PostgresBackend"]

#: What this backend adds to libpq's options.
OWN = {
    "table": "the table's name (default: rota)",
    "schema": "the schema it is in (default: public)",
    "listen": "a postgresql:// URL past any pooler, percent-encoded, on which waiters are woken; off: waiters poll",
}
#: Longer identifiers would be cut by the server, silently; the functions' names begin with the table's.
LONGEST = {"table": 50, "schema": 63}


class PostgresBackend(Backend):
    """The backend of ``postgresql://`` and ``postgres://``."""

    contract = 1

    @property
    def options(self) -> Mapping[str, str]:  # type: ignore[override]
        """Our own options and every one that the libpq in use knows."""
        return OWN | dict.fromkeys(_libpq(), "see libpq's manual") | {"ssl": "true: sslmode=require"}

    def driver(self, url: Url) -> PostgresDriver:
        own = {name: value for name, value in url.options.items() if name in OWN}
        for name, longest in LONGEST.items():
            value = own.get(name, "x")
            if not value or "\0" in value or len(value.encode()) > longest:
                raise ConfigurationError(f"{name}={value!r} must have 1 to {longest} bytes")
        from ._driver import PostgresDriver
        from ._sql import Statements

        options = _told(url._replace(options={name: value for name, value in url.options.items() if name not in OWN}))
        listen: Mapping[str, str] | None = options
        if own.get("listen") == "off":
            listen = None
        elif "listen" in own:
            listen = _listening(own["listen"])
        return PostgresDriver(options, listen, Statements(own.get("schema", "public"), own.get("table", "rota")), _prepared_by(url))

    def async_driver(self, driver: Driver) -> AsyncDriver | None:
        from ._async import AsyncPostgresDriver
        from ._driver import PostgresDriver

        return AsyncPostgresDriver(driver) if isinstance(driver, PostgresDriver) else None


def _prepared_by(url: Url) -> str:
    """Return the command that prepares the store, to be pasted once its OWNER, who may create tables, is another word.

    By the variable, since whoever may run ps reads a password that stands in a command line.
    """
    from shlex import quote

    plain = {"table", "schema", "sslmode", "sslrootcert", "ssl", "host", "hostaddr", "port", "dbname"}
    its = url._replace(options={name: value for name, value in url.options.items() if name != "listen"})
    return f"ROTA_URL={quote(its.shown(plain, 'OWNER'))} rota init --role"


def _libpq() -> dict[str, str | None]:
    """Return libpq's options and their defaults, which its environment variables may have set."""
    from psycopg import pq

    return {option.keyword.decode(): None if option.val is None else option.val.decode() for option in pq.Conninfo.get_defaults()}


def _told(url: Url) -> dict[str, str]:
    """Let libpq read the URL; return what it makes of it, and what we add."""
    from urllib.parse import quote

    from psycopg import Error, pq

    check_userinfo(url)
    scheme, rest, options = url[:3]
    query = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in options.items())
    try:
        parsed = pq.Conninfo.parse(f"{scheme}://{rest}{'?' + query if query else ''}".encode())
    except Error:
        # libpq quotes what it can't read, which may be the password
        raise ConfigurationError(
            f"libpq can't read the {scheme}:// URL: percent-encode what is not plain in user, password or options; check hosts and ports"
        ) from None
    told = {option.keyword.decode(): option.val.decode() for option in parsed if option.val is not None}
    if not all(not port or (port.isascii() and port.isdigit() and 0 < int(port) < 65536) for port in told.get("port", "").split(",")):
        raise ConfigurationError(f"a port of the {scheme}:// URL is no number from 1 to 65535")
    for host in told.get("host", "").split(","):
        if host and host[0] not in "/@":
            check_host(host, scheme)
    for name in ("host", "port", "hostaddr", "target_session_attrs"):
        default = _libpq().get(name)
        if name not in told and default:
            told[name] = default
    if "," in told.get("host", "") + told.get("hostaddr", "") and told.get("target_session_attrs", "any") == "any":
        told["target_session_attrs"] = "read-write"  # of several servers only the primary is of use
    told.setdefault("fallback_application_name", "rota")
    told["client_encoding"] = "UTF8"
    return told


def _listening(dsn: str) -> dict[str, str]:
    scheme, colon, _ = dsn.partition("://")
    if not colon or scheme not in ("postgresql", "postgres"):
        raise ConfigurationError("listen= is a postgresql:// URL, percent-encoded, or off")
    try:
        url = parse(dsn)
        check_options(url, dict.fromkeys(_libpq(), ""))
        return _told(url)
    except ConfigurationError as error:
        raise ConfigurationError(f"listen=: {error}") from None
