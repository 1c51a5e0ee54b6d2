"""The mirror on a host of a cluster: it fetches from the source itself, and the other hosts from it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.machines.sshd import Sshd, SshUser, require_sshd, sshd
from tests.support.network.ssh_recorder import files_containing, ssh_recorder
from tests.support.node_program.nodes import python38, wait_for
from tests.support.projects.project import ProjectHarness
from tests.support.servers.certificate_authority import authority
from tests.support.servers.hub import HttpFault, Hub, serve
from tests.support.servers.web_server import WebServer, serve_web
from tests.support.storage.mirrors import stored
from tests.support.storage.weights_data import noise
from tests.support.tiers import one_day_in
from trainctl.base.lease import is_process_dead

CHUNK = 16 * 2**20
LARGE = noise(2 * CHUNK + 5)
PARTED, PARTS = noise(4 * CHUNK + 5), 5
"""Large enough to come in parts."""
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

    project: ProjectHarness
    hosts: list[Sshd]
    hub: Hub
    web: WebServer

    def write(self, source: str, more: str = "", nodes: int = 1, *, old: bool = False) -> None:
        """The manifest; ``old``: the first host has the oldest Python that hosts may have."""
        first, *others = [host.settings for host in self.hosts]
        oldest = {"python": found} if old and (found := python38()) else {}
        named = json.dumps([{**first, **oldest}, *others])
        text = MANIFEST.replace("HOSTS", named).replace("NODES", str(nodes))
        weights = f'  model: {{source: "{source}"{more}}}'
        self.project.write({"trainctl.yaml": text.replace("THEM", weights)})

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
            one = sshd(place, user, f"ForceCommand {heard}", address=address, variables=trusted)
            hosts.append(stack.enter_context(one))
        user.known_hosts.write_text("".join(host.known for host in hosts))
        fresh.variables |= {**user.environment, **trusted, "HF_ENDPOINT": hub.url}
        yield Lab(fresh, hosts, hub, web)


@one_day_in(7)
def test_a_web_file_goes_from_its_server_to_the_host_and_from_there_to_the_others(lab: Lab) -> None:
    """One request for each part of the file, by the host; both ranks have it; this machine has no mirror; a second plan changes nothing."""
    lab.web.put("/model.bin", PARTED)
    lab.write(f"{lab.web.url}/model.bin", nodes=2, old=True)

    plan = lab.project.json("plan")
    lab.project.run("apply", "--auto-approve", "--wait")
    again = lab.project.run("plan", "--detailed-exitcode")
    status = lab.project.json("status", "job.sft")
    told = lab.project.run("status", "job.sft").stdout

    assert {row["path"] for row in plan["deliveries"]} == {"mirror-to-node"}
    assert "lab/gpu-0 serves the mirror" in plan["deliveries"][1]["path_reason"]
    assert told.count("(mirror-to-node)") == 2
    assert lab.web.asked.count("GET /model.bin") == PARTS
    assert status["status"] == "TRAINING_JOB_COMPLETED"
    assert "No changes" in again.stdout
    assert not lab.project.mirror.exists()
    assert sum(stored(lab.mirror).values()) == len(PARTED)


@one_day_in(3)
def test_no_token_of_the_hub_reaches_a_host(lab: Lab) -> None:
    """A gated repository is mirrored on the host, the large file from its storage without a token; of what came to
    either host nothing holds the token: no word, no variable, no standard input, no file. As much as was planned went through
    the operator's machine, and the run and the history say so."""
    lab.hub.token = TOKEN
    lab.hub.add("acme/tiny", {"model.safetensors": PARTED, "config.json": b'{"a": 1}'}, gated=True)
    lab.project.variables["HF_TOKEN"] = TOKEN
    lab.write("hf://acme/tiny", nodes=2)

    plan = lab.project.json("plan")
    lab.project.run("apply", "--auto-approve", "--wait")
    status = lab.project.json("status", "job.sft")

    linked = [one for one in lab.hub.asked("model.safetensors") if one.path.startswith("/cdn/")]
    assert plan["weights"][0]["bytes_through_client"] == len(b'{"a": 1}')
    assert status["status"] == "TRAINING_JOB_COMPLETED"
    (mirrored,) = status["mirrored"]
    (entry,) = lab.project.json("history", "weights.model")["entries"]
    assert (mirrored["weights"], mirrored["bytes"]) == ("weights.model", len(PARTED) + 8)
    assert mirrored["bytes_through_client"] == entry["mirrored"]["bytes_through_client"] == 8
    assert ", 8 B via the client" in lab.project.run("status", "job.sft").stdout
    assert ", 8 B via the client" in lab.project.run("history").stdout
    assert len(linked) == len({one.headers.get("Range") for one in linked}) == PARTS
    assert "Authorization" not in linked[0].headers
    assert sum(stored(lab.mirror).values()) == len(PARTED) + 8
    assert lab.hosts[0].home.parent / "heard" in files_containing(
        lab.hosts[0].home.parent, "hf://acme/tiny"
    )
    assert [path for host in lab.hosts for path in files_containing(host.home.parent, TOKEN)] == []


