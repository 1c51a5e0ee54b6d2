"""Records of providers next to the state."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainctl.desired.values import DesiredState, SecretSpec
from trainctl.errors import StateError
from trainctl.model.redaction import Redactor
from trainctl.model.specs.location import StateEncryption, StateKey, StoreLocation
from trainctl.operations.records import SealedRecords, copy_records
from trainctl.operations.workspace import Workspace, WorkspaceSettings

KEY = "nodes/a/node.json"


def workspace(place: Path, *, encrypted: bool) -> Workspace:
    """A project whose state is at a place."""
    url = (place / "state").as_uri()
    keys = StateEncryption((StateKey("k1", "passphrase"),)) if encrypted else None
    secrets = {"passphrase": SecretSpec("passphrase", "env", "PASSPHRASE")}
    desired = DesiredState(place, {}, secrets, state=StoreLocation(url, encryption=keys))
    environ = {"PASSPHRASE": "correct horse battery", "HOME": str(place)}
    settings = WorkspaceSettings(place, environ, Redactor(), lambda _: {})
    return Workspace(settings, desired)


def test_records_are_encrypted_where_the_state_is(tmp_path: Path) -> None:
    """A document is bound to its key; one without its encryption is refused, and copied to be encrypted."""
    plain = SealedRecords(workspace(tmp_path, encrypted=False))
    with workspace(tmp_path, encrypted=True) as encrypted:
        sealed = SealedRecords(encrypted)
        plain.put(KEY, b'{"a": 1}')
        with pytest.raises(StateError, match="is not encrypted"):
            sealed.get(KEY)
        copy_records(encrypted, encrypted.ledger.url, encrypted.ledger.url)

        assert sealed.get(KEY) == b'{"a": 1}'
        file = tmp_path / "state" / KEY
        assert b'"a"' not in file.read_bytes()
        with pytest.raises(StateError, match="doesn't declare"):
            plain.get(KEY)
        other = tmp_path / "state/nodes/b/node.json"
        other.parent.mkdir()
        other.write_bytes(file.read_bytes())
        with pytest.raises(StateError, match="cannot decrypt"):
            sealed.get("nodes/b/node.json")
