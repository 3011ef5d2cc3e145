# SPDX-License-Identifier: MIT
"""Wrong calls, names, options, durations, instants and URLs fail before any I/O, with a message that names the culprit (L9, W11)."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import socket
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import rota
from rota import _registry
from rota.backend import Backend, Driver
from rota.capabilities import OPTIONAL_VERBS, Capabilities
from rota.errors import BackendNotFound, ConfigurationError
from rota.url import Url

HOURLY = rota.Every("1h")
NAN, INFINITE = float("nan"), float("inf")
PASSWORD = "Hunter2Hunter2"
#: Any four characters in a row of the password would be a leak.
PIECES = {PASSWORD[start : start + 4] for start in range(len(PASSWORD) - 3)}


def _verb(name: str) -> Callable[..., Any]:
    def called(self: UntouchedDriver, *args: object, **kwargs: object) -> Any:
        self.calls.append(name)
        raise AssertionError(f"{name} was called: that is I/O")

    return called


class UntouchedDriver(Driver):
    """A store that must not be reached. It can do everything, and its shortest lease is 10 ms."""

    capabilities = Capabilities(verbs=frozenset(OPTIONAL_VERBS), native_async=False)

    def __init__(self) -> None:
        self.calls: list[str] = []

    claim, renew, settle, read = _verb("claim"), _verb("renew"), _verb("settle"), _verb("read")
    list, forget, now = _verb("list"), _verb("forget"), _verb("now")
    watch, override, record, facts = _verb("watch"), _verb("override"), _verb("record"), _verb("facts")
    schema, sweep, claim_when_free = _verb("schema"), _verb("sweep"), _verb("claim_when_free")

    def close(self) -> None:
        pass


class UntouchedBackend(Backend):
    """Its option ``password`` may be given."""

    contract = 1
    options = {"password": "a secret", "db": "a number"}

    def driver(self, url: Url) -> UntouchedDriver:
        return UntouchedDriver()


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``untouched://`` a scheme."""
    monkeypatch.setitem(_registry._loaded, "untouched", UntouchedBackend())


@pytest.fixture(params=["blocking", "async"])
def client(request: pytest.FixtureRequest) -> Iterator[rota.Client | rota.AsyncClient]:
    if request.param == "blocking":
        with rota.connect("untouched://") as blocking:
            yield blocking
    else:
        twin = rota.connect_async("untouched://")
        yield twin
        asyncio.run(twin.close())


def lease(name: Any = "job", **options: Any) -> Callable[[Any], Any]:
    return lambda client: client.try_lease(name, **options)


def window(schedule: Any = HOURLY, name: Any = "job", **options: Any) -> Callable[[Any], Any]:
    return lambda client: client.try_window(name, schedule, **options)


def once(per: Any, name: Any = "job", **options: Any) -> Callable[[Any], Any]:
    return lambda client: client.try_once(name, per, **options)


