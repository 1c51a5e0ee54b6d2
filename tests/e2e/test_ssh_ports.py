"""Hosts behind firewalls that allow a range of ports."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.machines.hosts import FakeHost, client_project, host_lab

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
clusters: {lab: {provider: ssh, ports: 29000-29019, hosts: HOSTS}}
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


def dropped_packets(host: FakeHost) -> int:
    table = json.loads(host.do("nft", "-j", "list", "table", "inet", "wall"))["nftables"]
    rules = [entry["rule"]["expr"] for entry in table if "rule" in entry]
    return sum(part["counter"]["packets"] for rule in rules for part in rule if "counter" in part)


@pytest.mark.long
def test_weights_and_ranks_pass_a_firewall_that_allows_a_range(tmp_path: Path) -> None:
    """From a mirror on the first host, from each other, and to rank 0: no packet comes to another port."""
    if shutil.which("nft") is None:
        pytest.skip("needs nft (Debian: nftables)")
    with host_lab(tmp_path / "lab", 3) as lab, client_project(lab, tmp_path) as demo:
        for host in lab.hosts:
            host.do("nft", "-f", "-", given=RULES.encode())
        text = MANIFEST.replace("HOSTS", json.dumps([host.settings for host in lab.hosts]))
        demo.write({"trainctl.yaml": text, "src/meet.py": MEET})
        demo.write({"weights/word": "hello\n", "weights/more": b"x" * 3_000_000})
        demo.run("apply", "--auto-approve", "--wait")
        status = demo.json("status", "job.all")
        lines = demo.run("logs", "job.all").stdout.splitlines()
        peers = {row["node"] for row in status["deliveries"] if row["path"] == "peers"}

        assert status["status"] == "TRAINING_JOB_COMPLETED", status
        assert {int(line.rsplit(" ", 1)[1]) for line in lines} < set(PORTS)
        assert len(lines) == 3
        assert peers == {"lab/gpu-1", "lab/gpu-2"}
        assert [dropped_packets(host) for host in lab.hosts] == [0, 0, 0]
        with pytest.raises(AssertionError):
            lab.hosts[1].do("timeout", "1", "bash", "-c", f": </dev/tcp/{lab.hosts[0].address}/{PORTS[-1] + 1}")  # fmt: skip
        assert dropped_packets(lab.hosts[0]) > 0
