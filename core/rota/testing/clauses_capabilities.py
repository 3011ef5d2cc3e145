# SPDX-License-Identifier: MIT
# ruff: noqa: D102 - a test's name says what it is about
"""Capabilities, both ways: what is declared works, to the degree declared, and what is not is refused; and the plain contract."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from rota.backend import BUSY, CONTRACT, HANDLED, HISTORY_LIMIT, LEASE, RELEASED, WON, Answer, Claim, Record, Settlement
from rota.capabilities import OPTIONAL_VERBS
from rota.duration import DAY, MINUTE, SECOND, YEAR
from rota.errors import NotSupported, Unavailable
from rota.finding import LEVELS, OK

from .base import LONG, Clauses, RefusedHere, new_owner, not_run
from .faces import PATIENCE, Face
from .stopwatch import Stopwatch


class Capabilities(Clauses):
    """What a backend declares, and what every one keeps."""

    async def test_model_agrees_with_any_sequence_of_verbs(self, face: Face) -> None:
        from .model import compare

        await compare(self, face)

    # -- optional verbs

    async def test_capability_verbs_undeclared_are_refused_and_declared_work(self, face: Face) -> None:
        declared = face.capabilities.verbs
        assert declared <= set(OPTIONAL_VERBS), f"{declared - set(OPTIONAL_VERBS)} are no optional verbs"
        wrong = []
        for verb in OPTIONAL_VERBS:
            refused = await self.refuses(face, verb)
            if refused is (verb in declared):
                wrong.append(f"{verb} is declared, and refused" if refused else f"{verb} is not declared, and works")
        assert not wrong, "; ".join(wrong)

    async def test_capability_verbs_leave_a_record_to_a_bare_request_as_it_is(self, face: Face) -> None:
        claim = self.lease(face, self.fresh())
        await self.win(face, claim)
        await face.settle(Settlement(claim.name, claim.owner, RELEASED, DAY))
        before = await face.read(claim.name)
        try:
            for writes in (False, True):
                await face.call(face.driver.bare, claim.name, writes, PATIENCE)
        except NotSupported:
            return  # it needs none: `rota bench` then has nothing to compare with
        assert await face.read(claim.name) == before
        assert claim.name in [record.name for record in await face.list(claim.name)]

    async def test_capability_facts_tell_a_doctor_the_version(self, face: Face) -> None:
        await self.needs(face, "facts")
        facts = await face.facts()
        assert facts.get("version")
        assert all(isinstance(value, (str, int, float, bool, type(None))) for value in facts.values())

    async def test_capability_facts_and_what_they_mean_are_fit_to_be_printed(self, face: Face) -> None:
        facts = await face.facts() if "facts" in face.capabilities.verbs else {}
        found = [*await face.call(face.driver.examine, facts, PATIENCE)]
        found += await face.call(face.driver.examine, Unavailable("no answer in time"), PATIENCE)
        for finding in found:
            assert finding.level in LEVELS
            assert finding.subject
            assert finding.text
            assert finding.level == OK or (finding.why and finding.cure), f"{finding} says not why it matters, or not what to do"
            assert not any("\n" in line for line in finding[1:5])
            assert all(isinstance(value, (str, int, float, bool, type(None))) for value in finding.facts.values())

    async def test_capability_schema_is_text_without_any_request(self, face: Face) -> None:
        await self.needs(face, "schema")
        assert face.another_driver().schema().strip()

    async def test_capability_values_are_those_that_are_defined(self, face: Face) -> None:
        declared = face.capabilities
        assert declared.clock in ("exact", "interval", "none")
        assert declared.waiting in ("watch", "poll")
        assert declared.token_scope in ("name", "store")
        assert declared.scope in ("process", "host", "network")
        assert declared.durability in ("process", "host", "disk", "quorum")
        assert 0 < declared.min_ttl <= YEAR
        assert declared.ttl_step >= 1
        if self.url:
            found = self._backend()[0]
            assert found.contract == CONTRACT
            assert all(isinstance(line, str) and line for line in found.options.values())

    # -- time

    async def test_capability_minttl_is_kept_and_no_more(self, face: Face) -> None:
        floor = face.capabilities.min_ttl
        claim = self.lease(face, self.fresh(), ttl=floor)
        won = await self.win(face, claim)
        assert won.expires_at - won.granted_at >= floor - self.slack(face)
        assert won.expires_at - won.granted_at <= floor + face.capabilities.ttl_step + self.slack(face)
        await self.outlive(face, won)
        await self.take(face, self.lease(face, claim.name))

    async def test_capability_minttl_a_grant_is_live_for_all_of_it(self, face: Face) -> None:
        claim = self.lease(face, self.fresh(), ttl=max(face.capabilities.min_ttl, 500_000))
        began = time.monotonic()
        await self.win(face, claim)
        answer = await face.claim(self.lease(face, claim.name))
        if time.monotonic() - began < 0.4:  # else the machine was too busy to tell
            assert answer.verdict == BUSY

    async def test_capability_ttlstep_is_the_most_by_which_a_lease_is_lengthened(self, face: Face) -> None:
        step = face.capabilities.ttl_step
        for ttl in (LONG, LONG + 1, LONG + step // 2 + 1):
            won = await self.win(face, self.lease(face, self.fresh(), ttl=ttl))
            assert ttl - self.slack(face) <= won.expires_at - won.granted_at < ttl + step + self.slack(face)

    async def test_capability_clock_is_as_declared(self, face: Face) -> None:
        first, second = await face.interval(), await face.interval()
        declared = face.capabilities
        if declared.clock == "none":
            assert first is None, "the clock is declared to be unknown, and is known"
            return
        assert first is not None
        assert second is not None
        assert first[0] <= first[1]
        assert second[0] >= first[0] - declared.clock_bound
        assert first[1] - first[0] <= declared.clock_bound
        if declared.clock == "exact":
            assert first[0] == first[1]
            assert declared.clock_bound == 0

    async def test_capability_clock_counts_microseconds_since_the_epoch(self, face: Face) -> None:
        if face.capabilities.clock == "none":
            not_run("the store's time can't be known")
        here = time.monotonic()
        before = await face.now()
        host = self.clock.store() if self.clock is not None else time.time_ns() // 1000
        # a server's clock may be wrong by months; a unit is wrong by a factor of a thousand
        assert host // 2 < before < host * 2, "now is to be microseconds since the epoch"
        await face.sleep(0.2)
        passed = await face.now() - before
        bound = face.capabilities.clock_bound
        assert 0.1 * SECOND - bound <= passed <= (time.monotonic() - here + 1.0) * SECOND + bound

    async def test_capability_waiting_is_as_declared(self, face: Face) -> None:
        assert (face.capabilities.waiting == "watch") is ("watch" in face.capabilities.verbs)

    async def test_capability_waiting_a_watcher_is_woken_long_before_expiry(self, face: Face) -> None:
        await self.needs(face, "watch")
        for how in ("release", "forget", "another owner"):
            claim = self.lease(face, self.fresh())
            await self.win(face, claim)
            if how == "another owner":
                assert await face.watch(claim.name, new_owner(), 20.0) is True
                continue
            other = face.another_driver()

            def free(claim: Claim = claim, how: str = how, other: Any = other) -> None:
                time.sleep(0.1)
                if how == "release":
                    other.settle(self._release(claim), 10.0)
                else:
                    other.forget(claim.name, 10.0)

            thread = threading.Thread(target=free)
            began = time.monotonic()
            thread.start()
            try:
                assert await face.watch(claim.name, claim.owner, 20.0) is True
            finally:
                thread.join()
            assert time.monotonic() - began < 10, f"a watcher was not woken by a {how}"

    @staticmethod
    def _release(claim: Claim) -> Settlement:
        return Settlement(claim.name, claim.owner, RELEASED, DAY)

    async def test_capability_waiting_a_watch_is_over_in_time(self, face: Face) -> None:
        await self.needs(face, "watch")
        claim = self.lease(face, self.fresh())
        await self.win(face, claim)
        began = time.monotonic()
        with Stopwatch() as watch:
            assert await face.watch(claim.name, claim.owner, 0.3) is False
            assert time.monotonic() - began > 0.2
            assert watch.seconds < 3
        assert await face.watch(self.fresh(), claim.owner, 5.0) is True, "nobody holds a name without a record"

    async def test_capability_waiting_a_claim_in_line_wins_as_soon_as_the_name_is_free(self, face: Face) -> None:
        if "claim_when_free" not in face.capabilities.verbs:
            return  # that it is refused is tested above
        assert face.capabilities.clock == "exact", "a waiter's deadline is told by the store's time of its grant (L5)"
        for how in ("release", "forget", "nobody"):
            claim, following = (lease := self.lease(face, self.fresh())), self.lease(face, lease.name)
            if how != "nobody":
                await self.win(face, claim)
            other = face.another_driver()

            def free(claim: Claim = claim, how: str = how, other: Any = other) -> None:
                time.sleep(0.1)
                if how == "release":
                    other.settle(self._release(claim), 10.0)
                elif how == "forget":
                    other.forget(claim.name, 10.0)

            thread = threading.Thread(target=free)
            began = time.monotonic()
            thread.start()
            try:
                answer = await face.claim_when_free(following, claim.owner, 20.0)
            finally:
                thread.join()
            assert answer.verdict == WON
            assert answer.record is not None
            assert answer.record.owner == following.owner
            assert time.monotonic() - began < 10, f"a claim in line was not let in by a {how}"

    async def test_capability_waiting_a_claim_in_line_is_refused_in_time(self, face: Face) -> None:
        if "claim_when_free" not in face.capabilities.verbs:
            return
        claim = self.lease(face, self.fresh())
        await self.win(face, claim)
        with Stopwatch() as watch:
            assert (await face.claim_when_free(self.lease(face, claim.name), claim.owner, 0.3)).verdict == BUSY
            assert watch.seconds < 3

    # -- what a record keeps

    async def test_capability_history_is_kept_byte_for_byte(self, face: Face) -> None:
        if not face.capabilities.history:
            claim = self.lease(face, self.fresh())
            await self.win(face, claim)
            await self.end(face, claim, RELEASED, b"runs")
            assert (await self.known(face, claim.name)).history == b"", "history is not declared, and works"
            raise RefusedHere("refused: no history")
        every = bytes(range(256)) * (HISTORY_LIMIT // 256)
        for history in (b"", b"one\ttwo\n", every, b"\xff\x00" * (HISTORY_LIMIT // 2), b" " * HISTORY_LIMIT):
            assert len(history) <= HISTORY_LIMIT
            claim = self.lease(face, self.fresh())
            await self.win(face, claim)
            await self.end(face, claim, RELEASED, history)
            assert (await self.known(face, claim.name)).history == history
            won = await self.win(face, self.lease(face, claim.name))
            assert won.history == history, "a claim keeps the history"
            await self.end(face, self.lease(face, claim.name, owner=won.owner), RELEASED, None)
            assert (await self.known(face, claim.name)).history == history, "None leaves the history"

    async def test_capability_windows_undeclared_are_refused(self, face: Face) -> None:
        if face.capabilities.windows:
            answer = await face.claim(self.window(face, self.fresh()))
            assert answer.verdict == WON
            return
        with pytest.raises(NotSupported):
            await face.claim(self.window(face, self.fresh()))
        with pytest.raises(NotSupported):
            await face.claim(self.rolling(face, self.fresh()))
        raise RefusedHere("refused: no windows")

    async def test_capability_async_twin_is_as_declared(self, face: Face) -> None:
        driver = face.another_driver()
        assert (self.async_driver(driver.inner) is not None) is face.capabilities.native_async

    # -- the contract that nobody declares

    async def test_capability_record_answers_and_reads_agree(self, face: Face) -> None:
        claim = self.lease(face, self.fresh(), label="größe \U0001f512 'x' \"y\" \\ % host:1")
        seen: list[tuple[str, Record | None]] = []
        answer: Answer = await face.claim(claim)
        seen.append(("claim", answer.record))
        assert answer.record == await face.read(claim.name)
        settled = await self.end(face, claim, RELEASED)
        kept = await self.known(face, claim.name)
        assert settled.record in (None, kept)
        assert kept.label == claim.label
        assert kept.format == 1
        if face.capabilities.windows:
            window = self.window(face, self.fresh(), schedule="cron 0 2 * * 1#1 Europe/Zürich", zone_data="2025b", seal=True)
            answer = await face.claim(window)
            assert answer.record == await face.read(window.name)
            assert answer.record is not None
            expected = (window.schedule, window.zone_data, window.slot_start, window.slot_end, window.kind)
            found = answer.record
            assert (found.schedule, found.zone_data, found.slot_start, found.slot_end, found.kind) == expected
            settled = await self.end(face, window, HANDLED)
            assert settled.record in (None, await face.read(window.name))
            endless = self.window(face, self.fresh(), slot_end=None, schedule="")
            assert (await self.win(face, endless)).slot_end is None
            assert (await self.known(face, endless.name)).slot_end is None
            far = self.window(
                face, self.fresh(), slot_start=0, slot_end=8_999_999_999_999_999
            )  # in the year 2255; with its retention still a whole number as a double
            won = await self.win(face, far)
            assert (won.slot_start, won.slot_end) == (0, far.slot_end), "microseconds keep all their digits"
            assert (await self.known(face, far.name)).slot_end == far.slot_end

    async def test_capability_record_a_name_without_one_reads_as_none(self, face: Face) -> None:
        assert await face.read(self.fresh()) is None

    async def test_capability_record_is_seen_by_other_drivers(self, face: Face) -> None:
        claim = self.lease(face, self.fresh())
        await self.win(face, claim)
        other = face.another_driver()
        record, _ = await face.call(other.read, claim.name, 10.0)
        assert record == await face.read(claim.name)
        answer = await face.call(other.claim, self.lease(face, claim.name), 10.0)
        assert answer.verdict == BUSY

    async def test_capability_list_is_by_prefix_in_order_and_in_pages(self, face: Face) -> None:
        base = self.fresh()
        inside = [base + end for end in ("", "%", "/a", "/b/c", "A", "_", "a", "a*", "aé", "a\U0001f512", "a\uff5e", "b")]
        outside = [base[:-1] + ("x" if base[-1] != "x" else "y"), base.upper() + "A", "x" + base]
        for name in (*inside, *outside):
            await self.win(face, self.lease(face, name))
        expected = sorted(inside, key=str.encode)
        assert [record.name for record in await face.list(base)] == expected
        for record in await face.list(base, limit=3):
            assert record == await face.read(record.name)
        assert [record.name for record in await face.list(base + "a")] == [name for name in expected if name.startswith(base + "a")]
        for special in ("%", "_", "/a", "a*"):
            assert [record.name for record in await face.list(base + special)] == [n for n in expected if n.startswith(base + special)]
        pages: list[str] = []
        while page := await face.list(base, after=pages[-1] if pages else "", limit=5):
            assert len(page) <= 5
            pages += [record.name for record in page]
            assert len(pages) <= len(expected), "pages overlap"
        assert pages == expected
        assert await face.list(base, after=expected[-1]) == []
        assert await face.list(self.fresh()) == []

    async def test_capability_token_scope_is_as_declared(self, face: Face) -> None:
        tokens = [(await self.win(face, self.lease(face, self.fresh()))).token for _ in range(4)]
        if face.capabilities.token_scope == "store":
            assert tokens == sorted(set(tokens)), "tokens are to be ordered over all names"
        assert all(0 < token < 2**63 for token in tokens)

    async def test_capability_threads_share_a_driver(self, face: Face) -> None:
        driver = face.driver
        problems: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(5):
                    claim = self.lease(face, self.fresh(), kind=LEASE)
                    assert driver.claim(claim, 10.0).verdict == WON
                    assert driver.settle(self._release(claim), 10.0).applied
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await face.call(thread.join, MINUTE / SECOND)
        assert not problems, problems
