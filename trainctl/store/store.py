"""Operations of a mirror, the entry point of this package."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Optional, Sequence

from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.listing import CHUNK_BYTES, Listing, ResolvedSource
from trainctl.base.objects import ObjectStore
from trainctl.base.retry import RetryPolicy
from trainctl.store import coverage, documents, keys, references
from trainctl.store.references import Reference
from trainctl.store.survey import (
    MirrorInventory,
    StoreSurvey,
    stored_bytes,
    take_inventory,
    take_survey,
)

if TYPE_CHECKING:
    from trainctl.store.file_transfer import ProgressFn, Upstream
    from trainctl.store.gc import GcOptions, GcReport
    from trainctl.store.lease import Notify
    from trainctl.store.verify import VerifyReport


@dataclass(frozen=True)
class MirrorStore:
    """Mirrored sources, stored by sha256. Every method may raise StorageError."""

    objects: ObjectStore
    retry: RetryPolicy
    chunk_bytes: int = CHUNK_BYTES
    """Smaller only in tests."""

    def survey(
        self,
        sources: Sequence[ResolvedSource] = (),
        listings: Sequence[str] = (),
        lineage: str = "",
    ) -> StoreSurvey:
        """Report what is stored of sources and listings. Writes nothing."""
        return take_survey(self.objects, sources, listings, lineage, self.chunk_bytes)

    def ingest(
        self,
        resolved: ResolvedSource,
        upstream: Upstream,
        reference: Reference,
        *,
        progress: Optional[ProgressFn] = None,
        cancelled: Optional[threading.Event] = None,
        waiting: Notify = lambda _: None,
    ) -> Listing:
        """Mirror and verify every file of a source; a SourceError names the file.

        ``waiting`` is called with the reason of a wait that takes more than a second.
        """
        from trainctl.store.ingest import SourceIngest

        ingest = SourceIngest(
            self.objects,
            resolved,
            upstream,
            self.retry,
            chunk_bytes=self.chunk_bytes,
            progress=progress,
            cancelled=cancelled,
        )
        return ingest.run(reference, waiting)

    def mirrored(self, resolved: ResolvedSource) -> Optional[Listing]:
        """Return the complete listing of a source at its pin."""
        return coverage.find_listing(self.objects, resolved)

    def load_listing(self, listing_id: str) -> Optional[Listing]:
        """Return a listing; None if it isn't complete."""
        return documents.load_listing(self.objects, listing_id)

    def inventory(self) -> MirrorInventory:
        """List stored sources and their references. Writes nothing."""
        return take_inventory(self.objects)

    def stored_bytes(self) -> int:
        """Return the bytes of all blobs, referenced or not."""
        return stored_bytes(self.objects)

    def renew(self, lineage: str, address: str) -> None:
        """Record that the source of a resource is in use now."""
        key = keys.reference(lineage, address)
        data = self.objects.get(key)
        if data is not None:
            self.objects.put(key, data)

    def drop_reference(self, lineage: str, address: str) -> bool:
        """Delete a resource's reference; return False if there was none."""
        return references.drop_reference(self.objects, lineage, address)

    def gc(self, options: GcOptions, notify: Notify = lambda _: None) -> GcReport:
        """Delete unreferenced blobs; LockHeld if another process deletes."""
        from trainctl.store.gc import gc as collect

        return collect(self.objects, options, notify)

    def verify(
        self,
        repair: bool = False,
        progress: Optional[ProgressFn] = None,
        notify: Notify = lambda _: None,
    ) -> VerifyReport:
        """Hash all blobs; with ``repair`` delete corrupt ones."""
        from trainctl.store.verify import verify_store

        return verify_store(self.objects, repair, progress, notify)
