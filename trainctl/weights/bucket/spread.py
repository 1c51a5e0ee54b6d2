"""All objects of a kind whose names are digests, however many: listings come by many requests at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from trainctl.base.packed import packed
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.objects import Found, Objects
from trainctl.weights.mirror.in_turn import in_turn

_PAGE = 1000
_WORTH = "04"
"""Where the first page ends before that name there are some 64 pages, and to list 256 directories costs hardly more requests."""
_AT_ONCE = 16


def spread(objects: Objects, prefix: str) -> Iterator[Found]:
    """What ``Objects.list`` tells of keys like ``PREFIX/<2>/<64>``, in the same order. A page tells of 1000, and each names the next: one after
    another they would take minutes for a million."""
    found = objects.list(prefix)
    first = list(islice(found, _PAGE))
    if len(first) < _PAGE or keys.stem(first[-1].key) >= _WORTH:
        yield from chain(first, found)
        return
    del first, found

    def listed(number: int) -> Sequence[Found]:
        some = objects.list(f"{prefix}/{number:02x}")
        return packed(some, lambda one: (one.key, one.size, one.modified), Found)

    for _, some in in_turn(listed, range(256), _AT_ONCE):
        yield from some
