"""Deliveries at once and without disk space; the property tests of the cache have kills."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_program.nodes import NodeHarness, NodeProgramError
from tests.support.node_program.peers import result_of
from trainctl.base.listing import CHUNK_BYTES

NUMBERS = random.Random(20261120)


@pytest.fixture
def node(tmp_path: Path) -> NodeHarness:
    """A node whose mirror holds a large file and small ones."""
    node = NodeHarness(tmp_path)
    node.mirror.add("large.bin", NUMBERS.randbytes(2 * CHUNK_BYTES + 7))
    for number in range(40):
        node.mirror.add(f"small/{number:03}.bin", NUMBERS.randbytes(2000))
    return node


def test_deliveries_at_once_copy_each_file_once(node: NodeHarness) -> None:
    """Two deliveries of one listing, and one of another listing with the same large file."""
    requests = [node.delivery(lease=f"run-{number}") for number in range(2)]
    large = len(node.mirror.files["large.bin"])
    total = node.mirror.listing.size
    node.mirror.add("another.txt", b"another")
    requests.append(node.delivery(lease="run-2"))

    processes = [node.popen("deliver", request) for request in requests]
    results = [result_of(process) for process in processes]

    assert 0 in [result["bytes_mirror"] for result in results[:2]]
    assert sum(result["bytes_mirror"] >= large for result in results) == 1
    assert total <= sum(result["bytes_mirror"] for result in results) <= 2 * total - large + 7


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root to mount a small tmpfs")
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(disk)]
    mounted = subprocess.run(words, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"a tmpfs can't be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_delivery_resumes_once_a_full_disk_has_space(tmp_path: Path, small_disk: Path) -> None:
    node = NodeHarness(tmp_path)
    node.root = small_disk / "node"
    node.mirror.add("a.bin", os.urandom(4 * 2**20))
    node.deliver()
    node.mirror.add("b.bin", os.urandom(2 * 2**20))
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    filler = small_disk / "filler"
    filler.write_bytes(bytes(free - 2**20))

    with pytest.raises(NodeProgramError) as raised:
        node.deliver()
    filler.unlink()
    node.deliver()

    assert raised.value.kind == "StorageError"
    assert (node.tree / "b.bin").read_bytes() == node.mirror.files["b.bin"]


def test_a_job_that_fills_the_disk_with_scratch_fails(tmp_path: Path, small_disk: Path) -> None:
    """Its end is recorded in the space that scratch gave back."""
    node = NodeHarness(tmp_path)
    node.root = small_disk / "node"

    status = node.run("cat /dev/zero > $BT_SCRATCH_DIR/x")

    assert status["status"] == "TRAINING_JOB_FAILED"
    assert not (node.directory() / "scratch").exists()
