# SPDX-License-Identifier: MIT
"""DV-18: the URL is libpq's. What we add is taken out, what nobody knows is refused, and no secret is shown."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest
import rota
from rota.errors import ConfigurationError, Unavailable
from rota_postgres import PostgresBackend
from servers import Postgres, RunningPostgres, wait_until


def told(url: str) -> dict[str, str]:
    """What both faces tell libpq."""
    client = rota.connect_async(url)
    driver = client.driver
    twin = client._twin
    assert twin._verbs.pool is driver.pool  # the async face connects by the very same options
    return dict(driver.pool._options)


def test_several_hosts_and_their_options_reach_libpq_as_they_are() -> None:
    """DV-18."""
    options = told(
        "postgresql://app:s3cr%40t@db-a.example:5432,db-b.example:5433/coord?target_session_attrs=read-write&sslmode=require&table=x"
    )
    assert options["host"] == "db-a.example,db-b.example"
    assert options["port"] == "5432,5433"
    assert (options["user"], options["password"], options["dbname"]) == ("app", "s3cr@t", "coord")
    assert (options["sslmode"], options["target_session_attrs"]) == ("require", "read-write")
    assert "table" not in options


def test_addresses_in_brackets_and_ports_left_out() -> None:
    options = told("postgres://app@[2001:db8::5],db-b.example/coord?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem")
    assert options["host"] == "2001:db8::5,db-b.example"
    assert (options["sslmode"], options["sslrootcert"]) == ("verify-full", "/etc/ca.pem")
    assert options["target_session_attrs"] == "read-write"  # of several servers only the primary can serve


@pytest.mark.parametrize(
    ("option", "meant"),
    [("sslmod=require", "sslmode"), ("tabel=x", "table"), ("conect_timeout=3", "connect_timeout"), ("shema=a", "schema")],
)
def test_a_misspelt_option_is_an_error_that_says_what_was_meant(option: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=f"did you mean '{meant}'"):
        rota.connect(f"postgresql://app:s3cr%40t@db-a.example/coord?{option}")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:s3c%zzret@db/coord",
        "postgresql://app:s3cret@db:5432:77/coord",
        "postgresql://app:s3cret@db/coord?table=",
        "postgresql://app:s3cret@db/coord?listen=s3cret",
        "postgresql://app:s3cret@db/coord?listen=" + quote("postgresql://app:s3cret@db/coord?sslmod=x", safe=""),
        "postgresql://app:a@s3cret@db/coord",
        "postgresql://a@s3cret:b@db/coord",
        "postgres://app:a@s3cret@db-a,db-b:5433/coord",
        "postgresql://app:a@db-a,app:s3cret@db-b/coord",
        "postgresql://app:a/s3cret@db/coord",
        "postgresql://app:1/s3cret@db/coord",
        "postgresql://app:@s3cret/b@db/coord",
        "postgresql://app@db/coord?listen=" + quote("postgresql://app:a@s3cret@db/coord", safe=""),
        "postgresql://app@db/coord?listen=" + quote("postgresql://app:1/s3cret@db/coord", safe=""),
        "postgresql://app@db/coord?listen=" + quote("postgresql://app@db/coord?password=a&s3cret=b", safe=""),
    ],
)
def test_a_wrong_url_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        rota.connect(url)
    shown = str(error.value) + repr(error.value.__cause__)
    assert "s3c" not in shown


def test_every_option_has_a_line_of_help() -> None:
    options = PostgresBackend().options
    assert {"table", "schema", "listen", "sslmode", "target_session_attrs"} <= options.keys()
    assert all(options.values())


def test_require_is_never_weakened(prepared: Postgres | RunningPostgres, connect: Callable[..., rota.Client]) -> None:
    """A server without TLS is not used; that is no outage."""
    if prepared.sql("SHOW ssl") == "on":
        pytest.skip("not run: the running server offers TLS")
    with pytest.raises(ConfigurationError, match="SSL"):
        connect(options="sslmode=require").try_lease("a", on_unavailable="run")


def test_tls_is_used_and_verified(name: str) -> None:
    with Postgres(tls=True) as server:
        client = rota.connect(server.url())
        server.sql(client.driver.schema())
        client.close()
        certificate = quote(f"{server.folder}/server.crt", safe="")
        with rota.connect(server.url(options=f"sslmode=verify-full&sslrootcert={certificate}")) as client:
            assert client.try_lease(name)
            assert client.driver.facts(5)["tls"] is True
        refused = pytest.raises(ConfigurationError, match=r"none\.pem.*$")
        with rota.connect(server.url(options="sslmode=verify-full&sslrootcert=%2Fnone.pem")) as client, refused as error:
            client.try_lease(name)
        assert "\n" not in str(error.value)  # libpq says it in several lines


@pytest.mark.parametrize("user", ["nobody-of-this-name"])
def test_wrong_credentials_are_no_outage(prepared: Postgres | RunningPostgres, user: str) -> None:
    """F2: not even with on_unavailable="run"."""
    with rota.connect(prepared.url(user)) as client, pytest.raises(ConfigurationError, match="refuses us"):
        client.try_lease("a", on_unavailable="run")


def test_a_server_that_turns_read_only_is_away_and_comes_back(victim: Postgres, name: str) -> None:
    """DV-18: SQLSTATE 25006 is store trouble, never busy; without a restart the next claim after the change succeeds."""
    with rota.connect(victim.url("app")) as client:
        with client.lease(name):
            pass
        held = client.try_lease(f"{name}-held", ttl="1h")
        victim.sql("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
        wait_until(lambda: victim.sql("SHOW default_transaction_read_only") == "on")
        for asked in (name, f"{name}-held", f"{name}-new"):
            client._engine.breaker.answered()  # else the breaker would answer (F4)
            with pytest.raises(Unavailable, match="read-only"):
                client.try_lease(asked)
        victim.sql("SET default_transaction_read_only = off", "ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")
        wait_until(lambda: victim.sql("SHOW default_transaction_read_only") == "off")
        client._engine.breaker.answered()
        assert client.try_lease(name)
        held.check()


@pytest.mark.parametrize("host", ["db..example", f"{'d' * 64}.example", "a.example,db..example", f"{'é' * 64}.example", "db:70000", "db:0"])
def test_hosts_and_ports_that_no_resolver_takes_are_refused_before_it_is_asked(host: str) -> None:
    with pytest.raises(ConfigurationError, match="host|port"):
        rota.connect(f"postgresql://app@{host}/coord")
