"""Hosts behind firewalls that let only some ports through: everything that others connect to is there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.machines.hosts import FakeHost, HostLab, client_project, host_lab
from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness
from tests.support.tiers import one_day_in

PORTS = range(29000, 29020)
RULES = f"""\
table inet wall {{
    chain input {{
        type filter hook input priority 0; policy drop;
        ct state established,related accept
        iif lo accept
        tcp dport {{ 22, {PORTS[0]}-{PORTS[-1]} }} accept
        meta l4proto icmp accept
        ip protocol tcp counter
    }}
}}
"""
MANIFEST = """\
project: {name: demo}
MIRROR
clusters: {lab: {provider: ssh, ports: RANGE, hosts: HOSTS}}
jobs:
  all:
    code: ./src
    compute: {node_count: 3}
    weights: [{source: "file:./weights", mount_location: /app/models/tiny}]
    runtime: {start_commands: [python3 meet.py]}
"""
MEET = """\
import os, socket, time
rank, port = int(os.environ["BT_NODE_RANK"]), int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(("", port)) as listener:
        for _ in range(2):
            listener.accept()[0].close()
else:
    while True:
        try:
            socket.create_connection((os.environ["MASTER_ADDR"], port)).close()
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
print("met at", port)
"""
TAKE = """\
import socket, sys, time
kept = [socket.create_server(("", port)) for port in range(*map(int, sys.argv[1:]))]
print("taken", flush=True)
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostLab]:
    """Three hosts, each behind a firewall of its own."""
    if shutil.which("nft") is None:
        pytest.skip("needs nft (Debian: nftables)")
    with host_lab(tmp_path_factory.mktemp("lab"), 3) as made:
        for host in made.hosts:
            host.do("nft", "-f", "-", given=RULES.encode())
        yield made


@pytest.fixture
def demo(lab: HostLab, tmp_path: Path) -> Iterator[ProjectHarness]:
    """A project of an operator who may log in to the hosts."""
    with client_project(lab, tmp_path) as made:
        made.write({"src/meet.py": MEET, "weights/word": "hello\n", "weights/more": b"x" * 3_000_000})  # fmt: skip
        yield made
        made.run("destroy", "--auto-approve", "--stop-running")


def declare(made: ProjectHarness, lab: HostLab, ports: str, mirror: str = "") -> None:
    """The job on all hosts, with these ports."""
    named = json.dumps([host.settings for host in lab.hosts])
    text = MANIFEST.replace("MIRROR", mirror).replace("RANGE", ports).replace("HOSTS", named)
    made.write({"trainctl.yaml": text})


def turned_away(host: FakeHost) -> int:
    """How many packets came to other ports."""
    said = json.loads(host.do("nft", "-j", "list", "table", "inet", "wall"))["nftables"]
    rules = [one["rule"]["expr"] for one in said if "rule" in one]
    return sum(part["counter"]["packets"] for rule in rules for part in rule if "counter" in part)


@one_day_in(10)
def test_weights_and_ranks_pass_the_firewall(demo: ProjectHarness, lab: HostLab) -> None:
    """From a mirror on the first host, from each other, and to rank 0: nobody tried any other port, and the wall stands."""
    declare(demo, lab, f"{PORTS[0]}-{PORTS[-1]}")
    demo.run("apply", "--auto-approve", "--wait")
    status = demo.json("status", "job.all")
    lines = demo.run("logs", "job.all").stdout.splitlines()

    assert status["status"] == "TRAINING_JOB_COMPLETED", status
    assert {int(line.rsplit(" ", 1)[1]) for line in lines} < set(PORTS)
    assert len(lines) == 3
    assert {one["node"] for one in status["deliveries"] if one["path"] == "peers"} == {"lab/gpu-1", "lab/gpu-2"}  # fmt: skip
    assert [turned_away(host) for host in lab.hosts] == [0, 0, 0]
    with pytest.raises(AssertionError):
        lab.hosts[1].do("timeout", "1", "bash", "-c", f": </dev/tcp/{lab.hosts[0].address}/{PORTS[-1] + 1}")  # fmt: skip
    assert turned_away(lab.hosts[0]) > 0


@one_day_in(14)
def test_taken_ports_are_named_with_their_host(
    demo: ProjectHarness, lab: HostLab, tmp_path: Path
) -> None:
    """Something else listens at all of them on one host: it has no rank and no mirror, and each time it is said why."""
    ports = f"{PORTS[0]}-{PORTS[1]}"
    said = f"none of the ports {ports} is free on {lab.hosts[0].name}"
    log = tmp_path / "taken"
    with ExitStack() as stack:
        out = stack.enter_context(log.open("wb"))
        words = ("python3", "-c", TAKE, str(PORTS[0]), str(PORTS[2]))
        process = stack.enter_context(lab.hosts[0].start(*words, out=out))
        stack.callback(process.kill)
        wait_for(lambda: "taken" in log.read_text())
        declare(demo, lab, ports)
        unmirrored = demo.run("apply", "--auto-approve", code=None)
        demo.run("destroy", "--auto-approve")
        declare(demo, lab, ports, f'mirror: {{url: "file://{demo.mirror}"}}')
        alone = demo.run("apply", "--auto-approve", "--wait", code=None)
        status = demo.json("status", "job.all")

    assert f"node lab/gpu-0: {said}" in unmirrored.stderr + unmirrored.stdout
    assert f"node lab/gpu-0: {said}" in alone.stderr
    assert "[no-free-port]" in alone.stderr
    assert status["status"] == "TRAINING_JOB_DEPLOY_FAILED"
    assert said in status["error"]
