from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.mirrors import (
    REFERENCE,
    MemorySource,
    assert_sound,
    contents,
    impatient,
    leftovers,
    mirror_at,
    stored,
)
from tests.support.weights_data import noise, small_model
from trainctl.errors import Interrupted, SourceGone, StorageError
from trainctl.weights.mirror import DirectoryMirror
from trainctl.weights.mirror.here import HereMirror

URI = "hf://acme/model"


def test_a_source_is_mirrored_with_every_file(tmp_path: Path) -> None:
    """The listing names every path with its content; empty files and equal files among them."""
    files = {
        **small_model(),
        "empty": b"",
        "copy/model.safetensors": small_model()["model.safetensors"],
    }
    source = MemorySource(files, piece=1000)
    resolved = source.resolve(URI, None, None)
    mirror = mirror_at(tmp_path, 4096)
    assert mirror.mirrored_bytes(resolved) == (0, None)
    listing = mirror.mirror(resolved, source, REFERENCE)
    assert contents(mirror, listing.id) == files
    assert mirror.mirrored_bytes(resolved) == (resolved.size, listing.id)
    assert mirror.has_listing(listing.id)
    assert_sound(tmp_path)
    assert leftovers(tmp_path) == []


def test_planning_writes_nothing(tmp_path: Path) -> None:
    """Asking what is there makes no directory."""
    resolved = MemorySource({"w": b"x"}).resolve(URI, None, None)
    mirror = mirror_at(tmp_path / "m")
    mirror.mirrored_bytes(resolved)
    assert mirror.sources() == []
    assert mirror.load_listing("0" * 64) is None
    assert not (tmp_path / "m").exists()


def test_two_at_once_fetch_small_files_once(tmp_path: Path) -> None:
    """Nobody sees a pack before it is whole, so the second waits for the first, and finds everything."""
    source = MemorySource({f"{number:03}": noise(100, number) for number in range(200)})
    resolved = source.resolve(URI, None, None)

    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(mirror_at(tmp_path).mirror, resolved, source, REFERENCE) for _ in range(4)
        ]
        listings = {one.result().id for one in asked}

    assert len(listings) == 1
    assert len(source.asked) == 200
    assert_sound(tmp_path)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("announce", [True, False])
def test_what_is_here_is_not_fetched_again(tmp_path: Path, *, announce: bool) -> None:
    """A second mirroring asks upstream for nothing, whether or not upstream announces digests."""
    source = MemorySource({"a": noise(500), "b": b"small"}, announce=announce)
    resolved = source.resolve(URI, None, None)
    mirror = mirror_at(tmp_path, 64)
    first = mirror.mirror(resolved, source, REFERENCE)
    source.asked.clear()
    assert mirror.mirror(resolved, source, REFERENCE).id == first.id
    assert source.asked == []


def test_the_same_file_in_another_repository_costs_nothing(tmp_path: Path) -> None:
    """Content whose sha256 is announced is found whichever source it came from, and however that announced it."""
    data = noise(500)
    plain = MemorySource({"a": data}, announce=False)
    mirror = mirror_at(tmp_path, 64)
    mirror.mirror(plain.resolve("file:///x", None, None), plain, REFERENCE)
    other = MemorySource({"renamed": data})
    resolved = other.resolve(URI, None, None)
    assert mirror.mirrored_bytes(resolved)[0] == 500
    listing = mirror.mirror(resolved, other, replace(REFERENCE, address="weights.b"))
    assert other.asked == []
    assert contents(mirror, listing.id) == {"renamed": data}


def test_a_changed_file_costs_only_itself(tmp_path: Path) -> None:
    """Of a new revision only what differs is fetched."""
    source = MemorySource({"a": noise(500), "b": b"old"})
    mirror = mirror_at(tmp_path, 64)
    mirror.mirror(source.resolve(URI, "1", None), source, REFERENCE)
    source.files["b"] = b"new"
    source.asked.clear()
    resolved = source.resolve(URI, "2", None)
    assert mirror.mirrored_bytes(resolved) == (500, None)
    mirror.mirror(resolved, source, REFERENCE)
    assert source.asked == [("b", 0)]


def test_progress_ends_at_the_whole(tmp_path: Path) -> None:
    """Progress counts each byte once, up to all bytes and files, also for what was there already."""
    source = MemorySource({"a": noise(500), "b": noise(500), "c": b"x", "d": b""})
    resolved = source.resolve(URI, None, None)
    mirror = mirror_at(tmp_path, 64)
    for _ in range(2):
        seen: list[tuple[int, int, int]] = []
        mirror.mirror(resolved, source, REFERENCE, progress=lambda *now, to=seen: to.append(now))
        assert seen == sorted(seen)
        assert seen[-1] == (resolved.size, resolved.size, 4)


