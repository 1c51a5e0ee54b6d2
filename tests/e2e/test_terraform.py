"""Machines by a Terraform module: whole commands with Terraform's engine, and machines that are sshds of this computer."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.machines.sshd import require_sshd
from tests.support.machines.terraform import EXAMPLE, LOOPBACK, write_terraform
from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness
from tests.support.servers.buckets import BucketServer, moto
from trainctl.base.checkpoints.s3 import S3Client, element_text, elements

pytestmark = pytest.mark.integration

MANIFEST = """
project: {{name: machines}}
state: {{url: "file://{top}/state", encryption: {{keys: [{{id: k1, secret: passphrase}}]}}}}
secrets: {{passphrase: {{from: env, name: PASSPHRASE}}, token: {{from: env, name: TOKEN}}}}
clusters:
  gpu:
    provider: terraform
    module: ./infra/loopback
    {settings}
jobs: {jobs}
"""
JOB = "{hello: {code: ./src, runtime: {start_commands: [python3 hello.py]}}}"
INPUTS = "".join(
    f'variable "{name}" {{\n  type = string\n}}\n'
    for name in ("name", "key", "public_key", "user_data")
)
TOKEN = "token-0123456789"
TRUST = '[[terraform]]\nmodules = ["./infra/*"]\n'


@pytest.fixture
def machines(fresh: ProjectHarness) -> Iterator[ProjectHarness]:
    """The example, whose module the trust file allows."""
    require_sshd()
    top = fresh.directory.parent
    write_terraform(top / "bin")
    path = f"{top / 'bin'}:{os.environ['PATH']}"
    fresh.variables |= {"PATH": path, "PASSPHRASE": "correct horse battery", "TOKEN": TOKEN}
    shutil.copytree(EXAMPLE, fresh.directory, dirs_exist_ok=True)
    fresh.trust(policies=TRUST)
    yield fresh
    for machine in (top / "machines").glob("*"):
        subprocess.run(["sh", LOOPBACK / "stop.sh"], env={"PLACE": str(machine)}, check=True)


def declare(
    project: ProjectHarness, machine_type: str = "", nodes: int = 1, jobs: str = "{}"
) -> None:
    """Declare machines of the example's module."""
    more = f", machine_type: {machine_type}" if machine_type else ""
    place = project.directory.parent / "machines"
    settings = f"nodes: {nodes}\n    variables: {{directory: {place}{more}}}"
    write(project, settings, jobs)


def write(project: ProjectHarness, settings: str, jobs: str = "{}") -> None:
    top = project.directory.parent
    project.write({"trainctl.yaml": MANIFEST.format(top=top, settings=settings, jobs=jobs)})


def records(project: ProjectHarness) -> set[str]:
    return {path.name for path in (project.directory.parent / "state").glob("nodes/*/*.json")}


def running(project: ProjectHarness) -> list[Path]:
    return [path.parent for path in (project.directory.parent / "machines").glob("*/pid")]


def containing(project: ProjectHarness, text: str) -> str:
    """The files of the project, its state and its user that contain a text."""
    words = ["grep", "-rl", text, str(project.directory.parent)]
    return subprocess.run(words, capture_output=True, text=True).stdout


def test_a_plan_says_what_machines_cost_if_no_one_returns(machines: ProjectHarness) -> None:
    """By the planned output of the module, before a machine exists; a policy forbids the worst."""
    module = machines.directory / "infra/loopback/main.tf"
    text = module.read_text()
    declare(machines)
    for end, cost in {
        '"guest"': "0.19 USD (1 machine ends at most 45m after the last run)",
        "": "billed until someone destroys it, 0.25 USD per hour",
    }.items():
        module.write_text(text.replace("ends           = []", f"ends = [{end}]"))
        assert f"cluster.gpu: {cost}\n" in machines.run("plan").stdout
    machines.trust(policies=f"{TRUST}[[policy]]\nrequire_end = true\n")
    assert "its machines are billed until" in machines.run("plan", code=13).stderr


