from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.bucket_stores import SERVERS, Server, objects_in
from tests.support.host_agent import HostAgent
from trainctl.base.objects import ObjectStore
from trainctl.remote.objects import HostDirectory, HostObjects
from trainctl.store import lease
from trainctl.store.directory import DirectoryObjects
from trainctl.store.memory import MemoryObjects

IN_PROCESS = ("memory", "directory", "host")
MakeObjects = Callable[[str], ObjectStore]


def _in_bucket(name: str) -> object:
    return pytest.param(name, marks=pytest.mark.integration)


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
def make_objects(tmp_path: Path, server: Callable[[str], Server]) -> MakeObjects:
    """An empty store of a kind."""

    def make(kind: str) -> ObjectStore:
        if kind == "memory":
            return MemoryObjects()
        if kind == "directory":
            return DirectoryObjects(tmp_path / "store")
        if kind == "host":
            agent = HostAgent()
            directory = HostDirectory("node://lab/store", str(tmp_path / "store"))
            return HostObjects(lambda: directory, lambda installs: agent)
        return objects_in(server(kind), secrets.token_hex(8))

    return make


@pytest.fixture(params=[*IN_PROCESS, _in_bucket("s3")])
def objects(request: pytest.FixtureRequest, make_objects: MakeObjects) -> ObjectStore:
    return make_objects(request.param)


@pytest.fixture(params=[*IN_PROCESS, *map(_in_bucket, SERVERS)])
def any_objects(request: pytest.FixtureRequest, make_objects: MakeObjects) -> ObjectStore:
    """Over each kind of server; for tests of few requests."""
    return make_objects(request.param)
