# SPDX-License-Identifier: MIT
"""The suite's plug-in and ``rota conform``, each in an interpreter of its own, as an author of a backend runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import rota
from rota.cli import _conform

CORE = str(Path(rota.__file__).parents[1])

MINE = """
import pytest
import rota.testing
from rota.memory import AsyncMemoryDriver, MemoryDriver, MemoryStore

class TestMine(rota.testing.Conformance):
    @pytest.fixture(autouse=True)
    def store(self):
        self._store = MemoryStore()

    def driver(self):
        return MemoryDriver(self._store)

    def async_driver(self, driver):
        return AsyncMemoryDriver(driver)
"""

WRONG = """
class Wrong(MemoryDriver):
    def forget(self, name, timeout):
        return self.store.records.pop(name, None) is not None
"""

#: A distribution with a backend whose server never answers.
AWAY = """
from rota.backend import Backend
from rota.errors import ConfigurationError, Unavailable
from rota.memory import MemoryDriver, MemoryStore

class AwayDriver(MemoryDriver):
    def read(self, name, timeout):
        if self.wrong:
            raise ConfigurationError("wrong password for 'conform'")
        raise Unavailable("connection refused by store.example:1")

class AwayBackend(Backend):
    contract = 1
    options = {"wrong": "pretend that the password is wrong"}

    def driver(self, url):
        driver = AwayDriver(MemoryStore())
        driver.wrong = "wrong" in url.options
        return driver
"""


def python(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "ROTA_"))}
    path = os.pathsep.join([CORE, str(folder)])
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=kept | {"PYTHONPATH": path} | environment, capture_output=True, text=True, timeout=120
    )


def run(folder: Path, text: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], Any]:
    """Run a test file with the plug-in loaded by a conftest; return what pytest said, and the report."""
    (folder / "conftest.py").write_text('pytest_plugins = ["rota.testing.plugin"]\n')
    (folder / "test_mine.py").write_text(text)
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rota-report", "report.json", *arguments, folder=folder)
    report = folder / "report.json"
    return done, json.loads(report.read_text()) if report.exists() else None


def test_the_report_says_what_each_clause_came_to(tmp_path: Path) -> None:
    done, report = run(tmp_path, MINE, "-k", "L3 or W3b or capability_schema or F1")
    assert done.returncode == 0, done.stdout
    assert "2 refused" in done.stdout
    assert "TestMine: L3: not run: the store's clock can't be set\n" in done.stdout
    assert "TestMine: F1: not run: no hang() hook" in done.stdout
    assert (report["rota"], report["contract"]) == (rota.__version__, rota.CONTRACT)
    (mine,) = report["runs"]
    assert (mine["suite"], mine["server"]) == ("TestMine", "embedded")
    assert mine["capabilities"]["verbs"] == ["facts", "override", "record", "sweep", "watch"]
    assert {clause: found["result"] for clause, found in mine["clauses"].items()} == {
        "L3": "passed in part",
        "W3b": "passed",
        "F1": "passed in part",
        "capability schema": "refused",
    }
    reasons = {clause: found["why"] for clause, found in mine["clauses"].items()}
    assert reasons == {
        "L3": ["not run: the store's clock can't be set"],
        "W3b": [],
        "F1": ["not run: no hang() hook: give one to try what becomes of requests that are not answered"],
        "capability schema": ["refused: no schema"],
    }
    assert mine["totals"] == {"passed": 1, "passed in part": 2, "refused": 1, "failed": 0, "not run": 0}
    tests = mine["clauses"]["L3"]["tests"]
    assert tests["test_L3_a_renewal_sets_the_remaining_time[blocking]"] == {"result": "passed"}
    assert tests["test_L3_a_renewal_sets_the_remaining_time[async]"] == {"result": "passed"}
    assert tests["test_L3_at_the_very_instant_of_expiry_a_renewal_is_late[async]"]["result"] == "not run"


def test_a_report_is_not_written_in_parts_by_several_processes(tmp_path: Path) -> None:
    done, report = run(tmp_path, MINE, "-k", "L3", "-n", "2")
    assert done.returncode == 4, done.stdout
    assert "leave out -n" in done.stderr
    assert report is None


def test_a_standard_test_is_not_overridden_in_silence(tmp_path: Path) -> None:
    silent = "\n    async def test_L3_only_the_owner_renews(self, face):\n        pass\n"
    gone = "\n    test_L3_only_the_owner_renews = None\n"
    lame = '\n    @pytest.mark.xfail(reason=" ")\n    async def test_L3_only_the_owner_renews(self, face):\n        pass\n'
    weaker = "\n    async def crash(self, face, claim):\n        pass\n"
    for override, culprit in ((silent, "L3_only"), (gone, "L3_only"), (lame, "L3_only"), (weaker, "crash")):
        done, _ = run(tmp_path, MINE + override, "-k", "L3")
        assert done.returncode == 2, done.stdout
        assert culprit in done.stdout


def test_a_known_failure_has_a_reason_and_is_a_failure_in_the_report(tmp_path: Path) -> None:
    known = """
    @pytest.mark.xfail(reason="renewals go by name here")
    async def test_L3_only_the_owner_renews(self, face):
        raise AssertionError
