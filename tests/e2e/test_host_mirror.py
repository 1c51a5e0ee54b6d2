"""The mirror on a host of a cluster: it fetches from the source itself, and the other hosts from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.authority import authority
from tests.support.hub import Hub, serve
from tests.support.project import Project
from tests.support.sshd import Sshd, User, require_sshd, sshd
from tests.support.web import Web, served
from tests.support.weights_data import noise

CHUNK = 16 * 2**20
LARGE = noise(2 * CHUNK + 5)
TOKEN = "hf_" + "t" * 30
MANIFEST = """\
project: {name: demo}
clusters: {lab: {provider: ssh, hosts: HOSTS}}
weights:
THEM
jobs:
  sft:
    weights: [model]
    compute: {node_count: NODES}
    runtime: {start_commands: ["cd $TRAINCTL_WEIGHTS_MODEL && sha256sum *"]}
"""


@dataclass
class Lab:
    """Two hosts, what is upstream, and the project that has them."""

    project: Project
    hosts: list[Sshd]
    hub: Hub
    web: Web

    def write(self, source: str, more: str = "", nodes: int = 1) -> None:
        """The manifest."""
        named = json.dumps([host.settings for host in self.hosts])
        text = MANIFEST.replace("HOSTS", named).replace("NODES", str(nodes))
        weights = f'  model: {{source: "{source}"{more}}}'
        self.project.write({"trainctl.yaml": text.replace("THEM", weights)})

    @property
    def mirror(self) -> Path:
        """The default place of the mirror on the first host."""
        return self.hosts[0].home / ".local/share/trainctl/mirror"


@pytest.fixture
def lab(tmp_path: Path, fresh: Project) -> Iterator[Lab]:
    """Two hosts with nothing on them."""
    require_sshd()
    user = User(tmp_path / "user")
    trusted = {"SSL_CERT_FILE": str(authority().certificates)}
    with ExitStack() as stack:
        hub = stack.enter_context(serve())
        stack.enter_context(serve(hub))
        web = stack.enter_context(served(authority().server))
        hosts = [
            stack.enter_context(
                sshd(tmp_path / f"gpu-{n}", user, address=f"127.0.0.{n + 2}", variables=trusted)
            )
            for n in range(2)
        ]
        user.known_hosts.write_text("".join(host.known for host in hosts))
        fresh.variables |= {**user.environment, **trusted, "HF_ENDPOINT": hub.url}
        yield Lab(fresh, hosts, hub, web)


def test_a_web_file_goes_from_its_server_to_the_host_and_from_there_to_the_others(lab: Lab) -> None:
    """One request for the file, by the host; both ranks have it; this machine has no mirror; a second plan changes nothing."""
    lab.web.put("/model.bin", LARGE)
    lab.write(f"{lab.web.url}/model.bin", nodes=2)

    lab.project.run("apply", "--auto-approve", "--wait")
    again = lab.project.run("plan", "--detailed-exitcode")
    status = lab.project.json("status", "job.sft")

    assert lab.web.asked.count("GET /model.bin") == 1
    assert status["status"] == "TRAINING_JOB_COMPLETED"
    assert "No changes" in again.stdout
    assert not lab.project.mirror.exists()
    assert [path.stat().st_size for path in lab.mirror.glob("blobs/sha256/*/*")] == [len(LARGE)]
