"""Shown output is compared with real output: what may differ, and what may not."""

from __future__ import annotations

import pytest

from tests.docs.comparison import displayed, matches
from tests.support.cases import cases

PLACES = {"/tmp/x/home": "/home/alice", "root@vm": "alice@laptop"}


@pytest.mark.parametrize("case", cases("docs/comparison"))
def test_only_changing_values_may_differ(
    case: list[list[str]], request: pytest.FixtureRequest
) -> None:
    """Times, rates, ids, digests, ports, directories, users; the order of results; progress."""
    wanted = request.node.callspec.id == "equal"
    for shown, real in case:
        a, b = shown.splitlines(), real.splitlines()
        assert matches(a, b, a, b, PLACES) is wanted, (shown, real)


def test_output_is_written_into_pages_without_private_names() -> None:
    """The home directory and the user are replaced, progress is left out."""
    real = ["job.a: creating…", "root@vm wrote /tmp/x/home/a"]
    assert displayed(real, PLACES) == ["alice@laptop wrote /home/alice/a"]
