"""Records of providers next to the state."""

from __future__ import annotations

import pytest

from tests.support.sealed import encryption_keys
from trainctl.errors import StateError
from trainctl.operations.records import SealedRecords
from trainctl.store.objects import MemoryObjects

KEY = "nodes/a/node.json"


def test_records_are_encrypted_where_the_state_is() -> None:
    """A document is bound to its key; one without its encryption is refused, and copied to be encrypted."""
    objects, keys = MemoryObjects(), encryption_keys()
    plain = SealedRecords(objects, None, lambda: "lineage")
    sealed = SealedRecords(objects, keys, lambda: "lineage")
    plain.put(KEY, b'{"a": 1}')
    with pytest.raises(StateError, match="is not encrypted"):
        sealed.get(KEY)
    for key, data in sealed.documents():
        sealed.put(key, data)

    assert sealed.get(KEY) == b'{"a": 1}'
    assert b'"a"' not in (objects.get(KEY) or b"")
    with pytest.raises(StateError, match="doesn't declare"):
        plain.get(KEY)
    objects.put("nodes/b/node.json", objects.get(KEY) or b"")
    with pytest.raises(StateError, match="cannot decrypt"):
        sealed.get("nodes/b/node.json")
