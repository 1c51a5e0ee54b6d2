"""Fixtures of container engines, for the folders whose conftest imports them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.machines.apptainer import Apptainer, apptainer
from tests.support.machines.containers import (
    ContainerRegistry,
    EngineHarness,
    docker,
    podman,
    registry,
)


@pytest.fixture(scope="session")
def own_podman() -> Iterator[EngineHarness]:
    """Podman with storage of this test session's own."""
    with ExitStack() as stack:
        top = stack.enter_context(tempfile.TemporaryDirectory(prefix="trainctl-podman-"))
        yield stack.enter_context(podman(Path(top)))


@pytest.fixture(scope="session")
def own_docker(own_podman: EngineHarness) -> Iterator[EngineHarness]:
    """The docker CLI on the same storage."""
    with docker(own_podman, own_podman.top) as engine:
        yield engine


@pytest.fixture(scope="session")
def own_apptainer(own_podman: EngineHarness, own_registry: ContainerRegistry) -> Apptainer:
    """Apptainer, which finds images in the registry."""
    return apptainer(own_podman.top / "apptainer", own_registry, own_podman)


@pytest.fixture(
    params=[
        "podman",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("docker", "apptainer")),
    ]
)
def engine(request: pytest.FixtureRequest) -> EngineHarness:
    """Each engine of this machine, with a small image."""
    harness: EngineHarness = request.getfixturevalue(f"own_{request.param}")
    return harness


@pytest.fixture(scope="session")
def own_registry(own_podman: EngineHarness) -> Iterator[ContainerRegistry]:
    """A registry that lets everybody in."""
    with registry(own_podman, own_podman.top / "registry") as result:
        yield result


@pytest.fixture(scope="session")
def private_registry(own_podman: EngineHarness) -> Iterator[ContainerRegistry]:
    """A registry that asks for a login."""
    with registry(own_podman, own_podman.top / "private", private=True) as result:
        yield result
