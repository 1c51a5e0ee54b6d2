"""Entering runs: on hosts and in containers, live and ended."""

from __future__ import annotations

import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from jsonschema import validate

from tests.support.machines.containers import EngineHarness
from tests.support.machines.sshd import SshUser, require_sshd, sshds
from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness
from tests.support.servers.buckets import free_port
from trainctl_schemas import schema

MANIFEST = """\
project: {name: demo}
secrets: {token: {from: env, name: TOKEN_VALUE}}
weights: {tiny: {source: "file:./weights", mount_location: /app/tiny}}
OTHER
jobs:
  sft:
    code: ./src
    weights: [tiny]
    SETTINGS
    runtime:
      environment_variables: {TOKEN: {secret: token}, PLAIN: plain}
      start_commands: [COMMANDS]
      RUNTIME
"""
UNTIL_END = '"touch here", "until [ -e end ]; do sleep 0.1; done"'
FAIL = '"touch here", "exit 3"'
SHOW = 'echo "$PLAIN ${TOKEN-none} $(echo *) $(cat /app/tiny/word)"'


def declare(
    work: ProjectHarness, commands: str, other: str = "", settings: str = "", runtime: str = ""
) -> None:
    text = MANIFEST.replace("COMMANDS", commands).replace("OTHER", other)
    text = text.replace("SETTINGS", settings).replace("RUNTIME", runtime)
    work.variables["TOKEN_VALUE"] = "hush hush hush"
    work.write({"trainctl.yaml": text, "src/hello.txt": "", "weights/word": "weights\n"})


def enter(work: ProjectHarness, *words: str, code: int | None = 0) -> str:
    return work.run("ssh", "job.sft", *words, code=code).stdout


def start(work: ProjectHarness) -> None:
    """Start the run, and wait for its first command."""
    work.run("apply", "--auto-approve")
    assert wait_for(lambda: "here" in enter(work, "--", "ls", code=None))


def has_ended(work: ProjectHarness) -> bool:
    return bool(work.json("status", "job.sft")["ended_at"])


def proxied_page(work: ProjectHarness) -> str:
    """The response of a server that is started in the run, through a forwarded port."""
    here, there = free_port(), free_port()
    serve = f"python3 -m http.server --bind 127.0.0.1 {there} >served 2>&1 </dev/null &"
    enter(work, "--", serve)
    with work.start("proxy", "job.sft", f"{here}:{there}") as proxy:
        assert proxy.stdout is not None
        assert f"http://127.0.0.1:{here}" in proxy.stdout.readline()
        page = wait_for(lambda: _get(here))
        proxy.send_signal(signal.SIGINT)
        assert proxy.wait(60) == 0
    return page


def _get(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}") as response:
            return str(response.read(), "utf-8")
    except OSError:
        return ""


