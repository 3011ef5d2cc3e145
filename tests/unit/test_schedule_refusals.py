# SPDX-License-Identifier: MIT
"""What a schedule refuses when it is defined, and that the message names the culprit (W11; DV-04, DV-07)."""

from __future__ import annotations

import zoneinfo
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from rota.errors import ConfigurationError
from rota.schedule import Cron, Every, instant

# expression, then words that the message must hold besides the expression itself
EXPRESSIONS = [
    # seconds and years, other counts
    ("*/30 * * * * *", "6 fields", "seconds"),
    ("0 3 * * * *", "6 fields", "seconds"),
    ("0 0 3 * * * 2030", "7 fields", "seconds"),
    ("0 0 * *", "4 fields", "five"),
    ("0", "1 field", "five"),
    ("0 0 * * * * * *", "8 fields", "five"),
    ("", "empty", "five fields"),
    ("  \t ", "empty"),
    # what differs per process or per tool
    ("H/5 * * * *", "'H/5'", "hash"),
    ("H * * * *", "'H'", "hash"),
    ("H(0-7) * * * *", "hash"),
    ("1,h * * * *", "'1,h'", "hash"),
    ("R * * * *", "'R'", "random"),
    ("0 r(0-7)/2 * * *", "random"),
    ("0 0 r * *", "random"),
    ("@reboot", "@reboot"),
    ("@every 5m", "Every('5m')", "--every 5m"),
    ("@every 1h30m", "Every('1h30m')"),
    ("@dayly", "did you mean @daily?"),
    ("@", "@daily"),
    ("@daily * * * *", "unknown name"),
    # zones in the wrong place
    ("CRON_TZ=Etc/UTC */10 * * * *", "CRON_TZ=Etc/UTC", "tz option"),
    ("TZ=Europe/Berlin 0 0 * * *", "TZ=Europe/Berlin", "tz option"),
    ("cron_tz=UTC 0 0 * * *", "tz option"),
    # never fires
    ("0 0 31 2 *", "never fires"),
    ("0 0 30 2 *", "never fires"),
    ("0 0 31 2,4,6,9,11 *", "never fires"),
    ("0 0 30-31 feb ?", "never fires"),
    # two meanings
    ("0 0 */10 * 1", "two meanings", "'*/10'"),
    ("0 0 */2,31 * fri", "two meanings"),
    ("0 0 13 * */2", "two meanings", "'*/2'"),
    ("0 0 */2 * */2", "two meanings"),
    ("7,*/15 * * * *", "write it first"),
    ("0 0 5,* * 1", "write it first"),
    ("0 0 * * 1,5#2", "'1,5#2'", "two schedules"),
    ("0 0 * * 1#1,3", "two schedules"),
    ("0 0 * * 1-5#1", "#", "range"),
    ("0 0 * * 1-5L", "L", "range"),
    ("0 0 * * 1/6", "two meanings", "1-6/6"),
    ("0 0 * * mon/2", "two meanings"),
    ("*/61 * * * *", "'*/61'", "61"),
    ("0 */25 * * *", "step 25"),
    ("0 0 * */13 *", "step 13"),
    # out of range and backwards
    ("60 * * * *", "60", "0 to 59"),
    ("0 24 * * *", "24", "0 to 23"),
    ("0 0 0 1 *", "day of month", "1 to 31"),
    ("0 0 32 * *", "32"),
    ("0 0 * 0 *", "month", "1 to 12"),
    ("0 0 * 13 *", "13"),
    ("0 0 * * 8", "8", "0 to 7"),
    ("0 0 * * 8L", "8"),
    ("0 0 * * 8#1", "8"),
    ("0-60 * * * *", "60"),
    ("*/0 * * * *", "'*/0'", "step 0"),
    ("0-10/0 * * * *", "step 0"),
    ("5-1 * * * *", "reversed", "'5-1'"),
    ("0 22-6 * * *", "reversed"),
    ("0 0 * nov-feb *", "reversed"),
    ("0 0 * * 6-0", "reversed"),
    ("0 0 * * 7-2", "starts at 7"),
    ("0 0 * * 5#0", "1 to 5"),
    ("0 0 * * 5#6", "1 to 5"),
    # W, L and ? out of place
    ("0 0 15W * *", "'15W'", "nearest working day"),
    ("0 0 W15 * *", "nearest working day"),
    ("0 0 LW * *", "nearest working day"),
    ("0 0 L-3 * *", "'L-3'", "last day"),
    ("0 0 20-L * *", "L"),
    ("0 0 15L * *", "L stands alone"),
    ("0 0 L/2 * *", "L stands alone"),
    ("0 0 * * L", "5L"),
    ("L * * * *", "'L'", "minute"),
    ("0 0 * L *", "month"),
    ("0 0 1#1 * *", "'1#1'"),
    ("? * * * *", "?", "minute"),
    ("0 0 ?,5 * *", "?"),
    ("0 0 ?/5 * *", "?"),
    # what is no field at all
    ("a b c d e", "'a'", "minute"),
    ("0 0 * * monday", "monday", "write mon"),
    ("0 0 * january *", "write jan"),
    ("0 0 * * xyz", "xyz", "sun"),
    ("0 0 mon * *", "'mon'", "day of month"),
    ("-5 * * * *", "minute"),
    ("5- * * * *", "minute"),
    ("1-2-3 * * * *", "minute"),
    ("1,,2 * * * *", "empty item"),
    (", * * * *", "empty item"),
    ("** * * * *", "'**'"),
    ("5* * * * *", "'5*'"),
    ("*/ * * * *", "step"),
    ("*/x * * * *", "'x'"),
    ("*/2/3 * * * *", "'2/3'"),
    ("1.5 * * * *", "'1.5'"),
    ("+5 * * * *", "'+5'"),
    ("0x5 * * * *", "0x5"),
    ("00000000000005 * * * *", "00000000000005"),
    # quotes, control characters, look-alikes
    ("'0 0 * * *'", "quotes"),
    ('"@daily"', "quotes"),
    ("0 0 * * *\n", "control character", r"\n"),
    ("0 0 * * *\x00", "control character", r"\x00"),
    ("0 0 * * *\x7f", "control character"),
    ("0\u00a00 * * *", "character", r"\xa0"),
    ("\u0665 * * * *", "character"),
    ("0 0 * * \u2217", "character"),
]


