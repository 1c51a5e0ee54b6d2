"""A response with another range than requested is never used: often no digest would reveal it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.servers.raw_server import RawRequest, raw_response, serve_responses
from trainctl.base.http.limits import LIMITS
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.errors import SourceInterrupted, SourceMismatch
from trainctl.plugin_api.sources import ByteRange, RangeSource, SourceCredential, WeightSource
from trainctl.sources import source_for
from trainctl.sources.hf import HubSource

CONTENT = bytes(range(100))
COMMIT = "a" * 40
OBJECT = (
    "<R xmlns='s3'><Contents><Key>llm/x</Key><Size>100</Size><ETag>e</ETag>"
    "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents></R>"
)
FILES = {
    "hf://acme/model": f"git:{COMMIT}",
    "https://host/x": 'etag:"e"',
    "s3://box/llm": 'etag:"e"',
    "gs://box/llm": 'etag:"e"',
}
"""Validator of the file by source."""


@dataclass
class Asked:
    """A file of a source, whose server answers with ``answer``, whatever part is asked for."""

    source: RangeSource
    resolved: ResolvedSource
    file: SourceFile
    credential: SourceCredential | None
    answer: bytes = b""

    def rest(self, offset: int) -> bytes:
        """From there on."""
        with self.source.open(self.resolved, self.file, offset, self.credential) as pieces:
            return b"".join(pieces)

    def read_range(self, span: ByteRange) -> bytes | None:
        """Those bytes, if a part came."""
        with self.source.read_range(self.resolved, self.file, span, self.credential) as fill:
            if fill is None:
                return None
            found = bytearray(span.length)
            fill(memoryview(found))
            return bytes(found)


@pytest.fixture(params=FILES)
def asked(request: pytest.FixtureRequest) -> Iterator[Asked]:
    """Of each kind of source."""
    uri = request.param
    scheme = uri.partition(":")[0]

    def tell(heard: RawRequest) -> bytes:
        return raw_response(OBJECT) if "list-type=" in heard.target else made.answer

    LIMITS.clear()
    with serve_responses(tell) as liar:
        source: WeightSource = HubSource(liar.url) if scheme == "hf" else source_for(scheme)
        assert isinstance(source, RangeSource)
        bucket = SourceCredential("", "nobody", liar.url) if scheme not in ("hf", "https") else None
        if bucket:
            source.resolve(uri, None, bucket)
        resolved = ResolvedSource(uri if scheme != "https" else f"{liar.url}/x", COMMIT, ())
        made = Asked(source, resolved, SourceFile("x", len(CONTENT), FILES[uri]), bucket)
        yield made
    LIMITS.clear()


def sent(first: int, last: int, status: str = "206 Partial Content") -> bytes:
    """That part of the file."""
    told = f"bytes {first}-{last}/{len(CONTENT)}"
    return raw_response(CONTENT[first : last + 1], status, Content_Range=told, ETag='"e"')


def test_the_rest_of_a_file_begins_where_it_was_asked_to(asked: Asked) -> None:
    """As many bytes from elsewhere are refused, whatever the status, and so is a part that doesn't say which."""
    asked.answer = sent(20, 99)
    assert asked.rest(20) == CONTENT[20:]

    unnamed = raw_response(CONTENT[:80], "206 Partial Content", ETag='"e"')
    for answer in (sent(0, 79), sent(10, 89), sent(10, 89, "200 OK"), unnamed):
        asked.answer = answer
        with pytest.raises(SourceInterrupted, match="a different range"):
            asked.rest(20)


def test_a_part_is_the_one_that_was_asked_for(asked: Asked) -> None:
    """One of another beginning, or of another end, is none."""
    asked.answer = sent(20, 49)
    assert asked.read_range(ByteRange(20, 30)) == CONTENT[20:50]

    for answer in (sent(10, 39), sent(20, 59), sent(20, 39), raw_response(CONTENT, ETag='"e"')):
        asked.answer = answer
        assert asked.read_range(ByteRange(20, 30)) is None


def test_a_body_is_never_longer_than_the_file(asked: Asked) -> None:
    """Where no header says how long it is, the bytes are counted."""
    packets = b"64\r\n" + CONTENT + b"\r\n1\r\n!\r\n0\r\n\r\n"
    head = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nTransfer-Encoding: chunked\r\n\r\n'
    asked.answer = head + packets

    with pytest.raises(SourceMismatch, match="received more than"):
        asked.rest(0)
