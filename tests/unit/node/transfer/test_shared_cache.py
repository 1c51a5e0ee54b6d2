"""A cache in a directory that several nodes see."""

from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.permissions import GROUP, ONE, OTHER, as_user, place_of_group
from tests.support.node_program.nodes import MirrorFixture, received_as
from tests.support.node_program.peers import PeerGroup, await_movement, kill, result_of
from tests.support.servers.blob_server import mirror_location, serve_mirror
from tests.support.storage.mirrors import MemorySource, ingest, mirror_at
from trainctl.base.listing import CHUNK_BYTES, Listing
from trainctl.base.protocol.weights import DeliverResponse
from trainctl.node.cache.delivery import deliver
from trainctl.node.transfer.shared_cache import SharedCache
from trainctl.store.objects import DirectoryObjects
from trainctl.store.verify import verify_store

pytestmark = pytest.mark.integration

as_two_users = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")


@pytest.fixture
def gang(tmp_path: Path) -> PeerGroup:
    """Three nodes and a mirror with large and small files."""
    gang = PeerGroup(tmp_path, 3)
    numbers = random.Random(20261122)
    gang.mirror.add("a.bin", numbers.randbytes(CHUNK_BYTES + 99))
    gang.mirror.add("b.bin", numbers.randbytes(2**21))
    for number in range(30):
        gang.mirror.add(f"small/{number:02}.json", numbers.randbytes(3_000))
    return gang


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return tmp_path / "shared"


def blobs_in(shared: Path) -> set[str]:
    """The blobs in the directory, each of which is what its name says."""
    blobs = list((shared / "blobs").rglob("*/*/*"))
    assert all(hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name for blob in blobs)
    return {blob.name for blob in blobs}


def chunks_of(listing: Listing) -> set[str]:
    return {chunk.sha256 for file in listing.files for chunk in file.chunk_ranges}


def deliver_to(gang: PeerGroup, number: int, shared: Path, **settings: object) -> dict[str, int]:
    """Deliver from a mirror in a directory."""
    return gang.nodes[number].deliver(shared={"dir": str(shared), **settings})


def test_one_node_fetches_what_all_need(gang: PeerGroup, shared: Path) -> None:
    """Of three at once; the others read it from the directory, and nothing unfinished is left."""
    with serve_mirror(gang.mirror) as server:
        where = {"mirror": mirror_location(server), "shared": {"dir": str(shared)}}
        processes = [node.popen("deliver", node.delivery(**where)) for node in gang.nodes]
        results = [result_of(process) for process in processes]

    gang.assert_delivered()
    size = gang.mirror.listing.size
    assert server.sent == sum(result["bytes_mirror"] for result in results) == size
    assert [result["bytes_mirror"] + result["bytes_cluster"] for result in results] == [size] * 3
    assert blobs_in(shared) == chunks_of(gang.mirror.listing)
    assert list((shared / ".tmp").iterdir()) == list((shared / "leases").glob("*")) == []


def test_a_later_node_reads_the_directory_only(gang: PeerGroup, shared: Path) -> None:
    """A query says beforehand what it has. If it is deleted, it is filled again."""
    deliver_to(gang, 0, shared)
    blob = gang.mirror.listing.files[0].sha256
    cached = gang.nodes[1].cached(
        blobs=[blob, "0" * 64], listings=[gang.mirror.listing.id], shared={"dir": str(shared)}
    )

    result = deliver_to(gang, 1, shared)
    shared.rename(shared.with_name("elsewhere"))
    deliver_to(gang, 2, shared)

    assert (cached["blobs"], cached["shared"]) == ([], [blob])
    assert (result["bytes_mirror"], result["bytes_cluster"]) == (0, gang.mirror.listing.size)
    gang.assert_delivered()
    assert blobs_in(shared) == chunks_of(gang.mirror.listing)


def test_wrong_bytes_in_the_directory_are_replaced(gang: PeerGroup, shared: Path) -> None:
    """A changed chunk is noticed, fetched from the mirror and deleted, so that it is copied again."""
    deliver_to(gang, 0, shared)
    digest = gang.mirror.listing.files[0].chunks[0]
    blob = shared / "blobs" / "sha256" / digest[:2] / digest
    with blob.open("r+b") as stream:
        stream.write(b"\0" * 100)

    result = deliver_to(gang, 1, shared)
    assert not blob.exists()
    again = deliver_to(gang, 2, shared)

    gang.assert_delivered()
    assert result["bytes_mirror"] == CHUNK_BYTES
    assert again["bytes_mirror"] == gang.mirror.listing.files[0].size
    assert digest in blobs_in(shared)


def test_small_files_are_copied_and_replaced_in_their_packs(tmp_path: Path, shared: Path) -> None:
    """From a mirror that packs them; each corrupt file of a pack is noticed."""
    files = {f"{number:02}.json": os.urandom(900) for number in range(50)}
    source = MemorySource(files)
    store = mirror_at(tmp_path / "mirror")
    listing = ingest(store, source.resolve("memory://model", None, None), source)
    gang = PeerGroup(tmp_path / "gang", 3)
    request: Any = {
        "listing": json.loads(listing.to_bytes()),
        "mirror": {"path": str(tmp_path / "mirror")},
        "shared": {"dir": str(shared)},
    }

    gang.nodes[0].deliver(**request)
    (pack,) = (shared / "blobs").rglob("*/*/*")
    pack.write_bytes(b"\0" * 2000 + pack.read_bytes()[2000:])
    results = [node.deliver(**request)["bytes_mirror"] for node in gang.nodes[1:]]

    assert verify_store(DirectoryObjects(shared)).ok
    assert results == [3 * 900, listing.size]
    for node in gang.nodes:
        tree = node.root / "cache" / "trees" / listing.id
        assert {path.name: path.read_bytes() for path in tree.iterdir()} == files