def files_by_ssh_config(work: ProjectHarness, config: Path) -> str:
    """The files of the run, listed by ssh with the printed configuration."""
    blocks = work.run("ssh", "--config").stdout
    config.write_text(blocks + config.read_text())
    directory = blocks.splitlines()[0].rpartition(": ")[2]
    words = ["ssh", "-F", str(config), "-o", "BatchMode=yes", "trainctl-sft", "ls", directory]
    done = subprocess.run(words, env=work.environment, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_a_run_on_a_host_is_entered_live_and_ended(fresh: ProjectHarness, tmp_path: Path) -> None:
    """Its mounts and variables, secrets only on request; exit codes and arguments as they are; then its directory."""
    require_sshd()
    user = SshUser(tmp_path / "user")
    fresh.variables.update(user.environment)
    with sshds(tmp_path, user, 1) as (host,):
        user.known_hosts.write_text(host.known)
        clusters = f"clusters: {{lab: {{provider: ssh, hosts: [{host.settings}]}}}}"
        declare(fresh, UNTIL_END, clusters)
        start(fresh)

        assert enter(fresh, "--", SHOW) == "plain none hello.txt here weights\n"
        with_secrets = enter(fresh, "--with-secrets", "--", SHOW)
        assert with_secrets == "plain hush hush hush hello.txt here weights\n"
        exact = enter(fresh, "--", "printf", "<%s>", "a  b", "--help", "$HOME")
        assert exact == "<a  b><--help><$HOME>"
        assert enter(fresh, "--", "exit 7", code=7) == ""
        assert "hello.txt" in proxied_page(fresh)
        assert "hello.txt" in files_by_ssh_config(fresh, tmp_path / "user/.ssh/config")

        enter(fresh, "--", "touch end")
        wait_for(lambda: has_ended(fresh))
        listed = enter(fresh, "--", "ls; echo ${TOKEN-none}")
        refused = fresh.run("ssh", "job.sft", "--with-secrets", "--", "ls", code=1)
    assert listed.split() == ["end", "hello.txt", "here", "served", "none"]
    assert "the secrets of an ended run are not stored" in refused.stderr


def on_failure(minutes: float) -> str:
    return f"interactive_session: {{trigger: on_failure, timeout_minutes: {minutes}}}"


def test_a_failed_run_keeps_its_place(fresh: ProjectHarness) -> None:
    """It is entered, extended, and fails when it is stopped or its time is over."""
    declare(fresh, FAIL, settings=on_failure(10))
    fresh.run("apply", "--auto-approve")
    wait_for(lambda: fresh.json("status", "job.sft")["session"])
    extended = fresh.run("session", "extend", "job.sft", "--minutes", "1")
    status = fresh.run("status", "job.sft").stdout
    shown = enter(fresh, "--", "cat /app/tiny/word; echo *")
    held = fresh.json("status", "job.sft")
    fresh.run("stop", "job.sft")
    stopped = fresh.json("status", "job.sft")
    declare(fresh, FAIL, settings=on_failure(0.02))
    fresh.run("apply", "--auto-approve")
    fresh.run("run", "job.sft", "--auto-approve")
    wait_for(lambda: has_ended(fresh))
    expired = fresh.json("status", "job.sft")

    assert "keeps its place until" in extended.stdout
    assert "commands failed with exit code 3; keeps its place until" in status
    assert shown == "weights\nhello.txt here\n"
    assert (held["status"], held["session"]["exit_code"]) == ("TRAINING_JOB_RUNNING", 3)
    validate(held, schema("status"))
    for ended in (stopped, expired):
        assert (ended["status"], ended["session"]) == ("TRAINING_JOB_FAILED", None)
        assert ended["ranks"][0]["exit_code"] == 3


@pytest.mark.parametrize("fails", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_container_is_entered(fresh: ProjectHarness, engine: EngineHarness, fails: bool) -> None:
    """As root, in its working directory, with its mounts. A failed one is kept until its time is over."""
    fresh.variables |= engine.variables
    image = f'image: {{base_image: "{engine.small}"}}'
    session = f"\n    {on_failure(0.5)}" if fails else ""
    commands = FAIL if fails else UNTIL_END
    declare(fresh, commands, settings=image + session, runtime=f"engine: {engine.name}")
    start(fresh)

    if fails:
        wait_for(lambda: fresh.json("status", "job.sft")["session"])
    assert enter(fresh, "--", SHOW) == "plain none hello.txt here weights\n"
    if not fails:
        assert enter(fresh, "--", "pwd; exit 5", code=5) == "/b10/workspace\n"
        if engine.name != "docker":
            with_secrets = enter(fresh, "--with-secrets", "--", SHOW)
            assert with_secrets.startswith("plain hush hush hush")
        enter(fresh, "--", "touch end", code=None)  # the container may be gone before it has ended
    wait_for(lambda: has_ended(fresh), 120)
    assert fresh.json("status", "job.sft")["ranks"][0]["exit_code"] == (3 if fails else 0)
