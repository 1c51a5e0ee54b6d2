"""A mirror in a bucket. What holds is written in the room's DESIGN.md, "Mirror in a bucket"."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from trainctl.base.listing import (
    ListedFile,
    Listing,
    ResolvedSource,
    SourceFile,
    listed_in_order,
)
from trainctl.base.packed import packed
from trainctl.base.retry import Retry
from trainctl.errors import StorageError
from trainctl.spi.sources import Credential, WeightSource
from trainctl.weights.bucket import keys, long, packs
from trainctl.weights.bucket.beating import Beating, await_collections, leased
from trainctl.weights.bucket.disk_map import DiskMap
from trainctl.weights.bucket.disk_set import DiskSet, digest
from trainctl.weights.bucket.in_packs import InPacks
from trainctl.weights.bucket.look import Looking, damaged_of, look_at, references, said
from trainctl.weights.bucket.packing import Packing
from trainctl.weights.bucket.proving import is_whole, proven
from trainctl.weights.bucket.room import Room
from trainctl.weights.bucket.shelf import Shelf, at_once
from trainctl.weights.bucket.upload import MOST_AHEAD, MOST_CHUNKS, Uploads
from trainctl.weights.mirror.checked import checked
from trainctl.weights.mirror.fetch import (
    SMALL_AT_ONCE,
    Crowd,
    Progress,
    Tally,
    by_fingerprint,
    parts,
)
from trainctl.weights.mirror.in_turn import in_turn
from trainctl.weights.mirror.layout import Content, Reference, fingerprint, unless_damaged
from trainctl.weights.mirror.others import Waiting, WaitsFor, nobody
from trainctl.weights.mirror.parts import Buffers
from trainctl.weights.mirror.port import Looked, Mirror
from trainctl.weights.mirror.reception import Upstream

if TYPE_CHECKING:  # what looks after a mirror is loaded when it is asked for
    from trainctl.weights.mirror.afresh import Origins
    from trainctl.weights.mirror.collect import Collected, Collecting
    from trainctl.weights.mirror.port import Own
    from trainctl.weights.mirror.report import Inventory
    from trainctl.weights.mirror.verify import Verified

_FILES_AT_ONCE = 20_000
_LARGE_AT_ONCE = 8
_KEYS_AT_ONCE = 1000


@dataclass(frozen=True)
class BucketMirror:
    """See Mirror."""

    shelf: Shelf
    retry: Retry
    endpoint: str = ""

    on_a_host = False
    in_a_bucket = True
    place = path = None

    @property
    def url(self) -> str:
        """See Mirror."""
        return self.shelf.objects.url

    def connect(self) -> None:
        """See Mirror. Each request is its own."""

    def look(self, sources: Sequence[ResolvedSource] = (), listings: Sequence[str] = (), lineage: str = "") -> Looked:  # fmt: skip
        """See Mirror."""
        known = at_once(lambda one: look_at(self.shelf, one), sources)
        here = at_once(self.shelf.has_listing, listings)
        return Looked(
            tuple(known),
            frozenset(one for one, is_here in zip(listings, here, strict=True) if is_here),
            damaged=damaged_of(self.shelf, lineage) if lineage else (),
        )

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
        """See Mirror."""
        shelf, cancelled = self.shelf, cancelled or threading.Event()
        key = keys.reference(reference.lineage, reference.address)
        before = said(shelf, key)
        upstream = Upstream(source, resolved, credential, self.retry)
        with Beating(shelf.objects, key, reference.record(before, resolved, None, 0)) as beating:

            def doubted() -> bool:
                """Whether others may have thought that this process is dead. What they began to delete then has gone."""
                if beating.late:
                    await_collections(shelf, cancelled, waiting)
                return beating.late

            await_collections(shelf, cancelled, waiting)
            who = WaitsFor(
                resolved,
                reference,
                waiting,
                lambda: (one.record for one in references(shelf).needs),
            )
            with leased(shelf, resolved, cancelled, who):
                listing = self._bring(upstream, Tally(resolved.size, progress), cancelled, doubted)
        shelf.objects.put(key, checked(reference.record({}, resolved, listing.id, 0)))
        self._forget_marks(resolved)
        return listing

    def kept(self, wanted: ResolvedSource) -> Listing | None:
        """See Mirror."""
        listing_id = self.shelf.listing_of(keys.record(wanted))
        return unless_damaged(lambda: self.load_listing(listing_id)) if listing_id else None

    def load_listing(self, listing_id: str) -> Listing | None:
        """See Mirror."""
        return self.shelf.load_listing(listing_id)

    def inventory(self) -> Inventory:
        """See Mirror."""
        from trainctl.weights.bucket.inventory import inventory

        return inventory(self.shelf)

    def stored_bytes(self) -> int:
        """See Mirror."""
        return self.shelf.lying_bytes()

    def renew(self, lineage: str, address: str) -> None:
        """See Mirror."""
        key = keys.reference(lineage, address)
        data = self.shelf.objects.get(key)
        if data is not None:
            self.shelf.objects.put(key, data)

    def drop_reference(self, lineage: str, address: str) -> bool:
        """See Mirror."""
        key = keys.reference(lineage, address)
        existed = self.shelf.objects.head(key) is not None
        self.shelf.objects.delete([key])
        return existed

    def collect(self, asked: Collecting) -> Collected:
        """See Mirror."""
        from trainctl.weights.bucket.collect import collect

        return collect(self.shelf, asked)

    def verify(self, origins: Origins | None, progress: Progress | None = None, own: Own = ()) -> Verified:  # fmt: skip
        """See Mirror."""
        from trainctl.weights.bucket.verify import verify

        return verify(self.shelf, origins, progress, own)

    def _bring(
        self,
        upstream: Upstream,
        tally: Tally,
        cancelled: threading.Event,
        doubted: Callable[[], bool],
    ) -> Listing:
        """Have the source's content and its listing in the bucket."""
        shelf, resolved = self.shelf, upstream.resolved
        whole = shelf.whole(resolved)
        if whole is not None and doubted():
            whole = shelf.whole(resolved)
        if whole is not None and is_whole(shelf, resolved, whole):
            tally.add(resolved.size, len(resolved.files))
            return whole
        bringing = _Bringing(Looking(shelf, resolved), tally, cancelled)
        listed = (
            file
            for part in parts(resolved)
            for file in self._bring_part(replace(upstream, resolved=part), bringing)
        )
        listing = Listing(listed_in_order(listed))
        self._publish(resolved, listing, bringing, doubted)
        return listing

    def _bring_part(self, upstream: Upstream, bringing: _Bringing) -> Iterator[ListedFile]:
        """Have the content of some files in the bucket."""
        tally, cancelled = bringing.tally, bringing.cancelled
        part, is_small = upstream.resolved, self.shelf.is_small
        marks = bringing.looking.marks
        groups = by_fingerprint(part)
        here = bringing.looking.have(groups)
        contents = proven(self.shelf, groups, here.contents, here.packs)
        for one in contents:
            tally.add(sum(file.size for file in groups[one]), len(groups[one]))
        missing = {one: files for one, files in groups.items() if one not in contents}
        small = {one: files for one, files in missing.items() if is_small(files[0].size)}
        brought, put = self._pack(upstream, tally, small, cancelled)
        contents.update(brought)
        large = {one: files for one, files in missing.items() if one not in small}
        contents.update(self._upload(upstream, tally, large, marks.chunks_of(large), cancelled))
        bringing.packs |= here.packs | put
        bringing.turned.update((one, content.sha256) for one, content in contents.items())
        return (contents[fingerprint(part, file)].listed(file.path) for file in part.files)

    def _pack(
        self,
        upstream: Upstream,
        tally: Tally,
        missing: Mapping[str, list[SourceFile]],
        cancelled: threading.Event,
    ) -> tuple[dict[str, Content], frozenset[str]]:
        """Bring small files; what they are, and the packs that they are in."""
        if not missing:
            return {}, frozenset()
        packing = Packing(self.shelf, upstream, missing, tally.add)
        try:
            contents = Crowd(packing, tally, missing).run(SMALL_AT_ONCE, cancelled)
        finally:
            packing.close()
        return contents, packing.put

    def _upload(
        self,
        upstream: Upstream,
        tally: Tally,
        missing: Mapping[str, list[SourceFile]],
        marked: Mapping[str, Sequence[str]],
        cancelled: threading.Event,
    ) -> dict[str, Content]:
        """Bring the others; what they are."""
        if not missing:
            return {}
        halt, chunk_bytes = threading.Event(), self.shelf.chunk_bytes
        ahead, room = Buffers(MOST_AHEAD, chunk_bytes), Room(MOST_CHUNKS * chunk_bytes, halt)
        uploads = Uploads(self.shelf, upstream, marked, halt, tally.add, ahead, room)
        try:
            return Crowd(uploads, tally, missing).run(_LARGE_AT_ONCE, cancelled)
        finally:
            uploads.close()

    def _publish(
        self,
        resolved: ResolvedSource,
        listing: Listing,
        bringing: _Bringing,
        doubted: Callable[[], bool],
    ) -> None:
        objects, key = self.shelf.objects, keys.listing(listing.id)
        if bringing.packs:
            objects.put(keys.packs(listing.id), packs.hint(bringing.packs))
        long.put(objects, key, listing.pieces())
        lost = self._lost(listing, bringing.packs) if doubted() else set()
        if lost:
            objects.delete([key, *sorted(lost)])
            raise StorageError(
                f"the mirror {self.url} lost content while it was mirrored",
                "This machine was asleep or cut off, and a collection came by. Apply again.",
            )
        record = long.record(resolved, listing.id, bringing.turned)
        long.put(objects, keys.record(resolved), record)

    def _lost(self, listing: Listing, in_packs: Set[str]) -> set[str]:
        """What says of contents that they are there which aren't."""
        looking = InPacks(self.shelf.objects, in_packs)
        files = iter(listing.files)
        lost: set[str] = set()
        while some := list(islice(files, _FILES_AT_ONCE)):
            small = {one.sha256 for one in some if self.shelf.is_small(one.size)}
            packed = looking.known(small)
            named = {
                sha256: keys.chunked(one.sha256) if one.chunks else keys.packs(listing.id)
                for one in some
                for sha256 in one.chunks or (one.sha256,)
                if sha256 not in packed
            }
            answers = zip(named, at_once(self.shelf.has_blob, list(named)), strict=True)
            lost.update(named[sha256] for sha256, is_there in answers if not is_there)
        return lost

    def _forget_marks(self, resolved: ResolvedSource) -> None:
        """They say nothing any more that the source's record doesn't say."""
        listed = (one.key for one in self.shelf.objects.list(keys.marks(resolved)))
        there = packed(listed, lambda key: (key,), str)
        if not there:
            return
        done = DiskSet(bytes.fromhex(fingerprint(resolved, file)) for file in resolved.files)

        def is_done(key: str) -> bool:
            name = key.rpartition("/")[2].partition(".")[0]
            if name != keys.PACK:
                return digest(name) in done
            return all(digest(one) in done for one in self.shelf.hint(key).get("files") or ())

        going = (key for key, wanted in in_turn(is_done, there) if wanted)
        while some := list(islice(going, _KEYS_AT_ONCE)):
            self.shelf.objects.delete(some)


@dataclass
class _Bringing:
    """What all parts of a source have in common while they are brought: in ``packs`` are its small files, and ``turned`` says what fingerprints turned out to be."""

    looking: Looking
    tally: Tally
    cancelled: threading.Event
    packs: set[str] = field(default_factory=set)
    turned: DiskMap = field(default_factory=DiskMap)


_: type[Mirror] = BucketMirror
