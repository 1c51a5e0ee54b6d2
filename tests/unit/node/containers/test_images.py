"""Images on a node: names and digests, errors of registries, and when images are removed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.apptainer import Apptainer
from tests.support.machines.containers import BUSYBOX, LOGIN, ContainerRegistry, EngineHarness
from tests.support.node_program.nodes import NodeHarness, NodeProgramError, all_text_below

pytestmark = pytest.mark.integration

with_storage = pytest.mark.parametrize(
    "engine", ["podman", pytest.param("docker", marks=pytest.mark.long)], indirect=True
)
"""Engines that keep images themselves, by the registry's digests."""


@pytest.fixture
def held(node: NodeHarness, engine: EngineHarness) -> NodeHarness:
    """A node that finds the engine."""
    node.variables = engine.variables
    return node


def pull(node: NodeHarness, image: str, engine: str, **more: Any) -> dict[str, Any]:
    request = {"lineage": "lineage-1", "image": image, "engine": engine, **more}
    return node.call("pull_image", request)


def remove_image(engine: EngineHarness, image: str) -> None:
    engine("image", "rm", "--force", image, check=False)


def variant(podman: EngineHarness, tmp_path: Path, text: str) -> str:
    """Build a new image; return its name."""
    (tmp_path / "file").write_text(text)
    (tmp_path / "Containerfile").write_text(f"FROM {BUSYBOX}\nCOPY file /file\n")
    podman("build", "--quiet", "--tag", "localhost/variant:1", str(tmp_path))
    return "localhost/variant:1"


def published(
    podman: EngineHarness, registry: ContainerRegistry, tmp_path: Path, name: str, text: str
) -> str:
    """Put a new image into a registry only; return its digest."""
    image = variant(podman, tmp_path, text)
    digest = registry.push(podman, image, name)
    remove_image(podman, podman("image", "inspect", "--format", "{{.Id}}", image))
    return digest


@with_storage
def test_a_tag_becomes_a_digest(
    held: NodeHarness,
    engine: EngineHarness,
    own_podman: EngineHarness,
    own_registry: ContainerRegistry,
    tmp_path: Path,
) -> None:
    """The registry's digest; an image is pulled once; a tag that moved has another digest."""
    name = f"team/{engine.name}"
    full = f"{own_registry.address}/{name}:1"
    first = published(own_podman, own_registry, tmp_path, f"{name}:1", f"one {name}")
    pulled = pull(held, full, engine.name)
    lines = [event["line"] for event in held.events]
    again = pull(held, full, engine.name)
    second = published(own_podman, own_registry, tmp_path, f"{name}:1", f"two {name}")
    moved = pull(held, full, engine.name)
    by_digest = pull(held, f"{own_registry.address}/{name}@{first}", engine.name)

    assert (pulled["digest"], pulled["pulled"], pulled["note"]) == (first, True, "")
    assert any(lines)
    assert (again["digest"], again["pulled"]) == (first, False)
    assert (moved["digest"], moved["pulled"]) == (second, True)
    assert (by_digest["id"], by_digest["pulled"]) == (pulled["id"], False)
    assert moved["id"] != pulled["id"]


@pytest.mark.long
def test_a_private_registry_needs_a_login(
    held: NodeHarness,
    engine: EngineHarness,
    own_podman: EngineHarness,
    private_registry: ContainerRegistry,
    tmp_path: Path,
) -> None:
    """It is stored in no file."""
    name = f"{private_registry.address}/secret/{engine.name}:1"
    image = variant(own_podman, tmp_path, engine.name)
    private_registry.push(own_podman, image, f"secret/{engine.name}:1", "--creds", LOGIN)
    remove_image(own_podman, "localhost/variant:1")
    remove_image(own_podman, name)
    username, _, password = LOGIN.partition(":")
    login = {"registry": private_registry.address, "username": username, "password": password}
    for wrong in (None, {**login, "password": "guessed it"}):
        with pytest.raises(
            NodeProgramError, match=r"the registry denied access.*image\.docker_auth"
        ):
            pull(held, name, engine.name, login=wrong)
    assert pull(held, name, engine.name, login=login)["pulled"]
    assert password.encode() not in all_text_below(held.base)
    assert list(held.root.glob("login-*")) == []
    assert b"c29tZW9uZTpjb3JyZWN0" not in all_text_below(held.base)


@with_storage
def test_the_last_lineage_removes_an_image(
    held: NodeHarness,
    engine: EngineHarness,
    own_podman: EngineHarness,
    own_registry: ContainerRegistry,
    tmp_path: Path,
) -> None:
    """One that was here before stays."""
    name = f"gone/{engine.name}:1"
    own_registry.push(own_podman, variant(own_podman, tmp_path, f"gone {engine.name}"), name)
    remove_image(own_podman, "localhost/variant:1")
    full = f"{own_registry.address}/{name}"
    remove_image(own_podman, full)
    identity = pull(held, full, engine.name)["id"]
    pull(held, full, engine.name, lineage="lineage-2")
    pull(held, BUSYBOX, engine.name)

    held.call("forget", {"lineage": "lineage-1"})
    assert engine("image", "inspect", "--format", "{{.Id}}", identity)
    held.call("forget", {"lineage": "lineage-2"})
    assert engine("image", "inspect", identity, check=False) in ("", "[]")
    assert engine("image", "inspect", "--format", "{{.Id}}", BUSYBOX)
    assert not (held.root / "images").exists()


@pytest.mark.long
def test_apptainers_images_are_files_that_the_last_lineage_removes(
    node: NodeHarness, own_apptainer: Apptainer
) -> None:
    """With downloads of apptainer, and of a pull that was killed."""
    node.variables = own_apptainer.variables
    killed = node.root / "images/pulling-999999999-x"
    killed.mkdir(parents=True)
    first = pull(node, own_apptainer.small, "apptainer")
    again = pull(node, own_apptainer.small, "apptainer", lineage="lineage-2")
    file = Path(first["id"])

    assert (first["pulled"], again["pulled"], again["id"]) == (True, False, str(file))
    assert first["digest"] == f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    assert not killed.exists()
    node.call("forget", {"lineage": "lineage-1"})
    assert file.is_file()
    node.call("forget", {"lineage": "lineage-2"})
    assert not (node.root / "images").exists()
    assert list(node.home.rglob("cache")) == []
