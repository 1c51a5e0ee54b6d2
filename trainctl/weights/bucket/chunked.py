"""What records and listings say of larger contents, held against the wholes that their chunks make."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path

from trainctl.base.listing import ListedFile, Listing, SourceFile
from trainctl.base.packed import Arriving
from trainctl.node.content.digests import Digests
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.disk_set import DiskSet, digest
from trainctl.weights.bucket.repair import Repair
from trainctl.weights.bucket.room import Room
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.bucket.upload import MOST_AHEAD, MOST_CHUNKS, Uploads
from trainctl.weights.bucket.wholes import Claim, Verdict, claimed, read
from trainctl.weights.mirror.afresh import Afresh, Origin
from trainctl.weights.mirror.in_turn import in_turn
from trainctl.weights.mirror.layout import fingerprint
from trainctl.weights.mirror.needs import Need
from trainctl.weights.mirror.parts import Buffers
from trainctl.weights.mirror.reception import Upstream
from trainctl.weights.mirror.verify import WRONG_CHUNKS, Finding, Outcome


@dataclass
class Settled:
    """Takes what came of claims: the names of those that are ``right``, with the contents that they are of, and of those that are ``forged``."""

    right: Arriving[bytes] = field(default_factory=lambda: Arriving(lambda one: (one,), bytes))
    forged: Arriving[bytes] = field(default_factory=lambda: Arriving(lambda one: (one,), bytes))

    def add(self, claim: Claim, verdict: Verdict) -> None:
        """One more."""
        if verdict is Verdict.RIGHT:
            self.right.add((claim.name, digest(claim.sha256)))
        elif verdict is Verdict.FORGED:
            self.forged.add((claim.name,))


@dataclass
class Chunked:
    """Settles what is said, when chunks are as right as they can be. What is ``proven`` was read already.

    However much there is, it isn't in memory: listings are read again where one says what isn't proven, and each claim in doubt is read once.
    """

    repair: Repair
    contents: Sequence[str]
    """Those that have a record."""
    listings: Callable[[], Iterable[tuple[str, Listing, Need | None]]]
    """Each with its name, and a reference that names it."""
    proven: DiskSet
    _halt: threading.Event = field(default_factory=threading.Event)
    _named: Digests = field(default_factory=Digests)
    _brought: Digests = field(default_factory=Digests)

    def run(self) -> Iterator[Finding]:
        """What was wrong, and what became of it."""
        yield from self._records()
        yield from self._alone()
        for listing_id, listing, need in self.listings() if any(self._forged) else ():
            forged = [one for one in listing.files if one.chunks and self._is_forged(Claim.of(one))]
            if forged:
                yield self._listing(listing_id, forged, need)

    @cached_property
    def _looked(self) -> tuple[DiskSet, DiskSet]:
        """What is right and what is forged of all that isn't proven."""
        met, settled = Digests(), Settled()
        doubted = claimed(self._shelf, self._unproven())
        listed = (Claim.of(one) for one in self._listed())
        all_of_it = (one for one in chain(doubted, listed) if one.name not in self.proven)
        for _ in read(self._shelf, (one for one in all_of_it if met.add(one.name.hex())), settled.add):  # fmt: skip
            pass  # chunks were looked at before
        return DiskSet(settled.right.all()), DiskSet(settled.forged.all())

    @property
    def _shelf(self) -> Shelf:
        return self.repair.shelf

    @property
    def _forged(self) -> DiskSet:
        return self._looked[1]

    def _is_right(self, name: bytes) -> bool:
        return name in self.proven or name in self._looked[0]

    def _is_forged(self, claim: Claim) -> bool:
        return claim.name in self._forged

    def _unproven(self) -> Iterator[str]:
        return (one for one in self.contents if digest(one) not in self.proven)

    def _listed(self) -> Iterator[ListedFile]:
        return (one for _, listing, _ in self.listings() for one in listing.files if one.chunks)

    def _records(self) -> Iterator[Finding]:
        """Those that say something else than a listing that isn't wrong."""
        claims = (one for one in map(Claim.of, self._listed()) if one.name not in self.proven)
        likely = (one for one in claims if not self._is_forged(one) and self._named.add(one.sha256))
        for claim, is_wrong in in_turn(self._is_other, likely):
            if is_wrong:
                if self.repair.origins is not None:
                    self._shelf.objects.put(keys.chunked(claim.sha256), claim.record)
                yield self._changed(claim.sha256, Outcome.REPAIRED)

    def _is_other(self, claim: Claim) -> bool:
        data = self._shelf.objects.get(keys.chunked(claim.sha256))
        said = next(claimed(self._shelf, [claim.sha256]), None)
        return data not in (None, claim.record) and not (said and self._is_right(said.name))

    def _alone(self) -> Iterator[Finding]:
        """Those that no listing knows better. What is wrong goes, and costs nobody anything that is there."""

        def is_wrong(sha256: str) -> bool:
            data = self._shelf.objects.get(keys.chunked(sha256))
            said = next(claimed(self._shelf, [sha256]), None)
            right = said is not None and self._may_be(said)
            return not right and data is not None and data == self._shelf.objects.get(keys.chunked(sha256))  # fmt: skip  # not collected

        alone = (one for one in self._unproven() if one not in self._named)
        for sha256, wrong in in_turn(is_wrong, alone):
            if wrong:
                self.repair.gone([keys.chunked(sha256)])
                yield self._changed(sha256, Outcome.REMOVED)

    def _may_be(self, said: Claim) -> bool:
        """Whether it is right, or nobody can tell as long as one of its chunks is wrong."""
        if self._is_right(said.name):
            return True
        return not self._is_forged(said) and all(map(self._shelf.has_blob, said.chunks))

    def _listing(self, listing_id: str, forged: Sequence[ListedFile], need: Need | None) -> Finding:
        """It goes, as the right one has another name, and the next apply writes that; the contents come first, as far as they can be had."""
        outcome, why = Outcome.WRONG, ""
        lost = [one for one in forged if not self._is_right(digest(one.sha256))]
        if self.repair.origins is not None and (need is not None or self.repair.all_known):
            why = self._bring(lost, need)
            outcome = Outcome.WRONG if why else self.repair.gone([keys.listing(listing_id)])
        size, users = sum(one.size for one in lost), need and (str(need.record.get("source")),)
        detail = ": ".join(filter(None, (forged[0].path, why)))
        path = Path(keys.listing(listing_id))
        return Finding(path, WRONG_CHUNKS, size, users or (), outcome, detail)

    def _bring(self, lost: Sequence[ListedFile], need: Need | None) -> str:
        """Have contents in the mirror that are something else there, with their records; why one can't be asked for.

        They come as wholes, as nobody knows their chunks. So only what upstream announces comes here, and the rest with the next apply: nothing
        is stored before it is known to be what is wanted.
        """
        if self.repair.origins is None or need is None:
            return ""
        new = [one for one in lost if self._brought.add(one.sha256)]
        wanted = frozenset(one.sha256 for one in new)
        afresh = Afresh(self.repair.origins, wanted, lambda _: lambda _: None, self._halt)
        for one in new:
            refused = afresh.ask([(need.record, one, None)], self._fetch)
            if refused is not None and not refused.is_gone:
                return refused.why
        return ""

    def _fetch(self, origin: Origin, file: SourceFile, use: None) -> None:
        shelf, chunk_bytes = self._shelf, self._shelf.chunk_bytes
        upstream = Upstream(origin.source, origin.resolved, origin.credential, origin.retry.patient)
        room = Room(MOST_CHUNKS * chunk_bytes, self._halt)
        ahead = Buffers(MOST_AHEAD, chunk_bytes)
        uploads = Uploads(shelf, upstream, {}, self._halt, lambda count: None, ahead, room)
        try:
            uploads.fetch(file, fingerprint(origin.resolved, file))
        finally:
            uploads.close()

    def _changed(self, sha256: str, outcome: Outcome) -> Finding:
        its = Outcome.WRONG if self.repair.origins is None else outcome
        return Finding(Path(keys.chunked(sha256)), "chunks changed", 0, (), its)
