"""Thinned lines keep what one sees; logs of hostile runs are bounded and masked."""

from __future__ import annotations

import math
from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from trainctl.model.redaction import Redactor
from trainctl.model.reports import LogBatch
from trainctl.operations.runs.logs import LogSelection, LogTime, LogWindow, _WindowFullError
from trainctl.ui.series import line_json


@pytest.mark.parametrize("count", [0, 1, 5, 600, 1201, 20_000])
def test_a_line_keeps_its_ends_and_extremes(count: int) -> None:
    values = array("d", (math.sin(i / 50) for i in range(count)))
    if count > 100:
        values[count // 3], values[count // 2] = 9.0, -9.0
    steps = array("d", (math.nan if i % 7 == 3 else i for i in range(count)))
    line = line_json("x", (values, steps, array("d", range(count))), 600)
    assert len(line["v"]) <= 1202
    assert len(line["v"]) == len(line["t"]) == len(line["s"])
    if count:
        assert (line["t"][0], line["t"][-1]) == (0.0, count - 1)
        assert min(line["v"]) == pytest.approx(min(values), rel=1e-5)
        assert max(line["v"]) == pytest.approx(max(values), rel=1e-5)
    assert line_json("x", ([math.inf, 1.0], [0, 1], [0, 1]), 600)["v"] == [1.0]


def window(**selection: Any) -> LogWindow:
    """A window without nodes, to which batches are given."""
    redactor = Redactor()
    redactor.register("s3cret-token")
    workspace = SimpleNamespace(settings=SimpleNamespace(redactor=redactor))
    run = SimpleNamespace(record=SimpleNamespace(ranks=(), id="r"))
    return LogWindow(workspace, run, LogSelection(**selection))  # type: ignore[arg-type]


def test_a_secret_is_masked_before_a_line_is_cut_or_complete() -> None:
    log = window()
    log._take(LogBatch(0, 1.0, "x" * 1995 + "s3cret-token"))
    log._take(LogBatch(0, 2.0, "begun s3cret-", open=True))
    assert [line.text for line in log.lines()] == [
        "x" * 1995 + "(reda… 5 more characters",
        "begun ",
    ]
    log._take(LogBatch(0, 2.0, "token 50%\rdone s3cret-token\nnext"))
    assert [line.text for line in log.lines()][1:] == ["done (redacted)", "next"]


def test_a_window_is_bounded() -> None:
    """The last lines are kept; of those since a time the first, then reading ends."""
    log = window()
    for number in range(3000):
        log._take(LogBatch(number % 2, number, f"line {number}"))
    assert [line.text for line in log.lines()][::499] == ["line 2500", "line 2999"]
    fixed = window(since=LogTime(5.0))
    fixed._take(LogBatch(0, 5.0, "first"))
    with pytest.raises(_WindowFullError):
        fixed._take(LogBatch(0, 6.0, "\n".join(f"line {number}" for number in range(3000))))
    assert [line.text for line in fixed.lines()][::499] == ["first", "line 498"]
    log._take(LogBatch(0, 9999.0, "y" * 3_000_000, open=True))
    assert sum(len(line.text or "") for line in log.lines()) < 2_000_000
