"""Records of what sources turned out to be, held against their checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trainctl.base.listing import ResolvedSource
from trainctl.weights.bucket import keys, long
from trainctl.weights.bucket.disk_set import DiskSet, digest
from trainctl.weights.bucket.repair import Repair
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.in_turn import in_turn
from trainctl.weights.mirror.layout import named_in
from trainctl.weights.mirror.needs import Need
from trainctl.weights.mirror.verify import Finding, Outcome

_FEW = 4
"""They may be long."""


@dataclass(frozen=True)
class SourceRecords:
    """Those of a mirror; ``needs`` are its references."""

    repair: Repair
    needs: Iterable[Need]

    def findings(self) -> Iterator[Finding]:
        """Those that are damaged. One is written anew as far as a reference and its listing know it; else it goes, and costs what nobody refers to."""
        objects = self.repair.shelf.objects
        listed = (one.key for one in objects.list(keys.FINGERPRINTS))
        for key, is_wrong in in_turn(partial(_is_wrong, self.repair.shelf), listed, _FEW):
            if is_wrong:
                anew = self.repair.origins is not None and self._put_anew(key)
                outcome = Outcome.REPAIRED if anew else self.repair.gone([key])
                users = {one.source for one, _ in self._known(key)}
                yield Finding(Path(key), "fingerprints changed", 0, tuple(sorted(users)), outcome)

    def _known(self, key: str) -> Iterator[tuple[ResolvedSource, str]]:
        """What references say of the source whose record that is, at that version, and its listing."""
        for need in self.needs:
            source, server, revision = named_in(need.record)
            pin, listing = need.record.get("pin"), need.record.get("listing")
            known_as = ResolvedSource(source, revision, (), known_as=str(pin), endpoint=server)
            if listing and keys.record(known_as) == key:
                yield known_as, str(listing)

    def _put_anew(self, key: str) -> bool:
        """With what it says of contents that the listing has: another may be a flipped bit's."""
        shelf = self.repair.shelf
        for resolved, listing_id in self._known(key):
            listing = shelf.listing_if_right(listing_id)
            with long.opened(shelf.objects, key) as path:
                if listing is None or path is None:
                    continue
                named = DiskSet(digest(one.sha256) for one in listing.files)
                with path.open("rb") as stream:
                    said = long.fingerprints_in(stream)
                    turned = ((one, sha256) for one, sha256 in said if digest(sha256) in named)
                    long.put(shelf.objects, key, long.record(resolved, listing_id, turned))
            return True
        return False


def _is_wrong(shelf: Shelf, key: str) -> bool:
    """A collection may have come by."""
    with long.opened(shelf.objects, key) as path:
        return path is not None and not (long.is_right(path) and long.listing_in(path))
