# SPDX-License-Identifier: MIT
"""What README and docs show is run, and prints what they say it prints; what they list is what the code has."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import rota
from rota import errors
from rota.backend import Record
from rota.cli import _codes, _help
from rota.cli._options import OPTIONS, WHEN, RunOptions, variable
from rota.cli._variables import KNOWN
from rota.history import Run
from rota.url import parse

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BACKENDS = sorted((ROOT / "backends").glob("*/README.md"))
#: Its blocks are the files of one distribution: tests/conformance puts them together and holds them to the suite.
GUIDE = "writing-a-backend.md"
#: What its blocks of Python are called there.
GUIDES_FILES = ("rota_folder", "conftest", "test_folder")
#: Where examples keep their stores: each test has a folder of its own in their place.
FOLDERS = ("/var/lib/rota/", "/tmp/")


class Block(NamedTuple):
    """A fenced block, and the ```text block that follows it at once: what it prints, with ... for what differs from run to run."""

    page: Path
    line: int
    language: str
    text: str
    prints: str | None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def _blocks(pages: list[Path]) -> Iterator[Block]:
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"^```(\w*)\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", text, re.DOTALL | re.MULTILINE):
            if match[1] != "text":
                yield Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2], match[3])


BLOCKS = list(_blocks(PAGES))


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language and block.page.name != GUIDE]