def test_the_reference_comes_first_and_names_the_listing_last(tmp_path: Path) -> None:
    """While bytes move the reference is there without a listing; afterwards with it; a new pin keeps the old one meanwhile."""
    records = []

    class Watching(MemorySource):
        def open(self, resolved, file, offset, credential):  # type: ignore[no-untyped-def]
            (path,) = tmp_path.glob("references/*/*.json")
            records.append(json.loads(path.read_text()))
            return super().open(resolved, file, offset, credential)

    source = Watching({"a": b"1"})
    mirror = DirectoryMirror(tmp_path, impatient(), clock=lambda: 17.0)
    first = mirror.mirror(source.resolve(URI, "1", None), source, REFERENCE)
    source.files["a"] = b"2"
    second = mirror.mirror(source.resolve(URI, "2", None), source, REFERENCE)
    assert [(one["listing"], one["previous"]) for one in records] == [
        (None, None),
        (None, first.id),
    ]
    (path,) = tmp_path.glob("references/*/*.json")
    last = json.loads(path.read_text())
    assert (last["listing"], last["previous"]) == (second.id, None)
    assert (last["revision"], last["last_used"], last["project"]) == ("2", 17.0, "demo")


def test_a_failure_leaves_no_listing_and_keeps_whole_files(tmp_path: Path) -> None:
    """When one file can't be had, the error is raised, nothing is listed, and what came whole is not fetched again."""
    source = MemorySource({"a": noise(500), "z": b"x"})
    resolved = source.resolve(URI, None, None)
    source.error, source.cut_after = SourceGone("hf://acme/model: z is gone"), 72
    with pytest.raises(SourceGone):
        mirror_at(tmp_path, 64).mirror(resolved, source, REFERENCE, parallelism=1)
    assert not list(tmp_path.glob("listings/*"))
    source.cut_after = None
    source.asked.clear()
    mirror_at(tmp_path, 64).mirror(resolved, source, REFERENCE)
    assert source.asked == [("z", 0)]
    assert_sound(tmp_path)


def test_cancelled_before_it_begins_it_fetches_nothing(tmp_path: Path) -> None:
    """A set event ends it with Interrupted."""
    source = MemorySource({"a": noise(500)})
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(Interrupted):
        mirror_at(tmp_path, 64).mirror(
            source.resolve(URI, None, None), source, REFERENCE, cancelled=cancelled
        )
    assert not stored(tmp_path)


def test_rows_say_who_uses_what_and_what_is_shared(tmp_path: Path) -> None:
    """One row for each listing: files, bytes, bytes that another one has too, projects, people, last use."""
    times = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    mirror = DirectoryMirror(tmp_path, impatient(), clock=lambda: next(times))
    shared = noise(100)
    for name, own, address, project, owner in (
        ("a", b"1234", "weights.a", "one", "ann@laptop"),
        ("b", b"56", "weights.b", "one", "ann@laptop"),
        ("a", b"1234", 'weights.a["x/y"]', "two", "bo@desk"),
    ):
        source = MemorySource({"shared": shared, "own": own})
        reference = replace(REFERENCE, address=address, project=project, owner=owner)
        mirror.mirror(source.resolve(f"hf://acme/{name}", None, None), source, reference)
    rows = mirror.sources()
    assert [(row.source, row.files, row.bytes, row.bytes_shared) for row in rows] == [
        ("hf://acme/a", 2, 104, 100),
        ("hf://acme/b", 2, 102, 100),
    ]
    assert [(row.bytes_stored, row.bytes_saved) for row in rows] == [(104, 0), (2, 100)]
    assert [(row.projects, row.people, row.last_used) for row in rows] == [
        (("one", "two"), ("ann@laptop", "bo@desk"), 6.0),
        (("one",), ("ann@laptop",), 4.0),
    ]


def test_what_sharing_saves_is_counted_once(tmp_path: Path) -> None:
    """The same twice in a source, in two sources, and under another name with the very same listing; what isn't whole saves nothing."""
    mirror = mirror_at(tmp_path)
    for name, files in (
        ("a", {"x": noise(100), "y": noise(100), "z": b"1234"}),
        ("b", {"x": noise(100)}),
        ("c", {"x": noise(100)}),
    ):
        source = MemorySource(files)
        reference = replace(REFERENCE, address=f"weights.{name}")
        mirror.mirror(source.resolve(f"hf://acme/{name}", None, None), source, reference)
    cut = MemorySource({"x": b"never"}, cut_after=0, error=SourceGone("gone"))
    with pytest.raises(SourceGone):
        mirror.mirror(
            cut.resolve("hf://acme/d", None, None), cut, replace(REFERENCE, address="weights.d")
        )

    rows = mirror.sources()

    assert [(row.bytes, row.bytes_shared, row.bytes_stored, row.bytes_saved) for row in rows] == [
        (204, 100, 104, 100),
        (100, 100, 0, 100),
        (100, 100, 0, 100),
        (5, 0, 0, 0),
    ]


