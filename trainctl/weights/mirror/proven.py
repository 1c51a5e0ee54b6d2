"""What records say of files whose digests upstream announces in its own way: believed once the bytes were read again."""

from __future__ import annotations

import os
from itertools import groupby
from typing import Iterable, Iterator, Mapping, Sequence

from trainctl.base.below import open_regular
from trainctl.base.listing import SourceFile
from trainctl.node.content.packs import Slice
from trainctl.weights.mirror.announced import is_that, is_told_by_reading
from trainctl.weights.mirror.contents import Contents
from trainctl.weights.mirror.layout import Content

_READ_BYTES = 2**20


def proven(
    contents: Contents, groups: Mapping[str, Sequence[SourceFile]], found: Mapping[str, Content]
) -> dict[str, Content]:
    """Of what was found of files, by fingerprint, what is theirs; what isn't, or can't be read, counts as not here.

    It is read in the order in which it lies.
    """
    asked = {key for key in found if is_told_by_reading(groups[key][0])}
    placed = ((contents.find(found[key].sha256), key) for key in asked)
    places = sorted((place, key) for place, key in placed if place is not None)
    right = set(_right(places, groups, found))
    return {key: one for key, one in found.items() if key in right or key not in asked}


def is_proven(contents: Contents, file: SourceFile, content: Content) -> bool:
    """The same for one file."""
    return bool(proven(contents, {"": [file]}, {"": content}))


def _right(
    places: Iterable[tuple[Slice, str]],
    groups: Mapping[str, Sequence[SourceFile]],
    found: Mapping[str, Content],
) -> Iterator[str]:
    for path, its in groupby(places, key=lambda one: one[0].path):
        try:
            descriptor = open_regular(path)
        except OSError:  # a collection was faster
            continue
        try:
            for place, key in its:
                if is_that(groups[key][0], found[key].sha256, _pieces(descriptor, place)):
                    yield key
        finally:
            os.close(descriptor)


def _pieces(descriptor: int, place: Slice) -> Iterator[bytes]:
    """The bytes of a content; fewer where the disk can't read them all, and then they are none of anybody's."""
    at, end = place.offset, place.offset + place.length
    while at < end:
        try:
            piece = os.pread(descriptor, min(_READ_BYTES, end - at), at)
        except OSError:
            return
        if not piece:
            return
        at += len(piece)
        yield piece
