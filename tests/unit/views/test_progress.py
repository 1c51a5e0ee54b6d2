"""Progress and event lines, on a terminal and elsewhere."""

from __future__ import annotations

import io
import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.terminals import Screen, Terminal
from trainctl.errors import SourceNotFound
from trainctl.model.address import Address
from trainctl.model.events import Event, EventType
from trainctl.views.events import JsonEventPrinter, TextEventPrinter
from trainctl.views.terminal.progress import ProgressDisplay, RateMeter

WEIGHTS, JOB = Address.parse("weights.qwen3"), Address.parse("job.sft")
MB = 10**6


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def progress_event(done: int) -> Event:
    data = {"phase": "mirroring", "done": done, "total": 1000 * MB}
    return Event(EventType.STEP_PROGRESS, "mirroring", WEIGHTS, data)


def started(address: Address = WEIGHTS) -> Event:
    return Event(EventType.STEP_STARTED, "creating", address)


def done(address: Address = WEIGHTS, **data: object) -> Event:
    return Event(EventType.STEP_DONE, "created", address, data)


@pytest.mark.parametrize(
    ("updates", "shown"),
    [
        pytest.param(
            [(second, min(second, 11) * 10 + max(second - 11, 0) * 50) for second in range(22)],
            "610 MB of 1.0 GB, 50.0 MB/s, 7.8 s left",
            id="rate and time left are those of the last seconds",
        ),
        pytest.param([(1.0, 999), (1.2, 1000)], "1.0 GB of 1.0 GB", id="two updates at once"),
        pytest.param([(0, 0), (1, 50), (30, 50), (36, 50)], "50.0 MB of 1.0 GB", id="a stall"),
        pytest.param(
            [(0, 80), (1, 60), (2, 70)],
            "70.0 MB of 1.0 GB, 10.0 MB/s, 1m 33s left",
            id="a count that goes back",
        ),
        pytest.param([(0, 42), (4, 42.000_008)], "42.0 MB of 1.0 GB", id="a crawl"),
    ],
)
def test_the_meter_shows_rate_and_time_left(updates: list[tuple[float, float]], shown: str) -> None:
    """Megabytes by second; no rate follows from too little time, and no time left from a stall or a crawl."""
    meter = RateMeter()
    for second, megabytes in updates:
        meter.update(round(megabytes * MB), 1000 * MB, second)
    assert meter.text(updates[-1][0]) == shown


def test_without_a_terminal_a_line_about_every_ten_seconds() -> None:
    """And one at the end, with no control sequence; none on standard output. Silent steps have lines, too."""
    screen, clock = Screen(), Clock()
    with ProgressDisplay(screen.output, clock, None) as progress:
        progress.listen(started())
        for second in range(1, 26):
            clock.now = 1000.0 + second
            progress.listen(progress_event(second * 10 * MB))
        progress.listen(done())
        progress.listen(started(JOB))
        for _ in range(25):
            clock.now += 1
            progress.refresh()
    lines = screen.err.splitlines()
    assert lines[0] == "weights.qwen3: mirroring 100 MB of 1.0 GB, 10.0 MB/s, 1m 30s left"
    assert lines[2].startswith("weights.qwen3: mirroring 250 MB of 1.0 GB")
    assert lines[3:] == ["job.sft: working 10 s", "job.sft: working 20 s"]
    assert screen.out == ""


def test_a_terminal_is_drawn_at_most_ten_times_a_second() -> None:
    """At the end the lines are gone and the cursor is back."""
    screen, clock = Screen(Terminal), Clock()
    with ProgressDisplay(screen.output, clock, None) as progress:
        progress.listen(started())
        for event in range(1000):
            clock.now = 1000.0 + event / 1000
            progress.listen(progress_event(event * MB))
    assert 9 <= screen.err.count("weights.qwen3:") <= 11
    assert screen.err.count("\x1b[?25l") == 1
    assert screen.err.endswith("\x1b[1A\r\x1b[J\x1b[?25h")


def test_the_cursor_is_back_after_a_failure() -> None:
    screen = Screen(Terminal)

    def work() -> None:
        with ProgressDisplay(screen.output, Clock(), None) as progress:
            progress.listen(started())
            raise SourceNotFound("revision not found")

    with pytest.raises(SourceNotFound):
        work()
    assert screen.err.endswith("\x1b[?25h")


def test_lines_for_people() -> None:
    """Beginnings and failures are on standard error, results on standard output."""
    screen = Screen()
    with ProgressDisplay(screen.output, Clock(), None) as progress:
        listen = TextEventPrinter(screen.output, progress)
        listen(started(JOB))
        listen(done(JOB, seconds=3.2, run="abc1234"))
        why = {"detail": "Write a branch.", "code": "gone"}
        listen(Event(EventType.STEP_FAILED, "no such branch", WEIGHTS, why))
        listen(Event(EventType.SUMMARY, "1 created, 1 failed"))
    failure = "error: weights.qwen3: no such branch [gone]\n  Write a branch.\n"
    assert screen.err == f"job.sft: creating…\n{failure}"
    assert screen.out == "job.sft: created (3.2 s), run abc1234\n1 created, 1 failed\n"


def test_lines_for_programs() -> None:
    """One object a line with type, time, address and message; the last is a summary even if the work failed."""
    screen, clock = Screen(), Clock()
    listen = JsonEventPrinter(screen.output, clock)
    listen(started())
    for _ in range(50):
        clock.now += 0.1
        listen(progress_event(1))
    listen.fail(
        SourceNotFound("revision not found", "Write one that exists.", address="weights.qwen3")
    )
    listen(done())
    rows = [json.loads(line) for line in screen.out.splitlines()]
    assert all(set(row) == {"type", "time", "address", "message", "data"} for row in rows)
    assert rows[0]["time"] == "1970-01-01T00:16:40.000Z"
    types = [row["type"] for row in rows]
    assert types[0] == "step_started"
    assert types[-2:] == ["diagnostic", "summary"]
    assert 4 <= types.count("step_progress") <= 6
    assert rows[-1]["data"]["exit_code"] == 1


def test_events_of_many_threads_are_complete_lines() -> None:
    screen = Screen()
    with ProgressDisplay(screen.output) as progress:
        listen = TextEventPrinter(screen.output, progress)

        def work(number: int) -> None:
            for _ in range(50):
                listen(done(Address.parse(f"weights.w{number}"), seconds=1))

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(8)))
    lines = screen.out.splitlines()
    assert len(lines) == 400
    assert all(re.fullmatch(r"weights\.w\d: created \(1\.0 s\)", line) for line in lines)


class Closed(io.StringIO):
    """A pipe without a reader."""

    def write(self, _: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_closed_pipe_does_not_stop_the_work(form: str) -> None:
    output = Screen(Closed).output
    with ProgressDisplay(output, Clock(), None) as progress:
        listen = TextEventPrinter(output, progress) if form == "text" else JsonEventPrinter(output)
        listen(started())
        listen(done())
        assert listen(Event(EventType.SUMMARY, "done")) is None
