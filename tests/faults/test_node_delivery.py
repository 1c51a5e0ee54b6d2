"""Delivery killed, twice at once, and without space."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_program.nodes import NodeHarness, NodeProgramError
from trainctl.base.lease import holder_name
from trainctl.base.listing import CHUNK_BYTES

SEED = 20261120


@pytest.fixture
def node(tmp_path: Path) -> NodeHarness:
    """A node whose mirror holds large and small files."""
    node = NodeHarness(tmp_path)
    numbers = random.Random(SEED)
    node.mirror.add("large.bin", numbers.randbytes(3 * CHUNK_BYTES + 7))
    for number in range(40):
        node.mirror.add(f"small/{number:03}.bin", numbers.randbytes(2000))
    return node


def _check_finals(node: NodeHarness) -> None:
    """Whatever has a final name is whole."""
    cache = node.root / "cache"
    for blob in (cache / "blobs").rglob("*"):
        if blob.is_file():
            assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    if (cache / "complete" / f"{node.mirror.listing.id}.json").exists():
        found = {p.relative_to(node.tree).as_posix() for p in node.tree.rglob("*") if p.is_file()}
        assert found == set(node.mirror.files)


def test_a_delivery_killed_at_random_moments_continues(node: NodeHarness) -> None:
    """After each kill nothing half-done has a final name, and the last delivery makes the tree whole."""
    moments = random.Random(SEED)
    for _ in range(8):
        process = node.popen("deliver", node.delivery())
        time.sleep(moments.uniform(0, 0.4))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with process:
            process.wait()
        _check_finals(node)

    result = node.deliver()

    assert result["listing"] == node.mirror.listing.id
    for name, data in node.mirror.files.items():
        assert (node.tree / name).read_bytes() == data
    assert [path.name for path in (node.root / "cache" / "partial").iterdir()] == []


def test_a_killed_delivery_keeps_its_good_chunks(node: NodeHarness) -> None:
    """What was verified before the kill is not read from the mirror again."""
    digest = hashlib.sha256(node.mirror.files["large.bin"]).hexdigest()
    part = node.root / "cache" / "partial" / f"{digest}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(node.mirror.files["large.bin"][: 2 * CHUNK_BYTES] + b"half of a chunk")
    for number in range(2):
        node.mirror.chunk("large.bin", number).unlink()

    node.deliver()

    assert (node.tree / "large.bin").read_bytes() == node.mirror.files["large.bin"]


def test_two_deliveries_at_once_copy_once(node: NodeHarness) -> None:
    """Of several deliveries of one listing one takes the bytes, the others wait and take none."""
    processes = [node.popen("deliver", node.delivery(lease=f"run-{n}")) for n in range(4)]
    results = []
    for process in processes:
        out, err = process.communicate()
        assert process.returncode == 0, (out, err)
        results.append(json.loads(out.splitlines()[-1])["result"])

    total = node.mirror.listing.size
    assert sorted(result["bytes_mirror"] for result in results) == [0, 0, 0, total]


def test_two_listings_that_share_a_large_file_copy_it_once(node: NodeHarness) -> None:
    """The large file is fetched by one of two deliveries of different listings."""
    first = node.delivery(lease="run-1")
    node.mirror.add("another.txt", b"another")
    second = node.delivery(lease="run-2")
    large = len(node.mirror.files["large.bin"])

    processes = [node.popen("deliver", request) for request in (first, second)]
    results = []
    for process in processes:
        out, err = process.communicate()
        assert process.returncode == 0, (out, err)
        results.append(json.loads(out.splitlines()[-1])["result"])

    assert sum(result["bytes_mirror"] >= large for result in results) == 1


def test_a_dead_lock_keeps_nobody_out(node: NodeHarness) -> None:
    """The lock of a process that was killed is superseded at once."""
    locks = node.root / "cache" / "locks"
    locks.mkdir(parents=True)
    lock = locks / f"listing-{node.mirror.listing.id}.lock"
    place, pid, _ = holder_name().split("-")
    lock.write_text(f"{place}-{pid}-1.nonce")

    node.deliver()

    assert list(locks.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root to mount a small tmpfs")
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(disk)], capture_output=True
    )
    if made.returncode != 0:
        pytest.skip(f"a tmpfs can't be mounted here: {made.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_disk_that_is_too_small_is_told_before_anything_moves(
    node: NodeHarness, small_disk: Path
) -> None:
    """The error names the path, what is needed and what is free; no blob was begun."""
    node.root = small_disk / "node"

    with pytest.raises(NodeProgramError, match=str(small_disk)) as raised:
        node.deliver()

    assert raised.value.kind == "storage"
    assert f"{node.mirror.listing.size / 1e6:.1f} MB" in str(raised.value)
    assert list((node.root / "cache" / "partial").iterdir()) == []


def test_a_disk_that_fills_up_meanwhile_is_told_and_continued(
    tmp_path: Path, small_disk: Path
) -> None:
    """With space again, the next delivery makes the tree whole."""
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


def test_a_full_disk_does_not_keep_a_run_from_ending(tmp_path: Path, small_disk: Path) -> None:
    """A job that fills the disk with scratch fails, and its end is recorded in the space that scratch gave back."""
    node = NodeHarness(tmp_path)
    node.root = small_disk / "node"

    status = node.run("cat /dev/zero > $BT_SCRATCH_DIR/x")

    assert status["status"] == "TRAINING_JOB_FAILED"
    assert not (node.directory() / "scratch").exists()


def test_a_read_only_node_is_told(tmp_path: Path, small_disk: Path) -> None:
    """A read-only file system is an error that names the path."""
    node = NodeHarness(tmp_path)
    node.root = small_disk / "node"
    node.mirror.add("x", b"x")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

    with pytest.raises(NodeProgramError, match=str(small_disk)) as raised:
        node.deliver()

    assert raised.value.kind == "storage"
