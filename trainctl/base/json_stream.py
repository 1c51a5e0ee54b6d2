"""Reading JSON files that hold one long list, without having all of it in memory."""

from __future__ import annotations

import json
import re
from typing import Any, Iterator, TextIO

_READ = 2**16
_BETWEEN = re.compile(r"[\s,]*")


def objects_in(stream: TextIO, name: str) -> Iterator[Any]:
    """The elements of the first list of that name, one after another; ValueError where there is none, or it is cut off."""
    begin = re.compile(rf'"{name}":\s*\[')
    text = stream.read(_READ)
    found = begin.search(text)
    if found is None:
        raise ValueError(f"there is no list of {name}")
    decoder = json.JSONDecoder()
    at = found.end()
    while True:
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]  # it always matches
        if text.startswith("]", at):
            return
        try:
            value, end = decoder.raw_decode(text, at)
        except ValueError:
            more = stream.read(len(text) - at + _READ)  # at least twice as much of what is long
            if not more:
                raise ValueError("it is cut off") from None
            text, at = text[at:] + more, 0
            continue
        yield value
        at = end
