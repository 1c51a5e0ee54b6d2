"""Encrypted state logs with keys that tests choose."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path

from trainctl.encryption.keys import EncryptionKeys
from trainctl.encryption.sealed_log import PositionMemory, SealedLog
from trainctl.model.specs.location import StateKey
from trainctl.plugin_api.state import StateLog

KEY = base64.b64encode(hashlib.sha256(b"one").digest()).decode()
OTHER_KEY = base64.b64encode(hashlib.sha256(b"other").digest()).decode()


def encryption_keys(keys: Mapping[str, str] | None = None) -> EncryptionKeys:
    """Keys in base64 by id, the newest first."""
    known = keys or {"k1": KEY}
    return EncryptionKeys([StateKey(name, name) for name in known], known.__getitem__)


def sealed_log(log: StateLog, memory: Path, keys: Mapping[str, str] | None = None) -> SealedLog:
    """Encrypt a log, and remember its position in a file."""
    return SealedLog(log, encryption_keys(keys), PositionMemory(memory))
