"""JSON types, canonical JSON and digests of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Mapping

if TYPE_CHECKING:
    from typing import TypeAlias

JsonValue: TypeAlias = (
    "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
)
JsonObject = Mapping[str, "JsonValue"]
_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)


def canonical(value: JsonValue) -> bytes:
    """Encode a value for hashing: sorted keys, no spaces, UTF-8."""
    return _ENCODER.encode(value).encode()


def digest(value: JsonValue) -> str:
    """Return ``sha256:`` and the hex digest of the canonical encoding."""
    return f"sha256:{hex_digest(value)}"


def hex_digest(value: JsonValue) -> str:
    """Return the hex sha256 of the canonical encoding."""
    return hashlib.sha256(canonical(value)).hexdigest()
