"""Progress and event lines, on a terminal and elsewhere."""

from __future__ import annotations

import io
import json
import re
import threading
import time

import pytest

from trainctl.errors import SourceNotFound
from trainctl.model.address import Address
from trainctl.model.events import Event, EventType
from trainctl.model.redaction import Redactor
from trainctl.views.events import JsonEventPrinter, TextEventPrinter
from trainctl.views.terminal.output import TerminalOutput
from trainctl.views.terminal.progress import ProgressDisplay, RateMeter

WEIGHTS, JOB = Address.parse("weights.qwen3"), Address.parse("job.sft")
MB = 10**6


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def progress_event(done: int, total: int = 1000 * MB, phase: str = "mirroring") -> Event:
    return Event(
        EventType.STEP_PROGRESS, phase, WEIGHTS, {"phase": phase, "done": done, "total": total}
    )


def started(address: Address = WEIGHTS) -> Event:
    return Event(EventType.STEP_STARTED, "creating", address)


def done(address: Address = WEIGHTS, **data: object) -> Event:
    return Event(EventType.STEP_DONE, "created", address, data)


def test_a_crawl_forecasts_nothing() -> None:
    """Of the last bytes of a file, while the rest is there already, weeks would be told."""
    meter = RateMeter()
    meter.update(42 * MB, 44 * MB, 0.0)
    meter.update(42 * MB + 8, 44 * MB, 4.0)
    assert meter.text(4.0) == "42.0 MB of 44.0 MB"
    meter.update(42 * MB + 8 + 20_000, 44 * MB, 5.0)
    assert "4.0 kB/s" in meter.text(5.0)


def test_the_meter_tells_rate_and_time_left() -> None:
    """The rate is that of the last seconds, and the time left follows from it."""
    meter = RateMeter()
    for second in range(21):
        speed = 10 * MB if second <= 10 else 50 * MB
        meter.update(meter.done + speed, 2000 * MB, 100.0 + second)
    assert meter.rate(120.0) == 50 * MB
    assert meter.text(120.0) == "610 MB of 2.0 GB, 50.0 MB/s, 28 s left"


def test_two_looks_at_once_make_no_rate() -> None:
    """What was done before the first look is no part of it, so a rate needs some time."""
    meter = RateMeter()
    meter.update(327_000, 328_000, 1.0)
    meter.update(328_000, 328_000, 1.2)
    assert meter.text(1.2) == "328 kB of 328 kB"


def test_a_stall_shows_in_the_rate() -> None:
    """When nothing arrives any more, the rate sinks to nothing and no time left is claimed."""
    meter = RateMeter()
    meter.update(0, 100 * MB, 0.0)
    meter.update(50 * MB, 100 * MB, 1.0)
    meter.update(50 * MB, 100 * MB, 30.0)
    meter.update(50 * MB, 100 * MB, 36.0)
    assert meter.rate(36.0) == 0
    assert meter.text(36.0) == "50.0 MB of 100 MB"


def test_a_count_that_goes_back_makes_no_negative_rate() -> None:
    """A chunk that is fetched again sets the count back; the rate starts anew."""
    meter = RateMeter()
    meter.update(80 * MB, 100 * MB, 0.0)
    meter.update(60 * MB, 100 * MB, 1.0)
    meter.update(70 * MB, 100 * MB, 2.0)
    assert meter.rate(2.0) == 10 * MB


def test_without_a_terminal_a_plain_line_now_and_then() -> None:
    """A pipe gets a line about every ten seconds and one at the end, with no control sequence; standard output none."""
    out, err, clock = io.StringIO(), io.StringIO(), Clock()
    with ProgressDisplay(TerminalOutput(out, err, Redactor(), {}), clock, None) as progress:
        progress.listen(started())
        for second in range(1, 26):
            clock.now = 1000.0 + second
            progress.listen(progress_event(second * 10 * MB))
        progress.listen(done())
    lines = err.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0] == "weights.qwen3: mirroring 100 MB of 1.0 GB, 10.0 MB/s, 1m 30s left"
    assert lines[-1].startswith("weights.qwen3: mirroring 250 MB of 1.0 GB")
    assert "\x1b" not in err.getvalue()
    assert out.getvalue() == ""


