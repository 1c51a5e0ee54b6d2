"""A cache in a directory that several nodes see."""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.permissions import GROUP, ONE, OTHER, as_user, place_of_group
from tests.support.node_program.nodes import MirrorFixture, received_as
from tests.support.node_program.peers import PeerGroup, await_movement, kill, result_of
from tests.support.servers.blob_server import mirror_location, serve_mirror
from trainctl.base.listing import CHUNK_BYTES, ListedFile, Listing
from trainctl.base.protocol.weights import DeliverResponse
from trainctl.node.cache.delivery import deliver
from trainctl.node.transfer.shared_cache import SharedCache

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
    """The directory."""
    return tmp_path / "shared"


def blobs_in(shared: Path) -> set[str]:
    """The blobs in the directory, each of which is what its name says."""
    blobs = list((shared / "blobs").rglob("*/*/*"))
    assert all(hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name for blob in blobs)
    return {blob.name for blob in blobs}


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
    assert server.sent == sum(one["bytes_mirror"] for one in results) == size
    assert [one["bytes_mirror"] + one["bytes_cluster"] for one in results] == [size] * 3
    assert blobs_in(shared) == {file.sha256 for file in gang.mirror.listing.files}
    assert list((shared / "incoming").iterdir()) == list((shared / "claims").iterdir()) == []


def test_a_later_node_reads_the_directory_only(gang: PeerGroup, shared: Path) -> None:
    """A query says beforehand what it has. If it is deleted, it is filled again."""
    deliver_to(gang, 0, shared)
    blob = gang.mirror.listing.files[0].sha256
    cached = gang.nodes[1].cached(blobs=[blob, "0" * 64], shared={"dir": str(shared)})

    result = deliver_to(gang, 1, shared)
    shared.rename(shared.with_name("elsewhere"))
    deliver_to(gang, 2, shared)

    assert (cached["blobs"], cached["shared"]) == ([], [blob])
    assert (result["bytes_mirror"], result["bytes_cluster"]) == (0, gang.mirror.listing.size)
    gang.assert_delivered()
    assert blob in blobs_in(shared)


def test_wrong_bytes_in_the_directory_are_replaced(gang: PeerGroup, shared: Path) -> None:
    """A changed blob is noticed, fetched from the mirror and deleted, so that it is fetched again."""
    deliver_to(gang, 0, shared)
    digest = gang.mirror.listing.files[0].sha256
    blob = shared / "blobs" / "sha256" / digest[:2] / digest
    blob.chmod(0o600)
    with blob.open("r+b") as stream:
        stream.write(b"\0" * 100)

    result = deliver_to(gang, 1, shared)
    assert not blob.exists()
    deliver_to(gang, 2, shared)

    gang.assert_delivered()
    assert result["bytes_mirror"] == CHUNK_BYTES
    assert digest in blobs_in(shared)


def test_a_node_killed_while_it_fetches_is_replaced(gang: PeerGroup, shared: Path) -> None:
    """Its unfinished files have no final name, count for nothing, and stay until they are old."""
    with serve_mirror(gang.mirror) as server:
        request = gang.nodes[0].delivery(
            mirror=mirror_location(server), shared={"dir": str(shared)}, max_rate=1_000_000
        )
        process = gang.nodes[0].popen("deliver", request)
        await_movement(process)
        kill(process)
    complete = blobs_in(shared)
    for claim in (shared / "claims").iterdir():
        claim.unlink()  # as the next node does after half a minute of its own clock
    cut = next(file for file in gang.mirror.listing.files if file.sha256 not in complete)
    unfinished = shared / "incoming" / f".{cut.sha256}.1.0a1b2c3d"
    unfinished.write_bytes(gang.mirror.files[cut.path])
    cached = gang.nodes[1].cached(shared={"dir": str(shared)}, blobs=[cut.sha256])

    for number in range(3):
        deliver_to(gang, number, shared)

    gang.assert_delivered()
    assert (cached["blobs"], cached["shared"], cached.get("arrived", {})) == ([], [], {})
    assert cut.sha256 in blobs_in(shared)
    assert unfinished.exists()


def test_the_listing_used_longest_ago_makes_room(gang: PeerGroup, shared: Path) -> None:
    """Weights that are larger than the limit come from the mirror, and evict nothing."""
    first = gang.mirror.listing
    limit = first.size + 1000
    deliver_to(gang, 0, shared, size=limit)
    passed_by = deliver_to(gang, 1, shared.with_name("small"), size=1000)
    gang.mirror.forget()
    gang.mirror.add("d.bin", os.urandom(CHUNK_BYTES + 5))

    deliver_to(gang, 0, shared, size=limit)

    assert blobs_in(shared) == {gang.mirror.listing.files[0].sha256}
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

    assert blobs_in(shared) == {hashlib.sha256(common).hexdigest()}
    assert forgotten["freed"] > 2**21


def test_files_of_others_in_the_directory_stay(tmp_path: Path) -> None:
    """Only blobs, and unfinished files of deliveries that were killed long ago, are deleted."""
    root = tmp_path / "shared"
    cache = SharedCache(str(root), 8)
    files = tuple(ListedFile(f"{n}.bin", 4, f"{n:064x}", ()) for n in range(3))
    cache.refer("lineage-1", Listing(files))
    for file in files:
        path = Path(cache.blob(file.sha256))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1234")
    for directory in ("incoming", "claims"):
        (root / directory).mkdir(exist_ok=True)
    old, new = (root / "incoming" / f".{digit * 64}.1.{'0' * 12}" for digit in "ab")
    for path, age in ((old, 10**8), (new, 0)):
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age,) * 2)
    directories = [root, *(path for path in root.rglob("*") if path.is_dir())]
    foreign = [top / name for top in directories for name in (".nfs0001", "notes.json")]
    for path in foreign:
        path.write_text("mine")
        os.utime(path, (1, 1))

    with suppress(OSError, IndexError):  # there is no mirror to ask
        cache.fetch_missing([ListedFile("x.bin", 4, "f" * 64, ())], {"f" * 64}, [], lambda: None)
    cache.drop(files[0].sha256)
    cache.forget("lineage-1")
    cache.forget("lineage-2")

    assert {path.read_text() for path in foreign} == {"mine"}
    assert {path for path in root.rglob("*") if path.is_file()} - set(foreign) == {new}


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
                "mirror": {"type": "objects", "path": str(mirrors[name].path)},
                "shared": shared,
            }
            asked, following = received_as(request)
            with as_user(user):
                return deliver(asked, lambda event: None, following)

        # Modules that are loaded late may lie where only root gets to.
        deliver_as(0, "one", {"dir": str(tmp_path / "loaded")})
        SharedCache(str(tmp_path / "loaded")).forget("lineage-0")
        first, second = deliver_as(ONE, "both"), deliver_as(OTHER, "both")
        deliver_as(OTHER, "one")
        with as_user(ONE):
            kept = SharedCache(shared["dir"]).forget(f"lineage-{ONE}")
        with as_user(OTHER):
            freed = SharedCache(shared["dir"]).forget(f"lineage-{OTHER}")

    size = CHUNK_BYTES + 2 * 99
    assert (first["bytes_cluster"], second["bytes_mirror"], kept) == (0, 0, 0)
    assert second["bytes_cluster"] == size
    assert freed == 2 * size
