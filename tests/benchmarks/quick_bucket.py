"""An S3 server that costs little and holds a million small objects, so that what is measured against it is the client.

It keeps objects in memory, believes every signature, and answers what a mirror asks: listings, gets, puts (with ``If-None-Match``), heads (with the CRC-32,
as S3 has of what its libraries put) and deletions, alone or many. As a program: ``python -m tests.benchmarks.quick_bucket [MILLISECONDS]``; each answer takes so long. It prints its URL, and
ends with its input.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import sys
import time
import zlib
from base64 import b64encode
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from email.utils import formatdate
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 1000
_KEY = re.compile(rb"<Key>(.*?)</Key>")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class _Object(NamedTuple):
    data: bytes
    modified: float
    tag: str
    crc32: str

    @property
    def head(self) -> list[str]:
        return [f'ETag: "{self.tag}"', f"Last-Modified: {formatdate(self.modified, usegmt=True)}"]


class Answer(NamedTuple):
    """Status, headers and body."""

    status: int
    body: bytes | memoryview = b""
    headers: tuple[str, ...] = ()
    length: int | None = None


class QuickBucket:
    """The objects of one bucket, and how often what was asked."""

    def __init__(self) -> None:
        self._objects: dict[str, _Object] = {}
        self._keys: list[str] = []
        self.asked: Counter[str] = Counter()

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        """To one request."""
        where = urlsplit(target)
        key = unquote(where.path).lstrip("/").partition("/")[2]
        query = {
            name: its[0] for name, its in parse_qs(where.query, keep_blank_values=True).items()
        }
        if not key:
            self.asked["list" if method == "GET" else "delete"] += 1
            return self._listed(query) if method == "GET" else self._delete_all(body)
        self.asked[method.lower()] += 1
        if method == "PUT":
            return self._put(key, body, headers)
        if method == "DELETE":
            self._delete(key)
            return Answer(204)
        return self._get(key, headers, whole=method == "GET")

    def _get(self, key: str, headers: dict[str, str], *, whole: bool) -> Answer:
        result = self._objects.get(key)
        if result is None:
            return Answer(404, b"<Error><Code>NoSuchKey</Code></Error>" if whole else b"")
        part = _RANGE.match(headers.get("range", ""))
        if part is None or not whole:
            body, its = result.data if whole else b"", result.head
            if "x-amz-checksum-mode" in headers:
                its += [f"x-amz-checksum-crc32: {result.crc32}", "x-amz-checksum-type: FULL_OBJECT"]
            return Answer(200, body, tuple(its), len(result.data))
        first, size = int(part[1]), len(result.data)
        end = min(size, int(part[2]) + 1) if part[2] else size
        more = (*result.head, f"Content-Range: bytes {first}-{end - 1}/{size}")
        return Answer(206, memoryview(result.data)[first:end], more)

    def _put(self, key: str, body: bytes, headers: dict[str, str]) -> Answer:
        if key in self._objects and headers.get("if-none-match") == "*":
            return Answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        if key not in self._objects:
            insort(self._keys, key)
        tag = hashlib.md5(body, usedforsecurity=False).hexdigest()
        crc32 = b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
        self._objects[key] = _Object(body, time.time(), tag, crc32)
        return Answer(200, b"", tuple(self._objects[key].head))

    def _delete(self, key: str) -> None:
        if self._objects.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def _delete_all(self, body: bytes) -> Answer:
        matches = _KEY.findall(body)
        for item in matches:
            self._delete(item.decode())
        gone = b"".join(b"<Deleted><Key>%b</Key></Deleted>" % match for match in matches)
        return Answer(200, b"<DeleteResult>%b</DeleteResult>" % gone)

    def _listed(self, query: dict[str, str]) -> Answer:
        prefix = query.get("prefix", "")
        after = query.get("continuation-token") or query.get("start-after") or ""
        start = max(bisect_left(self._keys, prefix), bisect_right(self._keys, after))
        some = [key for key in self._keys[start : start + PAGE + 1] if key.startswith(prefix)]
        rows = "".join(map(self._row, some[:PAGE]))
        more = len(some) > PAGE
        token = f"<NextContinuationToken>{some[PAGE - 1]}</NextContinuationToken>" if more else ""
        return Answer(
            200,
            f"<ListBucketResult><Name>models</Name><KeyCount>{len(some[:PAGE])}</KeyCount>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>".encode(),
        )

    def _row(self, key: str) -> str:
        result = self._objects[key]
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(result.modified))
        return (
            f"<Contents><Key>{escape(key)}</Key><Size>{len(result.data)}</Size>"
            f"<LastModified>{at}.{int(result.modified % 1 * 1000):03}Z</LastModified>"
            f'<ETag>"{result.tag}"</ETag></Contents>'
        )


async def serve(bucket: QuickBucket, seconds: float) -> asyncio.Server:
    """On a port of loopback."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().split("\r\n")
                pairs = (line.partition(":") for line in lines if line)
                headers = {name.lower(): value.strip() for name, _, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, target, _ = first.split(" ")
                if seconds:
                    await asyncio.sleep(seconds)
                answer = bucket.answer(method, target, headers, body)
                writer.write(_head_of(answer))
                writer.write(answer.body)  # apart, as a longer answer would be a copy
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(converse, "127.0.0.1", 0, limit=2**20)


def _head_of(answer: Answer) -> bytes:
    length = len(answer.body) if answer.length is None else answer.length
    lines = [f"HTTP/1.1 {answer.status} OK", f"Content-Length: {length}", *answer.headers]
    return "\r\n".join([*lines, "", ""]).encode()


async def main(milliseconds: float) -> None:
    """Run as a program."""
    bucket = QuickBucket()
    server = await serve(bucket, milliseconds / 1000)
    print("http://{}:{}".format(*server.sockets[0].getsockname()), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0))
