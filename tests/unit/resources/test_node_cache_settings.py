"""What the node program is told of a cluster's caches of weights."""

from __future__ import annotations

import pytest

from trainctl.model.specs.resource import ClusterSpec
from trainctl.plugin_api.provider import Node
from trainctl.resources.clusters import cache_target

NODE = Node("lab", "lab-0", "127.0.0.1", "/root-of-it", "/data-of-it", "python3")


@pytest.mark.parametrize(
    ("cache", "told"),
    [
        (None, {}),
        ({"node": None, "cluster": None}, {}),
        ({"node": None, "cluster": None, "max_rate": "100MB"}, {"max_rate": 10**8}),
        ({"max_rate": 5_000_000}, {"max_rate": 5_000_000}),
    ],
)
def test_a_limit_of_the_mirrors_rate_is_told(
    cache: dict[str, object] | None, told: dict[str, int]
) -> None:
    """In bytes a second; nothing is said where there is none."""
    everywhere = {"root": "/root-of-it", "cache": {"dir": None, "size": None}}

    assert cache_target(NODE, ClusterSpec.from_attributes({"cache": cache})) == {
        **everywhere,
        **told,
    }