def test_a_node_killed_while_it_copies_is_replaced(gang: PeerGroup, shared: Path) -> None:
    """What it has copied is reused; its listing counts for nothing."""
    with serve_mirror(gang.mirror) as server:
        request = gang.nodes[0].delivery(
            mirror=mirror_location(server), shared={"dir": str(shared)}, max_rate=1_000_000
        )
        process = gang.nodes[0].popen("deliver", request)
        await_movement(process)
        kill(process)
    listing = gang.mirror.listing
    cached = gang.nodes[1].cached(
        shared={"dir": str(shared)}, blobs=[listing.files[0].sha256], listings=[listing.id]
    )

    for number in range(3):
        deliver_to(gang, number, shared)

    gang.assert_delivered()
    assert (cached["blobs"], cached["shared"]) == ([], [])
    assert blobs_in(shared) == chunks_of(listing)
    assert list((shared / ".tmp").iterdir()) == []


def test_the_listing_used_longest_ago_makes_room(gang: PeerGroup, shared: Path) -> None:
    """Weights that are larger than the limit come from the mirror, and evict nothing."""
    first = gang.mirror.listing
    limit = first.size + 1000
    deliver_to(gang, 0, shared, size=limit)
    passed_by = deliver_to(gang, 1, shared.with_name("small"), size=1000)
    gang.mirror.forget()
    gang.mirror.add("d.bin", os.urandom(CHUNK_BYTES + 5))

    deliver_to(gang, 0, shared, size=limit)

    assert blobs_in(shared) == chunks_of(gang.mirror.listing)
    assert passed_by["bytes_mirror"] == first.size
    assert blobs_in(shared.with_name("small")) == set()


def test_forgetting_a_lineage_keeps_what_others_need(gang: PeerGroup, shared: Path) -> None:
    deliver_to(gang, 0, shared)
    common = gang.mirror.files["a.bin"]
    gang.mirror.forget()
    gang.mirror.add("common.bin", common)
    gang.nodes[1].deliver(shared={"dir": str(shared)}, lineage="lineage-2")

    forgotten = gang.nodes[0].call(
        "forget_cache", {"lineage": "lineage-1", "shared": {"dir": str(shared)}}
    )

    assert blobs_in(shared) == chunks_of(gang.mirror.listing)
    assert forgotten["freed"] > 2**21


def test_files_of_others_in_the_directory_stay(gang: PeerGroup, shared: Path) -> None:
    """Only the objects of a store are deleted."""
    deliver_to(gang, 0, shared)
    directories = [shared, *(path for path in shared.rglob("*") if path.is_dir())]
    foreign = [top / name for top in directories for name in (".nfs0001", "notes.txt")]
    for path in foreign:
        path.write_text("mine")
        os.utime(path, (1, 1))

    SharedCache({"dir": str(shared)}).forget("lineage-1")

    assert {path for path in shared.rglob("*") if path.is_file()} == set(foreign)


@as_two_users
def test_two_users_of_a_group_share_it(tmp_path: Path) -> None:
    """Either reads what the other fetched, and may evict it when it has room to make."""
    mirrors = {}
    with place_of_group() as place:
        for name in ("both", "one"):
            mirrors[name] = MirrorFixture(place.parent / f"mirror-{name}")
            mirrors[name].add("a.bin", os.urandom(CHUNK_BYTES + 99))
            mirrors[name].add("b.json", os.urandom(99))
        shared = {"dir": str(place / "cache"), "size": 3 * CHUNK_BYTES}

        def deliver_as(user: int, name: str, shared: dict[str, Any] = shared) -> DeliverResponse:
            home = place.parent / f"user-{user}"
            if not home.exists():
                home.mkdir()
                os.chown(home, user, GROUP)
            request: Any = {
                "root": str(home / "node"),
                "lineage": f"lineage-{user}",
                "listing": json.loads(mirrors[name].listing.to_bytes()),
                "mirror": {"path": str(mirrors[name].path)},
                "shared": shared,
            }
            asked, following = received_as(request)
            with as_user(user):
                return deliver(asked, lambda event: None, following)

        # Modules that are loaded late may lie where only root gets to.
        deliver_as(0, "one", {"dir": str(tmp_path / "loaded")})
        SharedCache({"dir": str(tmp_path / "loaded")}).forget("lineage-0")
        first, second = deliver_as(ONE, "both"), deliver_as(OTHER, "both")
        deliver_as(OTHER, "one")
        with as_user(ONE):
            kept = SharedCache(shared).forget(f"lineage-{ONE}")
        with as_user(OTHER):
            freed = SharedCache(shared).forget(f"lineage-{OTHER}")

    size = CHUNK_BYTES + 2 * 99
    assert (first["bytes_cluster"], second["bytes_mirror"], kept) == (0, 0, 0)
    assert second["bytes_cluster"] == size
    assert freed == 2 * size
