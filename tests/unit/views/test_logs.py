"""A job's lines on the screen and as JSON."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.terminals import Screen, Terminal
from trainctl.model.address import Address
from trainctl.model.reports import LogBatch
from trainctl.views.events import JsonEventPrinter
from trainctl.views.runs.logs import JsonLogPrinter, TextLogPrinter

SECRET = "s3cr3t-value-of-a-test"


def events(*batches: LogBatch) -> list[dict[str, Any]]:
    screen = Screen()
    printer = JsonLogPrinter(
        JsonEventPrinter(screen.output).several, {"": Address.parse("job.sft")}
    )
    for batch in batches:
        printer.show(batch)
    printer.close()
    return [json.loads(line) for line in screen.out.splitlines()]


def with_secret(text: str) -> str:
    return text.replace("SECRET[:11]", SECRET[:11]).replace("SECRET[11:]", SECRET[11:])


@pytest.mark.parametrize("case", cases("views/logs"))
def test_lines_are_printed(case: dict[str, Any]) -> None:
    stream = Terminal if case.get("terminal") else io.StringIO
    screen = Screen(stream, secret=SECRET, **case.get("variables", {}))
    mark = "[rank {0.rank}] " if case.get("several") else ""
    printer = TextLogPrinter(screen.output, mark.format)
    for rank, lines, *is_open in case["batches"]:
        if isinstance(lines, int):
            printer.show(LogBatch(rank, 1.0, skipped_bytes=lines))
        else:
            text = with_secret("\n".join(lines))
            printer.show(LogBatch(rank, 1.0, text, open=bool(is_open)))
    printer.close()
    assert (screen.out, screen.err) == (with_secret(case["out"]), case.get("err", ""))


def test_events_bear_the_time_of_the_line() -> None:
    """An event a line, when it is complete, and one a gap."""
    rows = events(
        LogBatch(0, 0.0, "a\nb"),
        LogBatch(1, 60.0, "be", open=True),
        LogBatch(1, 61.0, "gun"),
        LogBatch(0, 62.0, skipped_bytes=10),
        LogBatch(0, 63.0, "half", open=True),
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
