"""Runs that take more disk space than they may."""

from __future__ import annotations

import pytest

from tests.support.node_program.nodes import NodeHarness
from tests.support.projects.weights_project import small_disk

pytestmark = pytest.mark.integration


def test_a_run_that_exceeds_its_volume_is_stopped(node: NodeHarness) -> None:
    usage = """printf '{"due": %s, "usage": {"checkpoints": 3000000}}' $(($(date +%s) + 999)) >$TRAINCTL_RUN_DIRECTORY/metrics-disk.json"""
    spec = node.spec(usage, "sleep 60")
    spec["store"]["max_bytes"] = 2_000_000
    node.start(spec)
    done = node.ended()

    assert done["status"] == "TRAINING_JOB_FAILED"
    assert done["error"] == "its checkpoints take 3.0 MB, volume_size_gib allows 2.0 MB"


def test_a_run_that_fills_the_disk_is_stopped(node: NodeHarness) -> None:
    with small_disk(node.root, "200m"):
        node.start(node.spec("sleep 60", key="run-2"))
        node.start(node.spec("dd if=/dev/zero of=big bs=64k count=3176 2>/dev/null; sleep 60"))
        done = node.ended()

        assert done["status"] == "TRAINING_JOB_FAILED"
        assert done["error"].startswith(f"it filled the disk of {node.directory()}/work: ")
        assert node.status("run-2")["status"] == "TRAINING_JOB_RUNNING"
        node.call("stop", {"key": "run-2", "grace_seconds": 0})
