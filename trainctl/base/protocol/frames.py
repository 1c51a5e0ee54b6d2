"""The frames of a session, in both directions: a line of JSON, and as many bytes as its ``size`` says."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Optional, Tuple

_LONGEST_LINE = 2**16
Frame = Tuple[Mapping[str, Any], bytes]


def frame(head: Mapping[str, Any], data: bytes = b"") -> bytes:
    """One frame."""
    sized = {**head, "size": len(data)} if data else head
    return json.dumps(sized).encode() + b"\n" + data


class Frames:
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
        line = bytes(self._rest[: end if end >= 0 else _LONGEST_LINE])
        if end < 0 and len(line) < _LONGEST_LINE:
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
