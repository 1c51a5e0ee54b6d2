"""Keys of a store's objects. DESIGN.md beside this file says what each holds and in which order they are written.

All names are of letters that no store and no URL spells differently, so that a key is the same everywhere.
"""

from __future__ import annotations

import re

from trainctl.base.json import hex_digest
from trainctl.base.listing import ResolvedSource

BLOBS, CHUNKED, PACK_INDEXES = "blobs/sha256", "chunked/sha256", "slices/sha256"
LISTINGS, INCOMPLETE, PACKS, RECORDS = "listings", "incomplete", "packs", "records"
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
    INCOMPLETE: rf"{_DIGEST}\.json",
    PACKS: rf"{_DIGEST}\.json",
    RECORDS: rf"{_DIGEST}/{_DIGEST}\.json",
    PARTIAL: rf"{_DIGEST}/(pack|{_DIGEST}\.([0-9]{{1,9}}|whole))\.{_DIGEST}",
    REFERENCES: rf"{_NAME}/{_NAME}\.json",
    LEASES: rf"({_DIGEST}|gc)\.json",
}
_OWN = {kind.partition("/")[0]: re.compile(f"{kind}/{form}") for kind, form in _FORMS.items()}


def is_store_key(key: str) -> bool:
    """Whether a store may have put this key; anything else below the root is somebody else's and stays as it is."""
    form = _OWN.get(key.partition("/")[0])
    return form is not None and form.fullmatch(key) is not None


def blob(sha256: str) -> str:
    """Content of at most one chunk, one chunk of larger content, or a pack."""
    return f"{BLOBS}/{sha256[:2]}/{sha256}"


def chunk_list(sha256: str) -> str:
    """The chunks of content that is larger than one."""
    return f"{CHUNKED}/{sha256[:2]}/{sha256}.json"


def pack_index(pack: str) -> str:
    """The index of a pack: which contents it holds, and where."""
    return f"{PACK_INDEXES}/{pack[:2]}/{pack}"


def listing(listing_id: str) -> str:
    """A listing. Its presence says that all its content is there."""
    return f"{LISTINGS}/{listing_id}.json"


def incomplete(listing_id: str) -> str:
    """A listing of which ``verify`` deleted content. It says what the rest is, until the source is copied again."""
    return f"{INCOMPLETE}/{listing_id}.json"


def packs(listing_id: str) -> str:
    """The packs that hold a listing's small files."""
    return f"{PACKS}/{listing_id}.json"


def source(resolved: ResolvedSource) -> str:
    """The name that stands for a source."""
    return source_of(resolved.identity)


def source_of(identity: str) -> str:
    """The name that stands for a source with that ``ResolvedSource.identity``."""
    return hex_digest(["source", identity])


def record_prefix(resolved: ResolvedSource) -> str:
    """The prefix of what a source was mirrored as, at any of its pins."""
    return f"{RECORDS}/{source(resolved)}"


def record(resolved: ResolvedSource) -> str:
    """What a source at its pin was mirrored as."""
    return f"{record_prefix(resolved)}/{resolved.pin.rpartition(':')[2]}.json"


def mark_prefix(resolved: ResolvedSource) -> str:
    """The prefix of marks: what arrived of a source that isn't whole yet."""
    return f"{PARTIAL}/{source(resolved)}"


def fingerprint(identity: str, path: str, size: int, validator: str) -> str:
    """What identifies a file's content as far as upstream tells: the same for files that are known to be the same."""
    kind, _, value = validator.partition(":")
    if kind == "sha256":
        return hex_digest([kind, value, size])
    return hex_digest([identity, path, size, validator])


def chunk_mark(resolved: ResolvedSource, fingerprint: str, number: int, sha256: str) -> str:
    """Says that a chunk of a file is there as a blob. An empty object."""
    return f"{mark_prefix(resolved)}/{fingerprint}.{number}.{sha256}"


def file_mark(resolved: ResolvedSource, fingerprint: str, sha256: str) -> str:
    """Says that a whole file is there. An empty object."""
    return f"{mark_prefix(resolved)}/{fingerprint}.whole.{sha256}"


def pack_mark(resolved: ResolvedSource, pack: str) -> str:
    """Says that a pack of a source's files is there; holds what fingerprints its files have."""
    return f"{mark_prefix(resolved)}/pack.{pack}"


def reference_prefix(lineage: str) -> str:
    """The prefix of the references of one state."""
    return f"{REFERENCES}/{_readable(lineage)}"


def reference(lineage: str, address: str) -> str:
    """The reference of one resource of a state."""
    return f"{reference_prefix(lineage)}/{_readable(address)}.json"


def lease(resolved: ResolvedSource) -> str:
    """The lease of the process that copies a source at its pin into the store."""
    return lease_of(resolved.identity, resolved.pin)


def lease_of(identity: str, pin: str) -> str:
    """The same by ``ResolvedSource.identity`` and ``pin``."""
    return f"{LEASES}/{hex_digest([identity, pin])}.json"


def key_stem(key: str) -> str:
    """The last part of a key, without its suffix."""
    name = key.rpartition("/")[2]
    return name[: -len(".json")] if name.endswith(".json") else name


def _readable(text: str) -> str:
    """A name for any text, the same for the same text only."""
    return f"{re.sub('[^A-Za-z0-9_-]+', '-', text)[:_READABLE_CHARACTERS]}.{hex_digest(text)[:16]}"
