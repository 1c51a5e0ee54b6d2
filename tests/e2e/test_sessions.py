"""Entering runs: on hosts, in namespaces and in containers, live and ended."""

from __future__ import annotations

import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import validate

from tests.support.machines.containers import EngineHarness
from tests.support.machines.sshd import Sshd, SshUser, free_port, require_sshd, sshds
from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness
from tests.support.tiers import one_day_in
from trainctl_schemas import schema

MANIFEST = """\
project: {name: demo}
CLUSTERS
secrets: {token: {from: env, name: TOKEN_VALUE}}
weights: {tiny: {source: "file:./weights", mount_location: MOUNT}}
jobs:
  sft:
    code: ./src
    weights: [tiny]
    IMAGE
    runtime:
      ENGINE
      start_commands: ["touch here", "until [ -e end ]; do sleep 0.1; done"]
      environment_variables: {TOKEN: {secret: token}, PLAIN: plain}
"""
SHOW = 'echo "$PLAIN ${TOKEN-none} $(echo *) $(cat MOUNT/word)"'


def declare(
    work: ProjectHarness,
    mount: str = "/app/tiny",
    clusters: str = "",
    image: str = "",
    engine: str = "",
) -> None:
    """A job that runs until it finds the file ``end`` in its directory."""
    text = MANIFEST.replace("MOUNT", mount).replace("CLUSTERS", clusters).replace("IMAGE", image)
    text = text.replace("ENGINE", f"engine: {engine}" if engine else "")
    work.variables["TOKEN_VALUE"] = "hush hush hush"
    work.write({"trainctl.yaml": text, "src/hello.txt": "", "weights/word": "weights\n"})


def entered(work: ProjectHarness, *options: str, mount: str = "/app/tiny") -> str:
    """What a line prints in the run."""
    return work.run("ssh", "job.sft", *options, "--", SHOW.replace("MOUNT", mount)).stdout


def start(work: ProjectHarness) -> None:
    """Start the run, and wait for its first command."""
    work.run("apply", "--auto-approve")
    assert wait_for(lambda: "here" in work.run("ssh", "job.sft", "--", "ls", code=None).stdout)


def proxied(work: ProjectHarness) -> str:
    """What a server that was started in the run sends through a forwarded port."""
    here, there = free_port("127.0.0.1"), free_port("127.0.0.1")
    serve = f"python3 -m http.server --bind 127.0.0.1 {there} >served 2>&1 </dev/null &"
    work.run("ssh", "job.sft", "--", serve)
    with work.start("proxy", "job.sft", f"{here}:{there}") as proxy:
        assert proxy.stdout is not None
        assert f"http://127.0.0.1:{here}" in proxy.stdout.readline()
        assert wait_for(lambda: _get(here))
        page = _get(here)
        proxy.send_signal(signal.SIGINT)
        assert proxy.wait(20) == 0
    return page


def by_config(work: ProjectHarness, config: Path) -> str:
    """The files of the run, listed by ssh with the printed configuration."""
    blocks = work.run("ssh", "--config").stdout
    config.write_text(blocks + config.read_text())
    directory = blocks.splitlines()[0].rpartition(": ")[2]
    done = subprocess.run(
        ["ssh", "-F", str(config), "-o", "BatchMode=yes", "trainctl-sft", "ls", directory],
        env=work.environment,
        capture_output=True,
        check=False,
        text=True,
    )
    return done.stdout + done.stderr


def _get(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}") as response:
            return str(response.read(), "utf-8")
    except OSError:
        return ""


@pytest.fixture
def host(tmp_path: Path, fresh: ProjectHarness) -> Iterator[Sshd]:
    """A host that the project's user knows."""
    require_sshd()
    user = SshUser(tmp_path / "user")
    fresh.variables.update(user.environment)
    with sshds(tmp_path, user, 1) as found:
        user.known_hosts.write_text(found[0].known)
        yield found[0]


