"""The operations of a mirror. Code outside of this package uses nothing else of it, but for reading content."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Optional, Sequence

from trainctl.base.listing import CHUNK_BYTES, Listing, ResolvedSource
from trainctl.base.objects import ObjectStore
from trainctl.base.retry import Retry
from trainctl.store import documents, known, references
from trainctl.store.access import Notify, silent
from trainctl.store.gc import GcOptions, GcReport
from trainctl.store.gc import gc as collect
from trainctl.store.ingest import Ingest
from trainctl.store.inventory import Inventory, stored_bytes
from trainctl.store.inventory import inventory as take_inventory
from trainctl.store.references import Reference
from trainctl.store.survey import Survey
from trainctl.store.survey import survey as look
from trainctl.store.upstream import Progress, Upstream
from trainctl.store.verify import VerifyReport
from trainctl.store.verify import verify as check


@dataclass(frozen=True)
class Store:
    """Content by sha256, copied once from every source. Every method may raise StorageError."""

    objects: ObjectStore
    retry: Retry
    chunk_bytes: int = CHUNK_BYTES
    """Smaller only in tests."""

    def survey(
        self,
        sources: Sequence[ResolvedSource] = (),
        listings: Sequence[str] = (),
        lineage: str = "",
    ) -> Survey:
        """What is there of sources, and which listings are. Writes nothing."""
        return look(self.objects, sources, listings, lineage, self.chunk_bytes)

    def ingest(
        self,
        resolved: ResolvedSource,
        upstream: Upstream,
        reference: Reference,
        *,
        progress: Optional[Progress] = None,
        cancelled: Optional[threading.Event] = None,
        waiting: Notify = silent,
    ) -> Listing:
        """Have every file of a source in the store, verified. SourceError's kinds name the file.

        ``waiting`` is called with what is waited for, if it takes more than a second.
        """
        ingest = Ingest(
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
        return known.mirrored(self.objects, wanted)

    def load_listing(self, listing_id: str) -> Optional[Listing]:
        """A listing, None if it isn't complete."""
        return documents.load_listing(self.objects, listing_id)

    def inventory(self) -> Inventory:
        """What is stored, and who needs it. Writes nothing."""
        return take_inventory(self.objects)

    def stored_bytes(self) -> int:
        """The bytes of all content, needed or not."""
        return stored_bytes(self.objects)

    def renew(self, lineage: str, address: str) -> None:
        """Note that the source of a resource was used now."""
        references.renew(self.objects, lineage, address)

    def drop_reference(self, lineage: str, address: str) -> bool:
        """Delete a resource's reference; False if there was none."""
        return references.drop(self.objects, lineage, address)

    def gc(self, options: GcOptions, notify: Notify = silent) -> GcReport:
        """Delete what no reference needs. Busy if another process deletes."""
        return collect(self.objects, options, notify)

    def verify(
        self, repair: bool = False, progress: Optional[Progress] = None, notify: Notify = silent
    ) -> VerifyReport:
        """Hash everything; with ``repair`` what is wrong is deleted, and the next apply copies it again."""
        return check(self.objects, repair, progress, notify)
