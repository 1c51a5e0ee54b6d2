"""How many bytes of memory the machine that mirrors takes at most for so many small files: ``python -m tests.support.mirror_memory WHAT COUNT PLACE``."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.support.memory import measured
from tests.support.mirrors import REFERENCE
from trainctl.base.listing import ResolvedSource, SourceFile, in_order
from trainctl.base.retry import Retry
from trainctl.node.content import packs
from trainctl.sources.file import FileSource
from trainctl.weights.mirror import DirectoryMirror, fetch, hashing, packing
from trainctl.weights.mirror import verify as verify_module
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.collect import Collecting, collect
from trainctl.weights.mirror.known import known
from trainctl.weights.mirror.verify import Verifying, verify

_IN_A_PACK = 300
Do = Callable[[], object]


class MadeUp:
    """A source of so many small files, which nobody has to keep: each holds its number."""

    def __init__(self, count: int, first: int = 0, every: int = 1) -> None:
        self._numbers = range(first, first + count, every)

    def resolved(self) -> ResolvedSource:
        """At its only revision. Its server tells no digests."""
        names = (f"{one // 500:04}/{one:08}" for one in self._numbers)
        files = in_order(SourceFile(name, 8, f"etag:{name}") for name in names)
        return ResolvedSource(f"hf://made/up-{self._numbers.start}", "1", files)

    @contextmanager
    def open(
        self, resolved: ResolvedSource, file: SourceFile, offset: int, credential: None
    ) -> Iterator[Iterator[bytes]]:
        """The bytes of one."""
        yield iter([file.path[-8:].encode()])


def mirrored(place: Path, count: int, first: int = 0, every: int = 1) -> DirectoryMirror:
    """A mirror that has such a source, under a name of its own by its ``first`` file."""
    mirror = DirectoryMirror(place / "mirror")
    source = MadeUp(count, first, every)
    mirror.mirror(source.resolved(), source, replace(REFERENCE, address=f"weights.of-{first}"))  # type: ignore[arg-type]
    return mirror


def _files(place: Path, count: int) -> Do:
    """A directory of this machine, with directories of a file each."""
    for one in range(count):
        (place / "src" / f"{one:08}").mkdir(parents=True)
        (place / "src" / f"{one:08}" / "x").touch()

    def resolve() -> None:
        assert len(FileSource().resolve((place / "src").as_uri(), None, None).files) == count

    return resolve


def _mirror(place: Path, count: int) -> Do:
    return lambda: mirrored(place, count)


def _twice(place: Path, count: int) -> Do:
    """Once more, when everything is there."""
    mirrored(place, count)
    return lambda: mirrored(place, count)


def _again(place: Path, count: int) -> Do:
    """What a plan asks about what it has whole."""
    mirror, source = mirrored(place, count), MadeUp(count)

    def look() -> None:
        (found,), _ = known(mirror, [source.resolved()])
        assert found.listing is not None

    return look


def _collect(place: Path, count: int) -> Do:
    """Of two sources one goes."""
    mirror = mirrored(place, count)
    mirrored(place, 10, first=count)
    mirror.drop_reference(REFERENCE.lineage, f"weights.of-{count}")
    return lambda: _collected(mirror)


def _anew(place: Path, count: int) -> Do:
    """Of each pack a part goes, and the rest is put together anew."""
    mirror = mirrored(place, count)
    mirrored(place, count, every=3)
    return lambda: _collected(mirror)


def _collected(mirror: DirectoryMirror) -> None:
    assert collect(mirror, Collecting(grace_seconds=0)).blobs


def _verify(place: Path, count: int) -> Do:
    """All of it is right, in listings that would each be held."""
    for first in range(0, count, _IN_A_PACK):
        mirror = mirrored(place, min(_IN_A_PACK, count - first), first)

    def look() -> None:
        assert verify(mirror, Verifying()).whole

    return look


def _wrong(place: Path, count: int) -> Do:
    """Each content is wrong, and told."""
    mirror = mirrored(place, count)
    for data in mirror.root.glob("packs/*/data"):
        data.chmod(0o600)
        data.write_bytes(b"x" * data.stat().st_size)

    def look() -> None:
        assert len(verify(mirror, Verifying()).findings) == count

    return look


def _repair(place: Path, count: int) -> Do:
    """In each pack something is wrong, half of all packs have gone, and everything comes again."""
    mirror, source = mirrored(place, count), MadeUp(count)
    resolved = source.resolved()
    for number, data in enumerate(mirror.root.glob("packs/*/data")):
        data.chmod(0o600)
        with data.open("r+b") as stream:
            stream.write(b"x")
        if number % 2:
            shutil.rmtree(data.parent)

    def mend() -> None:
        origin = Origin(source, resolved, None, Retry())  # type: ignore[arg-type]
        assert verify(mirror, Verifying(True, lambda record, halt: origin)).whole

    return mend


if __name__ == "__main__":
    packing.MOST_CONTENTS = _IN_A_PACK
    packs._HELD_BYTES, packs._ROWS_AT_ONCE = (
        512,
        16,
    )  # less than the index of such a pack, as it is of a full one
    hashing._PIECE_BYTES = 2**16
    fetch.AT_ONCE = verify_module._AT_ONCE = 500
    kinds = {
        "files": _files, "mirror": _mirror, "twice": _twice, "again": _again, "collect": _collect,
        "anew": _anew, "verify": _verify, "wrong": _wrong, "repair": _repair,
    }  # fmt: skip
    sys.exit(measured(kinds))
