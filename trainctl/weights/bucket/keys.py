"""Names of objects in a mirror's bucket, and which names are a mirror's. They are made of letters that no store and no URL spells differently."""

from __future__ import annotations

import re

from trainctl.base.json import hex_digest
from trainctl.base.listing import ResolvedSource

BLOBS, CHUNKED, LISTINGS = "blobs/sha256", "chunked/sha256", "listings"
SLICES, PACKS = "slices", "packs"
FINGERPRINTS, PARTIAL, REFERENCES = "fingerprints", "partial", "references"
LEASES, COLLECTIONS = "leases", "collections"
PACK = "pack"
"""What stands for a fingerprint in the mark of a pack."""
_READABLE = 80

_DIGEST = "[0-9a-f]{64}"
_SPREAD = r"([0-9a-f]{2})/\1[0-9a-f]{62}"
_NAME = rf"[A-Za-z0-9_-]{{0,{_READABLE}}}\.[0-9a-f]{{16}}"
_FORMS = {
    BLOBS: _SPREAD,
    CHUNKED: rf"{_SPREAD}\.json",
    SLICES: _SPREAD,
    PACKS: rf"{_DIGEST}\.json",
    LISTINGS: rf"{_DIGEST}\.json",
    FINGERPRINTS: rf"{_DIGEST}/{_DIGEST}\.json",
    PARTIAL: rf"{_DIGEST}/({PACK}|{_DIGEST}\.([0-9]{{1,9}}|whole))\.{_DIGEST}",
    REFERENCES: rf"{_NAME}/{_NAME}\.json",
    LEASES: rf"{_DIGEST}\.json",
    COLLECTIONS: r"[0-9a-z.]+-[0-9]+-[0-9]+\.[0-9a-f]{8}\.json",
}
"""What of each kind comes after its prefix."""
KINDS = tuple(_FORMS)
_OURS = {kind.partition("/")[0]: re.compile(f"{kind}/{form}") for kind, form in _FORMS.items()}


def is_ours(key: str) -> bool:
    """Whether a mirror may have put it. What has another name is somebody else's, though it lies below a prefix of ours."""
    form = _OURS.get(key.partition("/")[0])
    return form is not None and form.fullmatch(key) is not None


def blob(sha256: str) -> str:
    """Content of at most one chunk, or a pack of such."""
    return f"{BLOBS}/{sha256[:2]}/{sha256}"


def chunked(sha256: str) -> str:
    """Which chunks make up larger content."""
    return f"{CHUNKED}/{sha256[:2]}/{sha256}.json"


def slices(pack: str) -> str:
    """Which contents are in a pack."""
    return f"{SLICES}/{pack[:2]}/{pack}"


def packs(listing_id: str) -> str:
    """In which packs the small files of a listing are."""
    return f"{PACKS}/{listing_id}.json"


def listing(listing_id: str) -> str:
    """A listing."""
    return f"{LISTINGS}/{listing_id}.json"


def source_of(resolved: ResolvedSource) -> str:
    """What stands for a source in names."""
    return hex_digest(["source", resolved.identity])


def record(resolved: ResolvedSource) -> str:
    """What the fingerprints of a source at its pin turned out to be."""
    return record_at(resolved, resolved.pin)


def record_at(resolved: ResolvedSource, pin: str) -> str:
    """The same at any pin."""
    return f"{FINGERPRINTS}/{source_of(resolved)}/{pin.rpartition(':')[2]}.json"


def marks(resolved: ResolvedSource) -> str:
    """The prefix of what is known of a source that is not whole."""
    return f"{PARTIAL}/{source_of(resolved)}"


def mark(resolved: ResolvedSource, fingerprint: str, what: str, sha256: str) -> str:
    """Says that a chunk of a file, or the file, is there; ``what`` is the chunk's number or ``whole``."""
    return f"{marks(resolved)}/{fingerprint}.{what}.{sha256}"


def pack_mark(resolved: ResolvedSource, pack: str) -> str:
    """Says that a pack of a source's files is there."""
    return f"{marks(resolved)}/{PACK}.{pack}"


def references(lineage: str) -> str:
    """The prefix of the references of one state."""
    return f"{REFERENCES}/{_name(lineage)}"


def reference(lineage: str, address: str) -> str:
    """The reference of one resource."""
    return f"{references(lineage)}/{_name(address)}.json"


def lease(resolved: ResolvedSource) -> str:
    """Who brings a source at a pin."""
    return f"{LEASES}/{hex_digest([resolved.identity, resolved.pin])}.json"


def collection(holder: str, nonce: str) -> str:
    """A collection that is under way; ``nonce`` is eight hex digits."""
    return f"{COLLECTIONS}/{holder}.{nonce}.json"


def stem(key: str) -> str:
    """The last part of a key, without its suffix."""
    return key.rpartition("/")[2].removesuffix(".json")


def _name(text: str) -> str:
    """One name for any text, the same for the same text only."""
    return f"{re.sub('[^A-Za-z0-9_-]+', '-', text)[:_READABLE]}.{hex_digest(text)[:16]}"
