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


SAID = (
    frame("one\nzwölf\n\n".encode(), 1.0, 12)
    + b"{}\n"
    + b'{"skipped_bytes": 5000, "time": 2.0, "next": 5012}\n'
    + frame("→ thr".encode(), 3.0, 5018, open_=True)
    + frame(b"ee\r\n\xff\n", 4.0, 5024)
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100, 1000])
def test_frames_are_put_together(size: int) -> None:
    """Whatever the pieces in which they arrive, characters that a cut went through included; what is no text is shown so."""
    frames = LogFrameParser(2)
    found: list[LogBatch] = []
    for start in range(0, len(SAID), size):
        found += frames.take(SAID[start : start + size])

    assert found == [
        LogBatch(2, 1.0, ("one", "zwölf", "")),
        LogBatch(2, 2.0, skipped_bytes=5000),
        LogBatch(2, 3.0, ("→ thr",), open=True),
        LogBatch(2, 4.0, ("ee", "\ufffd")),
    ]
    assert frames.offset == 5024


def test_a_line_that_goes_on_is_as_it_was_written() -> None:
    """A progress bar keeps its carriage returns, and a character through which a frame ends is whole in the next one."""
    frames = LogFrameParser(0)
    sent = [b"\xe2\x86", b"\x92 10%\r", b"20%\r"]
    found = [piece for data in sent for piece in frames.take(frame(data, open_=True) + b"{}\n")]
    found += frames.take(frame(b"\n") + frame(b"\xe2\r\n") + frame(b"\x86\n"))

    assert [(piece.lines, piece.open) for piece in found] == [
        (("→ 10%\r",), True),
        (("20%\r",), True),
        (("",), False),
        (("\ufffd",), False),
        (("\ufffd",), False),
    ]


def test_half_a_frame_is_forgotten() -> None:
    """After a connection that broke the next call begins anew where the last whole frame ended."""
    frames = LogFrameParser(0)
    list(frames.take(frame(b"one\n", 1.0, 4) + frame(b"two\nthree\n", 2.0, 14)[:-3]))
    assert frames.offset == 4
    frames.restart()

    assert list(frames.take(frame(b"two\n", 2.0, 8))) == [LogBatch(0, 2.0, ("two",))]


def test_who_prepared_a_cache_is_said_once() -> None:
    """What is there is read first, and then followed."""
    frames = LogFrameParser(0)
    said = b'{"prepared_by": "run 1 (abc) of job.a"}\n'

    assert [len(list(frames.take(said))) for _ in range(2)] == [1, 0]


def test_what_a_node_is_asked() -> None:
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
def test_what_can_not_be_asked(flags: dict[str, object], said: str) -> None:
    """It is wrong usage, told before any node is asked."""
    with pytest.raises(UsageError, match=said):
        LogSelection(**flags)  # type: ignore[arg-type]


class Silent:
    """A node whose search of a log never ends."""

    def read_lines(self, *asked: Any) -> None:
        """Nothing is said, until it is ended."""
        raise NodeTimeout("local/local-0 timed out after 60 s")


@pytest.mark.parametrize(
    ("grep", "code", "said"),
    [
        ("(a*)*b", "slow-pattern", "timed out on a line"),
        (None, "node-unreachable", "timed out after 60 s"),
    ],
)
def test_a_pattern_that_never_ends(
    monkeypatch: pytest.MonkeyPatch, grep: str | None, code: str, said: str
) -> None:
    """It is named as the cause, and isn't tried again; who asked for no pattern is told what happened."""
    monkeypatch.setattr(logs, "run_control", lambda workspace: Silent())
    workspace: Any = SimpleNamespace(agents=SimpleNamespace(close=lambda: None))
    ranks = [SimpleNamespace(rank=0, node="local/local-0")]
    run: Any = SimpleNamespace(
        record=SimpleNamespace(ranks=ranks), job=SimpleNamespace(address="job.fit")
    )

    with pytest.raises(NodeError, match=said) as failure:
        list(read_log(workspace, run, LogSelection(grep=grep, follow=grep is not None)))
    assert failure.value.code == code
