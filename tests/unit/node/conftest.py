"""Nodes for tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nodes import TestNode, as_nobody


@pytest.fixture
def node(tmp_path: Path) -> Iterator[TestNode]:
    """A node run by this user."""
    node = TestNode(tmp_path)
    yield node
    node.close()


@pytest.fixture(params=["self", "nobody"])
def any_node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TestNode]:
    """A node run by this user, and one run by a user without privileges."""
    if request.param == "nobody" and not as_nobody():
        pytest.skip("needs root and setpriv to become user nobody")
    if request.param == "nobody":
        for path in (tmp_path, *list(tmp_path.parents)[:2]):
            path.chmod(0o755)
        tmp_path.chmod(0o777)
    prefix = as_nobody() if request.param == "nobody" else []
    node = TestNode(tmp_path, python="/usr/bin/python3" if prefix else _python(), prefix=prefix)
    yield node
    node.close()


def _python() -> str:
    import sys

    return sys.executable
