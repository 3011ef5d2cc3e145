# SPDX-License-Identifier: MIT
"""Another process on the store under test: run as a script, so that neither pytest nor the suite is imported.

It reads JSON lines. First ``{"url": …}``, answered by ``"ready"``; then either ``{"at": …, "gap": …, "claims": […]}``: make each claim at
its instant of the monotonic clock, which all processes of a host share, and answer with the verdicts; or ``{"hammer": claim}``: claim and
settle without end.
"""

from __future__ import annotations

import json
import os
import sys
import time

from rota import _registry
from rota.backend import RELEASED, Claim, Driver, Settlement

PATIENCE = 10.0


def main() -> None:
    """Do what the lines say."""
    driver: Driver | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if driver is None:
                found, url = _registry.backend(asked["url"])
                driver = found.driver(url)
                driver.read(asked["name"], PATIENCE)
                say("ready")
            elif "hammer" in asked:
                hammer(driver, Claim(*asked["hammer"]))
            else:
                say(race(driver, [Claim(*claim) for claim in asked["claims"]], asked["at"], asked["gap"]))
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})


def race(driver: Driver, claims: list[Claim], at: float, gap: float) -> list[str]:
    """Return the verdict of each claim."""
    verdicts = []
    for number, claim in enumerate(claims):
        while (left := at + number * gap - time.monotonic()) > 0:
            time.sleep(left)
        verdicts.append(driver.claim(claim, PATIENCE).verdict)
    return verdicts


def hammer(driver: Driver, claim: Claim) -> None:
    """Claim and settle until this process is killed."""
    while True:
        claim = claim._replace(owner=os.urandom(16).hex())
        driver.claim(claim, PATIENCE)
        driver.settle(Settlement(claim.name, claim.owner, RELEASED, claim.retention), PATIENCE)
        if os.getppid() == 1:
            return  # nobody is left to kill it


def say(what: object) -> None:
    """Answer with a line."""
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
