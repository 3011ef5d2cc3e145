# SPDX-License-Identifier: MIT
"""What `rota show` says of a claim right now is what a claim right now comes to, on the reference model and on SQLite (W2 to W7, W12)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rota
from rota.backend import Backend, Driver, Override
from rota.cli._operator_why import Why, explain, schedule_of
from rota.errors import ConfigurationError
from rota.memory import MemoryDriver, MemoryStore
from rota.schedule import Cron, Every, Schedule, instant, iso
from rota.sqlite import SqliteDriver
from rota.testing import Clock
from rota.url import Url

DAILY = Cron("0 2 * * *")
SECOND, HOUR, DAY = 1_000_000, 3_600_000_000, 86_400_000_000
RETENTION = 30 * DAY


class Given(Backend):
    """A backend made by hand around a driver."""

    contract = 1

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.url = Url("given", "", {}, "team", "dc1")

    def driver(self, url: Url) -> Driver:
        return self._driver


class World:
    """A store whose clock stands still at 03:00 of a day, and two clients of it, below a prefix.

    Attributes:
        clock: Its clock.
        client: Who holds and handles.
        other: Who asks.
    """

    def __init__(self, make: Callable[[Clock], Driver]) -> None:
        self.clock = Clock()
        self.client, self.other = (rota.connect(Given(make(self.clock)), clock=self.clock.local) for _ in range(2))

    @property
    def now(self) -> int:
        return self.clock.store()

    @property
    def start(self) -> int:
        """The start of the slot that is open."""
        return DAILY.slot(self.now).start

    def why(self, name: str, **options: Any) -> Why:
        record, now = self.other.driver.read("team/" + name, 5.0)
        assert record is not None
        return explain(self.other, name, record, now, options)


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    store = MemoryStore()

    def make(clock: Clock) -> Driver:
        store.clock = clock.store
        return MemoryDriver(store) if request.param == "memory" else SqliteDriver(str(tmp_path / "store.db"), clock.store)

    made = World(make)
    with made.clock.stopped():
        made.clock.set(instant("2026-02-26T03:00:00Z", "now"))
        yield made
    made.client.close()
    made.other.close()


def agrees(world: World, name: str, **options: Any) -> Why:
    """Explain, then claim for real: the verdict, and how, must be the same, and where it is refused the reason begins alike."""
    why = world.why(name, **options)
    assert "\n" not in why.reason
    assert not why.reason.endswith(".")
    schedule: Schedule | None = schedule_of(world.client.driver.read("team/" + name, 5.0)[0].schedule)
    claimed = world.other.try_window(name, schedule, **options)
    if claimed:
        assert why.verdict == "won"
        claimed.unused()
    else:
        assert why.verdict == claimed.verdict
        assert why.how == ("mark-ahead" if claimed.mark_ahead else claimed.how)
        assert f"team/{name}: {why.reason}".startswith(claimed.reason)
    return why


def test_won_because_nobody_handled_the_slot(world: World) -> None:
    world.client.try_window("job", DAILY).handled()
    world.clock.leap(DAY)
    why = agrees(world, "job")
    assert why == ("won", "", "nobody has handled the slot of 2026-02-27T02:00:00Z, and nobody holds the name", why.slot)


def test_won_because_the_last_attempt_failed(world: World) -> None:
    world.client.try_window("job", DAILY).failed()
    assert agrees(world, "job").reason == (
        f"the last attempt for the slot of 2026-02-26T02:00:00Z, by {world.client._engine.label}, failed at 2026-02-26T03:00:00Z,"
        " and this would be attempt 2"
    )


def test_won_because_the_holders_lease_ran_out(world: World) -> None:
    grant = world.client.try_window("job", DAILY, ttl="30s")
    assert grant
    world.client._engine.heartbeat.remove(grant)  # as if it had died
    world.clock.leap(31 * SECOND)
    why = agrees(world, "job")
    assert why.verdict == "won"
    assert "who held the slot of 2026-02-26T02:00:00Z and did not settle, ran out at 2026-02-26T03:00:30Z" in why.reason
    assert "attempt 2" in why.reason
    dead = world.client.try_window("older", DAILY, ttl="30s")
    assert dead
    world.client._engine.heartbeat.remove(dead)
    world.clock.leap(DAY)
    why = agrees(world, "older")
    assert "who held an older slot and did not settle" in why.reason
    assert why.reason.endswith("and nobody has handled the slot of 2026-02-27T02:00:00Z")


def test_busy_with_this_slot_and_with_an_older_one(world: World) -> None:
    grant = world.client.try_window("job", DAILY, ttl="2d")
    assert grant
    assert agrees(world, "job").reason == (
        f"{world.client._engine.label} has held the slot of 2026-02-26T02:00:00Z since 2026-02-26T03:00:00Z"
    )
    world.clock.leap(DAY)
    assert agrees(world, "job").reason == f"{world.client._engine.label} has held an older slot since 2026-02-26T03:00:00Z"


def test_handled_because_it_is_done(world: World) -> None:
    world.client.try_window("job", DAILY).handled()
    why = agrees(world, "job")
    assert (why.verdict, why.how) == ("handled", "done")
    assert why.reason == f"the slot of 2026-02-26T02:00:00Z was handled by {world.client._engine.label} at 2026-02-26T03:00:00Z"


def test_handled_because_a_newer_slot_was(world: World) -> None:
    world.client.try_window("job", DAILY).handled()
    why = agrees(world, "job", planned=iso(world.start - DAY))
    assert (why.verdict, why.how) == ("handled", "passed")
    assert "was passed over: the newer slot of 2026-02-26T02:00:00Z was handled" in why.reason


def test_handled_because_it_was_given_up(world: World) -> None:
    world.client.try_window("job", DAILY, attempts=1).failed()
    why = agrees(world, "job")
    assert (why.verdict, why.how) == ("handled", "gave up")


def test_handled_because_the_mark_lies_ahead(world: World) -> None:
    world.client.try_window("job", DAILY).handled()
    world.client.driver.override(Override("team/job", "mark", "ada: a test", RETENTION, mark=world.now + 9 * DAY), 5.0)
    why = agrees(world, "job")
    assert (why.verdict, why.how) == ("handled", "mark-ahead")
    assert "a clock once ran fast" in why.reason


def test_late_because_the_slot_has_ended_or_max_late_is_over(world: World) -> None:
    grant = world.client.try_window("job", DAILY)
    assert grant
    grant.unused()
    why = agrees(world, "job", planned=iso(world.start - 9 * DAY))
    assert why.verdict == "late"
    assert why.reason == "too late for the slot of 2026-02-17T02:00:00Z: it could be won until 2026-02-19T02:00:00Z"
    why = agrees(world, "job", max_late="5m")
    assert why.verdict == "late"
    assert why.reason.startswith("too late for the slot of 2026-02-26T02:00:00Z: ")
    assert why.reason.endswith(": it could be won until 2026-02-26T02:05:00Z, by a max-late of 5m")


def test_early_because_the_slot_has_not_begun(world: World) -> None:
    world.client.try_window("job", DAILY).handled()
    why = agrees(world, "job", planned=iso(world.start + DAY))
    assert why.verdict == "early"
    assert why.reason == "the slot of 2026-02-27T02:00:00Z can be won in 22h59m"


def test_a_window_without_a_schedule_is_asked_for_its_last_slot(world: World) -> None:
    planned = iso(world.now - HOUR)
    world.client.try_window("job", planned=planned).handled()
    why = world.why("job")
    assert (why.verdict, why.how) == ("handled", "done")
    assert why.slot == (world.now - HOUR, None)
    assert world.why("job", planned=iso(world.now)).verdict == "won"


def test_a_lease_is_busy_or_free(world: World) -> None:
    grant = world.client.try_lease("leader")
    assert grant
    assert world.why("leader").reason == f"{world.client._engine.label} has held it since 2026-02-26T03:00:00Z"
    grant.release()
    assert world.why("leader") == ("won", "", "nobody has held it since 2026-02-26T03:00:00Z", None)
    grant = world.client.try_lease("leader", ttl="30s")
    world.client._engine.heartbeat.remove(grant)
    world.clock.leap(30 * SECOND)
    why = world.why("leader")
    assert why.verdict == "won"
    assert "who held it and did not settle, ran out at 2026-02-26T03:00:30Z" in why.reason
    with pytest.raises(ConfigurationError, match="is kept as a lease"):
        world.why("leader", planned="0")


def test_a_wrong_planned_instant_is_refused_and_not_explained(world: World) -> None:
    world.client.try_window("job", Every("1h")).handled()
    with pytest.raises(ConfigurationError, match="planned='soon' is no instant"):
        world.why("job", planned="soon")


def test_a_rolling_window_is_handled_until_its_period_ends(world: World) -> None:
    world.client.try_once("mail", "24h").handled()
    why = world.why("mail")
    assert (why.verdict, why.how) == ("handled", "done")
    assert "until 2026-02-27T03:00:00Z" in why.reason
    world.clock.leap(DAY)
    assert world.why("mail").reason == "the last period ended at 2026-02-27T03:00:00Z, and nobody has begun another"
    grant = world.other.try_once("mail", "24h")
    assert grant
    assert world.why("mail").verdict == "busy"
    grant.failed()
    why = world.why("mail")
    assert why.verdict == "won"
    assert why.reason.endswith("failed at 2026-02-27T03:00:00Z, and this would be attempt 2")


def test_a_forgotten_name_is_free(world: World) -> None:
    world.client.try_window("job", DAILY).handled()
    world.client.driver.forget("team/job", 5.0)
    assert world.why("job").verdict == "won"


def test_what_this_host_cannot_read_is_said(world: World) -> None:
    world.client.try_window("job", DAILY).handled()
    record, now = world.client.driver.read("team/job", 5.0)
    assert record is not None
    why = explain(world.other, "job", record._replace(schedule="cron 0 2 * * * tz=Mars/Olympus"), now)
    assert why.verdict == "unknown"
    assert "Mars/Olympus" in why.reason
    assert explain(world.other, "job", record._replace(schedule="moon full"), now).verdict == "unknown"
    assert explain(world.other, "job", record, None).verdict == "unknown"


def test_every_schedule_is_found_again_by_the_text_in_the_record() -> None:
    lines = (Path(__file__).parents[1] / "unit" / "crontab_lines.txt").read_text(encoding="utf-8").splitlines()
    found = 0
    for line in lines:
        try:
            schedule = Cron(line, tz="Europe/Berlin")
        except ConfigurationError:
            continue
        assert schedule_of(schedule.canonical) == schedule
        found += 1
    assert found >= 200
    for every in (Every("90m"), Every("7d", anchor="2026-01-05T00:00:00Z")):
        assert schedule_of(every.canonical) == every
    assert schedule_of("") is None
    assert schedule_of("per 1d") is None
