# SPDX-License-Identifier: MIT
"""The scripts give the answers of `rota.rules`, the reference: random requests to both, the memory model at the time of each answer."""

from __future__ import annotations

import random
import time

import pytest
from rota.backend import Claim, Override, Renewal, Settlement, WriteBack
from rota.duration import DAY
from rota.memory import MemoryDriver, MemoryStore
from rota.url import parse
from rota_redis import RedisBackend

STEPS = 2500
OWNERS = [f"{number:032x}" for number in range(1, 9)]
TEXTS = ["", "0 2 * * *", "every 1h", "naïve 時", "a|b\t%0A"]
#: What must have come up: verdicts, renewals held and not, settlements by whether they were applied and their lease had run out.
EVERY = {"won", "busy", "handled", "early", "late", "stale", "mismatch", "finished", True, False}
EVERY |= {("settled", True, True), ("settled", True, False), ("settled", False, False)}
RESULTS = ["released", "handled", "failed", "gave up", "unused"]


class Chance:
    """Draws requests around a time, from few values, so that they meet each other."""

    def __init__(self, prefix: str) -> None:
        seed = random.randrange(10**9)
        print(f"seed {seed}")  # shown when the test fails
        self.random = random.Random(seed)
        self.names = [prefix + odd for odd in ("/lease", "/window", "/rolling", "/{tag}/}{", "/é {}")]

    def pick(self, *values):
        return self.random.choice(values)

    def slot(self, now: int) -> tuple[int, int | None]:
        start = now // 200_000 * 200_000 + self.pick(-400_000, -200_000, 0, 0, 200_000, 200_000)
        return start, self.pick(start + 200_000, start + 200_000, start + 50_000, None)

    def history(self) -> bytes | None:
        return self.pick(None, b"", b"one line", bytes(range(256)))

    def claim(self, now: int) -> Claim:
        name = self.random.choice(self.names)
        kind = next((kind for kind in ("lease", "window", "rolling") if name.endswith(kind)), None)
        kind = kind if kind and self.random.random() < 0.95 else self.pick("lease", "window", "rolling")
        start, end = self.slot(now) if kind == "window" else (None, None)
        return Claim(
            name,
            self.pick(*OWNERS),
            self.pick("dc1 host:1", "", "ü"),
            kind,
            self.pick(1, 20_000, 5_000_000, 5_000_000, 5_000_000),
            now + self.pick(-1, 1_500_000, 1_500_000, 1_500_000, 1_500_000),
            DAY,
            self.pick(*TEXTS),
            self.pick("", "2026a"),
            start,
            end,
            0 if start is None else self.pick(start, start - 5_000, 0),
            None if start is None else self.pick(None, end, start + 100_000),
            self.pick(1, 30_000, 10_000_000) if kind == "rolling" else 0,
            self.pick(True, False, False),
            self.pick(True, False, False, False),
            self.pick(0, 0, 1, 2),
        )

    def settlement(self) -> Settlement:
        return Settlement(self.random.choice(self.names), self.pick(*OWNERS), self.pick(*RESULTS), self.pick(DAY, 40 * DAY), self.history())

    def override(self, token: int, now: int) -> Override:
        action = self.pick("released", "handled", "failed", "mark")
        mark = self.pick(None, now - 500_000, now)
        return Override(self.random.choice(self.names), action, "op: why", DAY, mark, self.pick(None, None, token, 7), self.history())

    def write_back(self, now: int) -> WriteBack:
        start, end = self.slot(now)
        return WriteBack(self.random.choice(self.names), "back", self.pick("window", "rolling"), DAY, self.pick(*TEXTS), "", start, end)

    def renewals(self) -> list[Renewal]:
        chosen = self.random.sample(self.names, self.random.randint(1, len(self.names)))
        return [Renewal(name, self.pick(*OWNERS), self.pick(1, 30_000, 5_000_000), DAY) for name in chosen]


@pytest.mark.parametrize("options", ["", "?protocol=3", "?wait_replicas=0&client_name=rota"])
def test_the_scripts_answer_as_the_rules_do(redis_url: str, name: str, options: str) -> None:
    driver = RedisBackend().driver(parse(redis_url + options))
    compare(driver, Chance(name), STEPS)


def test_the_scripts_answer_as_the_rules_do_on_a_cluster(cluster_url: str, name: str) -> None:
    driver = RedisBackend().driver(parse(cluster_url))
    compare(driver, Chance(name), STEPS // 2)


def compare(driver, chance: Chance, steps: int) -> None:
    store = MemoryStore(lambda: at)
    model = MemoryDriver(store)
    seen = set()
    step = 0
    while step < steps or EVERY - seen:  # an outcome that chance has kept away is waited for
        step += 1
        assert step < 20 * steps, EVERY - seen
        at = time.time_ns() // 1000
        verb = chance.pick(
            "claim", "claim", "claim", "claim", "settle", "settle", "settle", "renew", "override", "record", "forget", "read"
        )
        where = f"step {step}, {verb}"
        if verb == "claim":
            claim = chance.claim(at)
            answer = driver.claim(claim, 5)
            at = answer.now[0]
            assert answer == model.claim(claim, 5), where
            seen.add(answer.verdict)
        elif verb == "settle":
            settlement = chance.settlement()
            live = [record for record in store.records.values() if record.owner]
            if live and chance.random.random() < 0.4:  # else nearly always of somebody who holds nothing
                record = chance.random.choice(live)
                settlement = settlement._replace(name=record.name, owner=record.owner)
            answer = driver.settle(settlement, 5)
            at = answer.now[0]
            assert answer == model.settle(settlement, 5), where
            seen.add(("settled", answer.applied, answer.expired))
        elif verb == "renew":
            renewals = chance.renewals()
            held = {record.name: record.owner for record in store.records.values() if record.owner}
            renewals = [r._replace(owner=held[r.name]) if r.name in held and chance.random.random() < 0.7 else r for r in renewals]
            if "cluster" in str(driver.settings):  # each slot is renewed at its own server's time: one name each
                renewals = renewals[:1]
            renewed = driver.renew(renewals, 5)
            at = renewed.now[0]
            assert renewed == model.renew(renewals, 5), where
            seen.update(renewed.held)
        elif verb == "override":
            record = chance.random.choice([*store.records.values(), None])
            override = chance.override(record.token if record else 1, at)
            answer = driver.override(override, 5)
            at = answer.now[0]
            assert answer == model.override(override, 5), where
        elif verb == "record":
            write_back = chance.write_back(at)
            answer = driver.record(write_back, 5)
            at = answer.now[0]
            assert answer == model.record(write_back, 5), where
        elif verb == "forget":
            if chance.random.random() < 0.8:
                continue
            chosen = chance.random.choice(chance.names)
            forgot = driver.forget(chosen, 5)
            tombstone, _ = driver.read(chosen, 5)
            if forgot:
                at = tombstone.keep_until - DAY
            assert forgot == model.forget(chosen, 5), where
        else:
            record, now = driver.read(chance.random.choice(chance.names), 5)
            at = now[0]
            if record is not None:
                assert record == store.records[record.name], where
    assert driver.list(chance.names[0].split("/lease")[0], 5) == model.list("", 5)
    driver.close()
