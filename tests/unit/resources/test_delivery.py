"""Delivery to the nodes of a run, which don't see the operator's disk."""

from __future__ import annotations

import random
import shutil
import socket
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.node_program.nodes import wait_for
from tests.support.storage.mirrors import REFERENCE, MemorySource, ingest, mirror_at
from trainctl.apply.step import ApplyStep
from trainctl.base.listing import CHUNK_BYTES, Listing
from trainctl.errors import NodeError
from trainctl.ledger.state import RecordedResource
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.model.delivery import DeliveryRecord
from trainctl.model.specs.resource import ClusterSpec
from trainctl.plugin_api.discovery import load_provider
from trainctl.plugin_api.provider import Capabilities, ClusterSettings
from trainctl.remote import agent
from trainctl.resources.agents import Agents, ProjectContext
from trainctl.resources.delivery import Delivery, RankAssignment
from trainctl.resources.mirror.access import DirectoryMirrorAccess
from trainctl.resources.mirror.node_server import PeerServers

pytestmark = pytest.mark.integration

WEIGHTS = Address.parse("weights.model")
JOB = Address.parse("job.sft")
CLUSTER = {"provider": "far"}


class Lab:
    """Nodes of this machine, treated as if they were others, and a mirror with one listing."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(base / "cache"))
        monkeypatch.setenv("XDG_DATA_HOME", str(base / "data"))
        monkeypatch.delenv("SSH_CONNECTION", raising=False)
        self.provider = load_provider("local")
        monkeypatch.setattr(self.provider, "capabilities", Capabilities())
        self.agents = Agents(lambda name: self.provider)
        self.files: dict[str, bytes] = {}
        self.mirror = base / "mirror"
        self.store = mirror_at(self.mirror)
        self.tokens: list[str] = []
        self.announced: list[tuple[str, int, int]] = []

    def seats(self, count: int, shared: Path | None = None) -> list[RankAssignment]:
        """So many nodes, whose cluster may have a cache in a directory."""
        attributes = {**CLUSTER, "cache": {"cluster": {"dir": str(shared)}} if shared else None}
        cluster = ClusterSettings("lab", {"nodes": count})
        nodes = [self.provider.create(cluster, f"lab-{n}", f"key-{n}") for n in range(count)]
        spec = ClusterSpec.from_attributes(attributes)
        return [RankAssignment(node, self.agents.of("far", node), spec) for node in nodes]

    @cached_property
    def listing(self) -> Listing:
        """What the mirror holds."""
        source = MemorySource(self.files, piece=2**20)
        return ingest(self.store, source.resolve("memory://model", None, None), source, REFERENCE)

    def deliver(self, seats: list[RankAssignment]) -> tuple[DeliveryRecord, ...]:
        """Deliver what the mirror holds."""
        listing = self.listing

        def register(token: str) -> str:
            self.tokens.append(token)
            return token

        access = DirectoryMirrorAccess(self.agents, str(self.mirror), register)
        home = ProjectContext(Path("/"), "lineage", "somebody", "project")
        delivery = Delivery(self.store, home, access)
        recorded = RecordedResource(WEIGHTS, "", {"source": "file:./model"}, {})
        step = ApplyStep(
            JOB, Action.CREATE, "run-1", {}, None, (), None, lambda address: recorded,
            lambda *announced: self.announced.append(announced), lambda address: 0.0,
        )  # fmt: skip
        listings = delivery.listings({str(WEIGHTS): listing.id})
        return delivery.deliver(step, seats, listings)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A mirror that holds a file of several chunks and a small one."""
    lab = Lab(tmp_path, monkeypatch)
    lab.files["model.bin"] = random.Random(7).randbytes(3 * CHUNK_BYTES + 5)
    lab.files["config.json"] = b"{}"
    yield lab
    lab.agents.close()


def _check(lab: Lab, seat: RankAssignment) -> None:
    tree = Path(seat.node.root) / "cache" / "trees" / lab.listing.id
    assert {path.name: path.read_bytes() for path in tree.iterdir()} == lab.files


def test_one_node_gets_them_through_the_operators_process(lab: Lab) -> None:
    """The row says so, with every byte, and the token was registered for redaction."""
    seats = lab.seats(1)

    (row,) = lab.deliver(seats)

    _check(lab, seats[0])
    size = lab.listing.size
    assert (row.rank, row.node, row.path) == (0, "lab/lab-0", "through-client")
    assert (row.moved, row.bytes_by_tier["mirror"], row.bytes_through_client) == (
        size,
        size,
        size,
    )
    assert len(lab.tokens) == 1
    assert lab.announced[-1][1:] == (size, size)