def test_orphans_are_what_states_of_nodes_have_and_no_manifest_names(
    machines: ProjectHarness,
) -> None:
    """Also when neither the manifest nor the state has a cluster of the provider any more."""
    declare(machines)
    machines.run("apply", "--auto-approve")
    assert "destroys it, 0.25 USD per hour" in machines.run("plan").stdout
    machines.run("nodes", "forget", "gpu/gpu-0", "--auto-approve")
    manifest = machines.directory / "trainctl.yaml"
    manifest.write_text(manifest.read_text().partition("clusters:")[0])
    machines.run("apply", "--auto-approve")
    [orphan] = machines.json("nodes", "--orphans")["machines"]
    assert (orphan["node"], orphan["of_this_state"], orphan["price_per_hour"]) == ("gpu-0", True, 0.25)  # fmt: skip
    machines.run("nodes", "reap", "--auto-approve")
    assert running(machines) == []
    assert machines.json("nodes", "--orphans") == {"machines": []}


def test_a_machine_keeps_its_key_when_the_state_begins(machines: ProjectHarness) -> None:
    """A command that is killed just then has planned the machine that the next one creates."""
    declare(machines)
    machines.run("plan")
    manifest = machines.directory / "trainctl.yaml"
    text = manifest.read_text()
    manifest.write_text(text.partition("clusters:")[0])
    machines.run("apply", "--auto-approve")
    manifest.write_text(text)
    machines.run("plan")
    data = machines.directory.parent / "data" / "trainctl" / "terraform"
    assert [len([*data.glob(pattern)]) for pattern in ("nodes/*", "*.key")] == [1, 1]


def test_machines_that_cannot_be_read_do_not_stop_a_plan(machines: ProjectHarness) -> None:
    """They are kept as they are, for example while the platform doesn't respond."""
    declare(machines)
    machines.run("apply", "--auto-approve")
    program = machines.directory.parent / "bin" / "terraform"
    text = program.read_text()
    program.write_text("#!/bin/sh\nexit 1\n")
    assert "gpu-0 is unreachable" in machines.run("plan").stderr
    assert "terraform init failed" in machines.run("plan", "--destroy").stderr
    program.write_text(text)
    machines.run("destroy", "--auto-approve")


