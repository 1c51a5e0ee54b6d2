"""Secret values, and their removal from whatever leaves this process."""

from __future__ import annotations

import base64
import json
import re
import threading
from urllib.parse import quote, quote_plus

MASK = "(redacted)"

_SIGNATURE = re.compile(
    r"((?:X-Amz-Signature|X-Amz-Security-Token|X-Goog-Signature|[?&]sig)=)[A-Za-z0-9%+/=_-]{16,}"
)
"""What a signed URL is worth: there may be hundreds of thousands of them, too many to be known one by one."""

_MARKS = ("Signature=", "Security-Token=", "sig=")
"""One of these is in every such URL; looking for them is far quicker than for the pattern."""


class Redactor:
    """Knows every secret value of this process, in the spellings it may leak in; safe to use from many threads.

    A value is registered the moment it is read or received, before it is used for anything.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: tuple[str, ...] = ()

    def register(self, value: str) -> str:
        """Remember a secret value and hand it back."""
        spellings = {
            value,
            value.strip(),
            *(line for line in value.splitlines() if len(line.strip()) >= 8),
        }
        for one in tuple(spellings):
            spellings |= _spellings(one)
        with self._lock:
            known = {*self._values, *(spelling for spelling in spellings if spelling)}
            self._values = tuple(sorted(known, key=lambda one: (-len(one), one)))
        return value

    def redact(self, text: str, *, links: bool = False) -> str:
        """The text with every known secret masked, the longest first, and whatever signs a URL; ``links`` leaves presigned URLs usable."""
        for value in self._values:
            if value in text:
                text = text.replace(value, MASK)
        if links or not any(mark in text for mark in _MARKS):
            return text
        return _SIGNATURE.sub(rf"\1{MASK}", text)

    def safe_length(self, text: str) -> int:
        """How much of a text that goes on can be shown already: all but an end that may be the beginning of a secret."""
        held = 0
        for value in self._values:
            most = min(len(value) - 1, len(text))
            held = max(held, next((n for n in range(most, 0, -1) if text.endswith(value[:n])), 0))
        return len(text) - held


def _spellings(value: str) -> set[str]:
    """The value as JSON, Python, URLs and basic authentication write it."""
    return {
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        ascii(value)[1:-1],
        quote(value, safe=""),
        quote(value),
        quote_plus(value),
        base64.b64encode(value.encode()).decode(),
    }
