"""Which mirror ``trainctl mirror`` is about, and who is pointed to it."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest

from tests.support.projects.project import ProjectHarness
from tests.support.projects.weights_project import JOB, connect, write_weights_manifest
from tests.support.servers.hub import serve
from tests.support.storage.weights_data import noise
from tests.support.tiers import one_day_in

MANIFEST = 'weights: {g: {source: "file:./d", mount_location: m}}\n'


@one_day_in(5)
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--url", "/old"), "file:///DIRECTORY"),
        (("--url", "file:///old", "--endpoint-url", "http://a"), "--url"),
        (("--endpoint-url", "http://a"), "--url"),
        (("--url", "s3://b/p", "--endpoint-url", "a"), "--url"),
    ],
)
def test_what_is_no_mirror_is_not_collected(
    fresh: ProjectHarness, words: tuple[str, ...], why: str
) -> None:
    """Nor the manifest's own in its place."""
    fresh.write({"trainctl.yaml": MANIFEST})
    assert why in fresh.run("mirror", "gc", *words, code=64).stderr


@one_day_in(5)
@pytest.mark.parametrize("command", [("list",), ("verify",), ("gc", "--dry-run")])
def test_a_manifest_that_is_wrong_names_no_mirror(
    fresh: ProjectHarness, command: tuple[str, ...]
) -> None:
    """It may mean another than the usual one, so that isn't looked at in its place; without a manifest it is."""
    without = fresh.run("mirror", *command)
    fresh.write({"trainctl.yaml": "mirror: {uurl: 'file:///elsewhere'}\n"})
    wrong = fresh.run("mirror", *command, code=1)

    assert without.stdout
    assert "unknown key 'uurl'" in wrong.stderr
    assert wrong.stdout == ""


@one_day_in(4)
def test_a_damaged_reference_stops_nobody_and_its_project_writes_it_again(
    fresh: ProjectHarness,
) -> None:
    """Plans and lists warn of it, only a collection refuses; the next apply of its project replaces it."""
    fresh.write({"d/a.bin": "content", "trainctl.yaml": MANIFEST})
    fresh.run("apply", "--auto-approve")
    (path,) = fresh.mirror.glob("references/*/*.json")
    right = path.read_bytes()
    path.write_bytes(right[:-1])

    planned = fresh.run("plan")
    listed = fresh.run("mirror", "list")
    refused = fresh.run("mirror", "gc", code=1)
    verified = fresh.run("mirror", "verify", code=1)
    fresh.write({"d/b.bin": "more"})
    fresh.run("apply", "--auto-approve")

    for one in (planned, listed, refused):
        assert f"{path.as_uri()} is corrupt" in one.stderr
        assert "[mirror-corrupt]" in one.stderr
    assert "reference changed" in verified.stdout
    fresh.run("mirror", "verify")
    assert fresh.run("mirror", "gc").stdout.endswith(" of 1 listing.\n")


@one_day_in(4)
def test_a_damaged_listing_comes_back_by_a_repair_and_an_apply(fresh: ProjectHarness) -> None:
    """The repair deletes it, and the plan has it mirrored again."""
    fresh.write({"d/a.bin": "content", "trainctl.yaml": MANIFEST})
    fresh.run("apply", "--auto-approve")
    (path,) = fresh.mirror.glob("listings/*.json")
    right = path.read_bytes()
    path.write_bytes(right[:-5])

    repaired = fresh.run("mirror", "verify", "--repair", code=1)
    planned = fresh.run("plan")
    fresh.run("apply", "--auto-approve")

    assert "1 removed. The next apply downloads the deleted blobs again." in repaired.stdout
    assert "weights.g will be created again" in planned.stdout
    assert path.read_bytes() == right
    fresh.run("mirror", "verify")


@one_day_in(5)
def test_a_lost_listing_stops_a_collection_only_and_comes_back_by_applying(
    fresh: ProjectHarness,
) -> None:
    """A list says so, a verification finds it, and nothing that its reference keeps is deleted."""
    fresh.write({"d/a.bin": "content", "trainctl.yaml": MANIFEST})
    fresh.run("apply", "--auto-approve")
    (path,) = fresh.mirror.glob("listings/*.json")
    right = path.read_bytes()
    path.unlink()

    listed = fresh.run("mirror", "list")
    found = fresh.run("mirror", "verify", code=1)
    refused = fresh.run("mirror", "gc", code=1)
    fresh.run("apply", "--auto-approve")

    assert "  missing  " in listed.stdout
    assert f"is missing ({path.stem}): the next apply" in listed.stderr
    assert "  listing missing  " in found.stdout
    assert f"{path.as_uri()} not found" in refused.stderr
    assert path.read_bytes() == right
    assert fresh.run("mirror", "gc").stdout.endswith("0 B freed: 0 blobs of 0 listings.\n")


