"""HTTP/1.1 as RFC 9112 frames it: requests without a body, and their answers, one after another on a connection.

``http.client`` does the same at three times the cost: of files of some kilobytes that is most of what there is to do.
"""

from __future__ import annotations

import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from trainctl.base.flow import Flow

T = TypeVar("T")
_STATUS = re.compile(r"HTTP/1\.([01]) ([1-5]\d\d)(?: |$)")
_EMPTY_LINE = re.compile(rb"\n\r?\n")
_LONGEST_HEAD = 2**17
_MOST_HEADS = 16
"""Interim ones, and the one that counts. Limits of time are of waiting: they don't end what comes at once, and goes on."""
_BUFFER_BYTES = 2**16
_LENGTH = re.compile(r"[0-9]{1,18}")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f]")


class Malformed(OSError):
    """The peer does not speak HTTP, or broke off within a frame."""


class Headers:
    """An answer's headers; of one that is repeated the first counts."""

    def __init__(self, found: Mapping[str, str]) -> None:
        self._found = found

    def get(self, name: str) -> str | None:
        """The value of a header, by its name in any case."""
        return self._found.get(name.lower())


class Connected(Protocol):
    """What bytes come and go by: a socket, or what stands for one."""

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        ...

    def recv(self, most: int) -> bytes:
        """What has come, at most so much; nothing at the end."""
        ...

    def recv_into(self, view: memoryview, size: int = 0, flags: int = 0) -> int:
        """The same into memory that is there."""
        ...

    def settimeout(self, seconds: float | None) -> None:
        """The longest wait for a byte."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Wire:
    """A connected socket, silent for at most so many seconds. An answer must be read to its end before the next request.

    Its head comes within that time altogether, and its body keeps coming: else TooSlow, which is a TimeoutError.
    """

    def __init__(self, connected: Connected, host: str, silence: float) -> None:
        self._socket = connected
        self._host = host
        self._received = b""
        self._at = 0
        self._whole = 0
        self._flow = Flow(silence)
        connected.settimeout(silence)
        if isinstance(connected, socket.socket) and not isinstance(connected, ssl.SSLSocket):
            # The kernel waits, for all that is wanted at once: each return to Python may cost a turn among threads.
            self._whole = socket.MSG_WAITALL
            connected.settimeout(None)
            limit = struct.pack("@ll", int(silence), int(silence % 1 * 1e6))
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def ask(self, method: str, target: str, headers: Mapping[str, str]) -> Answer:
        """Send a request and read what comes before the body. OSError for whatever goes wrong."""
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items() if name.lower() != "host"]
        if any(map(_UNSAFE.search, lines)) or " " in target:
            raise ValueError("a request that would not be one line each")
        _timed(self._socket.sendall, "\r\n".join([*lines, "", ""]).encode("latin-1"))
        self._flow.need_all()
        for _ in range(_MOST_HEADS):
            first, *lines = self.head()
            found = _STATUS.match(first)
            if found is None:
                raise Malformed("no HTTP/1 answer")
            if not found[2].startswith("1"):
                self._flow.need_some()
                return Answer(self, int(found[2]), _headers(lines), method, keeps=found[1] == "1")
        raise Malformed("interim answers without an end")

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def head(self) -> list[str]:
        """The lines up to an empty one, as Latin-1, whatever they are."""
        while True:
            end = _EMPTY_LINE.search(self._received, self._at)
            if end is not None:
                text = self._received[self._at : end.start()].decode("latin-1")
                self._at = end.end()
                return text.replace("\r", "").split("\n")
            self._more()

    def line(self) -> bytes:
        """The next line with its end."""
        while True:
            end = self._received.find(b"\n", self._at) + 1
            if end:
                found, self._at = self._received[self._at : end], end
                return found
            self._more()

    def _more(self) -> None:
        """Receive something behind what has not been read."""
        if len(self._received) - self._at > _LONGEST_HEAD:
            raise Malformed("a head or a line without an end")
        began = time.monotonic()
        more = _timed(self._socket.recv, _BUFFER_BYTES)
        self._flow.came(len(more), time.monotonic() - began)
        if not more:
            raise Malformed("the connection was closed")
        self._received, self._at = self._received[self._at :] + more, 0

    def readinto(self, view: memoryview) -> int:
        """Fill the view, with less only at the end of the connection."""
        done = min(len(view), len(self._received) - self._at)
        view[:done] = memoryview(self._received)[self._at : self._at + done]
        self._at += done
        while done < len(view):
            began = time.monotonic()
            count = _timed(self._socket.recv_into, view[done:], 0, self._whole)
            self._flow.came(count, time.monotonic() - began)
            if not count:
                break
            done += count
        return done

    def read(self, most: int) -> bytes:
        """So many bytes, less only at the end of the connection."""
        end = self._at + most
        if end <= len(self._received):
            found, self._at = self._received[self._at : end], end
            return found
        buffer = bytearray(most)
        count = self.readinto(memoryview(buffer))
        return bytes(memoryview(buffer)[:count])


class Answer:
    """What came back. ``left`` is how much of the body is to come, None where nobody says."""

    def __init__(
        self, wire: Wire, status: int, found: Mapping[str, str], method: str, *, keeps: bool
    ) -> None:
        self.status = status
        self.headers = Headers(found)
        self._wire = wire
        self._packets = "chunked" in found.get("transfer-encoding", "").lower()
        self._keeps = keeps and "close" not in found.get("connection", "").lower()
        self.left: int | None = None
        length = found.get("content-length", "")
        if length and not _LENGTH.fullmatch(length):
            raise Malformed("a length that is none")
        if method == "HEAD" or status in (204, 304):
            self.left, self._packets = 0, False
        elif not self._packets and length:
            self.left = int(length)
        self._packet = 0
        self.ended = self.left == 0

    @property
    def reusable(self) -> bool:
        """Whether the connection may carry another request."""
        return self.ended and self._keeps

    def read(self, most: int) -> bytes:
        """So many bytes of the body, less only at its end or where the connection breaks off: ``left`` tells which."""
        if self._packets:
            data = bytearray(most)
            return bytes(data[: self.readinto(memoryview(data))])
        return self._took(self._wire.read(most if self.left is None else min(most, self.left)))

    def _took(self, data: bytes) -> bytes:
        self._count(len(data), whole=bool(data))
        return data

    def readinto(self, view: memoryview) -> int:
        """The same into memory that is there."""
        if self._packets:
            return self._unpack(view)
        wanted = view if self.left is None else view[: self.left]
        count = self._wire.readinto(wanted)
        self._count(count, whole=count == len(wanted))
        return count

    def _count(self, count: int, *, whole: bool) -> None:
        if self.left is not None:
            self.left -= count
            self.ended = not self.left
        elif not whole:
            self.ended = True
            self._keeps = False

    def _unpack(self, view: memoryview) -> int:
        """A body in packets, each behind a line with its length in hexadecimal; what may follow the last is dropped."""
        filled = 0
        while filled < len(view) and not self.ended:
            if not self._packet:
                self._packet = self._length(self._wire.line())
                if not self._packet:
                    self._drop_trailers()
                    self.ended = True
                    break
            count = self._wire.readinto(view[filled : filled + self._packet])
            if not count:
                raise Malformed("the body broke off")
            filled += count
            self._packet -= count
            if not self._packet and self._wire.line().strip():
                raise Malformed("a packet that is longer than it says")
        return filled

    def _drop_trailers(self) -> None:
        size = 0
        while (line := self._wire.line()).strip():
            size += len(line)
            if size > _LONGEST_HEAD:
                raise Malformed("trailers without an end")

    def _length(self, line: bytes) -> int:
        digits = line.partition(b";")[0].strip()
        if not re.fullmatch(rb"[0-9a-fA-F]{1,15}", digits):
            raise Malformed("a packet without a length")
        return int(digits, 16)


def _headers(lines: Iterable[str]) -> dict[str, str]:
    """By name in lower case; a line that goes on in the next is put together."""
    found: dict[str, str] = {}
    name = ""
    for text in lines:
        if text[:1] in (" ", "\t"):
            found[name] = f"{found.get(name, '')} {text.strip()}"
            continue
        name, _, value = text.partition(":")
        name = name.lower()
        found.setdefault(name, value.strip())
    return found


def _timed(act: Callable[..., T], *arguments: object) -> T:
    """What a socket says that waited for too long is TimeoutError, which it isn't by itself before Python 3.10, nor where the kernel waits."""
    try:
        return act(*arguments)
    except (TimeoutError, BlockingIOError):
        raise TimeoutError from None