def test_silence_is_told() -> None:
    """A step that says nothing is still told of every ten seconds."""
    err, clock = io.StringIO(), Clock()
    with ProgressDisplay(
        TerminalOutput(io.StringIO(), err, Redactor(), {}), clock, None
    ) as progress:
        progress.listen(started(JOB))
        for _ in range(25):
            clock.now += 1
            progress.refresh()
    assert err.getvalue() == "job.sft: working 10 s\njob.sft: working 20 s\n"


def test_it_looks_by_itself() -> None:
    """Without any event, a drawn line is drawn again."""
    err = Terminal()
    output = TerminalOutput(io.StringIO(), err, Redactor(), {"TERM": "xterm"})
    with ProgressDisplay(output, every=0.01) as progress:
        progress.listen(started(JOB))
        until = time.monotonic() + 10
        while err.getvalue().count("job.sft:") < 3 and time.monotonic() < until:
            time.sleep(0.01)
    assert err.getvalue().count("job.sft:") >= 3


def test_on_a_terminal_lines_are_drawn_again_at_most_ten_times_a_second() -> None:
    """A thousand events in one second are ten drawings; at the end the lines are gone and the cursor is back."""
    err, clock = Terminal(), Clock()
    output = TerminalOutput(io.StringIO(), err, Redactor(), {"TERM": "xterm"})
    with ProgressDisplay(output, clock, None) as progress:
        progress.listen(started())
        for event in range(1000):
            clock.now = 1000.0 + event / 1000
            progress.listen(progress_event(event * MB))
    drawn = err.getvalue()
    assert drawn.count("weights.qwen3:") <= 11
    assert drawn.count("weights.qwen3:") >= 9
    assert drawn.count("\x1b[?25l") == 1
    assert drawn.endswith("\x1b[1A\r\x1b[J\x1b[?25h")


def test_a_line_in_between_stays_above_what_is_drawn() -> None:
    """As after Ctrl-C: the drawn lines go, the line is written, and they are drawn again below it."""
    err, clock = Terminal(), Clock()
    progress = ProgressDisplay(
        TerminalOutput(io.StringIO(), err, Redactor(), {}), clock, every=None
    )
    progress.listen(started())
    err.seek(0)
    err.truncate()
    progress.note("Finishing what is in flight.")
    drawn = "weights.qwen3: working 0.0 s\n"
    assert err.getvalue() == f"\x1b[1A\r\x1b[JFinishing what is in flight.\n{drawn}"


def test_the_cursor_comes_back_after_a_failure() -> None:
    """Whatever ends the work, the terminal is left as it was."""
    err = Terminal()
    output = TerminalOutput(io.StringIO(), err, Redactor(), {"TERM": "xterm"})

    def work() -> None:
        with ProgressDisplay(output, Clock(), None) as progress:
            progress.listen(started())
            raise SourceNotFound("revision not found")

    with pytest.raises(SourceNotFound):
        work()
    assert err.getvalue().endswith("\x1b[?25h")


def test_more_steps_than_lines_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drawing never grows beyond the window, since it could not be taken away again."""
    monkeypatch.setenv("LINES", "6")
    monkeypatch.setenv("COLUMNS", "40")
    err, clock = Terminal(), Clock()
    output = TerminalOutput(io.StringIO(), err, Redactor(), {"TERM": "xterm"})
    with ProgressDisplay(output, clock, None) as progress:
        for number in range(10):
            clock.now += 1
            progress.listen(
                started(Address.parse(f"weights.source-{number}-with-a-very-long-name-indeed"))
            )
        last = err.getvalue().rpartition("\x1b[J")[2].splitlines()
    assert len(last) == 4
    assert last[-1] == "and 7 more"
    assert max(map(len, last)) <= 39


def test_a_name_gives_way_to_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much has come is what one looks at: of a long name and phase the middle is left out."""
    monkeypatch.setenv("COLUMNS", "80")
    err, clock = Terminal(), Clock()
    output = TerminalOutput(io.StringIO(), err, Redactor(), {"TERM": "xterm"})
    address = Address.parse("job.a_job_with_a_long_name_too")
    phase = "delivering weights.a_name_that_is_rather_long_for_weights"
    with ProgressDisplay(output, clock, None) as progress:
        for number in range(3):
            clock.now += 1
            data = {"phase": phase, "done": number * 10 * MB, "total": 1000 * MB}
            progress.listen(Event(EventType.STEP_PROGRESS, phase, address, data))
        last = err.getvalue().rpartition("\x1b[J")[2].splitlines()
    assert last == [
        "job.a_job…name_too: deliveri…_weights 20.0 MB of 1.0 GB, 10.0 MB/s, 1m 38s left"
    ]


