"""Several commands at the same time, and commands that are interrupted."""

from __future__ import annotations

import re
import signal
import subprocess

import pytest

from tests.support.node_program.nodes import wait_for
from tests.support.projects.manifest_files import job, write_manifest
from tests.support.projects.project import ProjectHarness
from tests.support.servers.hub import HttpFault, Hub

APPLY = ("apply", "--auto-approve")
WAIT = (*APPLY, "--wait")


@pytest.fixture
def slow(fresh: ProjectHarness, hub: Hub) -> ProjectHarness:
    """A project with one job on weights whose first download hangs until the hub lets go, and one without weights."""
    fresh.variables["HF_ENDPOINT"] = hub.url
    hub.faults.append(HttpFault("wait", "model.safetensors", at=60))
    write_manifest(
        fresh,
        {"a": job("cat models/m/config.json", weights=["m"]), "b": job("true")},
        weights={"m": {"source": "hf://acme/model", "mount_location": "models/m"}},
    )
    return fresh


def hanging(project: ProjectHarness, hub: Hub, *arguments: str) -> subprocess.Popen[str]:
    """An apply that has begun to mirror the weights and can't go on; everything else that it does is done."""
    process = project.start(*arguments)
    wait_for(lambda: hub.asked("model.safetensors") or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process


def read_until(process: subprocess.Popen[str], word: str) -> str:
    """Wait until standard error says a word; what it said until then."""
    assert process.stderr is not None
    text = ""
    while word not in text and (line := process.stderr.readline()):
        text += line
    return text


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a process that ends by itself."""
    with process:
        try:
            out, err = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, out, err


def settled(project: ProjectHarness) -> None:
    """One apply later everything is as declared, each job has one run that completed, and nothing is left open."""
    project.run(*WAIT)
    state = project.json("show")
    runs = {
        resource["address"]: resource["outputs"]["runs"]
        for resource in state["resources"]
        if resource["address"].startswith("job.")
    }

    assert {name: [run["status"] for run in result] for name, result in runs.items()} == {
        "job.a": ["TRAINING_JOB_COMPLETED"],
        "job.b": ["TRAINING_JOB_COMPLETED"],
    }
    assert (state["open_intents"], state["orphaned_intents"]) == ([], [])
    assert project.json("mirror", "list")["bytes_unfinished"] == 0
    project.run("plan", "--detailed-exitcode")


def test_the_same_address_is_one_commands_at_a_time(slow: ProjectHarness, hub: Hub) -> None:
    """The other is refused, exit 10, or waits with --lock-timeout; plans and other addresses are not concerned."""
    first = hanging(slow, hub, *APPLY, "--target", "weights.m")
    slow.run(*WAIT, "--target", "job.b")
    refused = slow.run(*APPLY, "--target", "weights.m", code=10)
    other_state = ("--state", (slow.directory.parent / "other").as_uri())
    mirror_busy = slow.run(
        *other_state, *APPLY, "--target", "weights.m", "--lock-timeout", "1s", code=10
    )
    plans = [slow.start("plan", "--format", "json") for _ in range(3)]
    codes = [end(plan)[0] for plan in plans]
    waiting = slow.start(*WAIT, "--lock-timeout", "1m")
    hub.closing.set()
    done, waited = end(first), end(waiting)

    assert re.search(
        r"weights\.m is locked by \S+@\S+ \(create\) since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, until \d{4}-",
        refused.stderr,
    )
    assert "--lock-timeout" in refused.stderr
    assert re.search(r"waits for .* who mirrors the same source", mirror_busy.stderr)
    assert codes == [0] * 3
    assert done[0] == 0
    assert waited[0] == 0, waited
    settled(slow)


def test_the_first_interrupt_finishes_what_is_in_flight(slow: ProjectHarness, hub: Hub) -> None:
    """The step under way is finished and recorded, nothing more is begun, exit 130; the next apply does the rest."""
    process = hanging(slow, hub, *APPLY, "--parallelism", "1")
    process.send_signal(signal.SIGINT)
    output = read_until(process, "Finishing")
    hub.closing.set()
    code, out, _ = end(process)
    addresses = slow.json("state", "list")["addresses"]

    assert "Ctrl-C" in output
    assert code == 130
    assert "weights.m" in addresses
    assert "job.a" not in addresses
    assert "Not started: " in out
    assert "Apply incomplete." in out
    settled(slow)


def test_the_second_interrupt_stops_at_once(slow: ProjectHarness, hub: Hub) -> None:
    """Though the download hangs for ever; nothing is lost: the next apply carries on."""
    process = hanging(slow, hub, *APPLY)
    process.send_signal(signal.SIGINT)
    first = read_until(process, "Finishing")
    process.send_signal(signal.SIGINT)
    code, _, rest = end(process)

    assert "Stopping." in rest, first + rest
    assert code == 130
    assert "weights.m" not in slow.json("state", "list")["addresses"]
    hub.closing.set()
    settled(slow)


def test_leaving_a_run_that_was_waited_for(fresh: ProjectHarness) -> None:
    """Ctrl-C in apply --wait only detaches: exit 130, the run goes on and the command says how to follow it."""
    write_manifest(fresh, {"a": job("echo begun; sleep 2; echo done")})
    process = fresh.start(*WAIT)
    assert process.stdout is not None
    assert any(line.startswith("job.a: created") for line in process.stdout)
    process.send_signal(signal.SIGINT)
    code, _, err = end(process)

    assert code == 130
    assert "job.a: run 1 continues" in err
    assert fresh.run("logs", "a", "--follow").stdout == "begun\ndone\n"
    assert fresh.json("status", "a")["status"] == "TRAINING_JOB_COMPLETED"

    process = fresh.start("run", "a", "--auto-approve", "--follow")
    assert process.stdout is not None
    assert any(line == "begun\n" for line in process.stdout)
    process.send_signal(signal.SIGINT)
    code, _, err = end(process)
    assert code == 130
    assert "job.a continues." in err
    assert "trainctl stop a" in err
