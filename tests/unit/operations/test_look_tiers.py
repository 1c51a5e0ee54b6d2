"""What a node is asked of weights with very many files is what it is asked of a few."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.nodes import TestNode
from tests.support.weights_data import noise
from trainctl.base.listing import CHUNK_BYTES
from trainctl.base.protocol.weights import CACHE_QUERY
from trainctl.model.address import Address
from trainctl.node.system.layout import layout_of
from trainctl.operations import look_tiers
from trainctl.operations.look_tiers import Counted, TierQuestion
from trainctl.plan.values import TierFacts
from trainctl.remote.agent import NodeAgent
from trainctl.spi.provider import Node
from trainctl.store.files import PartialFile
from trainctl.weights.mirror.known import Known
from trainctl.weights.mirror.partial import Arrived
from trainctl_local.transport import LocalTransport

WEIGHTS = Address.parse("weights.model")


@pytest.fixture
def node(tmp_path: Path) -> TestNode:
    """A node to which five files were delivered, for a run that has not begun."""
    node = TestNode(tmp_path, sys.executable)
    for number in range(5):
        node.mirror.add(f"f{number}", b"x" * (number + 1))
    node.deliver()
    return node


def counted(node: TestNode, known: Known) -> Counted:
    """What a node that is asked says."""
    described = Node("lab", "lab-0", "local", str(node.root), str(node.data), sys.executable)
    agent = NodeAgent(described, LocalTransport(), visiting=True)
    question = TierQuestion({"root": str(node.root)}, {WEIGHTS: known})
    answer = agent.call(CACHE_QUERY, question.request)
    return question.counted(agent, answer)[WEIGHTS]


@pytest.mark.parametrize("most", [100, 1])
def test_bytes_count_where_they_are_found_first(
    node: TestNode, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Of a listing that is there, of another with some of its contents, and of one that nobody knows; asked with all else, or by itself as that of many files is."""
    monkeypatch.setattr(look_tiers, "AS_TUPLE", most)
    mirrored = node.mirror.listing
    rows = tuple((file.sha256, file.size, True) for file in mirrored.files)
    others = (("0" * 64, 100, True), ("1" * 64, 1000, False), (None, 10000, False))

    whole = counted(node, Known(rows, mirrored.id))
    some = counted(node, Known((*rows[:2], *others), None))
    none = counted(node, Known(others[1:], None))

    assert whole == Counted(TierFacts(node=15), 0)  # the delivery's run needs it
    assert some == Counted(TierFacts(node=3, mirror=100, upstream=11000), 11100)
    assert none == Counted(TierFacts(upstream=11000), 11000)


@pytest.mark.parametrize("most", [100, 1])
def test_what_has_arrived_of_a_file_is_in_the_mirror(
    node: TestNode, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Of a file whose transfer broke off only the rest comes from upstream; what the node has comes from nowhere."""
    monkeypatch.setattr(look_tiers, "AS_TUPLE", most)
    here = node.mirror.listing.files[4]
    rows = (("1" * 64, 1000, False), (None, 10000, False), (here.sha256, here.size, False))
    arrived = {0: Arrived(300, 400), 1: Arrived(7000, 7000), 2: Arrived(1, 1)}

    some = counted(node, Known(rows, None, arrived))

    assert some.tiers == TierFacts(node=here.size, mirror=7300, upstream=3700)


@pytest.mark.parametrize("most", [100, 1])
def test_what_a_delivery_left_is_on_the_node(
    node: TestNode, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """The rest of a file comes from where it would; the run that leases it needs room for no more than that."""
    monkeypatch.setattr(look_tiers, "AS_TUPLE", most)
    data = noise(CHUNK_BYTES + 1000)
    node.mirror.add("large", data)
    (large,) = (one for one in node.mirror.listing.files if one.path == "large")
    node.deliver(lease="run-2")
    layout = layout_of({"root": str(node.root)})
    partial = PartialFile(layout.files, large)
    partial.missing()
    partial.write(0, bytearray(data[:CHUNK_BYTES]))
    partial.close()
    Path(layout.files.blob(large.sha256)).unlink()
    rows = ((large.sha256, large.size, True), ("1" * 64, 10, False))

    leased = counted(node, Known(rows, None))
    node.call("release", {"key": "run-2"})
    free = counted(node, Known(rows, None))

    assert leased == Counted(TierFacts(node=CHUNK_BYTES, mirror=1000, upstream=10), 1010)
    assert free == Counted(leased.tiers, large.size + 10)


def test_what_nobody_needs_may_go(node: TestNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing that is there, and that no live run leases, is claimed whole."""
    monkeypatch.setattr(look_tiers, "AS_TUPLE", 1)
    node.call("release", {"key": "run-1"})
    rows = tuple((file.sha256, file.size, True) for file in node.mirror.listing.files)

    assert counted(node, Known(rows, node.mirror.listing.id)) == Counted(TierFacts(node=15), 15)
