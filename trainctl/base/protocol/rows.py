"""Long lists on their way, after a request or before a result: in blocks of rows, so that nobody has to hold them.

After a request a block is a line ``{"of": NUMBER, "rows": [ROW, …]}``, and ``null`` ends them; before a result a block is an
event. Lists come one after another, by their numbers from 0 on; one that is empty is an empty block.
"""

from __future__ import annotations

import json
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, BinaryIO, Dict, Iterable, Iterator, List, Sequence, Tuple

from trainctl.base.failure import Failure

_AT_ONCE = 1000
_END = b"null\n"

Rows = Iterable[Sequence[Any]]


def blocks(lists: Iterable[Rows]) -> Iterator[Dict[str, Any]]:
    """The blocks of some lists."""
    for number, rows in enumerate(lists):
        rows = iter(rows)
        some = list(islice(rows, _AT_ONCE))
        yield {"of": number, "rows": some}
        while some := list(islice(rows, _AT_ONCE)):
            yield {"of": number, "rows": some}


def sent(lists: Iterable[Rows]) -> Iterator[bytes]:
    """What follows a request."""
    for block in blocks(lists):
        yield json.dumps(block).encode() + b"\n"
    yield _END


def received(stream: BinaryIO) -> Iterator[Iterator[List[Any]]]:
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