@one_day_in(5)
def test_an_older_versions_mirror_is_refused(fresh: ProjectHarness) -> None:
    """It would look empty, and a collection would delete all of it."""
    fresh.write({"d/a.bin": "content", "trainctl.yaml": MANIFEST})
    (fresh.mirror / "fingerprints").mkdir(parents=True)

    for words in (("apply", "--auto-approve"), ("mirror", "list"), ("mirror", "gc")):
        refused = fresh.run(*words, code=1)
        assert (
            f"{fresh.mirror} is a mirror of an incompatible older version of trainctl"
            in refused.stderr
        )


@one_day_in(5)
def test_a_mirror_that_can_not_be_made_is_an_error_of_the_plan(fresh: ProjectHarness) -> None:
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


@one_day_in(5)
def test_who_meets_damage_in_the_mirror_is_told_how_to_mend_it(fresh: ProjectHarness) -> None:
    """A content that isn't what its listing says stops a delivery with the command that repairs it, and after that it is right."""
    with serve() as hub:
        hub.add("acme/model", {"model.safetensors": noise(2**21), "config.json": b"{}"})
        connect(fresh, hub)
        write_weights_manifest(fresh, "hf://acme/model", JOB)
        fresh.run("apply", "--auto-approve", "--target", "weights.model")
        (blob,) = (
            one for one in fresh.mirror.glob("blobs/sha256/*/*") if one.stat().st_size == 2**21
        )
        blob.write_bytes(noise(2**21, 1))
        refused = fresh.run("apply", "--auto-approve", code=None)
        fresh.run("mirror", "verify", "--repair", code=1)
        fresh.run("apply", "--auto-approve", "--wait")

    assert "'model.safetensors' is corrupt in the mirror: digest mismatch" in refused.stderr
    assert "trainctl mirror verify --repair" in refused.stderr
    assert refused.returncode == 12


@one_day_in(4)
def test_a_mirror_that_is_moved_leaves_nothing_behind(fresh: ProjectHarness) -> None:
    """The plan says why, and not that somebody else was at it; the old mirror is told that nobody wants what it has."""
    old, new = fresh.directory.parent / "old", fresh.directory.parent / "new"
    fresh.write({"d/a.bin": "content", "trainctl.yaml": at(old)})
    fresh.run("apply", "--auto-approve")
    fresh.write({"trainctl.yaml": at(new)})

    planned = fresh.run("plan").stdout
    unasked = fresh.run("plan", "--refresh=false").stdout
    (change,) = (
        one for one in fresh.json("plan")["resource_changes"] if one["address"] == "weights.g"
    )
    applied = fresh.run("apply", "--auto-approve")
    fresh.run("plan", "--refresh=false", "--detailed-exitcode")
    again = fresh.run("plan", "--detailed-exitcode")

    for told in (planned, unasked):
        assert "# weights.g will be updated in place: the mirror has changed" in told
        assert f"the mirror was {old.as_uri()}" in told
    assert "outside of trainctl" not in planned
    assert change["action_reason"] == "update_because_mirror_moved"
    assert "are kept" not in applied.stdout + applied.stderr
    assert "No changes" in again.stdout
    assert (references(old), references(new)) == (0, 1)


@one_day_in(5)
def test_a_mirror_that_has_everything_already_is_told_of_who_wants_it(
    fresh: ProjectHarness,
) -> None:
    """Else a collection there would delete what the state refers to."""
    old, new = fresh.directory.parent / "old", fresh.directory.parent / "new"
    fresh.write({"d/a.bin": "content", "trainctl.yaml": at(old)})
    fresh.run("apply", "--auto-approve")
    shutil.copytree(old, new)
    shutil.rmtree(new / "references")
    fresh.write({"trainctl.yaml": at(new)})
    fresh.run("apply", "--auto-approve")

    assert (references(old), references(new)) == (0, 1)


