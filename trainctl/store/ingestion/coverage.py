"""What a store has of a source: from its earlier versions, from interrupted transfers, and by announced digests."""

from __future__ import annotations

from typing import (
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from trainctl.base.listing import (
    CHUNK_BYTES,
    ListedFile,
    Listing,
    ResolvedSource,
    SourceFile,
    is_digest,
)
from trainctl.base.objects import ObjectStore
from trainctl.base.parallel import map_ordered
from trainctl.store import documents, keys

PACKED_BYTES = 2**20
"""Smaller files are put into packs."""
_MAX_EARLIER_VERSIONS = 8
"""Versions of a source that are looked through."""
_MAX_CONCURRENT = 16


class BlobInfo(NamedTuple):
    """A content by its digest; ``chunks`` as in ``ListedFile``."""

    sha256: str
    size: int
    chunks: Tuple[str, ...] = ()

    def listed(self, path: str) -> ListedFile:
        """The content under a path."""
        return ListedFile(path, self.size, self.sha256, self.chunks)


def is_packed(size: int, chunk_bytes: int) -> bool:
    """Whether content of that size is put into a pack."""
    return size < min(PACKED_BYTES, chunk_bytes)


Groups = Mapping[str, Sequence[SourceFile]]
"""Files by fingerprint: those that are known to be the same come once."""


def group_by_fingerprint(resolved: ResolvedSource) -> Dict[str, List[SourceFile]]:
    """The files of a source by fingerprint."""
    groups: Dict[str, List[SourceFile]] = {}
    for file in resolved.files:
        key = keys.fingerprint(resolved.identity, file.path, file.size, file.validator)
        groups.setdefault(key, []).append(file)
    return groups


def find_listing(objects: ObjectStore, resolved: ResolvedSource) -> Optional[Listing]:
    """The listing that a source at its pin turned out to be, if all of it is there."""
    document = documents.load_or_none(documents.load, objects, keys.record(resolved))
    name = _record_listing(document)
    listing = documents.load_or_none(documents.load_listing, objects, name) if name else None
    if listing is None or resolved.known_as is not None:
        return listing
    is_same = len(listing.files) == len(resolved.files) and all(
        (listed.path, listed.size) == (file.path, file.size)
        and file.sha256 in (None, listed.sha256)
        for listed, file in zip(listing.files, resolved.files)
    )
    return listing if is_same else None


def encode_record(resolved: ResolvedSource, listing: Listing) -> bytes:
    """What is stored of a source that is complete."""
    validators = ["" if file.sha256 else file.validator for file in resolved.files]
    return documents.encode(
        {
            "version": 1,
            "source": resolved.source,
            "pin": resolved.pin,
            "listing": listing.id,
            "validators": validators,
        }
    )


class SourceCoverage:
    """Looks up what is there of a source that isn't complete at its pin; nothing is written.

    ``marked`` has the digests of chunks that may be there of files that aren't whole, by fingerprint and number.
    """

    def __init__(
        self, objects: ObjectStore, resolved: ResolvedSource, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self._objects = objects
        self._chunk_bytes = chunk_bytes
        self._certain: Dict[str, BlobInfo] = {}
        self._likely: Dict[str, str] = {}
        self._packs: Dict[str, None] = {}
        self._pack_of: Optional[Dict[bytes, str]] = None
        self.marked: Dict[str, Dict[int, str]] = {}
        self._read_versions(resolved)
        self._read_marks(resolved)

    def find(self, groups: Groups) -> Dict[str, BlobInfo]:
        """The content of files that is there, by fingerprint."""
        found: Dict[str, BlobInfo] = {}
        asked: List[Tuple[str, str, int]] = []
        for key, files in groups.items():
            size, certain = files[0].size, self._certain.get(key)
            is_small = is_packed(size, self._chunk_bytes)
            sha256 = files[0].sha256 or self._likely.get(key)
            if certain is not None and not is_small:
                found[key] = certain
            elif is_small:
                sha256 = certain.sha256 if certain else sha256
                if sha256 and self.pack_of(sha256):
                    found[key] = BlobInfo(sha256, size)
            elif sha256:
                asked.append((key, sha256, size))
        for (key, _, _), content in map_ordered(self._stored, asked, _MAX_CONCURRENT):
            if content is not None:
                found[key] = content
        return found

    def arrived(self, groups: Groups) -> int:
        """The bytes that are there of files of which the rest is missing."""
        chunk = self._chunk_bytes
        return sum(
            max(0, min(chunk, files[0].size - number * chunk))
            for key, files in groups.items()
            for number in self.marked.get(key, ())
        )

    def pack_of(self, sha256: str) -> Optional[str]:
        """The pack that has a small content, among those of this source."""
        if self._pack_of is None:
            self._pack_of = {
                slice_.digest: pack
                for pack, slices in map_ordered(self._slices, self._packs, _MAX_CONCURRENT)
                for slice_ in slices
            }
        return self._pack_of.get(bytes.fromhex(sha256))

    def packs_of(self, found: Iterable[BlobInfo]) -> Set[str]:
        """The packs that have those of some contents that are small."""
        small = (content.sha256 for content in found if is_packed(content.size, self._chunk_bytes))
        return set(filter(None, map(self.pack_of, small)))

    def _slices(self, pack: str) -> Tuple[documents.PackEntry, ...]:
        if self._objects.stat(keys.blob(pack)) is None:
            return ()
        return documents.load_or_none(documents.load_pack_index, self._objects, pack) or ()

    def _stored(self, asked: Tuple[str, str, int]) -> Optional[BlobInfo]:
        _, sha256, size = asked
        if size > self._chunk_bytes:
            chunks = documents.load_or_none(documents.load_chunks, self._objects, sha256)
            return BlobInfo(sha256, size, chunks) if chunks else None
        stat = self._objects.stat(keys.blob(sha256))
        return BlobInfo(sha256, size) if stat is not None and stat.size == size else None

    def _read_versions(self, resolved: ResolvedSource) -> None:
        stats = sorted(
            self._objects.list(keys.record_prefix(resolved)), key=lambda stat: stat.modified
        )
        for stat in stats[-_MAX_EARLIER_VERSIONS:]:
            document = documents.load_or_none(documents.load, self._objects, stat.key)
            name = _record_listing(document)
            if document is not None and name:
                self._read_version(resolved.identity, document, name)

    def _read_version(self, identity: str, document: Mapping[str, object], name: str) -> None:
        """Note the files of a version: all of them are there, or ``verify`` deleted content of it and some may be."""
        objects = self._objects
        listing = documents.load_or_none(documents.load_listing, objects, name)
        is_complete = listing is not None
        if listing is None:
            listing = documents.load_or_none(documents.load_incomplete, objects, name)
        if listing is None:
            return
        for fingerprint, file in _fingerprints(identity, document, listing):
            if is_complete:
                self._certain[fingerprint] = BlobInfo(file.sha256, file.size, file.chunks)
            else:
                self._likely[fingerprint] = file.sha256
                self.marked.setdefault(fingerprint, {}).update(self._present(file.chunks))
        packs = documents.load_or_none(documents.load_packs, objects, name)
        self._packs.update(dict.fromkeys(packs or ()))

    def _present(self, chunks: Sequence[str]) -> Iterator[Tuple[int, str]]:
        """The chunks that a repair left, by number."""
        numbered = map_ordered(lambda one: self._objects.stat(keys.blob(one[1])), enumerate(chunks), _MAX_CONCURRENT)  # fmt: skip
        return (chunk for chunk, stat in numbered if stat is not None)

    def _read_marks(self, resolved: ResolvedSource) -> None:
        for stat in self._objects.list(keys.mark_prefix(resolved)):
            kind, _, rest = stat.key.rpartition("/")[2].partition(".")
            what, _, sha256 = rest.partition(".")
            if kind == "pack":
                document = documents.load_or_none(documents.load, self._objects, stat.key)
                self._likely.update((document or {}).get("files") or {})
                self._packs[rest] = None
            elif what == "whole":
                self._likely[kind] = sha256
            else:
                self.marked.setdefault(kind, {})[int(what)] = sha256


def _record_listing(document: Optional[Mapping[str, object]]) -> str:
    """The listing that a record names; empty if none."""
    name = (document or {}).get("listing")
    return str(name) if is_digest(name) else ""


def _fingerprints(
    identity: str, document: Mapping[str, object], listing: Listing
) -> Iterator[Tuple[str, ListedFile]]:
    """The files of an earlier version by fingerprint; those that nothing identified then are left out."""
    validators = document.get("validators")
    if not isinstance(validators, list):
        return
    for file, validator in zip(listing.files, validators):
        if isinstance(validator, str) and not validator.startswith("size:"):
            text = validator or f"sha256:{file.sha256}"
            yield keys.fingerprint(identity, file.path, file.size, text), file
