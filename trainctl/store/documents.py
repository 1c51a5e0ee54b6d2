"""Read and write the documents of a store: records, listings, chunks of large content, indexes of packs.

Each has a digest of itself, so that a flipped bit is noticed. What reads them raises StorageError for what is damaged.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any, Callable, Dict, Iterable, Mapping, NamedTuple, Optional, Tuple, TypeVar

from trainctl.base.json import canonical, hex_digest
from trainctl.base.listing import Listing, is_digest
from trainctl.base.objects import ObjectStore
from trainctl.errors import StorageError
from trainctl.store import keys

DAMAGED = "mirror-corrupt"
"""The code of errors about objects that aren't what was written."""
T = TypeVar("T")
_MAGIC = b"tctlpk1\n"
_ROW = struct.Struct(">32sII")
_SEAL_BYTES = 32


def encode(document: Mapping[str, Any]) -> bytes:
    """The stored form of a document."""
    return canonical({**document, "check": hex_digest(document)})


def decode(data: bytes) -> Dict[str, Any]:
    """Read a stored document; ValueError if it isn't what was written."""
    try:
        document = json.loads(data)
    except RecursionError:
        raise ValueError("nesting is too deep") from None
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004  like any other damage
    if document.pop("check", None) != hex_digest(document):
        raise ValueError("digest mismatch")
    return document


def load(objects: ObjectStore, key: str) -> Optional[Dict[str, Any]]:
    """Read an object that ``encode`` made; None if there is none, StorageError if it is damaged."""
    data = objects.get(key)
    if data is None:
        return None
    try:
        return decode(data)
    except ValueError as error:
        raise damaged_error(objects, key, str(error)) from None


def damaged_error(objects: ObjectStore, key: str, reason: str) -> StorageError:
    """The error for an object of the store that isn't what was written."""
    return StorageError(
        f"{objects.url}/{key} is corrupt: {reason}",
        "Run trainctl mirror verify --repair, then apply again to download what is missing.",
        code=DAMAGED,
    )


def load_or_none(
    load: Callable[[ObjectStore, str], Optional[T]], objects: ObjectStore, name: str
) -> Optional[T]:
    """What ``load`` reads; None if that is damaged."""
    try:
        return load(objects, name)
    except StorageError as error:
        if error.code != DAMAGED:
            raise
        return None


class PackEntry(NamedTuple):
    """Content in a pack: its digest, and which of the pack's bytes it is."""

    digest: bytes
    offset: int
    length: int


def load_listing(objects: ObjectStore, listing_id: str) -> Optional[Listing]:
    """The listing, or None if it isn't complete."""
    return _load(objects, keys.listing(listing_id), listing_id)


def load_incomplete(objects: ObjectStore, listing_id: str) -> Optional[Listing]:
    """The listing of which ``verify`` deleted content, or None if there is none."""
    return _load(objects, keys.incomplete(listing_id), listing_id)


def load_chunks(objects: ObjectStore, sha256: str) -> Optional[Tuple[str, ...]]:
    """The chunks of content that is larger than one, or None if it isn't there."""
    return _digests(objects, keys.chunk_list(sha256), "chunks")


def load_packs(objects: ObjectStore, listing_id: str) -> Tuple[str, ...]:
    """The packs that hold a listing's small files."""
    return _digests(objects, keys.packs(listing_id), "packs") or ()


def load_pack_index(objects: ObjectStore, pack: str) -> Optional[Tuple[PackEntry, ...]]:
    """The contents in a pack, or None if it isn't a pack."""
    key = keys.pack_index(pack)
    data = objects.get(key)
    if data is None:
        return None
    rows = data[len(_MAGIC) : -_SEAL_BYTES]
    is_sealed = hashlib.sha256(data[:-_SEAL_BYTES]).digest() == data[-_SEAL_BYTES:]
    if not data.startswith(_MAGIC) or not is_sealed or len(rows) % _ROW.size:
        raise damaged_error(objects, key, "digest mismatch")
    return tuple(PackEntry(*row) for row in _ROW.iter_unpack(rows))


def encode_pack_index(slices: Iterable[PackEntry]) -> bytes:
    """The stored form of a pack's index."""
    body = _MAGIC + b"".join(sorted(_ROW.pack(*slice_) for slice_ in slices))
    return body + hashlib.sha256(body).digest()


def count_pack_entries(size: int) -> int:
    """How many contents are in a pack whose index has ``size`` bytes."""
    return max(0, (size - len(_MAGIC) - _SEAL_BYTES) // _ROW.size)


def _load(objects: ObjectStore, key: str, listing_id: str) -> Optional[Listing]:
    data = objects.get(key)
    if data is None:
        return None
    try:
        listing = Listing.from_bytes(data)
    except ValueError as error:
        raise damaged_error(objects, key, str(error)) from None
    if listing.id != listing_id:
        raise damaged_error(objects, key, "the digest doesn't match the name")
    return listing


def _digests(objects: ObjectStore, key: str, name: str) -> Optional[Tuple[str, ...]]:
    document = load(objects, key)
    if document is None:
        return None
    digests = document.get(name)
    if not isinstance(digests, list) or not all(map(is_digest, digests)):
        raise damaged_error(objects, key, f"missing or invalid {name}")
    return tuple(digests)