def test_a_machine_is_planned_created_lost_replaced_and_destroyed_by_a_colleague(
    machines: ProjectHarness,
) -> None:
    """The state is encrypted, and who has it can destroy the machines; nothing is left."""
    declare(machines, jobs=JOB)
    machines.run("plan", "--out", "p.bin")
    machines.run("apply", "--wait", "p.bin")
    assert machines.run("logs", "hello").stdout == "rank 0 of 1\n"
    assert records(machines) == {"node.json", "state.json"}
    assert containing(machines, '"instances"') == ""

    [first] = running(machines)
    process = (first / "pid").read_text().strip()
    os.kill(int(process), signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{process}/cmdline").exists(), 10)
    drift = machines.json("plan")["resource_drift"]
    assert [each["address"] for each in drift] == ["cluster.gpu"]
    machines.run("apply", "--auto-approve", "--wait")
    second = running(machines)
    assert second not in ([], [first])

    declare(machines, "large", jobs=JOB)
    plan = machines.run("plan").stdout
    assert "variables.machine_type" in plan
    assert "# gpu-0 by terraform 1.15" in plan
    machines.run("apply", "--auto-approve", "--wait")
    assert running(machines) not in ([], second)

    assert [*(machines.directory.parent / "data").glob("trainctl/terraform/*.key")]
    for name in ("data", "cache"):
        shutil.rmtree(machines.directory.parent / name)
    machines.run("destroy", "--auto-approve")
    assert (running(machines), records(machines)) == ([], set())
    assert not [*(machines.directory.parent / "data").glob("trainctl/terraform/*.key")]


@pytest.mark.skipif(not shutil.which("terraform"), reason="terraform is not installed")
def test_an_installed_program_creates_a_machine_and_destroys_it(machines: ProjectHarness) -> None:
    """Not only its engine."""
    (machines.directory.parent / "bin" / "terraform").unlink()
    machines.variables |= {"TF_CLI_CONFIG_FILE": "/dev/null"}
    declare(machines)
    machines.run("plan", "--out", "p.bin")
    machines.run("apply", "p.bin")
    assert len(running(machines)) == 1
    assert "No changes" in machines.run("plan").stdout
    machines.run("destroy", "--auto-approve")
    assert (running(machines), records(machines)) == ([], set())


def test_a_module_runs_only_with_trust_and_its_plan_only_as_reviewed(
    machines: ProjectHarness,
) -> None:
    """A changed script of the module makes a saved plan stale; an untrusted plan starts no program."""
    declare(machines)
    machines.trust()
    assert "[untrusted-module]" in machines.run("plan", code=13).stderr
    marker, tofu = (machines.directory.parent / name for name in ("ran", "bin/tofu"))
    tofu.write_text(f"#!/bin/sh\ntouch {marker}\n")
    tofu.chmod(0o755)
    machines.run("plan", "--untrusted")
    assert not marker.exists()
    tofu.unlink()

    machines.trust(policies=TRUST)
    machines.run("plan", "--out", "p.bin")
    digest = machines.json("plan")["plan_digest"]
    with (machines.directory / "infra/loopback/start.sh").open("a") as script:
        script.write("# changed\n")

    stale = machines.run("apply", "p.bin", code=12)
    assert "the module has changed since" in stale.stderr
    assert machines.json("plan")["plan_digest"] != digest
    assert running(machines) == []


ONE = 'resource "terraform_data" "one" {\n  input = var.key\n}\n'
HALF = """resource "terraform_data" "two" {
  depends_on = [terraform_data.one]
  provisioner "local-exec" { command = "COMMAND" }
}
"""
NODE = 'output "node" {{\n  value = {}\n}}\n'
ANY = NODE.format('{ address = "127.0.0.9", user = "u", host_key = "ssh-ed25519 AAAAC3Nz" }')


def test_a_secret_goes_to_the_module_and_nowhere_else(machines: ProjectHarness) -> None:
    """Its program gets the value in its environment; a module that would keep it is refused by the program."""
    seen = machines.directory.parent / "seen"
    token = 'variable "token" {\n  type      = string\n  ephemeral = true\n}\n'
    script = f"""resource "terraform_data" "m" {{
  provisioner "local-exec" {{
    command     = "printf %s $T | rev >{seen}"
    environment = {{ T = var.token }}
  }}
}}
"""
    write(machines, "secrets: {token: {secret: token}}\n    boot_timeout: 0s")
    machines.write({"infra/loopback/main.tf": INPUTS + token + script + ANY})
    machines.run("plan", "--out", "p.bin")
    machines.run("apply", "p.bin", code=12)  # nothing is at this address
    assert seen.read_text().strip()[::-1] == TOKEN
    assert containing(machines, TOKEN) == ""
    machines.run("destroy", "--auto-approve")

    keeps = ONE.replace("var.key", "var.token")
    machines.write({"infra/loopback/main.tf": INPUTS + token + keeps + ANY})
    assert "phemeral" in machines.run("plan", code=1).stderr


BACKEND = """terraform {{
  backend "s3" {{
    bucket                      = "{name}"
    key                         = "node.tfstate"
    region                      = "us-east-1"
    use_path_style              = true
    skip_credentials_validation = true
    skip_requesting_account_id  = true
    skip_metadata_api_check     = true
    endpoints                   = {{ s3 = "{endpoint}" }}
    use_lockfile                = true
  }}
}}
"""


def test_states_are_in_the_backend_that_a_module_declares(machines: ProjectHarness) -> None:
    """One workspace for each node, also if its module declares another later; nothing is left in the bucket."""
    with moto() as bucket:
        machines.variables |= {name.upper(): text for name, text in bucket.credential.items()}
        backend = BACKEND.format(name=bucket.name, endpoint=bucket.endpoint)
        machines.write({"infra/loopback/backend.tf": backend})
        declare(machines, nodes=2)
        machines.run("plan", "--out", "p.bin")
        machines.run("apply", "p.bin")
        assert (len(running(machines)), records(machines)) == (2, {"node.json"})
        assert len(stored(bucket)) == 2
        assert "No changes" in machines.run("plan").stdout

        (machines.directory / "infra/loopback/backend.tf").unlink()
        assert "No changes" in machines.run("plan").stdout
        shutil.rmtree(machines.directory.parent / "data")
        machines.run("destroy", "--auto-approve")
        assert (running(machines), records(machines), stored(bucket)) == ([], set(), set())


def stored(bucket: BucketServer) -> set[str]:
    client = S3Client(bucket.name, bucket.endpoint, bucket.credential)
    body = client.request("GET", query=[("list-type", "2")]).body
    return {element_text(each, "Key") for each in elements(body, "Contents")}


def test_an_input_that_a_module_does_not_have_is_named_with_its_line(
    machines: ProjectHarness,
) -> None:
    """The program's own words, from their beginning."""
    write(machines, "variables: {direktory: /tmp}")
    error = machines.run("plan", code=1).stderr
    assert "|   ^\n  Error: " in error
    assert '"direktory": "${var.direktory}"' in error
    assert max(map(len, error.splitlines())) < 120


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (HALF.replace("COMMAND", "exit 3") + ANY, "exit status 3"),
        (HALF.replace("COMMAND", "head -c 10000000 /dev/zero; exit 4") + ANY, "exit status 4"),
        ('variable "forgotten" {\n  type = string\n}\n' + ANY, "forgotten"),
        (NODE.format('{ user = "u" }'), "is invalid: $: required"),
        (NODE.format('{ address = sensitive("10.0.0.1"), user = "u" }'), "sensitive"),
    ],
    ids=["fails-half-way", "prints-10-MB", "asks", "no-address", "secret-address"],
)
def test_what_a_bad_module_made_is_named_and_destroyed(
    machines: ProjectHarness, text: str, error: str
) -> None:
    """The error is the program's own; what was made before it stays in the state, until it is destroyed."""
    write(machines, "nodes: 1")
    machines.write({"infra/loopback/main.tf": INPUTS + ONE + text})

    failed = machines.run("apply", "--auto-approve", code=None)

    assert failed.returncode in (1, 12)
    assert error in failed.stderr
    assert len(failed.stderr) < 20_000
    machines.run("destroy", "--auto-approve")
    assert records(machines) == set()


