"""Hosts that the operator comes to by one address and that reach each other by another, or by none: weights take the way there is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.hosts import HostLab, host_lab
from tests.support.machines.word_project import WORD, word_project
from tests.support.projects.project import ProjectHarness
from tests.support.tiers import one_day_in

OTHER = "10.88.5"
WALL = """\
table inet wall {
    chain input {
        type filter hook input priority 0; policy accept;
        iifname "eth0" ip saddr != OPERATOR drop
    }
}
"""


def tunnelled(lab: HostLab) -> None:
    """Have ssh end on every host's loopback, as it does through a jump on the host itself, cloudflared or a forwarded port."""
    lab.user.configure(*[line for host in lab.hosts for line in host.tunnel])


def planned(made: ProjectHarness) -> tuple[list[str], list[str], list[dict[str, Any]]]:
    """The ways, the reasons, and what forbids it."""
    plan = made.json("plan", code=None)
    rows = plan["deliveries"]
    wrong = [one for one in plan["diagnostics"] if one["severity"] == "error"]
    return [row["path"] for row in rows], [row["path_reason"] for row in rows], wrong


def check(made: ProjectHarness, count: int) -> None:
    """The job completes, with its weights on every host; nobody was left out."""
    done = made.run("apply", "--auto-approve", "--wait")
    status = made.json("status", "job.sft")

    assert status["status"] == "TRAINING_JOB_COMPLETED"
    assert made.run("logs", "job.sft").stdout.count(WORD) == count
    assert {row["path"] for row in status["deliveries"]} == {"mirror-to-node", "peers"}
    assert "peer excluded" not in done.stderr
    assert "skipped" not in done.stderr
    moved = {name: row["bytes_by_tier"][name] for row in status["deliveries"][1:] for name in row["bytes_by_tier"]}  # fmt: skip
    assert moved["node"] == 0


@one_day_in(14)
def test_ssh_that_ends_on_loopback(tmp_path: Path) -> None:
    """Nobody is sent to their own loopback: from the mirror and from each other hosts get it at their other addresses, as planned."""
    with (
        host_lab(tmp_path / "lab", 3, network="10.77.5") as lab,
        word_project(lab, tmp_path, lab.hosts) as made,
    ):
        tunnelled(lab)

        assert planned(made)[0] == ["mirror-to-node", "peers", "peers"]
        check(made, 3)


@one_day_in(14)
@pytest.mark.parametrize("network", ["10.77.5", "198.51.100"])
def test_hosts_that_reach_each_other_by_another_network(tmp_path: Path, network: str) -> None:
    """On the one by which the operator comes nothing passes between them, be it private or not; on the other one everything does."""
    if shutil.which("nft") is None:
        pytest.skip("needs nft (Debian: nftables)")
    with (
        host_lab(tmp_path / "lab", 3, network=network) as lab,
        word_project(lab, tmp_path, lab.hosts) as made,
    ):
        lab.wire(OTHER)
        for host in lab.hosts:
            host.do("nft", "-f", "-", given=WALL.replace("OPERATOR", f"{network}.1").encode())

        assert planned(made)[0] == ["mirror-to-node", "peers", "peers"]
        check(made, 3)


@one_day_in(14)
def test_hosts_that_reach_nobody(tmp_path: Path) -> None:
    """Where loopback is the only address of hosts no plan promises what they would have to give each other, and says what to do;
    what the operator's machine has comes through it.
    """
    with host_lab(tmp_path / "lab", 2, network="10.77.5") as lab:
        tunnelled(lab)
        for host in lab.hosts:
            host.do("ip", "addr", "flush", "dev", "eth0")
        with word_project(lab, tmp_path / "there", lab.hosts) as made:
            _, _, wrong = planned(made)
        with word_project(lab, tmp_path / "here", lab.hosts, here=True) as made:
            paths, reasons, _ = planned(made)
        with word_project(lab, tmp_path / "one", lab.hosts, 1, here=True) as made:
            made.run("apply", "--auto-approve", "--wait")
            status = made.json("status", "job.sft")

    assert [one["code"] for one in wrong] == ["private-address-missing"]
    assert "lab/gpu-1 cannot download its weights from lab/gpu-0: " in wrong[0]["summary"]
    assert "SSH connects to 127.0.0.1" in wrong[0]["summary"]
    assert paths == ["through-client"] * 2
    assert all("127.0.0.1" in why for why in reasons)
    assert status["status"] == "TRAINING_JOB_COMPLETED"
    assert [row["path"] for row in status["deliveries"]] == ["through-client"]
