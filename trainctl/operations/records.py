"""Records of providers, next to the state and encrypted as it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from trainctl.encryption.keys import SEALED, EncryptionKeys, require_plain
from trainctl.errors import StateError, UsageError
from trainctl.operations.states import open_objects
from trainctl.operations.workspace import Workspace
from trainctl.plugin_api.project import ProviderRecords

if TYPE_CHECKING:
    from trainctl.base.objects import ObjectStat, ObjectStore

_PREFIX = "nodes"
"""Before all keys of records."""


def open_records(workspace: Workspace, url: str = "") -> SealedRecords:
    """Return the records next to the workspace's state, or to that of a URL; UsageError if it can't have any."""
    url = url or workspace.ledger.url
    objects = open_objects(url, *workspace.state_access, workspace.settings.environ)
    return SealedRecords(objects, workspace.state_keys, lambda: workspace.ledger.state().lineage)


def copy_records(workspace: Workspace, old: str, new: str) -> None:
    """Copy all records, and seal them with the newest key; onto themselves to encrypt them."""
    try:
        records = open_records(workspace, old)
    except UsageError:  # of a plugin, which has none
        return
    for key, data in records.documents():
        open_records(workspace, new).put(key, data)


class SealedRecords:
    """JSON documents in an object store, sealed if there are keys; ``state`` returns the id of the state.

    A document is bound to its key and state, not to a version: an older copy is not noticed.
    """

    def __init__(
        self, objects: ObjectStore, keys: EncryptionKeys | None, state: Callable[[], str]
    ) -> None:
        self._objects, self._keys, self._state = objects, keys, state

    def get(self, key: str) -> bytes | None:
        """Return a document; StateError if it is encrypted without a key, or isn't encrypted with one."""
        return self._unsealed(key, self._objects.get(key))

    def _unsealed(self, key: str, data: bytes | None, *, plain: bool = False) -> bytes | None:
        if not data:
            return None
        document, name = json.loads(data), f"{key} of the state"
        if self._keys is None:
            require_plain(document, name)
            return data
        if SEALED in document:
            return str(self._keys.unseal(document[SEALED], name, "record", key)).encode()
        if plain:
            return data
        raise StateError(
            f"{name} is not encrypted, but the manifest declares its encryption",
            "To encrypt it from now on, run: trainctl state rekey",
            code="state-not-encrypted",
        )

    def _sealed(self, key: str, data: bytes) -> bytes:
        if self._keys is None:
            return data
        sealed = self._keys.seal(data.decode(), self._state(), "record", key)
        return json.dumps({SEALED: sealed}).encode()

    def put(self, key: str, data: bytes) -> None:
        """Create or replace a document; see ``ObjectStore``."""
        self._objects.put(key, self._sealed(key, data))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create a document; see ``ObjectStore``."""
        return self._objects.put_if_absent(key, self._sealed(key, data))

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        """List documents; see ``ObjectStore``."""
        return self._objects.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete documents; see ``ObjectStore``."""
        self._objects.delete(keys)

    def documents(self) -> Iterator[tuple[str, bytes]]:
        """Yield keys and content of all documents, also of plain ones."""
        for key in [item.key for item in self._objects.list(_PREFIX)]:
            data = self._unsealed(key, self._objects.get(key), plain=True)
            if data is not None:
                yield key, data


_: type[ProviderRecords] = SealedRecords
