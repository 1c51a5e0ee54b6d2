"""Delivery killed, twice at once, and without disk space."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_program.nodes import NodeHarness, NodeProgramError
from tests.support.node_program.peers import kill, result_of
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


def assert_final_names_are_complete(node: NodeHarness) -> None:
    cache = node.root / "cache"
    for blob in (cache / "blobs").rglob("*"):
        if blob.is_file():
            assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    if (cache / "complete" / f"{node.mirror.listing.id}.json").exists():
        paths = {p.relative_to(node.tree).as_posix() for p in node.tree.rglob("*") if p.is_file()}
        assert paths == set(node.mirror.files)


def test_a_delivery_killed_at_random_moments_continues(node: NodeHarness) -> None:
    """After each kill no unfinished file has a final name, and the last delivery completes the tree."""
    for _ in range(6):
        process = node.popen("deliver", node.delivery())
        time.sleep(NUMBERS.uniform(0, 0.4))
        kill(process)
        assert_final_names_are_complete(node)

    result = node.deliver()

    assert result["listing"] == node.mirror.listing.id
    for name, data in node.mirror.files.items():
        assert (node.tree / name).read_bytes() == data
    assert [path.name for path in (node.root / "cache" / "partial").iterdir()] == []


def test_deliveries_at_once_copy_each_file_once(node: NodeHarness) -> None:
    """Two deliveries of one listing, and one of another listing with the same large file."""
    requests = [node.delivery(lease=f"run-{number}") for number in range(2)]
    large = len(node.mirror.files["large.bin"])
    total = node.mirror.listing.size
    node.mirror.add("another.txt", b"another")
    requests.append(node.delivery(lease="run-2"))

    processes = [node.popen("deliver", request) for request in requests]
    results = [result_of(process) for process in processes]

    assert 0 in [one["bytes_mirror"] for one in results[:2]]
    assert sum(one["bytes_mirror"] >= large for one in results) == 1
    assert total <= sum(one["bytes_mirror"] for one in results) <= 2 * total - large + 7


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


def test_a_disk_that_is_too_small_is_an_error_before_anything_moves(
    node: NodeHarness, small_disk: Path
) -> None:
    node.root = small_disk / "node"

    with pytest.raises(NodeProgramError, match=str(small_disk)) as raised:
        node.deliver()

    assert raised.value.kind == "storage"
    assert f"{node.mirror.listing.size / 1e6:.1f} MB" in str(raised.value)
    assert list((node.root / "cache" / "partial").iterdir()) == []


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

    assert raised.value.kind == "storage"
    assert (node.tree / "b.bin").read_bytes() == node.mirror.files["b.bin"]


def test_a_job_that_fills_the_disk_with_scratch_fails(tmp_path: Path, small_disk: Path) -> None:
    """Its end is recorded in the space that scratch gave back."""
    node = NodeHarness(tmp_path)
    node.root = small_disk / "node"

    status = node.run("cat /dev/zero > $BT_SCRATCH_DIR/x")

    assert status["status"] == "TRAINING_JOB_FAILED"
    assert not (node.directory() / "scratch").exists()
