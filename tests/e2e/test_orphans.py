"""Machines of a module that no manifest names: what they cost, found in the records next to the state, ended."""

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


@pytest.mark.integration
def test_orphans_are_what_states_of_nodes_have_and_no_manifest_names(
    fresh: ProjectHarness, machines: Path, tmp_path: Path
) -> None:
    """Also when neither the manifest nor the state has a cluster of the provider any more."""
    write_terraform(tmp_path / "bin")
    fresh.variables["PATH"] = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    shutil.copytree(EXAMPLE / "infra", fresh.directory / "infra")
    fresh.write({"trainctl.yaml": MANIFEST.format(machines=machines)})
    fresh.trust(policies='[[terraform]]\nmodules = ["./infra/*"]\n')
    shown = fresh.run("apply", "--auto-approve").stdout
    assert "billed until someone destroys it" in shown
    assert fresh.json("nodes", "--orphans") == {"machines": []}

    fresh.run("nodes", "forget", "gpu/gpu-0", "--auto-approve")
    fresh.write({"trainctl.yaml": "project: {name: rented}\n"})
    fresh.run("apply", "--auto-approve")
    [orphan] = fresh.json("nodes", "--orphans")["machines"]
    assert [orphan[name] for name in ("provider", "cluster", "node", "of_this_state")] == [
        "terraform", "gpu", "gpu-0", True,
    ]  # fmt: skip
    assert orphan["price_per_hour"] == 0.25

    fresh.run("nodes", "reap", "--auto-approve")
    assert fresh.json("nodes", "--orphans") == {"machines": []}
    assert not list(machines.glob("*/pid"))