@one_day_in(5)
def test_a_link_that_has_expired_is_made_anew(lab: Lab) -> None:
    """A stream breaks and the storage then refuses the link: the operator makes another, and what had arrived is kept."""
    lab.hub.token = TOKEN
    commit = lab.hub.add("acme/tiny", {"model.safetensors": LARGE}, private=True)
    path = f"/cdn/models/acme/tiny/{commit}/model.safetensors"
    lab.hub.faults += [HttpFault("cut", path, at=CHUNK + 9), HttpFault("status", path, status=403)]
    lab.project.variables["HF_TOKEN"] = TOKEN
    lab.write("hf://acme/tiny")

    lab.project.run("apply", "--auto-approve", "--target", "weights.model")

    ranges = [one.headers.get("Range") for one in lab.hub.seen if one.path == path]
    heads = [
        one for one in lab.hub.seen if "/resolve/" in one.path and one.path.endswith("tensors")
    ]
    assert ranges == [None, f"bytes={CHUNK + 9}-", f"bytes={CHUNK + 9}-"]
    assert len(heads) == 3  # whether there is one, for the plan; a link, and another


@one_day_in(10)
def test_a_hub_that_serves_large_files_itself_is_relayed_as_planned(lab: Lab) -> None:
    """Whoever opens it with a token opens all of it: the plan asks once where a large file is, and counts what goes through here; what is mirrored is not asked for."""
    lab.hub.token, lab.hub.cdn = TOKEN, None
    weights = {"model.safetensors": LARGE, "more.safetensors": noise(7, 1), "config.json": b"{}"}
    lab.hub.add("acme/tiny", weights, gated=True)
    lab.project.variables["HF_TOKEN"] = TOKEN
    lab.write("hf://acme/tiny")

    plan = lab.project.json("plan")
    heads = [one for one in lab.hub.seen if "/resolve/" in one.path and "Range" not in one.headers]
    lab.project.run("apply", "--auto-approve", "--wait")
    (mirrored,) = lab.project.json("status", "job.sft")["mirrored"]
    lab.hub.seen.clear()
    again = lab.project.json("plan")

    ok = sum(map(len, weights.values()))
    assert plan["weights"][0]["bytes_through_client"] == ok
    assert mirrored["bytes_through_client"] == ok
    assert len(heads) == 1
    assert again["weights"][0]["bytes_through_client"] == 0
    assert lab.hub.asked(".safetensors") == []


@one_day_in(7)
def test_files_of_this_machine_go_through_it(lab: Lab) -> None:
    """A directory here is counted as going through the operator, arrives verified, and can be repaired."""
    lab.project.write({"weights/model.bin": LARGE, "weights/config.json": "{}"})
    lab.write("file:./weights")

    plan = lab.project.json("plan")
    lab.project.run("apply", "--auto-approve", "--target", "weights.model")
    (row,) = lab.project.json("mirror", "list")["sources"]
    ok = lab.project.json("mirror", "verify")
    blob = max(lab.mirror.glob("blobs/sha256/*/*"), key=lambda path: path.stat().st_size)
    right = blob.read_bytes()
    blob.write_bytes(right[:-5] + b"wrong")
    wrong = lab.project.json("mirror", "verify", code=1)
    repaired = lab.project.json("mirror", "verify", "--repair", code=1)
    lab.project.run("apply", "--auto-approve", "--target", "weights.model")

    assert plan["weights"][0]["bytes_through_client"] == len(LARGE) + 2
    assert (row["bytes"], row["files"], row["projects"]) == (len(LARGE) + 2, 2, ["demo"])
    assert (ok["blobs"], ok["findings"]) == (2, [])
    assert [one["outcome"] for one in wrong["findings"]] == ["corrupt"]
    assert [one["outcome"] for one in repaired["findings"]] == ["removed"]
    assert blob.read_bytes() == right
    assert lab.project.json("mirror", "verify")["ok"]


