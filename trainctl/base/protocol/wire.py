"""What goes between a program on a node and its caller: lines, frames of a session, rows of long lists, and errors."""

from __future__ import annotations

import json
import os
import sys
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, BinaryIO, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from trainctl.base.failure import Failure
from trainctl.errors import SourceUnavailable, TrainctlError, error_class

_MAX_LINE = 2**16
Frame = Tuple[Mapping[str, Any], bytes]


def encode_frame(head: Mapping[str, Any], data: bytes = b"") -> bytes:
    """One frame."""
    sized = {**head, "size": len(data)} if data else head
    return json.dumps(sized).encode() + b"\n" + data


class FrameDecoder:
    """Takes a stream in pieces and gives its frames."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._head: Optional[Dict[str, Any]] = None

    def feed(self, data: bytes) -> List[Frame]:
        """The frames that this piece completes. ValueError, with the line, where something else was said."""
        self._rest += data
        found: List[Frame] = []
        while True:
            if self._head is None and not self._line():
                return found
            assert self._head is not None  # noqa: S101
            size = self._head.get("size", 0)
            if len(self._rest) < size:
                return found
            found.append((self._head, bytes(self._rest[:size])))
            del self._rest[:size]
            self._head = None

    def _line(self) -> bool:
        """Take the next line, if all of it is there."""
        end = self._rest.find(b"\n")
        line = bytes(self._rest[: end if end >= 0 else _MAX_LINE])
        if end < 0 and len(line) < _MAX_LINE:
            return False
        try:
            head = json.loads(line)
        except ValueError:
            head = None
        if not isinstance(head, dict) or not isinstance(head.get("call"), int):
            raise ValueError(line.decode(errors="replace"))  # noqa: TRY004 - of what was said
        del self._rest[: end + 1]
        self._head = head
        return True


def read_request(stream: BinaryIO) -> Dict[str, Any]:
    """The request, which is the first line; Failure where it is none."""
    try:
        found = json.loads(stream.readline())
    except ValueError:
        raise Failure("request", "the request is not a line of JSON, or only part of one") from None
    if not isinstance(found, dict):
        raise Failure("request", "the request is not an object")
    return found


def emit(event: Mapping[str, Any]) -> None:
    """Tell the caller something before the end."""
    write_line({"event": event})


def write_line(message: Mapping[str, Any], *, raw: bool = False) -> None:
    """Print one line; a caller that has gone is no reason to stop."""
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
    """The blocks of some lists."""
    for number, rows in enumerate(lists):
        rows = iter(rows)
        some = list(islice(rows, _ROWS_PER_BLOCK))
        yield {"of": number, "rows": some}
        while some := list(islice(rows, _ROWS_PER_BLOCK)):
            yield {"of": number, "rows": some}


def encode_rows(lists: Iterable[Rows]) -> Iterator[bytes]:
    """What follows a request."""
    for block in row_blocks(lists):
        yield json.dumps(block).encode() + b"\n"
    yield _END


def decode_rows(stream: BinaryIO) -> Iterator[Iterator[List[Any]]]:
    """The lists that follow a request; each is to be read before the next. Failure where they are cut off."""
    for _, some in groupby(_blocks(stream), key=itemgetter(0)):
        yield (row for _, rows in some for row in rows)


def _blocks(stream: BinaryIO) -> Iterator[Tuple[int, List[Any]]]:
    for line in iter(stream.readline, _END):
        yield _block(line)


def _block(line: bytes) -> Tuple[int, List[Any]]:
    try:
        block = json.loads(line)
        return block["of"], block["rows"]
    except (ValueError, KeyError, TypeError):
        raise Failure("request", "what should follow the request doesn't, or is cut off") from None


def error_to_json(error: TrainctlError) -> Dict[str, Any]:
    """The form that travels."""
    return {
        "kind": type(error).__name__,
        "summary": error.summary,
        "detail": error.detail,
        "code": error.code,
        "retry_after": error.retry_after if isinstance(error, SourceUnavailable) else None,
    }


def error_from_json(value: Mapping[str, Any]) -> TrainctlError:
    """Read what ``error_to_json`` returned; an unknown class becomes TrainctlError."""
    kind = error_class(str(value.get("kind"))) or TrainctlError
    more = {"retry_after": value.get("retry_after")} if issubclass(kind, SourceUnavailable) else {}
    return kind(str(value["summary"]), str(value["detail"]), code=value.get("code"), **more)