@pytest.mark.parametrize("row", EXPRESSIONS, ids=[repr(row[0]) for row in EXPRESSIONS])
def test_an_expression_is_refused_with_the_culprit_named(row: tuple[str, ...]) -> None:
    """W11, DV-07: in whatever zone; the error comes when the schedule is defined."""
    expression, *words = row
    for zone in ("UTC", "Europe/Berlin"):
        with pytest.raises(ConfigurationError) as caught:
            Cron(expression, tz=zone)
        message = str(caught.value)
        assert repr(expression) in message
        for word in words:
            assert word in message


@pytest.mark.parametrize("value", [None, 5, b"0 0 * * *", ["0", "0", "*", "*", "*"], 0.5])
def test_what_is_not_text_is_no_expression(value: object) -> None:
    """W11: an error of rota's, not a TypeError from somewhere below."""
    with pytest.raises(ConfigurationError, match="not text"):
        Cron(value)  # type: ignore[arg-type]


def test_an_expression_of_absurd_length_is_refused_shortened() -> None:
    """W11: the message stays readable."""
    with pytest.raises(ConfigurationError, match=r"too long") as caught:
        Cron("0," * 100_000 + "0 * * * *")
    assert len(str(caught.value)) < 300


ZONES = [
    ('"Europe/Berlin"', "quotes", "Europe/Berlin without"),
    ("'Europe/Berlin'", "quotes"),
    ("Europe/Berln", "did you mean Europe/Berlin"),
    ("Europe/Kiyv", "Europe/Kyiv"),
    ("America/New York", "did you mean America/New_York"),
    ("europe/berlin", "did you mean Europe/Berlin"),
    ("EUROPE/BERLIN", "did you mean Europe/Berlin"),
    ("Berlin", "did you mean Europe/Berlin?"),
    ("new york", "did you mean America/New_York?"),
    ("utc", "did you mean UTC"),
    ("Utc", "did you mean UTC"),
    ("Mars/Olympus_Mons", "unknown", "tzdata"),
    ("", "empty"),
    ("  ", "empty"),
    (" Europe/Berlin", "not a zone's name"),
    ("Europe/Berlin ", "did you mean Europe/Berlin"),
    ("Europe", "folder"),
    ("America/Argentina", "folder"),
    ("Europe/", "not a zone's name"),
    ("Europe//Berlin", "not a zone's name"),
    ("localtime", "host to host"),
    ("posixrules", "host to host"),
    ("Factory", "host to host"),
    ("right/Europe/Berlin", "leap seconds"),
    ("right/UTC", "leap seconds"),
    ("posix/Europe/Berlin", "posix/"),
    ("/usr/share/zoneinfo/Europe/Berlin", "path"),
    ("../zoneinfo/Europe/Berlin", "path"),
    ("Europe/../Europe/Berlin", "path"),
    ("./UTC", "path"),
    ("C:\\zones", "path"),
    ("Europe\\Berlin", "not a zone's name"),
    ("Europe/Berlin\x00", "not a zone's name"),
    ("Europe/Berlin\n", "not a zone's name"),
    ("Europe/B\u00e9rlin", "not a zone's name"),
    ("\ud800", "not a zone's name"),
    ("+02:00", "not a zone's name"),
    ("UTC+2", "unknown"),
    ("zone.tab", "not a zone's name"),
    ("tzdata.zi", "not a zone's name"),
    ("leapseconds", "zone"),
    ("+VERSION", "not a zone's name"),
]


