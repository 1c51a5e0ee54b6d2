"""Where the bytes of weights are, by what a node says of its cache."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.node_program.nodes import NodeHarness
from trainctl.model.address import Address
from trainctl.node.cache.disk_space import cache_query
from trainctl.operations.survey.weights import TierCount, TierQuery
from trainctl.plan.values import TierFacts
from trainctl.store.survey import SourceSurvey

WEIGHTS = Address.parse("weights.model")


@pytest.fixture
def node(tmp_path: Path) -> NodeHarness:
    """A node to which five files were delivered, for a run that has not begun."""
    node = NodeHarness(tmp_path, sys.executable)
    for number in range(5):
        node.mirror.add(f"f{number}", b"x" * (number + 1))
    node.deliver()
    return node


def counted(node: NodeHarness, survey: SourceSurvey) -> TierCount:
    """What a node that is asked says."""
    question = TierQuery({"root": str(node.root)}, {WEIGHTS: survey})
    return question.counted(cache_query(question.request))[WEIGHTS]


def test_bytes_count_in_the_tier_that_has_them_first(node: NodeHarness) -> None:
    """Of a listing on the node, of another with some of its blobs, and of an unknown one."""
    mirrored = node.mirror.listing
    rows = tuple((file.sha256, file.size, True) for file in mirrored.files)
    others = (("0" * 64, 100, True), ("1" * 64, 1000, False), (None, 10000, False))
    whole = SourceSurvey(rows, mirrored.id)

    assert counted(node, whole) == TierCount(TierFacts(node=15), 0)  # a run needs it
    some = counted(node, SourceSurvey((*rows[:2], *others)))
    assert some == TierCount(TierFacts(node=3, mirror=100, upstream=11000), 11100)
    assert counted(node, SourceSurvey(others[1:])) == TierCount(TierFacts(upstream=11000), 11000)
    node.call("release", {"key": "run-1"})
    assert counted(node, whole) == TierCount(TierFacts(node=15), 15)
