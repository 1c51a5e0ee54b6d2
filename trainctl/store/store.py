"""The operations of a mirror. Code outside of this package uses nothing else of it, but for reading content."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Optional, Sequence

from trainctl.base.listing import CHUNK_BYTES, Listing, ResolvedSource
from trainctl.base.objects import ObjectStore
from trainctl.base.retry import RetryPolicy
from trainctl.store import documents, references
from trainctl.store.ingestion import coverage
from trainctl.store.ingestion.ingest import SourceIngest
from trainctl.store.ingestion.upstream import ProgressFn, Upstream
from trainctl.store.maintenance.exclusive_access import Notify, no_notify
from trainctl.store.maintenance.gc import GcOptions, GcReport
from trainctl.store.maintenance.gc import gc as collect
from trainctl.store.maintenance.inventory import MirrorInventory, stored_bytes
from trainctl.store.maintenance.inventory import take_inventory as take_inventory
from trainctl.store.maintenance.survey import StoreSurvey
from trainctl.store.maintenance.survey import take_survey as look
from trainctl.store.maintenance.verify import VerifyReport
from trainctl.store.maintenance.verify import verify_store as check
from trainctl.store.references import Reference


@dataclass(frozen=True)
class MirrorStore:
    """Content by sha256, copied once from every source. Every method may raise StorageError."""

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
        """What is there of sources, and which listings are. Writes nothing."""
        return look(self.objects, sources, listings, lineage, self.chunk_bytes)

    def ingest(
        self,
        resolved: ResolvedSource,
        upstream: Upstream,
        reference: Reference,
        *,
        progress: Optional[ProgressFn] = None,
        cancelled: Optional[threading.Event] = None,
        waiting: Notify = no_notify,
    ) -> Listing:
        """Have every file of a source in the store, verified. SourceError's kinds name the file.

        ``waiting`` is called with what is waited for, if it takes more than a second.
        """
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

    def mirrored(self, wanted: ResolvedSource) -> Optional[Listing]:
        """The listing that a source at its pin turned out to be, if it is complete; its files needn't be known."""
        return coverage.find_listing(self.objects, wanted)

    def load_listing(self, listing_id: str) -> Optional[Listing]:
        """A listing, None if it isn't complete."""
        return documents.load_listing(self.objects, listing_id)

    def inventory(self) -> MirrorInventory:
        """What is stored, and who needs it. Writes nothing."""
        return take_inventory(self.objects)

    def stored_bytes(self) -> int:
        """The bytes of all content, needed or not."""
        return stored_bytes(self.objects)

    def renew(self, lineage: str, address: str) -> None:
        """Note that the source of a resource was used now."""
        references.renew_reference(self.objects, lineage, address)

    def drop_reference(self, lineage: str, address: str) -> bool:
        """Delete a resource's reference; False if there was none."""
        return references.drop_reference(self.objects, lineage, address)

    def gc(self, options: GcOptions, notify: Notify = no_notify) -> GcReport:
        """Delete what no reference needs. Busy if another process deletes."""
        return collect(self.objects, options, notify)

    def verify(
        self,
        repair: bool = False,
        progress: Optional[ProgressFn] = None,
        notify: Notify = no_notify,
    ) -> VerifyReport:
        """Hash everything; with ``repair`` what is wrong is deleted, and the next apply copies it again."""
        return check(self.objects, repair, progress, notify)
