"""The mirror on a host of a cluster: it fetches from the source itself, and the other hosts from it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.machines.sshd import Sshd, SshUser, require_sshd, sshd
from tests.support.network.ssh_recorder import files_containing, ssh_recorder
from tests.support.node_program.nodes import python38, wait_for
from tests.support.projects.project import ProjectHarness
from tests.support.projects.weights_project import small_disk
from tests.support.servers.certificate_authority import authority
from tests.support.servers.hub import HttpFault, Hub, serve
from tests.support.servers.web_server import WebServer, serve_web
from tests.support.storage.mirrors import stored
from tests.support.storage.weights_data import noise
from trainctl.base.lease import is_process_dead

CHUNK = 16 * 2**20
LARGE = noise(CHUNK + 5000)
MODEL = ("apply", "--auto-approve", "--target", "weights.model")
TOKEN = "hf_" + "t" * 30
MANIFEST = """\
project: {name: demo}
clusters: {lab: {provider: ssh, hosts: HOSTS}}
weights: {model: {source: "SOURCE"}}
jobs:
  sft:
    weights: [model]
    compute: {node_count: NODES}
    runtime: {start_commands: ["cd $TRAINCTL_WEIGHTS_MODEL && sha256sum *"]}
"""


@dataclass
class Lab:
    """Two hosts, what is upstream, and the project that has them."""

    project: ProjectHarness
    hosts: list[Sshd]
    hub: Hub
    web: WebServer

    def write(self, source: str, nodes: int = 1, python: str | None = None) -> None:
        """The manifest; ``python`` is that of the first host."""
        hosts = [host.settings for host in self.hosts]
        hosts[0] |= {"python": python} if python else {}
        text = MANIFEST.replace("HOSTS", json.dumps(hosts)).replace("NODES", str(nodes))
        self.project.write({"trainctl.yaml": text.replace("SOURCE", source)})

    @property
    def mirror(self) -> Path:
        """The default place of the mirror on the first host."""
        return self.hosts[0].home / ".local/share/trainctl/mirror"


@pytest.fixture
def lab(tmp_path: Path, fresh: ProjectHarness) -> Iterator[Lab]:
    """Two hosts with nothing on them."""
    require_sshd()
    user = SshUser(tmp_path / "user")
    trusted = {"SSL_CERT_FILE": str(authority().certificates)}
    with ExitStack() as stack:
        hub = stack.enter_context(serve())
        stack.enter_context(serve(hub))
        web = stack.enter_context(serve_web(authority().server))
        hosts = []
        for n in range(2):
            place = tmp_path / f"gpu-{n}"
            place.mkdir()
            heard = ssh_recorder(place)
            address = f"127.0.0.{n + 2}"
            item = sshd(place, user, f"ForceCommand {heard}", address=address, variables=trusted)
            hosts.append(stack.enter_context(item))
        user.known_hosts.write_text("".join(host.known for host in hosts))
        fresh.variables |= {**user.environment, **trusted, "HF_ENDPOINT": hub.url}
        yield Lab(fresh, hosts, hub, web)


@pytest.mark.long
def test_the_first_host_downloads_a_web_file_once_for_all_hosts(lab: Lab) -> None:
    """With the oldest Python; the operator has no mirror. After a destroy the mirror alone is left, until a collection."""
    lab.web.put("/model.bin", LARGE)
    lab.write(f"{lab.web.url}/model.bin", 2, python38())

    plan = lab.project.json("plan")
    lab.project.run("apply", "--auto-approve", "--wait")
    status = lab.project.json("status", "job.sft")
    text = lab.project.run("status", "job.sft").stdout

    assert {row["path"] for row in plan["deliveries"]} == {"mirror-to-node"}
    assert "lab/gpu-0 serves the mirror" in plan["deliveries"][1]["path_reason"]
    assert text.count("(mirror-to-node)") == 2
    assert lab.web.asked.count("GET /model.bin") == 1
    assert status["status"] == "TRAINING_JOB_COMPLETED"
    assert lab.project.actions() == {}
    assert not lab.project.mirror.exists()
    assert sum(stored(lab.mirror).values()) == len(LARGE)

    destroyed = lab.project.run("destroy", "--auto-approve").stdout
    left = [path for path in lab.hosts[0].home.rglob("*") if path.is_file()]
    lab.project.run("mirror", "gc")
    assert f"node://lab{lab.mirror}" in destroyed
    assert left
    assert all(lab.mirror in path.parents for path in left)
    assert not stored(lab.mirror)
    assert not list(lab.mirror.glob("listings/*"))


def test_no_token_of_the_hub_reaches_a_host(lab: Lab) -> None:
    """The host downloads large files of a gated repository by presigned URLs; small ones go through the client."""
    lab.hub.token = TOKEN
    lab.hub.add("acme/tiny", {"model.safetensors": LARGE, "config.json": b'{"a": 1}'}, gated=True)
    lab.project.variables["HF_TOKEN"] = TOKEN
    lab.write("hf://acme/tiny", nodes=2)

    plan = lab.project.json("plan")
    lab.project.run("apply", "--auto-approve", "--wait")
    status = lab.project.json("status", "job.sft")

    downloads = [seen for seen in lab.hub.asked("model.safetensors") if seen.path.startswith("/cdn/")]  # fmt: skip
    assert plan["weights"][0]["bytes_through_client"] == len(b'{"a": 1}')
    assert status["status"] == "TRAINING_JOB_COMPLETED"
    (mirrored,) = status["mirrored"]
    (entry,) = lab.project.json("history", "weights.model")["entries"]
    assert (mirrored["weights"], mirrored["bytes"]) == ("weights.model", len(LARGE) + 8)
    assert mirrored["bytes_through_client"] == entry["mirrored"]["bytes_through_client"] == 8
    assert ", 8 B via the client" in lab.project.run("history").stdout
    assert ["Authorization" in seen.headers for seen in downloads] == [False]
    assert sum(stored(lab.mirror).values()) == len(LARGE) + 8
    first = lab.hosts[0].home.parent
    assert first / "heard" in files_containing(first, "hf://acme/tiny")
    assert [path for host in lab.hosts for path in files_containing(host.home.parent, TOKEN)] == []


@pytest.mark.long
def test_files_of_this_machine_go_through_the_client(lab: Lab) -> None:
    """They arrive verified, and can be repaired."""
    lab.project.write({"weights/model.bin": LARGE, "weights/config.json": "{}"})
    lab.write("file:./weights")

    plan = lab.project.json("plan")
    lab.project.run(*MODEL)
    (row,) = lab.project.json("mirror", "list")["sources"]
    blob = max(lab.mirror.glob("blobs/sha256/*/*"), key=lambda path: path.stat().st_size)
    data = blob.read_bytes()
    blob.write_bytes(data[:-5] + b"wrong")
    verified = lab.project.json("mirror", "verify", code=1)
    repaired = lab.project.json("mirror", "verify", "--repair", code=1)
    lab.project.run(*MODEL)

    assert plan["weights"][0]["bytes_through_client"] == len(LARGE) + 2
    assert (row["bytes"], row["files"], row["projects"]) == (len(LARGE) + 2, 2, ["demo"])
    assert [finding["outcome"] for finding in verified["findings"]] == ["corrupt"]
    assert [finding["outcome"] for finding in repaired["findings"]] == ["removed"]
    assert blob.read_bytes() == data
    assert lab.project.json("mirror", "verify")["ok"]


@pytest.mark.long
@pytest.mark.parametrize("side", ["the command", "the host"])
def test_a_killed_download_is_resumed_by_the_next_apply(lab: Lab, side: str) -> None:
    """Nothing counts as complete; a killed command ends the process on the host, too."""
    lab.web.put("/model.bin", LARGE)
    lab.web.faults.append(HttpFault("silent", "/model.bin", at=CHUNK + 9))
    lab.write(f"{lab.web.url}/model.bin")
    process = lab.project.start(*MODEL)
    wait_for(lambda: list(lab.mirror.glob("partial/*/*")), 60)
    (lease,) = lab.mirror.glob("leases/*.json")
    holder = str(json.loads(lease.read_bytes())["holder"])
    if side == "the command":
        process.kill()
    else:
        os.kill(int(holder.split("-")[1]), signal.SIGKILL)
    errors = process.communicate()[1]

    wait_for(lambda: is_process_dead(holder), 60)
    assert list(lab.mirror.glob("listings/*")) == []
    (planned,) = lab.project.json("plan", "--target", "weights.model")["weights"]
    unfinished = lab.project.json("mirror", "list")["bytes_unfinished"]
    lab.web.seen.clear()
    lab.project.run(*MODEL)

    asked = [seen.headers.get("Range") for seen in lab.web.seen if seen.path == "/model.bin"]
    assert (planned["bytes_mirrored"], planned["bytes_upstream"]) == (CHUNK, len(LARGE) - CHUNK)
    assert unfinished == CHUNK
    assert side == "the command" or "lab/gpu-0" in errors
    assert [value for value in asked if value][-1] == f"bytes={CHUNK}-"
    assert lab.project.json("mirror", "verify")["findings"] == []


def test_a_disk_of_a_host_without_space_is_named_before_anything_is_downloaded(
    lab: Lab, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "small", "60m") as small:
        lab.web.put("/model.bin", LARGE)
        lab.write(f"{lab.web.url}/model.bin")
        manifest = lab.project.directory / "trainctl.yaml"
        manifest.write_text(f'mirror: {{url: "node://lab{small}/m"}}\n{manifest.read_text()}')
        refused = lab.project.run(*MODEL, code=None).stderr

    assert f"the mirror node://lab{small}/m: it needs 83.9 MB, and" in refused
    assert "[disk-full]" in refused
    assert "GET /model.bin" not in lab.web.asked