@pytest.mark.parametrize("row", ZONES, ids=[ascii(row[0]) for row in ZONES])
@pytest.mark.parametrize("source", ["system", "package"])
def test_a_zone_is_refused_with_its_name(row: tuple[str, ...], source: str) -> None:
    """W10, DV-04 (3): from zone files and from the package alike, and never taken for UTC."""
    name, *words = row
    if source == "package":
        zoneinfo.reset_tzpath(to=[])
    try:
        with pytest.raises(ConfigurationError) as caught:
            Cron("@daily", tz=name)
    finally:
        zoneinfo.reset_tzpath()
    message = str(caught.value)
    assert repr(name) in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("value", [None, 1, b"UTC", zoneinfo.ZoneInfo("UTC")])
def test_what_is_not_text_is_no_zone(value: object) -> None:
    """DV-04."""
    with pytest.raises(ConfigurationError, match="not text"):
        Cron("@daily", tz=value)  # type: ignore[arg-type]


def test_an_overlong_zone_is_refused_shortened() -> None:
    """DV-04: before the file system can object."""
    with pytest.raises(ConfigurationError, match=r"too long") as caught:
        Cron("@daily", tz="Europe/" + "x" * 10_000)
    assert len(str(caught.value)) < 300


def test_a_file_that_is_no_zone_is_refused(tmp_path: Path) -> None:
    """DV-04: cut off, empty or something else."""
    zoneinfo.reset_tzpath(to=[str(tmp_path)])
    try:
        for content in (b"", b"TZif", b"not a zone"):
            (tmp_path / "Broken").write_bytes(content)
            with pytest.raises(ConfigurationError, match="'Broken' is not a zone file"):
                Cron("@daily", tz="Broken")
    finally:
        zoneinfo.reset_tzpath()


