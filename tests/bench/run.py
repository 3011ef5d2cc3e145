# SPDX-License-Identifier: MIT
"""Run every benchmark beside this file from an installed wheel, and print one summary: ``python tests/bench/run.py [--rounds N]``.

Builds the wheel of this checkout, makes a virtual environment in a temporary folder, installs the wheel there with bytecode, and runs each
benchmark with that Python, one after the other. Ends with code 1 when a median is over its bound.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from rounds import ROUNDS, Figure, show

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BENCHMARKS = ("overhead", "schedules", "startup")


def install(folder: Path) -> Path:
    """Install this checkout's wheel, compiled, in an environment of its own; return its Python."""
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder / "wheel", ROOT], check=True)
    (wheel,) = (folder / "wheel").glob("rota-*.whl")
    venv.create(folder / "venv", with_pip=True, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--compile", wheel], check=True)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("benchmark", nargs="*", default=list(BENCHMARKS))
    options = parser.parse_args()
    kept = True
    with tempfile.TemporaryDirectory() as temporary:
        python = install(Path(temporary))
        version = subprocess.run([python, "-VV"], check=True, capture_output=True, text=True).stdout.strip()
        print(f"{version}, medians of {options.rounds} interleaved rounds")
        for name in options.benchmark:
            command = [python, HERE / f"{name}.py", "--json", "--rounds", str(options.rounds)]
            run = subprocess.run(command, capture_output=True, text=True, cwd=temporary)
            figures = [Figure(**json.loads(line)) for line in run.stdout.splitlines()]
            print(f"\n{name}")
            show(figures)
            if run.returncode not in (0, 1) or not figures:
                print(run.stderr, end="")
                kept = False
            kept = kept and all(figure.kept for figure in figures)
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
