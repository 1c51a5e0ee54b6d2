"""Secret values, and their removal from whatever leaves this process."""

from __future__ import annotations

import base64
import json
import threading
from urllib.parse import quote

MASK = "(redacted)"


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
            spellings.add(json.dumps(one)[1:-1])
            spellings.add(json.dumps(one, ensure_ascii=False)[1:-1])
            spellings.add(quote(one, safe=""))
            spellings.add(base64.b64encode(one.encode()).decode())
        with self._lock:
            known = {*self._values, *(one for one in spellings if one)}
            self._values = tuple(sorted(known, key=lambda one: (-len(one), one)))
        return value

    def redact(self, text: str) -> str:
        """The text with every known secret masked, the longest first."""
        for value in self._values:
            if value in text:
                text = text.replace(value, MASK)
        return text
