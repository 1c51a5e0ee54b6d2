"""A cache in a directory that the nodes of a cluster share: one of them brings what is missing, the others take it. See DESIGN.md, "Shared cache"."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import stat
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
    Pattern,
    Sequence,
    Set,
    Tuple,
)

from trainctl.base import below
from trainctl.base.failure import Failure
from trainctl.base.files import make_durable, read_json, unique, write_at
from trainctl.base.lease import Liveness
from trainctl.base.listing import ListedFile, Listing
from trainctl.base.sharing import make_directory
from trainctl.node.content.parts import Part, parts_of
from trainctl.node.system import layout as names
from trainctl.node.transfer.gathering import Data, Fetcher, Gathering, Order
from trainctl.node.transfer.shared_claim import Claim
from trainctl.store.files import errors_named

_GROUP = 256
_POLL_SECONDS = 0.1
_OLD_SECONDS = 24 * 3600.0
_BLOB = re.compile(r"[0-9a-f]{64}")
_REFERENCE = re.compile(r"[0-9a-f]{64}\.json")
_HALF_WRITTEN = re.compile(r"\.[0-9a-f]{64}(?:\.json)?\.\d+\.[0-9a-f]{12}")
"""What is made here has exactly these names. Whatever else lies here is somebody else's and stays; DESIGN.md, "Shared cache"."""


