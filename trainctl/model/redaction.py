"""Removal of secret values from everything that leaves this process."""

from __future__ import annotations

import base64
import json
import threading
from urllib.parse import quote, quote_plus

from trainctl.base.lazy_pattern import compile_lazily

MASK = "(redacted)"

_SIGNATURE = compile_lazily(
    r"((?:X-Amz-Signature|X-Amz-Security-Token|X-Goog-Signature|[?&]sig)=)[A-Za-z0-9%+/=_-]{16,}"
)
"""Signatures of presigned URLs; there are too many URLs to register each."""

_MARKS = ("Signature=", "Security-Token=", "sig=")
"""Substrings of every presigned URL; searching them first is much faster than the pattern."""


class Redactor:
    """Thread-safe registry of secret values. Register a value before its first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._registered: set[str] = set()
        self._values: tuple[str, ...] = ()

    def register(self, value: str) -> str:
        """Register a secret as JSON, Python, URLs, basic authentication and HTML encode it; return it."""
        if value in self._registered:  # as for each source that shares a credential
            return value
        from html import escape  # loaded only with secrets

        spellings = {
            value,
            value.strip(),
            *(line for line in value.splitlines() if len(line.strip()) >= 8),
        }
        for text in tuple(spellings):
            spellings |= {
                escape(text),
                escape(json.dumps(text, ensure_ascii=False)[1:-1]),
                json.dumps(text)[1:-1],
                json.dumps(text, ensure_ascii=False)[1:-1],
                repr(text)[1:-1],
                ascii(text)[1:-1],
                quote(text, safe=""),
                quote(text),
                quote_plus(text),
                base64.b64encode(text.encode()).decode(),
            }
        with self._lock:
            values = {*self._values, *(spelling for spelling in spellings if spelling)}
            self._values = tuple(sorted(values, key=lambda text: (-len(text), text)))
            self._registered.add(value)
        return value

    def redact(self, text: str, *, links: bool = False) -> str:
        """Mask all registered secrets; ``links`` keeps presigned URLs usable."""
        for value in self._values:
            if value in text:
                text = text.replace(value, MASK)
        if links or "=" not in text or not any(mark in text for mark in _MARKS):
            return text
        return _SIGNATURE.sub(rf"\1{MASK}", text)

    def safe_length(self, text: str) -> int:
        """Length of the text without a tail that may be the start of a secret."""
        tail = 0
        for value in self._values:
            longest = min(len(value) - 1, len(text))
            tail = max(
                tail, next((n for n in range(longest, 0, -1) if text.endswith(value[:n])), 0)
            )
        return len(text) - tail
