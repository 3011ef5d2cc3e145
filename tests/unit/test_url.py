# SPDX-License-Identifier: MIT
"""Store URLs: what they are taken apart into, and that nothing printed of them holds a secret (DV-14)."""

from __future__ import annotations

import contextlib
import pickle
import traceback
from urllib.parse import quote, unquote

import pytest
import rota
from hypothesis import given
from hypothesis import strategies as st
from rota import _registry
from rota.backend import Backend, Driver
from rota.errors import ConfigurationError
from rota.memory import MemoryDriver, MemoryStore
from rota.url import Url, check_options, check_text, check_userinfo, parse

# Letters that no message of rota holds four of in a row, and everything that URLs give a meaning to.
PASSWORDS = st.text(st.sampled_from("ABCDEFGHJKLMNPQRTUVWXYZ0123456789/+=#%@?&:;,.~!$'()*[]{}<>\"\\|^`_- \t\n\0é中\ud800"), min_size=4)


def pieces(password: str) -> set[str]:
    """Every four characters in a row; not those that are mostly punctuation, which messages hold by themselves."""
    found = {password[start : start + 4] for start in range(len(password) - 3)}
    return {piece for piece in found if sum(letter.isalnum() for letter in piece) >= 3}


def everything_printed(url: str) -> str:
    """What anybody sees of a URL: its parts' safe text, or the error with all that stands behind it."""
    printed = ""
    for use in (parse, rota.connect, rota.connect_async):
        try:
            made = use(url)
        except ConfigurationError as error:
            printed += "".join(traceback.TracebackException.from_exception(error).format_exception_only()) + repr(error)
            behind: BaseException | None = error
            while behind is not None:
                printed += f"{behind} {behind!r}"
                behind = behind.__cause__ or behind.__context__
        else:
            printed += f"{made} {made!r}"
            if isinstance(made, Url):
                printed += f"{made.safe} %s" % (made,)
    return printed


class SecretBackend(Backend):
    """Takes every URL, and an option ``password``."""

    contract = 1
    options = {"password": "a secret"}

    def driver(self, url: Url) -> Driver:
        return MemoryDriver(MemoryStore())


@pytest.fixture(autouse=True, scope="module")
def safe_scheme() -> object:
    _registry._loaded["safe"] = SecretBackend()
    yield
    del _registry._loaded["safe"]


@given(PASSWORDS)
def test_a_raw_password_is_never_printed(password: str) -> None:
    printed = everything_printed(f"safe://svc:{password}@cache.example:6380/2?prefix=billing")
    assert [piece for piece in pieces(password) if piece in printed] == []


@given(PASSWORDS)
def test_an_encoded_password_is_never_printed_and_reaches_the_driver_as_written(password: str) -> None:
    encoded = quote(password.replace("\ud800", "x"), safe="")
    url = f"safe://svc:{encoded}@cache.example:6380/2?prefix=billing"
    printed = everything_printed(url)
    for written in (encoded, password):
        assert [piece for piece in pieces(written) if piece in printed] == []
    assert parse(url).rest == f"svc:{encoded}@cache.example:6380/2"


@given(PASSWORDS)
def test_a_password_in_an_option_is_never_printed(password: str) -> None:
    printed = everything_printed(f"safe://cache.example/?password={password}")
    assert [piece for piece in pieces(password) if piece in printed] == []
    encoded = quote(password.replace("\ud800", "x"), safe="")
    url = f"safe://cache.example/?password={encoded}"
    printed = everything_printed(url)
    assert [piece for piece in pieces(encoded) if piece in printed] == []
    assert parse(url).options == {"password": unquote(encoded)}


@given(PASSWORDS, st.sampled_from(["", "safe", "safe:", "safe:/", "safe//", "://", "1safe://", "sa fe://"]))
def test_a_password_behind_no_scheme_is_never_printed(password: str, scheme: str) -> None:
    printed = everything_printed(f"{scheme}svc:{password}@cache.example")
    assert [piece for piece in pieces(password) if piece in printed] == []


@given(PASSWORDS)
def test_a_raw_password_never_becomes_a_host_or_a_path_where_user_and_hosts_are_told_apart(password: str) -> None:
    with contextlib.suppress(ConfigurationError):
        url = parse(f"safe://svc:{password}@cache.example/2")
        check_userinfo(url)
        assert url.rest.partition("@")[2] == "cache.example/2"
        assert url.rest.partition("/")[2] == "2"


