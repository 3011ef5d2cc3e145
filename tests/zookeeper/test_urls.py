# SPDX-License-Identifier: MIT
"""zookeeper:// URLs, chroots and names (DV-20), users, rights, SASL and TLS."""

from __future__ import annotations

import gc
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import rota
from kazoo.exceptions import NoAuthError
from kazoo.security import make_acl, make_digest_acl_credential
from rota import ConfigurationError, RotaError, Unavailable
from rota.cli import main
from rota_zookeeper import _handler
from servers import HOST, PASSWORD, ZooKeeper, free_port

SECRET = "s3cr=t/%@"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("zookeeper://zk1.example:2181/a,zk2.example:2181/b", "once"),
        ("zookeeper://zk1.example:2181,/a", "host"),
        ("zookeeper:///a", "host"),
        ("zookeeper://zk1.example:port/a", "port"),
        ("zookeeper://zk1.example:/a", "port"),
        ("zookeeper://zk1.example:70000", "port"),
        ("zookeeper://2001:db8::5", "brackets"),
        ("zookeeper://[2001:db8::5", "IPv6"),
        ("zookeeper://zk1.example/a//b", "empty"),
        ("zookeeper://zk1.example/a/../b", "'..'"),
        ("zookeeper://zk1.example/a%2Fb", "chroot"),
        ("zookeeper://zk1.example/zookeeper/a", "own"),
        ("zookeeper://zk1.example/%F0%9F%98%80", "can't hold"),  # U+1F600; both are printable, and no letters to ZooKeeper
        ("zookeeper://zk1.example/%EF%BF%BD", "can't hold"),  # U+FFFD
        (f"zookeeper://svc:{SECRET}@zk1.example", "percent-encode"),
        ("zookeeper://svc:a@s3cr@zk1.example,zk2.example:2182/a", "%40"),
        ("zookeeper://svc:s3cr@zk1.example,svc:s3cr@zk2.example", "%40"),
        ("zookeeper://svc:1/s3cr@zk1.example", "%2F"),
        (f"zookeeper://{quote(SECRET, safe='')}@zk1.example", "user:password"),
        (f"zookeeper://a%3Ab:{quote(SECRET, safe='')}@zk1.example", "':'"),
        ("zookeeper://zk1.example?chrot=/a", "chrot"),
        ("zookeeper://zk1.example?ca=/a.pem", "tls=true"),
        ("zookeeper://zk1.example?tls=yes", "true or false"),
        ("zookeeper://zk1.example?tls=true&cert=/a.pem", "together"),
        ("zookeeper://zk1.example?acl=everybody", "open"),
        ("zookeeper://zk1.example?acl=creator", "needs a creator"),
        ("zookeeper://zk1.example?auth=sasl", "user:password"),
        ("zookeeper://svc:pw@zk1.example?auth=kerberos", "digest or sasl"),
        ("zookeeper://zk1.example?session_timeout=0", "seconds"),
    ],
)
def test_what_is_not_understood_is_refused_without_a_secret(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as raised:
        rota.connect(url)
    seen = f"{raised.value!r} {raised.value.__cause__!r}"
    assert "s3cr" not in seen


def test_several_hosts_ports_and_ipv6_are_read(driver_for: Any) -> None:
    place = driver_for(f"zookeeper://svc:{quote(SECRET, safe='')}@[2001:db8::5]:2182,zk2.example/apps/co%2Cord/").verbs.link.place
    assert place.options["hosts"] == "[2001:db8::5]:2182,zk2.example:2181"
    assert place.options["auth_data"] == [("digest", f"svc:{SECRET}")]
    assert place.chroot == "/apps/co,ord"
    assert "s3cr" not in repr(place)


# -- DV-20


def test_dv20_a_missing_chroot_is_made(server: ZooKeeper, connect: Any, name: str) -> None:
    with connect(server.url("/apps/coord")).lease(name) as grant:
        assert grant.token
    assert not connect(server.url("/other")).driver.list("", 5.0), "another chroot is another store"


def test_who_only_reads_makes_no_chroot_and_finds_nothing(
    server: ZooKeeper, kazoo: Any, driver_for: Any, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    raw = kazoo(server)
    for chroot in ("/unused", "/unused/below", ""):
        before = {path: raw.exists(path) and raw.get_children(path) for path in ("/", "/unused", "/rota")}
        driver = driver_for(server.url(chroot))
        assert driver.unmade() == "", "it asks no server"
        assert driver.read(name, 5.0) == (None, None)
        assert driver.unmade().startswith(f"{chroot}/rota of ")
        assert driver.list("", 5.0) == []
        facts = driver.facts(5.0)
        assert (facts["chroot_exists"], facts["clock_difference"]) == (not chroot, None)
        if chroot:
            with pytest.raises(ConfigurationError, match="does not exist"):
                driver.examine(facts, 5.0)
        assert driver.sweep(10, 5.0) == 0
        for command in (["ls"], ["show", name], ["history", name], ["release", name, "--yes"], ["forget", name, "--yes"]):
            assert main([*command, "--url", server.url(chroot), "--timeout", "5s"]) == 1
            assert f"there is no store at {chroot}/rota of " in capfd.readouterr().err
        assert {path: raw.exists(path) and raw.get_children(path) for path in before} == before


def test_a_store_that_is_made_meanwhile_is_found(server: ZooKeeper, connect: Any, driver_for: Any, name: str) -> None:
    reader = driver_for(server.url("/later"))
    assert reader.read(name, 5.0) == (None, None)
    with connect(server.url("/later")).lease(name) as grant:
        record, now = reader.read(name, 5.0)
        assert (record.token, reader.unmade()) == (grant.token, "")
        assert now[0] <= record.expires_at
        assert [record.name for record in reader.list("", 5.0)] == [name]


def test_dv20_rights_below_the_chroot_alone_are_enough(server: ZooKeeper, kazoo: Any, connect: Any, name: str) -> None:
    admin = kazoo(server)
    everything = make_acl("digest", make_digest_acl_credential("svc", "pw"), all=True)
    readable = [make_acl("world", "anyone", read=True, admin=True)]
    admin.create("/mine", acl=readable)
    with pytest.raises(ConfigurationError, match="/mine/coord does not exist"):
        connect(server.url("/mine/coord", user="svc:pw")).try_lease(name)
    admin.set_acls("/mine", [make_acl("world", "anyone", all=True)])
    admin.create("/mine/coord", acl=[everything])
    admin.set_acls("/mine", readable)
    assert connect(server.url("/mine/coord", user="svc:pw")).try_lease(name)
    with pytest.raises(ConfigurationError, match="rights|may not"):
        connect(server.url("/mine/coord", user="svc:wrong")).try_lease(name)
    with pytest.raises(ConfigurationError, match="rights|may not"):
        connect(server.url("/mine/coord")).try_lease(name)


def test_dv20_names_that_look_like_paths_are_names(server: ZooKeeper, kazoo: Any, connect: Any) -> None:
    client = connect(server.url("/names"))
    names = ["job", "/job", "job/", "a", "a/b", "a//b", "..", ".", "é", "e\u0301", "%2E", "=", "zookeeper", "x" * 255]
    held = {name: client.try_lease(name) for name in names}
    assert all(held.values())
    assert sorted(record.name for record in client.driver.list("", 5.0)) == sorted(names)
    for name, grant in held.items():
        assert client.driver.read(name, 5.0)[0].owner == grant._owner
    for wrong in ("", "a\0b", "x" * 300):
        with pytest.raises(ConfigurationError):
            client.try_lease(wrong)
    raw = kazoo(server)
    for shard in raw.get_children("/names/rota/records"):
        for node in raw.get_children(f"/names/rota/records/{shard}"):
            assert raw.get_children(f"/names/rota/records/{shard}/{node}") == [], "no name lives inside another one"


# -- who may


def test_what_a_user_made_is_the_users(server: ZooKeeper, kazoo: Any, connect: Any, name: str) -> None:
    url = server.url("/users", user=f"svc:{quote(SECRET, safe='')}")
    assert connect(url).try_lease(name)
    stranger = kazoo(server)
    for path in ("/users", "/users/rota/records", "/users/rota/clock"):
        with pytest.raises(NoAuthError):
            stranger.get(path)
    with pytest.raises(ConfigurationError, match="rights") as raised:
        connect(server.url("/users", user="svc:wrong")).try_lease(name)
    assert not isinstance(raised.value, Unavailable)


def test_others_may_look_at_what_they_may_read_and_change_nothing(server: ZooKeeper, connect: Any, name: str, capfd: Any) -> None:
    owner = connect(server.url("/shown", user="svc:pw", options="acl=creator,read"))
    grant = owner.try_lease(name)
    for url in (server.url("/shown"), server.url("/shown", user="other:pw")):
        for command in (["ls"], ["show", name], ["history", name]):
            assert main([*command, "--url", url, "--timeout", "10s"]) == 0
        assert "held" in capfd.readouterr().out, "the time is known"
        client = connect(url)
        for change in (lambda: client.try_lease(f"{name}/2"), lambda: client.driver.forget(name, 5.0)):
            with pytest.raises(ConfigurationError, match="rights"):
                change()
    grant.release()


def test_sasl_lets_its_user_in_and_nobody_with_a_wrong_password(connect: Any, name: str) -> None:
    with ZooKeeper(sasl=True) as server:
        assert connect(server.url("/sasl", user=f"rota:{PASSWORD}", options="auth=sasl")).try_lease(name)
        client = connect(server.url("/sasl", user="rota:wrong", options="auth=sasl"))
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="password"):
                client.try_lease(name)


def test_who_asks_while_a_client_ends_for_a_wrong_password_is_told_as_well(connect: Any, name: str, until: Any, monkeypatch: Any) -> None:
    """F2: it waits for a client that has given up, and whose thread is about to end."""
    may_end, connect_loop = threading.Event(), _handler.Connection._connect_loop

    def ends_late(connection: Any, retry: Any) -> object:
        ended = connect_loop(connection, retry)
        may_end.wait(20)
        return ended

    monkeypatch.setattr(_handler.Connection, "_connect_loop", ends_late)
    with ZooKeeper(sasl=True) as server:
        client, told = connect(server.url("/sasl", user="rota:wrong", options="auth=sasl")), list[str]()
        link = client.driver.verbs.link

        def ask() -> None:
            try:
                client.try_lease(name)
            except RotaError as error:
                told.append(type(error).__name__)

        ask()
        while link._refused is not None:  # where a request was refused, too, the next one is told as well
            ask()
        waiting, late = len(link._arrivals), threading.Thread(target=ask)
        late.start()
        until(lambda: len(link._arrivals) > waiting)
        may_end.set()
        late.join()
    assert set(told) == {"ConfigurationError"}


def test_tls_is_verified_unless_that_is_switched_off(connect: Any, name: str, until: Any) -> None:
    with ZooKeeper(tls=True) as server:
        client = connect(server.url("/tls"), timeout=5)
        assert client.try_lease(name)
        assert client.driver.facts(5.0)["version"].startswith("3.")
        bare = f"zookeeper://{HOST}:{server.port}/tls"

        def refusal(url: str) -> ConfigurationError | None:
            """What is wrong, which a handshake has to find out within the timeout."""
            try:
                connect(url, timeout=1).try_lease(name)
            except ConfigurationError as error:
                return error
            except Unavailable:
                return None
            raise AssertionError("it was let in")

        before = open_sockets()
        distrusted = until(lambda: refusal(f"{bare}?tls=true"))
        assert "certificate verify failed" in str(distrusted)
        assert distrusted.__cause__.__traceback__ is not None, "it holds all that was there when it was raised"
        until(lambda: open_sockets() <= before)  # no socket of a handshake that failed stays open; the next one may be on its way
        assert "No such file" in str(until(lambda: refusal(f"{bare}?tls=true&ca=/nowhere/ca.pem")))
        assert connect(f"{bare}?tls=true&verify=false", timeout=5).try_lease(f"{name}/2")


def test_servers_that_want_sasl_are_no_outage(connect: Any, name: str) -> None:
    with ZooKeeper(sasl=True, sessionRequireClientSASLAuth="true") as server:
        assert connect(server.url("/sasl", user=f"rota:{PASSWORD}", options="auth=sasl")).try_lease(name)
        wrong = connect(server.url("/sasl", user="rota:wrong", options="auth=sasl"))
        nobody, digest = connect(server.url("/sasl")), connect(server.url("/sasl", user=f"rota:{PASSWORD}"))
        for client, said in ((wrong, "password is wrong"), (nobody, "auth=sasl"), (digest, "auth=sasl")):
            for _ in range(2):
                with pytest.raises(ConfigurationError, match=said):
                    client.try_lease(name)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate, ``crt``, and its key, which wants a password, ``key``."""
    folder = tmp_path_factory.mktemp("certificate")
    making = "openssl req -x509 -newkey rsa:2048 -days 2 -subj /CN=localhost -keyout key -out crt -passout pass:right"
    subprocess.run(making.split(), cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("ca=none", "ca=.*No such file"),
        ("ca=", "ca=.*directory"),
        ("ca=key", "ca=.*no certificates"),
        ("ca=%00", "ca=.*null"),
        ("cert=none&key=key", "cert=.*No such file"),
        ("cert=crt&key=none", "key=.*No such file"),
        ("cert=crt&key=key", "key_password="),  # OpenSSL would ask the terminal
        ("cert=crt&key=key&key_password=s3cr", "key_password="),
        (f"cert=crt&key=key&key_password={'s3cr' * 500}", "key_password="),  # Python takes no longer ones than 1024 bytes
    ],
)
def test_files_of_tls_that_are_no_use_are_told_by_their_options_and_not_as_an_outage(
    connect: Any, name: str, certificate: Path, options: str, said: str
) -> None:
    for option in ("ca=", "cert=", "key="):
        options = options.replace(option, f"{option}{certificate}/")
    client = connect(f"zookeeper://{HOST}:{free_port()}/tls?tls=true&{options}", timeout=1)
    with pytest.raises(ConfigurationError, match=said) as raised:
        client.try_lease(name)
    assert "s3cr" not in f"{raised.value!r} {raised.value.__cause__!r}"


def open_sockets() -> set[int]:
    """The ids of the TLS sockets of this process."""
    return {id(found) for found in gc.get_objects() if isinstance(found, ssl.SSLSocket) and found.fileno() >= 0}


def test_nobody_there_is_unavailable_within_the_timeout_and_it_is_said_why(connect: Any, name: str) -> None:
    with pytest.raises(Unavailable, match=r"no connection \(Connection refused\)") as raised:
        connect(f"zookeeper://{HOST}:{free_port()}", timeout=0.3).try_lease(name)
    assert not isinstance(raised.value, rota.OutcomeUnknown)


def test_the_next_server_is_tried_when_one_drops_packets(server: ZooKeeper, connect: Any, name: str) -> None:
    # 192.0.2.0/24 is for documentation: nobody answers there
    assert connect(f"zookeeper://192.0.2.1:2181,{HOST}:{server.port}/next", timeout=10).try_lease(name)


def test_kazoo_logs_no_password(server: ZooKeeper, connect: Any, name: str, caplog: Any) -> None:
    caplog.set_level(1)
    assert connect(server.url("/logs", user="svc:s3cret")).try_lease(name)
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("level", ["WARNING", "INFO", "DEBUG"])
def test_kazoo_logs_what_the_application_wants_to_read(server: ZooKeeper, name: str, caplog: Any, level: str) -> None:
    """Who asks for warnings does not read of each connection; and at DEBUG kazoo would write passwords."""
    caplog.set_level(level)
    caplog.handler.setLevel(0)  # as the handlers of `logging.basicConfig` are
    with rota.connect(server.url("/a"), timeout=10) as client:
        assert client.try_lease(name)
    said = {record.levelname for record in caplog.records if record.name == "rota_zookeeper.kazoo"}
    assert ("INFO" in said, "DEBUG" in said) == (level != "WARNING", False)


@pytest.mark.parametrize("host", ["h..example", f"{'h' * 64}.example", "a.example,h..example", f"{'é' * 64}.example"])
def test_hosts_that_no_resolver_takes_are_refused_before_it_is_asked(host: str) -> None:
    with pytest.raises(ConfigurationError, match="host"):
        rota.connect(f"zookeeper://{host}/coord")
