"""A limit in bytes a second, by a clock that the test owns, and who is held to it."""

from __future__ import annotations

import json

import pytest

from tests.support.node_program.nodes import NodeHarness, NodeProgramError
from trainctl.base.throughput import RateLimiter


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def tell(self) -> float:
        """Seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Wait."""
        self.now += seconds


def test_without_a_rate_nobody_waits() -> None:
    """However much is spent."""
    clock = Clock()
    rate_limiter = RateLimiter(None, clock.tell, clock.sleep)

    rate_limiter.acquire(10**12)

    assert clock.now == 0


@pytest.mark.parametrize("rate", [0, -1, "fast"])
def test_a_rate_that_is_none_is_refused(node: NodeHarness, rate: object) -> None:
    """A request with one moves nothing."""
    node.mirror.add("config.json", json.dumps({}).encode())

    with pytest.raises(NodeProgramError, match="not a number of bytes per second"):
        node.deliver(max_rate=rate)
