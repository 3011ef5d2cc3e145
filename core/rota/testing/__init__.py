# SPDX-License-Identifier: MIT
"""The conformance suite: every clause of ``docs/semantics.md`` as a test that any backend can be held to, on both faces.

    # conftest.py
    pytest_plugins = ["rota.testing.plugin"]

    # test_mine.py
    import rota.testing

    class TestMine(rota.testing.Conformance):
        url = "mine://localhost/conformance"

Optional hooks (see `Clauses`): ``raw``, ``spoil``, ``hang``, ``clock``, ``driver``, ``pass_time``. Needs the extra ``rota[testing]``; only
this package imports pytest and Hypothesis. ``rota conform URL`` runs the same from the command line.
"""

from __future__ import annotations

import pytest

# before they are imported: their bare asserts are to say what they compared
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in (
            "base",
            "clauses_capabilities",
            "clauses_crowds",
            "clauses_failing",
            "clauses_holding",
            "clauses_keeping",
            "clauses_leases",
            "clauses_lives",
            "clauses_slots",
            "clauses_steps",
            "clauses_times",
            "faces",
        )
    ),
)

from .clauses_capabilities import Capabilities  # noqa: E402
from .clauses_crowds import Crowds  # noqa: E402
from .clauses_failing import Failing  # noqa: E402
from .clauses_holding import Holding  # noqa: E402
from .clauses_keeping import Keeping  # noqa: E402
from .clauses_leases import Leases  # noqa: E402
from .clauses_lives import Lives  # noqa: E402
from .clauses_slots import Slots  # noqa: E402
from .clauses_steps import Steps  # noqa: E402
from .clauses_times import Times  # noqa: E402
from .clock import Clock  # noqa: E402


class Conformance(Leases, Holding, Slots, Lives, Times, Keeping, Failing, Capabilities, Crowds, Steps):
    """All clauses."""


__all__ = ["Clock", "Conformance"]
