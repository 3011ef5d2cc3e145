# SPDX-License-Identifier: MIT
"""Claiming, and all the waiting around it: letting others go first, standing by while somebody works on the slot, coming too early."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from rota._clock import monotonic
from rota._io import step
from rota.backend import BUSY, EARLY, HANDLED
from rota.duration import SECOND, duration
from rota.errors import Unavailable
from rota.policy import EARLY as DEFAULT_EARLY
from rota.policy import LEAST_LATE, MOST_EARLY
from rota.verdict import Refused

from ._output import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rota.client import Client
    from rota.grant import Grant
    from rota.schedule import Schedule

    from ._options import RunOptions

FOREVER = float("inf")
#: The first pause of one that stands by where the store can't wake it (seconds).
_FIRST_PAUSE = 0.05
#: Waits are counted on a clock that may stand still in suspend: look this often (seconds).
_LOOK = 1.0
#: A store's clock may be set while somebody waits for an instant of it: ask so often (seconds).
_ASK_AGAIN = 5.0
#: A wait for an instant of the store ends so much after it, so that it has come for certain (seconds).
_AFTER = 0.001


class Waiting:
    """One run's way to a grant or a refusal."""

    def __init__(self, options: RunOptions, client: Client, schedule: Schedule | None) -> None:
        self._options = options
        self._client = client
        self._schedule = schedule
        self._said = ""
        # W5: `early` is for who comes a little early by a fast clock, and is let in; not for who has to wait anyway
        self._waits_for_start = False

    def claim(self) -> Grant | Refused:
        """Claim, and wait for what is worth waiting for.

        A slot that somebody works on is stood by, at most until it ends: it turns out handled, or is taken over. A lease that somebody
        holds, or a slot that waits for an older one, is waited for only when told to. An early arrival that is not let in at once waits for
        the planned instant itself. And whoever is so close to the next slot's start that its clock may be the one to blame waits for that
        one, once.
        """
        options = self._options
        self._let_others_go_first()
        wait_until = monotonic() + (FOREVER if options.wait is None else options.wait)
        early_until = monotonic() + options.wait_early
        stood_by: int | None = None  # the slot's start
        slot_until = held_until = until = 0.0
        busy: Refused | None = None
        may_move_on = False  # whether the next slot was so near at the first answer that it may be the one that is meant
        answered = False
        pause = _FIRST_PAUSE
        while True:
            verdict = self._ask(held_until)
            if verdict is None:  # and somebody holds it: `busy` and `until` are set
                if busy is not None and monotonic() >= until:
                    return busy
                self._sleep(max(_AFTER, min(_LOOK, held_until - monotonic(), until - monotonic())))
                continue
            if not isinstance(verdict, Refused):
                return verdict
            word = verdict.verdict
            if not answered:
                answered = True
                may_move_on = self._is_near_the_next(verdict)
            if word == EARLY and not self._waits_for_start:
                self._waits_for_start = True  # and what is said and waited from here on is the time until then
            elif word == EARLY and verdict.starts_in is not None and monotonic() + verdict.starts_in <= early_until:
                self._say(verdict, "waiting for its start")
                self._sleep(min(verdict.starts_in + _AFTER, _ASK_AGAIN))
            elif word == HANDLED and may_move_on and verdict.next_start is not None:
                may_move_on = False
                self._say(verdict, "waiting for the next one")
                self._sleep((verdict.next_start - (verdict.now or 0)) / SECOND + _AFTER + options.standby)
            elif word == BUSY and verdict.record is not None:
                busy = verdict
                own = options.kind != "l" and verdict.same_slot
                if own and stood_by != verdict.record.slot_start:
                    stood_by = verdict.record.slot_start
                    slot_until = self._stands_by_until(verdict)
                until = min(wait_until, slot_until) if own else wait_until if options.wait else 0.0
                left = until - monotonic()
                if left <= 0:
                    return verdict
                self._say(verdict, "standing by" if own else "waiting in line")
                # a store whose time is not known has leases only, and they may have run out
                held_until = 0.0 if verdict.now is None else monotonic() + (verdict.record.expires_at - verdict.now) / SECOND
                pause = step(self._client._engine._wait(verdict, left, pause))
                if own and monotonic() >= slot_until and options.floating:
                    # the slot has ended, and asking again would ask for the next one
                    if not may_move_on:
                        return verdict
                    may_move_on = False
            else:
                return verdict

    def _ask(self, held_until: float) -> Grant | Refused | None:
        """Claim once; None when the store can't be asked, but is known to have given it to somebody else until later."""
        options, client = self._options, self._client
        claim = {**options.claim, "early": 0} if self._waits_for_start else options.claim
        others = held_until > monotonic()
        if others:
            claim = {**claim, "on_unavailable": "raise"}  # F2 is for when it is not known whether somebody else runs it
        try:
            if options.kind == "l":
                return client.try_lease(options.name, **claim)
            if options.kind == "o":
                return client.try_once(options.name, options.period, **claim)
            return client.try_window(options.name, self._schedule, **claim)
        except Unavailable:
            if others:
                return None
            raise

    def _is_near_the_next(self, refused: Refused) -> bool:
        """Say whether a run without a planned instant came so shortly before the next slot's start that it may be meant for that one."""
        options = self._options
        if options.kind not in "os" or refused.mark_ahead or refused.now is None or refused.record is None:
            return False
        start, end = (refused.record.slot_start, refused.record.slot_end) if refused.slot is None else refused.slot
        if start is None or end is None:
            return False
        early = DEFAULT_EARLY if options.early is None else duration(options.early, "early", zero=True, most=MOST_EARLY)
        return 0 < end - refused.now <= min(early, (end - start) // 2)

    def _stands_by_until(self, busy: Refused) -> float:
        """Return until when it is worth standing by: the slot's end; of one that has ended, until it can't be won any more (W6)."""
        assert busy.record is not None
        assert busy.now is not None
        start, end = (busy.record.slot_start, busy.record.slot_end) if busy.slot is None else busy.slot
        if start is None or end is None:
            return FOREVER
        if end <= busy.now:
            end += max(end - start, LEAST_LATE)
        return monotonic() + (end - busy.now) / SECOND

    def _let_others_go_first(self) -> None:
        """Wait for ``--standby`` from when the others are expected to begin, and for a part of ``--jitter``."""
        options = self._options
        seconds = options.jitter * int.from_bytes(os.urandom(4), "big") / 2**32
        if options.standby:
            begun, left = self._begun()
            # whoever waits beyond the slot's end would ask for the next one
            seconds = min(seconds + max(0.0, options.standby - begun), left / 2)
        if seconds <= 0:
            return
        if options.standby:
            say(f"{options.name}: letting others go first, for {seconds:.0f}s", "waiting", name=options.name, seconds=round(seconds, 3))
        self._sleep(seconds)

    def _begun(self) -> tuple[float, float]:
        """Return how long ago the slot began, or was planned, and in how long it ends, by the store's clock if it can be asked."""
        options, schedule = self._options, self._schedule
        now = None
        with suppress(Unavailable):  # the claim finds out, and says so
            now = self._client.driver.now(options.timeout)
        at = time.time_ns() // 1000 if now is None else now[0]
        if options.kind == "p":
            from rota.schedule import instant

            return (at - instant(options.claim["planned"], "planned")) / SECOND, FOREVER
        if schedule is None:
            return 0.0, FOREVER
        start, end = schedule.slot(at)
        return (at - start) / SECOND, FOREVER if end is None else (end - at) / SECOND

    def _say(self, refused: Refused, what: str) -> None:
        if what != self._said and not self._options.quiet:
            self._said = what
            options = self._options
            say(f"{what}: {options.by_name(refused.reason)}", "waiting", name=options.name, verdict=refused.verdict)

    @staticmethod
    def _sleep(seconds: float) -> None:
        until = monotonic() + seconds
        while (left := until - monotonic()) > 0:
            time.sleep(min(left, _LOOK))
