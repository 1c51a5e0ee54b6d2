"""Runs: started once, supervised, stopped, lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.node_program.nodes import (
    NodeHarness,
    NodeProgramError,
    all_text_below,
    is_alive,
    wait_for,
)

pytestmark = pytest.mark.integration

SECRET = "s3cr3t-value-of-a-test"


def _pid(path: Path) -> int:
    return wait_for(lambda: int(path.read_text() or 0) if path.exists() else None)


def test_commands_share_a_shell_and_both_streams_are_logged(node: NodeHarness) -> None:
    node.upload_code({"sub/train.py": "import os, sys\nprint(os.environ['A'], file=sys.stderr)\n"})

    status = node.run("export A=kept", "cd sub", "python3 train.py; echo $PWD")

    assert (status["status"], status["exit_code"]) == ("TRAINING_JOB_COMPLETED", 0)
    assert node.log().splitlines() == ["kept", str(node.directory() / "work" / "sub")]
    assert status["started_at"] <= status["ended_at"]


@pytest.mark.parametrize("case", cases("node/failing_commands"))
def test_a_failing_command_ends_the_job_and_is_named(node: NodeHarness, case: Any) -> None:
    status = node.run(*case["commands"])

    assert (status["status"], status["exit_code"]) == ("TRAINING_JOB_FAILED", case["code"])
    assert f"start command {case['number']} of {len(case['commands'])}" in status["error"]
    assert "\x1b" not in status["error"]
    assert "never" not in node.log().splitlines()


@pytest.mark.parametrize("profile", ["exec true", "exit 0", "kill -9 $$"])
def test_a_profile_that_ends_the_shell_fails_the_run(node: NodeHarness, profile: str) -> None:
    """Nothing was run, though the shell's exit code may be 0."""
    (node.home / ".bash_profile").write_text(f"{profile}\n")

    status = node.run("echo never")

    is_killed = profile.startswith("kill")
    assert status["status"] == f"TRAINING_JOB_{'' if is_killed else 'DEPLOY_'}FAILED"
    assert ("before the first command: a login profile" in status["error"]) is not is_killed


def test_a_command_that_ends_the_shell_before_the_last_one_fails_the_run(node: NodeHarness) -> None:
    status = node.run("exec true", "echo never")

    assert status["status"] == "TRAINING_JOB_FAILED"
    assert status["error"] == "start command 1 of 2 exited with 0: exec true"


def test_the_last_command_may_replace_the_shell(node: NodeHarness) -> None:
    assert node.run("true", "exec true")["status"] == "TRAINING_JOB_COMPLETED"


def test_variables_of_the_run_win_over_startup_files(node: NodeHarness) -> None:
    """Startup files may add, and extend PATH."""
    (node.home / ".bash_profile").write_text(
        "export HF_HOME=/host BT_CHECKPOINT_DIR=/host TOKEN=host ADDED=host PATH=$PATH:/host/bin\n"
    )
    node.start(
        node.spec(
            'echo "$HF_HOME $BT_CHECKPOINT_DIR $TOKEN $ADDED"; echo "$PATH"; env | grep -c __TRAINCTL',
            environment={
                "HF_HOME": "/data/hf",
                "BT_CHECKPOINT_DIR": "/job",
                "PATH": "/job/bin:/usr/bin:/bin",
            },
            environment_variables={"TOKEN": {"secret": "corp"}},
        ),
        {"corp": SECRET},
    )
    node.ended()

    variables, path, copies = node.log().splitlines()
    assert variables == f"/data/hf /job {SECRET} host"
    assert path.startswith("/job/bin:")
    assert path.endswith(":/host/bin")
    assert copies == "0"


def test_a_run_outlives_the_session_of_its_caller(node: NodeHarness) -> None:
    node.upload_code({"x": ""})
    caller = node.popen("start", node.start_request(node.spec("sleep 1; echo done")))
    wait_for(lambda: list(node.directory().glob("claim.*")))

    with caller, contextlib.suppress(ProcessLookupError):  # it may have returned
        os.killpg(caller.pid, signal.SIGHUP)
        os.killpg(caller.pid, signal.SIGKILL)

    assert node.ended()["status"] == "TRAINING_JOB_COMPLETED"
    assert node.log() == "done\n"


