"""Lines of a log as they are asked for, through the node program."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import NodeHarness, lines_wanted, run_spec, wait_for
from trainctl.base.failure import Failure
from trainctl.base.system.syscalls import punch_hole
from trainctl.node.runs import log_lines
from trainctl.node.runs.log_index import LogIndex, LogIndexEntry
from trainctl.node.runs.log_lines import read_lines
from trainctl.node.runs.record import NodeRun
from trainctl.node.system.layout import Layout
from trainctl.operations.jobs.logs import LogFrameParser

pytestmark = pytest.mark.integration

BLOCK = 4096


def frames(raw: bytes) -> list[tuple[list[str], bool, int]]:
    """Of each piece its lines, whether the last goes on, and how much is gone before it."""
    pieces = LogFrameParser(0).take(raw)
    return [(list(one.lines), one.open, one.skipped_bytes) for one in pieces]


class Log:
    """The log of one run, which tests write themselves."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        run = NodeRun(Layout(self.root), "run-1")
        run.create(run_spec())
        self.path = run.log(0)
        self.path.parent.mkdir()

    def raw(self, **asked: Any) -> bytes:
        """What the node program says."""
        found: list[bytes] = []
        place = {"root": self.root, "key": "run-1", "rank": 0}
        request: Any = {**place, **lines_wanted(), **asked}
        read_lines(request, found.append)
        return b"".join(found)

    def texts(self, **asked: Any) -> list[str]:
        """The lines of it."""
        return [line for lines, _, _ in frames(self.raw(**asked)) for line in lines]

    def write(self, *marked: tuple[float, bytes]) -> None:
        """Parts that were written by these times."""
        self.path.write_bytes(b"".join(data for _, data in marked))
        size, lines = 0, []
        for moment, data in marked:
            size += len(data)
            lines.append(f"{moment:.3f} {size}\n")
        self.path.with_suffix(".times").write_text("".join(lines))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log without anything in it."""
    return Log(tmp_path / "node")


MINUTES = tuple((60.0 * n, b"line %d a\nline %d b\n" % (n, n)) for n in range(1, 51))


@pytest.mark.parametrize(
    ("asked", "first", "last", "count"),
    [
        ({}, "line 1 a", "line 50 b", 100),
        ({"since": {"at": 2400.0}}, "line 40 a", "line 50 b", 22),
        ({"since": {"at": 2399.0}, "until": {"at": 2401.0}}, "line 40 a", "line 40 b", 2),
        ({"until": {"at": 120.0}}, "line 1 a", "line 1 b", 2),
        ({"until": {"at": 1e10}}, "line 1 a", "line 50 b", 100),
        ({"tail": 3}, "line 49 b", "line 50 b", 3),
        ({"tail": 1000}, "line 1 a", "line 50 b", 100),
        ({"grep": "[02468] b$"}, "line 2 b", "line 50 b", 25),
        ({"grep": "b$", "tail": 2}, "line 49 b", "line 50 b", 2),
        ({"since": {"at": 600.0}, "until": {"at": 1200.0}, "grep": "a", "tail": 1}, "line 19 a", "line 19 a", 1),
    ],
)  # fmt: skip
def test_what_is_asked_for(
    log: Log, asked: dict[str, Any], first: str, last: str, count: int
) -> None:
    """By time from the index, by pattern, the last ones, and these together."""
    log.write(*MINUTES)
    found = log.texts(**asked)

    assert (found[0], found[-1], len(found)) == (first, last, count)


def test_nothing_may_be_asked_for(log: Log) -> None:
    """No last lines, none that match, none since."""
    log.write(*MINUTES)

    assert log.texts(tail=0) == []
    assert log.texts(grep="other") == []
    assert log.texts(since={"at": 3001.0}) == []
    assert log.texts(since={"ago": 60}) == []


def test_lines_are_timed_by_the_index(log: Log) -> None:
    """Each piece bears the time by which it was written; what the index doesn't know yet, the file's own."""
    log.write((100.0, b"one\n"), (200.0, b"two\n"))
    with log.path.open("ab") as stream:
        stream.write(b"three\n")
    os.utime(log.path, (300.0, 300.0))
    raw = log.raw()

    assert [(one.time, one.lines) for one in LogFrameParser(0).take(raw)] == [
        (100.0, ("one",)), (200.0, ("two",)), (300.0, ("three",)),
    ]  # fmt: skip


def test_a_line_across_two_times_is_whole(log: Log) -> None:
    """However the index cuts it; asked for by time it comes with its beginning."""
    log.write((100.0, b"one\nbeg"), (200.0, b"in and end\ntwo\n"))

    assert log.texts() == ["one", "begin and end", "two"]
    assert log.texts(since={"at": 150.0}) == ["begin and end", "two"]
    assert log.texts(until={"at": 150.0}) == ["one"]


def test_what_was_punched_out_is_told(log: Log) -> None:
    """The number of bytes, once, between what was before and what comes after; offsets go on."""
    line = b"x" * (BLOCK - 1) + b"\n"
    log.path.write_bytes(b"first\n" + line * 30 + b"last\n")
    descriptor = os.open(log.path, os.O_WRONLY)
    punch_hole(descriptor, BLOCK, 20 * BLOCK)
    os.close(descriptor)
    if log.path.stat().st_blocks * 512 > 15 * BLOCK:
        pytest.skip("needs a file system with holes")
    found = frames(log.raw())
    lines = [line for lines, _, _ in found for line in lines]

    assert [gone for _, _, gone in found if gone] == [20 * BLOCK]
    assert (lines[0], lines[-1]) == ("first", "last")
    assert lines.count("x" * (BLOCK - 1)) == 9
    assert log.texts(tail=2)[-1] == "last"


def test_any_bytes_and_any_length(log: Log) -> None:
    """Bytes that are no text, an empty log, and a line that is longer than anything that is kept at once."""
    log.path.write_bytes(b"\xff\x00\xfe\n" + b"y" * 3_000_000 + b"\nend")
    found = log.texts()

    assert found[0] == "\ufffd\x00\ufffd"
    assert sum(map(len, found)) == 3 + 3_000_000 + 3
    assert found[-1] == "end"
    log.path.write_bytes(b"")
    assert log.texts() == []


def test_a_pattern_that_is_none_is_refused(log: Log) -> None:
    """And so is a run that the node doesn't know."""
    with pytest.raises(Failure, match="invalid pattern"):
        log.texts(grep="(")
    with pytest.raises(Failure, match="not found on the node"):
        log.raw(key="run-2")


