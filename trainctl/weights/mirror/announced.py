"""What a mirror's records say that a source's files are, held against what upstream announced of them: whoever writes there may have written anything.

DESIGN.md, "What records are worth".
"""

from __future__ import annotations

import hashlib
from itertools import zip_longest
from typing import Iterable, Iterator

from trainctl.base.listing import ListedFile, ResolvedSource, SourceFile
from trainctl.weights.mirror.sums import announced, sums_of


class Contradicted(Exception):
    """Upstream announced other files than records say."""


def may_be(file: SourceFile, sha256: str, size: int) -> bool:
    """Whether a file can be that content, as far as can be told without reading it."""
    return size == file.size and file.sha256 in (None, sha256)


def held_against(resolved: ResolvedSource, listed: Iterable[ListedFile]) -> Iterator[ListedFile]:
    """The files of a listing as they pass. Contradicted at the first that can't be the source's: both are in the order of paths."""
    for file, one in zip_longest(resolved.files, listed):
        if file is None or one is None or file.path != one.path:
            raise Contradicted
        if not may_be(file, one.sha256, one.size):
            raise Contradicted
        yield one


def can_be(resolved: ResolvedSource, listed: Iterable[ListedFile]) -> bool:
    """Whether a listing can be that of the source."""
    try:
        return all(True for _ in held_against(resolved, listed))
    except Contradicted:
        return False


def is_told_by_reading(file: SourceFile) -> bool:
    """Whether upstream announced a digest that records don't have: only the bytes tell whether they speak the truth."""
    return announced(file)[0] == "git"


def is_that(file: SourceFile, sha256: str, pieces: Iterable[bytes | memoryview]) -> bool:
    """Whether these bytes have that sha256, which nodes will hold them against, and upstream's digest."""
    whole, upstream = hashlib.sha256(), sums_of(file)
    for piece in pieces:
        whole.update(piece)
        if upstream is not None:
            upstream.update(piece)
    kind, told = announced(file)
    right = upstream is None or upstream.told()[kind] == told
    return right and whole.hexdigest() == sha256