def test_the_supervisor_has_no_terminal_and_none_of_the_callers_files(node: NodeHarness) -> None:
    node.start(node.spec("sleep 60"))
    pid = node.status()["pid"]

    files = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}

    assert os.getsid(pid) != os.getsid(0)
    assert {name for name in files if not name.startswith(("/dev/null", "pipe:"))} == {
        str(node.directory() / "supervisor.log")
    }


def test_stop_ends_processes_that_left_the_session_and_ignore_sigterm(node: NodeHarness) -> None:
    mark = node.base / "pid"
    stubborn = f"import os, signal, time; signal.signal(15, signal.SIG_IGN); os.setsid(); open('{mark}', 'w').write(str(os.getpid())); time.sleep(99)"
    node.start(node.spec("touch $BT_SCRATCH_DIR/x", f'(python3 -c "{stubborn}" &)', "sleep 99"))
    pid = _pid(mark)

    status = node.call("stop", {"key": "run-1", "grace_seconds": 0.2})

    assert status["status"] == "TRAINING_JOB_STOPPED"
    assert not is_alive(pid)
    assert not (node.directory() / "scratch").exists()


def test_a_run_that_was_stopped_before_it_came_never_starts(node: NodeHarness) -> None:
    """Stop of an unknown run leaves a mark, also after its removal; the mark expires."""
    assert node.call("stop", {"key": "run-1"})["status"] == "TRAINING_JOB_LOST"
    assert not node.root.exists()  # nothing on this node could start the run
    node.root.mkdir()
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


def test_stop_gives_the_job_its_grace_and_reports_it(node: NodeHarness) -> None:
    node.start(node.spec("trap 'sleep 2; echo saved; exit 0' TERM; echo up; sleep 99 & wait"))
    wait_for(lambda: "up" in node.log())

    status = node.call("stop", {"key": "run-1", "grace_seconds": 10})

    assert status["status"] == "TRAINING_JOB_STOPPED"
    assert "saved" in node.log()
    assert node.events[0]["grace"] == 10
    assert node.events[0]["processes"] >= 1


def test_a_stop_can_be_shortened(node: NodeHarness) -> None:
    node.start(node.spec("trap 'echo asked' TERM; echo up; while :; do sleep 0.1 || :; done"))
    wait_for(lambda: "up" in node.log())
    first = node.popen("stop", {"key": "run-1", "grace_seconds": 3600})
    wait_for(lambda: "asked" in node.log())

    status = node.call("stop", {"key": "run-1", "grace_seconds": 0})

    assert status["status"] == "TRAINING_JOB_STOPPED"
    assert b"TRAINING_JOB_STOPPED" in first.communicate()[0]


@pytest.mark.parametrize("command", ["true", "false"])
def test_processes_and_scratch_end_with_the_job(node: NodeHarness, command: str) -> None:
    mark = node.base / "pid"
    node.run(
        f"setsid sleep 99 & echo $! > {mark}; sleep 0.2",
        f"mkdir $BT_SCRATCH_DIR/d; touch $BT_SCRATCH_DIR/d/x; chmod 500 $BT_SCRATCH_DIR/d; {command}",
    )

    assert not is_alive(int(mark.read_text()))
    assert not (node.directory() / "scratch").exists()
    assert not (node.directory() / "view").exists()


def test_a_killed_supervisor_means_lost_and_the_job_is_dead(node: NodeHarness) -> None:
    mark = node.base / "pid"
    node.start(node.spec(f"setsid sleep 99 & echo $! > {mark}", "sleep 99"))
    pid = _pid(mark)
    os.kill(node.status()["pid"], signal.SIGKILL)

    wait_for(lambda: not is_alive(pid))
    status = node.status()

    assert (status["status"], status["supervised"]) == ("TRAINING_JOB_LOST", False)
    assert node.start(node.spec("echo again"))["status"] == "TRAINING_JOB_LOST"
    assert "again" not in node.log()


def test_a_second_start_changes_nothing(node: NodeHarness) -> None:
    go = node.root / "go"
    node.start(node.spec(f"echo once; until [ -e {go} ]; do sleep 0.05; done"))

    again = node.start(node.spec("echo twice"))

    assert again["status"] == "TRAINING_JOB_RUNNING"
    go.touch()
    node.ended()
    assert node.start(node.spec("echo twice"))["status"] == "TRAINING_JOB_COMPLETED"
    assert node.log() == "once\n"


