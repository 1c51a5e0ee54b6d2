"""Machines of a module: what they cost if no one returns, and those that no manifest names."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.sshd import require_sshd
from tests.support.machines.terraform import EXAMPLE, LOOPBACK, write_terraform
from tests.support.projects.project import ProjectHarness

pytestmark = pytest.mark.integration

MANIFEST = """
project: {{name: rented}}
clusters:
  gpu:
    provider: terraform
    module: ./infra/loopback
    variables: {{directory: "{machines}"}}
    idle_timeout: 20m
"""


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Path]:
    """Directory of machines, which are ended."""
    require_sshd()
    yield tmp_path / "machines"
    for machine in (tmp_path / "machines").glob("*"):
        subprocess.run(["sh", LOOPBACK / "stop.sh"], env={"PLACE": str(machine)}, check=True)


@pytest.fixture
def rented(fresh: ProjectHarness, machines: Path, tmp_path: Path) -> ProjectHarness:
    """A project with a machine of the module for loopback."""
    write_terraform(tmp_path / "bin")
    fresh.variables["PATH"] = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    shutil.copytree(EXAMPLE / "infra", fresh.directory / "infra")
    fresh.write({"trainctl.yaml": MANIFEST.format(machines=machines)})
    fresh.trust(policies='[[terraform]]\nmodules = ["./infra/*"]\n')
    return fresh


def test_a_plan_says_what_a_module_costs_if_no_one_returns(rented: ProjectHarness) -> None:
    """By the planned output of the module, before a machine exists; a policy forbids the worst."""
    module = rented.directory / "infra/loopback/main.tf"
    text = module.read_text()
    rented.trust(
        policies='[[terraform]]\nmodules = ["./infra/*"]\n[[policy]]\nrequire_end = true\n'
    )
    forbidden = rented.run("plan", code=13).stdout
    assert "cluster.gpu: billed until someone destroys it, 0.25 USD per hour\n" in forbidden
    for end, more, cost in (
        ("guest", "", "0.15 USD (1 machine ends at most 35m after the last run)"),
        (
            "provider",
            "    max_lifetime: 24h\n",
            "6.00 USD (1 machine ends at most 1d after creation)",
        ),
    ):
        variable = 'variable "max_lifetime" { default = null }\n'
        module.write_text(variable + text.replace("ends           = []", f'ends = ["{end}"]'))
        manifest = rented.directory / "trainctl.yaml"
        manifest.write_text(manifest.read_text() + more)
        assert f"cluster.gpu: {cost}\n" in rented.run("plan").stdout


def test_orphans_are_what_states_of_nodes_have_and_no_manifest_names(
    rented: ProjectHarness, machines: Path
) -> None:
    """Also when neither the manifest nor the state has a cluster of the provider any more."""
    worst = "cluster.gpu: billed until someone destroys it, 0.25 USD per hour\n"
    for command in (("apply", "--auto-approve"), ("plan",)):
        assert worst in rented.run(*command).stdout
    assert rented.json("nodes", "--orphans") == {"machines": []}

    rented.run("nodes", "forget", "gpu/gpu-0", "--auto-approve")
    rented.write({"trainctl.yaml": "project: {name: rented}\n"})
    rented.run("apply", "--auto-approve")
    [orphan] = rented.json("nodes", "--orphans")["machines"]
    assert [orphan[name] for name in ("provider", "cluster", "node", "of_this_state")] == [
        "terraform", "gpu", "gpu-0", True,
    ]  # fmt: skip
    assert orphan["price_per_hour"] == 0.25

    rented.run("nodes", "reap", "--auto-approve")
    assert rented.json("nodes", "--orphans") == {"machines": []}
    assert not list(machines.glob("*/pid"))
