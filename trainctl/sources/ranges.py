"""One file's bytes from an offset on, or a part of them, out of an answer that may be a part of the file or all of it.

An answer is a part where ``Content-Range`` says so: there are servers that send one with status 200.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainctl.base.listing import SourceFile
from trainctl.errors import SourceInterrupted, SourceMismatch
from trainctl.plugin_api.sources import ByteRange, Fill
from trainctl.sources.client import SourceResponse

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


def read_from(
    response: SourceResponse, what: str, file: SourceFile, offset: int
) -> Iterator[bytes]:
    """Exactly the bytes that follow the offset, whether or not the server knows ranges.

    SourceMismatch when the file has another length than announced, SourceInterrupted when less comes.
    """
    found = _content_range(response)
    if int(found[1]) != offset if found else response.status == 206:
        raise SourceInterrupted(f"{what}: the server returned a different range than requested")
    _check_total_length(response, what, file)
    return _check_length(response.iter_bytes(), what, file, offset, 0 if found else offset)


def read_range(
    response: SourceResponse, what: str, file: SourceFile, span: ByteRange
) -> Fill | None:
    """What takes exactly those bytes; None for an answer that is no part.

    SourceMismatch when the file has another length than announced.
    """
    found = _content_range(response)
    if found is None or (int(found[1]), int(found[2])) != (span.offset, sum(span) - 1):
        return None
    _check_total_length(response, what, file)
    return response.fill


def range_header(offset: int, length: int | None = None) -> dict[str, str]:
    """The header that asks for so many bytes from the offset on, or for all of them; none where that is the whole file."""
    if length is not None:
        return {"Range": f"bytes={offset}-{offset + length - 1}"}
    return {"Range": f"bytes={offset}-"} if offset else {}


def _check_total_length(response: SourceResponse, what: str, file: SourceFile) -> None:
    length = total_length(response)
    if length is not None and length != file.size:
        raise SourceMismatch(
            f"{what}: the server has {length} bytes, expected {file.size}",
            "The file has changed, or a proxy answers instead of the server. Plan again.",
        )


def total_length(response: SourceResponse) -> int | None:
    """The length of the whole file in bytes, of which the answer may be a part; None where it isn't told."""
    found = _content_range(response)
    if found is not None or response.status == 206:
        return int(found[3]) if found and found[3] != "*" else None
    text = response.headers.get("Content-Length") or ""
    return int(text) if text else None


def _content_range(response: SourceResponse) -> re.Match[str] | None:
    """What the answer is a part of: first and last byte, and the length of the whole."""
    found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range") or "")
    if found is None or response.status == 206:
        return found
    length = int(found[2]) - int(found[1]) + 1
    return found if response.headers.get("Content-Length") == str(length) else None


def _check_length(
    pieces: Iterator[bytes], what: str, file: SourceFile, offset: int, skip: int
) -> Iterator[bytes]:
    left = file.size - offset
    for received in pieces:
        piece = received[skip:] if skip < len(received) else b""
        skip -= len(received) - len(piece)
        left -= len(piece)
        if left < 0:
            raise SourceMismatch(f"{what}: received more than the expected {file.size} bytes")
        if piece:
            yield piece
    if left:
        raise SourceInterrupted(f"{what}: connection closed with {left} bytes missing")
