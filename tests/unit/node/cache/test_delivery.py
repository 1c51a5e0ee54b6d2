"""Delivery into the node's cache; tests/faults/test_node_delivery.py has kills and full disks."""

from __future__ import annotations

import os
import stat

import pytest

from tests.support.node_program.nodes import NodeHarness, NodeProgramError
from trainctl.base.listing import CHUNK_BYTES

pytestmark = pytest.mark.integration

BIG = os.urandom(CHUNK_BYTES + 12345)
NO_MIRROR = {"path": "/nowhere"}


def contents(node: NodeHarness) -> dict[str, bytes]:
    paths = (path for path in node.tree.rglob("*") if path.is_file())
    return {path.relative_to(node.tree).as_posix(): path.read_bytes() for path in paths}


def test_a_tree_has_the_bytes_of_its_listing_and_is_read_only(node: NodeHarness) -> None:
    node.mirror.add("config.json", b"{}")
    node.mirror.add("deep/er/model.bin", BIG)
    node.mirror.add("deep/empty", b"")

    result = node.deliver()

    assert result["listing"] == node.mirror.listing.id
    assert (result["bytes_node"], result["bytes_mirror"]) == (0, len(BIG) + 2)
    assert contents(node) == node.mirror.files
    modes = {stat.S_IMODE(path.stat().st_mode) for path in node.tree.rglob("*") if path.is_file()}
    assert modes == {0o444}
    assert stat.S_IMODE((node.tree / "deep").stat().st_mode) == 0o555
    assert not node.mirror.chunk("config.json").samefile(node.tree / "config.json")
    assert list((node.root / "cache" / "partial").iterdir()) == []


def test_only_missing_contents_come_from_the_mirror(node: NodeHarness) -> None:
    """Nothing for a sealed tree; of another listing the files that no tree has; progress counts what came."""
    node.mirror.add("model.bin", BIG)
    node.deliver()
    again = node.deliver(lease="run-2", mirror=NO_MIRROR)
    node.mirror.add("more.txt", b"more")

    more = node.deliver()

    progress = [(event["done"], event["received"]) for event in node.events]
    assert (again["bytes_node"], again["bytes_mirror"]) == (len(BIG), 0)
    assert (more["bytes_node"], more["bytes_mirror"]) == (len(BIG), 4)
    assert (progress[0], progress[-1]) == ((len(BIG), 0), (len(BIG) + 4, 4))


def test_wrong_bytes_are_refused_and_verified_chunks_kept(node: NodeHarness) -> None:
    """A corrupt chunk fails the delivery; the next one fetches only that chunk."""
    node.mirror.add("model.bin", BIG)
    node.mirror.corrupt("model.bin", 1)
    with pytest.raises(NodeProgramError, match=r"model\.bin") as raised:
        node.deliver()
    assert raised.value.kind == "SourceMismatch"
    assert not node.tree.exists()
    node.mirror.chunk("model.bin", 1).write_bytes(BIG[CHUNK_BYTES:])
    node.mirror.chunk("model.bin", 0).unlink()

    node.deliver()

    assert contents(node) == {"model.bin": BIG}
    assert (node.events[-1]["done"], node.events[-1]["received"]) == (len(BIG), 12345)


@pytest.mark.parametrize("size", [1000, CHUNK_BYTES + 5])
def test_a_flipped_byte_in_the_cache_is_noticed_and_repaired(node: NodeHarness, size: int) -> None:
    """A file that was written to has other times: it is hashed again, and repaired in place."""
    content = os.urandom(size)
    node.mirror.add("model.bin", content)
    node.deliver()
    path = node.tree / "model.bin"
    path.chmod(0o644)
    with path.open("r+b") as stream:
        stream.seek(size // 2)
        stream.write(bytes([content[size // 2] ^ 1]))

    result = node.deliver()
    os.utime(path)
    again = node.deliver(mirror=NO_MIRROR)

    assert result["bytes_mirror"] > 0
    assert again["bytes_mirror"] == 0  # other times with the right bytes
    assert path.read_bytes() == content


def test_a_large_tree_is_checked_completely_on_request(node: NodeHarness) -> None:
    """Otherwise only some of so many files are. Damaged files are repaired, renamed and replaced ones linked again, nothing else comes."""
    for number in range(300):
        node.mirror.add(f"{number % 7}/{number:03}", str(number).encode())
    node.deliver()
    damaged = node.tree / "5" / "250"
    damaged.chmod(0o644)
    damaged.write_bytes(b"xxx")
    (node.tree / "3").chmod(0o700)
    (node.tree / "3" / "003").rename(node.tree / "3" / "stranger")
    (node.tree / "3" / "010").unlink()
    (node.tree / "3" / "010").write_bytes(b"no")

    result = node.deliver(verify=True)

    assert result["bytes_mirror"] == 3
    assert contents(node) == node.mirror.files


def test_forget_frees_what_no_other_lineage_needs(node: NodeHarness) -> None:
    node.mirror.add("shared", b"shared")
    node.deliver(lineage="one", lease="run-1")
    first = node.tree
    node.mirror.add("own", b"own")
    node.deliver(lineage="two", lease="run-2")

    left = node.call("forget", {"lineage": "two"})

    assert (left["freed"], left["empty"]) == (3, False)
    assert (first / "shared").read_bytes() == b"shared"
    assert not node.tree.exists()
    last = node.call("forget", {"lineage": "one"})
    assert (last["freed"], last["empty"]) == (6, True)
    assert [path for path in (node.root / "cache").rglob("*") if path.is_file()] == []
