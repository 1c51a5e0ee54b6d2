"""Values that servers send, parsed without trusting them. ValueError for whatever is malformed."""

from __future__ import annotations

import json
import re
from typing import Any

_DIGITS = re.compile(r"[0-9]{1,19}")
_LARGEST = 2**63 - 1
"""The largest file that any disk holds, in bytes."""


def size_of(value: object) -> int:
    """A file's size, sent as a number or as its digits."""
    size = int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else value
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _LARGEST:
        raise ValueError("not the size of a file")
    return size


def json_of(body: bytes) -> Any:
    """A body in JSON."""
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