def test_a_dropped_reference_is_gone_and_content_stays(tmp_path: Path) -> None:
    """Dropping says whether there was one, twice is no error, and blobs and listing stay."""
    source = MemorySource({"a": b"x"})
    mirror = mirror_at(tmp_path)
    listing = mirror.mirror(source.resolve(URI, None, None), source, REFERENCE)
    assert mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)
    assert not mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)
    assert mirror.sources() == []
    assert contents(mirror, listing.id) == {"a": b"x"}
    assert not list(tmp_path.glob("references/*"))


def test_where_something_is_in_the_way_there_is_no_mirror(tmp_path: Path) -> None:
    """Nothing is there, and nothing has to be dropped; what is in the way is told before anything is brought."""
    (tmp_path / "file").write_text("")
    mirror = HereMirror(tmp_path / "file" / "mirror", impatient())
    resolved = MemorySource({"a": b"x"}).resolve(URI, None, None)

    looked = mirror.look([resolved], ["0" * 64])

    assert not mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)
    assert (looked.known[0].here, looked.listings, mirror.sources()) == (0, frozenset(), [])
    assert looked.unusable == f"{tmp_path / 'file'} is not a directory"
    assert HereMirror(tmp_path / "mirror").look([resolved]).unusable == ""


def test_references_of_one_lineage_come_and_go_at_once(tmp_path: Path) -> None:
    """Their directory goes with the last of them, and comes with the next, whoever else has just made or removed it."""
    source = MemorySource({"a": b"x"})
    resolved = source.resolve(URI, None, None)
    mirror_at(tmp_path).mirror(resolved, source, REFERENCE)
    together = threading.Barrier(6, timeout=20)

    def come_and_go(number: int) -> None:
        mirror = mirror_at(tmp_path)
        one = replace(REFERENCE, address=f"weights.w{number}", lineage="lineage-2")
        for turn in range(25):
            together.wait()
            if (number + turn) % 3 == 0:
                mirror.mirror(resolved, source, one)
            mirror.drop_reference(one.lineage, one.address)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(come_and_go, range(6)))
    assert [path.name for path in tmp_path.glob("references/*")] == [REFERENCE.lineage]


@pytest.mark.parametrize("name", ["..", "../../evil", "a/b", "x" * 300, "new\nline", "ä☃"])
def test_names_of_references_stay_in_their_place(tmp_path: Path, name: str) -> None:
    """Whatever a lineage or an address is called, its file lies two below ``references`` and can be dropped."""
    source = MemorySource({"a": b"x"})
    mirror = mirror_at(tmp_path / "m")
    reference = replace(REFERENCE, lineage=name, address=name)
    mirror.mirror(source.resolve(URI, None, None), source, reference)
    (found,) = (tmp_path / "m").glob("references/*/*.json")
    assert found.resolve().parent.parent == (tmp_path / "m" / "references").resolve()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert mirror.drop_reference(name, name)


def test_a_damaged_listing_is_an_error_that_names_it(tmp_path: Path) -> None:
    """A listing whose content is not what its name says is never handed out."""
    source = MemorySource({"a": b"x"})
    mirror = mirror_at(tmp_path)
    listing = mirror.mirror(source.resolve(URI, None, None), source, REFERENCE)
    path = tmp_path / "listings" / f"{listing.id}.json"
    path.write_bytes(path.read_bytes().replace(b'"size":1', b'"size":2'))
    with pytest.raises(StorageError, match=listing.id):
        mirror.load_listing(listing.id)


def test_files_are_private(tmp_path: Path) -> None:
    """Directories are 0700, records 0600, blobs and packs 0444."""
    source = MemorySource({"a": b"x", "b": noise(500)})
    mirror = mirror_at(tmp_path / "deep" / "m", 64)
    mirror.mirror(source.resolve(URI, None, None), source, REFERENCE)
    modes = {
        (path.is_dir(), bool({"blobs", "packs"} & {*path.parts})): path.stat().st_mode & 0o777
        for path in (tmp_path / "deep").rglob("*")
    }
    assert modes == {
        (True, True): 0o700,
        (True, False): 0o700,
        (False, True): 0o444,
        (False, False): 0o600,
    }
