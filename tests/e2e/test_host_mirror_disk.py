"""A mirror on a host whose disk has no room left while weights arrive: what is said, what is left, and what comes after."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.machines.sshd import SshUser, require_sshd, sshd
from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness
from tests.support.projects.weights_project import remount, small_disk
from tests.support.servers.hub import HttpFault, Hub, serve
from tests.support.storage.mirrors import assert_sound
from tests.support.storage.weights_data import noise
from tests.support.tiers import one_day_in

CHUNK = 16 * 2**20
FILES = {
    "model.safetensors": noise(2 * CHUNK + 5),
    "config.json": b"{}",
    "tokenizer.json": noise(70_000),
}
LARGE = "/model.safetensors"
MANIFEST = """\
project: {name: demo}
clusters: {lab: {provider: ssh, hosts: [HOST]}}
weights: {model: {source: "hf://acme/model"}}
"""
APPLY = ("apply", "--auto-approve")


@dataclass
class Lab:
    """A host, whose mirror is at ``mirror``, and a hub."""

    project: ProjectHarness
    hub: Hub
    mirror: Path

    def assert_refused(self, said: str, why: str) -> None:
        """The host and the place are named, what to do is said, and nothing is there that isn't whole."""
        assert f"weights.model: node lab/gpu-0: the disk of the mirror {self.mirror} {why}" in said
        assert "The next apply resumes the transfer." in said
        assert_sound(self.mirror)

    def assert_recovers(self) -> None:
        """One apply has everything there."""
        self.project.run(*APPLY)
        (listing,) = self.mirror.glob("listings/*.json")
        found = {one["path"]: one["sha256"] for one in json.loads(listing.read_bytes())["files"]}
        assert found == {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}
        assert_sound(self.mirror)


@pytest.fixture
def lab(tmp_path: Path, fresh: ProjectHarness) -> Iterator[Lab]:
    """With a public repository, which the host fetches by itself."""
    require_sshd()
    user = SshUser(tmp_path / "user")
    with ExitStack() as stack:
        hub = stack.enter_context(serve())
        host = stack.enter_context(sshd(tmp_path / "gpu-0", user))
        user.known_hosts.write_text(host.known)
        fresh.variables |= {**user.environment, "HF_ENDPOINT": hub.url}
        fresh.write({"trainctl.yaml": MANIFEST.replace("HOST", json.dumps(host.settings))})
        hub.add("acme/model", FILES)
        yield Lab(fresh, hub, host.home / ".local/share/trainctl/mirror")


def fill(place: Path) -> Path:
    """A file that takes what is left on the disk."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as out, suppress(OSError):
        while out.write(bytes(2**20)):
            pass
    return filler


@one_day_in(10)
@pytest.mark.parametrize("at", [0, CHUNK // 2, CHUNK - 1])
def test_a_disk_that_fills_up_while_a_file_arrives(lab: Lab, at: int) -> None:
    """Before the first byte of every part of it, amid them, and before the last one: with room again the next apply brings the rest."""
    held = HttpFault("hold", LARGE, times=9, at=at)
    lab.hub.faults.append(held)
    with small_disk(lab.mirror, "200m") as place:
        with lab.project.start(*APPLY) as process:
            wait_for(lambda: any(one.path.endswith(LARGE) for one in lab.hub.seen))
            filler = fill(place)
            held.released.set()
            said = process.communicate()[1]
        filler.unlink()

        assert process.returncode == 12
        lab.assert_refused(said, "is full (")
        assert list(lab.mirror.glob("listings/*")) == []
        lab.hub.seen.clear()
        lab.assert_recovers()
        ranges = [one.headers.get("Range") for one in lab.hub.asked(LARGE)]
        assert len(ranges) == len(set(ranges))  # nothing twice


@one_day_in(14)
def test_a_disk_without_room_for_another_file(lab: Lab) -> None:
    """With every number of files that it can have, from hardly any on, until it all fits: wherever it stops nothing is torn, and
    what is there is used."""
    refused = 0
    with small_disk(lab.mirror, "200m", "nr_inodes=3") as place:
        for most in range(3, 60, 3):
            remount(place, "size=200m", f"nr_inodes={most}")
            done = lab.project.run(*APPLY, code=None)
            if done.returncode == 0:
                break
            refused += 1
            lab.assert_refused(done.stderr, "has no free inodes")
        remount(place, "size=200m", "nr_inodes=1000")
        lab.assert_recovers()

    assert refused >= 4
