"""One file's bytes from an offset on, out of an answer that may be a part of the file or all of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainctl.errors import SourceCut, SourceWrong
from trainctl.model.files import SourceFile
from trainctl.weights.sources.http import Response

_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


def rest(response: Response, what: str, file: SourceFile, offset: int) -> Iterator[bytes]:
    """Exactly the bytes that follow the offset, whether or not the server knows ranges.

    SourceWrong when the file has another length than announced, SourceCut when less comes.
    """
    found = _part(response)
    if response.status == 206 and (found is None or int(found[1]) != offset):
        raise SourceCut(f"{what}: the server sent another part than was asked for")
    length = length_of(response)
    if length is not None and length != file.size:
        raise SourceWrong(
            f"{what}: the server has {length} bytes where {file.size} were announced",
            "It was changed or damaged upstream, or a proxy answers in its place. Plan again.",
        )
    skip = 0 if response.status == 206 else offset
    return _exactly(response.pieces(), what, file, offset, skip)


def length_of(response: Response) -> int | None:
    """The length of the whole file in bytes, of which the answer may be a part; None where it isn't told."""
    if response.status == 206:
        found = _part(response)
        return int(found[2]) if found and found[2] != "*" else None
    text = response.headers.get("Content-Length") or ""
    return int(text) if text.isdecimal() else None


def _part(response: Response) -> re.Match[str] | None:
    return _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range") or "")


def _exactly(
    pieces: Iterator[bytes], what: str, file: SourceFile, offset: int, skip: int
) -> Iterator[bytes]:
    left = file.size - offset
    for received in pieces:
        piece = received[skip:] if skip < len(received) else b""
        skip -= len(received) - len(piece)
        left -= len(piece)
        if left < 0:
            raise SourceWrong(f"{what}: more bytes came than the {file.size} announced")
        if piece:
            yield piece
    if left:
        raise SourceCut(f"{what}: the body ended {left} bytes early")
