# SPDX-License-Identifier: MIT
"""What is shipped, what is in git, and what they must not hold."""

from __future__ import annotations

import re
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

SPDX = re.compile(r"(#|--) SPDX-License-Identifier: MIT\n")

# Written so that no pattern matches its own line.
FOREIGN = {
    "a package registry's host": r"\bpypi\.org|pythonhosted\.org|npmjs\.org|\bcrates\.io|proxy\.golang\.org|\brepo1?\.maven\.org"
    r"|\b(deb|security|snapshot)\.debian\.org|\barchive\.ubuntu\.com",
    "a path of one machine": r"(?<![\w.~])/(wor[k]|roo[t]|hom[e]/\w+|User[s]/\w+)(/|\b(?!/))",
}


def load(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def pyprojects(files: list[Path], root: Path) -> dict[Path, dict[str, Any]]:
    found = {path: load(root / path) for path in files if path.name == "pyproject.toml"}
    return {path: content for path, content in found.items() if "project" in content}


def test_the_wheel_holds_the_package_and_its_license_only(built: tuple[Path, Path], files: list[Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
        information = next(name for name in names if name.endswith(".dist-info/METADATA"))
        text = wheel.read(information).decode()
    package = {str(path.relative_to("core")) for path in files if path.is_relative_to("core/rota")}
    extra = {name for name in names if ".dist-info/" not in name} - package
    assert not extra
    assert not package - names, "in git and not in the wheel"
    assert "rota/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert "\nLicense-Expression: MIT\n" in text
    assert "\nRequires-Python: >=3.11\n" in text


def test_the_sdist_holds_what_the_wheel_is_built_from_and_no_more(built: tuple[Path, Path], files: list[Path]) -> None:
    with tarfile.open(built[1]) as sdist:
        names = {name.split("/", 1)[1] for name in sdist.getnames()}
    package = {str(path) for path in files if path.is_relative_to("core/rota")}
    # hatchling adds .gitignore, so that a build from the sdist leaves out the same files.
    assert names == package | {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO", ".gitignore"}


def test_all_distributions_have_the_version_of_the_core(pyprojects: dict[Path, dict[str, Any]], root: Path) -> None:
    literal = re.search(r'^__version__(?:: \w+)? = "(.+)"$', (root / "core/rota/__init__.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert literal, "rota.__version__ is to be a literal"
    assert {str(path): content["project"].get("version") for path, content in pyprojects.items()} == dict.fromkeys(
        map(str, pyprojects), literal[1]
    )


def test_every_distribution_is_complete(pyprojects: dict[Path, dict[str, Any]], files: list[Path]) -> None:
    wrong = []
    for path, content in pyprojects.items():
        project, folder = content["project"], path.parent
        inside = [file.relative_to(folder) for file in files if file.is_relative_to(folder)]
        package = Path("core/rota") if folder == Path() else Path("src")
        if not any(file.name == "py.typed" and file.is_relative_to(package) for file in inside):
            wrong.append(f"{path}: no py.typed in {package}")
        wrong += [f"{folder / name} is missing" for name in ("LICENSE", "README.md") if Path(name) not in inside]
        expected = {"license": "MIT", "license-files": ["LICENSE"], "readme": "README.md", "requires-python": ">=3.11"}
        wrong += [f"{path}: {key} is to be {value!r}" for key, value in expected.items() if project.get(key) != value]
    assert not wrong


def test_the_requirements_of_the_tests_are_the_dev_group(root: Path) -> None:
    lines = (root / "tests/requirements.txt").read_text(encoding="utf-8").splitlines()
    workspace = {path.parent.name for path in root.glob("*/*/pyproject.toml")}
    group = [line for line in load(root / "pyproject.toml")["dependency-groups"]["dev"] if line.removeprefix("rota-") not in workspace]
    assert [line for line in lines if line and not line.startswith("#")] == group


def test_every_source_file_names_its_license(files: list[Path], root: Path) -> None:
    wrong = []
    for path in files:
        if path.suffix in {".py", ".lua", ".sql"}:
            first, _, rest = (root / path).read_text(encoding="utf-8").partition("\n")
            if not SPDX.match(f"{first}\n") and not (first.startswith("#!") and SPDX.match(rest)):
                wrong.append(str(path))
    assert not wrong


@pytest.mark.parametrize("pattern", FOREIGN.values(), ids=FOREIGN.keys())
def test_no_file_names(pattern: str, files: list[Path], root: Path) -> None:
    found = [
        f"{path}:{number}: {line.strip()[:160]}"
        for path in files
        for number, line in enumerate((root / path).read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert not found


def test_no_lock_file_is_in_git(files: list[Path]) -> None:
    # A library is tested with the newest versions that its users may have.
    assert not [str(path) for path in files if path.name == "uv.lock"]