@given(st.text(min_size=1))
def test_any_text_is_taken_apart_or_refused_by_our_own_error(text: str) -> None:
    try:
        parse("safe://" + text)
    except ConfigurationError:
        return
    assert parse("safe://" + text) == parse("SAFE://" + text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("memory://", Url("memory", "", {})),
        ("SQLite:///var/lib/rota.db", Url("sqlite", "/var/lib/rota.db", {})),
        ("memory://x?", Url("memory", "x", {})),
        ("memory://x?prefix=billing&site=dc%201", Url("memory", "x", {}, "billing", "dc 1")),
        (
            "rediss://svc-cron:p%40ss%2F%23w%2Brd%25%3D@cache.example.internal:6380/2?ssl_cert_reqs=none",
            Url("rediss", "svc-cron:p%40ss%2F%23w%2Brd%25%3D@cache.example.internal:6380/2", {"ssl_cert_reqs": "none"}),
        ),
        # several hosts go to the driver untouched (DV-18, DV-21)
        (
            "postgresql://app:s3cr%40t@db-a.example:5432,[2001:db8::5]:5433/coord?target_session_attrs=read-write&sslmode=require",
            Url(
                "postgresql",
                "app:s3cr%40t@db-a.example:5432,[2001:db8::5]:5433/coord",
                {"target_session_attrs": "read-write", "sslmode": "require"},
            ),
        ),
        # + is a plus, not a space (DV-14)
        ("redis://:pa+ss@h.example:6379/0?x=a+b", Url("redis", ":pa+ss@h.example:6379/0", {"x": "a+b"})),
        ("redis+sentinel://h", Url("redis+sentinel", "h", {})),
        ("x://h?a==&b=c=d", Url("x", "h", {"a": "=", "b": "c=d"})),
    ],
)
def test_a_url_is_taken_apart(text: str, parts: Url) -> None:
    assert parse(text) == parts


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("sqlite:///var/lib/rota.db", "sqlite:///var/lib/rota.db"),
        ("redis://cache.example:6379/0", "redis://cache.example:6379/0"),
        ("redis://svc:Hunter2@cache.example:6379/0?db=1", "redis://***@cache.example:6379/0?db=***"),
        ("etcd://u:Hunter2@a.example,u:Hunter3@b.example/coord", "etcd://***@b.example/coord"),
        ("redis://svc:Hunt@er2@cache.example", "redis://***@cache.example"),
        ("redis://h?password=Hunter2&er2=x", "redis://h?password=***&***=***"),
        ("redis://h?db=1&user=Hunter2", "redis://h?db=***&user=***"),
    ],
)
def test_the_safe_text_keeps_what_is_no_secret(text: str, safe: str) -> None:
    url = parse(text)
    assert url.safe == safe
    assert repr(url) == f"Url({safe!r})"
    assert str(url) == f"{url}" == repr(url)
    assert pickle.loads(pickle.dumps(url)) == url


def test_common_options_are_taken_out_and_the_others_checked() -> None:
    url = parse("safe://h?prefix=a&colour=red")
    assert url.options == {"colour": "red"}
    check_options(url, {"colour": "of it"})
    with pytest.raises(ConfigurationError, match=r"has no option 'colour': did you mean 'color'\? \(it knows color[a-z, ]*\)$"):
        check_options(url, {"color": "of it"})
    with pytest.raises(ConfigurationError, match=r"has no option 'colour' \(it knows other[a-z, ]*\)$"):
        check_options(url, {"other": "of it"})


def test_a_text_of_exactly_the_limit_is_accepted_and_counted_in_bytes() -> None:
    assert check_text("é" * 32, "prefix", 64) == "é" * 32
    with pytest.raises(ConfigurationError, match="66 bytes"):
        check_text("é" * 33, "prefix", 64)


@pytest.mark.parametrize("text", ["a b", "a/b", "..", "é", "user-42:quota", "a\u200bb", "🦉"])
def test_unusual_texts_are_names(text: str) -> None:
    assert check_text(text, "name", 255) == text


@pytest.mark.parametrize("text", ["a\x7f", "a\x85b", "\ufeffa\n", "\ta", "a\xa0", "a\r"])
def test_a_text_with_what_nobody_sees_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        check_text(text, "name", 255)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("pg://app:Hunter2@db:5/x?table=jobs&sslmode=require", "pg://OWNER@db:5/x?table=jobs&sslmode=***"),
        ("pg://db/x?table=a%26b%20c", "pg://OWNER@db/x?table=a%26b%20c"),
        ("pg://db/x?password=Hunter2&table=Hunter3", "pg://OWNER@db/x?password=***&***=***"),
    ],
)
def test_a_url_that_is_to_be_pasted_shows_what_surely_is_no_secret(url: str, shown: str) -> None:
    assert parse(url).shown({"table"}, "OWNER") == shown