# what is wrong, the call, and what its message must hold
CALLS: list[tuple[str, Callable[[Any], Any], tuple[str, ...]]] = [
    # names
    ("empty name", lease(""), ("name", "empty")),
    ("name of white space", lease(" "), ("name", "white space")),
    ("white space around a name", lease(" job"), ("name", "' job'", "white space")),
    ("white space behind a name", window(name="job\u3000"), ("name", "white space")),
    ("NUL in a name", lease("a\0b"), ("name", r"'a\x00b'", "control character")),
    ("line break in a name", once("1h", name="a\nb"), ("name", r"'a\nb'", "control character")),
    ("name of 300 characters", lease("x" * 300), ("name", "xxx...", "300 bytes", "255")),
    ("name of 200 letters and 400 bytes", lease("é" * 200), ("name", "400 bytes", "255")),
    ("lone surrogate in a name", lease("a\ud800b"), ("name", r"\ud800", "Unicode")),
    ("name that is bytes", lease(b"job"), ("name", "bytes")),
    ("name that is None", lease(None), ("name", "NoneType")),
    ("name that is a number", once("1h", name=7), ("name", "int")),
    # durations
    ("ttl zero", lease(ttl=0), ("ttl=0", "more than zero")),
    ("ttl negative", lease(ttl=-1), ("ttl=-1", "more than zero")),
    ("ttl negative text", lease(ttl="-5s"), ("ttl='-5s'",)),
    ("ttl NaN", lease(ttl=NAN), ("ttl=nan", "finite")),
    ("ttl infinite", lease(ttl=INFINITE), ("ttl=inf", "finite")),
    ("ttl without a unit", lease(ttl="10"), ("ttl='10'", "unit", "10s", "10m")),
    ("ttl empty", lease(ttl=""), ("ttl", "empty")),
    ("ttl None", lease(ttl=None), ("ttl=None",)),
    ("ttl True", lease(ttl=True), ("ttl=True",)),
    ("ttl of another type", lease(ttl=[30]), ("ttl=[30]",)),
    ("ttl of an unknown unit", lease(ttl="3 fortnights"), ("ttl='3 fortnights'", "'15m'")),
    ("ttl over a year", lease(ttl="367d"), ("ttl='367d'", "366d")),
    ("ttl that overflows a float", lease(ttl=1e308), ("ttl=1e+308", "366d")),
    ("ttl of more digits than Python prints", lease(ttl=10**5000), ("ttl=", "366d")),
    ("ttl text of 400 digits", lease(ttl="9" * 400 + "s"), ("ttl='999", "400 digits")),
    ("ttl under the store's floor", lease(ttl="9ms"), ("ttl='9ms'", "floor", "10ms")),
    ("ttl that rounds to nothing", lease(ttl=timedelta(0)), ("ttl=", "more than zero")),
    ("ttl under a microsecond", lease(ttl=1e-9), ("ttl=1e-09", "microsecond")),
    ("heartbeat as long as the ttl", lease(ttl=10, heartbeat=10), ("heartbeat=10s", "third", "ttl=10s")),
    ("heartbeat over the ttl", lease(ttl=10, heartbeat=12), ("heartbeat=12s", "ttl=10s")),
    ("heartbeat over a third of the ttl", lease(ttl=10, heartbeat=9), ("heartbeat=9s", "ttl=10s")),
    ("heartbeat just over a third", lease(ttl=9, heartbeat=3.000001), ("heartbeat=3s1us", "third")),
    ("heartbeat zero", lease(heartbeat=0), ("heartbeat=0",)),
    ("margin as long as the ttl", lease(ttl=10, margin=10), ("ttl=10s", "margin 10s")),
    ("margin negative", lease(margin=-1), ("margin=-1",)),
    ("grace too long", lease(ttl=30, grace="16s"), ("ttl=30s", "grace 16s")),
    ("grace that just doesn't fit", lease(ttl=30, grace=15.5), ("ttl=30s", "grace 15s500ms")),
    ("timeout zero", lease(timeout=0), ("timeout=0",)),
    ("wait negative", lease(wait=-1), ("wait=-1",)),
    ("wait NaN", lease(wait=NAN), ("wait=nan",)),
    ("wait without a unit", lease(wait="10"), ("wait='10'", "10s")),
    ("max_hold zero", lease(max_hold=0), ("max_hold=0",)),
    ("period of a rolling window None", once(None), ("per=None",)),
    ("period of a rolling window zero", once("0s"), ("per='0s'", "more than zero")),
    ("period of a rolling window without a unit", once("24"), ("per='24'", "24h")),
    # options
    ("unknown option, near", lease(tll=3), ("'tll'", "did you mean 'ttl'?")),
    ("option of another primitive", lease(planned="2026-02-26T00:07:00Z"), ("'planned'", "known")),
    ("unknown option of a window", window(max_latte=3), ("'max_latte'", "did you mean 'max_late'?")),
    ("option of a window for a rolling one", once("1h", overlap=True), ("'overlap'",)),
    ("on_lost unknown", lease(on_lost="explode"), ("on_lost='explode'", "'continue'")),
    ("on_lost None", lease(on_lost=None), ("on_lost=None",)),
    ("on_unavailable unknown", lease(on_unavailable="ignore"), ("on_unavailable='ignore'", "'skip'")),
    ("at_most_once as text", window(at_most_once="yes"), ("at_most_once='yes'", "True or False")),
    ("at_most_once as a number", window(at_most_once=1), ("at_most_once=1",)),
    ("overlap without at_most_once", window(overlap=True), ("overlap=True", "at_most_once")),
    ("attempts zero", window(attempts=0), ("attempts=0",)),
    ("attempts negative", once("1h", attempts=-1), ("attempts=-1",)),
    ("attempts broken", window(attempts=1.5), ("attempts=1.5",)),
    ("attempts True", window(attempts=True), ("attempts=True",)),
    ("catch_up unknown", window(catch_up="all"), ("catch_up='all'", "'latest'")),
    ("catch_up with a planned instant", window(catch_up="latest", planned="2026-02-26T00:07:00Z"), ("catch_up", "planned")),
    ("early without a planned instant", window(early=5), ("early", "planned")),
    ("early over a minute", window(early=61, planned="2026-02-26T00:07:00Z"), ("early=61", "1m")),
    ("early negative", window(early=-1, planned="2026-02-26T00:07:00Z"), ("early=-1",)),
    ("max_late negative", window(max_late="-5m"), ("max_late='-5m'",)),
    ("max_late over the retention", window(max_late="31d"), ("max_late='31d'", "30 days")),
    # schedules and instants
    ("neither schedule nor planned instant", window(None), ("schedule", "planned")),
    ("schedule as text", window("0 2 * * *"), ("schedule='0 2 * * *'", "Cron('0 2 * * *')")),
    ("schedule as a duration", window("15m"), ("schedule='15m'", "Every('15m')")),
    ("schedule that is a class", window(rota.Cron), ("schedule=", "Cron(")),
    ("planned instant naive", window(planned=datetime(2026, 2, 26, 0, 7)), ("planned", "2026-02-26T00:07:00", "time zone")),
    ("planned instant without a zone", window(planned="2026-02-26T00:07:00"), ("planned", "2026-02-26T00:07:00", "time zone")),
    ("planned instant that is none", window(planned="tomorrow"), ("planned='tomorrow'", "2026-02-26T00:07:00Z")),
    ("planned instant in milliseconds", window(planned=1_772_064_420_000), ("planned=1772064420000", "milliseconds")),
    ("planned instant negative", window(planned=-1), ("planned=-1", "1970")),
    ("planned instant NaN", window(planned=NAN), ("planned=nan",)),
    ("planned instant infinite", window(planned=INFINITE), ("planned=inf",)),
    ("planned instant True", window(planned=True), ("planned=True",)),
    ("planned instant of another type", window(None, planned=[1]), ("planned=[1]",)),
]


