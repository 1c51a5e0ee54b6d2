"""What a store has of sources, before anything moves. Writes nothing."""

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
"""A file's sha256, None if it isn't known yet, its size, and whether its content is in the store."""


@dataclass(frozen=True)
class SourceSurvey:
    """What is known of a source: a row for each file, in the order of paths, and its listing if it is complete.

    ``arrived`` are the bytes that are there of files of which the rest is missing.
    """

    files: Tuple[FileSurveyRow, ...]
    listing: Optional[str] = None
    arrived: int = 0

    @property
    def size(self) -> int:
        """All bytes of the source."""
        return sum(size for _, size, _ in self.files)

    @property
    def here(self) -> int:
        """Its bytes that are in the store."""
        return self.arrived + sum(size for _, size, is_here in self.files if is_here)

    @property
    def missing(self) -> int:
        """Its bytes that aren't."""
        return self.size - self.here


@dataclass(frozen=True)
class StoreSurvey:
    """What one look found, of each source in order, and which of the listings asked about are there.

    ``free`` are the bytes that may still be written, None without a limit. ``damaged`` has a sentence for each reference
    that can't be read. ``why_unwritable`` says why nothing can be written, as far as that can be told without trying.
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
    """Look. ``lineage``: whose references are read; empty for everybody's."""
    free, reason = None, ""
    if isinstance(objects, DirectoryObjects):
        free, reason = free_bytes(objects.root), why_unwritable(objects.root)
        if reason and not objects.root.is_dir():
            objects = MemoryObjects(objects.url)  # nothing can be there
    surveyed = map_ordered(lambda one: survey_source(objects, one, chunk_bytes), sources, _AT_ONCE)
    here = map_ordered(
        lambda one: objects.stat(keys.listing(one)), dict.fromkeys(listings), _AT_ONCE
    )
    damaged = references.read_references(objects, lineage).damaged
    return StoreSurvey(
        tuple(found for _, found in surveyed),
        frozenset(listing_id for listing_id, stat in here if stat is not None),
        free,
        tuple(error.summary for error in damaged.values()),
        reason,
    )


def survey_source(
    objects: ObjectStore, resolved: ResolvedSource, chunk_bytes: int = CHUNK_BYTES
) -> SourceSurvey:
    """What is known of one source."""
    listing = find_listing(objects, resolved)
    if listing is not None:
        return SourceSurvey(
            tuple((file.sha256, file.size, True) for file in listing.files), listing.id
        )
    groups = group_by_fingerprint(resolved)
    known = SourceCoverage(objects, resolved, chunk_bytes)
    found = known.find(groups)
    contents = {file.path: found.get(key) for key, files in groups.items() for file in files}
    rows = []
    for file in resolved.files:
        content = contents[file.path]
        rows.append((content.sha256 if content else file.sha256, file.size, content is not None))
    missing = {key: files for key, files in groups.items() if key not in found}
    return SourceSurvey(tuple(rows), arrived=known.arrived(missing))
