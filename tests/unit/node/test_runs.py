"""Runs: started once, supervised, stopped, lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.node_program.nodes import (
    NodeHarness,
    NodeProgramError,
    all_text_below,
    is_alive,
    wait_for,
)

pytestmark = pytest.mark.integration

SECRET = "s3cr3t-value-of-a-test"
CALLER = """\
import json, subprocess, sys, time
argv, request = json.load(sys.stdin)
subprocess.run(argv, input=request.encode())
print("started", flush=True)
time.sleep(60)
"""


def _pid(path: Path) -> int:
    return wait_for(lambda: int(path.read_text() or 0) if path.exists() else None)


def test_a_run_completes_with_its_output_in_the_log(node: NodeHarness) -> None:
    """Commands share one shell that keeps exports and starts in the code's directory; both streams are logged."""
    node.upload_code({"sub/train.py": "import os, sys\nprint(os.environ['A'], file=sys.stderr)\n"})

    status = node.run("export A=kept", "cd sub", "python3 train.py; echo $PWD")

    assert (status["status"], status["exit_code"]) == ("TRAINING_JOB_COMPLETED", 0)
    assert node.log().splitlines() == ["kept", str(node.directory() / "work" / "sub")]
    assert status["started_at"] <= status["ended_at"]


@pytest.mark.parametrize(
    ("commands", "code", "number"),
    [
        (["exit 7"], 7, 1),
        (["true", "false && true", "echo never"], 1, 2),
        (["false || true", "true && false"], 1, 2),
        (["true", "false | true\nfalse\ntrue"], 1, 2),
        (["set +e", "false", "echo never"], 1, 2),
        (["kill -9 $$"], -9, 1),
    ],
)
def test_a_failing_command_ends_the_job_and_is_named(
    node: NodeHarness, commands: list[str], code: int, number: int
) -> None:
    """Any list that fails ends the job with its code, and the error says which command it was."""
    status = node.run(*commands)

    assert (status["status"], status["exit_code"]) == ("TRAINING_JOB_FAILED", code)
    assert f"start command {number} of {len(commands)}" in status["error"]


def test_a_failing_command_is_shown_as_it_was_written(node: NodeHarness) -> None:
    """In any language, but for what could disturb a terminal."""
    status = node.run("false 'größe \x1b[31m'")

    assert status["error"].endswith("exited with 1: false 'größe \\x1b[31m'")
    assert "never" not in node.log()


def test_a_syntax_error_ends_the_job_and_is_named(node: NodeHarness) -> None:
    """A command that is no shell does not swallow those after it."""
    status = node.run("echo one", "if then 'x", "echo three")

    assert status["status"] == "TRAINING_JOB_FAILED"
    assert "start command 2 of 3" in status["error"]
    assert node.log().splitlines()[0] == "one"
    assert "three" not in node.log()


def test_a_run_outlives_its_caller(node: NodeHarness) -> None:
    """The job goes on when the process that started it, its session and its terminal are gone."""
    node.upload_code({"x": ""})
    request = node.start_request(node.spec("sleep 1; echo done"))
    caller = subprocess.Popen(
        [
            sys.executable,
            "-c",
            CALLER,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=node.environment,
    )
    assert caller.stdin is not None
    assert caller.stdout is not None
    line = json.dumps({"root": str(node.root), **request}) + "\n"
    caller.stdin.write(json.dumps([node.argv("start"), line]).encode())
    caller.stdin.close()
    caller.stdout.readline()

    os.killpg(caller.pid, signal.SIGHUP)
    os.killpg(caller.pid, signal.SIGKILL)
    caller.wait()
    caller.stdout.close()

    assert node.ended()["status"] == "TRAINING_JOB_COMPLETED"
    assert node.log() == "done\n"


def test_the_supervisor_has_no_terminal_and_none_of_the_callers_files(node: NodeHarness) -> None:
    """It is in a session of its own, with /dev/null for input and no inherited descriptor."""
    node.start(node.spec("sleep 60"))
    pid = node.status()["pid"]

    files = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}

    assert os.getsid(pid) != os.getsid(0)
    assert {name for name in files if not name.startswith(("/dev/null", "pipe:"))} == {
        str(node.directory() / "supervisor.log"),
        "/memfd:trainctl (deleted)",  # its own program
    }


