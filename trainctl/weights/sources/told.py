"""What servers tell, read as if by somebody who may lie. ValueError for whatever is none of it."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree

_DIGITS = re.compile(r"[0-9]{1,19}")
_LARGEST = 2**63 - 1
"""What a file's size may be on any disk."""


def size_of(told: object) -> int:
    """A file's size, told as a number or as its digits."""
    size = int(told) if isinstance(told, str) and _DIGITS.fullmatch(told) else told
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _LARGEST:
        raise ValueError("no size of a file")
    return size


def tag_of(told: str) -> str:
    """An entity tag, with its quotes or without: something, as it identifies content, that fits into the header of a request."""
    if not (told.strip('"') and told.isascii() and told.isprintable()):
        raise ValueError("no entity tag")
    return told


def json_of(body: bytes) -> Any:
    """A body in JSON."""
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("JSON that is nested without end") from None


def xml_of(body: bytes) -> ElementTree.Element:
    """A body in XML."""
    # Buckets send no document type, and only one could make a small body grow. Nor do they send UTF-16, in which it would be other bytes.
    if b"<!DOCTYPE" in body or b"\0" in body:
        raise ValueError("XML with a document type")
    try:
        return ElementTree.fromstring(body)  # noqa: S314
    except (ElementTree.ParseError, LookupError):  # the second for an encoding that nobody knows
        raise ValueError("no XML") from None
