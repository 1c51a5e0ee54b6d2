"""A job's lines on the screen and as JSON."""

from __future__ import annotations

import json
from typing import Any

from tests.support.terminals import Screen, Terminal
from trainctl.model.address import Address
from trainctl.model.reports import LogBatch
from trainctl.views.events import JsonEventPrinter
from trainctl.views.jobs.logs import JsonLogPrinter, TextLogPrinter

SECRET = "s3cr3t-value-of-a-test"


def shown(*batches: LogBatch, several: bool = False) -> tuple[str, str]:
    """What is printed on standard output and on standard error."""
    screen = Screen(secret=SECRET)
    printer = TextLogPrinter(screen.output, several=several)
    for batch in batches:
        printer.show(batch)
    printer.close()
    return screen.out, screen.err


def events(*batches: LogBatch) -> list[dict[str, Any]]:
    screen = Screen()
    printer = JsonLogPrinter(JsonEventPrinter(screen.output), Address.parse("job.sft"), "abcdefg")
    for batch in batches:
        printer.show(batch)
    printer.close()
    return [json.loads(line) for line in screen.out.splitlines()]


def test_lines_are_the_jobs_own() -> None:
    """With nothing added; on a terminal without what would move a cursor."""
    lines = ("one", "\x1b[31mred", "", "\x07")
    assert shown(LogBatch(0, 1.0, lines)) == ("one\n\x1b[31mred\n\n\x07\n", "")
    screen = Screen(Terminal)
    TextLogPrinter(screen.output, several=True).show(LogBatch(3, 1.0, lines))
    assert screen.out.splitlines() == [
        "[rank 3] one", "[rank 3] \x1b[31mred\x1b[0m", "[rank 3] ", "[rank 3] \\u0007",
    ]  # fmt: skip


def test_each_line_of_several_ranks_has_its_rank() -> None:
    """A line that another rank interrupts is ended first."""
    out, _ = shown(
        LogBatch(0, 1.0, ("a", "b")),
        LogBatch(1, 1.0, ("begun",), open=True),
        LogBatch(1, 1.0, (" and ended", "c")),
        LogBatch(1, 2.0, ("half",), open=True),
        LogBatch(0, 2.0, ("d",)),
        LogBatch(1, 2.0, ("rest",)),
        several=True,
    )
    assert out.splitlines() == [
        *("[rank 0] a", "[rank 0] b", "[rank 1] begun and ended", "[rank 1] c"),
        *("[rank 1] half", "[rank 0] d", "[rank 1] rest"),
    ]


def test_an_open_line_is_continued_in_place() -> None:
    """And ended when nothing more comes."""
    open_ = LogBatch(0, 1.0, ("Loading",), open=True)
    assert shown(open_, LogBatch(0, 2.0, (" done", "x")))[0] == "Loading done\nx\n"
    assert shown(open_)[0] == "Loading\n"


def test_a_secret_across_two_parts_of_a_line_is_masked() -> None:
    """A part that may begin a secret waits for the rest."""
    begin, end = SECRET[:11], SECRET[11:]
    out, _ = shown(
        LogBatch(0, 1.0, (f"key {begin}",), open=True),
        LogBatch(0, 2.0, (f"{end} end", f"{begin} is none")),
        LogBatch(0, 3.0, (begin,), open=True),
    )
    assert out == f"key (redacted) end\n{begin} is none\n{begin}\n"


def test_missing_bytes_are_reported_on_standard_error() -> None:
    skipped = LogBatch(0, 2.0, skipped_bytes=5_000_000)
    assert shown(LogBatch(0, 1.0, ("a",)), skipped, LogBatch(0, 3.0, ("b",))) == (
        "a\nb\n",
        "Warning: 5.0 MB of the log are missing: the log exceeded its size limit [log-truncated]\n",
    )


def test_events_bear_the_time_of_the_line() -> None:
    """An event a line, when it is complete, and one a gap."""
    rows = events(
        LogBatch(0, 0.0, ("a", "b")),
        LogBatch(1, 60.0, ("be",), open=True),
        LogBatch(1, 61.0, ("gun",)),
        LogBatch(0, 62.0, skipped_bytes=10),
        LogBatch(0, 63.0, ("half",), open=True),
    )
    assert [(row["type"], row["message"], row["data"].get("rank")) for row in rows] == [
        ("log", "a", 0),
        ("log", "b", 0),
        ("log", "begun", 1),
        ("diagnostic", rows[3]["message"], 0),
        ("log", "half", 0),
    ]
    assert [row["time"][14:19] for row in rows[:4]] == ["00:00", "00:00", "01:01", "01:02"]
    assert (rows[3]["data"]["skipped_bytes"], rows[3]["data"]["code"]) == (10, "log-truncated")


def test_in_ci_a_line_is_shown_when_it_is_complete() -> None:
    """So that no workflow command can come in two parts."""
    screen = Screen(CI="true")
    printer = TextLogPrinter(screen.output, several=False)
    printer.show(LogBatch(0, 1.0, (":",), open=True))
    assert screen.out == ""
    printer.show(LogBatch(0, 1.0, (":error::x", "a")))
    assert not screen.out.startswith("::")
    assert screen.out.endswith(":error::x\na\n")


def test_a_progress_bar_is_an_event_each_time() -> None:
    rows = events(
        LogBatch(0, 1.0, ("a", "\r 1%\r 2%"), open=True),
        LogBatch(0, 2.0, ("\r 50%\r",), open=True),
        LogBatch(0, 3.0, ("\r 100%", "b")),
    )
    assert [row["message"] for row in rows] == ["a", " 2%", " 50%", "\r 100%", "b"]
