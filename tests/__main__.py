# SPDX-License-Identifier: MIT
"""Run the tests: ``python3 tests [PYTEST ARGS…]``, from anywhere; paths in the arguments are relative to the repository.

The first run makes ``.venv`` in the repository, installs there what ``tests/requirements.txt`` names and every distribution of this
repository (editable), and installs the servers that the tests need (see ``server_packages.py``). Later runs go straight to pytest, until
the requirements, a distribution's metadata or the Python version change. Only the standard library is used here, and no uv; pip may be
as old as 23.0.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import server_packages

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "rota-tests.json"
TOOLS = HERE / ".tools"
REQUIREMENTS = HERE / "requirements.txt"
# In a virtual environment (perhaps ours): the Python it was made from.
BASE_PYTHON = getattr(sys, "_base_executable", None) or sys.executable
# Without arguments, all tests: by two processes, since most of their time is waiting (for a ttl to end, a server to start). A class or a
# file stays in one of them, with the servers that it started, in the order of the folders (and of tests/conftest.py: what looks at the
# outcome of others is last), and not of their numbers of tests, by which the few that take longest would come last.
ALL = ["-n", "2", "--dist", "loadscope", "--no-loadscope-reorder"]

#: A package of PYTHONPATH would be tested in the place of the checkout's; and without bytecode each of the many hundred interpreters that
#: the tests start would compile rota anew, and a pytest among them all of its plug-ins: several seconds each.
NOT_FOR_TESTS = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")


def main(arguments: list[str]) -> int:
    """Prepare what is missing, run pytest, and return its exit code (130 after Ctrl-C)."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is read before a version is required
        fail(f"rota needs Python 3.11 or newer; this is {sys.version.split()[0]}.")
    try:
        with one_at_a_time():
            prepare_venv()
            server_packages.provide(say, fail)
    except KeyboardInterrupt:
        say("stopped.")
        return 130
    # Not `pytest` by its script: a virtual environment may lie too deep for a #! line. -P: the repository's folders are no packages.
    return wait([str(PYTHON), "-P", "-m", "pytest", *(arguments or ALL)])


def prepare_venv() -> None:
    """Leave `VENV` as it is when it is right, else make it anew: what a removed requirement left behind must not help a test."""
    wanted = {
        "python": sys.version,
        "root": str(ROOT),  # scripts and editable installs hold this path
        "requirements": hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest(),
        "metadata": hashlib.sha256(json.dumps([metadata(path) for path in distributions()]).encode()).hexdigest(),
    }
    if is_right(wanted):
        return
    if VENV.exists() and not STAMP.exists():
        fail(f"{VENV} was not made by this command. Remove it (rm -r .venv), or run pytest in it yourself.")
    shutil.rmtree(VENV, ignore_errors=True)
    try:
        VENV.mkdir(exist_ok=True)
        STAMP.write_text("{}")  # first of all, so that an interrupted run is known as ours
    except OSError as error:
        fail(f"Can't make {VENV}: {error.strerror}.")
    make_venv()
    say("installing tests/requirements.txt")
    pip("install", "-r", str(REQUIREMENTS))
    names = [str(path.parent.relative_to(ROOT)) for path in distributions()]
    say("installing this repository's distributions: " + ", ".join("rota" if name == "." else name for name in names))
    # Without isolation: hatchling is there already, and is not fetched once more for each of them.
    pip("install", "--no-build-isolation", *(part for name in names for part in ("-e", "./" + name)))
    STAMP.write_text(json.dumps({**wanted, "installed": installed()}))


def is_right(wanted: dict[str, str]) -> bool:
    """Whether `VENV` was made completely, for this, still works, and lost nothing since (``uv sync`` may take things away)."""
    try:
        stamp = json.loads(STAMP.read_text())
        # -I: the probe is of the environment, not of what a PYTHONPATH adds.
        version = subprocess.run([PYTHON, "-I", "-c", "import sys; print(sys.version)"], check=True, capture_output=True, text=True).stdout
    except (OSError, ValueError, subprocess.CalledProcessError):
        return False
    kept = stamp.pop("installed", None)
    return stamp == wanted and kept is not None and version.rstrip("\n") == sys.version and set(kept) <= set(installed())


def make_venv() -> None:
    """Make `VENV` by the standard library, or where Debian split off the half of it that brings pip, by virtualenv."""
    say(f"making .venv (Python {sys.version.split()[0]})")
    if succeeds([BASE_PYTHON, "-c", "import ensurepip, venv"]) and succeeds([BASE_PYTHON, "-m", "venv", str(VENV)]):
        return
    if not succeeds([BASE_PYTHON, "-m", "pip", "--version"]):
        fail("This Python has neither venv nor pip. On Debian and Ubuntu type: apt-get install python3-venv")
    say("this Python has no venv: fetching virtualenv")
    # --target: a folder of our own, so that an externally managed Python (PEP 668) allows it, as root or not.
    step([BASE_PYTHON, "-m", "pip", "install", "-q", "--upgrade", "--target", str(TOOLS), "virtualenv"], "virtualenv could not be fetched")
    environment = {**os.environ, "PYTHONPATH": str(TOOLS)}
    step([BASE_PYTHON, "-m", "virtualenv", "-q", str(VENV)], "virtualenv could not make .venv", environment)


def distributions() -> list[Path]:
    """The pyproject.toml of every distribution of this repository, the core first."""
    return [ROOT / "pyproject.toml", *sorted(ROOT.glob("backends/*/pyproject.toml")), *sorted(ROOT.glob("contrib/*/pyproject.toml"))]


def metadata(pyproject: Path) -> list[object]:
    """What an editable install was made from: not the settings of tools, which change oftener and don't matter to it."""
    import tomllib

    content = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    return [str(pyproject), content.get("project"), content.get("build-system"), content.get("tool", {}).get("hatch")]


def installed() -> list[str]:
    """The distributions in `VENV`, as the names of their metadata folders."""
    return sorted(path.name for path in VENV.glob("lib/python*/site-packages/*.dist-info"))


def pip(*arguments: str) -> None:
    """Run pip of `VENV`. PIP_… variables and pip's own settings apply."""
    step([str(PYTHON), "-I", "-m", "pip", "--disable-pip-version-check", "-q", *arguments], "pip failed")


def step(command: list[str], sorry: str, environment: dict[str, str] | None = None) -> None:
    """Run a command quietly; where it fails, show what it said and stop."""
    result = run(command, environment)
    if result.returncode:
        print(result.stdout.rstrip(), file=sys.stderr)
        fail(f"{sorry}: see above. The command was: {' '.join(command)}")


def succeeds(command: list[str]) -> bool:
    return run(command).returncode == 0


def run(command: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError as error:
        fail(f"{command[0]} can't be run: {error.strerror}.")


def wait(command: list[str]) -> int:
    """Run pytest on this terminal. It hears Ctrl-C itself: let it tear down and report, and leave when it has."""
    environment = {name: value for name, value in os.environ.items() if name not in NOT_FOR_TESTS}
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    interrupted = False
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            interrupted = True
        else:
            # A negative code is a signal's number.
            return 130 if interrupted else code if code >= 0 else 128 - code


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Two runs in one checkout prepare it one after the other."""
    import fcntl

    folder = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def say(text: str) -> None:
    print(f"tests: {text}", flush=True)


def fail(text: str) -> NoReturn:
    print(f"tests: {text}", file=sys.stderr, flush=True)
    raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