def test_many_starts_at_once_run_the_command_once(node: NodeHarness) -> None:
    node.upload_code({"x": ""})
    spec = node.spec("echo once; sleep 0.3")

    callers = [node.popen("start", node.start_request(spec)) for _ in range(6)]
    for caller in callers:
        with caller:
            caller.wait()

    node.ended()
    assert node.log() == "once\n"


def test_an_older_generation_is_refused(node: NodeHarness) -> None:
    node.start(node.spec("sleep 9", generation=3))

    with pytest.raises(NodeProgramError) as raised:
        node.start(node.spec("sleep 9", generation=2))

    assert raised.value.kind == "LockHeld"


def test_a_dead_claim_without_a_start_is_superseded(node: NodeHarness) -> None:
    node.upload_code({"x": ""})
    node.directory().mkdir(parents=True)
    (node.directory() / "spec.json").write_text(json.dumps(node.spec("echo ran")))
    dead = {"machine": "other", "boot": "another", "pid": 1, "started": 1}
    (node.directory() / "claim.1").write_text(json.dumps(dead))

    node.start(node.spec("echo ran"))

    assert node.ended()["status"] == "TRAINING_JOB_COMPLETED"
    assert (node.directory() / "claim.2").exists()


def test_only_ended_runs_are_removed(node: NodeHarness) -> None:
    """With directory and holds."""
    node.mirror.add("x", b"x")
    node.deliver()
    node.start(node.spec("sleep 99"))

    with pytest.raises(NodeProgramError) as raised:
        node.call("remove", {"key": "run-1"})
    node.call("stop", {"key": "run-1", "grace_seconds": 0})

    assert raised.value.kind == "LockHeld"
    assert node.call("remove", {"key": "run-1"}) == {"removed": True}
    assert node.call("remove", {"key": "run-1"}) == {"removed": False}
    assert not node.directory().exists()
    assert not (node.root / "cache" / "holds" / "run-1").exists()


def test_secrets_are_in_the_jobs_environment_and_nowhere_else(node: NodeHarness) -> None:
    spec = node.spec(
        'test -n "$TOKEN" && echo has; sleep 99',
        environment_variables={"TOKEN": {"secret": "wandb"}},
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


@pytest.mark.parametrize(
    ("changes", "cause"),
    [({"environment_variables": {"TOKEN": {"secret": "wandb"}}}, "wandb"), ({"code": "sha256:other"}, "sha256:other")],
)  # fmt: skip
def test_a_missing_secret_or_code_fails_the_deployment(
    node: NodeHarness, changes: dict[str, object], cause: str
) -> None:
    node.upload_code({"x": ""})
    node.call("start", node.start_request(node.spec("echo ran", **changes)))
    status = node.ended()

    assert status["status"] == "TRAINING_JOB_DEPLOY_FAILED"
    assert cause in status["error"]
    assert node.log() == ""


def test_the_job_has_the_environment_and_directories_of_its_specification(
    node: NodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of its caller's variables, and no directory outside root and data."""
    monkeypatch.setenv("CALLERS_TOKEN", SECRET)
    inside = node.data / "checkpoints" / "p" / "j" / "1-x" / "rank-0"
    outside = node.base / "elsewhere"

    node.run(
        'touch "$BT_CHECKPOINT_DIR/x"; env',
        environment={"BT_CHECKPOINT_DIR": str(inside), "BT_OTHER_DIR": str(outside)},
    )

    names = {line.partition("=")[0] for line in node.log().splitlines()}
    assert {"HOME", "PATH", "BT_OTHER_DIR", "BT_WORKING_DIR", "BT_SCRATCH_DIR"} <= names
    assert "CALLERS_TOKEN" not in names
    assert (inside / "x").exists()
    assert not outside.exists()


def test_a_run_key_is_a_file_name(node: NodeHarness) -> None:
    for key in ("../x", "", "a/b", ".hidden", "x" * 300):
        with pytest.raises(NodeProgramError) as raised:
            node.start(node.spec("true", key=key))
        assert raised.value.kind == "NodeError"
