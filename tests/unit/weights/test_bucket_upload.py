"""Large files on their way into a bucket: by several connections, in order, and never more of them in memory than there is room for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.bucket_mirrors import Counted, Directory, contents, counted, marked_chunks
from tests.support.mirrors import REFERENCE, MemorySource, impatient
from tests.support.weights_data import noise
from trainctl.base.listing import CHUNK_BYTES, ResolvedSource, SourceFile
from trainctl.errors import SourceCut
from trainctl.spi.sources import Credential, Fill, Span
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.bucket.shelf import Shelf

PIECE = 2**20
BIG = noise(5 * CHUNK_BYTES + 99)


@dataclass
class PartedSource(MemorySource):
    """Hands out parts, the later ones of a file first: each but the last waits until the one after it has been filled."""

    parts: int = 10**6
    """How many parts it hands out; then it has only whole files."""
    breaks: bool = False
    gate: threading.Event | None = None
    """What the fourth chunk and all after it wait for, in vain."""

    def __post_init__(self) -> None:
        self.spans: list[Span] = []
        self.filled: set[int] = set()
        self.changed = threading.Condition()

    @contextmanager
    def part(
        self, resolved: ResolvedSource, file: SourceFile, span: Span, credential: Credential | None
    ) -> Iterator[Fill | None]:
        data, done = self.files[file.path], 0
        with self.changed:
            self.spans.append(span)
            number = len(self.spans)
            broken, self.breaks = self.breaks, False
        if number > self.parts:
            with self.changed:
                self.filled.add(span.offset)
                self.changed.notify_all()
            yield None
            return

        def fill(view: memoryview) -> None:
            nonlocal done
            if broken and done:
                raise SourceCut("gone")
            if self.gate is not None and span.offset >= 3 * CHUNK_BYTES:
                assert self.gate.wait(60)
                raise SourceCut("gone")
            with self.changed:
                following = (span.offset // CHUNK_BYTES + 1) * CHUNK_BYTES
                asked = any(one.offset == following for one in self.spans) and not self.gate
                assert self.changed.wait_for(lambda: not asked or following in self.filled, 60)
            view[:] = data[span.offset + done : span.offset + done + len(view)]
            done += len(view)
            if done == span.length:
                with self.changed:
                    self.filled.add(span.offset // CHUNK_BYTES * CHUNK_BYTES)
                    self.changed.notify_all()

        yield fill


def mirror_at(root: Path) -> BucketMirror:
    return BucketMirror(Shelf(Counted(Directory(root))), impatient())


def resolved(source: MemorySource) -> ResolvedSource:
    return source.resolve("hf://acme/model", None, None)


@pytest.mark.parametrize("breaks", [False, True])
def test_a_large_file_comes_by_parts_that_may_arrive_out_of_turn(
    tmp_path: Path, breaks: bool
) -> None:
    """Each chunk is put under its own digest, whatever came first; a part that breaks off is asked for from there on."""
    source = PartedSource({"big": BIG}, piece=PIECE, breaks=breaks)
    mirror = mirror_at(tmp_path)

    listing = mirror.mirror(resolved(source), source, REFERENCE)

    assert contents(mirror, listing.id) == {"big": BIG}
    assert source.asked == []
    assert len(source.spans) == 6 + breaks
    assert {one.offset for one in source.spans if not one.offset % CHUNK_BYTES} == {
        number * CHUNK_BYTES for number in range(6)
    }


def test_where_upstream_has_only_whole_files_after_all_the_rest_is_one_stream(
    tmp_path: Path,
) -> None:
    """Chunks that had come out of turn are of no use then, and of no harm."""
    source = PartedSource({"big": BIG}, piece=PIECE, parts=3)
    mirror = mirror_at(tmp_path)

    listing = mirror.mirror(resolved(source), source, REFERENCE)

    assert contents(mirror, listing.id) == {"big": BIG}
    (asked,) = source.asked
    assert asked[1] % CHUNK_BYTES == 0


def test_what_was_put_of_parts_before_a_transfer_broke_is_taken_up(tmp_path: Path) -> None:
    """The chunks whose marks are there aren't asked for again, and what comes is held against the whole."""
    source = PartedSource({"big": BIG}, announce=False, piece=PIECE, gate=threading.Event())
    mirror = BucketMirror(Shelf(Counted(Directory(tmp_path))), impatient(attempts=1))

    def before(what: str, key: str) -> None:
        if key.startswith(keys.PARTIAL) and source.gate is not None:
            source.gate.set()

    counted(mirror).before = before
    with pytest.raises(SourceCut):
        mirror.mirror(resolved(source), source, REFERENCE)
    (kept,) = marked_chunks(mirror, resolved(source))
    (looked,) = mirror.look([resolved(source)]).known
    source.spans.clear()
    source.filled.clear()
    source.gate = None

    listing = mirror_at(tmp_path).mirror(resolved(source), source, REFERENCE)

    begun = {one.offset for one in source.spans} | {offset for _, offset in source.asked}
    assert 1 <= len(kept) <= 3
    assert looked.had == len(kept) * CHUNK_BYTES
    assert min(begun) == len(kept) * CHUNK_BYTES
    assert contents(mirror, listing.id) == {"big": BIG}


def test_a_mark_is_put_when_its_chunk_is_there(tmp_path: Path) -> None:
    """Whoever takes the transfer up after a kill between the two would look for a chunk in vain."""
    mirror = BucketMirror(Shelf(Counted(Directory(tmp_path)), CHUNK_BYTES), impatient())
    source = MemorySource({"large": BIG}, piece=PIECE)
    objects, early = mirror.shelf.objects, list[str]()

    def before(what: str, key: str) -> None:
        sha256 = key.rpartition(".")[2]
        if what == "put" and key.startswith(keys.PARTIAL) and ".whole." not in key:
            early.extend([key] if objects.head(keys.blob(sha256)) is None else [])
            marked.append(key)

    marked: list[str] = []
    counted(mirror).before = before
    mirror.mirror(source.resolve("hf://acme/model", None, None), source, REFERENCE)

    assert len(marked) == 6
    assert early == []
