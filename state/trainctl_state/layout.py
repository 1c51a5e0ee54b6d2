"""Names and format of a log's objects."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainctl.base.json import JsonObject
from trainctl.errors import StateError

VERSION = 1
LOG, SNAPSHOTS, HISTORY = "log", "snapshots", "history"
TAIL, PROBE = "tail.json", "probe.json"
Batch = list[dict[str, Any]]
_NUMBERED = re.compile(r"[a-z]+/(\d{12})\.json")


class CorruptStateObject(StateError):
    """An object is missing or corrupt."""

    default_code = "state-corrupt"

    def __init__(self, key: str, url: str, problem: str) -> None:
        super().__init__(
            f"the state is corrupt: {key} {problem}",
            f"Restore this object of {url}, or the complete state, from a backup. Nothing was changed.",
        )

    def __copy__(self) -> CorruptStateObject:
        return self  # copy.copy would call __init__ with the summary


def key_of(kind: str, position: int) -> str:
    """Return the key of a position's object."""
    return f"{kind}/{position:012d}.json"


def position_of(key: str) -> int | None:
    """Return the position of a key; None for other objects."""
    match = _NUMBERED.fullmatch(key)
    return int(match[1]) if match else None


def encode(body: Mapping[str, Any]) -> bytes:
    """Encode an object as ASCII JSON, for any file name; StateError if impossible."""
    try:
        text = json.dumps({"version": VERSION, **body}, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise StateError(
            f"cannot write an entry to the state: {error}", "Nothing was written."
        ) from error
    return text.encode("ascii")


def decode(key: str, data: bytes, url: str) -> dict[str, Any]:
    """Decode an object; CorruptStateObject, or StateError for a newer format."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise CorruptStateObject(key, url, "is truncated or not JSON") from None
    version = body.get("version") if isinstance(body, dict) else None
    if not isinstance(version, int) or version < 1:
        raise CorruptStateObject(key, url, "has no format version")
    if version > VERSION:
        raise StateError(
            f"the state was written by a newer trainctl: {key} has format {version}, this one reads {VERSION}",
            f"Install the newer trainctl to use {url}. Nothing was changed.",
            code="newer-format",
        )
    checked: dict[str, Any] = body
    return checked


def decode_entries(key: str, data: bytes, url: str) -> list[dict[str, Any]]:
    """Decode the entries of a ``log/`` object."""
    return validate_batch(key, decode(key, data, url).get("entries"), url)


def validate_batch(key: str, batch: object, url: str) -> list[dict[str, Any]]:
    """Return a valid batch of entries; CorruptStateObject otherwise."""
    if not isinstance(batch, list) or not batch:
        raise CorruptStateObject(key, url, "contains no entries")
    if not all(isinstance(entry, dict) and isinstance(entry.get("id"), str) for entry in batch):
        raise CorruptStateObject(key, url, "contains an entry without an id")
    return batch


def batch_ids(entries: Sequence[JsonObject]) -> list[str]:
    """Return the ids of a batch; StateError if one has none."""
    ids = [str(entry.get("id") or "") for entry in entries]
    if not ids or "" in ids:
        raise StateError("every entry of an append needs an id", "Nothing was written.")
    return ids