@one_day_in(10)
def test_a_host_that_forwards_nothing_says_so(fresh: ProjectHarness, tmp_path: Path) -> None:
    """Files of this machine need the host's connection to go through; without it the error is that of the connection, once."""
    require_sshd()
    user = SshUser(tmp_path / "user")
    fresh.variables |= user.environment
    with sshd(tmp_path / "gpu-0", user, "AllowTcpForwarding no") as host:
        user.known_hosts.write_text(host.known)
        fresh.write({"weights/model.bin": b"x" * 1000})
        Lab(fresh, [host], Hub(), WebServer()).write("file:./weights")
        told = fresh.run("apply", "--auto-approve", "--target", "weights.model", code=1).stderr

    assert "error: weights.model: cannot forward a port to lab/gpu-0 [ssh-forwarding]" in told
    assert "AllowTcpForwarding yes" in told


@one_day_in(7)
def test_destroy_leaves_the_mirror_and_gc_empties_it(lab: Lab) -> None:
    """What a destroy leaves on the host is the mirror, which it names with its size; a collection then deletes all of it."""
    lab.web.put("/model.bin", LARGE)
    lab.write(f"{lab.web.url}/model.bin")
    lab.project.run("apply", "--auto-approve", "--wait")

    told = lab.project.run("destroy", "--auto-approve").stdout
    left = {path for path in lab.hosts[0].home.rglob("*") if path.is_file()}
    lab.project.run("mirror", "gc")

    assert f"node://lab{lab.mirror}" in told
    assert left
    assert all(lab.mirror in path.parents for path in left)
    assert not stored(lab.mirror)
    assert not list(lab.mirror.glob("listings/*"))


@one_day_in(7)
def test_a_host_that_does_not_answer_is_named(lab: Lab) -> None:
    """With the mirror's host away its plan is made with a warning, and what needs the mirror says which host that is."""
    lab.web.put("/model.bin", LARGE)
    lab.write(f"{lab.web.url}/model.bin")
    lab.project.run("apply", "--auto-approve", "--target", "weights.model")
    lab.hosts[0].process.terminate()
    lab.hosts[0].process.wait()

    plan = lab.project.json("plan")
    listed = lab.project.run("mirror", "list", code=1)

    summaries = [one["summary"] for one in plan["diagnostics"]]
    assert any("the mirror is unreachable" in one and "lab/gpu-0" in one for one in summaries)
    assert "lab/gpu-0" in listed.stderr


def writer(lab: Lab) -> str:
    """The process that copies into the mirror, once a chunk is there."""
    wait_for(lambda: list(lab.mirror.glob("partial/*/*")))
    (lease,) = lab.mirror.glob("leases/*.json")
    return str(json.loads(lease.read_bytes())["holder"])


@one_day_in(8)
@pytest.mark.parametrize("side", ["the command", "the host"])
def test_what_is_killed_is_resumed_where_the_host_was(lab: Lab, side: str) -> None:
    """Either side is killed amid a file; nothing that is there counts as whole, and the next apply asks for the rest only."""
    lab.web.put("/model.bin", LARGE)
    lab.web.faults.append(HttpFault("silent", "/model.bin", at=CHUNK + 9))
    lab.write(f"{lab.web.url}/model.bin")
    process = lab.project.start("apply", "--auto-approve", "--target", "weights.model")
    holder = writer(lab)
    if side == "the command":
        process.kill()
    else:
        os.kill(int(holder.split("-")[1]), signal.SIGKILL)
    told = process.communicate()[1]

    wait_for(lambda: is_process_dead(holder))
    early = list(lab.mirror.glob("listings/*"))
    (line,) = lab.project.json("plan", "--target", "weights.model")["weights"]
    unfinished = lab.project.json("mirror", "list")["bytes_unfinished"]
    lab.web.seen.clear()
    lab.project.run("apply", "--auto-approve", "--target", "weights.model")

    asked = [one.headers.get("Range") for one in lab.web.seen if one.path == "/model.bin"]
    assert early == []
    assert (line["bytes_mirrored"], line["bytes_upstream"]) == (CHUNK, len(LARGE) - CHUNK)
    assert unfinished == CHUNK
    assert side == "the command" or "lab/gpu-0" in told
    assert [one for one in asked if one][-1] == f"bytes={CHUNK}-"
    assert lab.project.json("mirror", "verify")["findings"] == []