def test_stop_ends_the_whole_tree(node: NodeHarness) -> None:
    """Children that left the session and ignore TERM end too; the status is STOPPED and scratch is empty."""
    stubborn = "import os, signal, time; signal.signal(15, signal.SIG_IGN); os.setsid(); open('{0}', 'w').write(str(os.getpid())); time.sleep(99)"
    marks = [node.base / "first", node.base / "second"]
    child = f'(python3 -c "{stubborn.format(marks[0])}" &) ; python3 -c "import os; os.fork() or ({stubborn_as_expression(marks[1])})"'
    node.start(node.spec("touch $BT_SCRATCH_DIR/x", child, "sleep 99"))
    pids = [_pid(mark) for mark in marks]

    status = node.call("stop", {"key": "run-1", "grace_seconds": 0.2})

    assert status["status"] == "TRAINING_JOB_STOPPED"
    assert [is_alive(pid) for pid in pids] == [False, False]
    assert not (node.directory() / "scratch").exists()


def test_a_run_that_was_stopped_before_it_came_never_starts(node: NodeHarness) -> None:
    """Stop of an unknown run leaves a mark, also after its removal; the mark goes with time."""
    node.call("facts", {"data": str(node.data), "mounts": []})
    node.root.mkdir(exist_ok=True)
    assert node.call("stop", {"key": "run-1"})["status"] == "TRAINING_JOB_LOST"
    assert node.call("remove", {"key": "run-1"}) == {"removed": False}
    assert node.runs() == []
    status = node.start(node.spec("echo started"))
    assert (status["status"], node.log()) == ("TRAINING_JOB_STOPPED", "")

    node.call("stop", {"key": "run-2"})
    old = node.directory("run-2")
    node.call("forget", {"lineage": "other"})
    assert old.exists()
    os.utime(old, (0, 0))
    node.call("forget", {"lineage": "other"})
    assert not old.exists()


def test_stop_leaves_a_node_that_is_gone_alone(node: NodeHarness) -> None:
    """Where there is no root there is nothing that could start the run."""
    assert node.call("stop", {"key": "run-1"})["status"] == "TRAINING_JOB_LOST"
    assert not node.root.exists()


def test_stop_says_how_far_it_is(node: NodeHarness) -> None:
    """Each second: how many processes are left, and the grace that they have."""
    node.start(node.spec("trap '' TERM; echo ready; while :; do sleep 0.1; done"))
    wait_for(lambda: "ready" in node.log())
    node.call("stop", {"key": "run-1", "grace_seconds": 2.5})

    assert [event["grace"] for event in node.events][:1] == [2.5]
    assert node.events[0]["processes"] >= 1


def stubborn_as_expression(mark: Path) -> str:
    """A Python expression that leaves the session, ignores TERM and sleeps."""
    return (
        f"__import__('signal').signal(15, 1), os.setsid(), open('{mark}', 'w').write(str(os.getpid())), "
        "__import__('time').sleep(99)"
    )


def test_stop_gives_the_job_its_grace(node: NodeHarness) -> None:
    """A job that handles TERM may finish what it is doing."""
    node.start(node.spec("trap 'sleep 0.5; echo saved; exit 0' TERM; echo up; sleep 99 & wait"))
    wait_for(lambda: "up" in node.log())

    status = node.call("stop", {"key": "run-1", "grace_seconds": 10})

    assert status["status"] == "TRAINING_JOB_STOPPED"
    assert "saved" in node.log()


def test_a_stop_can_be_shortened(node: NodeHarness) -> None:
    """Who asks again with less grace need not wait for what was said first."""
    node.start(node.spec("trap 'echo asked' TERM; echo up; while :; do sleep 0.1 || :; done"))
    wait_for(lambda: "up" in node.log())
    first = node.popen("stop", {"key": "run-1", "grace_seconds": 3600})
    wait_for(lambda: "asked" in node.log())

    status = node.call("stop", {"key": "run-1", "grace_seconds": 0})

    assert status["status"] == "TRAINING_JOB_STOPPED"
    assert b"TRAINING_JOB_STOPPED" in first.communicate()[0]


def test_processes_left_behind_end_with_the_job(node: NodeHarness) -> None:
    """A background process does not outlive the commands."""
    mark = node.base / "pid"

    status = node.run(f"setsid sleep 99 & echo $! > {mark}; sleep 0.2")

    assert status["status"] == "TRAINING_JOB_COMPLETED"
    assert not is_alive(int(mark.read_text()))


