"""Verify a store: hash all content, and check what names it. A repair deletes what is wrong and what names it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Callable, Dict, Iterable, Iterator, Optional, Set, Tuple, TypeVar

from trainctl.base.listing import CHUNK_BYTES, ListedFile, Listing
from trainctl.base.objects import ObjectStore
from trainctl.errors import StorageError
from trainctl.store import contents, exclusive, keys, records, references
from trainctl.store.references import References
from trainctl.store.scan import Progress, Scan, is_right, joined, scan

_T = TypeVar("_T")
_NEXT_APPLY = "The next apply copies what is missing."


class Outcome(str, Enum):
    """What became of something wrong."""

    WRONG = "wrong"
    REMOVED = "removed"

    __str__ = str.__str__


@dataclass(frozen=True)
class Finding:
    """Something wrong: ``what`` in words, ``bytes`` to be copied again, and the ``sources`` that need it."""

    key: str
    what: str
    bytes: int = 0
    sources: Tuple[str, ...] = ()
    outcome: Outcome = Outcome.WRONG
    detail: str = ""


@dataclass(frozen=True)
class VerifyReport:
    """What was hashed, and what was wrong."""

    blobs: int
    bytes: int
    findings: Tuple[Finding, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether the store holds all that references name, and nothing wrong."""
        return not self.findings


def verify(
    objects: ObjectStore,
    repair: bool = False,
    progress: Optional[Progress] = None,
    notify: Callable[[str], None] = lambda text: None,
) -> VerifyReport:
    """Read everything. With ``repair`` what is wrong is deleted, so that the next apply copies just that again.

    Content is hashed without a lease; only deleting excludes writers. Busy if another repair or a collection runs.
    """
    check = _Check(objects, references.read(objects))
    check.run(progress or (lambda done, total, count: None))
    findings = tuple(check.findings())
    if repair and findings:
        with exclusive.held(objects, notify) as access:
            findings = tuple(_Repair(check, access).run(findings))
    return VerifyReport(check.scan.count, check.scan.size, findings)


@dataclass
class _Check:
    """What is wrong: ``wrong`` objects by key, and in ``lost`` the listings that name something missing.

    ``needed`` has the sources by the key of what they need.
    """

    objects: ObjectStore
    references: References
    scan: Scan = field(default_factory=Scan)
    listings: Set[str] = field(default_factory=set)
    lost: Set[str] = field(default_factory=set)
    wrong: Dict[str, Tuple[str, int]] = field(default_factory=dict)
    needed: Dict[str, Set[str]] = field(default_factory=dict)

    def run(self, progress: Progress) -> None:
        """Read listings first, as writers put them last: their content was there before it is hashed."""
        self.listings = {keys.stem(stat.key) for stat in self.objects.list(keys.LISTINGS)}
        incomplete = [keys.stem(stat.key) for stat in self.objects.list(keys.INCOMPLETE)]
        self.scan = scan(self.objects, progress)
        self.wrong = self.scan.wrong
        for listing_id in sorted(self.listings):
            self._check_listing(listing_id)
        for listing_id in incomplete:
            key = keys.incomplete(listing_id)
            self._readable(key, "listing changed", lambda listing_id=listing_id: contents.load_incomplete(self.objects, listing_id))  # type: ignore[misc]  # fmt: skip
        for stat in self.objects.list(keys.RECORDS):
            self._readable(stat.key, "record changed", lambda key=stat.key: records.load(self.objects, key))  # type: ignore[misc]  # fmt: skip

    def findings(self) -> Iterator[Finding]:
        """What is wrong, by key."""
        for key, error in self.references.damaged.items():
            yield Finding(key, "reference changed", detail=error.detail)
        for stored in self.references.stored:
            listing_id = stored.listing
            if listing_id and listing_id not in self.listings:
                key = keys.listing(listing_id)
                if self.objects.stat(key) is None:
                    source = str(stored.record["source"])
                    yield Finding(key, "listing missing", 0, (source,), detail=_NEXT_APPLY)
        for key, (what, size) in sorted(self.wrong.items()):
            yield Finding(key, what, size, tuple(sorted(self.needed.get(key, ()))))

    def names_wrong(self, listing: Listing, packs: Iterable[str]) -> bool:
        """Whether a listing names a wrong object."""
        if any(keys.blob(pack) in self.wrong or keys.slices(pack) in self.wrong for pack in packs):
            return True
        return any(key in self.wrong for file in listing.files for key in _keys_of(file))

    def _check_listing(self, listing_id: str) -> None:
        key = keys.listing(listing_id)
        listing = self._readable(key, "listing changed", lambda: contents.load_listing(self.objects, listing_id))  # fmt: skip
        sources = {
            str(stored.record["source"])
            for stored in self.references.stored
            if listing_id in stored.listings
        }
        if listing is None:
            self.needed.setdefault(key, set()).update(sources)
            return
        for lost, (what, size) in self._lost(listing).items():
            self.lost.add(listing_id)
            self.wrong.setdefault(lost, (what, size))
            self.needed.setdefault(lost, set()).update(sources)

    def _lost(self, listing: Listing) -> Dict[str, Tuple[str, int]]:
        """What a listing needs that is missing or wrong, by key."""
        key = keys.packs(listing.id)
        packs = self._readable(key, "packs changed", lambda: contents.packs_of(self.objects, listing.id))  # fmt: skip
        in_packs: Set[bytes] = set()
        lost_packs: Dict[str, Tuple[str, int]] = {}
        for pack in packs or ():
            if bytes.fromhex(pack) in self.scan.packs:
                slices = contents.slices_of(self.objects, pack) or ()
                in_packs.update(one.digest for one in slices)
            else:
                lost_packs[keys.blob(pack)] = "missing", 0
        if key in self.wrong:
            lost_packs[key] = self.wrong[key]
        lost: Dict[str, Tuple[str, int]] = {}
        for file in listing.files:
            if file.chunks:
                lost.update(self._lost_chunks(file))
            elif not self._has(file.sha256, in_packs):
                lost.update(lost_packs or {keys.blob(file.sha256): ("missing", file.size)})
        return {self._known(key): found for key, found in lost.items()}

    def _lost_chunks(self, file: ListedFile) -> Dict[str, Tuple[str, int]]:
        if self.scan.chunked.get(bytes.fromhex(file.sha256)) == joined(file.chunks):
            return {}
        lost = {
            keys.blob(chunk): ("missing", min(CHUNK_BYTES, file.size))
            for chunk in file.chunks
            if bytes.fromhex(chunk) not in self.scan.blobs
        }
        return lost or {keys.chunked(file.sha256): ("missing", file.size)}

    def _has(self, sha256: str, in_packs: Set[bytes]) -> bool:
        digest = bytes.fromhex(sha256)
        return digest in in_packs or digest in self.scan.blobs

    def _known(self, key: str) -> str:
        """The key of a pack's index if it is the index that is wrong."""
        index = keys.slices(keys.stem(key)) if key.startswith(keys.BLOBS) else key
        return index if key not in self.wrong and index in self.wrong else key

    def _readable(self, key: str, what: str, read: Callable[[], Optional[_T]]) -> Optional[_T]:
        try:
            return read()
        except StorageError as error:
            if error.code != records.DAMAGED:
                raise
            self.wrong[key] = what, 0
            return None