def test_several_nodes_get_them_from_each_other(lab: Lab) -> None:
    """Together they take one copy from the mirror, and one bar adds them up."""
    seats = lab.seats(3)

    rows = lab.deliver(seats)

    for seat in seats:
        _check(lab, seat)
    size = lab.listing.size
    assert [row.node for row in rows] == ["lab/lab-0", "lab/lab-1", "lab/lab-2"]
    assert sum(row.bytes_by_tier["mirror"] for row in rows) == size
    assert sum(row.bytes_through_client for row in rows) == size
    assert sum(row.bytes_by_tier["peers"] for row in rows) == 2 * size
    assert {row.path for row in rows} == {"peers"}
    assert max(done for _, done, total in lab.announced) == 3 * size


@pytest.mark.parametrize("at_once", [2**20, 0])
def test_listings_follow_what_nodes_are_asked(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """As rows, with the request or, if they are many, in a stream of their own: to servers and to deliveries."""
    monkeypatch.setattr(agent, "_SESSION_BYTES", at_once)
    seats = lab.seats(2)

    rows = lab.deliver(seats)

    for seat in seats:
        _check(lab, seat)
    size = lab.listing.size
    assert sum(row.bytes_by_tier["mirror"] for row in rows) == size
    assert sum(row.bytes_by_tier["peers"] for row in rows) == size


def test_several_nodes_get_them_from_a_shared_directory(lab: Lab, tmp_path: Path) -> None:
    """Where the cluster has one, a single copy leaves the mirror and no node serves another."""
    seats = lab.seats(2, tmp_path / "shared")

    rows = lab.deliver(seats)

    for seat in seats:
        _check(lab, seat)
    size = lab.listing.size
    assert sum(row.bytes_by_tier["mirror"] for row in rows) == size
    assert sum(row.bytes_by_tier["cluster"] for row in rows) == size
    assert {row.path for row in rows} == {"shared-cache"}
    assert len(lab.tokens) == 2


def test_a_second_delivery_moves_nothing(lab: Lab) -> None:
    """What all nodes have is asked of nobody."""
    seats = lab.seats(2)
    lab.deliver(seats)

    rows = lab.deliver(seats)

    assert [(row.path, row.moved) for row in rows] == [("none", 0)] * 2


def test_a_node_that_fails_is_named_and_the_others_are_served(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that can't be written is that node's error; the other nodes have everything, wait no more for what it doesn't get, and hold no lease."""
    seats = lab.seats(3)
    left: list[str] = []
    (Path(seats[1].node.root) / "cache").write_text("in the way")
    leave = PeerServers.leave

    def seen(peers: PeerServers, node_id: str) -> None:
        left.append(node_id)
        leave(peers, node_id)

    monkeypatch.setattr(PeerServers, "leave", seen)

    with pytest.raises(NodeError, match=r"lab/lab-1") as raised:
        lab.deliver(seats)

    assert left == ["lab/lab-1"]
    assert "lab/lab-0" not in str(raised.value)
    for seat in (seats[0], seats[2]):
        _check(lab, seat)
        assert not (Path(seat.node.root) / "cache" / "leases" / "run-1").exists()


def test_who_leaves_serves_nobody_any_more(lab: Lab) -> None:
    """Its port is closed while the others go on."""
    seats = lab.seats(2)
    nodes = [(one.node, one.agent, {"root": one.node.root}) for one in seats]
    with PeerServers(nodes, [lab.listing], lambda token: token) as peers:
        announced = peers.announced()
        peers.leave(seats[0].node.id)
        wait_for(lambda: not _answers(announced[seats[0].node.id]))
        assert _answers(announced[seats[1].node.id])


def _answers(peer: Mapping[str, Any]) -> bool:
    url = urlsplit(peer["urls"][0])
    try:
        socket.create_connection((url.hostname, url.port), 5).close()
    except (ConnectionRefusedError, ConnectionResetError):  # reset: it closes just now
        return False
    return True


def test_errors_of_several_nodes_are_all_told(lab: Lab) -> None:
    """The first is the error, the others are in its detail."""
    seats = lab.seats(3)
    assert lab.listing.files
    shutil.rmtree(lab.mirror / "blobs")

    with pytest.raises(NodeError, match=r"lab/lab-0") as raised:
        lab.deliver(seats)

    assert "lab/lab-1" in str(raised.value)
    assert "lab/lab-2" in str(raised.value)