class Used(NamedTuple):
    """A lineage's need of a listing, and when it last had it, by the file server's clock."""

    path: Path
    at: float

    def contents(self) -> Iterator[str]:
        """What it names."""
        return iter((read_json(self.path) or {}).get("contents", ()))


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

    def has(self, file: ListedFile) -> bool:
        """Whether the content is there, going by its name and size."""
        return below.file_size(self._blob_name(file.sha256)) == file.size

    def refer(self, lineage: str, listing: Listing) -> None:
        """Say that a lineage uses a listing, now."""
        make_directory(self.root)
        path = self._make(self._references / lineage) / f"{listing.id}.json"
        try:
            below.touch(self.root, path)
        except FileNotFoundError:
            document = {"contents": {file.sha256: file.size for file in listing.contents}}
            self._write(path, [json.dumps(document).encode()])

    def forget(self, lineage: str) -> int:
        """Drop a lineage's references, and what no other needs; the bytes freed."""
        uses = (one for one in self._used() if one.path.parent.name == lineage)
        mine = {sha256 for one in uses for sha256 in one.contents()}
        place = self._references / lineage
        for name, _ in list(self._files(place, _REFERENCE, _HALF_WRITTEN)):
            below.remove(self.root, place / name)
        below.remove_empty(self.root, place)
        return self._drop(mine)

    def drop(self, sha256: str) -> None:
        """Remove a content that turned out to be wrong; whoever needs it brings it anew."""
        below.remove(self.root, self.blob(sha256))

    def bring(
        self,
        window: Sequence[ListedFile],
        missing: Set[str],
        mirror: Sequence[Fetcher],
        beat: Callable[[], None],
    ) -> Set[str]:
        """Have what is missing on this node in the directory; the contents that this call brought there.

        All nodes claim the same groups of the window, each in an order of its own, and wait for those of others.
        ``beat`` is called now and then. Nothing is brought where there is no room.
        """
        make_directory(self.root)
        for directory in (self._incoming, self._claims):
            self._make(directory)
        left = [group for group in _groups(window) if any(one.sha256 in missing for one in group)]
        left = [group for group in left if self._absent(group)]
        if not left or not self._room_for([file for group in left for file in self._absent(group)]):
            return set()
        random.shuffle(left)  # so that nodes don't all begin with the same
        liveness, brought = Liveness(), set()  # type: ignore[var-annotated]
        while left:
            others: List[List[ListedFile]] = []
            for group in left:
                claim = Claim(self.root, self._claims / _name(group), liveness)
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

    def _absent(self, group: Sequence[ListedFile]) -> List[ListedFile]:
        return [file for file in group if not self.has(file)]

    def _fetch(
        self, files: Sequence[ListedFile], mirror: Sequence[Fetcher], beat: Callable[[], None]
    ) -> None:
        """Write each under a name that nobody else uses, verified; then sync, then rename."""
        temporaries = {file.sha256: self._incoming / unique(file.sha256) for file in files}
        opened: Dict[str, int] = {}
        try:
            for sha256, path in temporaries.items():
                opened[sha256] = below.create(self.root, path, os.O_RDWR | os.O_EXCL)

            def keep(part: Part, data: Data, place: str) -> None:
                with errors_named(str(temporaries[part.file.sha256])):
                    write_at(opened[part.file.sha256], part.chunk.offset, data)
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
                below.remove(self.root, path)

    def _publish(self, temporaries: Mapping[str, Path]) -> None:
        folders = set()
        for sha256, path in temporaries.items():
            folders.add(self._make(self.blob(sha256).parent))
            below.move(self.root, path, self.blob(sha256))
        for folder in folders:
            with below.opened(self.root, folder) as descriptor:
                os.fsync(descriptor)

    def _room_for(self, files: Sequence[ListedFile]) -> bool:
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
            contents = set(oldest.contents())
            if coming.isdisjoint(contents):
                below.remove(self.root, oldest.path)
                used -= self._drop(contents)
        return used + size <= self._limit

    def _drop(self, contents: Iterable[str]) -> int:
        """Remove those contents that no reference names; the bytes freed."""
        named = {sha256 for use in self._used() for sha256 in use.contents()}
        freed = 0
        for sha256 in contents:
            if sha256 not in named:
                freed += below.remove(self.root, self.blob(sha256))
        return freed

    def _bytes(self) -> int:
        """The bytes of all content; what others remove meanwhile counts or not."""
        folders = (self._blobs / f"{number:02x}" for number in range(256))
        return sum(size for folder in folders for _, (size, _) in self._files(folder, _BLOB))

    def _used(self) -> Iterator[Used]:
        lineages = below.entries(self.root, self._references)
        for lineage in sorted(one.name for one in lineages):
            place = self._references / lineage
            for name, (_, at) in sorted(self._files(place, _REFERENCE)):
                yield Used(place / name, at)

    def _sweep(self) -> None:
        """Remove what nodes that were killed left half-brought, a day later by the file server's clock."""
        found = list(self._files(self._incoming, _HALF_WRITTEN))
        newest = max((at for _, (_, at) in found), default=0.0)
        for name, (_, at) in found:
            if at < newest - _OLD_SECONDS:
                below.remove(self.root, self._incoming / name)

    def _files(
        self, directory: Path, *forms: Pattern[str]
    ) -> Iterator[Tuple[str, Tuple[int, float]]]:
        """The files of a directory whose names have such a form, with size and the time of the last write; what others remove meanwhile may be left out."""
        for one in below.entries(self.root, directory):
            if any(form.fullmatch(one.name) for form in forms):
                with contextlib.suppress(FileNotFoundError):
                    found = one.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        yield one.name, (found.st_size, found.st_mtime)

    def _make(self, directory: Path) -> Path:
        return below.make_directory(self.root, directory)

    def _write(self, path: Path, pieces: Iterable[bytes]) -> None:
        temporary = path.with_name(unique(path.name))
        try:
            made = below.create(self.root, temporary, os.O_WRONLY | os.O_EXCL)
            with os.fdopen(made, "wb") as stream:
                stream.writelines(pieces)
                stream.flush()
                os.fsync(made)
            below.move(self.root, temporary, path)
        except OSError:
            below.remove(self.root, temporary)
            raise


def shared_of(request: Mapping[str, Any]) -> Optional[SharedCache]:
    """The shared cache of a request: ``shared: {dir, size}``; None if there is none."""
    value = request.get("shared")
    if not value:
        return None
    size = value.get("size")
    if size is not None and (not isinstance(size, int) or size < 0):
        raise Failure("request", f"shared cache size {size!r} is no number of bytes")
    return SharedCache(value.get("dir"), size)


def _groups(window: Sequence[ListedFile]) -> List[List[ListedFile]]:
    """What is brought at once: a file, or some of those that travel in packs."""
    small = [file for file in window if parts_of(file)[0].packed]
    groups = [[file] for file in window if not parts_of(file)[0].packed]
    return groups + [small[start : start + _GROUP] for start in range(0, len(small), _GROUP)]


def _name(group: Sequence[ListedFile]) -> str:
    return hashlib.sha256("\n".join(file.sha256 for file in group).encode()).hexdigest()
