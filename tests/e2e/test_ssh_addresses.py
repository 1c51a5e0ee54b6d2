"""Hosts whose address for ssh is not the one by which they reach each other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.machines.hosts import host_lab
from tests.support.machines.word_project import WORD, word_project

WALL = """\
table inet wall {
    chain input {
        type filter hook input priority 0; policy accept;
        iifname "eth0" ip saddr != 10.77.5.1 drop
    }
}
"""


@pytest.mark.long
def test_hosts_reach_each_other_by_another_network(tmp_path: Path) -> None:
    """No packet passes between them on the network of ssh. Weights take the planned paths, and none through the operator's machine."""
    if shutil.which("nft") is None:
        pytest.skip("needs nft (Debian: nftables)")
    with (
        host_lab(tmp_path / "lab", 3, network="10.77.5") as lab,
        word_project(lab, tmp_path, lab.hosts) as project,
    ):
        lab.wire("10.88.5")
        for host in lab.hosts:
            host.do("nft", "-f", "-", given=WALL.encode())
        planned = project.json("plan")["deliveries"]
        applied = project.run("apply", "--auto-approve", "--wait")
        status = project.json("status", "job.sft")

        assert [row["path"] for row in planned] == ["mirror-to-node", "peers", "peers"]
        assert status["status"] == "TRAINING_JOB_COMPLETED"
        assert project.run("logs", "job.sft").stdout.count(WORD) == 3
        assert {row["path"] for row in status["deliveries"]} == {"mirror-to-node", "peers"}
        assert "peer excluded" not in applied.stderr
        assert "skipped" not in applied.stderr
        assert [row["bytes_by_tier"]["node"] for row in status["deliveries"][1:]] == [0, 0]


@pytest.mark.long
def test_hosts_without_another_address_than_loopback(tmp_path: Path) -> None:
    """As with a jump through the host itself. A plan in which they would serve each other is an error."""
    with host_lab(tmp_path / "lab", 2, network="10.77.5") as lab:
        lab.user.configure(*[line for host in lab.hosts for line in host.tunnel])
        for host in lab.hosts:
            host.do("ip", "addr", "flush", "dev", "eth0")
        with word_project(lab, tmp_path / "there", lab.hosts) as project:
            diagnostics = project.json("plan", code=1)["diagnostics"]
        with word_project(lab, tmp_path / "here", lab.hosts, here=True) as project:
            rows = project.json("plan")["deliveries"]

    (error,) = [entry for entry in diagnostics if entry["severity"] == "error"]
    assert error["code"] == "private-address-missing"
    assert "lab/gpu-1 cannot download its weights from lab/gpu-0: " in error["summary"]
    assert "SSH connects to 127.0.0.1" in error["summary"]
    assert [row["path"] for row in rows] == ["through-client"] * 2
    assert all("127.0.0.1" in row["path_reason"] for row in rows)
