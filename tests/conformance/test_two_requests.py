# SPDX-License-Identifier: MIT
"""What an author can do wrong who reads in one request and writes in another: `mutants.two_requests` with a line changed, and the test that
finds it. The hooks are `raw`, `hang` and `spoil`, and no clock, as for a server of somebody else.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import mutants.two_requests
import pytest

CODE = Path(mutants.two_requests.__file__)

TEST = """
import contextlib, json, os, signal, socket, subprocess, sys
import pytest, rota.testing
from two_requests import TwoRequestsDriver, unpack


@pytest.fixture(scope="session")
def server():
    with subprocess.Popen([sys.executable, "two_requests.py"], stdout=subprocess.PIPE) as running:
        running.port = int(running.stdout.readline())
        yield running
        running.kill()


class TestTwoRequests(rota.testing.Conformance):
    @pytest.fixture(autouse=True)
    def store(self, server):
        self.server = server
        self.url = f"two://{server.port}"

    def ask(self, **request):
        with socket.create_connection(("127.0.0.1", self.server.port)) as line, line.makefile("rw") as file:
            file.write(json.dumps(request) + "\\n")
            file.flush()
            return json.loads(file.readline())

    def raw(self, name):
        record = unpack(self.ask(get=name)["value"])
        return record and record._asdict()

    @contextlib.contextmanager
    def spoil(self, name):
        kept = self.ask(get=name)["value"]
        self.ask(put=name, value=["nonsense"] * 3, version=None, not_after=2**62)
        yield
        self.ask(put=name, value=kept, version=None, not_after=2**62)

    @contextlib.contextmanager
    def hang(self):
        os.kill(self.server.pid, signal.SIGSTOP)
        os.waitpid(self.server.pid, os.WUNTRACED)
        try:
            yield
        finally:
            os.kill(self.server.pid, signal.SIGCONT)
"""

SENT = 'lost = OutcomeUnknown if "put" in request else Unavailable'
LIMIT = "                line.settimeout(max(0.001, deadline - time.monotonic()))\n"
NOT_AFTER = '"not_after": until(record or changed)'
#: What goes wrong, the changes, the test that finds it, and what that says.
WRONG_TURNS = {
    "a child goes on with its parent's connections": (
        [("        self._idle = []\n\n\nclass", "        pass\n\n\nclass")],
        "test_L10_a_forked_child_and_its",
        "read each other's answers",
    ),
    "what was sent and not answered is said to be undone": (
        [(SENT, "lost = Unavailable")],
        "test_F1_what_was_sent_and_not_answered_is_unknown",
        "for what was applied: it was sent, and not answered",
    ),
    "a record that can't be read is taken for none": (
        [('raise ConfigurationError(f"the store holds a record that is none: {error}") from error', "return None")],
        "test_capability_record_that_cant_be_read",
        "None would grant the name again",
    ),
    "a write is carried out whenever it comes": (
        [(NOT_AFTER, '"not_after": EVER')],
        "test_L7_a_write_that_comes_too_late",
        "after its apply_until",
    ),
    "the client's clock decides": (
        [('record, now = unpack(found["value"]), found["now"]', 'record, now = unpack(found["value"]), clock()')],
        "test_capability_clock_is_the_stores",
        "whose clock is a day ahead",
    ),
    "its writes compare nothing": (
        [('"version": found["version"]', '"version": None')],
        "test_L1_of_many_processes_one_wins",
        "four processes claimed",
    ),
    "it waits for ever": (
        [(f"{LIMIT}                part", "                line.settimeout(None)\n                part")],
        "test_F1_every_verb_is_bounded",
        "had not returned",
    ),
}


@pytest.fixture
def author(run_changed: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run tests of the suite on the backend with changes."""

    def run(changes: list[tuple[str, str]], tests: str, test: str = TEST) -> subprocess.CompletedProcess[str]:
        files = {"conftest.py": 'pytest_plugins = ["rota.testing.plugin"]\n', "test_two.py": test}
        return run_changed("two = two_requests:TwoRequestsBackend", CODE.read_text(), changes, files, tests)

    return run


@pytest.mark.parametrize("turn", WRONG_TURNS)
def test_a_wrong_turn_is_found(turn: str, author: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    changes, test, said = WRONG_TURNS[turn]
    done = author(changes, test)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(rf"FAILED.*{test}", done.stdout), done.stdout
    assert said in done.stdout, done.stdout


HOOK = "    @contextlib.contextmanager\n    def {}("


def test_what_was_not_proved_for_want_of_a_hook_is_said(author: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """The hooks under names that are none: so the class has none of them, as `rota conform` has."""
    without = TEST
    for hook in ("hang", "spoil"):
        assert HOOK.format(hook) in without
        without = without.replace(HOOK.format(hook), HOOK.format(f"no_{hook}"))
    tests = [test for _, test, _ in WRONG_TURNS.values() if "F1_" in test or "L7_" in test or "record_" in test]
    done = author([], " or ".join(tests), without)
    assert done.returncode == 0, done.stdout
    assert "TestTwoRequests: L7, F1: not run: no hang() hook" in done.stdout
    assert "TestTwoRequests: capability record: not run: no spoil() hook" in done.stdout


def test_a_driver_with_rules_of_its_own_is_not_said_to_be_proved(author: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """The suite can't stop the store in the middle of its verbs, and the first request of each is no write."""
    own = "from importlib.util import find_spec, module_from_spec\n\nspec = find_spec('rota.rules')\n"
    own += "rules = module_from_spec(spec)\nspec.loader.exec_module(rules)\n"
    changes = [("from rota import rules\n", own), (NOT_AFTER, '"not_after": EVER'), (SENT, "lost = Unavailable")]
    done = author(changes, "test_L7_a_write_that_comes_too_late or test_F1_what_was_sent")
    assert done.returncode == 0, done.stdout
    assert "TestTwoRequests: L7, F1: not run: the driver asks no rule of rota.rules" in done.stdout


def test_the_right_way_fails_none_of_them(author: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = author([], " or ".join(dict.fromkeys(test for _, test, _ in WRONG_TURNS.values())))
    assert done.returncode == 0, done.stdout
    assert "not run" not in done.stdout, done.stdout
