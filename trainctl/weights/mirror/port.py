"""What a mirror can be asked, wherever it is kept."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Mapping, Protocol, Sequence

from trainctl.base.listing import Listing, ResolvedSource
from trainctl.model.mirror_site import MirrorSite
from trainctl.model.serving import TO_ALL, Serving
from trainctl.spi.sources import Credential, WeightSource
from trainctl.weights.mirror.fetch import Progress
from trainctl.weights.mirror.known import Known
from trainctl.weights.mirror.layout import Reference
from trainctl.weights.mirror.others import Waiting, nobody
from trainctl.weights.mirror.place import Place
from trainctl.weights.mirror.report import Inventory

if TYPE_CHECKING:
    from trainctl.weights.mirror.afresh import Origins
    from trainctl.weights.mirror.collect import Collected, Collecting
    from trainctl.weights.mirror.verify import Verified

Own = Sequence[Mapping[str, object]]
"""What the caller's own references say."""


@dataclass(frozen=True)
class Looked:
    """What one look found: of each source what is known, and of the listings asked about those that are there.

    ``serving``: how a host hands them to others.
    """

    known: tuple[Known, ...]
    listings: frozenset[str]
    serving: Serving = TO_ALL
    free: int | None = None
    """The bytes that may still be written there, where there is a limit."""
    damaged: tuple[str, ...] = ()
    """References that can't be read, of whatever project if that costs nothing; what is wrong with each."""
    unusable: str = ""
    """Why nothing can be brought there; empty where that isn't known."""


class Mirror(Protocol):
    """Content by sha256, copied once from every source. Everything may raise StorageError and, on a host, NodeError."""

    @property
    def on_a_host(self) -> bool:
        """Whether it is in a directory of a cluster's host."""
        ...

    @property
    def in_a_bucket(self) -> bool:
        """Whether it is in a bucket, which everybody reaches by itself."""
        ...

    @property
    def place(self) -> Place | None:
        """Where it is, if it is on a host. NodeError where that can't be told."""
        ...

    @property
    def path(self) -> str | None:
        """The directory, on the machine where it is; None in a bucket. NodeError where that can't be told."""
        ...

    @property
    def url(self) -> str:
        """Where it is, as a manifest names it."""
        ...

    @property
    def endpoint(self) -> str:
        """The server of a bucket, where the manifest names one, without its last ``/``; else empty."""
        ...

    def connect(self) -> None:
        """Have what will be asked be there, as far as it can be beforehand; what goes wrong is told when it is asked."""
        ...

    def look(self, sources: Sequence[ResolvedSource] = (), listings: Sequence[str] = (), lineage: str = "") -> Looked:  # fmt: skip
        """All of it in one question. Writes nothing. ``lineage``: whose references are looked at where each costs a request."""
        ...

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
    ) -> Listing:
        """Have every file of the source there, verified, and hand back its listing. SourceError's kinds name the file.

        ``waiting`` is told what is waited for meanwhile, if it is for more than a second: who brings the same, a collection.
        """
        ...

    def kept(self, wanted: ResolvedSource) -> Listing | None:
        """The listing that a source at its pin turned out to be, if all of it is there; its files needn't be known."""
        ...

    def load_listing(self, listing_id: str) -> Listing | None:
        """The listing, or None if it is not there."""
        ...

    def inventory(self) -> Inventory:
        """What is there and who wants it, and what nobody does. Writes nothing."""
        ...

    def stored_bytes(self) -> int:
        """The bytes of all content, whoever wants it."""
        ...

    def renew(self, lineage: str, address: str) -> None:
        """Say that a resource's source was used just now."""
        ...

    def drop_reference(self, lineage: str, address: str) -> bool:
        """Say that a resource does not want its source any more. False if nobody had said that it does."""
        ...

    def collect(self, asked: Collecting) -> Collected:
        """Delete what no reference needs. Busy if another collection is at it."""
        ...

    def verify(self, origins: Origins | None, progress: Progress | None = None, own: Own = ()) -> Verified:  # fmt: skip
        """Hash everything; with ``origins`` what is wrong is fetched again, or goes. Of ``own`` those that are damaged are written anew."""
        ...


def site_of(mirror: Mirror) -> MirrorSite:
    """Where it is, as a state remembers it. NodeError where that can't be told."""
    return MirrorSite(mirror.url, mirror.endpoint)


def is_far(mirror: Mirror) -> bool:
    """Whether a mirror is not on this machine."""
    return mirror.on_a_host or mirror.in_a_bucket
