"""Delivery into the node's cache."""

from __future__ import annotations

import hashlib
import os
import stat

import pytest

from tests.support.node_program.nodes import NodeHarness, NodeProgramError
from trainctl.base.lease import holder_name
from trainctl.base.listing import CHUNK_BYTES

pytestmark = pytest.mark.integration

BIG = os.urandom(2 * CHUNK_BYTES + 12345)


def test_a_delivered_tree_has_the_listings_bytes_and_is_read_only(node: NodeHarness) -> None:
    """Every file of the listing is in the tree, byte for byte, 0444 under 0555, and nothing is left in partial."""
    node.mirror.add("config.json", b"{}")
    node.mirror.add("deep/er/model.bin", BIG)
    node.mirror.add("deep/empty", b"")

    result = node.deliver()

    assert result["listing"] == node.mirror.listing.id
    assert (result["bytes_node"], result["bytes_mirror"]) == (0, len(BIG) + 2)
    found = {p.relative_to(node.tree).as_posix(): p for p in node.tree.rglob("*") if p.is_file()}
    assert {name: path.read_bytes() for name, path in found.items()} == node.mirror.files
    assert {stat.S_IMODE(path.stat().st_mode) for path in found.values()} == {0o444}
    assert stat.S_IMODE((node.tree / "deep").stat().st_mode) == 0o555
    assert list((node.root / "cache" / "partial").iterdir()) == []


def test_a_second_delivery_takes_nothing_from_the_mirror(node: NodeHarness) -> None:
    """A sealed tree is delivered without its mirror, all bytes from the node."""
    node.mirror.add("model.bin", BIG)
    node.deliver()

    result = node.deliver(lease="run-2", mirror={"type": "objects", "path": "/nowhere"})

    assert (result["bytes_node"], result["bytes_mirror"]) == (len(BIG), 0)


def test_what_a_dead_holder_left_of_a_lock_goes(node: NodeHarness) -> None:
    """With a delivery that has nothing to do, which takes no lock; one that somebody alive holds stays."""
    node.mirror.add("model.bin", BIG)
    node.deliver()
    locks = node.root / "cache" / "locks"
    place, pid, _ = holder_name().split("-")
    (locks / "listing-x.lock").write_text(f"{place}-{pid}-1.nonce")
    held = locks / "room.lock"
    held.write_text(f"{holder_name()}.nonce")

    node.deliver()

    assert list(locks.iterdir()) == [held]


def test_contents_are_shared_between_listings(node: NodeHarness) -> None:
    """A second listing with one new file takes only that file's bytes."""
    node.mirror.add("model.bin", BIG)
    node.deliver()
    node.mirror.add("more.txt", b"more")

    result = node.deliver()

    assert (result["bytes_node"], result["bytes_mirror"]) == (len(BIG), 4)


def test_a_mirror_without_a_hard_link_to_the_cache(node: NodeHarness) -> None:
    """The cache never shares an inode with the mirror: they are emptied by different people."""
    node.mirror.add("model.bin", b"content")
    node.deliver()

    blob = node.mirror.blob(hashlib.sha256(b"content").hexdigest())

    assert not blob.samefile(node.tree / "model.bin")


def test_wrong_bytes_in_the_mirror_are_refused(node: NodeHarness) -> None:
    """An object of the right length and wrong content is an error, and no tree appears."""
    node.mirror.add("model.bin", BIG)
    node.mirror.corrupt("model.bin", 2)

    with pytest.raises(NodeProgramError, match=r"model\.bin") as raised:
        node.deliver()

    assert raised.value.kind == "wrong"
    assert not node.tree.exists()


def test_a_resumed_delivery_keeps_the_good_chunks(node: NodeHarness) -> None:
    """After wrong bytes in the last chunk only, the next delivery reads the rest from what was kept."""
    node.mirror.add("model.bin", BIG)
    node.mirror.corrupt("model.bin", 2)
    with pytest.raises(NodeProgramError):
        node.deliver()
    node.mirror.chunk("model.bin", 2).write_bytes(BIG[2 * CHUNK_BYTES :])
    for number in range(2):
        node.mirror.chunk("model.bin", number).unlink()

    node.deliver()

    assert (node.tree / "model.bin").read_bytes() == BIG


@pytest.mark.parametrize("content", [None, b"short"])
def test_a_blob_that_the_mirror_lacks_is_named(node: NodeHarness, content: bytes | None) -> None:
    """A missing or truncated blob is an error that names it and the mirror."""
    node.mirror.add("model.bin", b"whole content")
    digest = hashlib.sha256(b"whole content").hexdigest()
    if content is None:
        node.mirror.blob(digest).unlink()
    else:
        node.mirror.blob(digest).write_bytes(content)

    with pytest.raises(NodeProgramError, match=digest) as raised:
        node.deliver()

    assert raised.value.kind == "mirror"


