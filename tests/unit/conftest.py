# SPDX-License-Identifier: MIT
"""The worlds of ``tests/faults``, for the cases that need a store."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_path = Path(__file__).parents[1] / "faults" / "conftest.py"
_spec = importlib.util.spec_from_file_location("rota_test_worlds", _path)
assert _spec is not None
assert _spec.loader is not None
_worlds = sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_worlds)

kind, face, world, live = _worlds.kind, _worlds.face, _worlds.world, _worlds.live
program = _worlds.program
