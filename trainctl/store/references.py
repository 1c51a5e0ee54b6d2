"""References: which resources of which states need a listing. ``gc`` keeps what references name."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from typing import Any, Dict, FrozenSet, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from trainctl.base.listing import ResolvedSource, is_digest
from trainctl.base.objects import ObjectStore
from trainctl.errors import StorageError
from trainctl.store import documents, keys

_TYPES: Mapping[str, Any] = {
    "lineage": str,
    "address": str,
    "owner": str,
    "project": str,
    "source": str,
    "revision": str,
    "pin": str,
    "files": int,
    "bytes": int,
    "listing": (str, type(None)),
    "previous": (str, type(None)),
}


@dataclass(frozen=True)
class Reference:
    """Who needs a source: a resource of a state, its project, and the person who applied it last."""

    lineage: str
    address: str
    owner: str
    project: str

    @property
    def key(self) -> str:
        """Where the reference is stored."""
        return keys.reference(self.lineage, self.address)

    def record(
        self, before: Mapping[str, Any], resolved: ResolvedSource, listing: Optional[str]
    ) -> Dict[str, Any]:
        """The document of a reference to ``resolved``; without a ``listing`` while the source is copied.

        ``before`` is the document that it replaces, empty if there is none: the version that it names stays until the
        new one is complete.
        """
        is_same = _identity(before) == resolved.identity and before.get("pin") == resolved.pin
        document: Dict[str, Any] = {
            "version": 1,
            **asdict(self),
            "source": resolved.source,
            "endpoint": resolved.endpoint,
            "revision": resolved.revision,
            "pin": resolved.pin,
            "listing": listing or (before.get("listing") if is_same else None),
            "files": len(resolved.files),
            "bytes": resolved.size,
            "previous": None,
            "previous_version": None,
        }
        if listing is None and before:
            document.update(_previous(before, is_same))
        return document


class StoredReference(NamedTuple):
    """A reference in a store. ``last_used`` is in Unix seconds by the store's clock."""

    key: str
    record: Mapping[str, Any]
    last_used: float

    @property
    def identity(self) -> str:
        """The identity of the source, as ``ResolvedSource`` has it."""
        return str(_identity(self.record))

    @property
    def listing(self) -> Optional[str]:
        """The listing of the source; None until it is complete for the first time."""
        listing = self.record["listing"]
        return None if listing is None else str(listing)

    @property
    def listings(self) -> FrozenSet[str]:
        """The listings that must stay: the one it names and the one that it replaces."""
        return frozenset(filter(None, (self.record["listing"], self.record["previous"])))

    def versions(self) -> Iterator[Mapping[str, Any]]:
        """The record once for each version it keeps: the one wanted, and the one it replaces."""
        yield self.record
        previous, version = self.record["previous"], self.record.get("previous_version")
        if previous and version:
            yield {**self.record, **version, "listing": previous}


class StoreReferences(NamedTuple):
    """All references of a store, and an error for each that can't be read, by its key."""

    stored: Tuple[StoredReference, ...]
    damaged: Mapping[str, StorageError]

    def require_readable(self) -> None:
        """StorageError if a reference is damaged: what it needs is unknown then."""
        for error in self.damaged.values():
            raise error


def put_reference(
    objects: ObjectStore,
    reference: Reference,
    resolved: ResolvedSource,
    listing: Optional[str] = None,
) -> Optional[str]:
    """Reference a source: before it is copied, and with its ``listing`` once all of it is in the store.

    Returns the listing that the reference names now.
    """
    data = objects.get(reference.key)
    before: Dict[str, Any] = {}
    with contextlib.suppress(ValueError):  # a damaged reference is replaced
        before = {} if data is None else _decode(data)
    document = reference.record(before, resolved, listing)
    objects.put(reference.key, documents.encode(document))
    return StoredReference(reference.key, document, 0.0).listing


def renew_reference(objects: ObjectStore, lineage: str, address: str) -> None:
    """Note that the source of a resource was used now."""
    key = keys.reference(lineage, address)
    data = objects.get(key)
    if data is not None:
        objects.put(key, data)


def drop_reference(objects: ObjectStore, lineage: str, address: str) -> bool:
    """Delete a resource's reference; False if there was none."""
    key = keys.reference(lineage, address)
    existed = objects.stat(key) is not None
    objects.delete([key])
    return existed


def read_references(objects: ObjectStore, lineage: str = "") -> StoreReferences:
    """All references, or those of one state."""
    stored: List[StoredReference] = []
    damaged: Dict[str, StorageError] = {}
    prefix = keys.reference_prefix(lineage) if lineage else keys.REFERENCES
    for stat in objects.list(prefix):
        data = objects.get(stat.key)
        try:
            record = None if data is None else _decode(data)
        except ValueError as error:
            damaged[stat.key] = _damaged_error(objects, stat.key, str(error))
            continue
        if record is not None:
            stored.append(StoredReference(stat.key, record, stat.modified))
    return StoreReferences(tuple(stored), damaged)


def _decode(data: bytes) -> Dict[str, Any]:
    record = documents.decode(data)
    wrong = [name for name, kind in _TYPES.items() if not isinstance(record.get(name, ...), kind)]
    wrong += [name for name in ("listing", "previous") if not is_digest(record.get(name) or "0" * 64)]  # fmt: skip
    if wrong:
        raise ValueError(f"missing or invalid {wrong[0]}")
    return record


def _damaged_error(objects: ObjectStore, key: str, reason: str) -> StorageError:
    return StorageError(
        f"{objects.url}/{key} is corrupt: {reason}",
        "The next apply of its project writes the reference again. If that project no longer exists, delete the reference.",
        code=documents.DAMAGED,
    )


def _identity(record: Mapping[str, Any]) -> Optional[str]:
    source, endpoint = record.get("source"), record.get("endpoint")
    return source if endpoint is None else f"{source} {endpoint}"


def _previous(before: Mapping[str, Any], is_same: bool) -> Dict[str, Any]:
    if not is_same and before.get("listing"):
        version = {name: before[name] for name in ("source", "endpoint", "revision", "pin", "files", "bytes")}  # fmt: skip
        return {"previous": before["listing"], "previous_version": version}
    return {name: before.get(name) for name in ("previous", "previous_version")}
