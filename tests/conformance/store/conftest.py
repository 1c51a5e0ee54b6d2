from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest

from tests.support.node_program.host_agent import HostAgent
from tests.support.servers.bucket_stores import SERVERS, Server, objects_in
from trainctl.base.objects import ObjectStore
from trainctl.remote.agent import NodeAgent
from trainctl.remote.objects import HostDirectory, HostObjects
from trainctl.store import lease
from trainctl.store.objects import DirectoryObjects, MemoryObjects

MakeObjects = Callable[[str], ObjectStore]
_IN_MEMORY = Path("/dev/shm")


@pytest.fixture(autouse=True)
def _no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "_SETTLE_SECONDS", 0)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """Servers of buckets by kind, each started when it is first asked for."""
    started: dict[str, Server] = {}
    with ExitStack() as stack:

        def start(name: str) -> Server:
            if name not in started:
                manager = SERVERS[name](tmp_path_factory.mktemp(name))
                started[name] = stack.enter_context(manager)
            return started[name]

        yield start


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory, in memory if possible: what is synced there costs nothing."""
    if not os.access(_IN_MEMORY, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=_IN_MEMORY) as directory:
        yield Path(directory)


@pytest.fixture
def make_objects(place: Path, server: Callable[[str], Server]) -> MakeObjects:
    """An empty store of a kind."""

    def make(kind: str) -> ObjectStore:
        if kind == "memory":
            return MemoryObjects()
        if kind == "directory":
            return DirectoryObjects(place / "store")
        if kind == "host":
            agent = cast(NodeAgent, HostAgent())
            directory = HostDirectory("node://lab/store", str(place / "store"))
            return HostObjects(lambda: directory, lambda installs: agent)
        return objects_in(server(kind), secrets.token_hex(8))

    return make


@pytest.fixture(params=["memory", "directory"])
def objects(request: pytest.FixtureRequest, make_objects: MakeObjects) -> ObjectStore:
    """For tests of what the store does with objects."""
    return make_objects(request.param)


@pytest.fixture(
    params=["host", *(pytest.param(name, marks=pytest.mark.integration) for name in SERVERS)]
)
def any_objects(request: pytest.FixtureRequest, make_objects: MakeObjects) -> ObjectStore:
    """For tests of the objects themselves."""
    return make_objects(request.param)
