# SPDX-License-Identifier: MIT
"""What somebody new runs into: messages say what to do next, in one line, with no secret in it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile

import pytest
from rota.cli import _codes
from servers import add_user, free_port

HOLD = "touch started; until test -e go; do sleep 0.02; done"


def one_line(ended) -> str:
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert "s3cr3t" not in ended.stderr
    return ended.stderr


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_store_that_needs_no_preparation_is_prepared(cli, request, kind):
    url = cli.url if kind == "sqlite" else request.getfixturevalue("redis_url")
    ended = cli("init", url)
    assert ended.returncode == 0
    assert "nothing to do" in one_line(ended)
    wrong = cli("init", url, "--role", "app")
    assert wrong.returncode == 2
    assert "--role is for stores with SQL" in one_line(wrong)


def test_a_missing_table_and_missing_rights_say_what_to_run(cli, postgres):
    """The line can be pasted: what no secret is stands in it, and the owner takes the place of a word."""
    name = f"newcomer_{os.urandom(4).hex()}"
    url = postgres.url(options=f"table={name}")
    asked = [cli("run", "job", "--", "true", env={"ROTA_URL": url}), cli("ls", "--url", url, env={"ROTA_URL": None})]
    for what, ended in zip(("function", "relation"), asked, strict=True):
        assert ended.returncode == 2
        line = one_line(ended)
        assert f'{name}" is not there as this rota knows it: ROTA_URL=' in line
        assert f"table={name}' rota init --role ROLE makes it" in line
        assert re.search(rf"\(the server says: {what} \S*{name}\S* does not exist\)\n$", line)
    add_user(postgres, name)
    owner = url.partition("//")[2].rpartition("@")[0]
    command = re.search(r"(ROTA_URL='\S+' rota init --role) ROLE", ended.stderr)[1].replace("OWNER", owner)
    prepared = subprocess.run(
        ["sh", "-c", f"{command.replace('rota init', f'{sys.executable} -m rota init')} {name}"],
        env={**cli.environment, "ROTA_URL": "sqlite:///elsewhere"},
        check=False,
    )
    assert prepared.returncode == 0
    assert cli("ls", "--url", postgres.url(name, options=f"table={name}")).returncode == 0
    postgres.sql(f'REVOKE ALL ON "{name}" FROM "{name}"')
    ended = cli("ls", "--url", postgres.url(name, options=f"table={name}"))
    assert ended.returncode == 2
    assert "permission denied" in one_line(ended)
    assert "rota init --role ROLE, with the table's OWNER" in ended.stderr
    assert "CONTEXT" not in ended.stderr


def test_a_plain_port_that_is_spoken_to_in_tls_says_so(cli, redis_url):
    ended = cli("ls", "--url", redis_url.replace("redis://", "rediss://"), "--timeout", "500ms")
    assert ended.returncode == _codes.UNAVAILABLE
    assert "if this port is plain, write redis://" in one_line(ended)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="not run: only root can be somebody else")
def test_a_file_of_somebody_else_says_whose_it_is(cli):
    script = (
        "import os, sys, rota; from rota.cli import main; rota.connect(os.environ['ROTA_URL']).driver.read('any', 5.0); main(['ls']);"
        " os.setgid(65534); os.setuid(65534); sys.exit(main(['ls']))"
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        ended = subprocess.run(
            [sys.executable, "-c", script],  # once as root, so that all is imported that nobody may not read
            env={**cli.environment, "ROTA_URL": f"sqlite://{folder}/store.db"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert ended.returncode == 2
    assert f"{folder}/store.db belongs to root: run it as that user" in one_line(ended)


def test_a_long_list_of_options_is_cut(cli, postgres):
    ended = cli("ls", "--url", postgres.url(options="colour=red"))
    assert ended.returncode == 2
    line = one_line(ended)
    assert "it knows prefix, site, table, schema, listen, " in line
    assert line.endswith(" more)\n")
    assert len(line) < 200


def test_a_server_that_is_not_there_is_said_once_by_conform(cli):
    ended = cli("conform", f"redis://127.0.0.1:{free_port()}/0")
    assert ended.returncode == _codes.UNAVAILABLE
    assert (ended.stdout + ended.stderr).count("Connection refused") == 1
    assert ended.stderr.splitlines()[-1].startswith("rota: nothing was run: ")


def test_a_lost_lease_says_why_and_who_did_it(cli):
    holder = cli.start_shell("job", "--ttl", "1s", script=HOLD)
    cli.until(cli.file("started").exists)
    assert cli("release", "job", "--yes", "--why", "node 7 is gone").returncode == 0
    ended = cli.end(holder)
    assert ended.returncode == _codes.LOST
    first, second = ended.stderr.splitlines()
    assert first == "rota: job: the lease could not be kept, so the command is stopped: the store says that it is not held any more"
    assert second.startswith("rota: job: it was taken away by an operator, ")
    assert second.endswith(": node 7 is gone")
    cli.file("started").unlink()
    holder = cli.start_shell("job", "--ttl", "1s", "--timeout", "200ms", "--json", script=HOLD)
    cli.until(cli.file("started").exists)
    with cli.locked():
        events = [json.loads(line) for line in cli.end(holder).stderr.splitlines()]
    (lost,) = [event for event in events if event["event"] == "lost"]
    assert "database is locked" in lost["message"]


def test_a_run_without_the_store_waits_for_it_once(cli):
    with cli.locked():
        ended = cli.shell("job", "--every", "300d", "--on-unavailable", "run", "--timeout", "300ms", script="echo ${ROTA_TOKEN-none}")
    assert (ended.returncode, ended.stdout) == (0, "none\n")
    assert "the store is still away" in ended.stderr