@one_day_in(5)
def test_two_names_of_one_mirror_are_one(fresh: ProjectHarness) -> None:
    """A link to the directory that it was: what is dropped there is what has just been written, and is written again."""
    old, link = fresh.directory.parent / "old", fresh.directory.parent / "link"
    fresh.write({"d/a.bin": "content", "trainctl.yaml": at(old)})
    fresh.run("apply", "--auto-approve")
    link.symlink_to(old)
    fresh.write({"trainctl.yaml": at(link)})
    fresh.run("apply", "--auto-approve")

    assert references(old) == 1


@one_day_in(5)
def test_destroy_drops_the_reference_where_it_is(fresh: ProjectHarness) -> None:
    """Also where the manifest names another mirror by then."""
    old, new = fresh.directory.parent / "old", fresh.directory.parent / "new"
    fresh.write({"d/a.bin": "content", "trainctl.yaml": at(old)})
    fresh.run("apply", "--auto-approve")
    fresh.write({"trainctl.yaml": at(new)})
    fresh.run("destroy", "--auto-approve")

    assert references(old) == 0


@one_day_in(5)
def test_a_mirror_that_is_away_is_told_of(fresh: ProjectHarness) -> None:
    """Its disk may come back, and keeps what nobody wants until somebody collects it there: by the very words that are told."""
    old, new = fresh.directory.parent / "old", fresh.directory.parent / "new"
    fresh.write({"d/a.bin": "content", "trainctl.yaml": at(old)})
    fresh.run("apply", "--auto-approve")
    old.rename(old.with_name("unmounted"))
    fresh.write({"trainctl.yaml": at(new)})
    planned = fresh.run("plan").stdout
    told = fresh.run("apply", "--auto-approve")
    again = fresh.run("plan", "--detailed-exitcode")

    said = told.stdout + told.stderr
    words = said.partition("30 days after their last use: trainctl ")[2].splitlines()[0]
    assert f"blobs of this project in the mirror {old.as_uri()} are kept" in said
    assert "No changes" in again.stdout
    assert not old.exists()
    assert f"the mirror was {old.as_uri()}" in planned

    away = fresh.run(*shlex.split(words), code=None)
    old.with_name("unmounted").rename(old)
    edit_last_use(old)
    fresh.run(*shlex.split(words))

    assert (away.returncode != 0, str(old) in away.stderr) == (True, True)
    assert (references(old), references(new)) == (0, 1)


@one_day_in(5)
def test_machines_that_share_a_state_have_a_mirror_each(fresh: ProjectHarness) -> None:
    """Where the usual mirror is depends on who applies: that the other's is elsewhere changes nothing for one who has all."""
    fresh.write({"d/a.bin": "content", "trainctl.yaml": MANIFEST})
    fresh.run("apply", "--auto-approve")
    fresh.mirror.rename(fresh.mirror.with_name("of-another-machine"))
    fresh.variables["XDG_DATA_HOME"] = str(fresh.directory.parent / "mine")
    fresh.run("apply", "--auto-approve")
    fresh.variables["XDG_DATA_HOME"] = str(fresh.directory.parent / "others")
    shutil.copytree(fresh.directory.parent / "mine", fresh.directory.parent / "others")
    shutil.rmtree(fresh.directory.parent / "mine")
    again = fresh.run("plan", "--detailed-exitcode")

    assert "No changes" in again.stdout


def at(mirror: Path) -> str:
    """A manifest whose mirror is there."""
    return f'mirror: {{url: "{mirror.as_uri()}"}}\n{MANIFEST}'


def edit_last_use(mirror: Path) -> None:
    """Have been used long ago what a mirror has."""
    (path,) = mirror.glob("references/*/*.json")
    os.utime(path, (1, 1))


def references(mirror: Path) -> int:
    """How many sources somebody wants of a mirror."""
    return len([*mirror.glob("references/*/*.json")])


@one_day_in(5)
def test_what_is_not_the_mirrors_own_stays(fresh: ProjectHarness) -> None:
    """It is nothing wrong, so neither verifying nor collecting fails for it."""
    fresh.write({"d/a.bin": "content", "trainctl.yaml": MANIFEST})
    fresh.run("apply", "--auto-approve")
    strays = ["listings/note.json", "blobs/.DS_Store", "README"]
    for name in strays:
        (fresh.mirror / name).write_text("mine")

    verified = fresh.run("mirror", "verify", "--repair")
    collected = fresh.run("mirror", "gc")

    assert verified.stdout == "1 blob verified, 7 B: no problems found.\n"
    assert collected.stdout.endswith("0 B freed: 0 blobs of 0 listings.\n")
    assert [(fresh.mirror / name).read_text() for name in strays] == ["mine"] * 3
