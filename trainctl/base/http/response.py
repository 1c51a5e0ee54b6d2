"""HTTP responses whose headers are parsed without ``email``.

Its parser takes a third of the time of a request for a small file.
"""

from __future__ import annotations

import http.client
from typing import Any, Dict, Optional

_MAX_LINE = 2**16
_MAX_HEADERS = 100
_CONTINUE = 100
_LENGTH_DIGITS = 19
_NO_BODY = (204, 304)


class Headers(Dict[str, str]):
    """Response headers by lower-case name, first value only; ``get`` takes any case."""

    def get(self, name: str, default: Optional[str] = None) -> Optional[str]:  # type: ignore[override]
        """Return the value of a header."""
        return super().get(name.lower(), default)


class FastResponse(http.client.HTTPResponse):
    """``http.client.HTTPResponse`` with ``Headers``."""

    def begin(self) -> None:
        """Read status line and headers; see the base class."""
        raw: Any = self  # attributes without type declarations
        if raw.headers is not None:
            return
        status = _CONTINUE
        while status == _CONTINUE:
            version, status, reason = raw._read_status()
            headers = _read_headers(raw.fp)
        raw.code = raw.status = status
        raw.reason = reason.strip()
        raw.version = 10 if version in ("HTTP/1.0", "HTTP/0.9") else 11
        raw.headers = raw.msg = headers
        raw.chunked = (headers.get("Transfer-Encoding") or "").lower() == "chunked"
        raw.chunk_left = None
        length = headers.get("Content-Length") or ""
        raw.length = (
            int(length)
            if length.isdecimal() and len(length) < _LENGTH_DIGITS and not raw.chunked
            else None
        )
        if status in _NO_BODY or status < 200 or raw._method == "HEAD":
            raw.length = 0
        raw.will_close = raw._check_close() or (not raw.chunked and raw.length is None)


def _read_headers(stream: Any) -> Headers:
    headers = Headers()
    for _ in range(_MAX_HEADERS + 1):
        line = stream.readline(_MAX_LINE + 1)
        if len(line) > _MAX_LINE:
            raise http.client.LineTooLong("header line")
        if line in (b"\r\n", b"\n", b""):
            return headers
        name, _, value = line.decode("latin-1").partition(":")
        headers.setdefault(name.lower(), value.strip())
    raise http.client.HTTPException(f"got more than {_MAX_HEADERS} headers")
