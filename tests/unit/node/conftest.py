"""Nodes for tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.container_fixtures import (
    engine,
    own_apptainer,
    own_docker,
    own_podman,
    own_registry,
    private_registry,
)
from tests.support.node_program.nodes import NodeHarness, nobody_prefix
from tests.support.node_program.saved_runs import its_store, saved_run, stopped_clock

__all__ = [
    "engine",
    "its_store",
    "own_apptainer",
    "own_docker",
    "own_podman",
    "own_registry",
    "private_registry",
    "saved_run",
    "stopped_clock",
]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeHarness]:
    """A node run by this user."""
    node = NodeHarness(tmp_path)
    yield node
    node.close()


AS_ROOT = [pytest.param("self", marks=pytest.mark.long), "nobody"]


@pytest.fixture(params=AS_ROOT if nobody_prefix() else ["self"])
def any_node(request: pytest.FixtureRequest) -> Iterator[NodeHarness]:
    """A node run by this user, and by a user without privileges, who can't enter pytest's directories."""
    prefix = nobody_prefix() if request.param == "nobody" else []
    base = Path(tempfile.mkdtemp(prefix="trainctl-test-node-"))
    base.chmod(0o777)
    node = NodeHarness(base, python="/usr/bin/python3" if prefix else None, prefix=prefix)
    yield node
    node.close()
    shutil.rmtree(base, ignore_errors=True)