@pytest.mark.parametrize("size", [1000, 2 * CHUNK_BYTES + 5])
def test_a_flipped_byte_in_the_cache_is_noticed_and_repaired(node: NodeHarness, size: int) -> None:
    """A cached file that was written to has other times: it is hashed again, and made right in place."""
    content = os.urandom(size)
    node.mirror.add("model.bin", content)
    node.deliver()
    path = node.tree / "model.bin"
    path.chmod(0o644)
    with path.open("r+b") as stream:
        stream.seek(size // 2)
        stream.write(bytes([content[size // 2] ^ 1]))

    result = node.deliver()

    assert result["bytes_mirror"] > 0
    assert path.read_bytes() == content


def test_a_replaced_file_in_a_tree_is_linked_again(node: NodeHarness) -> None:
    """A tree's file that is another inode than the blob is replaced by the blob."""
    node.mirror.add("model.bin", b"right")
    node.deliver()
    node.tree.chmod(0o755)
    (node.tree / "model.bin").unlink()
    (node.tree / "model.bin").write_bytes(b"wrong")
    (node.tree / "stranger").write_bytes(b"x")

    node.deliver()

    assert (node.tree / "model.bin").read_bytes() == b"right"
    assert not (node.tree / "stranger").exists()


def test_touched_but_unchanged_content_costs_no_transfer(node: NodeHarness) -> None:
    """Other times with the right content: hashed again, believed again, nothing fetched."""
    node.mirror.add("model.bin", b"same")
    node.deliver()
    os.utime(node.tree / "model.bin")

    result = node.deliver(mirror={"type": "objects", "path": "/nowhere"})

    assert result["bytes_mirror"] == 0


def test_verify_finds_damage_in_a_large_tree(node: NodeHarness) -> None:
    """A tree of more files than are looked at every time is looked at whole when ``verify`` says so."""
    for number in range(300):
        node.mirror.add(f"{number:03}", str(number).encode())
    node.deliver()
    damaged = node.tree / "250"
    damaged.chmod(0o644)
    damaged.write_bytes(b"xxx")

    node.deliver(verify=True)

    assert damaged.read_bytes() == b"250"


@pytest.mark.parametrize("path", ["../x", "/x", "a/../x", "a//x", "", ".", "a\nb", "a/\x00"])
def test_a_listing_cant_name_a_path_outside_its_tree(node: NodeHarness, path: str) -> None:
    """Names that lead out, or that no file has, are refused before anything is written."""
    document = {
        "version": 1,
        "chunk_bytes": CHUNK_BYTES,
        "files": [{"path": path, "size": 0, "sha256": hashlib.sha256().hexdigest(), "chunks": []}],
    }

    with pytest.raises(NodeProgramError) as raised:
        node.deliver(listing=document)

    assert raised.value.kind == "request"
    assert not (node.root / "cache" / "trees").exists()


def test_cache_query_tells_what_is_whole(node: NodeHarness) -> None:
    """Sealed trees and blobs under their final names are told; others are not."""
    node.mirror.add("model.bin", b"content")
    node.deliver()
    digest = hashlib.sha256(b"content").hexdigest()

    found = node.cached(listings=[node.mirror.listing.id, "0" * 64], blobs=[digest, "1" * 64])

    assert found == {"trees": [node.mirror.listing.id], "blobs": [digest]}


def test_progress_ends_at_the_total(node: NodeHarness) -> None:
    """The last event says that all bytes are there."""
    node.mirror.add("a", b"12345")
    node.mirror.add("b", BIG)

    node.deliver()

    assert node.events[-1]["done"] == node.events[-1]["total"] == len(BIG) + 5


def test_progress_tells_what_had_to_come(node: NodeHarness) -> None:
    """The first event, before anything comes, says what is here; that never counts as what came, nor do chunks that an earlier delivery left."""
    node.mirror.add("a", b"12345")
    node.deliver()
    node.mirror.add("b", BIG)
    node.mirror.corrupt("b", 2)
    with pytest.raises(NodeProgramError):
        node.deliver()
    node.mirror.chunk("b", 2).write_bytes(BIG[2 * CHUNK_BYTES :])

    node.deliver()

    told = [(event["done"], event["received"]) for event in node.events]
    assert told[0] == (5, 0)
    assert told[-1] == (len(BIG) + 5, len(BIG) - 2 * CHUNK_BYTES)


def test_forget_frees_what_nobody_else_needs(node: NodeHarness) -> None:
    """One lineage's end leaves what another refers to; the last one's end leaves nothing."""
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


def test_the_node_computes_the_listings_id_itself(node: NodeHarness) -> None:
    """The id is the digest of the document that came, so a document can't pass for another."""
    node.mirror.add("ünïcode/ä.txt", "ä".encode())
    node.deliver()
    kept = node.root / "cache" / "listings" / f"{node.mirror.listing.id}.json"

    assert kept.read_bytes() == node.mirror.listing.to_bytes()


def test_a_large_tree_is_checked_file_by_file_on_request(node: NodeHarness) -> None:
    """Files under other names go, those that are missing are linked again, and nothing is fetched."""
    for number in range(300):
        node.mirror.add(f"{number % 7}/{number:03}", str(number % 100).encode())
    node.deliver()
    (node.tree / "3").chmod(0o700)
    (node.tree / "3" / "003").rename(node.tree / "3" / "stranger")

    result = node.deliver(verify=True, mirror={"type": "objects", "path": "/nowhere"})

    assert result["bytes_mirror"] == 0
    found = {path.relative_to(node.tree).as_posix(): path for path in node.tree.rglob("*/*")}
    assert {name: path.read_bytes() for name, path in found.items()} == node.mirror.files
