"""Responses with another range than requested are never used: often no digest would reveal it."""

from __future__ import annotations

import pytest

from tests.support.servers.raw_server import raw_response, serve_responses
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.errors import SourceInterrupted, SourceMismatch
from trainctl.plugin_api.sources import ByteRange
from trainctl.sources.https import HttpsSource

CONTENT = bytes(range(100))
FILE = SourceFile("x", len(CONTENT), 'etag:"e"')


def part(first: int, last: int, status: str = "206 Partial Content") -> bytes:
    content_range = f"bytes {first}-{last}/{len(CONTENT)}"
    body = CONTENT[first : last + 1]
    return raw_response(body, status, Content_Range=content_range, ETag='"e"')


UNNAMED = raw_response(CONTENT[:80], "206 Partial Content", ETag='"e"')


def rest(response: bytes, offset: int) -> bytes:
    """The file from that offset, if the server sends this response."""
    with serve_responses(lambda request: response) as server:
        resolved = ResolvedSource(f"{server.url}/x", "", ())
        with HttpsSource().open(resolved, FILE, offset, None) as body:
            return b"".join(body)


def read_range(response: bytes, span: ByteRange) -> bytes | None:
    with serve_responses(lambda request: response) as server:
        resolved = ResolvedSource(f"{server.url}/x", "", ())
        with HttpsSource().read_range(resolved, FILE, span, None) as fill:
            if fill is None:
                return None
            data = bytearray(span.length)
            fill(memoryview(data))
            return bytes(data)


@pytest.mark.parametrize("response", [part(0, 79), part(10, 89), part(10, 89, "200 OK"), UNNAMED])
def test_the_rest_of_a_file_begins_at_the_offset(response: bytes) -> None:
    assert rest(part(20, 99), 20) == CONTENT[20:]
    with pytest.raises(SourceInterrupted, match="a different range"):
        rest(response, 20)


@pytest.mark.parametrize(
    "response", [part(10, 39), part(20, 59), part(20, 39), raw_response(CONTENT, ETag='"e"')]
)
def test_a_range_is_the_requested_one(response: bytes) -> None:
    assert read_range(part(20, 49), ByteRange(20, 30)) == CONTENT[20:50]
    assert read_range(response, ByteRange(20, 30)) is None


def test_a_body_without_a_length_is_not_longer_than_the_file() -> None:
    head = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nTransfer-Encoding: chunked\r\n\r\n'
    with pytest.raises(SourceMismatch, match="received more than"):
        rest(head + b"64\r\n" + CONTENT + b"\r\n1\r\n!\r\n0\r\n\r\n", 0)
