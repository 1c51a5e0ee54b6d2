"""JSON files that hold a listing's document, and a little about it: written and read without having the document in memory.

They are ``{…, "document": DOCUMENT, …}``; where in it the document stands doesn't matter to any reader.
"""

from __future__ import annotations

import json
import os
import re
from itertools import chain
from pathlib import Path
from typing import Any, Dict, Mapping, Optional

from trainctl.base.files import write_atomic
from trainctl.node.content.listing import Listing

_EDGE_BYTES = 2**16
_BEGIN = re.compile(rb'"document":\s*\{')
_END = re.compile(rb'"version":\s*1\s*\}')
"""How a document ends. In no string stands a quote that isn't escaped, so neither is anywhere in one."""


def write_stored(path: Path, about: Mapping[str, Any], listing: Listing) -> None:
    """Create or replace such a file; ``about`` is what it holds beside the document."""
    begin = json.dumps({**about, "document": None}).encode()
    head = begin[: -len(b"null}")]
    write_atomic(path, chain((head,), listing.pieces(), (b"}\n",)))


def read_about(path: Path) -> Optional[Dict[str, Any]]:
    """What a file holds beside the document; None if there is no such file, or it is none of these."""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            head = stream.read(_EDGE_BYTES)
            stream.seek(max(0, size - _EDGE_BYTES))
            tail = stream.read(_EDGE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    begin, ends = _BEGIN.search(head), list(_END.finditer(tail))
    if begin is None or not ends:
        return None
    try:
        found = json.loads(head[: begin.start()] + b'"document": null' + tail[ends[-1].end() :])
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
