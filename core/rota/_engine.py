# SPDX-License-Identifier: MIT
"""The one engine of both faces: how a claim is asked for, waited for, found again, and settled.

It is written as coroutines that await nothing but their `Io`, so the blocking face steps them without an event loop.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Coroutine

from ._ask import Ask
from ._away import unavailable
from ._breaker import Breaker
from ._clock import StoreClock
from ._heartbeat import Heartbeat, Watchdog
from ._io import Io, step
from ._keeper import Keeper, Kept, Sweeper
from ._local import LocalRuns
from ._observers import observers
from ._settling import FORKED, settle, settle_at_once
from .backend import (
    BUSY,
    FINISHED,
    HANDLED,
    LATE,
    LEASE,
    MISMATCH,
    ROLLING,
    STALE,
    UNUSED,
    WINDOW,
    WON,
    Answer,
    Driver,
    Record,
    Settlement,
)
from .duration import SECOND
from .errors import ConfigurationError, OutcomeUnknown, RotaError, Unavailable
from .grant import NEVER, BaseGrant
from .policy import MOST_EARLY
from .schedule import Slot
from .verdict import Refused, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Generic, TypeVar

    from .backend import Claim

    Begun = tuple[Claim, Slot | None, float, Answer | BaseException]
else:
    from ._value import Generic, TypeVar

G = TypeVar("G", bound=BaseGrant)

#: A claim is asked anew at the most so often because the store's time showed another slot, or its fate was unknown.
ROUNDS = range(16)
#: The pauses of a waiter that the store does not wake: the first, the longest (seconds), and the growth.
FIRST_PAUSE, LONGEST_PAUSE, GROWTH = 0.05, 1.0, 1.5
#: How long the end of a client waits for its observers to be told everything (seconds).
LAST_WORDS = 0.5
#: The longest that one watch runs, so that a waiter notices an expiry that nobody announces (seconds).
LONGEST_WATCH = 5.0
#: The same where the store claims at the end of the wait: a grant whose answer is lost on the way is found out no sooner.
LONGEST_IN_LINE = 1.5


class Engine(Generic[G]):
    """The state of one client: the store's clock as far as known, the heartbeat, the keeper, the breaker, the local memory."""

    def __init__(
        self,
        driver: Driver,
        io: Io,
        grant_type: type[G],
        make_label: Callable[[], str],
        clock: Callable[[], float],
        timeout: float,
        prefix: str = "",
    ) -> None:
        self.driver = driver
        self.io = io
        self.prefix = prefix
        self.clock = clock
        self.timeout = timeout
        self.grant_type = grant_type
        self._make_label = make_label
        self.label = make_label()
        self.store_clock = StoreClock()
        self.sweeper = Sweeper(driver, clock)
        self.heartbeat = Heartbeat(driver, clock, self._observe, self.warn, self.sweeper)
        self.watchdog = Watchdog(clock)
        self.keeper = Keeper(driver, clock, timeout)
        self.breaker = Breaker()
        self.local = LocalRuns()
        self.closed = False
        self.forks = 0
        self.wraps: Callable[[Callable[[], object]], Callable[[], object]] | None = None

    # -- claims

    def acquire(self, ask: Ask) -> Coroutine[Any, Any, G | Refused]:
        """Ask until won, refused, or no longer worth waiting for."""
        # not a coroutine itself: on a fast store each one between the caller and the driver is felt
        return self._in_line(ask) if ask.terms.wait or observers.listening else self._claim(ask)

    def acquire_at_once(self, ask: Ask) -> G | Refused:
        """As `acquire`, on the blocking face.

        Nearly every claim is won by its first request, which needs no coroutine: on a fast store that costs as much as the request. What
        else becomes of the first request is for `_claim` to go on with.
        """
        terms, store_clock = ask.terms, self.store_clock
        if terms.wait or self.closed or self.breaker.pause or observers.listening or not store_clock.known:
            return step(self.acquire(ask))
        sent = self.clock()
        owner = os.urandom(16).hex()
        now = store_clock.now(sent)
        slot = ask.aim(now, ask.catch_up)
        claim = ask.claim(owner, self.label, slot, now + terms.timeout_us, ask.catch_up)
        answer: Answer | None = None
        try:
            answer = self.io.claim(claim, terms.timeout)
            verdict, record, seen, before, given, age = answer  # at once: by its fields it takes several times as long
            if verdict == WON and record is not None:
                if seen is not None:
                    stepped = store_clock.observe(seen, sent, self.clock())
                    if stepped:
                        self.warn("the store", stepped)
                if self.breaker.pause:
                    self.breaker.answered()
                return self._won(ask, owner, sent - age / SECOND if age else sent, slot, record, before, given)
        except BaseException as error:
            # a grant that can't be kept is won once more, and given back
            return step(self._claim(ask, None, (claim, slot, sent, answer if isinstance(error, RotaError) and answer else error)))
        return step(self._claim(ask, None, (claim, slot, sent, answer)))

    async def _in_line(self, ask: Ask) -> G | Refused:
        wait_until = self.clock() + ask.terms.wait
        pause = FIRST_PAUSE
        while True:
            asked = self.clock()
            verdict = await self._claim(ask)
            if not isinstance(verdict, Refused) or verdict.verdict != BUSY:
                break
            began = self.clock()
            left = wait_until - began
            if left <= 0:
                break
            if verdict.record is not None and verdict.now is not None and "claim_when_free" in self.driver.capabilities.verbs:
                longest = min(self._longest(verdict, left, pause), LONGEST_IN_LINE)
                verdict = await self._claim(ask, (verdict.record.owner, longest, asked - verdict.now / SECOND))
                if not isinstance(verdict, Refused) or verdict.verdict != BUSY:
                    break
                if self.clock() - began >= FIRST_PAUSE:
                    pause = FIRST_PAUSE
                    continue
                left = wait_until - self.clock()  # it answered at once: it can't wait here, or somebody was faster
            pause = await self._wait(verdict, left, pause)
        if observers.listening:
            if isinstance(verdict, Refused):
                observers.tell("rota_refused", refused=verdict)
            else:
                observers.tell("rota_granted", grant=verdict)
        return verdict

    def _longest(self, busy: Refused, left: float, pause: float) -> float:
        """Return how long to wait for the holder at the most: until its lease can have ended."""
        record, now = busy.record, busy.now
        expires_in = (record.expires_at - now) / SECOND + 0.001 if record is not None and now is not None else pause
        return max(0.001, min(left, expires_in))

    async def _wait(self, busy: Refused, left: float, pause: float) -> float:
        """Wait until the holder's lease can have ended; return the next pause."""
        longest = self._longest(busy, left, pause)
        if busy.record is not None and "watch" in self.driver.capabilities.verbs:
            try:
                await self.call(self.io.watch, busy.name, busy.record.owner, min(longest, LONGEST_WATCH))
                return FIRST_PAUSE
            except Unavailable:
                pass  # the store can't wake us: look again after a pause
        # a random part keeps waiters from asking in step
        await self.call(self.io.sleep, min(longest, pause * (1 - os.urandom(1)[0] / 850)))
        return min(pause * GROWTH, LONGEST_PAUSE)

    async def _claim(self, ask: Ask, behind: tuple[str, float, float] | None = None, begun: Begun | None = None) -> G | Refused:
        """Ask once, whatever it takes to get an answer that counts, within the timeout; then what `on_unavailable` says (F2).

        With ``behind`` it is asked as soon as that owner is gone, or so many seconds have passed; the third is by how much the local clock
        is ahead of the store's at the least. With ``begun`` the first request has been made: it, its slot, when it was sent, and its answer
        or its error.
        """
        io, clock, store_clock, breaker = self.io, self.clock, self.store_clock, self.breaker
        apply_until = ghost_until = 0
        if begun is None:
            if self.closed:
                raise Unavailable("the client is closed")
            ready = clock()  # when the next request can be sent; one that is sent later only has less time left (L5)
            if breaker.pause and not breaker.admits(ready):
                await self.call(io.sleep, 0)  # a task that asks again and again must let the loop take the answer that it hopes for
                return unavailable(self, ask, Unavailable("the store did not answer a moment ago, and is asked again in a moment (F4)"))
            # a fresh id each time: an earlier one may be unknown still, and then the keeper is finishing it (L7)
            owner = os.urandom(16).hex()
        else:
            ready, owner, apply_until = begun[2], begun[0].owner, begun[0].apply_until
        deadline = ready + ask.terms.timeout + (behind[1] if behind else 0.0)
        back, unknown = ask.catch_up, False
        settled = False  # whether it is certain that this owner id holds nothing but what is returned
        try:
            if not store_clock.known:
                await self._look(ask, deadline)
                ready = clock()
            first = ready
            for _ in ROUNDS:
                sent = ready
                left = deadline - sent
                if left <= 0:
                    break
                try:
                    if begun is not None:
                        claim, slot, _, told = begun
                        begun = None
                        if isinstance(told, BaseException):
                            try:
                                raise told
                            finally:
                                del told  # else it, its traceback and this frame would be a cycle
                        answer = told
                    else:
                        now = store_clock.now(sent)
                        slot = ask.aim(now, back)
                        apply_until = now + int(left * SECOND)
                        claim = ask.claim(owner, self.label, slot, apply_until, back)
                        answer = io.claim(claim, left) if behind is None else io.claim_when_free(claim, *behind[:2], ask.terms.timeout)
                        if io.suspends:
                            answer = await answer
                except OutcomeUnknown:
                    behind = None
                    unknown, ghost_until = True, apply_until
                    if deadline - clock() < 0.01:
                        raise
                    await self.call(io.sleep, min(0.02, left / 4))
                    ready = clock()
                    continue  # L7: resolved by the same claim again, which wins, finds, or is refused
                ready = clock()
                verdict, record, seen, before, given, age = answer  # at once: by its fields it takes several times as long
                if behind is not None:
                    if seen is not None:  # L5: it was sent long before it was applied, which its store time tells
                        sent = min(ready, behind[2] + seen[0] / SECOND)
                    behind = None
                elif seen is not None:
                    stepped = store_clock.observe(seen, sent, ready)
                    if stepped:
                        self.warn("the store", stepped)
                if breaker.pause:
                    breaker.answered()
                if verdict == WON:
                    assert record is not None
                    if unknown:
                        # found again, it has run since an earlier request was applied, and so does its deadline (L5)
                        sent = first if seen is None else sent - max(0, seen[1] - record.granted_at) / SECOND
                    if age:
                        sent -= age / SECOND
                    try:
                        grant = self._won(ask, owner, sent, slot, record, before, given)
                    except RotaError:  # it can't be kept, for want of a thread: give it back as if it had not been granted
                        given_back = Settlement(ask.name, owner, UNUSED, ask.retention)
                        settled = (await self.call(io.settle, given_back, max(0.001, deadline - clock()))).applied
                        raise
                    if ghost_until:
                        grant._ghost_until = ghost_until
                    settled = True
                    return grant
                if verdict == FINISHED:  # granted by a request that we thought lost, and run out since
                    owner = os.urandom(16).hex()
                    continue
                if verdict == STALE:
                    if seen is None:
                        break
                    continue
                if slot is not None and ask.floating and seen is not None:
                    if self._misses(ask, slot, seen[0], back):
                        continue  # the store's time lies in another slot than we thought: ask for that one
                    if back and verdict in (HANDLED, LATE):
                        back = False
                        continue
                settled = not unknown
                return self._refused(ask, slot, claim, answer)
            kind = OutcomeUnknown if unknown else Unavailable
            raise kind(f"no answer that counts within {ask.terms.timeout:g}s")
        except Unavailable as error:
            settled = not unknown and not isinstance(error, OutcomeUnknown)
            breaker.failed(clock())
            if unknown and not isinstance(error, OutcomeUnknown):
                last, error = error, OutcomeUnknown(f"an earlier request may have been applied; the last one was not: {error}")
                error.__cause__ = last
            return unavailable(self, ask, error)
        except BaseException:
            breaker.undecided(clock())
            raise
        finally:
            if apply_until and not settled:
                # cancelled, interrupted or unknown: finish the owner id, so that no grant of it is left (L7, L8)
                self.abandon(ask, owner, apply_until)

    async def call(self, verb: Callable[..., Any], *arguments: Any) -> Any:
        """Call a verb of the `Io`, on either face."""
        result = verb(*arguments)
        return await result if self.io.suspends else result

    async def _look(self, ask: Ask, deadline: float) -> None:
        """Learn the store's time before the first claim: it says until when a claim may be applied, and which slot is meant."""
        sent = self.clock()
        left = max(0.001, deadline - sent)
        try:
            # `now` may wait until it knows the time well; whoever reads is told what is known, and the claim waits where that matters
            reads = self.driver.capabilities.clock == "interval" and self.io.read is not None
            now = (await self.call(self.io.read, ask.name, left))[1] if reads else None
            if now is None and (ask.kind != LEASE or not reads):  # also where nothing was known, as of a store that was just away
                now = await self.call(self.io.now, max(0.001, deadline - self.clock()))
        except OutcomeUnknown as error:
            raise Unavailable(f"the store's time can't be asked: {error}") from error  # no claim was sent yet
        if now is not None:
            self._observe(now, sent, self.clock())
        elif ask.kind != LEASE:
            raise ConfigurationError("windows need the store's time, which can't be known here (rota doctor says why); leases work")

    @staticmethod
    def _misses(ask: Ask, slot: Slot, now: int, back: bool) -> bool:
        start, end = slot
        if not back and end is not None and start <= now < end:
            return False
        aimed = ask.aim(now, back)
        return aimed is not None and aimed.start != slot.start

    def _won(self, ask: Ask, owner: str, sent: float, slot: Slot | None, record: Record, before: Record | None, given: int) -> G:
        if ask.kind != LEASE and record.slot_start is not None and (slot is None or slot.start != record.slot_start):
            slot = Slot(record.slot_start, record.slot_end)  # rolling: the store decided it; or a grant found again
        terms = ask.terms
        ttl = max(terms.ttl_s, given / SECOND) if given else terms.ttl_s
        grant = self.grant_type(self, ask, owner, sent, record, slot, ttl, before)
        if ask.kind != LEASE and before is not None and before.kind:
            self._compare_schedules(grant, before, record)
        if not ask.overlap:
            self.heartbeat.add(grant)
            if self.closed:  # meanwhile; looked at behind that, as `close` looks the other way round
                grant._lose("the client was closed")
        if terms.listens:
            self._listen_for_user(grant)
        return grant

    def _compare_schedules(self, grant: BaseGrant, before: Record, record: Record) -> None:
        """W8: another schedule under the name, or slots that overlap because two hosts have different zone data."""
        if before.kind == ROLLING:
            return
        if before.schedule != record.schedule:
            self.warn_winner(grant, f"the schedule was {before.schedule!r} and is now {record.schedule!r}; the mark stays (W8)")
        elif (
            before.slot_start == before.mark
            and before.mark is not None
            and before.slot_end is not None
            and record.slot_start is not None
            and before.mark < record.slot_start < before.slot_end
        ):
            self.warn_winner(
                grant,
                f"the slot of {text(record.slot_start)} lies inside the handled slot of {text(before.mark)}:"
                f" zone data {before.zone_data or 'none'} there, {record.zone_data or 'none'} here (W8)",
            )

    def _refused(self, ask: Ask, slot: Slot | None, claim: Claim, answer: Answer) -> Refused:
        record, now = answer.record, None if answer.now is None else answer.now[0]
        verdict = answer.verdict
        if verdict == MISMATCH:
            assert record is not None
            kinds = {LEASE: "a lease", WINDOW: "a window", ROLLING: "a rolling window"}
            first = ""
            if ask.kind == LEASE:
                first = f"give its schedule ({record.schedule}), " if record.schedule else "give its planned instant, "
            elif record.kind == LEASE:
                first = "give no schedule, "
            name = ask.name.removeprefix(self.prefix)  # as it was given, and as the operator's commands take it
            raise ConfigurationError(
                f"{name!r} is kept as {kinds.get(record.kind, record.kind)}, not as {kinds.get(ask.kind, ask.kind)}:"
                f" {first}use another name, or forget it: rota forget {name} (W8)"
            )
        ahead = False
        if verdict == HANDLED and record is not None and record.mark is not None and now is not None:
            # beyond the farthest that an early arrival can have moved it (W5)
            known = record.slot_start == record.mark and record.slot_end is not None and record.kind != ROLLING
            ahead = record.mark > now + (min(MOST_EARLY, (record.slot_end - record.mark) // 2) if known and record.slot_end else MOST_EARLY)
            if ahead:
                self.warn(ask.name, f"the mark {text(record.mark)} lies ahead of the store's time {text(now)} (W7)")
        next_start = slot.end if verdict == HANDLED and slot is not None else None
        return Refused(verdict, ask.name, slot, record, now, claim=claim, max_late=ask.max_late, mark_ahead=ahead, next_start=next_start)

    # -- the end of a grant

    settle = settle
    settle_at_once = settle_at_once

    def store_answered(self, ended: str) -> None:
        """What the keeper could say, the store has answered: claims need not wait for the breaker's next probe."""
        if not ended.startswith("given up"):
            self.breaker.answered()

    def abandon(self, ask: Ask, owner: str, apply_until: int) -> None:
        """L7, L8: finish an owner id whose claim may have been, or may yet be, applied."""
        settlement = Settlement(ask.name, owner, UNUSED, ask.retention)
        self.keeper.keep(Kept(settlement, self.clock() + ask.terms.timeout + ask.terms.ttl_s, apply_until, None, lambda *_: None))

    # -- losing

    def listen(self, grant: BaseGrant, listener: Callable[[], object]) -> None:
        """Call the listener, once, when the grant is lost."""
        first = grant._listener
        grant._listener = listener if first is None else lambda: (first(), listener())
        if grant._deadline == NEVER:
            return  # degraded, or granted without a lease: nothing can be lost
        try:
            self.watchdog.add(grant)
            if grant._lost and self.watchdog.remove(grant):
                listener()  # it was lost before anybody listened
        except BaseException:  # interrupted, or for want of a thread: nobody will settle it, which would end the watching
            self.watchdog.remove(grant)
            raise

    def _listen_for_user(self, grant: BaseGrant) -> None:
        function: Any = grant._ask.terms.on_lost
        wrap = self.wraps
        if wrap is None:
            self.listen(grant, lambda: self.watchdog.call(lambda: function(grant)))
        else:
            self.listen(grant, wrap(lambda: function(grant)))

    def lost(self, grant: BaseGrant, reason: str) -> None:
        """Note that a grant was lost, and tell whoever wants to know."""
        self.heartbeat.remove(grant)
        listener = grant._listener
        if listener is not None and self.watchdog.remove(grant):
            with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody is left to be told
                listener()
        if observers.listening:
            observers.tell("rota_lost", grant=grant, reason=reason)

    # -- notes

    def warn(self, name: str, message: str) -> None:
        """Tell an operator: observers, and the log."""
        if observers.listening:
            observers.tell("rota_warning", name=name, message=message)
        import logging

        logging.getLogger("rota").warning("%s: %s", name, message)

    def warn_winner(self, grant: BaseGrant, message: str) -> None:
        """Tell the winner, too."""
        grant.warnings += (message,)
        self.warn(grant.name, message)

    def _observe(self, now: object, sent: float, received: float) -> None:
        if isinstance(now, tuple):
            stepped = self.store_clock.observe(now, sent, received)
            if stepped:
                self.warn("the store", stepped)
        elif now is not None:
            self.warn("the heartbeat", f"a renewal failed: {now!r}")

    # -- the end, and forks

    def after_fork(self) -> None:
        """In a forked child: hold, renew, release and say nothing of the parent's (L10)."""
        self.forks += 1
        for grant in self.heartbeat.held():
            grant._lost = FORKED
            grant._deadline = -NEVER
        self.heartbeat.reset()
        self.watchdog.reset()
        self.keeper.reset()
        self.breaker.answered()
        self.label = self._make_label()
        self.driver.after_fork()
        self.io.after_fork()

    def close(self) -> None:
        """Stop renewing and keeping. A lease still held is not released: its work may go on; it ends by expiry."""
        self.closed = True
        for grant in self.heartbeat.held():
            if grant.outcome != "unrecorded":
                grant._lose("the client was closed")
        self.keeper.close(self.timeout)
        self.heartbeat.close()
        self.watchdog.close()
        if self.store_clock.known:  # else nothing was ever asked of the store
            self.sweeper.close(min(self.timeout, 0.25))
        self.driver.close()
        if observers.listening:
            observers.flush(LAST_WORDS)