def test_following_shows_lines_that_have_not_ended(node: NodeHarness) -> None:
    """The beginning of a line after a moment, a line that is written over and over as it is now, and the rest at the end."""
    gate = node.base / "gate"
    hold = f"while [ ! -e {gate} ]; do sleep 0.05; done; rm {gate}"
    node.start(node.spec(
        "printf 'Loading ...'", hold, "printf ' done\\n\\r 10%%\\r 20%%'", hold, "printf '\\r 30%%\\nend'",
    ))  # fmt: skip
    process = node.popen("read_lines", {"key": "run-1", "rank": 0, "follow": True})
    assert process.stdout is not None
    assert process.stderr is not None
    reader = LogFrameParser(0)
    seen: list[tuple[tuple[str, ...], bool]] = []

    def until(text: str) -> None:
        def look() -> bool:
            assert process.stdout is not None
            seen.extend(
                (one.lines, one.open) for one in reader.take(os.read(process.stdout.fileno(), 4096))
            )
            return text in str(seen)

        wait_for(look)

    until("Loading")
    assert seen == [(("Loading ...",), True)]
    gate.touch()
    until("20%")
    assert seen[1:] == [((" done",), False), (("\r 10%\r 20%",), True)]
    gate.touch()
    until("end")
    assert process.wait(30) == 0
    process.stdout.close()
    process.stderr.close()
    assert seen[3:] == [(("\r 30%",), False), (("end",), False)]


def test_following_waits_for_a_log_and_ends_with_the_run(node: NodeHarness) -> None:
    """Nothing is lost between the last look and the end, and a run that never says anything ends it, too."""
    node.start(node.spec("sleep 0.5; seq 100000"))
    raw = node.raw("read_lines", {"key": "run-1", "rank": 0, "follow": True})

    assert [line for lines, _, _ in frames(raw) for line in lines] == [
        str(n + 1) for n in range(100000)
    ]
    assert node.raw("read_lines", {"key": "run-1", "rank": 7, "follow": True}) == b""


def test_reading_goes_on_where_it_was(log: Log) -> None:
    """From the offset of any frame the rest comes, without a gap and without anything twice."""
    log.write(*MINUTES)
    raw = log.raw()
    heads = []
    while raw:
        head, _, raw = raw.partition(b"\n")
        heads.append(json.loads(head))
        raw = raw[heads[-1]["bytes"] :]

    whole = log.texts()
    for number, head in enumerate(heads[:5], 1):
        assert log.texts(offset=head["next"]) == whole[2 * number :]


@pytest.mark.parametrize("count", [0, 1, 2, 7, 300])
def test_the_index_is_searched_right(tmp_path: Path, count: int) -> None:
    """By time and by offset, as if it were read from the top; half a line at its end is none."""
    path = tmp_path / "x.times"
    marks = [LogIndexEntry(10.0 * n, n * n * n) for n in range(1, count + 1)]
    path.write_text("".join(f"{one.time:.3f} {one.offset}\n" for one in marks) + "99999999.0 1")

    for moment in (0.0, 10.0, 15.0, 10.0 * count, 10.0 * count + 1):
        before = [one.offset for one in marks if one.time < moment]
        later = any(one.time >= moment for one in marks)
        times = LogIndex(path)
        assert times.before(moment) == (before[-1] if before else 0, later)
        times.close()
    for offset in (0, 1, 7, 8, 9, count**3 - 1, count**3):
        times = LogIndex(path)
        assert times.until(offset) == next((one for one in marks if one.offset > offset), None)
        times.close()


def test_an_index_that_is_missing_knows_nothing(tmp_path: Path) -> None:
    """A log without one is read as a whole."""
    times = LogIndex(tmp_path / "x.times")

    assert times.before(5.0) == (0, False)
    assert times.until(0) is None


def test_a_long_search_gives_signs_of_life(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing is found for a long time: else the node would be taken for dead."""
    monkeypatch.setattr(log_lines, "_HEARTBEAT_SECONDS", 0.0)
    log.write((60.0, b"nothing of that kind\n" * 50_000))

    assert log.raw(grep="never") == b"{}\n" * 5


def test_a_sign_of_life_finds_out_that_nobody_reads(node: NodeHarness) -> None:
    """A reader of a silent log that has left doesn't leave the node program behind."""
    node.start(node.spec("sleep 60"))
    process = node.popen("read_lines", {"key": "run-1", "rank": 0, "follow": True})
    assert process.stdout is not None
    assert process.stderr is not None
    assert os.read(process.stdout.fileno(), 100) == b"{}\n"
    process.stdout.close()

    assert process.wait(60) != 0
    process.stderr.close()
