"""Read and write documents: records, listings, chunk lists, pack indexes.

Each contains a digest of itself; reading a corrupt document raises StorageError.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Tuple, TypeVar

from trainctl.base.json import canonical, hex_digest
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.listing import Listing, is_digest
from trainctl.base.objects import ObjectStore
from trainctl.errors import StorageError
from trainctl.store import keys

DAMAGED = "mirror-corrupt"
"""Error code of corrupt objects."""
T = TypeVar("T")
_MAGIC = b"tctlpk1\n"
_ROW = struct.Struct(">32sII")
_DIGEST_BYTES = 32


def encode(document: Mapping[str, Any]) -> bytes:
    """Encode a document with its digest."""
    return canonical({**document, "check": hex_digest(document)})


def decode(data: bytes) -> Dict[str, Any]:
    """Decode a document; ValueError if it is corrupt."""
    try:
        document = json.loads(data)
    except RecursionError:
        raise ValueError("nesting is too deep") from None
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004
    if document.pop("check", None) != hex_digest(document):
        raise ValueError("digest mismatch")
    return document


def load(objects: ObjectStore, key: str) -> Optional[Dict[str, Any]]:
    """Read a document; None if it doesn't exist, StorageError if it is corrupt."""
    data = objects.get(key)
    if data is None:
        return None
    try:
        return decode(data)
    except ValueError as error:
        raise damaged_error(objects, key, str(error)) from None


def damaged_error(objects: ObjectStore, key: str, reason: str) -> StorageError:
    """Return the error for a corrupt object."""
    return StorageError(
        f"{objects.url}/{key} is corrupt: {reason}",
        "Run trainctl mirror verify --repair, then apply again to download what is missing.",
        code=DAMAGED,
    )


def load_or_none(load: Callable[..., Optional[T]], *arguments: Any) -> Optional[T]:
    """Return what ``load`` reads; None if that is corrupt."""
    try:
        return load(*arguments)
    except StorageError as error:
        if error.code != DAMAGED:
            raise
        return None


class PackEntry(NamedTuple):
    """Location of a blob in a pack."""

    digest: bytes
    offset: int
    length: int


def load_listing(objects: ObjectStore, listing_id: str) -> Optional[Listing]:
    """Read a complete listing; None if it doesn't exist."""
    key = keys.listing(listing_id)
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


def load_chunks(objects: ObjectStore, sha256: str) -> Optional[Tuple[str, ...]]:
    """Read the chunks of a blob larger than one chunk; None if it doesn't exist."""
    return _digests(objects, keys.chunk_list(sha256), "chunks")


def load_packs(objects: ObjectStore, listing_id: str) -> Tuple[str, ...]:
    """Read the packs that hold a listing's small files."""
    return _digests(objects, keys.packs(listing_id), "packs") or ()


def load_pack_index(objects: ObjectStore, pack: str) -> Optional[Tuple[PackEntry, ...]]:
    """Read the entries of a pack; None if it isn't a pack."""
    key = keys.pack_index(pack)
    data = objects.get(key)
    if data is None:
        return None
    rows = data[len(_MAGIC) : -_DIGEST_BYTES]
    is_intact = hashlib.sha256(data[:-_DIGEST_BYTES]).digest() == data[-_DIGEST_BYTES:]
    if not data.startswith(_MAGIC) or not is_intact or len(rows) % _ROW.size:
        raise damaged_error(objects, key, "digest mismatch")
    return tuple(PackEntry(*row) for row in _ROW.iter_unpack(rows))


def encode_pack_index(entries: Iterable[PackEntry]) -> bytes:
    """Encode the index of a pack."""
    body = _MAGIC + b"".join(sorted(_ROW.pack(*entry) for entry in entries))
    return body + hashlib.sha256(body).digest()


def count_pack_entries(size: int) -> int:
    """Return the number of entries in an index of ``size`` bytes."""
    return max(0, (size - len(_MAGIC) - _DIGEST_BYTES) // _ROW.size)


def _digests(objects: ObjectStore, key: str, name: str) -> Optional[Tuple[str, ...]]:
    document = load(objects, key)
    if document is None:
        return None
    digests = document.get(name)
    if not isinstance(digests, list) or not all(map(is_digest, digests)):
        raise damaged_error(objects, key, f"missing or invalid {name}")
    return tuple(digests)
