"""Find files of a source that a store already holds.

They come from earlier versions, interrupted transfers, and digests announced upstream.
"""

from __future__ import annotations

from typing import (
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

from trainctl.base.lazy_named_tuple import NamedTuple
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
"""Smaller files are stored in packs."""
_MAX_EARLIER_VERSIONS = 8
"""Earlier versions of a source that are searched."""
_MAX_CONCURRENT = 16


class BlobInfo(NamedTuple):
    """A stored blob; ``chunks`` as in ``ListedFile``."""

    sha256: str
    size: int
    chunks: Tuple[str, ...] = ()

    def listed(self, path: str) -> ListedFile:
        """Return the blob as a file at a path."""
        return ListedFile(path, self.size, self.sha256, self.chunks)


def is_packed(size: int, chunk_bytes: int) -> bool:
    """Return whether a file of that size is stored in a pack."""
    return size < min(PACKED_BYTES, chunk_bytes)


Groups = Mapping[str, Sequence[SourceFile]]
"""Files by fingerprint; identical files share one."""


def group_by_fingerprint(resolved: ResolvedSource) -> Dict[str, List[SourceFile]]:
    """Group the files of a source by fingerprint."""
    groups: Dict[str, List[SourceFile]] = {}
    for file in resolved.files:
        key = keys.fingerprint(resolved.identity, file.path, file.size, file.validator)
        groups.setdefault(key, []).append(file)
    return groups


def find_listing(objects: ObjectStore, resolved: ResolvedSource) -> Optional[Listing]:
    """Return the complete listing of a source at its pin, if there is one."""
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
    """Encode the record of a complete source."""
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
    """Finds stored files of an incomplete source; writes nothing.

    ``marked``: digests of chunks of incomplete files that may be stored, by fingerprint and number.
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
        for stat in objects.list(keys.mark_prefix(resolved)):
            fingerprint, _, rest = stat.key.rpartition("/")[2].partition(".")
            number, _, sha256 = rest.partition(".")
            if fingerprint == "pack":
                document = documents.load_or_none(documents.load, objects, stat.key)
                self._likely.update((document or {}).get("files") or {})
                self._packs[rest] = None
            elif number == "whole":
                self._likely[fingerprint] = sha256
            else:
                self.marked.setdefault(fingerprint, {})[int(number)] = sha256

    def find(self, groups: Groups) -> Dict[str, BlobInfo]:
        """Return the stored blobs of files by fingerprint."""

        def find_blob(candidate: Tuple[str, str, int]) -> Optional[BlobInfo]:
            _, sha256, size = candidate
            if size > self._chunk_bytes:
                chunks = documents.load_or_none(documents.load_chunks, self._objects, sha256)
                return BlobInfo(sha256, size, chunks) if chunks else None
            stat = self._objects.stat(keys.blob(sha256))
            return BlobInfo(sha256, size) if stat is not None and stat.size == size else None

        stored: Dict[str, BlobInfo] = {}
        candidates: List[Tuple[str, str, int]] = []
        for key, files in groups.items():
            size, certain = files[0].size, self._certain.get(key)
            is_small = is_packed(size, self._chunk_bytes)
            sha256 = files[0].sha256 or self._likely.get(key)
            if certain is not None and not is_small:
                stored[key] = certain
            elif is_small:
                sha256 = certain.sha256 if certain else sha256
                if sha256 and self.pack_of(sha256):
                    stored[key] = BlobInfo(sha256, size)
            elif sha256:
                candidates.append((key, sha256, size))
        for (key, _, _), blob in map_ordered(find_blob, candidates, _MAX_CONCURRENT):
            if blob is not None:
                stored[key] = blob
        return stored

    def stored_bytes(self, groups: Groups) -> int:
        """Return the bytes of marked chunks of incomplete files."""
        chunk = self._chunk_bytes
        return sum(
            max(0, min(chunk, files[0].size - number * chunk))
            for key, files in groups.items()
            for number in self.marked.get(key, ())
        )

    def pack_of(self, sha256: str) -> Optional[str]:
        """Return the pack of this source that holds a small blob."""
        if self._pack_of is None:
            self._pack_of = {
                entry.digest: pack
                for pack, entries in map_ordered(self._entries, self._packs, _MAX_CONCURRENT)
                for entry in entries
            }
        return self._pack_of.get(bytes.fromhex(sha256))

    def _entries(self, pack: str) -> Tuple[documents.PackEntry, ...]:
        if self._objects.stat(keys.blob(pack)) is None:
            return ()
        return documents.load_or_none(documents.load_pack_index, self._objects, pack) or ()

    def _read_versions(self, resolved: ResolvedSource) -> None:
        """Record the stored files of earlier versions."""
        objects, load = self._objects, documents.load_or_none
        stats = sorted(objects.list(keys.record_prefix(resolved)), key=lambda stat: stat.modified)
        for stat in stats[-_MAX_EARLIER_VERSIONS:]:
            document = load(documents.load, objects, stat.key)
            name = _record_listing(document)
            listing = load(documents.load_listing, objects, name) if name else None
            validators = (document or {}).get("validators")
            if listing is not None and isinstance(validators, list):
                for file, validator in zip(listing.files, validators):
                    if isinstance(validator, str) and not validator.startswith("size:"):
                        text = validator or f"sha256:{file.sha256}"
                        key = keys.fingerprint(resolved.identity, file.path, file.size, text)
                        self._certain[key] = BlobInfo(file.sha256, file.size, file.chunks)
            packs = load(documents.load_packs, objects, name) if name else None
            self._packs.update(dict.fromkeys(packs or ()))


def _record_listing(document: Optional[Mapping[str, object]]) -> str:
    """Return the listing that a record names, or ``""``."""
    name = (document or {}).get("listing")
    return str(name) if is_digest(name) else ""
