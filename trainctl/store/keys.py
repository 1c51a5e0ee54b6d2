"""Keys of a store's objects; see DESIGN.md for their contents and write order.

Names use only characters that need no escaping in any store or URL.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trainctl.base.json import hex_digest

if TYPE_CHECKING:
    from trainctl.base.listing import ResolvedSource

BLOBS, CHUNKED, PACK_INDEXES = "blobs/sha256", "chunked/sha256", "slices/sha256"
LISTINGS, PACKS, RECORDS = "listings", "packs", "records"
PARTIAL, REFERENCES, LEASES = "partial", "references", "leases"
GC_LEASE = f"{LEASES}/gc.json"
_READABLE_CHARACTERS = 80

_DIGEST = "[0-9a-f]{64}"
_SPREAD = r"([0-9a-f]{2})/\1[0-9a-f]{62}"
_NAME = rf"[A-Za-z0-9_-]{{0,{_READABLE_CHARACTERS}}}\.[0-9a-f]{{16}}"
_FORMS = {
    BLOBS: _SPREAD,
    CHUNKED: rf"{_SPREAD}\.json",
    PACK_INDEXES: _SPREAD,
    LISTINGS: rf"{_DIGEST}\.json",
    PACKS: rf"{_DIGEST}\.json",
    RECORDS: rf"{_DIGEST}/{_DIGEST}\.json",
    PARTIAL: rf"{_DIGEST}/(pack|{_DIGEST}\.([0-9]{{1,9}}|whole))\.{_DIGEST}",
    REFERENCES: rf"{_NAME}/{_NAME}\.json",
    LEASES: rf"({_DIGEST}|gc)\.json",
}
_OWN = {kind.partition("/")[0]: re.compile(f"{kind}/{form}") for kind, form in _FORMS.items()}


def is_store_key(key: str) -> bool:
    """Return whether this is a key of a store; other objects are left alone."""
    form = _OWN.get(key.partition("/")[0])
    return form is not None and form.fullmatch(key) is not None


def blob(sha256: str) -> str:
    """Key of a blob of at most one chunk, a chunk of a larger blob, or a pack."""
    return f"{BLOBS}/{sha256[:2]}/{sha256}"


def chunk_list(sha256: str) -> str:
    """Key of the chunk list of a blob larger than one chunk."""
    return f"{CHUNKED}/{sha256[:2]}/{sha256}.json"


def pack_index(pack: str) -> str:
    """Key of a pack's index."""
    return f"{PACK_INDEXES}/{pack[:2]}/{pack}"


def listing(listing_id: str) -> str:
    """Key of a listing, which exists only if all of its blobs do."""
    return f"{LISTINGS}/{listing_id}.json"


def packs(listing_id: str) -> str:
    """Key of the list of packs that hold a listing's small files."""
    return f"{PACKS}/{listing_id}.json"


def source(resolved: ResolvedSource) -> str:
    """Name of a source in keys."""
    return source_of(resolved.identity)


def source_of(identity: str) -> str:
    """Name of the source with that ``ResolvedSource.identity``."""
    return hex_digest(["source", identity])


def record_prefix(resolved: ResolvedSource) -> str:
    """Prefix of the records of a source, at all pins."""
    return f"{RECORDS}/{source(resolved)}"


def record(resolved: ResolvedSource) -> str:
    """Key of the record that maps a source at its pin to a listing."""
    return f"{record_prefix(resolved)}/{resolved.pin.rpartition(':')[2]}.json"


def mark_prefix(resolved: ResolvedSource) -> str:
    """Prefix of the progress marks of an incomplete source."""
    return f"{PARTIAL}/{source(resolved)}"


def fingerprint(identity: str, path: str, size: int, validator: str) -> str:
    """Identify content by upstream metadata; equal only if identical."""
    kind, _, value = validator.partition(":")
    if kind == "sha256":
        return hex_digest([kind, value, size])
    return hex_digest([identity, path, size, validator])


def mark(resolved: ResolvedSource, *parts: str) -> str:
    """Key of the object that marks as stored: a chunk or file by fingerprint, number or ``whole``, and digest.

    A pack is marked by ``pack`` and its digest; the object holds its files' fingerprints.
    """
    return f"{mark_prefix(resolved)}/{'.'.join(parts)}"


def reference_prefix(lineage: str) -> str:
    """Prefix of the references of one state."""
    return f"{REFERENCES}/{_readable(lineage)}"


def reference(lineage: str, address: str) -> str:
    """Key of the reference of one resource."""
    return f"{reference_prefix(lineage)}/{_readable(address)}.json"


def lease(resolved: ResolvedSource) -> str:
    """Key of the lease for mirroring a source at its pin."""
    return lease_of(resolved.identity, resolved.pin)


def lease_of(identity: str, pin: str) -> str:
    """Key of the lease by ``ResolvedSource.identity`` and ``pin``."""
    return f"{LEASES}/{hex_digest([identity, pin])}.json"


def key_stem(key: str) -> str:
    """Return the last part of a key, without its suffix."""
    name = key.rpartition("/")[2]
    return name[: -len(".json")] if name.endswith(".json") else name


def _readable(text: str) -> str:
    """Return a readable, unique name for a text."""
    return f"{re.sub('[^A-Za-z0-9_-]+', '-', text)[:_READABLE_CHARACTERS]}.{hex_digest(text)[:16]}"
