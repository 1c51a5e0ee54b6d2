"""A job's lines on the screen and as JSON."""

from __future__ import annotations

import io
import json
from typing import Any

from trainctl.model.address import Address
from trainctl.model.redaction import Redactor
from trainctl.model.reports import LogBatch
from trainctl.views.events import JsonEventPrinter
from trainctl.views.jobs.logs import JsonLogPrinter, TextLogPrinter
from trainctl.views.terminal.output import TerminalOutput

SECRET = "s3cr3t-value-of-a-test"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Screen:
    """Both streams of an output."""

    def __init__(self, stream: type[io.StringIO] = io.StringIO, **environment: str) -> None:
        self.out, self.err = stream(), io.StringIO()
        redactor = Redactor()
        redactor.register(SECRET)
        self.output = TerminalOutput(self.out, self.err, redactor, environment)


def shown(*pieces: LogBatch, several: bool = False) -> tuple[str, str]:
    """What people read on standard output and on standard error."""
    screen = Screen()
    view = TextLogPrinter(screen.output, several=several)
    for piece in pieces:
        view.show(piece)
    view.close()
    return screen.out.getvalue(), screen.err.getvalue()


def events(*pieces: LogBatch) -> list[dict[str, Any]]:
    """What programs read."""
    screen = Screen()
    emit = JsonEventPrinter(screen.output)
    view = JsonLogPrinter(emit, Address.parse("job.sft"), "abcdefg")
    for piece in pieces:
        view.show(piece)
    view.close()
    return [json.loads(line) for line in screen.out.getvalue().splitlines()]


def test_lines_are_the_jobs_own() -> None:
    """With nothing added; on a terminal without what would move a cursor, whatever the batch in which they come."""
    lines = ("one", "\x1b[31mred", "", "\x07")
    assert shown(LogBatch(0, 1.0, lines)) == ("one\n\x1b[31mred\n\n\x07\n", "")
    screen = Screen(Terminal)
    TextLogPrinter(screen.output, several=True).show(LogBatch(3, 1.0, lines))
    assert screen.out.getvalue().splitlines() == [
        *("[rank 3] one", "[rank 3] \x1b[31mred\x1b[0m", "[rank 3] ", "[rank 3] \\u0007"),
    ]


def test_several_ranks_are_told_apart() -> None:
    """Each line bears its rank; a line that another rank interrupts is ended first."""
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


def test_a_line_that_goes_on_is_not_cut() -> None:
    """It is continued where it was, and ended where nothing more comes."""
    assert shown(LogBatch(0, 1.0, ("Loading",), open=True), LogBatch(0, 2.0, (" done", "x"))) == (
        "Loading done\nx\n", "",
    )  # fmt: skip
    assert shown(LogBatch(0, 1.0, ("Loading",), open=True)) == ("Loading\n", "")


def test_a_secret_across_two_parts_of_a_line_is_masked() -> None:
    """What may begin one waits for the rest."""
    half = len(SECRET) // 2
    out, _ = shown(
        LogBatch(0, 1.0, (f"key {SECRET[:half]}",), open=True),
        LogBatch(0, 2.0, (f"{SECRET[half:]} end", f"{SECRET[:half]} is none")),
        LogBatch(0, 3.0, (SECRET[:half],), open=True),
    )

    assert out == f"key (redacted) end\n{SECRET[:half]} is none\n{SECRET[:half]}\n"


def test_what_is_left_out_is_said_elsewhere() -> None:
    """On standard error, so that standard output holds nothing but the job's lines."""
    assert shown(LogBatch(0, 1.0, ("a",)), LogBatch(0, 2.0, skipped_bytes=5_000_000), LogBatch(0, 3.0, ("b",))) == (
        "a\nb\n", "Warning: 5.0 MB of the log are missing: the log exceeded its size limit [log-truncated]\n",
    )  # fmt: skip


def test_events_bear_the_time_of_the_line() -> None:
    """One for each line; a line that goes on is one event when it is whole, and a gap is one, too."""
    found = events(
        LogBatch(0, 0.0, ("a", "b")),
        LogBatch(1, 60.0, ("be",), open=True),
        LogBatch(1, 61.0, ("gun",)),
        LogBatch(0, 62.0, skipped_bytes=10),
        LogBatch(0, 63.0, ("half",), open=True),
    )

    assert [(one["time"], one["message"], one["data"].get("rank")) for one in found] == [
        ("1970-01-01T00:00:00.000Z", "a", 0),
        ("1970-01-01T00:00:00.000Z", "b", 0),
        ("1970-01-01T00:01:01.000Z", "begun", 1),
        ("1970-01-01T00:01:02.000Z", found[3]["message"], 0),
        (found[4]["time"], "half", 0),
    ]
    assert [one["type"] for one in found] == ["log", "log", "log", "diagnostic", "log"]
    assert found[3]["data"]["skipped_bytes"] == 10
    assert found[3]["data"]["code"] == "log-truncated"


def test_in_ci_a_line_is_shown_when_it_is_whole() -> None:
    """So that no order to the system that shows it can come in two parts."""
    screen = Screen(CI="true")
    view = TextLogPrinter(screen.output, several=False)
    view.show(LogBatch(0, 1.0, (":",), open=True))
    assert screen.out.getvalue() == ""
    view.show(LogBatch(0, 1.0, (":error::x", "a")))
    assert not screen.out.getvalue().startswith("::")
    assert screen.out.getvalue().endswith(":error::x\na\n")


def test_a_progress_bar_is_an_event_as_it_looks_now() -> None:
    """Each time that it is shown, although its line has not ended; its last state comes with the line."""
    found = events(
        LogBatch(0, 1.0, ("a", "\r 1%\r 2%"), open=True),
        LogBatch(0, 2.0, ("\r 50%\r",), open=True),
        LogBatch(0, 3.0, ("\r 100%", "b")),
    )

    assert [one["message"] for one in found] == ["a", " 2%", " 50%", "\r 100%", "b"]
