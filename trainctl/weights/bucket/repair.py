"""Fetching again what is wrong in a bucket: the file, or the one chunk of it, from its source as it is now."""

from __future__ import annotations

import hashlib
import threading

from trainctl.errors import SourceGone, SourceWrong
from trainctl.model.files import ListedFile, ResolvedSource, SourceFile
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.layout import fingerprint
from trainctl.weights.mirror.mend import Origin


def fetched_again(
    shelf: Shelf, origin: Origin, file: ListedFile, offset: int, length: int, sha256: str
) -> bytes:
    """Those bytes of the file. SourceGone where upstream has not got it any more, SourceWrong where it has others."""
    wanted = _same(shelf, origin.resolved, file)

    def attempt() -> bytes:
        found = bytearray()
        with origin.source.open(origin.resolved, wanted, offset, origin.credential) as pieces:
            while len(found) < length and (piece := next(pieces, b"")):
                found += piece
        return bytes(found[:length])

    data = origin.retry.run(attempt, threading.Event())
    if hashlib.sha256(data).hexdigest() != sha256:
        raise SourceWrong(f"{origin.resolved.source}: {wanted.path!a} has other content now")
    return data


def _same(shelf: Shelf, resolved: ResolvedSource, file: ListedFile) -> SourceFile:
    """The file upstream whose content is, as far as anybody can know, the one that was mirrored."""
    digests = (shelf.document(keys.record(resolved)) or {}).get("files") or {}
    for one in resolved.files:
        known = one.sha256 or digests.get(fingerprint(resolved, one))
        if one.size == file.size and known == file.sha256:
            return one
    raise SourceGone(
        f"{resolved.source} has not got the content of {file.path!a} any more",
        "The next apply mirrors what it has now.",
    )