@pytest.mark.parametrize("command", ["true", "false"])
def test_scratch_is_emptied_whatever_the_end(node: NodeHarness, command: str) -> None:
    """What the job put into scratch is gone after success and failure, read-only parts too."""
    node.run(
        f"mkdir $BT_SCRATCH_DIR/d; touch $BT_SCRATCH_DIR/d/x; chmod 500 $BT_SCRATCH_DIR/d; {command}"
    )

    assert not (node.directory() / "scratch").exists()
    assert not (node.directory() / "view").exists()


def test_a_killed_supervisor_means_lost_and_the_job_is_dead(node: NodeHarness) -> None:
    """After SIGKILL of the supervisor every process of the job ends, also one that left the session."""
    mark = node.base / "pid"
    node.start(node.spec(f"setsid sleep 99 & echo $! > {mark}", "sleep 99"))
    pid = _pid(mark)
    os.kill(node.status()["pid"], signal.SIGKILL)

    wait_for(lambda: not is_alive(pid))
    status = node.status()

    assert (status["status"], status["supervised"]) == ("TRAINING_JOB_LOST", False)
    assert node.start(node.spec("echo again"))["status"] == "TRAINING_JOB_LOST"
    assert "again" not in node.log()


def test_supervisor_and_warden_killed_together_leave_nothing_after_status(
    node: NodeHarness,
) -> None:
    """When nobody is left to end the job's processes, whoever asks for the status does."""
    mark = node.base / "pid"
    node.start(node.spec(f"setsid sleep 99 & echo $! > {mark}", "sleep 99"))
    pid = _pid(mark)
    _kill_both(node)

    assert node.status()["status"] == "TRAINING_JOB_LOST"
    assert not is_alive(pid)


def test_a_second_start_changes_nothing(node: NodeHarness) -> None:
    """Starting a live or ended run again returns its status."""
    go = node.root / "go"
    node.start(node.spec(f"echo once; until [ -e {go} ]; do sleep 0.05; done"))

    again = node.start(node.spec("echo twice"))

    assert again["status"] == "TRAINING_JOB_RUNNING"
    go.touch()
    node.ended()
    assert node.start(node.spec("echo twice"))["status"] == "TRAINING_JOB_COMPLETED"
    assert node.log() == "once\n"


def test_many_starts_at_once_run_the_command_once(node: NodeHarness) -> None:
    """Of six callers at the same moment one starts the job."""
    node.upload_code({"x": ""})
    spec = node.spec("echo once; sleep 0.3")

    callers = [node.popen("start", node.start_request(spec)) for _ in range(6)]
    for caller in callers:
        with caller:
            caller.wait()

    node.ended()
    assert node.log() == "once\n"


def test_an_older_generation_is_refused(node: NodeHarness) -> None:
    """Whoever comes with an older generation than the node has seen is told so."""
    node.start(node.spec("sleep 9", generation=3))

    with pytest.raises(NodeProgramError) as raised:
        node.start(node.spec("sleep 9", generation=2))

    assert raised.value.kind == "fenced"


def test_a_stopped_run_that_never_started_cant_be_started(node: NodeHarness) -> None:
    """A stop before the supervisor exists decides the run."""
    node.upload_code({"x": ""})
    node.directory().mkdir(parents=True)
    (node.directory() / "spec.json").write_text(json.dumps(node.spec("echo never")))

    assert node.call("stop", {"key": "run-1"})["status"] == "TRAINING_JOB_STOPPED"
    assert node.start(node.spec("echo never"))["status"] == "TRAINING_JOB_STOPPED"


def test_a_dead_claim_without_a_start_is_superseded(node: NodeHarness) -> None:
    """A supervisor that died before it executed anything does not keep the run from running."""
    node.upload_code({"x": ""})
    node.directory().mkdir(parents=True)
    (node.directory() / "spec.json").write_text(json.dumps(node.spec("echo ran")))
    dead = {"machine": "other", "boot": "another", "pid": 1, "started": 1}
    (node.directory() / "claim.1").write_text(json.dumps(dead))

    node.start(node.spec("echo ran"))

    assert node.ended()["status"] == "TRAINING_JOB_COMPLETED"
    assert (node.directory() / "claim.2").exists()


