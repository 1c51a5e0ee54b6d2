"""References from resources to listings; ``gc`` keeps referenced blobs."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, FrozenSet, Iterator, List, Mapping, Optional, Tuple

from trainctl.base.lazy_dataclass import asdict, dataclass
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.listing import ResolvedSource, is_digest
from trainctl.base.objects import ObjectStore
from trainctl.errors import StorageError
from trainctl.store import documents, keys

_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("lineage", "address", "owner", "project", "source", "revision", "pin"), str),
    **dict.fromkeys(("files", "bytes"), int),
    **dict.fromkeys(("listing", "previous"), (str, type(None))),
}

_VERSION = ("source", "endpoint", "revision", "pin", "files", "bytes")


@dataclass(frozen=True)
class Reference:
    """A resource of a state that needs a source; ``owner`` applied it last."""

    lineage: str
    address: str
    owner: str
    project: str

    @property
    def key(self) -> str:
        """Key of the reference."""
        return keys.reference(self.lineage, self.address)

    def record(
        self, before: Mapping[str, Any], resolved: ResolvedSource, listing: Optional[str]
    ) -> Dict[str, Any]:
        """Return the document of a reference; ``listing`` None until mirrored.

        ``before``: the document that it replaces, or empty. The version it names is kept until the new one is complete.
        """
        is_same = _identity(before) == resolved.identity and before.get("pin") == resolved.pin
        source = resolved.source, resolved.endpoint, resolved.revision, resolved.pin
        document: Dict[str, Any] = {
            "version": 1,
            **asdict(self),
            **dict(zip(_VERSION, (*source, len(resolved.files), resolved.size))),
            "listing": listing or (before.get("listing") if is_same else None),
            "previous": None,
            "previous_version": None,
        }
        if listing is None and before:
            kept = {name: before.get(name) for name in ("previous", "previous_version")}
            if not is_same and before.get("listing"):
                kept = {"previous": before["listing"]}
                kept["previous_version"] = {name: before[name] for name in _VERSION}
            document.update(kept)
        return document


class StoredReference(NamedTuple):
    """A reference in a store. ``last_used`` is in Unix seconds by the store's clock."""

    key: str
    record: Mapping[str, Any]
    last_used: float

    @property
    def identity(self) -> str:
        """Identity of the source, see ``ResolvedSource``."""
        return str(_identity(self.record))

    @property
    def listing(self) -> Optional[str]:
        """Listing of the source; None until it is first complete."""
        listing = self.record["listing"]
        return None if listing is None else str(listing)

    @property
    def listings(self) -> FrozenSet[str]:
        """Listings to keep: the current one and the one that it replaces."""
        return frozenset(filter(None, (self.record["listing"], self.record["previous"])))

    def versions(self) -> Iterator[Mapping[str, Any]]:
        """Yield the record of the current version, and of the one that it replaces."""
        yield self.record
        previous, version = self.record["previous"], self.record.get("previous_version")
        if previous and version:
            yield {**self.record, **version, "listing": previous}


class StoreReferences(NamedTuple):
    """References of a store, and by key the errors of corrupt ones."""

    stored: Tuple[StoredReference, ...]
    damaged: Mapping[str, StorageError]


def put_reference(
    objects: ObjectStore,
    reference: Reference,
    resolved: ResolvedSource,
    listing: Optional[str] = None,
) -> Optional[str]:
    """Store a reference, before mirroring and again when complete.

    Returns the listing that the reference names now.
    """
    data = objects.get(reference.key)
    before: Dict[str, Any] = {}
    with contextlib.suppress(ValueError):  # replace a corrupt reference
        before = {} if data is None else _decode(data)
    document = reference.record(before, resolved, listing)
    objects.put(reference.key, documents.encode(document))
    return StoredReference(reference.key, document, 0.0).listing


def drop_reference(objects: ObjectStore, lineage: str, address: str) -> bool:
    """Delete a resource's reference; return False if there was none."""
    key = keys.reference(lineage, address)
    existed = objects.stat(key) is not None
    objects.delete([key])
    return existed


def read_references(objects: ObjectStore, lineage: str = "") -> StoreReferences:
    """Read all references, or those of one state."""
    stored: List[StoredReference] = []
    damaged: Dict[str, StorageError] = {}
    prefix = keys.reference_prefix(lineage) if lineage else keys.REFERENCES
    for stat in objects.list(prefix):
        data = objects.get(stat.key)
        try:
            record = None if data is None else _decode(data)
        except ValueError as error:
            damaged[stat.key] = StorageError(
                f"{objects.url}/{stat.key} is corrupt: {error}",
                "The next apply of its project writes the reference again. If that project no longer exists, delete the reference.",
                code=documents.DAMAGED,
            )
            continue
        if record is not None:
            stored.append(StoredReference(stat.key, record, stat.modified))
    return StoreReferences(tuple(stored), damaged)


def _decode(data: bytes) -> Dict[str, Any]:
    record = documents.decode(data)
    invalid = [name for name, kind in _TYPES.items() if not isinstance(record.get(name, ...), kind)]
    invalid += [name for name in ("listing", "previous") if not is_digest(record.get(name) or "0" * 64)]  # fmt: skip
    if invalid:
        raise ValueError(f"missing or invalid {invalid[0]}")
    return record


def _identity(record: Mapping[str, Any]) -> Optional[str]:
    source, endpoint = record.get("source"), record.get("endpoint")
    return source if endpoint is None else f"{source} {endpoint}"
