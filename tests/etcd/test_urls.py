# SPDX-License-Identifier: MIT
"""etcd:// URLs: what they mean, and what is refused before any request (DV-21 c)."""

from __future__ import annotations

import pytest
import rota
from rota.errors import ConfigurationError
from rota.url import parse
from rota_etcd import EtcdBackend
from rota_etcd._url import settings


@pytest.mark.parametrize(
    ("url", "addresses", "prefix", "tls"),
    [
        ("etcd://[2001:db8::10]:2379,[2001:db8::11]:2379/coord", (("2001:db8::10", 2379), ("2001:db8::11", 2379)), "coord", False),
        ("etcds://[2001:db8::10],h2:1/coord", (("2001:db8::10", 2379), ("h2", 1)), "coord", True),
        ("etcd://h1,h2:2380", (("h1", 2379), ("h2", 2380)), "rota", False),
        ("etcd://h1/?tls=true", (("h1", 2379),), "rota", True),
        ("etcd://h1/a/b%20c/", (("h1", 2379),), "a/b c", False),
        ("etcd://h1/?tls=false&http_port=2381", (("h1", 2379),), "rota", False),
    ],
)
def test_hosts_ports_prefix_and_tls_are_read(url: str, addresses: object, prefix: str, tls: bool) -> None:
    read = settings(parse(url))
    assert (read.addresses, read.prefix, read.tls) == (addresses, prefix, tls)


def test_user_and_password_are_decoded_once_and_never_shown() -> None:
    read = settings(parse("etcd://us%2Fer:p%40%2520w@h1/"))
    assert (read.user, read.password) == ("us/er", "p@%20w")
    assert "p@" not in repr(read)
    assert "us/er" not in repr(read)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("etcd://", "HOST:PORT"),
        ("etcd://h1,,h2", "HOST:PORT"),
        ("etcd://h1:", "HOST:PORT"),
        ("etcd://h1:x", "port"),
        ("etcd://h1:70000", "port"),
        ("etcd://2001:db8::10", "brackets"),
        ("etcd://[2001:db8::10", "IPv6"),
        ("etcd://[::1]2379", "IPv6"),
        ("etcd://SECRET@h1", "USER:PASSWORD"),
        ("etcd://:SECRET@h1", "USER:PASSWORD"),
        ("etcd://u:SEC/RET@h1", "%2F"),
        ("etcd://u:SEC@RET@h1", "%40"),
        ("etcds://u:SEC@RET@h1,h2:1/p", "%40"),
        ("etcd://u:SEC@h1,u:SEC@h2", "%40"),
        ("etcd://u:@SEC/RET@h1", "%40"),
        ("etcd://h1/%ff", "UTF-8"),
        ("etcd://h1/?tls=yes", "tls"),
        ("etcds://h1/?tls=false", "tls"),
        ("etcd://h1/?cacert=/x", "etcds"),
        ("etcds://h1/?cert=/x", "key="),
        ("etcds://h1/?cacert=/x%00", "NUL"),
        ("etcd://h1/?clock=mine", "clock"),
        ("etcd://h1/?leases=many", "own or shared"),
        ("etcd://h1/?leases=", "own or shared"),
        ("etcd://h1/?http_port=0", "http_port"),
        ("etcd://h1/?min_ttl=0", "min_ttl"),
        ("etcd://h1/?min_ttl=1.5", "min_ttl"),
        ("etcd://h1/?clok=local", "did you mean 'clock'"),
    ],
)
def test_what_is_wrong_is_refused_and_no_secret_quoted(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as raised:
        rota.connect(url)
    assert "SEC" not in str(raised.value)


def test_a_file_of_a_certificate_that_is_not_there_is_named(name: str) -> None:
    client = rota.connect("etcds://127.0.0.1:1/?cacert=/nowhere/ca.pem", timeout=1)
    with pytest.raises(ConfigurationError, match=r"/nowhere/ca\.pem"):
        client.try_lease(name)
    client.close()


def test_each_option_has_a_line_of_help() -> None:
    assert all(EtcdBackend.options.values())


@pytest.mark.parametrize("host", ["h..example", f"{'h' * 64}.example", "a.example,h..example", f"{'é' * 64}.example"])
def test_hosts_that_no_resolver_takes_are_refused_before_it_is_asked(host: str) -> None:
    with pytest.raises(ConfigurationError, match="host"):
        rota.connect(f"etcd://{host}/coord")
