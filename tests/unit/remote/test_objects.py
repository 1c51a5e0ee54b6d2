"""Objects of a host through the packed node program, under the oldest Python of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_program.agents import node_at
from trainctl.errors import StorageError
from trainctl.remote.agent import NodeAgent
from trainctl.remote.objects import HostDirectory, HostObjects
from trainctl.store import keys
from trainctl_local import LocalTransport

LARGE = bytes(range(256)) * 20_000


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[HostObjects]:
    agent = NodeAgent(node_at(tmp_path), LocalTransport())
    directory = HostDirectory("node://lab/store", str(tmp_path / "store"))
    yield HostObjects(lambda: directory, lambda installs: agent)
    agent.end()


def test_objects_travel_whole(objects: HostObjects, tmp_path: Path) -> None:
    key, lease = keys.blob("a" * 64), keys.lease_of("source", "pin")
    objects.put(key, LARGE)
    assert objects.put_if_absent(lease, b"first")
    assert not objects.put_if_absent(lease, b"second")

    assert (tmp_path / "store" / key).read_bytes() == LARGE
    assert objects.get(key) == LARGE
    assert objects.get(lease) == b"first"
    assert [(stat.key, stat.size) for stat in objects.list(keys.BLOBS)] == [(key, len(LARGE))]
    objects.delete([key, lease])
    assert objects.stat(key) is None


def test_an_error_of_the_directory_is_the_error_here(objects: HostObjects, tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"a file")
    with pytest.raises(StorageError, match="mirror"):
        objects.put(keys.lease_of("source", "pin"), b"x")