@pytest.mark.parametrize(("call", "words"), [pytest.param(call, words, id=what) for what, call, words in CALLS])
def test_a_wrong_call_names_the_culprit_and_reaches_no_store(
    client: rota.Client | rota.AsyncClient, call: Callable[[Any], Any], words: tuple[str, ...]
) -> None:
    """L9."""
    with pytest.raises(ConfigurationError) as caught:
        result = call(client)
        if inspect.isawaitable(result):
            asyncio.run(_awaited(result))
    message = str(caught.value)
    for word in words:
        assert word in message
    assert len(message) < 500
    assert client.driver.calls == []  # type: ignore[attr-defined]


async def _awaited(result: Any) -> Any:
    return await result


def test_the_table_tells_wrong_from_right(client: rota.Client | rota.AsyncClient) -> None:
    """The same calls with right values do reach the store: what the table shows is not due to its store."""
    for call in (lease(), lease(ttl=10, heartbeat=3), lease(grace=15), window(), once("24h"), window(None, planned=1_772_064_420)):
        with contextlib.suppress(AssertionError):
            result = call(client)
            if inspect.isawaitable(result):
                asyncio.run(_awaited(result))
        calls = client.driver.calls  # type: ignore[attr-defined]
        assert calls
        calls.clear()


def test_the_context_managers_refuse_when_they_are_made_not_when_they_are_entered(client: rota.Client | rota.AsyncClient) -> None:
    """L9: a wrong decorator fails when the module is loaded, not at the first call."""
    for make in (
        lambda: client.lease("job", ttl=0),
        lambda: client.window("job", HOURLY, attempts=0),
        lambda: client.once("job", "24"),
    ):
        with pytest.raises(ConfigurationError):
            make()


