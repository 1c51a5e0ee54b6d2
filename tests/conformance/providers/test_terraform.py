"""The terraform provider against the suites, with Terraform's engine and machines that are sshds of this computer."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.sshd import require_sshd
from tests.support.machines.terraform import LOOPBACK, write_terraform
from trainctl.base.objects import is_key
from trainctl.plugin_api.machines import ProjectAccess
from trainctl.plugin_api.provider import ClusterSettings, Node, ResourceStatus
from trainctl.store.objects import DirectoryObjects
from trainctl.testing.machines import KEY, MachinesConformance, PlatformFaults
from trainctl.testing.provider import ProviderConformance
from trainctl_ssh.keys import ensure_login_key
from trainctl_terraform import TerraformProvider
from trainctl_terraform.settings import TerraformNode

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory for all tests, with Terraform on PATH; its machines are ended."""
    require_sshd()
    place = tmp_path_factory.mktemp("terraform")
    write_terraform(place / "bin")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PATH", str(place / "bin"), prepend=":")
        monkeypatch.setenv("XDG_DATA_HOME", str(place / "data"))
        yield place
    for machine in (place / "machines").glob("*"):
        subprocess.run(["sh", LOOPBACK / "stop.sh"], env={"PLACE": str(machine)}, check=True)


@pytest.fixture
def provider(place: Path, tmp_path: Path) -> Iterator[TerraformProvider]:
    records = DirectoryObjects(tmp_path, is_key)
    with closing(TerraformProvider()) as provider:
        provider.set_project(
            ProjectAccess(place, lambda: records, "of {}".format, lambda source: None)
        )
        yield provider


@pytest.fixture
def cluster(place: Path) -> ClusterSettings:
    variables = {"directory": str(place / "machines")}
    return ClusterSettings("lab", {
        "module": str(LOOPBACK), "program": "terraform", "nodes": 2, "variables": variables,
    }, "lineage")  # fmt: skip


class Terraform:
    """The fixtures of this module, for suites."""

    @pytest.fixture
    def provider(self, provider: TerraformProvider) -> TerraformProvider:
        return provider

    @pytest.fixture
    def cluster(self, cluster: ClusterSettings) -> ClusterSettings:
        return cluster


class TestTerraformProvider(Terraform, ProviderConformance):
    """The suite for providers."""


class TestTerraformMachines(Terraform, MachinesConformance):
    """The suite for machines that are created."""

    @pytest.fixture
    def faults(self, place: Path) -> PlatformFaults:
        def lose(node: Node) -> None:
            machine = Path(node.root).parents[2]
            subprocess.run(["sh", LOOPBACK / "stop.sh"], env={"PLACE": str(machine)}, check=True)

        return PlatformFaults(lose)

    def test_a_machine_that_differs_from_its_module_is_planned_in_place(
        self, provider: TerraformProvider, cluster: ClusterSettings, name: str, tmp_path: Path
    ) -> None:
        """Here its state was edited; one that has not changed has no changes, also on another computer."""
        provider.create(cluster, name, KEY)

        def actions() -> list[Any]:
            [plan] = provider.plan_machines(cluster, {name: KEY}, [])
            return [change["actions"] for change in plan.changes]

        assert actions() == []
        [state] = tmp_path.glob("nodes/*/state.json")
        state.write_text(state.read_text().replace("/stop.sh", "/other.sh"))
        node = provider.find(cluster, KEY)
        assert node is not None
        assert provider.read(node) is ResourceStatus.PRESENT
        assert actions() == [["update"]]
        state.write_text(state.read_text().replace("/other.sh", "/stop.sh"))

    def test_a_repeated_deletion_deletes_files_that_a_killed_one_left(
        self, provider: TerraformProvider, place: Path
    ) -> None:
        """Those of this computer, though the records are deleted already."""
        data = place / "data" / "trainctl" / "terraform"
        record = TerraformNode(KEY, "lab", "lab-0", "", {})
        ensure_login_key(record.login_path)
        directory = data / "nodes" / record.id
        directory.mkdir(parents=True, exist_ok=True)

        provider.delete(Node("lab", "lab-0", key=KEY))

        assert (directory.exists(), record.login_path.exists()) == (False, False)
