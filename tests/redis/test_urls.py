# SPDX-License-Identifier: MIT
"""DV-14: URLs are read by the letter, and no message holds a piece of a secret."""

from __future__ import annotations

import logging
import traceback

import pytest
import rota
from rota import ConfigurationError
from rota.url import parse
from rota_redis import RedisBackend
from rota_redis._url import Settings


def settings(url: str) -> Settings:
    return RedisBackend().driver(parse(url)).settings


def refusal(url: str, *secrets: str) -> str:
    """Return why a URL is refused, and check what must not be said, in the message or anything that is printed with it."""
    with pytest.raises(ConfigurationError) as caught:
        rota.connect(url)
    shown = "".join(traceback.format_exception_only(caught.value)) + repr(caught.value)
    for secret in secrets:
        assert secret not in shown
    return str(caught.value)


def test_every_part_is_decoded_once() -> None:
    read = settings("rediss://svc-cron:p%40ss%2F%23w%2Brd%25%3D@cache.example.internal:6380/2")
    assert read.addresses == (("cache.example.internal", 6380),)
    assert read.tls
    assert read.connection["username"] == "svc-cron"
    assert read.connection["password"] == "p@ss/#w+rd%="
    assert read.connection["db"] == 2
    assert read.connection["ssl_cert_reqs"] == "required"
    assert read.connection["ssl_check_hostname"] is True


@pytest.mark.parametrize(
    ("url", "password"),
    [("redis://:pa+ss@h.example:6379/0", "pa+ss"), ("redis://:a%2Bb@h.example/0", "a+b"), ("redis://:a%252Bb@h.example", "a%2Bb")],
)
def test_a_plus_is_itself(url: str, password: str) -> None:
    read = settings(url)
    assert read.connection["password"] == password
    assert "username" not in read.connection
    assert read.addresses == (("h.example", 6379),)


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("redis://:81#Kt22pq@cache.example.internal:6379/0", ("81", "Kt22pq")),
        ("redis://:a/b@cache.example.internal:6379/0", (":a", "/b", "a/b")),
        ("redis://u:secr3t@w0rd@cache.example.internal:6379/0", ("secr3t", "w0rd")),
        ("redis://:@secr3t/w0rd@cache.example.internal:6379/0", ("secr3t", "w0rd")),
        ("rediss://secr3t@u:w0rd@cache.example.internal", ("secr3t", "w0rd")),
        ("redis+sentinel://:secr3t@s1.example,:secr3t@s2.example/rota", ("secr3t",)),
        ("redis+cluster://:secr3t@w0rd@n1.example,n2.example", ("secr3t", "w0rd")),
        ("unix://u:secr3t@w0rd@/run/redis.sock", ("secr3t", "w0rd")),
        ("redis://:secr3t?w0rd@cache.example.internal:6379/0", ("secr3t", "w0rd")),
        ("redis://:50%off@cache.example.internal", ("50", "off")),
        ("redis://:half%2@cache.example.internal", ("half",)),
        ("redis://:%FFsecr3t@cache.example.internal", ("secr3t", "FF")),
        ("redis+sentinel://:a/b@s1.example,s2.example/rota", (":a", "a/b")),
        ("redis+cluster://:81#Kt22pq@n1.example,n2.example", ("81", "Kt22pq")),
    ],
)
def test_a_secret_that_nobody_encoded_is_refused_naming_the_encoding(url: str, secrets: tuple[str, ...]) -> None:
    assert "percent-encode" in refusal(url, *secrets)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("none", "none"),
        ("CERT_NONE", "none"),
        ("required", "required"),
        ("CERT_REQUIRED", "required"),
        ("optional", "optional"),
        ("CERT_OPTIONAL", "optional"),
    ],
)
def test_both_spellings_of_the_certificate_option_mean_the_same(text: str, meaning: str) -> None:
    read = settings(f"rediss://h.example:6380/0?ssl_cert_reqs={text}")
    assert read.connection["ssl_cert_reqs"] == meaning
    assert read.connection["ssl_check_hostname"] is (meaning != "none")


