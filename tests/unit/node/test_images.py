"""Images on a node: what a name means when a run starts, what a registry objects to, and whose images they are."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.containers import BUSYBOX, LOGIN, ContainerRegistry, EngineHarness
from tests.support.node_program.nodes import NodeHarness, NodeProgramError, all_text_below
from tests.support.tiers import one_day_in
from trainctl.node.containers.engines import ProgramResult
from trainctl.node.containers.images import is_registry_unreachable, pull_error

pytestmark = pytest.mark.integration

with_storage = pytest.mark.parametrize(
    "engine", ["podman", pytest.param("docker", marks=one_day_in(5))], indirect=True
)
"""Engines that keep images themselves, by the registry's digests; apptainer has files (``test_image_files``)."""


@pytest.fixture
def held(node: NodeHarness, engine: EngineHarness) -> NodeHarness:
    """A node that finds the engine."""
    node.variables = engine.variables
    return node


def pull(node: NodeHarness, image: str, engine: str, **more: Any) -> dict[str, Any]:
    """Ask for an image."""
    request = {"lineage": "lineage-1", "image": image, "engine": engine, **more}
    return node.call("pull_image", request)


def forgotten(engine: EngineHarness, image: str) -> None:
    """Make sure the engine doesn't have an image under that name."""
    engine("image", "rm", "--force", image, check=False)


def variant(podman: EngineHarness, tmp_path: Path, text: str) -> str:
    """An image that nobody has pulled before; its name."""
    (tmp_path / "file").write_text(text)
    (tmp_path / "Containerfile").write_text(f"FROM {BUSYBOX}\nCOPY file /file\n")
    podman("build", "--quiet", "--tag", "localhost/variant:1", str(tmp_path))
    return "localhost/variant:1"


def published(
    podman: EngineHarness, registry: ContainerRegistry, tmp_path: Path, name: str, text: str
) -> str:
    """Put a new image into a registry, and nowhere else; its digest."""
    image = variant(podman, tmp_path, text)
    digest = registry.push(podman, image, name)
    forgotten(podman, podman("image", "inspect", "--format", "{{.Id}}", image))
    return digest


@with_storage
def test_a_tag_becomes_a_digest(
    held: NodeHarness,
    engine: EngineHarness,
    own_podman: EngineHarness,
    own_registry: ContainerRegistry,
    tmp_path: Path,
) -> None:
    """The digest is the registry's; what is here isn't fetched again; a tag that moved is another digest."""
    name = f"team/{engine.name}"
    full = f"{own_registry.address}/{name}:1"
    first = published(own_podman, own_registry, tmp_path, f"{name}:1", f"one {name}")
    found = pull(held, full, engine.name)
    lines = [event["line"] for event in held.events]
    again = pull(held, full, engine.name)
    second = published(own_podman, own_registry, tmp_path, f"{name}:1", f"two {name}")
    moved = pull(held, full, engine.name)
    by_digest = pull(held, f"{own_registry.address}/{name}@{first}", engine.name)

    assert (found["digest"], found["pulled"], found["note"]) == (first, True, "")
    assert any(lines)
    assert (again["digest"], again["pulled"]) == (first, False)
    assert (moved["digest"], moved["pulled"]) == (second, True)
    assert (by_digest["id"], by_digest["pulled"]) == (found["id"], False)
    assert moved["id"] != found["id"]


def test_an_image_built_and_pushed_here_has_the_digest_that_its_registry_knows(
    node: NodeHarness, own_podman: EngineHarness, own_registry: ContainerRegistry, tmp_path: Path
) -> None:
    """Podman gives what it builds a manifest of its own, which no registry ever has: layers are compressed as they are pushed."""
    node.variables = own_podman.variables
    repository = f"{own_registry.address}/built/here"
    image = variant(own_podman, tmp_path, "built here")
    pushed = own_registry.push(own_podman, image, "built/here:1")
    found = pull(node, f"{repository}:1", "podman")
    forgotten(own_podman, found["id"])
    by_digest = pull(node, f"{repository}@{found['digest']}", "podman")

    assert found["digest"] == pushed
    assert by_digest["pulled"]


@with_storage
def test_without_a_registry_what_is_here_is_used(
    held: NodeHarness,
    engine: EngineHarness,
    own_podman: EngineHarness,
    own_registry: ContainerRegistry,
) -> None:
    """A tag that nobody can be asked for is taken as it is here, and that is said; so is an image made on this machine."""
    gone = "127.0.0.1:9/team/x:1"
    own_podman("tag", BUSYBOX, gone)
    found = pull(held, gone, engine.name)
    forgotten(own_podman, gone)

    assert found["note"] == f"registry is unreachable, using {gone} as present on the node"
    assert pull(held, BUSYBOX, engine.name)["note"] == ""
    assert held.events == []  # nobody was asked
    with pytest.raises(NodeProgramError, match="the node cannot reach the registry"):
        pull(held, gone, engine.name)


