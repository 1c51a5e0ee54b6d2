"""A cache in a directory that the nodes of a cluster share: one of them fetches what is missing, the others copy it.

    blobs/sha256/<2>/<64>                 0444; renamed there after every chunk was verified, and synced
    incoming/.<64>.<pid>.<random>         being fetched, under a name that no other process uses
    claims/<digest>                       leases: which process fetches a file, or a group of small ones
    references/<lineage>/<listing>.json   {contents: {sha256: size}}; mtime: the last use, by the file server's clock

Nothing rests on locks or clocks. All of it may be deleted at any moment; other files in it are left alone.
"""

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
from typing import (  # fmt: skip
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

from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import (  # fmt: skip
    create_file,
    file_mode_for,
    make_durable,
    make_shared_directory,
    open_file,
    read_json,
    sync_directory,
    temporary_name,
    write_at,
    write_atomic,
)
from trainctl.base.lease import FileLease, Liveness
from trainctl.base.listing import Chunk, ListedFile, Listing
from trainctl.node.system import layout as names
from trainctl.node.system.blob_files import name_file_in_errors
from trainctl.node.transfer.fetch_pool import (
    ChunkBuffer,
    Data,
    Fetcher,
    FetchPool,
    FetchResult,
    FetchTask,
    PassOnFn,
)
from trainctl.node.transfer.transfer_units import TransferUnit, units_of

SHARED = "shared"
"""The name of this place."""
_GROUP = 256
_POLL_SECONDS = 0.1
_OLD_SECONDS = 24 * 3600.0
_BLOB = re.compile(r"[0-9a-f]{64}")
_REFERENCE = re.compile(r"[0-9a-f]{64}\.json")
_TEMPORARY = re.compile(r"\.[0-9a-f]{64}(?:\.json)?\.\d+\.[0-9a-f]{12}")


class _SharedReference(NamedTuple):
    """A lineage's need of a listing, and when it last had it."""

    path: Path
    at: float

    def contents(self) -> Iterator[str]:
        """The digests of the contents."""
        return iter((read_json(self.path) or {}).get("contents", ()))


class SharedCache:
    """The directory. Its contents are verified before they get their names, and again by those that copy them."""

    def __init__(self, directory: Any, limit: Optional[int] = None) -> None:
        root = names.check_absolute(directory, "shared cache")
        self.root = root
        self._limit = limit
        self._blobs = root / "blobs" / "sha256"
        self._incoming = root / "incoming"
        self._claims = root / "claims"
        self._references = root / "references"

    def blob(self, sha256: str) -> str:
        """The file of a content. As text, since there may be millions."""
        return f"{self._blobs}/{sha256[:2]}/{sha256}"

    def has(self, file: ListedFile) -> bool:
        """Whether the content is there, judging by its name and size."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = os.lstat(self.blob(file.sha256))
            return stat.S_ISREG(found.st_mode) and found.st_size == file.size
        return False

    def has_name(self, sha256: str) -> bool:
        """Whether the content is there, judging by its name alone."""
        return os.path.isfile(self.blob(sha256))  # noqa: PTH113

    def clone(self, file: ListedFile, clone: Callable[[int, Chunk], bool]) -> bool:
        """Fill a file without copying bytes; False if that is impossible, or it isn't there."""
        stream = open_file(self.blob(file.sha256))
        if stream is None:
            return False
        with stream:
            return clone(stream.fileno(), Chunk(0, 0, file.sha256))

    def refer(self, lineage: str, listing: Listing) -> None:
        """Record that a lineage uses a listing now."""
        path = make_shared_directory(self._references / lineage) / f"{listing.id}.json"
        try:
            os.utime(path)
        except FileNotFoundError:
            document = {"contents": {file.sha256: file.size for file in listing.unique_files}}
            write_atomic(path, json.dumps(document).encode(), mode=file_mode_for(path.parent))

    def forget(self, lineage: str) -> int:
        """Drop a lineage's references, and what no other needs; the bytes freed."""
        place = self._references / lineage
        uses = (use for use in self._uses() if use.path.parent == place)
        contents = {sha256 for use in uses for sha256 in use.contents()}
        for name, _ in list(self._files(place, _REFERENCE, _TEMPORARY)):
            _remove(f"{place}/{name}")
        with contextlib.suppress(OSError):
            place.rmdir()
        return self._drop(contents)

    def drop(self, sha256: str) -> None:
        """Remove a content that is wrong; the next node that needs it fetches it again."""
        _remove(self.blob(sha256))

    def fetch_missing(
        self,
        window: Sequence[ListedFile],
        missing: Set[str],
        mirror: Sequence[Fetcher],
        beat: Callable[[], None],
    ) -> Set[str]:
        """Have what is missing on this node in the directory; the contents that this call fetched from the mirror.

        All nodes claim the same groups of the window, each in its own order, and wait for those of others. ``beat`` is
        called now and then. Nothing is fetched if there is no space for it.
        """
        for directory in (self._incoming, self._claims):
            make_shared_directory(directory)
        groups = [
            group for group in _groups(window) if any(file.sha256 in missing for file in group)
        ]
        left = [group for group in groups if self._absent(group)]
        if not left or not self._make_room(
            [file for group in left for file in self._absent(group)]
        ):
            return set()
        random.shuffle(left)  # so that nodes don't all begin with the same
        liveness, fetched = Liveness(), set()  # type: ignore[var-annotated]
        while left:
            for group in left:
                lease = FileLease(
                    self._claims / _group_name(group), renewed=True, liveness=liveness
                )
                if lease.try_acquire():
                    with lease:
                        absent = self._absent(group)
                        self._fetch(absent, mirror, beat)
                        fetched.update(file.sha256 for file in absent)
            left = [group for group in left if self._absent(group)]
            if left:
                beat()
                time.sleep(_POLL_SECONDS)
        return fetched

    def _absent(self, group: Sequence[ListedFile]) -> List[ListedFile]:
        return [file for file in group if not self.has(file)]

    def _fetch(
        self, files: Sequence[ListedFile], mirror: Sequence[Fetcher], beat: Callable[[], None]
    ) -> None:
        """Write each, verified, under a name that no other process uses; sync; rename."""
        temporaries = {file.sha256: self._incoming / temporary_name(file.sha256) for file in files}
        opened: Dict[str, int] = {}
        try:
            for sha256, path in temporaries.items():
                opened[sha256] = create_file(path)

            def keep(part: TransferUnit, data: Data, place: str) -> None:
                with name_file_in_errors(str(temporaries[part.file.sha256])):
                    write_at(opened[part.file.sha256], part.chunk.offset, data)
                beat()

            FetchPool(mirror, keep).run(
                [FetchTask(part, []) for file in files for part in units_of(file)]
            )
            for descriptor in opened.values():
                os.fchmod(descriptor, 0o444)
            make_durable(temporaries.values(), self._incoming)
            folders = set()
            for sha256, path in temporaries.items():
                target = Path(self.blob(sha256))
                folders.add(make_shared_directory(target.parent))
                path.replace(target)
            for folder in folders:
                sync_directory(folder)
        finally:
            for descriptor in opened.values():
                os.close(descriptor)
            for path in temporaries.values():
                _remove(str(path))

    def _make_room(self, files: Sequence[ListedFile]) -> bool:
        """Whether the files fit the limit, after listings that were used longest ago were evicted."""
        self._sweep()
        if self._limit is None:
            return True
        coming = {file.sha256 for file in files}
        size = sum(file.size for file in files)
        if size > self._limit:
            return False  # it wouldn't fit whatever is evicted
        uses = sorted(self._uses(), key=lambda use: use.at)
        used = self._bytes()
        while used + size > self._limit and uses:
            oldest = uses.pop(0)
            contents = set(oldest.contents())
            if coming.isdisjoint(contents):
                _remove(str(oldest.path))
                used -= self._drop(contents)
        return used + size <= self._limit

    def _drop(self, contents: Iterable[str]) -> int:
        """Remove those contents that no reference names; the bytes freed."""
        named = {sha256 for use in self._uses() for sha256 in use.contents()}
        return sum(_remove(self.blob(sha256)) for sha256 in contents if sha256 not in named)

    def _bytes(self) -> int:
        folders = (self._blobs / f"{number:02x}" for number in range(256))
        return sum(size for folder in folders for _, (size, _) in self._files(folder, _BLOB))

    def _uses(self) -> Iterator[_SharedReference]:
        try:
            lineages = sorted(path.name for path in self._references.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return
        for lineage in lineages:
            place = self._references / lineage
            for name, (_, at) in sorted(self._files(place, _REFERENCE)):
                yield _SharedReference(place / name, at)

    def _sweep(self) -> None:
        """Remove what killed nodes left half written, a day later by the file server's clock."""
        found = list(self._files(self._incoming, _TEMPORARY))
        newest = max((at for _, (_, at) in found), default=0.0)
        for name, (_, at) in found:
            if at < newest - _OLD_SECONDS:
                _remove(f"{self._incoming}/{name}")

    def _files(
        self, directory: Path, *forms: Pattern[str]
    ) -> Iterator[Tuple[str, Tuple[int, float]]]:
        """Names of such forms that are files, with size and time of the last write; others may remove them meanwhile."""
        try:
            entries = os.scandir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return
        with entries:
            for entry in entries:
                if any(form.fullmatch(entry.name) for form in forms):
                    with contextlib.suppress(FileNotFoundError):
                        found = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(found.st_mode):
                            yield entry.name, (found.st_size, found.st_mtime)


class SharedCacheFetcher(Fetcher):
    """Copies from the shared cache; the mirror has what is missing or wrong there."""

    def __init__(self, shared: SharedCache) -> None:
        super().__init__(SHARED)
        self._buffer = ChunkBuffer()
        self._shared = shared
        self._wrong: Set[str] = set()

    def fetch(self, parts: Sequence[TransferUnit], pass_on: PassOnFn) -> Iterator[FetchResult]:
        """See Fetcher."""
        for part in parts:
            view, digest, done = self._buffer.view(part.chunk.length), hashlib.sha256(), 0
            with contextlib.suppress(OSError):
                stream = open_file(self._shared.blob(part.file.sha256))
                with stream or contextlib.nullcontext():
                    while stream and done < len(view):
                        end = min(done + 2**20, len(view))
                        count = os.preadv(stream.fileno(), [view[done:end]], part.chunk.offset + done)  # fmt: skip
                        if not count:
                            break
                        digest.update(view[done : done + count])
                        done += count
            yield FetchResult(view, digest.hexdigest()) if done == len(view) else FetchResult(None)

    def reject(self, part: TransferUnit) -> None:
        """See Fetcher. Other parts of the content may be right, so it is removed at the end."""
        self._wrong.add(part.file.sha256)

    def close(self) -> None:
        """See Fetcher."""
        while self._wrong:
            self._shared.drop(self._wrong.pop())


def open_shared_cache(request: Mapping[str, Any]) -> Optional[SharedCache]:
    """The shared cache of a request: ``shared: {dir, size}``; None if there is none."""
    value = request.get("shared")
    if not value:
        return None
    size = value.get("size")
    if size is not None and (not isinstance(size, int) or size < 0):
        raise Failure("request", f"shared cache size {size!r} is not a number of bytes")
    return SharedCache(value.get("dir"), size)


def _groups(window: Sequence[ListedFile]) -> List[List[ListedFile]]:
    """What is fetched under one claim: a file, or several small ones."""
    small = [file for file in window if units_of(file)[0].is_small]
    groups = [[file] for file in window if not units_of(file)[0].is_small]
    return groups + [small[start : start + _GROUP] for start in range(0, len(small), _GROUP)]


def _group_name(group: Sequence[ListedFile]) -> str:
    return hashlib.sha256("\n".join(file.sha256 for file in group).encode()).hexdigest()


def _remove(path: str) -> int:
    """Remove a file; the bytes freed."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        size = os.lstat(path).st_size
        os.unlink(path)  # noqa: PTH108
        return size
    return 0