def test_a_live_run_cant_be_removed_and_an_ended_one_can(node: NodeHarness) -> None:
    """Remove refuses what is live, then takes directory and leases; a second time there is nothing to take."""
    node.mirror.add("x", b"x")
    node.deliver()
    node.start(node.spec("sleep 99"))

    with pytest.raises(NodeProgramError) as raised:
        node.call("remove", {"key": "run-1"})
    node.call("stop", {"key": "run-1", "grace_seconds": 0})

    assert raised.value.kind == "busy"
    assert node.call("remove", {"key": "run-1"}) == {"removed": True}
    assert node.call("remove", {"key": "run-1"}) == {"removed": False}
    assert not node.directory().exists()
    assert not (node.root / "cache" / "leases" / "run-1").exists()


def test_secrets_are_in_the_jobs_environment_and_nowhere_else(node: NodeHarness) -> None:
    """While the job runs with the secret, no argument list and no file under the node holds it."""
    spec = node.spec(
        'test -n "$TOKEN" && echo has; sleep 99', secret_environment={"TOKEN": "wandb"}
    )
    node.start(spec, {"wandb": SECRET})
    wait_for(lambda: "has" in node.log())

    arguments = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments += path.read_bytes()
        except OSError:
            continue

    assert SECRET.encode() not in arguments
    assert SECRET.encode() not in all_text_below(node.root)


def test_a_secret_that_did_not_arrive_fails_the_deployment(node: NodeHarness) -> None:
    """The error names the variable and the secret, and nothing was executed."""
    status = node.run("echo ran", secret_environment={"TOKEN": "wandb"})

    assert status["status"] == "TRAINING_JOB_DEPLOY_FAILED"
    assert "wandb" in status["error"]
    assert node.log() == ""


def test_the_job_sees_only_the_environment_it_should(
    node: NodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's variables don't reach the job, the specification's and the home directory do."""
    monkeypatch.setenv("CALLERS_TOKEN", SECRET)

    node.run("env", environment={"BT_NUM_GPUS": "0"})

    names = {line.partition("=")[0] for line in node.log().splitlines()}
    assert {"HOME", "PATH", "BT_NUM_GPUS", "BT_WORKING_DIR", "BT_SCRATCH_DIR"} <= names
    assert "CALLERS_TOKEN" not in names


def test_promised_directories_exist(node: NodeHarness) -> None:
    """Directories that BT_ variables name under root and data are there when the job starts; others are not made."""
    inside = node.data / "checkpoints" / "p" / "j" / "1-x" / "rank-0"
    outside = node.base / "elsewhere"

    status = node.run(
        'touch "$BT_CHECKPOINT_DIR/x"',
        environment={"BT_CHECKPOINT_DIR": str(inside), "BT_OTHER_DIR": str(outside)},
    )

    assert status["status"] == "TRAINING_JOB_COMPLETED"
    assert (inside / "x").exists()
    assert not outside.exists()


def test_missing_code_fails_the_deployment(node: NodeHarness) -> None:
    """A run whose code is not there says so."""
    status = node.call("start", node.start_request(node.spec("true", code="sha256:other")))

    assert status["status"] == "TRAINING_JOB_DEPLOY_FAILED"
    assert "sha256:other" in status["error"]


@pytest.mark.parametrize("key", ["../x", "", "a/b", ".hidden", "x" * 300])
def test_a_run_key_is_a_file_name(node: NodeHarness, key: str) -> None:
    """A key that would lead elsewhere is refused."""
    with pytest.raises(NodeProgramError) as raised:
        node.start(node.spec("true", key=key))

    assert raised.value.kind == "request"


def test_without_bash_the_login_shell_is_sh(
    node: NodeHarness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where PATH has no bash, /bin/sh runs the commands by the same rules."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sleep", "python3"):
        (tools / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(tools))

    status = node.run("export A=1", "false && true", "echo $A")

    assert (status["status"], status["exit_code"]) == ("TRAINING_JOB_FAILED", 1)
    assert "command 2 of 3" in status["error"]


def test_time_is_told_by_a_clock_that_nobody_sets(node: NodeHarness) -> None:
    """The recorded end is the recorded start plus what passed."""
    status = node.run("sleep 0.3")

    assert status["ended_at"] - status["started_at"] >= 0.3


def _kill_both(node: NodeHarness) -> None:
    """The supervisor and its warden, so that neither sees the other die."""
    supervisor = node.status()["pid"]
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    os.kill(supervisor, signal.SIGSTOP)
    for one in (int(children[0]), supervisor):
        os.kill(one, signal.SIGKILL)
    wait_for(lambda: not is_alive(supervisor))
