# SPDX-License-Identifier: MIT
"""The README's first two commands do what it says, in a fresh copy, for whoever has Python and nothing else."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from servers import as_user

pytestmark = pytest.mark.clone


class Place(NamedTuple):
    """A fresh copy of the repository that belongs to a user, and that user's empty environment."""

    copy: Path
    environment: dict[str, str]
    user: pwd.struct_passwd

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command line of the README there. Output is kept apart, and shown by pytest where the test fails."""
        shell, other = ["sh", "-c", command], self.user.pw_uid != os.geteuid()
        result = subprocess.run(
            as_user(str(self.user.pw_uid), str(self.user.pw_gid), shell) if other else shell,
            cwd=self.copy,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        print(f"$ {command}\n{result.stdout}{result.stderr}[{result.returncode}]")
        return result


@pytest.fixture(scope="module")
def commands(root: Path) -> list[str]:
    """The README's first two blocks of shell commands."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (root / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 2, "README.md is to begin with two ```sh blocks: how to try rota, and how to run the tests"
    return [block.strip() for block in blocks[:2]]


@pytest.fixture(params=["same user", "another user"])
def place(request: pytest.FixtureRequest, files: list[Path], root: Path, base_python: str) -> Iterator[Place]:
    user = pwd.getpwuid(os.geteuid())
    if request.param == "another user":
        if os.geteuid() != 0:
            pytest.skip("only root can become another user")
        user = pwd.getpwnam("nobody")
        base_python = python_for(user, base_python)
    # Not tmp_path: its parents are closed to other users.
    with tempfile.TemporaryDirectory(prefix="rota-clone-") as name:
        top = Path(name)
        top.chmod(0o755)
        for path in files:
            (top / "rota" / path.parent).mkdir(parents=True, exist_ok=True)
            shutil.copy(root / path, top / "rota" / path)
        (top / "home").mkdir()
        (top / "bin").mkdir()
        (top / "bin/python3").symlink_to(base_python)  # only as `python3`: what else may lie beside it is not promised to be there
        if user.pw_uid != os.geteuid():
            subprocess.run(["chown", "-R", f"{user.pw_uid}:{user.pw_gid}", top], check=True)
        environment = {"PATH": f"{top}/bin:/usr/bin:/bin", "HOME": f"{top}/home"}
        yield Place(top / "rota", environment, user)


def python_for(user: pwd.struct_passwd, base_python: str) -> str:
    """A Python that this user may run; the one of the tests may lie in a closed home."""
    for candidate in (base_python, "/usr/bin/python3"):
        try:
            version = subprocess.run(
                as_user(str(user.pw_uid), str(user.pw_gid), [candidate, "-I", "-c", "import sys; print(sys.version_info >= (3, 11))"]),
                cwd="/",
                capture_output=True,
                check=True,
                text=True,
            ).stdout
        except (OSError, subprocess.CalledProcessError):
            continue
        if version.strip() == "True":
            return candidate
    pytest.skip(f"no Python 3.11 that {user.pw_name} may run")


def test_the_first_command_runs_its_job_once_an_hour(commands: list[str], place: Place) -> None:
    first = place.run(commands[0])
    assert first.returncode == 0
    assert first.stdout == "the job runs\n"

    second = place.run(commands[0])
    assert second.returncode == 0
    assert second.stdout == ""
    # who handled it, and when
    assert f"{os.uname().nodename}:" in second.stderr
    assert re.search(r"\d\d:\d\d", second.stderr)


def test_the_second_command_prepares_and_runs_the_tests(commands: list[str], place: Place) -> None:
    assert re.fullmatch(r"python3 tests", commands[1])
    # The tests themselves are running just now: only see that pytest is reached, and that a later run finds all in place.
    first = place.run(f"{commands[1]} --version")
    assert first.returncode == 0
    assert "tests: making .venv" in first.stdout
    assert re.search(r"^pytest \d", first.stdout + first.stderr, re.MULTILINE)

    second = place.run(f"{commands[1]} --co -q tests/packaging/test_readme.py")
    assert second.returncode == 0
    assert "tests:" not in second.stdout


@pytest.mark.parametrize("place", ["same user"], indirect=True)
def test_what_the_readme_shows_later_works_once_it_is_installed_as_it_says(root: Path, place: Place) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    install, example = text.index("```console\n"), text.index("```python\n")
    assert text.index("python3 tests\n") < install < example
    lines = text[install:].split("```")[1].removeprefix("console\n")
    assert lines.count("\n") == 2
    program = Path(place.environment["HOME"]) / "example.py"
    program.write_text(text[example:].split("```")[1].removeprefix("python\n").replace("/tmp/", f"{place.environment['HOME']}/"))
    ended = place.run(f"set -e\n{lines}cd && rota run hello --every 1h -- echo ran && rota ls && command -v rota && python3 {program}")
    assert ended.returncode == 0
    assert "\nran\nhello\t" in ended.stdout
    assert f"\n{place.environment['HOME']}/rota/bin/rota\n" in ended.stdout
    assert "the report of " in ended.stdout