def test_an_option_that_was_right_once_does_not_let_its_equal_of_another_type_through(client: rota.Client | rota.AsyncClient) -> None:
    """L9: checked options are remembered, and True equals 1."""
    client._window("job", HOURLY, {"attempts": 1})
    with pytest.raises(ConfigurationError, match="attempts=True"):
        client._window("job", HOURLY, {"attempts": True})


def test_what_is_no_plain_function_is_not_decorated() -> None:
    with rota.connect("untouched://") as client:
        guard = client.lease("job")

        async def coroutine() -> None: ...

        def generator() -> Iterator[None]:
            yield

        for function in (coroutine, generator, 7):
            with pytest.raises(ConfigurationError):
                guard(function)  # type: ignore[type-var]
        assert client.driver.calls == []  # type: ignore[attr-defined]


def test_white_space_before_a_name_is_refused_behind_a_prefix_too() -> None:
    with rota.connect("untouched://?prefix=billing") as client, pytest.raises(ConfigurationError, match="white space"):
        client.try_lease(" job")


# schedules: their own refusals are in test_schedule_refusals; here, that they come before any store is named
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: rota.Cron("0 0 31 2 *"), ("0 0 31 2 *", "never fires")),
        (lambda: rota.Cron("*/30 * * * * *"), ("*/30 * * * * *", "6 fields")),
        (lambda: rota.Cron("R * * * *"), ("'R'", "differs")),
        (lambda: rota.Cron("@reboot"), ("@reboot",)),
        (lambda: rota.Cron("60 * * * *"), ("60", "0 to 59")),
        (lambda: rota.Cron(""), ("empty",)),
        (lambda: rota.Cron("0 2 * * *\0"), (r"\x00",)),
        (lambda: rota.Cron("0 2 * * " + "1," * 150 + "2"), ("too long",)),
        (lambda: rota.Cron(None), ("None", "not text")),  # type: ignore[arg-type]
        (lambda: rota.Cron("0 2 * * *", tz="Europe/Berln"), ("'Europe/Berln'", "Europe/Berlin")),
        (lambda: rota.Cron("0 2 * * *", tz='"Europe/Berlin"'), ("Europe/Berlin", "quotes")),
        (lambda: rota.Cron("0 2 * * *", tz=""), ("time zone", "empty")),
        (lambda: rota.Cron("CRON_TZ=UTC 0 2 * * *"), ("CRON_TZ=UTC", "tz")),
        (lambda: rota.Every("10"), ("every='10'", "10s")),
        (lambda: rota.Every(0), ("every=0",)),
        (lambda: rota.Every(NAN), ("every=nan",)),
        (lambda: rota.Every("1us"), ("every='1us'", "1ms")),
        (lambda: rota.Every("1h", anchor=datetime(2026, 1, 1)), ("anchor", "time zone")),
        (lambda: HOURLY.slot(datetime(2026, 1, 1)), ("at=", "time zone")),
    ],
)
def test_a_wrong_schedule_is_refused_when_it_is_defined(make: Callable[[], object], words: tuple[str, ...]) -> None:
    """W11."""
    with pytest.raises(ConfigurationError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


# what is wrong, the URL ({} stands for the secret), and what its message must hold
URLS: list[tuple[str, Any, tuple[str, ...]]] = [
    ("empty", "", ("URL", "empty")),
    ("bytes", b"sqlite:///x", ("URL", "bytes")),
    ("None", None, ("URL", "NoneType")),
    ("no scheme", "svc:{}@cache.example", ("scheme",)),
    ("one slash only", "untouched:/svc:{}@cache.example", ("scheme",)),
    ("the password before the scheme", "svc:{}@untouched://cache.example", ("scheme",)),
    ("quotes around it", '"untouched://svc:{}@cache.example"', ("quotation mark", "leave the quotes out")),
    ("one quote", "'untouched://svc:{}@cache.example", ("quotation mark",)),
    ("white space before it", " untouched://svc:{}@cache.example", ("begins with white space", "leave that out")),
    ("white space behind it", "untouched://svc:{}@cache.example\t ", ("ends with white space", "leave that out")),
    ("white space alone", " \n", ("nothing but white space",)),
    ("raw # in a password", "untouched://:{}#{}@cache.example:6379/0", ("untouched://", "'#'", "%23")),
    ("raw # behind a host", "untouched://:{}@cache.example#{}", ("'#'",)),
    ("raw ? in a password", "untouched://:{}?{}@cache.example/0", ("%3F",)),
    ("raw ? and = in a password", "untouched://:{}?{}={}@cache.example/0", ("%3F",)),
    ("raw % in a password", "untouched://:{}%{}@cache.example/0", ("'%'", "%25")),
    ("raw % at the end", "untouched://:{}@cache.example/%", ("'%'", "%25")),
    ("white space in a password", "untouched://:{} {}@cache.example/0", ("white space", "percent-encode")),
    ("line break at the end", "untouched://:{}@cache.example/0\n", ("ends with a line break: leave that out", "Secret", "--from-literal")),
    ("line break of Windows", "untouched://:{}@cache.example/0\r\n", ("ends with a line break: leave that out",)),
    ("line break within", "untouched://:{}\n{}@cache.example/0", ("white space", "percent-encode")),
    ("NUL in a password", "untouched://:{}\0{}@cache.example/0", ("control character",)),
    ("lone surrogate in a password", "untouched://:{}\ud800@cache.example/0", ("control character",)),
    ("unknown option", "untouched://:{}@cache.example/?sit=dc1", ("'sit'", "did you mean 'site'?")),
    ("option without a value", "untouched://:{}@cache.example/?{}", ("name=value",)),
    ("option twice", "untouched://:{}@cache.example/?db=1&db=2", ("'db'", "twice")),
    ("raw & in the value of a secret option", "untouched://cache.example/?password={}&{}=x", ("%26",)),
    ("raw & twice in the value of a secret option", "untouched://cache.example/?password={}&{}=x&x{}=y", ("%26",)),
    ("the same name twice behind a secret option", "untouched://h/?password=x&{}=1&{}=2", ("twice",)),
    ("escapes that are not UTF-8", "untouched://cache.example/?password={}%FF", ("UTF-8",)),
    ("control character in the prefix", "untouched://:{}@cache.example/?prefix=a%00b", ("prefix", "control character")),
    ("prefix too long", "untouched://:{}@cache.example/?prefix=" + "p" * 65, ("prefix", "64")),
    ("white space around the site", "untouched://:{}@cache.example/?site=%20dc1", ("site", "white space")),
    ("unknown scheme", "untouchd://:{}@cache.example", ("untouchd://", "there are")),
    ("relative path", "sqlite://rota.db", ("sqlite:///absolute/path",)),
    ("sqlite with a password", "sqlite://svc:{}@host/rota.db", ("sqlite:///absolute/path",)),
    ("memory with a password", "memory://svc:{}@host", ("memory://NAME",)),
    ("NUL in a path", "sqlite:///nowhere/rota%00.db", ("file",)),
    ("path of a folder", "sqlite:///nowhere/", ("file",)),
    ("path of a device", "sqlite:///dev/null", ("regular file",)),
    ("option that sqlite lacks", "sqlite:///nowhere/rota.db?mode=ro", ("'mode'", "prefix")),
]


@pytest.mark.parametrize("connect", [rota.connect, rota.connect_async])
@pytest.mark.parametrize(("url", "words"), [pytest.param(url, words, id=what) for what, url, words in URLS])
def test_a_wrong_url_names_the_culprit_and_no_secret(connect: Callable[[Any], Any], url: Any, words: tuple[str, ...]) -> None:
    """DV-14."""
    with pytest.raises(ConfigurationError) as caught:
        connect(url.replace("{}", PASSWORD) if isinstance(url, str) else url)
    message = str(caught.value)
    for word in words:
        assert word in message
    # nor in what stands behind it, which a traceback prints
    chain = "".join(traceback.TracebackException.from_exception(caught.value).format_exception_only()) + repr(caught.value)
    error: BaseException | None = caught.value
    while error is not None:
        chain += str(error) + repr(error)
        error = error.__cause__ or error.__context__
    assert [piece for piece in PIECES if piece in chain] == []


def test_a_scheme_nobody_serves_is_told_from_other_errors() -> None:
    with pytest.raises(BackendNotFound):
        rota.connect("nowhere://x")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": 0}, ("timeout=0",)),
        ({"timeout": NAN}, ("timeout=nan",)),
        ({"timeout": "10"}, ("timeout='10'", "10s")),
        ({"timeout": None}, ("timeout=None",)),
        ({"retention": "23h"}, ("retention='23h'", "day")),
        ({"retention": 0}, ("retention=0",)),
        ({"retention": INFINITE}, ("retention=inf",)),
        ({"retention": "1000000000d"}, ("retention='1000000000d'", "clock")),
        ({"retention": 10**30}, ("retention=1000", "clock")),
    ],
)
@pytest.mark.parametrize("connect", [rota.connect, rota.connect_async])
def test_wrong_options_of_a_client_are_refused(
    connect: Callable[..., Any], options: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "folder" / "rota.db"
    with pytest.raises(ConfigurationError) as caught:
        connect(f"sqlite://{path}", **options)
    for word in words:
        assert word in str(caught.value)
    assert not path.parent.exists()


def test_a_wrong_site_of_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_SITE", "dc\t1")
    with pytest.raises(ConfigurationError, match="site"):
        rota.connect("memory://")


def test_a_wrong_claim_makes_no_file(tmp_path: Path) -> None:
    """L9, with a real store: connecting alone makes none either, and a right claim does."""
    path = tmp_path / "folder" / "rota.db"
    with rota.connect(f"sqlite://{path}") as client:
        for call in (lease(""), lease(ttl=0), window("0 2 * * *"), window(attempts=0), once("24"), lease(tll=3)):
            with pytest.raises(ConfigurationError):
                call(client)
        assert not path.parent.exists()
        assert client.try_lease("job")
        assert path.exists()


@pytest.mark.parametrize("kind", ["a pipe", "a socket", "a link to a device"])
def test_what_is_no_regular_file_is_no_store(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    with socket.socket(socket.AF_UNIX) as listening:
        if kind == "a pipe":
            os.mkfifo(path)
        elif kind == "a socket":
            listening.bind(str(path))
        else:
            path.symlink_to("/dev/null")
        for connect in (rota.connect, rota.connect_async):
            with pytest.raises(ConfigurationError, match="regular file"):
                connect(f"sqlite://{path}")


def test_durations_of_one_message_are_written_alike() -> None:
    """A third of a second has no end; and what waits for ever may be written as for the command."""
    with rota.connect("memory://") as client:
        with pytest.raises(rota.ConfigurationError) as refused:
            client.try_lease("job", ttl="1s", grace="5s")
        assert str(refused.value) == (
            "ttl=1s is too short: grace 5s + margin 100ms + heartbeat 333ms + one renewal's timeout 333ms must come to less"
        )
        assert client.try_lease("job", wait="inf")
