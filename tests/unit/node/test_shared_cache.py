"""A cache in a directory that several nodes see."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.permissions import GROUP, ONE, OTHER, as_user, place_of_group
from tests.support.node_program.nodes import MirrorFixture, received_as
from tests.support.node_program.peers import PeerGroup, await_movement, result_of
from tests.support.servers.blob_server import mirror_location, serve_mirror
from trainctl.base.failure import from_os_error
from trainctl.base.listing import CHUNK_BYTES, Listing
from trainctl.base.protocol.weights import DeliverResponse
from trainctl.node.cache.delivery import deliver
from trainctl.node.transfer.shared_cache import SharedCache, SharedCacheFetcher
from trainctl.node.transfer.transfer_units import units_of

pytestmark = pytest.mark.integration

SEED = 20261122


@pytest.fixture
def gang(tmp_path: Path) -> PeerGroup:
    """Three nodes and a mirror with large and small files."""
    gang = PeerGroup(tmp_path, 3)
    numbers = random.Random(SEED)
    gang.mirror.add("a.bin", numbers.randbytes(CHUNK_BYTES + 99))
    gang.mirror.add("b.bin", numbers.randbytes(2**21))
    for number in range(30):
        gang.mirror.add(f"small/{number:02}.json", numbers.randbytes(3_000))
    return gang


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The directory."""
    return tmp_path / "shared"


def _check(gang: PeerGroup) -> None:
    for node in gang.nodes:
        tree = node.tree
        for path, data in gang.mirror.files.items():
            assert (tree / path).read_bytes() == data, path


def _whole(shared: Path) -> set[str]:
    """The contents in the shared directory, each of which is what its name says."""
    blobs = list((shared / "blobs").rglob("*/*/*"))
    assert all(hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name for blob in blobs)
    return {blob.name for blob in blobs}


def test_one_node_brings_what_all_need(gang: PeerGroup, shared: Path) -> None:
    """Three nodes at once: the mirror sends one copy, the rest comes from the directory, and nothing is left half-done."""
    with serve_mirror(gang.mirror) as server:
        processes = [
            gang.nodes[number].popen(
                "deliver",
                gang.nodes[number].delivery(
                    mirror=mirror_location(server), shared={"dir": str(shared)}
                ),
            )
            for number in range(3)
        ]
        results = [result_of(process) for process in processes]
        sent = server.sent

    _check(gang)
    size = gang.mirror.listing.size
    assert sent == size
    assert sum(one["bytes_mirror"] for one in results) == size
    assert [one["bytes_mirror"] + one["bytes_cluster"] for one in results] == [size] * 3
    assert _whole(shared) == {file.sha256 for file in gang.mirror.listing.files}
    assert list((shared / "incoming").iterdir()) == list((shared / "claims").iterdir()) == []


def _deliver(gang: PeerGroup, number: int, shared: Path, **more: object) -> dict[str, int]:
    """From a mirror in a directory."""
    return gang.nodes[number].deliver(shared={"dir": str(shared), **more})


def test_a_later_node_asks_the_mirror_for_nothing(gang: PeerGroup, shared: Path) -> None:
    """What one node brought is there for the next."""
    _deliver(gang, 0, shared)

    result = _deliver(gang, 1, shared)

    assert (result["bytes_mirror"], result["bytes_cluster"]) == (0, gang.mirror.listing.size)


def test_wrong_bytes_in_the_directory_come_from_the_mirror(gang: PeerGroup, shared: Path) -> None:
    """A content that was changed there is noticed, taken from the mirror and dropped, so that it is brought anew."""
    _deliver(gang, 0, shared)
    digest = gang.mirror.listing.files[0].sha256
    blob = shared / "blobs" / "sha256" / digest[:2] / digest
    blob.chmod(0o600)
    with blob.open("r+b") as stream:
        stream.write(b"\0" * 100)

    result = _deliver(gang, 1, shared)
    assert not blob.exists()
    _deliver(gang, 2, shared)

    _check(gang)
    assert result["bytes_mirror"] == CHUNK_BYTES
    assert digest in _whole(shared)


def test_what_is_right_of_a_wrong_content_is_still_taken_there(
    gang: PeerGroup, shared: Path
) -> None:
    """It goes when all of its chunks were asked for, by whichever thread: else the rest would come from the mirror, however much it is."""
    _deliver(gang, 0, shared)
    file = Listing.parse(json.loads(gang.mirror.listing.to_bytes())).files[0]
    first, second = units_of(file)
    cache = SharedCache(str(shared))
    one, other = SharedCacheFetcher(cache), SharedCacheFetcher(cache)

    one.reject(first)
    (fetched,) = other.fetch([second], lambda *_: None)
    for fetcher in (one, other):
        fetcher.close()

    assert fetched.sha256 == second.chunk.sha256
    assert not cache.has(file)


def test_a_directory_that_vanishes_is_made_again(gang: PeerGroup, shared: Path) -> None:
    """All of it may be deleted at any moment."""
    _deliver(gang, 0, shared)
    shared.rename(shared.with_name("elsewhere"))

    for number in (1, 2):
        _deliver(gang, number, shared)

    _check(gang)


