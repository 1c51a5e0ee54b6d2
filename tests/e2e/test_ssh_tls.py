"""Hosts without private addresses: weights go from one to the other over TLS."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.machines.hosts import HostLab, host_lab
from tests.support.machines.word_project import WORD, word_project
from tests.support.network import cleartext_sniffer
from tests.support.network.ssh_recorder import files_containing

ASKED = "Authorization: Bearer"


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


@pytest.mark.parametrize(
    ("network", "tls"),
    [("203.0.113", True), pytest.param("10.83.17", False, marks=pytest.mark.long)],
)
def test_weights_between_public_addresses_take_tls(tmp_path: Path, network: str, tls: bool) -> None:
    """The plan says so, and neither a token nor weights are seen on the wire; with private addresses both are.
    No private key is on a disk.
    """
    with (
        host_lab(tmp_path / "lab", 3, network=network) as lab,
        word_project(lab, tmp_path, lab.hosts) as project,
    ):
        plan = project.json("plan")
        with listened(lab) as seen:
            project.run("apply", "--auto-approve", "--wait")
        status = project.json("status", "job.sft")
        keys = [path for host in lab.hosts for path in files_containing(host.home, "PRIVATE KEY")]

        reasons = {row["path"]: row["path_reason"] for row in plan["deliveries"]}
        assert set(reasons) == {"mirror-to-node", "peers"}
        assert ("2 nodes share one download, over TLS" in reasons["peers"]) is tls
        assert status["status"] == "TRAINING_JOB_COMPLETED"
        assert {row["path"] for row in status["deliveries"]} == {"mirror-to-node", "peers"}
        assert project.run("logs", "job.sft").stdout.count(WORD) == 3
        assert (seen[WORD] == 0, seen[ASKED] == 0) == (tls, tls)
        assert keys == []