def kill(project: ProjectHarness, text: str) -> None:
    """Kill the processes of a project's commands whose command line has a text."""
    top = str(project.directory.parent).encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if text.encode() in command and top in command + (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


def run_killed(project: ProjectHarness, command: str, moments: random.Random, seed: int) -> None:
    """Start a command and kill it, sometimes with the program."""
    with project.start(command, "--auto-approve") as process:
        try:
            process.wait(moments.uniform(0.5, 6))
        except subprocess.TimeoutExpired:
            process.kill()
    if seed % 3 == 1:
        kill(project, str(project.directory.parent / "bin" / "terraform"))


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 100))]
)
def test_a_killed_apply_or_destroy_leaves_one_machine_for_each_node_or_none(
    machines: ProjectHarness, seed: int
) -> None:
    """Also if the program is killed: this module finds what it made by its key."""
    moments, top = random.Random(seed), machines.directory.parent
    declare(machines, nodes=2)
    for command, count in (("apply", 2), ("destroy", 0)):
        run_killed(machines, command, moments, seed)
        machines.run(command, "--auto-approve")

        assert len(running(machines)) == len([*(top / "machines").glob("*")]) == count
    assert records(machines) == set()
    data = top / "data" / "trainctl" / "terraform"
    assert [*data.glob("nodes/*"), *data.glob("*.key")] == []


@pytest.mark.parametrize(
    "seed", [3, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 33))]
)
def test_a_destroy_after_a_killed_apply_leaves_nothing(machines: ProjectHarness, seed: int) -> None:
    """It waits for a program that still runs; one that was killed itself may have begun what it doesn't know."""
    declare(machines, nodes=2)
    run_killed(machines, "apply", random.Random(seed), seed if seed % 3 != 1 else 0)
    machines.run("destroy", "--auto-approve")
    assert [*records(machines), *(machines.directory.parent / "machines").glob("*")] == []
