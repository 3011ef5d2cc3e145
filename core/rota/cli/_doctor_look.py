# SPDX-License-Identifier: MIT
"""What the doctor looks at, backend-neutral.

The driver's own findings (`rota.backend.Driver.examine`) come first: only a backend knows what ``allkeys-lru`` means. Here is what any
store has: whether it answers and how fast, how far its clock and this host's are apart, which versions meet, whom it coordinates and what
it outlives, whether a claim is granted, whether a mark or a grant lies ahead, and which ttl suits. A subject that the backend spoke of is
left to it, unless what the core sees is worse.

Nothing is changed but by one claim: a lease named `NAME`, held for a moment and forgotten, which alone proves that a job would get one.
It is left out when something bad was found before.
"""

from __future__ import annotations

import os
import time

from rota.backend import BUSY, LEASE, RELEASED, WON, Claim, Driver, Record, Settlement
from rota.duration import DAY, MILLISECOND, SECOND, describe
from rota.errors import ConfigurationError, NotSupported, RotaError, Unavailable
from rota.finding import BAD, LEVELS, OK, WARN, Finding
from rota.policy import EARLY, TTL
from rota.verdict import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rota.url import Url

    from ._progress import Progress

#: The lease that proves a claim.
NAME = "rota-doctor"
#: How many reads the latency is of, and how long they may take in all, seconds.
READS, READING = 15, 1.5
#: The latency of a read that is worth a word, seconds: a tenth of a call's usual time limit.
SLOW = 0.15
#: How often the store's time is asked for, to narrow the difference down.
LOOKS = 7
#: By how much two looks contradict each other when a clock was set, microseconds; in a virtual machine two processes read one half a
#: millisecond apart.
STEP = 10 * MILLISECOND
#: From which difference of the clocks on it is worth a word, microseconds; from `EARLY` on planned runs come too early or too late.
APART = SECOND
#: Records that are asked for at a time.
PAGE = 1000
#: The longest that one call may take, seconds.
CALL = 3.0

_UNREACHED = Finding(
    BAD,
    "reach",
    "",
    "No claim can be made: rota run ends with 115, and who holds a lease loses it when its ttl is over.",
    "See that the server runs and is not overloaded, that host and port in the URL are its own, and that nothing between drops packets.",
)
_REFUSED = Finding(
    BAD,
    "access",
    "",
    "Waiting cures none of it: every claim fails, and rota run ends with 2.",
    "Correct what it names, in the URL or at the store.",
)
_ABSENT = Finding(
    BAD,
    "store",
    "",
    "Nobody has used it yet. Jobs that name another one are not coordinated with those that name this.",
    "If another one was meant, correct the URL. Else nothing: the first claim makes it.",
)


