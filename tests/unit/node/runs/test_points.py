"""Points that a node keeps of what a job reports."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import NodeHarness, wait_for
from trainctl.base import points as base_points
from trainctl.base.points import update_points
from trainctl.node.runs import points as module
from trainctl.node.runs.points import (
    begin_attempt,
    points_of,
    read_points,
    update_results,
)
from trainctl.node.runs.record import NodeRun
from trainctl.node.system.layout import Layout

pytestmark = pytest.mark.integration


@pytest.fixture
def run(tmp_path: Path) -> NodeRun:
    run = NodeRun(Layout(str(tmp_path)), "run-1")
    run.progress.mkdir(parents=True)
    return run


def report(run: NodeRun, *rows: Any, mode: str = "a") -> None:
    with run.progress_lines.open(mode) as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def losses(run: NodeRun) -> list[float]:
    return list(points_of(run)["loss"].columns()[0])


def test_every_line_is_a_point_of_each_key(run: NodeRun) -> None:
    """A line without step is of the step before; ``time`` in Unix seconds is the point's."""
    report(run, {"loss": 3}, {"step": 1, "loss": 2, "time": 1.7e9, "total": 9})
    update_results(run)
    report(run, {"val_loss": 1.5, "time": 12.5}, {"step": 1, "loss": 2})
    found = points_of(run)
    assert list(found) == ["loss", "val_loss", "time"]
    values, steps, times = found["loss"].columns()
    assert list(values) == [3, 2, 2]
    assert math.isnan(steps[0])
    assert list(steps[1:]) == [1, 1]
    assert times[1] == 1.7e9
    assert times[2] == pytest.approx(time.time(), abs=100)
    assert [list(column) for column in found["val_loss"].columns()[:2]] == [[1.5], [1]]
    assert list(found["time"].columns()[0]) == [12.5]
    assert points_of(run, ["val_loss", "other"]).keys() == {"val_loss"}


