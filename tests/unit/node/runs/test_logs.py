"""Lines of a log by time, pattern, number and offset, through the node program."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.node_program.nodes import NodeHarness, lines_wanted, run_spec
from trainctl.base.system.syscalls import punch_hole
from trainctl.errors import TrainctlError
from trainctl.node.runs.logs import read_lines
from trainctl.node.runs.record import NodeRun
from trainctl.node.system.layout import Layout
from trainctl.operations.runs.logs import LogFrameParser

pytestmark = pytest.mark.integration

BLOCK = 4096


def frames(raw: bytes) -> list[tuple[list[str], bool, int]]:
    """The lines of each frame, whether its last line is open, and how many bytes are gone before it."""
    parsed = LogFrameParser(0).take(raw)
    return [
        ([] if frame.text is None else frame.text.split("\n"), frame.open, frame.skipped_bytes)
        for frame in parsed
    ]


class Log:
    """The log of one run, which tests write themselves."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        run = NodeRun(Layout(self.root), "run-1")
        run.create(run_spec())
        self.path = run.log(0)
        self.path.parent.mkdir()

    def raw(self, **query: Any) -> bytes:
        written: list[bytes] = []
        place = {"root": self.root, "key": "run-1", "rank": 0}
        request: Any = {**place, **lines_wanted(), **query}
        read_lines(request, written.append)
        return b"".join(written)

    def texts(self, **query: Any) -> list[str]:
        return [line for lines, _, _ in frames(self.raw(**query)) for line in lines]

    def write(self, *parts: tuple[float, bytes]) -> None:
        """Parts that were written by these times."""
        self.path.write_bytes(b"".join(data for _, data in parts))
        size, lines = 0, []
        for moment, data in parts:
            size += len(data)
            lines.append(f"{moment:.3f} {size}\n")
        self.path.with_suffix(".times").write_text("".join(lines))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "node")


MINUTES = tuple((60.0 * n, b"line %d a\nline %d b\n" % (n, n)) for n in range(1, 51))


@pytest.mark.parametrize("case", cases("node/log_queries"))
def test_lines_are_selected_by_time_pattern_and_number(log: Log, case: Any) -> None:
    log.write(*MINUTES)
    lines = log.texts(**case["query"])

    assert len(lines) == case["count"]
    assert [*lines[:1], *lines[-1:]] == case["ends"]


def test_lines_are_timed_by_the_index(log: Log) -> None:
    """Lines after its end by the file's modification time."""
    log.write((100.0, b"one\n"), (200.0, b"two\n"))
    with log.path.open("ab") as stream:
        stream.write(b"three\n")
    os.utime(log.path, (300.0, 300.0))

    assert [(frame.time, frame.text) for frame in LogFrameParser(0).take(log.raw())] == [
        (100.0, "one"), (200.0, "two"), (300.0, "three"),
    ]  # fmt: skip


def test_a_line_across_two_times_is_whole(log: Log) -> None:
    log.write((100.0, b"one\nbeg"), (200.0, b"in and end\ntwo\n"))

    assert log.texts() == ["one", "begin and end", "two"]
    assert log.texts(since={"at": 150.0}) == ["begin and end", "two"]
    assert log.texts(until={"at": 150.0}) == ["one"]


def test_the_size_of_a_hole_is_reported_once(log: Log) -> None:
    line = b"x" * (BLOCK - 1) + b"\n"
    log.path.write_bytes(b"first\n" + line * 30 + b"last\n")
    descriptor = os.open(log.path, os.O_WRONLY)
    punch_hole(descriptor, BLOCK, 20 * BLOCK)
    os.close(descriptor)
    if log.path.stat().st_blocks * 512 > 15 * BLOCK:
        pytest.skip("needs a file system with holes")
    parsed = frames(log.raw())
    lines = [line for lines, _, _ in parsed for line in lines]

    assert [gone for _, _, gone in parsed if gone] == [20 * BLOCK]
    assert (lines[0], lines[-1]) == ("first", "last")
    assert lines.count("x" * (BLOCK - 1)) == 9
    assert log.texts(tail=2)[-1] == "last"


def test_any_bytes_and_any_length_are_read(log: Log) -> None:
    log.path.write_bytes(b"\xff\x00\xfe\n" + b"y" * 3_000_000 + b"\nend")
    lines = log.texts()

    assert lines[0] == "\ufffd\x00\ufffd"
    assert sum(map(len, lines)) == 3 + 3_000_000 + 3
    assert lines[-1] == "end"
    log.path.write_bytes(b"")
    assert log.texts() == []


def test_invalid_patterns_and_unknown_runs_are_refused(log: Log) -> None:
    with pytest.raises(TrainctlError, match="invalid pattern"):
        log.texts(grep="(")
    with pytest.raises(TrainctlError, match="not found on the node"):
        log.raw(key="run-2")


def test_following_shows_lines_that_have_not_ended(node: NodeHarness) -> None:
    """The beginning of a line after a moment, progress bars as they are now, and the rest at the end."""
    gate = node.base / "gate"
    hold = f"while [ ! -e {gate} ]; do sleep 0.05; done; rm {gate}"
    node.start(node.spec(
        "printf 'Loading ...'", hold, "printf ' done\\n\\r 10%%\\r 20%%'", hold, "printf '\\r 30%%\\nend'",
    ))  # fmt: skip
    process = node.popen("read_lines", {"key": "run-1", "rank": 0, "follow": True})
    assert process.stdout is not None
    assert process.stderr is not None
    stream, parser = process.stdout.fileno(), LogFrameParser(0)
    seen: list[tuple[str | None, bool]] = []

    def until(text: str) -> None:
        while text not in str(seen):
            seen.extend((frame.text, frame.open) for frame in parser.take(os.read(stream, 4096)))

    until("Loading")
    assert seen == [("Loading ...", True)]
    gate.touch()
    until("20%")
    assert seen[1:] == [(" done", False), ("\r 10%\r 20%", True)]
    gate.touch()
    until("end")
    assert process.wait(30) == 0
    process.stdout.close()
    process.stderr.close()
    assert [text for text, _ in seen[3:]] == ["\r 30%", "end"]


def test_following_ends_with_the_run_and_loses_nothing(node: NodeHarness) -> None:
    node.start(node.spec("sleep 0.5; seq 100000"))
    raw = node.raw("read_lines", {"key": "run-1", "rank": 0, "follow": True})

    lines = [line for lines, _, _ in frames(raw) for line in lines]
    assert lines == [str(n + 1) for n in range(100000)]
    assert node.raw("read_lines", {"key": "run-1", "rank": 7, "follow": True}) == b""


def test_reading_resumes_at_the_offset_of_any_frame(log: Log) -> None:
    log.write(*MINUTES)
    raw = log.raw()
    heads = []
    while raw:
        head, _, raw = raw.partition(b"\n")
        heads.append(json.loads(head))
        raw = raw[heads[-1]["bytes"] :]

    lines = log.texts()
    for number, head in enumerate(heads[:5], 1):
        assert log.texts(offset=head["next"]) == lines[2 * number :]


def test_a_heartbeat_detects_that_the_reader_has_left(node: NodeHarness) -> None:
    node.start(node.spec("sleep 60"))
    process = node.popen("read_lines", {"key": "run-1", "rank": 0, "follow": True})
    assert process.stdout is not None
    assert process.stderr is not None
    assert os.read(process.stdout.fileno(), 100) == b"{}\n"
    process.stdout.close()

    assert process.wait(60) != 0
    process.stderr.close()