class Examination:
    """One look at one store.

    Attributes:
        findings: What was found so far.
    """

    def __init__(self, driver: Driver, url: Url, seconds: float, progress: Progress) -> None:
        self.driver = driver
        self.url = url
        self.progress = progress
        self.deadline = time.monotonic() + seconds
        self.findings: list[Finding] = []
        self._facts: Any = {}
        self._latency = 0.0

    @property
    def left(self) -> float:
        """The seconds that one more call may take: never all that are left, so that the others get their turn."""
        return max(0.05, min(CALL, (self.deadline - time.monotonic()) / 2))

    def run(self) -> None:
        """Look at everything; stop where the store can't be reached or is not there."""
        steps: tuple[tuple[str, Callable[[], object]], ...] = (
            ("reaching the store", self._reach),
            ("measuring the latency", self._measure),
            ("comparing the clocks", self._compare_clocks),
            ("looking at versions and promises", self._describe),
            ("claiming a lease", self._claim),
            ("reading the records", self._read_records),
            ("choosing a ttl", self._advise),
        )
        for number, (doing, step) in enumerate(steps):
            self.progress.doing, self.progress.done = f"{doing} ...", number / len(steps)
            if time.monotonic() >= self.deadline:
                raise Unavailable(f"no time was left for {doing}")
            try:
                if step() is False:
                    return
            except RotaError as error:
                if not self._is_ill() and not self._explained(error):
                    raise
                # else what was found is behind it: the other steps may tell more

    def failed(self, error: Exception) -> None:
        """Take in an error that ended a step."""
        if isinstance(error, Unavailable):
            self._add(_UNREACHED._replace(text=f"the store does not answer: {error}"))
        elif isinstance(error, (RotaError, OSError)):
            self._add(_REFUSED._replace(text=str(error)))
        else:
            cure = f"Report it to whoever made the backend of {self.url.scheme}://, with its version."
            self._add(_REFUSED._replace(text=f"the backend has a fault: {type(error).__name__}: {error}", cure=cure))

    def _explained(self, error: RotaError) -> bool:
        """Let the backend say what is behind an error; return whether it knew."""
        found = list(self.driver.examine(error, self.left))
        for finding in found:
            self._add(finding)
        return any(finding.level == BAD for finding in found)

    def _is_ill(self) -> bool:
        return any(finding.level == BAD for finding in self.findings)

    def _add(self, finding: Finding) -> None:
        """Take in a finding; of several about one subject the first counts, unless a later one is worse."""
        for at, other in enumerate(self.findings):
            if other.subject == finding.subject:
                if LEVELS.index(finding.level) > LEVELS.index(other.level):
                    self.findings[at] = finding
                return
        self.findings.append(finding)

    # -- the steps

    def _reach(self) -> bool:
        if place := self.driver.unmade():  # the first verb would make it
            self._add(_ABSENT._replace(text=f"there is none at {place} yet"))
            self._explained(ConfigurationError(f"there is no store at {place} yet"))
            return False
        began = time.monotonic()
        error: RotaError | None = None
        try:
            if "facts" in self.driver.capabilities.verbs:
                self._facts = dict(self.driver.facts(self.left))
            else:
                self.driver.read(self._name(), self.left)
        except RotaError as failure:
            error = failure
        took = time.monotonic() - began
        if error is None:
            facts = {"first_answer_ms": round(took * 1000, 3)}
            self._add(Finding(OK, "reach", f"{self.url.safe} answers: in {_ms(took)}, connecting included", facts=facts))
            try:
                for finding in self.driver.examine(self._facts, self.left):
                    self._add(finding)
            except ConfigurationError as further:
                error = further
        if error is not None and not self._explained(error):
            self.failed(error)
        return error is None

    def _measure(self) -> None:
        took: list[float] = []
        began, name = time.monotonic(), self._name()
        while len(took) < READS and (not took or time.monotonic() - began < READING):
            sent = time.monotonic()
            self.driver.read(name, self.left)
            took.append(time.monotonic() - sent)
        took.sort()
        self._latency = took[-1]
        middle = took[len(took) // 2]
        facts = {"median_ms": round(middle * 1000, 3), "worst_ms": round(took[-1] * 1000, 3), "reads": len(took)}
        found = Finding(OK, "latency", f"{_ms(middle)} for a read, {_ms(took[-1])} at worst (of {len(took)})", facts=facts)
        if middle > SLOW:
            why = "Each claim and each renewal takes at least that; a call is given up after 1.5s unless --timeout says otherwise."
            found = found._replace(level=WARN, why=why, cure="Use a store nearer to its users, or one with less to do; else a longer ttl.")
        self._add(found)

    def _compare_clocks(self) -> None:
        low, high = -(2**62), 2**62
        stepped = False
        for _ in range(LOOKS):
            sent = time.time_ns() // 1000
            now = self.driver.now(self.left)
            received = time.time_ns() // 1000
            if now is None:
                break
            least, most = now[0] - received, now[1] - sent
            narrower = max(low, least), min(high, most)
            if narrower[0] > narrower[1] + STEP:  # one of the two was set while we looked
                stepped, low, high = True, least, most
            else:
                low, high = sorted(narrower)
        if low == -(2**62):
            self._add(
                Finding(
                    WARN,
                    "clock",
                    "the store's time can't be known from here",
                    "Leases work without it; windows are decided by it, and are refused.",
                    "See the limits that the backend's README names.",
                )
            )
            return
        self._add(_clocks(low, high, stepped))

    def _describe(self) -> None:
        self._add(_versions(self.driver, self._facts))
        scope = self.driver.capabilities.scope
        whom = {"process": "this process alone", "host": "the processes of this host", "network": "all that reach it"}.get(scope, scope)
        found = Finding(OK, "scope", f"it coordinates {whom}")
        if scope != "network" and os.environ.get("KUBERNETES_SERVICE_HOST"):
            why, cure = "Pods share no file: each would run every slot.", "Name a server by --url or ROTA_URL."
            found = found._replace(level=BAD, why=why, cure=cure)
        self._add(found)
        durability = self.driver.capabilities.durability
        what = {
            "process": "the end of its process loses what was handled; tokens grow all the same",
            "host": "what was handled outlives a restart, and not a power cut",
            "disk": "what was handled outlives a power cut",
            "quorum": "what was handled outlives the loss of a minority of the servers",
        }.get(durability, durability)
        self._add(Finding(OK, "durability", what))

    def _claim(self) -> None:
        if self._is_ill():
            return
        name, owner, capabilities = self._name(), os.urandom(16).hex(), self.driver.capabilities
        ttl = max(capabilities.min_ttl, 5 * SECOND)
        now = self.driver.now(self.left)
        patience = self.left
        latest = (now[1] if now is not None else time.time_ns() // 1000) + int(2 * patience * SECOND)
        began = time.monotonic()
        try:
            answer = self.driver.claim(Claim(name, owner, "rota doctor", LEASE, ttl + -ttl % capabilities.ttl_step, latest, DAY), patience)
            if answer.verdict == WON:
                self.driver.settle(Settlement(name, owner, RELEASED, DAY), self.left)
            took = time.monotonic() - began
            if answer.verdict == WON:
                self.driver.forget(name, self.left)
        except (Unavailable, ConfigurationError, NotSupported) as error:
            if self._explained(error):
                return
            why = "The store answers questions and grants nothing, so no job runs."
            cure = "See that the URL's user may write, that the server takes writes, and has room: the message says which."
            self._add(Finding(BAD, "claim", f"no lease was granted: {error}", why, cure))
            return
        if answer.verdict == WON:
            self._add(Finding(OK, "claim", f"a lease was granted and released in {_ms(took)}", facts={"ms": round(took * 1000, 3)}))
        elif answer.verdict == BUSY:
            self._add(Finding(OK, "claim", f"not tried: another doctor holds {NAME!r} now"))
        else:
            self._add(Finding(WARN, "claim", f"a claim was {answer.verdict}", f"{NAME!r} is used by somebody else.", "Leave it free."))

    def _read_records(self) -> None:
        prefix = f"{self.url.prefix}/" if self.url.prefix else ""
        count, held, after, whole = 0, 0, "", False
        ahead: list[Record] = []
        future: list[Record] = []
        now = self.driver.now(self.left)
        at = time.time_ns() // 1000 + DAY if now is None else now[1]  # unless it is known: what is ahead by far
        until = time.monotonic() + (self.deadline - time.monotonic()) / 2
        while not whole and time.monotonic() < until:
            try:
                page = self.driver.list(prefix, self.left, after=after, limit=PAGE)
            except ConfigurationError as error:  # a lease was granted, so it is this alone that the user may not do
                if not self._is_ill() and not self._explained(error):
                    why, cure = "rota run works without; rota ls needs it.", "Allow the URL's user what the message names."
                    self._add(Finding(WARN, "records", f"the names can't be listed: {error}", why, cure))
                return
            kept = [record for record in page if record.kind]
            count += len(kept)
            held += sum(record.owner != "" and record.expires_at > at for record in kept)
            ahead += [record for record in kept if record.mark is not None and record.mark > at + EARLY]
            future += [record for record in kept if record.owner and record.granted_at > at + EARLY]
            whole = len(page) < PAGE
            after = page[-1].name if page else ""
        facts = {"names": count, "held": held, "complete": whole, "marks_ahead": len(ahead), "grants_ahead": len(future)}
        said: list[str] = []
        whys, cures = ["The store's clock, or a former one, once ran ahead."], []
        if ahead:
            said.append(
                f"slots ahead of the store's time count as handled: {_names(ahead, prefix)} (the first up to {text(ahead[0].mark)})"
            )
            whys.append("No slot of these names runs until its time gets there (W7).")
            cures.append(
                'Set each mark back, as in: rota settle NAME --mark T --why "the clock ran ahead", where T lies in the last slot that'
                " really was handled (rota show NAME names it from the history)."
            )
        if future:
            first = text(future[0].granted_at)
            said.append(f"leases were granted ahead of the store's time: {_names(future, prefix)} (the first at {first})")
            whys.append("These names are busy until its time is past the end of the lease (L1).")
            cures.append('Free each, once its work has ended, as in: rota release NAME --why "the clock ran ahead".')
        if said:
            cures.append("And see to the clocks.")
            self._add(Finding(BAD, "records", "; ".join(said), " ".join(whys), " ".join(cures), facts))
            return
        self._add(
            Finding(
                OK,
                "records",
                f"{'' if whole else 'at least '}{count} name{'' if count == 1 else 's'}, {held} of them held, no mark or grant ahead",
                facts=facts,
            )
        )

    def _advise(self) -> None:
        floor = self.driver.capabilities.min_ttl
        # a renewal that fails and the next one fit between a heartbeat (ttl/3) and the holder's deadline (0.9 ttl), with room for both
        useful = max(floor, int(10 * self._latency * SECOND), SECOND)
        useful += -useful % SECOND
        facts = {"least_s": useful / SECOND, "floor_s": floor / SECOND}
        lives = describe(int(30 * SECOND * (0.9 - 1 / 3)) // SECOND * SECOND)
        advice = f"not under {describe(useful)} here; with {TTL} (the default) a holder lives through {lives} without the store"
        self._add(Finding(OK, "ttl", advice, facts=facts))

    def _name(self) -> str:
        return f"{self.url.prefix}/{NAME}" if self.url.prefix else NAME


def _names(records: list[Record], prefix: str) -> str:
    names = ", ".join(repr(record.name.removeprefix(prefix)) for record in records[:3])
    return f"{names} and {len(records) - 3} more" if len(records) > 3 else names


def _clocks(low: int, high: int, stepped: bool) -> Finding:
    """Judge the difference of the clocks, of which it is known that it lies between two values."""
    facts = {"ahead_least_s": low / SECOND, "ahead_most_s": high / SECOND}
    middle, bound = (low + high) / 2, (high - low) / 2
    side = "ahead of" if middle > 0 else "behind"
    shown = f"the store's clock is {_seconds(abs(middle))} {side} this host's, give or take {_seconds(bound)}"
    surely = max(low, -high, 0)
    found = Finding(OK, "clock", shown, facts=facts)
    cure = (
        "Synchronise both by NTP (timedatectl and chronyc tracking show the state), the store's host first; let clocks slew, not step:"
        " a step of the store's ends leases early or late."
    )
    if stepped:
        why = "A clock that steps ends leases early or late (L12)."
        return found._replace(level=WARN, text=f"a clock was set while it was looked at; now {shown}", why=why, cure=cure)
    if surely >= EARLY:
        why = (
            f"The store's clock decides. Cron on this host starts jobs by its own: beyond {describe(EARLY)} (--early) they come too early"
            " for their slot, or late, and at its end for another one."
        )
        return found._replace(level=BAD, why=why, cure=cure)
    if surely >= APART:
        why = f"The store's clock decides. Beyond {describe(EARLY)} (--early) what this host plans comes too early for its slot, or late."
        return found._replace(level=WARN, why=why, cure=cure)
    return found


def _versions(driver: Driver, facts: Any) -> Finding:
    from importlib import metadata

    from rota import __version__

    said = [f"rota {__version__}"]
    package = type(driver).__module__.partition(".")[0]
    if package != "rota":
        try:
            said.append(f"{package.replace('_', '-')} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            said.append(package.replace("_", "-"))
    server = facts.get("version")
    if server and server != "embedded":
        said.append(f"store {server}")
    return Finding(OK, "versions", ", ".join(said), facts=facts)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}ms" if seconds < 1 else f"{seconds:.2f}s"


def _seconds(microseconds: float) -> str:
    return f"{microseconds / MILLISECOND:.1f}ms" if microseconds < SECOND else f"{microseconds / SECOND:.2f}s"
