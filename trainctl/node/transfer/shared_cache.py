"""Cache in a directory of the cluster: one node fetches a blob, others copy it.

    blobs/sha256/<2>/<64>                 mode 0444; renamed to this after verification and sync
    incoming/.<64>.<pid>.<random>         being fetched, with a name unique to the process
    claims/<digest>                       leases: which process fetches a file, or a group of small ones
    references/<lineage>/<listing>.json   {contents: {sha256: size}}; mtime: last use, by the file server's clock

Correctness depends on neither locks nor clocks. Any file may be deleted at any time; foreign files are ignored.
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
    make_directory,
    make_durable,
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
from trainctl.node.system.blob_files import add_path_to_errors
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
"""Name of this source."""
_GROUP = 256
_POLL_SECONDS = 0.1
_OLD_SECONDS = 24 * 3600.0
_BLOB = re.compile(r"[0-9a-f]{64}")
_REFERENCE = re.compile(r"[0-9a-f]{64}\.json")
_TEMPORARY = re.compile(r"\.[0-9a-f]{64}(?:\.json)?\.\d+\.[0-9a-f]{12}")


class _SharedReference(NamedTuple):
    """A lineage's reference to a listing, with its last use."""

    path: Path
    at: float

    def contents(self) -> Iterator[str]:
        """Digests of the listing's blobs."""
        return iter((read_json(self.path) or {}).get("contents", ()))