"""
    done, report = run(tmp_path, MINE + known, "-k", "L3_only or L4_nobody")
    assert done.returncode == 0, done.stdout
    clauses = report["runs"][0]["clauses"]
    assert clauses["L4"]["result"] == "passed"
    assert clauses["L3"]["result"] == "failed"
    assert clauses["L3"]["tests"]["test_L3_only_the_owner_renews[async]"]["why"] == "known: renewals go by name here"


def test_a_backend_that_is_wrong_fails_the_session_and_the_report(tmp_path: Path) -> None:
    wrong = MINE.replace("return MemoryDriver(self._store)", "return Wrong(self._store)") + WRONG
    done, report = run(tmp_path, wrong, "-k", "R2")
    assert done.returncode == 1
    assert "there is no record of" in done.stdout, "asserts say what they compared"
    assert report["runs"][0]["clauses"]["R2"]["result"] == "failed"


def test_a_driver_that_can_not_be_made_fails_one_test_and_says_why(tmp_path: Path) -> None:
    abstract = (
        MINE.replace("return MemoryDriver(self._store)", "return Half()") + "\nfrom rota.backend import Driver\nclass Half(Driver):\n"
    )
    for body, said in (("    pass", "abstract"), ("    def __new__(cls):\n        return 7", "7, which is no rota.backend.Driver")):
        done, report = run(tmp_path, abstract + body, "-k", "L3 or L4")
        assert done.returncode == 1, done.stdout + done.stderr
        assert "INTERNALERROR" not in done.stdout
        assert "1 error" in done.stdout
        assert said in done.stdout
        results = [test for found in report["runs"][0]["clauses"].values() for test in found["tests"].values()]
        assert [test["result"] for test in results].count("failed") == 1
        assert all(said in test["why"] for test in results)


def test_an_answer_that_the_contract_does_not_know_is_named(tmp_path: Path) -> None:
    bare = MINE.replace("return MemoryDriver(self._store)", "return Bare(self._store)")
    bare += (
        "\nclass Bare(MemoryDriver):\n    def renew(self, renewals, timeout):\n        return list(super().renew(renewals, timeout).held)\n"
    )
    done, report = run(tmp_path, bare, "-k", "L3_a_renewal_sets or L11_many")
    assert done.returncode == 1
    whys = [test["why"] for found in report["runs"][0]["clauses"].values() for test in found["tests"].values()]
    assert len(whys) == 4
    for why in whys:
        assert "renew returned [" in why
        assert "the contract wants Renewed(held, now)" in why


def test_a_call_that_never_returns_fails_its_test_and_pytest_ends(tmp_path: Path) -> None:
    endless = "import threading, rota.testing.watched\nrota.testing.watched.AFTER = 0.3\n" + MINE
    endless = endless.replace("return MemoryDriver(self._store)", "return Endless(self._store)")
    endless += """
