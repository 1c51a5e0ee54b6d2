"""Which mirror ``trainctl mirror`` is about, and who is pointed to it."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.support.hub import serve
from tests.support.project import Project
from tests.support.wanting import JOB, connect, wants
from tests.support.weights_data import noise

MANIFEST = 'weights: {g: {source: "file:./d", mount_location: m}}\n'


@pytest.mark.parametrize("command", [("list",), ("verify",), ("gc", "--dry-run")])
def test_a_manifest_that_is_wrong_names_no_mirror(fresh: Project, command: tuple[str, ...]) -> None:
    """It may mean another than the usual one, so that isn't looked at in its place; without a manifest it is."""
    without = fresh.run("mirror", *command)
    fresh.write({"trainctl.yaml": "mirror: {uurl: 'file:///elsewhere'}\n"})
    wrong = fresh.run("mirror", *command, code=1)

    assert without.stdout
    assert "unknown key 'uurl'" in wrong.stderr
    assert wrong.stdout == ""


def test_a_damaged_reference_stops_nobody_and_its_project_mends_it(fresh: Project) -> None:
    """Plans and lists warn of it, only a collection refuses; a repair writes anew what was there."""
    fresh.write({"d/a.bin": "content", "trainctl.yaml": MANIFEST})
    fresh.run("apply", "--auto-approve")
    (path,) = fresh.mirror.glob("references/*/*.json")
    right = json.loads(path.read_bytes())
    path.write_bytes(path.read_bytes()[:-1])

    planned = fresh.run("plan")
    listed = fresh.run("mirror", "list")
    refused = fresh.run("mirror", "gc", code=1)
    fresh.run("mirror", "verify", code=1)
    fresh.run("mirror", "verify", "--repair")

    for one in (planned, listed, refused):
        assert f"{path} is damaged" in one.stderr
        assert "[mirror-damaged]" in one.stderr
    varying = dict.fromkeys(("last_used", "check"))
    assert {**json.loads(path.read_bytes()), **varying} == {**right, **varying}
    assert fresh.run("mirror", "gc", "--grace", "0s").stdout.endswith("0 B freed: 0 contents of 0 listings.\n")  # fmt: skip


def test_a_damaged_listing_comes_back_by_applying(fresh: Project) -> None:
    """The plan has it mirrored again, of which nothing is missing."""
    fresh.write({"d/a.bin": "content", "trainctl.yaml": MANIFEST})
    fresh.run("apply", "--auto-approve")
    (path,) = fresh.mirror.glob("listings/*.json")
    right = path.read_bytes()
    path.write_bytes(right[:-5])

    planned = fresh.run("plan")
    fresh.run("apply", "--auto-approve")

    assert "weights.g will be created again" in planned.stdout
    assert path.read_bytes() == right


def test_a_mirror_that_can_not_be_made_is_an_error_of_the_plan(fresh: Project) -> None:
    """Nothing is begun. Where something got in its way later, a destroy ends all the same."""
    place = fresh.directory / "place"
    declared = f'mirror: {{url: "{place.as_uri()}"}}\n{MANIFEST}'
    fresh.write({"d/a.bin": "content", "trainctl.yaml": declared, "place": "in the way"})
    refused = fresh.run("apply", "--auto-approve", code=1)
    place.unlink()
    fresh.run("apply", "--auto-approve")
    shutil.rmtree(place)
    place.write_text("in the way")
    ended = fresh.run("destroy", "--auto-approve")

    assert f"{place} is not a directory [storage-failed]" in refused.stderr
    assert "Destroy complete." in ended.stdout


def test_who_meets_damage_in_the_mirror_is_told_how_to_mend_it(fresh: Project) -> None:
    """A content that isn't what its listing says stops a delivery with the command that repairs it, and after that it is right."""
    with serve() as hub:
        hub.add("acme/model", {"model.safetensors": noise(2**21), "config.json": b"{}"})
        connect(fresh, hub)
        wants(fresh, "hf://acme/model", JOB)
        fresh.run("apply", "--auto-approve", "--target", "weights.model")
        (blob,) = fresh.mirror.glob("blobs/sha256/*/*")
        blob.chmod(0o600)
        blob.write_bytes(noise(2**21, 1))
        refused = fresh.run("apply", "--auto-approve", code=None)
        fresh.run("mirror", "verify", "--repair")
        fresh.run("apply", "--auto-approve", "--wait")

    assert (
        "the mirror's bytes of 'model.safetensors' are not those of its listing" in refused.stderr
    )
    assert "trainctl mirror verify --repair" in refused.stderr
    assert refused.returncode == 12
