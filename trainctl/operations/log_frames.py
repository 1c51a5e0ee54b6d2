"""What a node says of a log, from bytes that arrive in pieces. The form is that of ``trainctl.node.runs.log_lines.read_lines``."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping
from typing import Any

from trainctl.model.reports import Piece


class Frames:
    """One rank's frames; ``offset`` is where another call would go on."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.offset = 0
        self._head: Mapping[str, Any] | None = None
        self._data = bytearray()
        self._told = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def restart(self) -> None:
        """Forget half a frame: another call begins with a whole one."""
        self._head = None
        self._data.clear()

    def take(self, data: bytes) -> Iterator[Piece]:
        """What is complete by now."""
        self._data += data
        while (piece := self._next()) is not None:
            if piece.lines or piece.left_out or piece.prepared_by:
                yield piece

    def _next(self) -> Piece | None:
        if self._head is None:
            end = self._data.find(b"\n")
            if end < 0:
                return None
            self._head = json.loads(self._data[:end])
            del self._data[: end + 1]
        head, size = self._head, int(self._head.get("bytes", 0))
        if len(self._data) < size:
            return None
        text = self._text(head, self._data[:size])
        del self._data[:size]
        self._head = None
        self.offset = int(head.get("next", self.offset))
        return self._piece(head, text)

    def _text(self, head: Mapping[str, Any], data: bytearray) -> str:
        """The bytes as text; a character that the end of an open frame goes through comes with the next one."""
        if head.get("left_out"):
            self._decoder.reset()
        # A sign of life says nothing of the line that is open.
        return self._decoder.decode(data, final=not head.get("open")) if data else ""

    def _piece(self, head: Mapping[str, Any], text: str) -> Piece:
        time, left_out = float(head.get("time", 0.0)), int(head.get("left_out", 0))
        if left_out or not text:
            by = "" if self._told else str(head.get("prepared_by", ""))
            self._told = self._told or bool(by)  # another call says it again
            return Piece(self.rank, time, left_out=left_out, prepared_by=by)
        goes_on = bool(head.get("open"))
        *whole, last = (text if goes_on else text.removesuffix("\n")).split("\n")
        lines = [line.removesuffix("\r") for line in whole]
        lines.append(last if goes_on else last.removesuffix("\r"))
        return Piece(self.rank, time, tuple(lines), goes_on)