@pytest.mark.parametrize("width", ["1", "2", "20"])
def test_the_narrowest_window_is_drawn_in(monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    """Nothing is wider than it, and nothing hangs."""
    monkeypatch.setenv("COLUMNS", width)
    err = Terminal()
    output = TerminalOutput(io.StringIO(), err, Redactor(), {"TERM": "xterm"})
    with ProgressDisplay(output, Clock(), None) as progress:
        progress.listen(progress_event(10 * MB))
    drawn = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", err.getvalue()).splitlines()
    assert max(map(len, drawn)) <= max(int(width) - 1, 1)


def test_lines_for_people() -> None:
    """What begins and what fails is told on standard error, what was done on standard output."""
    out, err = io.StringIO(), io.StringIO()
    output = TerminalOutput(out, err, Redactor(), {})
    with ProgressDisplay(output, Clock(), None) as progress:
        listen = TextEventPrinter(output, progress)
        listen(started(JOB))
        listen(done(JOB, seconds=3.2, run="abc1234"))
        why = {"detail": "Write a branch.", "code": "gone"}
        listen(Event(EventType.STEP_FAILED, "no such branch", WEIGHTS, why))
        listen(Event(EventType.SUMMARY, "1 created, 1 failed"))
    assert (
        err.getvalue()
        == "job.sft: creating…\nerror: weights.qwen3: no such branch [gone]\n  Write a branch.\n"
    )
    assert out.getvalue() == "job.sft: created (3.2 s), run abc1234\n1 created, 1 failed\n"


def test_lines_for_programs() -> None:
    """One object a line with type, time, address and message; the last is a summary even if the work failed."""
    out = io.StringIO()
    clock = Clock()
    listen = JsonEventPrinter(TerminalOutput(out, io.StringIO(), Redactor(), {}), clock)
    listen(started())
    for _ in range(50):
        clock.now += 0.1
        listen(progress_event(1))
    listen.fail(
        SourceNotFound("revision not found", "Write one that exists.", address="weights.qwen3")
    )
    listen(done())
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert all(set(row) == {"type", "time", "address", "message", "data"} for row in rows)
    assert rows[0]["time"] == "1970-01-01T00:16:40.000Z"
    types = [row["type"] for row in rows]
    assert types[0] == "step_started"
    assert types[-2:] == ["diagnostic", "summary"]
    assert 4 <= types.count("step_progress") <= 6
    assert rows[-1]["data"]["exit_code"] == 1


def test_many_threads_make_whole_lines() -> None:
    """Events of many threads at once never mix within a line."""
    out = io.StringIO()
    output = TerminalOutput(out, io.StringIO(), Redactor(), {})
    with ProgressDisplay(output) as progress:
        listen = TextEventPrinter(output, progress)

        def work(number: int) -> None:
            for _ in range(50):
                listen(done(Address.parse(f"weights.w{number}"), seconds=1))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = out.getvalue().splitlines()
    assert len(lines) == 400
    assert all(re.fullmatch(r"weights\.w\d: created \(1\.0 s\)", line) for line in lines)


class Closed(io.StringIO):
    """A pipe whose reader has left."""

    def write(self, _: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_reader_who_left_does_not_stop_the_work(form: str) -> None:
    """A broken pipe silences the listener; it never raises into the work that tells it."""
    output = TerminalOutput(Closed(), Closed(), Redactor(), {})
    with ProgressDisplay(output, Clock(), None) as progress:
        listen = TextEventPrinter(output, progress) if form == "text" else JsonEventPrinter(output)
        listen(started())
        listen(done())
        assert listen(Event(EventType.SUMMARY, "done")) is None