def test_the_certificate_option_lists_what_it_takes() -> None:
    message = refusal("rediss://h.example/0?ssl_cert_reqs=maybe")
    assert all(word in message for word in ("none", "optional", "required", "CERT_REQUIRED"))


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("rediss://h.example:6380/0?ssl_cert_req=none", "did you mean 'ssl_cert_reqs'"),
        ("redis://h.example:6379/abc", "database"),
        ("redis://h.example:6379/0/", "database"),
        ("redis://h.example:6379/-1", "database"),
        ("redis://h.example:6379?db=1", "unix://"),
        ("redis://", "host"),
        ("redis:///0", "host"),
        ("redis://:pw@/0", "host"),
        ("redis://h.example:", "port"),
        ("redis://h.example:70000", "port"),
        ("redis://h..example", "host"),
        ("redis://h.example:63x9", "port"),
        ("redis://h1.example,h2.example/0", "one host"),
        ("redis://[::1/0", "IPv6"),
        ("redis://h.example?ssl_cert_reqs=none", "rediss://"),
        ("redis+sentinel://s1.example?ssl_ca_certs=x", "ssl=true"),
        ("redis+sentinel://s1.example", "SERVICE"),
        ("redis+cluster://n1.example/1", "no database"),
        ("redis://h.example?wait_replicas=-1", "wait_replicas"),
        ("redis://h.example?protocol=4", "protocol"),
        ("unix://relative.sock", "unix:///"),
        ("unix:///tmp/x.sock?db=one", "database"),
    ],
)
def test_what_is_not_understood_is_refused_naming_the_part(url: str, part: str) -> None:
    assert part in refusal(url)


def test_several_hosts_sockets_and_ipv6_are_read() -> None:
    sentinel = settings("redis+sentinel://u:p%40@s1.example,[2001:db8::5]:26380/my%20service/3?sentinel_password=s%2B&ssl=true")
    assert sentinel.addresses == (("s1.example", 26379), ("2001:db8::5", 26380))
    assert (sentinel.service, sentinel.connection["db"], sentinel.tls) == ("my service", 3, True)
    assert (sentinel.connection["password"], sentinel.sentinel["password"]) == ("p@", "s+")
    assert "username" not in sentinel.sentinel
    assert settings("redis+cluster://n1.example,n2.example:7001").addresses == (("n1.example", 6379), ("n2.example", 7001))
    unix = settings("unix:///run/a%20b.sock?db=4&password=p%2Fw")
    assert unix.addresses == ("/run/a b.sock",)
    assert (unix.connection["db"], unix.connection["password"]) == (4, "p/w")


def test_nothing_that_can_be_printed_holds_the_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with rota.connect("rediss://user:s3cr%40t@127.0.0.1:1/0?ssl_password=hunter2", timeout=0.5) as client:
        with pytest.raises(rota.Unavailable) as caught:
            client.try_lease("job")
        printed = "".join(traceback.format_exception(caught.value)) + repr(client.driver) + repr(client.driver.settings) + caplog.text
    for secret in ("s3cr", "hunter2"):
        assert secret not in printed


def test_the_password_with_everything_in_it_logs_in(start, connect, name: str) -> None:
    server = start(password="p@ss/#w+rd%=", tls=True)
    encoded = "p%40ss%2F%23w%2Brd%25%3D"
    url = f"rediss://default:{encoded}@localhost:{server.port}/2?ssl_ca_certs={server.certificate}.crt"
    with connect(url).lease(name) as grant:
        assert grant.token
    assert server.do("DBSIZE") == 0, "the record lies in database 2"
    with pytest.raises(ConfigurationError, match="WRONGPASS"):
        connect(url.replace(encoded, "wrong")).try_lease(name)
    with pytest.raises(ConfigurationError, match="not trusted"):
        connect(f"rediss://:{encoded}@localhost:{server.port}/2").try_lease(name)
    assert connect(f"rediss://:{encoded}@localhost:{server.port}/2?ssl_cert_reqs=none").try_lease(name)


@pytest.mark.parametrize("options", ["", "?protocol=3"])
def test_tls_where_there_is_none_and_none_where_there_is_say_what_to_write(start, face, options: str) -> None:
    plain, tls = start(), start(tls=True)
    with pytest.raises(rota.Unavailable, match="TLS was spoken: if this port is plain, write redis://"):
        face.do(face.connect(f"rediss://127.0.0.1:{plain.port}{options}", timeout=0.5).try_lease("job"))
    for url in (f"redis://127.0.0.1:{tls.port}", f"redis+sentinel://127.0.0.1:{tls.port}/rota", f"redis+cluster://127.0.0.1:{tls.port}"):
        with pytest.raises(rota.Unavailable, match="TLS was not spoken: if this port wants it, write rediss://"):
            face.do(face.connect(url + options).try_lease("job"))


def test_a_user_without_the_rights_is_told_which(start, face) -> None:
    server = start(password="pw")
    server.do("ACL", "SETUSER", "app", "on", ">pw", "~rota:*", "+@all", "-evalsha")
    with pytest.raises(ConfigurationError, match=r"NOPERM.*'evalsha'.*README"):
        face.do(face.connect(f"redis://app:pw@127.0.0.1:{server.port}").try_lease("job"))
