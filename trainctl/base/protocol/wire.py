"""Encoding of calls: lines of JSON, frames, rows of long lists, errors; and requests from a node to its client.

Such a request is an event ``{"request": NUMBER, …}`` of a running call, its response a line ``{"response": NUMBER, …}`` on
standard input, where empty lines are heartbeats. If the client disconnects, or sends nothing for a minute, the call stops.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from itertools import count, groupby, islice
from operator import itemgetter
from typing import (
    Any,
    BinaryIO,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

from trainctl.errors import NodeError, SourceUnavailable, TrainctlError, error_class

_MAX_LINE = 2**16
Frame = Tuple[Mapping[str, Any], bytes]


def encode_frame(head: Mapping[str, Any], data: bytes = b"") -> bytes:
    """Encode a frame."""
    sized = {**head, "size": len(data)} if data else head
    return json.dumps(sized).encode() + b"\n" + data


class FrameDecoder:
    """Splits a stream into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._head: Optional[Dict[str, Any]] = None

    def feed(self, data: bytes) -> List[Frame]:
        """Return the frames that these bytes complete; ValueError for other input."""
        self._rest += data
        frames: List[Frame] = []
        while True:
            if self._head is None:
                end = self._rest.find(b"\n")
                line = bytes(self._rest[: end if end >= 0 else _MAX_LINE])
                if end < 0 and len(line) < _MAX_LINE:
                    return frames
                try:
                    head = json.loads(line)
                except ValueError:
                    head = None
                if not isinstance(head, dict) or not isinstance(head.get("call"), int):
                    raise ValueError(line.decode(errors="replace"))
                del self._rest[: end + 1]
                self._head = head
            size = self._head.get("size", 0)
            if len(self._rest) < size:
                return frames
            frames.append((self._head, bytes(self._rest[:size])))
            del self._rest[:size]
            self._head = None


def read_request(stream: BinaryIO) -> Dict[str, Any]:
    """Read the request from the first line; TrainctlError if it is malformed."""
    try:
        request = json.loads(stream.readline())
    except ValueError:
        raise NodeError("the request is not a complete line of JSON") from None
    if not isinstance(request, dict):
        raise NodeError("the request is not an object")
    return request


def emit(event: Mapping[str, Any]) -> None:
    """Send an event to the client."""
    write_line({"event": event})


def write_line(message: Mapping[str, Any], *, raw: bool = False) -> None:
    """Print a line; continue if the client has disconnected."""
    stream = sys.stderr if raw else sys.stdout
    try:
        stream.write(json.dumps(message) + "\n")
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


_ROWS_PER_BLOCK = 1000
_END = b"null\n"

Rows = Iterable[Sequence[Any]]


def row_blocks(lists: Iterable[Rows]) -> Iterator[Dict[str, Any]]:
    """Split lists into blocks, at least one for each list."""
    for number, rows in enumerate(lists):
        rows = iter(rows)
        block = list(islice(rows, _ROWS_PER_BLOCK))
        yield {"of": number, "rows": block}
        while block := list(islice(rows, _ROWS_PER_BLOCK)):
            yield {"of": number, "rows": block}


def encode_rows(lists: Iterable[Rows]) -> Iterator[bytes]:
    """Encode the lists that follow a request."""
    for block in row_blocks(lists):
        yield json.dumps(block).encode() + b"\n"
    yield _END


def decode_rows(stream: BinaryIO) -> Iterator[Iterator[List[Any]]]:
    """Yield the lists that follow a request, in order; TrainctlError if cut off."""
    numbered = map(_block, iter(stream.readline, _END))
    for _, blocks in groupby(numbered, key=itemgetter(0)):
        yield (row for _, rows in blocks for row in rows)


def _block(line: bytes) -> Tuple[int, List[Any]]:
    try:
        block = json.loads(line)
        return block["of"], block["rows"]
    except (ValueError, KeyError, TypeError):
        raise NodeError("the rows after the request are missing or cut off") from None


def error_to_json(error: TrainctlError) -> Dict[str, Any]:
    """Return an error as it is sent to the client: ``kind`` is its class in ``errors``."""
    names = (kind.__name__ for kind in type(error).__mro__)
    return {
        "kind": next(name for name in names if error_class(name)),
        "summary": error.summary,
        "detail": error.detail,
        "code": error.code,
        "retry_after": error.retry_after if isinstance(error, SourceUnavailable) else None,
    }


def error_from_json(value: Mapping[str, Any]) -> TrainctlError:
    """Rebuild an error of ``error_to_json``; an unknown class becomes TrainctlError."""
    kind = error_class(str(value.get("kind"))) or TrainctlError
    more = {"retry_after": value.get("retry_after")} if issubclass(kind, SourceUnavailable) else {}
    return kind(str(value["summary"]), str(value["detail"]), code=value.get("code"), **more)


_SILENCE_SECONDS = 60.0
_POLL_SECONDS = 1.0
_READ_BYTES = 2**16
Emit = Callable[[Mapping[str, Any]], None]


class CallerGone(Exception):
    """The client has disconnected."""


class PendingRequest:
    """A request, and its response once received."""

    response: Optional[Mapping[str, Any]] = None


class CallbackClient:
    """Thread-safe sender of requests; ``gone`` is set on disconnect."""

    def __init__(self, stream: BinaryIO, emit: Emit) -> None:
        self.gone = threading.Event()
        self._stream = stream
        self._emit = emit
        self._received_at = time.monotonic()
        self._changed = threading.Condition()
        self._numbers = count()
        self._open: Dict[int, PendingRequest] = {}
        for work in (self._listen, self._watch):
            threading.Thread(target=work, daemon=True).start()

    def send(self, event: Mapping[str, Any]) -> None:
        """Send an event that needs no response."""
        with self._changed:
            self._emit(event)

    def request(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request and return its response; CallerGone if disconnected."""
        return self.wait(self.begin(request))

    def begin(self, request: Mapping[str, Any]) -> PendingRequest:
        """Send a request without waiting for its response."""
        pending = PendingRequest()
        with self._changed:
            number = next(self._numbers)
            self._open[number] = pending
            self._emit({"request": number, **request})
        return pending

    def wait(self, pending: PendingRequest) -> Mapping[str, Any]:
        """Wait for a response; CallerGone if disconnected."""
        with self._changed:
            while pending.response is None:
                if self.gone.is_set():
                    raise CallerGone
                self._changed.wait(_POLL_SECONDS)
            return pending.response

    def _listen(self) -> None:
        """Read the descriptor itself: a buffer's lock could block the exit."""
        rest = b""
        while data := os.read(self._stream.fileno(), _READ_BYTES):
            self._received_at = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            for line in filter(None, lines):
                message = json.loads(line)
                with self._changed:
                    self._open.pop(message["response"]).response = message
                    self._changed.notify_all()
        self.gone.set()

    def _watch(self) -> None:
        while time.monotonic() - self._received_at < _SILENCE_SECONDS:
            if self.gone.wait(_POLL_SECONDS):
                return
        self.gone.set()