class SharedCache:
    """The cache directory; blobs are verified before renaming and when copied."""

    def __init__(self, directory: Any, limit: Optional[int] = None) -> None:
        root = names.check_absolute(directory, "shared cache")
        self.root = root
        self._limit = limit
        self._blobs = root / "blobs" / "sha256"
        self._incoming = root / "incoming"
        self._claims = root / "claims"
        self._references = root / "references"

    def blob(self, sha256: str) -> str:
        """Path of a blob, as a string: there may be millions."""
        return f"{self._blobs}/{sha256[:2]}/{sha256}"

    def has(self, file: ListedFile) -> bool:
        """Check for a blob by name and size."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            status = os.lstat(self.blob(file.sha256))
            return stat.S_ISREG(status.st_mode) and status.st_size == file.size
        return False

    def has_name(self, sha256: str) -> bool:
        """Check for a blob by name only."""
        return os.path.isfile(self.blob(sha256))  # noqa: PTH113

    def clone(self, file: ListedFile, clone: Callable[[int, Chunk], bool]) -> bool:
        """Fill a file by reflink; False if unsupported or missing."""
        stream = open_file(self.blob(file.sha256))
        if stream is None:
            return False
        with stream:
            return clone(stream.fileno(), Chunk(0, 0, file.sha256))

    def refer(self, lineage: str, listing: Listing) -> None:
        """Record that a lineage uses a listing."""
        path = make_directory(self._references / lineage, shared=True) / f"{listing.id}.json"
        try:
            os.utime(path)
        except FileNotFoundError:
            document = {"contents": {file.sha256: file.size for file in listing.unique_files}}
            write_atomic(path, json.dumps(document).encode(), mode=file_mode_for(path.parent))

    def forget(self, lineage: str) -> int:
        """Drop a lineage's references and blobs that no other needs; the bytes freed."""
        directory = self._references / lineage
        references = (item for item in self._list_references() if item.path.parent == directory)
        digests = {sha256 for reference in references for sha256 in reference.contents()}
        for name, _ in list(self._files(directory, _REFERENCE, _TEMPORARY)):
            _remove(f"{directory}/{name}")
        with contextlib.suppress(OSError):
            directory.rmdir()
        return self._remove_unreferenced(digests)

    def drop(self, sha256: str) -> None:
        """Remove a corrupt blob; the next node that needs it fetches it again."""
        _remove(self.blob(sha256))

    def fetch_missing(
        self,
        batch: Sequence[ListedFile],
        missing: Set[str],
        mirror: Sequence[Fetcher],
        heartbeat: Callable[[], None],
    ) -> Set[str]:
        """Fetch missing blobs to the directory; the digests fetched by this call.

        All nodes claim the same groups of the batch in random order, and wait for each other. ``heartbeat`` is called at
        intervals. Fetches nothing if space is insufficient.
        """
        for directory in (self._incoming, self._claims):
            make_directory(directory, shared=True)
        groups = [
            group for group in _groups(batch) if any(file.sha256 in missing for file in group)
        ]
        remaining = [group for group in groups if self._missing(group)]
        files = [file for group in remaining for file in self._missing(group)]
        if not remaining or not self._free_space(files):
            return set()
        random.shuffle(remaining)  # so that nodes start with different groups
        liveness, fetched = Liveness(), set()  # type: ignore[var-annotated]
        while remaining:
            for group in remaining:
                path = self._claims / _group_name(group)
                lease = FileLease(path, renewed=True, liveness=liveness)
                if lease.try_acquire():
                    with lease:
                        missing_files = self._missing(group)
                        self._fetch(missing_files, mirror, heartbeat)
                        fetched.update(file.sha256 for file in missing_files)
            remaining = [group for group in remaining if self._missing(group)]
            if remaining:
                heartbeat()
                time.sleep(_POLL_SECONDS)
        return fetched

    def _missing(self, group: Sequence[ListedFile]) -> List[ListedFile]:
        return [file for file in group if not self.has(file)]

    def _fetch(
        self, files: Sequence[ListedFile], mirror: Sequence[Fetcher], heartbeat: Callable[[], None]
    ) -> None:
        """Write each verified blob to a temporary file, sync, rename."""
        temporaries = {file.sha256: self._incoming / temporary_name(file.sha256) for file in files}
        opened: Dict[str, int] = {}
        try:
            for sha256, path in temporaries.items():
                opened[sha256] = create_file(path)

            def store(unit: TransferUnit, data: Data, source: str) -> None:
                with add_path_to_errors(str(temporaries[unit.file.sha256])):
                    write_at(opened[unit.file.sha256], unit.chunk.offset, data)
                heartbeat()

            FetchPool(mirror, store).run(
                [FetchTask(unit, []) for file in files for unit in units_of(file)]
            )
            for descriptor in opened.values():
                os.fchmod(descriptor, 0o444)
            make_durable(temporaries.values(), self._incoming)
            folders = set()
            for sha256, path in temporaries.items():
                target = Path(self.blob(sha256))
                folders.add(make_directory(target.parent, shared=True))
                path.replace(target)
            for folder in folders:
                sync_directory(folder)
        finally:
            for descriptor in opened.values():
                os.close(descriptor)
            for path in temporaries.values():
                _remove(str(path))

    def _free_space(self, files: Sequence[ListedFile]) -> bool:
        """Evict least recently used listings until the files fit; False if they don't."""
        self._remove_old_temporaries()
        if self._limit is None:
            return True
        incoming = {file.sha256 for file in files}
        size = sum(file.size for file in files)
        if size > self._limit:
            return False
        references = sorted(self._list_references(), key=lambda reference: reference.at)
        used = self._used_bytes()
        while used + size > self._limit and references:
            oldest = references.pop(0)
            digests = set(oldest.contents())
            if incoming.isdisjoint(digests):
                _remove(str(oldest.path))
                used -= self._remove_unreferenced(digests)
        return used + size <= self._limit

    def _remove_unreferenced(self, digests: Iterable[str]) -> int:
        """Remove those blobs that are unreferenced; the bytes freed."""
        references = self._list_references()
        referenced = {sha256 for reference in references for sha256 in reference.contents()}
        return sum(_remove(self.blob(sha256)) for sha256 in digests if sha256 not in referenced)

    def _used_bytes(self) -> int:
        folders = (self._blobs / f"{number:02x}" for number in range(256))
        return sum(size for folder in folders for _, (size, _) in self._files(folder, _BLOB))

    def _list_references(self) -> Iterator[_SharedReference]:
        try:
            lineages = sorted(path.name for path in self._references.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return
        for lineage in lineages:
            directory = self._references / lineage
            for name, (_, at) in sorted(self._files(directory, _REFERENCE)):
                yield _SharedReference(directory / name, at)

    def _remove_old_temporaries(self) -> None:
        """Remove incomplete files of killed nodes, after a day by the server's clock."""
        files = list(self._files(self._incoming, _TEMPORARY))
        newest = max((at for _, (_, at) in files), default=0.0)
        for name, (_, at) in files:
            if at < newest - _OLD_SECONDS:
                _remove(f"{self._incoming}/{name}")

    def _files(
        self, directory: Path, *patterns: Pattern[str]
    ) -> Iterator[Tuple[str, Tuple[int, float]]]:
        """Files with matching names, with size and mtime."""
        try:
            entries = os.scandir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return
        with entries:
            for entry in entries:
                if any(pattern.fullmatch(entry.name) for pattern in patterns):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            yield entry.name, (status.st_size, status.st_mtime)


class SharedCacheFetcher(Fetcher):
    """Copies from the shared cache; the mirror has what is missing or corrupt."""

    def __init__(self, shared: SharedCache) -> None:
        super().__init__(SHARED)
        self._buffer = ChunkBuffer()
        self._shared = shared
        self._corrupt: Set[str] = set()

    def fetch(self, units: Sequence[TransferUnit], pass_on: PassOnFn) -> Iterator[FetchResult]:
        for unit in units:
            view, digest, done = self._buffer.view(unit.chunk.length), hashlib.sha256(), 0
            with contextlib.suppress(OSError):
                stream = open_file(self._shared.blob(unit.file.sha256))
                with stream or contextlib.nullcontext():
                    while stream and done < len(view):
                        end = min(done + 2**20, len(view))
                        count = os.preadv(stream.fileno(), [view[done:end]], unit.chunk.offset + done)  # fmt: skip
                        if not count:
                            break
                        digest.update(view[done : done + count])
                        done += count
            yield FetchResult(view, digest.hexdigest()) if done == len(view) else FetchResult(None)

    def reject(self, unit: TransferUnit) -> None:
        """The blob is removed at the end, as its other units may be intact."""
        self._corrupt.add(unit.file.sha256)

    def close(self) -> None:
        while self._corrupt:
            self._shared.drop(self._corrupt.pop())


def open_shared_cache(request: Mapping[str, Any]) -> Optional[SharedCache]:
    """Open the shared cache of a request, ``shared: {dir, size}``, if any."""
    value = request.get("shared")
    if not value:
        return None
    size = value.get("size")
    if size is not None and (not isinstance(size, int) or size < 0):
        raise Failure("request", f"invalid shared cache size {size!r}: not a number of bytes")
    return SharedCache(value.get("dir"), size)


def _groups(batch: Sequence[ListedFile]) -> List[List[ListedFile]]:
    """Groups that are fetched under one claim: a large file, or several small ones."""
    small = [file for file in batch if units_of(file)[0].is_small]
    groups = [[file] for file in batch if not units_of(file)[0].is_small]
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
