"""Hosts without private addresses: weights go from one to the other over TLS, and nobody in between learns or changes anything."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.machines.hosts import FakeHost, HostLab, host_lab
from tests.support.machines.word_project import WORD, word_project
from tests.support.network import cleartext_sniffer, impostor_server
from tests.support.network.ssh_recorder import files_containing
from tests.support.projects.project import ProjectHarness
from tests.support.tiers import one_day_in
from trainctl.resources.mirror.node_server import new_certificate

ASKED = "Authorization: Bearer"
PORTS = range(40000, 40010)


@contextmanager
def project(lab: HostLab, top: Path) -> Iterator[ProjectHarness]:
    """A job on all hosts but those that are somebody else's, the mirror on the first."""
    with word_project(lab, top, [host for host in lab.hosts if host.name != "gpu-9"]) as made:
        yield made


@contextmanager
def listened(lab: HostLab) -> Iterator[dict[str, int]]:
    """What crosses the hosts' cables in the clear, filled in at the end of the block."""
    seen: dict[str, int] = {}
    with subprocess.Popen(
        [*lab.prefix, sys.executable, cleartext_sniffer.__file__, WORD, ASKED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield seen
        seen |= json.loads(process.communicate("\n")[0])


def ended(made: ProjectHarness) -> tuple[str, set[str]]:
    """The run's status, and the ways that its weights took."""
    status = made.json("status", "job.sft")
    return status["status"], {row["path"] for row in status["deliveries"]}


@one_day_in(8)
@pytest.mark.parametrize(("network", "tls"), [("203.0.113", True), ("10.83.17", False)])
def test_what_the_world_can_reach_is_asked_over_tls(
    tmp_path: Path, network: str, tls: bool
) -> None:
    """Three hosts, one of which has the mirror: with addresses that aren't private the plan says TLS, and neither a token nor a
    byte of the weights is seen on the wire; with private ones both are. No key is on a disk. The same ways, the same output."""
    with host_lab(tmp_path / "lab", 3, network=network) as lab, project(lab, tmp_path) as made:
        plan = made.json("plan")
        with listened(lab) as seen:
            made.run("apply", "--auto-approve", "--wait")

        reasons = {row["path"]: row["path_reason"] for row in plan["deliveries"]}
        assert set(reasons) == {"mirror-to-node", "peers"}
        assert ("2 nodes share one download, over TLS" in reasons["peers"]) is tls
        assert ended(made) == ("TRAINING_JOB_COMPLETED", {"mirror-to-node", "peers"})
        assert made.run("logs", "job.sft").stdout.count(WORD) == 3
        assert (seen[WORD] == 0, seen[ASKED] == 0) == (tls, tls)
        assert [
            path for host in lab.hosts for path in files_containing(host.home, "PRIVATE KEY")
        ] == []


@one_day_in(14)
def test_one_node_gets_it_from_the_mirrors_host_over_tls(tmp_path: Path) -> None:
    """The plan says so of a job whose only other node it is."""
    with host_lab(tmp_path / "lab", 2) as lab, project(lab, tmp_path) as made:
        plan = made.json("plan")
        made.run("apply", "--auto-approve", "--wait")

        reasons = [row["path_reason"] for row in plan["deliveries"]]
        assert reasons[1] == "lab/gpu-0 serves the mirror over TLS"
        assert ended(made) == ("TRAINING_JOB_COMPLETED", {"mirror-to-node"})


@contextmanager
def taken(lab: HostLab, theirs: FakeHost, seen_by: FakeHost) -> Iterator[Path]:
    """Somebody else's host has that host's address for one who asks, by ARP; what they are told is in the file.

    The host in whose place they are gives its servers one of a few ports, so that they can be at all of these.
    """
    thief = lab.host(name="gpu-9")
    theirs.do("sysctl", "-qw", f"net.ipv4.ip_local_port_range={PORTS.start} {PORTS.stop - 1}")
    for quiet in ("arp_ignore=1", "arp_announce=2"):  # nobody else is to be misled
        thief.do("sysctl", "-qw", f"net.ipv4.conf.all.{quiet}")
    thief.do("ip", "addr", "add", f"{theirs.address}/32", "dev", "lo")
    certificate = new_certificate()
    thief.do("tee", "/run/pem", given=f"{certificate.certificate}{certificate.key}".encode())
    source = Path(impostor_server.__file__).read_bytes()
    thief.do("tee", "/run/impostor.py", given=source)
    words = ["/usr/bin/python3", "/run/impostor.py", "/run/pem", theirs.address, *map(str, PORTS)]
    log = lab.place / "told"
    with log.open("wb") as out, thief.start(*words, out=out) as process:
        while not log.stat().st_size:
            assert process.poll() is None
        seen_by.do("ip", "neigh", "replace", theirs.address, "lladdr", thief.mac, "dev", "eth0")
        yield log
        seen_by.do("ip", "neigh", "del", theirs.address, "dev", "eth0")
        process.kill()


def told(log: Path) -> tuple[int, str]:
    """How many times hands were shaken with them, and what they were told then."""
    heard = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    last = {one["port"]: one for one in heard}.values()
    return sum(one["hands"] for one in last), "".join(one["told"] for one in last)


@one_day_in(10)
def test_who_is_in_between_and_the_mirror_gets_no_token(tmp_path: Path) -> None:
    """The run isn't deployed, the error says whose certificate it isn't; without them the next apply goes through."""
    with host_lab(tmp_path / "lab", 2) as lab, project(lab, tmp_path) as made:
        mirror, node = lab.hosts
        made.run("apply", "--auto-approve", "--target", "weights.tiny")
        with taken(lab, mirror, node) as log:
            failed = made.run("apply", "--auto-approve", code=None)
            heard = told(log)
        made.run("apply", "--auto-approve", "--wait")

        assert failed.returncode == 12
        assert f"{mirror.address} port 400" in failed.stderr
        assert "shows another certificate" in failed.stderr
        assert heard[0] > 0
        assert heard[1] == ""
        assert ended(made)[0] == "TRAINING_JOB_COMPLETED"


@one_day_in(10)
def test_who_is_in_a_peers_place_is_left_out(tmp_path: Path) -> None:
    """All have their weights, from the mirror where need be; apply says whose place somebody has, and they were told nothing."""
    with host_lab(tmp_path / "lab", 3) as lab, project(lab, tmp_path) as made:
        made.run("apply", "--auto-approve", "--target", "weights.tiny")
        with taken(lab, lab.hosts[1], lab.hosts[2]) as log:
            done = made.run("apply", "--auto-approve", "--wait")
            heard = told(log)

        assert "job.sft: skipped lab/gpu-1: " in done.stderr
        assert heard[0] > 0
        assert heard[1] == ""
        assert ended(made)[0] == "TRAINING_JOB_COMPLETED"
