# SPDX-License-Identifier: MIT
"""``rota conform URL``: hold a store to every clause, and say which passed, which it refuses, and which could not be run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

from rota.errors import ConfigurationError, RotaError

from . import _codes
from ._doctor import goodbye
from ._output import say, show
from ._parser import Parser
from ._progress import Ended, Progress, carry_out, ending

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

FAILED = 1
#: How long the names may take to be forgotten, one call of it, and the suite to end when a signal asks for it, seconds.
TIDYING, CALL, ENDING = 30.0, 5.0, 5.0
_DESCRIPTION = """\
Hold a store, and the backend that reaches it, to every clause of rota's
semantics, on the blocking and the async face. Name a store for tests: it writes
hundreds of names, conform-..., below the URL's prefix, some held for an hour,
and forgets them at the end; those of one that is killed stay."""

_AFTER = f"""\
  rota conform redis://test-host/9 --report conformance.json

Results: passed; passed in part (the reasons stand behind it); refused (the
backend declares that it can't, and says so); failed (details go to standard
error); not run (it needs a server that answers, or a hook that only a test
class can give, such as a clock that can be set).

Exit codes: 0 nothing failed; {FAILED} something failed; {_codes.USAGE} the command line or the URL
is wrong, or rota[testing] is missing; {_codes.UNAVAILABLE} no server answered."""


def conform(given: list[str]) -> int:
    """Run the conformance suite and show what each clause came to."""
    parser = Parser("conform", "rota conform [URL] [--report FILE]", _DESCRIPTION, _AFTER)
    parser.add_url("the store [ROTA_URL]", needed=True)
    parser.add_argument("--report", metavar="FILE", help="also write it all as JSON")
    found = parser.read(given)
    from importlib.util import find_spec

    missing = [name for name in ("pytest", "hypothesis") if find_spec(name) is None]
    if missing:
        say(f"rota conform needs {' and '.join(missing)}: install the extra: pip install '.[testing]'  (in a checkout)")
        return _codes.USAGE
    _check(found.url)
    names = f"conform-{os.urandom(4).hex()}-"
    report: Any = None
    with ending():
        try:
            report = _run(found.url, names)
        finally:
            if report is None or _has_run(report["runs"][0]["totals"]):  # else the server was away, and still is
                _tidy(found.url, names)
    if report is None:
        say("the suite did not come to its end: what pytest said is above")
        return _codes.INTERNAL
    if found.report is not None:
        import json

        try:
            with open(found.report, "w", encoding="utf-8") as file:
                file.write(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
        except OSError as error:
            say(f"the report can't be written to {found.report}: {error.strerror}")
            return _codes.USAGE
    return _show(report)


def _check(url: str) -> None:
    """Raise for a URL that is wrong; a server that does not answer is what the report says."""
    from rota._registry import backend

    loaded, parsed = backend(url)
    try:
        driver = loaded.driver(parsed)
    except RotaError:
        raise
    except Exception as error:
        raise ConfigurationError(f"the backend for {parsed.scheme}:// can't make a driver: {type(error).__name__}: {error}") from error
    import threading

    wrong: list[ConfigurationError] = []

    def ask() -> None:
        try:
            driver.read("conform", 5.0)
        except ConfigurationError as error:
            wrong.append(error)
        except Exception:
            return  # no server, or a fault of the backend: the report says it
        finally:
            with contextlib.suppress(Exception):
                driver.close()

    thread = threading.Thread(target=ask, daemon=True)  # a driver that waits for ever is what the suite will find
    thread.start()
    thread.join(30)
    if wrong:
        raise wrong[0]


def _has_run(totals: dict[str, int]) -> bool:
    return any(totals[result] for result in ("passed", "passed in part", "refused", "failed"))


def _tidy(url: str, names: str) -> None:
    """Forget what the suite has made, in bounded time; say what stays."""
    from rota._registry import backend

    loaded, parsed = backend(url)
    driver = loaded.driver(parsed)
    base = f"{parsed.prefix}/{names}" if parsed.prefix else names
    progress = Progress()
    progress.doing, progress.done = "forgetting what the tests have made ...", -1.0

    def forget() -> None:
        for prefix in (base, base.upper(), f"x{base}"):  # the others are of the test that a list keeps apart
            after = ""
            while page := driver.list(prefix, CALL, after=after):
                after = page[-1].name
                for record in page:
                    if record.kind:
                        driver.forget(record.name, CALL)

    try:
        if carry_out(forget, progress, TIDYING):
            return
        why = f"it took longer than {TIDYING:g}s"
    except Exception as error:
        why = str(error)
    finally:
        goodbye(driver.close)
    say(f"names that start with {names} stay, some held for an hour, as they could not be forgotten: {why}")


def _run(url: str, names: str) -> Any:
    """Run pytest in a process of its own, away from any project's settings; return the report, None where there is none.

    Args:
        url: The store.
        names: What all names that are used begin with.
    """
    import json
    import tempfile

    import rota

    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    here = os.path.dirname(os.path.dirname(os.path.abspath(rota.__file__)))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    environment["ROTA_CONFORM_NAMES"] = names
    environment["ROTA_CONFORM_URL"] = url  # not an argument, which everybody on the host can read
    with tempfile.TemporaryDirectory(prefix="rota-conform-") as folder:
        file = os.path.join(folder, "report.json")
        command = [sys.executable, "-P", "-m", "pytest", "--pyargs", "rota.testing.suite", "-p", "rota.testing.plugin"]
        command += ["-c", os.devnull, "--rootdir", folder, "-p", "no:cacheprovider", "-q", "--tb=short", "--rota-report", file]
        with tempfile.TemporaryFile() as said:
            if _run_suite(command, environment, said):
                said.seek(0)
                _pass_on(said.read())
        try:
            with open(file, encoding="utf-8") as written:
                report = json.load(written)
        except (OSError, ValueError):
            return None
    return report if report["runs"] else None


def _run_suite(command: list[str], environment: dict[str, str], said: IO[bytes]) -> int:
    """Run pytest, whose output goes to a file, and show how far it is; return its exit code."""
    progress = Progress()
    progress.doing = "collecting the tests ..."
    codes: list[int] = []
    started: list[subprocess.Popen[bytes]] = []

    def run() -> None:
        reading, writing = os.pipe()
        with open(reading, encoding="ascii") as told:
            with open(writing, "wb", buffering=0):
                suite = subprocess.Popen(
                    [*command, "--rota-progress", str(writing)],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    pass_fds=(writing,),
                    start_new_session=True,
                )
                started.append(suite)
            for line in told:
                done, total = map(int, line.split())
                progress.doing, progress.done = f"{done} of {total} tests ...", done / total
            codes.append(suite.wait())

    try:
        carry_out(run, progress, float("inf"))
    except Ended:
        for suite in started:
            suite.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                suite.wait(ENDING)
            with contextlib.suppress(ProcessLookupError):  # nor may what the tests have started use the store any more
                os.killpg(suite.pid, signal.SIGKILL)
            suite.wait()
        raise
    return codes[0]


def _pass_on(output: bytes) -> None:
    """Say what pytest said, of which there may be more than a pipe holds."""
    with contextlib.suppress(OSError):
        while output:
            output = output[os.write(2, output) :]


def _show(report: Any) -> int:
    run = report["runs"][0]
    where = f"{run['url']}  server {run['server'] or 'unknown'}"
    lines = [
        f"{where}  rota {report['rota']}, contract {report['contract']}, Python {report['python']}",
        "  ".join(f"{name}={_word(value)}" for name, value in run["capabilities"].items()),
        "",
    ]
    wide = max(map(len, run["clauses"]))
    totals = run["totals"]
    last = "clauses: " + ", ".join(f"{count} {result}" for result, count in totals.items())
    reasons = {test.get("why", "") for found in run["clauses"].values() for test in found["tests"].values()}
    if not _has_run(totals) and len(reasons) == 1:
        show("\n".join([*lines, last]) + "\n")  # a line for each clause would say the same of each
        say(f"nothing was run: {reasons.pop()}")
        return _codes.UNAVAILABLE
    for clause, found in run["clauses"].items():
        # what was refused or not run says why, in words that begin with that
        came = [test["result"] if test["result"] in ("passed", "failed") else test.get("why", "") for test in found["tests"].values()]
        counts = "; ".join(f"{came.count(what)} {what}" for what in sorted(set(came), key=lambda what: (what != "passed", what)))
        lines.append(f"{clause:{wide}}  {found['result']:14}  {counts}")
        lines += [f"{'':{wide}}    {name}: {test.get('why', '')}" for name, test in found["tests"].items() if test["result"] == "failed"]
    lines += ["", last]
    show("\n".join(lines) + "\n")
    if totals["failed"]:
        return FAILED
    if not totals["passed"] and not totals["passed in part"] and not totals["refused"]:
        say(f"nothing was run: {sorted(reasons)[0]}")
        return _codes.UNAVAILABLE
    return 0


def _word(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value).lower() if isinstance(value, bool) else str(value)
