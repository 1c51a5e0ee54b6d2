"""A log's frames as lines, however they are cut, and what may be asked of a log."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from trainctl.errors import NodeError, NodeTimeout, UsageError
from trainctl.model.reports import LogBatch
from trainctl.operations.jobs import logs
from trainctl.operations.jobs.logs import LogFrameParser, LogSelection, LogTime, read_log


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
        LogBatch(2, 1.0, ("one", "zwölf", "")),
        LogBatch(2, 2.0, skipped_bytes=5000),
        LogBatch(2, 3.0, ("→ thr",), open=True),
        LogBatch(2, 4.0, ("ee", "\ufffd")),
    ]
    assert frames.offset == 5024


def test_an_open_line_keeps_its_carriage_returns_and_its_characters() -> None:
    """A character that the end of a frame cuts is complete in the next one."""
    frames = LogFrameParser(0)
    sent = [b"\xe2\x86", b"\x92 10%\r", b"20%\r"]
    batches = [batch for data in sent for batch in frames.take(frame(data, open_=True) + b"{}\n")]
    batches += frames.take(frame(b"\n") + frame(b"\xe2\r\n") + frame(b"\x86\n"))
    assert [(batch.lines, batch.open) for batch in batches] == [
        (("→ 10%\r",), True),
        (("20%\r",), True),
        (("",), False),
        (("\ufffd",), False),
        (("\ufffd",), False),
    ]


def test_after_a_broken_connection_the_last_complete_frame_counts() -> None:
    frames = LogFrameParser(0)
    list(frames.take(frame(b"one\n", 1.0, 4) + frame(b"two\nthree\n", 2.0, 14)[:-3]))
    assert frames.offset == 4
    frames.restart()
    assert list(frames.take(frame(b"two\n", 2.0, 8))) == [LogBatch(0, 2.0, ("two",))]
    prepared = b'{"prepared_by": "run 1 (abc) of job.a"}\n'
    assert [len(list(frames.take(prepared))) for _ in range(2)] == [1, 0]


def test_the_request_to_a_node() -> None:
    """Times are absolute, or so long ago by the node's own clock."""
    wanted = LogSelection(since=LogTime(600, ago=True), until=LogTime(1e9), grep="a+", tail=5)
    assert wanted.request == {
        "since": {"ago": 600}, "until": {"at": 1e9}, "grep": "a+", "tail": 5, "prepare": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"grep": "("}, "is not a regular expression"),
        ({"tail": -1}, "--tail -1"),
        ({"follow": True, "until": LogTime(1.0)}, "can't be used with --until"),
    ],
)
def test_wrong_selections_are_refused(flags: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        LogSelection(**flags)  # type: ignore[arg-type]


class SilentNode:
    """A node whose search of a log never ends."""

    def read_lines(self, *_: Any) -> None:
        raise NodeTimeout("local/local-0 timed out after 60 s")


@pytest.mark.parametrize(
    ("grep", "code", "said"),
    [
        ("(a*)*b", "slow-pattern", "timed out on a line"),
        (None, "node-unreachable", "timed out after 60 s"),
    ],
)
def test_a_slow_pattern_is_named_as_the_cause(
    monkeypatch: pytest.MonkeyPatch, grep: str | None, code: str, said: str
) -> None:
    monkeypatch.setattr(logs, "run_control", lambda workspace: SilentNode())
    workspace: Any = SimpleNamespace(agents=SimpleNamespace(close=lambda: None))
    ranks = [SimpleNamespace(rank=0, node="local/local-0")]
    run: Any = SimpleNamespace(
        record=SimpleNamespace(ranks=ranks), job=SimpleNamespace(address="job.fit")
    )

    with pytest.raises(NodeError, match=said) as failure:
        list(read_log(workspace, run, LogSelection(grep=grep, follow=grep is not None)))
    assert failure.value.code == code