def test_points_of_many_readings_and_attempts(
    run: NodeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thinned in its files as in memory, over attempts, and whoever is killed when."""
    monkeypatch.setattr(base_points, "MAX_POINTS", 40)
    expected = base_points.KeyPoints()
    store: Any = vars(module)["write_atomic"]

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    for step in range(500):
        report(run, {"step": step, "loss": step % 97, "time": 1e9 + 1 + step})
        expected.add(step % 97, step, 1e9 + 1 + step)
        if step % 40 == 17:
            monkeypatch.setattr(module, "write_atomic", killed)
            with pytest.raises(KeyboardInterrupt):
                update_results(run)
            monkeypatch.setattr(module, "write_atomic", store)
        if step % 23 == 0:
            update_results(run)
        if step % 110 == 0:
            begin_attempt(run)
    assert points_of(run)["loss"].columns() == expected.columns()
    update_results(run, is_over=True)
    assert points_of(run)["loss"].columns() == expected.columns()
    report(run, {"late": 1.5}, *({"all": step} for step in range(1000)))
    update_results(run)
    assert points_of(run)["all"].stride == 32


def test_a_file_that_a_job_truncates_or_replaces(run: NodeRun) -> None:
    """Lines that were read stay points; the others are read from the first."""
    report(run, *({"step": step, "loss": 5} for step in range(3)))
    update_results(run)
    report(run, {"step": 4, "loss": 1}, mode="w")
    update_results(run)
    other = run.progress / "other"
    other.write_text('{"step": 6, "loss": 0}\n')
    other.replace(run.progress_lines)
    update_results(run)
    run.progress_lines.unlink()
    update_results(run)
    assert losses(run) == [5, 5, 5, 1, 0]


def test_a_new_attempt_that_reports_the_same(run: NodeRun) -> None:
    rows = [{"step": step, "loss": step} for step in range(10)]
    report(run, *rows)
    begin_attempt(run)
    report(run, *rows, {"step": 10, "loss": 10})
    assert losses(run) == [*range(10), *range(11)]


HOSTILE = (
    b'{"../../etc/passwd": 1}',
    b'{"\\ud800": 1, "\\u0000\\u001b[2J": 2, "": 3}',
    b"[" * 100_000,
    b'{"loss": ' + b"9" * 400 + b', "acc": 0.5}',
    b'{"loss": 1e999, "acc": NaN, "other": true, "list": [1], "text": "1"}',
    b"\xff\xfe\x00",
    b"\0" * 70_000,
    b'{"time": 1e300, "late": 1}',
    b'{"step": 1e300, "far": 1}',
)


def test_hostile_lines(run: NodeRun) -> None:
    run.progress_lines.write_bytes(b"\n".join(HOSTILE) + b"\n")
    update_results(run)
    reply = json.loads(
        json.dumps(
            read_points({"root": str(run.layout.root), "runs": {"run-1": {}}, "keys": None}, print)
        )
    )
    found: dict[str, Any] = {}
    update_points(found, reply["runs"]["run-1"])
    keys = {"../../etc/passwd", "\ud800", "\0\x1b[2J", "", "acc", "late", "far"}
    assert found.keys() == keys
    assert {key: list(points.columns()[0]) for key, points in found.items()}["acc"] == [0.5]
    assert sorted(path.name for path in run.directory.iterdir()) == ["points", "progress"]


def test_a_full_disk_loses_nothing(run: NodeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    report(run, {"step": 1, "loss": 3})
    update_results(run)
    report(run, {"step": 2, "loss": 2})

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(module, "write_atomic", full)
        assert update_results(run, is_over=True)["loss"]["min"] == {"value": 2, "step": 2}
        assert losses(run) == [3, 2]
        with pytest.raises(OSError, match="space"):
            begin_attempt(run)
    report(run, {"step": 3, "loss": 1})
    begin_attempt(run)
    assert losses(run) == [3, 2, 1]


def test_lines_without_a_time_are_spread_over_that_since_the_last_reading(run: NodeRun) -> None:
    """Over at most 10 seconds, in their order, also if the clock was set back."""

    def add(modified: float, *rows: Any) -> list[float]:
        report(run, *rows)
        os.utime(run.progress_lines, (modified, modified))
        before = len(losses(run)) - len(rows)
        update_results(run)
        return list(points_of(run)["loss"].columns()[2])[before:]

    rows = [{"loss": 1}] * 4
    assert add(1.7e9, *rows) == [1.7e9 - 7.5, 1.7e9 - 5, 1.7e9 - 2.5, 1.7e9]
    assert add(1.7e9 + 4, *rows) == [1.7e9 + 1, 1.7e9 + 2, 1.7e9 + 3, 1.7e9 + 4]
    assert add(1.7e9 + 3600, *rows[:1]) == [1.7e9 + 3600]
    assert add(1.6e9, *rows[:2]) == [1.7e9 + 3600] * 2


def test_a_run_whose_supervisor_is_killed(node: NodeHarness) -> None:
    """All that it reported is there, of the attempts before and of the last one, and after it also what nobody read."""
    report_one = """echo '{"loss": 1}' >>$TRAINCTL_PROGRESS; cp $TRAINCTL_PROGRESS ../first"""
    report_more = (
        """for n in 2 3; do echo "{\\"loss\\": $n}" >>$TRAINCTL_PROGRESS; done; sleep 60"""
    )
    commands = [f"if [ ! -e ../first ]; then {report_one}; exit 1; fi", report_more]
    node.start(node.spec(*commands, retry={"max_attempts": 2, "delay": "0s"}))
    run = NodeRun(Layout(str(node.root)), "run-1")
    wait_for(lambda: points_of(run).keys() and points_of(run)["loss"].count == 3)
    os.kill(node.status()["pid"], signal.SIGKILL)
    assert node.ended()["status"] == "TRAINING_JOB_LOST"
    assert losses(run) == [1, 2, 3]
