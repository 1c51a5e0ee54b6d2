"""A cache in a directory that the nodes of a cluster share: one of them brings what is missing, the others take it. See DESIGN.md, "Shared cache"."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import time
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
)

from trainctl.node.content.digests import Digests
from trainctl.node.content.listing import File, Listing
from trainctl.node.content.packed import packed
from trainctl.node.content.parts import Part, parts_of
from trainctl.node.content.sizes import sizes_in, text_of
from trainctl.node.system import layout as names
from trainctl.node.system.failure import Failure
from trainctl.node.system.files import (
    make_durable,
    modified,
    names_in,
    remove_tree,
    sync_directory,
    unique,
    write_at,
    write_atomic,
)
from trainctl.node.system.sharing import file_mode, make_directory
from trainctl.node.transfer.gathering import Data, Fetcher, Gathering, Order
from trainctl.node.transfer.partials import named
from trainctl.node.transfer.shared_claim import Claim, Watch

_GROUP = 256
_POLL_SECONDS = 0.1
_OLD_SECONDS = 24 * 3600.0
_GONE = (FileNotFoundError, NotADirectoryError)


class Used(NamedTuple):
    """A lineage's need of a listing, and when it last had it, by the file server's clock."""

    path: Path
    at: float

    def contents(self) -> Iterator[str]:
        """What it names."""
        return (sha256 for sha256, _ in sizes_in(self.path))


class SharedCache:
    """The directory. What is in it is verified before it gets its name, and again by whoever takes it."""

    def __init__(self, directory: Any, limit: Optional[int] = None) -> None:
        root = names.absolute(directory, "shared cache")
        self.root = root
        self._limit = limit
        self._blobs = root / "blobs" / "sha256"
        self._incoming = root / "incoming"
        self._claims = root / "claims"
        self._references = root / "references"

    def blob(self, sha256: str) -> Path:
        """Where a content lies."""
        return Path(self._blob_name(sha256))

    def _blob_name(self, sha256: str) -> str:
        """The same as text, for what is done with millions."""
        return f"{self._blobs}/{sha256[:2]}/{sha256}"

    def has(self, file: File) -> bool:
        """Whether the content is there, going by its name and size."""
        try:
            return os.stat(self._blob_name(file.sha256)).st_size == file.size  # noqa: PTH116
        except FileNotFoundError:
            return False

    def refer(self, lineage: str, listing: Listing) -> None:
        """Say that a lineage uses a listing, now."""
        path = make_directory(self._references / lineage) / f"{listing.id}.json"
        try:
            os.utime(path)
        except FileNotFoundError:
            pieces = map(str.encode, text_of({}, "contents", listing.contents))
            write_atomic(path, pieces, mode=file_mode(path.parent))

    def forget(self, lineage: str) -> int:
        """Drop a lineage's references, and what no other needs; the bytes freed."""
        uses = (one for one in self._used() if one.path.parent.name == lineage)
        mine = _kept(sha256 for one in uses for sha256 in one.contents())
        remove_tree(self._references / lineage)
        return self._drop(mine)

    def drop(self, sha256: str) -> None:
        """Remove a content that turned out to be wrong; whoever needs it brings it anew."""
        with contextlib.suppress(FileNotFoundError):
            self.blob(sha256).unlink()

    def bring(
        self,
        window: Sequence[File],
        missing: Set[str],
        mirror: Sequence[Fetcher],
        beat: Callable[[], None],
    ) -> Set[str]:
        """Have what is missing on this node in the directory; the contents that this call brought there.

        All nodes claim the same groups of the window, each in an order of its own, and wait for those of others.
        ``beat`` is called now and then. Nothing is brought where there is no room.
        """
        for directory in (self._incoming, self._claims):
            make_directory(directory)
        left = [group for group in _groups(window) if any(one.sha256 in missing for one in group)]
        left = [group for group in left if self._absent(group)]
        if not left or not self._room_for([file for group in left for file in self._absent(group)]):
            return set()
        random.shuffle(left)  # so that nodes don't all begin with the same
        watch, brought = Watch(), set()  # type: ignore[var-annotated]
        while left:
            others: List[List[File]] = []
            for group in left:
                claim = Claim(self._claims / _name(group), watch)
                if not claim.take():
                    others.append(group)
                    continue
                with claim:
                    absent = self._absent(group)
                    self._fetch(absent, mirror, beat)
                    brought.update(file.sha256 for file in absent)
            left = [group for group in others if self._absent(group)]
            if left:
                beat()
                time.sleep(_POLL_SECONDS)
        return brought

    def _absent(self, group: Sequence[File]) -> List[File]:
        return [file for file in group if not self.has(file)]

    def _fetch(
        self, files: Sequence[File], mirror: Sequence[Fetcher], beat: Callable[[], None]
    ) -> None:
        """Write each under a name that nobody else uses, verified; then sync, then rename."""
        temporaries = {file.sha256: self._incoming / unique(file.sha256) for file in files}
        opened: Dict[str, int] = {}
        try:
            for sha256, path in temporaries.items():
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                opened[sha256] = os.open(path, flags, 0o600)

            def keep(part: Part, data: Data, place: str) -> None:
                with named(temporaries[part.file.sha256]):
                    write_at(opened[part.file.sha256], part.piece.offset, data)
                beat()

            orders = [Order(part, []) for file in files for part in parts_of(file)]
            Gathering(mirror, keep).run(orders)
            for descriptor in opened.values():
                os.fchmod(descriptor, 0o444)
            make_durable(temporaries.values(), self._incoming)
            self._publish(temporaries)
        finally:
            for descriptor in opened.values():
                os.close(descriptor)
            for path in temporaries.values():
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()

    def _publish(self, temporaries: Mapping[str, Path]) -> None:
        folders = set()
        for sha256, path in temporaries.items():
            folders.add(make_directory(self.blob(sha256).parent))
            path.replace(self.blob(sha256))
        for folder in folders:
            sync_directory(folder)

    def _room_for(self, files: Sequence[File]) -> bool:
        """Whether they fit the limit, once what was used longest ago and is not needed by others has gone."""
        self._sweep()
        if self._limit is None:
            return True
        coming = {file.sha256 for file in files}
        size = sum(file.size for file in files)
        if size > self._limit:
            return False  # nothing goes for what wouldn't fit anyway
        uses = sorted(self._used(), key=lambda use: use.at)
        used = self._bytes()
        while used + size > self._limit and uses:
            oldest = uses.pop(0)
            contents = _kept(oldest.contents())
            if coming.isdisjoint(contents):
                with contextlib.suppress(FileNotFoundError):
                    oldest.path.unlink()
                used -= self._drop(contents)
        return used + size <= self._limit

    def _drop(self, contents: Iterable[str]) -> int:
        """Remove those contents that no reference names; the bytes freed."""
        named = Digests(sha256 for use in self._used() for sha256 in use.contents())
        freed = 0
        for sha256 in contents:
            if sha256 not in named:
                name = self._blob_name(sha256)
                with contextlib.suppress(FileNotFoundError):
                    size = os.stat(name).st_size  # noqa: PTH116
                    os.unlink(name)  # noqa: PTH108
                    freed += size
        return freed

    def _bytes(self) -> int:
        """The bytes of all content; what others remove meanwhile counts or not."""
        found = 0
        for folder in names_in(self._blobs):
            with contextlib.suppress(*_GONE), os.scandir(self._blobs / folder) as blobs:
                for blob in blobs:
                    with contextlib.suppress(FileNotFoundError):
                        found += blob.stat().st_size
        return found

    def _used(self) -> Iterator[Used]:
        for lineage in names_in(self._references):
            for name in names_in(self._references / lineage):
                path = self._references / lineage / name
                if name.endswith(".json"):
                    yield Used(path, modified(path))

    def _sweep(self) -> None:
        """Remove what nodes that were killed left half-brought, a day later by the file server's clock."""
        newest = max(
            (modified(self._incoming / name) for name in names_in(self._incoming)), default=0.0
        )
        for name in names_in(self._incoming):
            if modified(self._incoming / name) < newest - _OLD_SECONDS:
                with contextlib.suppress(FileNotFoundError):
                    (self._incoming / name).unlink()


def shared_of(request: Mapping[str, Any]) -> Optional[SharedCache]:
    """The shared cache of a request: ``shared: {dir, size}``; None if there is none."""
    value = request.get("shared")
    if not value:
        return None
    size = value.get("size")
    if size is not None and (not isinstance(size, int) or size < 0):
        raise Failure("request", f"shared cache size {size!r} is no number of bytes")
    return SharedCache(value.get("dir"), size)


def _kept(contents: Iterable[str]) -> Sequence[str]:
    """Contents that are named where they soon are no more."""
    return packed(contents, lambda sha256: (sha256,), str)


def _groups(window: Sequence[File]) -> List[List[File]]:
    """What is brought at once: a file, or some of those that travel in packs."""
    small = [file for file in window if parts_of(file)[0].packed]
    groups = [[file] for file in window if not parts_of(file)[0].packed]
    return groups + [small[start : start + _GROUP] for start in range(0, len(small), _GROUP)]


def _name(group: Sequence[File]) -> str:
    return hashlib.sha256("\n".join(file.sha256 for file in group).encode()).hexdigest()
