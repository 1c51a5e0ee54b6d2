"""Machines by a Terraform module: whole commands with Terraform's engine, and machines that are sshds of this computer."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.sshd import require_sshd
from tests.support.machines.terraform import EXAMPLE, LOOPBACK, write_terraform
from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness

pytestmark = pytest.mark.integration

MANIFEST = """
project: {{name: machines}}
state: {{url: "file://{state}", encryption: {{keys: [{{id: k1, secret: passphrase}}]}}}}
secrets: {{passphrase: {{from: env, name: PASSPHRASE}}, token: {{from: env, name: TOKEN}}}}
clusters:
  gpu:
    provider: terraform
    module: ./infra/loopback
    nodes: {nodes}
    variables: {{directory: "{place}", machine_type: "{machine_type}"}}
{more}
"""
JOB = "jobs: {hello: {code: ./src, runtime: {start_commands: [python3 hello.py]}}}\n"
INPUTS = "\n".join(
    f'variable "{name}" {{ type = string }}' for name in ("name", "key", "public_key", "user_data")
)
TOKEN = "token-0123456789"


@pytest.fixture
def machines(fresh: ProjectHarness, tmp_path: Path) -> Iterator[ProjectHarness]:
    """The example, whose module the trust file allows."""
    require_sshd()
    write_terraform(tmp_path / "bin")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    fresh.variables |= {"PATH": path, "PASSPHRASE": "correct horse battery", "TOKEN": TOKEN}
    shutil.copytree(EXAMPLE, fresh.directory, dirs_exist_ok=True)
    fresh.trust(policies='[[terraform]]\nmodules = ["./infra/*"]\n')
    declare(fresh)
    yield fresh
    for machine in place(fresh).glob("*"):
        subprocess.run(["sh", LOOPBACK / "stop.sh"], env={"PLACE": str(machine)}, check=True)


def place(project: ProjectHarness) -> Path:
    return project.directory.parent / "machines"


def state(project: ProjectHarness) -> Path:
    return project.directory.parent / "state"


def records(project: ProjectHarness) -> list[Path]:
    return [*state(project).glob("nodes/*/*.json")]


def declare(
    project: ProjectHarness, nodes: int = 1, machine_type: str = "small", more: str = ""
) -> None:
    text = MANIFEST.format(
        state=state(project),
        place=place(project),
        nodes=nodes,
        machine_type=machine_type,
        more=more,
    )
    project.write({"trainctl.yaml": text})


def module(project: ProjectHarness, text: str) -> None:
    """Replace the module by one with this text after its inputs."""
    project.write({"infra/loopback/main.tf": f"{INPUTS}\n{text}\n"})
    text = (project.directory / "trainctl.yaml").read_text()
    lines = [line for line in text.splitlines() if "variables:" not in line]
    project.write({"trainctl.yaml": "\n".join(lines)})


def running(project: ProjectHarness) -> list[str]:
    """The keys of the machines that run."""
    return [path.parent.name for path in place(project).glob("*/pid")]


def kill_machine(project: ProjectHarness, key: str) -> None:
    pid = (place(project) / key / "pid").read_text()
    os.kill(int(pid), signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{pid.strip()}/cmdline").exists(), 10)


def test_a_machine_is_planned_created_lost_replaced_and_destroyed_by_a_colleague(
    machines: ProjectHarness,
) -> None:
    """The state is encrypted and found by who has it; nothing is left, and nothing of it is on a disk in clear."""
    declare(machines, more=JOB)
    machines.run("plan", "--out", "p.bin")
    machines.run("apply", "--wait", "p.bin")
    assert machines.run("logs", "hello").stdout == "rank 0 of 1\n"
    [first] = running(machines)
    assert {path.name for path in records(machines)} == {"node.json", "state.json"}
    clear = subprocess.run(
        ["grep", "-rl", "terraform_data.*instances", machines.directory.parent], capture_output=True
    )
    assert clear.stdout == b""

    kill_machine(machines, first)
    plan = machines.json("plan")
    assert [drift["address"] for drift in plan["resource_drift"]] == ["cluster.gpu"]
    machines.run("apply", "--auto-approve", "--wait")
    [second] = running(machines)

    declare(machines, machine_type="large", more=JOB)
    plan = machines.run("plan").stdout
    assert "variables.machine_type" in plan
    assert "# gpu-0 by terraform 1.15" in plan
    machines.run("apply", "--auto-approve", "--wait")
    assert running(machines) not in ([first], [second])

    for name in ("data", "cache"):
        shutil.rmtree(machines.directory.parent / name)
    machines.run("destroy", "--auto-approve")
    assert running(machines) == []
    assert records(machines) == []


def test_a_module_runs_only_with_trust_and_its_plan_only_as_reviewed(
    machines: ProjectHarness,
) -> None:
    """A changed script of the module makes a saved plan stale; an untrusted plan starts no program."""
    machines.trust()
    refused = machines.run("plan", code=13)
    assert "[untrusted-module]" in refused.stderr
    marker = machines.directory.parent / "ran"
    wrapped = machines.directory.parent / "bin" / "tofu"
    wrapped.write_text(f"#!/bin/sh\ntouch {marker}\n")
    wrapped.chmod(0o755)
    machines.run("plan", "--untrusted")
    assert not marker.exists()
    wrapped.unlink()

    machines.trust(policies='[[terraform]]\nmodules = ["./infra/*"]\n')
    machines.run("plan", "--out", "p.bin")
    digest = machines.json("plan")["plan_digest"]
    with (machines.directory / "infra/loopback/start.sh").open("a") as script:
        script.write("# changed\n")
    stale = machines.run("apply", "p.bin", code=12)

    assert "has changed since the plan was made" in stale.stderr
    assert machines.json("plan")["plan_digest"] != digest
    assert running(machines) == []


def test_a_secret_goes_to_the_module_and_nowhere_else(machines: ProjectHarness) -> None:
    """Its program gets the value in its environment; a module that would keep it is refused by the program."""
    seen = machines.directory.parent / "seen"
    token = 'variable "token" {\n  type      = string\n  ephemeral = true\n}\n'
    output = 'output "node" { value = { address = "127.0.0.9", user = "u", host_key = "ssh-ed25519 AAAAC3Nz" } }'
    script = f"""resource "terraform_data" "m" {{
      provisioner "local-exec" {{
        command     = "printf %s \\"$T\\" | sha256sum >{seen}"
        environment = {{ T = var.token }}
      }}
    }}"""
    declare(machines, more="    secrets: {token: {secret: token}}\n    boot_timeout: 0s")
    module(machines, token + script + "\n" + output)
    machines.run("plan", "--out", "p.bin")
    machines.run("apply", "p.bin", code=12)
    assert (
        seen.read_text().split()[0]
        == subprocess.run(
            ["sh", "-c", f"printf %s {TOKEN} | sha256sum"], capture_output=True, text=True
        ).stdout.split()[0]
    )
    found = subprocess.run(
        ["grep", "-rl", TOKEN, machines.directory.parent], capture_output=True, text=True
    )
    assert found.stdout == ""

    module(machines, token + 'resource "terraform_data" "m" { input = var.token }\n' + output)
    assert "phemeral" in machines.run("plan", "--replace", "cluster.gpu", code=1).stderr
    module(machines, token + script + "\n" + output)
    machines.run("destroy", "--auto-approve")


ONE = 'resource "terraform_data" "one" { input = var.key }\n'
NODE = 'output "node" {{ value = {} }}'
FAILS = """resource "terraform_data" "two" {
  depends_on = [terraform_data.one]
  provisioner "local-exec" { command = "COMMAND" }
}
"""


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (FAILS.replace("COMMAND", "echo quota exceeded >&2; exit 3"), "exit status 3"),
        (
            FAILS.replace("COMMAND", "head -c 10000000 /dev/zero | tr '\\\\0' x; exit 4"),
            "exit status 4",
        ),
        ('variable "forgotten" { type = string }\n', "forgotten"),
        (NODE.format('{ user = "u" }'), "address is missing"),
        (NODE.format('{ address = sensitive("10.0.0.1"), user = "u" }'), "sensitive"),
    ],
    ids=["fails-half-way", "prints-10-MB", "asks", "no-address", "secret-address"],
)
def test_what_a_bad_module_made_is_named_and_destroyed(
    machines: ProjectHarness, text: str, error: str
) -> None:
    """The error is the program's own; what was made before it stays in the state, until it is destroyed."""
    output = "" if "output" in text else NODE.format('{ address = "10.0.0.1", user = "u" }')
    module(machines, ONE + text + output)

    failed = machines.run("apply", "--auto-approve", code=None)

    assert failed.returncode in (1, 12)
    assert error in failed.stderr
    assert len(failed.stderr) < 20_000
    machines.run("destroy", "--auto-approve")
    assert records(machines) == []


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_apply_or_destroy_leaves_one_machine_for_each_node_or_none(
    machines: ProjectHarness, seed: int
) -> None:
    """The program is killed as well in every second case, which modules survive that find what they made by its key."""
    moments = random.Random(seed)
    declare(machines, nodes=2)
    for command, count in (("apply", 2), ("destroy", 0)):
        with machines.start(command, "--auto-approve") as process:
            try:
                process.wait(moments.uniform(0.5, 6))
            except subprocess.TimeoutExpired:
                process.kill()
        if seed % 2:
            kill_programs(machines)
        machines.run(command, "--auto-approve")

        assert len(running(machines)) == count
    assert records(machines) == []


def kill_programs(project: ProjectHarness) -> None:
    """Kill the programs that a killed command has left."""
    program = str(project.directory.parent / "bin" / "terraform").encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if program in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
        except OSError:
            continue
