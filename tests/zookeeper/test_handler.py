# SPDX-License-Identifier: MIT
"""The way of an answer: what is called by the thread that reads neither ends it nor lets it wait for itself."""

from __future__ import annotations

import select
from typing import Any

from servers import ZooKeeper


def test_what_fails_on_an_answer_ends_nothing(driver: Any) -> None:
    driver.now(5.0)
    client = driver.verbs.link.ready
    came: list[Any] = []
    reading = client.exists_async("/")
    reading.rawlink(came.append)
    reading.rawlink(lambda _: 1 / 0)
    reading.rawlink(came.append)
    assert reading.wait(5)
    driver.now(5.0)
    assert came == [reading, reading]


def test_any_number_of_requests_may_be_sent_on_an_answer(driver: Any, until: Any) -> None:
    driver.now(5.0)
    client = driver.verbs.link.ready
    sent: list[Any] = []
    client.exists_async("/").rawlink(lambda _: sent.extend(client.exists_async("/") for _ in range(2000)))
    until(lambda: len(sent) == 2000 and all(reading.successful() for reading in sent))


def test_where_there_is_no_poll_kazoos_way_is_taken(driver_for: Any, server: ZooKeeper, monkeypatch: Any) -> None:
    monkeypatch.delattr(select, "poll")  # as on Windows
    assert driver_for(server.url("/poll")).now(5.0)