@one_day_in(7)
def test_a_second_ctrl_c_ends_the_host_too(lab: Lab) -> None:
    """The command ends as interrupted and the program on the host with it; what had arrived is kept."""
    lab.web.put("/model.bin", LARGE)
    lab.web.faults.append(HttpFault("silent", "/model.bin", at=CHUNK + 9))
    lab.write(f"{lab.web.url}/model.bin")
    process = lab.project.start("apply", "--auto-approve", "--target", "weights.model")
    holder = writer(lab)
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    assert any("Finishing" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)

    assert process.returncode == 130
    wait_for(lambda: is_process_dead(holder))
    assert list(lab.mirror.glob("partial/*/*"))


@one_day_in(5)
def test_a_full_disk_of_the_host_is_said_before_anything_moves(lab: Lab, tmp_path: Path) -> None:
    """A directory on a disk that is too small: the error has the host, the place and what is free."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small disk")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "none", str(small)], check=True)
    try:
        lab.web.put("/model.bin", LARGE)
        lab.write(f"{lab.web.url}/model.bin")
        manifest = lab.project.directory / "trainctl.yaml"
        manifest.write_text(f'mirror: {{url: "node://lab{small}/m"}}\n{manifest.read_text()}')
        words = ("apply", "--auto-approve", "--target", "weights.model")
        told = lab.project.run(*words, code=None).stderr
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)

    assert f"the mirror node://lab{small}/m: it needs 101 MB, and" in told
    assert "[disk-full]" in told
    assert "GET /model.bin" not in lab.web.asked


@one_day_in(7)
def test_a_place_on_a_host_that_can_not_be_made_is_an_error_of_the_plan(lab: Lab) -> None:
    """Of the node's directory and of the mirror in it: nothing is begun, so nothing has to be destroyed."""
    lab.web.put("/model.bin", b"model")
    lab.write(f"{lab.web.url}/model.bin")
    manifest = lab.project.directory / "trainctl.yaml"
    declared = manifest.read_text().replace("[{", '[{"dir": "/etc/passwd/here", ', 1)
    manifest.write_text(declared)

    refused = lab.project.run("apply", "--auto-approve", code=1)

    why = "/etc/passwd is not a directory"
    assert (
        f"error: cluster.lab: cannot create node lab/gpu-0: {why} [node-failed]" in refused.stderr
    )
    assert (
        f"error: cannot use the mirror node://lab/etc/passwd/here/data/mirror: {why}"
        in refused.stderr
    )
    assert "nothing to destroy" in lab.project.run("destroy", "--auto-approve").stdout


@one_day_in(7)
def test_two_applies_at_once_fetch_a_file_once(lab: Lab) -> None:
    """Two states that want the same file at the same time: it is asked for once, and both have it."""
    lab.web.put("/model.bin", LARGE)
    lab.web.faults.append(HttpFault("silent", "/model.bin", at=CHUNK + 9))
    lab.write(f"{lab.web.url}/model.bin")
    state = (lab.project.directory.parent / "other").as_uri()
    words = ("apply", "--auto-approve", "--target", "weights.model")
    first = lab.project.start(*words)
    writer(lab)
    second = lab.project.start("--state", state, *words)
    wait_for(lambda: len(list(lab.mirror.glob("references/*/*.json"))) == 2)
    lab.web.closing.set()

    for process in (first, second):
        process.communicate(timeout=120)
    assert [process.returncode for process in (first, second)] == [0, 0]
    asked = [one for one in lab.web.asked if one == "GET /model.bin"]
    (row,) = lab.project.json("mirror", "list")["sources"]
    assert len(asked) == 2  # the one that fell silent, and the rest of it
    assert row["bytes"] == len(LARGE)
