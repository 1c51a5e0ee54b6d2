"""The mirror in a directory of this machine, as everything that uses a mirror sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainctl.base.listing import Listing, ResolvedSource
from trainctl.weights.mirror.directory import DirectoryMirror
from trainctl.weights.mirror.disk import free_bytes
from trainctl.weights.mirror.fetch import Progress
from trainctl.weights.mirror.known import kept, known, stored_bytes
from trainctl.weights.mirror.port import Looked, Mirror

if TYPE_CHECKING:  # what looks after a mirror is loaded when it is asked for
    from trainctl.weights.mirror.afresh import Origins
    from trainctl.weights.mirror.collect import Collected, Collecting
    from trainctl.weights.mirror.port import Own
    from trainctl.weights.mirror.report import Inventory
    from trainctl.weights.mirror.verify import Verified


class HereMirror(DirectoryMirror):
    """See Mirror."""

    on_a_host = False
    in_a_bucket = False
    place = None
    endpoint = ""

    @property
    def path(self) -> str:
        """See Mirror."""
        return str(self.root)

    @property
    def url(self) -> str:
        """See Mirror."""
        return self.root.as_uri()

    def connect(self) -> None:
        """See Mirror. It is here."""

    def look(self, sources: Sequence[ResolvedSource] = (), listings: Sequence[str] = (), lineage: str = "") -> Looked:  # fmt: skip
        """See Mirror."""
        found, damaged = known(self, sources)
        return Looked(
            found,
            frozenset(one for one in listings if self.has_listing(one)),
            free=free_bytes(self.root),
            damaged=damaged,
            unusable=self.unusable,
        )

    def kept(self, wanted: ResolvedSource) -> Listing | None:
        """See Mirror."""
        return kept(self, wanted)

    def stored_bytes(self) -> int:
        """See Mirror."""
        return stored_bytes(self)

    def inventory(self) -> Inventory:
        """See Mirror."""
        from trainctl.weights.mirror.inventory import inventory

        return inventory(self)

    def collect(self, asked: Collecting) -> Collected:
        """See Mirror."""
        from trainctl.weights.mirror.collect import collect

        return collect(self, asked)

    def verify(self, origins: Origins | None, progress: Progress | None = None, own: Own = ()) -> Verified:  # fmt: skip
        """See Mirror."""
        from trainctl.weights.mirror.verify import Verifying, verify

        return verify(self, Verifying(origins is not None, origins, progress, own=own))


_: type[Mirror] = HereMirror
