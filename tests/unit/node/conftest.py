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
from tests.support.tiers import one_day_in

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


@pytest.fixture(params=[pytest.param("self", marks=one_day_in(3)), "nobody"])
def any_node(request: pytest.FixtureRequest) -> Iterator[NodeHarness]:
    """A node run by this user, and one run by a user without privileges, who can't enter pytest's directories."""
    prefix = nobody_prefix() if request.param == "nobody" else []
    if request.param == "nobody" and not prefix:
        pytest.skip("needs root and setpriv to become user nobody")
    base = Path(tempfile.mkdtemp(prefix="trainctl-test-node-"))
    base.chmod(0o777)
    node = NodeHarness(base, python="/usr/bin/python3" if prefix else None, prefix=prefix)
    yield node
    node.close()
    shutil.rmtree(base, ignore_errors=True)