def test_a_run_on_a_host_is_entered_while_it_lives_and_after(
    fresh: ProjectHarness, host: Sshd, tmp_path: Path
) -> None:
    """Its mounts and variables, secrets only if asked for; exit codes and arguments as they are; then its directory."""
    declare(fresh, clusters=f"clusters: {{lab: {{provider: ssh, hosts: [{host.settings}]}}}}")
    start(fresh)

    shown = entered(fresh)
    told = entered(fresh, "--with-secrets")
    exact = fresh.run("ssh", "job.sft", "--", "printf", "<%s>", "a  b", "--help", "$HOME").stdout
    failed = fresh.run("ssh", "job.sft", "--", "exit 7", code=7)
    served = proxied(fresh)
    listed = by_config(fresh, tmp_path / "user/.ssh/config")
    fresh.run("ssh", "job.sft", "--", "touch end")
    assert wait_for(lambda: fresh.json("status", "job.sft")["ended_at"])
    ended = fresh.run("ssh", "job.sft", "--", "ls; echo ${TOKEN-none}").stdout
    refused = fresh.run("ssh", "job.sft", "--with-secrets", "--", "ls", code=1)

    assert shown == "plain none hello.txt here weights\n"
    assert told == "plain hush hush hush hello.txt here weights\n"
    assert exact == "<a  b><--help><$HOME>"
    assert failed.stdout == ""
    assert "hello.txt" in served
    assert "hello.txt" in listed
    assert ended.split() == ["end", "hello.txt", "here", "served", "none"]
    assert "the secrets of an ended run are not stored" in refused.stderr


FAILING = """\
project: {name: demo}
weights: {tiny: {source: "file:./weights", mount_location: /app/tiny}}
jobs:
  sft:
    code: ./src
    weights: [tiny]
    IMAGE
    interactive_session: {trigger: on_failure, timeout_minutes: MINUTES}
    runtime:
      ENGINE
      start_commands: ["touch here", "exit 3"]
"""


def fail(work: ProjectHarness, minutes: float, image: str = "", engine: str = "") -> None:
    """Declare a job that fails and keeps its place so long, and start it."""
    text = FAILING.replace("IMAGE", image).replace("ENGINE", engine)
    text = text.replace("MINUTES", str(minutes))
    work.write({"trainctl.yaml": text, "src/hello.txt": "", "weights/word": "weights\n"})
    work.run("apply", "--auto-approve")


def test_a_failed_run_keeps_its_place(fresh: ProjectHarness) -> None:
    """It is entered, extended, and fails when it is stopped or its time is over."""
    fail(fresh, 10)
    assert wait_for(lambda: fresh.json("status", "job.sft")["session"])
    extended = fresh.run("session", "extend", "job.sft", "--minutes", "1")
    told = fresh.run("status", "job.sft").stdout
    looked = fresh.run("ssh", "job.sft", "--", "cat /app/tiny/word; echo *").stdout
    held = fresh.json("status", "job.sft")
    fresh.run("stop", "job.sft")
    stopped = fresh.json("status", "job.sft")
    fail(fresh, 0.02)
    fresh.run("run", "job.sft", "--auto-approve")
    assert wait_for(lambda: fresh.json("status", "job.sft")["ended_at"])
    expired = fresh.json("status", "job.sft")

    assert "keeps its place until" in extended.stdout
    assert "commands failed with exit code 3; keeps its place until" in told
    assert looked == "weights\nhello.txt here\n"
    assert (held["status"], held["session"]["exit_code"]) == ("TRAINING_JOB_RUNNING", 3)
    validate(held, schema("status"))
    for ended in (stopped, expired):
        assert (ended["status"], ended["session"]) == ("TRAINING_JOB_FAILED", None)
        assert ended["ranks"][0]["exit_code"] == 3


@one_day_in(4)
def test_a_failed_container_keeps_its_place(fresh: ProjectHarness, engine: EngineHarness) -> None:
    """The same container, until its time is over."""
    fresh.variables |= engine.variables
    fail(fresh, 0.3, f'image: {{base_image: "{engine.small}"}}', f"engine: {engine.name}")
    assert wait_for(lambda: fresh.json("status", "job.sft")["session"])
    looked = fresh.run("ssh", "job.sft", "--", "cat /app/tiny/word; echo *").stdout
    assert wait_for(lambda: fresh.json("status", "job.sft")["ended_at"])

    assert looked == "weights\nhello.txt here\n"
    assert fresh.json("status", "job.sft")["ranks"][0]["exit_code"] == 3


@one_day_in(4)
def test_a_run_in_a_container_is_entered(fresh: ProjectHarness, engine: EngineHarness) -> None:
    """As root of the container, in its working directory, with its mounts."""
    fresh.variables |= engine.variables
    declare(fresh, image=f'image: {{base_image: "{engine.small}"}}', engine=engine.name)
    start(fresh)

    shown = entered(fresh)
    where = fresh.run("ssh", "job.sft", "--", "pwd; exit 5", code=5).stdout
    told = entered(fresh, "--with-secrets") if engine.name != "docker" else ""
    fresh.run("ssh", "job.sft", "--", "touch end")

    assert shown == "plain none hello.txt here weights\n"
    assert where == "/b10/workspace\n"
    assert not told or told.startswith("plain hush hush hush")
    assert wait_for(lambda: fresh.json("status", "job.sft")["ended_at"])