def test_a_node_that_is_killed_while_it_brings(gang: PeerGroup, shared: Path) -> None:
    """Its claim is taken over once nobody has renewed it, and what it wrote has no final name."""
    with serve_mirror(gang.mirror) as server:
        request = gang.nodes[0].delivery(
            mirror=mirror_location(server), shared={"dir": str(shared)}, max_rate=4_000_000
        )
        process = gang.nodes[0].popen("deliver", request)
        await_movement(process)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    _whole(shared)
    for claim in (shared / "claims").iterdir():
        claim.unlink()  # as the next one does after half a minute of its own clock

    for number in range(3):
        _deliver(gang, number, shared)

    _check(gang)
    _whole(shared)


def test_what_was_left_half_brought_is_brought_anew(gang: PeerGroup, shared: Path) -> None:
    """Nobody goes on with it, so it counts as nothing: all that a plan is told is missing comes from the mirror."""
    left = gang.mirror.listing.files[0]
    (shared / "incoming").mkdir(parents=True)
    half = shared / "incoming" / f".{left.sha256}.1.0a1b2c3d"
    half.write_bytes(gang.mirror.files[left.path])
    blobs = [file.sha256 for file in gang.mirror.listing.files]

    there = gang.nodes[0].cached(shared={"dir": str(shared)}, blobs=blobs)
    result = _deliver(gang, 0, shared)

    assert (there["blobs"], there["shared"], there.get("arrived", {})) == ([], [], {})
    assert result["bytes_mirror"] == gang.mirror.listing.size
    assert left.sha256 in _whole(shared)
    assert half.exists()


def test_what_was_used_longest_ago_makes_room(gang: PeerGroup, shared: Path) -> None:
    """Within its limit the directory holds the newest listing; the one before goes, and nodes keep theirs."""
    first = gang.mirror.listing
    limit = first.size + 1000
    _deliver(gang, 0, shared, size=limit)
    gang.mirror.forget()
    gang.mirror.add("d.bin", os.urandom(CHUNK_BYTES + 5))

    _deliver(gang, 0, shared, size=limit)

    assert _whole(shared) == {gang.mirror.listing.files[0].sha256}


def test_weights_that_are_larger_than_the_limit_pass_by(gang: PeerGroup, shared: Path) -> None:
    """They come straight from the mirror, and nothing goes for them."""
    result = _deliver(gang, 0, shared, size=1000)

    assert result["bytes_mirror"] == gang.mirror.listing.size
    assert _whole(shared) == set()


def test_a_lineage_takes_its_own_along(gang: PeerGroup, shared: Path) -> None:
    """What another lineage needs too stays; what nobody needs goes."""
    _deliver(gang, 0, shared)
    common = gang.mirror.files["a.bin"]
    gang.mirror.forget()
    gang.mirror.add("common.bin", common)
    gang.nodes[1].deliver(shared={"dir": str(shared)}, lineage="lineage-2")

    told = gang.nodes[0].call(
        "forget_cache", {"lineage": "lineage-1", "shared": {"dir": str(shared)}}
    )

    assert _whole(shared) == {hashlib.sha256(common).hexdigest()}
    assert told["freed"] > 2**21


def test_a_query_tells_what_the_directory_has(gang: PeerGroup, shared: Path) -> None:
    """Plans count those bytes as the cluster's."""
    _deliver(gang, 0, shared)
    known = gang.mirror.listing.files[0].sha256

    answer = gang.nodes[1].cached(blobs=[known, "0" * 64], shared={"dir": str(shared)})

    assert (answer["blobs"], answer["shared"]) == ([], [known])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")
def test_two_users_of_a_group_share_it(tmp_path: Path) -> None:
    """What one brought the other takes, and makes room by what the one used; what neither needs goes."""
    mirrors = {}
    with place_of_group() as place:
        for name in ("both", "one"):
            mirrors[name] = MirrorFixture(place.parent / f"mirror-{name}")
            mirrors[name].add("a.bin", os.urandom(CHUNK_BYTES + 99))
            mirrors[name].add("b.json", os.urandom(99))
        shared = {"dir": str(place / "cache"), "size": 3 * CHUNK_BYTES}

        def bring(user: int, name: str, shared: dict[str, Any] = shared) -> DeliverResponse:
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
        bring(0, "one", {"dir": str(tmp_path / "loaded")})
        SharedCache(str(tmp_path / "loaded")).forget("lineage-0")
        first, second = bring(ONE, "both"), bring(OTHER, "both")
        bring(OTHER, "one")
        with as_user(ONE):
            kept = SharedCache(shared["dir"]).forget(f"lineage-{ONE}")
        with as_user(OTHER):
            freed = SharedCache(shared["dir"]).forget(f"lineage-{OTHER}")

    size = CHUNK_BYTES + 2 * 99
    assert (first["bytes_cluster"], second["bytes_mirror"], kept) == (0, 0, 0)
    assert second["bytes_cluster"] == size
    assert freed == 2 * size


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")
def test_a_directory_that_is_not_for_the_group_is_named(tmp_path: Path) -> None:
    """And how one has to be that is: it is not about the node's own."""
    with place_of_group(0o755) as place:
        (place / "cache").mkdir(0o700)
        with as_user(ONE), pytest.raises(OSError, match="denied") as refused:
            SharedCache(str(place / "cache")).refer("lineage-1", Listing(()))
        with as_user(ONE):
            told = from_os_error(refused.value, "/node")

    assert told.summary.startswith("cannot use ")
    assert told.detail.startswith(f"Make {place / 'cache'}")
    assert " readable and writable for user " in told.detail
    assert "mode 2770" in told.detail
    assert "/node" not in told.detail
