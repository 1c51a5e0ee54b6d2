"""Verifying a mirror, and repairing it from what upstream still has."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.mirrors import (
    REFERENCE,
    TOGETHER,
    Crowded,
    MemorySource,
    assert_sound,
    contents,
    impatient,
    leftovers,
    mirror_at,
    place_of,
    stored,
)
from trainctl.base.exclusive import lease
from trainctl.base.listing import SourceFile
from trainctl.errors import (
    Interrupted,
    SourceCut,
    SourceDenied,
    SourceGone,
    SourceUnreachable,
    StorageError,
    TrainctlError,
)
from trainctl.node.content.packs import Slice
from trainctl.weights.mirror import DirectoryMirror
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.fetch import SMALL_AT_ONCE
from trainctl.weights.mirror.verify import Outcome, Verified, Verifying, verify

CHUNK = 1024
FILES = {"large": os.urandom(10 * CHUNK + 5), "small": b"small", "empty": b""}
URI = "memory://model"


class Mirrored:
    """A mirror with one source, and the source."""

    def __init__(self, root: Path, *, announce: bool) -> None:
        self.mirror: DirectoryMirror = mirror_at(root, chunk_bytes=CHUNK)
        self.source = MemorySource(dict(FILES), announce=announce, piece=100)
        resolved = self.source.resolve(URI, None, None)
        self.listing = self.mirror.mirror(resolved, self.source, REFERENCE).id
        self.source.asked.clear()

    def place(self, name: str) -> Slice:
        """Where a file's content lies."""
        return place_of(self.mirror, hashlib.sha256(FILES[name]).hexdigest())

    def has(self, name: str) -> bool:
        """Whether the mirror has the content of a file."""
        return hashlib.sha256(FILES[name]).hexdigest() in stored(self.mirror.root)

    def verify(self, *, repair: bool = True) -> Verified:
        """Verify, with the source as it is now."""
        return verify(self.mirror, Verifying(repair, self.origin))

    def origin(self, record: Mapping[str, object], halt: threading.Event) -> Origin:
        """Where a reference's bytes come from."""
        resolved = self.source.resolve(str(record["source"]), None, None)
        return Origin(self.source, resolved, None, impatient())

    def damage(self, name: str, how: str) -> None:
        """Have a content wrong where it lies, or the file that holds it."""
        place = self.place(name)
        path = Path(place.path)
        if how == "missing":
            path.unlink()
            return
        path.chmod(0o644)
        data = bytearray(path.read_bytes())
        if how == "flipped":
            data[place.offset + place.length // 2] ^= 1
        elif how == "longer":
            data += b"x"
        path.write_bytes(bytes(data[: len(data) // 3] if how == "truncated" else data))


@pytest.fixture(params=[True, False], ids=["announced", "unannounced"])
def mirrored(request: pytest.FixtureRequest, tmp_path: Path) -> Mirrored:
    """From an upstream that announces digests, and from one that doesn't."""
    return Mirrored(tmp_path / "mirror", announce=request.param)


def test_what_is_right_is_said_to_be(mirrored: Mirrored) -> None:
    """Every byte was read, and upstream was not asked for any."""
    report = mirrored.verify()

    assert (report.blobs, report.bytes, report.findings) == (3, sum(map(len, FILES.values())), ())
    assert report.whole
    assert mirrored.source.asked == []


@pytest.mark.parametrize("name", ["large", "small"])
@pytest.mark.parametrize("how", ["flipped", "truncated", "longer", "missing"])
def test_what_is_wrong_is_found_and_mended(mirrored: Mirrored, name: str, how: str) -> None:
    """Without --repair it is only told; with it everything is right again, and a second look finds nothing."""
    mirrored.damage(name, how)

    told = mirrored.verify(repair=False)
    still = mirrored.verify(repair=False)
    report = mirrored.verify()

    assert {one.outcome for one in told.findings} == {Outcome.WRONG}
    assert told == still
    assert not told.whole
    assert [one.path.name for one in report.findings] == [one.path.name for one in told.findings]
    assert {one.outcome for one in report.findings} == {Outcome.REPAIRED}
    if (name, how) == ("small", "longer"):
        assert [one.what for one in report.findings] == ["pack changed"]
    else:
        named = {one.path.name: one.sources for one in report.findings}
        assert named[hashlib.sha256(FILES[name]).hexdigest()] == (URI,)
    assert report.whole
    assert contents(mirrored.mirror, mirrored.listing) == FILES
    assert mirrored.verify().findings == ()
    assert_sound(mirrored.mirror.root)


def test_only_the_wrong_chunk_is_fetched_again(mirrored: Mirrored) -> None:
    """One flipped bit in the middle costs one chunk, asked for where it begins."""
    mirrored.damage("large", "flipped")

    mirrored.verify()

    assert mirrored.source.asked == [("large", 5 * CHUNK)]


@pytest.mark.parametrize("name", ["large", "small"])
def test_what_upstream_has_no_more_goes(mirrored: Mirrored, name: str) -> None:
    """So that the next apply sees it missing and mirrors what there is; the exit code says that something is left to do."""
    mirrored.damage(name, "flipped")
    mirrored.source.files[name] = FILES[name] + b"changed"

    report = mirrored.verify()

    assert [one.outcome for one in report.findings] == [Outcome.REMOVED]
    assert "has not got the content" in report.findings[0].detail
    assert not report.whole
    assert not mirrored.has(name)
    assert not mirrored.mirror.has_listing(mirrored.listing)
    mirrored.source.files[name] = FILES[name]
    again = mirrored.mirror.mirror(
        mirrored.source.resolve(URI, None, None), mirrored.source, REFERENCE
    )
    assert contents(mirrored.mirror, again.id) == FILES


def test_an_upstream_that_lies_mends_nothing(tmp_path: Path) -> None:
    """Same size, same validator, other bytes: the listing's digests decide, and what was right is kept to be resumed."""
    mirrored = Mirrored(tmp_path / "mirror", announce=False)
    mirrored.damage("large", "flipped")
    mirrored.source.files["large"] = bytes(len(FILES["large"]))

    report = mirrored.verify()

    assert [one.outcome for one in report.findings] == [Outcome.REMOVED]
    assert "has other content now" in report.findings[0].detail
    assert len(list(mirrored.mirror.root.glob("partial/*.free.*/data"))) == 1


def test_what_nobody_refers_to_is_removed_if_wrong(mirrored: Mirrored) -> None:
    """There is nobody to ask where it came from."""
    mirrored.mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)
    mirrored.damage("small", "flipped")

    report = mirrored.verify()

    assert [(one.outcome, one.detail) for one in report.findings] == [
        (Outcome.REMOVED, "nobody refers to it")
    ]


def test_a_source_that_does_not_answer(mirrored: Mirrored) -> None:
    """Its error is told, and the content goes."""
    mirrored.damage("small", "flipped")

    def gone(record: Mapping[str, object], halt: threading.Event) -> Origin:
        raise SourceGone(f"{record['source']} is not there any more")

    report = verify(mirrored.mirror, Verifying(repair=True, origins=gone))

    assert report.findings[0].detail == f"{URI} is not there any more"
    assert report.findings[0].outcome is Outcome.REMOVED


@pytest.mark.parametrize("error", [SourceUnreachable, SourceDenied, StorageError])
@pytest.mark.parametrize("name", ["large", "small"])
def test_a_source_that_can_not_be_asked_takes_nothing_away(
    mirrored: Mirrored, name: str, error: type[TrainctlError]
) -> None:
    """Nobody knows whether it has the content still: it stays wrong, and a repair that can ask costs what it always did."""
    mirrored.damage(name, "flipped")

    def away(record: Mapping[str, object], halt: threading.Event) -> Origin:
        raise error("can't ask")

    report = verify(mirrored.mirror, Verifying(repair=True, origins=away))

    assert [(one.outcome, one.detail) for one in report.findings] == [(Outcome.WRONG, "can't ask")]
    assert mirrored.mirror.has_listing(mirrored.listing)
    assert [one.outcome for one in mirrored.verify().findings] == [Outcome.REPAIRED]
    assert mirrored.source.asked == [(name, 5 * CHUNK if name == "large" else 0)]
    assert contents(mirrored.mirror, mirrored.listing) == FILES


def test_what_was_mended_before_the_connection_broke_stays_so(mirrored: Mirrored) -> None:
    """A large content lies where it lay, and the next repair fetches only what is wrong still."""
    mirrored.damage("large", "truncated")
    mirrored.source.cut_after, mirrored.source.error = 30, SourceCut("it broke off")

    report = mirrored.verify()
    mirrored.source.cut_after = None
    tried = len(mirrored.source.asked)
    again = mirrored.verify()

    assert [one.outcome for one in report.findings] == [Outcome.WRONG]
    assert [one.outcome for one in again.findings] == [Outcome.REPAIRED]
    assert [offset for _, offset in mirrored.source.asked[tried:]] == [
        number * CHUNK for number in range(5, 11)
    ]
    assert contents(mirrored.mirror, mirrored.listing) == FILES
    assert_sound(mirrored.mirror.root)


def test_what_is_put_back_replaces_nothing_right(mirrored: Mirrored) -> None:
    """Somebody may have brought the same content by another name meanwhile: theirs stays."""
    mirrored.damage("large", "flipped")
    blob = Path(mirrored.place("large").path)

    class Meanwhile(MemorySource):
        def _pieces(self, data: bytes, offset: int) -> Iterator[bytes]:
            blob.write_bytes(FILES["large"])
            raise SourceCut("it broke off")

    mirrored.source = Meanwhile(dict(FILES), announce=mirrored.source.announce)
    mirrored.verify()

    assert mirrored.verify(repair=False).findings == ()
    assert list(mirrored.mirror.root.glob("partial/*.*.*")) == []


def test_what_is_right_of_a_large_content_is_resumed_should_its_source_come_back(
    mirrored: Mirrored,
) -> None:
    """It goes with its listing; what was right up to the first wrong chunk is a transfer that was broken off there."""
    mirrored.damage("large", "flipped")

    def gone(record: Mapping[str, object], halt: threading.Event) -> Origin:
        raise SourceGone("no such repository")

    report = verify(mirrored.mirror, Verifying(repair=True, origins=gone))

    assert [one.outcome for one in report.findings] == [Outcome.REMOVED]
    assert not mirrored.has("large")
    assert not mirrored.mirror.has_listing(mirrored.listing)
    again = mirrored.source.resolve(URI, None, None)
    listing = mirrored.mirror.mirror(again, mirrored.source, REFERENCE)
    assert mirrored.source.asked == [("large", 5 * CHUNK)]
    assert contents(mirrored.mirror, listing.id) == FILES
    assert_sound(mirrored.mirror.root)


def test_one_source_that_can_not_be_asked_is_enough(mirrored: Mirrored) -> None:
    """Of two that had the content one has it no more; nothing goes before the other has said so, too."""
    resolved = mirrored.source.resolve("memory://other", None, None)
    other = replace(REFERENCE, address="weights.other")
    mirrored.mirror.mirror(resolved, mirrored.source, other)
    mirrored.damage("large", "flipped")

    def origins(record: Mapping[str, object], halt: threading.Event) -> Origin:
        raise (SourceGone if record["source"] == URI else SourceDenied)(str(record["source"]))

    report = verify(mirrored.mirror, Verifying(repair=True, origins=origins))

    assert [(one.outcome, one.detail) for one in report.findings] == [
        (Outcome.WRONG, "memory://other")
    ]
    assert mirrored.mirror.has_listing(mirrored.listing)


def test_who_interrupts_a_repair_ends_it(mirrored: Mirrored) -> None:
    """It says nothing of the source, and the next content isn't begun."""
    mirrored.damage("large", "flipped")

    def stopped(record: Mapping[str, object], halt: threading.Event) -> Origin:
        raise Interrupted("enough")

    with pytest.raises(Interrupted):
        verify(mirrored.mirror, Verifying(repair=True, origins=stopped))
    assert mirrored.mirror.has_listing(mirrored.listing)


def test_who_can_not_be_asked_is_not_asked_for_each_use(mirrored: Mirrored) -> None:
    """The same content under many names, and for many projects, is one question to one source."""
    mirrored.source.files = {**FILES, "again": FILES["small"], "a/third": FILES["small"]}
    resolved = mirrored.source.resolve(URI, None, None)
    for address in ("weights.model", "weights.other"):
        mirrored.mirror.mirror(resolved, mirrored.source, replace(REFERENCE, address=address))
    mirrored.damage("small", "flipped")
    mirrored.source.asked.clear()
    mirrored.source.cut_after, mirrored.source.error = 0, SourceUnreachable("nobody answers")

    report = mirrored.verify()

    assert [one.outcome for one in report.findings] == [Outcome.WRONG]
    assert len(mirrored.source.asked) == impatient().attempts


class Walked(Sequence[SourceFile]):
    """Counts how often it is gone through."""

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self.files = files
        self.walks = 0

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: Any) -> Any:
        return self.files[index]

    def __iter__(self) -> Iterator[SourceFile]:
        self.walks += 1
        return iter(self.files)


def test_small_files_are_fetched_again_many_at_once(tmp_path: Path) -> None:
    """Each of them once, and what upstream has is looked through once; all are right then."""
    files = {f"{number:03}": b"%d" % number for number in range(100)}
    mirror, source = mirror_at(tmp_path, chunk_bytes=CHUNK), Crowded(files)
    resolved = source.resolve(URI, None, None)
    listing = mirror.mirror(resolved, MemorySource(files), REFERENCE)
    for path in tmp_path.glob("packs/*/data"):
        path.unlink()
    walked = Walked(resolved.files)
    origin = Origin(source, replace(resolved, files=walked), None, impatient())
    assert origin.resolved.pin
    before = walked.walks

    report = verify(mirror, Verifying(repair=True, origins=lambda record, halt: origin))

    assert {one.outcome for one in report.findings} == {Outcome.REPAIRED}
    assert sorted(path for path, _ in source.asked) == sorted(files)
    assert TOGETHER <= source.most <= SMALL_AT_ONCE
    assert walked.walks == before + 1
    assert contents(mirror, listing.id) == files


@pytest.mark.parametrize("listing", [False, True])
def test_ctrl_c_ends_the_patience_of_a_repair(mirrored: Mirrored, *, listing: bool) -> None:
    """Who waits to ask again, for bytes or for what a source has, hears that nobody waits for it; nothing goes for that."""
    mirrored.damage("small", "flipped")
    mirrored.source.cut_after, mirrored.source.error = 0, SourceCut("it broke off")
    main, ended = threading.main_thread().ident, threading.Event()

    def busy() -> None:
        raise SourceCut("no page")

    def wait(halt: threading.Event, seconds: float) -> None:
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
        if halt.wait(30):
            ended.set()

    retry = replace(impatient(), wait=wait)

    def origins(record: Mapping[str, object], halt: threading.Event) -> Origin:
        if listing:
            retry.run(busy, halt)
        return Origin(mirrored.source, mirrored.source.resolve(URI, None, None), None, retry)

    with pytest.raises(KeyboardInterrupt):
        verify(mirrored.mirror, Verifying(repair=True, origins=origins))
    assert ended.wait(30)
    assert mirrored.mirror.has_listing(mirrored.listing)


def test_a_content_that_goes_while_its_turn_is_awaited_is_fetched_whole(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another repair had it, could not mend it, and left it as a transfer that was broken off."""
    mirrored.damage("large", "flipped")
    blob = Path(mirrored.place("large").path)

    @contextmanager
    def awaited(path: Path, *more: object) -> Iterator[bool]:
        blob.unlink(missing_ok=True)
        with lease(path, *more) as held:  # type: ignore[arg-type]
            yield held

    monkeypatch.setattr("trainctl.weights.mirror.mend.lease", awaited)

    assert [one.outcome for one in mirrored.verify().findings] == [Outcome.REPAIRED]
    assert contents(mirrored.mirror, mirrored.listing) == FILES


def test_a_disk_without_room_for_a_journal_takes_nothing_away(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can't be taken out of sight to be mended lies where it lay."""
    mirrored.damage("large", "flipped")
    blob = Path(mirrored.place("large").path)

    def full(*where: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("trainctl.weights.mirror.mend.Partial", full)
        with pytest.raises(StorageError):
            mirrored.verify()

    assert blob.exists()
    assert blob.stat().st_mode & 0o777 == 0o444
    assert [one.outcome for one in mirrored.verify().findings] == [Outcome.REPAIRED]
    assert leftovers(mirrored.mirror.root) == []


def test_a_damaged_listing_that_nobody_needs_goes(mirrored: Mirrored) -> None:
    """It is found by its digest; what it named is anybody's garbage."""
    mirrored.mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)
    mirrored.mirror._layout.listing(mirrored.listing).write_bytes(b"{}")

    told = mirrored.verify(repair=False)
    report = mirrored.verify()

    assert [(one.what, one.outcome) for one in told.findings] == [
        ("listing changed", Outcome.WRONG)
    ]
    assert [one.outcome for one in report.findings] == [Outcome.REMOVED]
    assert mirrored.verify().findings == ()


def test_progress_ends_at_the_total(mirrored: Mirrored) -> None:
    """The last word is that all bytes were read."""
    said: list[tuple[int, int, int]] = []

    verify(mirrored.mirror, Verifying(progress=lambda *numbers: said.append(numbers)))

    total = sum(map(len, FILES.values()))
    assert said[-1] == (total, total, 3)