@pytest.fixture
def environment(tmp_path: Path, slots_with_time_left: None) -> dict[str, str]:
    """An empty home, a folder for the stores, and a command `rota` that is this checkout's."""
    (tmp_path / "store").mkdir()
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "rota"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m rota "$@"\n')
    command.chmod(0o755)
    path = os.pathsep.join([str(Path(rota.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path), "PYTHONPATH": path, "PYTHONWARNINGS": "error"}


@pytest.fixture
def slots_with_time_left() -> None:
    """Wait at the end of ten minutes until the next ones have begun: examples that show one slot mean one."""
    while time.time() % 600 > 590:
        time.sleep(0.1)


def run(block: Block, command: list[str], environment: dict[str, str], folder: Path) -> str:
    text = block.text
    for shared in FOLDERS:
        text = text.replace(shared, f"{folder}/store/") if str(folder) not in text else text
    result = subprocess.run(
        [*command, text],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, f"{block}\n{result.stdout}"
    return result.stdout


def assert_prints(block: Block, printed: str) -> None:
    if block.prints is not None:
        pattern = ".*".join(re.escape(part) for part in block.prints.split("..."))
        assert re.fullmatch(pattern, printed), f"{block} printed\n{printed}instead of\n{block.prints}"


def is_run(block: Block) -> bool:
    return block.language == "python" or (block.language == "sh" and block.text.startswith("rota "))


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != GUIDE], ids=lambda page: page.name)
def test_a_page_that_is_followed_from_its_top_prints_what_it_says(page: Path, environment: dict[str, str], tmp_path: Path) -> None:
    """In one folder: what an earlier example has made is there for the later ones."""
    for block in filter(is_run, [block for block in BLOCKS if block.page == page]):
        command = ["sh", "-ec"] if block.language == "sh" else [sys.executable, "-P", "-c"]
        assert_prints(block, run(block, command, environment, tmp_path))


def test_the_readme_begins_with_the_two_commands_one_line_each() -> None:
    first, second = [block for block in of("sh") if block.page.name == "README.md"][:2]
    assert first.text == (
        "python3 -m pip install -q --upgrade --target .try . && "
        'PYTHONPATH=.try python3 -m rota run hello --every 1h -- echo "the job runs"\n'
    )
    assert second.text == "python3 tests\n"
    assert BLOCKS.index(second) == 1


def test_the_readmes_example_is_run_twice_and_works_once(environment: dict[str, str], tmp_path: Path) -> None:
    (example,) = [block for block in of("python") if block.page.name == "README.md"]
    command = [sys.executable, "-P", "-c"]
    assert re.fullmatch(r"the report of \d\d \w+ \d{4}, written with token \d+\n", run(example, command, environment, tmp_path))
    assert re.fullmatch(r"nightly-report: the slot of \S+Z was handled by \S+ at \S+Z\n", run(example, command, environment, tmp_path))


#: What `if verdict:` and the verbs come to for a type checker, on either face; and a line that it must refuse, or it has seen nothing.
TYPED = """
from typing import assert_type

import rota


def start_of(grant: rota.Grant) -> int:
    return grant.slot.start if grant.slot is not None else 0


with rota.connect("memory://") as client:
    window, lease = client.try_window("window", rota.Every("1h")), client.try_lease("lease")
    if window:
        assert_type(window, rota.Grant[rota.Slot])
        start_of(window)
    else:
        assert_type(window, rota.Refused)
    if not lease:
        lease.raise_()
    assert_type(lease, rota.Grant[None])
    start_of(lease)
    with client.window("other", rota.Every("1h")) as won, client.once("once", "1h") as period:
        assert_type((won.slot, period.slot), tuple[rota.Slot, rota.Slot])


async def main() -> None:
    async with rota.connect_async("memory://") as client:
        verdict = await client.try_once("once", "1h")
        if verdict:
            assert_type(verdict, rota.AsyncGrant[rota.Slot])
        else:
            assert_type(verdict.how, str)
        async with client.window("window", rota.Every("1h")) as grant:
            assert_type(grant.slot, rota.Slot)
        print(grant.how)
"""


def test_a_type_checker_has_nothing_to_say_of_the_blocks_of_python(tmp_path: Path) -> None:
    """In the strict way, but that the guide for authors of backends leaves its functions without annotations."""
    guides = iter(GUIDES_FILES)
    for block in _blocks([*PAGES, *BACKENDS]):
        if block.language == "python":
            page = re.sub(r"\W", "_", str(block.page.relative_to(ROOT)))
            name = next(guides) if block.page.name == GUIDE else f"{page}_{block.line}"
            text = "\n" * block.line + block.text  # so that it names the page's lines
            (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    (tmp_path / "typed.py").write_text(TYPED, encoding="utf-8")
    guide = "\n".join(f"[mypy-{name}]\ndisallow_untyped_defs = False\ndisallow_untyped_calls = False" for name in GUIDES_FILES)
    # whose drivers have no types is not what this is about
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nstrict = True\nfollow_imports = silent\n{guide}\n", encoding="utf-8")
    sources = os.pathsep.join(map(str, [ROOT / "core", *(page.parent / "src" for page in BACKENDS)]))
    result = subprocess.run(
        [sys.executable, "-P", "-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache" / "docs"), "--no-error-summary", "."],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": sources},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    *wrong, expected = result.stdout.splitlines()
    assert not wrong, result.stdout
    assert re.fullmatch(r'typed\.py:\d+: error: "AsyncGrant\[Slot\]" has no attribute "how" .*', expected)


def _commands() -> Iterator[tuple[str, list[str], str]]:
    """Each `rota run` in a crontab or a CronJob: where, its words, and the schedule by which it is started."""
    for block in of("crontab"):
        for line in block.text.splitlines():
            schedule, _, command = line.partition("  ")
            if re.match(r"[A-Z_]+=", line):  # no job, but a variable for those below it
                continue
            assert "%" not in command  # which would end it
            yield str(block), shlex.split(command), schedule
    for block in of("yaml"):
        match = re.search(r"^ *command: (\[.*\])$", block.text, re.MULTILINE)
        schedule = re.search(r'^ *schedule: "(.*)"$', block.text, re.MULTILINE)
        assert match is not None
        yield str(block), json.loads(match[1]), "@reboot" if schedule is None else schedule[1]


COMMANDS = list(_commands())


@pytest.mark.parametrize(("words", "schedule"), [pytest.param(words, schedule, id=where) for where, words, schedule in COMMANDS])
def test_crontabs_and_cronjobs_in_the_docs_are_understood_and_start_when_their_slots_do(words: list[str], schedule: str) -> None:
    assert words[:2] == ["rota", "run"]
    options = RunOptions(words[2:])
    assert options.command
    if schedule != "@reboot":
        made = options.schedule()
        assert made is not None
        assert made == rota.Cron(schedule, tz=made.tz)


def test_a_store_in_a_crontab_has_a_line_of_its_own_and_is_a_url() -> None:
    """In a job's line its password would be seen, and end the command at a `%`."""
    lines = [line for block in of("crontab") for line in block.text.splitlines()]
    set_there = [line.partition("=")[::2] for line in lines if line.startswith("ROTA_")]
    assert [name for name, _ in set_there] == ["ROTA_URL"]
    assert "%" in set_there[0][1]
    assert parse(set_there[0][1]).scheme == "postgresql"
    assert not any(re.search(r"://\S*@", line) for line in lines if not line.startswith("ROTA_URL="))


def test_the_exit_codes_are_the_commands() -> None:
    table = re.findall(r"^\| (\d+) \| ([\w -]+) \| (.*) \|$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted((int(code), word, says.replace("`", "")) for code, word, says in table) == sorted(_codes.TABLE)


def test_every_backend_of_the_readme_says_whether_it_is_there() -> None:
    rows = re.findall(r"^\| `(\w+)://\S*` \| .* \| (.*) \|$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {scheme for scheme, _ in rows} == {"sqlite", "memory", "postgresql", "redis", "zookeeper", "etcd"}
    from rota._registry import EMBEDDED

    for scheme, state in rows:
        assert (state == "in this version") == (scheme in EMBEDDED)


def test_every_clause_is_there_once_and_in_order() -> None:
    """L, W, R and F are numbered without a gap; what the code cites exists."""
    clauses = re.findall(
        r"^ *(?:- )?\*\*([LWRF]\d+[a-d]?)(?:\*\*|\.)", (ROOT / "docs/semantics.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    expected = ["W0", *[f"L{n}" for n in range(1, 13)]]
    for n in range(1, 13):
        expected += [f"W{n}", *([f"W3{letter}" for letter in "abcd"] if n == 3 else [])]
    expected += ["R1", "R2", "R3", *[f"F{n}" for n in range(1, 6)]]
    assert clauses == expected
    for source in (ROOT / "core" / "rota").rglob("*.py"):
        cited = re.findall(r"\b[LWRF]\d{1,2}[a-d]?\b", source.read_text(encoding="utf-8"))
        assert set(cited) - set(expected) == set(), source


LINKS = [(page, target) for page in PAGES for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("page", "target"), LINKS, ids=lambda value: getattr(value, "name", value))
def test_links_lead_somewhere(page: Path, target: str) -> None:
    file, _, anchor = target.partition("#")
    there = (page.parent / file).resolve() if file else page
    assert there.is_file()
    if anchor:
        headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_option_in_python_is_on_its_page() -> None:
    """Each in the table of what it belongs to, with the clause behind it where it is one of a claim."""
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    named = {
        title: re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]* \| (.*) \|$", text, re.MULTILINE)
        for title, text in re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    }
    for title, options in (
        ("lease, window and once", rota.LeaseOptions),
        ("window", rota.WindowOptions),
        ("once", rota.OnceOptions),
    ):
        assert [name for name, _ in named[title]] == list(options.__annotations__)
        assert all(re.search(r"\([A-Z]\d+[a-d]?(, [A-Z]\d+)?\)", says) for _, says in named[title])
        for name in options.__annotations__:
            assert f"        {name}: " in (options.__doc__ or "")
            assert any(f"``{name}``" in (verb.__doc__ or "") for verb in (rota.Client.lease, rota.Client.window, rota.Client.once))
    for connect in (rota.connect, rota.connect_async):
        assert [name for name, _ in named["connect and connect_async"]] == list(inspect.signature(connect).parameters)


def _rows(title: str) -> dict[str, tuple[str, str]]:
    """The table of three columns under a title of the page on Python: the second and the third by the first."""
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w()]+)` \| ([^|]*) \| (.*) \|$", text, re.MULTILINE)
    assert len(dict.fromkeys(name for name, _, _ in rows)) == len(rows) > 0
    return {name: (kind, says) for name, kind, says in rows}


#: What the page calls a type.
TYPES = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "`True` or `False`",
    type(None): "`None`",
    tuple: "tuple of texts",
    rota.Slot: "`Slot`",
    rota.Missed: "`Missed`",
    Record: "`Record`",
    Run: "`Run`",
    rota.Unavailable: "`Unavailable`",
}


def _verdicts(store: Path) -> tuple[list[rota.Grant], list[rota.Refused]]:
    """Grants and refusals of each kind."""
    won, refused = [], []
    with rota.connect(f"sqlite://{store}") as client:
        asks = (
            lambda: client.try_lease("lease"),
            lambda: client.try_window("window", rota.Every("300d")),
            lambda: client.try_once("once", "1h"),
        )
        for ask in asks:
            won.append(ask())
            refused.append(ask())
            won[-1].__exit__(None, None, None)
        refused += [ask() for ask in asks[1:]]
        refused += [client.try_window("other", rota.Every("1h"), planned=time.time() + hours * 3600) for hours in (-100, 100)]
        locks = sqlite3.connect(store, isolation_level=None)
        locks.execute("BEGIN IMMEDIATE")
        won.append(client.try_once("away", "1h", on_unavailable="run", timeout="50ms"))
        refused.append(client.try_lease("away", on_unavailable="skip", timeout="50ms"))
        locks.close()
        won[-1].failed()
    assert all(won)
    assert {verdict.verdict for verdict in refused} == {"busy", "handled", "late", "early", "unavailable"}
    return won, refused


def test_what_grants_and_refusals_have_is_on_the_page_with_its_type(tmp_path: Path) -> None:
    """Each value of each kind has a type that the page names, and each type that it names occurs."""
    won, refused = _verdicts(tmp_path / "store.db")
    for title, of, verdicts in (("A grant", rota.Grant, won), ("A refusal", rota.Refused, refused)):
        rows = _rows(title)
        public = {name: getattr(of, name) for name in dir(of) if not name.startswith("_")}
        assert rows.keys() == {f"{name}()" if inspect.isfunction(value) else name for name, value in public.items()}
        for name, (kinds, says) in rows.items():
            if name in ("check()", "handled()", "failed()", "unused()", "release()"):
                assert kinds == "`None`"
                assert inspect.get_annotations(public[name[:-2]])["return"] == "None"
            elif name == "raise_()":
                assert inspect.get_annotations(public["raise_"])["return"] == "NoReturn"
            elif name == "error()":
                assert all(isinstance(verdict.error(), rota.RotaError) for verdict in verdicts)
            else:
                values = [getattr(verdict, name.removesuffix("()")) for verdict in verdicts]
                values = [value() if name.endswith("()") else value for value in values]
                seen = {TYPES[next(kind for kind in type(value).__mro__ if kind in TYPES)] for value in values}
                assert seen == set(kinds.split(", or ")), name
                if seen & {"number", "whole number"} and name not in ("token", "attempt"):
                    assert ("*seconds*" in says) == ("number" in seen), name
                    assert ("*microseconds*" in says) == ("whole number" in seen), name
    own = {name for name in dir(rota.AsyncGrant) if not name.startswith("_")}
    assert own == {name for name in dir(rota.Grant) if not name.startswith("_")}
    awaited = {name for name in own if inspect.iscoroutinefunction(getattr(rota.AsyncGrant, name))}
    assert awaited == {"handled", "failed", "unused", "release"}


def test_every_exception_is_on_the_page_with_what_it_is_a_kind_of() -> None:
    rows = _rows("Exceptions")
    raised = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}
    assert all(getattr(rota, name) is kind for name, kind in raised.items())
    assert {name: kinds for name, (kinds, _) in rows.items()} == {
        name: ", ".join(f"`{base.__name__}`" for base in kind.__bases__) for name, kind in raised.items()
    }


def test_a_page_sends_to_the_help_that_has_it() -> None:
    """The short help has not all; and what a page names in the environment is read, or given to the command."""
    options = {variable(option) for option in (*WHEN, *OPTIONS)}
    for page in (page for page in PAGES if page.name != GUIDE):
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"ROTA_[A-Z]+(?:_[A-Z]+)*", text)) <= KNOWN, page
        for sentence in re.findall(r"[^.]*`rota run --help`[^.]*\.", text):
            assert "`rota help run`" in sentence or not re.search(r"the rest|lists|all ", sentence), page
    everything = _help.everything()
    assert all(f"--{name[5:].lower().replace('_', '-')} " in everything for name in options)