def test_a_zone_spelled_unlike_its_file_is_refused_where_case_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DV-04: as on macOS and Windows, where `europe/berlin` would open and fail on the next host."""
    import os

    (tmp_path / "Europe").mkdir()
    (tmp_path / "Europe" / "Berlin").write_bytes(b"TZif")
    isfile = os.path.isfile
    monkeypatch.setattr(os.path, "isfile", lambda path: isfile(path) or str(path).endswith("europe/berlin"))
    zoneinfo.reset_tzpath(to=[str(tmp_path)])
    try:
        with pytest.raises(ConfigurationError, match="did you mean Europe/Berlin"):
            Cron("@daily", tz="europe/berlin")
    finally:
        zoneinfo.reset_tzpath()


@pytest.mark.parametrize(
    "period", [0, -1, "0s", 0.0005, "999us", timedelta(0), float("nan"), float("inf"), "15", "5x", "", None, True, "367d", 10**12]
)
def test_an_interval_is_refused_when_it_is_none(period: object) -> None:
    """W11: at least a millisecond, at most 366 days, with a unit."""
    with pytest.raises(ConfigurationError, match=r"^every"):
        Every(period)  # type: ignore[arg-type]


BAD_INSTANTS = [
    ("2026-02-26T00:07:00", "time zone"),
    ("2026-02-26", "time zone"),
    (datetime(2026, 2, 26), "time zone"),
    ("20260226", "2026-02-26T00:00:00Z"),
    ("tomorrow", "no instant"),
    ("", "no instant"),
    ("2026-02-30T00:00:00Z", "no instant"),
    ("-5", "no instant"),
    ("1e9", "no instant"),
    ("\u0665", "no instant"),
    ("1." * 3, "no instant"),
    ("9" * 5000, "no instant"),
    (1772064420000, "not milliseconds"),
    ("1772064420000", "not milliseconds"),
    (-1, "1970"),
    (-0.5, "1970"),
    ("1969-12-31T23:59:59Z", "1970"),
    ("9000-01-01T00:00:00Z", "9000"),
    ("0001-01-01T00:00:00+14:00", "1970"),
    ("9999-12-31T23:59:59-14:00", "9000"),
    (float("nan"), "no instant"),
    (float("inf"), "no instant"),
    (True, "no instant"),
    (None, "planned"),
    ([], "planned"),
    (b"5", "planned"),
    (datetime(2026, 2, 26).date(), "planned"),
]


@pytest.mark.parametrize(("value", "word"), BAD_INSTANTS, ids=[ascii(row[0])[:40] for row in BAD_INSTANTS])
def test_an_instant_is_refused_by_the_options_name(value: object, word: str) -> None:
    """W5: naive, ambiguous, or out of bounds."""
    with pytest.raises(ConfigurationError, match=r"^planned=") as caught:
        instant(value, "planned")  # type: ignore[arg-type]
    assert word in str(caught.value)
    assert len(str(caught.value)) < 300
    with pytest.raises(ConfigurationError, match=r"^anchor=|^every="):
        Every("1h", anchor=value if value is not None else "")  # type: ignore[arg-type]


@pytest.mark.parametrize("at", [datetime(2026, 2, 26), "2026-02-26T00:07:00Z", 1.5, None, True])
def test_slots_are_asked_by_microseconds_or_aware_datetimes_only(at: object) -> None:
    """W1: no float, whose last digits are not whole microseconds."""
    for schedule in (Cron("@daily"), Every("1h")):
        for ask in (schedule.slot, schedule.next, partial(schedule.missed, before=5), partial(schedule.missed, 5)):
            with pytest.raises(ConfigurationError):
                ask(at)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, -1, 100_001, 1.0, True, None, "3"])
def test_next_is_asked_for_a_bounded_whole_number(count: object) -> None:
    """No endless lists."""
    with pytest.raises(ConfigurationError, match="count="):
        Every("1h").next(0, count)  # type: ignore[arg-type]
