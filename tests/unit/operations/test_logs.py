"""A log's frames as lines, however they are cut, and what may be asked of a log."""

from __future__ import annotations

import json

import pytest

from trainctl.errors import UsageError
from trainctl.model.reports import LogBatch
from trainctl.operations.runs.logs import LogFrameParser, LogSelection, LogTime


def frame(data: bytes, time: float = 1.0, next_: int = 0, *, open_: bool = False) -> bytes:
    """As a node writes it."""
    head = {"time": time, "bytes": len(data), "next": next_, "open": open_}
    return json.dumps(head).encode() + b"\n" + data


STREAM = (
    frame("one\nzwölf\n\n".encode(), 1.0, 12)
    + b"{}\n"
    + b'{"skipped_bytes": 5000, "time": 2.0, "next": 5012}\n'
    + frame("→ thr".encode(), 3.0, 5018, open_=True)
    + frame(b"ee\r\n\xff\n", 4.0, 5024)
)


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_frames_are_joined(size: int) -> None:
    """However the stream is cut, also within characters; invalid text is replaced."""
    frames = LogFrameParser(2)
    batches: list[LogBatch] = []
    for start in range(0, len(STREAM), size):
        batches += frames.take(STREAM[start : start + size])
    assert batches == [
        LogBatch(2, 1.0, "one\nzwölf\n"),
        LogBatch(2, 2.0, skipped_bytes=5000),
        LogBatch(2, 3.0, "→ thr", open=True),
        LogBatch(2, 4.0, "ee\n\ufffd"),
    ]
    assert frames.offset == 5024


def test_after_a_broken_connection_the_last_complete_frame_counts() -> None:
    frames = LogFrameParser(0)
    list(frames.take(frame(b"one\n", 1.0, 4) + frame(b"two\nthree\n", 2.0, 14)[:-3]))
    assert frames.offset == 4
    frames.restart()
    assert list(frames.take(frame(b"two\n", 2.0, 8))) == [LogBatch(0, 2.0, "two")]
    prepared = b'{"prepared_by": "run 1 (abc) of job.a"}\n'
    assert [len(list(frames.take(prepared))) for _ in range(2)] == [1, 0]


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"grep": "("}, "is not a regular expression"),
        ({"tail": -1}, "--tail -1"),
        ({"follow": True, "until": LogTime(1.0)}, "can't be used with --until"),
    ],
)
def test_wrong_selections_are_refused(flags: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        LogSelection(**flags)  # type: ignore[arg-type]