class Endless(MemoryDriver):
    def settle(self, settlement, timeout):
        threading.Event().wait()
"""
    endless = endless.replace("return AsyncMemoryDriver(driver)", "return None")
    for face in ("blocking", "async"):
        done, report = run(tmp_path, endless, "-k", f"L5_the_deadline and {face} or L3 and {face}")
        assert done.returncode == 1, done.stdout + done.stderr
        assert "settle has not returned 0.3s after its timeout" in done.stdout
        assert "left without waiting for" in done.stderr
        clauses = report["runs"][0]["clauses"]
        tests = [test for found in clauses.values() for test in found["tests"].values()]
        assert [test["result"] for test in tests].count("failed") == 1
        assert any("an earlier call has not returned" in test.get("why", "") for test in tests if test["result"] == "not run")


@pytest.fixture
def away(tmp_path: Path) -> Path:
    """A folder with the distribution whose server is away."""
    (tmp_path / "rota_away.py").write_text(AWAY)
    info = tmp_path / "rota_away-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rota-away\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rota.backends]\naway = rota_away:AwayBackend\n")
    return tmp_path


def test_conform_says_not_run_when_no_server_answers(away: Path) -> None:
    done = python("-m", "rota", "conform", "away://store.example:1", "--report", "out.json", folder=away)
    assert done.returncode == 115, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "connection refused" in done.stderr
    assert "0 passed, 0 passed in part, 0 refused, 0 failed" in done.stdout
    clauses = json.loads((away / "out.json").read_text())["runs"][0]["clauses"]
    assert {found["result"] for found in clauses.values()} == {"not run"}
    assert {"L1", "W12", "R3", "F5"} <= set(clauses)


def test_conform_says_why_a_clause_has_passed_in_part() -> None:
    tests = {f"test_{number}": {"result": "passed"} for number in range(3)}
    tests |= {name: {"result": "not run", "why": "not run: no raw() hook"} for name in ("test_a[blocking]", "test_a[async]")}
    tests["test_b"] = {"result": "refused", "why": "refused: no watch"}
    run = {"url": "mine://h", "server": "9", "capabilities": {"windows": True}, "totals": {"passed": 0, "passed in part": 1, "failed": 0}}
    shown: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_conform, "show", shown.append)
        clauses = {"L2": {"result": "passed in part", "why": [], "tests": tests}}
        report = {"rota": "1", "contract": 1, "python": "3", "runs": [run | {"clauses": clauses}]}
        assert _conform._show(report) == 0
    assert "L2  passed in part  3 passed; 2 not run: no raw() hook; 1 refused: no watch\n" in shown[0]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["away://store.example?wrong=1"], "wrong password"),
        (["away://store.example?wron=1"], "did you mean 'wrong'"),
        (["sqllite:///x"], "did you mean 'sqlite'"),
        (["no url"], "scheme"),
        ([], "URL"),
        (["memory://", "--reprt", "x"], "--report"),
    ],
)
def test_conform_refuses_what_is_wrong_in_one_line(arguments: list[str], named: str, away: Path) -> None:
    done = python("-m", "rota", "conform", *arguments, folder=away)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert named in done.stderr


def test_conform_without_pytest_names_the_extra(tmp_path: Path) -> None:
    program = "import sys; sys.modules['pytest'] = None; from rota.cli import main; sys.exit(main(['conform', 'memory://']))"
    done = python("-c", program, folder=tmp_path)
    assert done.returncode == 2
    assert ".[testing]" in done.stderr
    assert "Traceback" not in done.stderr


def test_rota_without_the_suite_imports_neither_pytest_nor_hypothesis(tmp_path: Path) -> None:
    program = "import sys, rota, rota.client, rota.sqlite, rota.cli; print({'pytest', 'hypothesis', 'rota.testing'} & set(sys.modules))"
    assert python("-c", program, folder=tmp_path).stdout.strip() == "set()"
