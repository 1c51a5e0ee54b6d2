"""A mirror in a directory of this machine."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainctl.base import below
from trainctl.base.exclusive import shown
from trainctl.base.files import unusable
from trainctl.base.listing import (
    CHUNK_BYTES,
    ListedFile,
    Listing,
    ResolvedSource,
    listed_arriving,
    listed_in_order,
)
from trainctl.base.retry import Retry
from trainctl.errors import StorageError
from trainctl.spi.sources import Credential, WeightSource
from trainctl.weights.mirror.batch import Batch
from trainctl.weights.mirror.condemned import restore
from trainctl.weights.mirror.contents import Contents
from trainctl.weights.mirror.disk import explained, require_space
from trainctl.weights.mirror.fetch import (
    Crowd,
    Progress,
    Tally,
    by_fingerprint,
    parts,
    present,
)
from trainctl.weights.mirror.layout import Layout, Reference, fingerprint
from trainctl.weights.mirror.listed import have, write_listing
from trainctl.weights.mirror.others import Waiting, nobody
from trainctl.weights.mirror.packing import packing_alone, salvage
from trainctl.weights.mirror.partial import bytes_kept, sweep
from trainctl.weights.mirror.parts import Buffers
from trainctl.weights.mirror.proven import proven
from trainctl.weights.mirror.reception import Upstream
from trainctl.weights.mirror.records import Records
from trainctl.weights.mirror.report import MirroredSource, sources
from trainctl.weights.mirror.transfer import Transfer

_MOST_LARGE = 4
_MOST_CHUNKS = 6
"""In memory at a time, of all files together."""


@dataclass(frozen=True)
class _Bringing:
    """What all parts of a source have in common while they are brought."""

    contents: Contents
    records: Records
    batch: Batch
    tally: Tally
    parallelism: int
    cancelled: threading.Event


@dataclass(frozen=True)
class DirectoryMirror:
    """Content by sha256 below ``root``. Everything may raise StorageError; many processes may use it at once.

    ``chunk_bytes`` is the format's and smaller only in tests.
    """

    root: Path
    retry: Retry = field(default_factory=Retry)
    clock: Callable[[], float] = time.time
    chunk_bytes: int = CHUNK_BYTES

    def mirror(
        self,
        resolved: ResolvedSource,
        source: WeightSource,
        reference: Reference,
        *,
        credential: Credential | None = None,
        progress: Progress | None = None,
        cancelled: threading.Event | None = None,
        waiting: Waiting = nobody,
        parallelism: int = 8,
    ) -> Listing:
        """Have every file of the source here, verified, and hand back its listing.

        What is here already is not fetched again. ``waiting`` is told who else brings the same, if somebody does. SourceError's kinds name the file; Interrupted when cancelled.
        """
        layout, stop = self._layout, cancelled or threading.Event()
        with explained(self.root):
            layout.prepare()
            sweep(layout)
            self._refer(resolved, reference, None)
            restore(layout)
        wanted = layout.reference(reference.lineage, reference.address)
        alone = packing_alone(layout, resolved, reference, stop, waiting)
        with shown(wanted), alone:
            with explained(self.root):
                salvage(layout, resolved.source)
            upstream = Upstream(source, resolved, credential, self.retry)
            listing = self._brought(upstream, Tally(resolved.size, progress), parallelism, stop)
            return self._list(resolved, reference, listing)

    def _brought(
        self, upstream: Upstream, tally: Tally, parallelism: int, cancelled: threading.Event
    ) -> Listing:
        """All of the source; what was known of packs meanwhile is known no more when it is here."""
        resolved = upstream.resolved
        with explained(self.root):
            contents = Contents(self._layout)
            records = Records.of(self._layout, resolved.source)
            to_come = (self._still_to_come(contents, records, part) for part in parts(resolved))
            require_space(self.root, sum(to_come))
        with explained(self.root), Batch(contents, resolved.source) as batch:
            bringing = _Bringing(contents, records, batch, tally, parallelism, cancelled)
            listed = (
                file
                for part in parts(resolved)
                for file in self._bring(replace(upstream, resolved=part), bringing)
            )
            return Listing(listed_in_order(listed))

    def _bring(self, upstream: Upstream, bringing: _Bringing) -> Iterator[ListedFile]:
        """Every file of a part; all of it is here when the batch has ended."""
        part, tally = upstream.resolved, bringing.tally
        groups = by_fingerprint(part)
        contents = bringing.contents
        found = proven(contents, groups, have(contents, bringing.records, groups))
        for key in found:
            tally.add(sum(file.size for file in groups[key]), len(groups[key]))
        missing = {key: files for key, files in groups.items() if key not in found}
        if missing:
            buffers = Buffers(_MOST_CHUNKS, self.chunk_bytes)
            wanted = replace(part, files=tuple(files[0] for files in missing.values()))
            transfer = Transfer(
                self._layout,
                replace(upstream, resolved=wanted),
                threading.Event(),
                tally.add,
                bringing.batch,
                buffers,
            )
            crowd = Crowd(transfer, tally, missing, _MOST_LARGE)
            found.update(crowd.run(bringing.parallelism, bringing.cancelled))
        by_path = {file.path: found[key] for key, files in groups.items() for file in files}
        return (by_path[file.path].listed(file.path) for file in part.files)

    def _still_to_come(self, contents: Contents, records: Records, part: ResolvedSource) -> int:
        """The bytes of a part that are missing."""
        groups = by_fingerprint(part)
        here = have(contents, records, groups)
        kept = bytes_kept(self._layout)
        missing = {key: files[0].size for key, files in groups.items() if key not in here}
        return sum(max(0, size - kept.get(key, 0)) for key, size in missing.items())

    def mirrored_bytes(self, resolved: ResolvedSource) -> tuple[int, str | None]:
        """How many of the source's bytes are here, and its listing's id if all are. Writes nothing."""
        with explained(self.root):
            contents, files = Contents(self._layout), listed_arriving()
            records = Records.of(self._layout, resolved.source)
            for part in parts(resolved):
                found = present(contents, records, by_fingerprint(part))
                keys = ((file.path, fingerprint(part, file)) for file in part.files)
                files.add(found[key].listed(path) for path, key in keys if key in found)
            listing = Listing(files.all())
            if len(listing.files) < len(resolved.files):
                return listing.size, None
            return listing.size, listing.id if self.has_listing(listing.id) else None

    def has_listing(self, listing_id: str) -> bool:
        """Whether the listing is here, and so all its blobs; one that is damaged is not."""
        with explained(self.root):
            return self._layout.has_listing(listing_id)

    def load_listing(self, listing_id: str) -> Listing | None:
        """The listing, or None if it is not here."""
        with explained(self.root):
            return self._layout.load_listing(listing_id)

    def sources(self) -> list[MirroredSource]:
        """What is here and who wants it: the rows of ``mirror list``."""
        with explained(self.root):
            return sources(self._layout)

    @property
    def unusable(self) -> str:
        """Why nothing can be brought here, as far as that can be told without trying; else empty."""
        with explained(self.root):
            return unusable(self._layout.partial)

    def renew(self, lineage: str, address: str) -> None:
        """Say that a resource's source was used just now."""
        with explained(self.root), contextlib.suppress(FileNotFoundError):
            path, now = self._layout.reference(lineage, address), self.clock()
            try:
                below.touch(self.root, path, (now, now))
            except PermissionError:  # another user's: nobody else may choose the time
                below.touch(self.root, path)

    def drop_reference(self, lineage: str, address: str) -> bool:
        """Say that a resource does not want its source any more. False if nobody had said that it does."""
        path = self._layout.reference(lineage, address)
        with explained(self.root):
            existed = path.exists()
            below.remove(self.root, path)
            with contextlib.suppress(OSError):  # others are there, or somebody else removed it
                below.remove_empty(self.root, path.parent)
        return existed

    @property
    def _layout(self) -> Layout:
        return Layout(self.root, self.chunk_bytes)

    def _list(self, resolved: ResolvedSource, reference: Reference, listing: Listing) -> Listing:
        layout = self._layout
        with explained(self.root):
            with contextlib.suppress(FileNotFoundError):  # a destroy dropped it meanwhile
                path = layout.reference(reference.lineage, reference.address)
                below.touch(self.root, path)
            if not write_listing(layout, listing):
                raise StorageError(
                    f"the mirror {self.root} lost content while it was mirrored",
                    "This machine was asleep, or somebody removes files there. Apply again.",
                )
            self._refer(resolved, reference, listing.id)
        return listing

    def _refer(self, resolved: ResolvedSource, reference: Reference, listing: str | None) -> None:
        path = self._layout.reference(reference.lineage, reference.address)
        before: Mapping[str, Any] | None = None
        with contextlib.suppress(StorageError):  # damaged: what it said is said anew
            before = self._layout.read_reference(path)
        now = self.clock()
        self._layout.write_reference(reference.record(before or {}, resolved, listing, now))
        with contextlib.suppress(FileNotFoundError):
            below.touch(self.root, path, (now, now))
