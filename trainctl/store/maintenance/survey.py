"""Survey a store before a transfer: which files of sources it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import FrozenSet, Iterable, Optional, Sequence, Tuple

from trainctl.base.filesystem.files import why_unwritable
from trainctl.base.listing import CHUNK_BYTES, ResolvedSource
from trainctl.base.objects import ObjectStore
from trainctl.base.parallel import map_ordered
from trainctl.store import keys, references
from trainctl.store.backends.directory import DirectoryObjects, free_bytes
from trainctl.store.backends.memory import MemoryObjects
from trainctl.store.ingestion.coverage import SourceCoverage, find_listing, group_by_fingerprint

_AT_ONCE = 8
FileSurveyRow = Tuple[Optional[str], int, bool]
"""A file's sha256 (None if unknown), its size, and whether it is stored."""


@dataclass(frozen=True)
class SourceSurvey:
    """A row for each file of a source, sorted by path, and its listing if complete.

    ``arrived``: stored bytes of incomplete files.
    """

    files: Tuple[FileSurveyRow, ...]
    listing: Optional[str] = None
    arrived: int = 0

    @property
    def size(self) -> int:
        """Bytes of the source."""
        return sum(size for _, size, _ in self.files)

    @property
    def here(self) -> int:
        """Bytes that are stored."""
        return self.arrived + sum(size for _, size, is_stored in self.files if is_stored)

    @property
    def missing(self) -> int:
        """Bytes that are not stored."""
        return self.size - self.here


@dataclass(frozen=True)
class StoreSurvey:
    """Surveys of sources, and the requested listings that are complete.

    ``free``: free bytes, None without a limit. ``damaged``: errors of corrupt references. ``unusable``: why the store is
    not writable, or empty.
    """

    sources: Tuple[SourceSurvey, ...] = ()
    listings: FrozenSet[str] = frozenset()
    free: Optional[int] = None
    damaged: Tuple[str, ...] = ()
    unusable: str = ""


def take_survey(
    objects: ObjectStore,
    sources: Sequence[ResolvedSource] = (),
    listings: Iterable[str] = (),
    lineage: str = "",
    chunk_bytes: int = CHUNK_BYTES,
) -> StoreSurvey:
    """Survey sources, listings, and the references of a ``lineage`` or all."""
    free, reason = None, ""
    if isinstance(objects, DirectoryObjects):
        free, reason = free_bytes(objects.root), why_unwritable(objects.root)
        if reason and not objects.root.is_dir():
            objects = MemoryObjects(objects.url)  # an unreadable directory counts as empty
    surveys = map_ordered(
        lambda resolved: survey_source(objects, resolved, chunk_bytes), sources, _AT_ONCE
    )
    stats = map_ordered(
        lambda listing_id: objects.stat(keys.listing(listing_id)),
        dict.fromkeys(listings),
        _AT_ONCE,
    )
    damaged = references.read_references(objects, lineage).damaged
    return StoreSurvey(
        tuple(survey for _, survey in surveys),
        frozenset(listing_id for listing_id, stat in stats if stat is not None),
        free,
        tuple(error.summary for error in damaged.values()),
        reason,
    )


def survey_source(
    objects: ObjectStore, resolved: ResolvedSource, chunk_bytes: int = CHUNK_BYTES
) -> SourceSurvey:
    """Survey one source."""
    listing = find_listing(objects, resolved)
    if listing is not None:
        return SourceSurvey(
            tuple((file.sha256, file.size, True) for file in listing.files), listing.id
        )
    groups = group_by_fingerprint(resolved)
    coverage = SourceCoverage(objects, resolved, chunk_bytes)
    stored = coverage.find(groups)
    blobs = {file.path: stored.get(key) for key, files in groups.items() for file in files}
    rows = []
    for file in resolved.files:
        blob = blobs[file.path]
        rows.append((blob.sha256 if blob else file.sha256, file.size, blob is not None))
    missing = {key: files for key, files in groups.items() if key not in stored}
    return SourceSurvey(tuple(rows), arrived=coverage.stored_bytes(missing))
