# SPDX-License-Identifier: MIT
"""etcd:// is held to every clause: one member, with own and with shared leases, and three with a user and TLS.

That goes on beside the other tests, since these wait most of the time.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from beside.etcd_clauses import PARTS, VARIANTS, ended, output
from servers import program, wait_until


@pytest.mark.beside("etcd_clauses")
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_clause_holds(etcd_clauses: Path, variant: str, part: str) -> None:
    program("etcd")
    code, said = ended(etcd_clauses, variant, part), output(etcd_clauses, variant, part)
    wait_until(code.exists, 600, f"{variant}, {part}")
    if code.read_text() != "0":
        pytest.fail(said.read_text(), pytrace=False)
    assert " passed" in said.read_text()
