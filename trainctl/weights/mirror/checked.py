"""What a record says, and its digest beside it, so that a flipped bit is noticed wherever it is."""

from __future__ import annotations

import json
import re
from typing import Any, Mapping

from trainctl.base.json import canonical, hex_digest

_LISTING = re.compile(r"[0-9a-f]{64}")
_SAYS: Mapping[str, Any] = {
    "source": str,
    "revision": str,
    "files": int,
    "bytes": int,
    "owner": str,
    "project": str,
    "listing": (str, type(None)),
}
"""What every release wrote, and everybody relies on."""


def checked(record: Mapping[str, Any]) -> bytes:
    """The stored form of a record."""
    return canonical({**record, "check": hex_digest(record)})


def record_in(data: bytes) -> dict[str, Any]:
    """A record out of that; ValueError where it is not what was written. Earlier releases wrote no check."""
    try:
        record = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check = record.pop("check", None) if isinstance(record, dict) else "none"
    if check not in (None, hex_digest(record)):
        raise ValueError("its content has another digest than it says")
    return dict(record)


def reference_in(data: bytes) -> dict[str, Any]:
    """The same of a reference, which says what every release says."""
    record = record_in(data)
    lacking = [name for name, kind in _SAYS.items() if not isinstance(record.get(name, ...), kind)]
    if lacking:
        raise ValueError(f"it doesn't say its {lacking[0]}")
    for name in ("listing", "previous"):
        if not _LISTING.fullmatch(record.get(name) or "0" * 64):
            raise ValueError(f"its {name} is no listing's name")
    return record
