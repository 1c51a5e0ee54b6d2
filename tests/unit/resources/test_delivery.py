"""Delivery to the nodes of a run, which don't see the operator's disk."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.support.storage.mirrors import MemorySource, ingest, mirror_at
from trainctl.apply.step import ApplyStep
from trainctl.base.listing import CHUNK_BYTES
from trainctl.errors import NodeError
from trainctl.inputs.environment import RunPaths
from trainctl.ledger.state import RecordedResource
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.model.delivery import DeliveryRecord
from trainctl.model.specs.resource import ClusterSpec
from trainctl.plugin_api.discovery import load_provider
from trainctl.plugin_api.provider import Capabilities, ClusterSettings
from trainctl.resources.agents import Agents, ProjectContext
from trainctl.resources.delivery import Delivery, PlacedRank
from trainctl.resources.mirror_access import DirectoryMirrorAccess, PeerServers

pytestmark = pytest.mark.integration

WEIGHTS = Address.parse("weights.model")
FILES = {"model.bin": random.Random(7).randbytes(2 * CHUNK_BYTES + 5), "config.json": b"{}"}
SIZE = sum(map(len, FILES.values()))


class Lab:
    """Three nodes of this machine, treated as if they were others, and a mirror with one listing."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(base / "cache"))
        monkeypatch.setenv("XDG_DATA_HOME", str(base / "data"))
        monkeypatch.delenv("SSH_CONNECTION", raising=False)
        provider = load_provider("local")
        monkeypatch.setattr(provider, "capabilities", Capabilities())
        self.agents = Agents(lambda name: provider)
        self.progress: list[int] = []
        self._mirror = base / "mirror"
        self._store = mirror_at(self._mirror)
        source = MemorySource(FILES, piece=2**20)
        self._listing = ingest(self._store, source.resolve("memory://model", None, None), source)
        cluster = ClusterSettings("lab", {"nodes": 3})
        nodes = [provider.create(cluster, f"lab-{n}", f"key-{n}") for n in range(3)]
        spec = ClusterSpec.from_attributes({"provider": "far"})
        self.ranks = [
            PlacedRank(number, node, self.agents.of("far", node), spec, cast(RunPaths, None))
            for number, node in enumerate(nodes)
        ]

    def deliver(self) -> tuple[DeliveryRecord, ...]:
        access = DirectoryMirrorAccess(self.agents, str(self._mirror), lambda token: token)
        home = ProjectContext(Path("/"), "lineage", "somebody", "project")
        delivery = Delivery(self._store, home, access)
        recorded = RecordedResource(WEIGHTS, "", {"source": "file:./model"}, {})
        step = ApplyStep(
            Address.parse("job.sft"), Action.CREATE, "run-1", {}, None, (), None, lambda address: recorded,
            lambda phase, done, total: self.progress.append(done), lambda address: 0.0,
        )  # fmt: skip
        listings = delivery.listings({str(WEIGHTS): self._listing.id})
        return delivery.deliver(step, self.ranks, listings)

    def files(self, rank: int) -> dict[str, bytes]:
        tree = Path(self.ranks[rank].node.root) / "cache" / "trees" / self._listing.id
        return {path.name: path.read_bytes() for path in tree.iterdir()}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    lab = Lab(tmp_path, monkeypatch)
    yield lab
    lab.agents.close()


def test_one_copy_leaves_the_mirror_and_a_second_delivery_moves_nothing(lab: Lab) -> None:
    rows = lab.deliver()

    assert all(lab.files(rank) == FILES for rank in range(3))
    assert [row.node for row in rows] == ["lab/lab-0", "lab/lab-1", "lab/lab-2"]
    assert {row.path for row in rows} == {"peers"}
    assert sum(row.bytes_by_tier["mirror"] for row in rows) == SIZE
    assert sum(row.bytes_through_client for row in rows) == SIZE
    assert sum(row.bytes_by_tier["peers"] for row in rows) == 2 * SIZE
    assert max(lab.progress) == 3 * SIZE
    assert [(row.path, row.moved) for row in lab.deliver()] == [("none", 0)] * 3


def test_a_node_that_fails_is_named_and_the_others_are_served(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops serving the others, who get everything, and no node keeps a lease."""
    left: list[str] = []
    leave = PeerServers.leave

    def record(peers: PeerServers, node_id: str) -> None:
        left.append(node_id)
        leave(peers, node_id)

    monkeypatch.setattr(PeerServers, "leave", record)
    (Path(lab.ranks[1].node.root) / "cache").write_text("in the way")
    with pytest.raises(NodeError, match=r"lab/lab-1") as raised:
        lab.deliver()

    assert left == ["lab/lab-1"]
    assert "lab/lab-0" not in str(raised.value)
    for rank in (0, 2):
        assert lab.files(rank) == FILES
        root = Path(lab.ranks[rank].node.root)
        assert not (root / "cache" / "leases" / "run-1").exists()
