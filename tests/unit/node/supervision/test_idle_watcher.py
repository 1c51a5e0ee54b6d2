"""Machines that end themselves when idle, and runs that are interrupted before a machine is taken back."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.gangs import GangHarness, nodes
from tests.support.node_program.nodes import NodeHarness, run_spec, wait_for
from tests.support.servers.ec2_metadata import PORT, InstanceMetadata, serve_metadata
from trainctl.base.filesystem.files import write_json
from trainctl.base.protocol.host import IdleShutdownSettings
from trainctl.base.system.processes import process_record
from trainctl.node.runs.record import RUN_VARIABLE, NodeRun
from trainctl.node.scheduling.claims import is_held
from trainctl.node.supervision.idle_shutdown import MachineUse
from trainctl.node.supervision.idle_watcher import IdleWatcher
from trainctl.node.system.layout import Layout

ADDRESS = f"127.78.{os.getpid() // 250 % 250}.{os.getpid() % 250 + 1}"
END, STOP, IDLE = ["end"], ["stop"], 100.0


def settings_of(**changes: Any) -> dict[str, Any]:
    """Settings of a machine whose commands only name themselves."""
    usual = {"shutdown": END, "stop": STOP, "idle_timeout": IDLE, "notice": None}
    return {**usual, **changes}


class Machine:
    """A machine under a directory with its watcher, whose clock the test sets."""

    def __init__(self, root: Path, **changes: Any) -> None:
        self.layout = Layout(str(root))
        self.layout.root.mkdir()
        self.use = MachineUse(self.layout)
        self.settings: IdleShutdownSettings = settings_of(**changes)  # type: ignore[assignment]
        write_json(self.use.path, {"settings": self.settings})
        self.now = 0.0
        self.executed: list[list[str]] = []
        self.watcher = IdleWatcher(self.use, self.settings, lambda: self.now, self._execute)

    def _execute(self, argv: Sequence[str]) -> None:
        self.executed.append(list(argv))

    def after(self, seconds: float) -> list[list[str]]:
        self.now += seconds
        self.watcher.step()
        return self.executed

    def run(self, status: str, **changes: Any) -> NodeRun:
        """A started run, whose supervisor is this process until ``end``."""
        run = NodeRun(self.layout, "run-1")
        run.create(run_spec(**changes))
        write_json(run.directory / "claim.1", process_record())
        write_json(run.directory / "started", process_record())
        run.write({"status": status})
        return run

    def end(self, run: NodeRun) -> None:
        write_json(run.directory / "claim.1", {**process_record(), "started": 1})


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "root")


@pytest.fixture
def metadata() -> Iterator[InstanceMetadata]:
    values = InstanceMetadata({})
    close = serve_metadata(ADDRESS, values)
    yield values
    close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    mark = f"{tmp_path / 'root' / 'runs' / 'run-1'}"
    with subprocess.Popen(["sleep", "60"], env={**os.environ, RUN_VARIABLE: mark}) as process:
        yield process
        process.kill()


def test_an_idle_machine_ends(machine: Machine) -> None:
    assert machine.after(IDLE - 1) == []
    assert machine.after(1) == [END]
    assert machine.after(30) == [END]
    assert machine.after(30) == [END, END]


def test_use_renews_it(machine: Machine) -> None:
    run = machine.run("TRAINING_JOB_RUNNING")
    assert machine.after(10 * IDLE) == []
    machine.end(run)
    with machine.use.path.open("rb") as call:
        fcntl.flock(call, fcntl.LOCK_SH)
        assert machine.after(10 * IDLE) == []
    assert machine.after(IDLE - 1) == []
    os.utime(machine.use.path, ns=(1, 1))  # any other time, as clocks may be set back
    assert machine.after(1) == []
    assert machine.after(IDLE) == [END]


@pytest.mark.parametrize(
    ("url", "state", "expected"),
    [("s3://b/p", "COMPLETED", END), ("s3://b/p", "SYNCING", STOP), (None, "COMPLETED", STOP)],
)
def test_checkpoints_on_the_machine_only_delay_its_end(
    machine: Machine, url: str | None, state: str, expected: list[str]
) -> None:
    run = machine.run(
        "TRAINING_JOB_COMPLETED", checkpointing_config={"enabled": True}, store={"url": url}
    )
    write_json(run.directory / "sync.json", {"state": state})
    machine.end(run)

    assert machine.after(IDLE) == ([END] if expected == END else [])
    assert machine.after(IDLE)[0] == expected


def test_a_run_far_beyond_its_time_limit_keeps_no_machine(machine: Machine) -> None:
    machine.run("TRAINING_JOB_RUNNING", max_duration=50.0, checkpoints={"upload_timeout": 10})

    assert machine.after(0) == []
    assert machine.after(950) == []
    assert machine.after(IDLE - 1) == []
    assert machine.after(1) == [END]


@pytest.mark.integration
def test_a_gang_is_interrupted_together(tmp_path: Path) -> None:
    reason = "interrupted: the machine is taken back at 13:00 UTC"
    with nodes(tmp_path, 2) as both:
        gang = GangHarness(both, "touch $PWD/up; sleep 600")
        gang.start()
        runs = [NodeRun(Layout(str(node.root)), "run-1") for node in both]
        wait_for(lambda: all((run.work / "up").exists() for run in runs))
        runs[1].request_stop(grace_seconds=1.0, interrupted=reason)
        os.kill(int((runs[1].supervisor or {})["pid"]), signal.SIGTERM)

        first, second = (node.ended() for node in both)

    assert {first["status"], second["status"]} == {"TRAINING_JOB_STOPPED"}
    assert second["error"] == first["root_cause"]["error"] == reason


@pytest.mark.integration
def test_calls_start_one_watcher_and_again_if_it_died(node: NodeHarness) -> None:
    use = MachineUse(Layout(str(node.root)))
    request = {"settings": settings_of(shutdown=["true"], idle_timeout=600.0)}
    report = node.call("idle_shutdown", request)
    first = watcher_of(node)
    assert 500 < report["seconds_left"] <= 600
    assert node.call("idle_shutdown", request)["seconds_left"]
    assert watcher_of(node) == first

    os.kill(first, signal.SIGKILL)
    wait_for(lambda: not is_held(use.claim))
    os.utime(use.path, (1, 1))
    shown = node.call("inspect", {"cache": {"dir": None, "size": None}})["idle_shutdown"]
    assert (shown["idle_since"], shown["seconds_left"]) == (1.0, 0.0)
    node.call("has_code", {"digest": "sha256:code"})
    assert use.last_used > 10**18
    os.kill(watcher_of(node), signal.SIGKILL)
    use.path.unlink()  # the next call would start it again


def watcher_of(node: NodeHarness) -> int:
    """The one process that writes the watcher's log."""

    def pids() -> list[int]:
        result = []
        for path in Path("/proc").glob("[0-9]*/fd/2"):
            with contextlib.suppress(OSError):
                if path.readlink() == node.root / "idle_shutdown.log":
                    result.append(int(path.parts[2]))
        return result

    (pid,) = wait_for(pids)
    return pid


def test_a_live_run_is_interrupted_once(
    tmp_path: Path, metadata: InstanceMetadata, job: subprocess.Popen[bytes]
) -> None:
    machine = Machine(tmp_path / "root", notice={"kind": "imds", "url": f"http://{ADDRESS}:{PORT}"})
    run = machine.run("TRAINING_JOB_RUNNING", grace_seconds=600)
    write_json(run.directory / "claim.1", process_record(job.pid))
    metadata.recommend_rebalance()
    machine.after(1)
    metadata.tokens.clear()  # the watcher's token expired
    machine.after(1)
    assert job.poll() is None
    assert machine.use.report()["at_risk"]

    metadata.notify_interruption(60)
    machine.after(1)

    assert job.wait(60) == -signal.SIGTERM
    stop = json.loads((run.directory / "stop.json").read_bytes())
    assert 5 < stop["grace_seconds"] <= 30
    assert str(run.interruption).startswith("interrupted: the machine is taken back at ")
    assert machine.use.report()["taken_back"]
