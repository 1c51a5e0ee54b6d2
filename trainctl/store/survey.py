"""What a store holds: of sources before a transfer, and of all referenced sources, for people."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.lease import Liveness
from trainctl.base.listing import CHUNK_BYTES, Listing, ResolvedSource
from trainctl.base.objects import ObjectStore
from trainctl.base.parallel import map_ordered
from trainctl.store import keys
from trainctl.store.objects import DirectoryObjects, MemoryObjects, free_bytes

if TYPE_CHECKING:
    from trainctl.store.references import StoredReference

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
    from trainctl.base.filesystem.files import why_unwritable
    from trainctl.store import references

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
    from trainctl.store.coverage import SourceCoverage, find_listing, group_by_fingerprint

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


class InventoryRow(NamedTuple):
    """One row of ``mirror list``.

    ``listing``: None until complete. ``bytes_shared``: also in other rows; ``bytes_stored``: not in earlier rows;
    ``bytes_saved``: the others. ``listing_status``: empty, ``missing`` or ``corrupt``. ``last_used``: Unix seconds.
    ``users``: people who applied it.
    """

    source: str
    revision: str
    listing: Optional[str]
    files: int
    bytes: int
    bytes_shared: int
    bytes_stored: int
    bytes_saved: int
    last_used: float
    projects: Tuple[str, ...]
    users: Tuple[str, ...]
    endpoint: Optional[str] = None
    listing_status: str = ""


@dataclass(frozen=True)
class MirrorInventory:
    """Rows, and the bytes of incomplete sources and of blobs that ``gc`` would delete.

    ``damaged``: errors of corrupt references, which prevent ``gc``.
    """

    rows: Tuple[InventoryRow, ...]
    unfinished: int = 0
    unreferenced: int = 0
    damaged: Tuple[str, ...] = ()


class _SourceVersion(NamedTuple):
    """Key of a row."""

    source: str
    endpoint: str
    revision: str
    listing: str


def take_inventory(objects: ObjectStore) -> MirrorInventory:
    """Inspect a store. Writes nothing."""
    from trainctl.store import documents, references
    from trainctl.store.gc import find_garbage
    from trainctl.store.lease import list_writers

    stored, damaged = references.read_references(objects)
    rows = _rows(objects, stored)
    garbage = None
    if not (damaged or list_writers(objects, Liveness())):
        garbage = documents.load_or_none(find_garbage, objects, stored)
    unneeded = garbage.bytes if garbage else 0
    is_complete = bool(garbage) and all(row.listing and not row.listing_status for row in rows)
    rest = stored_bytes(objects) - unneeded - sum(row.bytes_stored for row in rows)
    return MirrorInventory(
        tuple(rows),
        0 if is_complete else max(0, rest),
        unneeded,
        tuple(error.summary for error in damaged.values()),
    )


def stored_bytes(objects: ObjectStore) -> int:
    """Return the bytes of all blobs, referenced or not."""
    return sum(stat.size for stat in objects.list(keys.BLOBS))


@dataclass
class _RowSizes:
    """Bytes of a row that other rows share, and that no earlier row has."""

    shared: int = 0
    stored: int = 0
    listing_status: str = ""


def _rows(objects: ObjectStore, stored: Iterable[StoredReference]) -> List[InventoryRow]:
    from trainctl.store import documents

    versions: Dict[_SourceVersion, List[Tuple[Mapping[str, Any], float]]] = {}
    for reference in stored:
        for record in reference.versions():
            members = (record[name] for name in ("source", "endpoint", "revision", "listing"))
            version = _SourceVersion(*(value or "" for value in members))
            versions.setdefault(version, []).append((record, reference.last_used))
    rows = {version: _RowSizes() for version in sorted(versions)}
    first: Dict[bytes, _RowSizes] = {}
    repeated: Set[bytes] = set()
    for version, sizes in rows.items():
        listing: Optional[Listing] = Listing(())
        if version.listing:
            listing = documents.load_or_none(documents.load_listing, objects, version.listing)
        if listing is None:
            exists = objects.stat(keys.listing(version.listing)) is not None
            sizes.listing_status = "corrupt" if exists else "missing"
            continue
        for digest, size in {file.digest: file.size for file in listing.files}.items():
            if first.setdefault(digest, sizes) is sizes:
                sizes.stored += size
                continue
            sizes.shared += size
            if digest not in repeated:
                repeated.add(digest)
                first[digest].shared += size
    return [_row(version, versions[version], sizes) for version, sizes in rows.items()]


def _row(
    version: _SourceVersion, referring: Sequence[Tuple[Mapping[str, Any], float]], sizes: _RowSizes
) -> InventoryRow:
    record, _ = referring[0]
    is_known = bool(version.listing) and not sizes.listing_status
    return InventoryRow(
        source=version.source,
        revision=version.revision,
        listing=version.listing or None,
        files=record["files"],
        bytes=record["bytes"],
        bytes_shared=sizes.shared,
        bytes_stored=sizes.stored,
        bytes_saved=record["bytes"] - sizes.stored if is_known else 0,
        last_used=max(last_used for _, last_used in referring),
        projects=tuple(sorted({record["project"] for record, _ in referring})),
        users=tuple(sorted({record["owner"] for record, _ in referring})),
        endpoint=version.endpoint or None,
        listing_status=sizes.listing_status,
    )
