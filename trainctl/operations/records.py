"""Records of providers and points of runs, next to the state and encrypted as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trainctl.encryption.keys import SEALED, not_encrypted_error, require_plain
from trainctl.errors import UsageError
from trainctl.operations.states import open_objects
from trainctl.operations.workspace import Workspace

if TYPE_CHECKING:
    from trainctl.base.objects import ObjectStat


POINTS = "points"
"""Prefix of the points of ended runs."""


def copy_records(workspace: Workspace, old: str, new: str) -> None:
    """Copy all records, and seal them with the newest key; onto themselves to encrypt them."""
    try:
        records = SealedRecords(workspace, old)
    except UsageError:  # of a plugin, which has none
        return
    for key in [item.key for prefix in ("nodes", POINTS) for item in records.list(prefix)]:
        data = records.get(key, accepts_plain=True)
        if data is not None:
            SealedRecords(workspace, new).put(key, data)


class SealedRecords:
    """JSON documents next to the state of a URL, sealed if there are keys; UsageError if it can't have any.

    A document is bound to its key and state, not to a version: an older copy is not noticed.
    """

    def __init__(self, workspace: Workspace, url: str = "") -> None:
        self._ledger, self._keys = workspace.ledger, workspace.state_keys
        access, environ = workspace.state_access, workspace.settings.environ
        self._objects = open_objects(url or self._ledger.url, *access, environ)

    def get(self, key: str, *, accepts_plain: bool = False) -> bytes | None:
        """Return a document; StateError if it is encrypted without a key, or isn't encrypted with one."""
        data, name = self._objects.get(key), f"{key} of the state"
        if not data:
            return None
        document = json.loads(data)
        if self._keys is None:
            require_plain(document, name)
        elif SEALED in document:
            return str(self._keys.unseal(document[SEALED], name, "record", key)).encode()
        elif not accepts_plain:
            raise not_encrypted_error(name)
        return data

    def _sealed(self, key: str, data: bytes) -> bytes:
        if self._keys is None:
            return data
        sealed = self._keys.seal(data.decode(), self._ledger.state().lineage, "record", key)
        return json.dumps({SEALED: sealed}).encode()

    def put(self, key: str, data: bytes) -> None:
        self._objects.put(key, self._sealed(key, data))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._objects.put_if_absent(key, self._sealed(key, data))

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        return self._objects.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        self._objects.delete(keys)
