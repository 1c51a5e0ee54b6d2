"""``trainctl mirror``, damage in a mirror, and mirrors that a project leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.projects.project import ProjectHarness
from tests.support.projects.weights_project import JOB, connect, write_weights_manifest
from tests.support.servers.hub import serve
from tests.support.storage.weights_data import noise

MANIFEST = 'weights: {g: {source: "file:./d", mount_location: m}}\n'
APPLY = ("apply", "--auto-approve")


@pytest.fixture
def mirrored(fresh: ProjectHarness) -> ProjectHarness:
    """A project whose weights are in the default mirror."""
    fresh.write({"d/a.bin": "content", "trainctl.yaml": MANIFEST})
    fresh.run(*APPLY)
    return fresh


def manifest_with(mirror: Path) -> dict[str, str]:
    return {"trainctl.yaml": f'mirror: {{url: "{mirror.as_uri()}"}}\n{MANIFEST}'}


def references(mirror: Path) -> list[Path]:
    return [*mirror.glob("references/*/*.json")]


def test_a_corrupt_reference_stops_only_a_collection_and_the_next_apply_rewrites_it(
    mirrored: ProjectHarness,
) -> None:
    (path,) = references(mirrored.mirror)
    path.write_bytes(path.read_bytes()[:-1])

    planned = mirrored.run("plan")
    listed = mirrored.run("mirror", "list")
    refused = mirrored.run("mirror", "gc", code=1)
    verified = mirrored.run("mirror", "verify", code=1)
    mirrored.write({"d/b.bin": "more"})
    mirrored.run(*APPLY)

    for command in (planned, listed, refused):
        assert f"{path.as_uri()} is corrupt" in command.stderr
        assert "[mirror-corrupt]" in command.stderr
    assert "reference changed" in verified.stdout
    mirrored.run("mirror", "verify")
    assert mirrored.run("mirror", "gc").stdout.endswith(" of 1 listing.\n")


def test_a_corrupt_listing_is_deleted_by_a_repair_and_restored_by_an_apply(
    mirrored: ProjectHarness,
) -> None:
    (path,) = mirrored.mirror.glob("listings/*.json")
    listing = path.read_bytes()
    path.write_bytes(listing[:-5])

    repaired = mirrored.run("mirror", "verify", "--repair", code=1)
    planned = mirrored.run("plan")
    mirrored.run(*APPLY)

    assert "1 removed. The next apply downloads the deleted blobs again." in repaired.stdout
    assert "weights.g will be created again" in planned.stdout
    assert path.read_bytes() == listing


def test_a_delivery_that_meets_a_corrupt_blob_names_the_command_that_repairs_it(
    fresh: ProjectHarness,
) -> None:
    with serve() as hub:
        hub.add("acme/model", {"model.safetensors": noise(2**21), "config.json": b"{}"})
        connect(fresh, hub)
        write_weights_manifest(fresh, "hf://acme/model", JOB)
        fresh.run(*APPLY, "--target", "weights.model")
        blobs = fresh.mirror.glob("blobs/sha256/*/*")
        (blob,) = (path for path in blobs if path.stat().st_size == 2**21)
        blob.write_bytes(noise(2**21, 1))
        refused = fresh.run(*APPLY, code=12)
        fresh.run("mirror", "verify", "--repair", code=1)
        fresh.run(*APPLY, "--wait")

    assert "'model.safetensors' is corrupt in the mirror: digest mismatch" in refused.stderr
    assert "trainctl mirror verify --repair" in refused.stderr


def test_another_mirror_gets_the_reference(mirrored: ProjectHarness, tmp_path: Path) -> None:
    """The old one keeps its own until it is collected."""
    old, new = mirrored.mirror, tmp_path / "new"
    mirrored.write(manifest_with(new))

    planned = mirrored.run("plan").stdout
    changes = mirrored.json("plan", "--refresh=false")["resource_changes"]
    mirrored.run(*APPLY)

    assert "# weights.g will be updated in place: the mirror has changed" in planned
    assert f"the mirror was {old.as_uri()}" in planned
    assert "outside of trainctl" not in planned
    reasons = {change["address"]: change["action_reason"] for change in changes}
    assert reasons["weights.g"] == "update_because_mirror_moved"
    assert mirrored.actions() == {}
    assert (len(references(old)), len(references(new))) == (1, 1)
    os.utime(references(old)[0], (1, 1))
    mirrored.run("mirror", "gc", "--url", old.as_uri(), "--drop-unused", "30d")
    assert references(old) == []