def test_what_is_wrong_with_a_name_is_said(
    held: NodeHarness, engine: EngineHarness, own_registry: ContainerRegistry
) -> None:
    """An unknown tag and an unknown name are the registry's; what is no name at all is said to be none."""
    for name in ("nobody/has:1", "nobody/has@sha256:" + 64 * "0"):
        with pytest.raises(
            NodeProgramError, match="not found in the registry: Check its name and tag"
        ):
            pull(held, f"{own_registry.address}/{name}", engine.name)
    with pytest.raises(NodeProgramError, match="invalid image name"):
        pull(held, "Not//a name", engine.name)
    with pytest.raises(NodeProgramError, match="invalid image name"):
        pull(held, "--all-tags", engine.name)


def test_a_private_registry_wants_a_login(
    held: NodeHarness,
    engine: EngineHarness,
    own_podman: EngineHarness,
    private_registry: ContainerRegistry,
    tmp_path: Path,
) -> None:
    """With the right one the image comes; without, or with a wrong one, the registry's refusal is told; no file keeps it."""
    name = f"{private_registry.address}/secret/{engine.name}:1"
    image = variant(own_podman, tmp_path, engine.name)
    private_registry.push(own_podman, image, f"secret/{engine.name}:1", "--creds", LOGIN)
    forgotten(own_podman, "localhost/variant:1")
    forgotten(own_podman, name)
    username, _, password = LOGIN.partition(":")
    login = {"registry": private_registry.address, "username": username, "password": password}
    for wrong in (None, {**login, "password": "guessed it"}):
        with pytest.raises(
            NodeProgramError, match=r"the registry denied access.*image\.docker_auth"
        ):
            pull(held, name, engine.name, login=wrong)
    found = pull(held, name, engine.name, login=login)

    assert found["pulled"]
    assert password.encode() not in all_text_below(held.base)
    assert list(held.root.glob("login-*")) == []
    assert b"c29tZW9uZTpjb3JyZWN0" not in all_text_below(held.base)


@with_storage
def test_the_last_to_need_an_image_takes_it_away(
    held: NodeHarness,
    engine: EngineHarness,
    own_podman: EngineHarness,
    own_registry: ContainerRegistry,
    tmp_path: Path,
) -> None:
    """An image that was brought for two projects goes with the second; one that was here before stays."""
    name = f"gone/{engine.name}:1"
    own_registry.push(own_podman, variant(own_podman, tmp_path, f"gone {engine.name}"), name)
    forgotten(own_podman, "localhost/variant:1")
    full = f"{own_registry.address}/{name}"
    forgotten(own_podman, full)
    identity = pull(held, full, engine.name)["id"]
    pull(held, full, engine.name, lineage="lineage-2")
    pull(held, BUSYBOX, engine.name)

    held.call("forget", {"lineage": "lineage-1"})
    assert engine("image", "inspect", "--format", "{{.Id}}", identity)
    held.call("forget", {"lineage": "lineage-2"})
    assert engine("image", "inspect", identity, check=False) in ("", "[]")
    assert engine("image", "inspect", "--format", "{{.Id}}", BUSYBOX)
    assert not (held.root / "images").exists()


@with_storage
def test_a_node_says_which_engine_would_run_what(held: NodeHarness, engine: EngineHarness) -> None:
    """Asked beforehand: the engine, whether the image is here, or why none works."""
    asked = [
        {"image": BUSYBOX, "engine": engine.name},
        {"image": "localhost/nothing:1", "engine": engine.name},
        {"image": BUSYBOX, "engine": "apptainer"},
    ]
    found = held.call("facts", {"data": str(held.data), "images": asked})["images"]

    assert found[:2] == [
        {"engine": engine.name, "present": True, "why": "", "rdma": False},
        {"engine": engine.name, "present": False, "why": "", "rdma": False},
    ]
    if shutil.which("apptainer") is None:
        assert found[2]["why"] == "no container engine works: apptainer is not installed"


@pytest.mark.parametrize(
    ("complaint", "told"),
    [
        ("Error response from daemon: pull access denied for x, repository does not exist or may require 'docker login': denied: requested access to the resource is denied", "the registry denied access"),
        ("Error response from daemon: manifest for busybox:nope not found: manifest unknown: manifest unknown", "not found in the registry"),
        ("Error response from daemon: Head \"https://ghcr.io/v2/x/manifests/1\": unauthorized", "the registry denied access"),
        ("write /var/lib/containers/x: no space left on device", "no space left on the node"),
        ("Error: something nobody knows", "cannot pull image"),
    ],
)  # fmt: skip
def test_refusals_are_told_in_few_words(complaint: str, told: str) -> None:
    """What engines and registries say in many ways is one of few things; their own words follow."""
    failure = pull_error("team/x:1", ProgramResult(1, "", complaint))

    assert told in failure.summary
    assert not is_registry_unreachable(ProgramResult(1, "", complaint))
    assert not failure.detail.startswith("Error response from daemon")