class _Repair:
    """Deletes what is wrong, what names it first. Listings are set aside, so that the rest of what they name stays."""

    def __init__(self, check: _Check, access: exclusive.Access) -> None:
        self._check = check
        self._objects = check.objects
        self._access = access

    def run(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        """The findings, with what became of them."""
        if self._access.writers:
            for finding in findings:
                yield replace(finding, detail=f"{self._access.description} Run it again later.")
            return
        self._forget_restored()
        self._delete_all()
        for finding in findings:
            is_ours = finding.key in self._check.wrong
            yield replace(finding, outcome=Outcome.REMOVED) if is_ours else finding

    def _forget_restored(self) -> None:
        """Take blobs for right that were written again since they were hashed."""
        wrong = self._check.wrong
        for key in [key for key in wrong if key.startswith(f"{keys.BLOBS}/")]:
            if is_right(self._objects, key) and self._objects.stat(key):
                del wrong[key]

    def _delete_all(self) -> None:
        wrong = self._check.wrong
        for stat in list(self._objects.list(keys.LISTINGS)):
            self._repair_listing(keys.stem(stat.key))
        for prefix in (keys.INCOMPLETE, keys.RECORDS, keys.PACKS):
            self._delete(key for key in wrong if key.startswith(f"{prefix}/"))
        self._delete(stat.key for stat in list(self._objects.list(keys.CHUNKED)) if self._is_unusable(stat.key))  # fmt: skip
        blobs = {key for key in wrong if key.startswith(f"{keys.BLOBS}/")}
        indexes = {key for key in wrong if key.startswith(f"{keys.SLICES}/")}
        self._delete(indexes | {keys.slices(keys.stem(key)) for key in blobs})
        self._delete(blobs | {keys.blob(keys.stem(key)) for key in indexes})

    def _repair_listing(self, listing_id: str) -> None:
        key = keys.listing(listing_id)
        if key in self._check.wrong:
            self._delete([key, keys.packs(listing_id)])
        elif listing_id in self._check.lost or self._is_new_and_wrong(listing_id):
            data = self._objects.get(key)
            if data is not None:
                self._objects.put(keys.incomplete(listing_id), data)
                self._delete([key])

    def _is_new_and_wrong(self, listing_id: str) -> bool:
        """Whether a listing that was written since the check names something wrong."""
        if listing_id in self._check.listings:
            return False
        listing = contents.load_listing(self._objects, listing_id)
        packs = contents.packs_of(self._objects, listing_id)
        return listing is not None and self._check.names_wrong(listing, packs)

    def _is_unusable(self, key: str) -> bool:
        """Whether large content is wrong, or has a wrong chunk."""
        if key in self._check.wrong or key in self._check.scan.unusable:
            return True
        if bytes.fromhex(keys.stem(key)) in self._check.scan.chunked:
            return False
        chunks = contents.chunks_of(self._objects, keys.stem(key)) or ()
        return any(keys.blob(chunk) in self._check.wrong for chunk in chunks)

    def _delete(self, unwanted: Iterable[str]) -> None:
        self._access.require()
        self._objects.delete(sorted(unwanted))


def _keys_of(file: ListedFile) -> Iterator[str]:
    """Where the content of a file may be, but for packs."""
    yield keys.chunked(file.sha256) if file.chunks else keys.blob(file.sha256)
    yield from map(keys.blob, file.chunks)
